# SPDX-License-Identifier: Apache-2.0
"""DOC040 to DOC045: what accounting tracks, and whether it is enforced."""

from collections.abc import Iterable, Iterator

from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.site.doctor.facts import Check, Seen, Site, known, other_than
from slurm_colloc.slurm.limits import has_database, holds_to_limits

_WHERE = "AccountingStorageTRES of slurm.conf"


def _missing(site: Site, wanted: list[str]) -> Iterator[Seen]:
    missing = sorted(set(wanted) - site.words("AccountingStorageTRES"))
    if missing and has_database(site.settings):  # else DOC043, and slurmctld tracks no gres at all
        yield Seen(_WHERE, f"it lacks {', '.join(missing)}")


def _gpus(site: Site) -> Iterator[Seen]:
    yield from _missing(site, ["gres/gpu"])


def _shares(site: Site) -> Iterator[Seen]:
    yield from _missing(site, [f"gres/{name}" for name in site.shared()])


def _slices(site: Site) -> Iterator[Seen]:
    yield from _missing(site, [f"gres/gpu:{kind}".lower() for kind in site.types() if parse_profile(kind)])


def _enforcement(site: Site) -> Iterator[Seen]:
    if not has_database(site.settings) or holds_to_limits(site.settings):
        return
    on_gpus = [f"{limit.key} of {limit.level}" for limit in known(site.limits) if _concerns_gpus(limit.tres)]
    if on_gpus:
        more = f" and {len(on_gpus) - 1} more" if len(on_gpus) > 1 else ""
        now = site.settings.get("AccountingStorageEnforce", "(null)")
        yield Seen("AccountingStorageEnforce of slurm.conf", f"it is {now}, while there is {on_gpus[0]}{more}")


def _concerns_gpus(names: Iterable[str]) -> bool:
    return any(name.startswith("gres/") or name == "billing" for name in names)


CHECKS = (
    Check(
        "DOC040",
        "error",
        "gres/gpu is not tracked",
        "sacct knows of no job that it had a GPU; limits, fair share and reports see none",
        "AccountingStorageTRES=gres/gpu,...; then restart slurmctld",
        "slurm.conf(5), AccountingStorageTRES; https://slurm.schedmd.com/gres.html#Accounting",
        _gpus,
    ),
    Check(
        "DOC041",
        "error",
        "gres/mps or gres/shard is not tracked",
        "a job on a share shows no GPU in sacct, has no price, and no limit can be set on it",
        "add gres/mps and gres/shard to AccountingStorageTRES; then restart slurmctld",
        "slurm.conf(5), AccountingStorageTRES; on 22.05 to 26.05 such a job was seen without gres/gpu in AllocTRES",
        _shares,
    ),
    Check(
        "DOC042",
        "warning",
        "a type of MIG slice is not tracked",
        "in sacct a slice is one gres/gpu like a whole GPU: hours, prices and limits cannot tell them apart",
        "add gres/gpu:TYPE for each type of slice to AccountingStorageTRES; then restart slurmctld",
        "slurm.conf(5), AccountingStorageTRES: types are recorded where they are named",
        _slices,
    ),
    Check(
        "DOC043",
        "warning",
        "there is no accounting database",
        "no gres is tracked, no limit enforced, and jobs are forgotten after MinJobAge",
        "run slurmdbd, and AccountingStorageType=accounting_storage/slurmdbd",
        "slurm.conf(5), AccountingStorageType",
        other_than("AccountingStorageType", "accounting_storage/slurmdbd"),
    ),
    Check(
        "DOC044",
        "error",
        "limits on GPUs are set and not enforced",
        "whoever set them believes that they hold",
        "AccountingStorageEnforce=associations,limits,qos; safe besides, so that no job begins that cannot end",
        "slurm.conf(5), AccountingStorageEnforce; https://slurm.schedmd.com/resource_limits.html",
        _enforcement,
    ),
    Check(
        "DOC045",
        "warning",
        "Slurm does not record what jobs use (JobAcctGatherType)",
        "sstat and sacct have neither memory nor CPU time: seff and 'colloc job 4711' cannot say what a job used",
        "JobAcctGatherType=jobacct_gather/cgroup",
        "slurm.conf(5), JobAcctGatherType",
        other_than("JobAcctGatherType", "jobacct_gather/cgroup", "jobacct_gather/linux"),
    ),
)
