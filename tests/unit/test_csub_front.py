# SPDX-License-Identifier: Apache-2.0
"""csub's sh front: apart from the user's Python, and plain sbatch where its own Python does not start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.slurm.options import SBATCH_OPTIONS
from tests.unit.shell import CSUB, HINT, SCRIPT, Shell

FRONT = Path(__file__).parents[2] / "slurm_colloc" / "front" / "csub"
PLACED = ["--gres=gpu:h100_1g.10gb:1", "job.sh"]


def installed(shell: Shell, interpreter: str, name: str = "csub") -> Path:
    """Install the front into a folder of its own, first on PATH, beside a colloc of this interpreter."""
    place = shell.folder / "installed"
    place.mkdir()
    shutil.copy2(FRONT, place / "csub")
    (place / "colloc").write_text(f"#!{interpreter}\nprint('colloc')\n")
    if name != "csub":
        (place / name).symlink_to("csub")
    return place / name


def run(shell: Shell, program: Path | str, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *argv],
        cwd=shell.folder,
        env=shell.environment() | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def broken(shell: Shell, kind: str) -> str:
    """Return an interpreter that does not start."""
    path = shell.folder / "python3-broken"
    texts = {
        "fails": "#!/bin/sh\necho 'Fatal Python error: init_fs_encoding' >&2\nexit 1\n",
        "no library": "#!/nonexistent/loader\n",
        "wrong format": "\x7fELF garbage",
        "killed": "#!/bin/sh\nkill -9 $$\n",
    }
    if kind in texts:
        path.write_text(texts[kind])
    path.touch()
    path.chmod(0o644 if kind == "not executable" else 0o755)
    return "/nonexistent/python3" if kind == "missing" else str(path)


@pytest.mark.parametrize("kind", ["missing", "not executable", "fails", "no library", "wrong format", "killed"])
def test_an_interpreter_that_does_not_start_leaves_plain_sbatch(shell: Shell, kind: str) -> None:
    csub = installed(shell, broken(shell, kind))
    done = run(shell, csub, "-J", "a b", HINT, "--colloc", "auto", "--explain", "-HN2", "job.sh", HINT, "*", "")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n")
    assert shell.calls() == [["-J", "a b", "-HN2", "job.sh", HINT, "*", ""]]
    assert re.search(r"csub: its interpreter '.*' cannot start; handing over to plain sbatch\n", done.stderr)


def test_an_interpreter_without_the_package_leaves_plain_sbatch(shell: Shell) -> None:
    csub = installed(shell, "/usr/bin/python3")
    done = run(shell, csub, HINT, "--hold", "job.sh")
    assert (done.returncode, shell.calls()) == (0, [["--hold", "job.sh"]])
    assert "cannot start (ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("option", ["--dry-run", "--format=json"])
def test_without_an_interpreter_a_dry_run_submits_nothing(shell: Shell, option: str) -> None:
    done = run(shell, installed(shell, "/nonexistent/python3"), option, "job.sh")
    assert (done.returncode, shell.calls()) == (1, [])
    assert "nothing was submitted" in done.stderr


@pytest.mark.parametrize("interpreter", [sys.executable, "/nonexistent/python3"])
def test_a_link_called_sbatch_first_on_path_finds_the_real_one(shell: Shell, interpreter: str) -> None:
    shim = installed(shell, interpreter, "sbatch")
    (shell.folder / "wrapper").mkdir()
    wrapper = shell.folder / "wrapper" / "sbatch"
    wrapper.write_text('#!/bin/sh\nexec /opt/site/bin/csub "$@"\n')
    wrapper.chmod(0o755)
    path = f"{shim.parent}:{wrapper.parent}:{shell.environment()['PATH']}"
    done = run(shell, "sbatch", HINT, "job.sh", PATH=path)
    assert done.stdout == "Submitted batch job 4711\n", done.stderr
    assert shell.calls() == [PLACED if interpreter == sys.executable else ["job.sh"]]


def test_no_sbatch_but_the_shim_is_an_error_and_no_loop(shell: Shell) -> None:
    shim = installed(shell, "/nonexistent/python3", "sbatch")
    done = run(shell, shim, "job.sh", PATH=f"{shim.parent}:/nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no sbatch on PATH but csub itself" in done.stderr


def test_standard_input_status_and_arguments_go_through_a_broken_installation(shell: Shell) -> None:
    shell.behave(0, "exit 7")
    csub = installed(shell, "/nonexistent/python3")
    done = subprocess.run(
        [csub], cwd=shell.folder, env=shell.environment(), input=SCRIPT, text=True, capture_output=True, check=False
    )
    assert done.returncode == 7
    assert (shell.folder / "script.0").read_text() == SCRIPT


def test_the_users_python_changes_nothing(shell: Shell) -> None:
    hostile = shell.folder / "mine"
    hostile.mkdir()
    for folder in (hostile, shell.folder):
        for name in ("json", "re", "sitecustomize", "usercustomize", "slurm_colloc"):
            (folder / f"{name}.py").write_text("raise SystemExit(9)\n")
    environ = {
        "PYTHONPATH": f"{hostile}:",
        "PYTHONHOME": "/nonexistent",
        "PYTHONSTARTUP": str(hostile / "json.py"),
        "PYTHONINSPECT": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "CONDA_PREFIX": "/nonexistent",
        "VIRTUAL_ENV": "/nonexistent",
    }
    done = run(shell, CSUB, HINT, "job.sh", **environ)
    assert (done.returncode, shell.calls()) == (0, [PLACED]), done.stderr


ODD = {
    "LANG": "C",
    "ODD": "a\nb",
    "EMPTY": "",
    "BASH_FUNC_module%%": "() { echo 'it'\\''s' \"$1\"\n}",
    "dotted.name": "1",
    "PYTHONPATH": "x",
}


@pytest.mark.parametrize("how", ["placed", "unchanged", "broken"])
def test_sbatch_gets_the_environment_as_it_was(shell: Shell, how: str) -> None:
    """Bash's exported functions above all: without them a job loses "module"."""
    (shell.folder / "bin" / "sbatch").write_text('#!/bin/sh\ncat /proc/$$/environ >"$CALLS/../environ.0"\necho 1\n')
    csub = installed(shell, "/nonexistent") if how == "broken" else CSUB
    done = run(shell, csub, *([HINT] if how == "placed" else []), "job.sh", **ODD)
    assert done.returncode == 0, done.stderr
    text = (shell.folder / "environ.0").read_bytes()
    seen = dict(entry.decode().split("=", 1) for entry in text.split(b"\0") if entry)
    if how == "broken":  # what a shell adds to an environment that lacks it
        seen = {name: value for name, value in seen.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_")}
    assert seen == shell.environment() | ODD


def test_signals_that_python_ignores_are_as_before_in_sbatch(shell: Shell) -> None:
    (shell.folder / "bin" / "sbatch").write_text('#!/bin/sh\ngrep SigIgn /proc/self/status >"$CALLS/../ignored"\n')
    for argv in (["job.sh"], [HINT, "job.sh"]):
        run(shell, CSUB, *argv)
        [mask] = re.findall(r"\w+$", (shell.folder / "ignored").read_text().strip())
        assert int(mask, 16) & (1 << (13 - 1)) == 0, argv


def test_the_front_knows_which_options_take_no_value() -> None:
    text = FRONT.read_text()
    begin = text.index("# Options of sbatch that take no value")
    listed = set(re.findall(r"--([a-z-]+)\b", text[begin : text.index("--*=*", begin)]))
    shorts = set(re.search(r"-\[(\w+)\]\)", text)[1])  # type: ignore[index]
    options = [option for table in SBATCH_OPTIONS.values() for option in table]
    valueless = {option.name for option in options if option.argument != "required"}
    assert valueless <= listed
    assert not listed & {option.name for option in options if option.argument == "required"}
    assert shorts == {option.short for option in options if option.short and option.argument != "required"}


def test_closed_descriptors_reach_sbatch_through_the_front(shell: Shell) -> None:
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", str(CSUB), HINT, "job.sh"]
    subprocess.run(command, cwd=shell.folder, env=shell.environment(), timeout=60, check=True)
    assert shell.calls() == [PLACED]
    assert os.access(FRONT, os.X_OK)
