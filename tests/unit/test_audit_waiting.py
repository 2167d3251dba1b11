# SPDX-License-Identifier: Apache-2.0
"""Mails that wait, and what a site or a person says meanwhile; what is only tried, and what only admins see."""

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slurm_colloc.audit.state import opened
from slurm_colloc.audit.wire import ServerError
from slurm_colloc.cli.colloc.audit_outbox import outbox
from tests.unit.mail_server import Taken, html, mail_server, plain
from tests.unit.programs import colloc
from tests.unit.test_audit_notify import Began, idle_runs, later, made_site
from tests.unit.test_audit_post import receiver, secret

DAY = 86_400
WEEK = '["mon", "tue", "wed", "thu", "fri", "sat", "sun"]'


@pytest.fixture
def served() -> Iterator[tuple[int, Taken]]:
    with mail_server() as one:
        yield one


@pytest.fixture
def site(tmp_path: Path, served: tuple[int, Taken], monkeypatch: pytest.MonkeyPatch) -> Began:
    return lambda *users, **more: made_site(tmp_path, served[0], monkeypatch, *users, **more)


@pytest.fixture
def kept() -> Iterator[Path]:
    """Give a folder that another user can come to."""
    with TemporaryDirectory(prefix="colloc-mail-", dir="/var/tmp") as folder:
        yield Path(folder)


def runs() -> int:
    return colloc("audit", "run", "--notify")


def change(folder: Path, old: str, new: str) -> None:
    text = (folder / "site.toml").read_text()
    assert old in text
    (folder / "site.toml").write_text(text.replace(old, new))


