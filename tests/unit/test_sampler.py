# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from slurm_colloc.core.errors import GpuError
from slurm_colloc.core.usage_model import DeviceAllocation
from slurm_colloc.gpu.proc import ProcessTable
from slurm_colloc.gpu.reader import GpuProcess, GpuUnit, UnitReading
from slurm_colloc.observe.sampler import Sampler, Told, boot_id, only_job
from slurm_colloc.slurm.jobs import HeldHere
from tests.unit import fake_proc
from tests.unit.made import device, host, process, seen

UNITS = tuple(GpuUnit(f"GPU-{index}", index, "M", "", 80000, 132, 132) for index in range(2))


class FakeReader:
    """Two GPUs, whose processes a test chooses."""

    complaint = ""

    def __init__(self, *processes: GpuProcess) -> None:
        self.processes = processes
        self.fails = False

    def units(self) -> tuple[GpuUnit, ...]:
        return UNITS

    def read(self) -> tuple[tuple[UnitReading, ...], tuple[GpuProcess, ...]]:
        if self.fails:
            raise GpuError("gone")
        return tuple(
            UnitReading(unit.uuid, True, 50.0, None, None, None, None, 0.0, 10, 100.0, None) for unit in UNITS
        ), self.processes

    def close(self) -> None:
        return


def sampler(folder: Path, reader: FakeReader, only: str = "", **held: HeldHere | None) -> Sampler:
    """Return one whose Slurm says of job_7 what is held."""
    told = Told(lambda job: held.get(f"job_{job}"))
    return Sampler(reader, "g1", 10.0, only, ProcessTable(str(folder)), told=told)


def test_one_pass(tmp_path: Path) -> None:
    fake_proc.stepd(tmp_path, 10, "7")
    fake_proc.add(tmp_path, 11, 10)
    fake_proc.stepd(tmp_path, 20, "8")
    reader = FakeReader(GpuProcess("GPU-0", 11, "compute", 500, 3.0), GpuProcess("GPU-1", 4242, "compute", None, None))
    passed = sampler(tmp_path, reader, job_7=HeldHere((0, 1, 9), None)).sample(1000.0)
    assert (passed.at_s, passed.interval_s, passed.node, passed.boot_id) == (1000.0, 0.0, "g1", boot_id())
    assert passed.processes == (
        process("7", 11, gpu_mem_used_mib=500, sm_util_pct=3.0),
        process("", 4242, "GPU-1", start_ticks=None, gpu_mem_used_mib=None),
    )
    # Index 9 is no device here; job 8 is on another node of the same machine.
    assert passed.holders == (DeviceAllocation("GPU-0", "7", None), DeviceAllocation("GPU-1", "7", None))
    assert passed.devices[1] == device(
        "GPU-1",
        gres_index=1,
        model="M",
        mem_total_mib=80000,
        gpu_util_pct=50.0,
        gr_active_pct=None,
        sm_active_pct=None,
        sm_occupancy_pct=None,
        tensor_active_pct=None,
        dram_active_pct=0.0,
        gpu_mem_used_mib=10,
        power_w=100.0,
        energy_j=None,
    )


