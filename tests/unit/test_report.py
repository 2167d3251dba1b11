# SPDX-License-Identifier: Apache-2.0
import csv
import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.config import Prices
from slurm_colloc.errors import ConfigError
from slurm_colloc.model import Collocation, GroupUsage, StrayUse
from slurm_colloc.report.job import as_json as job_json
from slurm_colloc.report.job import as_text
from slurm_colloc.report.text import inert, printable
from slurm_colloc.report.usage import (
    FORMATS,
    UsageReport,
    as_csv,
    as_html,
    as_json,
    as_table,
)
from tests.unit.made import decision, evidence, usage
from tests.unit.stored import grouped

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "abc\u202egpj.exe",
    "\u200f\u2066x\u2069",
    "new\nline\r\ttab",
    "{{ 7 * 7 }}{% raw %}",
    "\u2028\u0085\x9b31m",
    "\udcff",
    "=cmd|' /C calc'!A0",
)


def group(name: str = "ann", **fields: Any) -> GroupUsage:
    return grouped([usage()])[-1]._replace(name=name, **fields)


def report(*groups: GroupUsage, **fields: Any) -> UsageReport:
    whole = UsageReport(
        cluster="c",
        since=datetime(2026, 11, 1, tzinfo=UTC),
        until=datetime(2026, 11, 2, tzinfo=UTC),
        by="user",
        equivalents="compute slices",
        groups=groups,
        total=grouped([usage()] * len(groups))[-1],
        runs=5,
        runs_without_gpu=2,
        runaways=0,
        unaccounted_hours=0.0,
        sampled_job_hours=0.0,
        installed_gpu_hours=None,
        collocation=(),
        predictions=(),
        prices=Prices(),
        strays=(),
        rows_in=5,
        rows_used=5,
        job_steps=0,
        rejected={},
        recorded=None,
        so_far=False,
        of_text=False,
        templates="",
    )
    return whole._replace(**fields)


NOTHING = grouped([usage(allocated_gpu_hours=2.0, held_gpu_hours=2.0, util_measured_gpu_hours=0.0, methods=(),
    **dict.fromkeys(("util_used_gpu_hours", "sm_used_gpu_hours", "coverage_pct", "held_idle_gpu_hours", "energy_j")))]
)[0]  # fmt: skip


def test_table() -> None:
    lines = as_table(report(group())).splitlines()
    assert lines[0] == "GPU use on c, 2026-11-01 00:00:00+00:00 to 2026-11-02 00:00:00+00:00, by user"
    titles = ["USER", "RUNS", "ALLOC GPU-h", "HELD GPU-h", "COV %", "UTIL GPU-h", "UTIL %", "SM GPU-h", "SM %"]
    assert lines[2].split() == " ".join([*titles, "EMPTY GPU-h", "kWh"]).split()
    figures = ["1", "1.0000", "1.0000", "100", "0.5000", "50.0", "0.2500", "25.0", "0.0000", "1.0000"]
    assert lines[4].split() == ["ann", *figures]
    assert lines[6].split() == ["total", *figures]
    assert "runs in window: 5; without GPU: 2; with GPU: 1, of them measured: 1" in lines
    assert lines[-1] == "rows in 5: 5 used, 0 job steps, 0 rejected"


def test_unknown_is_a_dash_and_never_zero() -> None:
    row = as_table(report(NOTHING)).splitlines()[4].split()
    assert row == ["ann", "1", "2.0000", "2.0000", "-", "-", "-", "-", "-", "-", "-"]
    (_, cells) = csv.reader(io.StringIO(as_csv(report(NOTHING))))
    costs = ("gpu_cost", "energy_cost", "co2_kg")
    fields = ["name", *[field for field in GroupUsage._fields if field != "name"], *costs]
    named = dict(zip(fields, cells, strict=True))
    assert [named[cost] for cost in costs] == ["", "", ""]
    assert (named["util_used_gpu_hours"], named["util_weighted_pct"], named["coverage_pct"]) == ("", "", "")
    assert (named["allocated_gpu_hours"], named["sm_measured_gpu_hours"]) == ("2.0", "0.0")
    (shown,) = json.loads(as_json(report(NOTHING)))["groups"]
    assert (shown["util_used_gpu_hours"], shown["sm_weighted_pct"], shown["methods"]) == (None, None, [])
    assert cells_of(as_html(report(NOTHING)))["ann"] == ["", *row[1:]]


def test_true_zero_and_little_are_told_apart() -> None:
    row = as_table(report(group(util_used_gpu_hours=0.0, util_weighted_pct=0.0, sm_used_gpu_hours=0.0004))).splitlines()
    assert row[4].split()[5:8] == ["0.0000", "0.0", "0.0004"]


