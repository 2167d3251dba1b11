# SPDX-License-Identifier: Apache-2.0
"""On a cluster that enforces limits csub proposes only what Slurm lets this user run."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from slurm_colloc.core.model import because
from slurm_colloc.core.wording import words
from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.test_recovery import FOOTPRINT, HEAD, ONCE, Trainer
from tests.cluster.user import SLICE, SMALL, User, job_id, tres

pytestmark = pytest.mark.cluster


# A site's rules of its own: jobs of this name may not share, and what of users' jobs nobody but root changes.
LUA = """\
function slurm_job_submit(job, partitions, uid)
    if job.name == "no-shares" and string.find(job.tres_per_node or "", "mps") then
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
    if uid ~= 0 and record.name == "as-it-is" then
        slurm.log_user("jobs stay as they are")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    conf = "AccountingStorageEnforce=associations,limits,qos\nJobSubmitPlugins=lua"
    with running(new_lab(conf, {"job_submit.lua": LUA})) as lab:
        change = ["sacctmgr", "-i"]
        for argv in (
            ["add", "qos", "narrow", "set", "MaxTRESPerJob=gres/mps=10"],
            ["add", "qos", "whole", "set", "MinTRESPerJob=gres/gpu=1"],
            ["add", "qos", "hasty", "set", "MaxWall=00:20:00"],
            ["add", "qos", "sliceless", "set", f"GrpTRES=gres/gpu:{SLICE}_1g.10gb=0"],
            ["add", "qos", "counted", "set", "MaxTRESPerUser=gres/gpu=4,gres/shard=8"],
            ["add", "qos", "minutes", "set", "MaxTRESMinsPerJob=cpu=22"],
            [
                "modify",
                "user",
                "alice",
                "set",
                "qos+=narrow,whole,hasty,sliceless,minutes,counted",
                "defaultqos=normal",
            ],
            # No default: which of the two Slurm takes is not said.
            ["modify", "user", "bob", "set", "qos=normal,whole"],
            ["modify", "account", "phys", "set", "MaxTRESPerJob=gres/mps=11"],
        ):
            lab.run([*change, *argv], check=True)
        yield lab


@pytest.fixture
def alice(lab: Lab) -> User:
    return User(lab, "alice", write_site(lab, "limits-site"))


GPU_JOB = "#!/bin/sh\n#SBATCH --gres=gpu:1 -t 20\ntrue\n"


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (["-p", "gpu"], "mps:12", ""),
        (["-p", "gpu", "-q", "narrow"], "shard:1", "MaxTRES of QOS 'narrow' allows 10 of gres/mps"),
        (["-p", "gpu", "-q", "whole"], "gpu:1", "MinTRES of QOS 'whole' asks for at least 1 of gres/gpu"),
        (["-q", "whole"], f"gpu:{SLICE}_1g.10gb:1", ""),
        (["-p", "gpu", "-q", "WHOLE"], "gpu:1", "MinTRES of QOS 'whole' asks for at least 1 of gres/gpu"),
        (["-q", "minutes", "--gpu-footprint=mem=4G,sm=15"], "gpu:1", "MaxTRESMins of QOS 'minutes'"),
        (["-q", "sliceless"], f"gpu:{SLICE}_2g.20gb:1", f"GrpTRES of QOS 'sliceless' allows 0 of gres/gpu:{SLICE}"),
        (
            ["-p", "gpu", "-q", "counted"],
            "shard:1",
            "QOS 'counted' limits GPUs but not gres/mps",
        ),
        (["-q", "hasty", "--gpu-footprint=mem=4G,sm=15"], "gpu:1", "MaxWall of QOS 'hasty'"),
    ],
)
def test_what_breaks_a_limit_is_not_proposed(
    lab: Lab, alice: User, arguments: list[str], given: str, said: str
) -> None:
    done = alice.run("csub", "--explain", SMALL, *arguments, alice.script(GPU_JOB))
    job = job_id(done)
    assert alice.shown(job)["TresPerNode"] == tres(given), done.stderr
    assert said in done.stderr
    assert set(lab.wait_jobs([job]).values()) == {"COMPLETED"}, "and Slurm lets it run"


def test_slurm_would_have_held_what_csub_did_not_propose(lab: Lab, alice: User) -> None:
    for qos, gres in (("narrow", "mps:12"), ("whole", "mps:12"), ("sliceless", f"gpu:{SLICE}_1g.10gb:1")):
        done = alice.run("sbatch", "-p", "all", "-q", qos, f"--gres={gres}", "-J", "held", "--wrap=true")
        for _ in range(40):
            reason = lab.run(["squeue", "-h", "-n", "held", "-o", "%r"]).stdout.strip()
            if "QOS" in done.stderr or reason.startswith("QOS"):
                break
            time.sleep(0.2)
        assert "QOS" in done.stderr or reason.startswith("QOS"), (qos, reason, done.stderr)
        lab.run(["scancel", "-u", "alice"])


def test_without_a_default_qos_the_job_must_fit_all_that_the_user_may_use(lab: Lab) -> None:
    bob = User(lab, "bob", write_site(lab, "limits-site"))
    done = bob.run("csub", "--explain", "-p", "gpu", SMALL, bob.script(GPU_JOB))
    assert bob.shown(job_id(done))["TresPerNode"] == tres("gpu:1")
    assert "MinTRES of QOS 'whole'" in done.stderr


def test_a_refusal_of_the_sites_own_lua_is_followed_by_the_original(lab: Lab, alice: User) -> None:
    done = alice.run("csub", "-p", "gpu", "-J", "no-shares", SMALL, alice.script(GPU_JOB))
    assert alice.shown(job_id(done))["TresPerNode"] == tres("gpu:1"), done.stderr
    assert re.search(r"mps:12 \(", done.stderr)
    assert len(alice.known("no-shares")) == 1


def test_an_accounts_limit_holds_for_its_users(lab: Lab) -> None:
    carol = User(lab, "carol", write_site(lab, "limits-site"))
    done = carol.run("csub", "--explain", "-p", "gpu", SMALL, carol.script(GPU_JOB))
    assert carol.shown(job_id(done))["TresPerNode"] == tres("shard:1")
    limit = because("limit-most", limit="MaxTRES", what="account", name="phys", most=11, tres="gres/mps")
    assert words(limit) in done.stderr


def test_where_no_user_changes_jobs_one_that_ran_out_begins_again_on_its_piece(lab: Lab) -> None:
    """One job, on the piece that it had; what its user asked for is refused, and not asked for a second time."""
    extra = {"sharing.order": '["mps"]', "sharing.mps_daemon": '"prolog"'}
    alice = Trainer(lab, "alice", write_site(lab, "limits-again", agent=False, extra=extra))
    job = alice.submitted(FOOTPRINT, "-J", "as-it-is", "--gres=gpu:h100:1", alice.script(HEAD + ONCE))
    alice.requeued(job)
    assert lab.wait_jobs([job]) == {int(job): "COMPLETED"}
    assert alice.rows(job) == ["REQUEUED gres/mps=6", "COMPLETED gres/mps=6"]
    assert "Slurm refuses to give it" in alice.output(job, ".run1")
    assert alice.shown(job)["Restarts"] == "1"
    assert alice.jobs().count(job) == 1
