# SPDX-License-Identifier: Apache-2.0
"""colloc demo: the whole accounting path on a made-up week, on any Linux, without Slurm or a GPU."""

import os
import random
import tempfile
import tomllib
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Annotated, NamedTuple

from typer import Option

from slurm_colloc.cli.colloc import ingest, report
from slurm_colloc.cli.colloc.output import say
from slurm_colloc.cli.colloc.progress import progress
from slurm_colloc.cli.colloc.site_plan import past_in
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_file import ENVIRONMENT_VARIABLE, load_site
from slurm_colloc.core.model import Decision, Footprint, Quantiles
from slurm_colloc.core.toml_text import value_text
from slurm_colloc.core.usage_model import (
    DeviceAllocation,
    DeviceSample,
    HostSample,
    NodeSample,
    ProcessKind,
    ProcessSample,
)
from slurm_colloc.estimate.exact import RUNG
from slurm_colloc.observe.journal import encode
from slurm_colloc.placement.choose import place
from slurm_colloc.placement.fitted import past_request
from slurm_colloc.plan.change import Asked
from slurm_colloc.plan.need import Bound, need
from slurm_colloc.plan.need_text import headline
from slurm_colloc.plan.site import rules_of
from slurm_colloc.store.store import Store

_NODE, _GPUS, _MODEL, _MEM_MIB, _SMS = "gpu01", 8, "NVIDIA H100 80GB HBM3", 81559, 132
SITE = f"""schema = 1
cluster = "demo"
slurm_release = "24.11"
default_partition = "gpu"
policy = "auto"

[sharing]
mps_daemon = "site"

[[pool]]
name = "gpu"
nodes = "{_NODE}"
partitions = ["gpu"]
gpu_type = "h100"
gpus_per_node = {_GPUS}
gpu_model = "{_MODEL}"
gpu_mem_mib = {_MEM_MIB}
sm_count = {_SMS}
mps_per_gpu = 100

[[partition]]
name = "gpu"
mps_users = "each"
"""
BEGIN_S = int(datetime(2026, 11, 2, tzinfo=UTC).timestamp())
END_S = BEGIN_S + 7 * 86_400
_HOUR_S, _PERIOD_S = 3600, 600
_IDLE_W, _MORE_W = 70.0, 600.0
# The table shows so many users.
_USERS = 6


class Habit(NamedTuple):
    """How a user's jobs are: how many there are, their GPUs and hours, and what each does with a GPU that it uses.

    ``used_gpus`` of its GPUs it uses, and after ``works`` of its time it has no process on any.
    """

    user: str
    account: str
    name: str
    jobs: int
    gpus: int
    hours: float
    gpu_mem_gib: float
    util_pct: float
    sm_pct: float
    used_gpus: int = 1
    works: float = 1.0


_TABLE = tomllib.loads(files(__package__).joinpath("demo.toml").read_text())
_HABITS = tuple(Habit(**row) for row in _TABLE["habit"])


class Job(NamedTuple):
    """A job that ran on ``gpus``."""

    job_id: int
    habit: Habit
    submit_s: int
    start_s: int
    end_s: int
    gpus: range

    def works_on(self, gpu: int, at_s: int) -> bool:
        """Tell whether it has a process there then."""
        used = gpu - self.gpus.start < self.habit.used_gpus
        return used and at_s <= self.start_s + (self.end_s - self.start_s) * self.habit.works


