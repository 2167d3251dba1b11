# SPDX-License-Identifier: Apache-2.0
"""Until when a store knows which jobs run."""

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.store import Store


def known_until_s(store: Store, database: DuckDBPyConnection) -> float | None:
    """Return until when runs are known, of a text by its own time; None where none were ever taken in.

    Each run says when it was; where none ran since, the logs say until when the accounting was asked.

    Raises:
        StoreError: a log is damaged.
    """
    (taken_s,) = database.execute("SELECT max(ingested_s) FROM readings").fetchone() or (None,)
    logs = (log.get(key) for log in store.logs().values() for key in ("asked_until_s", "seen_until_s"))
    return max((float(at_s) for at_s in (taken_s, *logs) if at_s is not None), default=None)
