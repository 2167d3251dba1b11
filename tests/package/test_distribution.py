# SPDX-License-Identifier: Apache-2.0
"""The sdist and the wheel are complete: what is installed from them works away from any checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from slurm_colloc import __version__

CHECKOUT = Path(__file__).resolve().parents[2]

RENDER = """
import sys
from pathlib import Path
from slurm_colloc.core.config_file import load_site
from slurm_colloc.core.model import Footprint, Gres, JobRequest, Placement, Quantiles, SharingMode, because
from slurm_colloc.core.shipped import folder
from slurm_colloc.site.render import Host, render_site
from slurm_colloc.submit.render import render_block

assert "site-packages" in folder("templates"), folder("templates")
request = JobRequest(
    "job", (), "/bin/sh", (), "", "", (Gres("gpu", "", 1),), "gres", None, "", 0,
    None, False, False, False, None, False, "s",
    (), (), (), (), (),
)
footprint = Footprint(Quantiles(1, 2, 3), Quantiles(1, 2, 3), None, "", "hint", 0, (because("no-gpu"),))
rendered = 0
for site in sorted(Path(folder("site-configs")).glob("*/site.toml")):
    config = load_site(str(site))
    assert render_site(config, Host("/opt/slurm_colloc"))[-1].name == "ORDER.md"
    for mode in SharingMode:
        placement = Placement(mode, Gres("mps", "", 10), 300, 256, "", "", "", None, (because("no-gpu"),), ())
        block = render_block(request, footprint, placement, config, sampled=True)
        assert b"csub" in block and b"slurm_colloc.cli.colloc sample" in block
        rendered += 1
assert rendered == 4 * 7, rendered
print(len(list(Path(folder("templates")).glob("*.sbatch.j2"))))
"""


# Where shells and man look by themselves.
SHARED = {
    "share/bash-completion/completions/csub",
    "share/man/man1/colloc.1",
    "share/man/man1/csub.1",
    "share/man/man5/slurm_colloc.toml.5",
}


def build(checkout: Path, target: Path) -> Path:
    # No --wheel: the wheel is then built from the sdist, so whatever the sdist lacks is missing here too.
    argv: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--outdir", target, checkout]
    subprocess.run(argv, check=True, capture_output=True, env=os.environ | {"SOURCE_DATE_EPOCH": "1795000000"})
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CHECKOUT, tmp_path_factory.mktemp("dist"))


def test_another_build_is_the_same_to_the_byte(built: Path, tmp_path: Path) -> None:
    """From another folder, with other times and modes, without git."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    for name in reversed(names.rstrip("\0").split("\0")):
        ours, copied = CHECKOUT / name, tmp_path / "elsewhere" / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ours, copied)
        copied.chmod(0o700 if os.access(ours, os.X_OK) else 0o600)
    again = build(tmp_path / "elsewhere", tmp_path / "dist")
    sums = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        for folder in (built, again)
    ]
    assert set(sums[0]) == {f"slurm_colloc-{__version__}.tar.gz", f"slurm_colloc-{__version__}-py3-none-any.whl"}
    assert sums[0] == sums[1]


def test_the_wheel_from_the_sdist_has_every_shipped_file(built: Path) -> None:
    names = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    tracked = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    shipped = {"templates/": "templates/", "site-configs/": "site-configs/"}
    expected = {path for path in tracked.split() if path.startswith("slurm_colloc/")}
    for path in tracked.split():
        for source, target in shipped.items():
            if path.startswith(source):
                expected.add(f"slurm_colloc/_shipped/{target}{path.removeprefix(source)}")
    assert expected <= names, expected - names
    data = {name.partition(".data/data/")[2] for name in names if ".data/data/" in name}
    assert data == SHARED


def test_the_sdist_can_run_the_tests(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = {"Makefile", "LICENSE", "README.md", "CHANGELOG.md", "packages/build", "tests/conftest.py"}
    assert wanted <= names


def test_an_installed_wheel_renders_everything_and_tells_the_demo(built: Path, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    wheel = next(built.glob("*.whl"))
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True, capture_output=True)
    assert all((environment / path).is_file() for path in SHARED)
    version = subprocess.run([environment / "bin" / "colloc", "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"colloc {__version__}\n"
    rendered = subprocess.run([python, "-I", "-c", RENDER], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert rendered.returncode == 0, rendered.stderr
    assert int(rendered.stdout) == len(list((CHECKOUT / "templates").glob("*.sbatch.j2")))
    demo = subprocess.run(
        [environment / "bin" / "colloc", "demo", "-o", tmp_path / "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert demo.returncode == 0, demo.stderr
    assert "total" in demo.stdout
    page = (tmp_path / "demo" / "report.html").read_text()
    assert ('data-figure="' in page, "are not drawn" in page) == (True, False)
