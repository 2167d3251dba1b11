# SPDX-License-Identifier: Apache-2.0
"""Programs that call sbatch themselves, unmodified, where the first sbatch on PATH is a link to csub.

Each runs twice: by way of csub and with Slurm's own sbatch alone. What it gets back must be the same, and Slurm must
know exactly the jobs that the program submitted.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.errors import LabError
from tests.cluster.fixtures import RELEASE
from tests.cluster.lab import SYSTEM_PATH, Lab
from tests.cluster.programs import programs_venv
from tests.cluster.site import write_site

pytestmark = pytest.mark.cluster

HINT = "--gpu-footprint=mem=4G,sm=12"
SLICE = "gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb=1"
SHARE = "gres/mps=12"
WHOLE = "gres/gpu:h100=1"
FRONTS = ("csub", "sbatch")


class Row(NamedTuple):
    """One job or array task as the accounting has it."""

    job: str
    name: str  # or the comment, where it has one: Snakemake gives all jobs of a run the same name
    state: str
    tres: str

    @property
    def gpu(self) -> str:
        """Return the most telling part of AllocTRES about GPUs."""
        found = [item for item in self.tres.split(",") if item.startswith("gres/")]
        return max(found, key=len, default="")


class Run(NamedTuple):
    """What a program printed as its result, and the jobs that there are since it started."""

    result: Any
    rows: list[Row]

    def given(self) -> dict[str, list[str]]:
        """Return what the jobs of each name got."""
        return {name: sorted(r.gpu for r in self.rows if r.name == name) for name in {r.name for r in self.rows}}


class Desk:
    """Alice at her desk, with the programs installed and either sbatch."""

    def __init__(self, lab: Lab, site: Path, venv: Path) -> None:
        self.lab = lab
        self.site = site
        self.venv = venv
        self.home = Path(lab.environment("alice")["HOME"])
        self.shim = lab.root / "shim"
        self.shim.mkdir()
        (self.shim / "sbatch").symlink_to(lab.bin / "csub")
        # Snakemake starts srun without SLURM_CONF, which clusters with a file in the usual place can do without.
        self.steps = lab.root / "steps"
        self.steps.mkdir()
        (self.steps / "srun").write_text(f'#!/bin/sh\nSLURM_CONF={lab.slurm_conf} exec /usr/bin/srun "$@"\n')
        (self.steps / "srun").chmod(0o755)

    def folder(self, name: str, **files: str) -> Path:
        """Make a fresh folder of hers with these files in it."""
        folder = self.home / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text)
        alice = self.lab.users["alice"]
        for path in (folder, *folder.iterdir()):
            os.chown(path, alice.uid, alice.gid)
        return folder

    def call(self, front: str, folder: Path, *argv: str) -> str:
        """Run a command in this folder, with the programs on PATH, and return what it prints."""
        first = f"{self.shim}:" if front == "csub" else ""
        environment = {
            "PATH": f"{first}{self.venv / 'bin'}:{self.lab.bin}:{self.steps}:{SYSTEM_PATH}",
            "COLLOC_CONF": str(self.site / "site.toml"),
            "PYTHONWARNINGS": "ignore",
        }
        # env looks along the PATH given to it, as a shell does.
        done = self.lab.run_as("alice", ["env", *argv], env=environment, cwd=folder, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, front: str, folder: Path, *argv: str) -> Run:
        """Run one of the programs to its end in this folder; the last line it prints is its result, as JSON."""
        before = self._ids()
        lines = self.call(front, folder, *argv).strip().splitlines()
        new = self._ids() - before
        self.lab.wait_jobs(new)
        self.lab.wait_accounted(new)
        # Asked for by user: what was refused or came twice would show as well.
        fields = ["-o", "JobIDRaw,JobID,JobName,Comment,State,AllocTRES"]
        text = self.lab.run(["sacct", "-X", "-n", "-P", "-u", "alice", "-S", "now-1hour", *fields]).stdout
        rows = [line.split("|") for line in text.splitlines()]
        found = [  # a name with a newline in it makes two lines; no program gives such
            Row(row[1], row[3] or row[2], row[4].split()[0], row[5])
            for row in rows
            if len(row) == 6 and row[0] not in before
        ]
        return Run(json.loads(lines[-1]) if lines else None, found)

    def _ids(self) -> set[str]:
        return set(self.lab.run(["squeue", "-h", "-r", "-t", "all", "-u", "alice", "-o", "%A"]).stdout.split())


@pytest.fixture(scope="module")
def desk(lab: Lab) -> Desk:
    if RELEASE == "26.05":
        pytest.skip("what Snakemake needs has no build for the Python 3.14 that comes with this release")
    try:
        venv = programs_venv(lab)
    except LabError as error:
        if os.environ.get("COLLOC_REQUIRE_CLUSTER") == "1":
            raise
        pytest.skip(f"the programs cannot be installed: {error}")
    # A daemon of Prolog's lifts the limit on threads in steps, without which a script with srun gets no share.
    return Desk(lab, write_site(lab, "programs-site", extra={"sharing.mps_daemon": '"prolog"'}), venv)


# submitit writes .submission_file_UUID.sh with all options as directives, runs `sbatch FILE` and looks for "job N" in
# its standard output; then it renames the file. `setup` lines stand between directives and first command.
SUBMITIT = f"""
import json, os, subprocess, time
import submitit

