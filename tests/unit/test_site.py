# SPDX-License-Identifier: Apache-2.0
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from slurm_colloc.core.config import MigSlice, Paths, SiteConfig
from slurm_colloc.core.config import Partition as DeclaredPartition
from slurm_colloc.core.config_file import parse_site
from slurm_colloc.core.errors import InputError, ProcessError
from slurm_colloc.core.model import Gres
from slurm_colloc.site.admin_remarks import gaps
from slurm_colloc.site.cluster import look
from slurm_colloc.site.cluster_differences import differences
from slurm_colloc.site.discover import discover
from slurm_colloc.site.render import Host, render_site
from slurm_colloc.slurm import client as client_module
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.options import unloaded_plugins
from slurm_colloc.slurm.parse import (
    parse_nodes,
    parse_records,
    parse_release,
    parse_states,
)
from tests.unit.golden import Printed
from tests.unit.made import H100, RECORDED, RELEASES
from tests.unit.programs import executable

MIG = "nvidia_h100_80gb_hbm3_"


def recorded(name: str, slurm: str = "22.05") -> str:
    return (RECORDED / f"slurm-{slurm}/scontrol" / f"{name}.txt").read_text()


class FakeClient(CliClient):
    """A client to which Slurm's commands answer with recorded or made-up text."""

    def __init__(self, slurm: str = "22.05", plugins: Mapping[str, str] | None = None, **texts: str) -> None:
        super().__init__()
        self.plugins = dict(plugins or {})
        self.unloaded: tuple[str, ...] = ()
        self.of_plugins: frozenset[str] = frozenset()
        shown = {name: recorded(name, slurm) for name in ("version", "node", "partition", "config")}
        self.texts = {"sinfo": "", **shown, **texts}

    def _ask(self, *argv: str, **variables: str) -> str:
        return next(text for name, text in self.texts.items() if name in " ".join(argv))

    def further_options(self, known: Collection[str]) -> Mapping[str, str]:
        assert {"gres", "wrap"} <= set(known)
        return self.plugins

    def plugin_options(self) -> frozenset[str]:
        return self.of_plugins

    def unloaded_plugins(self) -> tuple[str, ...]:
        return self.unloaded


def found(
    client: FakeClient | None = None,
    models: Mapping[str, str] | None = None,
    vouched: Sequence[str] = (),
    extra: Mapping[str, Mapping[str, object]] | None = None,
    tier: str = "place",
    *,
    own: bool = False,
) -> SiteConfig:
    text = discover(look(client or FakeClient()), models or {}, vouched, extra or {}, tier, own=own)
    return parse_site(tomllib.loads(text), "found")


def check(config: SiteConfig, client: FakeClient) -> list[str]:
    return differences(config, look(client))


# --- what Slurm prints ---


def test_values_with_blanks_and_equals() -> None:
    line = "NodeName=n1 OS=Linux 6.1 #1 SMP CfgTRES=cpu=8,mem=1M Reason=bad fan [root@2026] Comment=a=b"
    (record,) = parse_records(f"{line}\n \n")
    assert record["OS"] == "Linux 6.1 #1 SMP"
    assert (record["CfgTRES"], record["Reason"], record["Comment"]) == ("cpu=8,mem=1M", "bad fan [root@2026]", "a=b")


def test_other_gres_do_not_stop_the_parse() -> None:
    (node,) = parse_nodes("NodeName=n Gres=gpu:tesla:1,bandwidth:lustre:no_consume:4G Partitions=p\n")
    assert node.gres == (Gres("gpu", "tesla", 1), Gres("bandwidth", "lustre", 4 * 1024**3))


@pytest.mark.parametrize(
    ("text", "release"), [("slurm 24.11.0-rc1", "24.11"), ("slurm-wlm 22.05.8", "22.05"), ("slurm 26.05-pre1", "26.05")]
)
def test_releases(text: str, release: str) -> None:
    assert parse_release(text) == release
    for no_release in ("", "slurm", "slurm 22"):
        with pytest.raises(InputError):
            parse_release(no_release)


def test_states() -> None:
    text = "1|COMPLETED\n2|CANCELLED by 1001\n\njunk\n|RUNNING\n3|\n"
    assert parse_states(text) == {"1": "COMPLETED", "2": "CANCELLED"}


