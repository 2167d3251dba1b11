# SPDX-License-Identifier: Apache-2.0
"""colloc site at the terminal: whether this node's driver is read, and what is said when it does not answer."""

from pathlib import Path

import pytest

from slurm_colloc.cli.colloc import site_gpus
from slurm_colloc.errors import GpuError
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.site.cluster import NodeGpus
from slurm_colloc.site.driver import to_json
from tests.fakes.devices import gpus
from tests.fakes.driver import Driver
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
