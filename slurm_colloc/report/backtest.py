# SPDX-License-Identifier: Apache-2.0
"""What audit rules would have said of the past, as a table, JSON or CSV."""

from collections.abc import Callable, Mapping, Sequence

from slurm_colloc.backtest_model import Backtest, Step, Tally
from slurm_colloc.report.json_values import json_text
from slurm_colloc.report.layout import NO_TERMINAL, Terminal, bold_table, narrowed, page_of
from slurm_colloc.report.text import csv_table, sparkline, stamp
from slurm_colloc.units import counted, in_words, printable, significant

SCHEMA = 1
_NAME_COLUMNS = 25
# Titles, and what is left out first where there is no room: the highest.
_RULES = {
    "JUDGED": 6,
    "FINDINGS": 2,
    "USERS": 1,
    "JOBS": 4,
    "GPU-h": 3,
    "FIRST": 5,
    "SECOND": 7,
    "MAILS": 0,
    "NOTICES": 8,
}
_STEPS = {"RUNS": 6, "COV %": 3, "FINDINGS": 2, "USERS": 1, "FIRST": 4, "SECOND": 5, "MAILS": 0}


def as_table(tried: Backtest, terminal: Terminal = NO_TERMINAL) -> str:
    """Return it for people: all windows by rule, then window by window."""
    rules = [
        ["RULE", *_RULES],
        *(
            [printable(one.rule), *_cells(one), _over_time(tried, number, terminal)]
            for number, one in enumerate(tried.rules)
        ),
        ["any", *_cells(tried.total), ""],
    ]
    steps = [
        ["UNTIL", *_STEPS],
        *([stamp(step.until), *_of_step(step)] for step in tried.steps),
        ["all", "", "", *_people(tried.total)],
    ]
    body = [*_laid_out(rules, _RULES, terminal), "", *_laid_out(steps, _STEPS, terminal)]
    return page_of(heading(tried), body, notes(tried), terminal)


def heading(tried: Backtest) -> str:
    """Return the one line that says what was tried on what."""
    rules = f"the rules of {printable(tried.file)}" if tried.file else "the rules in force"
    admins_only = ", ".join(map(printable, tried.admins_only))
    return (
        f"What {rules} would have said in {counted(len(tried.steps), 'run')} from {stamp(tried.since)} to "
        f"{stamp(tried.until)}: every {in_words(tried.step_s)}, of the last {in_words(tried.window_s)}, "
        f"{in_words(tried.quiet_s)} between notices"
        + (
            f"; no mails about what {admins_only} finds, of which 'tell' lets the admins alone know"
            if admins_only
            else ""
        )
    )


def notes(tried: Backtest) -> list[str]:
    """Return how it was counted, and what is not known."""
    lines = [
        "JUDGED: runs of the rule in which it could judge anything, of all; '-' is not known.",
        "USERS, JOBS: each counted once in a row, however often found. JOBS: none where a rule is about no jobs.",
        "FIRST, SECOND: notices to users of the site's cluster, the second after the quiet period where something "
        "newer is still found; as if every mail had been accepted, and nobody had waived one.",
        "MAILS: digests, one for each user and run: one of two rules counts in both rows, and once in the last. "
        "They go on the site's workdays. The admins' summary is not counted.",
        "Windows are judged by what is known of them now: what was taken in later, cron would have seen later.",
    ]
    if tried.left_out:
        lines.append(f"not tried here: {', '.join(map(printable, tried.left_out))}, about running jobs; --about jobs")
    if tried.step_s < tried.window_s:
        lines.append("GPU-h: not added up, the windows overlap.")
    if tried.total.actions:
        lines.append(f"jobs that would have been held or cancelled: {tried.total.actions}")
    blind = [one.rule for one in tried.rules if not one.steps_judged]
    if blind:
        lines.append(f"nothing could be judged by {', '.join(map(printable, blind))}")
    return [*lines, printable(tried.visible)] if tried.visible else lines


def _laid_out(rows: Sequence[Sequence[str]], ranks: Mapping[str, int], terminal: Terminal) -> list[str]:
    return bold_table(narrowed(rows, list(ranks.values()), terminal, _NAME_COLUMNS), terminal)


def _cells(one: Tally) -> list[str]:
    hours = "-" if one.gpu_hours is None else significant(one.gpu_hours)
    found, users, *notices = _people(one)
    return [f"{one.steps_judged}/{one.steps}", found, users, _number(one.jobs), hours, *notices]


def _people(one: Tally) -> list[str]:
    return [_number(value) for value in (one.findings, one.users, one.first_notices, one.second_notices, one.mails)]


def _of_step(step: Step) -> list[str]:
    covered = "-" if step.coverage_pct is None else f"{step.coverage_pct:.0f}"
    return [str(step.runs), covered, *_people(step.total)]


def _over_time(tried: Backtest, number: int, terminal: Terminal) -> str:
    """Return the notices of one rule, run for run: a drawing on a terminal, figures elsewhere."""
    made = [_notices(step.rules[number]) for step in tried.steps]
    if terminal.columns is None:
        return " ".join(map(_number, made))
    top = max((value for value in made if value is not None), default=0)
    return sparkline(made, top)


def _notices(one: Tally) -> int | None:
    if one.first_notices is None or one.second_notices is None:
        return None
    return one.first_notices + one.second_notices


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def as_json(tried: Backtest) -> str:
    """Return all of it as JSON, null for not known."""
    return json_text(SCHEMA, tried)


def as_csv(tried: Backtest) -> str:
    """Return a row for each run and rule, then one for each rule in all; an empty rule is all of them."""
    parts = [(step.since, step.until, step.mailed, (*step.rules, step.total)) for step in tried.steps]
    parts.append((tried.since, tried.until, None, (*tried.rules, tried.total)))
    rows = (
        [since.isoformat(), until.isoformat(), mailed, *one]
        for since, until, mailed, tallies in parts
        for one in tallies
    )
    return csv_table(["since", "until", "mailed", *Tally._fields], rows)


FORMATS: dict[str, Callable[..., str]] = {"table": as_table, "json": as_json, "csv": as_csv}