# --- the client over commands ---


def test_states_from_accounting_else_from_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    answers: dict[str, bytes | None] = {"sacct": b"1|COMPLETED\n", "squeue": b"1|RUNNING\n"}

    def fake_ask(argv: Sequence[str], timeout_s: float, environment: object) -> bytes:
        asked.append(argv)
        answer = answers[argv[0]]
        if answer is None:
            raise ProcessError("no")
        return answer

    monkeypatch.setattr(client_module, "ask", fake_ask)
    client = CliClient(1.0)
    assert client.job_states(["1", "2"]) == {"1": "COMPLETED"}
    assert asked[0] == ("sacct", "-X", "-n", "-P", "-j", "1,2", "-o", "JobIDRaw,State")
    answers["sacct"] = None
    assert client.job_states(["1"]) == {"1": "RUNNING"}
    answers["squeue"] = None
    assert client.job_states(["1"]) == {}


# --- init ---


@pytest.mark.parametrize("slurm", RELEASES)
def test_discover_the_laboratory(slurm: str) -> None:
    config = found(FakeClient(slurm), models={"h100": H100})
    assert (config.cluster, config.slurm_release, config.default_partition) == ("lab", slurm, "all")
    mps, shard, mig = config.pool
    assert (mps.name, mps.partitions, mps.gpu_type, mps.gpus_per_node) == ("g1", ("all", "gpu"), "h100", 2)
    assert (mps.mps_per_gpu, mps.shards_per_gpu, mps.gpu_mem_mib, mps.sm_count) == (100, 0, 81559, 132)
    assert (mps.cpus_per_node, mps.mem_per_node_mib) == (8, 8000)
    assert (shard.name, shard.mps_per_gpu, shard.shards_per_gpu) == ("g2", 0, 4)
    assert (mig.name, mig.gpu_type, mig.gpus_per_node, mig.gpu_model) == ("m1", "", 0, H100)
    assert mig.slice == (
        MigSlice(f"{MIG}1g.10gb", "1g.10gb", 9984, 16, 2),
        MigSlice(f"{MIG}2g.20gb", "2g.20gb", 20090, 32, 1),
        MigSlice(f"{MIG}3g.40gb", "3g.40gb", 40448, 60, 1),
    )
    of_all = DeclaredPartition("all", default_time_min=10.0, mps_users="each")
    assert config.partition == (of_all, of_all._replace(name="gpu"), DeclaredPartition("mig", default_time_min=10.0))
    assert check(config, FakeClient(slurm)) == []


TOP = {"schema", "cluster", "slurm_release", "policy", "pool"}
OF_SUBMISSIONS = {"default_partition", "default_mem", "sbatch_options", "partition"}


@pytest.mark.parametrize(
    ("tier", "policy", "keys"),
    [
        ("report", "off", TOP),
        ("pack", "pack", TOP | OF_SUBMISSIONS | {"limits"}),
        ("place", "shadow", TOP | OF_SUBMISSIONS | {"limits", "sharing"}),
    ],
)
def test_a_tiers_file_has_what_it_needs_and_agrees_with_the_cluster(tier: str, policy: str, keys: set[str]) -> None:
    models = {"h100": H100}
    table = tomllib.loads(discover(look(FakeClient()), models, (), {}, tier))
    config = parse_site(table, "f")
    assert (set(table), config.policy, config.tier, len(config.pool)) == (keys, policy, tier, 3)
    assert check(config, FakeClient()) == []
    other = FakeClient(config=recorded("config").replace("ClusterName             = lab", "ClusterName = other"))
    assert check(config, other)[0].startswith('cluster is "lab"')
    files = {file.name for file in render_site(config._replace(paths=Paths(state="/s")), Host("/opt/c"))}
    assert ("gres.conf" in files, "slurm_colloc.lua" in files, "colloc.cron" in files) == (
        tier == "place",
        tier != "report",
        True,
    )


def test_what_a_user_keeps_for_their_own_jobs_places_them() -> None:
    config = found(own=True)
    assert (config.policy, config.sharing.late_binding, config.sharing.max_slowdown) == ("auto", "on", 1.25)
    given = found(own=True, extra={"": {"policy": "shadow"}, "sharing": {"max_slowdown": 1.5}})
    assert (given.policy, given.sharing.max_slowdown) == ("shadow", 1.5)


