# SPDX-License-Identifier: Apache-2.0
"""All checks, and what they say of a site."""

from collections.abc import Collection
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.site.doctor import accounting, cgroup, control, gres, limits, programs, prolog, sharing
from slurm_colloc.site.doctor.facts import Check, NotReadError, Seen, Site

CHECKS: tuple[Check, ...] = (
    *prolog.CHECKS,
    *gres.CHECKS,
    *cgroup.CHECKS,
    *accounting.CHECKS,
    *limits.CHECKS,
    *control.CHECKS,
    *sharing.CHECKS,
    *programs.CHECKS,
)


class Fault(NamedTuple):
    """What is wrong with one subject."""

    code: str
    severity: str
    subject: str
    evidence: str
    consequence: str
    mend: str
    source: str


class Unchecked(NamedTuple):
    """What was not looked at, and why; ``subject`` is empty where it is all that a check would look at."""

    code: str
    subject: str
    why: str


class Diagnosis(NamedTuple):
    """What the checks of ``codes`` came to."""

    codes: tuple[str, ...]
    faults: tuple[Fault, ...]
    unchecked: tuple[Unchecked, ...]


def diagnose(site: Site, skip: Collection[str] = ()) -> Diagnosis:
    """Run all checks but those to skip.

    Raises:
        InputError: there is no check of a code to skip.
    """
    known = [check.code for check in CHECKS]
    if strange := sorted(set(skip) - set(known)):
        raise InputError(f"there is no check '{strange[0]}'; there are {', '.join(known)}")
    faults: list[Fault] = []
    unchecked: list[Unchecked] = []
    wanted = [check for check in CHECKS if check.code not in skip]
    for check in wanted:
        try:
            for found in check.find(site):
                if isinstance(found, Seen):
                    faults.append(
                        Fault(check.code, check.severity, *found, check.consequence, check.mend, check.source)
                    )
                else:
                    unchecked.append(Unchecked(check.code, *found))
        except NotReadError as error:
            unchecked.append(Unchecked(check.code, "", str(error)))
    return Diagnosis(tuple(check.code for check in wanted), tuple(faults), tuple(unchecked))
