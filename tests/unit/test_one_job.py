# SPDX-License-Identifier: Apache-2.0
"""One job's runs in a store: whose they are, its time in pieces, and what it would have fitted."""

from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.cli.colloc.job_next import advise
from slurm_colloc.core.chart_model import JobPiece
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import Gres, because
from slurm_colloc.core.wording import words
from slurm_colloc.estimate.lookup import Known
from slurm_colloc.facts.judgement import RunFound
from slurm_colloc.facts.one_job import find_job
from slurm_colloc.report.job import Advice
from slurm_colloc.slurm.job_visibility import Visible
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.golden import Printed
from tests.unit.made import HOUR, MIG_POOL, MPS_POOL, decision, device, process, run, seen, site, usage
from tests.unit.stored import busy, stored
from tests.unit.test_job_story import ROW

SITE = site(MIG_POOL._replace(gpu_type="h100", gpus_per_node=2))
GAP = JobPiece(None, None, None)


def found(store: Store, job: str = "1", pieces: int = 4, config: SiteConfig | None = None) -> list[RunFound]:
    return find_job(store, job, Window(-1, 1e6, 1e6), config, pieces)


def only(store: Store, **how: Any) -> RunFound:
    (one,) = found(store, **how)
    return one


def test_time_in_pieces_with_a_gap(tmp_path: Path) -> None:
    rounds = [*busy(900, util=0.0, sm=0.0, mib=100), *busy(2700, util=80.0, sm=40.0, mib=6000)]
    line = only(stored(tmp_path, [run()], rounds)).timeline
    assert line is not None
    assert line.pieces == (JobPiece(0.0, 0.0, 100), GAP, JobPiece(80.0, 40.0, 6000), GAP)
    assert (line.since_s, line.until_s, line.devices, line.devices_unused, line.neighbours) == (0, HOUR, 1, 0, 0)


def test_a_piece_is_a_mean_over_time_and_devices(tmp_path: Path) -> None:
    rounds = [
        seen(at_s, [device(uuid, gpu_util_pct=util, sm_active_pct=0.0, gpu_mem_used_mib=1000) for uuid, util in units],
             [process(uuid=uuid, gpu_mem_used_mib=1000) for uuid, _ in units], interval_s=900)
        for at_s, units in ((900, [("GPU-0", 100.0), ("GPU-1", 0.0)]), (1800, [("GPU-0", 50.0), ("GPU-1", 50.0)]))
    ]  # fmt: skip
    line = only(stored(tmp_path, [run(end_s=1800, gres=(Gres("gpu", "h100", 2),))], rounds), pieces=1).timeline
    assert line is not None
    assert line.pieces == (JobPiece(50.0, 0.0, 2000),)
    assert (line.devices, line.active_pct) == (2, (0.0, 0.0))


def test_of_each_gpu_the_mean_activity_is_known_the_busiest_first(tmp_path: Path) -> None:
    units = [
        device("GPU-0", sm_active_pct=10.0),
        device("GPU-1", gpu_util_pct=50.0, sm_active_pct=None),
        device("GPU-2", gpu_util_pct=None, sm_active_pct=None),
    ]
    held = [(f"GPU-{number}", "1") for number in range(3)]
    later = [units[0]._replace(sm_active_pct=40.0), *units[1:]]
    rounds = [seen(900, units, [process()], held, interval_s=900), seen(1200, later, [process()], held, interval_s=300)]
    line = only(stored(tmp_path, [run(gres=(Gres("gpu", "h100", 3),))], rounds)).timeline
    assert line is not None
    assert line.active_pct == (50.0, (900 * 10.0 + 300 * 40.0) / 1200, None)


def test_gpus_on_which_nothing_ran_are_counted(tmp_path: Path) -> None:
    units = [device("GPU-0"), device("GPU-1", gpu_util_pct=0.0, sm_active_pct=0.0, energy_j=None)]
    rounds = [seen(900, units, [process()], holders=[("GPU-0", "1"), ("GPU-1", "1")], interval_s=900)]
    line = only(stored(tmp_path, [run(gres=(Gres("gpu", "h100", 2),))], rounds)).timeline
    assert line is not None
    assert (line.devices, line.devices_unused, line.active_pct) == (2, 1, (20.0, 0.0))


