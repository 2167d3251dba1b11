# SPDX-License-Identifier: Apache-2.0
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.core.config import Partition, Pool, Sharing, SiteConfig
from slurm_colloc.core.model import Footprint, Gres, JobRequest, Placement, Quantiles, Reason, SharingMode, because
from slurm_colloc.placement.candidate import Access
from slurm_colloc.placement.choose import place
from slurm_colloc.placement.speed import on_slice, part_needed
from slurm_colloc.slurm.limits import Association, Limits
from slurm_colloc.submit.reasons import reasons_untouchable
from tests.unit.made import H100, MIG_POOL, MPS_POOL, SHARD_POOL, codes, footprint, near, request, site

MPS = {"mps_daemon": "site"}


def why(placement: Placement) -> dict[str, Reason]:
    assert placement.as_asked
    assert placement.mode is SharingMode.EXCLUSIVE
    assert placement.memory_mib is None
    return dict(placement.rejected)


# --- billing ---


def billing(asked: Gres, config: SiteConfig, *weights: str) -> list[tuple[object, object]]:
    """Return what a job's GPU counts before and after, where that is said."""
    partitions = (
        item._replace(billing_weights=text) for item, text in zip(config.partition, weights * 2, strict=False)
    )
    found = place(request(gres=(asked,)), footprint(9000, 10), config._replace(partition=tuple(partitions)))
    assert not found.as_asked
    return [(one.params["before"], one.params["after"]) for one in found.reasons if one.code == "billed"]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("CPU=1.0,Mem=0.25G,GRES/gpu:h100=1000,GRES/mps=10", [(1000.0, 120.0)]),
        # An untyped price is of each type as well, and none is a price of 0.
        ("GRES/gpu=2,GRES/gpu:h100=3", [(5.0, 0.0)]),
        ("GRES/gpu:H100=8,gres/mps=0.08", [(8.0, near(0.96))]),
        ("CPU=1.0", []),
        ("", []),
    ],
)
def test_what_a_piece_counts_in_billing(weights: str, said: list[tuple[float, float]]) -> None:
    for asked in (Gres("gpu", "", 1), Gres("gpu", "h100", 1)):
        assert billing(asked, site(MPS_POOL, **MPS), weights) == said


def test_what_a_piece_counts_where_the_type_or_the_price_is_not_known_is_not_said() -> None:
    both = site(MIG_POOL._replace(gpu_type="h100", gpus_per_node=1))
    assert billing(Gres("gpu", "", 1), both, "GRES/gpu:h100=8,GRES/gpu:h100_1g.10gb=1") == []
    assert billing(Gres("gpu", "", 1), both, "GRES/gpu=8") == [(8.0, 8.0)]
    assert billing(Gres("gpu", "h100", 1), both, "GRES/gpu:h100=8,GRES/gpu:h100_1g.10gb=1") == [(8.0, 1.0)]


# --- slices ---


def test_smallest_slice_that_holds_it() -> None:
    found = place(request(), footprint(9000, 10), site(MIG_POOL))
    assert (found.mode, found.gres, found.memory_mib) == ("mig", Gres("gpu", "h100_1g.10gb", 1), 9256)
    assert found.headroom_mib == 256
    held, slower = found.reasons
    assert held == because("slice-holds", profile="1g.10gb", need_mib=9256, mem_mib=9984)
    assert slower.params == {"expected": near(1.3625), "upper": near(1.665), "bound": 2.1}


@pytest.mark.parametrize(
    ("memory", "profile"), [(9728, "1g.10gb"), (9728.2, "1g.20gb"), (19834, "1g.20gb"), (19835, "3g.40gb")]
)
def test_headroom_is_added_and_demand_rounds_up(memory: float, profile: str) -> None:
    found = place(request(), footprint(memory, 5), site(MIG_POOL))
    assert found.gres == Gres("gpu", f"h100_{profile}", 1)


@pytest.mark.parametrize(
    ("active", "profile"),
    # (1.25 - 1 + 0.06) / (132 / 16 - 1) = 4.28 %; 1g.20gb 7.60 %; 2g.20gb 9.92 %; 3g.40gb 25.83 %
    [(4.2, "1g.10gb"), (4.3, "1g.20gb"), (7.6, "1g.20gb"), (7.7, "2g.20gb"), (10.0, "3g.40gb"), (25.8, "3g.40gb")],
)
def test_slowdown_bound(active: float, profile: str) -> None:
    found = place(request(), footprint(1000, active), site(MIG_POOL, max_slowdown=1.25))
    assert found.gres == Gres("gpu", f"h100_{profile}", 1)


def test_no_slice_says_why_of_each() -> None:
    found = why(place(request(), footprint(1000, 50), site(MIG_POOL, max_slowdown=1.25)))
    slow = {"sms": 60, "of_sms": 132, "expected": near(1.3), "upper": near(1.54), "bound": 1.25}
    assert found["gpu:h100_3g.40gb"] == Reason("too-slow", slow)
    assert set(found) == {"gpu:h100_1g.10gb", "gpu:h100_1g.20gb", "gpu:h100_2g.20gb", "gpu:h100_3g.40gb"}
    full = place(request(), footprint(60000, 1), site(MIG_POOL))
    largest = because("too-little-memory", mem_mib=40448, need_mib=60256)
    assert why(full)["gpu:h100_3g.40gb"] == largest
    assert full.reasons == (because("nothing-holds", need_mib=60256, sm_pct=1, partitions=("gpu",)), largest)


def test_no_piece_says_whether_memory_or_sms_were_too_much() -> None:
    """The largest piece decides that, and a share of a GPU that the site does not describe is none."""
    config = site(MIG_POOL._replace(mps_per_gpu=100, gpu_mem_mib=None), max_slowdown=1.25)
    assert [found.code for found in place(request(), footprint(30000, 50), config).reasons] == [
        "nothing-holds",
        "too-slow",
    ]
    assert [found.code for found in place(request(), footprint(60000, 50), config).reasons] == [
        "nothing-holds",
        "too-little-memory",
    ]
    first = site(MIG_POOL._replace(mps_per_gpu=100), order=("mps", "mig"), **MPS)
    assert place(request(), footprint(90000, 10), first).reasons[1].params["mem_mib"] == 81559


