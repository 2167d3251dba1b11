# SPDX-License-Identifier: Apache-2.0
"""When audits run, and over what: two timers, one lock, missed runs, an ingest that has died."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.audit.state import alone, opened
from slurm_colloc.core.clock import now
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.made import HOUR, process, run, seen
from tests.unit.mail_service import Taken, plain
from tests.unit.programs import colloc, timeless
from tests.unit.stored import sampled, stored
from tests.unit.test_audit_notify import DAY, IDLE, Began, change, later
from tests.unit.test_audit_notify import site as site
from tests.unit.test_audit_notify import taken as taken


def last_good_run(folder: Path, ago_days: float, rules: str = "COL001") -> None:
    assert colloc("audit", "mail") == 0
    with opened(str(folder / "state/audit")) as state:
        state._do("DELETE FROM runs")
        until_s = now() - ago_days * DAY
        state.end(state.begin("users", rules, 0.0, until_s, until_s), 1, until_s)


def test_missed_runs_are_judged_each_on_its_own_and_told_of_once(
    site: Began, taken: Taken, tmp_path: Path, printed: Printed
) -> None:
    site("ann")
    change(tmp_path, "min_gpu_hours = 0.5", "min_gpu_hours = 1.5")
    # ann held one hour ten days ago and one two days ago: neither week has as much as the bound, both together had.
    # bob held two hours ten days ago.
    began = {"1": int(now() - 2 * DAY)} | dict.fromkeys("234", int(now() - 10 * DAY))
    users = {"1": "ann", "2": "ann", "3": "bob", "4": "bob"}
    runs = [run(job, at_s, at_s + HOUR, user=users[job], node_list=f"g{job}") for job, at_s in began.items()]
    rounds = [
        seen(began_s + at_s, [IDLE], [process(job, 7, gpu_mem_used_mib=500)], interval_s=900.0, node=f"g{job}")
        for job, began_s in began.items()
        for at_s in (900, 1800, 2700, 3600)
    ]
    stored(tmp_path / "state/store", runs, rounds).write_log("a", {})
    last_good_run(tmp_path, 6.9)
    assert colloc("audit", "run", "--notify", "--about", "others") == 0
    last_good_run(tmp_path, 9)
    assert colloc("audit", "run", "--notify", "--about", "others", "--format", "json") == 1
    shown = json.loads(colloc.out)
    assert ([one["user"] for one in shown["findings"]], len(shown["missed"])) == ([], 1)
    assert [one["user"] for one in shown["missed"][0]["findings"]] == ["bob"]
    assert taken.to("ann@example.org") == []
    (mail,) = taken.to("bob@example.org")
    assert "   See:    colloc job " in plain(mail)
    (summary,) = taken.to("root@example.org")
    printed("audit-mail", timeless(plain(summary)))
    # The next run has missed none.
    assert colloc("audit", "run", "--notify", "--about", "others") == 0


def idles_now(folder: Path, taken_in_s: float, *, idle_s: int = 5 * HOUR, over: int = 0) -> None:
    """Make a store as an ingest made it then, in which ann's job idles for so long, or ended so many seconds before."""
    start_s = int(taken_in_s - idle_s)
    end_s = int(taken_in_s) - over
    ended = {"end_s": end_s, "state": "COMPLETED"} if over else {"end_s": None, "state": "RUNNING"}
    store = Store(str(folder / "state/store"))
    store.write_allocations("a", [run("1", start_s, **ended)], taken_in_s)
    store.write_log("a", {})
    every = range(start_s + 60, int(taken_in_s), 60)
    sampled(store, [seen(at_s, [IDLE], [process("1", 7, gpu_mem_used_mib=500)], interval_s=60.0) for at_s in every])


def jobs_site(site: Began, folder: Path, **settings: Any) -> None:
    site(**settings)
    change(folder, ", reading_age_min = 1e9", "")
    shutil.rmtree(folder / "state/store")


def test_running_jobs_have_a_run_of_their_own(site: Began, taken: Taken, tmp_path: Path, printed: Printed) -> None:
    metrics = tmp_path / "colloc.prom"
    jobs_site(site, tmp_path, more=f'textfile = "{metrics}"\nactions = {{ COL001 = "hold" }}\n')
    idles_now(tmp_path, now() - 600)
    # The nightly run leaves them out, and knows that nobody else looks at them.
    assert colloc("audit", "run", "--notify", "--about", "others") == 2
    printed("audit-mail", timeless(plain(taken.to("root@example.org")[0])))
    assert colloc("audit", "run", "--notify", "--about", "jobs") == 1
    assert colloc("audit", "run", "--notify", "--about", "others") == 3  # nothing has ended
    # Each writes metrics of its own, and neither hides the other's.
    night, jobs = metrics.read_text(), (tmp_path / "colloc-jobs.prom").read_text()
    assert 'colloc_audit_judged{about="others",rule="COL001"}' in night
    assert 'colloc_audit_findings{about="jobs",rule="COL001 (running jobs)"} 1' in jobs
    assert "running jobs" not in night
    assert colloc("audit", "run", "--about", "jobs", "--rule", "COL003") == 2


