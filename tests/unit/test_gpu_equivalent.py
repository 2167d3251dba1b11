# SPDX-License-Identifier: Apache-2.0
"""What an allocation comes to by each convention, what it holds, and how GPUs were shared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from slurm_colloc.core.model import Gres
from slurm_colloc.core.sharing_model import Collocation
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.collocation import collocation, installed_gpus
from slurm_colloc.store.decisions import with_decisions
from slurm_colloc.store.equivalents import gpu_equivalent, make_equivalents
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.made import H100, MIG_POOL, MPS_POOL, SHARD_POOL, decision, device, near, process, run, seen, site
from tests.unit.stored import SHARES, busy, job_usage, only, sampled, stored

SLICE = (Gres("gpu", "h100_1g.10gb", 1),)
LARGE = (Gres("gpu", "h100_1g.20gb", 1),)

# --- conventions ---


@pytest.mark.parametrize(
    ("gres", "node", "slices", "sms", "memory"),
    [
        (SLICE, "m1", 1 / 7, 16 / 132, 9984 / 81559),
        # As many slices, more SMs and memory.
        (LARGE, "m1", 1 / 7, 26 / 132, 20090 / 81559),
        ((Gres("gpu", "h100_3g.40gb", 2),), "m2", 6 / 7, 120 / 132, 2 * 40448 / 81559),
        ((*SLICE, Gres("gpu", "h100", 1)), "m1", 8 / 7, 148 / 132, 1 + 9984 / 81559),
        ((Gres("gpu", "h100", 2),), "g1", 2.0, 2.0, 2.0),
        ((Gres("mps", "", 50),), "g1", 0.5, 0.5, 0.5),
        ((Gres("shard", "", 3),), "s1", 0.75, 0.75, 0.75),
        # Without a pool the type itself may say which GPU it is of, and else nothing but its slices.
        ((Gres("gpu", "nvidia_h100_80gb_hbm3_1g.10gb", 1),), "x", 1 / 7, 16 / 132, 9984 / 81559),
        ((Gres("gpu", "nvidia_a100-sxm4-40gb_2g.10gb", 1),), "x", 2 / 7, 28 / 108, 9856 / 40960),
        (SLICE, "x", 1 / 7, None, None),
        ((Gres("gpu", "a30_1g.6gb", 1),), "x", 1 / 4, None, None),
    ],
)
def test_a_slice_by_each_convention(
    gres: Sequence[Gres], node: str, slices: float, sms: float | None, memory: float | None
) -> None:
    for by, gpus in (("slices", slices), ("sms", sms), ("memory", memory)):
        found = gpu_equivalent(gres, node, SHARES, by)
        assert found.gpus == (None if gpus is None else near(gpus)), by
        # What nobody else can have meanwhile is by slices, whatever the convention.
        assert found.blocked == (None if gres[0].name != "gpu" else near(slices)), by


def test_a_node_with_two_cards_has_a_pool_for_each() -> None:
    cut = MIG_POOL._replace(name="cut", nodes="x1")
    whole = SHARD_POOL._replace(name="whole", nodes="x1", gpu_type="a100", gpu_model="", shards_per_gpu=8)
    for both in (site(whole, cut), site(cut, whole)):
        assert gpu_equivalent((Gres("gpu", "a100", 2),), "x1", both).gpus == 2.0
        assert gpu_equivalent(SLICE, "x1", both, "sms").gpus == near(16 / 132)
        assert gpu_equivalent((Gres("shard", "", 2),), "x1", both).gpus == 0.25
        # Which of the two it was is not said.
        assert gpu_equivalent((Gres("gpu", "", 1),), "x1", both).gpus is None


def test_a_run_on_nodes_of_two_pools_is_worth_something_where_they_agree() -> None:
    gres = (Gres("shard", "", 2),)
    both = site(SHARD_POOL, SHARD_POOL._replace(name="t", nodes="t[1-2]"))
    assert gpu_equivalent(gres, "s1,t[1-2]", both).gpus == 0.5
    differ = site(SHARD_POOL, SHARD_POOL._replace(name="t", nodes="t1", shards_per_gpu=8))
    assert gpu_equivalent(gres, "s1,t1", differ).gpus is None
    assert gpu_equivalent(gres, "s1,elsewhere", differ).gpus is None


@pytest.mark.parametrize(("nodes", "gpus"), [("s1,t1", 0.5), ("t[1-2]", 0.5), ("t[1-", None), ("", None)])
def test_nodes_are_read_as_slurm_writes_them(nodes: str, gpus: float | None) -> None:
    both = site(SHARD_POOL, SHARD_POOL._replace(name="t", nodes="t[1-2]"))
    assert gpu_equivalent((Gres("shard", "", 2),), nodes, both).gpus == gpus


UNTYPED = (Gres("gpu", "", 2),)


@pytest.mark.parametrize(
    ("parts", "gpu_type", "slices", "sms", "memory"),
    [
        (slice(1, 2), "", 2 / 7, 32 / 132, 2 * 9984 / 81559),
        # Two kinds of slices, alike by slices only.
        (slice(1, 3), "", 2 / 7, None, None),
        (slice(0, 2), "", None, None, None),
        (slice(1, 2), "h100", None, None, None),
        (slice(0), "h100", 2.0, 2.0, 2.0),
    ],
)
def test_an_untyped_gpu_is_what_its_pool_has(
    parts: slice, gpu_type: str, slices: float | None, sms: float | None, memory: float | None
) -> None:
    config = site(MIG_POOL._replace(gpu_type=gpu_type, slice=MIG_POOL.slice[parts]))
    for by, gpus in (("slices", slices), ("sms", sms), ("memory", memory)):
        assert gpu_equivalent(UNTYPED, "m1", config, by).gpus == (None if gpus is None else near(gpus)), by
    # A slice may be all of the GPU.
    all_of_it = MIG_POOL.slice[0]._replace(type="h100_7g.80gb", profile="7g.80gb")
    assert gpu_equivalent(UNTYPED, "m1", site(MIG_POOL._replace(gpu_type="h100", slice=(all_of_it,)))).gpus == 2.0
    # Other nodes have GPUs of nobody knows what kind.
    assert gpu_equivalent(UNTYPED, "x", config).gpus == 2.0


@pytest.mark.parametrize(
    ("model", "parts", "fits", "slices", "sms"),
    [
        # A site may call a slice what it likes; its pool says what it is of.
        (H100, {"type": "small", "profile": "1g.10gb"}, True, 1 / 7, 16 / 132),
        ("NVIDIA A30", {"type": "small", "profile": "1g.6gb", "sm_count": 14}, True, 1 / 4, 14 / 56),
        # A pool of unknown size, of a model that is known.
        (H100, {"type": "small", "profile": "1g.20gb"}, False, 1 / 7, 26 / 132),
        ("NVIDIA A30", {"type": "small", "profile": "1g.6gb"}, False, 1 / 4, 14 / 56),
        ("NVIDIA B300 SXM6 AC", {"type": "small", "profile": "1g.34gb"}, False, 1 / 7, None),
    ],
)
def test_a_slice_by_another_name(
    tmp_path: Path, model: str, parts: dict[str, Any], fits: bool, slices: float, sms: float | None
) -> None:
    sm_count = {H100: 132}.get(model, 56) if fits else None
    part = MIG_POOL.slice[1]._replace(**parts)
    config = site(MIG_POOL._replace(gpu_model=model, sm_count=sm_count, slice=(part,)))
    gres = (Gres("gpu", "small", 1),)
    found = gpu_equivalent(gres, "m1", config)
    assert (found.gpus, found.blocked, found.whole) == (near(slices), near(slices), False)
    assert gpu_equivalent(gres, "m1", config, "sms").gpus == (None if sms is None else near(sms))
    stored(tmp_path, [run(gres=gres, node_list="m1")])
    assert only(Store(str(tmp_path), config)).allocated_gpu_hours == near(slices)


def test_the_memory_of_a_compute_instance_is_not_its_own() -> None:
    part = MIG_POOL.slice[0]._replace(type="h100_3c.7g.80gb", profile="3c.7g.80gb", sm_count=57)
    config = site(MIG_POOL._replace(slice=(part,)))
    held = (Gres("gpu", part.type, 1),)
    assert gpu_equivalent(held, "m1", config).gpus == near(3 / 7)
    assert gpu_equivalent(held, "m1", config, "sms").gpus == near(57 / 132)
    assert gpu_equivalent(held, "m1", config, "memory").gpus is None


def test_a_slice_that_its_pool_does_not_have_is_what_its_type_says() -> None:
    a30 = (Gres("gpu", "a30_1g.6gb", 1),)
    a100 = (Gres("gpu", "nvidia_a100-sxm4-40gb_2g.10gb", 1),)
    assert gpu_equivalent(a30, "m1", SHARES).gpus == 1 / 4
    assert gpu_equivalent(a100, "m1", SHARES, "sms").gpus == near(28 / 108)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("billing=9,cpu=16,gres/gpu:a100=2,gres/gpu=2,mem=131072M,node=2", (16, 131_072, 2)),
        ("cpu=1,gres/gpu=1,mem=1.50T,node=1", (1, 1_572_864, 1)),
        ("gres/gpu=1", (None, None, None)),
        ("cpu=0,mem=0,node=x,gres/gpu=1", (None, None, None)),
        ("gres/cpu=4,gres/mem=1G,cpu=99999999999999999999,mem=4000,gres/gpu=1", (None, None, None)),
    ],
)
def test_what_was_given_beside_gpus(text: str, given: tuple[int | None, ...]) -> None:
    with duckdb.connect() as database:
        database.execute("CREATE TABLE readings AS SELECT $1 AS gres, 'g1' AS node_list", [text])
        make_equivalents(database, None, "slices")
        assert database.execute("SELECT cpus, mem_given_mib, nodes FROM equivalents").fetchall() == [given]


def test_what_gres_are_called() -> None:
    both = gpu_equivalent((Gres("gpu", "a100", 1), Gres("gpu", "", 2), Gres("nic", "", 1)), "x", None)
    assert (both.kind, both.shown, both.devices, both.whole) == ("a100+untyped", "gpu:a100:1,gpu:2,nic:1", 3, True)
    assert gpu_equivalent((Gres("shard", "", 1),), "x", None).kind == "shard"
    assert gpu_equivalent(SLICE, "m1", SHARES)[3:5] == (False, "h100_1g.10gb")
    nothing = gpu_equivalent((), "x", None)
    assert (nothing.gpus, nothing.devices, nothing.whole, nothing.kind) == (0.0, 0, False, "")


def test_what_was_allocated_and_used_is_by_the_readers_convention(tmp_path: Path) -> None:
    unit = device("MIG-0", profile="1g.20gb", sm_count=26, gpu_util_pct=None, sm_active_pct=50.0)
    rounds = [seen(3600, [unit], [process(uuid="MIG-0")], interval_s=3600.0)]
    stored(tmp_path, [run(gres=LARGE, node_list="m1")], rounds)
    for by, part in (("slices", 1 / 7), ("sms", 26 / 132), ("memory", 20090 / 81559)):
        usage = only(Store(str(tmp_path), SHARES, by))
        assert (usage.allocated_gpu_hours, usage.sm_measured_gpu_hours) == (near(part), near(part))
        assert (usage.sm_used_gpu_hours, usage.held_gpu_hours) == (near(part / 2), near(1 / 7))


def test_a_slice_of_the_whole_gpu_may_be_of_unknown_size(tmp_path: Path) -> None:
    stored(tmp_path, [run(gres=(Gres("gpu", "a30_4g.24gb", 1),))], busy(900))
    usage = only(Store(str(tmp_path), None, "sms"))
    assert (usage.allocated_gpu_hours, usage.util_measured_gpu_hours, usage.held_gpu_hours) == (None, None, 1.0)
    assert only(Store(str(tmp_path))).util_measured_gpu_hours == 0.25


# --- held ---


def held(store: Store) -> list[tuple[float | None, float]]:
    return [(usage.held_gpu_hours, usage.held_unknown_hours) for usage in job_usage(store, 0, 1e9, 1e9)]


def test_a_slice_is_held_by_its_slices(tmp_path: Path) -> None:
    stored(tmp_path, [run(gres=LARGE, node_list="m1", suspended_s=1800)])
    for by in ("slices", "sms", "memory"):
        assert held(Store(str(tmp_path), SHARES, by)) == [(near(1 / 7), 0.0)]


# --- collocation ---


def shared(store: Store, since_s: float = 0, until_s: float = 1e6) -> list[Collocation]:
    with store.connect() as database:
        aggregate(database, store, Window(since_s, until_s, 1e6))
        return collocation(database)


def test_the_time_of_gpus_by_the_jobs_on_them(tmp_path: Path) -> None:
    pair = [process("1", 5), process("2", 6)]
    part = device("MIG-0", profile="1g.10gb", sm_count=16, gpu_util_pct=None)
    rounds: list[NodeSample] = [
        seen(900, [device(), part], [*pair, process("3", 7, "MIG-0")], interval_s=900.0),
        seen(1800, [device(), part], [process("1", 5)], interval_s=900.0),
        seen(2700, [device(), part], (), interval_s=900.0),
    ]
    store = stored(tmp_path, [run("1"), run("2"), run("3", gres=SLICE, node_list="m1")], rounds, SHARES)
    nobody, one, two = shared(store)
    assert nobody == Collocation(0, 2, near(0.75), near(0.25 + 0.5 / 7))
    assert one == Collocation(1, 2, near(0.5), near(0.25 + 0.25 / 7))
    assert two == Collocation(2, 1, near(0.25), near(0.25))
    assert [time.saved_gpu_hours for time in (nobody, one, two)] == [0.0, near(0.25 * 6 / 7), near(0.25)]
    # Clipped to the window, and the parts of a window add up.
    parts = [*shared(store, 0, 1000), *shared(store, 1000)]
    assert sum(time.unit_hours for time in parts) == near(1.5)
    assert [time.unit_hours for time in shared(store, 0, 450)] == [near(0.125), near(0.125)]


def test_what_a_reading_reaches_beyond_a_runs_end_is_nobodys(tmp_path: Path) -> None:
    pair = [process("1", 5), process("2", 6)]
    rounds = [seen(at_s, [device()], of, interval_s=900.0) for at_s, of in ((900, pair[:1]), (1800, pair), (2700, ()))]
    store = stored(tmp_path, [run("1", 0, 1600), run("2", 900, 1700)], rounds)
    # Of the two 200 and 100 s, each a half of its time on the GPU.
    assert shared(store) == [
        Collocation(0, 1, near((900 + 150) / 3600), near((900 + 150) / 3600)),
        Collocation(1, 1, near(0.25), near(0.25)),
        Collocation(2, 1, near(750 / 3600), near(750 / 3600)),
    ]
    alone = stored(tmp_path / "alone", [run("1", 0, 1600)], [seen(1800, [device()], pair[:1], interval_s=900.0)])
    assert [(one.jobs, one.unit_hours) for one in shared(alone)] == [(0, near(200 / 3600)), (1, near(700 / 3600))]


def test_a_gpu_of_two_clusters_is_two(tmp_path: Path) -> None:
    store = stored(tmp_path, [run()], busy(900))
    sampled(store, busy(900), "other")
    assert shared(store) == [Collocation(1, 2, near(0.5), near(0.5))]


def test_without_samples_nothing_is_told(tmp_path: Path) -> None:
    assert shared(stored(tmp_path, [run()])) == []


def test_no_more_was_held_than_was_there(tmp_path: Path) -> None:
    rows = [run(job, gres=(Gres("shard", "", 2),), node_list="s1") for job in ("1", "2", "3")]
    everyone = [process(job, int(job)) for job in ("1", "2", "3")]
    rounds = [seen(900.0 * n, [device()], everyone[: n % 4], interval_s=900.0) for n in range(1, 5)]
    store = stored(tmp_path, rows, rounds, SHARES)
    with_jobs = sum(time.gpu_hours for time in shared(store) if time.jobs)
    assert sum(hours or 0.0 for hours, _ in held(store)) == near(with_jobs)
    assert with_jobs == near(0.75)


# --- what there is at all ---


def test_installed_gpus() -> None:
    assert installed_gpus(None) is None
    assert installed_gpus(site()) is None
    assert installed_gpus(site(MPS_POOL, SHARD_POOL._replace(nodes="s[01-10]"))) == 2 + 20
    mixed = MIG_POOL._replace(nodes="m1", gpus_per_node=3, slice=MIG_POOL.slice[1:2])
    assert installed_gpus(site(mixed)) == near(3 + 7 / 7)
    assert installed_gpus(site(MIG_POOL._replace(slice=MIG_POOL.slice[:1]))) == near(2 * 2 * 3 / 7)
    assert installed_gpus(site(MPS_POOL._replace(nodes="g[1-"))) is None


# --- decisions ---


def test_a_decision_is_of_the_submission_and_of_all_that_became_of_it(tmp_path: Path) -> None:
    day = 86_400
    runs = [
        run("1", 30 * day, 30 * day + 900, submit_s=30 * day - 60),  # the id came round: csub saw another job
        run("2", 30 * day, 30 * day + 900, submit_s=30 * day - 60),
        run("2", 31 * day, 31 * day + 900, submit_s=31 * day - 60),  # requeued
        run("3", 30 * day, 30 * day + 900, submit_s=None),
        run("4", 400 * day, 400 * day + 900, submit_s=None),
    ]
    store = stored(tmp_path, runs)
    at_s = {"1": 29.0 * day, "2": 30.0 * day - 90, "3": 1.0 * day, "4": 1.0 * day}
    store.write_decisions([("ann", decision(job, at_s=at)) for job, at in at_s.items()])
    with store.connect() as database:
        aggregate(database, store, Window(0, 1e9, 1e9))
        query = f"SELECT job_id, start_s / {day}, signature FROM ({with_decisions()}) ORDER BY 1, 2"
        found = database.execute(query).fetchall()
    assert found == [("1", 30, None), ("2", 30, "sig"), ("2", 31, "sig"), ("3", 30, "sig"), ("4", 400, None)]


@pytest.mark.parametrize(
    ("gres_type", "gpus"),
    [
        # Without a card in its name: only cards of four slices have these.
        ("1g.6gb", 1 / 4),
        ("2g.12gb", 1 / 2),
        ("4g.24gb", 1),
        ("1g.6gb+me", 1 / 4),
        ("mig-4g.96gb", 1),
        ("mig-2g.32gb", 1),
        # A half of one card is all of another.
        ("mig-2g.48gb", None),
        ("rtx6000_2g.48gb", 1 / 2),
        ("nvidia_rtx_pro_5000_blackwell_2g.48gb+gfx", 1),
        ("nvidia_rtx_pro_5000_blackwell_1g.12gb-me", 1 / 4),
        ("rtx5000_1g.24gb", 1 / 2),
        ("gh200_1g.12gb", 1 / 7),
        ("1g.12gb", None),
        # Drivers name the memory of the same slices otherwise, but what a card of halves does not have is unknown.
        ("a100_3g.39gb", 3 / 7),
        ("gb300_1g.31gb", 1 / 7),
        ("rtx4500_1g.8gb", None),
        # Compute instances beside each other in one GPU instance.
        ("a100_3c.7g.40gb", 3 / 7),
        ("a100_4c.7g.40gb", 4 / 7),
        ("a30_1c.2g.12gb", 1 / 4),
        # Cards of four and of seven have this one.
        ("1g.24gb", None),
        ("mig-1g.24gb", None),
        ("nvidia_gb200_1g.24gb", 1 / 7),
        ("nvidia_rtx_pro_6000_1g.24gb", 1 / 4),
        ("1g.5gb", 1 / 7),
        ("3g.40gb", 3 / 7),
        # What looks like a slice and says not which is no whole GPU.
        ("1g10gb", None),
        ("a100_3g_20gb", None),
        ("mig", None),
        ("h100-mig20", None),
        # Whole ones, whatever memory they are named after.
        ("a100_80g", 1),
        ("v100-32gb", 1),
        ("rtx_3090", 1),
        ("sigmig", 1),
    ],
)
def test_a_type_is_worth_what_its_name_says_or_is_not_known(gres_type: str, gpus: float | None) -> None:
    gres = (Gres("gpu", gres_type, 2),)
    found = gpu_equivalent(gres, "x", None)
    assert found.gpus == (None if gpus is None else near(2 * gpus))
    assert found.whole == (gpus == 1)


def test_a_site_says_what_its_types_are() -> None:
    odd = MIG_POOL.slice[0]._replace(type="1g10gb")
    config = site(MIG_POOL._replace(slice=(odd,)), SHARD_POOL._replace(gpu_type="mig_off"))
    assert gpu_equivalent((Gres("gpu", "1g10gb", 1),), "m1", config).gpus == near(3 / 7)
    assert gpu_equivalent((Gres("gpu", "mig_off", 1),), "s1", config).gpus == 1