def test_a_compute_instance_is_not_given() -> None:
    parts = tuple(part._replace(profile=f"1c.{part.profile}") for part in MIG_POOL.slice)
    found = why(place(request(), footprint(1000, 5), site(MIG_POOL._replace(slice=parts))))
    assert {found[f"gpu:{part.type}"].code for part in parts} == {"slice-shares-memory"}


def test_slices_that_are_not_there() -> None:
    none = MIG_POOL._replace(slice=tuple(part._replace(quantity=0) for part in MIG_POOL.slice[1:]))
    found = place(request(), footprint(1000, 1), site(none))
    assert why(found) == {}
    assert found.reasons == (because("no-pieces", partitions=("gpu",)),)


# --- shares ---


def test_mps() -> None:
    found = place(request(), footprint(16000, 10), site(MPS_POOL, **MPS))
    # 16256 of 80000 MiB: 20.32 of 100.
    assert (found.mode, found.gres) == ("mps", Gres("mps", "", 21))
    assert found.memory_mib == 16256
    # 45 % of the 105 that all may come to at twice the time.
    assert place(request(), footprint(16000, 45), site(MPS_POOL, **MPS)).gres == Gres("mps", "", 43)
    # Always busy, it bears 38.4 % beside it; what says that it is less busy than active says nothing.
    for busy_pct, units in ((100.0, 64), (40.0, 43)):
        busy = Quantiles(busy_pct, busy_pct, busy_pct)
        assert place(request(), footprint(16000, 45, busy_pct=busy), site(MPS_POOL, **MPS)).gres == Gres(
            "mps", "", units
        )


def test_a_job_that_leaves_the_gpu_idle_between_its_kernels_gets_a_smaller_slice() -> None:
    busy, config = Quantiles(20.0, 20.0, 20.0), site(MIG_POOL, max_slowdown=1.8)
    assert (
        place(request(), footprint(4000, 14), config).gres
        != place(request(), footprint(4000, 14, busy_pct=busy), config).gres
    )


def test_shard() -> None:
    found = place(request(), footprint(16000, 10), site(SHARD_POOL))
    assert (found.mode, found.gres, found.memory_mib) == ("shard", Gres("shard", "", 1), 16256)
    assert (found.slowdown_expected, found.slowdown_upper) == (None, None), "nobody bounds what neighbours do there"
    assert place(request(), footprint(9000, 1), site(MIG_POOL)).slowdown_upper
    assert place(request(), footprint(16000, 27), site(SHARD_POOL)).gres == Gres("shard", "", 2)


def test_no_share_where_jobs_are_suspended_and_a_slice_all_the_same() -> None:
    stopped = (Partition("gpu", suspends=True), Partition("mig"))
    pools = (MIG_POOL, MPS_POOL, SHARD_POOL)
    config = site(*pools, **MPS, order=("mps", "shard", "mig"))._replace(partition=stopped)
    found = place(request(), footprint(), config)
    assert found.mode == "mig"
    said = because("partition-suspends", partition="gpu")
    assert {item.option: item.reason for item in found.rejected} == {"mps on g": said, "shard on s": said}
    # Of several partitions nobody knows which it will be.
    assert place(request(partitions=("mig", "gpu")), footprint(), config).mode == "mig"
    moving_in = config._replace(
        partition=(Partition("own", pieces_in=("gpu",)), stopped[0]), pool=(MPS_POOL, SHARD_POOL)
    )
    assert why(place(request(partitions=("own",)), footprint(), moving_in))["mps on g"] == said


def test_mps_needs_a_daemon() -> None:
    found = why(place(request(), footprint(), site(MPS_POOL)))
    assert found == {"mps on g": because("no-mps-daemon")}


@pytest.mark.parametrize("daemon", ["site", "prolog"])
def test_mps_needs_partitions_that_say_whom_it_serves(daemon: str) -> None:
    config = site(MPS_POOL, mps_daemon=daemon, mps_users="")
    said = because("partition-lacks-mps-users", partition="gpu")
    assert why(place(request(), footprint(), config)) == {"mps on g": said}
    one, many = Partition("gpu", mps_users="one"), Partition("mig")
    assert place(request(), footprint(), config._replace(partition=(one, many))).mode == "mps"
    # Of several partitions nobody knows which it will be.
    both = why(place(request(partitions=("gpu", "mig")), footprint(), config._replace(partition=(one, many))))
    assert both["mps on g"] == because("partition-lacks-mps-users", partition="mig")
    # Into another one: that one counts.
    for target, mode in ((one, "mps"), (Partition("gpu"), "exclusive")):
        moving = config._replace(partition=(Partition("own", pieces_in=("gpu",)), target))
        assert place(request(partitions=("own",)), footprint(), moving).mode == mode


@pytest.mark.parametrize(("bound", "active", "units"), [(1.1, 11, 60), (1.25, 11, 38), (1.1, 0, 36), (2.1, 45, 54)])
def test_beside_other_users_daemons_a_share_is_sized_by_the_time_in_which_the_gpu_is_busy(
    bound: float, active: float, units: int
) -> None:
    def on(users: str) -> Placement:
        config = site(MPS_POOL, mps_users=users, mps_daemon="site", max_slowdown=bound, headroom_mib=0)
        return place(request(), footprint(1000, active), config)

    assert on("each").gres == Gres("mps", "", units)
    alone = on("one").gres
    assert alone == on("all").gres
    assert alone is not None
    assert alone.quantity < units


