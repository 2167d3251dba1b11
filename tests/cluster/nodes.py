# SPDX-License-Identifier: Apache-2.0
"""The four nodes of the lab: what Slurm is told of them, and what a GPU reader would find on them."""

from __future__ import annotations

import json
import os
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.errors import LabError

CPUS = 8
MEM_MB = 8000
MODEL = "NVIDIA H100 80GB HBM3"
MEM_TOTAL_MIB = 81559
SM_COUNT = 132
MIG_TYPE_PREFIX = "nvidia_h100_80gb_hbm3_"

# Always there, also in a container without CAP_MKNOD. Slurm only wants character devices; it never opens them.
STAND_INS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
NVIDIA_MAJOR = 195


@dataclass(frozen=True)
class Slice:
    """One MIG slice; its memory is what `nvidia-smi` shows for the instance, below the nominal size."""

    profile: str
    mem_total_mib: int
    sm_count: int
    gi_id: int


@dataclass(frozen=True)
class Node:
    name: str
    gpus: int = 0
    slices: tuple[Slice, ...] = ()
    shared: str = ""

    @property
    def gpu_types(self) -> list[str]:
        """Return the Slurm type of each gres device, in Slurm's index order."""
        return [MIG_TYPE_PREFIX + s.profile for s in self.slices] or ["h100"] * self.gpus

    @property
    def gres(self) -> str:
        """Return the node's Gres= value in slurm.conf."""
        types = self.gpu_types
        counts = [f"gpu:{t}:{types.count(t)}" for t in dict.fromkeys(types)]
        return ",".join(counts + ([self.shared] if self.shared else []))


# mps and shard never on one node: 22.05.8 then loses the exclusion between gpu and mps on a device.
# A slice's gi_id follows its place: 3g in the upper half of memory, 2g at 0, the two 1g at 2 and 3.
# Types ascend by name, so that Slurm's index is the same whether it keeps gres.conf's order or sorts by type.
NODES = (
    Node("g1", gpus=2, shared="mps:200"),
    Node("g2", gpus=2, shared="shard:8"),
    Node(
        "m1",
        gpus=1,
        slices=(
            Slice("1g.10gb", 9984, 16, 9),
            Slice("1g.10gb", 9984, 16, 10),
            Slice("2g.20gb", 20090, 32, 3),
            Slice("3g.40gb", 40448, 60, 2),
        ),
    ),
    Node("c1"),
)

PARTITIONS = {"all": "ALL", "gpu": "g[1-2]", "mig": "m1", "cpu": "c1"}


def tracked_tres() -> list[str]:
    """Return what AccountingStorageTRES must name: each shared gres, and each gpu type beside plain gres/gpu."""
    types = dict.fromkeys(t for node in NODES for t in node.gpu_types)
    return ["gres/gpu", "gres/mps", "gres/shard", *(f"gres/gpu:{t}" for t in types)]


def make_devices(folder: Path) -> dict[str, list[Path]]:
    """Make one character device for each GPU or slice under folder; node -> device files.

    Plain files would not do: Slurm then leaves CUDA_VISIBLE_DEVICES unset.
    """
    devices: dict[str, list[Path]] = {}
    for node in NODES:
        wanted = len(node.gpu_types)
        if not wanted:
            continue
        (folder / node.name).mkdir(parents=True)
        made = [folder / node.name / f"nvidia{n}" for n in range(wanted)]
        try:
            for n, path in enumerate(made):
                os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, n))
        except PermissionError:
            made = _stand_ins(wanted)
        devices[node.name] = made
    return devices


def _stand_ins(wanted: int) -> list[Path]:
    there = [Path(p) for p in STAND_INS if Path(p).is_char_device()]
    if len(there) < wanted:
        raise LabError(f"cannot make device files here and found only {len(there)} of {', '.join(STAND_INS)}")
    return there[:wanted]


def describe(node: Node) -> dict[str, Any]:
    """Return the node's simulated devices; slices stand in the order of Slurm's indices."""
    return {"node": node.name, "devices": [_device(node, index) for index in range(node.gpus)]}


def _device(node: Node, index: int) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{_uuid(node.name, index)}",
        "index": index,
        "model": MODEL,
        "mem_total_mib": MEM_TOTAL_MIB,
        "sm_count": SM_COUNT,
        "slices": [
            {
                "uuid": f"MIG-{_uuid(node.name, index, n)}",
                "profile": s.profile,
                "mem_total_mib": s.mem_total_mib,
                "sm_count": s.sm_count,
                "gi_id": s.gi_id,
            }
            for n, s in enumerate(node.slices)
        ],
    }


def _uuid(*parts: object) -> str:
    """Return the same UUID for the same device in every lab, so that recordings and golden files stay comparable."""
    name = "/".join(["slurm_colloc lab", *map(str, parts)])
    return str(uuid.UUID(bytes=uuid.uuid5(uuid.NAMESPACE_OID, name).bytes, version=4))


def write_descriptions(folder: Path) -> None:
    for node in NODES:
        (folder / f"{node.name}.json").write_text(json.dumps(describe(node), indent=1) + "\n")
