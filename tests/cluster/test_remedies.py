# SPDX-License-Identifier: Apache-2.0
"""Each line that a judgement gives is sent to a real Slurm, which gives the job what the line says, or nothing more."""

from __future__ import annotations

import html
import json
import re
from functools import partial

import pytest

from slurm_colloc.core.config_audit import WEEK
from slurm_colloc.facts.judgement import NO_GPU, STYLES, fewer, option_for
from slurm_colloc.report.digest import ACTED, ActionMail, digest_maker
from tests.cluster.lab import Lab
from tests.cluster.nodes import MIG_TYPE_PREFIX
from tests.cluster.site import agents, write_site
from tests.cluster.user import User
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

# How a script asks for two GPUs, by the option of each style.
ASKS = {
    "gres": ("--gres=gpu:h100:2", "--gres=gpu:2"),
    "gpus": ("--gpus=h100:2", "--gpus=2", "-G2"),
    "gpus-per-node": ("--gpus-per-node=h100:2", "--gpus-per-node=2"),
}


def given(lab: Lab, directive: str, option: str) -> str:
    """Return what a job whose script has this directive is to get by this option."""
    script = f"#!/bin/sh\n#SBATCH -p gpu -t 5 {directive}\nsleep 1\n"
    send = f'printf "%s" "$1" > remedy.sh && exec sbatch --hold {option} remedy.sh'
    done = lab.run_as("alice", ["sh", "-c", f"cd && {send}", "sh", script])
    assert done.returncode == 0, f"{directive} {option}: {done.stderr}"
    return _got(lab, done.stdout.split()[-1])


def _got(lab: Lab, job: str) -> str:
    """Return what a job is to get, and cancel it."""
    shown = lab.run(["scontrol", "-o", "show", "job", job], check=True).stdout
    lab.run(["scancel", job], check=True)
    # 22.05 says TRES, newer releases ReqTRES.
    (tres,) = (word.partition("=")[2] for word in shown.split() if word.startswith(("TRES=", "ReqTRES=")))
    return ",".join(part for part in tres.split(",") if part.startswith(("gres/", "node=")))


@pytest.mark.parametrize("style", STYLES)
def test_fewer_gpus_and_none_replace_what_a_script_asks_for(lab: Lab, style: str) -> None:
    for directive in ASKS[style]:
        one = given(lab, directive, option_for(fewer("gpu:h100:2", 1), style))
        assert one == "node=1,gres/gpu=1,gres/gpu:h100=1"
        assert given(lab, directive, option_for(NO_GPU, style)) == "node=1"


def test_the_option_of_another_style_would_not_replace_it(lab: Lab) -> None:
    # It takes two nodes: why the line has the option that the job had.
    assert given(lab, "--gpus=h100:2", "--gres=gpu:h100:1") == "node=2,gres/gpu=2,gres/gpu:h100=2"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--gres=mps:25", "gres/mps=25"),
        ("--gres=shard:1", "gres/shard=1"),
        (f"--partition=mig --gres=gpu:{MIG_TYPE_PREFIX}1g.10gb:1", f"gres/gpu=1,gres/gpu:{MIG_TYPE_PREFIX}1g.10gb=1"),
    ],
)
def test_a_piece_replaces_a_gpu(lab: Lab, options: str, what: str) -> None:
    assert given(lab, "--gres=gpu:h100:1", options) == f"node=1,{what}"


# --- whole lines, as they are printed ---

LOAD = "COLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11"
# What each job asks for and does, and what the job gets that its printed line submits.
JOBS = {
    "fits.sh": ("--gres=gpu:h100:1", f"{LOAD} sleep 45", None),
    "fewer.sh": ("--gpus=h100:2", f"CUDA_VISIBLE_DEVICES=0 {LOAD} sleep 45", "node=1,gres/gpu=1,gres/gpu:h100=1"),
    "unused.sh": ("--gpus-per-node=h100:1", "sleep 45", "node=1"),
}
_LOW = "min_gpu_hours=0.0001"
RULES = (
    f'[{{code="COL001", bounds={{{_LOW}, shortest_min=0}}}}, {{code="COL007", bounds={{{_LOW}}}}}, '
    f'{{code="COL003", bounds={{{_LOW}, below_pct=100, shortest_min=0, running_min=0}}}}]'
)
NOTICES = {
    "notices.mode": '"users"',
    "notices.sender": '"hpc@example.org"',
    "notices.address": '"{user}@example.org"',
    "notices.admins": '["hpc@example.org"]',
    "notices.workdays": json.dumps(WEEK),
}
# A line by itself, behind a prompt or a word of what it is for; and one within a sentence.
LINES = re.compile(
    r"^ +(?:next time +)?(?:\$|see:|[A-Z][a-z ]+:)? "
    r"+((?:cd|COLLOC_CONF=|colloc|csub|sbatch|scontrol|scancel) ?\S.*)$",
    re.MULTILINE,
)
QUOTED = re.compile(r"'((?:colloc|csub|sbatch) [^']+)'")


def typed(text: str) -> set[str]:
    """Return what a text has its reader type."""
    return {*LINES.findall(text), *QUOTED.findall(text)}


