# SPDX-License-Identifier: Apache-2.0
"""The columns of runs and nodes that audit rules use, and the queries that answer a rule."""

from collections.abc import Sequence
from typing import Any

from duckdb import DuckDBPyConnection

from slurm_colloc.core.audit_model import NODES, RUNS, Answer, JobLine, Question, Subject
from slurm_colloc.core.config import Pool, SiteConfig
from slurm_colloc.core.usage_model import MEASURED, WHOLE_DEVICE
from slurm_colloc.facts.aggregate import parts_of_runs
from slurm_colloc.facts.collocation import make_idle_units
from slurm_colloc.facts.fits import make_run_fits
from slurm_colloc.placement.fitted import has_pieces
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.store.queries import kinds_of, make_rows, named, query, quoted

# Sizes, by site.toml, of the nodes that a run of some partition and GPU type may have been on. Each figure is the most
# if they differ: the one by which less can be held against a run.
NODE_COLUMNS = {
    "cpus_per_gpu": "CPUs for jobs of a node of its partition and type for each of its GPUs, the most; NULL where "
    "site.toml does not say",
    "mem_per_gpu_mib": "host memory for jobs of such a node for each of its GPUs, the most",
    "gpu_mem_mib": "memory of a GPU of such a node, the most",
}
_KINDS = kinds_of("cluster VARCHAR, kind VARCHAR, partition VARCHAR") | dict.fromkeys(NODE_COLUMNS, "DOUBLE")


def make_node_shapes(database: DuckDBPyConnection, config: SiteConfig | None) -> None:
    """Make the table ``node_shapes``, one row for each cluster, kind of GPU and partition that site.toml describes."""
    pools_of: dict[tuple[str, str, str], list[Pool]] = {}
    cluster, pools = (config.cluster, config.pool) if config else ("", ())
    for pool in pools:
        # AccountingStorageTRES=gres/gpu alone tells no types, and shares often have none.
        shares = {name for name in ("mps", "shard") if shares_per_gpu(pool, name)}
        for kind in {pool.gpu_type or "untyped", "untyped", *shares} if pool.gpus_per_node else ():
            for partition in pool.partitions:
                pools_of.setdefault((cluster, kind, partition), []).append(pool)
    make_rows(database, "node_shapes", _KINDS, [(*which, *_shape(pools)) for which, pools in pools_of.items()])


def _shape(pools: Sequence[Pool]) -> tuple[float | None, ...]:
    cpus = [(pool.cpus_per_node, pool.gpus_per_node) for pool in pools]
    mem_mib = [(pool.mem_per_node_mib, pool.gpus_per_node) for pool in pools]
    gpu_mem_mib = [(pool.gpu_mem_mib or 0, 1) for pool in pools]
    return tuple(
        max(amount / units for amount, units in have) if min(have)[0] else None for have in (cpus, mem_mib, gpu_mem_mib)
    )


