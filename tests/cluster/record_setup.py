# SPDX-License-Identifier: Apache-2.0
"""What says how a cluster is set up, kept for the tests of 'colloc site doctor'."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from slurm_colloc.slurm import setup
from slurm_colloc.slurm.job_visibility import rights_questions
from slurm_colloc.slurm.limits import caps_questions
from tests.cluster import broken, cgroups
from tests.cluster.config import cluster_name
from tests.cluster.lab import Lab
from tests.cluster.releases import HOST

# As CliClient asks.
PARTITIONS = ("scontrol", "-a", "show", "partition", "-o")
# Who shares a node with nobody, in words that every release takes: the last since 24.05.
EXCLUSIVE = (
    "PartitionName=whole Nodes=g1 OverSubscribe=EXCLUSIVE",
    "PartitionName=single Nodes=g1 ExclusiveUser=YES",
    "PartitionName=both Nodes=g1 OverSubscribe=EXCLUSIVE ExclusiveUser=YES",
    "PartitionName=block Nodes=g1 ExclusiveTopo=YES",
)


def record_setup(release: str, recorded: Path, say: Callable[[str], None]) -> None:
    """Keep what is asked of a lab that is set up wrong, and the configuration of one with cgroups."""
    folder = recorded / f"slurm-{release}/setup"
    folder.mkdir(exist_ok=True)
    lab = broken.shared_wrongly(release)
    with lab:
        broken.limit(lab)
        broken.queue_up(lab)
        broken.wait_for_backfill(lab)
        _keep(lab, folder / "queue.txt", setup.QUEUE, say)
        broken.lose_a_slice(lab)
        questions = {
            "config.txt": setup.CONFIG,
            "node.txt": ("scontrol", "-a", "show", "node", "-o"),
            "partition.txt": PARTITIONS,
        }
        for name, question in questions.items():
            _keep(lab, folder / name, question, say)
        (folder / "gres.conf").write_text(_anonymous(lab, (lab.root / "etc/gres.conf").read_text()))
        (folder / "prolog.sh").write_text(_anonymous(lab, (lab.root / "etc/prolog.sh").read_text()))
    lab.remove()
    _record_asked_by_a_user(release, recorded, say)
    version = next((version for version in ("v1", "v2") if not cgroups.missing(version)), None)
    if version is None:
        say("no cgroups here: cgroup-config.txt is left as it is")
        return
    with cgroups.swept():
        lab = cgroups.new_lab(release, version)
        with lab:
            _keep(lab, folder / "cgroup-config.txt", setup.CONFIG, say)
    lab.remove()


def _record_asked_by_a_user(release: str, recorded: Path, say: Callable[[str], None]) -> None:
    """Keep partitions that are exclusive, and limits as one sees them who is no administrator."""
    lines = EXCLUSIVE[:-1] if release == HOST.name else EXCLUSIVE
    lab = Lab.create(release=release, extra_slurm_conf="\n".join(lines))
    with lab:
        for argv in (
            ["add", "qos", "capped", "set", "MaxTRESPerUser=gres/gpu=4", "MaxWall=1-0"],
            ["modify", "account", "phys", "set", "GrpTRES=gres/gpu=8,gres/shard=4"],
            ["modify", "user", "alice", "set", "MaxTRESMins=gres/gpu=600"],
        ):
            lab.run(["sacctmgr", "-i", *argv], check=True)
        folder = recorded / f"slurm-{release}"
        (folder / "sacctmgr").mkdir(exist_ok=True)
        of_qos, of_associations = caps_questions(cluster_name(lab.ports.numbers))
        for name, question in (
            ("setup/exclusive.txt", PARTITIONS),
            ("sacctmgr/qos.txt", of_qos),
            ("sacctmgr/association.txt", of_associations),
        ):
            _keep(lab, folder / name, question, say, "carol")
        for argv in (["add", "account", "subacct", "parent=ml"], ["add", "coordinator", "account=ml", "names=bob"]):
            lab.run(["sacctmgr", "-i", *argv], check=True)
        for name, question in zip(("config", "user"), rights_questions("bob"), strict=True):
            _keep(lab, folder / f"sacctmgr/{name}.txt", question, say, "bob")
    lab.remove()


def _keep(lab: Lab, path: Path, question: tuple[str, ...], say: Callable[[str], None], user: str = "") -> None:
    ask = partial(lab.run_as, user) if user else lab.run
    path.write_text(_anonymous(lab, ask(question, env=setup.ENVIRONMENT, check=True).stdout))
    say(f"{path}")


def _anonymous(lab: Lab, text: str) -> str:
    return text.replace(str(lab.root), "/lab").replace(cluster_name(lab.ports.numbers), "lab")
