# SPDX-License-Identifier: Apache-2.0
"""Nouns as JSON, and the JSON Schema that says so: both follow the types, so that neither can forget a field."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from inspect import getdoc
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: a noun by its fields and properties, times in ISO 8601."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name, _ in members(type(value))}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def members(noun: type) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a noun, and its properties, with their types."""
    yield from get_type_hints(noun).items()
    for name, member in vars(noun).items():
        if isinstance(member, property) and member.fget:
            yield name, get_type_hints(member.fget)["return"]


def schema_of(kind: Any, nouns: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a type; those of the nouns in it are added to ``nouns``, by name."""
    inner = get_args(kind)
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if kind is datetime:
        return {"type": "string", "format": "date-time"}
    if get_origin(kind) is UnionType:
        return _either([schema_of(one, nouns) for one in inner])
    if get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1], nouns)}
    if get_origin(kind) is tuple and inner[1:] == (...,):
        return {"type": "array", "items": schema_of(inner[0], nouns)}
    if get_origin(kind) is tuple:
        of = [schema_of(one, nouns) for one in inner]
        return {"type": "array", "prefixItems": of, "items": False, "minItems": len(of)}
    if not hasattr(kind, "_fields"):
        raise TypeError(f"no JSON for {kind}")
    if kind.__name__ not in nouns:
        nouns[kind.__name__] = {}  # it may contain itself
        nouns[kind.__name__] = object_of(dict(members(kind)), kind, nouns)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def object_of(fields: Mapping[str, Any], noun: type, nouns: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an object with these fields, all of them always there, described as ``noun``."""
    return {
        "description": re.sub(r"\s+", " ", (getdoc(noun) or "").replace("``", "'")),
        "type": "object",
        "properties": {name: schema_of(kind, nouns) for name, kind in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def _either(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    simple = [schema["type"] for schema in schemas if list(schema) == ["type"]]
    return {"type": simple} if len(simple) == len(schemas) else {"anyOf": schemas}
