# SPDX-License-Identifier: Apache-2.0
"""The page of the store's columns, made of its schema."""

from collections.abc import Iterable

from slurm_colloc.store.schema import (
    DEVICE,
    EVIDENCE,
    FACTS,
    HOST,
    HOSTS,
    LEVEL,
    OF_FACT,
    OF_RUN,
    PEAK,
    SAMPLES,
    UNIT,
    Column,
)

_PARTS = {
    UNIT: "what a run used of a GPU or slice, by how that was told from others' use",
    PEAK: "of a run that had several, what they held at one time on one node",
    HOST: "what a run did on a node besides",
    DEVICE: "a GPU or slice by the number of jobs that it had; of no run",
    EVIDENCE: "what csub's evidence is made of; of days only",
    LEVEL: "for how long a run's figures were how high; of days only",
}


def store_page() -> str:
    """Return the page of all columns."""
    assert _PARTS.keys() == FACTS.keys()
    parts = "\n".join(f"## facts, part `{part}`\n\n{_PARTS[part]}\n\n{_table(FACTS[part])}" for part in FACTS)
    return f"""# The store's columns

Made from `slurm_colloc/store/schema.toml`. Where the files lie, and for how long:
[the store](../explanation/accounting.md#the-store). NULL is not known, never 0.

## samples

{_table(SAMPLES)}
## hosts

{_table(HOSTS)}
## facts

A file has rows of several parts. These columns are of each:

{_table((*OF_FACT, *OF_RUN))}
{parts}"""


def _table(columns: Iterable[Column]) -> str:
    rows = (f"| `{one.name}` | {one.kind} | {one.unit} | {one.meaning} |\n" for one in columns)
    return f"| column | type | unit | meaning |\n| --- | --- | --- | --- |\n{''.join(rows)}"
