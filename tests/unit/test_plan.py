# SPDX-License-Identifier: Apache-2.0
"""colloc site plan: from a store to an answer, and what it refuses to answer."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.config import MigSlice, Partition, Pool
from slurm_colloc.core.model import Evidence, Gres
from slurm_colloc.plan.answer import answer
from slurm_colloc.plan.change import Asked, changed, otherwise
from slurm_colloc.plan.model import Job, NodeKind, Priority, Shape, Site
from slurm_colloc.plan.past import ONE, PIECES, Allocated, Past, Run, Use, past_of
from slurm_colloc.plan.replay import replay
from slurm_colloc.plan.sharing import moved, share
from slurm_colloc.plan.site import ENDLESS, rules_of, site_of
from slurm_colloc.plan.text import as_table
from tests.unit.golden import Printed
from tests.unit.made import H100, evidence, run, site
from tests.unit.programs import colloc
from tests.unit.stored import stored

DAY = 86400
SINCE = 1_760_054_400
DAYS = 28
POOL = Pool("h", "n[1-2]", ("gpu",), "h100", H100, 4, 81559, 132, cpus_per_node=64, mem_per_node_mib=1_000_000)
SITE_TOML = f"""
schema = 1
cluster = "c"
slurm_release = "22.05"
default_partition = "gpu"
policy = "auto"
[[pool]]
name = "h"
nodes = "n[1-2]"
partitions = ["gpu"]
gpu_type = "h100"
gpu_model = "{H100}"
gpus_per_node = 4
gpu_mem_mib = 81559
sm_count = 132
cpus_per_node = 64
mem_per_node_mib = 1000000
[[partition]]
name = "gpu"
[sharing]
max_slowdown = 2.0
"""
NODES = Site(
    tuple(NodeKind(f"n{at}", ("gpu",), (("h100", 4),), ENDLESS, ENDLESS) for at in (1, 2)), priority=Priority(age=1.0)
)


def queue(load: float = 0.95) -> list[Job]:
    rng = random.Random(5)
    jobs: list[Job] = []
    given, wanted = 0.0, load * 8 * DAYS * DAY
    while given < wanted:
        gpus = rng.choices((1, 2, 4), (0.8, 0.15, 0.05))[0]
        run_s = float(int(min(max(300, rng.lognormvariate(0, 1) * 7200), DAY)))
        at_s, user = float(rng.randrange(DAYS * DAY)), rng.choice("abcd")
        shape = Shape("h100", gpus, 0, 0)
        jobs.append(Job(len(jobs), at_s, run_s, 2 * run_s, user, "lab", "gpu", "normal", shape))
        given += gpus * run_s
    return jobs


def folder(tmp_path: Path, jobs: list[Job], *, measured: bool = True) -> None:
    """Write a store with these jobs as Slurm, by the replay, would have run them; of those of one GPU use is known."""
    rows, known = [], []
    for one in replay(NODES, jobs).started:
        job, (start_s, end_s) = one.job, (SINCE + int(one.start_s), SINCE + int(one.end_s))
        rows.append(
            run(
                str(job.number + 1),
                start_s,
                end_s,
                submit_s=SINCE + int(job.submit_s),
                user=job.user,
                gres=(Gres("gpu", "h100", job.shape.units),),
                node_list=f"n{one.node + 1}",
                limit_min=int(job.limit_s // 60) + 1,
            )
        )
        if measured and job.shape.units == 1:
            ran_s = float(end_s - start_s)
            fields: dict[str, Any] = {"sampled_s": ran_s, "elapsed_s": ran_s, "ended_s": float(end_s)}
            known.append(evidence(str(job.number + 1), 6000, sm_active_mean_pct=8.0, **fields))
    written(tmp_path, rows, known)


def written(tmp_path: Path, rows: list[Any], known: list[Evidence]) -> None:
    store = stored(tmp_path / "store", rows)
    store.write_past("c", [("ann", one) for one in known])
    store.write_log("sacct", {"rows_in": len(rows), "used": len(rows), "steps": 0, "rejected": {}})


def planned(tmp_path: Path, *options: str, days: int = DAYS) -> int:
    ends = [datetime.fromtimestamp(at_s, UTC).isoformat() for at_s in (SINCE, SINCE + days * DAY)]
    return colloc("site", "plan", "--store", str(tmp_path / "store"), "--since", ends[0], "--until", ends[1], *options)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm to ask
    (tmp_path / "site.toml").write_text(SITE_TOML)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    folder(tmp_path, queue())
    return tmp_path


def answered(filled: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert planned(filled, "--format", "json", *options) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def total(found: dict[str, Any], which: str) -> float:
    mean: float = found["classes"][-1][f"{which}_mean_s"]["value"]
    return mean


def test_today_is_compared_with_what_was(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(filled, capsys)
    assert found["jobs"] == len(queue())
    assert found["gpus"] == found["gpus_then"] == 8
    # The store's waits are the replay's own, but for whole seconds and minutes, and where backfill's ticks fall.
    assert found["error_pct"] < 10
    assert [one["then_mean_s"] for one in found["classes"]] == [None] * len(found["classes"])
    mean = found["classes"][-1]["today_mean_s"]
    assert mean["low"] < mean["high"]
    assert (found["weeks"], found["draws"]) == (4, 1000)


def test_more_gpus_shorten_the_queue_and_fewer_lengthen_it(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more, fewer = (answered(filled, capsys, "--gpus", gpus) for gpus in ("+4", "-4"))
    assert (more["gpus_then"], fewer["gpus_then"]) == (12, 4)
    assert (more["sooner"], fewer["sooner"]) == (more["draws"], 0)
    assert more["recommendation"].startswith("+4 GPUs: ")
    assert fewer["recommendation"].startswith("no reason for -4 GPUs")
    assert total(more, "then") < total(more, "today") / 2
    assert total(fewer, "then") > 2 * total(fewer, "today")


def test_a_range_keeps_the_backlog() -> None:
    """One GPU works off what came on the first day: nobody waits less than days, and weeks drawn anew say so."""
    config, rules = site(POOL._replace(nodes="n1", gpus_per_node=1)), rules_of(None)
    rows, free_s = [], SINCE
    for n, at_s in enumerate([*[0] * 40, *range(3 * 3600, 28 * DAY, 3 * 3600)]):
        free_s = max(SINCE + at_s, free_s)
        rows.append(
            allocated(job_id=str(n), submit_s=SINCE + at_s, start_s=free_s, end_s=free_s + 11_000, limit_min=200)
        )
        free_s += 11_000
    for days in (28, 27):
        ends = SINCE, SINCE + days * DAY
        past = past_of(rows, {}, config, ends)
        mean = answer(past, config, rules, Asked(), lambda *_: None).total.today_mean_s
        if days == 27:
            assert (mean.low, mean.high) == (None, None)
        else:
            assert mean.low is not None
            assert mean.high is not None
            assert 3 * DAY < mean.low < mean.value < mean.high


def test_more_demand_lengthens_the_queue(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(filled, capsys, "--demand", "1.3")
    assert total(found, "then") > 2 * total(found, "today")


@pytest.mark.parametrize("option", ["--mps", "--shards"])
def test_shares_free_gpus(option: str, filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, part = (answered(filled, capsys, option, "--adoption", part) for part in ("1", "0.3"))
    assert total(whole, "then") < total(part, "then") < total(part, "today")
    assert 0 < part["freed_gpu_hours"] < whole["freed_gpu_hours"]
    sharing = part["sharing"]
    placed = sum(sharing["pieces"].values())
    assert placed + sharing["not_adopted"] + sharing["not_measured"] + sharing["nothing_holds"] == sharing["one_gpu"]
    assert 0.2 < placed / sharing["one_gpu"] < 0.4


def test_the_best_geometry_beats_none(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(filled, capsys, "--mig", "auto")
    assert found["asked"]["cuts"]
    (pool,) = found["compared"]
    assert pool["pool"] == "h"
    turnarounds = [one["mean_turnaround_s"] for one in pool["geometries"]]
    assert turnarounds == sorted(turnarounds)
    assert pool["geometries"][0]["cuts"] == found["asked"]["cuts"]
    assert [] in [one["cuts"] for one in pool["geometries"]]
    assert len(turnarounds) > 2
    assert total(found, "then") < total(found, "today")
    assert found["sharing"]["slowdown"]["upper"] > found["sharing"]["slowdown"]["expected"] > 1


def test_a_named_geometry_is_sized_by_the_demand_or_as_asked(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sized = answered(filled, capsys, "--mig", "1g.10gb+1g.10gb+1g.10gb+1g.10gb+1g.10gb+1g.10gb+1g.10gb")
    assert [one["nodes"] for one in sized["asked"]["cuts"]] == [1]
    asked = answered(filled, capsys, "--mig", "3g.40gb+3g.40gb@1")
    assert asked["asked"]["cuts"] == [{"pool": "h", "nodes": 1, "geometry": ["3g.40gb", "3g.40gb"]}]


def test_the_table_has_all_classes_and_a_recommendation(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(filled, "--mps") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (ONE, "2 and 3 GPUs", "4 to 7 GPUs", "recommendation:"))


def test_a_replay_that_is_far_off_recommends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs that waited for an hour beside idle GPUs waited for something that is not replayed."""
    rows = [
        run(str(n), SINCE + n * 9000, SINCE + n * 9000 + 600, submit_s=SINCE + n * 9000 - 3600, node_list="n1")
        for n in range(1, 50)
    ]
    written(tmp_path, rows, [])
    found = answered(tmp_path, capsys, "--gpus", "+4")
    assert found["error_pct"] == 100
    assert found["recommendation"].startswith("none: ")
    # An hour of each of 49 jobs, and no limits are known where there is no Slurm to ask.
    assert found["unreplayed"] == {"hours": 49.0, "at_limit_hours": None, "beside_free_hours": 49.0}


