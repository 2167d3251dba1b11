# SPDX-License-Identifier: Apache-2.0
"""The usage report as data and as pages. No I/O but what the caller does with the text."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_type_hints

from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.config import Prices
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.report.text import csv_table, json_text
from slurm_colloc.report.usage import Money, UsageReport, fits_by_group, money, of_installed
from slurm_colloc.report.usage_text import as_table
from slurm_colloc.store.parquet import parquet_bytes

SCHEMA = 5
_OF_FIT = {
    "fit_known_gpu_hours": "known_gpu_hours",
    "fit_gpu_hours": "fits_gpu_hours",
    "fit_freed_gpu_hours": "freed_gpu_hours",
    "fit_unit": "unit",
    "fit_judged_runs": "judged_runs",
    "fit_fitting_runs": "fitting_runs",
    "fit_not_judged_runs": "not_judged_runs",
    "fit_spare_runs": "spare_runs",
    "fit_spare_gpu_hours": "spare_gpu_hours",
}
NO_FIGURES = ("templates", "of_text", "billing")


def as_json(report: UsageReport) -> str:
    """Return the report as JSON, as docs/reference/report.schema.json has it: unrounded, null for not known."""
    record = {
        **{name: value for name, value in report._asdict().items() if name not in NO_FIGURES},
        "groups": [_priced(report, group) for group in report.groups],
        "total": _priced(report, report.total),
        "of_installed": of_installed(report),
    }
    return json_text(SCHEMA, record)


def _priced(report: UsageReport, group: GroupUsage) -> dict[str, Any]:
    return {**group._asdict(), **money(group, report.prices)._asdict()}


def flat(report: UsageReport) -> tuple[dict[str, type], list[list[Any]]]:
    """Return the groups as a table of values, column -> type, and its rows; None is not known.

    Names are as they are; the writer of a file does something about their letters.
    """
    return flat_groups(report.by, report.groups, report.prices, report.fits)


def flat_groups(
    by: str, groups: Iterable[GroupUsage], prices: Prices, fits: Sequence[Fit]
) -> tuple[dict[str, type], list[list[Any]]]:
    """Return what ``flat`` does of groups; ``fits`` as in a report, that of all of them last."""
    kinds = {
        by: str,
        **{name: kind for name, kind in get_type_hints(GroupUsage).items() if name != "name"},
        **get_type_hints(Money),
        **{title: get_type_hints(Fit)[field] for title, field in _OF_FIT.items()},
    }
    by_group = fits_by_group(fits)
    rows = [
        [
            *(";".join(value) if isinstance(value, tuple) else value for value in group),
            *money(group, prices),
            *(getattr(by_group.get(group.name), field, None) for field in _OF_FIT.values()),
        ]
        for group in groups
    ]
    return kinds, rows


def as_csv(report: UsageReport) -> str:
    """Return one row for each group."""
    return csv_table(*flat(report))


def as_html(report: UsageReport) -> str:
    """Return one self-contained page.

    Raises:
        ConfigError: a site's template that does not render.
    """
    # jinja2 takes 44 ms to import, and only a page needs it.
    from slurm_colloc.report.usage_page import usage_page

    return usage_page(report)


def as_parquet(report: UsageReport) -> bytes:
    """Return a file with the rows of the CSV, which says what it is of."""
    about = {
        "schema": str(SCHEMA),
        "cluster": report.cluster,
        "since": report.since.isoformat(),
        "until": report.until.isoformat(),
        "group_by": report.by,
        "mig_by": report.equivalents,
    }
    return parquet_bytes(*flat(report), about)


TABLE, PARQUET = "table", "parquet"
# The first is for people.
FORMATS: dict[str, Callable[..., str | bytes]] = {
    TABLE: as_table,
    "csv": as_csv,
    "json": as_json,
    PARQUET: as_parquet,
    "html": as_html,
}