def test_what_a_share_has_for_turns_is_said() -> None:
    """Two such jobs fill a GPU of each user's daemon, seven one with a daemon for all."""
    config = site(MPS_POOL._replace(gpu_mem_mib=81559), mps_users="each", mps_daemon="site", max_slowdown=1.25)
    found = place(request(), footprint(6144, 10), config)
    assert found.gres == Gres("mps", "", 36)
    assert found.reasons[1] == because("slowdown-beside-users", upper=1.25, turns=23)
    busy = place(request(), footprint(6144, 10, busy_pct=Quantiles(27.0, 27.0, 27.0)), config)
    assert (busy.gres, busy.reasons[1].params["turns"]) == (Gres("mps", "", 31), 18)
    by_memory = place(request(), footprint(60000, 10), config)
    assert by_memory.reasons[1].params["turns"] == 0


def test_beside_other_users_a_job_that_keeps_the_gpu_busy_has_no_share() -> None:
    def on(users: str) -> Placement:
        config = site(MPS_POOL, mps_users=users, mps_daemon="site", max_slowdown=1.1)
        return place(request(), footprint(1000, 40), config)

    assert on("one").mode == "mps"
    assert why(on("each"))["mps on g"] == because("too-busy-beside-users", sm_pct=40, bound=1.1)


def test_shard_needs_consent() -> None:
    assert place(request(), footprint(), site(SHARD_POOL, order=Sharing().order)).as_asked


UNSIZED = SHARD_POOL._replace(gpu_mem_mib=None)


@pytest.mark.parametrize(
    ("asked", "need", "pool", "said"),
    [
        (request(partitions=("odd",)), footprint(), SHARD_POOL, because("partition-not-described", partition="odd")),
        (request(no_share=(because("srun-exports"),)), footprint(), SHARD_POOL, because("srun-exports")),
        (request(interpreter="/bin/x"), footprint(), SHARD_POOL, because("interpreter-not-sh", interpreter="/bin/x")),
        (request(), footprint(), UNSIZED, because("site-lacks", key="gpu_mem_mib", pool="s")),
        (request(), footprint(79900), SHARD_POOL, because("too-little-memory", mem_mib=80000, need_mib=80156)),
        (request(), footprint(1000, 86), SHARD_POOL, because("no-room-beside", units=4, of_units=4)),
        (request(), footprint(60000, 1), SHARD_POOL, because("no-room-beside", units=4, of_units=4)),
        (request(), footprint(1000, 92), SHARD_POOL, because("too-busy-to-share", sm_pct=92, bound=2.1)),
    ],
)
def test_reasons_against_a_share(asked: JobRequest, need: Footprint, pool: Pool, said: Reason) -> None:
    pool = pool._replace(partitions=("gpu", "odd"))
    found = why(place(asked, need, site(pool)))
    assert found["shard on s"] == said


GIVING = Partition("gpu", mps_users="one", cpus_per_gpu=4, mem_per_gpu_mib=2000)
ALL_CORES = footprint()._replace(cpu_cores=8)


@pytest.mark.parametrize(
    ("asked", "cores", "mem"),
    [
        (request(), "mincpus=4", "2000M"),
        (request(partitions=()), "mincpus=4", "2000M"),
        (request(cpus_given=True), "", "2000M"),
        (request(mem_given=True), "mincpus=4", ""),
        (request(cpus_given=True, mem_given=True), "", ""),
        (request(min_cpus=6), "mincpus=6", "2000M"),
        (request(cpus_per_gpu=2, mem_per_gpu="16G"), "mincpus=2", "16G"),
        (request(tasks=1), "cpus-per-task=4", "2000M"),
        (request(tasks=2), "cpus-per-task=2", "2000M"),
        (request(tasks=4), "", "2000M"),
        (request(tasks=9), "", "2000M"),
    ],
)
def test_what_the_gpu_brought_along_stays_where_it_is_needed(asked: JobRequest, cores: str, mem: str) -> None:
    config = site(SHARD_POOL, MIG_POOL, order=("shard",))._replace(partition=(GIVING,))
    found = place(asked, ALL_CORES, config)
    assert (found.mode, found.cpu_option, found.mem) == ("shard", cores, mem)
    # A slice is a GPU: Slurm gives it what it gives a GPU.
    slice_of = place(asked, ALL_CORES, config._replace(sharing=config.sharing._replace(order=("mig",))))
    assert (slice_of.mode, slice_of.cpu_option, slice_of.mem) == ("mig", "", "")


# --- cores and host memory ---

# As the example site h100-mps: 30 cores with each of four GPUs of a node.
WIDE = Partition("gpu", mps_users="one", cpus_per_gpu=30, mem_per_gpu_mib=240_000)
WIDE_POOL = MPS_POOL._replace(gpus_per_node=4, cpus_per_node=120, mem_per_node_mib=960_000)


def shared(
    asked: JobRequest,
    cores: int | None = None,
    host_mem_mib: int | None = None,
    partition: Partition = WIDE,
    **more: Any,
) -> Placement:
    config = site(WIDE_POOL, **MPS, **more)._replace(partition=(partition,))
    return place(asked, footprint(8000, 10)._replace(cpu_cores=cores, host_mem_mib=host_mem_mib), config)


@pytest.mark.parametrize(
    ("cores", "host_mem_mib", "said"),
    [
        # 11 of 100 shares: 3.3 of 30 cores, and 26,400 MiB; what the job needs where that is more.
        (None, 9000, ("mincpus=3", "26400M")),
        (2, 9000, ("mincpus=3", "26400M")),
        (8, 30000, ("mincpus=8", "30000M")),
        # Never more than it would have had.
        (44, 300_000, ("mincpus=30", "240000M")),
        # Too little memory kills a job: one whose need is not known keeps what it would have had.
        (8, None, ("mincpus=8", "240000M")),
    ],
)
def test_a_share_has_its_part_of_the_host(cores: int | None, host_mem_mib: int | None, said: tuple[str, str]) -> None:
    found = shared(request(), cores, host_mem_mib)
    assert (found.gres, found.cpu_option, found.mem) == (Gres("mps", "", 11), *said)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (request(cpus_given=True, cpus_asked=16), ("", "26400M")),
        (request(cpus_per_gpu=12), ("mincpus=12", "26400M")),
        (request(mem_given=True), ("mincpus=3", "")),
        (request(mem_per_gpu="100G"), ("mincpus=3", "100G")),
        (request(min_cpus=5), ("mincpus=5", "26400M")),
        # As many for each task.
        (request(tasks=2), ("cpus-per-task=2", "26400M")),
        (request(tasks=4), ("", "26400M")),
    ],
)
def test_what_the_user_says_of_cores_and_memory_stands(asked: JobRequest, said: tuple[str, str]) -> None:
    found = shared(asked, 2, 9000)
    assert (found.cpu_option, found.mem) == said