def test_what_nobody_vouched_for_stays_off() -> None:
    sharing = found().sharing
    assert (sharing.mps_daemon, sharing.order) == ("none", ("mig", "mps"))
    consented = found(vouched=("mps", "shard")).sharing
    assert (consented.mps_daemon, consented.order) == ("site", ("mig", "mps", "shard"))


def test_an_unknown_card_is_left_open() -> None:
    pool = found().pool[0]
    assert (pool.gpu_type, pool.gpu_model, pool.gpu_mem_mib, pool.sm_count) == ("h100", "", None, None)
    named = found(models={"h100": "NVIDIA Future"}).pool[0]
    assert (named.gpu_model, named.gpu_mem_mib) == ("NVIDIA Future", None)


def test_settings_are_added_to_what_was_found() -> None:
    giving = recorded("partition").replace("JobDefaults=(null)", "JobDefaults=DefCpuPerGPU=4")
    extra: dict[str, dict[str, object]] = {
        "sharing": {"headroom_mib": 512},
        "observe": {"agent": True},
        "": {"policy": "shadow"},
    }
    config = found(FakeClient(partition=giving), vouched=("shard",), extra=extra)
    assert (config.sharing.headroom_mib, "shard" in config.sharing.order) == (512, True)
    given = {item.name: (item.cpus_per_gpu, item.default_time_min) for item in config.partition}
    assert given == {"all": (4, 10.0), "gpu": (4, 10.0), "mig": (4, 10.0)}
    assert (config.observe.agent, config.policy) == (True, "shadow")


def test_gpu_defaults_of_the_whole_cluster_count_for_every_partition() -> None:
    text = recorded("config").replace("= (null)\nJobFileAppend", "= DefMemPerGPU=1000\nJobFileAppend")
    assert "DefMemPerGPU" in text
    assert [item.mem_per_gpu_mib for item in found(FakeClient(config=text)).partition] == [1000, 1000, 1000]
    own = recorded("partition").replace("JobDefaults=(null)", "JobDefaults=DefMemPerGPU=7", 1)
    assert [item.mem_per_gpu_mib for item in found(FakeClient(config=text, partition=own)).partition] == [7, 1000, 1000]


def test_options_of_plugins_are_found(printed: Printed) -> None:
    plugins = {"container-image": "required", "x11": "optional", "no-home": "none"}
    config = found(FakeClient(plugins=plugins))
    assert config.sbatch_options == ("container-image=", "no-home", "x11=?")
    assert check(config, FakeClient(plugins=plugins)) == []
    (problem,) = check(config, FakeClient(plugins={"x11": "optional"}))
    printed("site-check", problem)


def test_what_a_newer_release_brings_is_no_plugins() -> None:
    client = FakeClient(plugins={"container-image": "required", "frobnicate": "required"}, version="slurm 27.05.1\n")
    client.of_plugins = frozenset({"container-image", "gres"})
    config = found(client)
    assert (config.slurm_release, config.sbatch_options) == ("27.05", ("container-image=",))
    assert check(config, client) == []
    assert [what for what in gaps(config) if "27.05" in what and "26.11" in what]
    assert found(FakeClient(plugins=client.plugins, version="slurm 21.08.8\n")).sbatch_options == ()
    assert not [what for what in gaps(found(FakeClient("26.05"))) if "slurm_release" in what]


HELP = (
    "Usage: sbatch [OPTIONS(0)...]\n      --frobnicate=n   x\n\nOptions provided by plugins:\n      --x11[=all]   --y\n"
)


def test_the_options_of_plugins_are_those_that_the_help_names_last(tmp_path: Path) -> None:
    executable(tmp_path / "sbatch", f"#!/bin/sh\ncat <<'E'\n{HELP}E\n")
    assert CliClient(environment={"PATH": f"{tmp_path}:/usr/bin:/bin"}).plugin_options() == {"x11", "y"}


# As sbatch 22.05.8 and 24.11.5 say it.
UNLOADED = """\
sbatch: error: plugin_load_from_file: dlopen(/usr/lib/ours.so): /usr/lib/ours.so: file too short
sbatch: error: spank: /usr/lib/ours.so: Dlopen of plugin file failed
sbatch: option '--=' is ambiguous; possibilities: '--account' '--acctg-freq'
"""


