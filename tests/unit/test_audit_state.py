# SPDX-License-Identifier: Apache-2.0
"""What audits remember, and where they may keep it."""

import os
import sqlite3
from pathlib import Path

import pytest

from slurm_colloc.audit import state as state_module
from slurm_colloc.audit.ladder import ACTION, DOUBTFUL, FIRST, SENT, Planned, Waiver
from slurm_colloc.audit.state import MAIL, SCHEMA, Action, Message, alone, audit_folder, opened
from slurm_colloc.core import files
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import network_file_system
from tests.unit.golden import Printed
from tests.unit.noticed import finding


def message(id: str = "<1@x>", user: str = "ann") -> Message:
    return Message(id, MAIL, user, f"{user}@x")


def test_a_message_and_what_it_carries_are_there_together(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as state:
        assert state.begin_message_once(message(), [Planned(finding(), FIRST, "new")], 10.0)
        (told,) = state.notifications()
        assert told == ("COL001", "user", "c", "ann", "new", FIRST, 10.0, 10.0, "<1@x>", DOUBTFUL)
        assert [one.subject for one in state.carried("<1@x>")] == ["ann"]
        # The same again is the same.
        assert not state.begin_message_once(message(), [Planned(finding(digest="x"), FIRST, "new")], 11.0)
        assert len(state.notifications()) == len(state.messages()) == 1
    with opened(str(tmp_path)) as state:
        assert state.end_message("<1@x>", 13.0)
        assert [(one.since_s, one.state) for one in state.notifications()] == [(13.0, SENT)]
        state.seen([finding(digest="other")], 20.0, Notices())
        assert [one.last_seen_s for one in state.notifications()] == [20.0]


def test_what_was_handed_over_stays_so_and_what_was_not_taken_was_never_told(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as state:
        for number in range(3):
            due = Planned(finding(subject=str(number)), FIRST, "new")
            assert state.begin_message_once(message(f"<{number}@x>"), [due], 1.0)
        assert state.end_message("<0@x>", 2.0)
        assert state.forget_message("<1@x>")
        assert [state.end_message(f"<{number}@x>", 3.0) for number in (0, 1, 9)] == [False] * 3
        assert [state.forget_message(f"<{number}@x>") for number in (0, 1, 9)] == [False] * 3
        assert [(one.id, one.state) for one in state.messages()] == [("<2@x>", DOUBTFUL), ("<0@x>", SENT)]
        assert sorted(one.subject for one in state.notifications()) == ["0", "2"]


def test_an_action_is_recorded_before_and_after(tmp_path: Path) -> None:
    job = Action("COL001", "job", "c", "7", "new", "ann", "cancel", "begun")
    with opened(str(tmp_path)) as state:
        state.act(job, 1.0)
        assert state.actions("begun") == [job._replace(changed_s=1.0)]
        state.act(job._replace(state="done"), 2.0)
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
            state.begin_message_once(message(f"<{number}@x>"), [Planned(finding(digest=str(number)), FIRST, "")], 0.0)
        state.end_message("<0@x>", 0.0)
        state.begin("users", "A", 0.0, 401 * day, 401 * day)
        assert state.notifications() == []
        assert [one.id for one in state.messages(after_s=-1)] == ["<1@x>"]


def test_the_folder_is_closed_and_of_one_run_at_a_time(tmp_path: Path) -> None:
    folder = audit_folder(str(tmp_path))
    with opened(folder):
        assert {os.stat(path).st_mode & 0o077 for path in (folder, f"{folder}/state.sqlite")} == {0}
    with alone(folder) as first, alone(folder) as second:
        assert (first, second) == (True, False)


def test_a_state_of_a_newer_release_is_left_alone(tmp_path: Path, printed: Printed) -> None:
    with opened(str(tmp_path)):
        pass
    with sqlite3.connect(tmp_path / "state.sqlite") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    with printed.raises("audit", StoreError), opened(str(tmp_path)):
        pass


def test_a_full_disk_is_called_that(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as state:
        (pages,) = state._all("PRAGMA page_count")[0]
        state._all(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(sqlite3.Error, match="database or disk is full"):
            state.begin_message_once(message("x" * 100_000), (), 0.0)
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
