# SPDX-License-Identifier: Apache-2.0
"""The packages for administrators, installed into this machine as it is: an overlay takes what they write."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from slurm_colloc import __version__
from tests.unit.programs import need_program

CHECKOUT = Path(__file__).resolve().parents[2]
PREFIX = f"/opt/slurm_colloc-{__version__}"
# In a mount namespace of its own; $1 is an empty folder, $2 the package, $3 installs it, $4 removes it.
MACHINE = r"""
set -eu
mount -t tmpfs none "$1"
cd "$1"
mkdir upper work machine
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work machine
mount -t proc proc machine/proc
mount --bind /dev machine/dev
cp "$2" machine/tmp/package
rm -rf machine/usr/share/zsh # a host without this shell
printf '#!/bin/sh\necho "sbatch $*"\n' >machine/usr/local/bin/sbatch
chmod +x machine/usr/local/bin/sbatch
here() { env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 HOME=/tmp chroot machine sh -c "$1"; }
here "$3" >&2
here 'colloc --version'
here 'csub --help | tail -n 1'
here 'csub --version'
here 'colloc demo -o /tmp/demo >/dev/null && head -c 15 /tmp/demo/report.html && echo'
here 'for path in /usr/bin/csub /usr/bin/colloc /opt/slurm_colloc $(man -w csub); do readlink -f "$path"; done'
here 'find /opt/slurm_colloc-* ! -type d -newer /tmp/package'
here "$4" >&2
rm machine/usr/local/bin/sbatch
cd upper
find . -mindepth 1 -type f | grep -vE '^\./(tmp|var/(cache|log|lib/(dpkg|rpm)))/' || true
find . -path '*colloc*' | grep -v '^\./tmp/' || true
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_program("dpkg-deb")
    target = tmp_path_factory.mktemp("packages")
    build(target, "sbom", "deb")
    return target


def build(target: Path, *kinds: str) -> None:
    argv: list[str | Path] = [CHECKOUT / "packages" / "build", "--out", target, *kinds]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("package", "install", "remove"),
    [
        ("*.deb", "dpkg -i /tmp/package", f"dpkg --purge slurm-colloc-{__version__}"),
        # The Python that it asks for is Debian's here, which no package of rpm's brings. It takes a minute to compress.
        pytest.param(
            "*.rpm",
            "rpm --dbpath /var/lib/rpm -i --nodeps /tmp/package",
            f"rpm --dbpath /var/lib/rpm -e slurm-colloc-{__version__}",
            marks=pytest.mark.soak,
        ),
    ],
    ids=["deb", "rpm"],
)
def test_installed_it_works_and_removed_it_is_gone(
    built: Path, tmp_path: Path, package: str, install: str, remove: str
) -> None:
    if os.geteuid():
        pytest.skip("only root installs packages")
    if package == "*.rpm":
        need_program("rpmbuild")
        build(built, "rpm")
    (path,) = built.glob(package)
    argv: list[str | Path] = ["unshare", "--mount", "sh", "-c", MACHINE, "sh", tmp_path, path, install, remove]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"colloc {__version__}",
        f"  csub {__version__}:   man csub; sbatch --help; what it decided for you: colloc history",
        "sbatch --version",
        "<!doctype html>",
        f"{PREFIX}/bin/csub",
        f"{PREFIX}/bin/colloc",
        PREFIX,
        f"{PREFIX}/share/man/man1/csub.1",
    ], done.stdout


def test_the_list_of_parts_is_that_of_the_package(built: Path) -> None:
    text = (built / f"slurm-colloc-{__version__}.cdx.json").read_text()
    parts = json.loads(text)
    root = parts["metadata"]["component"]
    assert (root["name"], root["version"]) == ("slurm-colloc", __version__)
    names = {part["name"].lower() for part in parts["components"]}
    assert {"duckdb", "pandas", "numpy", "typer", "vl-convert-python"} <= names
    assert all(part["version"] for part in parts["components"])
    (asked,) = (one["dependsOn"] for one in parts["dependencies"] if one["ref"] == root["bom-ref"])
    assert any("duckdb" in one for one in asked)
    assert "/var/tmp" not in text
    listed = subprocess.run(
        ["dpkg-deb", "--contents", next(built.glob("*.deb"))], capture_output=True, text=True, check=True
    ).stdout
    packed = {line.split("/")[-2] for line in listed.splitlines() if line.endswith(".dist-info/METADATA")}
    assert len(packed) == len(parts["components"]) + 1, "the list has all but the root itself"
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}
