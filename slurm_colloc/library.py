# SPDX-License-Identifier: Apache-2.0
"""The public API behind ``import slurm_colloc as colloc``: accounting as pandas DataFrames, and what csub would decide.

The only pandas: a GPU node and a login node run without it.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from math import inf
from types import UnionType
from typing import Any, get_args

import pandas as pd
from duckdb import DuckDBPyConnection

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import Prices, SiteConfig, user_data_folder
from slurm_colloc.core.config_file import find_site_file, load_site
from slurm_colloc.core.errors import CollocError, ConfigError, InputError
from slurm_colloc.core.model import Footprint, Placement
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.fits import fits_of
from slurm_colloc.facts.months import used_hours_by_month
from slurm_colloc.facts.run_rows import Rows, decision_rows, run_rows, share_rows
from slurm_colloc.facts.usage import MONTH, used_hours_by, whole_usage
from slurm_colloc.pack.packed_submission import plan_array
from slurm_colloc.report.formats import flat_groups
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.store import schema
from slurm_colloc.store.equivalents import CONVENTIONS, SLICES
from slurm_colloc.store.rights import visible_here
from slurm_colloc.store.store import Store, open_store
from slurm_colloc.store.window import window_of
from slurm_colloc.submit.inherited import environment_to_submit
from slurm_colloc.submit.own_options import check_call, parse_arguments
from slurm_colloc.submit.plan import Part, make_plan
from slurm_colloc.submit.submission import read_submission

__all__ = ["Accounting", "CollocError", "Footprint", "Placement", "footprint", "open", "place"]

# Any of these is a moment; one without an offset is of this machine's zone, as with colloc report.
Moment = str | datetime | None

# Names of a few values each.
_CATEGORIES = frozenset(
    (
        *("cluster", "user", "account", "partition", "qos", "state", "gpu_type", "gpu_model", "profile", "node"),
        *("mode", "rung", "arm", "would", "method", "methods"),
    )
)
_DTYPES: dict[Any, Any] = {int: "Int64", float: "float64", bool: "boolean", datetime: "datetime64[us, UTC]"}
_KINDS = {"VARCHAR": str, "DOUBLE": float, "FLOAT": float, "INTEGER": int, "BIGINT": int}
_JOB = "(job_id = $job OR job_id_raw = $job)"


class Accounting:
    """A store, of which is shown what a report would show to whoever runs this."""

    def __init__(self, store: Store, config: SiteConfig | None, by: str) -> None:
        """Keep what ``open`` found."""
        self._store, self._config, self._by = store, config, by

    def runs(self, since: Moment = None, until: Moment = None, **filters: str | Sequence[str]) -> pd.DataFrame:
        """Return one row for each run that had a GPU in the window, with the columns of ``colloc report --runs``.

        Args:
            since: the window's beginning; 30 days before its end if it is not given.
            until: where it ends; now where it is not given.
            filters: column=value, or a list of values, as user="ann" or state=["FAILED", "OUT_OF_MEMORY"].

        Raises:
            InputError: an empty window, or a filter by what is no column.
            CollocError: the store cannot be read.
        """
        with self._aggregated(since, until) as (database, about):
            kinds, rows = run_rows(database)
        for name, choice in filters.items():
            if name not in kinds:
                raise InputError(f"runs have no column '{name}'; they have {', '.join(kinds)}")
            column, values = list(kinds).index(name), {choice} if isinstance(choice, str) else set(choice)
            rows = [row for row in rows if row[column] in values]
        return _frame((kinds, rows), about)

    def usage(self, by: str = "user", since: Moment = None, until: Moment = None) -> pd.DataFrame:
        """Return one row for each user, account or the like, with the columns of ``colloc report --format parquet``.

        Raises:
            CollocError: as of ``runs``, and for a grouping that is not known.
        """
        with self._aggregated(since, until) as (database, about):
            *groups, _ = used_hours_by(database, by)
            fits = fits_of(database, by, self._config, self._by) if self._config else ()
        if by == MONTH:
            begin, end = _ends(since, until)
            window = window_of(begin, end)
            with self._store.connect(window.since_s, window.until_s) as database:
                groups, of_months = used_hours_by_month(database, self._store, window, self._config, self._by)
            fits = (*of_months, *fits[-1:])
        return _frame(flat_groups(by, groups, self._config.prices if self._config else Prices(), fits), about)

    def shares(self, since: Moment = None, until: Moment = None) -> pd.DataFrame:
        """Return one row for each run and GPU or slice on which it was sampled; raises as ``runs`` does."""
        with self._aggregated(since, until) as (database, about):
            return _frame(share_rows(database), about)

    def decisions(self, since: Moment = None, until: Moment = None) -> pd.DataFrame:
        """Return one row for each run csub decided about, predicted beside measured; raises as ``runs`` does."""
        with self._aggregated(since, until) as (database, about):
            return _frame(decision_rows(database), about)

    def samples(self, job: str | int) -> pd.DataFrame:
        """Return one row for each reading of each GPU or slice of a job, by its id as Slurm shows it, or its raw id.

        Raises:
            CollocError: the store cannot be read.
        """
        columns = {"at": datetime} | {
            column.name: _KINDS[column.kind] for column in schema.SAMPLES if column.name != "at_s"
        }
        parameters = {"job": str(job)}
        with self._store.connect(inf, inf) as database:
            span = f"SELECT min(start_s), max(coalesce(end_s, $now)) FROM allocations WHERE {_JOB}"
            ((first_s, last_s),) = database.execute(span, parameters | {"now": now()}).fetchall()
            self._store.view_samples(database, *((inf, inf) if first_s is None else (first_s, last_s)))
            names = ", ".join(f"s.{name}" for name in list(columns)[1:])
            rows = database.execute(
                f"""SELECT make_timestamp((s.at_s * 1e6)::BIGINT), {names}
                FROM shares s SEMI JOIN (FROM allocations WHERE {_JOB}) a
                ON s.cluster = a.cluster AND s.job_id = a.job_id_raw AND s.at_s > a.start_s
                AND s.at_s - s.interval_s < coalesce(a.end_s, s.at_s) ORDER BY at_s, uuid""",
                parameters,
            ).fetchall()
        return _frame((columns, rows), {"job_id": str(job)})

    @contextmanager
    def _aggregated(self, since: Moment, until: Moment) -> Iterator[tuple[DuckDBPyConnection, dict[str, Any]]]:
        begin, end = _ends(since, until)
        window = window_of(begin, end)
        with self._store.connect(window.since_s, window.until_s) as database:
            aggregate(database, self._store, window)
            total = whole_usage(database)
            clusters = database.execute("SELECT DISTINCT cluster FROM usage ORDER BY 1").fetchall()
            # Texts and numbers alone, which to_parquet can keep.
            yield (
                database,
                {
                    "cluster": ", ".join(name for (name,) in clusters),
                    "since": begin.isoformat(),
                    "until": end.isoformat(),
                    "coverage_pct": total.coverage_pct,
                    "visible": self._store.visible.whose,
                    "mig_by": CONVENTIONS[self._by],
                },
            )


def open(store_or_site: str | os.PathLike[str] = "", by: str = SLICES) -> Accounting:
    """Open a store to read.

    Args:
        store_or_site: the folder of a store, or a site.toml; else the site in force.
        by: a MIG slice's part of its GPU, by slices, sms or memory.

    Raises:
        CollocError: there is no such store, it holds nothing, or the site cannot be used.
    """
    if by not in CONVENTIONS:
        raise InputError(f"by '{by}' is not one of {', '.join(CONVENTIONS)}")
    path = os.fspath(store_or_site)
    is_site = path.endswith(".toml")
    site = path if is_site else find_site_file()
    config = load_site(site) if site else None
    folder = config.store_folder if config else ""
    if path and not is_site:
        folder = path
    if not path and not os.access(folder, os.R_OK | os.X_OK):
        folder = os.path.join(user_data_folder(), "store")
    visible = visible_here(folder, config, lambda text: warnings.warn(text, stacklevel=3))
    return Accounting(open_store(folder, config, by, visible), config, by)


def footprint(script: str | os.PathLike[str], args: Sequence[str] = ()) -> Footprint:
    """Return what csub expects a job to need of one GPU; nothing is submitted.

    Args:
        script: as given to csub.
        args: options of csub and sbatch before it.

    Raises:
        CollocError: there is no site.toml, or the submission is not understood and would go to sbatch as it is.
    """
    return _part(script, args).footprint


def place(script: str | os.PathLike[str], args: Sequence[str] = ()) -> Placement:
    """Return where csub would put a job; arguments and errors as of ``footprint``."""
    return _part(script, args).placement


def _part(script: str | os.PathLike[str], args: Sequence[str]) -> Part:
    path = find_site_file()
    if not path:
        raise ConfigError("no site.toml found; name one in $COLLOC_CONF")
    config = load_site(path)
    command_line = parse_arguments(("--dry-run", *args, os.fspath(script)), config)
    check_call(command_line)
    environ = environment_to_submit()
    submission = read_submission(command_line, environ, None, config)
    return make_plan(command_line, environ, submission, config, CliClient(), packer=plan_array).part


def _ends(since: Moment, until: Moment) -> tuple[datetime, datetime]:
    end = _moment(until) or datetime.fromtimestamp(now(), UTC)
    begin = _moment(since) or end - timedelta(days=30)
    if begin >= end:
        raise InputError(f"the window from {begin.isoformat()} to {end.isoformat()} is empty")
    return begin, end


def _moment(value: Moment) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise InputError(f"time '{value}' is not ISO 8601") from None
    return moment.astimezone(UTC) if moment else None


def _frame(table: Rows, about: dict[str, Any]) -> pd.DataFrame:
    """Return a table as a frame whose columns have the same types, whatever is in them."""
    kinds, rows = table
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    frame = pd.DataFrame(
        {name: pd.Series(values, dtype=_dtype(name, kinds[name])) for name, values in zip(kinds, columns, strict=True)}
    )
    frame.attrs.update(about)
    return frame


def _dtype(name: str, kind: Any) -> Any:
    if isinstance(kind, UnionType):
        kind = next(member for member in get_args(kind) if member is not type(None))
    return "category" if name in _CATEGORIES else _DTYPES.get(kind, "string")
