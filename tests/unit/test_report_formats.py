# SPDX-License-Identifier: Apache-2.0
"""The usage report as data: what each format says, and that no name in it does anything."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import jsonschema
import pytest

from slurm_colloc.core.units import printable
from slurm_colloc.report.formats import (
    FORMATS,
    SCHEMA,
    as_json,
    as_parquet,
)
from slurm_colloc.report.usage import UsageReport
from tests.pages.json_schema import json_schema
from tests.unit.hostile import HOSTILE
from tests.unit.reports import NOTHING, cells_of, full, group, page, report

ALL_HOSTILE = pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))


# --- JSON ---


@cache
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(json_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("shown", [report(), report(group(), NOTHING), full()], ids=["empty", "bare", "full"])
def test_json_is_as_its_schema_says(shown: UsageReport) -> None:
    validator().validate(json.loads(as_json(shown)))


@pytest.mark.parametrize(
    "change",
    [
        {"schema": SCHEMA - 1},
        {"groups": [{"name": "ann"}]},
        {"runs": 1.5},
        {"more": 1},
        {"since": 0},
        {"rejected": {"why": "many"}},
        {"recorded": ["2026-01-01T00:00:00+00:00"]},
        {"charts": {}},
    ],
)
def test_what_is_not_a_report_is_not_taken_for_one(change: dict[str, Any]) -> None:
    assert not validator().is_valid(json.loads(as_json(full())) | change)


def test_the_schema_describes_every_noun() -> None:
    about_it = json.loads(json_schema())
    assert about_it["properties"]["schema"] == {"const": SCHEMA}
    assert all(noun["description"] for noun in about_it["$defs"].values())
    assert {"Group", "GroupUsage", "Fit", "TimeUsage", "StrayUse"} <= set(about_it["$defs"])
    assert about_it["$defs"]["Collocation"]["properties"]["saved_gpu_hours"] == {"type": "number"}
    assert not {"templates", "of_text"} & set(about_it["properties"])


# --- Parquet ---


def parquet(shown: UsageReport, folder: Path) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Return the first row, the columns' types, and what the file says of itself."""
    path = folder / "report.parquet"
    path.write_bytes(as_parquet(shown))
    with duckdb.connect() as database:
        found = database.execute("FROM read_parquet($path)", {"path": str(path)})
        kinds = {column[0]: str(column[1]) for column in found.description}
        row = found.fetchone() or (None,) * len(kinds)
        known = database.execute("SELECT key, value FROM parquet_kv_metadata($path)", {"path": str(path)}).fetchall()
    return dict(zip(kinds, row, strict=True)), kinds, {key.decode(): value.decode() for key, value in known}


def test_parquet(tmp_path: Path) -> None:
    row, kinds, said = parquet(full(), tmp_path)
    assert (row["user"], row["jobs"], row["allocated_gpu_hours"], row["gpu_cost"]) == ("ann", 1, 1.0, 2.0)
    assert (row["fit_unit"], row["fit_gpu_hours"], row["methods"]) == ("gpu:1g.10gb:1", 0.5, "measured")
    assert [kinds[name] for name in ("user", "jobs", "gpu_mem_peak_mib", "sm_weighted_pct", "methods", "co2_kg")] == [
        *("VARCHAR", "BIGINT", "BIGINT", "DOUBLE", "VARCHAR", "DOUBLE")
    ]
    assert said == {
        "schema": str(SCHEMA),
        "cluster": "c",
        "group_by": "user",
        "mig_by": "compute slices",
        "since": "2026-11-01T00:00:00+00:00",
        "until": "2026-11-02T00:00:00+00:00",
    }
    blank, _, _ = parquet(report(NOTHING), tmp_path)
    assert [blank[name] for name in ("sm_used_gpu_hours", "coverage_pct", "fit_unit", "co2_kg")] == [None] * 4
    assert parquet(report(), tmp_path)[1] == kinds, "an empty one has the same columns"


@ALL_HOSTILE
def test_a_name_in_parquet_is_itself(name: str, tmp_path: Path) -> None:
    row, _, said = parquet(report(group(name), cluster=name), tmp_path)
    whole = name.encode(errors="backslashreplace").decode()
    assert (row["user"], said["cluster"]) == (whole, whole.replace("\0", "\\x00"))


# --- CSV, JSON, HTML ---


def _ours(text: str) -> str:
    """Return a page without Vega, whose text has tabs."""
    return re.sub(r'<script type="module">.*?</script>', "", text, flags=re.DOTALL)


@ALL_HOSTILE
@pytest.mark.parametrize("form", ["csv", "json", "html"])
def test_hostile_names_are_harmless(form: str, name: str) -> None:
    text = _ours(str(FORMATS[form](report(group(name), cluster=name, rejected={name: 1}))))
    text.encode()
    assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []
    plain = _ours(str(FORMATS[form](report(group("x"), cluster="x", rejected={"x": 1}))))
    assert text.count("\n") == plain.count("\n")
    if form == "html":
        assert page(text).tags == page(plain).tags
        assert page(text).attributes == page(plain).attributes
        assert printable(name).strip() in cells_of(text)
    if form == "json":
        assert json.loads(text)["groups"][0]["name"] == name
        validator().validate(json.loads(text))