@pytest.mark.parametrize(
    ("each", "host_mem_mib", "cpu_option"),
    [
        # Fewer cores bring less memory: as many as hold what the job needs, and all where nobody knows that.
        ("4G", None, "mincpus=30"),
        ("4G", 9000, "mincpus=3"),
        ("4G", 30_000, "mincpus=8"),
        ("1G", 40_000, "mincpus=30"),
        ("0", 9000, "mincpus=30"),
    ],
)
def test_memory_that_is_asked_for_each_core(each: str, host_mem_mib: int | None, cpu_option: str) -> None:
    found = shared(request(mem_given=True, mem_per_cpu=each), 2, host_mem_mib)
    assert (found.cpu_option, found.mem) == (cpu_option, "")


@pytest.mark.parametrize(
    ("own", "default_mem", "host_mem_mib", "mem"),
    [
        # Fewer cores would bring less memory: it is said.
        ("DefMemPerCPU=8000", "", None, "240000M"),
        ("", "DefMemPerCPU=8000", None, "240000M"),
        ("", "DefMemPerCPU=8000", 9000, "26400M"),
        ("", "DefMemPerCPU=0", 9000, ""),
        ("DefMemPerNode=64000", "DefMemPerCPU=1", 9000, "9000M"),
        ("DefMemPerNode=64000", "", None, ""),
        # Without a default Slurm gives a job all of the node's.
        ("", "", 9000, "105600M"),
        ("", "", None, ""),
    ],
)
def test_host_memory_by_slurms_defaults(own: str, default_mem: str, host_mem_mib: int | None, mem: str) -> None:
    partition = Partition("gpu", mps_users="one", cpus_per_gpu=30, default_mem=own)
    config = site(WIDE_POOL, **MPS)._replace(partition=(partition,), default_mem=default_mem)
    found = place(request(), footprint(8000, 10)._replace(host_mem_mib=host_mem_mib), config)
    assert (found.cpu_option, found.mem) == ("mincpus=3", mem)


def test_a_slice_has_its_part_of_the_host() -> None:
    config = site(MIG_POOL)._replace(partition=(WIDE,))
    need = footprint(9000, 10)
    # 16 of 132 SMs and 9984 of 81559 MiB: 3.67 of 30 cores.
    unknown = place(request(), need, config)
    assert (unknown.cpu_option, unknown.mem) == ("cpus-per-gpu=3", "")
    known = need._replace(cpu_cores=6, host_mem_mib=40_000)
    given = place(request(), known, config)
    assert (given.cpu_option, given.mem) == ("cpus-per-gpu=6", "40000M")
    # With fewer cores than its own --mincpus it would never begin.
    assert place(request(min_cpus=7), known, config).cpu_option == "cpus-per-gpu=7"
    for asked in (request(cpus_given=True, mem_given=True), request(cpus_per_gpu=8, mem_per_gpu="9G")):
        found = place(asked, known, config)
        assert (found.mode, found.cpu_option, found.mem) == ("mig", "", "")
    moved = place(request(), known, moving(OPEN._replace(name="slices"), cpus_per_gpu=30, mem_per_gpu_mib=240_000))
    assert (moved.partition, moved.cpu_option, moved.mem) == ("slices", "cpus-per-task=6", "40000M")


def test_the_resource_that_limits_is_named() -> None:
    assert not {"cores-limit", "host-memory-limit"} & set(codes(shared(request(), 2, 9000).reasons))
    assert because("cores-limit", jobs=15, cores_each=8, pieces=36) in shared(request(), 8, 9000).reasons
    own = shared(request(cpus_given=True, cpus_asked=16), 2, 9000)
    assert because("cores-limit", jobs=7, cores_each=16, pieces=36) in own.reasons
    unknown = shared(request(), 8).reasons
    assert because("host-memory-limit", jobs=4, each_mib=240_000, pieces=36) in unknown


@pytest.mark.parametrize(
    ("asked", "default_mem", "jobs", "each"),
    [
        (request(), "", 4, {"each_mib": 240_000}),
        (request(), "DefMemPerCPU=8000", 4, {"each_mib": 240_000}),
        (request(), "DefMemPerNode=320000", 3, {"each_mib": 320_000}),
        (request(cpus_given=True, cpus_asked=60), "", 2, {"cores_each": 60}),
        (request(cpus_given=True, cpus_asked=60, tasks=2, mem_asked_mib=9), "", 2, {"cores_each": 60}),
        (request(cpus_per_gpu=40, mem_given=True), "", 3, {"cores_each": 40}),
        (request(mem_given=True, mem_asked_mib=480_000), "", 2, {"each_mib": 480_000}),
        (request(mem_per_gpu="300000M"), "", 3, {"each_mib": 300_000}),
        (request(cpus_given=True, cpus_asked=16, mem_given=True, mem_per_cpu="20000M"), "", 3, {"each_mib": 320_000}),
    ],
)
@pytest.mark.parametrize("moved", [False, True])
def test_what_keeps_others_off_slices_is_told_also_where_slurm_gives_it_by_itself(
    asked: JobRequest, default_mem: str, jobs: int, each: dict[str, int], moved: bool
) -> None:
    slices = MIG_POOL._replace(
        cpus_per_node=120, mem_per_node_mib=960_000, slice=(MIG_POOL.slice[0]._replace(quantity=28),)
    )
    own = WIDE._replace(mem_per_gpu_mib=0 if default_mem else 240_000, default_mem=default_mem)
    config = site(slices)._replace(partition=(own,))
    if moved:
        there = own._replace(name="slices")
        away = slices._replace(partitions=("slices",))
        config = site(away)._replace(partition=(own._replace(pieces_in=("slices",)), there))
    found = place(asked, footprint(8000, 10), config)
    limit = "cores-limit" if "cores_each" in each else "host-memory-limit"
    assert because(limit, jobs=jobs, pieces=28, **each) in found.reasons


