# SPDX-License-Identifier: Apache-2.0
"""csub's completion, driven by the real shells with the scripts that a package installs."""

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
SCRIPTS = {"bash": "csub.bash", "zsh": "_csub", "fish": "csub.fish"}
FOLDER = CHECKOUT / "docs" / "completion"
SHELLS = ("bash", "fish")

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


def offered(shell: Shell, kind: str, *words: str) -> list[str]:
    """Return what bash or fish offers for the last of these words, as it takes them apart itself."""
    program = need_program(kind)
    path = str(FOLDER / SCRIPTS[kind])
    arguments = {
        "bash": ["--norc", "-c", BASH, "bash", path, "csub", *words],
        "fish": ["--no-config", "-c", f"source {path}; complete -C {' '.join(('csub', *words))!r}"],
    }[kind]
    done = subprocess.run(
        [program, *arguments],
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
    return [line.split("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("kind", SCRIPTS)
def test_the_shipped_scripts_are_not_stale(kind: str) -> None:
    assert (FOLDER / SCRIPTS[kind]).read_text() == script(kind), "run 'make docs'"


@pytest.mark.parametrize("kind", SHELLS)
def test_a_shell_offers_options_of_sbatch_and_of_csub(shell: Shell, kind: str) -> None:
    found = offered(shell, kind, "-p", "gpu", "--gpu")
    assert {"--gpus", "--gpus-per-node", "--gpu-bind", "--gpu-footprint"} <= set(found)
    assert all(name.startswith("--gpu") for name in found)
    long = {f"--{option.name}" for table in (*SBATCH_OPTIONS.values(), OWN_OPTIONS) for option in table}
    assert {name for name in offered(shell, kind, "--") if name.startswith("--")} == long
    if kind != "fish":  # which tries short options as the beginnings of bundles
        assert {"-p", "-G", "-J", "-W"} <= set(offered(shell, kind, "-"))


@pytest.mark.parametrize("kind", SHELLS)
def test_a_shell_offers_the_values_of_csubs_own_options(shell: Shell, kind: str) -> None:
    assert offered(shell, kind, "--colloc", "o") == ["off"]
    assert sorted(offered(shell, kind, "--dry-run", "--format", *([""] if kind != "fish" else [" "]))) == [
        "json",
        "script",
    ]
    joined = ["--format", "=", "j"] if kind == "bash" else ["--format=j"]
    assert offered(shell, kind, *joined) == (["json"] if kind == "bash" else ["--format=json"])


def test_bash_whose_words_hold_an_equals_sign(shell: Shell) -> None:
    assert offered(shell, "bash", "--format=j") == ["--format=json"]
    assert sorted(offered(shell, "bash", "--colloc", "=")) == ["auto", "off"]


@pytest.mark.parametrize("words", [["--gres", "=", "gpu", ":", "h100", ":", "1"], ["--exclusive", "=", "user"]])
@pytest.mark.parametrize("behind", [["--exp"], [":", "--exp"], ["-HN2", ":", "-t", "1", ":", "00", "--exp"]])
def test_bash_takes_words_apart(shell: Shell, words: list[str], behind: list[str]) -> None:
    assert set(offered(shell, "bash", *words, *behind)) == {"--explain", "--export", "--export-file"}


@pytest.mark.parametrize("kind", SHELLS)
@pytest.mark.parametrize("words", [["--exp"], ["--colloc", "au"]])
def test_behind_the_script_the_words_are_its_own(shell: Shell, kind: str, words: list[str]) -> None:
    assert offered(shell, kind, "--exclusive", "job.sh", *words) == []


def test_where_a_script_or_its_arguments_stand_files_are_offered(shell: Shell) -> None:
    assert offered(shell, "fish", "jo") == ["job.sh"]
    assert offered(shell, "fish", "job.sh", "jo") == ["job.sh"]
    assert offered(shell, "bash", "jo") == []  # it completes files itself where nothing else is offered
    assert "complete -o default " in (FOLDER / "csub.bash").read_text()


def typed(shell: Shell, kind: str, setup: str, line: str, wanted: str) -> str:
    """Type a line into an interactive shell on a terminal, press TAB, and return what stands there then."""
    program = need_program(kind)
    shell_pid, terminal = pty.fork()
    if not shell_pid:
        os.chdir(shell.folder)
        flags = ["-f", "-i"] if kind == "zsh" else ["--norc", "--noprofile", "-i"]
        os.execve(program, [program, *flags], environment(shell) | {"TERM": "dumb", "PS1": "> "})
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
@pytest.mark.parametrize("kind", ["bash", "zsh"])
def test_tab_on_a_terminal(shell: Shell, kind: str, line: str, wanted: str) -> None:
    setup = {
        "bash": f"source {FOLDER}/csub.bash; complete -o default -F _csub_completion sbatch",
        "zsh": f"fpath=({FOLDER} $fpath); autoload -U compinit; compinit -u -D; compdef sbatch=csub",
    }
    said = typed(shell, kind, setup[kind], line, wanted)
    # The terminal may show what was added only.
    assert wanted in said or wanted.removeprefix(line) in said.split(line)[-1], said
    assert shell.calls() == []


def test_fish_completes_a_link_called_sbatch(shell: Shell) -> None:
    done = subprocess.run(
        [
            need_program("fish"),
            "--no-config",
            "-c",
            f"source {FOLDER}/csub.fish; complete --command sbatch --wraps csub; complete -C 'sbatch --gpu-fo'",
        ],
        env=environment(shell),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("--gpu-footprint")
    assert shell.calls() == []
