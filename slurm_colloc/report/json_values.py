# SPDX-License-Identifier: Apache-2.0
"""Nouns as JSON: it follows the types, so that it can forget no field."""

import json
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, get_type_hints


def json_text(schema: int, shown: Any) -> str:
    """Return a noun, or a mapping with nouns in it, as a file of JSON that names its schema; null for not known."""
    return json.dumps({"schema": schema, **json_value(shown)}, indent=2) + "\n"


def json_value(value: Any) -> Any:
    """Return ``value`` as JSON has it: a noun by its fields and properties, times in ISO 8601."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: json_value(getattr(value, name)) for name, _ in members(type(value))}
    if isinstance(value, tuple | list):
        return [json_value(item) for item in value]
    return value


def members(noun: type) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a noun, and its properties, with their types."""
    yield from get_type_hints(noun).items()
    for name, member in vars(noun).items():
        if isinstance(member, property) and member.fget:
            yield name, get_type_hints(member.fget)["return"]
