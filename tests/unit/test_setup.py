# SPDX-License-Identifier: Apache-2.0
"""How a cluster is set up, as its commands and files say it."""

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.slurm.parse import parse_nodes, parse_partitions
from slurm_colloc.slurm.setup import (
    GresLine,
    Queue,
    parse_config_parts,
    parse_gres_conf,
    parse_queue,
    parse_weights,
)
from tests.unit.golden import Printed
from tests.unit.made import RECORDED, RELEASES

EVERY_RELEASE = pytest.mark.parametrize("slurm", RELEASES)
MIG = "nvidia_h100_80gb_hbm3_"


def text(name: str, slurm: str = "22.05") -> str:
    return (RECORDED / f"slurm-{slurm}/setup" / name).read_text()


@EVERY_RELEASE
def test_a_node_out_of_service_shows_what_it_reported_and_what_it_should_have(slurm: str) -> None:
    nodes = {node.name: node for node in parse_nodes(text("node.txt", slurm))}
    m1 = nodes["m1"]
    assert m1.gres == (Gres("gpu", f"{MIG}1g.10gb", 2), Gres("gpu", f"{MIG}3g.40gb", 1))
    assert Gres("gpu", f"{MIG}2g.20gb", 1) in m1.configured
    assert f"{MIG}2g.20gb" in m1.gpu_types
    assert (nodes["g1"].quantity("mps"), nodes["g1"].quantity("shard"), nodes["c1"].gpu_types) == (200, 8, frozenset())
    assert nodes["g1"].partitions == ("all", "gpu", "free")
    assert (m1.slurmd_start_s or 0) > 1.7e9


@EVERY_RELEASE
def test_nodes_partitions_and_configuration_of_every_release(slurm: str) -> None:
    folder = RECORDED / f"slurm-{slurm}/scontrol"
    nodes = parse_nodes((folder / "node.txt").read_text())
    assert {node.name: node.quantity("gpu") for node in nodes} == {"c1": 0, "g1": 2, "g2": 2, "m1": 4}
    assert {node.slurmd_start_s for node in nodes} == {None}  # of a time that was not asked for in seconds
    partitions = parse_partitions((folder / "partition.txt").read_text())
    assert [(one.billing_weights, one.max_time_min) for one in partitions] == [("", None)] * 4
    assert parse_config_parts((folder / "config.txt").read_text())[0]["SelectType"] == "select/cons_tres"


def test_a_cluster_that_has_none() -> None:
    assert parse_nodes("No nodes in the system\n") == ()
    assert parse_partitions("No partitions in the system\n") == ()


def test_a_node_without_a_name_is_no_node(printed: Printed) -> None:
    with printed.raises("slurm", InputError, "NodeName.*'gpu:2'"):
        parse_nodes("Arch=x86 Gres=gpu:2\n")


@EVERY_RELEASE
def test_prices_and_time_limits_of_partitions(slurm: str) -> None:
    found = {one.name: one for one in parse_partitions(text("partition.txt", slurm))}
    weights = {name: parse_weights(one.billing_weights) for name, one in found.items()}
    assert weights["dear"] == {"cpu": 0.5, "mem": 0.25, "gres/gpu": 100.0}
    assert weights["fair"][f"gres/gpu:{MIG}1g.10gb"] == 14.0
    assert (found["free"].max_time_min, found["dear"].max_time_min, weights["all"]) == (4320.0, None, {})


@pytest.mark.parametrize("value", ["", "(null)", "N/A"])
def test_no_prices(value: str) -> None:
    assert parse_weights(value) == {}


def test_prices_as_strtod_reads_them() -> None:
    found = parse_weights("CPU=1.,Mem=.25G,GRES/gpu=1e1,GRES/mps=+2.5e-2")
    assert found == {"cpu": 1.0, "mem": 0.25, "gres/gpu": 10.0, "gres/mps": 0.025}


@pytest.mark.parametrize("value", ["gres/gpu", "gres/gpu=x", "=1", "cpu=1;gres/gpu=2"])
def test_prices_that_are_none(value: str, printed: Printed) -> None:
    with pytest.raises(InputError):
        parse_weights(value)
    with printed.raises("slurm", InputError):
        parse_weights("gres/gpu")


@pytest.mark.parametrize("ends", [0, 40, 2000])
def test_half_an_answer_is_none(ends: int, printed: Printed) -> None:
    """What is missing from it would be found not to be set."""
    with pytest.raises(InputError):
        parse_config_parts(text("config.txt")[:ends])
    with printed.raises("slurm", InputError):
        parse_config_parts("")


@EVERY_RELEASE
def test_configuration_and_that_of_cgroups(slurm: str) -> None:
    settings, cgroup = parse_config_parts(text("cgroup-config.txt", slurm))
    assert cgroup is not None
    assert (settings["TaskPlugin"], cgroup["ConstrainDevices"], cgroup["ConstrainSwapSpace"]) == (
        "task/cgroup",
        "yes",
        "no",
    )
    assert "ConstrainDevices" not in settings
    assert not any(name.startswith("Slurmctld(") for name in cgroup)
    assert parse_config_parts(text("config.txt", slurm))[1] is None


@EVERY_RELEASE
def test_the_queue(slurm: str, printed: Printed) -> None:
    queue = parse_queue(text("queue.txt", slurm))
    assert queue.at_s > 1.7e9
    assert queue.depth_jobs == 3
    assert (queue.queue_jobs or 0) > 3
    idle = "sdiag output at Sun Nov 22 13:47:34 2026 (1795355254)\nJobs pending:   2\nBackfilling stats\n"
    assert parse_queue(idle) == Queue(1795355254.0, 2, None, None)
    with printed.raises("slurm", InputError, "sdiag"):
        parse_queue("")


def test_gres_conf(printed: Printed) -> None:
    lines = parse_gres_conf(text("gres.conf"))
    assert GresLine("m1", "gpu", "nvidia_a100_2g.10gb") in lines
    assert GresLine("g1", "mps", "") in lines
    odd = "# all\n\nNODENAME=n[1-2] \\\n name=GPU type=A100 # type=b\nAutoDetect=NVML\n"
    assert parse_gres_conf(odd) == (GresLine("n[1-2]", "gpu", "A100"),)
    with printed.raises("slurm", InputError, r"'other\.conf'"):
        parse_gres_conf("Include other.conf\n")
