# SPDX-License-Identifier: Apache-2.0
"""What a real sbatch, slurmctld and a site's plugins refuse of csub's request goes as asked, once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.slurm.refusals import is_refusal
from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import User, job_id

pytestmark = pytest.mark.cluster

HINT = "--gpu-footprint=mem=4G,sm=10"
PLUGINS = "JobSubmitPlugins=lua\nCliFilterPlugins=lua\n"
# A job's comment says how its share is to be refused; as asked it is taken.
JOB_SUBMIT = """
function slurm_job_submit(job, parts, uid)
   local asked = (job.tres_per_node or "") .. (job.tres_per_job or "") .. (job.tres_per_task or "")
   local code = job.comment and string.match(job.comment, "^code=(.*)$")
   if code and string.find(asked, "mps") then
      slurm.log_user("name a type of GPU")
      return slurm[code] or tonumber(code)
   end
   return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
CLI_FILTER = """
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
   if options["comment"] == "client" and string.find(options["gres"] or "", "mps") then
      slurm.log_error("ask for GPUs by --gres=gpu:N")
      return slurm.ERROR
   end
   return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job_id, step_id) return slurm.SUCCESS end
return slurm.SUCCESS
"""
# Of the library that sbatch itself prints with.
STRERROR = """
import ctypes, glob
library = ctypes.CDLL(sorted(glob.glob("/usr/lib/*/libslurm.so.*"))[-1])
library.slurm_strerror.restype = ctypes.c_char_p
for number in (*range(2000, 3000), *range(7103, 7107), *range(7201, 7209), *range(7401, 7409), 8000, 8001):
    print(library.slurm_strerror(number).decode())
"""
UNCLEAR = {
    "Slurm backup controller in standby mode",
    "Controller is in standby mode, try a different controller",
    "Slurm internal error, contact system administrator",
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with running(new_lab(PLUGINS, {"job_submit.lua": JOB_SUBMIT, "cli_filter.lua": CLI_FILTER})) as lab:
        yield lab


@pytest.fixture(scope="module")
def alice(lab: Lab) -> User:
    return User(lab, "alice", write_site(lab, extra={"sharing.order": '["mps"]'}))


def waiting(alice: User, name: str) -> list[str]:
    """Return alice's held jobs of this name, and take them away."""
    shown = {job: alice.shown(job) for job in alice.jobs()}
    jobs = [job for job, of in shown.items() if (of["JobName"], of["JobState"]) == (name, "PENDING")]
    alice.run("scancel", *jobs)
    return jobs


@pytest.mark.parametrize(
    "comment",
    [
        "client",
        *(f"code=ESLURM_{name}" for name in ("INVALID_LICENSES", "INVALID_NODE_COUNT", "MISSING_TIME_LIMIT")),
        "code=ERROR",
        "code=2000",
        "code=2999",
    ],
)
def test_a_share_that_is_refused_goes_as_asked(alice: User, comment: str) -> None:
    alice.script("#!/bin/sh\n#SBATCH --gres=gpu:1 -t 3\ntrue\n", "refused.sh")
    done = alice.run("csub", HINT, "-H", f"--comment={comment}", "refused.sh")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"Slurm refused mps:\d+", done.stderr) != []
    job = job_id(done)
    assert "mps" not in str(alice.shown(job))
    assert waiting(alice, "refused.sh") == [job]


@pytest.mark.parametrize("size", ["cpus-per-gpu=2", "mem-per-gpu=300"])
@pytest.mark.parametrize("place", ["script", "variable", "both"])
def test_sizes_per_gpu_in_several_places(alice: User, size: str, place: str) -> None:
    name, _, value = size.partition("=")
    line = "" if place == "variable" else f"#SBATCH --{size}\n"
    environ = {} if place == "script" else {f"SBATCH_{name.replace('-', '_').upper()}": value}
    alice.script(f"#!/bin/sh\n#SBATCH --gres=gpu:1 -t 3\n{line}true\n", "sized.sh")
    done = alice.run("csub", HINT, "-H", f"--{name}={int(value) * 2}", "sized.sh", **environ)
    assert done.returncode == 0, done.stderr
    assert "refused" not in done.stderr
    shown = alice.shown(job_id(done))
    assert ("mps" in str(shown)) is (place == "script")
    assert len(waiting(alice, "sized.sh")) == 1


def test_every_error_of_this_release_about_jobs_is_known(lab: Lab, tmp_path: Path) -> None:
    said = lab.run(["python3", "-c", STRERROR], check=True).stdout.splitlines()
    errors = {line for line in said if not line.startswith("Unknown error")}
    known = {line for line in errors if is_refusal(f"sbatch: error: Batch job submission failed: {line}")}
    assert len(errors) > 100
    assert errors - known == UNCLEAR & errors
