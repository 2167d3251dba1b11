# SPDX-License-Identifier: Apache-2.0
"""GPUs as nvidia-smi tells of them: its texts, and the reader over a made-up nvidia-smi."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import GpuError
from slurm_colloc.gpu import nvidia_smi
from slurm_colloc.gpu.nvidia_smi import (
    COMMANDS,
    NvidiaSmiReader,
    SmiGpu,
    SmiProcess,
    parse_gpus,
    parse_minor,
    parse_number,
    parse_processes,
    parse_slices,
)
from slurm_colloc.gpu.reader import GpuProcess, UnitReading
from tests.unit.made import H100, RECORDED
from tests.unit.programs import program

GPUS = """\
GPU-8c092671-ad93, 0, NVIDIA H100 80GB HBM3, 81559, 883, 40, 462.73, Disabled
GPU-11111111-ad93, 1, NVIDIA H100 80GB HBM3, 81559, 3, [N/A], [Unknown Error], [N/A]
"""
CUT = """\
GPU-8c092671-ad93, 0, NVIDIA H100 80GB HBM3, 81559, 883, [N/A], 462.73, Enabled
GPU-11111111-ad93, 1, NVIDIA H100 80GB HBM3, 81559, 3, 0, 71.05, Disabled
"""
LOST = "Unable to determine the device handle for GPU0000:08:00.0: Unknown Error\n"
PROCESSES = """\
GPU-8c092671-ad93, 4242, 872
GPU-8c092671-ad93, 4243, [N/A]
"""
# Of influxdata/telegraf issue 5812, but for the names.
LIST = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-8c092671-ad93)
  MIG 1g.20gb     Device  0: (UUID: MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a)
  MIG 3g.40gb     Device  1: (UUID: MIG-a45882f0-9215-5733-a0c1-49286ab31cb5)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-ad93)
"""
INFORMATION = """\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 101
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.74.00.01
Bus Location: \t 0000:1a:00.0
Device Minor: \t {minor}
GPU Excluded:\t No
"""


