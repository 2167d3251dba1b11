# SPDX-License-Identifier: Apache-2.0
"""Rows and tables of tests/gpu/proof.py: what each arm took, did and broke; pure functions of what was measured."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.core.usage_model import NodeSample
from tests.gpu.proof_plan import BY_HAND, Cell

Row = Mapping[str, Any]
# What of a promise may be broken by chance alone, and what a decision's promise may be called: the upper bound first.
MAY_BREAK = 0.02
PROMISES = ("slowdown_upper", "slowdown_most", "slowdown_q98", "slowdown_q99", "slowdown_expected", "slowdown")
_OOM = ("out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation")


def ended(output: str) -> dict[str, float]:
    """Return what a program said at its end; empty where it came to none."""
    lines = [line for line in output.splitlines() if line.startswith('{"began_s"')]
    try:
        return dict(json.loads(lines[-1])) if lines else {}
    except ValueError:
        return {}


def state(said: Mapping[str, float], output: str) -> str:
    """Return how a job ended."""
    return "COMPLETED" if said else "GPU_OOM" if any(word in output for word in _OOM) else "LOST"


def promised(decision: Row) -> float | None:
    """Return the slowdown that csub promised for a job, where its decision says so."""
    return next((float(decision[name]) for name in PROMISES if decision.get(name) is not None), None)


def activity(rounds: Iterable[NodeSample], since_s: float, until_s: float) -> dict[str, float | None]:
    """Return what the GPUs did in a time, as the agent's samples have it: means over them, and energy in all."""
    inside = [one for one in rounds if since_s < one.at_s <= until_s and one.devices]
    seen = [(one.interval_s, device) for one in inside for device in one.devices]

    def mean(name: str) -> float | None:
        known = [(s, getattr(device, name)) for s, device in seen if getattr(device, name) is not None]
        return sum(s * value for s, value in known) / sum(s for s, _ in known) if known else None

    energy = [device.energy_j for _, device in seen if device.energy_j is not None]
    return {
        "sampled_s": sum(one.interval_s for one in inside),
        "energy_j": sum(energy) if energy else None,
        "gpu_mem_peak_mib": max((device.gpu_mem_used_mib or 0 for _, device in seen), default=None),
        **{name: mean(name) for name in ("gpu_util_pct", "sm_active_pct", "dram_active_pct")},
    }


