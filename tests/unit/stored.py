# SPDX-License-Identifier: Apache-2.0
"""A store with made-up runs and samples in it."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.sweep import job_usage
from slurm_colloc.config import SiteConfig
from slurm_colloc.model import AllocationRow, JobUsage, Round
from slurm_colloc.observe.attribute import attribute_round
from tests.unit.made import HOUR, MIG_POOL, MPS_POOL, SHARD_POOL, device, process, seen, site

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
    sampled(store, rounds)
    return store


class MadeHour:
    """An hour of a journal that was never written down."""

    def __init__(self, node: str, began_s: int, rounds: Sequence[Round], rejected: int = 0) -> None:
        self.node, self.began_s, self.rounds = node, began_s, rounds
        self.read_bytes, self.rejected = len(rounds), rejected

    def __iter__(self) -> Iterator[Round]:
        return iter(self.rounds)


def sampled(store: Store, rounds: Sequence[Round], cluster: str = "c") -> None:
    """Seal these Rounds, each in its node and hour."""
    hours: dict[tuple[str, int], list[Round]] = {}
    for one in rounds:
        hours.setdefault((one.node, int(one.at_s // HOUR * HOUR)), []).append(one)
    for (node, began_s), of in hours.items():
        with store.samples.work("seal", cluster, node) as work:
            assert work is not None
            store.samples.seal(cluster, MadeHour(node, began_s, of), attribute_round, work)


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
