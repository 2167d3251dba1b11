# SPDX-License-Identifier: Apache-2.0
"""What must hold of the sums whatever ran: from sacct text and samples to the report's JSON."""

import csv
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.sources.sacct_client import FIELDS
from slurm_colloc.store.store import Store
from tests.rings import tenth
from tests.unit.doors import at_site, colloc, ingest, report, shown
from tests.unit.made import device, near, process, seen
from tests.unit.stored import sampled

BEGAN = datetime(2026, 11, 20, tzinfo=UTC)
PERIOD_S = 600
SINCE, UNTIL = BEGAN + timedelta(seconds=900), BEGAN + timedelta(seconds=6500)
NOW = BEGAN + timedelta(hours=6)
HOURS = (UNTIL - SINCE).total_seconds() / 3600
# All that adds up over windows, and over users.
HOURLY = (
    *("allocated_gpu_hours", "held_gpu_hours", "held_unknown_hours", "held_idle_gpu_hours", "energy_kwh"),
    *("util_measured_gpu_hours", "util_used_gpu_hours", "util_idle_gpu_hours"),
    *("sm_measured_gpu_hours", "sm_used_gpu_hours", "sm_idle_gpu_hours"),
)
# Those that are null where no sample tells.
UNKNOWN = (
    "held_idle_gpu_hours",
    "energy_kwh",
    *(f"{by}_{what}_gpu_hours" for by in ("util", "sm") for what in ("used", "idle")),
)
COUNTS = ("jobs", "jobs_measured", "jobs_without_size")
GROUPINGS = ("user", "account", "partition", "qos", "gpu")
# Each example makes a store and asks it several times: a few, and none of the hundreds that would make one smaller.
FEW = settings(max_examples=tenth(12), phases=(Phase.explicit, Phase.reuse, Phase.generate))


class Unit(NamedTuple):
    """A GPU or slice that is installed, and who may be on it at a time: ``lanes`` runs, one after the other in each."""

    uuid: str
    profile: str
    node: str
    tres: str
    lanes: int


UNITS = (
    Unit("GPU-0", "", "g1", "gres/gpu:h100=1,gres/gpu=1", 1),
    Unit("GPU-1", "", "g1", "gres/gpu:h100=1", 1),
    Unit("MIG-0", "1g.10gb", "m1", "gres/gpu:h100_1g.10gb=1,gres/gpu=1", 1),
    Unit("MIG-1", "1g.10gb", "m1", "gres/gpu:h100_1g.10gb=1", 1),
    Unit("GPU-2", "", "s1", "cpu=1,gres/shard=1", 2),
    # Of a node whose shares nobody described.
    Unit("GPU-3", "", "x1", "cpu=1,gres/mps=10", 1),
)
# By gres type, in whole GPUs.
INSTALLED = {"h100": 2.0, "h100_1g.10gb": 2 / 7, "shard": 1.0, "mps": 1.0}


class Ran(NamedTuple):
    """A run on one unit, or on the two whole GPUs; seconds since BEGAN, an end of None is not known yet."""

    job: str
    user: str
    start_s: int
    end_s: int | None
    suspended_s: int
    units: tuple[Unit, ...]

    def overlaps(self, since_s: int, until_s: int) -> bool:
        return self.start_s < until_s and (self.end_s is None or self.end_s > since_s)

    @property
    def line(self) -> str:
        began_s = int(BEGAN.timestamp())
        end, state = ("Unknown", "RUNNING") if self.end_s is None else (str(began_s + self.end_s), "COMPLETED")
        minutes, seconds = divmod(self.suspended_s, 60)
        tres = self.units[0].tres if len(self.units) == 1 else "cpu=1,gres/gpu:h100=2,gres/gpu=2"
        before = (self.job, self.job, "c", self.user, "lab", "gpu", "normal", state, began_s, began_s + self.start_s)
        until_s = int((NOW - BEGAN).total_seconds()) if self.end_s is None else self.end_s
        elapsed_s = until_s - self.start_s - self.suspended_s
        after = (end, f"00:{minutes:02}:{seconds:02}", tres, self.units[0].node, elapsed_s, "a|name")
        return "|".join(map(str, (*before, *after))) + "\n"


class Scene(NamedTuple):
    """What ran, and what was seen of it."""

    runs: tuple[Ran, ...]
    rounds: tuple[NodeSample, ...]


PCT = st.none() | st.sampled_from([0.0, 12.5, 40.0, 100.0])
# Utilization, SM activity, energy, and whether those who hold the unit run anything there; None where it was not read.
READING = st.none() | st.tuples(PCT, PCT, st.none() | st.sampled_from([0.0, 30000.0, 417.5]), st.booleans())


