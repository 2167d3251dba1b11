# SPDX-License-Identifier: Apache-2.0
"""colloc report --harm and --rollout: counts, intervals, and what is not known."""

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import CONTROL, GPU_OOM, LATE, PLACED, Gres
from slurm_colloc.core.sharing_model import ArmFigure
from slurm_colloc.estimate.harm import Harm
from slurm_colloc.feedback.harm import JudgedRun, harm_rates, rate
from slurm_colloc.feedback.rollout import arm_figures
from slurm_colloc.report.columns import table_of
from slurm_colloc.report.proof import Proof, listing_of
from tests.unit.golden import Printed
from tests.unit.made import MIG_POOL, decision, evidence, near, run
from tests.unit.programs import colloc
from tests.unit.stored import stored

HOUR, DAY = 3600, 86400
RULE = "'auto' for 50 % of all"


def ran(harm: Harm | None = Harm.NONE, user: str = "ann", arm: str = PLACED, **fields: Any) -> JudgedRun:
    """Return a run on a piece, which waited an hour and ran for one."""
    start_s = fields.pop("start_s", HOUR)
    state = fields.pop("state", "COMPLETED")
    ended = evidence(mode="exclusive" if arm == CONTROL else "mig", state=state, ended_s=float(start_s + HOUR))
    found = JudgedRun(user, ended, harm, start_s - HOUR, start_s, arm, RULE, offered=True, gpu_hours=0.5)
    return found._replace(**fields)


def of(figures: Sequence[ArmFigure], measure: str, arm: str = PLACED) -> ArmFigure:
    (found,) = [one for one in figures if (one.measure, one.arm) == (measure, arm)]
    return found


def test_each_kind_is_a_part_of_the_runs_of_which_it_is_known(printed: Printed) -> None:
    runs = [
        *[ran() for _ in range(6)],
        # Nobody knows how long it takes on a whole GPU: it did not run out of memory all the same.
        *[ran(None) for _ in range(2)],
        ran(Harm.SLOWER),
        ran(Harm.OUT_OF_MEMORY, state=GPU_OOM),
        ran(Harm.FAILED, state="FAILED"),
        ran(Harm.LOST, state="NODE_FAIL"),
        ran(None, state="CANCELLED"),
        ran(None, state="TIMEOUT"),
    ]
    found = {one.kind: (one.runs, one.known) for one in harm_rates(runs)}
    assert list(found.values()) == [(1, 12), (0, 12), (1, 7), (0, 12), (1, 12), (1, 12), (3, 12)]
    printed("report-proof", *found)


def test_a_part_has_its_interval_and_of_nothing_there_is_none() -> None:
    # The textbook's: 1 of 10 lies between 0.25 and 44.5 %, 0 of 10 below 30.8 %.
    assert rate("x", 1, 10)[3:6] == (0.1, near(0.0025285785), near(0.4450161170))
    assert rate("x", 0, 10)[3:6] == (0.0, near(0.0), near(0.3084971078))
    assert rate("x", 10, 10)[3:6] == (1.0, near(0.6915028922), near(1.0))
    assert rate("x", 0, 0)[3:6] == (None, None, None)


def test_means_are_over_jobs_and_their_intervals_over_draws() -> None:
    """Of ten draws, each of four jobs that waited alike, the interval is that of ten and not of forty."""
    runs = [ran(user=f"u{number}", submit_s=HOUR - 360 * number) for number in range(10) for _ in range(4)]
    wait = of(arm_figures(runs), "wait_h")
    assert (wait.value, wait.jobs, wait.draws) == (near(0.45), 40, 10)
    # The standard deviation of 0, 0.1 ... 0.9 is 0.30277.
    half = 1.96 * 0.3027650 / 10**0.5
    assert (wait.low, wait.high) == (near(0.45 - half), near(0.45 + half))
    assert of(arm_figures(runs), "turnaround_h").value == near(1.45 + 0)
    assert of(arm_figures(runs), "gpu_hours").value == 0.5
    other_day = [one._replace(submit_s=(one.submit_s or 0) + DAY, start_s=one.start_s + DAY) for one in runs]
    assert of(arm_figures([*runs, *other_day]), "wait_h").draws == 20