def made_jobs() -> list[Job]:
    """Return the week's jobs, always the same, each on the GPUs that are the first to be free for it."""
    chance = random.Random(1)  # noqa: S311
    requests: list[tuple[int, Habit, int]] = []
    for habit in _HABITS:
        for _ in range(habit.jobs):
            day, hour = chance.choice((0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6)), chance.triangular(7, 22, 11)
            took_s = int(habit.hours * _HOUR_S * chance.uniform(0.6, 1.3))
            requests.append((BEGIN_S + day * 86_400 + int(hour * _HOUR_S), habit, took_s))
    free_s = [BEGIN_S] * _GPUS
    jobs = []
    for number, (submit_s, habit, took_s) in enumerate(sorted(requests, key=lambda request: request[0])):
        start_s, gpu = min((max(submit_s, *free_s[gpu : gpu + habit.gpus]), gpu) for gpu in range(0, _GPUS, habit.gpus))
        end_s = min(start_s + took_s, END_S)
        if start_s < END_S:
            free_s[gpu : gpu + habit.gpus] = [end_s] * habit.gpus
            jobs.append(Job(1001 + number, habit, submit_s, start_s, end_s, range(gpu, gpu + habit.gpus)))
    return jobs


def sacct_text(jobs: Sequence[Job]) -> str:
    """Return the jobs as `colloc ingest --sacct-file` takes them."""
    return "".join(
        f"{job.job_id}|{job.job_id}|demo|{habit.user}|{habit.account}|gpu|normal|COMPLETED|{job.submit_s}|{job.start_s}"
        f"|{job.end_s}|00:00:00|billing={habit.gpus},cpu={8 * habit.gpus},gres/gpu:h100={habit.gpus}"
        f",gres/gpu={habit.gpus},mem={60 * habit.gpus}G,node=1|{_NODE}|{habit.name}.sh\n"
        for job, habit in ((job, job.habit) for job in jobs)
    )


def decisions(jobs: Sequence[Job], config: SiteConfig) -> Iterator[tuple[str, Decision]]:
    """Yield by user what csub would have decided in a center's first week, of a program that it has seen once."""
    first_end_s: dict[Habit, float] = {}
    for job in jobs:
        habit, name = job.habit, str(job.job_id)
        if first_end_s.setdefault(habit, job.end_s) >= job.submit_s or habit.gpus > 1:
            continue
        expected_mib, sm_pct = habit.gpu_mem_gib * 1024, habit.sm_pct
        memory, active = (
            Quantiles(value, by * value, by * value) for value, by in ((expected_mib, 1.3), (sm_pct, 1.2))
        )
        footprint = Footprint(memory, active, None, _MODEL, RUNG, 1, ())
        placement = place(past_request("gpu:h100:1", "gpu", habit.account, "normal"), footprint, config)
        identity = (
            name,
            "demo",
            float(job.submit_s),
            habit.user,
            f"{habit.name}.sh",
            f"{zlib.crc32(habit.name.encode()):08x}",
        )
        yield habit.user, Decision(
            *identity, "gpu:1", "as asked", "exclusive", RUNG, memory.q99, active.q95, (),
            gpu_mem_expected_mib=expected_mib, shadow=True, would="" if placement.as_asked else placement.given,
            would_not="fit" if placement.as_asked else "",
            slowdown_expected=placement.slowdown_expected, slowdown_upper=placement.slowdown_upper,
        )  # fmt: skip


def write_journal(jobs: Sequence[Job], folder: str) -> None:
    """Write what an agent on the node would have seen every ten minutes."""
    os.makedirs(os.path.join(folder, _NODE), exist_ok=True)
    for hour_s in range(BEGIN_S, END_S, _HOUR_S):
        name = datetime.fromtimestamp(hour_s, UTC).strftime("%Y%m%dT%H.journal")
        with open(os.path.join(folder, _NODE, name), "wb") as stream:
            stream.writelines(encode(_round(jobs, at_s)) for at_s in range(hour_s, hour_s + _HOUR_S, _PERIOD_S))


