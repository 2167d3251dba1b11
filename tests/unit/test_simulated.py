# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.errors import GpuError, InputError
from slurm_colloc.gpu.mig import Profile, gres_type_of, model_named, models, parse_profile, slices_per_gpu
from slurm_colloc.gpu.proc import ProcessTable
from slurm_colloc.gpu.reader import GpuProcess
from slurm_colloc.gpu.simulated import LOAD_VARIABLE, Load, SimulatedReader, parse_devices, parse_load
from tests.unit import fake_proc

WHOLE = {"uuid": "GPU-0", "model": "M", "mem_total_mib": 80000, "sm_count": 132, "slices": []}
CUT = {
    **WHOLE,
    "uuid": "GPU-1",
    "slices": [
        {"uuid": "MIG-0", "profile": "1g.10gb", "mem_total_mib": 9984, "sm_count": 16},
        {"uuid": "MIG-1", "profile": "3g.40gb", "mem_total_mib": 40448, "sm_count": 60},
    ],
}


def reader(folder: Path, *devices: dict[str, Any]) -> SimulatedReader:
    (folder / "g1.json").write_text(json.dumps({"devices": devices}))
    return SimulatedReader(str(folder / "g1.json"), "g1", ProcessTable(str(folder / "proc")))


def job(folder: Path, pid: int, load: str, parent: int = 1, **environ: str) -> None:
    inside = {"SLURMD_NODENAME": "g1", "SLURM_JOB_GPUS": "0", LOAD_VARIABLE: load, **environ}
    fake_proc.add(folder / "proc", pid, parent, environ=inside)


def test_loads() -> None:
    assert parse_load("mem=3000M,util=41,sm=17,dram=3") == Load(3000, 41.0, 17.0, 3.0)
    assert parse_load("sm=5") == Load(0, 0.0, 5.0, 0.0)


@pytest.mark.parametrize("text", ["", "gpu=1", "mem=9", "util=x", "sm"])
def test_no_loads(text: str) -> None:
    with pytest.raises(InputError):
        parse_load(text)


def test_slices_are_numbered_like_gpus() -> None:
    units = parse_devices(json.dumps({"devices": [WHOLE, CUT]}))
    assert [(unit.uuid, unit.gres_index, unit.profile) for unit in units] == [
        ("GPU-0", 0, ""),
        ("MIG-0", 1, "1g.10gb"),
        ("MIG-1", 2, "3g.40gb"),
    ]
    assert [(unit.sm_count, unit.whole_sm_count) for unit in units] == [(132, 132), (16, 132), (60, 132)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"devices": [1]}', '{"devices": [{"slices": []}]}'])
def test_not_devices(text: str) -> None:
    with pytest.raises(GpuError):
        parse_devices(text)


def test_missing_device_file(tmp_path: Path) -> None:
    with pytest.raises(GpuError, match="cannot be read"):
        SimulatedReader(str(tmp_path / "none.json"), "g1")


def test_whole_gpu_shared_by_two(tmp_path: Path) -> None:
    job(tmp_path, 10, "mem=3000M,util=80,sm=20,dram=3")
    job(tmp_path, 11, "mem=3000M,util=80,sm=20,dram=3", parent=10)  # a child of the first has no context of its own
    job(tmp_path, 12, "mem=1G,util=40,sm=10", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25")
    job(tmp_path, 13, "mem=1G,sm=10", SLURMD_NODENAME="g2")
    readings, processes = reader(tmp_path, WHOLE).read()
    (reading,) = readings
    assert (reading.gpu_util_pct, reading.sm_active_pct, reading.dram_active_pct) == (100.0, 30.0, 3.0)
    assert reading.gpu_mem_used_mib == 4024
    assert sorted(processes) == [
        GpuProcess("GPU-0", 10, "compute", 3000, 20.0),
        GpuProcess("GPU-0", 12, "client", 1024, None),
    ]


def test_slice_says_no_more_than_a_real_one(tmp_path: Path) -> None:
    job(tmp_path, 10, "mem=3000M,util=80,sm=4")
    readings, processes = reader(tmp_path, CUT).read()
    assert readings[0].sm_active_pct == pytest.approx(4 * 132 / 16)
    assert (readings[0].gpu_util_pct, readings[0].power_w) == (None, None)
    assert (readings[1].sm_active_pct, readings[1].gpu_mem_used_mib) == (0.0, 0)
    assert processes == (GpuProcess("MIG-0", 10, "compute", 3000, None),)


def test_index_beyond_the_devices(tmp_path: Path) -> None:
    job(tmp_path, 10, "sm=4", SLURM_JOB_GPUS="7")
    assert reader(tmp_path, WHOLE).read()[1] == ()


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("1g.10gb", Profile("1g.10gb", 1)),
        ("nvidia_h100_80gb_hbm3_3g.40gb", Profile("3g.40gb", 3)),
        ("a100_1g.10gb+me", Profile("1g.10gb+me", 1)),
        ("1c.3g.20gb", Profile("1c.3g.20gb", 1)),
        ("a100_4c.7g.40gb", Profile("4c.7g.40gb", 4)),
        ("7g.141gb", Profile("7g.141gb", 7)),
        ("2g.24gb-me", Profile("2g.24gb-me", 2)),
        ("a100", None),
        ("", None),
        ("h100_80gb", None),
    ],
)
def test_profiles(text: str, profile: Profile | None) -> None:
    assert parse_profile(text) == profile


def test_slices_per_gpu() -> None:
    assert slices_per_gpu("nvidia_a30_1g.6gb") == 4
    assert slices_per_gpu("NVIDIA A30") == 4
    assert slices_per_gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition") == 4
    assert slices_per_gpu("nvidia_h100_80gb_hbm3_1g.10gb") == 7


def test_models_by_name() -> None:
    assert gres_type_of("NVIDIA H100 80GB HBM3") == "nvidia_h100_80gb_hbm3"
    h100, a100 = model_named("nvidia_h100_80gb_hbm3_1g.10gb"), model_named("NVIDIA A100-SXM4-40GB")
    assert h100 is not None
    assert a100 is not None
    assert (h100.name, a100.name) == ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB")
    assert model_named("h100") is None
    assert model_named("") is None
    # Measured on the card: SMs are not sevenths.
    assert h100.profiles["1g.20gb"] == (20090, 26)
    assert h100.profiles["3g.40gb"] == (40448, 60)


def test_no_listed_profile_has_less_than_the_least_that_others_are_taken_for() -> None:
    for model in models():
        for name, (mem_mib, sm_count) in model.profiles.items():
            nobody = model._replace(profiles={})
            least = nobody.size(name, model.mem_total_mib or 0, model.sm_count or 0)
            assert (least[0] <= mem_mib, least[1] <= sm_count) == (True, True), (model.name, name)


def test_environment_with_odd_bytes(tmp_path: Path) -> None:
    job(tmp_path, 5, "mem=1G")
    simulated = reader(tmp_path, WHOLE)
    (tmp_path / "proc/5/environ").write_bytes(
        b"junk\0=2\0C=\xff\0SLURMD_NODENAME=g1\0SLURM_JOB_GPUS=0\0" + f"{LOAD_VARIABLE}=mem=1G".encode()
    )
    assert [process.pid for process in simulated.read()[1]] == [5]
