# SPDX-License-Identifier: Apache-2.0
"""The part of site.toml that says which audit rules run, on what, and by which bounds."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class AuditRule(NamedTuple):
    """One [[audit.rule]]: a rule, what it looks at, and where its bounds differ from its own."""

    code: str
    name: str = ""
    enabled: bool = True
    clusters: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    excluded_users: tuple[str, ...] = ()
    excluded_accounts: tuple[str, ...] = ()
    excluded_partitions: tuple[str, ...] = ()
    excluded_qos: tuple[str, ...] = ()
    min_run_min: float = 0.0
    running: bool = True
    tell: str = "users"
    bounds: Mapping[str, float] = MappingProxyType({})


class Audit(NamedTuple):
    """What must be known before anybody is named, and the rules."""

    min_coverage_pct: float = 60.0
    rule: tuple[AuditRule, ...] = ()


class Notices(NamedTuple):
    """What is done about findings by 'colloc audit run --notify'."""

    mode: str = "off"
    state: str = ""
    sender: str = ""
    reply_to: str = ""
    address: str = ""
    admins: tuple[str, ...] = ()
    summary_hours: float = 24.0
    footer: str = ""
    window_days: float = 7.0
    job_window_days: float = 1.0
    quiet_days: float = 14.0
    workdays: tuple[str, ...] = ("mon", "tue", "wed", "thu", "fri")
    holidays: str = ""
    job_quiet_min: float = 60.0
    job_deadline_min: float = 120.0
    action: str = "none"
    action_rules: tuple[str, ...] = ()
    textfile: str = ""
    json_lines: str = ""
    webhook_file: str = ""
    min_group: int = 1

    @property
    def textfile_of_jobs(self) -> str:
        """Where a run of the rules about running jobs writes its metrics, beside those of the other run."""
        stem, ending = os.path.splitext(self.textfile)
        return f"{stem}-jobs{ending}" if stem else ""
