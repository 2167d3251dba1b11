# SPDX-License-Identifier: Apache-2.0
"""One user's page: what he had and used, without a script, for a portal that shows each user his own."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import jinja2

from slurm_colloc.errors import ConfigError
from slurm_colloc.report.page import page_environment
from slurm_colloc.report.text import minute, stamp
from slurm_colloc.report.usage import number, percent
from slurm_colloc.usage_model import GroupUsage, JobUsage

_TEMPLATE = "user.html.j2"


class UserPage(NamedTuple):
    """What one page says: the user's runs in [since, until), added up, and the last of them one by one."""

    cluster: str
    since: datetime
    until: datetime
    made: datetime
    usage: GroupUsage
    runs: tuple[JobUsage, ...]


def page_maker(templates: str) -> Callable[[UserPage], str]:
    """Return what makes a page: the template is read once, not for each of thousands.

    Raises:
        ConfigError: a site's template that cannot be read; when a page is made, one that does not render.
    """
    environment = page_environment(templates)
    environment.filters |= {
        "number": _number,
        "stamp": stamp,
        "at": minute,
        "used_pct": _used_pct,
        "cell": number,
    }
    try:
        template = environment.get_template(_TEMPLATE)
    except jinja2.TemplateError as error:
        raise ConfigError(f"template '{_TEMPLATE}' cannot be read: {error}") from error

    def make(page: UserPage) -> str:
        try:
            return template.render(page=page)
        except jinja2.TemplateError as error:
            raise ConfigError(f"template '{_TEMPLATE}' does not render: {error}") from error

    return make


def by_user(runs: Sequence[JobUsage]) -> dict[str, tuple[JobUsage, ...]]:
    """Return the runs of each user."""
    found: dict[str, list[JobUsage]] = {}
    for run in runs:
        found.setdefault(run.user, []).append(run)
    return {user: tuple(of) for user, of in found.items()}


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return "not known" if value is None else f"{number(value, digits)}{unit}"


def _used_pct(run: JobUsage, metric: str) -> float | None:
    return percent(getattr(run, f"{metric}_used_gpu_hours"), getattr(run, f"{metric}_measured_gpu_hours"))
