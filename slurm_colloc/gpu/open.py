# SPDX-License-Identifier: Apache-2.0
"""Which reader a node has; each is imported only where it is used."""

import os

from slurm_colloc.errors import InputError
from slurm_colloc.gpu.reader import GpuReader


def open_reader(name: str, *, node: str = "", cluster: str = "", dcgm: str = "", patient: bool = False) -> GpuReader:
    """Return the reader called ``name``, as observe.gpu_reader in site.toml has it.

    Args:
        name: nvml, or ``simulated:FOLDER``, which has a ``NODE.json`` of devices for each node.
        node: this node's name in Slurm.
        cluster: its cluster.
        dcgm: where DCGM adds what the reader lacks: the URL of an exporter, or dcgmi; empty: nowhere.
        patient: let a driver that does not answer yet be an error of the first reading, not of the opening.

    Raises:
        InputError: there is no such reader.
        GpuError: the driver does not answer, unless ``patient``.
    """
    opened = _open(name, node, cluster, patient)
    if not dcgm:
        return opened
    from slurm_colloc.gpu.dcgm import WithDcgm

    return WithDcgm(opened, dcgm)


def _open(name: str, node: str, cluster: str, patient: bool) -> GpuReader:
    if name == "nvml":
        from slurm_colloc.gpu.nvml import NvmlReader

        return NvmlReader(patient=patient)
    kind, _, folder = name.partition(":")
    if kind == "simulated" and folder:
        from slurm_colloc.gpu.simulated import SimulatedReader

        return SimulatedReader(os.path.join(folder, f"{node}.json"), node, cluster=cluster)
    raise InputError(f"there is no reader '{name}'; give nvml or simulated:FOLDER")
