# SPDX-License-Identifier: Apache-2.0
"""What stays as it was when csub changes a request: cores, memory, the script's world, and every way to submit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.core.model import because
from slurm_colloc.core.wording import words
from tests.cluster.fixtures import RELEASE
from tests.cluster.lab import Lab
from tests.cluster.nodes import PARTITIONS
from tests.cluster.site import write_site
from tests.cluster.user import SLICE, SMALL, User, job_id, tres
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

ONE = tres(f"gpu:{SLICE}_1g.10gb:1")


def moves_to_mig(text: str, partition: str) -> str:
    """Return a site file whose jobs of a partition may be moved to a slice in the partition "mig"."""
    changed, count = re.subn(rf'(\[\[partition\]\]\nname = "{partition}".*\n)', r'\1pieces_in = ["mig"]\n', text)
    assert count == 1
    return changed


@pytest.fixture(scope="module")
def site(lab: Lab) -> Path:
    defaults = "JobDefaults=DefCpuPerGPU=3,DefMemPerGPU=1500"
    nodes = PARTITIONS["gpu"]
    lab.run(
        ["scontrol", "create", "PartitionName=giving", f"Nodes={nodes}", defaults, "DefaultTime=10", "State=UP"],
        check=True,
    )
    folder = write_site(lab, "kept-site")
    text = (folder / "site.toml").read_text()
    # Jobs of "gpu" may be moved to a slice in "mig"; where both fit, shares come first in this site.
    text = moves_to_mig(text, "gpu")
    (folder / "site.toml").write_text(text)
    return folder


@pytest.fixture
def alice(lab: Lab, site: Path) -> Iterator[User]:
    user = User(lab, "alice", site)
    yield user
    lab.run(["scancel", "-u", "alice"])


def only(lab: Lab, name: str, order: str, extra: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a site that uses these sharing modes alone."""
    folder = write_site(lab, name, extra={"sharing.order": order, **(extra or {})})
    return {"COLLOC_CONF": str(folder / "site.toml")}


# --- cores and memory ---

SIZES = [
    "--gres=gpu:1",
    "--gpus=1",
    "--gpus-per-node=1",
    "-n1 --gpus-per-task=1",
    "--gres=gpu:1 -c 2",
    "--gres=gpu:1 -n1",
    "--gres=gpu:1 -N1 -n3",
    "--gres=gpu:1 -N1 -n4",
    "--gres=gpu:1 -N1 -n2 -c2",
    "--gres=gpu:1 --ntasks-per-node=1",
    # From 24.11 on Slurm itself never starts a job that asks for more than it has per GPU in this way.
    *(["--gres=gpu:1 --mincpus=5"] if RELEASE == "22.05" else []),
    "--gres=gpu:1 --mem=500",
    "--gres=gpu:1 --mem-per-cpu=300",
    "--gres=gpu:1 --cpus-per-gpu=2",
    "--gres=gpu:1 --mem-per-gpu=700",
    "--gres=gpu:1 --mem-per-gpu 1G --cpus-per-gpu 2",
]


def same_or_part_of_cores(size: str, had: str, given: str) -> bool:
    """Return whether a job has the cores that it asked for, or a part of those that come with a GPU."""
    return given == had or (not re.search("-c ?2|cpu", size) and 1 <= int(given) < int(had))


def in_lines(size: str) -> str:
    """Return each option as a directive of its own."""
    words = size.replace(" 1G", "=1G").replace("gpu 2", "gpu=2").replace("-c 2", "-c2").split()
    return "".join(f"#SBATCH {word}\n" for word in words)


@pytest.mark.parametrize("where", ["argument", "directive"])
def test_a_share_keeps_the_cores_that_are_asked_for_and_the_memory(lab: Lab, alice: User, where: str) -> None:
    environment = only(lab, "shares", '["mps"]')
    pairs = []
    for size in SIZES:
        directives, arguments = (in_lines(size), []) if where == "directive" else ("", size.split())
        script = alice.script(f"#!/bin/sh\n{directives}true\n")
        by_sbatch = job_id(alice.run("sbatch", "-p", "giving", *arguments, script))
        by_csub = alice.submit("-p", "giving", SMALL, *arguments, script, **environment)
        pairs.append((size, by_sbatch, by_csub))
    for size, by_sbatch, by_csub in pairs:
        asked, given = alice.allocated(by_sbatch), alice.allocated(by_csub)
        assert (asked["gres/gpu"], given["gres/mps"]) == ("1", "12"), size
        assert "gres/gpu" not in given, size
        assert (asked["mem"], asked["node"]) == (given["mem"], given["node"]), size
        assert same_or_part_of_cores(size, asked["cpu"], given["cpu"]), size
        keys = ("NumTasks", "Partition")
        one, other = alice.shown(by_sbatch), alice.shown(by_csub)
        assert {key: one[key] for key in keys} == {key: other[key] for key in keys}, size


# --- the script's world ---

WORLD = """\
#!/bin/bash
#SBATCH --gres=gpu:1 -p gpu -o world.%j -e world.%j
printf '<%s>\\n' "$@"
pwd; cat; umask; ulimit -n; echo "$SHELL $- $BASH_VERSION"; trap -p; jobs; set -o | grep on$
env -0 | sort -z | tr '\\0\\n' '\\n?' | grep -avE '^(SLURM_|SBATCH_|CUDA_|GPU_|ROCR_|ZE_|TMPDIR|_=|HOSTNAME)'
trap 'echo got it; exit 7' USR1
sleep 30 & wait
"""


def test_the_script_sees_what_it_would_have_seen(lab: Lab, alice: User) -> None:
    script = alice.script(WORLD)
    arguments = ["a b", "", "--gres=gpu:3", "*", "$HOME", "ü"]
    odd = {"BASH_FUNC_module%%": "() { echo 'mine'\n}", "ODD": "a\nb", "with.dot": "1"}
    environment = only(lab, "shares", '["mps"]')
    jobs = [
        job_id(alice.run("sbatch", script, *arguments, **odd, **environment)),
        alice.submit(SMALL, script, *arguments, **odd, **environment),
    ]
    said = [alice.home / f"world.{job}" for job in jobs]
    wait_for(lambda: all(one.exists() and "COLLOC_CONF" in one.read_text() for one in said), "the scripts do not run")
    # A signal as --signal=B:USR1 sends it.
    lab.run(["scancel", "--batch", "--signal=USR1", *jobs], check=True)
    lab.wait_jobs(jobs)
    plain, changed = (one.read_text() for one in said)
    added = [line for line in changed.splitlines() if line not in plain.splitlines()]
    marked, *others = added
    assert marked.startswith(f"COLLOC_SET={jobs[1]} ")
    assert others == ["TF_FORCE_GPU_ALLOW_GROWTH=true", "XLA_PYTHON_CLIENT_PREALLOCATE=false"]
    assert [line for line in changed.splitlines() if line not in added] == plain.splitlines()
    assert "got it" in plain
    assert [alice.shown(job)["ExitCode"] for job in jobs] == ["7:0", "7:0"]
    assert "gres/mps" in alice.allocated(jobs[1])


def test_an_inner_step_with_its_own_gpu_runs_on_a_slice(lab: Lab, alice: User) -> None:
    steps = "srun --gres=gpu:1 -n1 true && srun --gpus=1 -n1 true && srun --gpus-per-task=1 -n1 true && srun -n1 true\n"
    job = alice.submit(SMALL, alice.script(f"#!/bin/sh\n#SBATCH --gres=gpu:1 -o steps.%j\n{steps}"))
    assert alice.allocated(job)["gres/gpu"] == "1"
    assert alice.shown(job)["TresPerNode"] == ONE
    assert alice.shown(job)["ExitCode"] == "0:0", (alice.home / f"steps.{job}").read_text()


# --- ways to submit ---


def test_arrays_keep_ids_and_patterns(lab: Lab, alice: User) -> None:
    text = '#!/bin/sh\n#SBATCH --gres=gpu:1 -p gpu -o "arr_%A_%a.%x"\n'
    text += 'echo "$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT"\n'
    environment = only(lab, "shares", '["mps"]')
    job = alice.submit("--array=2-6:2%2", "-J", "sweep", SMALL, alice.script(text), **environment)
    lab.wait_jobs([job])
    outputs = {path.name: path.read_text() for path in alice.home.glob("arr_*")}
    assert outputs == {f"arr_{job}_{task}.sweep": f"{task} of 3\n" for task in (2, 4, 6)}


@pytest.mark.parametrize("how", ["script", "arguments"])
def test_a_heterogeneous_job_is_submitted_as_asked(lab: Lab, alice: User, how: str) -> None:
    parts = ["--gres=gpu:1 -J lead -p mig", "-c2 -p cpu"]
    script, arguments = "#!/bin/sh\ntrue\n", " : ".join(parts).split()
    if how == "script":
        script, arguments = f"#!/bin/sh\n#SBATCH {parts[0]}\n#SBATCH hetjob\n#SBATCH {parts[1]}\ntrue\n", []
    done = alice.run("csub", SMALL, *arguments, alice.script(script))
    lead = int(job_id(done))
    lab.wait_jobs([lead, lead + 1])
    components = [alice.shown(str(lead + offset)) for offset in range(2)]
    assert [shown.get("TresPerNode") for shown in components] == [tres("gpu:1"), None], done.stderr
    assert [shown["JobState"] for shown in components] == ["COMPLETED"] * 2
    assert "heterogeneous" in done.stderr


