# SPDX-License-Identifier: Apache-2.0
"""DOC030 to DOC032: what keeps a job within its devices, its memory and its processes."""

from collections.abc import Iterator

from slurm_colloc.site.doctor.facts import Check, NotReadError, Seen, Site, known, other_than


def _devices(site: Site) -> Iterator[Seen]:
    if why := _off(site, "ConstrainDevices"):
        yield Seen(_where(site), why)


def _memory(site: Site) -> Iterator[Seen]:
    why = _off(site, "ConstrainRAMSpace")
    if why and _off(site, "ConstrainSwapSpace"):
        yield Seen(_where(site), why)


def _where(site: Site) -> str:
    return "cgroup.conf" if "task/cgroup" in site.words("TaskPlugin") else "slurm.conf"


def _off(site: Site, key: str) -> str:
    """Return why cgroups do not hold a job to something, empty when they do."""
    if "task/cgroup" not in site.words("TaskPlugin"):
        return f"TaskPlugin is {site.settings.get('TaskPlugin', 'not set')}, without task/cgroup"
    settings = {name.lower(): value for name, value in known(site.cgroup).items()}
    value = settings.get(key.lower())
    if value is None:
        raise NotReadError(f"slurmctld does not say what {key} is")
    return "" if value.lower() == "yes" else f"{key} is {value}"


CHECKS = (
    Check(
        "DOC030",
        "error",
        "a job can use other jobs' GPUs",
        "a job that unsets or overwrites CUDA_VISIBLE_DEVICES uses GPUs and slices that are not its own",
        "set ConstrainDevices=yes in cgroup.conf, and TaskPlugin=task/cgroup,task/affinity in slurm.conf",
        "cgroup.conf(5), ConstrainDevices; slurm.conf(5), TaskPlugin",
        _devices,
    ),
    Check(
        "DOC031",
        "warning",
        "a job can take all memory of its node",
        "one job can take all memory of the node; the kernel then ends a process of any job there",
        "set ConstrainRAMSpace=yes in cgroup.conf, and TaskPlugin=task/cgroup,task/affinity in slurm.conf",
        "cgroup.conf(5), ConstrainRAMSpace",
        _memory,
    ),
    Check(
        "DOC032",
        "warning",
        "processes can leave their job",
        "a process that detaches itself stays on the GPU after the job; its use counts for nobody, or for the next job",
        "set ProctrackType=proctrack/cgroup in slurm.conf",
        "slurm.conf(5), ProctrackType",
        other_than("ProctrackType", "proctrack/cgroup"),
    ),
)
