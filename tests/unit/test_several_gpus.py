# SPDX-License-Identifier: Apache-2.0
"""Runs of several GPUs: how many of these each used and how evenly, in reports and as advice for the next one."""

from pathlib import Path

import pytest

from slurm_colloc.cli.colloc.job_next import advise
from slurm_colloc.core.chart_model import SeveralGpus
from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.collocation import several_gpus
from slurm_colloc.facts.judgement import FEWER, Fitted, Judgement, RunFound, judge
from slurm_colloc.facts.one_job import find_job
from slurm_colloc.facts.run_rows import run_rows
from slurm_colloc.report.usage_notes import footnotes
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.golden import Printed
from tests.unit.made import MIG_POOL, device, process, run, seen, site, usage
from tests.unit.reports import report
from tests.unit.stored import stored
from tests.unit.test_job_story import ROW

SITE = site(MIG_POOL._replace(gpu_type="h100", gpus_per_node=4))


def used(job: str, *active_pct: float | None, node: str = "g1") -> list[NodeSample]:
    """Return an hour of a job on GPUs that were so active."""
    units = [
        device(f"{node}-{number}", gpu_util_pct=value, sm_active_pct=value) for number, value in enumerate(active_pct)
    ]
    held = [(unit.uuid, job) for unit in units]
    mine = [process(job, uuid=unit.uuid) for unit in units]
    return [seen(at_s, units, mine, held, interval_s=900.0, node=node) for at_s in (900.0, 1800.0, 2700.0, 3600.0)]


def several(store: Store) -> tuple[SeveralGpus, ...]:
    with store.connect() as database:
        aggregate(database, store, Window(0, 1e6, 1e6))
        return several_gpus(database)


def of(count: int) -> tuple[Gres, ...]:
    return (Gres("gpu", "h100", count),)


def test_each_gpu_is_counted_by_itself(tmp_path: Path) -> None:
    rows = [
        run("1", gres=of(4)),
        run("2", gres=of(2), node_list="g2"),
        # One GPU of two was not seen, and of one GPU there is nothing to say.
        run("3", gres=of(2), node_list="g3"),
        run("4", node_list="g4"),
        run("5", gres=(Gres("gpu", "h100_1g.10gb", 2),), node_list="m1"),
    ]
    rounds = [
        *used("1", 80.0, 40.0, 0.0, 0.0),
        *used("2", 60.0, 60.0, node="g2"),
        *used("3", 9.0, node="g3"),
        *used("4", 9.0, node="g4"),
    ]
    store = stored(tmp_path, rows, rounds)
    # Balances are 30 of 80, and 1: in the middle lies their mean.
    whole, *by_size = several(store)
    assert whole == SeveralGpus(3, 8.0, 2, 6, 4, 1, (0.375 + 1.0) / 2)
    assert by_size == [SeveralGpus(2, 4.0, 1, 2, 2, 1, 1.0, size=2), SeveralGpus(1, 4.0, 1, 4, 2, 0, 0.375, size=4)]
    with store.connect() as database:
        aggregate(database, store, Window(0, 1e6, 1e6))
        kinds, table = run_rows(database)
    at = [list(kinds).index(name) for name in ("job_id", "gpus", "used_gpus", "balance")]
    assert [[row[column] for column in at] for row in table] == [
        ["1", 4, 2, 0.375],
        ["2", 2, 2, 1.0],
        ["3", 2, None, None],
        ["4", None, None, None],
        ["5", None, None, None],
    ]


def test_without_samples_it_is_known_how_many_there_are_and_no_more(tmp_path: Path, printed: Printed) -> None:
    found, *_ = several(stored(tmp_path, [run("1", gres=of(4)), run("2", gres=of(2))]))
    assert found == SeveralGpus(2, 6.0, 0, 0, 0, 0, None)
    (line,) = [
        note for note in footnotes(report()._replace(several=found), ()) if note.startswith("runs of several GPUs")
    ]
    printed("report", line)
    assert several(stored(tmp_path / "one", [run("1")])) == ()


@pytest.mark.parametrize("shared", [True, False])
def test_what_neighbours_did_is_nobodys(tmp_path: Path, shared: bool) -> None:
    rows = [run("1", gres=of(2)), *([run("2", gres=(Gres("mps", "h100", 50),))] if shared else [])]
    other = [process("2", 200, "g1-0")] if shared else []
    rounds = [one._replace(processes=(*one.processes, *other)) for one in used("1", 50.0, 50.0)]
    found, *_ = several(stored(tmp_path, rows, rounds, site()))
    assert found.known_runs == (0 if shared else 1)


def several_used(folder: Path, *active_pct: float | None, gpus: int = 4) -> Judgement:
    store = stored(folder, [run("1", gres=of(gpus))], used("1", *active_pct), SITE)
    (found,) = find_job(store, "1", Window(0, 1e6, 1e6), SITE, 4)
    return judge(found)


def test_a_run_that_used_one_of_four_is_told_to_ask_for_one(tmp_path: Path, printed: Printed) -> None:
    said = several_used(tmp_path, 80.0, 0.0, 0.0, 0.0)
    (remedy,) = said.remedies
    assert (said.asked_gpus, said.used_gpus, remedy.gpu_hours) == (4, 1, 3.0)
    assert remedy.gres == "gpu:h100:1"
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    row = ROW._replace(work_dir=str(tmp_path), submit_line="sbatch --gres=gpu:h100:4 train.sh --epochs 3")
    advice = advise(said.found, row, None, None, SITE)
    assert advice.command == f"cd {tmp_path} && sbatch --gres=gpu:h100:4 --gres=gpu:h100:1 train.sh --epochs 3"
    printed("job", advice.fit)
    # Another option than its own is refused, or adds to it.
    row = row._replace(submit_line="sbatch train.sh")
    for directive, option in (
        ("--gpus-per-node=h100:4", "--gpus-per-node=h100:1"),
        ("--gpus=4", "--gpus=h100:1"),
        ("-n4 --gpus-per-task=1", ""),
        ("--gres=gpu:4 --gpus=4", ""),
        ("-n4", ""),
    ):
        (tmp_path / "train.sh").write_text(f"#!/bin/sh\n#SBATCH {directive}\n")
        command = advise(said.found, row, None, None, SITE).command
        assert command == (f"cd {tmp_path} && sbatch {option} train.sh" if option else "")


@pytest.mark.parametrize(
    ("active_pct", "gpus"),
    [
        ((80.0, 9.0, 9.0, 9.0), 4),
        ((80.0, 9.0, 0.0, None), 4),
        ((80.0, 0.0), 4),
        ((0.0, 0.0), 2),
    ],
)
def test_what_was_not_seen_of_each_gpu_is_no_advice(
    tmp_path: Path, active_pct: tuple[float | None, ...], gpus: int
) -> None:
    said = several_used(tmp_path, *active_pct, gpus=gpus)
    assert said.used_gpus is None
    assert FEWER not in [one.code for one in said.remedies]


def test_of_several_nodes_there_is_no_line(tmp_path: Path) -> None:
    four = Fitted("not-one-gpu", "", None, None, 0.0, 4, 3, 3.0, nodes=2)
    (remedy,) = judge(RunFound(usage(gres="gpu:h100:4"), None, None, four)).remedies
    assert (remedy.code, remedy.gres) == (FEWER, "")
