# SPDX-License-Identifier: Apache-2.0
"""DOC030 to DOC032: the limits of a job to its devices, its memory and its processes."""

from collections.abc import Iterator

from slurm_colloc.site.doctor.facts import Finder, NotReadError, Seen, Site, known, other_than


def _unconstrained(*keys: str) -> Finder:
    """Return a check for a site that sets none of these keys of cgroup.conf."""

    def find(site: Site) -> Iterator[Seen]:
        if all(_off(site, key) for key in keys):
            file = "cgroup.conf" if "task/cgroup" in site.words("TaskPlugin") else "slurm.conf"
            yield Seen(file, _off(site, keys[0]))

    return find


def _off(site: Site, key: str) -> str:
    """Return why cgroups do not hold a job to something, empty when they do."""
    if "task/cgroup" not in site.words("TaskPlugin"):
        return f"TaskPlugin is {site.settings.get('TaskPlugin', 'not set')}, without task/cgroup"
    settings = {name.lower(): value for name, value in known(site.cgroup).items()}
    value = settings.get(key.lower())
    if value is None:
        raise NotReadError(f"slurmctld does not say what {key} is")
    return "" if value.lower() == "yes" else f"{key} is {value}"


FINDERS: dict[str, Finder] = {
    "DOC030": _unconstrained("ConstrainDevices"),
    "DOC031": _unconstrained("ConstrainRAMSpace", "ConstrainSwapSpace"),
    "DOC032": other_than("ProctrackType", "proctrack/cgroup"),
}