@given(
    had=st.integers(1, 256),
    tasks=st.one_of(st.none(), st.integers(1, 8)),
    cores=st.one_of(st.none(), st.integers(1, 300)),
    active=st.floats(1, 50),
)
def test_a_piece_never_has_more_cores_than_a_gpu_and_never_fewer_than_it_needs(
    had: int, tasks: int | None, cores: int | None, active: float
) -> None:
    config = site(WIDE_POOL, **MPS)._replace(partition=(WIDE._replace(cpus_per_gpu=had),))
    found = place(request(tasks=tasks), footprint(8000, active)._replace(cpu_cores=cores), config)
    if found.as_asked or not found.cpu_option:
        return
    name, _, value = found.cpu_option.partition("=")
    given_cores = int(value) * (tasks or 1 if name == "cpus-per-task" else 1)
    assert min(had, cores or 1) <= given_cores <= had


@pytest.mark.parametrize("asked", [request(tasks=3), request(tasks=2, min_cpus=3)])
def test_cores_that_cannot_be_said(asked: JobRequest) -> None:
    config = site(SHARD_POOL)._replace(partition=(GIVING,))
    found = why(place(asked, ALL_CORES, config))
    assert found["shard on s"] == because("cores-not-divisible", tasks=asked.tasks, cores=4)


def test_partitions_that_give_different_things() -> None:
    pool = SHARD_POOL._replace(partitions=("gpu", "other"))
    asked = request(partitions=("gpu", "other"))
    config = site(pool)
    unlike = place(asked, footprint(), config._replace(partition=(GIVING, Partition("other"))))
    assert why(unlike)["shard on s"] == because("hosts-differ")
    alike = config._replace(partition=(GIVING, GIVING._replace(name="other")))
    assert place(asked, footprint(), alike).mem == "2000M"


# --- time ---


def timed(*pools: Pool, bound: float = 1.25, **partition: Any) -> SiteConfig:
    return site(*pools, max_slowdown=bound)._replace(partition=(Partition("gpu")._replace(**partition),))


# 4.095 % of 132 SMs on 16: slowed 1.2375x at most.
BUSY = footprint(1000, 4.095)
NONE = Quantiles(0, 0, 0)
HOUR_MIN = 60.0


def ran(minutes: float) -> Footprint:
    return BUSY._replace(run_time_s=Quantiles(1, 1, minutes * 60))


@pytest.mark.parametrize(
    ("asked", "need", "config", "profile", "limit"),
    [
        (request(time_limit_min=None), BUSY, timed(MIG_POOL), "1g.10gb", None),
        (request(time_limit_min=math.inf), BUSY, timed(MIG_POOL), "1g.10gb", None),
        (request(time_limit_min=HOUR_MIN), ran(48), timed(MIG_POOL), "1g.10gb", None),  # 59.4 min
        (request(time_limit_min=HOUR_MIN), ran(49), timed(MIG_POOL), "1g.10gb", 61),  # 60.6 min
        (request(time_limit_min=HOUR_MIN), BUSY, timed(MIG_POOL), "1g.10gb", 75),
        # Nothing slows a job that uses no SMs: what it was given is enough, however near to it earlier runs came.
        (request(time_limit_min=HOUR_MIN), ran(59)._replace(sm_active_pct=NONE), timed(MIG_POOL), "1g.10gb", None),
        (request(time_limit_min=HOUR_MIN), BUSY, timed(MIG_POOL, bound=1.2), "1g.20gb", 69),
        (request(time_limit_min=HOUR_MIN), BUSY, timed(MIG_POOL, max_time_min=70), "1g.20gb", 69),
        (request(), BUSY, timed(MIG_POOL, max_time_min=60), "", None),
        (request(), BUSY, timed(MIG_POOL, default_time_min=60), "1g.10gb", 75),
    ],
)
def test_a_slower_slice_needs_the_time(
    asked: JobRequest, need: Footprint, config: SiteConfig, profile: str, limit: int | None
) -> None:
    found = place(asked, need, config)
    assert (str(found.gres or ""), found.time_limit_min) == (f"gpu:h100_{profile}:1" if profile else "", limit)


def test_too_little_time_is_said() -> None:
    small = MIG_POOL._replace(slice=MIG_POOL.slice[1:2])
    found = why(place(request(time_limit_min=60.0), BUSY, timed(small, max_time_min=60.0)))
    needed = {"slowdown": near(1.23751), "needed_min": near(74.2506), "limit_min": 60.0, "most_min": 60.0}
    assert found == {"gpu:h100_1g.10gb": Reason("time-limit-too-short", needed)}


# --- some nodes alone ---


def test_a_share_that_may_lie_where_a_feature_is_missing_is_none() -> None:
    fast = MPS_POOL._replace(features=("fast", "ib"))
    asked = request(features=("fast",))
    assert place(asked, footprint(), site(fast, **MPS)).mode == "mps"
    slow = MPS_POOL._replace(name="slow", nodes="g2", features=("ib",))
    found = dict(place(asked, footprint(), site(fast, slow, **MPS)).rejected)
    # Shares have no type: where Slurm tells the nodes apart, site.toml does not.
    assert found["pool slow"] == because("pool-lacks-feature", feature="fast")
    assert because("may-land-elsewhere", pool="slow") in found.values()


