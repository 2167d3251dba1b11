# SPDX-License-Identifier: Apache-2.0
"""What audits remember, and where they may keep it."""

import os
import sqlite3
from pathlib import Path

import pytest

from slurm_colloc.audit import state as state_module
from slurm_colloc.audit.escalation import (
    ACTION,
    DOUBTFUL,
    FIRST,
    NOTHING,
    SENT,
    Notification,
    Planned,
    Waiver,
    in_doubt,
)
from slurm_colloc.audit.state import SCHEMA, alone, audit_folder, opened
from slurm_colloc.core import files
from slurm_colloc.core.audit_model import Finding
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import network_file_system
from tests.unit.golden import Printed
from tests.unit.noticed import finding


def message(at_s: float, *found: Finding, id: str = "<1@x>") -> list[Notification]:
    return in_doubt(id, "ann", "ann@x", at_s, [Planned(one, FIRST, "new") for one in found])


def test_a_message_and_what_it_carries_are_there_together(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as state:
        assert state.begin_message_once(message(10.0, finding()))
        (told,) = state.notifications()
        step = ("COL001", "user", "c", "ann", "new", FIRST, 10.0, 10.0, "<1@x>", DOUBTFUL)
        assert told == (*step, "ann", "ann@x", "", "", 10.0)
        # The same again is the same.
        assert not state.begin_message_once(message(11.0, finding(digest="x")))
        assert len(state.notifications()) == len(state.messages()) == 1
    with opened(str(tmp_path)) as state:
        assert state.end_message("<1@x>", 13.0)
        assert [(one.since_s, one.state) for one in state.notifications()] == [(13.0, SENT)]
        state.seen([finding(digest="other")], 20.0, Notices())
        assert [one.last_seen_s for one in state.notifications()] == [20.0]


def test_one_table_has_all_that_was_told_and_done(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as state:
        assert tuple(name for _, name, *_ in state._all("PRAGMA table_info(told)")) == Notification._fields
        job = finding(about="job", subject="7")
        action = Notification(
            "COL001", "job", "c", "7", "new", ACTION, 3.0, 3.0, "cancel", "done", "ann", changed_s=3.0
        )
        assert state.begin_message_once(message(1.0, finding(), job))
        assert state.begin_message_once(in_doubt("<2@x>", "", "root@x", 2.0, topic="users COL001"))
        assert not state.begin_message_once(in_doubt("<2@x>", "", "root@x", 3.0, topic="users COL001"))
        state.put(action)
        assert [(one.subject, one.step, one.message) for one in state.notifications()] == [
            ("ann", FIRST, "<1@x>"),
            ("7", FIRST, "<1@x>"),
            ("", NOTHING, "<2@x>"),
            ("7", ACTION, "cancel"),
        ]
        assert [(one.message, one.recipient) for one in state.messages()] == [("<1@x>", "ann@x"), ("<2@x>", "root@x")]
        assert state.actions() == [action]
        # What is found still is so of each step and of what was done, and of nothing else.
        state.seen([job], 9.0, Notices())
        assert [one.last_seen_s for one in state.notifications()] == [1.0, job.newest_s, 2.0, job.newest_s]
        assert state.last_sent("users COL001") is None
        assert state.end_message("<2@x>", 4.0)
        assert state.last_sent("users COL001") == 4.0


def test_what_was_handed_over_stays_so_and_what_was_not_taken_was_never_told(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as state:
        for number in range(3):
            assert state.begin_message_once(message(1.0, finding(subject=str(number)), id=f"<{number}@x>"))
        assert state.end_message("<0@x>", 2.0)
        assert state.forget_message("<1@x>")
        assert [state.end_message(f"<{number}@x>", 3.0) for number in (0, 1, 9)] == [False] * 3
        assert [state.forget_message(f"<{number}@x>") for number in (0, 1, 9)] == [False] * 3
        assert [(one.message, one.state) for one in state.messages()] == [("<2@x>", DOUBTFUL), ("<0@x>", SENT)]
        assert sorted(one.subject for one in state.notifications()) == ["0", "2"]


def test_an_action_is_recorded_before_and_after(tmp_path: Path) -> None:
    job = Notification("COL001", "job", "c", "7", "new", ACTION, 1.0, 1.0, "cancel", "begun", "ann", changed_s=1.0)
    with opened(str(tmp_path)) as state:
        state.put(job)
        assert state.actions("begun") == [job]
        state.put(job._replace(since_s=2.0, state="done", changed_s=2.0))
        assert [(one.since_s, one.changed_s) for one in state.actions()] == [(1.0, 2.0)]
        assert [one.state for one in state.actions(after_s=1.0)] == ["done"]
        assert state.actions("begun") == state.actions(after_s=2.0) == []
        assert [(one.step, one.message, one.state) for one in state.notifications()] == [(ACTION, "cancel", "done")]


def test_waivers(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as state:
        for until_s in (1.0, None):
            state.waive(Waiver("ann", "", "", until_s, "root", "why"), 0.0)
        assert state.waivers() == [Waiver("ann", "", "", None, "root", "why")]
        assert state.end_waiver("ann", "", "")
        assert not state.end_waiver("ann", "", "")


def test_runs_and_what_is_forgotten(tmp_path: Path) -> None:
    day = 86_400.0
    with opened(str(tmp_path)) as state:
        first = state.begin("users", "A", 0.0, 100.0, 100.0)
        assert state.last_good("users", "A") is None
        state.end(first, 1, 110.0)
        state.end(state.begin("users", "A", 0.0, 200.0, 200.0), 2, 210.0)
        assert state.last_good("users", "A") == 100.0
        assert state.last_good("users", "B") is None
        assert (state.last_success("A"), state.last_success("B")) == (110.0, None)
        for number in range(2):
            state.begin_message_once(message(0.0, finding(digest=str(number)), id=f"<{number}@x>"))
        state.end_message("<0@x>", 0.0)
        state.begin("users", "A", 0.0, 401 * day, 401 * day)
        # A person must say of a doubt whether it went, however late.
        assert [one.message for one in state.notifications()] == ["<1@x>"]
        assert [one.message for one in state.messages()] == ["<1@x>"]


def test_the_folder_is_closed_and_of_one_run_at_a_time(tmp_path: Path) -> None:
    folder = audit_folder(str(tmp_path))
    with opened(folder):
        assert {os.stat(path).st_mode & 0o077 for path in (folder, f"{folder}/state.sqlite")} == {0}
    with alone(folder) as first, alone(folder) as second:
        assert (first, second) == (True, False)


@pytest.mark.parametrize("schema", [1, SCHEMA + 1])
def test_a_state_of_another_release_is_left_alone(tmp_path: Path, schema: int, printed: Printed) -> None:
    with opened(str(tmp_path)):
        pass
    with sqlite3.connect(tmp_path / "state.sqlite") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.execute(f"PRAGMA user_version = {schema}")
    connection.close()
    with printed.raises("audit", StoreError, f"has schema {schema}", case=str(schema)), opened(str(tmp_path)):
        pass
    with pytest.raises(StoreError, match=f"has schema {schema}"), opened(str(tmp_path), copy=True):
        pass


def test_a_full_disk_is_called_that(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as state:
        (pages,) = state._all("PRAGMA page_count")[0]
        state._all(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(sqlite3.Error, match="database or disk is full"):
            state.begin_message_once(message(0.0, id="x" * 100_000))
    with opened(str(tmp_path)) as state:
        assert state.messages() == []


def test_a_damaged_state_is_an_error_that_names_it(tmp_path: Path, printed: Printed) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"no database" * 1000)
    with printed.raises("audit", StoreError, r"state\.sqlite"), opened(str(tmp_path)):
        pass


def test_no_network_file_system_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    assert network_file_system(str(tmp_path)) == ""
    magic = {0x9FA0: "proc for this test"}
    monkeypatch.setattr(files, "_NETWORK", magic)
    assert network_file_system("/proc") == "proc for this test"
    with pytest.raises(OSError, match="No such file"):
        network_file_system(str(tmp_path / "none"))
    monkeypatch.setattr(state_module, "network_file_system", lambda path: "NFS")
    with printed.raises("audit", StoreError, "NFS"):
        audit_folder(str(tmp_path))
