# SPDX-License-Identifier: Apache-2.0
"""colloc site need: the fewest GPUs that keep the waits of today, and what it says where there is nothing to say."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from slurm_colloc.core.config import Pool, SiteConfig
from slurm_colloc.plan.change import Asked, changed, otherwise, resized
from slurm_colloc.plan.geometry import Cut
from slurm_colloc.plan.model import Job, Shape
from slurm_colloc.plan.need import Bound, Need, need
from slurm_colloc.plan.need_text import MEASURED, Extras, as_text, headline
from slurm_colloc.plan.past import CLASSES, ONE, PIECES, Past, Run, Use, class_of
from slurm_colloc.plan.replay import replay
from slurm_colloc.plan.scenario import Scenario
from slurm_colloc.plan.sharing import share
from slurm_colloc.plan.site import rules_of, site_of
from slurm_colloc.plan.unreplayed import Unreplayed
from slurm_colloc.slurm.hostlist import expand
from tests.unit.golden import Printed
from tests.unit.made import H100, site
from tests.unit.programs import colloc

DAY = 86400
POOL = Pool("h", "n[1-4]", ("gpu",), "h100", H100, 4, 81559, 132, 0, 10, cpus_per_node=256, mem_per_node_mib=4_000_000)
RULES = rules_of(None)
SINCE = 1_760_054_400


def config_of(*pools: Pool) -> SiteConfig:
    return site(*pools, mps_users="each", max_slowdown=1.25, order=("shard",))


def queued(config: SiteConfig, load: float, count: int = 100, sm_pct: float = 10.0) -> Past:
    """Return a window of jobs, most of one GPU and small, as Slurm, by the replay, would have run them."""
    rng, days = random.Random(5), 28
    kinds = [pool.gpu_type for pool in config.pool]
    bodies = [(rng.choice(kinds), rng.choices((1, 2), (0.8, 0.2))[0], rng.lognormvariate(0, 0.5)) for _ in range(count)]
    held_s = load * days * DAY * sum(pool.gpus_per_node * len(expand(pool.nodes)) for pool in config.pool)
    scale_s = held_s / sum(gpus * run for _, gpus, run in bodies)
    jobs = []
    for number, (kind, gpus, part) in enumerate(bodies):
        at_s, run_s, shape = (
            float(rng.randrange(days * DAY)),
            float(round(part * scale_s)),
            Shape(kind, gpus, 8, 64_000),
        )
        jobs.append(Job(number, at_s, run_s, 2 * run_s, rng.choice("abcd"), "lab", "gpu", "normal", shape))
    runs = []
    for one in replay(site_of(config, RULES), jobs).started:
        shown = f"gpu:{one.job.shape.kind}:{one.job.shape.units}"
        use = Use(H100, 8000, sm_pct) if class_of(one.job.shape, shown) == ONE else None
        runs.append(Run(one.job, one.wait_s, shown, class_of(one.job.shape, shown), True, use))
    runs.sort(key=lambda run: run.job.submit_s)
    return Past(tuple(runs), {}, 0.0, float(days * DAY))


def answered(
    config: SiteConfig, past: Past, bound: Bound | None = None, parts: tuple[float, ...] = (), **asked: Any
) -> Need:
    return need(past, config, RULES, Asked(**asked), bound or Bound(), parts, lambda *_: None)


@cache
def busy() -> tuple[SiteConfig, Past, Need]:
    config = config_of(POOL)
    past = queued(config, 1.0)
    return config, past, answered(config, past, parts=(0.3,))


def waits(config: SiteConfig, past: Past, gpus: int, *, sharing: bool) -> dict[str, tuple[float, float]]:
    """Return of each class the mean wait today, and with so many GPUs, as a what-if of the planner has it."""
    less = changed(resized(config, {"h": gpus}), Asked())
    found = share(past, less, 1.0) if sharing else None
    today = Scenario(past.runs, site_of(config, RULES), starts=8)
    then = Scenario(otherwise(past.runs, found, Asked()), site_of(less, RULES), starts=8)
    classes: dict[str, list[Run]] = {}
    for run in past.runs:
        classes.setdefault(PIECES if found and run.job.number in found.pieces else run.kind, []).append(run)
    return {name: (fmean(today.waits(runs)), fmean(then.waits(runs))) for name, runs in classes.items()}


@pytest.mark.parametrize("sharing", [False, True])
def test_so_many_gpus_keep_the_bound_and_one_less_breaks_it(sharing: bool) -> None:
    config, past, found = busy()
    least = found.shared if sharing else found.whole
    assert least is not None
    kept = [
        all(
            then <= today + max(300, 0.1 * today) for today, then in waits(config, past, gpus, sharing=sharing).values()
        )
        for gpus in (least, least - 1)
    ]
    assert kept == [True, False]
    broken = {
        name
        for name, (today, then) in waits(config, past, least - 1, sharing=sharing).items()
        if then > today + max(300, 0.1 * today)
    }
    if sharing:
        assert f"With {least - 1}, these would wait too long " in headline(found)[0]
        on_fewer = {one.name: (one.today.mean_s, one.on_fewer.mean_s) for one in found.classes[:-1] if one.on_fewer}
        assert {name for name, (today, then) in on_fewer.items() if then > found.bound.of(name, today)} == broken


def test_worth_is_what_sharing_needs_less() -> None:
    _, _, found = busy()
    assert found.worth is not None
    assert found.whole is not None
    assert found.shared is not None
    assert found.worth.value == found.whole - found.shared > 0
    assert found.worth.low is not None
    assert found.worth.high is not None
    assert found.worth.low <= found.worth.value <= found.worth.high
    assert found.shared_nodes in (found.shared, 4 * -(-found.shared // 4))
    (part,) = found.by_adoption.values()
    assert part is not None
    assert found.shared <= part <= found.whole
    assert found.growth is not None
    assert found.growth > 1


def test_every_class_is_told_of_the_same_jobs() -> None:
    _, past, found = busy()
    *classes, total = found.classes
    assert [one.name for one in classes] == [PIECES, CLASSES[2]]
    assert sum(one.jobs for one in classes) == total.jobs == len(past.runs)
    for one in found.classes:
        assert one.on_need is not None
        assert one.node_down is not None
        assert one.on_all.mean_s <= one.on_need.mean_s <= one.node_down.mean_s
        assert one.today.median_s <= one.today.p95_s
        assert one.today.worst_week_s >= one.today.mean_s


def test_a_stricter_bound_needs_more_gpus_and_a_looser_one_fewer() -> None:
    config, past, found = busy()
    strict = answered(config, past, Bound(0.0, 0.0))
    loose = answered(config, past, Bound(most_s=dict.fromkeys(CLASSES, 30.0 * DAY)))
    assert loose.shared is not None
    assert found.shared is not None
    assert strict.shared is not None
    assert loose.shared < found.shared <= strict.shared
    assert loose.whole is not None
    assert strict.whole == 16 > loose.whole


def test_replays_without_hope_are_not_run_to_their_end() -> None:
    """All those that keep the bound are, and of the others none waits beyond what some draw of weeks could bear."""
    _, _, found = busy()
    assert all(one.mean_s is not None for one in found.points if one.keeps)
    assert any(one.mean_s is None for one in found.points)


def test_a_kind_of_gpu_keeps_its_own_bound() -> None:
    """Few jobs on the second pool must not pay for many on the first."""
    small = POOL._replace(name="s", nodes="s[1-2]", gpu_type="a100")
    config = config_of(POOL, small)
    found = answered(config, queued(config, 0.9))
    assert found.gpus == 24
    assert {one.name.partition(", ")[2] for one in found.classes[:-1]} == {"h100", "a100"}
    assert found.shared is not None
    for one in found.classes[:-1]:
        assert one.on_need is not None
        assert one.on_need.mean_s <= one.today.mean_s + max(300, 0.1 * one.today.mean_s)


def test_the_wait_that_a_class_may_have_holds_for_each_kind_of_gpu() -> None:
    config = config_of(POOL, POOL._replace(name="s", nodes="s[1-2]", gpu_type="a100"))
    past = queued(config, 0.9)
    loose = answered(config, past, Bound(0.0, 0.0, dict.fromkeys(CLASSES, 30.0 * DAY)))
    assert loose.whole is not None
    # Without them it were 22.
    assert loose.whole < 16


def test_slices_are_cut_for_as_many_nodes_as_there_are() -> None:
    """No number of nodes is named: on fewer nodes fewer are cut, so that jobs of two GPUs keep theirs."""
    config = site(POOL._replace(shards_per_gpu=0), mps_users="each")
    past = queued(config, 1.0, sm_pct=2.0)
    found = answered(config, past, cuts=(Cut("h", 0, ("1g.10gb",) * 7),))
    assert [cut.nodes for cut in found.cuts] == [1]
    assert found.shared is not None
    assert found.whole is not None
    assert found.shared < found.whole


def test_one_node_has_single_gpus_alone(printed: Printed) -> None:
    config = config_of(POOL._replace(nodes="n1", gpus_per_node=8))
    found = answered(config, queued(config, 1.0))
    assert found.gpus == found.whole_nodes == found.shared_nodes == 8
    assert found.shared is not None
    assert 0 < found.shared < 8
    assert all((one.node_down is None) for one in found.classes)
    printed("need", said(found, config), case="one node")


def test_a_site_that_is_always_full_needs_all_without_sharing(printed: Printed) -> None:
    config = config_of(POOL)
    found = answered(config, queued(config, 1.6))
    assert found.whole == 16
    assert found.shared is not None
    assert found.shared < 16
    printed("need", said(found, config), case="always full")


def said(found: Need, config: SiteConfig) -> str:
    return as_text(found, config, ("a", "b"), Extras(price=1.9, currency="EUR"))


def test_what_is_said(printed: Printed) -> None:
    config, _, found = busy()
    printed("need", said(found, config))


def test_what_is_not_said(printed: Printed) -> None:
    """Of jobs not measured, of a replay far off, and where sharing lets a class wait longer on all GPUs."""
    config, past, found = busy()
    assert found.worth
    unmeasured = past._replace(runs=tuple(run._replace(use=None) for run in past.runs))
    printed("need", said(answered(config, unmeasured), config), case="not measured")
    beyond = Unreplayed(4000.0, 12.5, 3100.0)
    far_off = found._replace(error_pct=60.0, error_s=9000.0, unreplayed=beyond)
    printed("need", said(far_off, config), case="far off")
    printed("need", *headline(found._replace(shared=None, worth=None)), case="not on all")
    printed("need", *headline(found._replace(shared=16, worth=found.worth._replace(value=0))), case="none")
    printed("need", *headline(found._replace(whole=None, worth=None)), case="not without")
    printed("need", *headline(found._replace(weeks=1, worth=found.worth._replace(low=None))), case="no range")


def test_a_class_of_which_only_the_slowest_wait_longer_is_named(printed: Printed) -> None:
    _, _, found = busy()
    small, large, total = found.classes
    slowest = large._replace(on_all=large.today._replace(p95_s=large.today.p95_s + 86400))
    printed("need", *headline(found._replace(classes=(small, slowest, total))), case="slowest")
    many = slowest._replace(jobs=21)
    printed("need", *headline(found._replace(classes=(small, many, total))), case="slowest of many")
    later = small._replace(on_all=small.today)
    printed("need", *headline(found._replace(classes=(later, large, total))), case="no wait saved")
    mean = slowest._replace(on_all=large.today._replace(mean_s=large.today.mean_s + 86400))
    printed("need", *headline(found._replace(classes=(small, mean, total))), case="mean")


def test_an_answer_without_slurm_begins_with_the_answer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That Slurm did not answer stands among the notes, at the end."""
    assert asked(here, "--adoption", "1") == 0
    out, err = capsys.readouterr()
    assert "note:" not in err
    assert "scontrol" in out.splitlines()[-1]