# Columns of a run that rules may use -> their meanings. NULL is not known.
RUN_COLUMNS = {
    "cluster": "ClusterName",
    "user": "who ran it",
    "account": "account",
    "partition": "partition",
    "qos": "QOS",
    "state": "Slurm's state of the run, as it was at the window's end",
    "job_id": "as users write it, with the array's task",
    "job_name": "its name",
    "kind": "gres types",
    "shown": "the gres in Slurm's words",
    "whole": "it had whole GPUs only",
    "devices": "GPUs and slices",
    "gpus": "whole-GPU equivalents, NULL where a share's size is not known",
    "blocked": "GPUs that nobody else could have meanwhile, by compute slices, NULL for a share",
    "cpus": "CPUs given, over all nodes, NULL where not known",
    "mem_given_mib": "host memory given, over all nodes, NULL where not known",
    "nodes": "nodes given, NULL where not known",
    "limit_min": "its time limit in minutes, NULL where there is none or it is not known",
    "start_s": "when it began",
    "end_s": "when it ended, NULL while it runs: of a past window, as it was at its end",
    "from_s": "from when it is inside the window",
    "to_s": "until when it is inside the window, or was known to run",
    "span_s": "seconds inside the window",
    "suspended_s": "seconds of all of it in which it was suspended; nobody knows which",
    "allocated": "GPU-hours inside the window, suspensions left out",
    "held": "GPU-hours kept from others, NULL where not known",
    "util_measured": "allocated GPU-hours for which GPU_UTIL is known",
    "util_used": "GPU_UTIL over these, in GPU-hours",
    "sm_measured": "allocated GPU-hours for which SM activity is known",
    "sm_used": "SM activity over these, in GPU-hours",
    "peak_mib": "peak of GPU memory of the run, over its devices of one node at one time",
    "coverage_pct": "sampled part of its device time, NULL where the source records none",
    "shared_hours": "device-hours that it was seen to share, NULL where it has no samples",
    "held_idle_hours": "GPU-hours, by compute slices, sampled without a process of the run or work on its device; "
    "of a share hours of its whole GPU",
    "direct_s": "device-seconds sampled with a process of the run that was no client of MPS, NULL where not known",
    "blackout_s": "seconds in which SM activity read 0 beside a GPU_UTIL of 10 % or more: its counters were taken "
    "away; NULL where it read 0 and no GPU_UTIL told whether that is so, as on a slice",
    "tail_s": "seconds from its last activity to its last reading, NULL where no reading told of activity",
    "unseen_s": "seconds from its last reading to to_s, NULL where it has none",
    "idle_s": "seconds of tail_s in which it was surely idle, as if all that nobody measured of it lay in there",
    "cores": "CPU cores kept busy on average while sampled",
    "host_mem_mib": "peak of host memory on one node",
    "read_mib": "bytes read while sampled",
    "written_mib": "bytes written while sampled",
    "host_pct": "part of its time for which the host was sampled, on the node where that is least; NULL unless on all",
    "methods": "how its use was told from others'",
    "strong": "each of these is a measurement of this run alone",
    "csub_there": "csub had decided of a job of its cluster when it began, and gives pieces: the site's policy is auto",
    "fit_judged": "whole GPUs, and it is known what it would have fitted, by the rule of 'colloc report'",
    "fit_unit": "the piece of a GPU that it would have fitted, NULL where none holds it, or where that is not known",
    "fit_place": "the partition in which that piece is asked for, empty for the run's own",
    "fit_gpus": "what that piece is worth in whole GPUs",
    "fit_most_mib": "the largest peak of GPU memory in MiB that this piece holds",
    "fit_freed": "GPU-hours that this piece would have left to others, NULL where it is not known",
    "fit_sm_pct": "its mean SM activity while kernels ran in percent, where that is judged",
    "idle_units": "of several whole GPUs those that were never used (IDLE_PCT), by a measurement of this run alone",
    "idle_units_hours": "their sampled hours",
    "fewer": "some of its several whole GPUs were never used, not all, and it is known of each",
    **NODE_COLUMNS,
}
_FITTED = kinds_of(
    "fit_judged BOOLEAN, fit_unit VARCHAR, fit_place VARCHAR, fit_gpus DOUBLE, fit_most_mib BIGINT, fit_freed DOUBLE, "
    "fit_sm_pct DOUBLE"
)
# Each of a run's figures is a measurement of this run alone.
STRONG = f"""len(methods) > 0 AND list_has_all(['{MEASURED}', '{WHOLE_DEVICE}'], methods)
               AND (shared_hours = 0 OR NOT list_contains(methods, '{WHOLE_DEVICE}'))"""
_WORST = 5


def make_audited(database: DuckDBPyConnection, config: SiteConfig | None = None) -> None:
    """Make what questions of runs and of nodes are answered from, of a database that was aggregated."""
    make_node_shapes(database, config)
    make_rows(database, "audited_fits", {"run": "BIGINT"} | _FITTED, [])
    if config and has_pieces(config):
        for part in parts_of_runs(database):
            make_run_fits(database, config, part=part)
            database.execute(
                f"INSERT INTO audited_fits SELECT run, {', '.join(_FITTED)} FROM run_fits WHERE fit_judged"
            )
    # The time since which csub gave pieces, if it does.
    database.execute(
        "CREATE TEMP TABLE csub_since AS SELECT cluster, min(at_s) AS csub_since_s FROM decisions "
        "WHERE $places AND shadow IS NOT true GROUP BY cluster",
        {"places": config is not None and config.policy == "auto"},
    )
    make_idle_units(database)
    runs = query(f"facts/sql/{RUNS}", columns=quoted(RUN_COLUMNS), strong=STRONG)
    for name, select in ((RUNS, runs), (NODES, query(f"facts/sql/{NODES}"))):
        database.execute(f"CREATE TABLE {name} AS {select}")


def answer(database: DuckDBPyConnection, question: Question) -> Answer:
    """Return what a rule's question finds, those subjects first of which most GPU-hours are."""
    figures = ", ".join(f"'{name}': ({sql})" for name, sql in question.figures.items())
    cases = "".join(f" WHEN ({condition}) IS NOT true THEN '{reason}'" for reason, condition in question.needs.items())
    words = {"figures": f"{{{figures}}}" if figures else "NULL", "why": f"CASE{cases} END", "most": _WORST}
    words |= {"scope": question.scope or "true", "judged": question.judged}
    text = query("facts/sql/answer", **{**question._asdict(), **words})
    rows = list(named(database, text, question.parameters))
    (rows_in, judged), *_ = [(int(row.pop("rows_in")), int(row.pop("rows_judged"))) for row in rows]
    return Answer(rows_in, judged, tuple(_subject(row) for row in rows if row["name"] is not None))


def _subject(row: dict[str, Any]) -> Subject:
    row["methods"], row["worst"] = tuple(row["methods"] or ()), tuple(JobLine(**run) for run in row["worst"])
    row["excluded"] = tuple((row["excluded"] or {}).items())
    return Subject(**row | {"figures": row["figures"] or {}, "label": row["label"] or ""})