def test_of_a_pool_some_nodes_may_be_excluded() -> None:
    assert place(request(excluded=("m1", "x")), footprint(), site(MIG_POOL)).mode == "mig"
    assert why(place(request(excluded=("m1", "m2")), footprint(), site(MIG_POOL))) == {
        "pool m": because("pool-excluded")
    }


# --- another partition ---


def moving(target: Partition, **own: Any) -> SiteConfig:
    pool = MIG_POOL._replace(partitions=("slices",))
    mine = Partition("gpu", pieces_in=("slices",))._replace(**own)
    return site(pool)._replace(partition=(mine, target))


OPEN = Partition("slices")


def test_a_job_moves_only_where_the_site_says() -> None:
    found = place(request(), footprint(), moving(OPEN))
    assert (str(found.gres), found.partition) == ("gpu:h100_1g.10gb:1", "slices")
    assert because("moved", partition="slices") in found.reasons
    assert place(request(), footprint(), moving(OPEN, pieces_in=())).as_asked
    assert place(request(partitions=("slices",)), footprint(), moving(OPEN)).partition == ""
    both = moving(OPEN)
    near = both._replace(pool=(*both.pool, MIG_POOL._replace(name="near", partitions=("gpu",))))
    assert place(request(), footprint(), near).partition == "", "its own partition comes first"


LIMITS = Limits(0.0, "ml", (Association("ml", "ml", "", "", (), {}),), {}, {"low": {}})


@pytest.mark.parametrize(
    ("asked", "target", "code", "params"),
    [
        (request(account="ml"), {"restrictions": ("AllowAccounts=phys",)}, "closed", {"what": "account", "name": "ml"}),
        (request(), {"restrictions": ("AllowAccounts=phys",)}, "closed", {"what": "account", "name": "ml"}),
        (request(account="ml"), {"restrictions": ("DenyAccounts=ml",)}, "closed", {"what": "account", "name": "ml"}),
        (request(qos="low"), {"restrictions": ("AllowQos=high",)}, "closed", {"what": "QOS", "name": "low"}),
        (request(), {"restrictions": ("AllowQos=high",)}, "access-unknown", {"what": "QOS"}),
        (request(), {"restrictions": ("AllowGroups=gpu",)}, "groups", {"groups": ("gpu",)}),
        *(
            (request(), {"restrictions": (text,)}, "shut", {"restriction": text})
            for text in ("MaxNodes=0", "MinNodes=2", "RootOnly=YES", "ReqResv=YES", "OverSubscribe=EXCLUSIVE")
        ),
        (request(time_limit_min=90.0), {"max_time_min": 60}, "time", {"max_min": 60}),
        (request(), {"max_time_min": 60}, "time", {"max_min": 60}),
    ],
)
def test_a_partition_that_would_not_take_the_job(
    asked: JobRequest, target: dict[str, Any], code: str, params: dict[str, Any]
) -> None:
    found = place(asked, footprint(), moving(OPEN._replace(**target)), Access(LIMITS, groups=("users",)))
    assert why(found)["pool m"] == because(f"partition-{code}", partition="slices", **params)


def test_a_partition_that_takes_it() -> None:
    target = OPEN._replace(
        restrictions=("AllowAccounts=phys,ml", "AllowQos=low", "AllowGroups=users"), max_time_min=300
    )
    asked = request(qos="low", time_limit_min=90.0)
    assert place(asked, footprint(), moving(target), Access(LIMITS, groups=("users",))).partition == "slices"
    # The default of the job's own partition is said, lest the other's hold.
    default = place(request(), footprint(), moving(OPEN, default_time_min=30.0))
    assert (default.partition, default.time_limit_min) == ("slices", 50)


def test_a_partition_that_is_of_no_use_to_its_own_jobs() -> None:
    shut = Partition("gpu", restrictions=("OverSubscribe=EXCLUSIVE",))
    assert place(request(), footprint(), site(MIG_POOL)._replace(partition=(shut,))).as_asked
    few = shut._replace(restrictions=("MaxNodes=1", "MaxCPUsPerNode=1"))
    assert place(request(), footprint(), site(MIG_POOL)._replace(partition=(few,))).partition == ""


@pytest.mark.parametrize(
    ("asked", "restriction", "code"),
    [
        (request(cpus_given=True, cpus_asked=4), "MaxCPUsPerNode=4", ""),
        (request(cpus_given=True, cpus_asked=6), "MaxCPUsPerNode=4", "cores"),
        (request(cpus_given=True, cpus_asked=3), "MaxCPUsPerNode=3", "cores"),
        (request(tasks=8), "MaxCPUsPerNode=4", "cores"),
        (request(min_cpus=8), "MaxCPUsPerSocket=4", "cores"),
        (request(cpus_given=True, cpus_asked=2, cores_unclear=True), "MaxCPUsPerNode=4", "cores"),
        (request(mem_given=True, mem_asked_mib=100), "MaxMemPerNode=100", ""),
        (request(mem_given=True, mem_asked_mib=101), "MaxMemPerNode=100", "memory"),
        (request(), "MaxMemPerNode=100", "memory"),
        (request(cpus_given=True, cpus_asked=2, mem_given=True, mem_asked_mib=200), "MaxMemPerCPU=100", ""),
        (request(cpus_given=True, cpus_asked=2, mem_given=True, mem_asked_mib=201), "MaxMemPerCPU=100", "memory"),
    ],
)
def test_a_job_too_large_for_another_partition_stays(asked: JobRequest, restriction: str, code: str) -> None:
    found = place(asked, footprint(), moving(OPEN._replace(restrictions=(restriction,))))
    if code:
        said = because(f"partition-{code}", partition="slices", restriction=restriction)
        assert why(found)["gpu:h100_1g.10gb:1"] == said
    else:
        assert found.partition == "slices"


