# SPDX-License-Identifier: Apache-2.0
"""What audit rules found, as text and as CSV, and of how many runs too little was known."""

import csv
import io
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.cells import cell_len

from slurm_colloc.audit.rules import RULES
from slurm_colloc.core.audit_model import Audited
from slurm_colloc.report.findings import as_csv, as_text, judged_of
from slurm_colloc.report.layout import Terminal
from tests.unit.asked import IDLE, RUN, ask, one
from tests.unit.golden import Printed
from tests.unit.hostile import HOSTILE
from tests.unit.noticed import finding
from tests.unit.reports import group
from tests.unit.test_col001_empty import HALF
from tests.unit.test_col001_running import NEVER
from tests.unit.test_col001_tail import TAIL
from tests.unit.test_col003 import LOW
from tests.unit.test_col008 import GREEDY as MANY_CORES
from tests.unit.test_col009 import GREEDY as MUCH_MEMORY
from tests.unit.test_col010 import OVER
from tests.unit.test_col011 import FAR_BELOW
from tests.unit.test_col012 import STARVED
from tests.unit.test_col014 import BESIDE

SEEN = Audited(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 8, tzinfo=UTC), group(), {"COL001": (9, 4)}, "")
# A run that each rule can say nothing of, and why.
UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    ("COL001", {"suspended_s": 1}, "suspended, or its node failed"),
    ("COL001", {"state": "NODE_FAIL"}, "suspended, or its node failed"),
    ("COL001", {"end_s": None}, "it runs still"),
    ("COL001", {"span_s": 60.0}, "too short"),
    ("COL001", {"coverage_pct": None}, "too little measured of it alone"),
    ("COL001", {"peak_mib": None}, "GPU memory not known"),
    ("COL007", {"fit_judged": False}, "no completed run of one GPU measured alone on it"),
    ("COL008", {"cpus_per_gpu": None}, "its nodes not in site.toml"),
    ("COL008", {"host_pct": None}, "too little measured of it on its nodes"),
    ("COL011", {"limit_min": None}, "no time limit known"),
]


@pytest.mark.parametrize(("code", "fields", "why"), UNKNOWN)
def test_why_a_run_is_not_judged(code: str, fields: dict[str, Any], why: str) -> None:
    by_code: dict[str, dict[str, Any]] = {
        "COL001": IDLE,
        "COL008": {"cpus": 48},
        "COL011": {"limit_min": 600_000},
    }
    found = by_code.get(code, {})
    known = one(code, found, found | fields)
    assert (known.judged, known.excluded) == (1, ((why, 1),))
    # Nobody else's.
    assert one(code, found, found | fields | {"user": "bob"}).excluded == ()
    assert ask(code, found | fields)[1] == []


@pytest.mark.parametrize(
    ("code", "run", "about"),
    [
        *(("COL001", run, "others") for run in (IDLE, HALF, TAIL)),
        ("COL001", NEVER, "jobs"),
        ("COL003", LOW, "others"),
        ("COL007", {}, "others"),
        ("COL008", MANY_CORES, "others"),
        ("COL009", MUCH_MEMORY, "others"),
        ("COL010", OVER, "others"),
        ("COL011", FAR_BELOW, "others"),
        ("COL012", STARVED, "others"),
        ("COL014", BESIDE, "others"),
    ],
)
def test_whoever_ran_it_is_named_and_no_name_of_his_is_in_the_words(code: str, run: dict[str, Any], about: str) -> None:
    names = {name for name in HOSTILE if len(name) > 3 and name.isascii() and "\0" not in name}
    fields = ("user", "account", "job_name", "partition", "qos")
    _, found = ask(code, *(run | dict.fromkeys(fields, name) for name in names), about=about)
    words = "".join(one.evidence + one.remedy + one.title for one in found)
    assert {one.user for one in found} == names
    assert not any(name in words for name in names)


def test_each_reason_is_words_and_no_query() -> None:
    reasons = {why for rule in RULES.values() for why in rule.judged}
    assert not any(set("'{};") & set(why) for why in reasons)


