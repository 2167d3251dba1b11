# SPDX-License-Identifier: Apache-2.0
"""Installing the project into the lab as a center would, from its wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.errors import LabError
from tests.cluster.releases import HOST

if TYPE_CHECKING:
    from tests.cluster.lab import Lab

# Copied for building: what the wheel is made of. Not the rest, which may hold gigabytes.
INGREDIENTS = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "slurm_colloc",
    "templates",
    "site-configs",
    "tests/recorded",
    "docs",
)


def install(lab: Lab, checkout: Path, say: Callable[[str], None]) -> float:
    """Build the wheel from a copy of the checkout and put it into the lab, with its dependencies; return seconds."""
    began = time.monotonic()
    venv = lab.root / "opt"
    with tempfile.TemporaryDirectory(prefix="colloc-wheel-", dir="/var/tmp") as temp:
        wheel = build_wheel(checkout, Path(temp))
        say(f"wheel built in {time.monotonic() - began:.1f} s: {wheel.name}")
        if not (venv / "bin/python").exists():
            # pip of this interpreter serves the venv too, so a venv without ensurepip will do, in 0.1 s.
            do(lab.command([interpreter(lab), "-m", "venv", "--without-pip", venv]))
        argv = pip_install(lab, venv)
        do([*argv, "--force-reinstall", "--no-deps", str(wheel)])
        do([*argv, f"{wheel}[scale-out]"])
    let_all_read(venv)
    seconds = time.monotonic() - began
    say(f"installed in {venv} in {seconds:.1f} s")
    return seconds


def copy(installed: Path, venv: Path) -> None:
    """Give a lab what another one has installed: its files are linked, those that name their folder are rewritten."""
    shutil.copytree(installed, venv, symlinks=True, copy_function=os.link)
    for path in (venv / "pyvenv.cfg", *(venv / "bin").iterdir()):
        if path.is_file() and not path.is_symlink():
            mode, text = path.stat().st_mode, path.read_bytes()
            path.unlink()
            path.write_bytes(text.replace(os.fsencode(installed), os.fsencode(venv)))
            path.chmod(mode)


def build_wheel(checkout: Path, temp: Path) -> Path:
    source, dist = temp / "source", temp / "dist"
    source.mkdir()
    for name in INGREDIENTS:
        ours = checkout / name
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if ours.is_dir():
            shutil.copytree(ours, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif ours.exists():
            shutil.copy2(ours, source / name)
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if importlib.util.find_spec("hatchling"):
        # An isolated build would fetch hatchling anew each time.
        argv.append("--no-build-isolation")
    do([*argv, "--wheel-dir", str(dist), str(source)])
    return next(dist.glob("*.whl"))


def pip_install(lab: Lab, venv: Path) -> list[str]:
    """Return the command that installs into an environment of the lab; what is to be installed comes behind it.

    What `pip --python` runs in the other interpreter: our pip, and nothing else of our environment.
    """
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        raise LabError(f"{sys.executable} has no pip (tests/cluster/bootstrap.sh makes an environment that has)")
    runner = Path(spec.origin).with_name("__pip-runner__.py")
    return lab.command([venv / "bin/python", runner, "install", "--quiet", "--disable-pip-version-check"])


def interpreter(lab: Lab) -> str:
    """Find a Python >= 3.11 that other users may run; our own may live in somebody's closed home."""
    if lab.release != HOST:
        return "/usr/bin/python3"
    check = "import sys, venv; sys.exit(sys.version_info < (3, 11))"
    found = ["/usr/bin/python3", shutil.which("python3") or "", os.path.realpath(sys.executable)]
    for python in filter(None, found):
        if Path(python).exists() and subprocess.run([python, "-c", check], check=False).returncode == 0:
            return python
    raise LabError("found no Python >= 3.11 for the lab's venv")


def do(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=600)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise LabError(f"failed (exit {done.returncode}): {' '.join(argv)}\n{last}")


def let_all_read(venv: Path) -> None:
    """Open the venv for other uids whatever the umask was."""
    for folder, _, names in os.walk(venv):
        for path in (Path(folder), *(Path(folder) / n for n in names)):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