def test_what_a_job_holds_is_slurms_word_alone(tmp_path: Path) -> None:
    """Whatever its tasks say in their environments."""
    forged = {"SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "GPU-1", "SLURMD_NODENAME": "g1"}
    for pid, job in ((10, "7"), (20, "8"), (30, "9")):
        fake_proc.stepd(tmp_path, pid, job)
        fake_proc.add(tmp_path, pid + 1, pid, environ={**forged, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "99"})
    one = sampler(tmp_path, FakeReader(), job_7=HeldHere((0,), None), job_8=HeldHere((0, 1, 9), 30.0))
    assert one.sample(1000.0).holders == (
        DeviceAllocation("GPU-0", "7", None),
        DeviceAllocation("GPU-0", "8", 30.0),
        DeviceAllocation("GPU-1", "8", 30.0),
    )
    assert one.unknown_jobs == {"9"}
    for pid in (20, 30):
        fake_proc.remove(tmp_path, pid)
    assert {holder.job_id for holder in one.sample(1010.0).holders} == {"7"}
    assert one.unknown_jobs == set()


def test_a_jobs_own_sampler_asks_of_that_job_alone(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(job: str) -> HeldHere:
        asked.append(job)
        return HeldHere((0,), None)

    for pid, job in ((10, "7"), (20, "8")):
        fake_proc.stepd(tmp_path, pid, job)
    one = Sampler(FakeReader(), "g1", 10.0, "8", ProcessTable(str(tmp_path)), told=Told(ask))
    assert (one.sample(1.0).holders, asked) == ((DeviceAllocation("GPU-0", "8", None),), ["8"])


def test_intervals(tmp_path: Path) -> None:
    tmp_path.joinpath("x").touch()
    reader = FakeReader()
    one = sampler(tmp_path, reader)
    times = [100.0, 110.0, 111.5, 111.5, 90.0, 100.0, 125.0, 1000.0]
    # What happened in a pause nobody saw; a clock set back makes no time.
    assert [one.sample(at_s).interval_s for at_s in times] == [0.0, 10.0, 1.5, 0.0, 0.0, 10.0, 25.0, 0.0]
    reader.fails = True
    with pytest.raises(GpuError):
        one.sample(1010.0)
    reader.fails = False
    assert one.sample(1020.0).interval_s == 20.0


def test_one_job_sees_its_own_devices() -> None:
    whole = seen(
        10,
        [device("A"), device("B"), device("C")],
        [process("1", 5, "A"), process("2", 6, "A"), process("2", 7, "B")],
        [("C", "1"), ("B", "2")],
    )
    mine = only_job(whole, "1")
    assert [one.uuid for one in mine.devices] == ["A", "C"]
    assert [(one.uuid, one.pid) for one in mine.processes] == [("A", 5), ("A", 6)]
    assert mine.holders == (DeviceAllocation("C", "1", None),)
    assert {one.job_id for one in mine.processes} == {"1", "neighbour-2"}
    assert only_job(whole, "9").devices == ()


def test_sampler_of_one_job(tmp_path: Path) -> None:
    fake_proc.add(tmp_path, 11, 1, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0")
    passed = sampler(tmp_path, FakeReader(GpuProcess("GPU-1", 11, "compute", 5, None)), only="7").sample(1.0)
    assert [one.uuid for one in passed.devices] == ["GPU-1"]


def test_the_wall_clock_makes_no_time(tmp_path: Path) -> None:
    """Set forward by an hour it leaves the true interval; set back by four seconds they count once."""
    tmp_path.joinpath("x").touch()
    one = sampler(tmp_path, FakeReader())
    passes = [(100.0, 0.0), (110.0, 10.0), (3720.0, 20.0), (3726.0, 30.0), (3726.0, 40.0)]
    assert [one.sample(at_s, ticking_s).interval_s for at_s, ticking_s in passes] == [0.0, 10.0, 10.0, 6.0, 0.0]


class EnergyReader(FakeReader):
    """GPUs that take 100 J between two readings, however long that is."""

    def read(self) -> tuple[tuple[UnitReading, ...], tuple[GpuProcess, ...]]:
        readings, processes = super().read()
        return tuple(reading._replace(energy_j=100.0) for reading in readings), processes


def test_what_was_counted_is_of_the_interval_that_the_reading_stands_for(tmp_path: Path) -> None:
    tmp_path.joinpath("x").touch()
    one = sampler(tmp_path, EnergyReader())
    passes = [(100.0, 0.0), (110.0, 10.0), (115.0, 20.0), (615.0, 520.0), (625.0, 530.0)]
    found = [one.sample(at_s, ticking_s).devices[0].energy_j for at_s, ticking_s in passes]
    # The first, half an interval that was counted before, and one after a pause.
    assert found == [None, 100.0, 50.0, None, 100.0]


def server_seen(folder: Path, *processes: GpuProcess) -> list[str]:
    for job, pid in (("7", 11), ("8", 21)):
        fake_proc.add(folder, pid, 1, "nvidia-cuda-mps", f"0::/system.slice/slurmstepd.scope/job_{job}/step_0")
        fake_proc.add(folder, pid + 1, 1, "python", f"0::/system.slice/slurmstepd.scope/job_{job}/step_0")
    fake_proc.add(folder, 31, 1, "nvidia-cuda-mps", uid=0)
    found = sampler(folder, FakeReader(*processes)).sample(1.0).processes
    return [f"{one.pid} {one.kind}" for one in found]


def test_a_name_makes_no_server_of_mps(tmp_path: Path) -> None:
    """A client called like it, and a process of a job that has no client there, are what they are."""
    client = GpuProcess("GPU-0", 12, "client", 5, None)
    disguised = GpuProcess("GPU-0", 11, "client", 5, None)
    neighbour = GpuProcess("GPU-0", 21, "compute", 5, None)
    site, own = GpuProcess("GPU-0", 31, "compute", 5, None), GpuProcess("GPU-0", 11, "compute", 5, None)
    seen_ = server_seen(tmp_path, client, disguised, neighbour, site)
    assert seen_ == ["12 client", "11 client", "21 compute", "31 server"]
    assert [process.kind for process in sampler(tmp_path, FakeReader(client, own)).sample(1.0).processes][1] == "server"
    alone = sampler(tmp_path, FakeReader(own, site)).sample(1.0).processes
    # nvidia-smi names no clients: then a process of no job is believed, and one of a job is not.
    assert [process.kind for process in alone] == ["compute", "server"]


def test_a_job_hears_nothing_of_what_its_neighbours_do_on_the_host() -> None:
    both = seen(10, [device("A")], [process("1", 5, "A"), process("2", 6, "A")], [], hosts=[host("1"), host("2")])
    assert [one.job_id for one in only_job(both, "1").hosts] == ["1"]
