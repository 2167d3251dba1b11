# SPDX-License-Identifier: Apache-2.0
"""colloc report, job and me say of each run that the same piece would have held it, or that nobody can tell."""

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.audit.col007_fits_a_slice import RULE
from slurm_colloc.cli.colloc.job_next import advise
from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.config import Observe, SiteConfig
from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import AllocationRow, NodeSample
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.compact import compact
from slurm_colloc.facts.fits import fit_of, fits_of
from slurm_colloc.facts.judgement import COMPARED, LEAST_GPU_HOURS, NEVER_USED, NO_USE, PIECE, TAIL, RunFound, judge
from slurm_colloc.facts.one_job import find_job
from slurm_colloc.facts.one_user import user_in_store
from slurm_colloc.facts.remedies import remedies
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.pages import DOCS
from tests.rings import tenth
from tests.unit.made import HOUR, MIG_POOL, SHARD_POOL, near, process, run, site
from tests.unit.stored import busy, stored
from tests.unit.test_audit import audited
from tests.unit.test_col001_tail import hours

POOL = MIG_POOL._replace(gpu_type="h100", gpus_per_node=2)
SITE = site(POOL)
SHARED = site(POOL, SHARD_POOL._replace(shards_per_gpu=16), order=("shard", "mig"), max_slowdown=1.1)
WINDOW = Window(0, 1e6, 1e6)
DAY = 86_400.0


def reported(store: Store, config: SiteConfig, window: Window = WINDOW) -> Fit | None:
    with store.connect() as database:
        aggregate(database, store, window)
        return next(iter(fits_of(database, "user", config, "slices")), None)


def own(store: Store, config: SiteConfig) -> Fit | None:
    return fit_of("ann", map(judge, user_in_store(store, "ann", WINDOW, config).runs))


def to_do(store: Store, config: SiteConfig) -> list[Any]:
    with store.connect() as database:
        aggregate(database, store, WINDOW)
        fits_of(database, "user", config, "slices")
        return [(one.gpu_hours, one.runs, one.line) for one in remedies(database, config, 5)[1]]


def most(store: Store, config: SiteConfig) -> list[Any]:
    """Return what the user's runs, judged one by one, could do about most GPU-hours."""
    alike: dict[tuple[str, str], list[tuple[float, RunFound, str]]] = {}
    for one in map(judge, user_in_store(store, "ann", WINDOW, config).runs):
        for remedy in one.remedies:
            held = (remedy.gpu_hours, one.found, remedy.gres)
            alike.setdefault((remedy.code, one.found.usage.gpu_type), []).append(held)
    alike = {key: of for key, of in alike.items() if sum(hours for hours, *_ in of) >= LEAST_GPU_HOURS}
    if not alike:
        return []
    (code, _), of = max(alike.items(), key=lambda one: (sum(hours for hours, *_ in one[1]), one[0][0] == NO_USE))
    largest = max(
        of, key=lambda one: (one[1].fitted.gpus or 0, one[0]) if code == PIECE and one[1].fitted else (0, one[0])
    )
    line = f"#SBATCH --gres={largest[2]}" if largest[2] else ""
    return [(near(sum(hours for hours, *_ in of)), len(of), line)]


def close(fit: Fit | None) -> Any:
    """Return what equals a Fit, but for the last digits of its hours."""
    return fit and fit._replace(**{
        name: near(getattr(fit, name)) for name in ("known_gpu_hours", "fits_gpu_hours", "freed_gpu_hours")
    })  # fmt: skip


SAMPLES = st.fixed_dictionaries(
    {
        "interval_s": st.sampled_from((30.0, 60.0, 100.0, 180.0)),
        "sm": st.none() | st.sampled_from((0.0, 6.0, 12.0, 15.0, 20.0, 30.0, 90.0)) | st.floats(0, 100),
        "util": st.none() | st.floats(0, 100),
        "mib": st.none() | st.sampled_from((1, 4744, 4745, 9728, 9729, 30000)) | st.integers(0, 60000),
    }
)
RUNS = st.fixed_dictionaries(
    {
        "state": st.sampled_from(("COMPLETED",) * 5 + ("FAILED", "RUNNING")),
        "gres": st.sampled_from((("h100", 1),) * 5 + (("h100", 2), ("h100_1g.10gb", 1))),
        "left_out_s": st.sampled_from((0.0, 0.0, 100.0, 1000.0)),
        "together": st.booleans(),
        "samples": st.lists(SAMPLES, min_size=1, max_size=12),
    }
)


