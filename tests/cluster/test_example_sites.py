# SPDX-License-Identifier: Apache-2.0
"""Each example site: all its files are rendered, a cluster boots with the fragments, and csub places a job on it."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_file import load_site
from slurm_colloc.site.fragments import devices, node_gres, shares
from tests.cluster.fixtures import CHECKOUT, RELEASE, install_checkout, new_lab
from tests.cluster.lab import Lab
from tests.cluster.nodes import NODES, NVIDIA_MAJOR
from tests.cluster.test_doctor import GIVEN_TWICE

pytestmark = pytest.mark.cluster

EXAMPLES = CHECKOUT / "site-configs"
# Nodes of the lab that stand in for a site's pools, one each.
STAND_INS = ("g1", "g2", "m1")
# What a job of each site's users asks for, and what it gets: it needs 2 GiB and a tenth of the SMs.
PLACED: dict[str, list[tuple[list[str], str]]] = {
    "a100-mig": [([], "gres/gpu:a100_1g.5gb=1")],
    "gh200": [([], "gres/gpu:gh200=1")],
    "h100-mig-mps": [(["-p", "gpu"], "gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb=1")],
    "h100-mps": [([], "gres/mps=")],
    "teaching-shard": [([], "gres/shard=2")],
    "user-mode": [([], "gres/shard=1")],
    "v100-a100-h100": [
        (["-p", "v100"], "gres/gpu:v100=1"),
        (["-p", "a100"], "gres/mps="),
        (["-p", "h100"], "gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb=1"),
    ],
}

# With an agent and without one: the lines differ by that alone.
CRON = ("h100-mps", "teaching-shard")
# What the doctor finds of the lab and not of a site: no cgroups, its tracked types, its few cores.
OF_THE_LAB = {"DOC013", "DOC030", "DOC031", "DOC032", "DOC088", *GIVEN_TWICE}


def test_every_example_is_booted_here() -> None:
    assert sorted(PLACED) == sorted(path.parent.name for path in EXAMPLES.glob("*/site.toml"))


@pytest.fixture(scope="module")
def center() -> Iterator[Lab]:
    """A lab with the project installed, to be configured anew for each site."""
    lab = new_lab()
    install_checkout(lab)
    yield lab
    lab.remove()


def _smaller(text: str, lab: Lab, name: str) -> str:
    """Return the example for the lab: its cluster, one small node for each pool, its folders; shadow becomes auto."""
    there = iter(STAND_INS)
    state = lab.root / f"state-{name}"
    changes: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
        (r'^nodes = ".*"', lambda _: f'nodes = "{next(there)}"'),
        (r'^cluster = ".*"', f'cluster = "{_cluster(lab)}"'),
        (r'^slurm_release = ".*"', f'slurm_release = "{RELEASE}"'),
        (r'^default_partition = ".*"', lambda found: f'{found[0]}\ndefault_mem = "DefMemPerCPU=100"'),
        (r"^cpus_per_node = .*", "cpus_per_node = 8"),
        (r"^mem_per_node_mib = .*", "mem_per_node_mib = 8000"),
        (r"^cpus_per_gpu = .*", "cpus_per_gpu = 1"),
        (r"^mem_per_gpu_mib = .*", "mem_per_gpu_mib = 500"),
        (r"^enforced = .*", "enforced = false"),
        (r'^state = ".*"', f'state = "{state}"'),
        (r'^decisions = ".*"', f'decisions = "{state}/decisions"'),
    ]
    for pattern, value in changes:
        text = re.sub(pattern, value, text, flags=re.MULTILINE)
    # The first is csub's own; those of partitions are slurmctld's.
    return re.sub(r'^policy = ".*"', 'policy = "auto"', text, count=1, flags=re.MULTILINE)


def _cluster(lab: Lab) -> str:
    match = re.search(r"^ClusterName=(\S+)", lab.slurm_conf.read_text(), re.MULTILINE)
    assert match
    return match[1]


def _slurm_conf(base: str, rendered: Path, config: SiteConfig) -> str:
    """Merge the fragments into slurm.conf, as ORDER.md says: words for lines that are there, by what they name."""
    nodes, partitions = (_told(rendered / f"slurm.conf.{name}") for name in ("nodes", "partitions"))
    lines = []
    for line in base.splitlines():
        key, _, value = line.partition(" ")[0].partition("=")
        if key == "NodeName":
            line = re.sub(r" Gres=\S+", "", line)
            lines.append(" ".join([line, *nodes.get(f"NodeName={value}", ())]))
        elif wanted := [words for words in nodes if key and words.startswith(f"{key}=")]:
            lines += wanted
        elif key != "PartitionName" or value == "all":
            lines.append(re.sub(" Default=YES", "", line))
    for partition in config.partition:
        members = ",".join(pool.nodes for pool in config.pool if partition.name in pool.partitions)
        words = " ".join(partitions[f"PartitionName={partition.name}"])
        default = " Default=YES" if partition.name == config.default_partition else ""
        lines.append(f"PartitionName={partition.name} Nodes={members}{default} {words}")
    return "\n".join(lines) + "\n"


def _told(path: Path) -> dict[str, list[str]]:
    """Return the words of each line of a fragment, by the first of them."""
    lines = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {first: words for first, *words in lines}


def _gres_conf(lab: Lab, rendered: str, config: SiteConfig) -> str:
    """Return the rendered gres.conf with made-up device files, also for the slices that a driver would be asked for."""
    lines = []
    for line in rendered.splitlines():
        if not line.startswith("NodeName="):
            continue
        pool = next(pool for pool in config.pool if line.startswith(f"NodeName={pool.nodes} "))
        files = _devices(lab.root / "dev" / pool.nodes, sum(gres.quantity for gres in devices(pool)))
        if "AutoDetect=nvml" in line:
            for gres in devices(pool):
                used, files = files[: gres.quantity], files[gres.quantity :]
                lines += [f"NodeName={pool.nodes} Name=gpu Type={gres.type} File={path}" for path in used]
        else:
            lines.append(line.replace("/dev/nvidia", f"{lab.root}/dev/{pool.nodes}/nvidia"))
    return "AutoDetect=off\n" + "\n".join(lines) + "\n"


def _devices(folder: Path, wanted: int) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for path in (folder / f"nvidia{number}" for number in range(wanted)):
        if not path.exists():
            try:
                os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, int(path.name[6:])))
            except PermissionError:
                pytest.skip("needs the right to make device files")
    return [folder / f"nvidia{number}" for number in range(wanted)]


@pytest.mark.parametrize("name", PLACED)
def test_a_cluster_of_this_shape(center: Lab, name: str) -> None:
    lab, site, out = center, center.root / f"site-{name}.toml", center.root / f"rendered-{name}"
    site.write_text(_smaller((EXAMPLES / name / "site.toml").read_text(), lab, name))
    site.chmod(0o644)
    config = load_site(str(site))
    if config.paths.state:
        for folder, mode in ((config.paths.state, 0o755), (config.store_folder, 0o700)):
            Path(folder).mkdir()
            Path(folder).chmod(mode)
        Path(config.paths.decisions).mkdir()
        Path(config.paths.decisions).chmod(0o1777)
    environment = {"COLLOC_CONF": str(site)}
    lab.run(["colloc", "site", "render", "-o", out], env=environment, check=True)
    _merge(lab, out, config)
    lab.up()
    try:
        lab.run(["scontrol", "delete", "partitionname=all"], check=True)  # the lab's own, which the site has not
        last = lab.run(["colloc", "site", "check"], env=environment).stdout.splitlines()[-1]
        assert last.startswith(f"'{site}' agrees")
        asked = lab.run(["colloc", "site", "doctor", "--format", "json"])
        assert {one["code"] for one in json.loads(asked.stdout)["findings"]} <= OF_THE_LAB, asked.stdout
        for partition, placed in PLACED[name]:
            job = _submit(lab, environment, partition)
            tres = lab.run(["sacct", "-a", "-X", "-n", "-P", "-j", job, "-o", "AllocTRES"]).stdout
            assert placed in tres, lab.run_as("bob", ["csub", "--dry-run", "--explain", *partition, "job.sh"]).stderr
        if name in CRON:
            _cron_lines_run(lab, out, agent=config.observe.agent)
    finally:
        lab.down()


def _cron_lines_run(lab: Lab, out: Path, *, agent: bool) -> None:
    """Each line of the rendered crontab does its work, in cron's poor environment; its log is the lab's."""
    lines = (out / "colloc.cron").read_text().replace("/var/log/slurm_colloc", f"{lab.root}/log").splitlines()
    variables = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))
    commands = [line.split(maxsplit=6)[6] for line in lines if " root " in line and not line.startswith("#")]
    assert [re.findall(r"colloc ([a-z]+)", command)[0] for command in commands] == [
        "ingest",
        *([] if agent else ["compact", "audit", "audit"]),
        "site",
        "report",
    ]
    assert variables["SLURM_CONF"] == str(lab.slurm_conf)
    for command in commands:
        argv = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), "/bin/sh", "-c", command]
        done = lab.run(argv, timeout=120)
        log = Path(command.split(">>")[1].split()[0]).read_text()
        # What it finds in a minute of one cluster, if it can judge anything, is another test's.
        assert done.returncode in ((0, 1, 3) if " audit " in command else (0,)), (command, log)
    assert "bob" in (lab.root / "log/report.html").read_text()


def _merge(lab: Lab, out: Path, config: SiteConfig) -> None:
    base = lab.root / "etc/slurm.conf.base"
    if not base.exists():
        base.write_text(lab.slurm_conf.read_text())
    names = {path.name for path in out.iterdir()}
    if config.paths.state:
        gres_conf = (out / "gres.conf").read_text()
    else:  # what the cluster's own administrator has made, of which the user's files say nothing
        assert names == {"colloc.crontab", "slurm_colloc.lua", "ORDER.md"}
        ((pool, gres),) = ((pool, node_gres((pool,))) for pool in config.pool)
        (out / "slurm.conf.nodes").write_text(f"GresTypes=gpu,shard\nNodeName={pool.nodes} Gres={gres}\n")
        (out / "slurm.conf.partitions").write_text("PartitionName=gpu MaxTime=1440\n")
        gres_conf = f"NodeName={pool.nodes} Name=gpu Type={pool.gpu_type} File=/dev/nvidia[0-3]\n"
        gres_conf += "".join(f"NodeName={pool.nodes} Name={one.name} Count={one.quantity}\n" for one in shares((pool,)))
    lab.slurm_conf.write_text(_slurm_conf(base.read_text(), out, config))
    (lab.root / "etc/gres.conf").write_text(_gres_conf(lab, gres_conf, config))


def _submit(lab: Lab, environment: dict[str, str], partition: list[str]) -> str:
    home = Path(lab.environment("bob")["HOME"])
    (home / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1 -t 5\nsleep 1\n")
    argv = ["csub", "--gpu-footprint=mem=2G,sm=1", *partition, "job.sh"]
    done = lab.run_as("bob", argv, env=environment, check=True)
    job = done.stdout.split()[-1]
    assert lab.wait_jobs([job])[int(job)] == "COMPLETED", done.stderr
    lab.wait_accounted([job])
    return job


def test_the_nodes_of_the_lab_are_enough() -> None:
    assert set(STAND_INS) < {node.name for node in NODES}
    for site in EXAMPLES.glob("*/site.toml"):
        assert len(load_site(str(site)).pool) <= len(STAND_INS)