def test_those_that_are_not_judged_are_counted_by_the_first_reason(printed: Printed) -> None:
    asleep, unknown = IDLE | {"suspended_s": 9, "coverage_pct": None}, IDLE | {"coverage_pct": None}
    known = one("COL001", IDLE, asleep, asleep, unknown)
    assert [runs for _, runs in known.excluded] == [2, 1]
    printed("audit", judged_of(known))
    assert f"\n    judged: {judged_of(known)}\n" in as_text(SEEN._replace(findings=(known,)))
    assert judged_of(one("COL001", IDLE)) == "1 of 1"
    assert judged_of(finding()) == ""


def test_csv_has_a_row_for_each_finding(printed: Printed) -> None:
    known = one("COL001", IDLE, IDLE, IDLE | {"suspended_s": 9})
    text = as_csv([SEEN._replace(findings=(known, finding(coverage_pct=None, methods=())))])
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["since"], first["until"]) == ("2026-01-01T00:00:00+00:00", "2026-01-08T00:00:00+00:00")
    assert (first["rule"], first["user"], first["gpu_hours"], first["coverage_pct"]) == (
        "COL001",
        "ann",
        "48.0",
        "100.0",
    )
    assert (first["judged"], first["jobs"]) == ("2", "2 1")
    printed("audit", first["excluded"])
    # What is not known is empty, and no 0.
    assert (second["coverage_pct"], second["methods"], second["judged"]) == ("", "", "")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_nothing_in_csv(name: str) -> None:
    text = as_csv([SEEN._replace(findings=(finding(user=name, subject=name, rule=name, jobs=()),))])
    (row,) = csv.DictReader(io.StringIO(text))
    for shown in (row["user"], row["subject"], row["rule"]):
        assert not shown.startswith(("=", "+", "-", "@", "\t", "\r"))
        assert shown.isprintable()
    assert RUN["job_id"] not in row["jobs"]


def test_findings_of_a_user_stand_together_and_each_thing_to_do_once(printed: Printed) -> None:
    several = [
        finding(rule=rule, user=user, subject=user, gpu_hours=held, evidence=f"{rule} of {user}", remedy=remedy)
        for rule, user, held, remedy in (
            ("COL001", "ann", 1.0, "end it"),
            ("COL003", "ann", 2.0, "ask for less"),
            ("COL001", "bob", 30.0, "end it"),
            ("COL007", "ann", 40.0, "ask for less"),
        )
    ]
    text = as_text(SEEN._replace(findings=tuple(several)))
    lines = [line.split() for line in text.splitlines()]
    assert [line[:3] for line in lines if re.fullmatch("COL...", "".join(line[1:2])) and line[2] != "of"] == [
        ["ann", "COL007", "40"],
        ["ann", "COL003", "2"],
        ["ann", "COL001", "1"],
        ["bob", "COL001", "30"],
    ]
    assert [text.count(remedy) for remedy in ("end it", "ask for less")] == [1, 1]
    assert re.findall(r"^(COL...): |^  (\w+): ", text, re.MULTILINE)[:3] == [("COL001", ""), ("", "ann"), ("", "bob")]
    printed("audit", text)


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [(40, ["JUDGED", "SAMPLED %"]), (28, ["GPU-h", "JUDGED", "SAMPLED %"]), (80, []), (None, [])],
)
def test_a_narrow_terminal_has_whole_rows_and_says_what_is_left_out(columns: int | None, left_out: list[str]) -> None:
    hostile = finding(rule="COL001", user="ann", subject="\u6f22" * 60 + "\x1b[31m")
    text = as_text(SEEN._replace(findings=(hostile,)), Terminal(columns))
    titles, rule, row = (table := text.partition("\nSUBJECT")[2].splitlines())[:3]
    assert columns is None or cell_len(rule) <= columns
    assert cell_len(row) <= cell_len(rule)
    assert [name for name in ("RULE", "GPU-h", "JUDGED", "SAMPLED %", "DO") if name not in titles] == left_out
    assert [name for name in left_out if name not in table[3]] == []
    assert "\x1b" not in text


def test_a_rule_in_two_forms_is_one_rule() -> None:
    rules = dict.fromkeys(("COL001", "COL001 (running jobs)", "COL002"), (1, 1))
    assert " by 0 of 2 rules, " in as_text(SEEN._replace(rules=rules))
