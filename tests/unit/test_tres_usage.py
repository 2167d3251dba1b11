# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.sources.means import JobMeans
from slurm_colloc.sources.tres_usage import METHOD, Step, parse_tres_usage, step_means
from tests.unit.golden import Printed
from tests.unit.made import RECORDED

MIB = 1024 * 1024
H100 = (Gres("gpu", "h100", 1),)


def step(
    tot: str = "gres/gpumem=38888M,gres/gpuutil=80", start_s: float = 0, end_s: float = 60, nodes: int = 1
) -> Step:
    return Step(start_s, end_s, nodes, parse_tres_usage(tot))


def documented(name: str) -> list[str]:
    return (RECORDED / f"documented/tres-usage-{name}.txt").read_text().splitlines()


def test_slurms_own_example() -> None:
    ave, tot = (parse_tres_usage(line.rstrip("|")) for line in documented("slurm")[1::2])
    assert (ave["gres/gpuutil"], ave["gres/gpumem"]) == (100, 36266 * MIB)
    assert (tot["gres/gpuutil"], tot["gres/gpumem"], tot["fs/disk"], tot["energy"]) == (200, 72532 * MIB, 175227, 0)
    job = step_means([Step(0, 60, 1, tot)], [Gres("gpu", "a100", 2)], "26.05.5")
    assert job == (None, 72532, 2, METHOD)


def test_with_and_without_suffixes_it_is_the_same() -> None:
    rows = [line.split("|")[1] for line in documented("boulder")]
    maxima, averages = (parse_tres_usage(row) for row in rows if "gpuutil=100" in row)
    assert maxima == averages
    assert maxima["gres/gpumem"] == 38888 * MIB
    assert "cpu" not in maxima
    assert parse_tres_usage(rows[0]) == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("gres/gpumem=1.50G", 1536 * MIB),
        ("gres/gpumem=0", 0),
        ("gres/gpumem=18446744073709551615", None),
        ("gres/gpumem=18446744073709551614", None),
        ("gres/gpumem=16E", None),
        ("gres/gpumem=17592186044416M", None),
    ],
)
def test_numbers(text: str, value: float | None) -> None:
    assert parse_tres_usage(text) == {"gres/gpumem": value}


@pytest.mark.parametrize(
    "text", ["gres/gpuutil", "gres/gpuutil=", "gres/gpuutil=-1", "gres/gpuutil=nan", "x=1Q", "cpu", "=5"]
)
def test_what_is_no_usage(text: str, printed: Printed) -> None:
    with pytest.raises(InputError):
        parse_tres_usage(text)
    with printed.raises("slurm", InputError):
        parse_tres_usage("cpu")


def test_a_peak_is_no_mean() -> None:
    job = step_means([step()], H100, "24.05.4")
    assert job is not None
    assert job == JobMeans(None, 38888, 1, METHOD)


def test_four_gpus_may_reach_four_times_a_hundred() -> None:
    job = step_means([step("gres/gpuutil=396")], [Gres("gpu", "h100", 3), Gres("gpu", "a100", 1)], "24.05.1")
    assert job is not None
    assert (job.gpus, job.gpu_mem_peak_mib) == (4, None)


def test_steps_at_one_time_add_up_and_one_after_the_other_do_not() -> None:
    batch = step("gres/gpumem=1M,gres/gpuutil=5", 0, 100)
    first, second = step("gres/gpumem=10M,gres/gpuutil=60", 10, 50), step("gres/gpumem=20M,gres/gpuutil=40", 50, 90)
    job = step_means([second, batch, first], H100, "26.05.5")
    assert job is not None
    assert job.gpu_mem_peak_mib == 21


def test_a_step_without_a_length_counts() -> None:
    job = step_means([step(start_s=5, end_s=5)], H100, "26.05.5")
    assert job is not None
    assert job.gpu_mem_peak_mib == 38888


def test_the_memory_of_several_nodes_is_nobodys_peak() -> None:
    job = step_means([step(nodes=2)], [Gres("gpu", "h100", 2)], "26.05.5")
    assert job is not None
    assert (job.gpus, job.gpu_mem_peak_mib) == (2, None)


def test_one_step_that_does_not_know_voids_that_figure_only() -> None:
    unknown = step("gres/gpumem=5M,gres/gpuutil=18446744073709551615")
    job = step_means([step(), unknown], H100, "26.05.5")
    assert job is not None
    assert (job.gpu_mem_peak_mib, job.gpus) == (38893, 0)


def test_steps_that_say_nothing_of_gpus() -> None:
    assert step_means([], H100, "22.05") is None
    assert step_means([step("mem=5K"), step("")], (), "22.05") is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"release": "22.05.11"}, "before Slurm 23.02.6"),
        ({"release": "23.02.0"}, "before Slurm 23.02.6"),
        ({"release": "24.05"}, "say which Slurm ran them: --slurm-release 24.05.4"),
        ({"release": ""}, "say which Slurm ran them"),
        ({"release": "23.02.5"}, "before Slurm 23.02.6"),
        ({"release": "23.11.10", "gres": [Gres("gpu", "h100", 2)]}, "before Slurm 24.05.1"),
        ({"release": "24.05.0", "gres": [Gres("gpu", "h100", 2)]}, "before Slurm 24.05.1"),
        ({"gres": [Gres("gpu", "nvidia_h100_80gb_hbm3_1g.10gb+me", 1)]}, "MIG slices"),
        ({"gres": [Gres("shard", "", 2)]}, "without whole GPUs"),
        ({"gres": [Gres("gpu", "h100", 1), Gres("mps", "", 50)]}, "without whole GPUs"),
        ({"gres": []}, "without whole GPUs"),
        ({"steps": [step("gres/gpumem=0,gres/gpuutil=0"), step("gres/gpumem=16E,gres/gpuutil=0")]}, "0 or infinite"),
        ({"steps": [step("gres/gpuutil=101")]}, "more than the GPUs can do"),
    ],
)
def test_what_is_refused(change: dict[str, Any], why: str) -> None:
    asked: dict[str, Any] = {"steps": [step()], "gres": H100, "release": "26.05.5", **change}
    with pytest.raises(InputError, match=why):
        step_means(**asked)


def test_what_is_just_right() -> None:
    assert step_means([step()], H100, "23.02.6") is not None
    assert step_means([step("gres/gpumem=1M,gres/gpuutil=0")], [*H100, Gres("nic", "", 1)], "24.05.4") is not None
