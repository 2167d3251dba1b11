# SPDX-License-Identifier: Apache-2.0
"""Nodes of every shape, what drivers say of them, and words of people, through site init and site check."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slurm_colloc.core.config import Rule, SiteConfig
from slurm_colloc.core.config_file import parse_site
from slurm_colloc.core.errors import GpuError, InputError
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.gpu.reader import GpuUnit
from slurm_colloc.site.admin_remarks import notes
from slurm_colloc.site.cluster import Cluster, NodeGpus, free_of_charge, look
from slurm_colloc.site.cluster_differences import differences
from slurm_colloc.site.discover import discover
from slurm_colloc.site.driver import load_gpus_file, parse_gpus_file, read_driver, to_json
from slurm_colloc.site.node_gpus import Shape, shapes_of
from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.slurm.parse import Node, parse_nodes, parse_partitions
from tests.fakes.devices import gpus, slices_of
from tests.fakes.driver import Driver
from tests.unit.golden import Printed
from tests.unit.made import H100, RECORDED, RELEASES
from tests.unit.test_site import MIG, FakeClient, recorded

LINE = recorded("node").splitlines()[1]


def lab(gres: str = "gpu:h100:2", name: str = "g1", more: str = "", **texts: str) -> FakeClient:
    """Return the laboratory with one node of these gres; ``more`` stands at the end of its line."""
    node = LINE.replace("gpu:h100:2,mps:h100:200", gres).replace("NodeName=g1", f"NodeName={name}") + more
    return FakeClient("22.05", None, node=node, **texts)


def text_of(
    cluster: Cluster,
    models: Mapping[str, str] | None = None,
    vouched: Sequence[str] = (),
    extra: Mapping[str, Mapping[str, object]] | None = None,
) -> str:
    return discover(cluster, models or {}, vouched, extra or {})


def read(text: str) -> SiteConfig:
    return parse_site(tomllib.loads(text), "found")


def billed(weights: str, tracked: str = "gres/gpu,gres/mps,gres/shard") -> FakeClient:
    config = re.sub(r"(AccountingStorageTRES +=).*", rf"\1 cpu,{tracked}", recorded("config"))
    partition = recorded("partition").replace("PartitionName=gpu", "PartitionName=gpu " + weights)
    return FakeClient(config=config, partition=partition)


# --- shapes ---


def shape(kind: str, count: int, slices: str = "", mps: int | None = 0, shards: int = 0) -> Shape:
    return Shape(kind, count, parse_gres(slices) if slices else (), mps, shards)


@pytest.mark.parametrize(
    ("gres", "shapes"),
    [
        ("gpu:4", [shape("", 4)]),
        ("gpu:0", []),
        ("gpu:a100:2,gpu:a100:2", [shape("a100", 4)]),
        ("gpu:a100:4,mps:100", [shape("a100", 4, mps=25)]),
        ("gpu:a100:3,mps:100,shard:6", [shape("a100", 3, mps=None, shards=2)]),
        ("gpu:a100:1,gpu:h100:3,mps:h100:300", [shape("a100", 1), shape("h100", 3, mps=100)]),
        ("gpu:1g.5gb:7,gpu:a100:1", [shape("a100", 1, "gpu:1g.5gb:7")]),
        ("gpu:a100:1,gpu:h100:1,gpu:h100_1g.12gb:7", [shape("a100", 1), shape("h100", 1, "gpu:h100_1g.12gb:7")]),
        # Of which of the two they are is not said.
        ("gpu:a100:1,gpu:h100:1,gpu:1g.12gb:7", [shape("a100", 1), shape("h100", 1), shape("", 0, "gpu:1g.12gb:7")]),
        ("gpu:a100_1g.5gb:7,gpu:a30_2g.12gb:2", [shape("", 0, "gpu:a100_1g.5gb:7"), shape("", 0, "gpu:a30_2g.12gb:2")]),
    ],
)
def test_which_cards_a_node_has(gres: str, shapes: list[Shape]) -> None:
    assert shapes_of(Node("n", parse_gres(gres), ())) == shapes


@pytest.mark.parametrize(
    "gres",
    [
        "gpu:4",
        "gpu:h100:4,mps:400",
        "gpu:a100:1,gpu:h100:2,mps:300",
        "gpu:h100:2,gpu:nvidia_h100_80gb_hbm3_1g.10gb:7",
        "gpu:h100:1,gpu:nvidia_a100-sxm4-40gb_1g.5gb:7,shard:4",
        "gpu:nvidia_h100_80gb_hbm3_1g.10gb:7,gpu:nvidia_a100-sxm4-40gb_3g.20gb:2",
        "gpu:h100:3,mps:100",
    ],
)
def test_what_init_writes_agrees_with_the_cluster_whatever_the_shape(gres: str) -> None:
    cluster = look(lab(gres))
    models = {
        kind: H100
        for kind in ("h100", "")
        if any((item.name, item.type) == ("gpu", kind) for item in cluster.nodes[0].gres)
    }
    config = read(text_of(cluster, models))
    assert differences(config, cluster) == []
    assert (
        len({pool.name for pool in config.pool}) == len(config.pool) == len(shapes_of(Node("n", parse_gres(gres), ())))
    )


@pytest.mark.parametrize("before", ["gpu:h100:2,mps:200", "gpu:4", "gpu:h100:2,gpu:nvidia_h100_80gb_hbm3_1g.10gb:7"])
@pytest.mark.parametrize(
    "after",
    [
        "gpu:h100:4,mps:400",
        "gpu:h100:2,mps:100",
        "gpu:a100:2,mps:200",
        "gpu:h100:2,shard:8",
        "gpu:3",
        "gpu:h100_1g.10gb:7",
    ],
)
def test_a_node_with_other_gres_is_noticed(before: str, after: str) -> None:
    config = read(text_of(look(lab(before))))
    problems = differences(config, look(lab(after)))
    assert problems
    assert all("'g1'" in problem and ": " in problem for problem in problems)


def test_gpus_without_a_type_can_be_named(printed: Printed) -> None:
    config = read(text_of(look(lab("gpu:4")), {"": H100}))
    printed("site-check", *differences(config, look(lab("gpu:3"))))
    pool = config.pool[0]
    assert (pool.gpu_type, pool.gpus_per_node, pool.gpu_model, pool.sm_count) == ("", 4, H100, 132)


def test_shares_that_cannot_be_split_are_left_open_and_said(printed: Printed) -> None:
    cluster = look(lab("gpu:h100:3,mps:100"))
    text = text_of(cluster)
    config = read(text)
    assert config.pool[0].mps_per_gpu == 0
    (left_open,) = (line for line in text.splitlines() if line.startswith("# mps_per_gpu"))
    printed("site-init", left_open, notes(config, cluster)[-1])
    # Who knows gres.conf knows better.
    by_hand = config._replace(pool=(config.pool[0]._replace(mps_per_gpu=100),))
    assert differences(by_hand, cluster) == []


@pytest.mark.parametrize("slurm", RELEASES)
@pytest.mark.parametrize("busy", ["idle", "busy"])
def test_newer_releases_say_how_many_shares_each_gpu_has(slurm: str, busy: str) -> None:
    sinfo = (RECORDED / f"slurm-{slurm}/sinfo/{busy}.txt").read_text()
    text = text_of(look(FakeClient(slurm, None, sinfo=sinfo)))
    assert [(pool.mps_per_gpu, pool.shards_per_gpu) for pool in read(text).pool] == [(100, 0), (0, 4), (0, 0)]
    assert ("mps_per_gpu = 100  # sinfo, GresUsed" in text) is (slurm != "22.05")


def test_a_twin_that_never_registered_is_of_the_same_pool() -> None:
    twins = "\n".join(LINE.replace("NodeName=g1", f"NodeName={name}") for name in ("g1", "g2"))
    sinfo = "g1|gpu|gpu:h100:2,mps:h100:200|gpu:h100:0(IDX:N/A),mps:h100:0(0/100,0/100)|idle\ng2|gpu|||down*\n"
    (pool,) = read(text_of(look(FakeClient("22.05", None, node=twins, sinfo=sinfo)))).pool
    assert (pool.nodes, pool.mps_per_gpu) == ("g[1-2]", 100)


@pytest.mark.parametrize(
    ("used", "per_gpu"),
    [("0/200", 200), ("0/200,0/0", 200), ("-/100,7/100", 100), ("0/50,0/150", None), ("IDX:N/A", 100)],
)
def test_shares_that_are_not_on_every_gpu(used: str, per_gpu: int | None) -> None:
    sinfo = f"g1|gpu|gpu:h100:2,mps:h100:200|gpu:h100:0(IDX:N/A),mps:h100:0({used})|idle\n"
    cluster = look(lab("gpu:h100:2,mps:h100:200", sinfo=sinfo))
    config = read(text_of(cluster))
    assert config.pool[0].mps_per_gpu == (per_gpu or 0)
    assert differences(config, cluster) == []
    other = config._replace(pool=(config.pool[0]._replace(mps_per_gpu=per_gpu * 2 if per_gpu else 1),))
    assert bool(differences(other, cluster)) is (per_gpu is not None)


# --- comments ---


@pytest.mark.parametrize("slurm", RELEASES)
def test_every_value_says_where_it_is_from(slurm: str) -> None:
    text = text_of(look(FakeClient(slurm)), {"h100": H100})
    silent = [line for line in text.splitlines() if "=" in line and "#" not in line and '"' not in line]
    assert {line.partition(" ")[0] for line in silent} <= {"schema"}
    assert any(line.startswith("gpu_mem_mib = 81559  # ") and line.endswith(H100) for line in text.splitlines())
    assert f"# 1 node with Gres=gpu:{MIG}1g.10gb:2" in text


def test_features_that_each_node_of_a_pool_has_are_written_and_checked() -> None:
    slow = LINE.replace("=g1", "=g2").replace("ActiveFeatures=(null)", "ActiveFeatures=slow,ib,h100")
    cluster = look(FakeClient(node="\n".join([slow, slow.replace("=g2", "=g3").replace("slow,", "")])))
    config = read(text_of(cluster, {"h100": H100}))
    [pool] = config.pool
    assert pool.features == ("ib", "h100")
    assert differences(config, cluster) == []
    [difference] = differences(config._replace(pool=(pool._replace(features=("ib", "slow")),)), cluster)
    assert "g3" in difference
    assert 'features = ["ib"]' in difference
    assert read(text_of(look(FakeClient(node=LINE)), {"h100": H100})).pool[0].features == ()


def test_nodes_that_are_down_are_told() -> None:
    cluster = look(FakeClient(node=LINE.replace("State=MIXED", "State=DOWN*+DRAIN")))
    text = text_of(cluster)
    said = "'g1': down, drained or silent, so what slurm.conf says of their GPUs is not confirmed"
    assert f"# {said}\n" in text
    assert said in notes(read(text), cluster)


@pytest.mark.parametrize("slurm", RELEASES)
def test_exclusive_partitions_of_every_release(slurm: str) -> None:
    found = parse_partitions((RECORDED / f"slurm-{slurm}/setup/exclusive.txt").read_text())
    said = {partition.name for partition in found if partition.one_user}
    # 26.05 shows one of the two.
    assert said == ({"single"} if slurm == "26.05" else {"single", "both"})


HOSTILE = 'x" \n[sharing]\nask_free = false\n# \x1b[2J \u2028 \\'


def test_words_of_people_end_no_line() -> None:
    settings = {"ClusterName": HOSTILE, "AccountingStorageEnforce": HOSTILE}
    text = text_of(look(lab())._replace(settings=settings), {"h100": HOSTILE})
    config = read(text)
    assert (config.cluster, config.pool[0].gpu_model) == (HOSTILE, HOSTILE)
    assert config.sharing.ask_free
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_a_name_outside_utf_8_is_an_error_that_names_it(printed: Printed) -> None:
    with printed.raises("site-init", InputError, r"'gpu\?' .* cluster"):
        text_of(look(lab())._replace(settings={"ClusterName": "gpu\udcff"}))


def test_a_reason_changes_nothing_of_a_node() -> None:
    (node,) = parse_nodes(LINE + " Reason=fan Gres=gpu:h100:99 NodeName=other Partitions=root [ann@2026]")
    assert (node.name, node.gres[0].quantity, node.partitions) == ("g1", 2, ("all", "gpu"))


# --- billing ---


@pytest.mark.parametrize(
    ("weights", "tracked", "free"),
    [
        ("", "gres/gpu,gres/shard", ""),
        ("TRESBillingWeights=CPU=1.0", "gres/gpu,gres/shard", ""),
        ("TRESBillingWeights=CPU=1,Mem=0.25G,GRES/gpu=8,GRES/shard=2", "gres/gpu,gres/shard", ""),
        (
            "TRESBillingWeights=GRES/gpu:h100=8",
            "gres/gpu,gres/shard",
            "partition 'gpu' bills gres/gpu and not gres/shard",
        ),
        ("TRESBillingWeights=GRES/gpu=8,GRES/shard=0", "gres/gpu,gres/shard", "partition 'gpu' bills gres/gpu and not"),
        ("", "gres/gpu:h100", "AccountingStorageTRES names gres/gpu and not gres/shard"),
        ("", "", ""),
    ],
)
def test_a_share_that_costs_nothing_stays_off(weights: str, tracked: str, free: str) -> None:
    cluster = look(billed(weights, tracked))
    found = free_of_charge(cluster, "shard")
    assert bool(found) == bool(free)
    assert all(one.startswith(free) for one in found)
    text = text_of(cluster, vouched=("shard",))
    assert ("shard" in read(text).sharing.order) is not bool(free)
    assert f"# gres/shard: {free}" in text if free else "# gres/shard:" not in text
    insisted = text_of(cluster, vouched=("shard",), extra={"sharing": {"order": ["shard"]}})
    config = read(insisted)
    assert config.sharing.order == ("shard",)
    assert weights.removeprefix("TRESBillingWeights=") in {one.billing_weights for one in config.partition}
    # As where it was billed once and is no more: csub goes by the file, so somebody must hear of it.
    problems = differences(config, cluster)
    assert all(one in problem for one, problem in zip(found, problems, strict=True))
    off = config._replace(sharing=config.sharing._replace(order=("mig",)))
    assert differences(off, cluster) == []
    unsaid = tuple(one._replace(billing_weights="") for one in off.partition)
    assert differences(off._replace(partition=unsaid), cluster) == [], "nothing is said of billing, then"
    assert any(note.startswith(f"gres/shard (off): {free}") for note in notes(off, cluster)) is bool(free)


def test_a_share_that_is_meant_to_cost_nothing_is_no_difference(printed: Printed) -> None:
    """Else a site that decided so hears of it from cron each day, and of nothing that differs beside it."""
    cluster = look(billed("TRESBillingWeights=GRES/gpu=8", "gres/gpu,gres/shard"))
    text = text_of(cluster, vouched=("shard",), extra={"sharing": {"unbilled": ["shard"]}})
    config = read(text)
    assert "shard" in config.sharing.order
    assert differences(config, cluster) == []
    printed("site-check", *notes(config, cluster)[-2:])
    other = config._replace(sharing=config.sharing._replace(unbilled=("mps",)))
    (problem,) = differences(other, cluster)
    printed("site-check", problem)


def test_without_accounting_nothing_is_billed() -> None:
    config = recorded("config").replace("accounting_storage/slurmdbd", "accounting_storage/none")
    cluster = look(FakeClient(config=config))
    assert free_of_charge(cluster, "mps") == []


# --- what drivers say ---


def units(*profiles: str, count: int = 1, monkeypatch: pytest.MonkeyPatch) -> tuple[GpuUnit, ...]:
    """Return what the unmodified reader makes of a driver with GPUs, the first cut into these slices."""
    made = gpus(count)
    if profiles:
        made[0].slices = slices_of(made[0], profiles)
    Driver(made).install(monkeypatch)
    return NvmlReader().units()


def test_the_driver_goes_before_our_table(monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    seen = [
        unit._replace(mem_total_mib=81000, sm_count=130, whole_sm_count=130)
        for unit in units(count=2, monkeypatch=monkeypatch)
    ]
    cluster = look(FakeClient(), [NodeGpus("g1", tuple(seen))])
    text = text_of(cluster)
    own, same_type, _ = read(text).pool
    assert (own.gpu_model, own.gpu_mem_mib, own.sm_count) == (H100, 81000, 130)
    # g2 has the same gres type.
    assert (same_type.gpu_model, same_type.gpu_mem_mib) == (H100, 81000)
    printed("site-init", *(line for line in text.splitlines() if "driver" in line))
    assert differences(read(text), cluster) == []
    by_table = read(text_of(look(FakeClient()), {"h100": H100}))
    printed("site-check", *differences(by_table, cluster))


def test_the_geometry_of_a_driver(monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    profiles = ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb")
    seen = NodeGpus("m1", units(*profiles, monkeypatch=monkeypatch))
    cluster = look(FakeClient(), [seen])
    config = read(text_of(cluster))
    pool = config.pool[2]
    assert [(part.profile, part.mem_mib, part.sm_count, part.quantity) for part in pool.slice] == [
        ("1g.10gb", 9984, 16, 2),
        ("2g.20gb", 20090, 32, 1),
        ("3g.40gb", 40448, 60, 1),
    ]
    assert differences(config, cluster) == []
    other = look(FakeClient(), [NodeGpus("m1", units("4g.40gb", "3g.40gb", monkeypatch=monkeypatch))])
    printed("site-check", *differences(config, other))
    # A job sees only what it holds.
    inside = look(FakeClient(), [seen._replace(units=seen.units[:1], complete=False)])
    assert differences(config, inside) == []


def test_a_card_that_the_driver_contradicts(monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    cluster = look(FakeClient(), [NodeGpus("g1", units(count=2, monkeypatch=monkeypatch))])
    with printed.raises("site-init", InputError, "'NVIDIA A100'"):
        text_of(cluster, {"h100": "NVIDIA A100"})
    config = read(text_of(cluster))
    wrong = config._replace(pool=(config.pool[0]._replace(gpu_model="NVIDIA A100"), *config.pool[1:]))
    (problem,) = differences(wrong, cluster)
    assert problem.endswith(f'write gpu_model = "{H100}"')
    printed("site-check", problem)


def test_two_cards_in_a_node_are_told_apart_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    one = units(monkeypatch=monkeypatch)[0]
    other = one._replace(
        uuid="GPU-x", model="NVIDIA A100-SXM4-40GB", mem_total_mib=40536, sm_count=108, whole_sm_count=108
    )
    cluster = look(lab("gpu:a100:1,gpu:h100:1"), [NodeGpus("g1", (one, other))])
    found = {pool.gpu_type: (pool.gpu_model, pool.gpu_mem_mib) for pool in read(text_of(cluster)).pool}
    assert found == {"a100": ("NVIDIA A100-SXM4-40GB", 40536), "h100": (H100, 81559)}
    # Which of them a job gets is not known.
    untyped = look(lab("gpu:2"), [NodeGpus("g1", (one, other))])
    assert read(text_of(untyped)).pool[0].gpu_model == ""


def test_what_a_driver_does_not_tell_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    blank = units(monkeypatch=monkeypatch)[0]._replace(model="NVIDIA Future", sm_count=0, whole_sm_count=0)
    text = text_of(look(lab("gpu:h100:1"), [NodeGpus("g1", (blank,))]))
    assert read(text).pool[0].sm_count is None
    assert "# sm_count = ...  not known" in text


def test_sizes_are_checked_by_our_table_too() -> None:
    cluster = look(FakeClient())
    config = read(text_of(cluster, {"h100": H100}))
    whole, _, mig = config.pool
    # Another driver leaves a little more or less.
    near = config._replace(pool=(whole._replace(gpu_mem_mib=81000), *config.pool[1:]))
    assert differences(near, cluster) == []
    part = mig.slice[0]._replace(mem_mib=99840, sm_count=14, profile="1g.20gb")
    wrong = config._replace(
        pool=(
            whole._replace(gpu_mem_mib=40960, sm_count=108),
            config.pool[1],
            mig._replace(slice=(part, *mig.slice[1:])),
        )
    )
    assert [problem.rpartition(": write ")[2] for problem in differences(wrong, cluster)] == [
        "gpu_mem_mib = 81559",
        "sm_count = 132",
        'profile = "1g.10gb"',
        "mem_mib = 20090",
        "sm_count = 26",
    ]


def test_names_of_other_sections_are_checked(printed: Printed) -> None:
    cluster = look(FakeClient())
    config = read(text_of(cluster))
    wrong = config._replace(
        sharing=config.sharing._replace(protected_types=("h100", "b200")),
        pool=(*config.pool, config.pool[0]),
        rollout=(Rule("auto", users=("root", "no-such"), groups=("nowhere",), partitions=("gpu", "gpus")),),
    )
    printed("site-check", *differences(wrong, cluster))


# --- the file of a node's GPUs ---


def test_a_driver_is_read_where_it_is_and_told_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = units("3g.40gb", "1g.10gb", monkeypatch=monkeypatch)
    found = read_driver("g1", "nvml", {})
    assert found == NodeGpus("g1", seen)
    assert not read_driver("g1", "nvml", {"SLURM_JOB_ID": "4"}).complete
    text = to_json(found)
    assert parse_gpus_file(text, "file") == found


GOOD = json.loads(to_json(NodeGpus("g1", (GpuUnit("GPU-1", 0, H100, "", 81559, 132, 132),))))


@pytest.mark.parametrize(
    "change",
    [
        {"node": 3},
        {"complete": 1},
        {"schema": 2},
        {"units": 3},
        {"units": [{}]},
        {"units": [{**GOOD["units"][0], "mem_total_mib": "1"}]},
        {"units": [{**GOOD["units"][0], "more": 1}]},
        {"units": [{**GOOD["units"][0], "gpu_instance": "x"}]},
    ],
)
def test_another_file_is_none(change: dict[str, object]) -> None:
    assert parse_gpus_file(json.dumps(GOOD), "f").units[0].gpu_instance is None
    with pytest.raises(GpuError, match="'f'"):
        parse_gpus_file(json.dumps({**GOOD, **change}), "f")


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, '{"node": "g1"}'])
def test_no_file_at_all(text: str, tmp_path: Path, printed: Printed) -> None:
    with pytest.raises(GpuError, match="'f'"):
        parse_gpus_file(text, "f")
    with printed.raises("site-init", GpuError):
        load_gpus_file(str(tmp_path / "g1.json"))
    with printed.raises("site-init", GpuError):
        parse_gpus_file("[]", "f")


def test_gpus_of_a_node_that_the_cluster_lacks(printed: Printed) -> None:
    with printed.raises("site-init", InputError, "'g9'"):
        look(FakeClient(), [NodeGpus("g9", ())])
