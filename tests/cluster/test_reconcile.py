# SPDX-License-Identifier: Apache-2.0
"""Our hours against sreport's, on a real slurmdbd, over hours that are closed and rolled up."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.store.store import open_store
from tests.cluster import rollup
from tests.cluster.fixtures import RELEASE, new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.nodes import MIG_TYPE_PREFIX, tracked_tres
from tests.cluster.site import write_site
from tests.unit.stored import job_usage

pytestmark = pytest.mark.cluster

TRES = ",".join(tracked_tres())
# What one of each is worth in whole GPUs on the lab's nodes: 7 compute slices, 100 mps and 4 shards to a GPU.
WORTH = {
    "gres/gpu:h100": 1.0,
    f"gres/gpu:{MIG_TYPE_PREFIX}1g.10gb": 1 / 7,
    f"gres/gpu:{MIG_TYPE_PREFIX}2g.20gb": 2 / 7,
    f"gres/gpu:{MIG_TYPE_PREFIX}3g.40gb": 3 / 7,
    "gres/mps": 1 / 100,
    "gres/shard": 1 / 4,
}
# Of the one job that was suspended. sreport goes on counting its gres (and not its CPUs); we do not.
SUSPENDED_WORTH = WORTH[f"gres/gpu:{MIG_TYPE_PREFIX}3g.40gb"]
CAN_RESERVE_GRES = RELEASE != "22.05"
RESERVED_FOR = "bob"
# As slurmdbd's job_states; 1024 is a flag, over a state of 0.
COMPLETED, CANCELLED, FAILED, REQUEUED = 3, 4, 5, 1024
# A second of the lab becomes two hours and seven seconds, so that no time falls on an hour.
FACTOR = 7207
COPIES = 250
MINUTE_S = 60
OVERCOMMITTED_DAYS = 60
Hours = Counter[tuple[str, str]]


class Past(NamedTuple):
    """A lab with a past: midnight before its first job, last midnight, and the site whose store has it all."""

    lab: Lab
    since: datetime
    until: datetime
    site: Path

    def colloc(self, *argv: str) -> str:
        env = {"COLLOC_CONF": str(self.site / "site.toml")}
        return self.lab.run(["colloc", *argv], env=env, check=True, timeout=120).stdout

    def windows(self) -> dict[str, tuple[datetime, datetime]]:
        """Return windows of whole hours that cut runs at both ends, and one of whole days."""
        hour = timedelta(hours=1)
        return {
            "days": (self.since, self.until),
            "hours": (self.since + 29 * hour, self.until - 5 * hour),
            "one hour": (self.until - 14 * hour, self.until - 13 * hour),
        }


@pytest.fixture(scope="module")
def past() -> Iterator[Past]:
    with running(new_lab()) as lab:
        template = _run_jobs(lab)
        midnight = _midnight(datetime.now().astimezone())
        begin_s = rollup.move(lab, FACTOR, int(midnight.timestamp()) - 2222, COPIES)
        since = _midnight(datetime.fromtimestamp(begin_s).astimezone())
        overcommitted = midnight - timedelta(days=OVERCOMMITTED_DAYS)
        start_s = int(overcommitted.timestamp()) + 7 * 3600
        rollup.repeat(lab, template, 10, start_s, start_s + 5400)
        rollup.roll_up(lab, overcommitted, overcommitted + timedelta(days=1))
        rollup.roll_up(lab, since, midnight)
        found = Past(lab, since, midnight, write_site(lab))
        found.colloc("ingest", "--since", since.isoformat())
        found.colloc("ingest", "--since", overcommitted.isoformat(), "--until", f"{OVERCOMMITTED_DAYS - 1}d")
        yield found


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def _run_jobs(lab: Lab) -> int:
    """Run one job of each kind in the lab and return the id of a plain one; one still runs when this returns."""

    def submit(user: str, *options: str, script: str = "sleep 2") -> int:
        argv = ["sbatch", "--parsable", "-o", "/dev/null", *options, f"--wrap={script}"]
        return int(lab.run_as(user, argv, check=True).stdout)

    def scontrol(*words: object) -> None:
        lab.run(["scontrol", *map(str, words)], check=True)

    lab.run(["sacctmgr", "-i", "add", "user", "alice", "account=phys"], check=True)
    running = submit("alice", "-A", "phys", "-p", "mig", f"--gres=gpu:{MIG_TYPE_PREFIX}2g.20gb:1", script="sleep 600")
    suspended = submit("bob", "-p", "mig", f"--gres=gpu:{MIG_TYPE_PREFIX}3g.40gb:1", script="sleep 10")
    requeued = submit("alice", "-w", "g1", "--gres=gpu:1", "--requeue", script="sleep 10")
    cancelled = submit("carol", "-w", "g2", "--gres=gpu:h100:1", script="sleep 60")
    never = submit("carol", "-H", "--gres=gpu:1")
    shared = [submit("carol", "-w", "g1", "--gres=mps:25"), submit("alice", "-w", "g1", "--gres=mps:50")]
    ended = [
        suspended,
        cancelled,
        *shared,
        submit("alice", "-p", "mig", f"--gres=gpu:{MIG_TYPE_PREFIX}1g.10gb:2", script="sleep 1; exit 3"),
        submit("bob", "-w", "g2", "--gres=gpu:1", "--array=0-3", script="sleep 1"),
        submit("bob", "-p", "cpu"),
    ]
    for job in (running, suspended, requeued):
        lab.wait_state(job)
    scontrol("suspend", suspended)
    time.sleep(1.5)
    scontrol("requeue", requeued)
    scontrol("resume", suspended)
    lab.run(["scancel", str(cancelled), str(never)], check=True)
    ended += [submit("carol", "-w", "g2", "--gres=shard:3"), submit("bob", "-w", "g2", "--gres=shard:2")]
    ended.append(submit("carol", "-p", "gpu", "-N2", "--gres=gpu:1"))
    lab.wait_jobs(ended)
    lab.wait_state(requeued, "PENDING")
    # Slurm would wait for two minutes before it starts the job again. Not at once: word of the first run's end, when
    # it comes late, ends the second.
    scontrol("update", f"jobid={requeued}", "StartTime=now")
    ended.append(requeued)
    lab.wait_jobs(ended)
    scontrol("update", "nodename=g2", "state=down", "reason=test")
    kept = f"reservationname=kept users={RESERVED_FOR} nodes=g1 trespernode=gres/gpu:h100:1 starttime=now duration=9"
    if CAN_RESERVE_GRES:
        scontrol("create", "reservation", *kept.split())
    time.sleep(1.5)
    if CAN_RESERVE_GRES:
        scontrol("delete", "reservationname=kept")
    scontrol("update", "nodename=g2", "state=resume")
    lab.wait_accounted(ended)
    return cancelled


def _reserved(past: Past, since: datetime, until: datetime) -> Counter[str]:
    """Return the seconds that nobody used of what was reserved, by TRES; sreport charges them to its user."""
    rows = rollup.sreport(past.lab, "reservation utilization", "TRESName,Idle", since, until, TRES)
    return Counter({tres: int(idle) for tres, idle in rows})


def _sreport(past: Past, since: datetime, until: datetime) -> Hours:
    """Return sreport's seconds by (user, TRES), without reservations that were not used."""
    used: Hours = Counter()
    rows = rollup.sreport(past.lab, "user top TopCount=1000", "Login,TRESName,Used", since, until, TRES)
    for user, tres, seconds in rows:
        used[user, tres] += int(seconds)
    for tres, idle in _reserved(past, since, until).items():
        used[RESERVED_FOR, tres] -= idle
    return used


def _held(past: Past, since: datetime, until: datetime) -> Hours:
    """Return the seconds of each user's runs times what they held, by (user, TRES)."""
    held: Hours = Counter()
    for run in job_usage(open_store(str(past.site / "store")), since.timestamp(), until.timestamp(), time.time()):
        for gres in parse_gres(run.gres):
            for name in {f"gres/{gres.name}", f"gres/{gres}".rpartition(":")[0]}:
                held[run.user, name] += round((run.end_s - run.start_s) * gres.quantity)
    return held


def _report(past: Past, by: str, since: datetime, until: datetime) -> dict[str, float]:
    """Return `colloc report`'s allocated seconds of whole GPUs by group, the total under no name."""
    argv = ["report", "--by", by, "--since", since.isoformat(), "--until", until.isoformat(), "--format", "json"]
    shown: dict[str, Any] = json.loads(past.colloc(*argv))
    seconds = {group["name"]: group["allocated_gpu_hours"] * 3600 for group in shown["groups"]}
    return seconds | {"": shown["total"]["allocated_gpu_hours"] * 3600}


def _to_the_minute(theirs: Mapping[Any, float]) -> Any:
    # Zeros are left out: sreport has a row for each TRES of each user, we have one where there was a run.
    return pytest.approx({key: value for key, value in theirs.items() if value}, abs=MINUTE_S)


