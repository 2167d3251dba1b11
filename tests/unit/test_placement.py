# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.config import Pool, SiteConfig
from slurm_colloc.model import Footprint, Gres, JobRequest, Placement, SharingMode
from slurm_colloc.placement.choose import place
from tests.unit.made import H100, MIG_POOL, MPS_POOL, SHARD_POOL, footprint, request, site

TAMING = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"), ("TF_FORCE_GPU_ALLOW_GROWTH", "true"))
MPS = {"mps_daemon": "site", "mps_single_user": True}


def why(placement: Placement) -> dict[str, str]:
    assert placement.as_asked
    assert placement.mode is SharingMode.EXCLUSIVE
    assert placement.environment == ()
    return dict(placement.rejected)


# --- slices ---


def test_smallest_slice_that_holds_it() -> None:
    found = place(request(), footprint(9000, 10), site(MIG_POOL))
    assert (found.mode, found.gres, found.environment) == ("mig", Gres("gpu", "h100_1g.10gb", 1), ())
    assert found.headroom_mib == 256
    assert found.reasons == ("slice 1g.10gb holds 9256 of its 9984 MiB; slowdown at least 1.00x",)


@pytest.mark.parametrize(
    ("memory", "profile"), [(9728, "1g.10gb"), (9728.2, "1g.20gb"), (19834, "1g.20gb"), (19835, "3g.40gb")]
)
def test_headroom_is_added_and_demand_rounds_up(memory: float, profile: str) -> None:
    found = place(request(), footprint(memory, 5), site(MIG_POOL))
    assert found.gres == Gres("gpu", f"h100_{profile}", 1)


@pytest.mark.parametrize(
    ("active", "profile"),
    # 1.25 x 16 / 132 = 15.15 %; 1g.20gb 24.62 %; 2g.20gb 30.30 %; 3g.40gb 56.82 %
    [(15.1, "1g.10gb"), (15.2, "1g.20gb"), (24.6, "1g.20gb"), (24.7, "2g.20gb"), (30.4, "3g.40gb"), (56.8, "3g.40gb")],
)
def test_slowdown_bound(active: float, profile: str) -> None:
    found = place(request(), footprint(1000, active), site(MIG_POOL))
    assert found.gres == Gres("gpu", f"h100_{profile}", 1)


def test_no_slice_says_why_of_each() -> None:
    found = why(place(request(), footprint(1000, 57), site(MIG_POOL)))
    assert found["gpu:h100_3g.40gb"] == "60 of 132 SMs slow it at least 1.25x; the site's bound is 1.25x"
    assert set(found) == {"gpu:h100_1g.10gb", "gpu:h100_1g.20gb", "gpu:h100_2g.20gb", "gpu:h100_3g.40gb"}
    full = place(request(), footprint(60000, 1), site(MIG_POOL))
    assert why(full)["gpu:h100_3g.40gb"] == "40448 MiB do not hold 60256 MiB"
    assert full.reasons == ("no piece of a GPU holds 60256 MiB and 1 % of the SMs",)


def test_slices_that_are_not_there() -> None:
    none = MIG_POOL._replace(slice=tuple(part._replace(quantity=0) for part in MIG_POOL.slice[1:]))
    assert why(place(request(), footprint(1000, 1), site(none))) == {}


# --- shares ---


def test_mps() -> None:
    found = place(request(), footprint(16000, 10), site(MPS_POOL, **MPS))
    # 16256 of 80000 MiB: 20.32 of 100.
    assert (found.mode, found.gres) == ("mps", Gres("mps", "", 21))
    assert found.environment == (("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=16256M"), *TAMING)
    assert place(request(), footprint(16000, 45), site(MPS_POOL, **MPS)).gres == Gres("mps", "", 45)


def test_shard() -> None:
    found = place(request(), footprint(16000, 10), site(SHARD_POOL, shard_consent=True))
    assert (found.mode, found.gres, found.environment) == ("shard", Gres("shard", "", 1), TAMING)
    assert place(request(), footprint(16000, 26), site(SHARD_POOL, shard_consent=True)).gres == Gres("shard", "", 2)


@pytest.mark.parametrize("missing", [{"mps_daemon": "none"}, {"mps_single_user": False}])
def test_mps_needs_daemon_and_single_user(missing: dict[str, object]) -> None:
    found = why(place(request(), footprint(), site(MPS_POOL, **{**MPS, **missing})))
    assert found == {"mps on g": "the site runs no shared MPS daemon for one user per GPU"}


def test_shard_needs_consent() -> None:
    found = why(place(request(), footprint(), site(SHARD_POOL)))
    assert found == {"shard on s": "the site does not accept jobs without isolation"}


@pytest.mark.parametrize(
    ("asked", "need", "pool", "sharing", "said"),
    [
        (request(), footprint(), SHARD_POOL, {"gpu_default_partitions": ("gpu",)}, "the partition gives cores"),
        (request(per_gpu_options=True), footprint(), SHARD_POOL, {}, "the job sizes its cores or memory per GPU"),
        (request(interpreter="/usr/bin/python3"), footprint(), SHARD_POOL, {}, "cannot be set in a script for"),
        (request(), footprint(), SHARD_POOL._replace(gpu_mem_mib=None), {}, "does not give its gpu_mem_mib"),
        (request(), footprint(79900), SHARD_POOL, {}, "80000 MiB do not hold 80156 MiB"),
        (request(), footprint(1000, 51), SHARD_POOL, {}, "3 of 4 shares leave no room for a second job like it"),
        (request(), footprint(40000, 1), SHARD_POOL, {}, "3 of 4 shares leave no room"),
    ],
)
def test_reasons_against_a_share(
    asked: JobRequest, need: Footprint, pool: Pool, sharing: dict[str, object], said: str
) -> None:
    found = why(place(asked, need, site(pool, shard_consent=True, **sharing)))
    assert said in found["shard on s"]


