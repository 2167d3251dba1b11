# SPDX-License-Identifier: Apache-2.0
"""What whole-GPU runs would have fitted: told where enough was measured, and only then."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.accounting.fits import fits_of
from slurm_colloc.accounting.sources.means import JobMeans
from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.sweep import Window, sweep
from slurm_colloc.charted import Fit
from slurm_colloc.config import Audit, Pool, SiteConfig
from slurm_colloc.measured import AllocationRow, Round
from slurm_colloc.model import Gres
from tests.unit.made import H100, HOUR, MIG_POOL, near, run, site
from tests.unit.stored import busy, stored

WHOLE = Pool("w", "w[1-9]", ("gpu",), "h100", H100, gpus_per_node=2, gpu_mem_mib=80000, sm_count=132)
OTHER = WHOLE._replace(name="a", nodes="a1", gpu_type="a100", gpu_model="NVIDIA A100-SXM4-80GB")
BOTH = site(WHOLE, MIG_POOL, OTHER)
TWO = (Gres("gpu", "h100", 2),)
ALL_OF_IT = (900.0, 1800.0, 2700.0, 3600.0)


def on(node: str = "w1", job: str = "1", **fields: Any) -> AllocationRow:
    return run(job, node_list=node, **fields)


def fits(folder: Path, rows: Sequence[AllocationRow], rounds: Sequence[Round], config: SiteConfig = BOTH) -> list[Fit]:
    return of_store(stored(folder, rows, rounds, config), config)


def of_store(store: Store, config: SiteConfig, by: str = "user", convention: str = "slices") -> list[Fit]:
    with store.connect() as database:
        sweep(database, store, Window(0, 10 * HOUR, 1e6))
        return list(fits_of(database, by, config, convention))


@pytest.mark.parametrize(
    ("mib", "sm", "unit", "freed"),
    [
        # 16, 26, 32 and 60 of 132 SMs are 12.1, 19.7, 24.2 and 45.5 %; the site's headroom is 256 MiB.
        (9728, 12.0, "h100_1g.10gb", 6 / 7),
        (9729, 12.0, "h100_1g.20gb", 6 / 7),
        (9000, 12.5, "h100_1g.20gb", 6 / 7),
        (9000, 20.0, "h100_2g.20gb", 5 / 7),
        (30000, 1.0, "h100_3g.40gb", 4 / 7),
        (9000, 45.0, "h100_3g.40gb", 4 / 7),
        (9000, 46.0, "", 0),
        (40193, 1.0, "", 0),
        (1, 0.0, "h100_1g.10gb", 6 / 7),
    ],
)
def test_the_smallest_slice_that_holds_memory_and_sms(
    mib: int, sm: float, unit: str, freed: float, tmp_path: Path
) -> None:
    (mine, total) = fits(tmp_path, [on()], busy(*ALL_OF_IT, mib=mib, sm=sm))
    assert mine == Fit("ann", near(1.0), near(1.0 if unit else 0.0), near(freed), unit)
    assert total == mine._replace(name="total")


def test_unknown_stays_out_of_the_denominator(tmp_path: Path) -> None:
    rows = [
        on(job="1"),
        on(job="2", user="unseen"),
        on(job="3", user="half"),
        on(job="4", user="blind"),
        on(job="5", user="mean"),
        on("m1", "6", user="slice", gres=(Gres("gpu", "h100_1g.10gb", 1),)),
        on("elsewhere", "7", user="lost", gres=(Gres("gpu", "v100", 1),)),
    ]
    rounds = [
        *busy(*ALL_OF_IT),
        *busy(*ALL_OF_IT[:2], job="3", uuid="GPU-3"),
        *busy(*ALL_OF_IT, job="4", uuid="GPU-4", sm=None),
        *busy(*ALL_OF_IT, job="6", uuid="MIG-6"),
        *busy(*ALL_OF_IT, job="7", uuid="GPU-7"),
    ]
    store = stored(tmp_path, [], rounds, BOTH)
    means = [JobMeans(5.0, 1000, 1, "job mean by jobstats") if row.user == "mean" else None for row in rows]
    store.write_allocations("a", rows, 1e6, means)
    assert [(fit.name, fit.known_gpu_hours) for fit in of_store(store, BOTH)] == [("ann", 1.0), ("total", 1.0)]
    # With less asked of the samples, half a run is enough.
    lenient = BOTH._replace(audit=Audit(min_coverage_pct=50))
    assert [fit.name for fit in of_store(store, lenient)] == ["ann", "half", "total"]


def test_runs_on_several_gpus_fit_none(tmp_path: Path) -> None:
    rounds = [*busy(*ALL_OF_IT), *busy(*ALL_OF_IT, uuid="GPU-1")]
    found = fits(tmp_path, [on(gres=TWO)], rounds)
    assert found == [Fit("ann", near(2.0), 0.0, 0.0, ""), Fit("total", near(2.0), 0.0, 0.0, "")]


def test_slices_of_another_model_do_not_count(tmp_path: Path) -> None:
    rows = [on("a1", gres=(Gres("gpu", "a100", 1),)), on("w2", "2", user="bob", gres=(Gres("gpu", "", 1),))]
    rounds = [*busy(*ALL_OF_IT), *busy(*ALL_OF_IT, job="2", uuid="GPU-2", sm=1.0)]
    bob, ann, total = fits(tmp_path, rows, rounds)
    assert (ann.name, ann.known_gpu_hours, ann.fits_gpu_hours) == ("ann", 1.0, 0.0)
    # Of an untyped GPU the node says the model.
    assert (bob.name, bob.fits_gpu_hours, bob.unit) == ("bob", 1.0, "h100_1g.10gb")
    assert (total.known_gpu_hours, total.fits_gpu_hours, total.unit) == (2.0, 1.0, "h100_1g.10gb")


def test_the_unit_is_the_smallest_that_most_of_it_fits(tmp_path: Path) -> None:
    rows = [on(job="1"), on(job="2"), on(job="3", user="bob", end_s=3 * HOUR)]
    later = [*ALL_OF_IT, *(3600.0 + at_s for at_s in ALL_OF_IT), *(7200.0 + at_s for at_s in ALL_OF_IT)]
    rounds = [
        *busy(*ALL_OF_IT, mib=1000, sm=1.0),
        *busy(*ALL_OF_IT, job="2", uuid="GPU-2", mib=30000, sm=1.0),
        *busy(*later, job="3", uuid="GPU-3", mib=30000, sm=1.0),
    ]
    bob, ann, total = fits(tmp_path, rows, rounds)
    assert (ann.unit, bob.unit, total.unit) == ("h100_1g.10gb", "h100_3g.40gb", "h100_3g.40gb")
    assert ann.freed_gpu_hours == near(6 / 7 + 4 / 7)
    assert total.freed_gpu_hours == near(ann.freed_gpu_hours + bob.freed_gpu_hours)


def test_what_a_slice_leaves_is_by_the_convention_of_the_report(tmp_path: Path) -> None:
    store = stored(tmp_path, [on()], busy(*ALL_OF_IT, mib=1000, sm=1.0), BOTH)
    left = [of_store(store, BOTH, convention=by)[-1].freed_gpu_hours for by in ("slices", "sms", "memory")]
    assert left == [near(6 / 7), near(1 - 16 / 132), near(1 - 9984 / 81559)]


def test_where_there_are_no_slices_nobody_is_told(tmp_path: Path) -> None:
    assert fits(tmp_path, [on()], busy(*ALL_OF_IT), site(WHOLE)) == []


def test_of_two_slices_with_one_name_slurm_may_give_the_lesser(tmp_path: Path) -> None:
    lesser = MIG_POOL.slice[1]._replace(mem_mib=4000)
    twice = site(WHOLE, MIG_POOL._replace(slice=MIG_POOL.slice[1:2]), MIG_POOL._replace(name="n", slice=(lesser,)))
    (mine, _) = fits(tmp_path, [on()], busy(*ALL_OF_IT, mib=5000, sm=1.0), twice)
    assert (mine.known_gpu_hours, mine.unit) == (1.0, "")
