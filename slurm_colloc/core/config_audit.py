# SPDX-License-Identifier: Apache-2.0
"""The part of site.toml that says which audit rules run, on what, and by which bounds."""

import os
from collections.abc import Mapping
from datetime import date
from types import MappingProxyType
from typing import Annotated, NamedTuple

from slurm_colloc.core.config_schema import Place, number_from, one_of

WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class AuditRule(NamedTuple):
    """One [[audit.rule]]: a rule, what it looks at, and where its bounds differ from its own."""

    code: str
    """which rule, e.g. 'COL003'"""
    name: str = ""
    """what its findings are known by; empty: the code. A code may be there several times, by names"""
    only: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """only runs of these, by cluster, partition, gpu_type, user, account and qos, e.g. { partition = ['gpu', 'long'] }
    """
    excluded: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """runs of these are not looked at, by the same, e.g. { user = ['teacher'] }"""
    tell: Annotated[str, one_of("users", "admins", "nobody")] = "users"
    """'users'; 'admins': its findings are in their summary, and nobody else is told of them; 'nobody': it does not run
    """
    bounds: Mapping[str, float] = MappingProxyType({})
    """the rule's own bounds, e.g. { min_gpu_hours = 50 }; 'colloc audit explain' lists them"""


class Audit(NamedTuple):
    """The rules that a site sets."""

    rule: tuple[AuditRule, ...] = ()
    """one [[audit.rule]] for each rule that runs with bounds, or on runs, of the site's choice; those that are not
    named run once with their own ('colloc audit explain')"""


class Notices(NamedTuple):
    """Notices of findings by 'colloc audit run --notify'."""

    mode: Annotated[str, one_of("off", "admins", "users")] = "off"
    """'off': nothing is sent, 'colloc audit run --notify' prints what would be; 'admins': only the summary for them is;
    'users': people are told, too"""
    state: Place = ""
    """folder of what audits remember, on a disk of this host; empty: the folder audit in paths.state"""
    sender: str = ""
    """address that the mails are from"""
    address: str = ""
    """a user's address, in which {user} stands for the name: '{user}@example.org'"""
    admins: tuple[str, ...] = ()
    """addresses that get the summary of what was found and who was told"""
    footer: str = ""
    """what stands at a mail's end, e.g. whom to ask"""
    # People who are told twice must have time to read it.
    quiet_days: Annotated[float, number_from(1)] = 14.0
    """for so long nobody is told of the same again; who is not found for so long begins anew"""
    workdays: tuple[Annotated[str, one_of(*WEEK)], ...] = ("mon", "tue", "wed", "thu", "fri")
    """days on which people are told and jobs are acted on"""
    job_wait_min: Annotated[float, number_from(10)] = 60.0
    """minutes between the two notices about a job that runs; where it worked in between, it begins anew. An action
    comes no sooner than twice as long after the second one"""
    actions: Mapping[str, str] = MappingProxyType({})
    """what is then done to the job, by the rule about jobs that found it: 'hold' (stopped, requeued and held) or
    'cancel', e.g. { COL001 = 'hold' }"""
    textfile: Place = ""
    """file that is written for Prometheus (textfile collector); empty: none is"""
    command: Place = ""
    """program that gets what was found, without names, as JSON on its standard input, once a day; of root or of whoever
    runs the audit, and not to be changed by others; empty: none"""

    def is_workday(self, day: date) -> bool:
        """Return whether people are told on this day."""
        return WEEK[day.weekday()] in self.workdays

    @property
    def textfile_of_jobs(self) -> str:
        """Return where a run of the rules about running jobs writes its metrics, beside those of the other run."""
        stem, ending = os.path.splitext(self.textfile)
        return f"{stem}-jobs{ending}" if stem else ""
