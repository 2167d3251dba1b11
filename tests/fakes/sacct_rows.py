# SPDX-License-Identifier: Apache-2.0
"""Job runs as sacct would print them to whoever asks, and what they add up to in whole numbers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

DAY_S = 86_400
WINDOW_DAYS = 30
SHARDS_PER_GPU = 4
# A GPU in parts of which a seventh (one compute slice) and a quarter (one shard) are whole numbers.
PARTS = 28
USERS, GPU_NODES = 1000, 125
SITE = f"""schema = 1
cluster = "bench"
slurm_release = "24.11"
[[pool]]
name = "sharded"
nodes = "s[001-{GPU_NODES:03}]"
partitions = ["shared"]
gpu_type = "a100"
gpu_model = "NVIDIA A100-SXM4-40GB"
gpus_per_node = 8
gpu_mem_mib = 40960
sm_count = 108
shards_per_gpu = {SHARDS_PER_GPU}
"""
NAMES = (
    "train",
    "vasp_relax.sh",
    "bash",
    "lammps-scan-014",
    "résumé 2",
    "sweep lr=3e-4,bs=8",
    "interactive",
    "eval|b",
)
ENDS = ("COMPLETED",) * 13 + ("FAILED",) * 3 + ("TIMEOUT", "OUT_OF_MEMORY", "CANCELLED by 380693", "NODE_FAIL")


class Gpus(NamedTuple):
    """What one form of AllocTRES says: ``tres`` with {} for the count, which is a power of two up to ``most_log2``.

    ``devices`` and ``parts`` are those of a count of one.
    """

    tres: str
    most_log2: int
    devices: int
    parts: int
    partition: str
    node: str


CPU_ONLY = Gpus("", 0, 0, 0, "cpu", "c")
# In hundredths of all jobs: what is left has no GPU.
MIX = (
    (20, Gpus(",gres/gpu:a100={0},gres/gpu={0}", 3, 1, PARTS, "gpu", "g")),
    (15, Gpus(",gres/gpu:h100={0},gres/gpu={0}", 3, 1, PARTS, "gpu", "g")),
    (12, Gpus(",gres/gpu={0}", 3, 1, PARTS, "gpu", "g")),
    (5, Gpus(",gres/gpu:v100={0}", 1, 1, PARTS, "gpu", "g")),
    (4, Gpus(",gres/gpu:1g.10gb={0},gres/gpu={0}", 0, 1, PARTS // 7, "mig", "m")),
    (3, Gpus(",gres/gpu:a100_3g.20gb={0},gres/gpu={0}", 0, 1, 3 * PARTS // 7, "mig", "m")),
    (1, Gpus(",gres/gpu:nvidia_h200_nvl_4g.71gb={0},gres/gpu={0}", 0, 1, 4 * PARTS // 7, "mig", "m")),
    (5, Gpus(",gres/shard={0}", 1, 0, PARTS // SHARDS_PER_GPU, "shared", "s")),
)
KINDS = tuple(kind for hundredths, kind in MIX for _ in range(hundredths))


class Made(NamedTuple):
    """One run; ``start_s`` is None where it was cancelled before, ``end_s`` where it still runs."""

    number: int
    job_id: str
    user: str
    partition: str
    state: str
    submit_s: int
    start_s: int | None
    end_s: int | None
    elapsed_s: int
    cpus: int
    tres: str
    node_list: str
    name: str
    devices: int
    parts: int


class Truth(NamedTuple):
    """What rows add up to inside the window; a slice is a device here, and a shard none."""

    rows: int
    device_hours: float
    gpu_hours: float


class Asked(NamedTuple):
    """How a program called sacct, as far as it decides what is printed."""

    fields: tuple[str, ...]
    delimiter: str
    terminated: bool
    header: bool
    epoch: bool


def window(now_s: float) -> tuple[int, int]:
    """Return 30 whole days that are over, so that a program that can only look back from now finds them, too."""
    until_s = int(now_s) // DAY_S * DAY_S - 2 * DAY_S
    return until_s - WINDOW_DAYS * DAY_S, until_s


def jobs(count: int, since_s: int, until_s: int) -> Iterator[Made]:
    """Yield ``count`` runs, always the same, each with a part in [since, until) unless it never started."""
    draw = random.Random(count)
    for number in range(1_000_000, 1_000_000 + count):
        kind = KINDS[place] if (place := draw.randrange(100)) < len(KINDS) else CPU_ONLY
        quantity = 1 << draw.randrange(kind.most_log2 + 1)
        lasts_s = 60 + int(2 * DAY_S * draw.random() ** 4)
        start_s = since_s - DAY_S + draw.randrange((WINDOW_DAYS + 1) * DAY_S)
        if start_s + lasts_s <= since_s:
            start_s += DAY_S
        state = draw.choice(ENDS)
        running = start_s > until_s - 2 * DAY_S and draw.random() < 0.3
        began = running or draw.random() > 0.01
        node = draw.randrange(1, GPU_NODES + 1)
        cpus = 8 * quantity
        user = f"u{int(USERS * draw.random() ** 2):04}"
        yield Made(
            number,
            f"{number // 64 * 64}_{number % 64}" if number % 640 < 64 else str(number),
            user,
            kind.partition,
            "RUNNING" if running else state if began else "CANCELLED by 380693",
            start_s - draw.randrange(DAY_S),
            start_s if began else None,
            None if running else start_s + lasts_s,
            (until_s - start_s if running else lasts_s) if began else 0,
            cpus,
            f"billing={cpus},cpu={cpus}{kind.tres.format(quantity)},mem={4 * cpus}G,node=1" if began else "",
            f"{kind.node}{node:03}" if began else "None assigned",
            NAMES[-1] if draw.random() < 0.001 else NAMES[number % (len(NAMES) - 1)],
            kind.devices * quantity,
            kind.parts * quantity,
        )


def truth(made: Iterable[Made], since_s: int, until_s: int) -> Truth:
    """Add runs up; only whole numbers until the last line."""
    rows = device_seconds = part_seconds = 0
    for job in made:
        rows += 1
        if job.start_s is not None:
            end_s = until_s if job.end_s is None else min(job.end_s, until_s)
            seconds = max(0, end_s - max(job.start_s, since_s))
            device_seconds += seconds * job.devices
            part_seconds += seconds * job.parts
    return Truth(rows, device_seconds / 3600, part_seconds / PARTS / 3600)


def parse_asked(time_format: str, arguments: Sequence[str]) -> Asked:
    """Return what a recorded call of sacct asks for."""
    words = dict(word.split("=", 1) for word in arguments if word.startswith("--") and "=" in word)
    fields = words.get("--format") or arguments[arguments.index("-o") + 1]
    terminated = "--parsable" in arguments or "-p" in arguments
    header = not {"-n", "--noheader"} & set(arguments)
    return Asked(tuple(fields.split(",")), words.get("--delimiter", "|"), terminated, header, time_format == "%s")


def rows(made: Iterable[Made], asked: Asked) -> Iterator[tuple[Made, str]]:
    """Yield each run with its row, the line end included."""
    stamp = str if asked.epoch else _iso
    end = (asked.delimiter if asked.terminated else "") + "\n"
    names = [name.lower() for name in asked.fields]
    for job in made:
        values = _columns(job, stamp)
        yield job, asked.delimiter.join([values.get(name, "") for name in names]) + end


def header(asked: Asked) -> str:
    """Return the first line, empty where none is asked for."""
    return asked.delimiter.join(asked.fields) + "\n" if asked.header else ""


def _iso(at_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))


def _clock(seconds: int) -> str:
    days, rest = divmod(seconds, DAY_S)
    return f"{f'{days}-' if days else ''}{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def _columns(job: Made, stamp: Callable[[int], str]) -> dict[str, str]:
    cpus, elapsed, cpu_time_s = str(job.cpus), _clock(job.elapsed_s), job.elapsed_s * job.cpus
    submit = stamp(job.submit_s)
    return {
        "jobid": job.job_id,
        "jobidraw": str(job.number),
        "jobname": job.name,
        "cluster": "bench",
        "user": job.user,
        "uid": "2000",
        "group": "users",
        "gid": "100",
        "account": f"a{job.user[1:3]}",
        "partition": job.partition,
        "qos": "normal",
        "state": job.state,
        "exitcode": "0:0",
        "derivedexitcode": "0:0",
        "submit": submit,
        "eligible": submit,
        "start": "None" if job.start_s is None else stamp(job.start_s),
        "end": "Unknown" if job.end_s is None else stamp(job.end_s),
        "elapsed": elapsed,
        "elapsedraw": str(job.elapsed_s),
        "suspended": "00:00:00",
        "timelimit": "2-00:00:00",
        "timelimitraw": "2880",
        "cputime": _clock(cpu_time_s),
        "cputimeraw": str(cpu_time_s),
        "totalcpu": elapsed,
        "usercpu": elapsed,
        "systemcpu": "00:00:00",
        "ncpus": cpus,
        "reqcpus": cpus,
        "alloccpus": cpus,
        "nnodes": "1",
        "reqnodes": "1",
        "allocnodes": "1",
        "reqmem": f"{4 * job.cpus}G",
        "reqtres": job.tres,
        "alloctres": job.tres,
        "nodelist": job.node_list,
        "priority": "4294",
        "workdir": f"/home/{job.user}",
        "submitline": "sbatch job.sh",
    }
