# SPDX-License-Identifier: Apache-2.0
"""csub, unmodified, with a made-up sinfo on PATH."""

from __future__ import annotations

import json
import time

import pytest

from slurm_colloc.core.model import because
from slurm_colloc.core.wording import sentence, words
from tests.unit.golden import Printed
from tests.unit.programs import executable
from tests.unit.shell import SCRIPT, Shell

PLACED, LEFT = ["--gres=gpu:h100_1g.10gb:1", "job.sh"], ["job.sh"]

GRES = "gpu:h100:1,gpu:h100_1g.10gb:1"


@pytest.fixture
def site(shell: Shell) -> Shell:
    """Return a site where such a job runs for an hour, and where whole GPUs are asked for by their type."""
    (shell.folder / "job.sh").write_text(SCRIPT.replace("gpu:1", "gpu:h100:1"))
    shell.site('"mig"', agent=True)
    with (shell.folder / "site.toml").open("a") as stream:
        stream.write(f'[paths]\nstate = "{shell.folder / "state"}"\n')
    shell.ran()
    return shell


def sinfo(site: Shell, used: str, script: str = "") -> None:
    """Make a sinfo that counts its calls and says that so much of the node is used."""
    answer = script or f"echo 'h1|gpu*|{GRES}|{used}|mix'"
    executable(site.folder / "bin/sinfo", f'#!/bin/sh\necho "$*" >> "$CALLS/../sinfo"\n{answer}\n')


def asked(site: Shell) -> int:
    path = site.folder / "sinfo"
    return len(path.read_text().splitlines()) if path.exists() else 0


SLICE_FULL = "gpu:h100:0(IDX:N/A),gpu:h100_1g.10gb:1(IDX:1)"
WHOLE_FULL = "gpu:h100:1(IDX:0),gpu:h100_1g.10gb:0(IDX:N/A)"


def test_full_slices_and_a_free_whole_gpu(site: Shell) -> None:
    sinfo(site, SLICE_FULL)
    for _ in range(2):
        done = site.run("job.sh")
        assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n")
    # The second, in the same twenty seconds, finds the GPU given to the first.
    assert (site.calls(), asked(site)) == ([LEFT, PLACED], 1)
    [free, *_] = site.decisions()[0]["reasons"]
    assert (free[0], free[1]["option"]) == ("free-now", "as asked")


def test_switched_off(site: Shell) -> None:
    sinfo(site, SLICE_FULL)
    site.run("--colloc=off", "--explain", "job.sh")
    assert asked(site) == 0
    text = (site.folder / "site.toml").read_text()
    # Not in the folder of the job, of which it would be a file.
    path = site.folder / "home/site.toml"
    path.write_text(text.replace("[sharing]", "[sharing]\nask_free = false"))
    site.run("--explain", "job.sh", environ={"COLLOC_CONF": str(path)})
    assert (site.calls()[1], asked(site)) == (PLACED, 0)


FAULTS = {
    "no sinfo": None,
    "it fails": "echo 'sinfo: error: Unable to contact slurm controller' >&2; exit 1",
    "it hangs": "exec sleep 60",
    "garbage": "echo garbage",
    "nothing": "true",
    "not text": "head -c 100000 /dev/urandom",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_without_an_answer_the_first_piece_is_given_and_nobody_waits_for_it_twice(site: Shell, fault: str) -> None:
    if FAULTS[fault] is not None:
        sinfo(site, "", FAULTS[fault] or "")
    began = time.monotonic()
    assert site.run("job.sh").returncode == 0
    assert time.monotonic() - began < 2
    began = time.monotonic()
    done = site.run("--explain", "job.sh")
    assert time.monotonic() - began < 1.5
    assert site.calls() == [PLACED, PLACED]
    assert asked(site) == (FAULTS[fault] is not None)
    assert (words(because("free-unknown", error="")) in done.stderr) is (fault != "nothing")


def test_a_free_slice_while_whole_gpus_are_full(site: Shell, printed: Printed) -> None:
    sinfo(site, WHOLE_FULL)
    found = site.run("--dry-run", "--explain", "--format=json", "job.sh")
    lines = found.stderr.splitlines()
    assert len(lines) <= 8 + found.stderr.count("would be submitted as")
    printed("csub", *lines[:3])
    weighed = json.loads(found.stdout)["placement"]["weighed"]
    assert weighed[1] == {"option": "as asked", "free_now": False, "slowdown": 1.0, "rounds": 1}
    full = because("not-free", option="as asked")
    said = sentence([because("free-now", option="gpu:h100_1g.10gb:1"), full])
    assert said in site.run("job.sh").stderr
    assert site.calls() == [PLACED]


@pytest.mark.parametrize(("later", "then"), [("", LEFT), ("--hold", PLACED)])
def test_what_the_first_was_given_is_not_free_for_the_second(site: Shell, later: str, then: list[str]) -> None:
    sinfo(site, "gpu:h100:0(IDX:N/A),gpu:h100_1g.10gb:0(IDX:N/A)")
    first, second = (site.run(*filter(None, [option]), "job.sh") for option in (later, ""))
    assert (first.returncode, second.returncode, asked(site)) == (0, 0, 1)
    assert site.calls()[1] == then
