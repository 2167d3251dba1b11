# SPDX-License-Identifier: Apache-2.0
"""The Slurm releases that a lab can run: the machine's own, and those of later Debians in file trees of their own.

A command of a later release runs in a mount namespace of its own, in which that tree's /usr lies over the machine's;
the mounts end with the process. All else is the machine's: /etc, /run, /proc, the lab's folder, the checkout. A lab
lays its own passwd and group over the machine's as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import LabError
from tests.cluster.processes import tail

# munged and mariadbd are the machine's own for every release: they are reached over sockets.
PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurm-wlm-mysql-plugin",
    "libslurm-dev",
    "python3",
)
# Debian's debootstrap knows no suite younger than itself; sid's script serves all of them.
SCRIPT = "/usr/share/debootstrap/scripts/sid"
# One `mount` for a whole table: each would take another millisecond.
ENTER = 'mount --all --fstab "$0" && exec "$@"'


@dataclass(frozen=True)
class Release:
    """A Slurm release, and the Debian suite that has it; without a suite it is the machine's own."""

    name: str
    suite: str
    # slurmd loads a cgroup plugin even where nothing uses cgroups, and the one it detects refuses to start in
    # containers: v2 wants D-Bus, either wants the file system mounted.
    cgroup_plugin: str

    @property
    def root(self) -> Path:
        """The release's file tree; one made of other packages has another name."""
        key = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:8]
        return roots() / f"{self.name}-{self.suite}-{platform.machine()}-{key}"

    def is_there(self) -> bool:
        return not self.suite or self.root.exists()

    def write_mounts(self, table: Path, over: Mapping[Path, str]) -> None:
        """Write what lies over the machine's own files for a command of this release, beside /usr."""
        # Which program /usr/sbin/slurmctld is, the alternatives say.
        mounts = {**over, self.root / "etc/alternatives": "/etc/alternatives", self.root / "usr": "/usr"}
        blank = "\\040"
        lines = [f"{str(source).replace(' ', blank)} {target} none bind 0 0\n" for source, target in mounts.items()]
        table.write_text("".join(lines))

    def enter(self, argv: Sequence[str], mounts: Path) -> list[str]:
        """Return the command that runs argv among this release's programs; for a later release it needs root."""
        return ["unshare", "--mount", "--", "sh", "-c", ENTER, str(mounts), *argv] if self.suite else list(argv)

    def make(self, say: Callable[[str], None]) -> None:
        """Make the release's file tree unless it is there."""
        if self.is_there():
            return
        if not shutil.which("debootstrap"):
            raise LabError("no debootstrap here: tests/cluster/bootstrap.sh --releases installs it")
        root = self.root
        root.parent.mkdir(parents=True, exist_ok=True)
        with _lock(root.with_name(f"{root.name}.lock")):
            if self.is_there():
                return
            say(f"Slurm {self.name} from Debian {self.suite}, into {root}")
            began = time.monotonic()
            half = root.with_name(f"{root.name}.half")
            if half.exists():
                shutil.rmtree(half)
            self._debootstrap(half, root.with_name(f"{root.name}.log"))
            found = _said(["dpkg-query", f"--admindir={half}/var/lib/dpkg", "-W", "-f", "${Version}", "slurmctld"])
            if not found.startswith(f"{self.name}."):
                raise LabError(f"Debian {self.suite} has Slurm {found} by now, not {self.name}")
            half.rename(root)
            say(f"Slurm {found} there in {time.monotonic() - began:.1f} s")

    def _debootstrap(self, target: Path, log: Path) -> None:
        # In namespaces of its own, so that no mount and no process of an interrupted one stays behind.
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        argv += ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        argv += [self.suite, str(target), mirror(), SCRIPT]
        proxy = _said(["apt-config", "dump", "--format", "%v%n", "Acquire::http::Proxy"]).partition("\n")[0]
        environment = os.environ | ({"http_proxy": proxy} if proxy else {})
        with log.open("wb") as out:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, check=False)
        if done.returncode:
            raise LabError(f"debootstrap of Debian {self.suite} failed (exit {done.returncode})\n{tail(log)}")


HOST = Release("22.05", "", "cgroup/v1")
RELEASES = {r.name: r for r in (HOST, Release("24.11", "trixie", "disabled"), Release("26.05", "forky", "disabled"))}


def find(name: str) -> Release:
    try:
        return RELEASES[name]
    except KeyError:
        raise LabError(f"no release {name!r}: there are {', '.join(RELEASES)}") from None


def roots() -> Path:
    """Return the folder of the releases' file trees; what is deleted there is made anew."""
    return Path(os.environ.get("COLLOC_ROOTS") or "/var/cache/slurm_colloc/roots")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def mirror() -> str:
    """Return where the machine's own packages come from; a mirror has all of Debian's suites."""
    own = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    sources = _said(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]
    )
    for line in sources.splitlines():
        suite, component, uri = line.split(" ", 2)
        if (suite, component) == (own, "main"):
            return uri
    raise LabError(f"apt-get names no source of Debian {own}'s main component")


def _said(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