def test_waiting_holding_testing_and_dependencies(lab: Lab, alice: User) -> None:
    script = alice.script("#!/bin/sh\n#SBATCH --gres=gpu:1\nexit 3\n")
    waited = alice.run("csub", "--wait", SMALL, script)
    assert (waited.returncode, waited.stdout.startswith("Submitted batch job ")) == (3, True)
    held = alice.run("csub", "--parsable", "-H", SMALL, script)
    first = held.stdout.strip()
    assert first.isdigit()
    assert alice.shown(first)["JobState"] == "PENDING"
    second = alice.submit(SMALL, f"--dependency=afterok:{first}", script)
    assert alice.shown(second)["Dependency"].startswith(f"afterok:{first}")
    before = alice.jobs()
    tested = alice.run("csub", "--test-only", SMALL, script)
    plain = alice.run("sbatch", "--test-only", script)
    assert (tested.returncode, tested.stdout) == (plain.returncode, plain.stdout)
    assert " to start at " in tested.stderr
    assert sorted(alice.jobs()) == sorted(before), "a test submits nothing"


def test_a_here_document_and_requeue_and_comment(lab: Lab, alice: User) -> None:
    text = "#!/bin/sh\n#SBATCH --gres=gpu:1 --requeue\n#SBATCH --comment='mine alone'\ntrue\n"
    here = f"csub -H {SMALL} <<'EOF'\n{text}EOF\n"
    job = job_id(alice.run("bash", "-c", here))
    shown = alice.lab.run(["scontrol", "show", "job", "-o", job]).stdout
    assert "Comment=mine alone" in shown
    assert "Requeue=1" in shown
    assert ONE in shown
    assert alice.shown(job)["JobName"] == alice.shown(job_id(alice.run("sbatch", "-H", input=text)))["JobName"]


# --- where it may go ---


def test_a_job_moves_to_the_partition_that_the_site_maps(lab: Lab, alice: User, site: Path) -> None:
    alice.environment["COLLOC_CONF"] = str(site / "moving.toml")
    text = (site / "site.toml").read_text()
    (site / "moving.toml").write_text(text.replace('order = ["mig", "mps", "shard"]', 'order = ["mig"]'))
    (site / "moving.toml").chmod(0o644)
    done = alice.run("csub", "-H", "-p", "gpu", SMALL, alice.script("#!/bin/sh\n#SBATCH --gres=gpu:1\ntrue\n"))
    shown = alice.shown(job_id(done))
    assert (shown["Partition"], shown["TresPerNode"]) == ("mig", ONE)
    assert words(because("moved", partition="mig")) in done.stderr
    assert shown["TimeLimit"] == "00:19:00", "by the default of the partition that was asked for"


def test_a_moved_job_keeps_the_cores_that_it_asked_for_and_its_memory(lab: Lab, alice: User, site: Path) -> None:
    text = moves_to_mig((site / "site.toml").read_text(), "giving")
    (site / "giving.toml").write_text(text.replace('order = ["mig", "mps", "shard"]', 'order = ["mig"]'))
    (site / "giving.toml").chmod(0o644)
    for size in ("--gres=gpu:1", "--gpus=1 -n1", "--gres=gpu:1 -c 2", "--gres=gpu:1 --mem=300", "--gres=gpu:1 -N1 -n3"):
        arguments = ["-p", "giving", *size.split()]
        script = alice.script("#!/bin/sh\ntrue\n")
        by_sbatch = job_id(alice.run("sbatch", *arguments, script))
        by_csub = alice.submit(SMALL, *arguments, script, COLLOC_CONF=str(site / "giving.toml"))
        asked, given = alice.allocated(by_sbatch), alice.allocated(by_csub)
        assert alice.shown(by_csub)["Partition"] == "mig", size
        assert asked["mem"] == given["mem"], size
        assert same_or_part_of_cores(size, asked["cpu"], given["cpu"]), size


def test_a_slower_slice_gets_the_time_it_needs_and_no_more_than_allowed(lab: Lab, alice: User) -> None:
    script = alice.script("#!/bin/sh\n#SBATCH --gres=gpu:1 -t 60\ntrue\n")
    busy = "--gpu-footprint=mem=4G,sm=4.2"  # 4.2 % of 132 SMs on 16: slowed 1.245x at most; on 26, 1.137x
    stretched = alice.shown(alice.submit("-H", busy, script))
    assert (stretched["TresPerNode"], stretched["TimeLimit"]) == (ONE, "01:15:00")
    strict = only(lab, "strict", '["mig"]', {"sharing.max_slowdown": "1.2"})
    larger = alice.shown(alice.submit("-H", busy, script, **strict))
    assert (larger["TresPerNode"], larger["TimeLimit"]) != (ONE, "01:15:00")
    assert "gpu:" in larger["TresPerNode"]
