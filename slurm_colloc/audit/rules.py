# SPDX-License-Identifier: Apache-2.0
"""The rules in force: those that site.toml sets, each as often as it is set, the others once by their own bounds."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from slurm_colloc.audit import (
    col001_zero_use,
    col002_outside_jobs,
    col003_low_use,
    col004_held_empty,
    col005_idle_tail,
    col006_parked_memory,
    col007_fits_a_slice,
    col008_cores,
    col009_host_memory,
    col010_fragmentation,
    col011_time_limit,
    col012_starved,
    col013_estimate,
    col014_beside_mps,
    col015_past_csub,
    col016_idle_now,
)
from slurm_colloc.audit.rule import Rule
from slurm_colloc.audited import JOB, NODE, Answer, Finding, Question, Subject
from slurm_colloc.config_audit import Audit, AuditRule
from slurm_colloc.errors import ConfigError, InputError

_MODULES = (
    col001_zero_use,
    col002_outside_jobs,
    col003_low_use,
    col004_held_empty,
    col005_idle_tail,
    col006_parked_memory,
    col007_fits_a_slice,
    col008_cores,
    col009_host_memory,
    col010_fragmentation,
    col011_time_limit,
    col012_starved,
    col013_estimate,
    col014_beside_mps,
    col015_past_csub,
    col016_idle_now,
)
RULES: Mapping[str, Rule] = {module.RULE.code: module.RULE for module in _MODULES}
# Keys of an entry that name values of a column, and whether the run must have one of them or none.
_NAMED = {
    "clusters": ("cluster", True),
    "partitions": ('"partition"', True),
    "gpu_types": ("kind", True),
    "excluded_users": ('"user"', False),
    "excluded_accounts": ("account", False),
    "excluded_partitions": ('"partition"', False),
    "excluded_qos": ("qos", False),
}


class Entry(NamedTuple):
    """A rule as it is in force; ``bounds`` has every bound of the rule."""

    name: str
    rule: Rule
    settings: AuditRule
    bounds: Mapping[str, float]


def entries(audit: Audit) -> tuple[Entry, ...]:
    """Return the rules in force, by code and in the order of site.toml.

    Raises:
        ConfigError: as ``all_entries``.
    """
    return tuple(one for one in all_entries(audit) if one.settings.enabled)


def all_entries(audit: Audit) -> tuple[Entry, ...]:
    """Return all rules, those that the site switched off, too.

    Raises:
        ConfigError: an unknown code or bound, a bound below 0, or a name that two entries have.
    """
    found: dict[str, Entry] = {}
    for settings in (*audit.rule, *(AuditRule(code) for code in RULES if code not in {one.code for one in audit.rule})):
        entry = _entry(settings)
        if entry.name in found:
            raise ConfigError(f"two [[audit.rule]] are called '{entry.name}'; give each a 'name' of its own")
        found[entry.name] = entry
    return tuple(sorted(found.values(), key=lambda one: one.rule.code))


def choose(known: Sequence[Entry], wanted: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries with these names or codes; all where none is wanted.

    Raises:
        InputError: one is neither.
    """
    for text in wanted:
        if not any(text in (entry.name, entry.rule.code) for entry in known):
            names = dict.fromkeys((*(entry.name for entry in known), *(entry.rule.code for entry in known)))
            raise InputError(f"no rule in force is called '{text}'{_nearest(text, names)}")
    return tuple(entry for entry in known if not wanted or entry.name in wanted or entry.rule.code in wanted)


def _entry(settings: AuditRule) -> Entry:
    rule = RULES.get(settings.code)
    name = settings.name or settings.code
    if rule is None:
        raise ConfigError(f"[[audit.rule]] has code '{settings.code}'{_nearest(settings.code, RULES)}")
    for key, value in settings.bounds.items():
        if key not in rule.bounds:
            raise ConfigError(f"[[audit.rule]] '{name}': {rule.code} has no bound '{key}'{_nearest(key, rule.bounds)}")
        if not value >= 0:
            raise ConfigError(f"[[audit.rule]] '{name}': 'bounds.{key}' must be 0 or more, not '{value:g}'")
    defaults = {key: bound.default for key, bound in rule.bounds.items()}
    return Entry(name, rule, settings, {**defaults, **settings.bounds})


def _nearest(key: str, known: Iterable[str]) -> str:
    near = get_close_matches(key, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(known)}"


def question(entry: Entry, audit: Audit) -> Question:
    """Return what an entry asks of the accounting."""
    rule, settings = entry.rule, entry.settings
    scope = []
    parameters: dict[str, object] = {**entry.bounds, "min_coverage_pct": audit.min_coverage_pct}
    parameters["parked_mib"] = audit.parked_mib
    for key, (column, one_of) in _NAMED.items():
        names = getattr(settings, key)
        if names:
            scope.append(f"{column} {'IN' if one_of else 'NOT IN'} (SELECT unnest($scope_{key}::VARCHAR[]))")
            parameters[f"scope_{key}"] = list(names)
    if settings.min_run_min:
        scope.append("to_s - start_s >= 60 * $scope_min_run_min")
        parameters["scope_min_run_min"] = settings.min_run_min
    if not settings.running:
        scope.append("end_s IS NOT NULL")
    return Question(
        rule.source,
        rule.subject,
        " AND ".join(scope),
        rule.judged,
        rule.found,
        rule.hours,
        rule.figures,
        parameters,
        rule.label,
    )


def findings(entry: Entry, answer: Answer, window: str) -> list[Finding]:
    """Return what an entry says of an answer; ``window`` are the options of a command for the same window."""
    # How much of the runs was sampled says nothing of what the accounting alone tells.
    measured = not entry.rule.accounted or "coverage_pct" in entry.rule.judged
    said = ((subject, entry.rule.say(subject, entry.bounds)) for subject in answer.subjects)
    return [
        Finding(
            rule=entry.name,
            code=entry.rule.code,
            severity=entry.rule.severity,
            about=entry.rule.about,
            cluster=subject.cluster,
            subject=subject.name,
            user=subject.user,
            title=entry.rule.title,
            gpu_hours=subject.gpu_hours,
            evidence=words.evidence,
            remedy=words.remedy,
            reproduce=_reproduce(entry, subject, window),
            coverage_pct=subject.coverage_pct if measured else None,
            methods=subject.methods if measured else (),
            jobs=subject.worst,
            digest=subject.evidence,
            newest_s=subject.newest_s,
        )
        for subject, words in said
        if words is not None
    ]


def _reproduce(entry: Entry, subject: Subject, window: str) -> str:
    if entry.rule.about in (NODE, JOB) or not subject.user:
        return f"colloc audit run --rule {shlex.quote(entry.name)} --subject {shlex.quote(subject.name)} {window}"
    return f"colloc audit run --rule {shlex.quote(entry.name)} --user {shlex.quote(subject.user)} {window}"
