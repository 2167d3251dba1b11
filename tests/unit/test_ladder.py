# SPDX-License-Identifier: Apache-2.0
"""The ladder of pieces, by which many past runs are judged at once, is what csub itself decides for each of them."""

from itertools import permutations, product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.core.config import MigSlice, Partition, Pool, SiteConfig
from slurm_colloc.core.model import Evidence
from slurm_colloc.placement.fitted import holds, ladder, past_request, would_have_fitted
from slurm_colloc.placement.speed import most_in_part
from tests.rings import tenth
from tests.unit.made import H100, MIG_POOL, MPS_POOL, SHARD_POOL, evidence, site

A100 = "NVIDIA A100-SXM4-80GB"
WHOLE = Pool("w", "w1", ("gpu",), "h100", H100, gpus_per_node=2, gpu_mem_mib=80000, sm_count=132)
SMALL = MIG_POOL._replace(name="n", nodes="n1", slice=(MigSlice("h100_1g.10gb", "1g.10gb", 4000, 14, 7),))
POOLS = (
    MIG_POOL,
    SMALL,
    MPS_POOL,
    SHARD_POOL,
    WHOLE,
    MPS_POOL._replace(name="g2", nodes="g2", gpu_mem_mib=40960, mps_per_gpu=7, shards_per_gpu=16),
    SHARD_POOL._replace(name="s2", nodes="s2", partitions=("mig",), gpu_model=A100, shards_per_gpu=5),
    MIG_POOL._replace(name="o", nodes="o1", partitions=("mig",), gpu_model=A100, gpu_type="a100", sm_count=None),
)
GPU, MIG = Partition("gpu", mps_users="one"), Partition("mig")
PARTITIONS = (
    (GPU, MIG),
    (GPU._replace(pieces_in=("mig",)), MIG._replace(default_time_min=60.0)),
    (GPU._replace(pieces_in=("mig",)), MIG._replace(restrictions=("AllowAccounts=Lab", "DenyQos=low"))),
    (GPU._replace(suspends=True), MIG),
    (GPU._replace(mps_users="each"), MIG._replace(mps_users="all")),
)
SITES = st.builds(
    lambda pools, partitions, sharing: site(*pools, **sharing)._replace(partition=partitions),
    st.lists(st.sampled_from(POOLS), max_size=5, unique=True),
    st.sampled_from(PARTITIONS),
    st.fixed_dictionaries(
        {
            "order": st.sampled_from([order for n in (2, 3) for order in permutations(("mig", "mps", "shard"), n)]),
            "mps_daemon": st.sampled_from(("none", "slurm")),
            "headroom_mib": st.sampled_from((0, 256, 3000)),
            "max_slowdown": st.sampled_from((1.0, 1.1, 1.25, 3.0)),
            "protected_types": st.sampled_from(((), ("h100",))),
        }
    ),
)


def near_edges(steps: Any) -> st.SearchStrategy[Evidence]:
    """Return runs that just fill a step, or just do not, and others."""
    peaks = [edge + by for edge, by in product({step.most_peak_mib for step in steps}, (0, 1)) if edge + by >= 0]
    active = [edge + by for edge, by in product({step.most_sm_pct for step in steps}, (-0.01, 0.0, 0.01))]
    return st.builds(
        lambda mib, sm: evidence(mode="", gpu_model=H100, gpu_mem_peak_mib=mib, sm_active_mean_pct=sm),
        st.sampled_from(peaks) | st.integers(0, 90000) if peaks else st.integers(0, 90000),
        st.sampled_from(active) | st.floats(0, 100) if active else st.floats(0, 100),
    )


@settings(max_examples=tenth(300))
@given(SITES, st.sampled_from(("gpu:1", "gpu:h100:1")), st.sampled_from(("lab", "LAB", "other", "")), st.data())
def test_the_first_step_that_holds_is_what_csub_would_give(
    config: SiteConfig, shown: str, account: str, data: st.DataObject
) -> None:
    request = past_request(shown, "gpu", account, "normal")
    steps = ladder(request, H100, config)
    for _ in range(5):
        run = data.draw(near_edges(steps))
        peak_mib, active_pct = run.gpu_mem_peak_mib or 0, run.sm_active_mean_pct or 0.0
        step = next((one for one in steps if holds(one, peak_mib, active_pct)), None)
        placed = would_have_fitted(run, request, config)
        assert (str(step.gres) if step else "as asked") == placed.given


def test_shares_are_steps_up_to_seven_eighths_of_a_gpu() -> None:
    config = site(SHARD_POOL._replace(shards_per_gpu=8), headroom_mib=0)
    steps = ladder(past_request("gpu:h100:1", "gpu", "", ""), H100, config)
    found = [(str(step.gres), step.most_peak_mib, round(step.most_sm_pct, 6)) for step in steps]
    held = [round(most_in_part(count / 8, 2.1), 6) for count in range(1, 8)]
    assert found == [(f"shard:{count}", count * 10000, held[count - 1]) for count in range(1, 8)]
    protected = config._replace(sharing=config.sharing._replace(protected_types=("h100",)))
    assert ladder(past_request("gpu:h100:1", "gpu", "", ""), H100, protected) == ()