@pytest.mark.parametrize("order", [("jobs", "others"), ("others", "jobs")])
def test_one_mail_has_what_both_timers_find(
    site: Began,
    taken: Taken,
    tmp_path: Path,
    order: tuple[str, str],
) -> None:
    jobs_site(site, tmp_path)
    # Of bob the rules about running jobs find nothing: the other timer tells him.
    idles_now(tmp_path, now() - 600)
    ended_s = int(now() - DAY)
    store = Store(str(tmp_path / "state/store"))
    users = {"7": "bob", "8": "ann"}
    ended = [run(job, ended_s - HOUR, ended_s, user=users[job], node_list=f"g{job}") for job in users]
    store.write_allocations("b", ended, now())
    every = range(ended_s - HOUR + 60, ended_s, 60)
    for job in users:
        load = process(job, 7, gpu_mem_used_mib=500)
        sampled(store, [seen(at_s, [IDLE], [load], interval_s=60.0, node=f"g{job}") for at_s in every])
    assert colloc("audit", "run", "--notify", "--dry-run", "--about", order[0]) == 1
    assert colloc.out.count("(ann@example.org)") == 1
    for about in order:
        assert colloc("audit", "run", "--notify", "--about", about) == 1
    for user, jobs in (("ann", {"1", "8"}), ("bob", {"7"})):
        (mail,) = taken.to(f"{user}@example.org")
        assert set(re.findall(r"colloc job (\d+)", plain(mail))) == jobs


def test_a_job_is_told_of_once_however_many_timers_and_hours_pass(
    site: Began, taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs_site(site, tmp_path)
    change(tmp_path, "min_gpu_hours = 0.5", "min_gpu_hours = 6")
    # Five hours idle are too few for the nightly sum, and enough while it runs; seven are enough for both.
    idles_now(tmp_path, now() - 600)
    assert [colloc("audit", "run", "--notify", "--about", about) for about in ("jobs", "others")] == [1, 3]
    at_s = later(monkeypatch, 2 * HOUR)
    shutil.rmtree(tmp_path / "state/store")
    idles_now(tmp_path, at_s - 600, idle_s=7 * HOUR)
    assert colloc("audit", "run", "--notify", "--about", "jobs") == 1
    colloc("audit", "run", "--notify", "--about", "others")
    assert len(taken.to("ann@example.org")) == 1
    # It has ended.
    shutil.rmtree(tmp_path / "state/store")
    idles_now(tmp_path, at_s - 600, idle_s=7 * HOUR, over=60)
    colloc("audit", "run", "--notify", "--about", "others")
    colloc("audit", "run", "--notify")
    assert len(taken.to("ann@example.org")) == 1


def test_who_is_not_known_to_run_is_told_nothing(site: Began, taken: Taken, tmp_path: Path) -> None:
    jobs_site(site, tmp_path)
    idles_now(tmp_path, now() - 2.1 * HOUR)
    assert colloc("audit", "run", "--notify", "--about", "jobs") == 2
    said = "which jobs run is not known to COL001: runs were taken in last at "
    assert said in colloc.out
    assert said in plain(taken.to("root@example.org")[0])
    assert taken.to("ann@example.org") == []
    assert colloc("audit", "run", "--about", "jobs") == 3
    assert said in colloc.err
    # The past is judged as it was.
    looked = ("--until", "5h", "--since", "9h")
    assert colloc("audit", "run", "--about", "jobs", *looked) in (0, 1)


def test_that_no_job_runs_is_clean(site: Began, tmp_path: Path) -> None:
    jobs_site(site, tmp_path)
    idles_now(tmp_path, now() - 600, over=5 * HOUR - 60)
    assert colloc("audit", "run", "--notify", "--about", "jobs") == 0
    # An ingest that found nothing new has looked, too.
    idles_now(tmp_path, now() - 9 * HOUR, over=5 * HOUR - 60)
    assert colloc("audit", "run", "--about", "jobs") == 3
    Store(str(tmp_path / "state/store")).write_log("sacct", {"asked_until_s": now() - 60})
    assert colloc("audit", "run", "--about", "jobs") == 0


def test_a_run_waits_for_another_one(site: Began, tmp_path: Path, printed: Printed) -> None:
    site("ann")
    assert colloc("audit", "mail") == 0
    with alone(str(tmp_path / "state/audit")) as held:
        assert held
        command = [sys.executable, "-m", "slurm_colloc.cli.colloc", "audit", "run", "--notify", "--wait", "5m"]
        waits = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            waits.wait(timeout=8)
    assert waits.wait(timeout=120) == 1
    assert colloc("audit", "run", "--wait", "5m") == 2
    printed("audit", colloc.err)


def test_what_goes_wrong_unforeseen_is_an_error_and_no_finding(site: Began, monkeypatch: pytest.MonkeyPatch) -> None:
    site("ann")

    def broken(*_: object) -> None:
        raise ZeroDivisionError("what nobody thought of")

    monkeypatch.setattr("slurm_colloc.cli.colloc.audit.make_audited", broken)
    for more in ((), ("--notify",)):
        assert colloc("audit", "run", *more) == 2
        assert "ZeroDivisionError: what nobody thought of" in colloc.err