def made(job: str, began_s: float, how: Mapping[str, Any]) -> tuple[AllocationRow, list[NodeSample]]:
    """Return a run on a GPU of its own, or for a part of its time with another job's process, and its samples."""
    ends = list(accumulate((one["interval_s"] for one in how["samples"]), initial=began_s))
    rounds = []
    for number, (at_s, one) in enumerate(zip(ends[1:], how["samples"], strict=True)):
        (seen,) = busy(at_s, job=job, uuid=f"GPU-{job}", **one)
        if how["together"] and number == 0:
            seen = seen._replace(processes=(*seen.processes, process("99", uuid=f"GPU-{job}", gpu_mem_used_mib=10)))
        rounds.append(seen)
    end_s = None if how["state"] == "RUNNING" else int(ends[-1] + how["left_out_s"])
    gres = (Gres("gpu", *how["gres"]),)
    return run(job, int(began_s), end_s, state=how["state"], gres=gres, node_list="m1"), rounds


@settings(max_examples=tenth(10), deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=4), st.sampled_from((SITE, SHARED)), st.sampled_from((0, 1, 2)))
def test_all_say_the_same_of_any_runs(hows: list[Mapping[str, Any]], config: SiteConfig, compactions: int) -> None:
    pairs = [made(str(number), 7200.0 * number, how) for number, how in enumerate(hows, 1)]
    with TemporaryDirectory() as folder:
        store = stored(folder, [row for row, _ in pairs], [one for _, rounds in pairs for one in rounds], config)
        for _ in range(compactions):
            assert compact(store, Observe(keep_raw_days=1), 3 * DAY, anyway=True)
        found = reported(store, config)
        assert close(own(store, config)) == found
        assert to_do(store, config) == most(store, config)
        for row, _ in pairs:
            (job,) = find_job(store, row.job_id, WINDOW, config, 4)
            one = judge(job)
            told = advise(job, None, None, None, config).fit
            if any(remedy.code == NO_USE for remedy in one.remedies):
                assert not told or told.startswith("no GPU: ")
            elif one.unit:
                assert told.startswith(f"{one.unit} (")
            elif told:
                assert told.startswith("none: " if not one.why else "not known: ")


def test_the_mean_is_over_the_time_in_which_kernels_ran(tmp_path: Path) -> None:
    began = {"interval_s": 600.0, "sm": 0.0, "util": 0.0, "mib": 1000}
    how = {"state": "COMPLETED", "gres": ("h100", 1), "left_out_s": 0.0, "together": False,
           "samples": [began, began, began | {"sm": 18.0, "util": 90.0}]}  # fmt: skip
    row, rounds = made("1", 7200.0, how)
    store = stored(tmp_path, [row], rounds, SITE)
    found = reported(store, SITE)

    # 6 % over its whole time would fit 16 SMs; the 18 % of the time in which it worked need 26.
    assert found
    assert found.unit == "gpu:h100_1g.20gb:1"
    assert close(own(store, SITE)) == found


def test_the_part_of_a_minute_that_was_alone_counts_for_all(tmp_path: Path) -> None:
    alone = {"interval_s": 30.0, "sm": 12.0, "util": 50.0, "mib": 1000}
    how = {"state": "COMPLETED", "gres": ("h100", 1), "left_out_s": 0.0, "together": True, "samples": [alone] * 4}
    row, rounds = made("1", 7200.0, how)
    store = stored(tmp_path, [row], rounds, SITE)
    assert compact(store, Observe(keep_raw_days=1), 3 * DAY, anyway=True)
    found = reported(store, SITE)
    assert found is not None
    assert close(own(store, SITE)) == found


def test_a_run_that_never_used_its_gpu_fits_no_piece_and_leaves_all_of_it(tmp_path: Path) -> None:
    how = {"interval_s": 100.0, "sm": 0.0, "util": 0.0, "mib": 1}
    pair = {"state": "COMPLETED", "gres": ("h100", 1), "left_out_s": 0.0, "together": False, "samples": [how] * 12}
    row, rounds = made("1", 7200.0, pair)
    found = reported(stored(tmp_path, [row], rounds, SITE), SITE)
    assert found is not None
    assert (found.fitting_runs, found.spare_runs, found.could_free_gpu_hours) == (0, 1, near(1 / 3))