def test_every_kind_of_run_is_there(past: Past) -> None:
    rows = rollup.sql(past.lab, "SELECT state, count(*) FROM {job} WHERE time_end GROUP BY 1")
    found = {int(state): int(count) for state, count in rows}
    assert found.keys() == {COMPLETED, CANCELLED, FAILED, REQUEUED}
    assert min(found.values()) > COPIES
    assert sum(found.values()) > 16 * COPIES
    lengths = "SELECT max(time_end - time_start), min(time_end - time_start) FROM {job} WHERE time_end > time_start"
    ((longest_s, shortest_s),) = rollup.sql(past.lab, lengths)
    assert int(longest_s) > 6 * 3600
    assert int(shortest_s) < MINUTE_S
    assert rollup.sql(past.lab, "SELECT id_user FROM {job} WHERE time_end = 0") == [[str(past.lab.users["alice"].uid)]]
    assert rollup.suspended_s(past.lab, past.since, past.until) > 3600


@pytest.mark.parametrize("window", ["days", "hours", "one hour"])
def test_users(past: Past, window: str) -> None:
    """Each user's time with each kind of device, and the same in whole GPUs, as a site reads it in our report."""
    since, until = past.windows()[window]
    theirs = _sreport(past, since, until)
    assert _held(past, since, until) == _to_the_minute(theirs)
    whole = defaultdict(float, {"bob": -rollup.suspended_s(past.lab, since, until) * SUSPENDED_WORTH})
    for (user, tres), seconds in theirs.items():
        whole[user] += seconds * WORTH.get(tres, 0)
    whole[""] = sum(whole.values())
    assert _report(past, "user", since, until) == _to_the_minute(whole)


@pytest.mark.parametrize("window", ["days", "hours"])
def test_accounts(past: Past, window: str) -> None:
    """An account's own row is that without a user; alice has runs in both accounts."""
    since, until = past.windows()[window]
    report = "cluster AccountUtilizationByUser Accounts=ml,phys"
    rows = rollup.sreport(past.lab, report, "Account,Login,TRESName,Used", since, until, TRES)
    whole = defaultdict(float, {"ml": -rollup.suspended_s(past.lab, since, until) * SUSPENDED_WORTH})
    for account, user, tres, seconds in rows:
        if not user:
            whole[account] += int(seconds) * WORTH.get(tres, 0)
    for tres, idle in _reserved(past, since, until).items():
        whole["ml"] -= idle * WORTH.get(tres, 0)
    whole[""] = sum(whole.values())
    assert _report(past, "account", since, until) == _to_the_minute(whole)


@pytest.mark.parametrize("window", ["days", "hours"])
def test_cluster(past: Past, window: str) -> None:
    """What sreport calls allocated is what all held, whatever else happened to the nodes."""
    since, until = past.windows()[window]
    rows = rollup.sreport(past.lab, "cluster utilization", "TRESName,Allocated,Down", since, until, TRES)
    reserved = _reserved(past, since, until)
    # Of g2, after its last job: two GPUs and eight shards.
    down = {tres: int(seconds) for tres, _, seconds in rows}
    assert down["gres/gpu"] == down["gres/gpu:h100"] == down["gres/shard"] / 4
    assert window == "hours" or down["gres/gpu"] >= FACTOR
    ours: Counter[str] = Counter()
    for (_, tres), seconds in _held(past, since, until).items():
        ours[tres] += seconds
    assert ours == _to_the_minute({tres: int(allocated) - reserved[tres] for tres, allocated, _ in rows})


def test_more_than_there_is(past: Past) -> None:
    """Ten GPUs for an hour and a half, where there are four, and four slices: only the cluster's sum is capped."""
    since = past.until - timedelta(days=OVERCOMMITTED_DAYS)
    until = since + timedelta(days=1)
    rows = rollup.sreport(past.lab, "cluster utilization", "TRESName,Allocated", since, until, TRES)
    allocated = {tres: int(seconds) for tres, seconds in rows if int(seconds)}
    assert allocated == {"gres/gpu": 8 * 3600 + 10 * 1800, "gres/gpu:h100": 4 * 3600 + 4 * 3600}
    theirs = _sreport(past, since, until)
    assert +theirs == {("carol", "gres/gpu"): 10 * 5400, ("carol", "gres/gpu:h100"): 10 * 5400}
    assert _report(past, "user", since, until) == {"carol": 10 * 5400, "": 10 * 5400}


@pytest.mark.skipif(not CAN_RESERVE_GRES, reason=f"reservations of Slurm {RELEASE} hold no gres")
def test_a_reservation_that_nobody_used(past: Past) -> None:
    """sreport charges it to bob, who was to have it; we say what jobs had."""
    reserved = _reserved(past, past.since, past.until)
    assert reserved["gres/gpu:h100"] >= FACTOR
    raw = rollup.sreport(past.lab, "user top Users=bob", "TRESName,Used", past.since, past.until, TRES)
    held = _held(past, past.since, past.until)
    over = {tres: int(seconds) - held["bob", tres] for tres, seconds in raw}
    assert {tres: seconds for tres, seconds in over.items() if seconds} == _to_the_minute(reserved)
