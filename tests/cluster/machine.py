# SPDX-License-Identifier: Apache-2.0
"""A lab on a machine that packages are installed into: the running one, under an overlay that takes what is written.

Its daemons, jobs and administrator live in one mount namespace, which ends with the process that holds it. What came of
an installation is then what lies in the upper folders, and nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc import __version__
from tests.cluster.fixtures import CHECKOUT
from tests.cluster.lab import SYSTEM_PATH, Lab
from tests.cluster.processes import Book
from tests.cluster.releases import Release
from tests.waiting import wait_for

# Where packages, administrators and rendered files write.
OVER = ("/etc", "/opt", "/run/slurm_colloc", "/usr", "/var/cache", "/var/lib", "/var/log", "/var/spool")
# $1 is where the overlays lie. Not all of /: the lab's own folder is the machine's. It says that it is done, and stays.
HOLD = """
set -eu
mount -t tmpfs -o mode=0755 none "$1"
for folder in {folders}; do
    mkdir -p "$1/upper$folder" "$1/work$folder" "$folder"
    mount -t overlay overlay -o "lowerdir=$folder,upperdir=$1/upper$folder,workdir=$1/work$folder" "$folder"
done
touch "$1/held"
exec sleep infinity
"""
# Makes of the package $1 of release $2 that of $3, which is the same under another name and priority: $5 instead of $4.
LATER = r"""
set -eu
dpkg-deb -R "$1" tree
opt=tree/opt/slurm_colloc-$3
mv "tree/opt/slurm_colloc-$2" "$opt"
ours=$(echo "$opt"/lib/python*/site-packages/slurm_colloc)
mv "$ours-$2.dist-info" "$ours-$3.dist-info"
mv "tree/usr/share/doc/slurm-colloc-$2" "tree/usr/share/doc/slurm-colloc-$3"
grep -q "^set -- --install .* $4\$" tree/DEBIAN/postinst
sed -i "/^set -- --install /s/ $4\$/ $5/" tree/DEBIAN/postinst
grep -rlIF "$2" tree/DEBIAN "$opt/bin" "$opt/pyvenv.cfg" "$ours/__init__.py" "$ours-$3.dist-info" |
    xargs sed -i "s/$2/$3/g"
"$opt/bin/python" -m compileall -qf "$ours/__init__.py"
dpkg-deb --root-owner-group -Znone --build tree .
"""


@dataclass(frozen=True)
class _Within(Release):
    """The machine's own Slurm, in the namespace of a process."""

    pid: int = 0

    def enter(self, argv: Sequence[str], mounts: Path) -> list[str]:
        enter = 'exec nsenter --target "$0" --mount --wdns="$PWD" -- "$@"'
        return ["sh", "-c", enter, str(self.pid), *argv]


class Machine:
    """The machine under a lab that is not up yet; it ends after the lab's daemons."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        place = lab.root / "machine"
        place.mkdir()
        script = HOLD.format(folders=" ".join(folder for folder in OVER if os.path.isdir(folder)))
        argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(place)]
        self.book = Book(lab.root / "run/machine")
        self.held = held = self.book.start("machine", argv, log=lab.root / "log/machine.out", env={"PATH": SYSTEM_PATH})
        wait_for((self._seen(held.pid) / str(place / "held").lstrip("/")).exists, "nothing is mounted")
        host = lab.release
        lab.release = _Within(host.name, host.suite, host.cgroup_plugin, held.pid)
        self.root = self._seen(held.pid)
        self.upper = self.root / str(place / "upper").lstrip("/")
        # Whoever is no process of the lab's daemons finds its people here, without a library before all others.
        for name in ("passwd", "group"):
            (self.root / "etc" / name).write_bytes((lab.root / "etc" / name).read_bytes())

    def end(self) -> None:
        self.book.stop([self.held])

    @staticmethod
    def _seen(pid: int) -> Path:
        return Path(f"/proc/{pid}/root")

    def sh(
        self, command: str, user: str = "root", *, cwd: Path | None = None, path: str = SYSTEM_PATH, umask: int = 0o022
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell's command as a login of this user would, by names from /etc/passwd."""
        words = shlex.join(
            [
                *("env", "-i", f"PATH={path}", "LANG=C.UTF-8", f"SLURM_CONF={self.lab.slurm_conf}"),
                *(f"HOME={self.home(user)}", f"USER={user}", "sh", "-c", f"umask {umask:04o}; {command}"),
            ]
        )
        change = "" if user == "root" else f"setpriv --reuid={user} --regid={user} --clear-groups -- "
        argv = self.lab.release.enter(["sh", "-c", f"exec {change}{words}"], self.lab.mounts)
        return subprocess.run(
            argv,
            cwd=cwd or self.lab.root,
            env={"PATH": SYSTEM_PATH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def done(self, command: str, user: str = "root", *, cwd: Path | None = None, path: str = SYSTEM_PATH) -> str:
        """Run a command that must end well, and return what it says."""
        done = self.sh(command, user, cwd=cwd, path=path)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def home(self, user: str) -> Path:
        return self.lab.users[user].home if user in self.lab.users else self.lab.root / "home/root"

    def written(self) -> Iterator[str]:
        """Yield each path that is there and was written since, by its own name on the machine."""
        for folder, folders, names in os.walk(self.upper):
            for name in (*folders, *names):
                path = os.path.join(folder, name).removeprefix(str(self.upper))
                if os.path.lexists(f"{self.root}{path}"):
                    yield path


def build_package(target: Path, *words: str) -> Path:
    """Build the .deb of this checkout into a folder."""
    _run([str(CHECKOUT / "packages/build"), *words, "--out", str(target), "deb"], target)
    return next(target.glob("*.deb"))


def later_package(package: Path, target: Path, version: str) -> Path:
    """Make the .deb of a later release in a folder; to build it takes as long as this one took."""
    _run(["sh", "-c", LATER, "sh", str(package), __version__, version, _rank(__version__), _rank(version)], target)
    return next(target.glob("*.deb"))


def _rank(version: str) -> str:
    """Return a release's priority among alternatives."""
    return str(int("".join(f"{int(part):02}" for part in re.findall(r"\d+", version)[:3])))


def _run(argv: Sequence[str], cwd: Path) -> None:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr
