# SPDX-License-Identifier: Apache-2.0
"""What is in the files of samples and facts: each column with its type, its unit and what it means.

The reference page of the store is made from this, and so is the SQL that reads, adds up and writes these columns.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from slurm_colloc.core.usage_model import ADDITIVE

HOUR_S, DAY_S = 3600, 86_400

# How rows of several hours, days or devices become one. ALL is a sum that is not known where one part is not.
KEY, SUM, ALL, MAX, MIN = "key", "sum", "sum of all", "max", "min"
_COMBINED = {
    SUM: "sum({0})",
    ALL: "if(count(*) = count({0}), sum({0}), NULL)",
    MAX: "max({0})",
    MIN: "min({0})",
}


class Column(NamedTuple):
    """One column; ``adds`` says how it is added up, in a table of facts."""

    name: str
    kind: str
    unit: str
    meaning: str
    adds: str = KEY


def _counted(name: str, meaning: str) -> Column:
    return Column(name, "BIGINT", "us", meaning, SUM)


_CLUSTER = Column("cluster", "VARCHAR", "", "ClusterName")
_NODE = Column("node", "VARCHAR", "", "its name")
_UUID = Column("uuid", "VARCHAR", "", "of the GPU or MIG slice")
_PERCENT = {
    "gpu_util_pct": "GPU_UTIL",
    "gr_active_pct": "GR active",
    "sm_active_pct": "SM activity",
    "sm_occupancy_pct": "SM occupancy",
    "tensor_active_pct": "tensor active",
    "dram_active_pct": "DRAM active",
}
_TIMES = (
    Column("at_s", "DOUBLE", "epoch s", "end of the time that the row stands for"),
    Column("interval_s", "DOUBLE", "s", "its length"),
)
SAMPLES = (
    _CLUSTER,
    _NODE,
    *_TIMES,
    _UUID,
    Column("job_id", "VARCHAR", "", "raw id of the job; empty for what is nobody's"),
    Column("unit_gpus", "DOUBLE", "GPUs", "what the unit is worth in whole GPUs, by compute slices"),
    Column("whole_sm_part", "DOUBLE", "", "its part of the SMs of the whole GPU"),
    Column("gpu_model", "VARCHAR", "", "of the device"),
    Column("profile", "VARCHAR", "", "of a MIG slice; empty for a whole GPU"),
    Column("process_count", "INTEGER", "", "processes of the job on it: 0 is held idle, NULL not known"),
    Column("direct_count", "INTEGER", "", "of these, those that are no clients of MPS; NULL not known"),
    *(
        Column(name, "FLOAT", "J" if name == "energy_j" else "%", f"the job's part of {_PERCENT.get(name, 'energy')}")
        for name in ADDITIVE
    ),
    Column("gpu_mem_used_mib", "BIGINT", "MiB", "of the job's processes"),
    Column("method", "VARCHAR", "", "how the reading was split"),
    Column("sharers", "INTEGER", "", "over how many jobs"),
)
HOSTS = (
    _CLUSTER,
    _NODE,
    *_TIMES,
    Column("job_id", "VARCHAR", "", "raw id of the job"),
    Column("cpu_s", "FLOAT", "s", "CPU time"),
    Column("host_mem_mib", "BIGINT", "MiB", "memory, without the page cache"),
    Column("read_mib", "FLOAT", "MiB", "bytes read"),
    Column("written_mib", "FLOAT", "MiB", "bytes written"),
)

# What a run used of a GPU or slice, by how that was told from others' use.
UNIT, PEAK, HOST, DEVICE, EVIDENCE, LEVEL = "unit", "peak", "host", "device", "evidence", "level"
_PEAK_MIB = Column("peak_mib", "BIGINT", "MiB", "largest GPU memory at one time", MAX)
_UNIT_GPUS = Column("unit_gpus", "DOUBLE", "GPUs", "what the unit is worth in whole GPUs, by compute slices", MAX)
_MODEL = Column("gpu_model", "VARCHAR", "", "of the device", MAX)
FACTS: Mapping[str, tuple[Column, ...]] = {
    UNIT: (
        _NODE,
        _UUID,
        Column("method", "VARCHAR", "", "how its use was told from others'"),
        _UNIT_GPUS,
        _counted("us", "sampled time inside the run"),
        _counted("whole_us", "the same with what readings reach beyond the run's ends"),
        _counted("util_us", "sampled time with a GPU_UTIL"),
        Column("util_fix", "BIGINT", "%/65536 us", "GPU_UTIL over that time", SUM),
        _counted("sm_us", "sampled time with an SM activity"),
        Column("sm_fix", "BIGINT", "%/65536 us", "SM activity over that time", SUM),
        Column("beyond_fix", "BIGINT", "%/65536 us", "of that, what a share used beyond what it was given", SUM),
        _MODEL,
        _counted("alone_us", "time in which SM activity, or GPU_UTIL in its place, was measured alone on a whole GPU"),
        _counted("ran_us", "of that, time in which it was above 0"),
        Column("alone_fix", "BIGINT", "%/65536 us", "SM activity over alone_us", SUM),
        _counted("shared_us", "time that it was seen to share with other jobs"),
        _counted("held_us", "time over the number of jobs that the device had"),
        _counted("idle_us", "time without a process of the run, or work; NULL not known"),
        _counted("direct_us", "time with a process that was no client of MPS; NULL not known"),
        Column(
            "blackout_us", "BIGINT", "us", "time in which SM activity read 0 beside a GPU_UTIL of 10 % or more", ALL
        ),
        Column("energy_uj", "BIGINT", "uJ", "energy", SUM),
        _PEAK_MIB,
        Column("first_s", "DOUBLE", "epoch s", "when the first reading of its activity began", MIN),
        Column("last_s", "DOUBLE", "epoch s", "its last reading of activity", MAX),
        Column("active_s", "DOUBLE", "epoch s", "its last reading above 0", MAX),
        Column("sharers", "INTEGER", "", "the most jobs that the device had", MAX),
    ),
    PEAK: (_PEAK_MIB,),
    HOST: (
        _NODE,
        _counted("cpu_us", "sampled time with a CPU time"),
        _counted("cpu_used_us", "CPU time"),
        Column("read_umib", "BIGINT", "MiB/1e6", "bytes read", SUM),
        Column("written_umib", "BIGINT", "MiB/1e6", "bytes written", SUM),
        Column("host_mem_mib", "BIGINT", "MiB", "largest host memory at one time", MAX),
    ),
    DEVICE: (
        _NODE,
        _UUID,
        Column("jobs", "INTEGER", "", "how many jobs the device had"),
        _UNIT_GPUS,
        _MODEL,
        Column("profile", "VARCHAR", "", "of a MIG slice; empty for a whole GPU", MAX),
        _counted("us", "sampled time"),
        _counted("stray_us", "time with a process of no job; NULL where processes are not known"),
        Column("stray_last_s", "DOUBLE", "epoch s", "the last reading with one", MAX),
        _counted("jobs_us", "sampled time of its jobs, added up"),
    ),
    EVIDENCE: (
        _NODE,
        _MODEL,
        Column("profile", "VARCHAR", "", "of a MIG slice; empty for a whole GPU", MAX),
        Column("devices", "BIGINT", "", "GPUs and slices read at one time, at most", MAX),
        Column("passes", "BIGINT", "", "readings", SUM),
        Column("sampled_s", "DOUBLE", "s", "time that they stand for", SUM),
        _PEAK_MIB,
        Column("held_since_s", "DOUBLE", "epoch s", "first reading with GPU memory in use", MIN),
        Column("peak_since_s", "DOUBLE", "epoch s", "first reading within 1 % of that day's peak"),
        Column("sm_s", "DOUBLE", "s", "time in which SM activity was measured alone, of all devices", SUM),
        Column("sm_ran_s", "DOUBLE", "s", "of that, time in which it was above 0", SUM),
        Column("sm_pct_s", "DOUBLE", "% s", "SM activity over that time", SUM),
        Column("sm_least_pct", "DOUBLE", "%", "the least of it", MIN),
        Column("sm_is_bound", "BOOLEAN", "", "GPU_UTIL stood in for it", MAX),
        Column("is_reading", "BOOLEAN", "", "it was read of whole GPUs, by exporters or logs", MAX),
        Column("sm_passes", "BIGINT", "", "readings with it", SUM),
        Column("sm_sum_pct", "DOUBLE", "%", "these, added up", SUM),
        Column("sm_sum_pct2", "DOUBLE", "%^2", "their squares, added up", SUM),
        Column("host_mem_mib", "BIGINT", "MiB", "largest host memory at one time", MAX),
        Column("busy_s", "DOUBLE", "s", "of sm_ran_s, time of which it is known whether a kernel ran", SUM),
        Column("busy_pct_s", "DOUBLE", "% s", "part of it in which one ran: GR active, else GPU_UTIL", SUM),
    ),
    LEVEL: (
        Column("kind", "VARCHAR", "", "'sm', 'dram' or 'cores'"),
        Column("level", "DOUBLE", "%, cores", "rounded up: 'sm' and 'dram' to 2 %, 'cores' to a quarter"),
        Column("weight", "DOUBLE", "s", "time at that level; of 'cores' readings", SUM),
    ),
}
# Which part of the facts a row is of, the time that it is of, and whose it is.
OF_RUN = (
    _CLUSTER,
    Column("job_id", "VARCHAR", "", "raw id of the run's job"),
    Column("start_s", "BIGINT", "epoch s", "when the run began"),
)
OF_FACT = (
    Column("part", "VARCHAR", "", f"one of {', '.join(FACTS)}"),
    Column("from_s", "BIGINT", "epoch s", "begin of the hour or day"),
    Column("span_s", "INTEGER", "s", "3600 or 86400"),
)


def names(columns: Iterable[Column]) -> list[str]:
    """Return the names of columns."""
    return [column.name for column in columns]


def typed(columns: Iterable[Column]) -> str:
    """Return columns for a CREATE TABLE."""
    return ", ".join(f"{column.name} {column.kind}" for column in columns)


def keys(columns: Iterable[Column]) -> list[str]:
    """Return the names of those columns by which facts are grouped."""
    return [column.name for column in columns if column.adds == KEY]


def combined(columns: Iterable[Column]) -> str:
    """Return SQL that makes one row of several: the keys as they are, the others added up."""
    return ", ".join(_combined(column) for column in columns)


def _combined(column: Column) -> str:
    if column.adds == KEY:
        return column.name
    return f"CAST({_COMBINED[column.adds].format(column.name)} AS {column.kind}) AS {column.name}"


def in_proportion(columns: Iterable[Column], before: str, until: str) -> str:
    """Return SQL for columns of which a part of the time counts, from one fraction of it to the next.

    Sums are cut where the sum so far is rounded, so that parts add up to the whole. The rows are called ``f``.
    """

    def cut(column: Column) -> str:
        name = f"f.{column.name}"
        if column.adds not in (SUM, ALL):
            return name
        return f"(round({name} * {until}) - round({name} * {before}))::BIGINT AS {column.name}"

    return ", ".join(map(cut, columns))


def all_columns() -> Iterator[Column]:
    """Yield the columns of a file of facts, each once."""
    every = (*OF_FACT, *OF_RUN, *(column for part in FACTS.values() for column in part))
    yield from {column.name: column for column in every}.values()
