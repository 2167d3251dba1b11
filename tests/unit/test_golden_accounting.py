# SPDX-License-Identifier: Apache-2.0
"""Awkward accounting cases, their truth computed by hand: tests/golden/accounting/*.toml, one file for each theme.

A file's own keys hold for each of its cases that has none of that name. `total` and `groups` name figures of the
report's JSON ("unknown" is null); `rejected` names a part of each reason, and there must be no other.
"""

import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.store.store import Store
from tests.rings import tenth
from tests.unit.doors import GOLDEN, SITE, at_site, ingest, report, shown
from tests.unit.made import H100, device, near, process, seen
from tests.unit.stored import sampled


class Case(NamedTuple):
    """What is taken in, and the truth.

    ``texts`` are files, ``ingested`` the times at which they were written: by default, now. With an ``error`` the last
    file is refused with these words, and the store stays as it was: empty, if ``runs`` is None.
    """

    theme: str
    name: str
    why: str
    since: datetime
    until: datetime
    texts: Sequence[str]
    runs: int | None = None
    runs_without_gpu: int = 0
    total: Mapping[str, Any] = {}
    groups: Mapping[str, Mapping[str, Any]] | None = None
    rejected: Mapping[str, int] = {}
    said: str = ""
    error: str = ""
    by: str = "user"
    fields: str = ""
    timezone: str = ""
    encoding: str = "utf-8"
    now: datetime = datetime(2026, 12, 1, tzinfo=UTC)
    ingested: Sequence[datetime] = ()
    samples: Sequence[Mapping[str, Any]] = ()


def parse_cases(theme: str, text: str) -> list[Case]:
    common = tomllib.loads(text)
    cases = [{**common, **case} for case in common.pop("case")]
    for case in cases:
        case.setdefault("texts", [case.pop("text")] if "text" in case else None)
    return [Case(theme=theme, **case) for case in cases]


CASES = [
    case
    for path in sorted(GOLDEN.glob("*.toml"))
    if path != SITE
    for case in parse_cases(path.stem, path.read_text(encoding="utf-8"))
]


def parse_samples(midnight: datetime, entry: Mapping[str, Any]) -> list[NodeSample]:
    """Return a reading of one GPU each ``period_min``; a figure that the entry does not have is not known."""
    known = {"node": "g1", "gpu": "GPU-0", "profile": "", "period_min": 15, "processes": [], "holders": [], **entry}
    figures = {name: known.pop(name, None) for name in ("util", "sm", "energy_j")}
    from_min, to_min, period_min = (known.pop(name) for name in ("from_min", "to_min", "period_min"))
    gpu, node, profile = (known.pop(name) for name in ("gpu", "node", "profile"))
    own = [process(job, pid, gpu, gpu_mem_used_mib=mib) for pid, (job, mib) in enumerate(known.pop("processes"), 1)]
    holders = [(gpu, job) for job in known.pop("holders")]
    assert not known, known
    unit = device(
        gpu,
        model=H100,
        profile=profile,
        gpu_util_pct=figures["util"],
        gr_active_pct=None,
        sm_active_pct=figures["sm"],
        sm_occupancy_pct=None,
        tensor_active_pct=None,
        dram_active_pct=None,
        gpu_mem_used_mib=sum(one.gpu_mem_used_mib or 0 for one in own),
        energy_j=figures["energy_j"],
    )
    times = range(from_min + period_min, to_min + 1, period_min)
    at_s = [(midnight + timedelta(minutes=minute)).timestamp() for minute in times]
    return [seen(one_s, [unit], own, holders, interval_s=60.0 * period_min, node=node) for one_s in at_s]


def contents(store: Path) -> dict[Path, bytes]:
    """Return what the store holds; its folder of temporaries is none of it."""
    paths = [path for path in store.rglob("*") if path.is_file() and store / "work" not in path.parents]
    return {path: path.read_bytes() for path in paths}


TAKEN = CASES[:: len(CASES) // tenth(len(CASES))]


@pytest.mark.parametrize("case", TAKEN, ids=[f"{case.theme}: {case.name}" for case in TAKEN])
def test_golden(case: Case, tmp_path: Path) -> None:
    store = tmp_path / "store"
    midnight = case.since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for entry in case.samples:
        sampled(Store(str(store)), parse_samples(midnight, entry))
    options = [
        *(("--fields", case.fields) if case.fields else ()),
        *(("--timezone", case.timezone) if case.timezone else ()),
    ]
    written = case.ingested or [case.now] * len(case.texts)
    with at_site(case.now):
        for number, (text, at) in enumerate(zip(case.texts, written, strict=True)):
            before = contents(store)
            said = ingest(store, tmp_path / f"sacct-{number}.txt", text.encode(case.encoding), at, *options)
            if case.error and number == len(case.texts) - 1:
                assert (said.status, said.out) == (2, ""), said
                assert case.error in said.err.splitlines()[-1]
                assert said.err.splitlines()[-1].startswith("colloc: error: ")
                assert contents(store) == before
            else:
                # What may be lost is a status of its own.
                assert said.status in ((0, 3) if case.rejected else (0,)), said
        assert case.said in said.err
        if case.runs is None:
            assert case.error
            refused = report(store, case.since, case.until)
            assert (refused.status, "holds nothing" in refused.err) == (2, True), refused
            return
        found = shown(store, case.since, case.until, case.by)
    assert (found["runs"], found["runs_without_gpu"]) == (case.runs, case.runs_without_gpu)
    assert figures_of(found["total"], case.total) == expected(case.total)
    groups = {group["name"]: group for group in found["groups"]}
    if case.groups is not None:
        assert groups.keys() == case.groups.keys()
        for name, figures in case.groups.items():
            assert (name, figures_of(groups[name], figures)) == (name, expected(figures))
    assert reasons(found["rejected"], case.rejected) == case.rejected


def figures_of(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found.get(name, "not in the report") for name in wanted}


def expected(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value == "unknown" else near(value) for name, value in figures.items()}


def reasons(found: Mapping[str, int], wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of ``found`` under the words of ``wanted`` that each reason has; in full where it has none."""
    counts: dict[str, int] = {}
    for reason, count in found.items():
        if count:
            name = next((words for words in wanted if words in reason), reason)
            counts[name] = counts.get(name, 0) + count
    return counts


def test_the_suite_is_whole() -> None:
    assert len(CASES) >= 80
    assert len({(case.theme, case.name) for case in CASES}) == len(CASES)
    themes = {case.theme for case in CASES}
    assert themes == {"tres", "shares", "runs", "windows", "clocks", "names", "input", "samples"}
    assert all(sum(case.theme == theme for case in CASES) >= 10 for theme in themes)
    for case in CASES:
        assert case.why.endswith("."), case.name
        assert case.error or case.total, case.name


def test_a_line_longer_than_any_row(tmp_path: Path) -> None:
    """A line of more than 16 MiB is no row, and no memory is to be filled with it."""
    row = b"1|ann|COMPLETED|1795132800|1795136400|gres/gpu=1|"
    text = row + b"x\n" + row + b"x" * (17 * 1024 * 1024) + b"\n"
    fields = "JobID,User,State,Start,End,AllocTRES,JobName"
    with at_site(CASES[0].now):
        said = ingest(tmp_path / "store", tmp_path / "sacct.txt", text, CASES[0].now, "--fields", fields)
    assert (said.status, "16 MiB" in said.err) == (2, True), said
    assert contents(tmp_path / "store") == {}
