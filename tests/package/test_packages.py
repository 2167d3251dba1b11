# SPDX-License-Identifier: Apache-2.0
"""The packages for administrators, installed into this machine as it is: an overlay takes what they write."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from slurm_colloc import __version__
from tests.unit.programs import need_program

CHECKOUT = Path(__file__).resolve().parents[2]
PREFIX = f"/opt/slurm_colloc-{__version__}"
# In a mount namespace of its own; $1 is an empty folder, $2 the package, $3 installs it, $4 removes it, $5 is its work.
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
here "$5"
here 'for path in /usr/bin/csub /usr/bin/colloc /opt/slurm_colloc $(man -w csub); do readlink -f "$path"; done'
here 'find /opt/slurm_colloc-* ! -type d -newer /tmp/package'
here "$4" >&2
rm machine/usr/local/bin/sbatch
cd upper
find . -mindepth 1 -type f | grep -vE '^\./(tmp|var/(cache|log|lib/(dpkg|rpm)))/' || true
find . -path '*colloc*' | grep -v '^\./tmp/' || true
"""


# What the whole package does, and that of csub alone.
DEMO = "colloc demo -o /tmp/demo >/dev/null && head -c 15 /tmp/demo/report.html && echo"
ALONE = "colloc off; colloc off --end; colloc late --help | head -n 1; colloc report 2>&1; echo $?; csub -t 5 job.sh"
AT_WORK = {
    DEMO: ["<!doctype html>"],
    ALONE: [
        "Usage: colloc late [OPTIONS]",
        "colloc: error: 'duckdb' is not installed here; run it on a host with all of slurm-colloc",
        "2",
        "sbatch -t 5 job.sh",
    ],
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_program("dpkg-deb")
    target = tmp_path_factory.mktemp("packages")
    build(target, "sbom", "deb")
    return target


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of csub alone."""
    need_program("dpkg-deb")
    need_program("rpmbuild")
    target = tmp_path_factory.mktemp("alone")
    build(target, "--csub", "sbom", "deb", "rpm")
    return target


def build(target: Path, *kinds: str) -> None:
    argv: list[str | Path] = [CHECKOUT / "packages" / "build", "--out", target, *kinds]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        ("built", "deb"),
        # It takes a minute to compress.
        pytest.param("built", "rpm", marks=pytest.mark.soak),
        ("alone", "deb"),
        ("alone", "rpm"),
    ],
)
def test_installed_it_works_and_removed_it_is_gone(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, package: str
) -> None:
    if os.geteuid():
        pytest.skip("only root installs packages")
    folder: Path = request.getfixturevalue(kind)
    if (kind, package) == ("built", "rpm"):
        need_program("rpmbuild")
        build(folder, "rpm")
    (path,) = folder.glob(f"*.{package}")
    name = f"slurm-colloc-{'csub-' * (kind == 'alone')}{__version__}"
    # The Python that it asks for is Debian's here, which no package of rpm's brings.
    install, remove = {
        "deb": ("dpkg -i /tmp/package", f"dpkg --purge {name}"),
        "rpm": ("rpm --dbpath /var/lib/rpm -i --nodeps /tmp/package", f"rpm --dbpath /var/lib/rpm -e {name}"),
    }[package]
    work = ALONE if kind == "alone" else DEMO
    argv: list[str | Path] = ["unshare", "--mount", "sh", "-c", MACHINE, "sh", tmp_path, path, install, remove, work]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"colloc {__version__}",
        f"  csub {__version__}:   man csub; sbatch --help; what it decided for you: colloc history",
        "sbatch --version",
        *AT_WORK[work],
        f"{PREFIX}/bin/csub",
        f"{PREFIX}/bin/colloc",
        PREFIX,
        f"{PREFIX}/share/man/man1/csub.1",
    ], done.stdout


def test_csub_alone_is_what_is_pinned_and_small(alone: Path) -> None:
    """Each part is one that pyproject.toml asks for or that such a one brings, by the version and hash in the list."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    assert set(project["dependency-groups"]["csub"]) < set(project["project"]["dependencies"])
    text = (CHECKOUT / "packages/csub.txt").read_text()
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)(?: ; .*)? \\\n    --hash=sha256:", text, re.MULTILINE))
    assert text.count("==") - text.count(" == ") == len(pinned)
    parts = json.loads((alone / f"slurm-colloc-csub-{__version__}.cdx.json").read_text())["components"]
    versions = {part["name"].lower().replace("_", "-"): part["version"] for part in parts}
    assert {"clustershell", "jinja2", "nvidia-ml-py", "typer"} <= versions.keys()
    assert versions.items() <= pinned.items()
    assert not {"duckdb", "pandas", "numpy", "altair", "vl-convert-python"} & versions.keys()
    control = subprocess.run(["dpkg-deb", "-f", next(alone.glob("*.deb"))], capture_output=True, text=True, check=True)
    fields = dict(line.split(": ", 1) for line in control.stdout.splitlines() if not line.startswith(" "))
    assert fields["Conflicts"] == f"slurm-colloc-{__version__}"
    assert int(fields["Installed-Size"]) < 50_000


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
