# SPDX-License-Identifier: Apache-2.0
"""A job_defense_shield configuration (YAML) -> entries of [[audit.rule]] with the same meaning, and what has none."""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from slurm_colloc.audit.jds_alerts import ALERTS, COMMON, GLOBAL, OUTSIDE, Alert
from slurm_colloc.audit.jds_notices import LADDER_KEYS, Section, lines_of, section
from slurm_colloc.audit.rules import RULES
from slurm_colloc.audited import JOB
from slurm_colloc.config_audit import AuditRule
from slurm_colloc.errors import InputError, nearest
from slurm_colloc.toml_text import value_text

_RENAMED = "partition-renamings"
_NAMES = {
    "cluster": "clusters",
    "clusters": "clusters",
    "partitions": "partitions",
    "excluded_users": "excluded_users",
    "excluded_partitions": "excluded_partitions",
    "excluded_qos": "excluded_qos",
}
_OWN = {**dict.fromkeys(_NAMES), "min_run_time": None, "include_running_jobs": None, "enabled": None}
# A year: longer than any job runs.
_NEVER_MIN = 525_600.0


class Note(NamedTuple):
    """Keys that are not carried over, and why; ``alert`` is empty for settings of no alert, ``keys`` for all of one."""

    alert: str
    keys: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.alert}{': ' * bool(self.alert)}{', '.join(self.keys)}{': ' * bool(self.keys)}{self.why}"


class Imported(NamedTuple):
    """What a configuration becomes; rules that it does not have are switched off."""

    rules: tuple[AuditRule, ...]
    notes: tuple[Note, ...]
    notices: Section


def convert(text: str) -> Imported:
    """Return what a configuration comes to.

    Raises:
        InputError: it is no YAML, has a key twice, one that is not known, or a value that a key cannot have.
    """
    table = _load(text)
    if not isinstance(table, dict):
        raise InputError("a configuration of job_defense_shield is a table of settings and alerts, and this is none")
    renamed = _renamed(table.pop(_RENAMED, {}))
    rules, notes = [], _notes("", GLOBAL, table)
    cancelling: dict[str, Mapping[Any, Any]] = {}
    for name, settings in table.items():
        kind = re.sub(r"-\d+$", "", name) if isinstance(name, str) else ""
        if name in GLOBAL:
            continue
        if kind not in ALERTS:
            wanted = f"unknown key {json.dumps(name, default=str)}"
            raise InputError(f"{wanted}{nearest(kind, (*GLOBAL, _RENAMED, *ALERTS), '')}")
        if not isinstance(settings, dict):
            raise InputError(f"alert '{name}' has no settings")
        rule, of_rule = _alert(name, ALERTS[kind], settings, renamed)
        rules += [rule] if rule else []
        notes += of_rule
        if rule and rule.code == "COL016" and rule.enabled:
            cancelling[name] = settings
    others = (AuditRule(code, enabled=False) for code in RULES if code not in {rule.code for rule in rules})
    return Imported((*rules, *others), tuple(notes), section(table, cancelling))


def as_toml(imported: Imported) -> str:
    """Return entries of [[audit.rule]] and a [notices], with what was not carried over in comments."""
    lines = ["# From a configuration of job_defense_shield."]
    named, others = ([rule for rule in imported.rules if bool(rule.name) is of_file] for of_file in (True, False))
    made = {rule.name for rule in named}
    lines += [f"# {note}" for note in imported.notes if note.alert not in made]
    for rule in named:
        lines += _entry(rule, (str(note) for note in imported.notes if note.alert == rule.name))
    lines += [
        "",
        "# No alert of its file is one of these. Without such an entry a rule runs by its own bounds.",
    ] * bool(others)
    for rule in others:
        lines += _entry(rule, [RULES[rule.code].title])
    of = imported.notices
    settings, action = ({key: value_text(value) for key, value in keys.items()} for keys in (of.settings, of.action))
    lines += ["", *lines_of(of, settings, action)]
    return "\n".join(lines).rstrip() + "\n"


def _entry(rule: AuditRule, comments: Iterable[str]) -> list[str]:
    keys = (pair for pair in rule._asdict().items() if pair[1] != AuditRule._field_defaults.get(pair[0]))
    return [
        *("", "[[audit.rule]]"),
        *(f"# {comment}" for comment in comments),
        *(f"{key} = {value_text(value)}" for key, value in keys),
    ]


def _notes(alert: str, reasons: Mapping[str, str], keys: Collection[Any]) -> list[Note]:
    """Return one note for each reason why some of ``keys`` are left out."""
    by_reason: dict[str, list[str]] = {}
    for key, why in reasons.items():
        if key in keys:
            by_reason.setdefault(why, []).append(key)
    return [Note(alert, tuple(of), why) for why, of in by_reason.items()]


