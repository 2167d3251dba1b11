# SPDX-License-Identifier: Apache-2.0
"""DOC030 to DOC032: what keeps a job within its devices, its memory and its processes."""

from collections.abc import Iterator

from slurm_colloc.site.doctor.facts import Check, NotReadError, Seen, Site, known


def _devices(site: Site) -> Iterator[Seen]:
    if why := _off(site, "ConstrainDevices"):
        yield Seen("cgroup.conf", why)


def _memory(site: Site) -> Iterator[Seen]:
    why = _off(site, "ConstrainRAMSpace")
    if why and _off(site, "ConstrainSwapSpace"):
        yield Seen("cgroup.conf", why)


def _processes(site: Site) -> Iterator[Seen]:
    used = site.settings.get("ProctrackType", "")
    if used != "proctrack/cgroup":
        yield Seen("slurm.conf", f"ProctrackType is {used or 'not set'}")


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
        "jobs are not kept from other jobs' GPUs",
        "a job that unsets or overwrites CUDA_VISIBLE_DEVICES uses GPUs and slices that are not its own",
        "ConstrainDevices=yes in cgroup.conf, and task/cgroup in TaskPlugin",
        "cgroup.conf(5), ConstrainDevices; slurm.conf(5), TaskPlugin",
        _devices,
    ),
    Check(
        "DOC031",
        "warning",
        "jobs are not kept within their memory",
        "of several jobs on a node one can take the memory of all: the kernel then ends any of them",
        "ConstrainRAMSpace=yes in cgroup.conf, and task/cgroup in TaskPlugin",
        "cgroup.conf(5), ConstrainRAMSpace",
        _memory,
    ),
    Check(
        "DOC032",
        "warning",
        "processes can leave their job",
        "a process that detaches itself stays on the GPU after the job; its use counts for nobody, or for the next job",
        "ProctrackType=proctrack/cgroup",
        "slurm.conf(5), ProctrackType",
        _processes,
    ),
)
