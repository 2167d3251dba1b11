# SPDX-License-Identifier: Apache-2.0
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.core.model import Evidence
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.estimate.interrupted import has_settled
from slurm_colloc.observe.evidence import EvidenceBuilder
from tests.unit.made import H100, device, host, near, process, seen


def built(*sm: float | None, util: float | None = None, intervals: list[float] | None = None) -> Evidence:
    lengths = intervals or [10.0] * len(sm)
    units = [device(sm_active_pct=value, gpu_util_pct=util) for value in sm]
    rounds = [seen(100.0 + at, [units[at]], [process()], interval_s=length) for at, length in enumerate(lengths)]
    return fed(*rounds)


def fed(*rounds: NodeSample, mode: str = "exclusive") -> Evidence:
    """Return what is known after these."""
    builder = EvidenceBuilder("1", "sig", mode)
    return [builder.add(one) for one in rounds][-1]


def test_mean_and_quantile() -> None:
    found = built(*[10.0] * 19, 90.0)
    assert (found.sm_active_mean_pct, found.sm_active_q95_pct) == (near(14.0), 10.0)
    assert (found.sample_count, found.sampled_s, found.ended_s) == (20, 200.0, 119.0)
    assert (found.job_id, found.signature, found.state, found.mode) == ("1", "sig", "RUNNING", "exclusive")
    assert (found.gpu_model, found.gpu_mem_peak_mib, found.sm_is_bound) == (H100, 3000, False)
    assert built(*[10.0] * 9, 90.0).sm_active_q95_pct == 90.0


def test_time_weighs() -> None:
    found = built(10.0, 80.0, intervals=[1.0, 3.0])
    assert (found.sm_active_mean_pct, found.sm_active_q95_pct) == (62.5, 80.0)


def test_time_without_kernels_is_not_in_the_mean() -> None:
    assert built(0.0, 0.0, 60.0, 80.0).sm_active_mean_pct == 70.0
    assert built(0.0, 0.0).sm_active_mean_pct == 0.0


def test_a_start_without_kernels_is_no_time_in_which_they_ran() -> None:
    assert (built(*[0.0] * 9, 13.0).ran_s, built(0.0, 0.0).ran_s) == (10.0, 0.0)
    # As seen on a GPU: twelve seconds, and the first kernels in the last two.
    assert not has_settled(built(*[0.0] * 10, 2.0, 13.0, intervals=[1.0] * 12), 12.0)
    assert has_settled(built(*[0.0] * 6, *[13.0] * 6, intervals=[1.0] * 12), 12.0)


def test_busy_time_is_that_of_the_samples_in_which_kernels_ran_on_a_gpu_of_its_own() -> None:
    rounds = [
        seen(at_s, [device(sm_active_pct=sm, gr_active_pct=busy, gpu_util_pct=90.0)], [process()])
        for at_s, sm, busy in ((1.0, 0.0, 5.0), (2.0, 10.0, 40.0), (3.0, 20.0, 60.0))
    ]
    assert fed(*rounds).busy_mean_pct == near(50.0)
    assert fed(*rounds, mode="mps").busy_mean_pct is None
    for util, busy in ((30.0, 30.0), (None, None)):
        one = seen(1.0, [device(sm_active_pct=10.0, gr_active_pct=None, gpu_util_pct=util)], [process()])
        assert fed(one).busy_mean_pct == busy, "GPU_UTIL where nothing better is known"


def test_first_reading_stands_for_no_time() -> None:
    found = built(50.0, intervals=[0.0])
    assert (found.sm_active_mean_pct, found.sm_active_q95_pct, found.sample_count) == (None, None, 1)
    assert found.gpu_mem_peak_mib == 3000


def test_gpu_util_is_a_bound() -> None:
    found = built(None, None, util=40.0)
    assert (found.sm_active_mean_pct, found.sm_is_bound) == (40.0, True)


def test_nothing_known_is_none_and_no_bound() -> None:
    found = built(None, None)
    assert (found.sm_active_mean_pct, found.sm_active_q95_pct, found.sm_is_bound) == (None, None, False)
    mixed = built(None, 20.0)
    assert (mixed.sm_active_mean_pct, mixed.sampled_s) == (20.0, 20.0)


def test_a_slice_counts_as_its_part_and_names_the_mode() -> None:
    found = fed(seen(1, [device(profile="3g.40gb", sm_count=66, sm_active_pct=50.0)], [process()]))
    assert (found.sm_active_mean_pct, found.mode) == (25.0, "mig")


def test_several_devices_are_added_at_a_time() -> None:
    builder = EvidenceBuilder("1", "sig", "exclusive")
    both = [device("A"), device("B")]
    builder.add(seen(1, both, [process(uuid="A"), process(uuid="B", gpu_mem_used_mib=500)]))
    found = builder.add(seen(2, both, [process(uuid="A", gpu_mem_used_mib=10), process(uuid="B")]))
    assert found.gpu_mem_peak_mib == 3500
    unknown = builder.add(seen(3, both, [process(uuid="A", gpu_mem_used_mib=9000), process("2", uuid="B")]))
    assert unknown.gpu_mem_peak_mib == 9000


