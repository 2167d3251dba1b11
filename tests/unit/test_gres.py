# SPDX-License-Identifier: Apache-2.0
import re

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.slurm.gres import check_prefix, parse_gpus, parse_gres, parse_tres_gres
from tests.unit.golden import Printed
from tests.unit.made import RELEASES

MIG = "nvidia_h200_nvl_4g.71gb"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu", [("gpu", "", 1)]),
        ("gpu:2", [("gpu", "", 2)]),
        ("gpu:1g.10gb:2", [("gpu", "1g.10gb", 2)]),
        ("gpu:1g.10gb", [("gpu", "1g.10gb", 1)]),
        ("gpu:a100_1g.10gb+me:1", [("gpu", "a100_1g.10gb+me", 1)]),
        ("gpu:2080:3", [("gpu", "2080", 3)]),
        ("gres:gpu:h100:2", [("gpu", "h100", 2)]),
        ("gres/gpu:2", [("gpu", "", 2)]),
        ("gpu:a100:2(S:0),shard:8", [("gpu", "a100", 2), ("shard", "", 8)]),
        ("gpu:a100:2(S:0,2),mps:200(S:0-1)", [("gpu", "a100", 2), ("mps", "", 200)]),
        ("gpu:h100:2(IDX:0-1)", [("gpu", "h100", 2)]),
        ("mps:h100:200", [("mps", "h100", 200)]),
        ("bandwidth:lustre:no_consume:4G", [("bandwidth", "lustre", 4 * 1024**3)]),
        ("shard:2K", [("shard", "", 2048)]),
        ("none", []),
        ("(null)", []),
        ("N/A", []),
        ("", []),
    ],
)
def test_gres(text: str, found: list[tuple[str, str, int]]) -> None:
    assert parse_gres(text) == tuple(Gres(*item) for item in found)


@pytest.mark.parametrize("text", ["gpu:a100:x", "gpu:", "gpu::2", "gpu:a:b:2", "gpu:2 ", "gpu,,gpu", "=", "gpu:-1:x"])
def test_not_gres(text: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"in '{text}' ")):
        parse_gres(text)


@pytest.mark.parametrize(
    ("text", "releases"),
    [
        ("gpu:1", ("22.05", "23.11", "24.11", "25.05", "26.05")),
        ("gpu:a100:1(S:0,1),shard", ("22.05", "23.11", "24.11", "25.05", "26.05")),
        ("gres:gpu:1", ("22.05",)),
        ("gres/gpu:1", ("24.11", "25.05", "26.05")),
        ("gpu:1,gres:gpu:1", ("22.05",)),
    ],
)
def test_a_prefix_is_taken_as_sbatch_does(text: str, releases: tuple[str, ...]) -> None:
    for release in (*RELEASES, "23.11", "25.05"):
        if release in releases:
            check_prefix(text, release)
        else:
            with pytest.raises(InputError, match=release):
                check_prefix(text, release)


@pytest.mark.parametrize(
    ("text", "found"),
    [("2", [("gpu", "", 2)]), ("a100:4", [("gpu", "a100", 4)]), ("a:1,b:2", [("gpu", "a", 1), ("gpu", "b", 2)])],
)
def test_gpus(text: str, found: list[tuple[str, str, int]]) -> None:
    assert parse_gpus(text) == tuple(Gres(*item) for item in found)


@pytest.mark.parametrize("text", ["", "a100", "a100:", "x:y", "-1"])
def test_not_gpus(text: str, printed: Printed) -> None:
    with pytest.raises(InputError, match=f"'{text}'") as raised:
        parse_gpus(text)
    printed("slurm", str(raised.value).replace(f"'{text}'", "'TEXT'"))


# docs: the TRES table; (text, GPUs, entries by kind)
TABLE = [
    ("gres/gpu=2", 2, {"": 2}),
    ("gres/gpu:a100=2", 2, {"a100": 2}),
    ("gres/gpu:a100=4,gres/gpu=4", 4, {"a100": 4}),
    ("gres/gpu:a100=1,gres/gpu:h100=2,gres/gpu=3", 3, {"a100": 1, "h100": 2}),
    ("gres/gpu:a100=1,gres/gpu=3", 3, {"a100": 1, "": 2}),
    ("gres/gpu:1g.10gb=1,gres/gpu=1", 1, {"1g.10gb": 1}),
    ("gres/shard=2", 0, {}),
    ("gres/mps=50", 0, {}),
    ("gres/gpu=0", 0, {}),
    ("cpu=4,mem=8G", 0, {}),
    ("", 0, {}),
    (f"gres/gpu:{MIG}=2", 2, {MIG: 2}),
    ("gres/gpu:1g.10gb+me=1", 1, {"1g.10gb+me": 1}),
]


@pytest.mark.parametrize(("text", "gpus", "kinds"), TABLE)
@pytest.mark.parametrize("order", [1, -1])
def test_tres_table(text: str, gpus: int, kinds: dict[str, int], order: int) -> None:
    around = ["billing=5", *text.split(","), "node=1"] if text else []
    found = [gres for gres in parse_tres_gres(",".join(around[::order])) if gres.name == "gpu"]
    assert {gres.type: gres.quantity for gres in found} == kinds
    assert sum(gres.quantity for gres in found) == gpus


def test_shares_in_tres() -> None:
    assert parse_tres_gres("cpu=1,gres/shard=2,gres/mps=50") == (Gres("mps", "", 50), Gres("shard", "", 2))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gres/gpu", "'gres/gpu' in 'gres/gpu' is not of the form"),
        ("cpu=1,gres/gpu=x", "'gres/gpu=x' in 'cpu=1,gres/gpu=x' has a count that is not a number"),
        ("gres/gpu=", "not a number"),
        ("gres/gpu=-1", "not a number"),
        ("gres/gpu=1=2", "not a number"),
        ("gres/gpu:a=4,gres/gpu=2", "typed gres/gpu entries add up to 4, more than the total 2"),
        *((f"gres/{name}={0xFFFFFFFE}", "none or unlimited") for name in ("gpu", "mps", "shard", "gpu:a100")),
        (f"gres/gpu={0xFFFFFFFF}", "none or unlimited"),
    ],
)
def test_not_tres(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_tres_gres(text)


def test_only_what_shares_gpus_has_to_make_sense() -> None:
    most = 2**31 - 1
    assert parse_tres_gres("gres/gpumem=8T,gres/gpuutil=x,gres/gpu=1") == (Gres("gpu", "", 1),)
    assert parse_tres_gres(f"gres/nic={most},gres/vram={most + 1}") == (Gres("nic", "", most),)
    assert parse_tres_gres("gres/nic:a=4,gres/nic=2") == (Gres("nic", "", 2),)
    assert parse_tres_gres(f"gres/gpu={most}") == (Gres("gpu", "", most),)
    for text in (f"gres/gpu={most + 1}", f"gres/mps:a={most},gres/mps:b=1"):
        with pytest.raises(InputError, match=f" {most + 1}, "):
            parse_tres_gres(text)
