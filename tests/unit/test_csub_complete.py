# SPDX-License-Identifier: Apache-2.0
"""csub's completion, driven by bash with the script that a package installs."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest

from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS
from slurm_colloc.submit.own_options import OWN_OPTIONS
from tests.pages.completion import script
from tests.unit.programs import need_program
from tests.unit.shell import CSUB, Shell

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = CHECKOUT / "docs" / "completion" / "csub.bash"

# What the shells do with a line is theirs; these put the words where each hands them to the script.
BASH = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$(complete -p csub | sed 's/.*-F \\([^ ]*\\).*/\\1/')" csub
printf '%s\\n' "${COMPREPLY[@]}"
"""


def environment(shell: Shell) -> dict[str, str]:
    environ = shell.environment() | {"COLUMNS": "80"}
    environ["PATH"] = f"{CSUB.parent}:{environ['PATH']}"
    return environ


def offered(shell: Shell, *words: str) -> list[str]:
    """Return what bash offers for the last of these words, as it takes them apart itself."""
    done = subprocess.run(
        [need_program("bash"), "--norc", "-c", BASH, "bash", str(SCRIPT), "csub", *words],
        cwd=shell.folder,
        env=environment(shell),
        input="#!/bin/sh\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == "", done.stderr
    assert shell.calls() == []
    return [line for line in done.stdout.splitlines() if line]


def test_the_shipped_script_is_not_stale() -> None:
    assert SCRIPT.read_text() == script(), "run 'make docs'"


def test_options_of_sbatch_and_of_csub_are_offered(shell: Shell) -> None:
    found = offered(shell, "-p", "gpu", "--gpu")
    assert {"--gpus", "--gpus-per-node", "--gpu-bind", "--gpu-footprint"} <= set(found)
    assert all(name.startswith("--gpu") for name in found)
    long = {f"--{option.name}" for table in (*SBATCH_OPTIONS.values(), OWN_OPTIONS) for option in table}
    assert {name for name in offered(shell, "--") if name.startswith("--")} == long
    assert {"-p", "-G", "-J", "-W"} <= set(offered(shell, "-"))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--colloc", "o"], {"off"}),
        (["--colloc", "="], {"auto", "off"}),
        (["--dry-run", "--format", ""], {"json", "script"}),
        (["--format", "=", "j"], {"json"}),
        (["--format=j"], {"--format=json"}),
        # Behind the script the words are its own; bash completes files itself where nothing else is offered.
        (["--exclusive", "job.sh", "--exp"], set()),
        (["--exclusive", "job.sh", "--colloc", "au"], set()),
        (["jo"], set()),
    ],
)
def test_values_of_csubs_own_options_are_offered_before_the_script(
    shell: Shell, words: list[str], found: set[str]
) -> None:
    assert set(offered(shell, *words)) == found


@pytest.mark.parametrize("words", [["--gres", "=", "gpu", ":", "h100", ":", "1"], ["--exclusive", "=", "user"]])
@pytest.mark.parametrize("behind", [["--exp"], [":", "--exp"], ["-HN2", ":", "-t", "1", ":", "00", "--exp"]])
def test_bash_takes_words_apart(shell: Shell, words: list[str], behind: list[str]) -> None:
    assert set(offered(shell, *words, *behind)) == {"--explain", "--export", "--export-file"}


def typed(shell: Shell, setup: str, line: str, wanted: str) -> str:
    """Type a line into an interactive shell on a terminal, press TAB, and return what stands there then."""
    program = need_program("bash")
    shell_pid, terminal = pty.fork()
    if not shell_pid:
        os.chdir(shell.folder)
        os.execve(program, [program, "--norc", "--noprofile", "-i"], environment(shell) | {"TERM": "dumb", "PS1": "> "})
    said = b""

    def until(text: str) -> None:
        nonlocal said
        said = b""
        end = time.monotonic() + 30
        while text.encode() not in said and time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                said += os.read(terminal, 65536)

    try:
        os.write(terminal, f"{setup}; echo rea''dy\n".encode())
        until("ready\r\n")
        os.write(terminal, f"{line}\t".encode())
        until(wanted)
    finally:
        os.close(terminal)
        os.waitpid(shell_pid, 0)
    return said.decode(errors="replace")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("csub --gpu-fo", "csub --gpu-footprint"),
        ("csub --gres=gpu:1 --colloc=o", "--colloc=off"),
        ("csub --gres=gpu:1 jo", "job.sh"),
        ("csub --gres=gpu:1 : --gre", "--gres="),
        ("sbatch --gpu-fo", "sbatch --gpu-footprint"),
    ],
)
def test_tab_on_a_terminal(shell: Shell, line: str, wanted: str) -> None:
    setup = f"source {SCRIPT}; complete -o default -F _csub_completion sbatch"
    said = typed(shell, setup, line, wanted)
    # The terminal may show what was added only.
    assert wanted in said or wanted.removeprefix(line) in said.split(line)[-1], said
    assert shell.calls() == []
