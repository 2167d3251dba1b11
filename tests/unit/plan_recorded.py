# SPDX-License-Identifier: Apache-2.0
"""The recordings of tests/recorded/plan as the planner takes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from slurm_colloc.plan.model import Job, NodeKind, Priority, Scheduler, Shape, Site
from slurm_colloc.plan.site import rules_of
from tests.unit.made import RECORDED

FOLDER = RECORDED / "plan"
KIND, PARTITION = "h100", "plan"


@dataclass(frozen=True, eq=False)
class Recording:
    """A cluster, the jobs that it was given, and what each of them waited."""

    name: str
    load: float
    seed: int
    site: Site
    jobs: tuple[Job, ...]
    waited_s: tuple[float, ...]


def recordings() -> list[Path]:
    """Return the files."""
    return sorted(FOLDER.glob("*.jsonl"))


@cache
def recording(path: Path) -> Recording:
    """Read one; each job runs as long as it did."""
    head, *rows = map(json.loads, path.read_text().splitlines())
    account = {user: name for name, users in head["shares"].items() for user in users}
    jobs = tuple(_job(number, row, account[row["user"]]) for number, row in enumerate(rows))
    waited = tuple(float(row["started_s"] - row["submitted_s"]) for row in rows)
    return Recording(path.stem, head["load"], head["seed"], _site(head), jobs, waited)


def _site(head: dict[str, Any]) -> Site:
    nodes = tuple(
        NodeKind(name, (PARTITION,), ((KIND, node["gpus"]),), node["cpus"], node["mem_mib"])
        for name, node in head["nodes"].items()
    )
    settings = {**head["priority"], "SchedulerParameters": head["scheduler"], "SLURM_VERSION": head["release"]}
    # As `scontrol show config` prints them.
    settings["PriorityCalcPeriod"] = f"00:0{settings['PriorityCalcPeriod']}:00"
    rules = rules_of(settings)
    assert isinstance(rules.scheduler, Scheduler)
    assert isinstance(rules.priority, Priority)
    return Site(nodes, rules.scheduler, rules.priority)


def _job(number: int, row: dict[str, Any], account: str) -> Job:
    shape = Shape(KIND, row["gpus"], row["cpus"], row["mem_mib"])
    run_s = float(max(1, row["ended_s"] - row["started_s"]))
    limit_s = row["limit_min"] * 60.0
    return Job(number, float(row["submitted_s"]), run_s, limit_s, row["user"], account, PARTITION, "normal", shape)