@pytest.mark.parametrize(
    ("key", "limit", "placed"),
    [
        ("MaxTRES", {"cpu": 3}, False),
        ("MaxTRES", {"cpu": 4, "mem": 200, "node": 1}, True),
        ("MaxTRES", {"mem": 199}, False),
        ("MinTRES", {"cpu": 5}, False),
        ("MinTRES", {"node": 2}, False),
    ],
)
def test_a_qos_holds_for_cores_and_memory(key: str, limit: dict[str, int], placed: bool) -> None:
    limits = LIMITS._replace(qos={"low": {key: limit}})
    asked = request(qos="low", cpus_given=True, cpus_asked=4, mem_given=True, mem_asked_mib=200)
    assert place(asked, footprint(), site(MIG_POOL), Access(limits)).as_asked is not placed


ALIKE: dict[str, Any] = {"cpus_per_gpu": 4, "mem_per_gpu_mib": 9}


@pytest.mark.parametrize(
    ("asked", "own", "target", "said"),
    [
        (request(), {"cpus_per_gpu": 4, "mem_per_gpu_mib": 1000}, OPEN, ("cpus-per-task=4", "1000M")),
        (request(tasks=2), {"cpus_per_gpu": 4}, OPEN, ("cpus-per-task=2", "")),
        (request(cpus_given=True, mem_given=True), {"cpus_per_gpu": 4, "mem_per_gpu_mib": 1000}, OPEN, ("", "")),
        (request(), {}, OPEN._replace(cpus_per_gpu=8), ("cpus-per-task=1", "")),
        (request(tasks=3), {}, OPEN._replace(cpus_per_gpu=8), ("cpus-per-task=1", "")),
        (request(), ALIKE, OPEN._replace(**ALIKE), ("", "")),
        (request(), {}, OPEN._replace(mem_per_gpu_mib=9), because("partition-other-memory", partition="slices")),
        (request(), {"default_mem": "DefMemPerCPU=4000"}, OPEN, because("partition-other-memory", partition="slices")),
        (request(tasks=3), {"cpus_per_gpu": 4}, OPEN, because("cores-not-divisible", tasks=3, cores=4)),
    ],
)
def test_a_moved_job_keeps_the_cores_and_memory_that_it_needs(
    asked: JobRequest, own: dict[str, Any], target: Partition, said: Reason | tuple[str, str]
) -> None:
    found = place(asked, ALL_CORES, moving(target, **own))
    if isinstance(said, Reason):
        assert why(found)["gpu:h100_1g.10gb"] == said
    else:
        assert (found.partition, found.cpu_option, found.mem) == ("slices", *said)


def test_a_partition_whose_time_the_other_would_cut() -> None:
    found = why(place(request(), footprint(), moving(OPEN._replace(default_time_min=60))))
    assert found["gpu:h100_1g.10gb"] == because("partition-limits-time", partition="slices")
    assert place(request(time_limit_min=math.inf), footprint(), moving(OPEN._replace(default_time_min=60))).partition


# --- what Slurm cannot tell apart ---


def test_a_share_must_do_on_every_gpu_that_slurm_may_take_it_from() -> None:
    small = SHARD_POOL._replace(name="small", gpu_mem_mib=40000)
    found = place(request(), footprint(16000, 10), site(SHARD_POOL, small))
    assert str(found.gres) == "shard:2", "a quarter of the large ones would do"
    tiny = SHARD_POOL._replace(name="tiny", gpu_mem_mib=8000)
    refused = why(place(request(), footprint(16000, 10), site(SHARD_POOL, tiny)))
    assert refused == {"shard on tiny": because("too-little-memory", mem_mib=8000, need_mib=16256)}
    other = SHARD_POOL._replace(name="a", gpu_type="a100", gpu_model="A100")
    typed = place(request(gres=(Gres("gpu", "h100", 1),)), footprint(), site(SHARD_POOL, other))
    assert why(typed)["shard:1"] == because("may-land-elsewhere", pool="a")


def test_slices_of_one_type_in_two_sizes() -> None:
    smaller = MIG_POOL._replace(name="n", slice=(MIG_POOL.slice[1]._replace(mem_mib=4864),))
    found = place(request(), footprint(9000, 5), site(MIG_POOL, smaller))
    assert str(found.gres) == "gpu:h100_1g.20gb:1"
    unknown = smaller._replace(gpu_model="A100")
    smallest = MIG_POOL._replace(slice=MIG_POOL.slice[1:2])
    measured = why(place(request(), footprint(9000, 5, gpu_model=H100), site(smallest, unknown)))
    assert measured["gpu:h100_1g.10gb:1"] == because("may-land-elsewhere", pool="n")


def test_the_slice_that_slows_it_is_the_one_that_is_named() -> None:
    [part] = MIG_POOL.slice[1:2]
    narrow = MIG_POOL._replace(name="n", slice=(part._replace(mem_mib=20000, sm_count=8),))
    found = why(place(request(), footprint(1000, 12), site(MIG_POOL._replace(slice=(part,)), narrow)))
    said = found["gpu:h100_1g.10gb"].params
    assert (said["sms"], said["of_sms"], said["expected"], said["upper"]) == (8, 132, near(1.93), near(2.8))


def test_a_share_whose_run_comes_near_the_limit() -> None:
    config = timed(SHARD_POOL)
    assert place(request(time_limit_min=60.0), ran(60), config).time_limit_min == 75
    assert place(request(time_limit_min=60.0), ran(61), config).as_asked


# --- limits of the accounting ---


def test_a_piece_beyond_a_limit_is_not_proposed() -> None:
    limits = LIMITS._replace(qos={"small": {"MaxTRES": {"gres/mps": 15}}})
    config = site(MPS_POOL, **MPS)
    fits = place(request(qos="small"), footprint(10000, 10), config, Access(limits))
    assert str(fits.gres) == "mps:13"
    found = why(place(request(qos="small"), footprint(16000, 10), config, Access(limits)))
    assert found["mps:21"] == because("limit-most", limit="MaxTRES", what="QOS", name="small", most=15, tres="gres/mps")
    slices = LIMITS._replace(own=(Association("ml", "ml", "", "", (), {"MaxTRES": {"gres/gpu:h100_1g.10gb": 0}}),))
    larger = place(request(), footprint(), site(MIG_POOL), Access(slices))
    assert str(larger.gres) == "gpu:h100_1g.20gb:1"