def _alert(
    name: str, alert: Alert, settings: Mapping[Any, Any], renamed: Mapping[str, tuple[str, ...]]
) -> tuple[AuditRule | None, list[Note]]:
    """Return the entry that an alert becomes, None where it becomes none, and what is to be said of it."""
    known = (*_OWN, *COMMON, *alert.carried, *alert.dropped)
    for key, value in settings.items():
        if key not in known:
            raise InputError(
                f"alert '{name}': unknown key {json.dumps(key, default=str)}{nearest(str(key), known, '')}"
            )
        if value is None:
            raise InputError(f"alert '{name}': '{key}' has no value; give it one, or remove the line")
    if not alert.code:
        return None, [Note(name, (), OUTSIDE)]
    names = {field: _names(name, key, settings[key], renamed) for key, field in _NAMES.items() if key in settings}
    given = {key: _number(name, key, settings[key]) for key in (*alert.carried, *LADDER_KEYS) if key in settings}
    for key in alert.over_zero:
        if given.get(key) == 0:
            raise InputError(
                f"alert '{name}': '{key}' is 0, which here would be another bound; remove the alert, or it"
            )
    bounds = dict(alert.absent) | {
        of[0]: round(given[key] * of[1], 9) for key, of in alert.carried.items() if key in given
    }
    if alert.code == "COL016":
        bounds |= _idle(settings, bounds)
    notes = [Note(name, (), alert.remark)] if alert.remark else []
    notes += _notes(name, {**COMMON, **alert.dropped}, settings)
    rule = AuditRule(
        code=alert.code,
        name=name,
        # Without its nodes it would be about more runs than before, and by our own bound about others.
        enabled=_truth(name, "enabled", settings, True) and "nodelist" not in settings and not alert.anew,
        min_run_min=_number(name, "min_run_time", settings.get("min_run_time", 0)),
        # A rule about jobs that run cannot do without them, nor could that program's alert.
        running=_truth(name, "include_running_jobs", settings, False) or RULES[alert.code].about == JOB,
        bounds=bounds,
        tell="users",
        **names,
    )
    return rule, notes


def _idle(settings: Mapping[Any, Any], bounds: Mapping[str, float]) -> dict[str, float]:
    """Return the bounds of the two ways to be idle, of which that program knows each only where it is asked for."""
    found = {}
    if "cancel_minutes" not in settings and "first_warning_minutes" not in settings:
        found["first_warning_min"] = bounds.get("sliding_warning_min", _NEVER_MIN)
    if "sliding_cancel_minutes" not in settings and "sliding_warning_minutes" not in settings:
        found["sliding_warning_min"] = _NEVER_MIN
    return found


def _renamed(value: object) -> dict[str, tuple[str, ...]]:
    """Return what each new name of partitions stands for."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise InputError(f"'{_RENAMED}' must name a partition for each partition")
    return {new: tuple(old for old in value if value[old] == new) for new in value.values()}


def _names(alert: str, key: str, value: object, renamed: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) and key.startswith("cluster") else value
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise InputError(f"alert '{alert}': '{key}' must be a list of names; put each in quotes where it is a number")
    if "*" in found if key.startswith("excluded") else not found:
        raise InputError(f"alert '{alert}': '{key}' leaves nothing to look at; remove the alert, or name what is meant")
    if "*" in found:
        return ()
    old = renamed if key.endswith("partitions") else {}
    return tuple(dict.fromkeys(name for one in found for name in old.get(one, (one,))))


def _number(alert: str, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15 or math.isnan(value):
        raise InputError(f"alert '{alert}': '{key}' must be a number, 0 or more")
    return float(value)


def _truth(alert: str, key: str, settings: Mapping[Any, Any], default: bool) -> bool:
    value = settings.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"alert '{alert}': '{key}' must be True or False")
    return value


def _load(text: str) -> object:
    """Return what the YAML text says, a key twice in one table being an error.

    Raises:
        InputError: it is no YAML, or PyYAML is not there.
    """
    try:
        import yaml
    except ImportError as error:
        raise InputError("PyYAML reads such files, and is missing: pip install PyYAML") from error

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
                if key is not None and key in seen:
                    line = key_node.start_mark.line + 1
                    raise InputError(
                        f"line {line}: {json.dumps(key_node.value)} is there twice; the first would be lost"
                    )
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise InputError(f"{where}no YAML: {getattr(error, 'problem', None) or error}") from error
    except (RecursionError, ValueError, OverflowError) as error:
        raise InputError(f"no configuration: {type(error).__name__}") from error