def test_a_plugin_that_is_not_loaded_is_to_be_mended_and_not_the_file(printed: Printed) -> None:
    config = found(FakeClient(plugins={"colloc": "required", "gpu-footprint": "required", "x11": "none"}))
    silent = FakeClient()  # as 26.05
    (problem,) = check(config, silent)
    printed("site-check", problem)
    loud = FakeClient()
    loud.unloaded = unloaded_plugins(UNLOADED)
    (problem,) = check(config, loud)
    printed("site-check", problem)
    # Also of a plugin that site.toml does not know.
    assert len(check(found(), loud)) == 1
    assert unloaded_plugins(UNLOADED.replace("spank: ", "")) == ()


def test_limits_are_asked_for_where_they_are_enforced() -> None:
    for enforced, text in ((False, "associations"), (True, "associations,limits"), (True, "SAFE"), (False, "none")):
        config = recorded("config")
        line = next(line for line in config.splitlines() if line.startswith("AccountingStorageEnforce"))
        settings = config.replace(line, f"AccountingStorageEnforce = {text}")
        assert found(FakeClient(config=settings)).limits.enforced is enforced, text
    (problem,) = check(found(), FakeClient(config=settings.replace("Enforce = none", "Enforce = limits")))
    assert problem.endswith("write limits.enforced = true")


def suspending(kind: str, slurm: str) -> FakeClient:
    folder = RECORDED / f"slurm-{slurm}/preemption"
    texts = {name: (folder / f"{kind}-{name}.txt").read_text() for name in ("config", "partition")}
    node = recorded("node", slurm).replace("Partitions=all,gpu", f"Partitions={EVERY[kind]}")
    return FakeClient(slurm, None, node=node, **texts)


EVERY = {"suspend": "all,gpu,off,again,suspend,turns", "gang": "all,gpu,turns", "qos": "all,gpu,off"}


@pytest.mark.parametrize("slurm", RELEASES)
@pytest.mark.parametrize(("kind", "not_suspended"), [("suspend", {"off", "again"}), ("gang", set()), ("qos", set())])
def test_partitions_whose_jobs_may_be_suspended_are_found(
    kind: str, not_suspended: set[str], slurm: str, printed: Printed
) -> None:
    client = suspending(kind, slurm)
    config = found(client)
    assert {item.name for item in config.partition} == {*EVERY[kind].split(","), "mig"}
    assert {item.name for item in config.partition if not item.suspends} == not_suspended
    printed("site-check", *(gap for gap in gaps(config) if gap.startswith("partition 'gpu'")))
    older = config._replace(partition=tuple(item._replace(suspends=False) for item in config.partition))
    said = [one.partition(":")[0] for one in check(older, client) if one.endswith("write suspends = true")]
    assert {f"partition '{item.name}'" for item in config.partition if item.suspends} == set(said)


@pytest.mark.parametrize("slurm", RELEASES)
def test_a_partition_that_gives_nodes_to_one_user_is_found_and_compared(slurm: str, printed: Printed) -> None:
    # 26.05 has one word for all that is exclusive.
    old, new = ("Exclusive=NO", "Exclusive=USER") if slurm == "26.05" else ("ExclusiveUser=NO", "ExclusiveUser=YES")
    text = recorded("partition", slurm).replace(old, new, 1)
    client = FakeClient(slurm, partition=text)
    config = found(client)
    by_name = {item.name: item.mps_users for item in config.partition}
    assert (by_name["all"], by_name["gpu"]) == ("one", "each")
    assert check(config, client) == []
    # ExclusiveUser is no way out where it takes several GPUs; a node of one GPU loses nothing by it.
    (crowded,) = (said for said in check(config, FakeClient(slurm)) if "mps_users" in said)
    assert ("change ExclusiveUser" in crowded, 'write mps_users = "each"' in crowded) == (False, True)
    single = re.sub(r"\bGres=\S+", "Gres=gpu:h100:1", recorded("node", slurm))
    said = check(config, FakeClient(slurm, node=single))
    assert ["change ExclusiveUser" in one for one in said if "mps_users" in one] == [True]
    others = config._replace(partition=tuple(item._replace(mps_users="all") for item in config.partition))
    printed("site-check", *check(others, client))
    assert not any("mps_users" in said for said in check(others, FakeClient(slurm)))


