# SPDX-License-Identifier: Apache-2.0
"""One user's page: GPU-hours and runs, without a script, for a portal that shows each user his own."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.usage_model import GroupUsage, JobUsage
from slurm_colloc.report.page import renderer
from slurm_colloc.report.text import minute, stamp
from slurm_colloc.report.usage import number, use_by


class UserPage(NamedTuple):
    """Contents of one page: the user's runs in [since, until), added up, and the last of them one by one.

    ``fit`` is what they would have fitted, None where nothing is known of that.
    """

    cluster: str
    since: datetime
    until: datetime
    made: datetime
    usage: GroupUsage
    runs: Sequence[JobUsage]
    fit: Fit | None = None


def page_maker(templates: str) -> Callable[[UserPage], str]:
    """Return what makes a page.

    Raises:
        ConfigError: when it is called, a site's template that does not render.
    """
    render = renderer(
        templates,
        number=_number,
        stamp=stamp,
        at=minute,
        used_pct=lambda run, metric: (use := use_by(run, metric)) and use.pct,
        cell=number,
    )
    return lambda page: render("user.html.j2", page=page)


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return "not known" if value is None else f"{number(value, digits)}{unit}"
