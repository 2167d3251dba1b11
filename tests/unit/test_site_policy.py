# SPDX-License-Identifier: Apache-2.0
"""What the policy in Lua is told of a partition: only slices that whoever gets one may have, whichever it is."""

from __future__ import annotations

import pytest

from slurm_colloc.core.config import MigSlice, Partition, Paths, Pool, Sharing, SiteConfig
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.estimate.policy_table import model_hash
from slurm_colloc.site.policy import Piece, has_policy, policies
from slurm_colloc.site.render import ORDER, Host, render_site

H100 = "NVIDIA H100 80GB HBM3"
SMALL = MigSlice("h100_1g.10gb", "1g.10gb", 9984, 16, 7)
LARGE = MigSlice("h100_3g.40gb", "3g.40gb", 40448, 60, 2)
POOL = Pool("p", "n1", ("gpu",), "h100", H100, 4, 81559, 132, slice=(LARGE, SMALL))
PIECE = Piece("gpu:h100_1g.10gb:1", 9984, 16, 132, model_hash(H100), 0, 0)


def site(*pools: Pool, **of_partition: object) -> SiteConfig:
    gpu = Partition("gpu", **{"job_submit": "default", "max_time_min": 600.0, **of_partition})  # type: ignore[arg-type]
    return SiteConfig(1, "c", "22.05", default_partition="gpu", paths=Paths(state="/s"), pool=pools, partition=(gpu,))


def kinds(config: SiteConfig) -> list[str]:
    return [piece.gres for piece in policies(config)[0].pieces]


def test_slices_come_by_size_with_what_they_are_weighed_by() -> None:
    (one,) = policies(site(POOL))
    assert (one.partition.name, one.whole, one.default_min) == ("gpu", ("h100",), 600.0)
    assert [piece.gres for piece in one.pieces] == ["gpu:h100_1g.10gb:1", "gpu:h100_3g.40gb:1"]
    assert one.pieces[0] == PIECE


def test_of_two_kinds_under_one_type_the_lesser_counts() -> None:
    less = POOL._replace(name="q", nodes="n2", slice=(SMALL._replace(mem_mib=9000, sm_count=14),), sm_count=140)
    assert policies(site(POOL, less))[0].pieces[0] == PIECE._replace(mem_mib=9000, sm=14, whole_sm=140)


@pytest.mark.parametrize(
    "other",
    [
        POOL._replace(gpu_model="NVIDIA H100 NVL"),
        POOL._replace(gpu_model=""),
        POOL._replace(sm_count=None),
        POOL._replace(gpu_type="kept"),
    ],
    ids=["another card", "a card that nobody named", "nobody counted its SMs", "a protected type"],
)
def test_a_type_that_slurm_may_take_from_where_the_job_may_not_go_is_none(other: Pool) -> None:
    """Slurm knows slices by type only, so that what holds for one of its pools must hold for all."""
    config = site(POOL, other._replace(name="q", nodes="n2", slice=(SMALL,)))
    assert kinds(config._replace(sharing=Sharing(protected_types=("kept",)))) == ["gpu:h100_3g.40gb:1"]


def test_a_kind_of_which_there_is_none_is_not_offered() -> None:
    assert kinds(site(POOL._replace(slice=(SMALL._replace(quantity=0),)))) == []


def test_slices_of_another_partition_are_named_where_everybody_may_use_it() -> None:
    whole = POOL._replace(slice=())
    away = POOL._replace(name="q", nodes="n2", partitions=("mig",), gpus_per_node=0, slice=(SMALL,))
    config = site(whole, away, pieces_in=("mig",))
    mig = Partition("mig", max_time_min=120.0)
    (one,) = policies(config._replace(partition=(*config.partition, mig)))
    assert one.pieces == (PIECE._replace(partition="mig", max_min=120.0),)
    closed = mig._replace(restrictions=("AllowAccounts=physics",))
    assert policies(config._replace(partition=(*config.partition, closed)))[0].pieces == ()


@pytest.mark.parametrize("gres", ["gpu:1", "gpu:h100:1,shard:1", "h100", "shard"])
def test_an_interactive_gres_is_one_piece_with_its_count(gres: str) -> None:
    with pytest.raises(ConfigError, match="partition 'gpu': interactive_gres"):
        policies(site(POOL, interactive_gres=gres))


@pytest.mark.parametrize("gres", ["gpu:h100_1g.10gb:1", "shard:1"])
def test_a_piece_is_taken(gres: str) -> None:
    assert policies(site(POOL, interactive_gres=gres))


def test_where_one_user_has_it_slurmctld_is_told_nothing() -> None:
    """ORDER.md would have had him install what is not written for him."""
    config = site(POOL)._replace(paths=Paths())
    assert (has_policy(config), policies(config)) == (False, [])
    assert "Lua" not in next(file.text for file in render_site(config, Host("/opt/c")) if file.name == ORDER)
    assert policies(site(POOL, job_submit="off")) == []
