# SPDX-License-Identifier: Apache-2.0
"""Several GPUs of one node: `python -m tests.gpu.several FOLDER [--packages FOLDER]`; about two minutes.

Run as root on a machine with two NVIDIA GPUs or more that nobody else uses, with what tests/gpu/slurm.py needs. Prints
lines of JSON, and adds them to FOLDER/several.jsonl: what each library calls each GPU; what the agent takes for a pass
beside three processes a GPU; on which GPUs attribution sees each load, and whether memory and energy add up; what jobs
of a real Slurm with device constraints see of the GPUs, and what `colloc job` says of two of them that hold two GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.observe.journal import hours
from slurm_colloc.observe.sampler import Sampler
from tests.gpu import cost, gres_mps, slurm
from tests.gpu.loads import Job, running
from tests.gpu.proof_report import add

PROGRAMS = ("train", "half", "resident")
PERIOD_S, READINGS, WATCHED_S, HELD_S = 1.0, 12, 15.0, 25.0
_ROOT = Path("/tmp/several")
_CUDA = """import json, torch
print(json.dumps([str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]))
"""


def identities(reader: NvmlReader) -> dict[str, Any]:
    """Return what NVML, CUDA in either order, and the device files call each GPU."""

    def cuda(**own: str) -> list[str]:
        argv = [sys.executable, "-c", _CUDA]
        return list(json.loads(subprocess.run(argv, env={**os.environ, **own}, capture_output=True, check=True).stdout))

    units = reader.units()
    return {
        "nvml": [unit.uuid for unit in units],
        "nvidia_smi": slurm.ask("nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader").split("\n"),
        "cuda": cuda(),
        "cuda_by_bus": cuda(CUDA_DEVICE_ORDER="PCI_BUS_ID"),
        "cuda_one_by_uuid": [cuda(CUDA_VISIBLE_DEVICES=unit.uuid) for unit in units],
        "minors": [str(path) for path in sorted(Path("/proc/driver/nvidia/gpus").iterdir())],
    }


def attributed(rounds: Iterable[NodeSample], jobs: Iterable[str]) -> dict[str, Any]:
    """Return by job and GPU what was attributed, and how far the sums over a GPU's jobs are off the device's."""
    seen: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    off_mib, off_j = [0.0], [0.0]
    for one in rounds:
        shares = attribute_sample(one)
        for share in shares:
            seen[share.job_id, share.uuid].append((share.sm_active_pct or 0.0, share.gpu_mem_used_mib or 0.0))
        for device in one.devices:
            own = [share for share in shares if share.uuid == device.uuid]
            if device.energy_j is not None:
                off_j.append(abs(device.energy_j - sum(share.energy_j or 0.0 for share in own)))
            if device.gpu_mem_used_mib is not None:
                off_mib.append(abs(device.gpu_mem_used_mib - sum(share.gpu_mem_used_mib or 0.0 for share in own)))
    of_jobs = {
        f"{job} {uuid}": {
            "readings": len(values),
            "sm_active_pct": statistics.fmean(sm for sm, _ in values),
            "gpu_mem_mib": max(mib for _, mib in values),
        }
        for (job, uuid), values in sorted(seen.items())
        if job in {*jobs, ""}
    }
    return {"jobs": of_jobs, "most_off_mib": max(off_mib), "most_off_j": max(off_j)}


def side_by_side(reader: NvmlReader, gpus: int) -> Iterable[dict[str, Any]]:
    """Yield what the agent takes, and what attribution says, of three loads on each GPU."""
    jobs = [Job(f"{gpu}{n}", name, 0, gpu) for gpu in range(gpus) for n, name in enumerate(PROGRAMS)]
    with running(jobs, os.environ) as started:
        cost.wait_for(started)
        cost.cost(PERIOD_S, WATCHED_S)
        sampler = Sampler(reader, "", PERIOD_S)
        sampler.sample(time.time(), time.monotonic())
        took, rounds = [], []
        for _ in range(READINGS):
            time.sleep(PERIOD_S)
            began_s = time.thread_time()
            rounds.append(sampler.sample(time.time(), time.monotonic()))
            took.append(1000 * (time.thread_time() - began_s))
        yield {"part": "cost", "gpus": gpus, "processes": len(jobs), "cpu_ms_a_pass": statistics.fmean(took)}
        yield {"part": "attribution", **attributed(rounds, [job.job_id for job in jobs])}


def under_slurm(gpus: int, packages: Path) -> Iterable[dict[str, Any]]:
    """Yield what jobs of one and of two GPUs see, and what is said of them."""
    for folder in (_ROOT, _ROOT / "store"):
        folder.mkdir(mode=0o700)
    slurm.unpack(packages)
    slurm.CONF = slurm.CONF.replace("proctrack/linuxproc", "proctrack/cgroup").replace("task/none", "task/cgroup")
    slurm.CGROUP_CONF = gres_mps.CGROUPS
    gres_mps.make_cgroups()
    slurm.start(_ROOT, devices=[f"/dev/nvidia{number}" for number in range(gpus)])
    (_ROOT / "site.toml").write_text(cost.SITE.format(folder=_ROOT).replace("test", "gpulab"))
    own = {**os.environ, **cost.SOURCE, "COLLOC_CONF": str(_ROOT / "site.toml")}
    colloc = [sys.executable, "-m", "slurm_colloc.cli.colloc"]
    agent = subprocess.Popen([*colloc, "agent", "--node", "n1", "--period", "1"], env=own)
    try:
        say = "echo $SLURM_JOB_GPUS/$CUDA_VISIBLE_DEVICES; nvidia-smi -L | wc -l; ls /dev/nvidia[0-9]*"
        for gres in ("gpu:1", f"gpu:{gpus}"):
            done = subprocess.run(
                ["srun", "-t", "1", f"--gres={gres}", "sh", "-c", say], capture_output=True, text=True
            )
            yield {"part": "a job sees", "gres": gres, "said": done.stdout.split(), "failed": done.stderr[-300:]}
        for programs, gres in ((("busy", "half"), "gpu:1"), (("busy",), "gpu:2"), (("both",), "gpu:2")):
            jobs = {slurm.submit(_ROOT, name, gres, os.environ): name for name in programs}
            while not all(slurm.done(_ROOT, job) > 5 for job in jobs):
                time.sleep(0.2)
            began_s = time.time()
            time.sleep(HELD_S)
            rounds = [seen for hour in hours(f"{_ROOT}/journal") for seen in hour if seen.at_s > began_s + 2]
            shown = [slurm.ask("scontrol", "show", "job", "-d", "-o", job).partition("IDX:")[2][:8] for job in jobs]
            yield {"part": "slurm", "gres": gres, "programs": jobs, "idx": shown, **attributed(rounds, jobs)}
            subprocess.run(["scancel", *jobs], check=True)
            while slurm.ask("squeue", "-h").strip():
                time.sleep(0.3)
            time.sleep(3)
            subprocess.run([*colloc, "ingest"], env=own, check=False)
            for job in jobs:
                done = subprocess.run([*colloc, "job", job], env=own, capture_output=True, text=True, check=False)
                yield {"part": "colloc job", "job": job, "said": done.stdout, "failed": done.stderr[-500:]}
    finally:
        agent.terminate()
        agent.wait()
        slurm.stop(_ROOT)


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", type=Path, default=Path("packages"))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    reader = NvmlReader()
    reader.read()
    gpus = len(reader.units())

    def parts() -> Iterable[dict[str, Any]]:
        yield {"part": "identity", **identities(reader)}
        yield from side_by_side(reader, gpus)
        yield from under_slurm(gpus, asked.packages)

    for row in parts():
        print(json.dumps(row), flush=True)
        add(asked.folder / "several.jsonl", [row])


if __name__ == "__main__":
    main()