def test_the_slowdowns_that_are_told_as_measured_are_those_of_the_benchmarks() -> None:
    page = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text()
    figures = re.findall(r"\((\d+ of \d+)\)", MEASURED)
    assert len(figures) == 3
    assert [figure for figure in figures if figure not in page] == []


SITE_TOML = f"""
schema = 1
cluster = "c"
slurm_release = "22.05"
default_partition = "gpu"
policy = "auto"
[[pool]]
name = "h"
nodes = "n[1-4]"
partitions = ["gpu"]
gpu_type = "h100"
gpu_model = "{H100}"
gpus_per_node = 4
gpu_mem_mib = 81559
sm_count = 132
cpus_per_node = 256
mem_per_node_mib = 4000000
shards_per_gpu = 10
[[partition]]
name = "gpu"
[sharing]
order = ["shard"]
"""
SACCT = (
    "Cluster|JobID|JobIDRaw|User|Account|Partition|QOS|State|Submit|Start|End|Suspended|NodeList|JobName|AllocTRES|"
    "TimelimitRaw\n"
)


def text_of(past: Past) -> str:
    lines = []
    for run in past.runs:
        job, begun_s = run.job, run.job.submit_s + run.waited_s
        times = "|".join(str(SINCE + int(at_s)) for at_s in (job.submit_s, begun_s, begun_s + job.run_s))
        gpus = job.shape.units
        tres = f"billing=8,cpu=8,gres/gpu:h100={gpus},gres/gpu={gpus},mem=64000M,node=1"
        number = job.number + 1
        rest = f"{times}|00:00:00|n1|j|{tres}|{int(job.limit_s // 60)}"
        lines.append(f"c|{number}|{number}|{job.user}|lab|gpu|normal|COMPLETED|{rest}\n")
    return SACCT + "".join(lines)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm to ask
    (tmp_path / "site.toml").write_text(SITE_TOML)
    (tmp_path / "sacct.txt").write_text(text_of(queued(config_of(POOL), 1.0, 60)))
    return tmp_path


