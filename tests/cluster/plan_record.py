# SPDX-License-Identifier: Apache-2.0
"""What real Slurm makes of a queue, kept for the planner: `python -m tests.cluster.plan_record LOAD REPEAT`.

The jobs sleep, so that a run costs hardly any CPU time, but it takes half an hour: Slurm's own ticks cannot be
compressed. One line of JSON says what ran on what, and one line of each job when it was submitted, started and ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.lab import Lab, LabError
from tests.cluster.nodes import NVIDIA_MAJOR
from tests.cluster.ports import Ports
from tests.cluster.releases import HOST, RELEASES
from tests.need_trace import Told as Job
from tests.waiting import wait_for

RECORDED = Path(__file__).resolve().parents[1] / "recorded/plan"
NODES = ("p1", "p2", "p3", "p4")
GPUS, CPUS, MEM_MIB = 8, 64, 512_000
JOBS = 500
# Of one third of the published traces' sizes: most jobs ask for one GPU, few for half a node (Philly, Helios).
SIZES = ((1, 0.64), (2, 0.20), (4, 0.16))
# alice and bob share an account, and she submits most.
USERS = (("alice", 0.45), ("bob", 0.20), ("carol", 0.35))
# Half a minute and a log-normal time, as one of the ticks by which Slurm starts and ends a job is seconds.
RUN_LEAST_S, RUN_MEDIAN_S, RUN_SIGMA, RUN_MOST_S = 30.0, 15.0, 1.1, 300.0
LIMIT_FACTORS = (1.3, 2.0, 3.0, 5.0, 8.0)
TAIL_S = 900.0
PRIORITY = {
    "PriorityWeightFairshare": "10000",
    "PriorityWeightAge": "6000",
    "PriorityWeightJobSize": "2000",
    "PriorityMaxAge": "00:20:00",
    "PriorityDecayHalfLife": "00:30:00",
    "PriorityCalcPeriod": "1",
}
SCHEDULER = "sched_min_interval=0,bf_interval=5,bf_resolution=10,bf_window=120,bf_max_job_test=100,bf_continue"


class Layout(NamedTuple):
    """A cluster: the GPUs of each node by partition, what else a node has, how Slurm orders and looks ahead."""

    partitions: Mapping[str, Mapping[str, int]]
    cpus: int
    mem_mib: int
    shares: str
    shares_per_gpu: int
    priority: Mapping[str, str]
    scheduler: str

    @property
    def gpus(self) -> dict[str, int]:
        """Return the GPUs of each node."""
        return {node: gpus for nodes in self.partitions.values() for node, gpus in nodes.items()}


LAYOUT = Layout({"plan": dict.fromkeys(NODES, GPUS)}, CPUS, MEM_MIB, "", 0, PRIORITY, SCHEDULER)


def trace(load: float, seed: int, count: int = JOBS) -> list[Job]:
    """Return jobs over the time in which they are ``load`` of the GPU-seconds, submitted one by one or in bursts."""
    rng = random.Random(seed)
    given, bodies = 0.0, []
    for _ in range(count):
        user = _drawn(rng, USERS)
        gpus = _drawn(rng, SIZES)
        run_s = round(min(RUN_LEAST_S + rng.lognormvariate(0, RUN_SIGMA) * RUN_MEDIAN_S, RUN_MOST_S), 1)
        limit_min = max(1, -int(-run_s * rng.choice(LIMIT_FACTORS) // 60))
        cpus = gpus * (16 if rng.random() < 0.1 else 4)
        bodies.append((user, gpus, cpus, gpus * rng.choice((8, 32, 96)) * 1000, limit_min, run_s))
        given += gpus * run_s
    span_s = given / (load * GPUS * len(NODES))
    jobs: list[Job] = []
    left = len(bodies)
    while left:
        burst = min(left, 1 if rng.random() < 0.7 else rng.randint(2, 6))
        at_s = round(rng.uniform(0, span_s), 1)
        first = bodies[left - 1]
        # One user submits a burst, of jobs alike.
        jobs += [Job(at_s, first[0], *bodies[left - 1 - k][1:]) for k in range(burst)]
        left -= burst
    return sorted(jobs)


def _drawn(rng: random.Random, choices: tuple[tuple[Any, float], ...]) -> Any:
    return rng.choices([one for one, _ in choices], [weight for _, weight in choices])[0]


@contextmanager
def cluster(release: str, say: Callable[[str], None], layout: Layout = LAYOUT) -> Iterator[Lab]:
    """Yield a lab of its own whose further nodes are idle."""
    lab, ports = _lab(release, say, layout)
    try:
        lab.up(say)
        for node in layout.gpus:
            ports.release(node)
            lab.start_daemon(f"slurmd-{node}", ["slurmd", "-N", node, "-D"], None)
        for name, nodes in layout.partitions.items():
            _wait_idle(lab, name, len(nodes))
        yield lab
    finally:
        ports.release_all()
        lab.down(say)
    lab.remove()


def run_trace(lab: Lab, jobs: list[Job], say: Callable[[str], None]) -> tuple[float, list[int]]:
    """Submit jobs at their times and wait until accounting has all ends; return the first moment and their ids."""
    began_s, numbers = time.time(), []
    for job in jobs:
        time.sleep(max(0.0, began_s + job.submit_s - time.time()))
        numbers.append(submit(lab, job))
    say("all submitted")
    lab.wait_jobs(numbers, timeout=TAIL_S)
    lab.wait_accounted(numbers)
    return began_s, numbers


def record(load: float, repeat: str, release: str, seed: int, say: Callable[[str], None]) -> Path:
    """Submit the trace to a lab of its own and keep what sacct says of each job."""
    jobs = trace(load, seed)
    with cluster(release, say) as lab:
        say(f"{len(jobs)} jobs at {load:g} of the GPUs, over {jobs[-1].submit_s:.0f} s")
        began_s, numbers = run_trace(lab, jobs, say)
        found = rows(lab, numbers)
    head = {
        "release": release,
        "load": load,
        "repeat": repeat,
        "seed": seed,
        "nodes": {node: {"gpus": GPUS, "cpus": CPUS, "mem_mib": MEM_MIB} for node in NODES},
        "shares": {"ml": {"alice": 1, "bob": 1}, "phys": {"carol": 1}},
        "priority": PRIORITY,
        "scheduler": SCHEDULER,
    }
    origin_s = int(began_s)
    lines: list[dict[str, object]] = [head]
    for job, number in zip(jobs, numbers, strict=True):
        times_s = dict(zip(("submitted_s", "started_s", "ended_s"), times(found, number, origin_s), strict=True))
        # Nobody measures these jobs.
        asked = {name: value for name, value in job._asdict().items() if name not in ("peak_mib", "sm_pct")}
        lines.append({**asked, **times_s, "node": found[number][-1]})
    return write(RECORDED / f"{release}-load{load * 100:.0f}-{repeat}.jsonl", lines, say)


def times(found: Mapping[int, tuple[int, int, int, str, str]], number: int, origin_s: int) -> list[int]:
    """Return when a job was submitted, started and ended, after the first moment.

    Raises:
        LabError: it did not complete.
    """
    *at_s, state, _ = found[number]
    if state != "COMPLETED":
        raise LabError(f"job {number} ended as {state}")
    return [moment_s - origin_s for moment_s in at_s]


def write(path: Path, lines: Iterable[Mapping[str, object]], say: Callable[[str], None]) -> Path:
    """Write a recording and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    say(f"{path}")
    return path


