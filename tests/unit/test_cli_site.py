# SPDX-License-Identifier: Apache-2.0
"""colloc site at the terminal: whether this node's driver is read, and what is said when it does not answer."""

import os
import stat
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc import site_gpus
from slurm_colloc.errors import GpuError
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.site.cluster import NodeGpus
from slurm_colloc.site.driver import to_json
from tests.fakes.devices import gpus
from tests.fakes.driver import Driver
from tests.unit.programs import colloc
from tests.unit.test_site import FakeClient


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_gpus, "CliClient", lambda timeout_s: FakeClient())


@pytest.mark.parametrize(("node", "read"), [("g1", True), ("c1", False), ("login", False)])
def test_the_driver_is_read_on_a_node_with_gpus_only(node: str, read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(gpus(2)).install(monkeypatch)
    monkeypatch.setenv("SLURMD_NODENAME", node)
    found = site_gpus.look_around([], {})
    assert [item.node for item in found.gpus] == ([node] if read else [])
    assert bool(driver.counts) is read


def test_a_driver_that_is_silent_is_said_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "g1")

    def silent(*_: object) -> NodeGpus:
        raise GpuError("the NVIDIA driver does not answer")

    monkeypatch.setattr(site_gpus, "read_driver", silent)
    assert site_gpus.look_around([], {}).gpus == ()
    assert "node 'g1' has GPUs and they were not read: the NVIDIA driver does not answer" in capsys.readouterr().err


def test_what_a_file_says_of_this_node_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(gpus(2)).install(monkeypatch)
    told = NodeGpus("g1", NvmlReader().units())
    (tmp_path / "g1.json").write_text(to_json(told))
    monkeypatch.setenv("SLURMD_NODENAME", "g1")
    assert site_gpus.look_around([str(tmp_path / "g1.json")], {}).gpus == (told,)


def test_what_a_driver_says_needs_no_site_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """$COLLOC_CONF may name the file that 'site init' is about to write."""
    Driver(gpus(2)).install(monkeypatch)
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    assert colloc("site", "gpus", "--node", "g1") == 0
    assert '"g1"' in capsys.readouterr().out
    (tmp_path / "site.toml").write_text("nothing = 1\n")
    assert colloc("site", "gpus", "--node", "g1") == 2
    assert "site.toml" in capsys.readouterr().err


def written(path: Path, *options: str) -> int:
    return colloc("site", "init", "-o", str(path), *options)


def test_a_site_file_is_replaced_whole_and_a_link_to_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, link = tmp_path / "kept" / "site.toml", tmp_path / "site.toml"
    monkeypatch.setenv("HOME", str(tmp_path))
    before = os.umask(0o077)
    try:
        real.parent.mkdir()
        real.write_text("old")
        link.symlink_to("kept/site.toml")
        with real.open() as reading:
            assert written(link, "--force") == 0
            assert reading.read() == "old", "who reads it meanwhile has all of the old one"
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert "slurm_release" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o644, "csub reads it for everybody"
    assert [path.name for path in real.parent.iterdir()] == ["site.toml"]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Renaming over /dev/null would take it from everybody."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name in ("fifo", "link"):
        assert written(tmp_path / name, "--force") == 2
        assert f"'{tmp_path}/{name}' is no regular file" in capsys.readouterr().err
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


def test_a_folder_that_takes_no_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert written(tmp_path / "file/below/site.toml") == 2
    assert "cannot be written: " in capsys.readouterr().err
