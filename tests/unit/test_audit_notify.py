# SPDX-License-Identifier: Apache-2.0
"""colloc audit run --notify from its arguments to the mail service, also when it is killed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from slurm_colloc.audit.rules import RULES
from slurm_colloc.audit.state import alone
from slurm_colloc.cli.colloc.audit import _line
from slurm_colloc.core.audit_model import JobLine
from slurm_colloc.core.clock import now
from slurm_colloc.report.digest import ACTED, USER, ActionMail, Digest, digest_maker
from slurm_colloc.report.text import local
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.hostile import HOSTILE
from tests.unit.made import DELIMITER, HOUR, device, process, run, seen
from tests.unit.mail_service import Taken, html, mail_service, plain
from tests.unit.noticed import idle_now, idle_site
from tests.unit.programs import colloc, program, timeless
from tests.unit.stored import stored
from tests.unit.test_cli_job import SACCT
from tests.unit.test_jobs import row

DAY = 86_400
IDLE = device(gpu_util_pct=0.0, sm_active_pct=0.0, gpu_mem_used_mib=500)
SITE = """
schema = 1
cluster = "c"
slurm_release = "22.05"
[paths]
state = "{state}"
[[audit.rule]]
code = "COL001"
bounds = {{ min_gpu_hours = 0.5, reading_age_min = 1e9 }}
{others}
[notices]
mode = "{mode}"
sender = "hpc@example.org"
admins = ["root@example.org"]
address = "{{user}}@example.org"
workdays = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
"""
OTHERS = "\n".join(f'[[audit.rule]]\ncode = "{code}"\ntell = "nobody"' for code in RULES if code != "COL001")
Began = Callable[..., None]


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Taken:
    return mail_service(tmp_path, monkeypatch)


@pytest.fixture
def site(tmp_path: Path, taken: Taken, monkeypatch: pytest.MonkeyPatch) -> Began:
    """Write a site.toml that sends mails, and a store in which these users' jobs idled."""
    return lambda *users, **more: made_site(tmp_path, monkeypatch, *users, **more)


def made_site(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *users: str,
    mode: str = "users",
    more: str = "",
    job: str = "x",
) -> None:
    (folder / "site.toml").write_text(SITE.format(others=OTHERS, state=folder / "state", mode=mode) + more)
    monkeypatch.setenv("COLLOC_CONF", str(folder / "site.toml"))
    idle_runs(folder, *users, job=job)


def idle_runs(folder: Path, *users: str, began_s: int | None = None, first: int = 1, job: str = "x") -> None:
    start_s = began_s or int(now() - 2 * DAY)
    rows, rounds = [], []
    for number, user in enumerate(users, first):
        node, id = f"g{number}", str(number)
        rows.append(run(id, start_s, start_s + HOUR, user=user, node_list=node, job_name=job))
        rounds += [
            seen(start_s + at_s, [IDLE], [process(id, 7, gpu_mem_used_mib=500)], interval_s=900.0, node=node)
            for at_s in (900, 1800, 2700, 3600)
        ]
    stored(folder / "state/store", rows, rounds).write_log("a", {})


def change(folder: Path, old: str, new: str) -> None:
    """Change what site.toml says."""
    text = (folder / "site.toml").read_text()
    assert old in text
    (folder / "site.toml").write_text(text.replace(old, new))


def later(monkeypatch: pytest.MonkeyPatch, by_s: float) -> float:
    """Let all that asks for the time be so much later; return it."""
    at_s = now() + by_s
    modules = (
        "core.clock",
        "cli.colloc.audit_notify",
        "cli.colloc.audit",
        "store.window",
        "audit.post",
        "audit.job_actions",
    )
    for name in modules:
        monkeypatch.setattr(f"slurm_colloc.{name}.now", lambda: at_s)
    return at_s