def test_of_few_draws_there_is_a_mean_and_no_interval_and_of_none_neither() -> None:
    figures = arm_figures([ran(user=f"u{number}") for number in range(9)])
    assert of(figures, "wait_h") == ArmFigure(RULE, PLACED, "wait_h", 1.0, None, None, 9, 9)
    assert of(figures, "wait_h", CONTROL) == ArmFigure(RULE, CONTROL, "wait_h", None, None, None, 0, 0)
    assert of(figures, "slower", CONTROL) == ArmFigure(RULE, CONTROL, "slower", None, None, None, 0, 0)
    assert arm_figures([]) == []


def test_an_arm_has_the_jobs_that_were_to_have_a_piece_by_rule() -> None:
    runs = [ran(), ran(offered=False), ran(arm=""), ran(rule="another"), ran(arm=CONTROL)]
    found = [(one.rule, one.arm, one.jobs) for one in arm_figures(runs) if one.measure == "gpu_hours"]
    assert found == [(RULE, PLACED, 1), (RULE, CONTROL, 1), ("another", PLACED, 1), ("another", CONTROL, 0)]


def test_what_is_not_known_is_in_no_part() -> None:
    runs = [
        ran(),
        ran(None),
        ran(Harm.SLOWER),
        ran(Harm.OUT_OF_MEMORY, state=GPU_OOM),
        ran(None, state="FAILED"),
        ran(None, state="CANCELLED"),
        ran(submit_s=None),
    ]
    figures = arm_figures(runs)
    assert (of(figures, "out_of_memory").value, of(figures, "out_of_memory").jobs) == (1 / 5, 5)
    assert (of(figures, "not_completed").value, of(figures, "not_completed").jobs) == (2 / 6, 6)
    assert (of(figures, "slower").value, of(figures, "slower").jobs) == (1 / 3, 3)
    assert (of(figures, "wait_h").jobs, of(figures, "turnaround_h").jobs) == (6, 3)


def test_what_was_placed_late_is_an_arm_of_its_own_and_in_none_of_a_rule() -> None:
    whole = ran(arm=LATE)._replace(run=evidence(mode="exclusive"))
    runs = [ran(), ran(arm=CONTROL), ran(Harm.SLOWER, arm=LATE), ran(arm=LATE, rule="another"), whole]
    figures = [(one.rule, one.arm, one.jobs) for one in arm_figures(runs) if one.measure == "gpu_hours"]
    assert figures == [(RULE, PLACED, 1), (RULE, CONTROL, 1), ("", LATE, 2)]
    on_pieces = [one for one in runs if one.on_piece]
    slower = [(one.arm, one.runs, one.known) for one in harm_rates(on_pieces) if one.kind == Harm.SLOWER]
    assert slower == [("", 1, 3), (LATE, 1, 2)]
    assert {one.arm for one in harm_rates([ran()])} == {""}


def test_tables_of_what_was_placed_late(printed: Printed) -> None:
    span = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 8, tzinfo=UTC)
    runs = [ran(Harm.SLOWER, arm=LATE), ran(arm=LATE)]
    for figures in (arm_figures(runs), harm_rates(runs)):
        printed("report-proof", table_of(listing_of(Proof("c", *span, 2, 0, 1.1, figures))))


