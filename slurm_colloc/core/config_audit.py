# SPDX-License-Identifier: Apache-2.0
"""The part of site.toml that says which audit rules run, on what, and by which bounds."""

import os
from collections.abc import Mapping
from datetime import date
from types import MappingProxyType
from typing import NamedTuple

WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class AuditRule(NamedTuple):
    """One [[audit.rule]]: a rule, what it looks at, and where its bounds differ from its own."""

    code: str
    name: str = ""
    only: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    excluded: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    tell: str = "users"
    bounds: Mapping[str, float] = MappingProxyType({})


class Audit(NamedTuple):
    """The rules that a site sets."""

    rule: tuple[AuditRule, ...] = ()


class Notices(NamedTuple):
    """Notices of findings by 'colloc audit run --notify'."""

    mode: str = "off"
    state: str = ""
    sender: str = ""
    address: str = ""
    admins: tuple[str, ...] = ()
    footer: str = ""
    quiet_days: float = 14.0
    workdays: tuple[str, ...] = ("mon", "tue", "wed", "thu", "fri")
    job_wait_min: float = 60.0
    actions: Mapping[str, str] = MappingProxyType({})
    textfile: str = ""
    command: str = ""

    def is_workday(self, day: date) -> bool:
        """Return whether people are told on this day."""
        return WEEK[day.weekday()] in self.workdays

    @property
    def textfile_of_jobs(self) -> str:
        """Return where a run of the rules about running jobs writes its metrics, beside those of the other run."""
        stem, ending = os.path.splitext(self.textfile)
        return f"{stem}-jobs{ending}" if stem else ""
