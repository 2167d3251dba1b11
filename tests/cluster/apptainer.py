# SPDX-License-Identifier: Apache-2.0
"""A real Apptainer: Debian's package, laid out in a folder of its own, run by users without any privilege.

Debian has it in unstable alone. It can be moved, and looks for its settings below the folder that it lies in; its
libraries must be no older than Debian 13's.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster import releases
from tests.cluster.errors import LabError

_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Where the moved programs look for what the package has elsewhere.
_LINKS = {"usr/etc": "../etc", "usr/lib/etc": "../../etc", "usr/lib/var": "../../var"}


def program() -> Path:
    """Return Apptainer's program, fetched where it is not there yet.

    Raises:
        LabError: it cannot be had.
    """
    folder = releases.roots() / "apptainer"
    if not folder.exists():
        half = folder.with_name("apptainer.half")
        (half / "apt/lists/partial").mkdir(parents=True, exist_ok=True)
        (half / "apt/archives/partial").mkdir(parents=True, exist_ok=True)
        (half / "apt/sources.list").write_text(f"deb [signed-by={_KEYS}] {releases.mirror()} sid main\n")
        options = [f"Dir::State::lists={half}/apt/lists", f"Dir::Cache={half}/apt", "Dir::Etc::sourceparts=/dev/null"]
        options.append(f"Dir::Etc::sourcelist={half}/apt/sources.list")
        apt = ["apt-get", "-q", *(word for option in options for word in ("-o", option))]
        _run([*apt, "update"], half)
        _run([*apt, "download", "apptainer"], half)
        [package] = half.glob("apptainer_*.deb")
        _run(["dpkg-deb", "-x", str(package), "tree"], half)
        for name, target in _LINKS.items():
            (half / "tree" / name).symlink_to(target)
        (half / "tree/var/lib/apptainer/mnt/session").mkdir(parents=True, exist_ok=True)
        half.rename(folder)
    return folder / "tree/usr/bin/apptainer"


def make_box(folder: Path) -> None:
    """Make a container that is a folder, and whose programs are those of the machine, by --bind /usr."""
    for name in ("usr", "etc", "proc", "dev", "sys", "tmp", "root", "home", "var/tmp"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "hosts", "resolv.conf", "localtime"):
        (folder / "etc" / name).touch()


def _run(argv: list[str], folder: Path) -> None:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"'{' '.join(argv[:1] + argv[-2:])}' failed (exit {done.returncode}): {done.stderr[-500:]}")
