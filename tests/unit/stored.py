# SPDX-License-Identifier: Apache-2.0
"""A store with made-up runs and samples in it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.sweep import job_usage
from slurm_colloc.config import SiteConfig
from slurm_colloc.model import AllocationRow, JobUsage, Round
from slurm_colloc.observe.attribute import attribute_round
from tests.unit.made import MIG_POOL, MPS_POOL, SHARD_POOL, device, process, seen, site

SHARES = site(MPS_POOL, SHARD_POOL, MIG_POOL)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


# Later than every "now" of these tests, unless a test is about it.
INGESTED_S = 1e6


def stored(
    folder: str | Path, rows: Sequence[AllocationRow], rounds: Sequence[Round] = (), config: SiteConfig | None = None
) -> Store:
    store = Store(str(folder))
    store.write_allocations("a", rows, config, INGESTED_S)
    store.write_shares("s", "c", [(one, attribute_round(one)) for one in rounds])
    return store


def only(store: Store, since_s: float = 0, until_s: float = 1e10, now_s: float = 1e10) -> JobUsage:
    (usage,) = job_usage(store, since_s, until_s, now_s)
    return usage


def busy(
    *times: float, job: str = "1", uuid: str = "GPU-0", interval_s: float = 900.0, util: float | None = 50.0,
    sm: float | None = 20.0, mib: int | None = 3000,
) -> list[Round]:  # fmt: skip
    unit = device(uuid, gpu_util_pct=util, sm_active_pct=sm, gpu_mem_used_mib=mib)
    mine = [process(job, uuid=uuid, gpu_mem_used_mib=mib)]
    return [seen(at_s, [unit], mine, interval_s=interval_s) for at_s in times]