def test_limits_that_are_not_known_leave_the_job() -> None:
    down = because("limits-unknown", error="sacctmgr is down")
    found = place(request(), footprint(), site(MIG_POOL), Access(unknown=down))
    assert (found.as_asked, found.reasons) == (True, (down,))


# --- pools and the order of modes ---


def test_order_of_modes() -> None:
    pools = (MIG_POOL, MPS_POOL, SHARD_POOL)
    for order, mode in ((("mig", "mps", "shard"), "mig"), (("mps",), "mps"), (("shard", "mig"), "shard")):
        assert place(request(), footprint(), site(*pools, order=order, **MPS)).mode == mode
    assert place(request(), footprint(), site(*pools, order=(), **MPS)).as_asked
    last = place(request(), footprint(38000, 40), site(*pools, order=("mig", "mps", "shard"), **MPS))
    assert (last.mode, len(last.rejected)) == ("mig", 3)


NAMELESS = MIG_POOL._replace(gpu_model="")


@pytest.mark.parametrize(
    ("asked", "need", "pool", "said"),
    [
        (request(partitions=("cpu",)), footprint(), MIG_POOL, because("not-in-partition", partitions=("cpu",))),
        (request(gres=(Gres("gpu", "a100", 1),)), footprint(), MIG_POOL, because("other-gpu-type", gpu_type="a100")),
        (request(), footprint(gpu_model="x"), MIG_POOL, because("other-gpu-model", measured_on="x", pool_has=H100)),
        (request(), footprint(gpu_model=H100), NAMELESS, because("pool-lacks-model", pool="m", measured_on=H100)),
        (request(), footprint(), MIG_POOL._replace(sm_count=None), because("site-lacks", key="sm_count", pool="m")),
    ],
)
def test_reasons_against_a_pool(asked: JobRequest, need: Footprint, pool: Pool, said: Reason) -> None:
    assert why(place(asked, need, site(pool))) == {"pool m": said}


def test_slices_of_the_asked_model_count() -> None:
    asked = request(gres=(Gres("gpu", "h100", 1),))
    assert place(asked, footprint(gpu_model=H100), site(MIG_POOL, MPS_POOL)).mode == "mig"
    assert place(asked, footprint(), site(NAMELESS, MPS_POOL._replace(gpu_model=""))).as_asked


# --- as asked ---


def test_untouchable_goes_first() -> None:
    why_not = (because("no-gpu"), because("gpus-follow-tasks"))
    found = place(request(untouchable=why_not), footprint(None, None), site(MIG_POOL, protected_types=("x",)))
    assert (found.as_asked, found.reasons, found.headroom_mib) == (True, why_not, None)


def test_protected_types() -> None:
    config = site(MIG_POOL, MPS_POOL, protected_types=("h100",), **MPS)
    named = place(request(gres=(Gres("gpu", "h100", 1),)), footprint(), config)
    assert (named.as_asked, named.reasons) == (True, (because("protected", gpu_type="h100"),))
    # A job that names no type is not put on a piece of a protected GPU either.
    unnamed = place(request(), footprint(), config._replace(sharing=config.sharing._replace(order=("mps",))))
    assert why(unnamed)["pool g"] == because("protected", gpu_type="h100")
    assert place(request(), footprint(), config).mode == "mig"


def test_unknown_use_is_a_reason() -> None:
    assert codes(place(request(), footprint(None), site(MIG_POOL)).reasons) == ["hint"]
    unsure = place(request(), footprint(1000, None), site(MIG_POOL))
    assert unsure.reasons == (because("sm-unknown"),)


@given(st.floats(1, 90000), st.floats(0, 100), st.integers(0, 5000), st.floats(1, 4))
def test_a_piece_always_holds_the_need(memory: float, active: float, headroom: int, slowdown: float) -> None:
    config: SiteConfig = site(MIG_POOL, MPS_POOL, SHARD_POOL, headroom_mib=headroom, max_slowdown=slowdown, **MPS)
    found = place(request(), footprint(memory, active), config)
    if found.gres is None:
        assert len(found.rejected) == 6
    elif found.mode == "mig":
        part = next(part for part in MIG_POOL.slice if part.type == found.gres.type)
        assert part.mem_mib >= memory + headroom
        assert on_slice(active, 132 / part.sm_count).upper <= slowdown + 1e-9
    else:
        share = found.gres.quantity / (100 if found.mode == "mps" else 4)
        assert share <= 7 / 8
        assert share * 80000 >= memory + headroom - 1e-3
        assert share >= part_needed(active, slowdown) - 1e-9


def test_where_no_pool_is_left_the_reason_is_not_its_size() -> None:
    found = place(request(partitions=("cpu",)), footprint(), site(MIG_POOL))
    assert found.reasons == (because("not-in-partition", partitions=("cpu",)),)
    assert place(request(), footprint(), site()).reasons == (because("site-has-no-gpus"),)


@pytest.mark.parametrize(
    ("gres", "styles", "code"),
    [
        (("", 1), ("gres",), ""),
        (("", 1, "", 1), ("gres", "gpus"), "asked-twice"),
        (("h100", 1, "h100", 1), ("gpus", "gpus-per-node"), "asked-twice"),
        (("", 1, "", 1), ("gres",), "asked-twice"),
        (("", 1, "", 2), ("gres", "gpus"), "several-gpus"),
        (("a100", 1, "h100", 1), ("gres",), "several-gpus"),
        (("", 2), ("gres",), "several-gpus"),
    ],
)
def test_one_gpu_that_is_asked_for_twice_is_not_several(
    gres: tuple[Any, ...], styles: tuple[str, ...], code: str
) -> None:
    wanted = [Gres("gpu", kind, count) for kind, count in zip(gres[::2], gres[1::2], strict=True)]
    assert codes(reasons_untouchable({}, wanted, styles, (), site(MIG_POOL))) == ([code] if code else [])
