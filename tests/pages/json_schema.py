# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of ``colloc report --format json``: it follows the types, so that it can forget no field."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from inspect import getdoc
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.report.formats import NO_FIGURES, SCHEMA
from slurm_colloc.report.text import members
from slurm_colloc.report.usage import Money, OfInstalled, UsageReport

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def json_schema() -> str:
    """Return the JSON Schema of ``as_json``."""
    fields = {name: kind for name, kind in get_type_hints(UsageReport).items() if name not in NO_FIGURES}
    nouns: dict[str, Any] = {}
    whole = object_of({"schema": int, **fields, "of_installed": OfInstalled}, UsageReport, nouns)
    nouns["Group"] = object_of(get_type_hints(GroupUsage) | get_type_hints(Money), GroupUsage, nouns)
    group = {"$ref": "#/$defs/Group"}
    whole["properties"] |= {"schema": {"const": SCHEMA}, "groups": {"type": "array", "items": group}, "total": group}
    about = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "colloc report --format json",
        **whole,
        "$defs": dict(sorted(nouns.items())),
    }
    return json.dumps(about, indent=2) + "\n"


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
