# SPDX-License-Identifier: Apache-2.0
"""What nvidia-smi is asked: its texts, and a made-up one."""

from pathlib import Path

import pytest

from slurm_colloc.core.errors import GpuError
from slurm_colloc.gpu.nvidia_smi import computing, devices, parse_devices, parse_pids, parse_slices
from tests.unit.golden import Printed
from tests.unit.made import H100, RECORDED
from tests.unit.programs import program

MODES = f"""\
GPU-8c092671-ad93, {H100}, Exclusive_Process, Enabled
GPU-11111111-ad93, {H100}, Default, [N/A]
GPU-22222222-ad93, {H100}, [N/A], Disabled
Unable to determine the device handle for GPU0000:08:00.0: Unknown Error
"""
# Of influxdata/telegraf issue 5812, but for the names.
LIST = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-8c092671-ad93)
  MIG 1g.20gb     Device  0: (UUID: MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a)
  MIG 3g.40gb     Device  1: (UUID: MIG-a45882f0-9215-5733-a0c1-49286ab31cb5)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-ad93)
"""


def test_devices_are_gpus_and_in_place_of_a_cut_one_its_slices() -> None:
    assert parse_devices(MODES, LIST) == (
        ("MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a", H100, "1g.20gb", "exclusive_process"),
        ("MIG-a45882f0-9215-5733-a0c1-49286ab31cb5", H100, "3g.40gb", "exclusive_process"),
        ("GPU-11111111-ad93", H100, "", "default"),
        ("GPU-22222222-ad93", H100, "", ""),
    )


def test_slices_before_driver_470() -> None:
    listed = "GPU 0: A100 (UUID: GPU-a8)\n  MIG 3g.20gb Device 0: (UUID: MIG-GPU-a8/1/0)\n"
    assert parse_slices(listed) == {"GPU-a8": (("3g.20gb", "MIG-GPU-a8/1/0"),)}


def test_no_gpu_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    program(tmp_path, "nvidia-smi", f"echo '{said}'; exit 18\n", monkeypatch)
    with printed.raises("agent", GpuError, said):
        devices()
    assert computing() == set()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(GpuError, match="could not be asked"):
        devices()


def test_what_a_real_one_prints() -> None:
    """An H100 shared by three jobs under MPS (tests/recorded/nvml-h100)."""
    folder = RECORDED / "nvml-h100"
    ((uuid, slices),) = parse_slices((folder / "smi-list.txt").read_text()).items()
    assert (uuid[:4], slices) == ("GPU-", ())
    # Recorded with the names, which are no longer asked for.
    lines = [line.rpartition(",")[0] for line in (folder / "smi-processes.csv").read_text().splitlines()]
    assert len(parse_pids("\n".join(lines))) == 4
