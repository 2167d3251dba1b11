# SPDX-License-Identifier: Apache-2.0
"""What whole-GPU runs would have fitted: told where enough was measured, and only then."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.config import Observe, Partition, Pool, SiteConfig
from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import AllocationRow, NodeSample
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.anonymous import give_pseudonyms
from slurm_colloc.facts.compact import compact
from slurm_colloc.facts.fits import fits_of, make_run_fits
from slurm_colloc.sources.means import JobMeans
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.made import H100, HOUR, MIG_POOL, near, run, site
from tests.unit.stored import busy, stored

WHOLE = Pool("w", "w[1-9]", ("gpu",), "h100", H100, gpus_per_node=2, gpu_mem_mib=80000, sm_count=132)
OTHER = WHOLE._replace(name="a", nodes="a1", gpu_type="a100", gpu_model="NVIDIA A100-SXM4-80GB")
BOTH = site(WHOLE, MIG_POOL, OTHER)
TWO = (Gres("gpu", "h100", 2),)
DAY = 86_400
ALL_OF_IT = (900.0, 1800.0, 2700.0, 3600.0)


def on(node: str = "w1", job: str = "1", **fields: Any) -> AllocationRow:
    return run(job, node_list=node, **fields)


def fits(
    folder: Path, rows: Sequence[AllocationRow], rounds: Sequence[NodeSample], config: SiteConfig = BOTH
) -> list[Fit]:
    return of_store(stored(folder, rows, rounds, config), config)


def of_store(store: Store, config: SiteConfig, by: str = "user", convention: str = "slices") -> list[Fit]:
    with store.connect() as database:
        aggregate(database, store, Window(0, 10 * HOUR, 1e6))
        return list(fits_of(database, by, config, convention))


@pytest.mark.parametrize(
    ("mib", "sm", "unit", "freed"),
    [
        # 16, 26, 32 and 60 of 132 SMs slow 16.0, 28.5, 37.1 and 96.7 % by 2.1; the site's headroom is 256 MiB.
        (9728, 15.0, "gpu:h100_1g.10gb:1", 6 / 7),
        (9729, 15.0, "gpu:h100_1g.20gb:1", 6 / 7),
        (9000, 16.1, "gpu:h100_1g.20gb:1", 6 / 7),
        (9000, 29.0, "gpu:h100_2g.20gb:1", 5 / 7),
        (30000, 1.0, "gpu:h100_3g.40gb:1", 4 / 7),
        (9000, 96.6, "gpu:h100_3g.40gb:1", 4 / 7),
        (9000, 97.0, "", 0),
        (40193, 1.0, "", 0),
        (1, 0.0, "gpu:h100_1g.10gb:1", 6 / 7),
    ],
)
def test_the_smallest_slice_that_holds_memory_and_sms(
    mib: int, sm: float, unit: str, freed: float, tmp_path: Path
) -> None:
    (mine, total) = fits(tmp_path, [on()], busy(*ALL_OF_IT, mib=mib, sm=sm))
    assert mine == Fit("ann", near(1.0), near(1.0 if unit else 0.0), near(freed), unit, 1, int(bool(unit)), 0)
    assert total == mine._replace(name="total")


def test_unknown_is_counted_and_stays_out_of_the_denominator(tmp_path: Path) -> None:
    rows = [
        on(job="1"),
        on(job="2", user="unseen"),
        on(job="3", user="half"),
        on(job="4", user="blind"),
        on(job="5", user="mean"),
        on("m1", "6", user="slice", gres=(Gres("gpu", "h100_1g.10gb", 1),)),
        on(job="7", user="two", gres=TWO),
        on(job="8", user="failed", state="FAILED"),
        on(job="9", user="long", end_s=100 * HOUR),
    ]
    rounds = [
        *busy(*ALL_OF_IT),
        *busy(*ALL_OF_IT[:2], job="3", uuid="GPU-3"),
        *busy(*ALL_OF_IT, job="4", uuid="GPU-4", sm=None, util=None),
        *busy(*ALL_OF_IT, job="6", uuid="MIG-6"),
        *busy(*ALL_OF_IT, job="7", uuid="GPU-7"),
        *busy(*ALL_OF_IT, job="7", uuid="GPU-8"),
        *busy(*ALL_OF_IT, job="8", uuid="GPU-9"),
        *busy(*(900.0 * count for count in range(1, 41)), job="9", uuid="GPU-10"),
    ]
    store = stored(tmp_path, [], rounds, BOTH)
    means = [JobMeans(5.0, 1000, 1, "job mean by jobstats") if row.user == "mean" else None for row in rows]
    store.write_allocations("a", rows, 1e6, means)
    ann, total = of_store(store, BOTH)
    assert (ann.name, ann.known_gpu_hours, ann.judged_runs, ann.not_judged_runs) == ("ann", 1.0, 1, 0)
    assert (total.known_gpu_hours, total.judged_runs, total.not_judged_runs) == (1.0, 1, 7)


def test_a_bound_stands_in_for_sm_activity_as_it_does_for_csub(tmp_path: Path) -> None:
    (mine, _) = fits(tmp_path, [on()], busy(*ALL_OF_IT, sm=None, util=12.0))
    assert mine.unit == "gpu:h100_1g.10gb:1"


def test_it_is_the_mean_of_its_time(tmp_path: Path) -> None:
    calm, burst = busy(900.0, sm=3.0), busy(3600.0, interval_s=2700.0, sm=19.0)
    (mine, _) = fits(tmp_path / "15 %", [on()], [*calm, *burst])
    assert mine.unit == "gpu:h100_1g.10gb:1"
    (mine, _) = fits(tmp_path / "16 %", [on()], [*calm, *busy(3600.0, interval_s=2700.0, sm=21.0)])
    assert mine.unit == "gpu:h100_1g.20gb:1"


def test_of_a_day_of_which_only_facts_are_left_it_is_known(tmp_path: Path) -> None:
    store = stored(tmp_path, [on(), on(job="2", user="bob", start_s=50 * DAY, end_s=50 * DAY + HOUR)],
                   [*busy(*ALL_OF_IT), *busy(*(50 * DAY + at_s for at_s in ALL_OF_IT), job="2")], BOTH)  # fmt: skip
    for _ in range(2):
        compact(store, Observe(keep_raw_days=1), 51 * DAY)
    with store.connect() as database:
        aggregate(database, store, Window(0, 60 * DAY, 1e9))
        found = fits_of(database, "user", BOTH, "slices")
    assert [(fit.judged_runs, fit.unit) for fit in found] == [(count, "gpu:h100_1g.20gb:1") for count in (1, 1, 2)]


def test_what_a_partition_is_closed_to_fits_nothing_there_under_whatever_name(tmp_path: Path) -> None:
    partitions = (Partition("gpu", pieces_in=("mig",)), Partition("mig", restrictions=("AllowAccounts=Lab",)))
    config = site(WHOLE, MIG_POOL._replace(partitions=("mig",)))._replace(partition=partitions)
    rows = [on(), on(job="2", user="bob", account="other")]
    store = stored(tmp_path, rows, [*busy(*ALL_OF_IT), *busy(*ALL_OF_IT, job="2", uuid="GPU-2")], config)
    with store.connect() as database:
        aggregate(database, store, Window(0, 10 * HOUR, 1e6))
        give_pseudonyms(database, b"key")
        found = fits_of(database, "account", config, "slices")
    assert [(fit.judged_runs, fit.unit) for fit in found] == [
        (1, "gpu:h100_1g.20gb:1"), (1, ""), (2, "gpu:h100_1g.20gb:1")
    ]  # fmt: skip


def test_a_piece_of_another_partition_is_asked_for_there(tmp_path: Path) -> None:
    partitions = (Partition("gpu", pieces_in=("mig",)), Partition("mig"))
    config = site(WHOLE, MIG_POOL._replace(partitions=("mig",)))._replace(partition=partitions)
    store = stored(tmp_path, [on()], busy(*ALL_OF_IT, mib=1000, sm=1.0), config)
    with store.connect() as database:
        aggregate(database, store, Window(0, 10 * HOUR, 1e6))
        make_run_fits(database, config)
        assert database.execute("SELECT fit_unit, fit_place FROM run_fits").fetchall() == [
            ("gpu:h100_1g.10gb:1", "mig")
        ]


def test_shares_are_pieces_too(tmp_path: Path) -> None:
    config = site(WHOLE._replace(shards_per_gpu=8))
    (mine, _) = fits(tmp_path, [on()], busy(*ALL_OF_IT, mib=15000, sm=3.0), config)
    assert (mine.unit, mine.freed_gpu_hours) == ("shard:2", near(0.75))


def test_slices_of_another_model_do_not_count(tmp_path: Path) -> None:
    rows = [on("a1", gres=(Gres("gpu", "a100", 1),)), on("w2", "2", user="bob", gres=(Gres("gpu", "", 1),))]
    rounds = [*busy(*ALL_OF_IT), *busy(*ALL_OF_IT, job="2", uuid="GPU-2", sm=1.0)]
    bob, ann, total = fits(tmp_path, rows, rounds)
    assert (ann.name, ann.known_gpu_hours, ann.fits_gpu_hours) == ("ann", 1.0, 0.0)
    # Of an untyped GPU the node says the model.
    assert (bob.name, bob.fits_gpu_hours, bob.unit) == ("bob", 1.0, "gpu:h100_1g.10gb:1")
    assert (total.known_gpu_hours, total.fits_gpu_hours, total.unit) == (2.0, 1.0, "gpu:h100_1g.10gb:1")


def test_the_unit_is_the_smallest_that_holds_each_run(tmp_path: Path) -> None:
    rows = [on(job="1", end_s=3 * HOUR), on(job="2"), on(job="3", user="bob")]
    later = [*ALL_OF_IT, *(3600.0 + at_s for at_s in ALL_OF_IT), *(7200.0 + at_s for at_s in ALL_OF_IT)]
    rounds = [
        *busy(*later, mib=1000, sm=1.0),
        *busy(*ALL_OF_IT, job="2", uuid="GPU-2", mib=30000, sm=1.0),
        *busy(*ALL_OF_IT, job="3", uuid="GPU-3", mib=15000, sm=1.0),
    ]
    ann, bob, total = fits(tmp_path, rows, rounds)
    assert (ann.unit, bob.unit, total.unit) == ("gpu:h100_3g.40gb:1", "gpu:h100_1g.20gb:1", "gpu:h100_3g.40gb:1")
    # What is left is by the smallest piece of each run.
    assert ann.freed_gpu_hours == near(3 * 6 / 7 + 4 / 7)
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
