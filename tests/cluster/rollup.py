# SPDX-License-Identifier: Apache-2.0
"""What a lab ran, moved into hours that are over and rolled up: sreport knows no others.

A lab's jobs last seconds. All times of its database go through one stretching, so that what overlapped overlaps still
and no device is given twice. Copies of the whole, each stretched by another factor, are laid before it end to end.
"""

from __future__ import annotations

import subprocess
from datetime import datetime

from tests.cluster.config import cluster_name
from tests.cluster.lab import SYSTEM_PATH, Lab

TIMES = {
    "job": ("time_submit", "time_eligible", "time_start", "time_end"),
    "step": ("time_start", "time_end"),
    "suspend": ("time_start", "time_end"),
    "event": ("time_start", "time_end"),
    "resv": ("time_start", "time_end"),
}
WITH_SUSPENSION = ("job", "step")
# Above the ids that the lab's own jobs have.
COPY_IDS = 1000


def sql(lab: Lab, *statements: str) -> list[list[str]]:
    """Run statements on the lab's database, `{job}` standing for its job table, and return what they select."""
    cluster = cluster_name(lab.ports.numbers)
    text = ";\n".join(statements).format(**{name: f"`{cluster}_{name}_table`" for name in TIMES})
    argv = ["mariadb", "--no-defaults", "-S", str(lab.root / "dbrun/my.sock"), "--batch", "-N", "slurm_acct_db"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, env={"PATH": SYSTEM_PATH}, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def move(lab: Lab, factor: int, until_s: int, copies: int) -> int:
    """Make what the lab ran `factor` times as long and end at `until_s`, copies before it; return when they begin.

    What runs still goes on running, and the cluster is said to have been there all the time.
    """
    ((first, last),) = sql(lab, "SELECT min(time_submit), unix_timestamp() FROM {job}")
    span_s = int(last) - int(first)
    begin_s = until_s - span_s * factor
    places = []
    for n in range(1, copies + 1):
        shorter = 31 + n * 997 % 600
        places.append(f"({n * COPY_IDS}, {shorter}, {begin_s})")
        begin_s -= span_s * shorter

    def moved(table: str, factor: int | str, until_s: int | str) -> str:
        times = [f"{t} = if({t}, {until_s} - ({last} - cast({t} AS signed)) * {factor}, 0)" for t in TIMES[table]]
        return ", ".join(
            [*times, *([f"time_suspended = time_suspended * {factor}"] if table in WITH_SUSPENSION else ())]
        )

    ids = [f"{i} = if({i}, {i} + first_id, 0)" for i in ("id_job", "id_array_job", "het_job_id")]
    sql(
        lab,
        "CREATE TEMPORARY TABLE places (first_id INT, factor INT, until_s INT)",
        f"INSERT INTO places VALUES {', '.join(places)}",
        "CREATE TEMPORARY TABLE copies AS SELECT * FROM {job} JOIN places WHERE time_end",
        f"UPDATE copies SET job_db_inx = 0, {', '.join(ids)}, {moved('job', 'factor', 'until_s')}",
        "ALTER TABLE copies DROP first_id, DROP factor, DROP until_s",
        *(f"UPDATE {{{table}}} SET {moved(table, factor, until_s)}" for table in TIMES),
        "UPDATE {event} SET time_start = 1 WHERE node_name = ''",
        "INSERT INTO {job} SELECT * FROM copies",
    )
    return begin_s


def repeat(lab: Lab, job: int, times: int, start_s: int, end_s: int) -> None:
    """Add runs from start to end, all at once, of what this job had."""
    times_set = f"time_submit = {start_s}, time_eligible = {start_s}, time_start = {start_s}, time_end = {end_s}"
    sql(
        lab,
        f"CREATE TEMPORARY TABLE more AS SELECT * FROM {{job}} JOIN seq_1_to_{times} WHERE id_job = {job}",
        f"UPDATE more SET job_db_inx = 0, id_job = id_job + seq * 100000000, {times_set}",
        "ALTER TABLE more DROP seq",
        "INSERT INTO {job} SELECT * FROM more",
    )


def suspended_s(lab: Lab, since: datetime, until: datetime) -> float:
    """Return how long jobs were suspended between these times, each job's suspension spread over all of its run."""
    start_s, end_s = since.timestamp(), until.timestamp()
    ((found,),) = sql(
        lab,
        f"SELECT coalesce(sum((least(time_end, {end_s}) - greatest(time_start, {start_s})) * time_suspended"
        " / (time_end - time_start)), 0) FROM {job} "
        f"WHERE time_suspended AND time_start < {end_s} AND time_end > {start_s}",
    )
    return float(found)


def roll_up(lab: Lab, since: datetime, until: datetime) -> None:
    """Have slurmdbd roll these hours up now; by itself it does so at each hour's end, and once only."""
    done = lab.run(["sacctmgr", "-i", "rollup", _stamp(since), _stamp(until)], timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def sreport(lab: Lab, report: str, fields: str, since: datetime, until: datetime, tres: str) -> list[list[str]]:
    """Return the rows of one of sreport's reports, times in seconds."""
    window = [f"Start={_stamp(since)}", f"End={_stamp(until)}"]
    argv = ["sreport", "-t", "seconds", "-P", "-n", "-T", tres, *report.split(), *window, f"format={fields}"]
    return [line.split("|") for line in lab.run(argv, check=True).stdout.splitlines()]


def _stamp(at: datetime) -> str:
    # Slurm's commands read and print times of the zone that they run in.
    return at.astimezone().strftime("%Y-%m-%dT%H:%M:%S")