def test_json_is_unrounded() -> None:
    shown = json.loads(as_json(report(group(util_weighted_pct=71.85612345), rejected={"why": 3})))
    assert (shown["schema"], shown["by"], shown["cluster"]) == (2, "user", "c")
    assert shown["groups"][0]["util_weighted_pct"] == 71.85612345
    assert (shown["since"], shown["rejected"]) == ("2026-11-01T00:00:00+00:00", {"why": 3})


def test_footnotes_name_what_is_left_out() -> None:
    whole = grouped([usage(), usage(allocated_gpu_hours=None)])[-1]
    counts = {"rows_in": 20, "rows_used": 10, "job_steps": 7, "rejected": {"b\x1b": 2, "a": 1}}
    text = as_table(report(group(), total=whole, **counts))
    assert "runs left out of GPU-hours because the size of their share is not known: 1; their pool in site.toml" in text
    assert text.endswith("\nrows in 20: 10 used, 7 job steps, 3 rejected (a: 1; b?: 2)\n")
    shown = json.loads(as_json(report(group(), **counts)))
    assert {name: shown[name] for name in counts} == counts
    assert "UTIL as plain mean over the whole-GPU runs measured: 50.00 %" in text
    assert "methods: measured" in text
    bare = as_table(report(NOTHING, total=NOTHING))
    assert "plain mean" not in bare
    assert "methods: none" in bare
    assert "NOT ONE of these runs was measured" in bare
    assert "NOT ONE" not in text


def test_bars_tell_used_from_idle_from_not_sampled() -> None:
    half = group("half", sm_used_gpu_hours=0.25, sm_idle_gpu_hours=0.25, allocated_gpu_hours=1.0)
    text = as_html(report(half, group("unseen", sm_used_gpu_hours=None, sm_idle_gpu_hours=None)))
    widths = re.findall(r'class="(unseen|idle|used)" width="([0-9.]+)" height="10"', text)
    assert widths[:3] == [("unseen", "100.000"), ("idle", "50.000"), ("used", "25.000")]
    assert widths[3:] == [("unseen", "100.000"), ("idle", "0.000"), ("used", "0.000")]
    assert "Used by SM activity." in text
    # One metric in all of the bars: GPU_UTIL where no run has the other.
    whole = report(half)._replace(total=group("total", sm_used_gpu_hours=None))
    text = as_html(whole)
    assert "Used by GPU_UTIL." in text
    assert '<rect class="used" width="50.000"' in text


