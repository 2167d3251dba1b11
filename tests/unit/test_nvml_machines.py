# SPDX-License-Identifier: Apache-2.0
"""Machines of every make through the unmodified reader, the sampler and the attribution."""

import math
import tempfile
from pathlib import Path
from typing import NamedTuple

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.core.usage_model import ADDITIVE, DeviceSample, NodeSample
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.gpu.proc import ProcessTable
from slurm_colloc.observe.attribute import attribute_sample, balanced
from slurm_colloc.observe.journal import encode
from slurm_colloc.observe.sampler import Sampler, Told
from slurm_colloc.slurm.jobs import HeldHere
from tests.fakes.devices import Device, Load, Process, gpus
from tests.fakes.driver import ANY, Driver
from tests.unit import fake_proc
from tests.unit.made import decoded

CUTS = (
    ("7g.80gb",),
    ("4g.40gb", "3g.40gb"),
    ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"),
    ("1g.20gb",) * 4,
    ("1g.10gb",) * 7,
    ("1c.3g.40gb", "2c.3g.40gb", "1g.10gb"),
    (),
)
# What a driver may refuse at any time without being gone.
CALLS = (
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleGet",
    "nvmlGpmMigSampleGet",
    "nvmlGpmMetricsGet",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetProcessUtilization",
)
PERCENTAGES = ("gpu_util_pct", "gr_active_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct")

percent = st.one_of(st.none(), st.floats(0, 100), st.sampled_from([math.nan, -1.0, 129.4, 1e16, 0.0]))
loads = st.builds(
    Load,
    st.floats(0, 100),
    *[percent] * 5,
    gpu_mem_used_mib=st.floats(0, 9000),
    power_w=st.floats(50, 700),
)
kinds = st.sampled_from(["compute", "graphics", "both", "client", "server"])


class Ran(NamedTuple):
    """A process to be: of a job, of nobody's (empty), or not to be seen (None)."""

    job: str | None
    mib: int | None
    sm_pct: int
    kind: str


jobs = st.sampled_from(["", "1", "2", "3", None])
ran = st.lists(
    st.builds(Ran, jobs, st.one_of(st.none(), st.integers(0, 4000)), st.sampled_from([0, 7, 60, 10**6]), kinds),
    max_size=5,
)
parts = st.tuples(loads, loads, ran)


@st.composite
def machines(draw: st.DrawFn) -> tuple[Driver, list[tuple[Device, list[Ran]]], set[tuple[str, str]]]:
    """Return a driver, who runs on which of its units, and the faults it is to have from the second pass on."""
    driver = Driver(gpus(draw(st.integers(1, 3)), gpm=draw(st.booleans())))
    for gpu in driver.gpus:
        cut = draw(st.one_of(st.none(), st.sampled_from(CUTS)))
        if cut is not None:
            driver.cut(gpu, *cut)
    units = [unit for gpu in driver.gpus for unit in (gpu.slices if gpu.slices is not None else [gpu])]
    placed = []
    for unit in units:
        first, second, own = draw(parts)
        unit.script = ((-math.inf, first), (driver.now_s + draw(st.floats(0, 30)), second))
        placed.append((unit, own))
    targets = st.tuples(st.sampled_from(CALLS), st.sampled_from([ANY, *(unit.uuid for unit in units)]))
    return driver, placed, draw(st.sets(targets, max_size=4))


def populate(root: Path, placed: list[tuple[Device, list[Ran]]]) -> Told:
    """Give the devices their processes, and /proc those of them that can be seen; return what Slurm says."""
    held: dict[str, HeldHere] = {}
    root.joinpath("1").mkdir()
    pid = 100
    for index, (unit, own) in enumerate(placed):
        for one in own:
            pid += 10
            unit.processes.append(Process(pid, one.mib, one.sm_pct, one.kind))
            command = "nvidia-cuda-mps-server"[:15] if one.kind == "server" else "python"
            if one.job:
                fake_proc.stepd(root, pid - 1, one.job)
                fake_proc.add(root, pid, pid - 1, command)
                before = held.get(one.job, HeldHere((), None))
                held[one.job] = HeldHere((*before.gres_indices, index), 1.0 if pid % 20 else before.weight)
            elif one.job is not None:
                fake_proc.add(root, pid, 1, command)
    return Told(held.get)


