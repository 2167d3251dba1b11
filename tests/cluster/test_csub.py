# SPDX-License-Identifier: Apache-2.0
"""csub against real sbatch: what is placed, what is left alone, and that nothing is lost or doubled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import SLICE, SMALL, User, job_id, tres

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def site(lab: Lab) -> Path:
    return write_site(lab, "csub-site")


@pytest.fixture
def alice(lab: Lab, site: Path) -> Iterator[User]:
    user = User(lab, "alice", site)
    yield user
    lab.run(["scancel", "-u", "alice"])


GPU_JOB = "#!/bin/bash\n#SBATCH --gres=gpu:1 -t 5\nsleep 1\n"


@pytest.mark.parametrize(
    ("request_line", "footprint", "given"),
    [
        ("--gres=gpu:1", "mem=4G,sm=12", tres(f"gpu:{SLICE}_1g.10gb:1")),
        ("--gres=gpu:h100:1", "mem=18G,sm=28", tres(f"gpu:{SLICE}_2g.20gb:1")),
        ("--gpus=1", "mem=30G,sm=20", tres(f"gpu:{SLICE}_3g.40gb:1")),
        ("--gpus-per-node=h100:1", "mem=4G,sm=12", tres(f"gpu:{SLICE}_1g.10gb:1")),
        ("--gres=gpu:1 -p gpu", "mem=6G,sm=25", tres("mps:24")),
        ("--gpus=1 -p gpu", "mem=6G,sm=25", tres("mps:24")),
        # Zero GPUs beside the share is how --gpus-per-node of a directive is cleared; AllocTRES has gres/mps alone.
        ("--gpus-per-node=1 -p gpu", "mem=6G,sm=25", tres("gpu:0", "mps:24")),
        ("-n1 --gpus-per-task=1 -p gpu", "mem=6G,sm=25", tres("mps:24")),
        ("--gres=gpu:1", "mem=70G,sm=90", tres("gpu:1")),
    ],
)
def test_a_job_gets_the_piece_that_fits(alice: User, request_line: str, footprint: str, given: str) -> None:
    script = alice.script(f"#!/bin/bash\n#SBATCH {request_line} -H\n#CSUB --gpu-footprint={footprint}\nsleep 1\n")
    job = alice.shown(alice.submit(script))
    assert given in (job.get("TresPerNode"), job.get("TresPerJob"))
    assert job["JobName"] == "train.sh"


def test_output_and_exit_code_are_those_of_sbatch(alice: User) -> None:
    script = alice.script(GPU_JOB)
    done = alice.run("csub", "--parsable", SMALL, script)
    assert (done.returncode, done.stdout.strip().isdigit()) == (0, True)
    refused = alice.run("csub", "-p", "nowhere", SMALL, script)
    by_sbatch = alice.run("sbatch", "-p", "nowhere", script)
    assert (refused.returncode, refused.stdout, refused.stderr) == (
        by_sbatch.returncode,
        by_sbatch.stdout,
        by_sbatch.stderr,
    )
    assert alice.run("csub", "--quiet", SMALL, script).stderr == ""


@pytest.mark.parametrize("line", ["--wrap=true", "--gres=gpu:1 -J moved"], ids=["as asked", "changed"])
def test_the_accounting_shows_the_line_as_sbatch_would_have_it(lab: Lab, alice: User, line: str) -> None:
    """SubmitLine, which people and tools read; not the path at which csub found sbatch."""
    words = [*line.split(), *([] if "--wrap" in line else [SMALL, alice.script(GPU_JOB)])]
    plain = job_id(alice.run("sbatch", *(word for word in words if word != SMALL)))
    jobs = [plain, alice.submit(*words)]
    lab.wait_jobs(jobs)
    lab.wait_accounted(jobs)
    argv = ["sacct", "-X", "-n", "-P", "-j", ",".join(jobs), "-o", "SubmitLine"]
    by_sbatch, by_csub = lab.run(argv, check=True).stdout.splitlines()
    assert by_sbatch.startswith("sbatch ")
    assert by_csub.startswith("sbatch "), by_csub
    assert line.startswith("--gres") or by_csub == by_sbatch


def _id(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.split()[-1]


def test_a_refused_placement_is_submitted_once_as_asked(lab: Lab, alice: User) -> None:
    site = write_site(lab, "wrong-site")
    text = (site / "site.toml").read_text().replace(f"{SLICE}_1g.10gb", f"{SLICE}_9g.99gb")
    (site / "site.toml").write_text(text)
    before = set(alice.jobs())
    done = alice.run("csub", SMALL, alice.script(GPU_JOB), COLLOC_CONF=str(site / "site.toml"))
    assert done.returncode == 0, done.stderr
    # slurmctld keeps the record of what it refused, as FAILED without ever a node; only one job can run.
    new = {job: alice.shown(job) for job in set(alice.jobs()) - before}
    assert [job for job, shown in new.items() if shown["JobState"] != "FAILED"] == [_id(done)]
    assert all(shown["NodeList"] in ("", "(null)") for shown in new.values() if shown["JobState"] == "FAILED")
    assert new[_id(done)]["TresPerNode"] == tres("gpu:1")
    assert "Slurm refused " in done.stderr


NARROWED = ["-C ib", "-x c1", "--gres-flags=enforce-binding", "--gres-flags=disable-binding"]


@pytest.mark.parametrize("partition", ["mig", "gpu"])
def test_what_excludes_no_piece_stays_in_force_and_the_job_runs(lab: Lab, partition: str) -> None:
    nodes = "g1" if partition == "gpu" else "m1"
    lab.run(["scontrol", "update", f"nodename={nodes}", "AvailableFeatures=ib", "ActiveFeatures=ib"], check=True)
    site = write_site(lab, "narrowed-site", agent=True)
    user = User(lab, "bob", site)
    for option in [*NARROWED, "-x m1"]:
        script = user.script("#!/bin/bash\ntrue\n")
        done = user.run("csub", SMALL, *option.split(), "-p", partition, "--gres=gpu:1", "--wait", "-t1", script)
        if option == "-x m1" and partition == "mig":
            assert done.returncode == 1  # as sbatch: there is no other node
            continue
        assert done.returncode == 0, done.stderr
        given = user.allocated(_id(done))
        assert ("gres/mps" in given) is (partition == "gpu"), (option, given)
        assert (f"gres/gpu:{SLICE}_1g.10gb" in given) is (partition == "mig"), (option, given)


REFUSED = [
    "",
    "sleep 1\n",
    "#!/bin/bash\r\nsleep 1\r\n",
    "#!/bin/bash\n#SBATCH --no-such\nsleep 1\n",
    "#!/bin/sh\n\0\n",
]


@pytest.mark.parametrize("text", REFUSED)
def test_scripts_that_sbatch_refuses_are_refused_by_sbatch(alice: User, text: str) -> None:
    script = alice.script(text)
    before = alice.jobs()
    by_csub, by_sbatch = alice.run("csub", SMALL, script), alice.run("sbatch", script)
    assert by_csub.returncode == by_sbatch.returncode != 0
    assert by_csub.stderr.endswith(by_sbatch.stderr)
    assert set(alice.jobs()) <= set(before)


def test_no_controller(alice: User) -> None:
    dead_conf = ["ClusterName=lab", "SlurmctldHost=localhost(127.0.0.1)", "SlurmctldPort=9", "AuthType=auth/none"]
    dead_conf += ["CredType=cred/none", "MessageTimeout=1", "SlurmctldTimeout=1"]
    (alice.home / "slurm.conf").write_text("\n".join(dead_conf) + "\n")
    dead = {"SLURM_CONF": str(alice.home / "slurm.conf")}
    down = alice.lab.run_as(
        "alice", ["timeout", "20", "csub", SMALL, "train.sh"], env={**alice.environment, **dead}, timeout=30
    )
    assert down.returncode != 0
    assert "Submitted" not in down.stdout