def test_the_table_shows_a_dash_for_what_is_not_known_and_lets_nothing_act() -> None:
    span = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 8, tzinfo=UTC)
    harm = table_of(listing_of(Proof("c", *span, 0, 0, 1.1, harm_rates([]))))
    assert harm.count(" -  ") == 7
    assert "1.1 times" in harm
    arms = table_of(listing_of(Proof("c", *span, 1, 0, 1.1, arm_figures([ran(rule="\x1b[31mred")]))))
    assert "\x1b" not in arms
    assert "waited, h" in arms


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site of ten jobs in each arm, those placed at once, and of each job a run on a whole GPU before."""
    rows, decisions = [], []
    for number in range(40):
        arm = (PLACED, CONTROL, "", "")[number % 4]
        start_s = 2 * DAY + number * HOUR if arm else number * HOUR
        piece = arm == PLACED
        gres = (Gres("gpu", "h100_1g.10gb", 1),) if piece else (Gres("gpu", "h100", 1),)
        job, waited_s = str(number + 1), 60 if piece else HOUR
        rows.append(run(job, start_s, start_s + HOUR, gres=gres, node_list="m1", submit_s=start_s - waited_s))
        mode, would = ("mig", "") if piece else ("exclusive", "gpu:h100_1g.10gb:1" if arm else "")
        decisions.append(
            decision(
                job, at_s=float(start_s - waited_s), mode=mode, would=would, shadow=bool(would),
                arm=arm, rule=RULE if arm else "", signature=f"s{number // 4}",
            )
        )  # fmt: skip
    store = stored(tmp_path / "store", rows)
    store.write_log("a", {"rows_in": 40, "used": 40, "steps": 0, "rejected": {}})
    store.write_decisions((one.user, one) for one in decisions)
    path = tmp_path / "site.toml"
    path.write_text(
        'schema = 1\nslurm_release = "22.05"\ncluster = "c"\n[[pool]]\nname = "m"\nnodes = "m[1-2]"\n'
        f'partitions = ["gpu"]\ngpu_type = "h100"\ngpu_model = "{MIG_POOL.gpu_model}"\ngpus_per_node = 1\n'
        'gpu_mem_mib = 81559\nsm_count = 132\n[[pool.slice]]\ntype = "h100_1g.10gb"\nprofile = "1g.10gb"\n'
        'mem_mib = 9984\nsm_count = 16\nquantity = 7\n[[partition]]\nname = "gpu"\n'
    )
    monkeypatch.setenv("COLLOC_CONF", str(path))
    return tmp_path / "store"


def shown(folder: Path, *words: str) -> str:
    ends = "--since", "1970-01-02T00:00:00+00:00", "--until", "1970-02-01T00:00:00+00:00"
    assert colloc("report", *words, "--store", str(folder), *ends) == 0
    return colloc.out


def test_a_store_is_proof_of_what_both_arms_had(folder: Path) -> None:
    told = json.loads(shown(folder, "--rollout", "--format", "json"))
    figures = [ArmFigure(**one) for one in told["figures"]]
    assert (told["runs"], {one.rule for one in figures}) == (20, {RULE})
    assert [of(figures, "wait_h", arm)[3:] for arm in (PLACED, CONTROL)] == [
        (near(1 / 60), near(1 / 60), near(1 / 60), 10, 10),
        (1.0, 1.0, 1.0, 10, 10),
    ]
    assert [of(figures, "gpu_hours", arm).value for arm in (PLACED, CONTROL)] == [near(1 / 7), 1.0]
    assert of(figures, "slower")[3:] == (0.0, near(0.0), near(0.3084971078), 10, 10)
    table = shown(folder, "--rollout")
    assert ["waited,", "h", "0.0167", "0.0167", "to", "0.0167", "10", "10", "1", "1", "to", "1", "10", "10"] in [
        line.split() for line in table.splitlines()
    ]
    rows = list(csv.DictReader(io.StringIO(shown(folder, "--rollout", "--format", "csv"))))
    assert [row["arm"] for row in rows] == [PLACED, CONTROL] * 6


def test_harm_is_of_runs_on_pieces(folder: Path) -> None:
    table = shown(folder, "--harm")
    assert ["harmed", "in", "all", "0", "10", "0", "0", "to", "3085"] in [line.split() for line in table.splitlines()]
    told = json.loads(shown(folder, "--harm", "--format", "json"))
    assert (told["runs"], told["not_known"], told["figures"][-1]["known"]) == (10, 0, 10)
    assert shown(folder, "--harm", "--format", "csv").splitlines()[0] == "kind,runs,known,part,low,high,arm"
    assert "Of 10 runs on pieces of which it is known, 0 were harmed" in shown(folder, "--format", "html")
