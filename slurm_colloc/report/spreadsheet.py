# SPDX-License-Identifier: Apache-2.0
"""Figures as CSV, in which no name is a formula."""

import csv
import io
from collections.abc import Iterable

from slurm_colloc.report.text import inert


def as_csv(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table; None is an empty cell, and a text that a spreadsheet would evaluate begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([inert(value) if isinstance(value, str) else value for value in row] for row in rows)
    return out.getvalue()