def _round(jobs: Sequence[Job], at_s: int) -> NodeSample:
    chance = random.Random(at_s)  # noqa: S311
    held_by = {gpu: job for job in jobs if job.start_s < at_s <= job.end_s for gpu in job.gpus}
    devices, processes = list[DeviceSample](), list[ProcessSample]()
    for gpu in range(_GPUS):
        job, swing = held_by.get(gpu), chance.uniform(0.85, 1.1)
        util_pct, sm_pct, mem_mib = 0.0, 0.0, 0
        if job and job.works_on(gpu, at_s):
            util_pct, sm_pct = (min(99.0, part * swing) for part in (job.habit.util_pct, job.habit.sm_pct))
            mem_mib = int(job.habit.gpu_mem_gib * 1024 * (0.9 + swing / 11))
            pid, kind = 10_000 + gpu, ProcessKind.COMPUTE
            processes.append(ProcessSample(_uuid(gpu), pid, job.start_s, kind, str(job.job_id), mem_mib, util_pct))
        power_w = _IDLE_W + _MORE_W * sm_pct / 100
        busy = (util_pct, util_pct, sm_pct, sm_pct / 2, sm_pct / 4, sm_pct / 3)
        identity = (_uuid(gpu), gpu, _MODEL, "", _MEM_MIB, _SMS, _SMS, True)
        devices.append(DeviceSample(*identity, *busy, mem_mib + 500, power_w, power_w * _PERIOD_S))
    holders = tuple(DeviceAllocation(_uuid(gpu), str(job.job_id), None) for gpu, job in sorted(held_by.items()))
    names = sorted({str(job.job_id) for job in held_by.values()})
    hosts = tuple(HostSample(name, _PERIOD_S * 3.2, 24_000, 900.0, 4.0) for name in names)
    return NodeSample(float(at_s), float(_PERIOD_S), _NODE, "boot", tuple(devices), tuple(processes), holders, hosts)


def _uuid(gpu: int) -> str:
    return f"GPU-{gpu:08x}-0000-4000-8000-000000000000"


def demo(
    output: Annotated[str, Option("--output", "-o", help="folder for what is made; else a fresh one")] = "",
) -> None:
    """Report a made-up week of 12 users on 8 GPUs."""
    target = os.path.abspath(output) if output else tempfile.mkdtemp(prefix="colloc-demo-")
    site, sacct, journal, store, figures, page = (
        os.path.join(target, name)
        for name in ("site.toml", "sacct.txt", "journal", "store", "report.json", "report.html")
    )
    os.makedirs(target, exist_ok=True)
    say("this is a made-up week of 12 users on a node of 8 H100s; nothing is read from a real cluster")
    jobs = made_jobs()
    # The site's own store is the week's, also for commands that name none.
    for path, text in (
        (site, f"{SITE}\n[paths]\nstate = {value_text(target)}\n"),
        (sacct, sacct_text(jobs)),
    ):
        with open(path, "w") as stream:
            stream.write(text)
    write_journal(jobs, journal)
    os.environ[ENVIRONMENT_VARIABLE] = site
    config = load_site(site)
    ingest.take_in(Store(store, config), config, ingest.Inputs(sacct_file=sacct, journal=journal))
    Store(store).write_decisions(decisions(jobs, config))
    span = datetime.fromtimestamp(BEGIN_S, UTC), datetime.fromtimestamp(END_S, UTC)
    since, until = (end.isoformat() for end in span)
    print()
    report.report(since=since, until=until, store=store, top=_USERS)
    for form, path in (("json", figures), ("html", page)):
        report.report(since=since, until=until, store=store, form=form, output=path)
    past = past_in(Store(store, config), config, span)
    with progress("replaying") as step:
        worth = "\n".join(headline(need(past, config, rules_of(None), Asked(), Bound(), (), step)))
    window = f"--store {store} --since {since[:10]} --until {until[:10]}"
    print(
        f"\npage   {page}\n"
        f"try    export {ENVIRONMENT_VARIABLE}={site}\n"
        f"       colloc job {jobs[-1].job_id} --store {store}\n"
        f"       colloc audit run {window}\n"
        f"       colloc report --shadow {window}\n"
        f"       colloc site need {window}\n\n{worth}"
    )
