# SPDX-License-Identifier: Apache-2.0
"""Nouns as JSON: it follows the types, so that it can forget no field."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, get_type_hints


def json_value(value: Any) -> Any:
    """Return ``value`` as JSON has it: a noun by its fields and properties, times in ISO 8601."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: json_value(getattr(value, name)) for name, _ in members(type(value))}
    if isinstance(value, tuple):
        return [json_value(item) for item in value]
    return value


def members(noun: type) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a noun, and its properties, with their types."""
    yield from get_type_hints(noun).items()
    for name, member in vars(noun).items():
        if isinstance(member, property) and member.fget:
            yield name, get_type_hints(member.fget)["return"]
