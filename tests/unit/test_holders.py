# SPDX-License-Identifier: Apache-2.0
"""Whose a plain exporter's readings are, by what 'colloc holders' saw: on one host, each minute, without root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import AllocationRow, NodeSample
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.slurm.jobs import Held, parse_all_held
from slurm_colloc.sources.holders import Holding, Timeline, after_a_look, parse_holders, text_of, with_holders
from slurm_colloc.sources.prometheus_server import Server
from slurm_colloc.store.ingest import keep_history
from tests.fakes.http_server import Asked, Fake, fake_server
from tests.unit.golden import Printed
from tests.unit.made import H100, HOUR, RECORDED, RELEASES, device, near, run, seen
from tests.unit.programs import colloc, program
from tests.unit.stored import job_usage, stored
from tests.unit.test_prometheus_server import data


def held(
    job: str, *units: int, start_s: int = 0, node: str = "g1", gres: str = "h100", weight: float | None = None
) -> Held:
    return Held(job, start_s, node, gres, units, weight)


@pytest.mark.parametrize("release", RELEASES)
def test_what_each_release_says_of_all_jobs(release: str) -> None:
    text = (RECORDED / f"slurm-{release}" / "scontrol" / "job.txt").read_text()
    found = [one for one in parse_all_held(text, {str(number) for number in range(1, 16)}) if one.gres_indices]
    # Of those that ended nothing is held any more, and one waits.
    assert [(one.job_id, one.node, one.type, one.gres_indices) for one in found] == [("14", "g1", "h100", (0, 1))]
    assert parse_all_held(text, set()) == ()


def test_a_job_has_its_gpus_from_its_start_and_gives_none_back_unseen() -> None:
    first = after_a_look([], [held("1", 0, 1, start_s=100), held("2", 2, start_s=150)], 160)
    # Job 1 shrinks to GPU 0; job 2 is gone; job 3 came.
    later = after_a_look(first, [held("1", 0, start_s=100), held("3", 1, start_s=200)], 220)
    assert parse_holders(text_of(later)) == (tuple(later), 0)
    known = Timeline(later, {"2": [(150.0, 190.0)]})
    assert [one.job_id for one in known.at("g1", 1, 130.0)] == ["1"], "it had it before the first look"
    assert [one.job_id for one in known.at("g1", 1, 170.0)] == [], "between two looks nobody knows"
    assert [one.job_id for one in known.at("g1", 1, 210.0)] == ["3"]
    assert [one.job_id for one in known.at("g1", 0, 220.0)] == ["1"]
    # By accounting job 2 ended between the looks; without it, it is known until the last look.
    assert [bool(known.at("g1", 2, at_s)) for at_s in (189.0, 191.0)] == [True, False]
    assert [bool(Timeline(later, {}).at("g1", 2, at_s)) for at_s in (160.0, 189.0)] == [True, False]


def test_a_requeued_job_is_two_runs_and_a_running_one_ends_with_the_last_look() -> None:
    rows = after_a_look([], [held("1", 0, start_s=100)], 160)
    rows = after_a_look(rows, [held("1", 3, start_s=300)], 310)
    known = Timeline(rows, {"1": [(100.0, 200.0), (300.0, None)]})
    assert [bool(known.at("g1", 0, at_s)) for at_s in (200.0, 201.0)] == [True, False]
    assert [bool(known.at("g1", 3, at_s)) for at_s in (299.0, 310.0, 311.0)] == [False, True, False]


def test_rows_that_are_none_are_counted() -> None:
    good = text_of([Holding("1", 1, "g1", "h100", 0, None, 1, 2)])
    bad = "1,1,g1,h100,nan,,1,2\n1,x,g1,h100,0,,1,2\n1\n1,1,g1,h100,0,,1,inf\n"
    assert parse_holders(good + bad) == ((Holding("1", 1, "g1", "h100", 0, None, 1, 2),), 4)


def slices(*places: int) -> NodeSample:
    units = [device(f"GPU-a/{place}", gres_index=0, profile="1g.10gb", process_list=False) for place in places]
    return seen(60.0, units, interval_s=60.0)


def test_slices_are_numbered_by_place_and_a_node_that_misses_one_is_left_alone() -> None:
    gres = "nvidia_h100_80gb_hbm3_1g.10gb"
    known = Timeline(after_a_look([], [held("1", 0, gres=gres), held("2", 2, gres=gres)], 90), {})
    unmatched: set[str] = set()
    (told,) = with_holders([slices(13, 7, 9)], known, unmatched)
    assert ([(one.uuid, one.job_id) for one in told.holders], unmatched) == (
        [("GPU-a/13", "2"), ("GPU-a/7", "1")],
        set(),
    )
    (told,) = with_holders([slices(13, 7)], known, unmatched)
    assert (told.holders, unmatched) == ((), {"g1"})
    # A gres that names another profile is not that slice.
    other = Timeline(after_a_look([], [held("1", 0, 1, 2, gres="h100_3g.40gb")], 90), {})
    assert with_holders([slices(13, 7, 9)], other, set())[0].holders == ()


def test_shares_have_their_weights_and_what_an_exporter_says_itself_stays() -> None:
    known = Timeline(after_a_look([], [held("1", 0, weight=30.0), held("2", 0, weight=10.0)], 90), {})
    one = seen(60.0, [device(process_list=False, sm_active_pct=40.0)], interval_s=60.0)
    (told,) = with_holders([one], known, set())
    used = {share.job_id: share.sm_active_pct for share in attribute_sample(told)}
    assert used == {"1": near(30.0), "2": near(10.0), "": near(0.0)}
    named = one._replace(holders=told.holders[:1])
    assert with_holders([named], known, set()) == (named,)
    same = [device(f"GPU-{uuid}", process_list=False) for uuid in "ab"]
    unmatched: set[str] = set()
    assert with_holders([seen(60.0, same)], known, unmatched)[0].holders == ()
    assert unmatched == {"g1"}


# --- from an exporter that knows no jobs to hours ---


@pytest.fixture
def server() -> Iterator[Fake]:
    """Yield a Prometheus that scraped four GPUs of g1 each 30 s for an hour; each is busy by its number in tenths."""

    def answer(asked: Asked) -> object:
        if "label" in asked.path:
            return data(["DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_FB_USED"])
        begun_s = float(asked.query["time"]) - HOUR
        each = 0.1 if "SM_ACTIVE" in asked.query["query"] else 1000
        result = [
            {
                "metric": {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "modelName": H100, "Hostname": "g1"},
                "values": [[begun_s + at_s, str(each * gpu)] for at_s in range(0, HOUR, 30)] if not begun_s else [],
            }
            for gpu in range(4)
        ]
        return data({"resultType": "matrix", "result": result})

    with fake_server() as fake:
        fake.answer = answer  # type: ignore[assignment]
        yield fake


# Two jobs of two users share the node, so that accounting alone tells nothing; a third is too short for a look.
ROWS = [
    run("1", end_s=3000, gres=(Gres("gpu", "h100", 2),)),
    run("2", start_s=600, end_s=1800, user="bob"),
    run("3", start_s=2000, end_s=2040, user="cid"),
]


def looked(rows: list[AllocationRow]) -> list[Holding]:
    units = {"1": (1, 3), "2": (2,)}
    found: list[Holding] = []
    for at_s in range(30, HOUR, 60):
        on = [one for one in rows if one.job_id in units and (one.start_s or 0) <= at_s < (one.end_s or 0)]
        found = after_a_look(
            found, [held(one.job_id, *units[one.job_id], start_s=one.start_s or 0) for one in on], at_s
        )
    return found


def test_used_hours_of_each_user_are_those_of_their_gpus(server: Fake, tmp_path: Path, printed: Printed) -> None:
    store = stored(tmp_path, ROWS)
    counted = keep_history(store, Server(server.url), "c", 0, HOUR, attribute_sample, held=looked(ROWS))
    one, two, three = job_usage(store, 0, HOUR, HOUR)
    assert (one.allocated_gpu_hours, one.sm_used_gpu_hours) == (near(2 * 3000 / HOUR), near((0.1 + 0.3) * 3000 / HOUR))
    assert (one.coverage_pct, one.methods, one.gpu_mem_peak_mib) == (near(100.0), ("whole device",), 4000)
    assert (two.sm_used_gpu_hours, two.coverage_pct) == (near(0.2 * 1200 / HOUR), near(100.0))
    assert (three.sm_used_gpu_hours, three.coverage_pct) == (None, 0.0)
    printed("ingest", *counted.said)
    # Without the looks nobody's.
    bare = stored(tmp_path / "bare", ROWS)
    assert keep_history(bare, Server(server.url), "c", 0, HOUR, attribute_sample).said == ()
    assert {run.sm_used_gpu_hours for run in job_usage(bare, 0, HOUR, HOUR)} == {None}


SCONTROL = """case "$*" in *"show job -d -o"*) cat "{folder}/jobs" ;; *) exit 1 ;; esac
"""
JOB = (
    "JobId={id} JobName=a UserId=ann(1) JobState=RUNNING StartTime={start} EndTime=9 JOB_GRES=gpu:1   "
    "Nodes=g1 CPU_IDs=0 Mem=1 GRES=gpu:h100:1(IDX:{unit}) MinCPUsNode=1 WorkDir=/ \n"
)


def test_the_command_keeps_one_file_a_day_and_goes_on_after_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "scontrol", SCONTROL.replace("{folder}", str(tmp_path)), monkeypatch)
    program(tmp_path, "squeue", "echo 7; echo 8", monkeypatch)
    monkeypatch.setattr("slurm_colloc.core.clock.now", lambda: 86_400.0 * 3 + 500)
    folder = tmp_path / "holders"
    folder.mkdir()
    (tmp_path / "jobs").write_text(JOB.format(id=7, start=86_400 * 3 + 60, unit=2))
    assert colloc("holders", "--folder", str(folder), "--count", "1") == 0
    (tmp_path / "jobs").write_text(JOB.format(id=8, start=86_400 * 3 + 90, unit=1))
    assert colloc("holders", "--folder", str(folder), "--count", "1") == 0
    rows, rejected = parse_holders((folder / "1970-01-04.csv").read_text())
    assert ({(one.job_id, one.unit, one.from_s - 86_400 * 3) for one in rows}, rejected) == (
        {("7", 2, 60), ("8", 1, 90)},
        0,
    )
    assert colloc("holders", "--folder", str(tmp_path / "none"), "--count", "1") == 2
    (tmp_path / "jobs").unlink()
    assert colloc("holders", "--folder", str(folder), "--count", "1") == 2
    assert len(parse_holders((folder / "1970-01-04.csv").read_text()).rows) == 2


def test_ingest_reads_the_folder_and_says_what_it_cannot(
    server: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").write_text(
        f'schema = 1\ncluster = "c"\nslurm_release = "24.11"\n[paths]\nstate = "{tmp_path}"\n'
    )
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    store = stored(tmp_path / "store", ROWS)
    (tmp_path / "holders").mkdir()
    (tmp_path / "holders" / "1970-01-01.csv").write_text(text_of(looked(ROWS)) + "torn\n")
    ends = ("--since", "1970-01-01T00:00:00+00:00", "--until", "1970-01-01T01:00:00+00:00")
    assert colloc("ingest", "--prometheus", server.url, *ends) == 0
    assert [run.coverage_pct for run in job_usage(store, 0, HOUR, HOUR)] == [near(100.0), near(100.0), 0.0]
    assert "1 row cannot be read" in colloc.err
    assert re.search(r"1 job with .*: 3\n", colloc.err)
    assert colloc("ingest", "--holders", "x") == 2