def add(a, b):
    return a + b

def share():
    return os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "none"), bool(os.environ.get("CUDA_VISIBLE_DEVICES"))

class Again(submitit.helpers.Checkpointable):
    def __call__(self):
        restarts = os.environ.get("SLURM_RESTART_COUNT")
        if restarts is None:
            open("started", "w").close()
            time.sleep(120)
        return restarts, *share()

def executor(**options):
    made = submitit.AutoExecutor(folder="logs", cluster="slurm")
    made.update_parameters(timeout_min=5, cpus_per_task=1, mem_gb=0.25, **options)
    return made

hint = ["#CSUB {HINT}"]
jobs = {{
    "slice": executor(name="slice", gpus_per_node=1, slurm_setup=hint).submit(share),
    "share": executor(
        name="share", slurm_partition="gpu", slurm_additional_parameters={{"gres": "gpu:1"}}, slurm_setup=hint
    ).submit(share),
    "unknown": executor(name="unknown", gpus_per_node=1, slurm_partition="gpu").submit(share),
    "cpu": executor(name="cpu").submit(add, 20, 22),
}}
array = executor(name="array", slurm_array_parallelism=2).map_array(add, [1, 2, 3], [10, 20, 30])
gpu = {{"slurm_partition": "gpu", "slurm_additional_parameters": {{"gres": "gpu:1"}}, "slurm_setup": hint}}
jobs["again"] = executor(name="again", **gpu).submit(Again())
while not os.path.exists("started"):
    time.sleep(0.1)
again = jobs["again"].job_id
jobs["again"]._interrupt(timeout=True)  # as Slurm does before the time is over; submitit then requeues the job
while subprocess.check_output(["squeue", "-h", "-j", again, "-o", "%t"], text=True).strip() != "PD":
    time.sleep(0.1)
time.sleep(2)  # slurmd takes nothing of a job that it has just ended; Slurm itself would wait for two minutes
subprocess.check_call(["scontrol", "update", f"JobId={{again}}", "StartTime=now"])
cancelled = executor(name="cancelled").submit(time.sleep, 300)
cancelled.cancel()
results = {{name: job.result() for name, job in jobs.items()}}
print(json.dumps(results | {{"array": [job.result() for job in array]}}))
"""


def test_submitit(desk: Desk) -> None:
    runs = {front: desk.run(front, desk.folder(front, work=SUBMITIT), "python", "work") for front in FRONTS}
    for front, run in runs.items():
        placed = front == "csub"
        assert run.given() == {
            "slice": [SLICE if placed else WHOLE],
            "share": [SHARE if placed else WHOLE],
            "unknown": [WHOLE],
            "cpu": [""],
            "array": ["", "", ""],
            "again": [SHARE if placed else WHOLE],
            "cancelled": [""],
        }
        assert {r.name for r in run.rows if r.state != "COMPLETED"} == {"cancelled"}
        assert run.result["cpu"] == 42
        assert run.result["array"] == [11, 22, 33]
        assert run.result["again"] == ["1", "12" if placed else "none", True]
        assert run.result["share"] == ["12" if placed else "none", True]


# dask-jobqueue writes a script into TMPDIR, runs `sbatch FILE` and removes it at once; the first number on standard
# output is the job. It ends its workers by scancel.
DASK = f"""
import json, os
from dask.distributed import Client
from dask_jobqueue import SLURMCluster

def where(dask_worker):
    return os.environ["SLURM_JOB_NAME"], os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "none")