def check(seen: NodeSample, units: int) -> None:
    uuids = [device.uuid for device in seen.devices]
    indices = [device.gres_index for device in seen.devices]
    assert len(set(uuids)) == len(set(indices)) == len(seen.devices) <= units
    for device in seen.devices:
        for name in PERCENTAGES:
            value = getattr(device, name)
            assert value is None or 0 <= value <= 100
        if device.profile:
            assert (device.gpu_util_pct, device.power_w, device.energy_j) == (None, None, None)
    shares = attribute_sample(seen)
    for device in seen.devices:
        own = [share for share in shares if share.uuid == device.uuid]
        assert balanced(device, own)
        assert [share.job_id for share in own].count("") == 1
        for name in ADDITIVE:
            assert {getattr(share, name) is None for share in own} == {getattr(device, name) is None}
    assert decoded(encode(seen)) == ((seen,), 0)


def truth(device: DeviceSample, unit: Device, since_s: float, until_s: float) -> None:
    """Assert that what was read is what the device did, where the driver said anything."""
    for name in PERCENTAGES:
        did, read = unit.mean(name, since_s, until_s), getattr(device, name)
        if read is not None and name != "gpu_util_pct":
            assert did is not None
            assert read == pytest.approx(min(100.0, did), abs=1e-6)


@given(machines())
def test_parts_and_rest_make_the_device(
    machine: tuple[Driver, list[tuple[Device, list[Ran]]], set[tuple[str, str]]],
) -> None:
    driver, placed, faults = machine
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        driver.install(patch)
        told = populate(Path(folder), placed)
        reader = NvmlReader()
        sampler = Sampler(reader, "g1", 10.0, table=ProcessTable(folder), told=told)
        by_uuid = {unit.uuid: unit for unit, _ in placed}
        for number in range(4):
            if number == 2:
                driver.faults |= dict.fromkeys(faults, pynvml.NVML_ERROR_NOT_SUPPORTED)
            before_s, driver.now_s = driver.now_s, driver.now_s + 10.0
            seen = sampler.sample(driver.now_s)
            check(seen, len(placed))
            assert {device.uuid for device in seen.devices} == set(by_uuid)
            for device in seen.devices:
                truth(device, by_uuid[device.uuid], before_s, driver.now_s)
        reader.close()
    assert driver.allocated == 0


@given(machines(), st.data())
def test_a_gpu_that_goes_and_comes_leaves_no_nonsense(
    machine: tuple[Driver, list[tuple[Device, list[Ran]]], set[tuple[str, str]]], data: st.DataObject
) -> None:
    driver, placed, _ = machine
    lost = data.draw(st.sampled_from(driver.gpus), label="lost")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        driver.install(patch)
        told = populate(Path(folder), placed)
        sampler = Sampler(NvmlReader(), "g1", 10.0, table=ProcessTable(folder), told=told)
        numbers = {device.uuid: device.gres_index for device in sampler.sample(driver.now_s).devices}
        others = {unit.uuid for unit, _ in placed if lost not in (unit, unit.parent)}
        if not others:
            return
        driver.faults[ANY, lost.uuid] = pynvml.NVML_ERROR_GPU_IS_LOST
        for number in range(16):
            if number == 8:
                driver.faults.clear()
            driver.now_s += 10.0
            seen = sampler.sample(driver.now_s)
            check(seen, len(placed))
            assert {device.uuid for device in seen.devices} >= others
            assert {device.uuid: device.gres_index for device in seen.devices}.items() <= numbers.items()
        assert len(seen.devices) == len(placed)
