# SPDX-License-Identifier: Apache-2.0
"""Read known loads of a real GPU through the project's own NVML reader: `python -m tests.gpu.read_loads`.

Needs an NVIDIA GPU nobody else uses, and PyTorch in the same Python. Starts an MPS daemon of its own in a private
folder for the last loads and stops it; changes no setting of the card. Prints one line of JSON for each load: medians
over the readings, the cost of a reading, and the share each process would be given.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_colloc.core.usage_model import DeviceSample, ProcessSample
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.observe.attribute import attribute_device

READINGS, PERIOD_S, SETTLE_S = 8, 0.5, 12.0

LOADS = {
    "matmul": "x = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)\nwhile True: x @ x",
    "half": "import time\nx = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)\n"
    "while True: x @ x; torch.cuda.synchronize(); time.sleep(0.002)",
    "tiny": "x = torch.randn(64, 64, device='cuda')\nwhile True: x = x * 1.0001",
    "resident": "import time\nx = torch.zeros(2**29, dtype=torch.uint8, device='cuda')\nwhile True: time.sleep(1)",
}


@contextlib.contextmanager
def running(names: list[str], environment: dict[str, str]) -> Iterator[list[int]]:
    """Run the named loads side by side, settled; yield their pids."""
    started = [
        subprocess.Popen([sys.executable, "-c", "import torch\n" + LOADS[name]], env=environment) for name in names
    ]
    try:
        time.sleep(SETTLE_S if started else 1.0)
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
        time.sleep(2.0)


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Run a private MPS daemon; yield the environment of its clients."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        pipes, logs = Path(folder) / "pipe", Path(folder) / "log"
        pipes.mkdir()
        logs.mkdir()
        own = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=own, check=True)
        try:
            yield own
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=own, check=True)


def read(reader: NvmlReader, label: str, names: list[str], pids: list[int]) -> None:
    """Read one load and print what was seen."""
    reader.read()
    seen, costs_ms = [], []
    for _ in range(READINGS):
        time.sleep(PERIOD_S)
        began = time.perf_counter()
        seen.append(reader.read())
        costs_ms.append((time.perf_counter() - began) * 1000)
    unit = reader.units()[0]
    columns = {
        field: [getattr(readings[0], field) for readings, _ in seen]
        for field in seen[0][0][0]._fields
        if field != "uuid"
    }
    name_of = dict(zip(pids, names, strict=True))
    readings, processes = seen[-1]
    device = DeviceSample._make((*unit[:7], *readings[0][1:]))
    own = [
        ProcessSample(unit.uuid, p.pid, None, p.kind, name_of.get(p.pid, "other"), p.gpu_mem_used_mib, p.sm_util_pct)
        for p in processes
    ]
    shares = attribute_device(device, own, [])
    print(
        json.dumps(
            {
                "load": label,
                "medians": {k: None if None in v else round(statistics.median(v), 2) for k, v in columns.items()},
                "processes": [(p.job_id, p.gpu_mem_used_mib, p.sm_util_pct) for p in own],
                "shares": [(s.job_id, s.sm_active_pct, s.gpu_mem_used_mib, s.method) for s in shares],
                "read_ms": round(statistics.median(costs_ms), 3),
            }
        ),
        flush=True,
    )


def main() -> None:
    """Read every load."""
    reader = NvmlReader()
    print(json.dumps({"units": reader.units()}))
    alone: list[list[str]] = [
        [],
        ["resident"],
        ["tiny"],
        ["half"],
        ["matmul"],
        ["half", "tiny"],
        ["matmul", "resident"],
    ]
    for names in alone:
        with running(names, dict(os.environ)) as pids:
            read(reader, "+".join(names) or "idle", names, pids)
    with mps() as environment:
        for names in (["half"], ["half", "tiny"]):
            with running(names, environment) as pids:
                read(reader, "mps " + "+".join(names), names, pids)
    reader.close()


if __name__ == "__main__":
    main()