def _lab(release: str, say: Callable[[str], None], layout: Layout) -> tuple[Lab, Ports]:
    ports = Ports.find(list(layout.gpus))
    lines = [f"{key}={value}" for key, value in layout.priority.items()]
    lines.append(f"SchedulerParameters={layout.scheduler}")
    for node, gpus in layout.gpus.items():
        gres = f"gpu:h100:{gpus}" + (f",{layout.shares}:{gpus * layout.shares_per_gpu}" if layout.shares else "")
        size = f"CPUs={layout.cpus} CoresPerSocket={layout.cpus} RealMemory={layout.mem_mib} Gres={gres}"
        lines.append(f"NodeName={node} NodeAddr=127.0.0.1 Port={ports.numbers[node]} {size}")
    lines += [
        f"PartitionName={name} Nodes={','.join(nodes)} MaxTime=INFINITE DefaultTime=10"
        for name, nodes in layout.partitions.items()
    ]
    lab = Lab.create(release=release, say=say, extra_slurm_conf="\n".join(lines))
    conf = lab.slurm_conf
    # `up` waits for the four nodes that each lab has.
    conf.write_text(conf.read_text().replace("PartitionName=all Nodes=ALL", "PartitionName=all Nodes=g1,g2,m1,c1"))
    gres_conf = lab.root / "etc/gres.conf"
    for node, gpus in layout.gpus.items():
        (lab.root / f"spool/{node}").mkdir()
        folder = lab.root / f"dev/{node}"
        folder.mkdir()
        for index in range(gpus):
            os.mknod(folder / f"nvidia{index}", 0o600 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, index))
        with gres_conf.open("a") as out:
            out.write(f"NodeName={node} Name=gpu Type=h100 File={folder}/nvidia[0-{gpus - 1}]\n")
            if layout.shares:
                count = gpus * layout.shares_per_gpu
                out.write(f"NodeName={node} Name={layout.shares} Count={count} Flags=all_sharing\n")
    return lab, ports


def _wait_idle(lab: Lab, partition: str, nodes: int) -> None:
    ask = ["sinfo", "-h", "-p", partition, "-o", "%T %D"]
    wait_for(lambda: lab.run(ask).stdout.strip() == f"idle {nodes}", "the nodes are not idle")


def submit(lab: Lab, job: Job, partition: str = "plan", gres: str = "") -> int:
    """Submit a job that sleeps; return its id."""
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "-p", partition, "-N1", "-n1", f"-c{job.cpus}"]
    argv += [f"--mem={job.mem_mib}M", f"--gres={gres or f'gpu:h100:{job.gpus}'}", f"-t{job.limit_min}"]
    return int(lab.run_as(job.user, [*argv, f"--wrap=exec sleep {job.run_s}"], check=True).stdout)


def rows(lab: Lab, numbers: Iterable[int]) -> dict[int, tuple[int, int, int, str, str]]:
    """Return of each job when it was submitted, started and ended, its state and its node."""
    argv = ["sacct", "-a", "-X", "-n", "-P", "-S", "now-2hours", "-o", "JobIDRaw,Submit,Start,End,State,NodeList"]
    text = lab.run(argv, env={"TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}, check=True).stdout
    wanted, found = set(numbers), {}
    for line in text.splitlines():
        number, submit, start, end, state, node = line.split("|")
        if int(number) in wanted:
            found[int(number)] = (int(submit), int(start), int(end), state, node)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("load", type=float, help="GPU-seconds asked for over those there are, as 0.9")
    parser.add_argument("repeat", help="a name for this run, as a")
    parser.add_argument("--release", choices=RELEASES, default=HOST.name, help="of Slurm (%(default)s)")
    parser.add_argument("--seed", type=int, default=33, help="of the trace (%(default)s)")
    args = parser.parse_args()
    record(args.load, args.repeat, args.release, args.seed, lambda line: print(f"plan_record: {line}", flush=True))


if __name__ == "__main__":
    main()