@st.composite
def lanes(draw: st.DrawFn, name: str, units: tuple[Unit, ...]) -> list[Ran]:
    """Draw runs that are never at one time on these units."""
    runs: list[Ran] = []
    at_s = 0
    for number in range(draw(st.integers(0, 3))):
        start_s = at_s + draw(st.integers(1, 2500))
        at_s = start_s + draw(st.integers(0, 3500))
        suspended_s = draw(st.sampled_from([0, 0, (at_s - start_s) // 3, at_s - start_s]))
        # A job that runs again keeps its id.
        job = runs[-1].job if draw(st.booleans()) and runs else f"{name}{number}"
        runs.append(Ran(job, draw(st.sampled_from(["ann", "bob", "cid"])), start_s, at_s, suspended_s, units))
    if draw(st.booleans()) and runs:
        runs[-1] = runs[-1]._replace(end_s=None)
    return runs


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Draw runs that fit on what is installed, and readings of some of their time."""
    groups: list[tuple[Unit, ...]] = [UNITS[:2]] if draw(st.booleans()) else [UNITS[:1], UNITS[1:2]]
    groups += [(unit,) for unit in UNITS[2:] for _ in range(unit.lanes)]
    runs = tuple(one for number, units in enumerate(groups, 1) for one in draw(lanes(str(number), units)))
    rounds = []
    for at_s in range(PERIOD_S, PERIOD_S * 13, PERIOD_S):
        devices, processes, holders = [], [], []
        for unit in UNITS:
            reading = draw(READING)
            if reading is None:
                continue
            util, active, energy_j, working = reading
            figures = {"profile": unit.profile, "sm_active_pct": active, "energy_j": energy_j}
            devices.append(device(unit.uuid, gpu_util_pct=None if unit.profile else util, **figures))
            there = {one.job for one in runs if unit in one.units and one.overlaps(at_s - PERIOD_S, at_s)}
            holders += [(unit.uuid, job) for job in sorted(there)]
            processes += [process(job, int(job), unit.uuid) for job in sorted(there) if working]
        rounds.append(seen(BEGAN.timestamp() + at_s, devices, processes, holders, interval_s=PERIOD_S))
    return Scene(runs, tuple(rounds))


SCENES = scenes().filter(lambda scene: bool(scene.runs))


def taken(folder: str, scene: Scene, texts: Sequence[str]) -> Path:
    """Return a store that has these texts and the scene's readings."""
    store = Path(folder, "store")
    sampled(Store(str(store)), scene.rounds)
    for number, text in enumerate(texts):
        said = ingest(store, Path(folder, f"sacct-{number}.txt"), text.encode(), NOW)
        assert (said.status, "0 rejected" in said.err) == (0, True), said
    return store


def text_of(runs: Sequence[Ran]) -> str:
    # What an open run has lasted, each text says by itself, however the runs are spread over texts.
    fields = (*FIELDS[:-1], "ElapsedRaw", FIELDS[-1])
    return "".join(["|".join(fields) + "\n", *(one.line for one in runs)])


def figures(text: str) -> list[str]:
    """Return the lines of a report but those that count the rows of its sources, of which the second has more."""
    return [line for line in text.splitlines() if not line.startswith(('  "rows_', '  "job_steps"'))]


@FEW
@given(SCENES, st.lists(st.floats(0, 1), min_size=1, max_size=2))
def test_splitting_a_window_never_changes_the_sums(scene: Scene, cuts: list[float]) -> None:
    edges = [SINCE, *sorted(SINCE + (UNTIL - SINCE) * cut for cut in cuts), UNTIL]
    with TemporaryDirectory() as folder, at_site(NOW):
        store = taken(folder, scene, [text_of(scene.runs)])
        whole = shown(store, SINCE, UNTIL)["total"]
        parts = [shown(store, since, until)["total"] for since, until in pairwise(edges) if since < until]
    suspended = any(run.suspended_s for run in scene.runs)
    for name in HOURLY:
        added, all_of_it = sum(part[name] or 0 for part in parts), whole[name] or 0
        # Nobody knows when it was: what a window was allocated may be less than what was used in it, which is cut then.
        if suspended and name.endswith("used_gpu_hours"):
            assert added <= all_of_it * (1 + 1e-9), name
        elif not suspended or not name.endswith("idle_gpu_hours") or name.startswith("held"):
            assert (name, added) == (name, near(all_of_it))


@FEW
@given(SCENES, st.integers(), st.integers(1, 3), st.sampled_from(GROUPINGS))
def test_order_and_repetition_never_change_a_byte(scene: Scene, seed: int, files: int, by: str) -> None:
    draw = random.Random(seed)
    rows = draw.sample(scene.runs, len(scene.runs)) + draw.choices(scene.runs, k=len(scene.runs))
    again = scene._replace(rounds=(*reversed(scene.rounds), *scene.rounds))
    with TemporaryDirectory() as first, TemporaryDirectory() as second, at_site(NOW):
        plain = taken(first, scene, [text_of(scene.runs)])
        mixed = taken(second, again, [text_of(rows[number::files]) for number in range(files) if rows[number::files]])
        once, twice = report(plain, SINCE, UNTIL, by), report(mixed, SINCE, UNTIL, by)
    assert (once.status, figures(once.out)) == (0, figures(twice.out)), once.err


@FEW
@given(SCENES, st.sampled_from(GROUPINGS))
def test_the_groups_are_the_whole_cluster(scene: Scene, by: str) -> None:
    with TemporaryDirectory() as folder, at_site(NOW):
        found = shown(taken(folder, scene, [text_of(scene.runs)]), SINCE, UNTIL, by)
    for name in (*HOURLY, *COUNTS):
        values = [group[name] for group in found["groups"]]
        whole = found["total"][name]
        known = [value for value in values if value is not None]
        assert (name, whole) == (name, near(sum(known)) if known or name not in UNKNOWN else None)


@FEW
@given(SCENES)
def test_used_is_at_most_held_and_held_at_most_installed(scene: Scene) -> None:
    with TemporaryDirectory() as folder, at_site(NOW):
        store = taken(folder, scene, [text_of(scene.runs)])
        kinds = {group["name"]: group for group in shown(store, SINCE, UNTIL, "gpu")["groups"]}
    assert kinds.keys() <= INSTALLED.keys()
    for kind, group in kinds.items():
        bound = INSTALLED[kind] * HOURS * (1 + 1e-9)
        assert 0 <= (group["held_gpu_hours"] or 0) <= bound
        # Who held a share is not known at all times.
        if kind not in ("shard", "mps"):
            assert group["held_unknown_hours"] == 0
            for used in ("util_used_gpu_hours", "sm_used_gpu_hours", "held_idle_gpu_hours"):
                assert 0 <= (group[used] or 0) <= group["held_gpu_hours"] * (1 + 1e-9)


def outlets(store: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield all that has an allocated, a measured and a used figure, by where it is told."""
    window = ("--store", str(store), "--since", SINCE.isoformat(), "--until", UNTIL.isoformat())
    for by in GROUPINGS:
        charts = ("--charts",) if by == "user" else ()
        said = colloc("report", *window, "--by", by, "--format", "json", "--runs", str(store / "runs.csv"), *charts)
        assert said.status == 0, said.err
        found = json.loads(said.out)
        yield from ((f"report by {by}", group) for group in (*found["groups"], found["total"]))
        if charts:
            drawn = found["charts"]
            yield from (("over time", piece) for piece in drawn["over_time"])
            yield from (("by group", piece) for detail in drawn["details"] for piece in detail["over_time"])
            yield from (("week", {name.replace("_gpus", "_gpu_hours"): value for name, value in hour.items()})
                        for hour in drawn["week"])  # fmt: skip
    with (store / "runs.csv").open() as stream:
        runs = [{name: float(value) if value and "gpu_hours" in name else value or None
                 for name, value in row.items()} for row in csv.DictReader(stream)]  # fmt: skip
    yield from (("runs", run) for run in runs)
    for job in {str(run["job_id"]) for run in runs}:
        said = colloc("job", job, "--store", str(store), "--since", "7d", "--format", "json")
        assert said.status == 0, said.err
        yield from (("job", run) for run in json.loads(said.out)["runs"])


@FEW
@given(SCENES)
def test_used_is_at_most_measured_and_measured_at_most_allocated_wherever_it_is_told(scene: Scene) -> None:
    with TemporaryDirectory() as folder, at_site(NOW):
        told = list(outlets(taken(folder, scene, [text_of(scene.runs)])))
    for where, figures in told:
        allocated = figures["allocated_gpu_hours"]
        for by in ("util", "sm"):
            measured, used = figures[f"{by}_measured_gpu_hours"], figures[f"{by}_used_gpu_hours"]
            assert used is None or 0 <= used <= measured * (1 + 1e-9) + 1e-12, (where, by, figures)
            assert not measured or measured <= allocated * (1 + 1e-9) + 1e-12, (where, by, figures)
            if where in ("runs", "job") and allocated is None:
                assert (measured, used) == (None, None), (where, by, figures)
