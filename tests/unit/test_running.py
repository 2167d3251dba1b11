# SPDX-License-Identifier: Apache-2.0
"""What a user has running, as three releases print it."""

import math
import re
from pathlib import Path

import pytest

from slurm_colloc.model import Gres
from slurm_colloc.slurm.running import parse_running, parse_steps, parse_used_mib

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
RELEASES = ["22.05", "24.11", "26.05"]
SLICE = "nvidia_h100_80gb_hbm3_1g.10gb"


@pytest.mark.parametrize("release", RELEASES)
def test_running_jobs_are_read_alike_from_all_releases(release: str) -> None:
    jobs = {job.job_id: job for job in parse_running((RECORDED / f"slurm-{release}/squeue/running.txt").read_text())}
    whole = jobs["1"]
    assert whole.gres == (Gres("gpu", "h100", 1),)
    assert (whole.cpus, whole.mem_mib, whole.nodes, whole.node) == (4, 1024, 1, "g1")
    assert (whole.partition, whole.account, whole.qos) == ("all", "ml", "normal")
    assert whole.left_s + whole.ran_s == pytest.approx(86400 + 2 * 3600 + 4 * 60, abs=60)
    assert (jobs["2"].gres, jobs["2"].mem_mib) == ((Gres("gpu", "h100", 1),), 3000)
    assert jobs["3"].gres == (Gres("gpu", SLICE, 1),)
    assert jobs["4"].gres == (Gres("shard", "", 3),)
    assert jobs["4"].left_s == math.inf
    assert jobs["6"].gres == ()
    assert jobs["7"].nodes == 2
    assert [job.name for job in jobs.values() if job.array_task] == ["5_3"]
    assert not any(job.hetjob for job in jobs.values())


@pytest.mark.parametrize("release", RELEASES)
def test_where_accounting_knows_of_no_gpus_what_was_asked_for_is_told(release: str) -> None:
    text = (RECORDED / f"slurm-{release}/squeue/running.txt").read_text()
    jobs = {job.job_id: job for job in parse_running(re.sub(r",gres/[^|,]*", "", text))}
    assert jobs["1"].gres == (Gres("gpu", "", 1),)
    assert jobs["2"].gres == (), "of --gpus nothing is told"
    assert jobs["3"].gres == (Gres("gpu", SLICE, 1),)
    assert jobs["4"].gres == (Gres("shard", "", 3),)


@pytest.mark.parametrize("release", RELEASES)
def test_steps_and_what_they_use_are_read_alike_from_all_releases(release: str) -> None:
    steps = parse_steps((RECORDED / f"slurm-{release}/squeue/steps.txt").read_text())
    assert ("1.0", "join-a|b") in steps
    assert ("5_3.batch", "batch") in steps
    used = parse_used_mib((RECORDED / f"slurm-{release}/sstat/memory.txt").read_text())
    assert used is not None
    assert 3 < used < 10


def test_a_line_of_another_form_is_left_out() -> None:
    line = "1|1|N/A|1|4|cpu=4,mem=1G,node=1|N/A|9:54|0:06|all|ml|normal|g1|\n"
    assert len(parse_running(line)) == 1
    assert parse_running(line.replace("9:54", "INVALID")) == ()
    assert parse_running(line[:-4]) == ()
    assert parse_running(line.replace("1|1|N/A", "1|1|7"))[0].hetjob
    assert parse_running("slurm_load_jobs error: Unable to contact slurm controller\n") == ()


def test_unmeasured_memory_is_not_known_and_several_tasks_count_each() -> None:
    assert parse_used_mib("") is None
    assert parse_used_mib("1.batch|1|0\n") is None
    assert parse_used_mib("1.batch|1|\n1.0|1|5M\n") is None
    assert parse_used_mib("1.batch|1|1.5M\n1.0|4|5M\n") == 22
