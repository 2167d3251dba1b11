# SPDX-License-Identifier: Apache-2.0
"""The policy in Lua and the SPANK plugin in one real Slurm: what --colloc says counts, whichever command has it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster import spank
from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.test_policy import DESK, LUA, SLICE, install, know, log, say, scripts_without_ours, shown

pytestmark = pytest.mark.cluster

WHOLE = ("--gres=gpu:1", "-p", "all")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab(LUA, scripts_without_ours())
    done = spank.build(lab)
    assert done.returncode == 0, done.stderr
    (lab.root / "etc/plugstack.conf").write_text(f"optional {lab.root}/colloc_spank.so\n")
    with running(lab):
        write_site(lab, agent=False)
        know(lab, "known", "spawner")
        yield lab


def submit(lab: Lab, *words: str, command: str = "sbatch") -> subprocess.CompletedProcess[str]:
    argv = [command, "-J", "known", *WHOLE, "-H", *words, "--wrap", "true"]
    return lab.run_as("alice", argv, env={"COLLOC_CONF": str(lab.root / "out/judged.toml")})


def judge_here(lab: Lab, policy: str) -> None:
    """Have csub know of the policy, too."""
    text = lab.site_file.read_text()
    judged = re.sub(r'(\[\[partition\]\]\nname = "all".*\n)', rf'\1job_submit = "{policy}"\n', text)
    assert judged != text
    (lab.root / "out/judged.toml").write_text(judged)


def test_the_option_of_sbatch_counts_before_its_comment(lab: Lab) -> None:
    install(lab, "default")
    assert shown(lab, submit(lab).stdout.split()[-1])[0] == SLICE
    assert shown(lab, submit(lab, "--colloc=off").stdout.split()[-1]) == ("gpu:1", "site")
    assert shown(lab, submit(lab, "--colloc=off", "--comment=colloc=auto").stdout.split()[-1]) == ("gpu:1", "site")
    moved = submit(lab, "--colloc=auto", "--gpu-footprint=mem=6G", "--comment=colloc=off")
    assert shown(lab, moved.stdout.split()[-1])[0] == SLICE
    install(lab, "enforce")
    for refused in ((), ("--colloc=off",), ("--colloc=auto", "--comment=colloc=exclusive:no")):
        done = submit(lab, *refused)
        assert (done.returncode, f"type: sbatch --gres={SLICE}" in done.stderr) == (1, True), done.stderr
    said = "OPTION_colloc_colloc=off, colloc=auto; all of it"
    done = submit(lab, "--gpu-footprint=mem=6G", f"--colloc=exclusive:{said}")
    assert shown(lab, done.stdout.split()[-1]) == ("gpu:1", f"site; colloc:exclusive:{said}"), done.stderr


@pytest.mark.parametrize("argv", [("salloc",), ("srun", "--pty")], ids=lambda words: words[0])
def test_the_option_of_interactive_commands_counts(lab: Lab, argv: tuple[str, ...]) -> None:
    ask = ("sh", "-c", "scontrol show job $SLURM_JOB_ID")
    install(lab, "default", **DESK)
    assert SLICE in say(lab, *argv, *WHOLE, *ask).stdout
    for wish in ("off", "exclusive:all of it"):
        kept = say(lab, *argv, *WHOLE, f"--colloc={wish}", *ask)
        assert (kept.returncode, SLICE in kept.stdout, "interactive jobs" in kept.stderr) == (0, False, False), kept
    install(lab, "enforce", **DESK)
    refused = say(lab, *argv, *WHOLE, "--colloc=off", *ask)
    assert (refused.returncode, f"--gres={SLICE}" in refused.stderr) == (1, True), refused.stderr
    kept = say(lab, *argv, *WHOLE, "--colloc=exclusive:all of it", *ask)
    assert (kept.returncode, SLICE in kept.stdout) == (0, False), kept.stderr


@pytest.mark.parametrize("policy", ["shadow", "advise", "default", "enforce"])
def test_csub_beside_both(lab: Lab, policy: str) -> None:
    """csub decides; what is refused all the same is so in sbatch's words and with its status."""
    install(lab, policy)
    judge_here(lab, policy)
    done = submit(lab, "--colloc=off", command="csub")
    if policy == "enforce":
        assert (done.returncode, done.stdout) == (1, "")
        assert f": sbatch --gres={SLICE}" in done.stderr
        assert "--comment=colloc=exclusive:REASON" in done.stderr
        assert "csub: error" not in done.stderr
    else:
        assert shown(lab, done.stdout.split()[-1]) == ("gpu:1", "site"), done.stderr
    done = submit(lab, "--colloc=exclusive:all of it", command="csub")
    noted = "site; colloc:exclusive:all of it"
    assert shown(lab, done.stdout.split()[-1]) == ("gpu:1", noted), done.stderr


def test_no_lua_error_was_logged(lab: Lab) -> None:
    assert "is left alone" not in log(lab)
