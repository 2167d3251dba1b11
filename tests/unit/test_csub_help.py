# SPDX-License-Identifier: Apache-2.0
"""csub --help and csub(1): short, true, whole; and sbatch's own help for whoever calls csub sbatch."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_colloc.core.config_file import ENVIRONMENT_VARIABLE, SYSTEM_FILE
from slurm_colloc.submit.own_options import OWN_OPTIONS
from slurm_colloc.submit.reasons import _OPTIONS
from tests.unit.programs import need_program
from tests.unit.shell import CSUB, Shell

CHECKOUT = Path(__file__).resolve().parents[2]
MAN = CHECKOUT / "docs" / "man"
TEXT = " ".join(re.sub(r"\\f[BIP]", "", (MAN / "csub.1").read_text()).replace("\\-", "-").replace("\\(ti", "~").split())
PROGRAM = [
    *(CHECKOUT / "slurm_colloc" / "cli").glob("csub*.py"),
    # What running_signature.py reads is a running job's, and not the one's who calls csub.
    *(path for path in (CHECKOUT / "slurm_colloc" / "submit").glob("*.py") if path.name != "running_signature.py"),
    *(CHECKOUT / "slurm_colloc" / "core" / name for name in ("config.py", "config_file.py")),
]
# One that Python may have added.
NOBODYS = {"LC_CTYPE"}


@pytest.mark.parametrize("words", [["pack", "--help"], ["--help"], ["-h"]])
def test_help_fits_one_screen(shell: Shell, words: list[str]) -> None:
    done = shell.run(*words, environ={"COLUMNS": "80"})
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, shell.calls()) == (0, "", [])
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    if "pack" not in words:
        for word in (*(f"--{own.name}" for own in OWN_OPTIONS), "#CSUB", "--colloc=off", "man csub", "sbatch --help"):
            assert word in done.stdout, word


@pytest.mark.parametrize("option", ["--help", "-h", "--usage", "--version", "-V"])
def test_a_link_called_sbatch_answers_as_sbatch(shell: Shell, option: str) -> None:
    place = shell.folder / "installed"
    place.mkdir()
    for name in ("csub", "colloc"):
        shutil.copy2(CSUB.with_name(name), place / name)
    (place / "sbatch").symlink_to("csub")
    path = f"{place}:{shell.environment()['PATH']}"
    for number, program in enumerate(("sbatch", str(place / "sbatch"))):
        shell.behave(number, 'echo "Usage: sbatch [OPTIONS]"\nexit 0')
        done = shell.run(option, program=program, environ={"PATH": path})
        assert (done.returncode, done.stdout, done.stderr) == (0, "Usage: sbatch [OPTIONS]\n", "")
    assert shell.calls() == [[option]] * 2


def test_the_page_names_every_option_variable_and_file() -> None:
    for option in OWN_OPTIONS:
        assert f"--{option.name}" in TEXT
    for name in ("--help", *(f"--{name}" for name in _OPTIONS["leave alone"])):
        assert name in TEXT, name
    source = "\n".join(path.read_text() for path in PROGRAM)
    variables = {ENVIRONMENT_VARIABLE, *re.findall(r'environ(?:\.get\(|\[)"(\w+)"', source)} - NOBODYS
    assert {"COLLOC_CONF", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "TMPDIR", "PATH", "USER"} <= variables
    for variable in (*variables, "SBATCH_", "SLURM_CLUSTERS", "SLURM_HINT"):
        assert variable in TEXT, variable
    for path in (SYSTEM_FILE, "~/.config/slurm_colloc/site.toml", "slurm_colloc/decisions", "slurm_colloc/evidence"):
        assert path in TEXT, path


@pytest.mark.parametrize("page", sorted(MAN.iterdir()), ids=lambda path: path.name)
def test_each_page_renders_without_a_warning(page: Path) -> None:
    program = need_program("mandoc", "man")
    lint = [program, *(["-Tlint"] if program.endswith("mandoc") else ["--warnings", "-l"]), str(page)]
    done = subprocess.run(lint, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    if program.endswith("mandoc"):
        assert done.stdout == ""
        done = subprocess.run([program, "-Tutf8", page], capture_output=True, text=True, timeout=60, check=True)
    shown = re.sub(r".\x08", "", done.stdout)
    for heading in re.findall(r'^\.SH "?([^"\n]+)', page.read_text(), re.MULTILINE):
        assert heading in shown
