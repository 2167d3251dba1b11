# SPDX-License-Identifier: Apache-2.0
"""A journal of the agent on a real H100 with jobs of a real Slurm (tests/recorded/h100-slurm-22.05)."""

from collections import Counter
from itertools import pairwise
from statistics import fmean

from slurm_colloc.core.usage_model import AttributedUse
from slurm_colloc.observe.attribute import attribute_sample, balanced
from slurm_colloc.sources.controller import parse_jobs
from tests.unit.made import RECORDED, decoded

ROUNDS, REJECTED = decoded((RECORDED / "h100-slurm-22.05/20261121T21.journal").read_bytes())
SHARED = [seen for seen in ROUNDS if {process.job_id for process in seen.processes} >= {"1", "2", "3"}]
ALONE = [seen for seen in ROUNDS if {process.job_id for process in seen.processes} == {"5"}]


def of(job_id: str) -> list[AttributedUse]:
    return [share for seen in ROUNDS for share in attribute_sample(seen) if share.job_id == job_id]


def test_every_line_is_good_and_every_reading_adds_up() -> None:
    assert (REJECTED, len(ROUNDS), ROUNDS[0].interval_s) == (0, 86, 0.0)
    for seen in ROUNDS:
        (device,) = seen.devices
        assert balanced(device, attribute_sample(seen))
    for earlier, later in pairwise(ROUNDS):
        assert abs(later.at_s - later.interval_s - earlier.at_s) < 0.001


def test_clients_of_mps_are_split_by_memory_and_the_server_is_nobodys() -> None:
    assert len(SHARED) > 40
    kinds = Counter((process.kind, process.job_id) for seen in SHARED for process in seen.processes)
    assert set(kinds) == {("client", "1"), ("client", "2"), ("client", "3"), ("server", "")}
    for job, mib in (("1", 524), ("2", 524), ("3", 500)):
        shares = [share for share in of(job) if share.method == "split by memory"]
        assert max(share.gpu_mem_used_mib or 0 for share in shares) == mib
        assert {share.process_count for share in shares} == {1}
    rest = [share.gpu_mem_used_mib for seen in SHARED[5:-5] for share in attribute_sample(seen) if not share.job_id]
    assert set(rest) == {77}  # 66 of the server, and what the driver itself holds


def test_a_job_that_holds_its_share_and_runs_nothing_is_seen() -> None:
    idle = of("4")
    assert len(idle) > 40
    assert {(share.sm_active_pct, share.gpu_mem_used_mib, share.process_count) for share in idle} == {(0.0, 0, 0)}


def test_alone_on_the_gpu_a_job_is_measured() -> None:
    steady = [share for seen in ALONE[3:] for share in attribute_sample(seen) if share.job_id == "5"]
    assert {share.method for share in steady} == {"measured"}
    assert 17 < fmean(share.sm_active_pct or 0 for share in steady) < 22


def test_what_slurm_itself_says_of_these_jobs() -> None:
    """The controller's rows and the journal are of the same jobs at the same time."""
    parsed = parse_jobs((RECORDED / "h100-slurm-22.05/jobs.txt").read_text(), "gpulab")
    assert not parsed.rejected
    runs = {row.job_id: row for row in parsed.rows}
    asked = {job: ",".join(map(str, row.gres)) for job, row in runs.items()}
    assert asked == {"1": "mps:25", "2": "mps:25", "3": "mps:25", "4": "mps:10", "5": "gpu:h100:1"}
    for job, row in runs.items():
        times = [seen.at_s for seen in ROUNDS if any(holder.job_id == job for holder in seen.holders)]
        assert row.start_s is not None
        assert row.end_s is not None
        # Slurm keeps whole seconds, and the agent looks each second.
        assert row.start_s - 1 <= min(times) <= row.start_s + 3
        assert row.end_s - 3 <= max(times) <= row.end_s + 2