def test_check_compares_partitions(printed: Printed) -> None:
    config = found()
    declared = config._replace(
        partition=(
            # Of the latter keys Slurm says nothing: they are the site's own.
            config.partition[0]._replace(
                cpus_per_gpu=3,
                pieces_in=("elsewhere",),
                job_submit="shadow",
                interactive_gres="shard:1",
                interactive_names=("spawner-jupyterhub",),
            ),
            config.partition[1]._replace(name="old"),
            config.partition[2],
        )
    )
    printed("site-check", *check(declared, FakeClient()))


@pytest.mark.parametrize("slurm", RELEASES)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("MaxNodes=UNLIMITED", "MaxNodes=0"),
        ("MinNodes=0", "MinNodes=2"),
        ("RootOnly=NO", "RootOnly=YES"),
        ("ReqResv=NO", "ReqResv=YES"),
        ("OverSubscribe=NO", "OverSubscribe=EXCLUSIVE"),
        ("State=UP", "State=DOWN"),
        ("State=UP", "State=INACTIVE"),
    ],
)
def test_check_names_partitions_in_which_a_moved_job_is_lost(slurm: str, old: str, new: str, printed: Printed) -> None:
    before, mig, after = recorded("partition", slurm).partition("PartitionName=mig")
    assert old in after
    client = FakeClient(slurm, partition=before + mig + after.replace(old, new, 1))
    config = found(client)
    assert check(config, client) == []
    moves = config._replace(
        partition=tuple(item._replace(pieces_in=("mig",)) if item.name == "gpu" else item for item in config.partition)
    )
    (said,) = check(moves, client)
    assert new in said
    printed("site-check", said.replace(new, "KEY=VALUE"))


def test_check_compares_restrictions() -> None:
    text = recorded("partition").replace("AllowAccounts=ALL", "AllowAccounts=a,b", 1)
    client = FakeClient(partition=text.replace("MaxCPUsPerNode=UNLIMITED", "MaxCPUsPerNode=4", 1))
    config = found(client)
    assert config.partition[0].restrictions == ("AllowAccounts=a,b", "MaxCPUsPerNode=4")
    assert check(config, client) == []
    open_to_all = config._replace(partition=tuple(item._replace(restrictions=()) for item in config.partition))
    (said,) = check(open_to_all, client)
    assert said.endswith('write restrictions = ["AllowAccounts=a,b", "MaxCPUsPerNode=4"]')


# --- check ---


def test_check_names_every_difference(printed: Printed) -> None:
    config = found(models={"h100": H100})
    mps, shard, mig = config.pool
    wrong = config._replace(
        cluster="other",
        slurm_release="24.11",
        default_partition="gpu",
        pool=(
            mps._replace(nodes="g[1,9]", mps_per_gpu=50),
            shard._replace(partitions=("gpu",), gpus_per_node=4),
            mig._replace(slice=(mig.slice[0]._replace(quantity=7),)),
        ),
    )
    (missing,) = check(config._replace(pool=(mps, mig)), FakeClient())
    printed("site-check", *check(wrong, FakeClient()), missing)


def test_check_compares_what_jobs_may_have_of_a_node(printed: Printed) -> None:
    """By the least of a pool's nodes, as init writes it."""
    config = found(models={"h100": H100})
    pool = config.pool[0]
    assert (pool.cpus_per_node, pool.mem_per_node_mib) == (8, 8000)
    client = FakeClient(node=recorded("node").replace("RealMemory=8000", "RealMemory=8000 MemSpecLimit=500"))
    wrong = config._replace(pool=(pool._replace(cpus_per_node=16), *config.pool[1:]))
    printed("site-check", *(one for one in check(wrong, client) if one.startswith(f"pool '{pool.name}': ")))