@pytest.mark.parametrize(
    "options",
    [
        ("--mig", "9g.90gb"),
        ("--gpus", "+3"),
        ("--gpus", "-8"),
        ("--adoption", "0.5"),
        ("--adoption", "0", "--mps"),
        ("--demand", "0"),
        ("--demand", "nan"),
        ("--assume", "10"),
        ("--assume", "nan,20"),
        ("--format", "csv"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(filled, *options) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert options[0] in said[0]


def test_a_window_without_a_queue_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(tmp_path, queue(0.1)[:5], measured=False)
    assert planned(tmp_path) == 2
    assert "no queue" in capsys.readouterr().err


def test_a_window_without_jobs_and_slices_for_nobody_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path, queue(), measured=False)
    assert planned(tmp_path, "--mig", "auto") == 2
    assert "known to fit a slice" in capsys.readouterr().err
    assert (
        colloc("site", "plan", "--store", str(tmp_path / "store"), "--since", "2020-01-01", "--until", "2020-02-01")
        == 2
    )
    assert "no job with GPUs" in capsys.readouterr().err
    assert colloc("site", "plan", "--store", str(tmp_path / "nothing")) == 2


SACCT = (
    "Cluster|JobID|JobIDRaw|User|Account|Partition|QOS|State|Submit|Start|End|Suspended|NodeList|JobName|AllocTRES|"
    "TimelimitRaw\n"
)


def test_a_text_of_sacct_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    """Of jobs nobody measured, slices are planned by what the question assumes of them, and the answer says so."""
    jobs, lines = queue(), []
    for one in replay(NODES, jobs).started:
        number, units = one.job.number + 1, one.job.shape.units
        times = "|".join(
            datetime.fromtimestamp(SINCE + at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            for at_s in (one.job.submit_s, one.start_s, one.end_s)
        )
        tres = f"billing=8,cpu=8,gres/gpu:h100={units},gres/gpu={units},mem=64G,node=1"
        limit = int(one.job.limit_s // 60) + 1
        lines.append(
            f"c|{number}|{number}|{one.job.user}|lab|gpu|normal|COMPLETED|{times}|00:00:00|n{one.node + 1}|j|{tres}|"
            f"{limit}"
        )
    (tmp_path / "sacct.txt").write_text(SACCT + "".join(f"{line}\n" for line in lines))
    taken = ("ingest", "--store", str(tmp_path / "store"), "--sacct-file", str(tmp_path / "sacct.txt"))
    assert colloc(*taken, "--timezone", "UTC") == 0
    assert planned(tmp_path, "--mig", "auto") == 2
    capsys.readouterr()
    found = answered(tmp_path, capsys, "--mig", "auto", "--assume", "6,8")
    assert found["jobs"] == len(jobs)
    assert found["error_pct"] < 10
    assert found["asked"]["cuts"]
    ones = sum(job.shape.units == 1 for job in jobs)
    (assumed,) = (line for line in found["left_out"] if f"of {ones} jobs " in line)
    printed("plan", assumed)


def test_a_card_without_figures_and_jobs_that_nothing_holds_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = [
        run(
            str(n),
            SINCE + n * 600,
            SINCE + n * 600 + 600,
            submit_s=SINCE + n * 300,
            gres=(Gres("gpu", "h100", 8),),
            node_list="n1",
        )
        for n in range(1, 9)
    ]
    (tmp_path / "site.toml").write_text(SITE_TOML.replace(H100, "NVIDIA L4"))
    written(tmp_path, large, [])
    for options, said in (
        ((), "fits any node"),
        (("--mig", "auto"), "fits any node"),
        (("--mig", "1g.10gb"), "NVIDIA L4"),
    ):
        assert planned(tmp_path, *options) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if "note:" not in line]
        assert (len(lines), said in lines[0]) == (1, True), lines


def test_a_site_of_slices_alone_has_no_load_of_whole_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = '[[pool.slice]]\ntype = "h100_1g.10gb"\nprofile = "1g.10gb"\nmem_mib = 9984\nsm_count = 16\nquantity = 1\n'
    toml = SITE_TOML.replace("gpus_per_node = 4", "gpus_per_node = 0").replace("[[partition]]", part + "[[partition]]")
    (tmp_path / "site.toml").write_text(toml)
    gres = (Gres("gpu", "h100_1g.10gb", 1),)
    rows = [
        run(str(n), SINCE + n * 600, SINCE + n * 600 + 600, submit_s=SINCE + n * 300, gres=gres, node_list="n1")
        for n in range(1, 50)
    ]
    written(tmp_path, rows, [])
    found = answered(tmp_path, capsys)
    assert (found["load"], found["gpus"]) == (None, 0)
    assert [one["name"] for one in found["classes"]] == [PIECES, "all"]
    assert planned(tmp_path, "--gpus", "+4") == 2
    assert "whole GPUs" in capsys.readouterr().err


def allocated(**fields: Any) -> Allocated:
    tres = "billing=8,cpu=8,gres/gpu:h100=1,gres/gpu=1,mem=64G,node=1"
    plain = Allocated("1", "ann", "lab", "gpu", "normal", SINCE + 10, SINCE + 70, SINCE + 670, "n1", tres, 60)
    return plain._replace(**fields)


def past(*runs: Allocated, uses: dict[str, Use] | None = None) -> Past:
    config = site(POOL)
    return past_of(runs, uses or {}, config, (SINCE, SINCE + DAY))


def test_a_run_becomes_a_job() -> None:
    (one,) = past(allocated()).runs
    assert one.job.shape == Shape("h100", 1, 8, 65536)
    assert (one.job.submit_s, one.job.run_s, one.job.limit_s) == (SINCE + 10, 600, 3600)
    assert (one.waited_s, one.kind, one.counted, one.shown) == (60, ONE, True, "gpu:h100:1")


@pytest.mark.parametrize(
    ("fields", "shape", "kind"),
    [
        ({"tres": "cpu=16,gres/gpu=4,mem=128G", "node_list": "n[1-2]"}, Shape("h100", 2, 8, 65536, 2), "4 to 7 GPUs"),
        ({"tres": "cpu=1,gres/gpu:h100_1g.10gb=1"}, Shape("h100_1g.10gb", 1, 1, 0), PIECES),
        ({"tres": "cpu=1,gres/mps=50"}, Shape("mps", 50, 1, 0), PIECES),
    ],
)
def test_what_was_given_is_what_is_asked_for(fields: dict[str, Any], shape: Shape, kind: str) -> None:
    (one,) = past(allocated(**fields)).runs
    assert (one.job.shape, one.kind) == (shape, kind)


def test_a_run_that_was_on_before_begins_when_it_began_and_is_not_counted() -> None:
    (one,) = past(allocated(submit_s=SINCE - 500, start_s=SINCE - 300)).runs
    assert (one.job.submit_s, one.counted) == (SINCE - 300, False)


def test_a_run_that_is_not_over_runs_to_the_end_of_the_window() -> None:
    (one,) = past(allocated(end_s=None)).runs
    assert one.job.run_s == DAY - 70


def test_what_cannot_be_replayed_is_counted() -> None:
    found = past(allocated(node_list="other"), allocated(tres="gres/gpu:h100=1,gres/gpu:a100=1"), allocated())
    assert len(found.runs) == 1
    assert sorted(found.rejected.values()) == [1, 1]


def test_an_array_whose_tasks_became_eligible_as_others_ended_has_a_throttle() -> None:
    """Where the first two tasks ended two more could go: not so where each waited for a task of another array."""

    def array(name: str, *times: tuple[int, int, int]) -> list[Allocated]:
        return [
            allocated(job_id=f"{name}{n}", array=name, submit_s=SINCE + a, start_s=SINCE + b, end_s=SINCE + c)
            for n, (a, b, c) in enumerate(times)
        ]

    held = array("h", (100, 105, 200), (100, 105, 400), (200, 200, 500), (403, 410, 600))
    free = array("f", (100, 105, 200), (100, 105, 400), (100, 200, 500))
    after = array("a", (100, 105, 200), (205, 205, 400), (230, 230, 400))
    found = past(*sorted((*held, *free, *after, allocated()), key=lambda one: one.submit_s)).runs
    assert {(run.job.array, run.job.at_once) for run in found} == {("h", 2), ("f", 0), ("a", 0), ("", 0)}


def test_waits_are_told_by_partition_where_there_are_several() -> None:
    """Every third job asks by another partition of the same four GPUs."""
    config = site(POOL._replace(nodes="n1", partitions=("gpu", "long")))
    rules = rules_of(None)
    rows = [
        allocated(
            job_id=str(n), partition="long" if n % 3 == 0 else "gpu", submit_s=SINCE, start_s=SINCE + 600 * (n // 4)
        )
        for n in range(12)
    ]
    for partitions in (["gpu", "long"], ["gpu"]):
        runs = [run for run in rows if run.partition in partitions]
        found = answer(
            past_of(runs, {}, config, (SINCE, SINCE + DAY)),
            config,
            rules,
            Asked(),
            lambda *_: None,
        )
        assert [(one.name, one.jobs) for one in found.partitions] == [("gpu", 8), ("long", 4)][: len(partitions)]
        assert sum(one.jobs * one.today_mean_s.value for one in found.partitions) == pytest.approx(
            found.jobs * found.total.today_mean_s.value
        )
        assert ("partition long" in as_table(found, "c", ("a", "b"))) == (len(partitions) > 1)


def used(number: int, peak_mib: int, sm_pct: float) -> tuple[Allocated, Use]:
    return allocated(job_id=str(number), submit_s=SINCE + number), Use(H100, peak_mib, sm_pct)


def test_csubs_own_rule_says_who_gets_which_slice() -> None:
    """The smallest that holds peak and headroom and is not too slow; who is too busy stays whole."""
    made = [used(1, 5000, 4.0), used(2, 15_000, 4.0), used(3, 60_000, 4.0), used(4, 5000, 95.0)]
    found = past(*(run for run, _ in made), uses={run.job_id: use for run, use in made})
    config = site(POOL, max_slowdown=1.5)
    cut = changed(config, Asked(cuts=()))
    assert not share(found, cut, 1.0).pieces
    from slurm_colloc.plan.geometry import Cut

    cut = changed(config, Asked(cuts=(Cut("h", 1, ("2g.20gb", *["1g.10gb"] * 5)),)))
    sharing = share(found, cut, 1.0)
    assert {number: piece.piece.rpartition("_")[2] for number, piece in sharing.pieces.items()} == {
        0: "1g.10gb:1",
        1: "2g.20gb:1",
    }
    assert (sharing.one_gpu, sharing.nothing_holds, sharing.not_measured) == (4, 2, 0)
    run_then = moved(found.runs[0], sharing.pieces[0])
    # SM activity 4 % on 16 of 132 SMs: 1 + 0.5 x 0.04 x (132 / 16 - 1).
    assert run_then.job.run_s == pytest.approx(600 * 1.145)
    assert run_then.job.shape.cpus == 8


def runs_of(count: int) -> list[Run]:
    return list(past(*(allocated(job_id=str(n), submit_s=SINCE + n) for n in range(1, count + 1))).runs)


@pytest.mark.parametrize(
    ("demand", "least", "most"), [(0.5, 40, 60), (1.0, 100, 100), (1.2, 110, 130), (2.0, 200, 200)]
)
def test_demand_makes_more_or_fewer_of_the_same(demand: float, least: int, most: int) -> None:
    found = list(otherwise(runs_of(100), None, Asked(demand=demand)))
    assert least <= len(found) <= most
    assert len({run.job.number for run in found}) == len(found)
    assert sum(run.counted for run in found) <= 100


def test_slurms_settings_are_read() -> None:
    rules = rules_of(
        {
            "SchedulerParameters": "bf_interval=60,bf_max_job_test=1000,bf_window=2880,bf_resolution=300,bf_continue",
            "SchedulerType": "sched/backfill",
            "PriorityType": "priority/multifactor",
            "PriorityWeightAge": "1000",
            "PriorityWeightFairShare": "5000",
            "PriorityWeightQOS": "7",
            "PriorityMaxAge": "14-00:00:00",
            "PriorityDecayHalfLife": "7-00:00:00",
            "PriorityCalcPeriod": "00:05:00",
        }
    )
    assert rules.scheduler[:4] == (60, 300, 2880 * 60, 1000)
    assert (rules.priority.age, rules.priority.fair_share, rules.priority.max_age_s) == (1000, 5000, 14 * DAY)
    assert any("PriorityWeightQOS" in text for text in rules.left_out)
    assert rules_of(None).priority.age == 1.0


@pytest.mark.parametrize(
    ("users", "units", "slower"), [("", 67, 1.6), ("each", 67, 1.6), ("all", 58, 1.27), ("one", 58, 1.27)]
)
def test_shares_of_several_users_take_turns_as_the_site_has_it(users: str, units: int, slower: float) -> None:
    """Without the key as for daemons of each user, which `colloc site init` writes; 60 % SM activity."""
    made = [used(1, 5000, 60.0)]
    found = past(*(run for run, _ in made), uses={run.job_id: use for run, use in made})
    config = site(POOL, max_slowdown=1.6)._replace(partition=(Partition("gpu", mps_users=users),))
    cut = changed(config, Asked(mps=True))
    (piece,) = share(found, cut, 1.0).pieces.values()
    assert (piece.units, round(piece.slowdown.expected, 2)) == (units, slower)
    assert site_of(cut, rules_of(None)).one_user == ({"gpu"} if users == "one" else set())


def test_a_job_moves_with_its_slice_to_another_partition() -> None:
    small = MigSlice("h100_1g.10gb", "1g.10gb", 9984, 16, 7)
    slices = POOL._replace(name="s", nodes="s1", partitions=("small",), gpu_type="", gpus_per_node=0, slice=(small,))
    config = site(POOL, slices)._replace(partition=(Partition("gpu", pieces_in=("small",)), Partition("small")))
    run, use = used(1, 5000, 4.0)
    found = past_of([run], {run.job_id: use}, config, (SINCE, SINCE + DAY))
    (piece,) = share(found, config, 1.0).pieces.values()
    then = moved(found.runs[0], piece)
    assert [one.node for one in replay(site_of(config, rules_of(None)), [then.job]).started] == [2]
