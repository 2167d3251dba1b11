# SPDX-License-Identifier: Apache-2.0
"""The MailProg of slurm.conf: no mail is lost or kept waiting, or changed but for lines on a job's GPUs."""

import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_colloc.cli.colloc import mail as command
from slurm_colloc.cli.colloc.mail import Ended, _story, of_runs, parse_ended
from slurm_colloc.config import Mail, Paths, SiteConfig
from slurm_colloc.errors import ConfigError, InputError
from slurm_colloc.process import run
from slurm_colloc.site.render import Host, render_site
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.job_visibility import Visible
from tests.unit.made import run as made_run
from tests.unit.made import site, usage
from tests.unit.stored import stored

ENDED = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_USER": "ann",
    "SLURM_JOB_MAIL_TYPE": "Ended",
    "SLURM_JOB_RUN_TIME": "01:00:00",
}
SUBJECT = "Slurm Job_id=4711 Name=a b;$(x) Ended, Run time 01:00:00, COMPLETED, ExitCode 0"
STORY = r"printf 'job 4711 had one\n  and ~! used it\n\0'"


class Sent(NamedTuple):
    """What the site's mail program was called with, and read."""

    words: list[str]
    body: bytes
    status: int
    took_s: float


class Postbox:
    """A rendered MailProg before a mail program that keeps what it gets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        self.program("mail", f'printf "%s\\n" "$@" >{folder}/words; cat >{folder}/body; exit 3')
        (folder / "mail").rename(folder / "mail-program")
        config = site()._replace(paths=Paths(state="/srv/colloc"), mail=Mail(f"{folder}/mail-program"))
        files = {file.name: file for file in render_site(config, Host(str(folder)))}
        self.program("mail", "")
        (folder / "mail").write_text(
            files["colloc-mail"].text.replace("-t 10 ", "-t 1 ").replace("-k 1 10 ", "-k 1 1 ")
        )
        assert f"MailProg={files['colloc-mail'].installed}\n" in files["slurm.conf.calls"].text

    def program(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def send(self, colloc: str | None, **changed: str) -> Sent:
        if colloc is not None:
            self.program("bin/colloc", colloc)
        began = time.monotonic()
        done = run([str(self.folder / "mail"), "-s", SUBJECT, "ann@x.org"], 30, ENDED | changed)
        took_s = time.monotonic() - began
        words = (self.folder / "words").read_text().splitlines()
        return Sent(words, (self.folder / "body").read_bytes(), done.status, took_s)


@pytest.fixture
def postbox(tmp_path: Path) -> Postbox:
    return Postbox(tmp_path)


def test_the_mail_of_a_job_with_gpus_has_its_story(postbox: Postbox) -> None:
    sent = postbox.send(STORY)
    assert sent.words == ["-s", SUBJECT, "ann@x.org"]
    assert sent.body == b"job 4711 had one\n  and ~! used it\n"
    assert sent.status == 3  # what slurmctld logs is the mail program's own


@pytest.mark.parametrize(
    "colloc",
    [
        None,
        "exit 1",
        "printf 'half a sto'; exit 1",
        "printf 'half a sto'; kill -9 $$",
        "printf 'half a sto'; sleep 100",
        "trap '' TERM; while :; do sleep 1; done",
        "exec >&-; sleep 100",
        "cat; printf '\\0'",
        "",
    ],
)
def test_whatever_goes_wrong_slurms_own_mail_is_sent(postbox: Postbox, colloc: str | None) -> None:
    sent = postbox.send(colloc)
    assert sent.words == ["-s", SUBJECT, "ann@x.org"]
    assert sent.body == b""
    assert sent.took_s < 10


@pytest.mark.parametrize("kind", ["Began", "Requeued", "Time limit reached", "", "$(x)"])
def test_other_mails_do_not_ask(postbox: Postbox, kind: str) -> None:
    postbox.program("bin/colloc", f"touch {postbox.folder}/asked")
    assert postbox.send(None, SLURM_JOB_MAIL_TYPE=kind).body == b""
    assert not (postbox.folder / "asked").exists()


def test_what_a_job_is_called_does_not_run(postbox: Postbox) -> None:
    sent = postbox.send(STORY, SLURM_JOB_NAME="$(touch x)", BASH_ENV=f"{postbox.folder}/planted")
    assert sent.body.startswith(b"job 4711")


def test_a_mail_program_is_a_plain_path() -> None:
    for path in ("mail", "/usr/bin/mail -x", "/usr/bin/$(x)", "/usr/bin/../mail"):
        config = site()._replace(paths=Paths(state="/srv/colloc"), mail=Mail(path))
        with pytest.raises(ConfigError):
            render_site(config, Host("/opt/slurm_colloc"))


def test_without_a_mail_program_slurm_keeps_its_own() -> None:
    config: SiteConfig = site()._replace(paths=Paths(state="/srv/colloc"))
    assert "MailProg" not in "".join(file.text for file in render_site(config, Host("/opt/slurm_colloc")))


# --- which job, and what is said of it ---


def test_a_mail_is_about_the_job_or_about_all_tasks_of_an_array() -> None:
    assert parse_ended(ENDED, SUBJECT) == Ended("4711", "ann", 3600.0, False)
    array = ENDED | {"SLURM_JOB_ID": "4713", "SLURM_ARRAY_JOB_ID": "4712"}
    assert parse_ended(array, "Slurm Array Task Job_id=4712_1 (4713) Name=x Ended").job_id == "4713"
    assert parse_ended(array, "Slurm Array Summary Job_id=4712_* (4712) Name=x Ended")[::3] == ("4712", True)
    for broken in ({}, ENDED | {"SLURM_JOB_ID": "1 2"}, ENDED | {"SLURM_JOB_USER": ""}):
        with pytest.raises(InputError):
            parse_ended(broken, SUBJECT)


def test_of_an_array_the_first_tasks_are_told_and_of_a_requeued_job_the_last_run() -> None:
    runs = [usage(job_id=f"9_{task}", job_id_raw=str(10 + task), job_name=f"n{task}") for task in range(5)]
    text = of_runs(runs, Ended("9", "ann", 1.0, True), 0.0)
    assert [f"'n{task}'" in text for task in range(5)] == [True, True, True, False, False]
    assert "and 2 more with GPUs: colloc job 9\n" in text
    assert "'n4'" in of_runs(runs, Ended("9", "ann", 1.0, False), 0.0)


def test_a_mail_is_about_a_job_of_this_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = site()._replace(paths=Paths(state=str(tmp_path)))
    rows = [made_run("4711", cluster=name, job_name=f"of-{name}") for name in ("c", "other")]
    stored(tmp_path / "store", rows).write_log("a", {"rows_in": 2, "used": 2, "steps": 0, "rejected": {}})
    monkeypatch.setattr(command, "now", lambda: 3700.0)
    monkeypatch.setattr(CliClient, "gres_of", lambda *_: ())
    text = _story(config, Ended("4711", "ann", 3600.0, False))
    assert "'of-c'" in text
    assert "of-other" not in text


@pytest.mark.parametrize("seen", [Visible(False, "bob"), Visible(False, "bob", ("lab",)), Visible(False)])
def test_whoever_calls_it_is_told_no_more_than_slurm_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Visible
) -> None:
    config = site()._replace(paths=Paths(state=str(tmp_path)))
    stored(tmp_path / "store", [made_run("4711", user="ann", account="lab")]).write_log("a", {})
    monkeypatch.setattr(command, "now", lambda: 3700.0)
    monkeypatch.setattr(command, "visible_here", lambda *_: seen)
    monkeypatch.setattr(CliClient, "gres_of", lambda *_: ())
    assert _story(config, Ended("4711", "ann", 3600.0, False)) == ""
    monkeypatch.setattr(command, "visible_here", lambda *_: Visible(False, "ann"))
    assert "job 4711" in _story(config, Ended("4711", "ann", 3600.0, False))


def test_no_line_of_a_mail_is_a_command_to_the_mail_program() -> None:
    """mailx runs what stands behind '~!' at the beginning of a line where it is told to."""
    hostile = usage(job_name="x\n~!touch /tmp/x\n.\n", partition="\n~|sh\n")
    lines = of_runs([hostile], Ended("1", "ann", 1.0, False), 0.0).splitlines()
    assert not [line for line in lines if line[:1] in ("~", ".")]
    assert os.linesep.join(lines).count("?~!touch") == 1
