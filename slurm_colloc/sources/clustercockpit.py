# SPDX-License-Identifier: Apache-2.0
"""Jobs from a ClusterCockpit job table exported as CSV: allocation and mean GPU_UTIL in one row.

The table's ``acc_mem_used_avg`` is not read: its unit is given as GB and its values are MB, with outliers.
"""

import csv
import io
from collections import Counter

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import AllocationRow
from slurm_colloc.sources.means import JobMeans
from slurm_colloc.sources.sacct_client import Parsed

METHOD = "job mean by ClusterCockpit"
_NEEDED = ("job_id", "cluster", "user", "start_time", "duration_s", "num_acc", "acc_utilization_avg", "state")


def parse_jobs(text: str) -> Parsed:
    """Return the runs in a job table.

    Raises:
        InputError: a column that is needed is missing.
    """
    reader = csv.DictReader(io.StringIO(text))
    try:
        missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
    except csv.Error as error:
        raise InputError(f"ClusterCockpit table, in its first line: {error}") from error
    if missing:
        raise InputError(
            f"ClusterCockpit columns {', '.join(missing)} are missing; its first line must name {', '.join(_NEEDED)}"
        )
    rows, means, rows_in = [], [], 0
    rejected: Counter[str] = Counter()
    try:
        for record in reader:
            rows_in += 1
            if None in record.values():
                rejected["the row is shorter than the header"] += 1
                continue
            try:
                row, mean = _row(record), _mean(record)
            except (ValueError, TypeError):
                rejected["a number is missing or malformed"] += 1
                continue
            rows.append(row)
            # Only a job with GPUs has a GPU_UTIL; the table writes 0 for the others.
            measured = row.gres and mean is not None
            means.append(JobMeans(mean, None, row.gres[0].quantity, METHOD) if measured else None)
    except csv.Error as error:
        raise InputError(f"ClusterCockpit table, after {rows_in} rows: {error}") from error
    return Parsed(tuple(rows), rows_in, 0, dict(rejected), tuple(means))


def _mean(record: dict[str, str]) -> float | None:
    text = record["acc_utilization_avg"]
    value = float(text) if text else None
    if value is not None and not 0 <= value <= 100:  # also refuses nan
        raise ValueError("not a percentage")
    return value


def _row(record: dict[str, str]) -> AllocationRow:
    start_s, gpus, length_s = int(record["start_time"]), int(record["num_acc"]), int(record["duration_s"])
    if min(start_s, gpus, length_s) < 0:
        raise ValueError("a negative number")
    return AllocationRow(
        cluster=record["cluster"],
        job_id=record["job_id"],
        job_id_raw=record["job_id"],
        user=record["user"],
        account=record.get("project", ""),
        partition=record.get("partition", ""),
        qos="",
        state=record["state"].upper(),
        submit_s=None,
        start_s=start_s,
        end_s=start_s + length_s,
        suspended_s=0,
        gres=(Gres("gpu", "", gpus),) if gpus else (),
        node_list="",
        job_name="",
    )