def only_starting(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return the times in which jobs started and none worked: Python and its libraries, not the GPU."""
    starts = [(row["began_s"], row["first_s"]) for row in rows if row["first_s"] is not None]
    works = [(row["first_s"], row["ended_s"]) for row in rows if row["first_s"] is not None]
    marks = sorted({mark for pair in (*starts, *works) for mark in pair})

    def inside(pairs: Iterable[tuple[float, float]], a: float, b: float) -> bool:
        return any(begin <= a and b <= end for begin, end in pairs)

    steps = itertools.pairwise(marks)
    return [(a, b) for a, b in steps if inside(starts, a, b) and not inside(works, a, b)]


def without_startup(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows by a clock that stands while jobs only start."""
    dead = only_starting(rows)

    def clock(at_s: float | None) -> float | None:
        return None if at_s is None else at_s - sum(max(0.0, min(b, at_s) - a) for a, b in dead)

    return [
        {**row, **{name: clock(row[name]) for name in ("arrives_s", "began_s", "first_s", "ended_s")}} for row in rows
    ]


def times(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return makespan, and mean and 95th percentile of wait and turnaround, of the jobs of one cell."""
    done = [row for row in rows if row["ended_s"] is not None]
    waits = [row["began_s"] - row["arrives_s"] for row in done]
    took = [row["ended_s"] - row["arrives_s"] for row in done]
    return {
        "makespan_s": max(row["ended_s"] for row in done) - min(row["arrives_s"] for row in rows) if done else None,
        "wait_mean_s": statistics.fmean(waits) if waits else None,
        "wait_p95_s": quantile(waits, 0.95),
        "turnaround_mean_s": statistics.fmean(took) if took else None,
        "turnaround_p95_s": quantile(took, 0.95),
    }


def quantile(values: Sequence[float], part: float) -> float | None:
    """Return the least value that so large a part stays at or below."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)] if values else None


def steady_s(row: Row) -> float | None:
    """Return the time of a job's steps behind the first, of which there are as many in each arm."""
    return None if row["first_s"] is None or row["ended_s"] is None else float(row["ended_s"] - row["first_s"])


def slowdowns(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows with their slowdown over the same job alone, in the sbatch arm of the same round."""
    alone: dict[tuple[str, str], list[float]] = defaultdict(list)
    own: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if row["arm"] == "sbatch" and (took := steady_s(row)):
            alone[row["mix"], row["command"]].append(took)
            own[row["mix"], row["round"], row["number"]] = took
    found = []
    for row in rows:
        base = own.get((row["mix"], row["round"], row["number"]))
        if base is None and (others := alone.get((row["mix"], row["command"]))):
            base = statistics.median(others)
        took = steady_s(row)
        found.append({**row, "slowdown": took / base if took and base and row["arm"] != "sbatch" else None})
    return found


def is_broken(row: Row) -> bool:
    """Tell whether a job on a share was slowed more than csub promised, or than the site's bound where it said none."""
    limit = row["promised"] if row["promised"] is not None else row["bound"]
    return bool(is_promise(row) and limit is not None and row["slowdown"] > limit)


def is_promise(row: Row) -> bool:
    """Tell whether a job was given a share, so that csub answers for its speed."""
    return (
        row["slowdown"] is not None and row["arm"] not in ("sbatch", *BY_HAND) and row["given"] not in ("", "as asked")
    )


def chance_of(broken: int, of: int) -> float:
    """Return how likely so many or more of ``of`` promises break where MAY_BREAK of them do."""
    return sum(math.comb(of, k) * MAY_BREAK**k * (1 - MAY_BREAK) ** (of - k) for k in range(broken, of + 1))


def _groups(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[list[Row]]]:
    """Return by mix, bound and arm the rows of each round."""
    cells: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        cells[row["mix"], row["bound"], row["arm"], row["round"]].append(row)
    groups: dict[tuple[Any, ...], list[list[Row]]] = defaultdict(list)
    for (mix, bound, arm, _), inside in sorted(cells.items(), key=lambda one: (one[0][0], one[0][1] or 0, *one[0][2:])):
        groups[mix, bound, arm].append(inside)
    return groups


def tables(rows: Sequence[Row], done: Sequence[Row]) -> Iterator[str]:
    """Yield the report, table by table, in Markdown."""
    known = slowdowns(rows)
    groups = _groups(known)
    name = {
        key: f"{key[2]}{f' {key[1]}' if key[1] else ''}{'' if key[0] == 'all' else f', {key[0]}'}" for key in groups
    }
    columns = ("makespan_s", "wait_mean_s", "wait_p95_s", "turnaround_mean_s", "turnaround_p95_s")
    for title, change in (("as the clock says", list), ("the clock stands while jobs only start", without_startup)):
        lines = {name[key]: [times(change(one)) for one in rounds] for key, rounds in groups.items()}
        yield _table(f"Times, {title}: median of rounds (least to most)", lines, columns)
    of_cells: dict[str, list[Row]] = defaultdict(list)
    for one in done:
        key = (one["mix"], one["bound"], one["arm"])
        if key in name:
            of_cells[name[key]].append(one)
    measured = ("energy_j", "sm_active_pct", "dram_active_pct", "gpu_util_pct", "gpu_mem_peak_mib")
    yield _table("The GPU, by its driver", of_cells, measured)
    said = sorted({name for one in done for name in one if name.startswith("report_")})
    yield _table("The same by colloc report", of_cells, said)
    yield _table(
        "Harm",
        {name[key]: [harm([row for one in rounds for row in one])] for key, rounds in groups.items()},
        tuple(harm([])),
    )
    yield _table(
        "Makespan over other arms'", {name[key]: ratios(key, groups) for key in groups}, ("over_sbatch", "over_expert")
    )
    yield "\n".join(["## What limits each arm", "", *_limits(name, groups, of_cells)])
    yield "\n".join(["## Each job", "", *_jobs(known)])


def harm(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return what went wrong in the rounds of one arm, in all, and for each 100 jobs."""
    promises = [row for row in rows if is_promise(row)]
    found: dict[str, float | None] = {
        "jobs": len(rows),
        "lost": sum(row["state"] == "LOST" for row in rows),
        "out_of_memory": sum(row["state"] == "GPU_OOM" for row in rows),
        "run_again": sum(row["runs"] > 1 for row in rows),
        "on_shares": len(promises),
        "broken": (broken := sum(map(is_broken, promises))),
        "chance": chance_of(broken, len(promises)),
    }
    slow = [row["slowdown"] for row in rows if row["slowdown"] is not None]
    found["slowdown_median"] = statistics.median(slow) if slow else None
    found["slowdown_worst"] = max(slow, default=None)
    wrong = sum(row["state"] != "COMPLETED" or row["runs"] > 1 or is_broken(row) for row in rows)
    found["per_100_jobs"] = 100 * wrong / len(rows) if rows else None
    return found


def ratios(key: tuple[Any, ...], groups: Mapping[tuple[Any, ...], Sequence[Sequence[Row]]]) -> list[dict[str, float]]:
    """Return the makespan of each round over the sbatch arm's of the same round, and over the expert's."""
    mix, bound, _ = key
    others = {"over_sbatch": (mix, None, "sbatch"), "over_expert": (mix, bound, "expert")}
    spans = {
        label: {one[0]["round"]: times(one)["makespan_s"] for one in groups.get(other, ())}
        for label, other in others.items()
    }
    found = []
    for one in groups[key]:
        own = times(one)["makespan_s"]
        of_round = {label: here.get(one[0]["round"]) for label, here in spans.items()}
        found.append({label: own / other for label, other in of_round.items() if own and other})
    return found


def _limits(
    name: Mapping[tuple[Any, ...], str],
    groups: Mapping[tuple[Any, ...], Sequence[Sequence[Row]]],
    of_cells: Mapping[str, Sequence[Row]],
) -> Iterator[str]:
    """Yield of each arm how much of its time jobs only start, how many work at once, and why others do not."""
    for key, rounds in groups.items():
        spans = sum(times(one)["makespan_s"] or 0.0 for one in rounds) or math.nan
        starting = sum(b - a for one in rounds for a, b in only_starting(one))
        working = sum(steady_s(row) or 0.0 for one in rounds for row in one)
        pending = sum((Counter(one.get("pending", {})) for one in of_cells.get(name[key], ())), Counter[str]())
        kept = Counter(row["why"] for one in rounds for row in one if row["given"] == "as asked" and row["why"])
        said = [f"only starting {starting / spans:.0%}", f"{working / spans:.2f} jobs work at once"]
        said += [f"seconds pending: {', '.join(f'{why} {s}' for why, s in pending.most_common(4))}"] if pending else []
        yield f"- **{name[key]}**: {'; '.join(said)}"
        yield from (f"  - whole, {count} times: {why}" for why, count in kept.most_common(6))


def _jobs(rows: Sequence[Row]) -> Iterator[str]:
    columns = ("mix", "bound", "arm", "round", "name", "given", "cpus", "state", "slowdown", "promised")
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        if row["arm"] != "sbatch":
            yield f"| {' | '.join(_short(row.get(one)) for one in columns)} |"


def _table(title: str, lines: Mapping[str, Sequence[Row]], columns: Sequence[str]) -> str:
    text = [f"## {title}", "", f"| arm | rounds | {' | '.join(columns)} |", f"| --- |{' --- |' * (len(columns) + 1)}"]
    for arm, rounds in lines.items():
        text.append(f"| {arm} | {len(rounds)} | {' | '.join(_spread(rounds, column) for column in columns)} |")
    return "\n".join(text)


def _spread(rounds: Sequence[Row], column: str) -> str:
    values = [one[column] for one in rounds if one.get(column) is not None]
    if not values:
        return "-"
    middle = _short(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({_short(min(values))} to {_short(max(values))})"


def _short(value: object) -> str:
    if value is None or value == "":
        return "-"
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )


def decision(folder: Path, job_id: str) -> dict[str, Any]:
    """Return what csub decided last of a job, in a spool of one folder for each user; empty: it decided nothing."""
    found = (json.loads(path.read_text()) for path in folder.glob("*/*.json"))
    of_job = (dict(one) for one in found if one.get("job_id") == job_id)
    return max(of_job, key=lambda one: one["at_s"], default={})


def add(path: Path, rows: Sequence[Row]) -> None:
    """Append lines of JSON."""
    with path.open("a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of JSON that are there; a last one that was cut off is none."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def key_of(one: Row) -> Cell:
    """Return the cell that a row is of."""
    return Cell(one["mix"], one["round"], one["arm"], one["bound"])
