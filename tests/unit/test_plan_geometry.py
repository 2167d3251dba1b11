# SPDX-License-Identifier: Apache-2.0
"""Into which slices GPUs are cut: what the card allows, and what serves a demand."""

from __future__ import annotations

import pytest

from slurm_colloc.core.config import MigSlice, Pool
from slurm_colloc.core.errors import InputError
from slurm_colloc.gpu.mig import GpuModel, models, plain
from slurm_colloc.plan.geometry import (
    Cut,
    alternatives,
    best_cuts,
    geometries,
    parse_geometry,
    profiles_of,
    unlisted,
    with_cuts,
)
from tests.unit.made import H100, site

POOL = Pool("h", "n[1-4]", ("gpu",), "h100", H100, 8, 81559, 132, cpus_per_node=64, mem_per_node_mib=1_000_000)
A100 = POOL._replace(gpu_model="NVIDIA A100-SXM4-40GB", gpu_mem_mib=40960, sm_count=108)
ALL = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")


def test_sizes_are_those_of_nvidias_tables() -> None:
    parts = {model.name: model for model in models()}[H100].parts
    assert {name: parts[name][:2] for name in profiles_of(POOL)} == {
        "1g.10gb": (1, 1),
        "1g.10gb+me": (1, 1),
        "1g.20gb": (1, 2),
        "2g.20gb": (2, 2),
        "3g.40gb": (3, 4),
        "4g.40gb": (4, 4),
    }


def test_the_ways_to_cut_an_a100_are_those_of_nvidias_figure() -> None:
    """Of the MIG User Guide's configurations of an A100 those that leave no room, whatever the order on the card.

    The figure is older than 1g.10gb, which drivers have since R525.
    """
    assert {one for one in geometries(A100) if "1g.10gb" not in one} == {
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


CARDS = {
    "NVIDIA A30": [("2g.12gb", "2g.12gb"), ("2g.12gb", "1g.6gb", "1g.6gb"), ("1g.6gb",) * 4],
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": [
        ("2g.48gb", "2g.48gb"),
        ("2g.48gb", "1g.24gb", "1g.24gb"),
        ("1g.24gb",) * 4,
    ],
    "NVIDIA RTX PRO 5000 Blackwell": [("1g.24gb", "1g.24gb")],
    "NVIDIA RTX PRO 4500 Blackwell": [("1g.16gb", "1g.16gb")],
}


@pytest.mark.parametrize(("card", "cuts"), CARDS.items())
def test_cards_of_four_and_of_two_slices(card: str, cuts: list[tuple[str, ...]]) -> None:
    assert sorted(geometries(POOL._replace(gpu_model=card, gpu_mem_mib=None, sm_count=188))) == sorted(cuts)


@pytest.mark.parametrize("model", models(), ids=lambda model: model.name)
def test_each_card_of_the_table_can_be_cut(model: GpuModel) -> None:
    all_mib, all_sms = model.mem_total_mib or 144_000, model.sm_count or 132
    pool = POOL._replace(gpu_model=model.name, gpu_mem_mib=all_mib, sm_count=all_sms)
    compute, memory = model.slices
    for geometry in geometries(pool):
        sizes = [model.parts[name] for name in geometry]
        assert sum(size[0] for size in sizes) <= compute
        assert sum(size[1] for size in sizes) <= memory
        assert all(geometry.count(name) <= model.parts[name][2] for name in geometry)
    # As many of each as the guide says, and no more.
    for name, (_, _, most) in model.parts.items():
        if name in profiles_of(pool) and name == plain(name):
            assert max(one.count(name) for one in geometries(pool)) == most, name
        with pytest.raises(InputError):
            list(parse_geometry("+".join([name] * (most + 1)), [pool]))
    smallest = profiles_of(pool)[min(model.parts, key=lambda name: model.parts[name][:2])]
    assert 0.8 * all_mib / memory < smallest.mem_mib < all_mib / memory
    assert 0.75 * all_sms / compute < smallest.sm_count <= all_sms / compute


def test_slices_with_other_engines_are_cut_where_they_are_asked_for() -> None:
    pool = POOL._replace(gpu_model="NVIDIA RTX PRO 6000 Blackwell Server Edition", gpu_mem_mib=97887, sm_count=188)
    (cut,) = parse_geometry("2g.48gb-me+1g.24gb+me.all+1g.24gb+gfx@1", [pool])
    assert cut.geometry == ("2g.48gb-me", "1g.24gb+me.all", "1g.24gb+gfx")
    (parts,) = (one.slice for one in with_cuts(site(pool), [cut]).pool if one.slice)
    assert {(part.profile, part.mem_mib, part.quantity) for part in parts} == {
        ("2g.48gb-me", 47616, 8),
        ("1g.24gb+me.all", 23674, 8),
        ("1g.24gb+gfx", 23674, 8),
    }
    with pytest.raises(InputError):
        list(parse_geometry("1g.24gb+me+1g.24gb+me", [pool]))
    assert all(name == plain(name) for one in geometries(pool) for name in one)


def test_what_the_driver_said_of_a_slice_goes_before_the_table() -> None:
    told = MigSlice("h100_1g.10gb", "1g.10gb", 9856, 14, 1)
    assert profiles_of(POOL._replace(slice=(told,)))["1g.10gb"][2:4] == (9856, 14)


def test_slices_that_no_driver_has_listed_are_named() -> None:
    assert unlisted(POOL) == []
    b200 = POOL._replace(gpu_model="NVIDIA B200", gpu_mem_mib=183359, sm_count=148)
    assert unlisted(b200) == ["3g.90gb", "4g.90gb"]
    assert "3g.90gb" not in unlisted(b200._replace(slice=(MigSlice("b", "3g.90gb", 90000, 70, 1),)))
    with pytest.raises(InputError, match="sm_count"):
        profiles_of(b200._replace(sm_count=None))


def test_a_card_without_figures_is_refused() -> None:
    with pytest.raises(InputError, match="no figures"):
        profiles_of(POOL._replace(gpu_model="NVIDIA L4"))
    with pytest.raises(InputError, match="gpu_model"):
        profiles_of(POOL._replace(gpu_model=""))
