# SPDX-License-Identifier: Apache-2.0
"""A site whose pieces harm too many jobs places none, until a person says so."""

import json
import os
import pwd
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.cli.colloc import ingest
from slurm_colloc.core.config import Paths
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.model import LATE, Gres
from slurm_colloc.estimate.harm import Harm
from slurm_colloc.estimate.site_stop import Stop, read_stop, stop_path, why_stopped, write_stop
from slurm_colloc.feedback.harm import JudgedRun, judged_runs, stop_where_too_many, too_many, too_many_late
from slurm_colloc.feedback.user_histories import Collected
from slurm_colloc.store.store import Store
from tests.unit.made import MIG_POOL, MPS_POOL, decision, evidence, run, site
from tests.unit.mail_service import mail_service, plain
from tests.unit.programs import colloc

DAY_S = 86400.0
NAME = pwd.getpwuid(os.geteuid()).pw_name


def judged(user: int, ended_s: float, harm: Harm | None, mode: str = "mig") -> JudgedRun:
    ran = evidence(mode=mode, ended_s=ended_s)
    return JudgedRun(f"u{user}", ran, harm, 0, 0, arm="", rule="", offered=True, gpu_hours=1.0)


def day(harmed: int, of: int, users: int = 2, harm: Harm = Harm.SLOWER, mode: str = "mig") -> list[JudgedRun]:
    return [judged(number % users, 100.0, harm if number < harmed else Harm.NONE, mode) for number in range(of)]


def stopped(runs: list[JudgedRun], state: str, now_s: float) -> str:
    why, late = stop_where_too_many(runs, state, now_s)
    assert not late
    return why


@pytest.mark.parametrize(
    ("runs", "stops"),
    [
        (day(2, 50), False),
        (day(3, 50), True),
        (day(3, 49), False),
        (day(5, 200), False),
        (day(6, 200), True),
        (day(15, 1000), False),
        (day(16, 1000), True),
        (day(50, 50, users=1), False),
        (day(50, 50, harm=Harm.FAILED), False),
        (day(50, 50, harm=Harm.LOST), False),
        (day(50, 50, mode="exclusive"), False),
        ([*day(3, 49), judged(1, 100.0, None)], False),
        # Of a short run nobody knows whether it was slower, and everybody that it had memory and time enough.
        ([*day(3, 3, harm=Harm.TIME_LIMIT), *(judged(1, 100.0, None) for _ in range(47))], True),
        ([*day(3, 3, harm=Harm.SLOWER), *(judged(1, 100.0, None) for _ in range(47))], False),
        ([*day(3, 49), judged(1, -1.0, Harm.NONE)], False),
        ([], False),
    ],
)
def test_more_than_one_percent_for_certain(runs: list[JudgedRun], stops: bool) -> None:
    assert bool(too_many(runs, 0.0)) is stops


def test_a_bad_day_stops_the_site_until_somebody_resumes(tmp_path: Path) -> None:
    state, bad = str(tmp_path), day(20, 100)
    assert not stopped(day(0, 100), state, 200.0)
    assert not why_stopped(state)
    assert "20 of 100 runs" in stopped(bad, state, 200.0)
    assert "colloc site resume" in why_stopped(state)
    # It is said once, and a good day after it changes nothing.
    assert not stopped(bad, state, 300.0)
    assert not stopped(day(0, 100), state, 300.0)
    assert why_stopped(state)
    write_stop(state, Stop("", 300.0))
    assert not stopped(bad, state, 400.0)
    assert not why_stopped(state)
    assert stopped([one._replace(run=one.run._replace(ended_s=350.0)) for one in bad], state, 400.0)


def late(
    harmed: int, users: int = 2, harm: Harm = Harm.OUT_OF_MEMORY, mode: str = "mps", **fields: Any
) -> list[JudgedRun]:
    """Return so many harmed runs, each of its own job, among many that were not."""
    of = [*day(harmed, harmed, users, harm, mode), *day(0, 200)]
    runs = (one.run._replace(job_id=str(number)) for number, one in enumerate(of))
    return [one._replace(arm=LATE, run=run)._replace(**fields) for one, run in zip(of, runs, strict=True)]