def test_an_idle_tail_is_the_same_where_hours_were_not_seen(tmp_path: Path) -> None:
    store = stored(tmp_path, [run("1", end_s=20 * HOUR)], hours(1, 2, of=20, dark=(3,)), SITE)
    assert to_do(store, SITE) == most(store, SITE) == [(near(17.0), 1, "")]


def test_no_use_is_never_unknown_where_nobody_read_gpu_util_or_processes() -> None:
    """NULL in its place kept a tail out of the report, and not out of the judgement."""
    row = "100.0 coverage_pct, 1.0 allocated, 0.0 sm_used, 1.0 sm_measured, NULL::DOUBLE util_used, "
    row += "NULL::DOUBLE util_measured, NULL::DOUBLE held_idle_hours"
    assert duckdb.connect().execute(f"SELECT {NEVER_USED} FROM (SELECT {row})").fetchall() == [(False,)]


def test_what_is_forgotten_is_to_be_ended_and_its_piece_counts_until_then(tmp_path: Path) -> None:
    """A GPU of 20 h that worked for 6 leaves 14 by its end; a piece of 1/7 leaves more, but not of a dead job."""
    rounds = [*busy(*(HOUR * hour for hour in range(1, 7)), interval_s=HOUR, sm=2.0, util=4.0),
              *busy(*(HOUR * hour for hour in range(7, 21)), interval_s=HOUR, sm=0.0, util=0.0)]  # fmt: skip
    store = stored(tmp_path, [run("1", end_s=20 * HOUR)], rounds, SITE)
    assert to_do(store, SITE) == most(store, SITE) == [(near(14.0), 1, "")]
    (found,) = user_in_store(store, "ann", WINDOW, SITE).runs
    assert found.fitted
    assert [(one.code, one.gpu_hours) for one in judge(found).remedies] == [
        (TAIL, near(14.0)),
        (PIECE, near(6 * 6 / 7)),
    ]
    assert found.fitted.freed_gpu_hours == near(20 * 6 / 7)


@pytest.mark.parametrize(("since_h", "until_h", "compared"), [(0, 6, 1), (4, 20, 1), (5, 20, 0), (0, 5, 0)])
def test_a_run_that_the_window_cuts_is_compared_where_most_of_it_is(
    tmp_path: Path, since_h: int, until_h: int, compared: int
) -> None:
    """60 % of its time counts, for a report as for a mail; so no run is in two windows."""
    rounds = busy(*(HOUR * hour for hour in range(1, 11)), interval_s=HOUR, sm=2.0, util=4.0)
    store = stored(tmp_path, [run("1", end_s=10 * HOUR)], rounds, SITE)
    ends = float(since_h * HOUR), float(until_h * HOUR)
    fit = reported(store, SITE, Window(*ends, 1e6))
    found = audited(store, "COL007", *ends, site=SITE, bounds={"min_gpu_hours": 1.0})
    assert (fit.judged_runs if fit else 0, len(found)) == (compared, compared)


def test_one_sentence_says_which_runs_are_compared() -> None:
    texts = (
        RULE.documentation,
        *((DOCS / page).read_text() for page in ("explanation/accounting.md", "how-to/report.md")),
    )
    for text in texts:
        assert COMPARED in " ".join(text.replace("*", "").split())


def test_a_piece_for_several_runs_is_named_by_its_part_of_a_gpu(tmp_path: Path) -> None:
    how = {"state": "COMPLETED", "gres": ("h100", 1), "left_out_s": 0.0, "together": False}
    how |= {"samples": [{"interval_s": 100.0, "sm": 6.0, "util": 50.0, "mib": 4000}] * 10}
    pairs = [made(str(number), 7200.0 * number, how) for number in (1, 2)]
    store = stored(tmp_path, [row for row, _ in pairs], [one for _, rounds in pairs for one in rounds], SITE)
    with store.connect() as database:
        aggregate(database, store, WINDOW)
        fits_of(database, "user", SITE, "slices")
        users, (todo,) = remedies(database, SITE, 5)
    assert users == 1
    assert (todo.runs, "14 % of a GPU (gpu:h100_1g.10gb:1)" in todo.what) == (2, True)