class Smi:
    """A made-up nvidia-smi that says what it is told to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        program(folder, "nvidia-smi", f'cat "{folder}/${{1%%=*}}"; exit $(cat {folder}/status)\n', monkeypatch)
        self.says(GPUS, PROCESSES, LIST)

    def says(self, gpus: str, processes: str = "", listed: str = "", status: int = 0) -> None:
        for argument, text in (("query-gpu", gpus), ("query-compute-apps", processes)):
            (self.folder / f"--{argument}").write_text(text)
        (self.folder / "-L").write_text(listed)
        (self.folder / "status").write_text(str(status))

    def reader(self, **minors: int) -> NvidiaSmiReader:
        root = self.folder / "gpus"
        for number, (uuid, minor) in enumerate(minors.items()):
            (root / str(number)).mkdir(parents=True)
            text = INFORMATION.format(uuid=uuid.replace("_", "-"), minor=minor)
            (root / str(number) / "information").write_text(text)
        return NvidiaSmiReader(str(root))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    monkeypatch.setattr(nvidia_smi, "sees_host_pids", lambda: True)
    return Smi(tmp_path, monkeypatch)


NO_NUMBERS = [
    "N/A",
    "[N/A]",
    "[Not Supported]",
    "[Insufficient Permissions]",
    "ERR!",
    "[Unknown Error]",
    "",
    "-1",
    "nan",
]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_no_number_is_none(text: str) -> None:
    assert parse_number(text) is None
    assert parse_gpus(f"GPU-1, 0, H100, {text}, {text}, {text}, {text}, Disabled") == (
        SmiGpu("GPU-1", 0, "H100", None, None, None, None, False),
    )
    assert parse_processes(f"GPU-1, 7, {text}") == (SmiProcess("GPU-1", 7, None),)


def test_texts() -> None:
    assert parse_gpus(GPUS) == (
        SmiGpu("GPU-8c092671-ad93", 0, H100, 81559, 883, 40.0, 462.73, False),
        SmiGpu("GPU-11111111-ad93", 1, H100, 81559, 3, None, None, False),
    )
    assert parse_processes(PROCESSES) == (
        SmiProcess("GPU-8c092671-ad93", 4242, 872),
        SmiProcess("GPU-8c092671-ad93", 4243, None),
    )
    assert parse_slices(LIST) == {
        "GPU-8c092671-ad93": (
            ("1g.20gb", "MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a"),
            ("3g.40gb", "MIG-a45882f0-9215-5733-a0c1-49286ab31cb5"),
        ),
        "GPU-11111111-ad93": (),
    }
    assert parse_minor(INFORMATION.format(uuid="GPU-1", minor=3)) == ("GPU-1", 3)
    assert parse_minor("") is None


def test_slices_before_driver_470() -> None:
    listed = "GPU 0: A100 (UUID: GPU-a8)\n  MIG 3g.20gb Device 0: (UUID: MIG-GPU-a8/1/0)\n"
    assert parse_slices(listed) == {"GPU-a8": (("3g.20gb", "MIG-GPU-a8/1/0"),)}


@given(st.text())
def test_any_text_is_an_answer(text: str) -> None:
    for parse in (parse_gpus, parse_processes, parse_slices, parse_minor, parse_number):
        parse(text)
    parse_gpus(f"GPU-1, {text}, {text}, {text}, {text}, {text}, {text}, {text}")


def test_whole_gpus(smi: Smi) -> None:
    reader = smi.reader(GPU_8c092671_ad93=1, GPU_11111111_ad93=0)
    assert [one[:7] for one in reader.units()] == [
        ("GPU-8c092671-ad93", 1, H100, "", 81559, 132, 132),
        ("GPU-11111111-ad93", 0, H100, "", 81559, 132, 132),
    ]
    readings, processes = reader.read()
    assert readings == (
        UnitReading("GPU-8c092671-ad93", True, gpu_util_pct=40.0, gpu_mem_used_mib=883, power_w=462.73),
        UnitReading("GPU-11111111-ad93", True, gpu_mem_used_mib=3),
    )
    assert processes == (
        GpuProcess("GPU-8c092671-ad93", 4242, "unknown", 872, None),
        GpuProcess("GPU-8c092671-ad93", 4243, "unknown", None, None),
    )
    reader.close()


def test_without_device_files_the_index_has_to_do(smi: Smi) -> None:
    reader = smi.reader()
    assert [one.gres_index for one in reader.units()] == [0, 1]
    smi.says(LOST + GPUS.splitlines()[1], status=15)
    assert [one.uuid for one in reader.read()[0]] == ["GPU-11111111-ad93"], "the lost one is left out"
    assert [one.gres_index for one in reader.units()] == [1]


def test_slices_are_units_of_which_nothing_is_known(smi: Smi) -> None:
    smi.says(CUT, PROCESSES, LIST)
    reader = smi.reader(GPU_8c092671_ad93=0, GPU_11111111_ad93=1)
    first, second, whole = reader.units()
    assert first[1:] == (0, H100, "1g.20gb", 20090, 26, 132, "GPU-8c092671-ad93", None)
    assert second[1:] == (1, H100, "3g.40gb", 40448, 60, 132, "GPU-8c092671-ad93", None)
    assert whole[:4] == ("GPU-11111111-ad93", 2, H100, "")
    readings, processes = reader.read()
    assert readings[:2] == (UnitReading(first.uuid), UnitReading(second.uuid))
    assert readings[2].gpu_util_pct == 0.0
    assert processes == (), "of the card, so of no slice that we know"


def test_a_programs_name_decides_nothing(smi: Smi) -> None:
    """A user's program called nvidia-cuda-mps-server would make its use nobody's, and its neighbours pay for it."""
    smi.says(GPUS, PROCESSES + "GPU-8c092671-ad93, 99, 66, nvidia-cuda-mps-server\n")
    found = smi.reader().read()[1]
    assert [(one.pid, one.kind) for one in found] == [(4242, "unknown"), (4243, "unknown")]
    assert "name" not in " ".join(COMMANDS["processes"])


def test_pids_of_another_namespace_are_not_ours(smi: Smi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_smi, "sees_host_pids", lambda: False)
    assert [one.pid for one in smi.reader().read()[1]] == [0, 0]


def test_no_gpu_that_answers(smi: Smi) -> None:
    reader = smi.reader()
    smi.says("Failed to initialize NVML: Driver/library version mismatch\n", status=18)
    with pytest.raises(GpuError, match="version mismatch; is this a GPU node"):
        reader.read()
    smi.says(GPUS)
    assert len(reader.read()[0]) == 2


def test_no_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(GpuError, match="could not be asked"):
        NvidiaSmiReader()


def test_the_questions() -> None:
    assert [" ".join(command) for command in COMMANDS.values()] == [
        "nvidia-smi --query-gpu=uuid,index,name,memory.total,memory.used,utilization.gpu,power.draw,mig.mode.current"
        " --format=csv,noheader,nounits",
        "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits",
        "nvidia-smi -L",
    ]


def test_what_a_real_one_prints() -> None:
    """An H100 shared by three jobs under MPS (tests/recorded/nvml-h100)."""
    folder = RECORDED / "nvml-h100"
    (gpu,) = parse_gpus((folder / "smi-gpus.csv").read_text())
    assert (gpu.name, gpu.mem_total_mib, gpu.mem_used_mib, gpu.gpu_util_pct) == (H100, 81559, 1625, 98.0)
    assert (gpu.power_w, gpu.cut) == (501.24, False)
    assert parse_minor((folder / "proc-driver-information.txt").read_text()) == (gpu.uuid, 0)
    assert parse_slices((folder / "smi-list.txt").read_text()) == {gpu.uuid: ()}
    # Recorded with the names, which are no longer asked for.
    lines = [line.rpartition(",")[0] for line in (folder / "smi-processes.csv").read_text().splitlines()]
    found = parse_processes("\n".join(lines))
    assert {one.uuid for one in found} == {gpu.uuid}
    assert [one.mem_used_mib for one in found] == [66, 524, 524, 500]