def asked(here: Path, *options: str, days: int = 28) -> int:
    ends = [datetime.fromtimestamp(at_s, UTC).isoformat() for at_s in (SINCE, SINCE + days * DAY)]
    text = () if "--store" in options else ("--sacct-file", str(here / "sacct.txt"))
    return colloc("site", "need", *text, "--since", ends[0], "--until", ends[1], *options)


def test_a_text_and_a_store_of_it_say_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is assumed of jobs is told beside the headline, never in it."""
    assert colloc("ingest", "--store", str(here / "store"), "--sacct-file", str(here / "sacct.txt")) == 0
    answers = []
    for options in ((), ("--store", str(here / "store"))):
        capsys.readouterr()
        assert asked(here, "--assume", "8,10", "--adoption", "1", "--format", "json", *options) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    found = answers[0]
    assert (found["gpus"], found["shared"], found["worth"]) == (16, None, None)
    assert found["whole"] <= 16
    assert found["assumed_worth"]["value"] > 0
    assert not any(character.isdigit() for character in found["headline"].partition(".")[0])


def test_a_page_has_the_sentence_and_a_curve(here: Path) -> None:
    page = here / "need.html"
    assert asked(here, "--assume", "8,10", "--adoption", "1", "--format", "html", "-o", str(page)) == 0
    text = page.read_text()
    assert "What sharing is worth is not known" in text
    assert 1 <= text.count("<polyline") <= 2
    assert "script" not in text


@pytest.mark.parametrize(
    "options",
    [
        ("--wait", "5=1h"),
        ("--wait", "1=soon"),
        ("--adoption", "0.1,2"),
        ("--adoption", "some"),
        ("--demand", "0"),
        ("--assume", "10"),
        ("--mig", "9g.90gb"),
        ("--format", "csv"),
        ("--store", "here", "--sacct-file", "there"),
        ("--store", "here", "--timezone", "UTC"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(here, *options) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert options[-2] in lines[0]


@pytest.mark.parametrize(("load", "tres", "word"), [(0.002, "h100", "no queue"), (1.0, "", "no job with GPUs")])
def test_a_window_without_a_question_is_refused(
    load: float, tres: str, word: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = text_of(queued(config_of(POOL), load, 60))
    if not tres:
        text = text.replace("gres/gpu", "gres/fpga")
    (here / "sacct.txt").write_text(text)
    assert asked(here) == 2
    assert word in capsys.readouterr().err


def test_a_site_without_whole_gpus_has_none_to_save(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = '[[pool.slice]]\ntype = "h100_1g.10gb"\nprofile = "1g.10gb"\nmem_mib = 9984\nsm_count = 16\nquantity = 1\n'
    toml = (
        SITE_TOML.replace("gpus_per_node = 4", "gpus_per_node = 0")
        .replace("shards_per_gpu = 10\n", "")
        .replace("[[partition]]", part + "[[partition]]")
    )
    (here / "site.toml").write_text(toml)
    assert asked(here) == 2
    assert "whole GPUs" in capsys.readouterr().err
