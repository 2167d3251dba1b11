# SPDX-License-Identifier: Apache-2.0
"""The rules in force: those that site.toml sets, each as often as it is set, the others once by their own bounds.

``listed`` and ``explained`` put them into words for 'colloc audit explain'.
"""

import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from slurm_colloc.audit.rule import RUNS_ON, Rule
from slurm_colloc.core.audit_model import IDLE_PCT, JOB, NODE, NODES, Answer, Finding, Question, Subject, form_of
from slurm_colloc.core.config_audit import Audit, AuditRule
from slurm_colloc.core.config_file import typed
from slurm_colloc.core.errors import ConfigError, InputError, nearest
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT
from slurm_colloc.facts.aggregate import COUNTED
from slurm_colloc.store.queries import query

# Each rule is a file of its own.
_FILES = sorted(path.stem for path in Path(__file__).parent.glob("col*.py"))
RULES: Mapping[str, Rule] = {
    rule.code: rule for rule in (import_module(f"slurm_colloc.audit.{name}").RULE for name in _FILES)
}
# A key of 'only' and 'excluded' of an entry -> the column that has it. Nodes have only their cluster.
_COLUMNS = {
    "cluster": "cluster",
    "partition": '"partition"',
    "gpu_type": "kind",
    "user": '"user"',
    "account": "account",
    "qos": "qos",
}


class Entry(NamedTuple):
    """A rule as it is in force; ``bounds`` has every bound of the rule."""

    name: str
    rule: Rule
    settings: AuditRule
    bounds: Mapping[str, float]

    @property
    def form(self) -> str:
        """Return what it is counted by."""
        return form_of(self.name, self.rule.about)

    @property
    def runs(self) -> bool:
        """Return whether it is in force."""
        return self.settings.tell != "nobody"

    @property
    def tells_users(self) -> bool:
        """Return whether users are told of its findings, and not the admins alone."""
        return self.settings.tell == "users"


def entries(audit: Audit) -> tuple[Entry, ...]:
    """Return the rules in force, by code and in the order of site.toml.

    Raises:
        ConfigError: as ``all_entries``.
    """
    return tuple(entry for entry in all_entries(audit) if entry.runs)


def all_entries(audit: Audit) -> tuple[Entry, ...]:
    """Return all rules, those that the site switched off, too.

    Raises:
        ConfigError: an unknown code or bound, a bound below 0, a key with which a rule could judge nothing, or a name
            that two entries have.
    """
    by_name: dict[str, Entry] = {}
    for settings in (*audit.rule, *(AuditRule(code) for code in RULES if code not in {row.code for row in audit.rule})):
        entry = _entry(settings)
        if entry.name in by_name:
            raise ConfigError(f"two [[audit.rule]] are called '{entry.name}'; give each a 'name' of its own")
        by_name[entry.name] = entry
    forms = []
    for entry in by_name.values():
        forms.append(entry)
        if entry.rule.running:
            forms.append(entry._replace(rule=entry.rule.running))
    return tuple(sorted(forms, key=lambda entry: entry.rule.code))


