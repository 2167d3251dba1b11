# SPDX-License-Identifier: Apache-2.0
"""DOC040 to DOC045: the gres that accounting tracks, and the enforcement of its limits."""

from collections.abc import Callable, Iterable, Iterator

from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.site.doctor.facts import Finder, Seen, Site, known, other_than
from slurm_colloc.slurm.limits import has_database, holds_to_limits


def _untracked(tres_of: Callable[[Site], Iterable[str]]) -> Finder:
    """Return a check for TRES of a site that accounting does not track."""

    def find(site: Site) -> Iterator[Seen]:
        missing = sorted(set(tres_of(site)) - site.words("AccountingStorageTRES"))
        if missing and has_database(site.settings):  # else DOC043, and slurmctld tracks no gres at all
            yield Seen("AccountingStorageTRES of slurm.conf", f"it lacks {', '.join(missing)}")

    return find


def _enforcement(site: Site) -> Iterator[Seen]:
    if not has_database(site.settings) or holds_to_limits(site.settings):
        return
    on_gpus = [
        f"{limit.key} of {limit.level}"
        for limit in known(site.limits)
        if any(name.startswith("gres/") or name == "billing" for name in limit.tres)
    ]
    if on_gpus:
        more = f" and {len(on_gpus) - 1} more" if len(on_gpus) > 1 else ""
        now = site.settings.get("AccountingStorageEnforce", "(null)")
        yield Seen("AccountingStorageEnforce of slurm.conf", f"it is {now}, while there is {on_gpus[0]}{more}")


FINDERS: dict[str, Finder] = {
    "DOC040": _untracked(lambda _: ["gres/gpu"]),
    "DOC041": _untracked(lambda site: [f"gres/{name}" for name in site.shared()]),
    "DOC042": _untracked(lambda site: [f"gres/gpu:{kind}".lower() for kind in site.types() if parse_profile(kind)]),
    "DOC043": other_than("AccountingStorageType", "accounting_storage/slurmdbd"),
    "DOC044": _enforcement,
    "DOC045": other_than("JobAcctGatherType", "jobacct_gather/cgroup", "jobacct_gather/linux"),
}
