# SPDX-License-Identifier: Apache-2.0
"""A rule asked of made-up runs: each has all columns of facts/audited.py, and a test names those it is about."""

from collections.abc import Sequence
from typing import Any

import duckdb

from slurm_colloc.audit.rules import entries, findings, question
from slurm_colloc.audit.timing import of_about
from slurm_colloc.core.audit_model import RUNS, Answer, Finding
from slurm_colloc.core.config_audit import Audit, AuditRule
from slurm_colloc.facts.aggregate import IDLE_S
from slurm_colloc.facts.audited import RUN_COLUMNS, answer

# A day of one H100, all of it sampled, a fifth of its SMs busy.
RUN: dict[str, Any] = {
    "cluster": "c",
    "user": "ann",
    "account": "lab",
    "partition": "gpu",
    "qos": "normal",
    "state": "COMPLETED",
    "job_id": "1",
    "job_name": "train",
    "kind": "h100",
    "shown": "gpu:h100:1",
    "whole": True,
    "devices": 1,
    "gpus": 1.0,
    "blocked": 1.0,
    "cpus": 16,
    "mem_given_mib": 128_000,
    "nodes": 1,
    "limit_min": 2880,
    "start_s": 0,
    "end_s": 86_400,
    "from_s": 0.0,
    "to_s": 86_400.0,
    "span_s": 86_400.0,
    "suspended_s": 0,
    "allocated": 24.0,
    "held": 24.0,
    "util_measured": 24.0,
    "util_used": 12.0,
    "sm_measured": 24.0,
    "sm_used": 4.8,
    "peak_mib": 20_000,
    "coverage_pct": 100.0,
    "shared_hours": 0.0,
    "held_idle_hours": 0.0,
    "direct_s": 86_400.0,
    "blackout_s": 0.0,
    "tail_s": 0.0,
    "unseen_s": 0.0,
    "cores": 4.0,
    "host_mem_mib": 10_000,
    "read_mib": 1_000.0,
    "written_mib": 100.0,
    "host_pct": 100.0,
    "methods": ["measured"],
    "strong": True,
    "csub_there": True,
    "fit_judged": True,
    "fit_unit": "gpu:h100_1g.10gb:1",
    "fit_place": "",
    "fit_gpus": 0.125,
    "fit_most_mib": 9728,
    "fit_freed": 21.0,
    "fit_sm_pct": 14.0,
    "idle_units": 0.0,
    "idle_units_hours": 0.0,
    "fewer": False,
    "cpus_per_gpu": 12.0,
    "mem_per_gpu_mib": 125_000.0,
    "gpu_mem_mib": 80_000.0,
}
IDLE = {"util_used": 0.0, "sm_used": 0.0, "peak_mib": 400}
PARKED = IDLE | {"peak_mib": 30_000}
_KINDS = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "VARCHAR", list: "VARCHAR[]"}
# What is made of the others, as it is of runs of a store.
assert set(RUN) == set(RUN_COLUMNS) - {"idle_s"}


def ask(
    code: str,
    *runs: dict[str, Any],
    about: str = "others",
    told: Sequence[str] = (),
    until_s: float | None = None,
    **settings: Any,
) -> tuple[Answer, list[Finding]]:
    """Return what the rule with this code, set like this, finds in runs that differ from RUN like these.

    The window ends ``until_s``, else when the last of them was known to run. With ``about`` "jobs" the rule is asked of
    jobs that run; ``told`` are jobs whose users were told.
    """
    config = Audit((AuditRule(code, **settings),))
    (entry,) = (known for known in of_about(entries(config), about) if known.rule.code == code)
    rows = [{**RUN, "job_id": str(number), **fields} for number, fields in enumerate(runs, 1)]
    assert all(set(row) == set(RUN) for row in rows)
    kinds = ", ".join(f'"{name}" {_KINDS[type(value)]}' for name, value in RUN.items())
    with duckdb.connect() as database:
        made = f"SELECT unnest($rows::STRUCT({kinds})[], max_depth := 2)"
        query = f"SELECT *, job_id || '@' || start_s AS run, {IDLE_S} AS idle_s FROM ({made})"
        database.execute(f"CREATE TABLE {RUNS} AS {query}", {"rows": rows})
        asked = question(entry, until_s or max(row["to_s"] for row in rows), told)
        found = answer(database, asked)
    return found, findings(entry, found, "--since A --until B")


def one(code: str, *runs: dict[str, Any], **settings: Any) -> Finding:
    """Return the one finding."""
    (finding,) = ask(code, *runs, **settings)[1]
    return finding


def none(code: str, *runs: dict[str, Any], **settings: Any) -> bool:
    """Return whether nothing is found."""
    return not ask(code, *runs, **settings)[1]
