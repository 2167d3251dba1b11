# SPDX-License-Identifier: Apache-2.0
"""Whether what a site.toml says fits the schema: each key known, each value of its kind and within its bounds."""

import os
import re
import types
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, Any, get_args, get_origin

from slurm_colloc.core.errors import ConfigError, nearest

# Scheme, host, port, and path with query.
_URL = r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(/[!-~]*)?"
# TOML's numbers have no end; a float's and a cluster's have.
_MOST = 2**53
# A test of a value, and in words what it must be; what csub loads at every submission is no class without need.
Form = tuple[Callable[[Any], object], str]


def one_of(*choices: str) -> Form:
    """Return the form of a text that is one of several."""
    return (lambda text: text in choices), f"one of {', '.join(choices)}"


def number_from(least: float, most: float = _MOST) -> Form:
    """Return the form of a number within bounds: beyond them it is a mistake with consequences."""
    upto = f"to {most}" if most < _MOST else "up"
    return (lambda number: least <= number <= most), f"a number from {least} {upto}"


# Services would look for another wherever they were started.
Place = Annotated[str, (lambda text: not text or os.path.isabs(text), "an absolute path")]


def meanings(schema: Any) -> dict[str, str]:
    """Return what the keys of a NamedTuple mean: the texts below its fields, of which Python keeps none."""
    import ast  # no submission of a sound site has use for them
    from inspect import getsource

    (record,) = ast.parse(getsource(schema)).body
    assert isinstance(record, ast.ClassDef)
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(record.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
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
            raise ConfigError(f"{source}: key '{prefix}{key}' is missing ({meanings(schema)[key]})")
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
_FROM_ZERO = number_from(0)


def _scalar(kind: Any, value: Any, key: str, source: str) -> Any:
    kind, *forms = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    plain = get_args(kind)[0] if isinstance(kind, types.UnionType) else kind
    accepted = (int, float) if plain is float else (plain,)
    # bool is an int to Python, not to a person who wrote period_s = true.
    if not isinstance(value, accepted) or (isinstance(value, bool) and plain is not bool):
        raise ConfigError(f"{source}: '{key}' must be {_KIND_NAMES[plain]}, not '{value}'")
    for is_good, words in forms or ([_FROM_ZERO] if plain in (int, float) else []):
        if not is_good(value):
            raise ConfigError(f"{source}: '{key}' must be {words}, not '{value}'")
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
