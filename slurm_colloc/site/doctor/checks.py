# SPDX-License-Identifier: Apache-2.0
"""All checks, and what they say of a site."""

import tomllib
from collections.abc import Collection
from importlib.resources import files
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.site.doctor import accounting, cgroup, control, gres, limits, programs, prolog, sharing
from slurm_colloc.site.doctor.facts import Finder, NotReadError, Seen, Site

FINDERS: dict[str, Finder] = {
    code: find
    for module in (prolog, gres, cgroup, accounting, limits, control, sharing, programs)
    for code, find in module.FINDERS.items()
}


class Check(NamedTuple):
    """A check's words of checks.toml, and the function that looks for the fault."""

    code: str
    severity: str
    title: str
    consequence: str
    mend: str
    source: str
    find: Finder


_WORDS = tomllib.loads(files(__package__).joinpath("checks.toml").read_text())
CHECKS = tuple(Check(code, **_WORDS[code], find=FINDERS[code]) for code in sorted(FINDERS.keys() | _WORDS.keys()))


class Fault(NamedTuple):
    """A fault of one subject."""

    code: str
    severity: str
    subject: str
    evidence: str
    consequence: str
    mend: str
    source: str


class Unchecked(NamedTuple):
    """A subject that was not checked, and why; it is empty where a check could judge none of its subjects."""

    code: str
    subject: str
    why: str


class Diagnosis(NamedTuple):
    """The outcome of the checks of ``codes``."""

    codes: tuple[str, ...]
    faults: tuple[Fault, ...]
    unchecked: tuple[Unchecked, ...]


def diagnose(site: Site, skip: Collection[str] = ()) -> Diagnosis:
    """Run all checks but those to skip.

    Raises:
        InputError: there is no check of a code to skip.
    """
    if strange := sorted(set(skip) - FINDERS.keys()):
        raise InputError(f"there is no check '{strange[0]}'; there are {', '.join(check.code for check in CHECKS)}")
    faults: list[Fault] = []
    unchecked: list[Unchecked] = []
    chosen = [check for check in CHECKS if check.code not in skip]
    for check in chosen:
        try:
            for answer in check.find(site):
                if isinstance(answer, Seen):
                    faults.append(
                        Fault(check.code, check.severity, *answer, check.consequence, check.mend, check.source)
                    )
                else:
                    unchecked.append(Unchecked(check.code, *answer))
        except NotReadError as error:
            unchecked.append(Unchecked(check.code, "", str(error)))
    return Diagnosis(tuple(check.code for check in chosen), tuple(faults), tuple(unchecked))