def test_neighbours_are_counted_and_not_named(tmp_path: Path) -> None:
    mine = [process("1"), process("2", pid=101), process("3", pid=102)]
    rounds = [seen(900, [device()], mine, interval_s=900)]
    store = stored(tmp_path, [run(), run("2", user="bob"), run("3", user="eve")], rounds)
    line = only(store).timeline
    assert line is not None
    assert line.neighbours == 2
    assert "bob" not in repr(only(store))
    of_ann = Store(store.samples.folder, None, visible=Visible(False, "ann"))
    assert only(of_ann).timeline == line


def test_only_ones_own(tmp_path: Path) -> None:
    store = stored(tmp_path, [run(), run("2", user="bob")], busy(900))
    of_bob = Store(store.samples.folder, None, visible=Visible(False, "bob"))
    assert [one.usage.job_id for one in found(of_bob, "2")] == ["2"]
    assert found(of_bob, "1") == []
    assert found(store, "7") == []


def test_the_id_of_an_array_or_a_het_job_stands_for_its_parts(tmp_path: Path) -> None:
    rows = [run(f"6{mark}{task}", job_id_raw=f"6{task}") for mark in "_+" for task in "01"]
    rows = [*rows[:2], *(one._replace(job_id=one.job_id.replace("6+", "8+")) for one in rows[2:])]
    store = stored(tmp_path, [*rows[:2], *(one._replace(job_id_raw=f"8{one.job_id[-1]}") for one in rows[2:])])
    assert [one.usage.job_id for one in found(store, "6")] == ["6_0", "6_1"]
    assert [one.usage.job_id for one in found(store, "8")] == ["8+0", "8+1"]
    assert [one.usage.job_id for one in found(store, "8+1")] == ["8+1"]


def test_each_run_of_a_requeued_job_is_one(tmp_path: Path) -> None:
    rows = [run(end_s=1800, state="REQUEUED"), run(start_s=1800, end_s=3600)]
    first, second = found(stored(tmp_path, rows, busy(900, 2700)))
    assert (first.usage.state, second.usage.start_s) == ("REQUEUED", 1800)
    assert first.timeline is not None
    assert second.timeline is not None
    assert (first.timeline.until_s, second.timeline.until_s) == (1800, 3600)


def test_without_samples_there_is_no_line(tmp_path: Path) -> None:
    one = only(stored(tmp_path, [run()]))
    assert (one.timeline, one.evidence) == (None, None)


# --- what it would have fitted, and the next time ---


def measured(tmp_path: Path, **use: Any) -> RunFound:
    return only(stored(tmp_path / "store", [run()], busy(900, 1800, 2700, 3600, **use)), config=SITE)


def test_a_small_run_would_have_fitted_a_slice_and_has_a_line_for_it(tmp_path: Path, printed: Printed) -> None:
    one = measured(tmp_path, sm=10.0, mib=6000)
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    row = ROW._replace(work_dir=str(tmp_path), submit_line="sbatch --gres=gpu:h100:1 train.sh --epochs 3")
    advice = advise(one, row, None, None, SITE)
    words = "--gres=gpu:h100:1 train.sh --epochs 3"
    assert advice.command == f"cd {tmp_path} && csub --gpu-footprint=mem=6900M,sm=10 {words}"
    printed("job", advice.fit, advice.expected)


@pytest.mark.parametrize(
    "line",
    [
        "sbatch --wrap=python train.py",
        "sbatch",
        "srun train.sh",
        "sbatch gone.sh",
        "sbatch --comment=two words train.sh",
        "sbatch --gpu-footprint=mem=3G train.sh",
        "sbatch --no-such-option train.sh",
        "",
    ],
)
def test_a_line_that_may_not_work_is_not_given(tmp_path: Path, line: str) -> None:
    one = measured(tmp_path, sm=10.0, mib=6000)
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    row = ROW._replace(work_dir=str(tmp_path), submit_line=line, job_name="train.sh")
    advice = advise(one, row, None, None, SITE)
    assert advice.fit.startswith("gpu:h100_1g.10gb:1")
    assert advice.command == ""
    assert " --gpu-footprint=mem=6900M,sm=10 " in advice.expected  # what to add to whatever submits it


def test_a_line_gets_what_csub_gives_by_its_hint_alone(tmp_path: Path) -> None:
    one = measured(tmp_path, sm=5.0, util=45.0, mib=4000)
    assert one.evidence is not None
    rarely = one._replace(evidence=one.evidence._replace(busy_mean_pct=45.0), fitted=None)
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    row = ROW._replace(work_dir=str(tmp_path), submit_line="sbatch --gres=gpu:h100:1 train.sh")
    smallest = MIG_POOL._replace(gpu_type="h100", gpus_per_node=2, slice=MIG_POOL.slice[1:2])
    config = site(smallest, max_slowdown=1.25)
    advice = advise(rarely, row, None, None, config)
    assert (advice.fit.startswith("none: "), advice.command, advice.expected) == (True, "", "")


