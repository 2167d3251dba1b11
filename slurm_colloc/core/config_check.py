# SPDX-License-Identifier: Apache-2.0
"""Whether what a site.toml says fits the schema: each key known, each value of its kind and within its bounds."""

import os
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin

from slurm_colloc.core.config_audit import WEEK
from slurm_colloc.core.errors import ConfigError, nearest

_CHOICES = {
    "policy": ("auto", "shadow", "pack", "off"),
    "user_file": ("allowed", "forbidden"),
    "rollout.policy": ("auto", "shadow", "pack", "off"),
    "rollout.late_binding": ("", "off", "shadow", "slices", "on"),
    "partition.job_submit": ("off", "shadow", "advise", "default", "enforce"),
    "partition.mps_users": ("", "one", "each", "all"),
    "sharing.order": ("mig", "mps", "shard"),
    "sharing.unbilled": ("mps", "shard"),
    "sharing.mps_daemon": ("none", "site", "prolog"),
    "sharing.late_binding": ("off", "shadow", "slices", "on"),
    "sharing.late_forms": ("gres", "gpus", "gpus-per-node", "gpus-per-task"),
    "sharing.late_back": ("off", "single", "any"),
    "sharing.rerun": ("requeue", "allowed"),
    "audit.rule.tell": ("users", "admins", "nobody"),
    "notices.mode": ("off", "admins", "users"),
    "notices.workdays": WEEK,
}

# Below these a value is a mistake with consequences: a sampler that never rests, a question that never gets an answer.
_LEAST = {
    "observe.period_s": 0.05,
    # None of these may mean "keep nothing": data that is deleted has often not been read yet.
    "observe.keep_raw_days": 1,
    "observe.keep_job_days": 1,
    "sharing.max_slowdown": 1.0,
    "timeouts.decide_s": 0.1,
    # People who are told twice must have time to read it.
    "notices.quiet_days": 1,
    "notices.job_wait_min": 10,
    "pool.sm_count": 1,
    "pool.gpu_mem_mib": 1,
    "pool.slice.sm_count": 1,
    "pool.slice.mem_mib": 1,
}
_MOST = {
    "rollout.percent": 100,
}
# Scheme, host, port, and path with query.
_URL = r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(/[!-~]*)?"
# Services would look for these wherever they were started.
_PATHS = ("paths.state", "paths.journal", "notices.command", "notices.textfile", "notices.state")

# Reasons for which a partition may refuse jobs, or hold them back for as long as it exists; see slurm.conf(5),
# "PARTITION CONFIGURATION".
RESTRICTIONS = (
    *("AllowAccounts", "DenyAccounts", "AllowQos", "DenyQos", "AllowGroups", "RootOnly", "ReqResv", "OverSubscribe"),
    *("MinNodes", "MaxNodes", "MaxCPUsPerNode", "MaxCPUsPerSocket", "MaxMemPerNode", "MaxMemPerCPU"),
)


def _is_restriction(text: str) -> bool:
    key, _, value = text.partition("=")
    is_number = re.fullmatch("[0-9]{1,15}", value) is not None
    return key in RESTRICTIONS and bool(value) and (is_number or not key.startswith(("Max", "Min")))


# Texts of a form: a test of one, and the form in words.
_FORMS: dict[str, tuple[Callable[[str], object], str]] = {
    **dict.fromkeys(_PATHS, (lambda text: not text or os.path.isabs(text), "an absolute path")),
    "observe.dcgm": (
        lambda text: text in ("", "dcgmi") or parse_url(text),
        "'http://host:port/path' of a dcgm-exporter or 'dcgmi'",
    ),
    "partition.restrictions": (_is_restriction, "'KEY=VALUE' of scontrol's, as 'AllowAccounts=lab,physics'"),
    "observe.gpu_reader": (lambda text: re.fullmatch("nvml|simulated:/.*", text), "'nvml' or 'simulated:/FOLDER'"),
    "observe.prometheus": (lambda text: not text or parse_address(text), "'ADDRESS:PORT', as '127.0.0.1:9499'"),
}


