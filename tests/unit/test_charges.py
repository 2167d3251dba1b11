# SPDX-License-Identifier: Apache-2.0
"""What Slurm bills beside what was allocated, and which pieces a site bills at another part of a GPU than they are."""

import csv
import io
import json
from pathlib import Path

import pytest

from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.usage import used_hours_by
from slurm_colloc.site.admin_remarks import charges, notes
from slurm_colloc.site.cluster import look
from slurm_colloc.store.ingest import keep_text
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.golden import Printed
from tests.unit.made import H100, HOUR, near
from tests.unit.programs import colloc
from tests.unit.stored import INGESTED_S
from tests.unit.test_site import FakeClient
from tests.unit.test_site_found import read, text_of

ENDS = ("--since", "1970-01-01T00:00:00+00:00", "--until", "1970-01-02T00:00:00+00:00")
ROWS = [
    "1|c|ann|COMPLETED|0|1|3601|00:00:00|billing=32,cpu=8,gres/gpu:h100=1,node=1|g1",
    # Half of its time it was suspended.
    "2|c|ann|COMPLETED|0|1|7201|01:00:00|billing=4,cpu=1,gres/gpu:h100_1g.10gb=1,node=1|m1",
    "3|c|bob|COMPLETED|0|1|3601|00:00:00|cpu=8,gres/gpu:h100=1,node=1|g2",
    "4|c|cid|COMPLETED|0|1|3601|00:00:00|billing=0,cpu=8,gres/gpu:h100=1,node=1|g3",
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    header = "JobID|Cluster|User|State|Submit|Start|End|Suspended|AllocTRES|NodeList"
    (tmp_path / "jobs.txt").write_text("\n".join([header, *ROWS]) + "\n")
    kept = Store(str(tmp_path / "store"))
    keep_text(kept, "jobs", str(tmp_path / "jobs.txt"), (), None, INGESTED_S)
    return kept


def test_what_slurm_bills_stands_beside_what_was_allocated(store: Store, printed: Printed) -> None:
    with store.connect() as database:
        aggregate(database, store, Window(0, 1e6, 1e6))
        billed = {group.name: group.billing_hours for group in used_hours_by(database, "user")}
    # Of bob's nobody knows, which is not nothing.
    assert billed == {"ann": near(36.0), "bob": None, "cid": 0.0, "total": None}
    command = ["report", "--store", store.samples.folder, *ENDS]
    assert colloc(*command, "--billing") == 0
    printed(
        "report-billing", "\n".join(line for line in colloc.out.splitlines() if line.startswith(("USER", "ann", "bob")))
    )
    assert colloc(*command) == 0
    assert "BILLING" not in colloc.out, "on wish"
    assert colloc(*command, "--format", "csv") == 0
    assert [row["billing_hours"] for row in csv.DictReader(io.StringIO(colloc.out))][1:] == ["", "0.0"]
    assert colloc(*command, "--format", "json") == 0
    assert json.loads(colloc.out)["total"]["billing_hours"] is None
    assert colloc(*command, "--format", "csv", "--billing") == 2


def test_half_a_run_is_billed_half(store: Store) -> None:
    with store.connect() as database:
        aggregate(database, store, Window(1, 1 + HOUR / 2, 1e6))
        billed = {group.name: group.billing_hours for group in used_hours_by(database, "user")}
    assert (billed["ann"] or 0.0) == near(16.0 + 1.0)


SLICE, TWO, THREE = (f"gres/gpu:nvidia_h100_80gb_hbm3_{profile}" for profile in ("1g.10gb", "2g.20gb", "3g.40gb"))


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        # 4 of 32 is no seventh; 13.7 of 32 is three.
        (f"GRES/gpu:h100=32,{SLICE}=4,{THREE}=13.7", [SLICE]),
        (f"GRES/gpu:h100=150,{SLICE}=21.4,{THREE}=47", [THREE]),
        # Each typed GPU is a gres/gpu as well.
        (f"GRES/gpu=1,GRES/gpu:h100=6,{TWO}=1,{THREE}=6", [THREE]),
        ("GRES/gpu:h100=32", []),
        ("CPU=1", []),
        ("", []),
    ],
)
def test_pieces_that_are_billed_otherwise_are_named(weights: str, named: list[str], printed: Printed) -> None:
    cluster = look(FakeClient())
    config = read(text_of(cluster, {"h100": H100}))
    priced = cluster._replace(
        partitions=tuple(one._replace(billing_weights=weights) for one in cluster.partitions if one.name == "all")
    )
    found = list(charges(config, priced))
    assert len(found) == len(named), found
    assert all(f" for {name} and " in said for name, said in zip(named, found, strict=True))
    assert set(found) <= set(notes(config, priced))  # no difference of the file: a site may mean it
    largest = priced._replace(settings={**priced.settings, "PriorityFlags": "MAX_TRES"})
    assert len(list(charges(config, largest))) == (3 if weights.startswith("GRES/gpu=1") else len(named)), (
        "1, 1 and 6 of 6"
    )
    if named:
        printed("site-check", *found, case=weights.partition(",")[0])