def test_shares_for_turns_are_told_beside_those_that_hold_a_run(tmp_path: Path) -> None:
    one, fits = measured(tmp_path, sm=10.0, mib=6000), []
    for users in ("one", "each"):
        config = site(MPS_POOL, mps_users=users, mps_daemon="site", max_slowdown=1.25)
        fits.append(advise(one._replace(fitted=None), ROW, None, None, config).fit)
    shares = [int(fit.removeprefix("mps:").split()[0]) for fit in fits]
    turns = words(because("slowdown-beside-users", upper=1.25, turns=shares[1] - shares[0]))
    assert [turns in fit for fit in fits] == [False, True]


def test_a_large_run_is_told_why_no_piece_holds_it(tmp_path: Path, printed: Printed) -> None:
    one = measured(tmp_path, sm=95.0, mib=60000)
    advice = advise(one, ROW, None, None, SITE)
    why = because("nothing-holds", need_mib=60_256, sm_pct=95.0, partitions=("gpu",))
    assert advice.fit.startswith(f"none: {words(why)}")
    printed("job", advice.fit)
    assert advice.command == ""


def test_what_gpu_util_bounds_is_called_so(tmp_path: Path, printed: Printed) -> None:
    advice = advise(measured(tmp_path, sm=None, util=10.0, mib=6000), ROW, None, None, SITE)
    printed("job", advice.fit)


def test_a_job_that_ran_no_kernel_fits_no_piece_and_has_no_line(tmp_path: Path) -> None:
    one = measured(tmp_path, sm=0.0, util=0.0, mib=814)
    assert one.timeline is not None
    assert (one.timeline.devices, one.timeline.devices_unused) == (1, 1)  # a process was there all the time
    advice = advise(one, ROW, None, None, SITE)
    assert (advice.fit.startswith("no GPU"), advice.command, advice.expected) == (True, "", "")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"state": "FAILED"}, "the run ended as FAILED"),
        ({"gpu_mem_peak_mib": None}, "not measured with the job alone"),
        ({"sampled_s": 1000.0}, "less than 60 % of the run time was sampled"),
    ],
)
def test_nothing_is_said_on_thin_evidence(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    one = measured(tmp_path, sm=10.0, mib=6000)
    assert one.evidence is not None
    advice = advise(one._replace(evidence=one.evidence._replace(**fields), fitted=None), ROW, None, None, SITE)
    assert advice.fit.startswith("not known: ")
    assert why in advice.fit
    assert advice.command == ""


def test_runs_of_several_gpus_or_of_shares_are_not_judged(tmp_path: Path, printed: Printed) -> None:
    one = measured(tmp_path, sm=10.0, mib=6000)
    advice = advise(RunFound(usage(gres="gpu:h100:2"), None, one.evidence), ROW, None, None, SITE)
    assert advice == Advice(advice.fit)
    printed("job", advice.fit)
    for gres in ("mps:30", "shard:1"):
        assert advise(RunFound(usage(gres=gres), None, one.evidence), ROW, None, None, SITE) == Advice()
    assert one.evidence is not None
    on_slice = one.evidence._replace(mode="mig")
    assert advise(RunFound(usage(gres="gpu:h100_1g.10gb:1"), None, on_slice), ROW, None, None, SITE) == Advice()
    assert advise(one._replace(evidence=None), ROW, None, None, SITE) == Advice()
    assert advise(one._replace(usage=one.usage._replace(state="RUNNING")), ROW, None, None, SITE) == Advice()


def test_a_job_that_csub_submitted_gets_csubs_own_word(tmp_path: Path, printed: Printed) -> None:
    one = measured(tmp_path, sm=10.0, mib=6000)
    assert one.evidence is not None
    known = Known((one.evidence._replace(mode="exclusive", signature="sig"),), ())
    advice = advise(one, ROW, decision(), known, SITE)
    assert advice.command == ""
    printed("job", advice.expected)
    # One that csub put on a slice, and one of which nothing is known.
    later = advise(RunFound(usage(gres="gpu:h100_1g.10gb:1"), None, None), ROW, decision(rung="exact"), known, SITE)
    printed("job", later.expected)
    unknown = advise(one, ROW, decision(), Known((), ()), SITE)
    printed("job", unknown.expected)