def coded(page: str) -> list[str]:
    """Return what a page or an HTML mail shows as code."""
    return [html.unescape(code) for code in re.findall("<code>(.*?)</code>", page, re.DOTALL)]


def test_each_whole_line_that_is_printed_does_what_it_says(lab: Lab) -> None:
    site = write_site(lab, "remedies", extra={"audit.rule": RULES, **NOTICES})
    alice, root = User(lab, "alice", site), {"COLLOC_CONF": str(site / "site.toml")}
    ids = {}
    with agents(lab, site):
        for name, (asks, does, _) in JOBS.items():
            alice.script(f"#!/bin/sh\n#SBATCH -p gpu -t 5 {asks}\n{does}\n", name)
            done = alice.run("sh", "-c", f"cd {alice.home} && exec sbatch {name} --epochs 3")
            ids[name] = done.stdout.split()[-1]
        lab.wait_jobs(ids.values(), timeout=180)
        lab.wait_accounted(ids.values())
    lab.run(["colloc", "ingest", "--since", "1h"], env=root, check=True, timeout=120)
    lab.run(["chmod", "-R", "a+rX", site / "store"], check=True)

    told = {name: lab.run(["colloc", "job", job], env=root, check=True).stdout for name, job in ids.items()}
    mine = alice.run("colloc", "me", "--since", "1h").stdout
    audit = lab.run(["colloc", "audit", "run", "--since", "1h"], env=root).stdout
    mails = lab.run(["colloc", "audit", "run", "--notify", "--dry-run"], env=root).stdout
    report = lab.run(["colloc", "report", "--since", "1h"], env=root, check=True).stdout
    lab.run(["colloc", "report", "--since", "1h", "--format", "html", "-o", site / "page.html"], env=root, check=True)
    # An administrator's looks at a node by its host's name, which the lab's nodes have none of.
    page = [line for line in coded((site / "page.html").read_text()) if not line.startswith("ssh ")]
    directives = [line for line in page if line.startswith("#SBATCH ")]
    assert all(f"--gpus{more}" in told[name] for name, more in (("fewer.sh", "=h100:1"), ("unused.sh", "-per-node=0")))
    lines = {line: name for name, text in told.items() for line in typed(text)}
    lines |= dict.fromkeys({*typed(mine + audit + mails + report), *page} - lines.keys() - {*directives}, "")
    kinds = {"csub", "sbatch", "colloc job", "colloc audit run", "colloc audit explain", "colloc report"}
    assert {kind for kind in kinds if any(f"{kind} " in line for line in lines)} == kinds, lines
    for line, name in lines.items():
        done = alice.run("bash", "-c", f"cd {alice.home}; {_filled(line, ids)}")
        # 1: an audit found what it had found.
        assert done.returncode == int("audit run" in line), f"{line}: {done.stderr}"
        if " && " in line:
            got, wanted = _got(lab, done.stdout.split()[-1]), name and JOBS[name][2]
            assert got == wanted if wanted else "gres/gpu:h100=1" not in got, line
    assert directives
    for line in directives:
        assert f"     {line}\n" in report
        assert given(lab, line.removeprefix("#SBATCH "), "") in ("node=1", "node=1,gres/gpu=1,gres/gpu:h100=1"), line


def test_the_lines_of_a_mail_about_a_held_job_do_what_they_say(lab: Lab) -> None:
    site = write_site(lab, "held")
    alice = User(lab, "alice", site)

    def state(job: str) -> str:
        return lab.run(["squeue", "-h", "-t", "all", "-o", "%T %r", "-j", job]).stdout.strip()

    def ended(job: str) -> bool:
        return state(job).partition(" ")[0] in ("", "CANCELLED")

    def held() -> str:
        job = alice.run(
            "sbatch", "--parsable", "-p", "gpu", "-o", "/dev/null", "--wrap", "exec sleep 300"
        ).stdout.strip()
        wait_for(lambda: state(job).startswith("RUNNING"), f"job {job} does not run")
        lab.run(["scontrol", "requeuehold", job], check=True)
        wait_for(lambda: "held" in state(job).lower(), f"job {job} is not held")
        return job

    for form in range(2):
        job = held()
        mail = ActionMail("c", "alice", job, "stopped, requeued and held", "COL001", True, "hpc@example.org", "")
        text = digest_maker("")(ACTED, mail)[form]
        told = coded(text) if form else LINES.findall(text)
        rule = "colloc audit explain 'COL001'"
        assert sorted(told) == [rule, f"colloc job {job}", f"scancel {job}", f"scontrol release {job}"]
        done = {line: alice.run("sh", "-c", line) for line in told if not line.startswith("scancel")}
        assert [one.returncode for one in done.values()] == [0, 0, 0], done
        assert "held" not in state(job).lower()
        assert alice.run("sh", "-c", f"scancel {job}").returncode == 0
        wait_for(partial(ended, job), f"job {job} goes on")


def _filled(line: str, ids: dict[str, str]) -> str:
    """Return a line with a job's id and a script where it leaves them open."""
    return re.sub(r"\b(?:JOB|ID)\b", ids["fits.sh"], line).replace("SCRIPT", "fits.sh")