@pytest.mark.parametrize(
    ("runs", "stops"),
    [
        (late(4), False),
        (late(5), True),
        (late(5, harm=Harm.SLOWER), True),
        (late(5, harm=Harm.FAILED), False),
        (late(5, harm=Harm.LOST), False),
        (late(5, users=1), False),
        (late(5, arm=""), False),
        (late(5, mode="exclusive"), False),
        ([*late(4), *late(4)], False),
        ([], False),
    ],
)
def test_five_jobs_of_two_users_that_were_harmed_late(runs: list[JudgedRun], stops: bool) -> None:
    assert bool(too_many_late(runs, 0.0)) is stops
    assert not too_many_late(runs, 100.0)


def test_harm_of_jobs_that_waited_stops_late_binding_alone_for_a_month(tmp_path: Path) -> None:
    state, bad = str(tmp_path), late(5)
    assert stop_where_too_many(bad, state, 101.0 + 30 * DAY_S) == ("", "")
    why, said = stop_where_too_many(bad, state, 200.0)
    assert (why, said.split()[0]) == ("", "5")
    assert not why_stopped(state)
    assert "colloc site resume" in why_stopped(state, late=True)
    assert stop_where_too_many(bad, state, 300.0) == ("", ""), "it is said once"
    write_stop(state, Stop("", 300.0))
    assert stop_where_too_many(bad, state, 400.0) == ("", "")


def test_of_yesterday_nothing_counts(tmp_path: Path) -> None:
    assert not stopped(day(20, 100), str(tmp_path), 101.0 + DAY_S)


def test_runs_are_judged_by_user_and_job_and_what_slurm_gave_is_believed(tmp_path: Path) -> None:
    store, piece = Store(str(tmp_path), site(MIG_POOL)), (Gres("gpu", "h100_1g.10gb", 1),)
    rows = [
        run("1", 100, 200, node_list="m1"),
        run("2", 300, 500, node_list="m1", gres=piece),
        run("3", 300, 500, node_list="m1", gres=piece),
        run("4", 300, 500, node_list="m1", gres=piece, user="bob"),
        run("5", 600, 700, node_list="m1", gres=piece, state="FAILED", user="bob"),
        run("6_1", 600, 700, job_id_raw="7", gres=piece, state="FAILED"),
        run("6_2", 600, 700, job_id_raw="6", gres=piece),
        # It began again with what was asked.
        run("10", 600, 700, gres=piece, state="REQUEUED"),
        run("10", 760, 900, submit_s=700, node_list="m1"),
        # An array of two GPUs each, and a job that did not go through csub.
        run("8", 600, 700, gres=(Gres("gpu", "h100", 2),)),
        run("9", 600, 700, gres=piece),
    ]
    store.write_allocations("a", rows, 1e6)
    own = [decision(str(number), mode="exclusive", at_s=50.0) for number in (1, 8)]
    own += [decision("2", at_s=290.0), decision("3", at_s=290.0, signature="b"), decision("4", at_s=290.0, user="bob")]
    own += [decision("5", at_s=590.0, user="bob"), decision("6", at_s=590.0, signature="c", out_of_memory=True)]
    own += [decision("10", at_s=590.0, signature="d", out_of_memory=True)]
    # The same once more, as it was before anything was known of its end.
    store.write_decisions((one.user, one) for one in [*own, decision("6", at_s=590.0, signature="c")])
    with store.connect() as database:
        found = judged_runs(database, site(MIG_POOL))
    assert [(one.run.mode, one.harm) for one in found if one.run.job_id == "10"] == [
        ("mig", Harm.OUT_OF_MEMORY),
        ("exclusive", None),
    ]
    assert {one.run.job_id: (one.user, one.run.mode, one.harm) for one in found if one.run.job_id != "10"} == {
        "1": ("ann", "exclusive", None),
        "2": ("ann", "mig", Harm.NONE),
        "3": ("ann", "mig", None),
        "4": ("bob", "mig", None),
        "5": ("bob", "mig", None),
        "7": ("ann", "mig", Harm.OUT_OF_MEMORY),
        "6": ("ann", "mig", None),
    }
    slow = site(MIG_POOL, max_slowdown=1.9)
    with store.connect() as database:
        assert [one.harm for one in judged_runs(database, slow) if one.run.job_id == "2"] == [Harm.SLOWER]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"why": 1}', '{"other": 1}', '{"resumed_s": NaN}', "[" * 100_000])