def main():
    common = dict(cores=1, memory="500MB", walltime="00:05:00", log_directory="logs")
    common["scheduler_options"] = dict(host="127.0.0.1", dashboard_address=":0")
    found = {{}}
    gpu = dict(queue="gpu", job_extra_directives=["--gres=gpu:1"], job_script_prologue=["#CSUB {HINT}"])
    for name, workers, options in (("gpu", 2, gpu), ("cpu", 1, {{}})):
        with SLURMCluster(job_name=name, **common, **options) as cluster, Client(cluster) as client:
            cluster.scale(jobs=workers)
            client.wait_for_workers(workers, timeout=60)
            total = client.submit(sum, client.map(lambda x: x * x, range(10))).result(timeout=60)
            found[name] = [total, sorted(client.run(where).values())]
    print(json.dumps(found))

if __name__ == "__main__":
    main()
"""


def test_dask_jobqueue(desk: Desk) -> None:
    for front in FRONTS:
        run = desk.run(front, desk.folder(front, work=DASK), "python", "work")
        share = "100" if front == "csub" else "none"
        assert run.result == {"gpu": [285, [["gpu", share]] * 2], "cpu": [285, [["cpu", "none"]]]}
        assert run.given() == {"gpu": [SHARE if front == "csub" else WHOLE] * 2, "cpu": [""]}
        assert {row.state for row in run.rows} <= {"CANCELLED", "COMPLETED"}


# Snakemake's plugin runs `sbatch --parsable --job-name UUID --export=ALL --comment rule_NAME ... --gpus=1 --wrap="..."`
# in a shell and takes standard output for the job; "submission failed" anywhere on standard error is an error to it.
# slurm_extra is how an option of csub gets there. What runs in the job is Snakemake again, which starts
# `srun -n1 --gpus=1 ...`, here inside a slice. --wrap has no script into which the part that sets up a share could go,
# so "share" keeps its whole GPU.
SNAKEFILE = f"""
hint = "{HINT}" if config["hint"] else ""

rule all:
    input: "square.0", "square.1", "slice", "cores", "share"

rule square:
    output: "square.{{i}}"
    shell: "echo $(( ({{wildcards.i}} + 2) * ({{wildcards.i}} + 2) )) > {{output}}"

rule slice:
    output: "slice"
    resources: gpu=1, slurm_extra=hint
    shell: "test -n \\"$CUDA_VISIBLE_DEVICES\\" && echo slice > {{output}}"

rule cores:
    output: "cores"
    resources: gpu=1, cpus_per_gpu=2, slurm_extra=hint
    shell: "test -n \\"$CUDA_VISIBLE_DEVICES\\" && echo cores > {{output}}"

rule share:
    output: "share"
    resources: gres="gpu:1", slurm_partition="gpu", slurm_extra=hint
    shell: "echo ${{{{CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-none}}}} > {{output}}"
"""
# After a look that finds nothing finished the plugin waits ten seconds longer: 3 s and 13 s, however slow the machine.
SNAKEMAKE = ["snakemake", "--executor", "slurm", "--jobs", "9", "--slurm-array-jobs", "square", "--latency-wait", "5"]
SNAKEMAKE += ["--slurm-init-seconds-before-status-checks", "3", "--default-resources", "mem_mb=300", "runtime=5"]


def test_snakemake(desk: Desk) -> None:
    for front in FRONTS:
        folder = desk.folder(front, Snakefile=SNAKEFILE)
        piece = SLICE if front == "csub" else WHOLE
        run = desk.run(front, folder, *SNAKEMAKE, "--config", f"hint={int(front == 'csub')}")
        made = {
            name: (folder / name).read_text().strip() for name in ("square.0", "square.1", "slice", "cores", "share")
        }
        assert made == {"square.0": "4", "square.1": "9", "slice": "slice", "cores": "cores", "share": "none"}
        squares = next(name for name in run.given() if name.startswith("rule_square_wildcards_"))
        assert run.given() == {
            "rule_slice": [piece],
            "rule_cores": [piece],
            "rule_share": [WHOLE],
            squares: ["", ""],
        }
        assert {row.state for row in run.rows} == {"COMPLETED"}


def test_a_script_from_dev_stdin(desk: Desk) -> None:
    """So Snakemake submits with --slurm-pass-command-as-script; csub leaves it alone."""
    for front, hint in (("csub", HINT), ("sbatch", "")):
        folder = desk.folder(front, script="#!/bin/sh\necho $((6 * 7)) > answer\n")
        command = f"cat script | sbatch --parsable --export=ALL -p gpu --gpus=1 {hint} /dev/stdin"
        run = desk.run(front, folder, "sh", "-c", command)
        assert run.rows == [run.rows[0]._replace(job=str(run.result), name="stdin", state="COMPLETED")]
        assert run.given() == {"stdin": [WHOLE]}
        assert (folder / "answer").read_text() == "42\n"