def test_everybody_gets_one_mail_and_the_admins_know_who(
    site: Began, taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    taken.odd("bob@example.org", "67")
    site("ann", "bob", "eve")
    assert colloc("audit", "run", "--notify") == 2  # one was not taken
    (mail,) = taken.to("ann@example.org")
    assert len(plain(mail).splitlines()) <= 14
    (summary,) = taken.to("root@example.org")
    assert summary["Subject"] == "[c] audit: 3 findings, 1 problem"
    printed("audit", timeless(colloc.out))
    printed("audit-mail", timeless(plain(mail)))
    printed("audit-mail", timeless(plain(summary)))
    # Who was told is not told again, and the admins hear once in a period, whatever changes meanwhile.
    taken.odd("bob@example.org", "")
    assert colloc("audit", "run", "--notify") == 1
    idle_runs(tmp_path, "ann", "zoe", first=21)
    assert colloc("audit", "run", "--notify") == 1
    told = [len(taken.to(f"{one}@example.org")) for one in ("ann", "bob", "eve", "zoe", "root")]
    assert told == [1, 1, 1, 1, 1]
    # What came of the mails in between is in the next one.
    later(monkeypatch, 86_400)
    assert colloc("audit", "run", "--notify") == 1
    (_, summary) = taken.to("root@example.org")
    printed("audit-mail", timeless(plain(summary)))
    assert len(taken.ids()) == len(set(taken.ids()))


def test_a_mail_begins_with_the_line_that_does_what_it_says(
    site: Began, taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    site("ann")
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#SBATCH --gpus=h100:1\ntrue\n")
    submitted = row("1", WorkDir=str(tmp_path), SubmitLine="sbatch -t 10 train.sh", JobName="train.sh")
    (tmp_path / "rows").write_text(submitted.replace(DELIMITER, "|"))
    program(tmp_path, "sacct", SACCT.replace("{folder}", str(tmp_path)), monkeypatch)
    program(tmp_path, "scontrol", "exit 1\n", monkeypatch)
    program(tmp_path, "sbatch", f'echo "$PWD $*" > "{tmp_path}/typed"\n', monkeypatch)
    assert colloc("audit", "run", "--notify") == 1
    (mail,) = taken.to("ann@example.org")
    printed("audit-mail", timeless(plain(mail)))
    (command,) = (text.partition(" $ ")[2] for text in plain(mail).splitlines() if " $ " in text)
    assert command in html(mail).replace("&amp;", "&")
    subprocess.run(["sh", "-c", command], check=True)
    assert (tmp_path / "typed").read_text() == f"{tmp_path} -t 10 --gpus=0 train.sh\n"


def test_a_job_that_idles_is_ended_and_what_is_not_sure_is_no_line(tmp_path: Path) -> None:
    store, config = Store(str(tmp_path / "none")), idle_site(str(tmp_path))
    job = idle_now(idle_since_s=0.0)
    assert _line(job, store, config) == "scancel 12_3"
    worst = JobLine("1", "train", "gpu:h100:1", "gpu", 0.0, 1.0)
    ended = job._replace(idle_since_s=None, code="COL001", jobs=(worst,))
    assert [_line(one, store, config) for one in (ended, ended._replace(code="COL011"))] == ["", ""]


def test_the_second_notice_and_what_is_left_alone(
    site: Began, taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    site("ann", "bob")
    assert colloc("audit", "run", "--notify") == 1
    at_s = later(monkeypatch, 15 * DAY - HOUR)
    idle_runs(tmp_path, "ann", "bob", began_s=int(at_s - DAY), first=11)
    assert colloc("audit", "optout", "bob", "--rule", "COL001", "--why", "a course") == 0
    assert colloc("audit", "run", "--notify") == 1
    first, second = (plain(mail).splitlines() for mail in taken.to("ann@example.org"))
    printed("audit-mail", *(line for line in (*first, *second) if line.startswith("1. ")))
    assert len(taken.to("bob@example.org")) == 1


def test_nothing_is_sent_unless_a_site_says_so(site: Began, taken: Taken, tmp_path: Path, printed: Printed) -> None:
    site("ann", mode="off")
    assert colloc("audit", "run", "--notify") == 1
    printed("audit", timeless(colloc.out))
    site("ann", mode="admins")
    assert colloc("audit", "run", "--notify") == 1
    (summary,) = taken.mails
    assert summary["To"] == "root@example.org"
    printed("audit-mail", timeless(plain(summary)))
    # Who was not told is told when mails are switched on.
    site("ann")
    assert colloc("audit", "run", "--notify") == 1
    assert len(taken.to("ann@example.org")) == 1


def test_waivers_and_what_is_in_doubt(
    site: Began, taken: Taken, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    site("ann", "bob", "eve")
    assert colloc("audit", "optout", "bob") == 0
    assert colloc("audit", "optout") == 0
    printed("audit", colloc.out.partition(", says ")[0])
    for user in ("ann", "eve"):
        taken.odd(f"{user}@example.org", "take and die")
    assert colloc("audit", "run", "--notify") == 2
    assert "2 messages in doubt: " in colloc.err
    assert colloc("audit", "mail") == 0
    lines = colloc.out.splitlines()
    assert lines[0].startswith("in doubt since ")
    assert lines[0].endswith(": ann@example.org, 1 finding")
    ids = {str(mail["To"]).partition("@")[0]: str(mail["Message-ID"]) for mail in taken.mails}
    assert lines[1] == f"    {ids['ann']}"
    assert ids["ann"] in plain(taken.to("root@example.org")[0])
    for user in ("ann", "eve"):
        taken.odd(f"{user}@example.org", "")
    assert colloc("audit", "run", "--notify") == 1
    assert [len(taken.to(f"{user}@example.org")) for user in ("ann", "bob", "eve")] == [1, 0, 1]
    # A person has looked into the mail service's log.
    assert colloc("audit", "mail", "--arrived", ids["ann"]) == 0
    assert colloc("audit", "mail", "--again", ids["eve"]) == 0
    assert colloc("audit", "mail", "--again", ids["ann"]) == 2  # it is settled
    assert colloc("audit", "run", "--notify") == 1
    assert [len(taken.to(f"{user}@example.org")) for user in ("ann", "bob", "eve")] == [1, 0, 2]
    assert colloc("audit", "mail") == 0
    assert colloc.out == ""
    printed("audit", colloc.err)
    assert colloc("audit", "optout", "bob", "--end") == 0
    assert colloc("audit", "optout", "bob", "--end") == 2
    for argv in (["ann", "--subject", "7"], ["ann", "--rule", "COL1"], ["ann", "--until", "2020-01-01"]):
        assert colloc("audit", "optout", *argv) == 2


def test_nobody_is_excused_at_first(site: Began, printed: Printed) -> None:
    site("ann")
    assert colloc("audit", "optout") == 0
    assert colloc.out == ""
    printed("audit", colloc.err)


def test_a_rules_name_stands_for_its_code_in_a_waiver(site: Began, printed: Printed) -> None:
    site("ann")
    assert colloc("audit", "optout", "ann", "--rule", "idle") == 0
    assert "COL001" in colloc.out
    printed("audit", colloc.out.partition(", says ")[0])
    assert colloc("audit", "optout", "ann", "--rule", "Idle", "--end") == 0
    assert colloc("audit", "optout", "ann", "--rule", "COL001", "--end") == 2


@pytest.mark.parametrize("argv", ["optout --rule COL001", "mail --arrived <x> --again <y>", "mail --test x"])
def test_what_was_half_meant_is_not_half_done(site: Began, argv: str, printed: Printed) -> None:
    site("ann")
    assert colloc("audit", *argv.split()) == 2
    printed("audit", colloc.err, case=argv)


def test_a_name_that_no_run_has_is_taken_and_doubted(site: Began, printed: Printed) -> None:
    site("ann")
    said = []
    for user in ("ann", "anna"):
        assert colloc("audit", "optout", user) == 0
        assert colloc.out.startswith(user)
        said.append(colloc.err)
    assert said[0] == ""
    printed("audit", said[1])
    # Whoever is excused no more was once.
    assert colloc("audit", "optout", "anna", "--end") == 0
    assert colloc.err == ""


@pytest.mark.parametrize("argv", [("a\udcff",), ("a\udcff", "--end"), ("ann", "--why", "\udcff")])
def test_what_no_file_can_keep_is_refused(site: Began, argv: tuple[str, ...], printed: Printed) -> None:
    site("ann")
    assert colloc("audit", "optout", *argv) == 2
    printed("audit", colloc.err.replace("a?", "?"))


def test_without_a_store_nobody_knows_whose_name_it_is(site: Began, tmp_path: Path, printed: Printed) -> None:
    site("ann")
    (tmp_path / "state/store").rename(tmp_path / "gone")
    assert colloc("audit", "optout", "ann") == 0
    printed("audit", colloc.err)


def test_two_runs_at_once(site: Began, taken: Taken, tmp_path: Path, printed: Printed) -> None:
    site("ann")
    assert colloc("audit", "mail") == 0
    with alone(str(tmp_path / "state/audit")) as held:
        assert held
        assert colloc("audit", "run", "--notify") == 2
        printed("audit", colloc.err)
        assert colloc("audit", "mail", "--again", "<x>") == 2
    assert taken.mails == []
    assert colloc("audit", "run", "--notify") == 1


def test_names_that_act_on_nothing(site: Began, taken: Taken, tmp_path: Path, printed: Printed) -> None:
    names = [name for name in HOSTILE if name and "\0" not in name and "\udcff" not in name]
    site("ann", *names, job="<script>\x1b[31m\u202e\r\nBcc: eve@example.org")
    assert colloc("audit", "run", "--notify") in (1, 2)
    mails = taken.mails
    assert {mail["To"] for mail in mails} == {"ann@example.org", "root@example.org"}
    for mail in mails:
        assert mail["Bcc"] is None
        for text in (plain(mail), html(mail)):
            assert all(letter.isprintable() or letter in "\r\n" for letter in text)
            assert "\nBcc" not in text
        assert "<script" not in html(mail)
        assert "<img" not in html(mail)
        assert "{{ 7 * 7 }}" not in html(mail) or mail["To"] == "root@example.org"
        assert "49" not in mail["Subject"]
    lines = plain(taken.to("root@example.org")[0]).splitlines()
    printed("audit-mail", *{line.partition("not told: ")[2] for line in lines} - {""})


def test_metrics(site: Began, tmp_path: Path) -> None:
    metrics = tmp_path / "colloc.prom"
    site("ann", "bob", more=f'textfile = "{metrics}"\n')
    assert colloc("audit", "run", "--notify") == 1
    assert metrics.stat().st_mode & 0o777 == 0o644
    values = dict(line.rsplit(" ", 1) for line in metrics.read_text().splitlines() if not line.startswith("#"))
    assert values['colloc_audit_findings{rule="COL001"}'] == "2"
    assert values["colloc_audit_messages_in_doubt"] == "0"
    assert (values["colloc_audit_exit_status"], values["colloc_audit_errors"]) == ("1", "0")
    success = values["colloc_audit_last_success_timestamp_seconds"]
    # A run that fails says so, and not that all is well.
    assert colloc("audit", "run", "--notify", "--store", str(tmp_path / "none")) == 2
    values = dict(line.rsplit(" ", 1) for line in metrics.read_text().splitlines() if not line.startswith("#"))
    assert values["colloc_audit_exit_status"] == "2"
    assert values["colloc_audit_last_success_timestamp_seconds"] == success
    assert not any(name.startswith("colloc_audit_findings") for name in values)
    for argv in (["--wait", "1m"], ["--notify", "--since", "3d"], ["--notify", "--user", "ann"]):
        assert colloc("audit", "run", *argv) == 2


@pytest.mark.parametrize("name", ["d", ""])
def test_nobody_is_told_of_another_cluster(
    site: Began, taken: Taken, tmp_path: Path, name: str, printed: Printed
) -> None:
    site("ann")
    change(tmp_path, 'cluster = "c"', f'cluster = "{name}"')
    assert colloc("audit", "run", "--notify") == 1
    printed("audit", *(line for line in colloc.out.splitlines() if line.startswith("COL001 ann:")))
    assert taken.to("ann@example.org") == []


def unread() -> BinaryIO:
    """Return a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "wb")


@pytest.mark.parametrize("where", ["/dev/full", ""], ids=["full", "unread"])
def test_who_is_to_be_told_is_told_where_nothing_can_be_printed(site: Began, taken: Taken, where: str) -> None:
    site("ann")
    argv = [str(Path(sys.executable).with_name("colloc")), "audit", "run", "--notify"]
    environ = {**os.environ, "PYTHONUNBUFFERED": ""}
    with open(where, "wb") if where else unread() as stdout:
        done = subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False, env=environ)
    full = b"colloc: error: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == ((2, full) if where else (1, b""))
    assert len(taken.to("ann@example.org")) == 1


def test_an_action_by_no_rule_about_jobs_is_refused(site: Began, printed: Printed) -> None:
    for rule in ("COL003", "COL999"):
        site("ann", more=f'actions = {{ {rule} = "cancel" }}\n')
        assert colloc("audit", "run", "--notify") == 2
        assert f"'{rule}'" in colloc.err
        printed("audit", colloc.err)
    # Who is never told is never acted on either.
    rule = '[[audit.rule]]\ncode = "COL001"\nname = "on trial"\ntell = "admins"\n'
    site("ann", more='actions = { "on trial" = "cancel" }\n' + rule)
    assert colloc("audit", "run", "--notify") == 2
    printed("audit", colloc.err)


def test_a_mail_that_nobody_is_to_answer_names_no_address() -> None:
    when = local(0.0)
    make = digest_maker("")
    mails = (
        (USER, Digest("c", "ann", when, when, (), 14.0, "", "")),
        (ACTED, ActionMail("c", "ann", "1", "cancelled", "COL001", False, "", "")),
    )
    for name, page in mails:
        for text in make(name, page):
            assert "answer this mail" in text
            assert "()" not in text
