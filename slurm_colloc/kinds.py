# SPDX-License-Identifier: Apache-2.0
"""Whether a value read from outside is of the kind that a field of model.py wants."""

from typing import Any, get_origin

# What a SQLite INTEGER holds; a longer number breaks whoever stores it.
_LARGEST = 2**63


def fits(value: object, annotation: Any) -> bool:
    """Return whether ``value`` is an ``annotation``: no number below 0 or beyond all bounds, no broken text."""
    if get_origin(annotation) is tuple:
        return isinstance(value, list)
    if isinstance(value, bool):
        return annotation is bool
    if isinstance(value, str):
        # A lone surrogate is text to Python and to nobody it is handed on to: SQLite, Parquet, a terminal.
        return isinstance(value, annotation) and not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, int) and 0 <= value < _LARGEST:
        return isinstance(value, annotation) or isinstance(float(value), annotation)
    if isinstance(value, float):
        return isinstance(value, annotation) and 0 <= value < float("inf")
    return isinstance(value, annotation) and not isinstance(value, int)
