# SPDX-License-Identifier: Apache-2.0
"""Validates [audit] and [notices] of site.toml, for each audit and for 'colloc site check'."""

from collections.abc import Callable, Iterator

from slurm_colloc.audit.message import check_settings
from slurm_colloc.audit.post import fault_of, find_sendmail
from slurm_colloc.audit.rules import entries
from slurm_colloc.audit.timing import JOB_WINDOW_DAYS, check_bounds
from slurm_colloc.core.audit_model import JOB
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import ConfigError


def check_notices(config: SiteConfig) -> None:
    """Look at what the types of [audit] and [notices] do not say.

    Raises:
        ConfigError: a rule or bound that is none, or mails or actions that could never come to anybody.
    """
    check_settings(config.notices)
    job_rules = [entry.name for entry in entries(config.audit) if entry.rule.about == JOB and entry.tells_users]
    for name in config.notices.actions:
        if name not in job_rules:
            raise ConfigError(
                f"'notices.actions': '{name}' is no rule in force about jobs that tells users; "
                f"there are {', '.join(job_rules) or 'none'}"
            )


def faults(config: SiteConfig) -> Iterator[str]:
    """Yield why runs of the audits would end in an error, by what site.toml says itself."""
    steps: tuple[Callable[[], None], ...] = (
        lambda: check_notices(config),
        lambda: check_bounds(entries(config.audit), JOB_WINDOW_DAYS),
    )
    for step in steps:
        try:
            step()
        except ConfigError as error:
            yield str(error)


def file_faults(config: SiteConfig) -> Iterator[tuple[str, str, str]]:
    """Yield key, path and fault of the command of [notices] and of the mail service, as who audits finds them."""
    if config.notices.mode != "off" and not find_sendmail():
        yield "notices.mode", config.notices.mode, "there is no 'sendmail' on this host; install a mail service"
    path = config.notices.command
    if path and (fault := fault_of(path)):
        yield "notices.command", path, fault
