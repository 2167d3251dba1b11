# SPDX-License-Identifier: Apache-2.0
"""Into which slices GPUs are cut: what the card allows, and what serves a demand."""

from __future__ import annotations

import pytest

from slurm_colloc.core.config import Pool
from slurm_colloc.core.errors import InputError
from slurm_colloc.plan.geometry import (
    Cut,
    alternatives,
    best_cuts,
    geometries,
    parse_geometry,
    profiles_of,
    size_of,
    with_cuts,
)
from tests.unit.made import H100, site

POOL = Pool("h", "n[1-4]", ("gpu",), "h100", H100, 8, 81559, 132, cpus_per_node=64, mem_per_node_mib=1_000_000)
A100 = POOL._replace(gpu_model="NVIDIA A100-SXM4-40GB", gpu_mem_mib=40960, sm_count=108)
ALL = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")


def test_sizes_are_those_of_nvidias_tables() -> None:
    assert {name: size_of(name, POOL) for name in profiles_of(POOL)} == {
        "1g.10gb": (1, 1),
        "1g.20gb": (1, 2),
        "2g.20gb": (2, 2),
        "3g.40gb": (3, 4),
        "4g.40gb": (4, 4),
    }


def test_the_ways_to_cut_an_a100_are_those_of_nvidias_figure() -> None:
    """Of the MIG User Guide's configurations of an A100 those that leave no room, whatever the order on the card."""
    assert set(geometries(A100)) == {
        ("4g.20gb", "3g.20gb"),
        ("4g.20gb", "2g.10gb", "1g.5gb"),
        ("4g.20gb", "1g.5gb", "1g.5gb", "1g.5gb"),
        ("3g.20gb", "3g.20gb"),
        ("3g.20gb", "2g.10gb", "2g.10gb"),
        ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"),
        ("3g.20gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb"),
        ("2g.10gb", "2g.10gb", "2g.10gb", "1g.5gb"),
        ("2g.10gb", "2g.10gb", "1g.5gb", "1g.5gb", "1g.5gb"),
        ("2g.10gb", *["1g.5gb"] * 5),
        ("1g.5gb",) * 7,
    }


def test_many_small_jobs_get_many_small_slices() -> None:
    assert best_cuts(POOL, {ALL: 40.0}) == [Cut("h", 1, ("1g.10gb",) * 7)]


def test_jobs_that_need_half_a_gpu_get_halves() -> None:
    (cut,) = best_cuts(POOL, {("3g.40gb", "4g.40gb"): 12.8})
    assert cut.nodes == 1
    assert [name[1:] for name in cut.geometry] == ["g.40gb"] * 2


def test_nothing_is_cut_for_a_demand_that_would_not_pay() -> None:
    assert best_cuts(POOL, {ALL: 6.0}) == []
    assert alternatives(POOL, {ALL: 6.0}, 4) == []


def test_a_mixture_is_chosen_that_serves_most() -> None:
    mixed, *others = alternatives(POOL, {ALL: 30.0, ("3g.40gb", "4g.40gb"): 6.0}, 3)
    assert len(others) == 2
    assert mixed not in others
    assert any("3g.40gb" in cut.geometry or "4g.40gb" in cut.geometry for cut in mixed)


def test_a_site_with_cuts_has_the_last_nodes_cut() -> None:
    whole, cut = sorted(
        with_cuts(site(POOL), [Cut("h", 1, ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"))]).pool,
        key=lambda pool: -pool.gpus_per_node,
    )
    assert (whole.nodes, whole.gpus_per_node) == ("n[1-3]", 8)
    assert (cut.nodes, cut.gpus_per_node, cut.partitions) == ("n4", 0, ("gpu",))
    assert {part.profile: part.quantity for part in cut.slice} == {"3g.40gb": 8, "2g.20gb": 8, "1g.10gb": 16}


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        ("3g.40gb+3g.40gb@2", [Cut("h", 2, ("3g.40gb", "3g.40gb"))]),
        ("h=1g.10gb+1g.10gb", [Cut("h", 0, ("1g.10gb", "1g.10gb"))]),
        (
            "2g.20gb+2g.20gb+3g.40gb@1,1g.10gb@3",
            [Cut("h", 1, ("2g.20gb", "2g.20gb", "3g.40gb")), Cut("h", 3, ("1g.10gb",))],
        ),
    ],
)
def test_a_geometry_is_read(text: str, cuts: list[Cut]) -> None:
    assert list(parse_geometry(text, [POOL])) == cuts


@pytest.mark.parametrize(
    "text", ["5g.50gb", "4g.40gb+4g.40gb", "1g.10gb@5", "1g.10gb@0", "1g.10gb@x", "other=1g.10gb", "", "@1"]
)
def test_a_geometry_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        list(parse_geometry(text, [POOL]))


def test_a_card_without_figures_is_refused() -> None:
    with pytest.raises(InputError, match="no figures"):
        profiles_of(POOL._replace(gpu_model="NVIDIA L4"))
    with pytest.raises(InputError, match="gpu_model"):
        profiles_of(POOL._replace(gpu_model=""))