class Page(HTMLParser):
    """What a browser would see: tags, rows and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def page(text: str) -> Page:
    seen = Page()
    seen.feed(text)
    return seen


def cells_of(text: str) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in page(text).rows if row}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("form", [as_table, as_csv, as_html, as_json])
def test_hostile_names_are_harmless(form: Callable[[UsageReport], str], name: str) -> None:
    text = form(report(group(name), cluster=name, rejected={name: 1}))
    text.encode()
    odd = [character for character in text if not character.isprintable() and character != "\n"]
    assert odd == []
    plain = form(report(group("x" * len(name)), cluster="x" * len(name), rejected={"x": 1}))
    if form is not as_csv:
        assert text.count("\n") == plain.count("\n")
    if form is as_html:
        assert page(text).tags == page(plain).tags
        assert page(text).attributes == page(plain).attributes
        assert "script" not in page(text).tags
    if form is as_json:
        assert json.loads(text)["groups"][0]["name"] == name


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_no_formula_in_csv(name: str) -> None:
    (_, row) = csv.reader(io.StringIO(as_csv(report(group(name)))))
    assert row[0] == "'" + printable(name)


@given(st.text(max_size=30))
def test_cells_are_inert(name: str) -> None:
    assert inert(name)[:1] not in ("=", "+", "-", "@", "\t", "\r", "\n")
    assert printable(name).isprintable()
    assert len(printable(name)) == len(name)
    rows = list(csv.reader(io.StringIO(as_csv(report(group(name))))))
    assert (len(rows), rows[1][0]) == (2, inert(name))


def test_page_loads_nothing_and_bars_stay_inside() -> None:
    text = as_html(report(group("big", sm_used_gpu_hours=99.0), group("none", allocated_gpu_hours=0.0)))
    assert not page(text).attributes & {"src", "href", "onload", "onerror", "action"}
    assert not {"script", "link", "iframe", "img"} & set(page(text).tags)
    assert '<rect class="used" width="100.000"' in text
    assert as_html(report()).count("<tbody>") == 1


def test_formats() -> None:
    assert tuple(FORMATS) == ("table", "json", "csv", "html")


# --- one job ---


def test_story() -> None:
    lines = as_text([usage()], decision(), {}).splitlines()
    assert lines[0] == "job 1 'train' of ann, COMPLETED"
    assert lines[2:7] == [
        "  given      gpu:h100:1",
        "  allocated  1.0000 GPU-h in whole-GPU equivalents",
        "  GPU_UTIL   0.5000 of 1.0000 covered GPU-h, 50.0 %",
        "  SM active  0.2500 of 1.0000 covered GPU-h, 25.0 %",
        "  memory     3000 MiB at peak",
    ]
    assert lines[7] == "  coverage   100 % of its device time (measured)"
    assert lines[8:11] == [
        "  held idle  0.0000 GPU-h; idle for the last 0 s",
        "  energy     1.0000 kWh",
        "  host       2.0 cores used, 8000 MiB at peak, 100 MiB read, 10 MiB written",
    ]
    assert lines[12] == "  csub       gpu:1 (mig), footprint: hint: it fits"


def test_a_run_that_the_window_cuts_began_before_it() -> None:
    run = usage()
    assert "  ran        since before " in as_text([run], None, {}, run.start_s)
    assert "since before" not in as_text([run], None, {}, run.start_s - 1)


def test_story_of_an_unknown_run() -> None:
    blank = usage(
        allocated_gpu_hours=None,
        util_used_gpu_hours=None,
        sm_used_gpu_hours=None,
        gpu_mem_peak_mib=None,
        coverage_pct=None,
        held_idle_gpu_hours=None,
        idle_tail_s=None,
        energy_j=None,
        cpu_cores_used=None,
        host_mem_peak_mib=None,
        read_mib=None,
        written_mib=None,
        methods=(),
    )
    text = as_text([blank], None, {})
    assert "held idle  not known; idle tail not known" in text
    assert "energy     not known\n  host       not known" in text
    assert "allocated  not known" in text
    assert text.count("not measured") == 2
    assert "memory     not known" in text
    assert "coverage   not recorded (no samples)" in text
    assert "csub" not in text
    assert json.loads(job_json([blank], None, {}))["runs"][0]["gpu_mem_peak_mib"] is None


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_story(text: str) -> None:
    fields = ("user", "job_name", "signature", "asked", "given", "mode", "rung")
    what = decision(**dict.fromkeys(fields, text), reasons=(text,))
    run = usage(job_name=text, user=text, partition=text, state=text, gres=text, job_id=text)
    shown = as_text([run], what, {})
    assert [character for character in shown if not character.isprintable() and character != "\n"] == []
    assert shown.count("\n") == as_text([usage()], decision(), {}).count("\n")
    assert json.loads(job_json([run], what, {}))["decision"]["given"] == text


def hours_of(shown: UsageReport) -> list[str]:
    return [line.split()[2] for line in as_table(shown).splitlines() if line.startswith(("ann", "total"))]


def test_hours_are_shown_with_the_same_digits_in_every_row() -> None:
    small = group(name="ann", allocated_gpu_hours=0.0058)
    shown = report(small)._replace(total=small._replace(name="total", allocated_gpu_hours=12.5))
    assert hours_of(shown) == ["<0.01", "12.50"]
    shown = report(small)._replace(total=small._replace(name="total"))
    assert hours_of(shown) == ["0.0058"] * 2


def test_a_sites_own_page(tmp_path: Path) -> None:
    (tmp_path / "report.html.j2").write_text("{{ heading }} {{ report.total.jobs }}")
    assert as_html(report(group(), templates=str(tmp_path))).endswith("by user 1")
    assert str(tmp_path) not in as_json(report(group(), templates=str(tmp_path)))
    (tmp_path / "report.html.j2").write_text("{{ nothing }}")
    with pytest.raises(ConfigError, match=r"report\.html\.j2"):
        as_html(report(group(), templates=str(tmp_path)))


def test_where_samples_are_not_at_hand_the_evidence_speaks() -> None:
    blank = usage(util_used_gpu_hours=None, sm_used_gpu_hours=None, gpu_mem_peak_mib=None, methods=())
    text = as_text([blank], decision(), {"1": evidence(), "2": evidence("2")})
    assert "SM active  20.0 % of a whole GPU" in text
    assert "memory     8000 MiB at peak" in text
    assert "100 s of 3600 s, 10 samples (evidence kept for csub)" in text
    assert "not measured" not in text
    assert "above the 9000 MiB" in as_text([blank], decision(), {"1": evidence(peak_mib=9500)})


def test_what_ran_outside_any_job_is_said() -> None:
    shown = report(group(), strays=(StrayUse("c", "g1", 1, 0.5, 1.0), StrayUse("c", "g2", 1, 0.25, 1.0)))
    said = "GPUs with processes outside any job, charged to nobody: 0.75 GPU-h on g1, g2"
    assert said in as_table(shown).splitlines()
    assert json.loads(as_json(shown))["strays"][0]["gpu_hours"] == 0.5
    assert "outside any job" not in as_table(report(group()))


def test_what_the_cluster_has_is_the_third_denominator() -> None:
    whole = report(group(), installed_gpu_hours=4.0)
    said = "of the 4 GPU-h installed (by site.toml, nodes that were down included): allocated 25.0 %, really used by "
    assert f"{said}GPU_UTIL at least 12.5 %, really used by SM active at least 6.2 %" in as_table(whole).splitlines()
    shares = {"allocated_pct": 25.0, "util_at_least_pct": 12.5, "sm_at_least_pct": 6.25}
    assert json.loads(as_json(whole))["of_installed"] == shares
    assert "installed" not in as_table(report(group()))
    assert json.loads(as_json(report(group())))["of_installed"] == dict.fromkeys(shares)
    unknown = report(group(), installed_gpu_hours=4.0, total=group(allocated_gpu_hours=None))
    assert "installed" not in as_table(unknown)


def test_what_sharing_saved() -> None:
    times = (Collocation(0, 1, 2.0, 2.0), Collocation(1, 1, 1.0, 1.0), Collocation(3, 1, 0.5, 0.5))
    said = "sampled GPU-h by the number of jobs on a GPU or slice: 2 with 0, 1 with 1, 0.5 with 3; "
    assert f"{said}a whole GPU for each job, for as long, would have taken 1 GPU-h more" in as_table(
        report(group(), collocation=times)
    )
    shown = json.loads(as_json(report(group(), collocation=times)))["collocation"]
    assert [time["saved_gpu_hours"] for time in shown] == [0.0, 0.0, 1.0]
    assert "number of jobs" not in as_table(report(group(), collocation=times[:2])), "nobody shared"
    noise = (Collocation(1, 7, 1.1, 1.0999999999), Collocation(2, 1, 0.5, 1.0))
    assert "1 with 2" in as_table(report(group(), collocation=noise))
    assert "GPU-h more" not in as_table(report(group(), collocation=noise))
    sliced = (Collocation(1, 7, 7.0, 1.0),)
    assert "would have taken 6 GPU-h more" in as_table(report(group(), collocation=sliced))


def test_what_is_counted_by_is_said() -> None:
    assert "MIG by SMs, times hours" in as_table(report(group(), equivalents="SMs"))
    unseen = report(group(), total=group(held_unknown_hours=1.5))
    assert "shares' time in which nobody saw how many jobs shared, not in HELD: 1.5 h" in as_table(unseen)
    none = report(total=grouped([])[-1])
    assert "NOT ONE run had a GPU: does AccountingStorageTRES in slurm.conf name gres/gpu?" in as_table(none)


def test_a_text_is_not_asked_for_what_it_cannot_have() -> None:
    text = as_table(report(NOTHING, total=NOTHING, of_text=True))
    assert text.count("a text says what was allocated and no more; for use: colloc ingest, agents") == 1
    assert not re.search("NOT ONE|methods|ingest:", text)
    assert "methods: measured" in as_table(report(group(), of_text=True)), "means of jobstats, say"


def test_the_page_has_the_columns_of_the_table() -> None:
    priced = report(group(), prices=Prices(gpu_hour=2.0, currency="EUR"))
    rows = cells_of(as_html(priced))
    lines = as_table(priced).splitlines()
    assert "".join(rows["USER"][1:]).replace(" ", "") == "".join(lines[2].split()[1:])
    assert rows["ann"][1:] == lines[4].split()[1:]
    assert rows["ann"][-2:] == ["1.0000", "2.00"]


def test_the_heading_and_an_empty_window_say_what_there_is() -> None:
    recorded = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
    empty = as_table(report(cluster="", runs=0, so_far=True, recorded=recorded))
    assert empty.startswith(
        "GPU use (cluster not named), 2026-11-01 00:00:00+00:00 to 2026-11-02 00:00:00+00:00 so far,"
    )
    said = "the store has runs from 2026-01-01 00:00:00+00:00 to 2026-01-02 00:00:00+00:00; give --since"
    assert said in empty.splitlines()