def choose(ruleset: Sequence[Entry], names: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries with these names or codes; all where none is wanted.

    Raises:
        InputError: one is neither.
    """
    for text in names:
        if not called(ruleset, text):
            raise InputError(f"no rule in force is called '{text}'{suggested(ruleset, text)}")
    chosen = {entry.name for text in names for entry in called(ruleset, text)}
    return tuple(entry for entry in ruleset if not names or entry.name in chosen)


def called(ruleset: Sequence[Entry], text: str) -> list[Entry]:
    """Return the entries of this name or code, else those of a rule of this name; its code may be in small letters."""
    exact = [entry for entry in ruleset if text in (entry.name, entry.rule.code)]
    rule = text.casefold()
    return exact or [entry for entry in ruleset if rule in (entry.rule.code.casefold(), entry.rule.name.casefold())]


def suggested(ruleset: Sequence[Entry], text: str) -> str:
    """Return the end of a message about a rule that is not known."""
    names = dict.fromkeys(name for entry in ruleset for name in (entry.name, entry.rule.code, entry.rule.name))
    return nearest(text, names, "; 'colloc audit explain' lists all")


def kept_name(ruleset: Sequence[Entry], text: str) -> str:
    """Return the name by which the state knows what ``text`` names: an entry's own, else the code of a rule."""
    if text in (entry.name for entry in ruleset):
        return text
    return next((entry.rule.code for entry in called(ruleset, text)), text)


def _entry(settings: AuditRule) -> Entry:
    rule = RULES.get(settings.code)
    name = settings.name or settings.code
    if rule is None:
        raise ConfigError(f"[[audit.rule]] has code '{settings.code}'{nearest(settings.code, RULES)}")
    for key, value in settings.bounds.items():
        if key not in rule.bounds:
            raise ConfigError(f"[[audit.rule]] '{name}': {rule.code} has no bound '{key}'{nearest(key, rule.bounds)}")
        if not value >= 0:
            raise ConfigError(f"[[audit.rule]] '{name}': 'bounds.{key}' must be 0 or more, not '{value:g}'")
    for key, names in (*settings.only.items(), *settings.excluded.items()):
        if key not in _COLUMNS:
            raise ConfigError(f"[[audit.rule]] '{name}': runs have no '{key}'{nearest(key, _COLUMNS)}")
        if rule.source == NODES and key != "cluster":
            raise ConfigError(
                f"[[audit.rule]] '{name}': {rule.code} looks at nodes, of which '{key}' says nothing; remove it"
            )
        if names and set(settings.only.get(key, ())) == set(names) <= set(settings.excluded.get(key, ())):
            raise ConfigError(f"[[audit.rule]] '{name}': each '{key}' in 'only' is in 'excluded', too; remove one")
    defaults = {key: bound.default for key, bound in rule.bounds.items()}
    return Entry(name, rule, settings, {**defaults, **settings.bounds})


def question(entry: Entry, until_s: float, told_jobs: Sequence[str] = ()) -> Question:
    """Return what an entry asks of a window that ends ``until_s``; users know of their ``told_jobs`` already."""
    rule, settings = entry.rule, entry.settings
    scope = []
    parameters: dict[str, object] = {
        **entry.bounds,
        "min_coverage_pct": MIN_COVERAGE_PCT,
        "idle_pct": IDLE_PCT,
        "until_s": until_s,
        "told": list(told_jobs),
    }
    for operator, filters in (("IN", settings.only), ("NOT IN", settings.excluded)):
        for key, names in filters.items():
            if names:
                parameter = f"{key}_{len(parameters)}"
                scope.append(f"{_COLUMNS[key]} {operator} (SELECT unnest(${parameter}::VARCHAR[]))")
                parameters[parameter] = list(names)
    if rule.about == JOB:
        scope.append(RUNS_ON)
    return Question(
        _rows(rule),
        rule.subject,
        " AND ".join(scope),
        rule.judged,
        rule.found,
        rule.hours,
        rule.figures,
        parameters,
        rule.label,
        rule.coverage,
    )


def _rows(rule: Rule) -> str:
    """Return the rows that a rule is asked of, with what is derived of each."""
    if rule.source == NODES:
        return NODES
    runs = query("audit/judged_runs", counted=COUNTED)
    return f"({query(f'audit/{rule.sheet}', runs=runs) if rule.sheet else runs})"


def findings(entry: Entry, answer: Answer, window: str) -> list[Finding]:
    """Return what an entry says of an answer; ``window`` are the options of a command for the same window."""
    least_hours = entry.bounds.get(entry.rule.least, 0.0)
    enough = (subject for subject in answer.subjects if subject.gpu_hours > 0 and subject.gpu_hours >= least_hours)
    wordings = ((subject, entry.rule.say(subject, entry.bounds)) for subject in enough)
    return [
        Finding(
            rule=entry.name,
            code=entry.rule.code,
            severity="warning",
            about=entry.rule.about,
            cluster=subject.cluster,
            subject=subject.name,
            user=subject.user,
            title=entry.rule.title,
            gpu_hours=subject.gpu_hours,
            evidence=words.evidence,
            remedy=words.remedy,
            reproduce=_reproduce(entry, subject, window),
            coverage_pct=subject.coverage_pct,
            methods=entry.rule.methods or (subject.methods if entry.rule.coverage == "coverage_pct" else ()),
            jobs=subject.worst,
            digest=subject.evidence,
            newest_s=subject.newest_s,
            judged=subject.judged,
            excluded=subject.excluded,
            idle_since_s=subject.figures.get("idle_since_s"),
        )
        for subject, words in wordings
        if words is not None
    ]


def _reproduce(entry: Entry, subject: Subject, window: str) -> str:
    by_name = entry.rule.about in (NODE, JOB)
    option, name = ("--subject", subject.name) if by_name else ("--user", subject.user)
    return typed(f"colloc audit run --rule {shlex.quote(entry.name)} {option} {shlex.quote(name)} {window}")


def listed(ruleset: Sequence[Entry]) -> str:
    """Return a line for each entry: its code, the rule's name, whether it is on, and its own name where it has one."""
    ruleset = [entry for entry in ruleset if entry.rule.about != JOB]
    widest = max(len(entry.rule.name) for entry in ruleset)
    lines = []
    for entry in ruleset:
        own_name = f"  ({entry.name})" if entry.name != entry.rule.code else ""
        state = "on " if entry.runs else "off"
        lines.append(f"{entry.rule.code}  {entry.rule.name:{widest}}  {state}  {entry.rule.title}{own_name}")
    return "\n".join(lines) + "\n"


def explained(ruleset: Sequence[Entry], name: str) -> str:
    """Return the documentation of a rule, and its bounds with meaning, default, and the site's values.

    Args:
        ruleset: all entries, those that are off, too.
        name: a code, a rule's name, or an entry's.

    Raises:
        InputError: it is none of them.
    """
    chosen = called(ruleset, name)
    if not chosen:
        raise InputError(f"no rule is called '{name}'{suggested(ruleset, name)}")
    rule = chosen[0].rule
    lines = [rule.documentation.strip(), "", "Bounds, in site.toml's [[audit.rule]]:"]
    for key, bound in rule.bounds.items():
        set_to = [
            f"{entry.bounds[key]:g} by '{entry.name}'"
            for entry in chosen
            if key in entry.settings.bounds and entry.rule is rule
        ]
        site_values = f"; here {', '.join(set_to)}" if set_to else ""
        lines.append(f"  {key} = {bound.default:g}{site_values}\n      {bound.meaning}")
    lines += ["", *(_state(entry) for entry in chosen if entry.rule.about != JOB)]
    return "\n".join(lines) + "\n"


def _state(entry: Entry) -> str:
    """Return whether an entry is on, and which runs it looks at."""
    settings = entry.settings
    phrases = [f"'{entry.name}' is {'on' if entry.runs else 'off'}"]
    for word, filters in (("only", settings.only), ("no", settings.excluded)):
        phrases += [f"{word} {key}: {', '.join(names)}" for key, names in filters.items() if names]
    return "; ".join([*phrases, *(["tells admins only"] if entry.settings.tell == "admins" else [])])