def test_unknown_memory_does_not_lower_or_raise_the_peak() -> None:
    builder = EvidenceBuilder("1", "sig", "exclusive")
    blind = [process(gpu_mem_used_mib=None), process("2", 7)]
    assert builder.add(seen(1, [device()], blind)).gpu_mem_peak_mib is None
    assert builder.add(seen(2, [device()], [process()])).gpu_mem_peak_mib == 3000
    assert builder.add(seen(3, [device()], blind)).gpu_mem_peak_mib == 3000


def test_what_it_uses_of_the_host() -> None:
    builder = EvidenceBuilder("1", "sig", "exclusive")
    found = builder.add(seen(0, [device()], [process()], hosts=[host(cpu_s=None, host_mem_mib=900)], interval_s=0))
    assert (found.cpu_cores_q95, found.host_mem_peak_mib) == (None, 900)
    for at_s in range(1, 20):
        builder.add(seen(at_s, [device()], [process()], hosts=[host(cpu_s=22.5), host("2", cpu_s=900.0)]))
    # One reading in twenty may be higher; those of others, and unknown ones, do not count.
    builder.add(seen(30, [device()], [process()], hosts=[host(cpu_s=None, host_mem_mib=None)]))
    found = builder.add(seen(20, [device()], [process()], hosts=[host(cpu_s=160.0, host_mem_mib=5000)]))
    assert (found.cpu_cores_q95, found.host_mem_peak_mib) == (2.2, 5000)
    nobody = fed(seen(1, [device()], [process()]))
    assert (nobody.cpu_cores_q95, nobody.host_mem_peak_mib) == (None, None)


def test_others_are_not_counted() -> None:
    found = fed(seen(1, [device()], [process("2")]))
    assert (found.sample_count, found.sampled_s, found.gpu_mem_peak_mib) == (0, 0.0, None)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 20)), min_size=1, max_size=30))
def test_quantile_is_the_least_that_covers(readings: list[tuple[int, int]]) -> None:
    found = built(*(float(value) for value, _ in readings), intervals=[float(length) for _, length in readings])
    times = [value for value, length in readings for _ in range(length)]
    high = found.sm_active_q95_pct
    assert high in times
    assert sum(value <= (high or 0) for value in times) >= 0.95 * len(times) - 1e-9
    assert sum(value < (high or 0) for value in times) < 0.95 * len(times) + 1e-9
    assert found.sm_active_mean_pct == near(sum(times) / len(times))


def test_the_memorys_activity_is_of_a_whole_gpu_for_itself() -> None:
    def moved(*percents: float | None, mode: str = "exclusive", others: int = 0, **unit: Any) -> float | None:
        processes = [process(), *(process("2", 6 + number) for number in range(others))]
        rounds = [seen(at, [device(dram_active_pct=of, **unit)], processes) for at, of in enumerate(percents, 1)]
        return fed(*rounds, mode=mode).dram_active_q95_pct

    assert moved(*[10.0] * 19, 90.0) == 10.0
    assert moved(*[10.0] * 9, 90.0) == 90.0
    assert moved(None, 30.0, None) == 30.0
    assert moved(None, None) is None
    assert moved(30.0, others=1) is None
    assert moved(30.0, profile="1g.10gb") is None
    assert moved(30.0, mode="mps") is None


def test_a_split_sizes_nothing() -> None:
    """Among neighbours the SM activity is a guess; the memory is the job's own all the same."""
    builder = EvidenceBuilder("1", "sig", "shard")
    found = builder.add(seen(1, [device(sm_active_pct=50.0)], [process(), process("2", 6)]))
    assert (found.sm_active_mean_pct, found.sm_active_q95_pct, found.gpu_mem_peak_mib) == (None, None, 3000)
    again = builder.add(seen(11, [device(sm_active_pct=20.0)], [process()]))
    assert (again.sm_active_mean_pct, again.sample_count) == (20.0, 2)


def test_when_memory_stopped_growing_and_what_there_was() -> None:
    sizes = ((100, 0), (110, 700), (120, 8000), (130, 8050), (140, 7000), (150, 9000))
    rounds = [seen(at_s, [device()], [process(gpu_mem_used_mib=used)]) for at_s, used in sizes]
    found = fed(*rounds[:-1])
    assert (found.gpu_mem_peak_mib, found.grew_until_s) == (8050, 10.0)
    assert found.gpu_mem_total_mib == device().mem_total_mib
    assert fed(*rounds).grew_until_s == 40.0
    assert fed(seen(1, [device()], [])).grew_until_s is None