def test_default_partition_counts_for_gpu_defaults() -> None:
    config = site(SHARD_POOL, shard_consent=True, gpu_default_partitions=("gpu",))
    assert place(request(partition=None), footprint(), config).as_asked
    other = site(SHARD_POOL, shard_consent=True, gpu_default_partitions=("other",))
    assert place(request(partition=None), footprint(), other).mode == "shard"


# --- pools and the order of modes ---


def test_order_of_modes() -> None:
    pools = (MIG_POOL, MPS_POOL, SHARD_POOL)
    sharing = {**MPS, "shard_consent": True}
    for order, mode in ((("mig", "mps", "shard"), "mig"), (("mps",), "mps"), (("shard", "mig"), "shard")):
        assert place(request(), footprint(), site(*pools, order=order, **sharing)).mode == mode
    assert place(request(), footprint(), site(*pools, order=(), **sharing)).as_asked
    last = place(request(), footprint(38000, 40), site(*pools, order=("mig", "mps", "shard"), **sharing))
    assert (last.mode, len(last.rejected)) == ("mig", 3)


@pytest.mark.parametrize(
    ("asked", "need", "pool", "said"),
    [
        (request(partition="cpu"), footprint(), MIG_POOL, "not in partition 'cpu'"),
        (request(gres=(Gres("gpu", "a100", 1),)), footprint(), MIG_POOL, "GPU type 'a100' was asked for"),
        (request(), footprint(gpu_model="A100"), MIG_POOL, "the footprint was measured on A100"),
        (
            request(),
            footprint(gpu_model=H100),
            MIG_POOL._replace(gpu_model=""),
            f"the footprint was measured on {H100}",
        ),
        (request(), footprint(), MIG_POOL._replace(sm_count=None), "site.toml does not give its sm_count"),
    ],
)
def test_reasons_against_a_pool(asked: JobRequest, need: Footprint, pool: Pool, said: str) -> None:
    assert why(place(asked, need, site(pool))) == {"pool m": said}


def test_slices_of_the_asked_model_count() -> None:
    asked = request(gres=(Gres("gpu", "h100", 1),))
    assert place(asked, footprint(gpu_model=H100), site(MIG_POOL, MPS_POOL)).mode == "mig"
    nameless = (MIG_POOL._replace(gpu_model=""), MPS_POOL._replace(gpu_model=""))
    assert place(asked, footprint(), site(*nameless)).as_asked


# --- as asked ---


def test_untouchable_goes_first() -> None:
    found = place(request(untouchable=("a", "b")), footprint(None, None), site(MIG_POOL, protected_types=("x",)))
    assert (found.as_asked, found.reasons, found.headroom_mib) == (True, ("a", "b"), None)


def test_protected_types() -> None:
    config = site(MIG_POOL, MPS_POOL, protected_types=("h100",), **MPS)
    named = place(request(gres=(Gres("gpu", "h100", 1),)), footprint(), config)
    assert (named.as_asked, named.reasons) == (True, ("the site protects jobs on 'h100'",))
    # A job that names no type is not put on a piece of a protected GPU either.
    unnamed = place(request(), footprint(), config._replace(sharing=config.sharing._replace(order=("mps",))))
    assert why(unnamed)["pool g"] == "the site protects jobs on 'h100'"
    assert place(request(), footprint(), config).mode == "mig"


def test_unknown_use_is_a_reason() -> None:
    assert place(request(), footprint(None), site(MIG_POOL)).reasons == ("given by the user",)
    unsure = place(request(), footprint(1000, None), site(MIG_POOL))
    assert unsure.reasons == ("how busy the job keeps a GPU is not known (given by the user); say sm=PERCENT",)


@given(st.floats(1, 90000), st.floats(0, 100), st.integers(0, 5000), st.floats(1, 4))
def test_a_piece_always_holds_the_need(memory: float, active: float, headroom: int, slowdown: float) -> None:
    config: SiteConfig = site(
        MIG_POOL, MPS_POOL, SHARD_POOL, shard_consent=True, headroom_mib=headroom, max_slowdown=slowdown, **MPS
    )
    found = place(request(), footprint(memory, active), config)
    if found.gres is None:
        assert len(found.rejected) == 6
    elif found.mode == "mig":
        part = next(part for part in MIG_POOL.slice if part.type == found.gres.type)
        assert part.mem_mib >= memory + headroom
        assert active / 100 * 132 / part.sm_count <= slowdown
    else:
        share = found.gres.quantity / (100 if found.mode == "mps" else 4)
        assert share <= 0.5
        assert share * 80000 >= memory + headroom - 1e-3
        assert share * 100 >= active - 1e-3


def test_where_no_pool_is_left_the_reason_is_not_its_size() -> None:
    found = place(request(partition="cpu"), footprint(), site(MIG_POOL))
    assert found.reasons == ("not in partition 'cpu'",)
    assert place(request(), footprint(), site()).reasons == ("site.toml describes no GPUs",)
