# SPDX-License-Identifier: Apache-2.0
"""Checks that a value read from outside has the type that a field needs."""

import types
from collections.abc import Mapping
from typing import Any, get_args, get_origin

# A SQLite INTEGER holds less; a longer number breaks whoever stores it.
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


def read_as(annotation: Any, value: object) -> Any:
    """Return what JSON gave as an ``annotation``: tuples for lists, NamedTuples for lists or tables of their fields.

    A Mapping whose keys are no texts is a list of pairs. Unlike ``fits`` this takes numbers below 0, and text with lone
    surrogates, which stand for bytes of a user's words.

    Raises:
        ValueError, TypeError: it is of another kind, or a number beyond all bounds.
    """
    origin, of = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, types.UnionType):
        return None if value is None else read_as(of[0], value)
    if origin is tuple and isinstance(value, list):
        return tuple(read_as(of[0], one) for one in value)
    if origin is Mapping and isinstance(value, dict if of[0] is str else list):
        pairs = value.items() if isinstance(value, dict) else value
        return {read_as(of[0], key): read_as(of[1], one) for key, one in pairs}
    if hasattr(annotation, "_fields") and isinstance(value, list | dict):
        kinds = annotation.__annotations__
        given = value if isinstance(value, dict) else dict(zip(kinds, value, strict=False))
        lacking = kinds.keys() - given.keys() - annotation._field_defaults.keys()
        if lacking or len(given) != len(value) or given.keys() - kinds.keys():
            raise ValueError("the fields differ from this release's")
        return annotation(**{name: read_as(kinds[name], one) for name, one in given.items()})
    number = isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST
    if annotation in (int, float) and number and (annotation is float or isinstance(value, int)):
        return value
    if annotation in (bool, str) and isinstance(value, annotation):
        return value
    raise ValueError(f"'{str(value)[:40]}' is of another kind")