def section(schema: Any, table: Mapping[str, Any], prefix: str, source: str) -> dict[str, Any]:
    """Return the values of the NamedTuple ``schema`` that ``table`` declares, each of its key's kind and in its bounds.

    Args:
        schema: the NamedTuple.
        table: of TOML.
        prefix: the beginning of its keys, as "pool.slice."; empty at the top.
        source: names the file in errors.

    Raises:
        ConfigError: an unknown or missing key, a value of the wrong type or outside its choices.
    """
    fields: dict[str, Any] = schema.__annotations__
    for key in table:
        if key not in fields:
            valid = nearest(key, fields, f"; valid keys: {', '.join(fields)}")
            raise ConfigError(f"{source}: unknown key '{prefix}{key}'{valid}")
    values = {}
    for key, kind in fields.items():
        if key in table:
            values[key] = _value(kind, table[key], f"{prefix}{key}", source)
        elif key not in schema._field_defaults:
            from slurm_colloc.core.config_keys import DOCUMENTATION  # no submission of a sound site has use for them

            raise ConfigError(f"{source}: key '{prefix}{key}' is missing ({DOCUMENTATION[prefix + key]})")
    return values


def _value(kind: Any, value: Any, key: str, source: str) -> Any:
    is_table = hasattr(kind, "_fields") or get_origin(kind) is Mapping
    if is_table and not isinstance(value, dict):
        raise ConfigError(f"{source}: '{key}' must be a table, not '{value}'")
    if hasattr(kind, "_fields"):
        return kind(**section(kind, value, f"{key}.", source))
    if is_table:
        return {name: _value(get_args(kind)[1], item, f"{key}.{name}", source) for name, item in value.items()}
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{source}: '{key}' must be a list, not '{value}'")
        return tuple(_value(get_args(kind)[0], item, key, source) for item in value)
    return _scalar(kind, value, key, source)


_KIND_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _scalar(kind: Any, value: Any, key: str, source: str) -> Any:
    plain = get_args(kind)[0] if isinstance(kind, types.UnionType) else kind
    accepted = (int, float) if plain is float else (plain,)
    # bool is an int to Python, not to a person who wrote period_s = true.
    if not isinstance(value, accepted) or (isinstance(value, bool) and plain is not bool):
        raise ConfigError(f"{source}: '{key}' must be {_KIND_NAMES[plain]}, not '{value}'")
    # TOML's numbers have no end; a float's and a cluster's have.
    least, most = _LEAST.get(key, 0), _MOST.get(key, 2**53)
    if plain in (int, float) and not least <= value <= most:
        upto = f"to {most}" if key in _MOST else "up"
        raise ConfigError(f"{source}: '{key}' must be a number from {least} {upto}, not '{value}'")
    if key in _FORMS:
        is_good, form = _FORMS[key]
        if not is_good(str(value)):
            raise ConfigError(f"{source}: '{key}' must be {form}, not '{value}'")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise ConfigError(f"{source}: '{key}' must be one of {', '.join(_CHOICES[key])}, not '{value}'")
    return float(value) if plain is float else value


def parse_address(text: str) -> tuple[str, int] | None:
    """Return address and port of ``ADDRESS:PORT``, an IPv6 address in brackets; None when it is none."""
    match = re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", text)
    return (match[1].strip("[]"), int(match[2])) if match and 0 < int(match[2]) < 65536 else None


def parse_url(text: str, path: str = "/") -> tuple[bool, str, int, str] | None:
    """Return whether TLS is asked for, host, port and path (else ``path``) of an http or https URL; None of another."""
    match = re.fullmatch(_URL, text)
    if match is None:
        return None
    tls = match[1] == "https"
    port = int(match[3] or (443 if tls else 80))
    return (tls, match[2].strip("[]"), port, match[4] or path) if 0 < port < 65536 else None
