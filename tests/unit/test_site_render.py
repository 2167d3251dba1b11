# SPDX-License-Identifier: Apache-2.0
"""Rendered files: whole, unharmed by what stands in site.toml, and written into their folder and nowhere else."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.config import MigSlice, Partition, Pool, SiteConfig, load_site
from slurm_colloc.errors import ConfigError, InputError, StoreError
from slurm_colloc.site.folder import MANIFEST, write_folder
from slurm_colloc.site.fragments import billing_weights, gres_conf_lines, node_gres, partition_words
from slurm_colloc.site.installed import compare, differences
from slurm_colloc.site.places import places
from slurm_colloc.site.render import FILES, ORDER, Host, Needs, Rendered, render_site
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


def test_the_folder_of_a_release_is_listed_beside_the_link_to_it(tmp_path: Path) -> None:
    """After an upgrade by the link, removing the path of --prefix would leave the program where it is."""
    release, link = tmp_path / "slurm_colloc-0.2", tmp_path / "slurm_colloc"
    release.mkdir()
    listed = {place.path: place.what for place in places(example("user-mode"), HOST._replace(prefix=str(release)), ())}
    assert listed[str(release)] == "the program"
    link.symlink_to(release.name)
    listed = {place.path: place.what for place in places(example("user-mode"), HOST._replace(prefix=str(link)), ())}
    assert listed[str(link)] == "the link to the release in use"
    assert listed[str(release)] == "the program; earlier releases lie where you put them"


@pytest.mark.parametrize("name", ["h100-mig-mps", "user-mode"])
def test_the_whole_folder_is_as_it_was(name: str) -> None:
    """COLLOC_GOLDEN=1 writes them anew, to be read before they are committed."""
    rendered = texts(example(name))
    if os.environ.get("COLLOC_GOLDEN") == "1":
        write_folder(str(GOLDEN / name), rendered, force=True)
        (GOLDEN / name / MANIFEST).unlink()
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
    assert templates == {f"{file.name}.j2" for file in FILES} | {f"{ORDER}.j2"}
    configs = [load_site(str(site)) for site in SITES]
    assert [file.name for file in FILES if not any(file.wanted(config) for config in configs)] == []


def test_one_user_gets_nothing_that_needs_root() -> None:
    assert set(texts(example("user-mode"))) == {"colloc.crontab", "slurm_colloc.lua", ORDER}


def test_a_share_is_counted_over_the_nodes_gpus_and_a_slice_is_left_to_the_driver() -> None:
    assert node_gres((POOL,)) == "gpu:h100:4,mps:400"
    assert gres_conf_lines((POOL,)) == [
        ["AutoDetect=off", "Name=gpu", "Type=h100", "File=/dev/nvidia[0-3]"],
        ["Name=mps", "Count=400"],
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
    assert gres_conf_lines((POOL, other)) == [["AutoDetect=nvml"], ["Name=mps", "Count=600"]]


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
    partition = Partition(
        "gpu", "gpuqos", 8, 64000, "DefMemPerCPU=4000", 90.5, 2880, (), ("a", "b"), ("c",), ("q",), ("r",), ("g",)
    )
    assert " ".join(partition_words(partition)) == (
        "DefaultTime=90:30 MaxTime=2880 QOS=gpuqos DefCpuPerGPU=8 DefMemPerGPU=64000 DefMemPerCPU=4000 "
        "AllowAccounts=a,b DenyAccounts=c AllowQos=q DenyQos=r AllowGroups=g"
    )
    assert partition_words(Partition("gpu")) == []
    with pytest.raises(ConfigError, match="no DefMemPerCPU= or DefMemPerNode="):
        partition_words(Partition("gpu", default_mem="State=DOWN"))


def test_what_needs_a_drain_stands_before_what_names_its_tres() -> None:
    order = texts(example("h100-mig-mps"))[ORDER]
    assert order.index("## Drain") < order.index("## `scontrol reconfigure`")
    needs = {file.name: file.needs for file in FILES}
    assert needs["gres.conf"] == needs["slurm.conf.nodes"] == Needs.DRAIN
    assert needs["slurm.conf.partitions"] == Needs.RECONFIGURE


def test_another_site_file_and_slurm_conf_reach_those_who_need_them() -> None:
    rendered = texts(example("h100-mps"), Host("/opt/x", "/srv/site.toml", "/opt/slurm/etc/slurm.conf"))
    assert "\nCOLLOC_CONF=/srv/site.toml\nSLURM_CONF=/opt/slurm/etc/slurm.conf\n" in rendered["colloc.cron"]
    for name in ("colloc-agent.service", "colloc-seal.service", "colloc-compact.service"):
        assert "\nEnvironment=COLLOC_CONF=/srv/site.toml\n" in rendered[name]
    assert 'setenv("COLLOC_CONF", "/srv/site.toml")' in rendered["slurm_colloc.lua"]


def test_a_journal_elsewhere_is_written_to_and_not_made_by_systemd() -> None:
    config = example("h100-mps")
    moved = config._replace(paths=config.paths._replace(journal="/local/journal"))
    unit = texts(moved)["colloc-agent.service"]
    assert "\nReadWritePaths=/local/journal\n" in unit
    assert "StateDirectory" not in unit
    assert "-g colloc /local/journal   # on each GPU node\n" in texts(moved)[ORDER]


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
        config._replace(partition=(partition._replace(allow_groups=(word, "b") if word else ("",)),)),
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


def test_words_that_mean_more_than_a_name_are_none() -> None:
    config = example("h100-mps")
    with pytest.raises(ConfigError, match=r"partition .default.: .* more than a name"):
        texts(config._replace(partition=(config.partition[0]._replace(name="default"),)))
    assert (
        "PartitionName=all "
        in texts(config._replace(partition=(config.partition[0]._replace(name="all"),)))["slurm.conf.partitions"]
    )
    for word in ("DEFAULT", "all"):
        with pytest.raises(ConfigError, match="more than a name"):
            texts(config._replace(pool=(config.pool[0]._replace(nodes=f"a,{word}"),)))


def test_mps_and_shards_on_one_node_are_refused() -> None:
    config = example("h100-mps")
    with pytest.raises(ConfigError, match="keep one of them"):
        texts(config._replace(pool=(POOL._replace(shards_per_gpu=4),)))


def test_a_centers_own_template_comes_first_and_is_named_when_it_is_broken(tmp_path: Path) -> None:
    config = example("h100-mps")
    own = config._replace(paths=config.paths._replace(templates=str(tmp_path)))
    (tmp_path / "site").mkdir()
    (tmp_path / "site/colloc.logrotate.j2").write_text("# ours, {{ logs }}\n")
    assert texts(own)["colloc.logrotate"] == "# ours, /var/log/slurm_colloc\n"
    (tmp_path / "site/colloc.logrotate.j2").write_text("{{ nothing }}\n")
    with pytest.raises(ConfigError, match=r"template 'colloc\.logrotate\.j2' from .* does not render"):
        texts(own)


# --- the folder ---


def test_files_are_written_for_everybody_to_read_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        done = write_folder(str(tmp_path / "out"), {"a": "1\n", "b": "2\n"})
    finally:
        os.umask(before)
    assert done.written == ("a", "b")
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {
        "a": 0o644,
        "b": 0o644,
        MANIFEST: 0o644,
    }
    argv = ["sha256sum", "-c", MANIFEST]
    assert subprocess.run(argv, cwd=tmp_path / "out", capture_output=True, check=False).returncode == 0


def test_again_changes_what_changed_and_takes_away_what_is_no_more(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    write_folder(out, {"a": "1", "b": "2", "c": "3", "d": "4"})
    (tmp_path / "out/d").write_text("mine")
    done = write_folder(out, {"a": "1", "b": "22"})
    assert done == (("b",), ("a",), ("c",))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a", "b", "d", MANIFEST}


def test_a_file_that_is_not_ours_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(str(out), {"a": "1", "b": "2"})
    (out / "b").write_text("changed by hand")
    (out / "c").write_text("foreign")
    for name in ("b", "c"):
        kept = (out / name).read_text()
        with pytest.raises(InputError, match=f"{name}' is not as 'colloc site render' wrote it"):
            write_folder(str(out), {"a": "11", name: "new"})
        assert ((out / "a").read_text(), (out / name).read_text()) == ("1", kept)
    write_folder(str(out), {"a": "11", "c": "new"}, force=True)
    assert ((out / "a").read_text(), (out / "c").read_text()) == ("11", "new")


@pytest.mark.parametrize("what", ["link", "dangling", "folder", "fifo"])
def test_nothing_is_followed_out_of_the_folder(tmp_path: Path, what: str) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    write_folder(str(out), {"a": "1"})
    outside.write_text("secret")
    if what == "link":
        (out / "b").symlink_to(outside)
    elif what == "dangling":
        (out / "b").symlink_to(tmp_path / "absent")
    elif what == "folder":
        (out / "b").mkdir()
    else:
        os.mkfifo(out / "b")
    with pytest.raises(InputError, match=r"out/b' (cannot be replaced|is no regular file)"):
        write_folder(str(out), {"a": "2", "b": "2"}, force=True)
    assert ((out / "a").read_text(), outside.read_text()) == ("1", "secret")
    assert not (tmp_path / "absent").exists()


def test_a_hostile_manifest_names_nothing_outside(tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    write_folder(str(out), {"a": "1"})
    outside.write_text("x")
    (out / MANIFEST).write_text(f"{hashlib.sha256(b'x').hexdigest()}  ../outside\n")
    write_folder(str(out), {"a": "1"})
    assert outside.read_text() == "x"


def test_a_folder_that_is_a_link_or_open_to_all_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for end in ("", "/", "//", "/."):
        with pytest.raises(StoreError, match="is a link, which is not followed"):
            write_folder(f"{tmp_path}/link{end}", {"a": "1"})
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    with pytest.raises(StoreError, match="everybody may write into"):
        write_folder(str(tmp_path / "open"), {"a": "1"})
    with pytest.raises(StoreError, match="No such file"):
        write_folder(str(tmp_path / "absent/out"), {"a": "1"})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chown(tmp_path / "out", 4201, -1)
    with pytest.raises(StoreError, match="belongs to uid 4201"):
        write_folder(str(tmp_path / "out"), {"a": "1"})


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert write_folder(str(out), {"a": "1"}, dry_run=True).written == ("a",)
    assert not out.exists()
    write_folder(str(out), {"a": "1", "b": "1"})
    assert write_folder(str(out), {"a": "2"}, dry_run=True) == (("a",), (), ("b",))
    assert ((out / "a").read_text(), (out / "b").read_text()) == ("1", "1")


# --- what is installed ---

PART = "GresTypes=gpu,mps\nNodeName=n[1-3] Gres=gpu:h100:4,mps:400\nPartitionName=gpu MaxTime=60\n"


@pytest.mark.parametrize(
    ("installed", "lines"),
    [
        (
            "grestypes=gpu\nNodeName=n[1-2] CPUs=8 \\\n  Gres=mps:400,gpu:h100:4\n"
            "NodeName=n3 CPUs=8 Gres=gpu:h100:4 # no\n"
            "PartitionName=DEFAULT MaxTime=60\nPartitionName=gpu Nodes=ALL\n",
            ["GresTypes lacks mps", "NodeName=n3: Gres=gpu:h100:4,mps:400 is wanted, gpu:h100:4 is there"],
        ),
        (
            "GresTypes=mps,gpu,bandwidth\nNodeName=DEFAULT Gres=gpu:h100:4,mps:400\nNodeName=n[1-4]\n"
            "PartitionName=gpu MaxTime=90\n",
            ["PartitionName=gpu: MaxTime=60 is wanted, 90 is there"],
        ),
        (
            "Include gpus.conf\nGresTypes=gpu,mps\nPartitionName=gpu MaxTime=60\n",
            [
                "NodeName=n[1-3]: Gres=gpu:h100:4,mps:400 is wanted, nothing of it is there",
                "it includes other files, which are not looked into: what stands there counts as missing here",
            ],
        ),
    ],
)
def test_a_part_is_compared_by_meaning(installed: str, lines: list[str]) -> None:
    assert list(differences(PART, installed)) == lines


def test_a_second_line_of_shares_is_not_passed_over() -> None:
    part = "NodeName=n1 Name=mps Count=400\n"
    assert list(differences(part, part)) == []
    more = list(differences(part, f"NodeName=n1 Name=mps Count=200\n{part}"))
    assert more == ["NodeName=n1: mps=Count=400 is wanted, Count=200 and Count=400 is there"]


def test_device_files_may_be_written_in_any_way() -> None:
    part = "NodeName=n1 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia[0-1]\nNodeName=n1 Name=mps Count=200\n"
    one = "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia"
    assert list(differences(part, f"AutoDetect=off\n{one}0\n{one}1\nName=mps Count=200\n")) == []
    assert list(differences(part, f"AutoDetect=off\n{one}0\n")) == [
        "NodeName=n1: gpu:h100=File=/dev/nvidia[0-1] is wanted, File=/dev/nvidia0 is there",
        "NodeName=n1: mps=Count=200 is wanted, nothing of it is there",
    ]


@pytest.mark.parametrize(
    "ends", [(b"\n", b"\r\n"), (b"X\n", b"X"), (b"X\n", b"\x0cX\n")], ids=["CRLF", "none", "a page"]
)
def test_how_a_line_ends_is_a_difference(tmp_path: Path, ends: tuple[bytes, bytes]) -> None:
    """To cron a line that has no end is none, and a carriage return is part of a command."""
    text = "27 * * * * root X\n"
    (tmp_path / "cron").write_bytes(text.encode().replace(*ends))
    (found,) = compare([Rendered("cron", "/cron", "", Needs.NOTHING, False, text)], str(tmp_path))
    assert found.state == "differs"
    (tmp_path / "cron").write_text(text)
    (found,) = compare([Rendered("cron", "/cron", "", Needs.NOTHING, False, text)], str(tmp_path))
    assert found.state == "same"


def test_links_of_an_image_stay_in_the_image(tmp_path: Path) -> None:
    here, image = tmp_path / "shared", tmp_path / "image"
    (image / "etc").mkdir(parents=True)
    here.mkdir()
    (here / "cron").write_text("text\n")
    (image / "etc/cron").symlink_to(here / "cron")
    file = Rendered("cron", "/etc/cron", "", Needs.NOTHING, False, "text\n")
    assert [one.state for one in compare([file], str(image))] == ["missing"]
    inside = image / here.relative_to("/")
    inside.mkdir(parents=True)
    (inside / "cron").write_text("text\n")
    assert [one.state for one in compare([file], str(image))] == ["same"]
    (image / "etc/cron").unlink()
    (image / "etc/cron").symlink_to("../../../" + str(here.relative_to("/")) + "/cron")
    assert [one.state for one in compare([file], str(image))] == ["same"]
    (image / "etc/cron").unlink()
    (image / "etc/cron").symlink_to("cron")
    assert [one.state for one in compare([file], str(image))] == ["not readable"]


def test_what_cannot_be_read_is_said_and_not_taken_for_missing(tmp_path: Path) -> None:
    files = [
        Rendered(name, f"/etc/{name}", "", Needs.NOTHING, False, "1\n2\n") for name in ("same", "old", "none", "dir")
    ]
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "kept").write_text("1\n2\n")
    (etc / "same").symlink_to("/etc/kept")
    (etc / "old").write_text("1\n\x1b[2J\n")
    (etc / "dir").mkdir()
    same, old, none, unreadable = compare(files, str(tmp_path))
    assert (same.state, old.state, none.state, unreadable.state) == ("same", "differs", "missing", "not readable")
    assert old.lines[-2:] == ("-\x1b[2J", "+2")
    assert "cannot be read" in unreadable.lines[0] or "not a regular file" in unreadable.lines[0]


def test_the_command_writes_compares_and_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLLOC_CONF", str(CHECKOUT / "site-configs/teaching-shard/site.toml"))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    out, image = tmp_path / "out", tmp_path / "image"
    argv = ("site", "render", "--prefix", "/opt/slurm_colloc")
    assert colloc(*argv) == 2
    assert "-o FOLDER is missing" in capsys.readouterr().err
    assert colloc(*argv, "-o", str(out), "--dry-run") == 0
    assert "would write colloc.cron\n" in (planned := capsys.readouterr().out)
    assert "would write gres.conf; to apply it: drain first\n" in planned
    assert not out.exists()
    assert colloc(*argv, "-o", str(out)) == 0
    said = capsys.readouterr()
    assert "wrote slurm.conf.partitions; to apply it: scontrol reconfigure\n" in said.out
    assert "nothing is installed yet; read" in said.err
    files = {file.name: file for file in render_site(load_site(os.environ["COLLOC_CONF"]), HOST)}
    for file in files.values():
        if file.installed:
            (image / file.installed.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            with open(image / file.installed.lstrip("/"), "a") as stream:
                stream.write((out / file.name).read_text())
    assert colloc(*argv, "--diff", "--root", str(image)) == 0, capsys.readouterr().out
    (image / "etc/cron.d/colloc").write_text("# \x1b[2J\n")
    (image / "etc/logrotate.d/colloc").unlink()
    capsys.readouterr()
    assert colloc(*argv, "--diff", "--root", str(image)) == 1
    told = capsys.readouterr().out
    assert f"colloc.cron: differs, {image}/etc/cron.d/colloc" in told
    assert f"colloc.logrotate: missing, {image}/etc/logrotate.d/colloc" in told
    assert "gres.conf: same" in told
    assert "\x1b" not in told
    assert colloc(*argv, "--list-written") == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line for line in listed if line.startswith("/opt/slurm_colloc\t")]
    assert {"/shared/slurm_colloc/store", "/var/log/slurm_colloc"} <= {line.split("\t")[0] for line in listed}


def test_a_users_comparison_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLLOC_CONF", str(CHECKOUT / "site-configs/user-mode/site.toml"))
    assert colloc("site", "render", "--diff", "--root", str(tmp_path)) == 1
    said = capsys.readouterr()
    assert "slurm_colloc.lua: missing" in said.out
    assert said.err == "colloc: note: colloc.crontab is not compared: see 'crontab -l'\n"


@pytest.mark.parametrize("site", SITES, ids=lambda path: path.parent.name)
def test_every_installed_path_is_among_those_to_be_removed(site: Path) -> None:
    config = load_site(str(site))
    files = render_site(config, HOST)
    listed = {place.path for place in places(config, HOST, files)}
    assert {file.installed for file in files if file.installed} <= listed
    paths = {path for path in (config.paths.decisions, config.paths.journal) if path}
    assert paths <= listed