def test_what_waits_is_not_sent_to_who_was_excused_meanwhile(
    site: Began, served: tuple[int, Taken], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, taken = served
    users = ("ann", "bob", "eve")
    taken.odd |= {f"{user}@example.org": "later" for user in users}
    site(*users)
    runs()
    taken.odd.clear()
    assert colloc("audit", "optout", "ann") == 0
    assert colloc("audit", "ack", "bob", "--rule", "COL001", "--why", "a course") == 0
    # On a holiday nobody is told, of what waits neither.
    change(tmp_path, WEEK, "[]")
    later(monkeypatch, 3600)
    runs()
    assert [len(taken.to(f"{user}@example.org")) for user in users] == [0, 0, 0]
    change(tmp_path, "workdays = []", f"workdays = {WEEK}")
    assert runs() == 1
    assert [len(taken.to(f"{user}@example.org")) for user in users] == [0, 0, 1]
    with opened(str(tmp_path / "state/audit")) as state:
        replies = {one.user: one.reply for one in state.outbox("withdrawn")}
        assert replies["bob"].endswith(": a course")
        assert set(replies) == {"ann", "bob"}
        # What was sent, or never will be, is kept without its content.
        assert {state.content(one.id) for one in state.outbox("accepted", "withdrawn")} == {b""}
    # Once the word is taken back they are told.
    assert colloc("audit", "optout", "ann", "--end") == 0
    assert runs() == 1
    assert len(taken.to("ann@example.org")) == 1
    assert len(taken.ids()) == len(set(taken.ids()))


def test_what_waited_too_long_is_told_anew_by_present_numbers(
    site: Began, served: tuple[int, Taken], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, taken = served
    taken.odd["ann@example.org"] = "later"
    site("ann", "bob")
    assert runs() == 1
    taken.odd.clear()
    later(monkeypatch, 4.9 * DAY)
    change(tmp_path, 'mode = "users"', 'mode = "admins"')
    assert runs() == 1
    assert taken.to("ann@example.org") == []
    change(tmp_path, 'mode = "admins"', 'mode = "users"')
    at_s = later(monkeypatch, 5.1 * DAY)
    idle_runs(tmp_path, "ann", began_s=int(at_s - DAY), first=11)
    assert runs() == 2
    (mail,) = taken.to("ann@example.org")
    assert "in 1 run (job 11)" in plain(mail)
    assert "was not sent for 5 days: 451 4.2.1 come back later" in plain(taken.to("root@example.org")[-1])


def test_a_file_of_holidays_that_cannot_be_read_holds_up_no_mail_but_on_days_off(
    site: Began, served: tuple[int, Taken], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, taken = served
    taken.odd["ann@example.org"] = "later"
    site("ann")
    assert runs() == 1
    taken.odd.clear()
    later(monkeypatch, 3600)
    change(tmp_path, WEEK, f'[]\nholidays = "{tmp_path}/none"')
    assert runs() == 2
    assert taken.to("ann@example.org") == []
    change(tmp_path, "workdays = []", f"workdays = {WEEK}")
    assert runs() == 2
    assert len(taken.to("ann@example.org")) == 1


def test_what_waits_for_admins_does_not_wait_for_the_store(
    site: Began, served: tuple[int, Taken], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, taken = served
    taken.odd["root@example.org"] = "later"
    site("ann", mode="admins")
    assert runs() == 1
    taken.odd.clear()
    later(monkeypatch, 3600)
    (tmp_path / "state/store").rename(tmp_path / "gone")
    assert runs() == 2
    assert len(taken.to("root@example.org")) == 1


def test_why_a_run_ends_with_an_error_is_said_to_cron(
    site: Began, served: tuple[int, Taken], capsys: pytest.CaptureFixture[str]
) -> None:
    served[1].odd["ann@example.org"] = "no"
    site("ann")
    assert colloc("audit", "run", "--notify", "--format", "csv") == 2
    assert "1 message refused; see 'colloc audit outbox'" in capsys.readouterr().err


def test_a_rule_on_trial_speaks_to_admins_only(site: Began, served: tuple[int, Taken], tmp_path: Path) -> None:
    _, taken = served
    site("ann")
    change(tmp_path, 'code = "COL001"\n', 'code = "COL001"\ntell = "admins"\n')
    assert runs() == 1
    assert taken.to("ann@example.org") == []
    assert "not told: 'audit.rule.tell' is 'admins'" in plain(taken.to("root@example.org")[0])
    change(tmp_path, 'tell = "admins"', 'tell = "users"')
    taken.odd["ann@example.org"] = "later"
    assert runs() == 1
    # What waits is taken back where the rule goes on trial again.
    change(tmp_path, 'tell = "users"', 'tell = "admins"')
    assert runs() == 1
    with opened(str(tmp_path / "state/audit")) as state:
        assert [one.reply for one in state.outbox("withdrawn")] == ["rule 'COL001' tells users no more"]
    assert taken.to("ann@example.org") == []


def test_a_dry_run_leaves_no_trace(
    site: Began,
    served: tuple[int, Taken],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, taken = served
    dry = ("audit", "run", "--notify", "--dry-run", "--json-lines", f"{tmp_path}/lines", "--textfile", f"{tmp_path}/m")
    site("ann", "bob")
    assert colloc(*dry) == 1
    said = capsys.readouterr().out
    assert "would be sent to ann (ann@example.org): [c] 1 finding about your use of GPUs\n    Hello ann," in said
    assert "COL001 bob: would be told (new)\n" in said
    assert not (tmp_path / "state/audit").exists()
    taken.odd["bob@example.org"] = "later"
    runs()
    before = {path: path.read_bytes() for path in (tmp_path / "state/audit").iterdir()}
    mails = len(taken.mails)
    capsys.readouterr()
    assert colloc(*dry) == 1
    said = capsys.readouterr().out
    assert "COL001 ann: not told: told, and the quiet period is not over\n" in said
    # It was tried a moment ago.
    assert "waits: bob@example.org, <colloc-" in said
    later(monkeypatch, 3600)
    assert colloc(*dry) == 1
    assert "waits, and would be sent: bob@example.org, <colloc-" in capsys.readouterr().out
    for old, new in (('mode = "users"', 'mode = "admins"'), ('mode = "admins"', 'mode = "off"')):
        change(tmp_path, old, new)
        assert colloc(*dry) == 1
        assert "waits: bob@example.org, <colloc-" in capsys.readouterr().out
    change(tmp_path, 'mode = "off"', 'mode = "users"')
    change(tmp_path, WEEK, "[]")
    assert colloc(*dry) == 1
    assert "waits: bob@example.org, <colloc-" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in (tmp_path / "state/audit").iterdir()} == before
    assert len(taken.mails) == mails
    assert not (tmp_path / "lines").exists()
    assert not (tmp_path / "m").exists()
    assert colloc("audit", "run", "--dry-run") == 2


def test_a_mail_to_try_the_settings(
    site: Began, served: tuple[int, Taken], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, taken = served
    site("ann", mode="off")
    assert colloc("audit", "outbox", "--test", "me@example.org") == 0
    (mail,) = taken.mails
    assert (mail["To"], mail["From"], mail["Subject"]) == ("me@example.org", "hpc@example.org", "[c] test of notices")
    assert "the cluster c can send mails" in html(mail)
    assert capsys.readouterr().out == f"accepted: 250 taken\n    {mail['Message-ID']}\n"
    assert colloc("audit", "outbox", "--test", "me@example.org\nBcc: x@y") == 2
    taken.odd["me@example.org"] = "no"
    with pytest.raises(ServerError, match=r"the mail to 'me@example.org' is refused: 550 5\.1\.1 no such user"):
        outbox(test="me@example.org")


def test_counts_are_posted_once_in_a_period_and_the_url_stands_nowhere(
    site: Began, served: tuple[int, Taken], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as (url, got):
        path = secret(tmp_path, f"{url}/200")
        site("ann", "bob", mode="admins", more=f'webhook_file = "{path}"\n')
        assert runs() == runs() == 1
        assert [json.loads(content)["text"] for _, content in got] == ["colloc audit of c: 2 findings (COL001: 2)"]
        later(monkeypatch, DAY)
        assert runs() == 1
        assert len(got) == 2
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state/audit").iterdir())
    assert url.encode() not in kept
    os.chmod(path, 0o640)
    assert runs() == 2
    assert len(served[1].to("root@example.org")) == 2


def test_findings_are_added_to_no_file_of_others(
    site: Began, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines"
    site("ann", mode="off", more=f'json_lines = "{lines}"\n')
    lines.touch()

    def refused(said: str) -> None:
        assert runs() == 2
        assert said in capsys.readouterr().err

    lines.chmod(0o666)
    refused("to which nobody else may write")
    lines.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(lines, 65534, 65534)
        refused("belongs to uid 65534")
    lines.rename(tmp_path / "real")
    lines.symlink_to(tmp_path / "real")
    refused("Too many levels of symbolic links")
    lines.unlink()
    os.mkfifo(lines, 0o600)
    refused("it must be a file")
    assert (tmp_path / "real").read_text() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as others")
def test_root_speaks_as_the_owner_and_the_word_is_a_persons(
    site: Began, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site("ann", more=f'state = "{kept}"\n')
    owner = pwd.getpwnam("nobody")
    os.chown(kept, owner.pw_uid, owner.pw_gid)
    daemon = pwd.getpwnam("daemon")
    monkeypatch.setenv("SUDO_USER", "daemon")
    monkeypatch.setenv("SUDO_UID", str(daemon.pw_uid))
    assert colloc("audit", "optout", "ann") == 0
    assert {path.stat().st_uid for path in kept.iterdir()} == {owner.pw_uid}
    assert ", says daemon: wants none" in capsys.readouterr().out
    monkeypatch.setenv("SUDO_UID", "4242")  # not what sudo says
    assert colloc("audit", "optout", "bob") == 0
    assert ", says root: " in capsys.readouterr().out
    assert runs() == 2
    assert (
        f"folder '{kept}' belongs to nobody; call this as that user: sudo -u nobody {sys.prefix}/bin/colloc audit"
        in capsys.readouterr().err
    )
    # Of a rule that is off there are waivers still.
    assert colloc("audit", "ack", "ann", "--rule", "COL001") == 0
    text = (tmp_path / "site.toml").read_text()
    (tmp_path / "site.toml").write_text(text.replace('code = "COL001"\n', 'code = "COL001"\nenabled = false\n'))
    assert colloc("audit", "ack", "ann", "--rule", "COL001", "--end") == 0


def test_two_processes_at_once_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = [f"user{number}" for number in range(4)]
    with mail_server(slow_s=0.3) as (port, taken):
        made_site(tmp_path, port, monkeypatch, *users)
        command = [sys.executable, "-m", "slurm_colloc.cli.colloc", "audit", "run", "--notify"]
        both = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)]
        until = time.monotonic() + 60
        while not taken.events and time.monotonic() < until:
            time.sleep(0.05)
        both.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        said = [one.communicate(timeout=60)[1] for one in both]
    assert sorted(one.returncode for one in both) == [1, 2], said
    assert "another run of the audit holds" in said[1]
    assert [len(taken.to(f"{user}@example.org")) for user in users] == [1] * 4
