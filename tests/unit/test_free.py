# SPDX-License-Identifier: Apache-2.0
"""What sinfo says is free, on recordings of three releases (tests/cluster/record.py) and on made-up text."""

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.slurm.free_gpus import kind_of
from slurm_colloc.slurm.sinfo import parse_free
from tests.unit.made import RECORDED, RELEASES

H100, SLICE = "gpu:h100", "gpu:nvidia_h100_80gb_hbm3_"
NOTHING = dict.fromkeys([H100, f"{SLICE}1g.10gb", f"{SLICE}2g.20gb", f"{SLICE}3g.40gb", "mps", "shard"], 0)
# On g1 one GPU is whole, one under MPS; on g2 one has three of its four shards taken, one is free.
BUSY = NOTHING | {H100: 1, f"{SLICE}1g.10gb": 1, f"{SLICE}2g.20gb": 1, "mps": 70, "shard": 4}
# 22.05 does not say what is left of the GPU under MPS.
BUSY_22 = BUSY | {"mps": 0}
EXPECTED = {
    "idle": NOTHING
    | {H100: 4, f"{SLICE}1g.10gb": 2, f"{SLICE}2g.20gb": 1, f"{SLICE}3g.40gb": 1, "mps": 100, "shard": 4},
    "busy": BUSY,
    # Backfill has planned g2 and m1 for those that wait; 22.05 does not tell.
    "waiting": NOTHING | {"mps": 70},
    "drained": NOTHING | {"mps": 70},
}
EXPECTED_22 = EXPECTED | {"busy": BUSY_22, "waiting": BUSY_22, "drained": NOTHING}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("moment", EXPECTED)
def test_recorded(release: str, moment: str) -> None:
    found = parse_free((RECORDED / f"slurm-{release}/sinfo/{moment}.txt").read_text())
    expected = (EXPECTED_22 if release == "22.05" else EXPECTED)[moment]
    assert {kind: units for (partition, kind), units in found.items() if partition == "all"} == expected
    assert {key for key in found if key[0] == "mig"} == {("mig", kind) for kind in expected if SLICE in kind}
    assert found["gpu", H100] == expected[H100]
    assert not any(partition == "cpu" for partition, _ in found)


@pytest.mark.parametrize(
    ("line", "free"),
    [
        ("n|p|gpu:a100:8(S:0-1)|gpu:a100:3(IDX:0,2-3)|mix", {"gpu:a100": 5}),
        ("n|p*|gpu:4|gpu:4(IDX:0-3)|mix", {"gpu": 0}),
        ("n|p|gpu:2|gpu:0|idle", {"gpu": 2}),
        ("n|p|gpu:2,craynetwork:4,bandwidth:lustre:no_consume:4G|gpu:0,craynetwork:0|idle", {"gpu": 2}),
        ("n|p|gpu:2|gpu:0|alloc", {"gpu": 0}),
        ("n|p|gpu:2|gpu:0|idle~", {"gpu": 0}),
        ("n|p|gpu:2|gpu:0|idle*", {"gpu": 0}),
        ("n|p|gpu:2|gpu:0|mix-", {"gpu": 0}),
        ("n|p|gpu:2|gpu:0|resv", {"gpu": 0}),
        ("n|p|gpu:2,shard:8|gpu:1(IDX:0),shard:2(-/4,2/4)|mix", {"gpu": 0, "shard": 2}),
        ("n|p|gpu:1,mps:100|gpu:0,mps:0(0/100)|mix", {"gpu": 1, "mps": 100}),
        ("n|p|(null)|(null)|idle", {}),
        ("n|p|gpu:1|gpu:9|mix", {"gpu": 0}),
    ],
)
def test_made_up(line: str, free: dict[str, int]) -> None:
    assert parse_free(f"{line}\n") == {("p", kind): units for kind, units in free.items()}


def test_nodes_of_a_partition_add_up_and_shares_do_not() -> None:
    text = "a|p|gpu:2,shard:8|gpu:0,shard:1(1/4,0/4)|mix\nb|p|gpu:2,shard:4|gpu:1(IDX:0),shard:0(-/2,0/2)|mix\n"
    assert parse_free(text) == {("p", "gpu"): 2, ("p", "shard"): 4}


def test_gpus_of_which_a_node_has_one() -> None:
    text = "a|p|gpu:h100:1,gpu:a1:2|gpu:0|mix\nb|p|gpu:h100:2|gpu:0|idle\nc|p|gpu:h100:1|gpu:h100:1(IDX:0)|mix\n"
    assert parse_free(text, single=True) == {("p", "gpu:h100"): 1}


@pytest.mark.parametrize("text", ["slurm_load_node: error", "n|p|gpu:2|gpu:0", "n|p|gpu:x:y:z|gpu:0|idle", "|||||"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="sinfo printed"):
        parse_free(text)


def test_kinds() -> None:
    assert [kind_of(Gres(*one)) for one in (("gpu", "h100", 1), ("gpu", "", 2), ("mps", "h100", 3))] == [
        "gpu:h100",
        "gpu",
        "mps",
    ]
