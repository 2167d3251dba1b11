# SPDX-License-Identifier: Apache-2.0
"""Jobs that need more memory than their share, beside innocent ones: `python -m tests.gpu.overflows FOLDER`.

One NVIDIA GPU that nobody else uses, MPS, PyTorch, root; about a minute a mode. A training of the first user runs all
the time. Beside it the second user's jobs take memory until their limit stops them (or, without a limit, the GPU), and
the third user's short jobs take little, write it and read it again. Modes are those of tests/gpu/users.py: "one",
"each" and "all" with the limit that csub sets, "plain" (time-slicing, as on shards) without any. Adds to FOLDER
overflows.jsonl a line for each mode.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.gpu.mps import rates
from tests.gpu.proof_report import add
from tests.gpu.tries import CUDA
from tests.gpu.users import SIZES, STARTS_S, Machine

LIMIT = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G"}
_AT_ONCE = 3
# Takes memory as a job does that grows, and ends as a job does that gets no more.
OVERFLOWS = f"""{CUDA}
while len(held) < 2000 and take(64):
    pass
print(64 * len(held), flush=True)
time.sleep(0.3)
sys.exit(1)
"""
INNOCENT = f"""{CUDA}
took = all(take(64) for _ in range(8))
page, good = (ctypes.c_ubyte * 65536)(), 0
for number, one in enumerate(held):
    good += not cuda.cuMemsetD8_v2(one, ctypes.c_ubyte(number + 1), ctypes.c_size_t(64 << 20))
time.sleep(0.3)
for number, one in enumerate(held):
    good += not cuda.cuMemcpyDtoH_v2(page, one, ctypes.c_size_t(65536)) and bytes(page) == bytes([number + 1]) * 65536
found["good"] = good
print(json.dumps(found), flush=True)
sys.exit(0 if took and good == 16 else 3)
"""


def one_mode(machine: Machine, mode: str, count: int) -> dict[str, Any]:
    """Run so many jobs that overflow, and as many innocent ones, beside a training."""
    limit: Mapping[str, str] = {} if mode == "plain" else LIMIT
    with machine.daemons(mode, 3) as told:
        user = (0, 0, 0) if mode == "one" else (0, 1, 2)
        training = machine.client("training", SIZES["small"], 0, told[0])
        training.told(STARTS_S)
        before = next(iter(rates([training], 2.0).values()))

        def run(number: int) -> tuple[str, int | None, str]:
            name, code, which = ("overflow", OVERFLOWS, 1) if number % 2 else ("innocent", INNOCENT, 2)
            one = machine.client(f"{name}{number}", code, user[which], {**told[which], **limit})
            how = one.end(30.0)
            return name, how["status"], str(how["said"])[-200:]

        with ThreadPoolExecutor(2 * _AT_ONCE) as pool:
            did = [*pool.map(run, range(2 * count))]
        after = next(iter(rates([training], 2.0).values()))
        lives = training.process.poll() is None
        training.process.kill()
        training.process.wait()
    ended = Counter((name, status) for name, status, _ in did)
    lost = [said for name, status, said in did if name == "innocent" and status != 0]
    took = Counter(said.strip() for name, _, said in did if name == "overflow")
    return {
        "mode": mode,
        "limit": limit.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""),
        "jobs": [{"job": name, "status": status, "count": n} for (name, status), n in sorted(ended.items(), key=str)],
        "innocent_lost": len(lost),
        "lost_said": lost[:3],
        "overflows_took_mib": dict(took.most_common(5)),
        "training_lives": lives,
        "training_steps_per_s": [before, after],
    }


def main() -> None:
    """Try each mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--modes", default="all,each,one,plain")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    machine = Machine()
    try:
        for mode in asked.modes.split(","):
            found = one_mode(machine, mode, asked.count)
            print(json.dumps(found), flush=True)
            add(asked.folder / "overflows.jsonl", [found])
    finally:
        shutil.rmtree(machine.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