def test_what_is_not_said_of_a_node_is_missed_where_there_is_a_policy(printed: Printed) -> None:
    config = found(models={"h100": H100})
    silent = config._replace(pool=tuple(one._replace(cpus_per_node=0, mem_per_node_mib=0) for one in config.pool))
    assert check(silent, FakeClient()) == []
    judged = tuple(one._replace(job_submit="shadow" if one.name == "mig" else "off") for one in silent.partition)
    told = check(silent._replace(partition=judged), FakeClient())
    printed("site-check", *told)
    mute = FakeClient(node=recorded("node").replace("CPUEfctv=", "Effective=").replace("RealMemory=", "Memory="))
    assert check(silent._replace(partition=judged), mute) == []


def test_check_says_so_when_nodes_cannot_be_read(printed: Printed) -> None:
    config = found()
    (problem,) = check(config._replace(pool=(config.pool[0]._replace(nodes="g[1-"),)), FakeClient())
    assert problem.startswith("pool 'g1': nodes 'g[1-' ")
    printed("site-check", problem)


def test_check_misses_the_name_of_a_card(printed: Printed) -> None:
    """By it csub finds what was measured: without it nothing is ever shared there, however complete the sizes are."""
    config = found(models={"h100": H100})
    nameless = config._replace(pool=(config.pool[0]._replace(gpu_model=""), *config.pool[1:]))
    (problem,) = check(nameless, FakeClient())
    printed("site-check", problem)
    # As Slurm spells it in a type is not as the driver does, by whose name measurements go.
    spelled = config._replace(pool=(config.pool[0]._replace(gpu_model="nvidia_h100_80gb_hbm3"), *config.pool[1:]))
    (problem,) = check(spelled, FakeClient())
    assert problem.endswith(f'write gpu_model = "{H100}"')
    unsized = nameless.pool[0]._replace(sm_count=None, gpu_mem_mib=None)
    assert check(nameless._replace(pool=(unsized, *config.pool[1:])), FakeClient()) == []
    printed("site-check", *gaps(nameless._replace(pool=(unsized,))))


def test_gaps_say_why_nothing_is_placed(printed: Printed) -> None:
    vouched = found(models={"h100": H100}, vouched=("mps", "shard"))._replace(policy="auto")
    for users, said in (
        ("", ["pool 'g1': gres/mps is not used in partition 'all', 'gpu': mps_users"]),
        ("one", ["pool 'g1': mps_users is 'one' in partition 'all', 'gpu', whose nodes have several GPUs"]),
        ("each", []),
        ("all", ["pool 'g1': mps_users is 'all' in partition 'all', 'gpu': jobs of different users share"]),
    ):
        partitions = tuple(one._replace(mps_users=users) for one in vouched.partition)
        found_gaps = gaps(vouched._replace(partition=partitions))
        assert [gap[: len(start)] for gap, start in zip(found_gaps, said, strict=True)] == said
    unknown = gaps(found()._replace(policy="auto"))
    printed("site-check", *unknown)
    printed("site-check", *gaps(found(models={"h100": "H1000"})))
    config = found(models={"h100": H100})._replace(policy="auto")
    assert [what.partition(":")[0] for what in gaps(config)] == ["pool 'g1'", "pool 'g2'"]
    printed("site-check", *gaps(config._replace(policy="shadow", pool=())))
    assert gaps(config._replace(policy="off", pool=()))[0].startswith("tier 'report': ")
    newer = config._replace(slurm_release="99.11", pool=(), observe=config.observe._replace(agent=True))
    assert [what.partition(" is ")[0] for what in gaps(newer)][1:] == ["slurm_release", "observe.agent"]
    homes = config._replace(pool=(), paths=config.paths._replace(state="/shared/slurm_colloc"))
    assert [what.partition(" is ")[0] for what in gaps(homes)][1:] == ["paths.decisions"]
    assert len(gaps(homes._replace(paths=homes.paths._replace(decisions="/shared/decisions")))) == 1
    # Slices have a size of their own.
    sliced = config._replace(pool=(config.pool[2]._replace(gpu_mem_mib=None),))
    assert gaps(sliced) == []
    # What no tier but place needs is not asked for.
    for policy in ("off", "pack"):
        assert not [what for what in gaps(homes._replace(policy=policy)) if what.startswith("paths.decisions")]


def test_a_model_for_a_type_that_no_node_has_is_a_mistake(printed: Printed) -> None:
    with printed.raises("site-init", InputError, "gpu:h10;.* h100, "):
        found(models={"h10": H100})
