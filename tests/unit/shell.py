# SPDX-License-Identifier: Apache-2.0
"""A folder in which the unmodified csub finds a site, a script and a made-up sbatch."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.estimate.records import evidence_path
from tests.unit.programs import executable

SITE = """
schema = 1
cluster = "lab"
slurm_release = "22.05"
default_partition = "gpu"
policy = "auto"
[[pool]]
name = "h"
nodes = "h1"
partitions = ["gpu"]
gpu_type = "h100"
gpu_model = "NVIDIA H100 80GB HBM3"
gpus_per_node = 1
gpu_mem_mib = 81559
sm_count = 132
mps_per_gpu = 100
[[pool.slice]]
type = "h100_1g.10gb"
profile = "1g.10gb"
mem_mib = 9984
sm_count = 16
quantity = 1
[[partition]]
name = "gpu"
mps_users = "one"
[sharing]
max_slowdown = 2.1
order = [{order}]
mps_daemon = "prolog"
[observe]
agent = {agent}
"""
CSUB = Path(sys.executable).with_name("csub")
SCRIPT = "#!/bin/bash\n#SBATCH --gres=gpu:1\necho hello\n"
HINT = "--gpu-footprint=mem=4G,sm=10"
DEFINITE = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
DOUBTFUL = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
# Says on its standard output what recorded sbatch 22.05.8 says, and keeps what it was given.
SBATCH = """#!/bin/bash
n=$(ls "$CALLS" | wc -l)
printf '%s\\0' "$@" > "$CALLS/$n"
for last; do :; done
if [ -f "$last" ]; then cat "$last" > "$CALLS/../script.$n"; elif [ ! -t 0 ]; then cat > "$CALLS/../script.$n"; fi
if [ -f "$CALLS/../behaviour.$n" ]; then . "$CALLS/../behaviour.$n"; fi
echo "Submitted batch job 4711"
"""


# Of a run of an hour on a whole GPU, of which 4 GB and 9 % of the SMs were used.
EVIDENCE = {
    "job_id": "9",
    "state": "COMPLETED",
    "mode": "exclusive",
    "gpu_model": "NVIDIA H100 80GB HBM3",
    "gpu_mem_peak_mib": 4000,
    "sm_active_mean_pct": 5.0,
    "sm_active_q95_pct": 9.0,
    "sm_is_bound": False,
    "sample_count": 30,
    "sampled_s": 3600.0,
    "ended_s": 1.0,
    "elapsed_s": 3600.0,
}


class Shell:
    """A folder with a site, a script and a made-up sbatch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bin", "calls", "home", "tmp"):
            (folder / name).mkdir()
        executable(folder / "bin" / "sbatch", SBATCH)
        (folder / "job.sh").write_text(SCRIPT)
        self.site('"mig", "mps"', agent=True)

    def site(self, order: str, *, agent: bool) -> None:
        (self.folder / "site.toml").write_text(SITE.replace("{order}", order).replace("{agent}", str(agent).lower()))

    def keep_no_scripts(self) -> None:
        """Have csub find no place in its user's home where a rendered script could stay."""
        folder = self.folder / "home" / ".local" / "share" / "slurm_colloc"
        folder.mkdir(parents=True, mode=0o700)
        (folder / "scripts").touch()

    def behave(self, number: int, text: str) -> None:
        (self.folder / f"behaviour.{number}").write_text(text)

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "CALLS": str(self.folder / "calls"),
            "COLLOC_CONF": str(self.folder / "site.toml"),
        }

    def command(self, *argv: str, code: str = "") -> list[str]:
        return [sys.executable, "-c", code, *argv] if code else [str(CSUB), *argv]

    def run(
        self,
        *argv: str,
        program: Path | str = "",
        input: str | None = None,
        code: str = "",
        environ: Mapping[str, str] | None = None,
        **streams: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run csub, or another program as if it were that."""
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        return subprocess.run(
            [program, *argv] if program else self.command(*argv, code=code),
            cwd=self.folder,
            env={**self.environment(), **(environ or {})},
            text=True,
            timeout=60,
            check=False,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | source | streams,
        )

    def calls(self) -> list[list[str]]:
        files = sorted((self.folder / "calls").iterdir(), key=lambda path: int(path.name))
        return [path.read_text().split("\0")[:-1] for path in files]

    def request(self, *argv: str) -> dict[str, Any]:
        """Return what csub reads of a job."""
        argv = argv if any(word.endswith(".sh") for word in argv) else (*argv, "job.sh")
        found: dict[str, Any] = json.loads(self.run("--dry-run", "--format=json", *argv).stdout)["request"]
        return found

    def ran(self, **fields: object) -> Path:
        """Leave the evidence of an earlier run of the job in the user's folder, and return its file."""
        evidence = EVIDENCE | ({} if "signature" in fields else {"signature": self.request()["signature"]}) | fields
        folder = str(self.folder / "home/.local/share/slurm_colloc")
        path = Path(evidence_path(folder, str(evidence["signature"]), str(evidence["job_id"])))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(evidence))
        return path

    def decisions(self) -> list[dict[str, Any]]:
        folder = self.folder / "home/.local/share/slurm_colloc/decisions"
        return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))] if folder.exists() else []


def on_a_terminal(shell: Shell, *argv: str, **streams: Any) -> str:
    """Return what csub says to a person."""
    ours, theirs = pty.openpty()
    try:
        assert shell.run(*argv, stderr=theirs, **streams).stdout.startswith("Submitted batch job ")
        os.write(theirs, b"end")
        return os.read(ours, 65_536).decode().replace("\r", "").removesuffix("end")
    finally:
        os.close(ours)
        os.close(theirs)
