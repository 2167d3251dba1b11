# SPDX-License-Identifier: Apache-2.0
"""Rendered files: whole, unharmed by what stands in site.toml, and written into their folder and nowhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.config import MigSlice, Partition, Pool, SiteConfig
from slurm_colloc.core.config_file import load_site
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.site.fragments import billing_weights, gres_conf_lines, node_gres, partition_words
from slurm_colloc.site.render import FILES, ORDER, Host, Kind, Needs, render_site, write_folder
from tests.unit.golden import Printed
from tests.unit.programs import colloc

CHECKOUT = Path(__file__).resolve().parents[2]
SITES = sorted((CHECKOUT / "site-configs").glob("*/site.toml"))
HOST = Host("/opt/slurm_colloc")
GOLDEN = CHECKOUT / "tests/golden/site"
SLICES = (MigSlice("a100_1g.5gb", "1g.5gb", 4864, 14, 7), MigSlice("a100_3g.20gb", "3g.20gb", 19968, 42, 2))
POOL = Pool("p", "n[1-2]", ("gpu",), "h100", "NVIDIA H100 80GB HBM3", 4, 81559, 132, mps_per_gpu=100)


def example(name: str) -> SiteConfig:
    return load_site(str(CHECKOUT / "site-configs" / name / "site.toml"))


def texts(config: SiteConfig, host: Host = HOST) -> dict[str, str]:
    return {file.name: file.text for file in render_site(config, host)}


# --- what is rendered ---


@pytest.mark.parametrize("name", ["h100-mig-mps", "user-mode"])
def test_the_whole_folder_is_as_it_was(name: str) -> None:
    """COLLOC_GOLDEN=write writes them anew, to be read before they are committed."""
    # What is no template is compared elsewhere.
    plain = {file.name for file in FILES if file.kind == Kind.VERBATIM}
    rendered = {name: text for name, text in texts(example(name)).items() if name not in plain}
    if os.environ.get("COLLOC_GOLDEN") == "write":
        write_folder(str(GOLDEN / name), rendered, (file.name for file in FILES))
    assert rendered == {path.name: path.read_text() for path in (GOLDEN / name).iterdir()}


@pytest.mark.parametrize("site", SITES, ids=lambda path: path.parent.name)
def test_every_example_renders_and_says_what_it_is(site: Path) -> None:
    rendered = texts(load_site(str(site)))
    assert ORDER in rendered
    for name in rendered.keys() - {ORDER}:
        assert name in rendered[ORDER]
    readme = " ".join((site.parent / "README.md").read_text().split())
    assert "An example, not" in readme
    assert "made up here" in readme


def test_each_line_of_the_table_has_its_template_and_is_wanted_by_some_example() -> None:
    templates = {path.name for path in (CHECKOUT / "templates/site").iterdir()}
    assert templates == {f"{file.name}.j2" for file in FILES if file.kind in (Kind.WHOLE, Kind.PART)} | {f"{ORDER}.j2"}
    configs = [load_site(str(site)) for site in SITES]
    assert [file.name for file in FILES if not any(file.wanted(config) for config in configs)] == []


@pytest.mark.parametrize(
    ("daemon", "ours"),
    [
        ("none", set()),
        ("site", set()),
        ("prolog", {"colloc-mps", "prolog.50-colloc", "epilog.50-colloc", "task_prolog"}),
    ],
)
def test_who_runs_the_mps_daemons_decides_what_root_runs(daemon: str, ours: set[str], printed: Printed) -> None:
    config = example("h100-mps")
    config = config._replace(sharing=config.sharing._replace(mps_daemon=daemon))
    rendered = {file.name: file for file in render_site(config, HOST)}
    scripts = {name for name, file in rendered.items() if file.text.startswith("#!")}
    assert scripts == ours
    for name in scripts:
        assert f" {name} " in rendered[ORDER].text  # with the command that installs it
        assert "/opt/slurm_colloc" not in rendered[name].text  # root runs nothing of the prefix
    if ours:
        assert rendered["colloc-mps"].text == (CHECKOUT / "slurm_colloc/plugin/colloc-mps").read_text()
        assert rendered["colloc-mps"].installed == "/usr/libexec/slurm_colloc/colloc-mps"
        # What slurm.conf names is looked for on every node (tests/cluster/test_mps_daemon.py).
        printed("site-render", *{rendered[name].hosts for name in scripts})
    assert ("slurm.conf.calls" in rendered) is (daemon == "prolog")
    assert (
        daemon != "prolog" or "TaskProlog=/usr/libexec/slurm_colloc/task_prolog\n" in rendered["slurm.conf.calls"].text
    )


def test_root_is_told_whom_a_daemon_serves_in_which_partitions() -> None:
    config = example("h100-mig-mps")

    def prolog(**users: str) -> str:
        partitions = tuple(item._replace(mps_users=users.get(item.name, "each")) for item in config.partition)
        return texts(config._replace(partition=partitions))["prolog.50-colloc"].splitlines()[-2]

    call = "timeout -k 2 15 /usr/libexec/slurm_colloc/colloc-mps"
    assert prolog() == f"{call} --each=batch,gpu start", "mig has no gres/mps"
    assert prolog(batch="all") == f"{call} --each=gpu --all=batch start"
    assert prolog(batch="one", gpu="one") == f"{call} start"
    assert prolog(batch="", gpu="one") == f"{call} start"


def test_the_scripts_end_well_where_the_program_is_missing(tmp_path: Path) -> None:
    rendered = texts(example("h100-mps"))
    for name in ("prolog.50-colloc", "epilog.50-colloc", "task_prolog"):
        script = tmp_path / name
        script.write_text(rendered[name].replace("/usr/libexec/slurm_colloc", str(tmp_path / "none")))
        assert subprocess.run(["sh", script], capture_output=True, check=False).returncode == 0


def test_a_share_is_counted_over_the_nodes_gpus_and_a_slice_is_left_to_the_driver() -> None:
    assert node_gres((POOL,)) == "gpu:h100:4,mps:400"
    assert gres_conf_lines((POOL,)) == [
        ["AutoDetect=off", "Name=gpu", "Type=h100", "File=/dev/nvidia[0-3]"],
        ["Name=mps", "Count=400", "Flags=all_sharing"],
    ]
    one = POOL._replace(gpus_per_node=1, mps_per_gpu=0)
    assert gres_conf_lines((one,)) == [["AutoDetect=off", "Name=gpu", "Type=h100", "File=/dev/nvidia0"]]
    cut = Pool("p", "n1", ("gpu",), gpu_model="NVIDIA A100-SXM4-40GB", slice=SLICES)
    assert node_gres((cut,)) == "gpu:a100_1g.5gb:7,gpu:a100_3g.20gb:2"
    assert gres_conf_lines((cut,)) == [["AutoDetect=nvml"]]


def test_a_node_with_two_cards_has_one_line_and_no_device_file_twice() -> None:
    other = POOL._replace(name="q", nodes="n[2-3]", gpu_type="a100", gpu_model="", gpus_per_node=2)
    rendered = texts(example("h100-mig-mps")._replace(pool=(POOL, other)))
    lines = {
        line.split()[0]: line.split()[1]
        for line in rendered["slurm.conf.nodes"].splitlines()
        if line.startswith("NodeName=")
    }
    assert lines == {
        "NodeName=n1": "Gres=gpu:h100:4,mps:400",
        "NodeName=n2": "Gres=gpu:h100:4,gpu:a100:2,mps:600",
        "NodeName=n3": "Gres=gpu:a100:2,mps:200",
    }
    assert gres_conf_lines((POOL, other)) == [["AutoDetect=nvml"], ["Name=mps", "Count=600", "Flags=all_sharing"]]


def test_shares_of_one_card_of_two_are_not_spread_over_both() -> None:
    other = POOL._replace(name="q", gpu_type="a100", gpu_model="", gpus_per_node=2, mps_per_gpu=0)
    rendered = texts(example("h100-mig-mps")._replace(pool=(POOL, other)))
    assert "NodeName=n[1-2] Gres=gpu:h100:4,gpu:a100:2,mps:400\n" in rendered["slurm.conf.nodes"]
    told = [line for line in rendered["gres.conf"].splitlines() if line.startswith("NodeName=")]
    assert told == ["NodeName=n[1-2] AutoDetect=nvml"]
    assert "\n#   NodeName=n[1-2] Name=mps Count=... File=/dev/nvidia...\n" in rendered["gres.conf"]


@pytest.mark.parametrize(
    "others",
    [
        {"gpu_type": "h100"},
        {"gpu_type": "a100", "mps_per_gpu": 0, "shards_per_gpu": 4},
        {"gpu_type": "a100:2,gpu:b"},
        {"gpu_type": "a=b"},
    ],
    ids=["the same type twice", "mps and shards", "two words", "a key"],
)
def test_cards_of_one_node_that_cannot_be_told_apart_are_refused(others: dict[str, Any]) -> None:
    config = example("h100-mig-mps")._replace(pool=(POOL, POOL._replace(name="q", **others)))
    with pytest.raises(ConfigError, match="'q'"):
        texts(config)


def test_gpus_without_a_type_are_there_all_the_same() -> None:
    """As 'colloc site init' writes them where gres.conf gives none: the rendered Gres= takes the place of theirs."""
    pool = POOL._replace(gpu_type="", gpu_model="")
    config = example("h100-mig-mps")._replace(pool=(pool,))
    assert node_gres((pool,)) == "gpu:4,mps:400"
    assert gres_conf_lines((pool,))[0] == ["AutoDetect=off", "Name=gpu", "File=/dev/nvidia[0-3]"]
    assert billing_weights(config, Partition("gpu")) == "GRES/gpu=1,GRES/mps=0.01"
    assert "AccountingStorageTRES=gres/gpu,gres/mps\n" in texts(config)["slurm.conf.nodes"]


def test_a_piece_bills_its_part_of_a_gpu_and_the_coarser_cut_of_two() -> None:
    cut = Pool("q", "n3", ("gpu",), gpu_model="NVIDIA A100-SXM4-40GB", slice=SLICES)
    coarse = POOL._replace(name="r", nodes="n4", mps_per_gpu=50)
    config = SiteConfig(1, "c", "22.05", pool=(POOL, cut, coarse))
    weights = "GRES/gpu:h100=1,GRES/mps=0.02,GRES/gpu:a100_1g.5gb=0.1429,GRES/gpu:a100_3g.20gb=0.4286"
    assert billing_weights(config, Partition("gpu")) == weights
    assert billing_weights(config, Partition("cpu")) == ""


def test_a_partition_in_the_words_of_slurm_conf() -> None:
    restrictions = ("AllowAccounts=a,b", "AllowGroups=g", "MaxNodes=0")
    partition = Partition("gpu", "gpuqos", 8, 64000, "DefMemPerCPU=4000", 90.5, 2880, (), restrictions)
    assert " ".join(partition_words(partition)) == (
        "DefaultTime=91 MaxTime=2880 QOS=gpuqos DefCpuPerGPU=8 DefMemPerGPU=64000 DefMemPerCPU=4000 "
        "AllowAccounts=a,b AllowGroups=g MaxNodes=0"
    )
    assert partition_words(Partition("gpu")) == []
    with pytest.raises(ConfigError, match="no DefMemPerCPU= or DefMemPerNode="):
        partition_words(Partition("gpu", default_mem="State=DOWN"))


@pytest.mark.parametrize(("value", "said"), [(0.001, "1"), (0.5, "1"), (1.0, "1"), (60.01, "61"), (0.0, "0")])
def test_a_time_limit_is_whole_minutes_and_never_rounded_to_none(value: float, said: str) -> None:
    """MaxTime=0 keeps every job waiting, and of 0:30 Slurm makes a minute itself: 22.05 to 26.05, seen."""
    assert partition_words(Partition("gpu", max_time_min=value)) == [f"MaxTime={said}"]


def test_without_an_agent_cron_does_what_timers_would() -> None:
    config = example("h100-mig-mps")
    cron = texts(config._replace(observe=config.observe._replace(agent=False)))["colloc.cron"]
    assert "\n47 5 * * * root /opt/slurm_colloc/bin/colloc audit run --notify --about others --wait 30m >>" in cron
    assert "\n12,42 * * * * root /opt/slurm_colloc/bin/colloc audit run --notify --about jobs --wait 20m >>" in cron
    assert "compact" in cron
    assert "audit run" not in texts(config)["colloc.cron"]


def test_what_needs_a_drain_stands_before_what_names_its_tres() -> None:
    order = texts(example("h100-mig-mps"))[ORDER]
    assert order.index("## Drain") < order.index("## Last: `scontrol reconfigure`")
    needs = {file.name: file.needs for file in FILES}
    assert needs["gres.conf"] == needs["slurm.conf.nodes"] == Needs.DRAIN
    assert needs["slurm.conf.partitions"] == Needs.RECONFIGURE


def test_another_site_file_and_slurm_conf_reach_those_who_need_them() -> None:
    rendered = texts(example("h100-mps"), Host("/opt/x", "/srv/site.toml", "/opt/slurm/etc/slurm.conf"))
    assert "\nCOLLOC_CONF=/srv/site.toml\nSLURM_CONF=/opt/slurm/etc/slurm.conf\n" in rendered["colloc.cron"]
    for name in ("colloc-agent.service", "colloc-flush.service", "colloc-compact.service", "colloc-audit-jobs.service"):
        assert "\nEnvironment=COLLOC_CONF=/srv/site.toml\n" in rendered[name]
    assert 'setenv("COLLOC_CONF", "/srv/site.toml")' in rendered["slurm_colloc.lua"]


@pytest.mark.parametrize("site_file", ["", "/srv/site.toml"])
def test_each_command_of_ours_in_the_order_names_another_site_file(site_file: str) -> None:
    config = example("h100-mps")
    judged = (config.partition[0]._replace(job_submit="shadow"), *config.partition[1:])
    order = texts(config._replace(partition=judged), Host("/opt/x", *([site_file] if site_file else [])))["ORDER.md"]
    named = "COLLOC_CONF=/srv/site.toml " if site_file else ""
    for command in ("site check", "site render", "ingest", "policy table"):
        assert re.search(rf"(`|^|&& ){named}/opt/x/bin/colloc {command}", order, re.MULTILINE), command
    assert ("COLLOC_CONF" in order) == bool(site_file)


def test_a_journal_elsewhere_is_written_to_and_not_made_by_systemd(printed: Printed) -> None:
    config = example("h100-mps")
    moved = config._replace(paths=config.paths._replace(journal="/local/journal"))
    unit = texts(moved)["colloc-agent.service"]
    assert "\nReadWritePaths=/local/journal\n" in unit
    assert "StateDirectory" not in unit
    printed("site-render", *(line for line in texts(moved)[ORDER].splitlines() if "/local/journal" in line))


def test_a_pool_that_has_no_gres_yet_asks_for_none() -> None:
    config = example("h100-mps")
    bare = config._replace(pool=(Pool("bare", "n1", ("h100",)),), partition=(Partition("h100"),))
    lines = [line for line in texts(bare)["slurm.conf.nodes"].splitlines() if not line.startswith("#")]
    assert lines == []
    assert "\nPartitionName=h100\n" in texts(bare)["slurm.conf.partitions"]


# --- what a hostile site.toml can do ---


HOSTILE = [
    "gpu\nPartitionName=all AllowGroups=everybody",
    "gpu MaxTime=INFINITE",
    "gpu\\",
    "gpu#",
    'gpu"',
    "gpu%x",
    "gpu\u2028x",
    "gpü",
    "$(id)",
    "`id`",
    "a;b",
    "",
]


@pytest.mark.parametrize("word", HOSTILE)
def test_no_word_becomes_a_line_or_a_key_of_its_own(word: str) -> None:
    config = example("h100-mps")
    partition, pool, paths = config.partition[0], config.pool[0], config.paths
    changed = [
        config._replace(partition=(partition._replace(name=word),)),
        config._replace(partition=(partition._replace(restrictions=(f"AllowGroups={word}",)),)),
        config._replace(pool=(pool._replace(nodes=word),)),
        config._replace(cluster=word),
    ]
    if word:
        changed += [
            config._replace(partition=(partition._replace(qos=word),)),
            config._replace(pool=(pool._replace(gpu_type=word),)),
            config._replace(paths=paths._replace(state=f"/shared/{word}")),
            config._replace(paths=paths._replace(decisions=f"/shared/{word}")),
            config._replace(paths=paths._replace(journal=f"/shared/{word}")),
        ]
    for site in changed:
        with pytest.raises(ConfigError):
            texts(site)
    for host in (Host(f"/opt/{word or '..'}"), Host("/opt/x", f"/srv/{word or '..'}"), Host("/x", "/y", f"/z/{word}/")):
        with pytest.raises(ConfigError):
            texts(config, host)


@pytest.mark.parametrize("word", [word for word in HOSTILE if word])
def test_what_people_call_a_pool_stays_in_its_comment(word: str) -> None:
    config = example("h100-mps")
    named = texts(config._replace(pool=(config.pool[0]._replace(name=word),)))
    plain = texts(config)
    for name, text in named.items():
        assert len(text.splitlines()) == len(plain[name].splitlines())
        assert [line for line in text.splitlines() if line[:1] != "#"] == [
            line for line in plain[name].splitlines() if line[:1] != "#"
        ]
        assert not any(line.startswith("#") and line.endswith("\\") for line in text.splitlines())


@pytest.mark.parametrize("path", ["relative", "/a/../etc", "/a//b", "/a/", "/"])
def test_a_path_is_one_path(path: str) -> None:
    config = example("h100-mps")
    with pytest.raises(ConfigError, match=r"paths\.decisions is"):
        texts(config._replace(paths=config.paths._replace(decisions=path)))
    with pytest.raises(ConfigError, match="--prefix is"):
        texts(config, Host(path))


def test_words_that_mean_more_than_a_name_are_none(printed: Printed) -> None:
    config = example("h100-mps")
    with printed.raises("site-render", ConfigError, "'default'"):
        texts(config._replace(partition=(config.partition[0]._replace(name="default"),)))
    assert (
        "PartitionName=all "
        in texts(config._replace(partition=(config.partition[0]._replace(name="all"),)))["slurm.conf.partitions"]
    )
    for word in ("DEFAULT", "all"):
        with pytest.raises(ConfigError, match=f"'{word}'"):
            texts(config._replace(pool=(config.pool[0]._replace(nodes=f"a,{word}"),)))


def test_a_centers_own_template_comes_first_and_is_named_when_it_is_broken(tmp_path: Path, printed: Printed) -> None:
    config = example("h100-mps")
    own = config._replace(paths=config.paths._replace(templates=str(tmp_path)))
    (tmp_path / "site").mkdir()
    (tmp_path / "site/colloc.logrotate.j2").write_text("# ours, {{ logs }}\n")
    assert texts(own)["colloc.logrotate"] == "# ours, /var/log/slurm_colloc\n"
    (tmp_path / "site/colloc.logrotate.j2").write_text("{{ nothing }}\n")
    with printed.raises("site-render", ConfigError, r"colloc\.logrotate\.j2"):
        texts(own)


# --- the command ---


def test_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], printed: Printed
) -> None:
    monkeypatch.setenv("COLLOC_CONF", str(CHECKOUT / "site-configs/teaching-shard/site.toml"))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    out = tmp_path / "out"
    argv = ("site", "render", "--prefix", "/opt/slurm_colloc")
    assert colloc(*argv) == 2
    assert "'--output'" in capsys.readouterr().err
    assert colloc(*argv, "-o", str(out)) == 0
    said = capsys.readouterr()
    printed("site-render", said.out, said.err)


def test_what_only_the_earlier_site_file_needed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prolog scripts stay on the nodes."""
    text = (CHECKOUT / "site-configs/h100-mps/site.toml").read_text()
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    argv = ("site", "render", "-o", str(tmp_path / "out"))
    (tmp_path / "site.toml").write_text(text)
    assert colloc(*argv) == 0
    assert "wrote prolog.50-colloc" in colloc.out
    (tmp_path / "site.toml").write_text(text.replace('mps_daemon = "prolog"', 'mps_daemon = "none"'))
    assert colloc(*argv) == 0
    assert "removed prolog.50-colloc: " in colloc.out
    assert "wrote colloc.cron" not in colloc.out


def test_files_keep_the_link_that_the_command_was_called_through(tmp_path: Path) -> None:
    """An upgrade turns the link: units and cron lines that name the release behind it would end with that."""
    environment = os.environ | {"COLLOC_CONF": str(CHECKOUT / "site-configs/teaching-shard/site.toml")}
    link, other = tmp_path / "current", tmp_path / "other/bin"
    link.symlink_to(sys.prefix)
    other.mkdir(parents=True)
    (other / "colloc").symlink_to(Path(sys.prefix) / "bin/colloc")
    for called, prefix in ((link / "bin", link), (other, Path(sys.prefix))):
        argv: list[str | Path] = [called / "colloc", "site", "render", "-o", tmp_path / "out"]
        subprocess.run(argv, env=environment, capture_output=True, check=True)
        assert f" {prefix}/bin/colloc site render`" in (tmp_path / "out/ORDER.md").read_text()
