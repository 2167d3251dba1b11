# SPDX-License-Identifier: Apache-2.0
"""Both timers' commands as they are rendered, over jobs that idle on a real cluster, and their mails."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.unit.mail_service import mail_service, plain
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
BOTH = ("jobs", "others")
# The running job's GPU is idle for as long as COL001 asks, while it runs and when it has ended; a job of 5 s is not.
BOUNDS = "min_gpu_hours=0.001, shortest_min=0.25, first_warning_min=0.3, sliding_warning_min=0.3"
RULES = f'[{{code="COL001", bounds={{{BOUNDS}}}}}]'


class Center:
    """A lab whose audits send mails, and the rendered commands of its timers."""

    def __init__(self, lab: Lab, name: str, mails: Path) -> None:
        self.lab = lab
        notices = {
            "mode": '"users"',
            "sender": '"hpc@example.org"',
            "admins": '["root@example.org"]',
            "address": '"{user}@example.org"',
            "workdays": '["mon", "tue", "wed", "thu", "fri", "sat", "sun"]',
        }
        extra = {"audit.rule": RULES, **{f"notices.{key}": value for key, value in notices.items()}}
        self.site = write_site(lab, name, extra=extra)
        path = f"{mails}:{lab.environment()['PATH']}"
        self.env = {"COLLOC_CONF": str(self.site / "site.toml"), "PATH": path}
        argv = ["colloc", "site", "render", "-o", str(self.site / "files"), "--slurm-conf", str(lab.slurm_conf)]
        lab.run([*argv, "--prefix", str(lab.bin.parent)], env=self.env, check=True)

    def command(self, about: str) -> list[str]:
        """Return what a timer calls."""
        name = "colloc-audit-jobs.service" if about == "jobs" else "colloc-audit.service"
        found = re.search(r"^ExecStart=(.*)$", (self.site / "files" / name).read_text(), re.MULTILINE)
        assert found
        return shlex.split(found[1])

    def audit(self, about: str) -> int:
        return self.lab.run(self.command(about), env=self.env).returncode


# Beside other labs the agent's readings are too old for what the audits judge.
@pytest.mark.alone
@pytest.mark.parametrize("order", [BOTH, BOTH[::-1]])
def test_who_holds_an_idle_gpu_gets_one_mail_from_both_timers(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]
) -> None:
    taken = mail_service(tmp_path, monkeypatch)
    center = Center(lab, f"timers-{order[0]}", tmp_path / "mail service/bin")
    agent = lab.spawn("agent-g1", [lab.bin / "colloc", "agent", "--node", "g1"], env=center.env)
    # On a busy machine it takes long to start, and of what it did not see the audits know nothing.
    journal = center.site / "journal"
    wait_for(
        lambda: any(one.is_file() and one.stat().st_size for one in journal.rglob("*")), "the agent samples nothing"
    )
    gpu = ["sbatch", "--parsable", "-p", "gpu", "-w", "g1", "--gres=gpu:h100:1", "-o", "/dev/null", "--wrap"]
    ran, job, short = ["squeue", "-h", "-o", "%M"], "", ""
    try:
        job = lab.run_as("alice", [*gpu, "sleep 600"], check=True).stdout.strip()
        short = lab.run_as("bob", [*gpu, "sleep 5"], check=True).stdout.strip()
        lab.wait_jobs([short])
        lab.wait_accounted([short])
        wait_for(lambda: lab.run([*ran, "-j", job]).stdout.strip() > "0:20", f"job {job} does not run")
        lab.run(["colloc", "ingest", "--since", "1h"], env=center.env, check=True)
        assert {about: center.audit(about) for about in order}["jobs"] == 1
        (mail,) = taken.to("alice@example.org")
        text = plain(mail)
        assert "a running job whose GPUs are idle" in text
        assert text.count(f"colloc job {job}\n") == 1
        assert taken.to("bob@example.org") == []
        # What a mail says to type runs where its reader sits: the user has the site's settings, root's shell none.
        commands = re.findall(r"^   (?:See:|    )    (colloc .*)$", text, re.MULTILINE)
        assert len(commands) == 2
        for command in commands:
            assert lab.run_as("alice", shlex.split(command), env=center.env).returncode == 0, command
        (summary, *_) = taken.to("root@example.org")
        for command in re.findall(r"^    see: (.*)$", plain(summary), re.MULTILINE):
            done = lab.run(["env", "-u", "COLLOC_CONF", "sh", "-c", command])
            assert (done.returncode, job in done.stdout) == (1, True), done
        # When it has ended both look at it again, and its user has been told.
        lab.run(["scancel", job], check=True)
        lab.wait_accounted([job])
        lab.run(["colloc", "ingest", "--since", "1h"], env=center.env, check=True)
        for about in order:
            center.audit(about)
        assert len(taken.to("alice@example.org")) == 1
    finally:
        lab.run(["scancel", *filter(None, (job, short))])
        lab.stop_spawned(agent)