def test_what_cannot_be_read_places_nothing(tmp_path: Path, content: str) -> None:
    path = Path(stop_path(str(tmp_path)))
    path.parent.mkdir()
    path.write_text(content)
    assert why_stopped(str(tmp_path))
    with pytest.raises(StoreError):
        read_stop(str(tmp_path))


def test_the_file_names_nobody(tmp_path: Path) -> None:
    stopped(day(20, 100), str(tmp_path), 200.0)
    path = Path(stop_path(str(tmp_path)))
    assert json.loads(path.read_text()).keys() == {"why", "resumed_s", "late"}
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_bad_day_taken_in_stops_csub_and_tells_the_admins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30 runs on shares of each of two users, ten ran out of memory, as their decisions say."""
    start, store = int(time.time()) - 40_000, Store(str(tmp_path / "store"))
    decisions, rows = {}, []
    for number in range(60):
        job_id, user = str(number + 1), (NAME, "daemon")[number % 2]
        began = start + 600 * number
        of = decision(job_id, user=user, mode="mps", at_s=float(began - 1), out_of_memory=number < 20, arm=LATE)
        decisions[user, job_id] = (pwd.getpwnam(user).pw_uid, of)
        state = "FAILED" if number < 20 else "COMPLETED"
        rows.append(run(job_id, began, began + 300, user=user, gres=(Gres("mps", "", 50),), state=state))
    # What did not run out is known to be unharmed by a run on a whole GPU.
    for user in (NAME, "daemon"):
        job_id, began = f"9{user}", start - 1000 - 300 * (user == NAME)
        decisions[user, job_id] = (
            pwd.getpwnam(user).pw_uid,
            decision(job_id, user=user, mode="exclusive", at_s=float(began - 1)),
        )
        rows.append(run(job_id, began, began + 290, user=user))
    store.write_allocations("a", rows, 1.0)
    monkeypatch.setattr(ingest, "collect_decisions", lambda _: Collected(decisions, 0))
    taken = mail_service(tmp_path, monkeypatch)
    settings = Notices("admins", sender="hpc@example.org", admins=("root@example.org",))
    config = site(MPS_POOL)._replace(
        policy="auto", cluster="c", notices=settings, paths=Paths(state=str(tmp_path / "state"))
    )
    ingest._history(store, config)
    assert "20 of 60 runs" in why_stopped(config.state_folder)
    assert read_stop(config.state_folder).late.startswith("20 jobs")
    mails = taken.to("root@example.org")
    assert ["colloc site resume" in plain(mail) for mail in mails] == [True, True]
    ingest._history(store, config)
    assert len(taken.mails) == 2, "each is said once"


def test_a_person_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'schema = 1\nslurm_release = "22.05"\ncluster = "c"\n[paths]\nstate = "{tmp_path}/state"\n')
    monkeypatch.setenv("COLLOC_CONF", str(path))
    assert stopped(day(20, 100), f"{tmp_path}/state", 200.0)
    assert colloc("site", "resume") == 0
    assert "20 of 100 runs" in colloc.out
    assert not why_stopped(f"{tmp_path}/state")
    assert colloc("site", "resume") == 0
    assert "nothing had stopped" in colloc.out
