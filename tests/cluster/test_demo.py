# SPDX-License-Identifier: Apache-2.0
"""`make demo`, as root and as nobody: the story is told, and nothing is left on the machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.fixtures import CHECKOUT, RELEASE, need_cluster
from tests.reaper import RUN, new_folder

pytestmark = [
    pytest.mark.alone,
    pytest.mark.cluster,
    pytest.mark.skipif(RELEASE != "22.05", reason="the demo runs this machine's own Slurm"),
]
NOBODY = 65534


def _system() -> dict[str, object]:
    """Return what a demo might change: configuration, users, run-time and spool folders, Slurm's processes."""
    folders = [Path(name) for name in ("/etc", "/run", "/var/spool", "/var/lib")]
    files = {str(path) for folder in folders for path in folder.rglob("*") if not str(path).startswith("/run/lock")}
    names = ("slurmctld", "slurmd", "slurmdbd", "mariadbd", "munged", "colloc")
    processes = {
        path.parent.name for path in Path("/proc").glob("[0-9]*/comm") if _read(path).strip().startswith(names)
    }
    return {
        "files": files,
        "users": Path("/etc/passwd").read_text() + Path("/etc/group").read_text(),
        "guard": _read(Path("/usr/sbin/policy-rc.d")),
        "processes": processes,
    }


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _copy(target: Path) -> Path:
    """Copy the checkout's files where everybody may read them."""
    files = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    for name in files.split("\n")[:-1]:
        if (CHECKOUT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, target / name)
    return target


def _tell(checkout: Path, before: list[str]) -> str:
    # Other users may not write into the folder of this run of the tests: what they make, they remove.
    environment = {**os.environ, "HOME": str(checkout)}
    environment.pop(RUN, None)
    done = subprocess.run(
        [*before, sys.executable, "-m", "tests.cluster", "demo"],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_demo_of_root(tmp_path: Path) -> None:
    need_cluster()
    checkout = _copy(tmp_path)
    before = _system()
    told = _tell(checkout, [])
    after = _system()
    # Other tests' clusters may end meanwhile; none may be added.
    assert after["processes"] <= before["processes"]  # type: ignore[operator]
    assert {name: after[name] for name in ("files", "users", "guard")} == {
        name: before[name] for name in ("files", "users", "guard")
    }
    for expected in ("alice", "bob", "carol", "COL001", "given      mps:11", "every process of the cluster is stopped"):
        assert expected in told
    [page] = checkout.glob("demo-output/*/report.html")
    assert str(page) in told
    # Its charts are drawn, by a library that names addresses and loads nothing.
    text = page.read_text()
    assert re.search(r"""(?:src|href)=["']?https?:""", text) is None
    assert "default-src 'none'" in text
    assert "data-figure" in text
    assert not Path(re.search(r"cluster under (\S+)", told)[1]).exists()  # type: ignore[index]


def test_the_demo_of_nobody() -> None:
    need_cluster()
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    reachable = subprocess.run(
        [*as_nobody, sys.executable, "-c", "import duckdb"], cwd="/", check=False, capture_output=True
    )
    if reachable.returncode:
        pytest.skip("the environment lies where other users may not read it")
    checkout = new_folder("colloc-nobody-")
    try:
        _copy(checkout)
        subprocess.run(["chown", "-R", str(NOBODY), checkout], check=True)
        told = _tell(checkout, as_nobody)
        assert "not root" in told
        assert "this cluster keeps no accounting" in told
        assert "given      mps:11" in told
        assert re.search(r"total +12 ", told)
    finally:
        shutil.rmtree(checkout)
