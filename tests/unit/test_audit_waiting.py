# SPDX-License-Identifier: Apache-2.0
"""What a site or a person says of mails; what is only tried, and what only admins see."""

import json
import os
import pwd
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slurm_colloc.audit import post
from tests.unit.golden import Printed
from tests.unit.mail_service import Taken, html, plain
from tests.unit.programs import colloc
from tests.unit.test_audit_notify import Began, change, idle_runs, later
from tests.unit.test_audit_notify import site as site
from tests.unit.test_audit_notify import taken as taken
from tests.unit.test_audit_post import command, got

DAY = 86_400
WEEK = '["mon", "tue", "wed", "thu", "fri", "sat", "sun"]'


@pytest.fixture
def kept() -> Iterator[Path]:
    """Give a folder that another user can come to."""
    with TemporaryDirectory(prefix="colloc-mail-", dir="/var/tmp") as folder:
        yield Path(folder)


def runs() -> int:
    return colloc("audit", "run", "--notify")


def test_what_was_not_taken_is_told_anew_by_present_numbers_or_not_at_all(
    site: Began, taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = ("ann", "bob", "eve")
    taken.odd("all", "75")
    site(*users)
    assert runs() == 2
    taken.odd("all", "")
    assert colloc("audit", "optout", "ann") == 0
    # On a holiday nobody is told.
    change(tmp_path, WEEK, "[]")
    assert runs() == 1
    change(tmp_path, "workdays = []", f"workdays = {WEEK}")
    at_s = later(monkeypatch, 5.1 * DAY)
    idle_runs(tmp_path, "bob", "eve", began_s=int(at_s - DAY), first=11)
    assert runs() == 1
    assert [len(taken.to(f"{user}@example.org")) for user in users] == [0, 1, 1]
    assert "in 1 run (job 11)" in plain(taken.to("bob@example.org")[0])


def test_why_a_run_ends_with_an_error_is_said_to_cron(site: Began, taken: Taken) -> None:
    taken.odd("ann@example.org", "67")
    site("ann")
    assert colloc("audit", "run", "--notify", "--format", "csv") == 2
    assert "1 message not handed over: " in colloc.err


def test_a_rule_on_trial_speaks_to_admins_only(site: Began, taken: Taken, tmp_path: Path, printed: Printed) -> None:
    site("ann")
    change(tmp_path, 'code = "COL001"\n', 'code = "COL001"\ntell = "admins"\n')
    assert runs() == 1
    assert taken.to("ann@example.org") == []
    (summary,) = map(plain, taken.to("root@example.org"))
    printed("audit-mail", *(line for line in summary.splitlines() if line.startswith("    COL001")))
    change(tmp_path, 'tell = "admins"', 'tell = "users"')
    assert runs() == 1
    assert len(taken.to("ann@example.org")) == 1


def test_a_dry_run_leaves_no_trace(
    site: Began, taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    dry = ("audit", "run", "--notify", "--dry-run")
    site("ann", "bob", more=f'textfile = "{tmp_path}/m"\n')
    assert colloc(*dry) == 1
    printed("audit", *(line for line in colloc.out.splitlines() if re.match("would|(  )?COL001 |    Hello", line)))
    assert not (tmp_path / "state/audit").exists()
    assert not (tmp_path / "m").exists()
    taken.odd("bob@example.org", "67")
    runs()
    kept = [tmp_path / "m", *(tmp_path / "state/audit").iterdir()]
    before = [path.read_bytes() for path in kept]
    mails = len(taken.mails)
    assert colloc(*dry) == 1
    printed("audit", *(line for line in colloc.out.splitlines() if re.match("would|(  )?COL001 |    Hello", line)))
    assert [tmp_path / "m", *(tmp_path / "state/audit").iterdir()] == kept
    assert [path.read_bytes() for path in kept] == before
    assert len(taken.mails) == mails
    assert colloc("audit", "run", "--dry-run") == 2


def test_a_mail_to_try_the_settings(
    site: Began, taken: Taken, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    site("ann", mode="off")
    assert colloc("audit", "mail", "--test", "me@example.org") == 0
    (mail,) = taken.mails
    assert (mail["To"], mail["From"], mail["Subject"]) == ("me@example.org", "hpc@example.org", "[c] test of notices")
    printed("audit-mail", html(mail))
    assert colloc.out.endswith(f"\n    {mail['Message-ID']}\n")
    assert colloc("audit", "mail", "--test", "me@example.org\nBcc: x@y") == 2
    for what, said in (("67", "ended with status 67"), ("hang", "did not answer within 0.5 s")):
        monkeypatch.setattr(post, "MAIL_TIMEOUT_S", 0.5)
        taken.odd("me@example.org", what)
        assert colloc("audit", "mail", "--test", "me@example.org") != 0
        assert said in colloc.err


def test_the_command_has_counts_once_in_a_period(
    site: Began, taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    path = command(tmp_path)
    site("ann", "bob", mode="admins", more=f'command = "{path}"\n')
    assert runs() == runs() == 1
    (first,) = map(json.loads, got(tmp_path))
    assert first["rules"][0]["users"] == 2
    printed("audit", first["text"])
    assert b"ann" not in got(tmp_path)[0]
    later(monkeypatch, DAY)
    assert runs() == 1
    assert len({json.loads(content)["id"] for content in got(tmp_path)}) == 2
    os.chmod(path, 0o775)
    assert runs() == 2
    assert len(taken.to("root@example.org")) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as others")
def test_root_speaks_as_the_owner_and_the_word_is_a_persons(
    site: Began, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    site("ann", more=f'state = "{kept}"\n')
    owner = pwd.getpwnam("nobody")
    os.chown(kept, owner.pw_uid, owner.pw_gid)
    daemon = pwd.getpwnam("daemon")
    monkeypatch.setenv("SUDO_USER", "daemon")
    monkeypatch.setenv("SUDO_UID", str(daemon.pw_uid))
    assert colloc("audit", "optout", "ann") == 0
    assert {path.stat().st_uid for path in kept.iterdir()} == {owner.pw_uid}
    assert ", says daemon: wants none" in colloc.out
    monkeypatch.setenv("SUDO_UID", "4242")  # not what sudo says
    assert colloc("audit", "optout", "bob") == 0
    assert ", says root: " in colloc.out
    assert runs() == 2
    printed("audit", colloc.err.replace(str(kept), "KEPT").replace(sys.prefix, "PREFIX"))
    # Of a rule that is off there are waivers still.
    assert colloc("audit", "optout", "ann", "--rule", "COL001") == 0
    change(tmp_path, 'code = "COL001"\n', 'code = "COL001"\ntell = "nobody"\n')
    assert colloc("audit", "optout", "ann", "--rule", "COL001", "--end") == 0
