# SPDX-License-Identifier: Apache-2.0
"""A site's own margins: taken from what was measured, kept in one file, and read by the next submission."""

import json
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Answered, because
from slurm_colloc.core.wording import words
from slurm_colloc.estimate.bounds import upper_bound
from slurm_colloc.estimate.calibration import LARGEST, SHIPPED, Calibration, Margin
from slurm_colloc.estimate.ladder import estimate_at_site
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.site_margins import calibration_path, from_json, site_calibration
from slurm_colloc.feedback.calibration import site_margins, write_margins
from tests.unit.made import evidence, near
from tests.unit.shell import Shell

NAME = "same"


def answer(number: int, ratio: float | None = 1.0, **fields: Any) -> Answered:
    measured = None if ratio is None else 1000 * ratio
    made = Answered(NAME, f"u{number % 20}", str(number), float(number), 1000.0, 1150.0, measured, "COMPLETED")
    return made._replace(**fields)


def margin(answers: list[Answered]) -> Margin:
    return site_margins(answers).margins[NAME]


def test_a_margin_needs_answers_enough() -> None:
    assert site_margins([answer(number) for number in range(98)]).margins == {}
    found = margin([answer(number, 1 + number / 1000) for number in range(99)])
    assert (found.factor, found.answers) == (near(1.098), 99)
    assert found.confidence == near(0.05 ** (1 / 99)), "all of 99 held"


def test_it_is_never_below_one_nor_beyond_all_bounds() -> None:
    low = margin([answer(number, 0.2) for number in range(120)])
    high = margin([answer(number, 50.0) for number in range(120)])
    assert (low.factor, high.factor, high.confidence) == (1.0, LARGEST, 0.0)


def test_what_ran_out_of_memory_counts_as_infinite() -> None:
    ran_out = [answer(number, 0.9, state="GPU_OOM") for number in range(2)]
    found = margin([*ran_out, *(answer(number) for number in range(10, 108))])
    assert (found.factor, found.answers) == (LARGEST, 100)
    enough = margin([*ran_out, *(answer(number) for number in range(10, 308))])
    assert enough.factor == 1.0, "one in a hundred may"


def test_what_did_not_complete_is_a_bound_that_can_only_widen() -> None:
    plain = [answer(number) for number in range(100)]
    assert margin([*plain, answer(900, 0.5, state="TIMEOUT")]) == margin(plain)
    found = margin([*plain, *(answer(900 + number, 1.4, state="TIMEOUT") for number in range(5))])
    assert found.factor == near(1.4)


def test_what_a_margin_adds_at_least_asks_for_no_factor() -> None:
    """A small job that needed a quarter more than was expected, and had it, is no reason to give large ones as much."""
    (of_one,) = site_margins([answer(number, 1.25, margin="one") for number in range(120)]).margins.values()
    assert of_one.factor == 1.0
    (more,) = site_margins([answer(number, 1.3, margin="one") for number in range(120)]).margins.values()
    assert more.factor == near(1.3)
    assert Calibration({"one": of_one}).margin("one").over(1000) == SHIPPED.margins["one"].over(1000) == 1256


def test_an_array_has_one_answer_of_its_largest_task() -> None:
    tasks = [answer(1, 0.5 + task / 1000) for task in range(500)]
    assert site_margins(tasks).margins == {}
    found = margin([*tasks, *(answer(number, 0.1) for number in range(2, 101))])
    assert found.answers == 100
    assert margin(
        [*(answer(number, 0.1) for number in range(2, 101)), *(answer(1, 1 + task / 1000) for task in range(9))]
    )


def test_one_user_has_a_bounded_say() -> None:
    """Decisions are files that users write: somebody may claim to have expected next to nothing."""
    honest = [answer(number, 1.02, user=f"u{number % 9}") for number in range(2000)]
    liar = [answer(5000 + number, 9.0, user="eve", at_s=float(number)) for number in range(900)]
    found = margin([*honest, *liar])
    assert found.factor == near(1.02), "what is old is not among the newest"
    lately = margin([*honest, *(one._replace(at_s=1e6 + number) for number, one in enumerate(liar))])
    assert (lately.factor, lately.answers) == (LARGEST, 1000)


@pytest.mark.parametrize("fields", [{"expected_mib": 0.0}, {"expected_mib": math.inf}, {"q99_mib": 0.0}])
def test_what_cannot_be_a_ratio_does_not_count(fields: dict[str, float]) -> None:
    plain = [answer(number) for number in range(99)]
    assert margin([*plain, answer(900, **fields), answer(901, None), answer(902, 0.0)]) == margin(plain)
    assert site_margins([answer(number, margin="of another release") for number in range(200)]).margins == {}


def _steady(_: int) -> float:
    return 0.0


def _step(number: int) -> float:
    return 0.0 if number < 3000 else 0.12


def _slow(number: int) -> float:
    return number / 40_000


def _waves(number: int) -> float:
    return 0.04 * math.sin(number / 1500)


@pytest.mark.parametrize("drift", [_steady, _step, _slow, _waves])
def test_the_rate_of_out_of_memory_meets_the_target_after_recalibration(drift: Callable[[int], float]) -> None:
    """Noise of 3 % around what drifts, jobs of any size; margins are taken anew each hundred answers."""
    chance = random.Random(7)
    pieces = (4864, 9856, 19968, 40192)
    past: list[Answered] = []
    factor, missed, ran_out, judged = SHIPPED.margins[NAME].factor, 0, 0, 0
    for number in range(8000):
        expected = math.exp(chance.uniform(math.log(2000), math.log(20_000)))
        measured = expected * math.exp(chance.gauss(drift(number), 0.03))
        piece = next(size for size in pieces if size >= expected * factor)
        # After the step, once margins have been taken twice.
        if number >= 1000 and not (drift is _step and 3000 <= number < 3200):
            judged += 1
            missed += measured > expected * factor
            ran_out += measured > piece
        past.append(answer(number, None, expected_mib=expected, q99_mib=expected * factor, measured_mib=measured))
        if number % 100 == 99:
            found = site_margins(past[-1000:]).margins.get(NAME)
            factor = found.factor if found else factor
    assert upper_bound(ran_out, judged) <= 0.01, (ran_out, judged)
    # What drifts is followed with a delay.
    assert missed / judged <= 0.015, (missed, judged)
    assert factor < math.exp(drift(7999) + 0.03 * 5), "and no more is given away than the noise asks for"


# --- the file ---


def test_there_and_back(tmp_path: Path) -> None:
    found = write_margins([answer(number) for number in range(150)], str(tmp_path), time.time())
    assert site_calibration(str(tmp_path)) == (found, None)
    text = Path(calibration_path(str(tmp_path))).read_text()
    assert "u1" not in text
    assert "job" not in text
    assert os.stat(calibration_path(str(tmp_path))).st_mode & 0o777 == 0o644
    assert found.margin("one") == SHIPPED.margins["one"], "what has no answers stays as shipped"


def test_no_file_is_nothing_to_speak_of(tmp_path: Path) -> None:
    assert site_calibration(str(tmp_path)) == (SHIPPED, None)
    assert site_calibration("") == (SHIPPED, None)


OWN = Calibration({NAME: Margin(1.3, 200, 0.97)})


@pytest.mark.parametrize("age_s", [31 * 86400.0, -60.0])
def test_an_old_file_or_one_of_the_future_is_not_used(tmp_path: Path, age_s: float) -> None:
    path = Path(calibration_path(str(tmp_path)))
    path.parent.mkdir()
    path.write_text(json.dumps(OWN._replace(at_s=time.time() - age_s)))
    found, note = site_calibration(str(tmp_path))
    assert found == SHIPPED
    assert note == because("margins-old", days=30)


@pytest.mark.parametrize(
    "changes",
    [
        {"factor": 0.9},
        {"factor": LARGEST + 0.1},
        {"factor": "1.1"},
        {"answers": 1.5},
    ],
)
def test_a_margin_out_of_bounds_is_no_margin(changes: dict[str, object]) -> None:
    kept = json.loads(json.dumps(OWN))
    assert from_json(kept) == OWN
    kept[0][NAME] = OWN.margins[NAME]._asdict() | changes
    with pytest.raises(InputError, match="run 'colloc ingest' again"):
        from_json(kept)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"schema": 2}', b"\xff", b" " * 300_000]
)
def test_what_cannot_be_read_leaves_the_shipped_margins(tmp_path: Path, content: bytes) -> None:
    path = Path(calibration_path(str(tmp_path)))
    path.parent.mkdir()
    path.write_bytes(content)
    found, note = site_calibration(str(tmp_path))
    assert found == SHIPPED
    assert note is not None
    assert note.code == "margins-unreadable"
    footprint = estimate_at_site(Question(runs=[evidence()]), str(tmp_path))
    assert footprint.provenance[-1] == note
    assert footprint.gpu_mem_peak_mib
    assert footprint.gpu_mem_peak_mib.q99 == near(8000 * 1.15)
    assert note not in estimate_at_site(Question("mem=1G", runs=[evidence()]), str(tmp_path)).provenance


# --- csub ---


@pytest.fixture
def known(shell: Shell) -> Shell:
    """Return a site with its own margins, and a job that ran once."""
    shell.site('"mig"', agent=True)
    with (shell.folder / "site.toml").open("a") as stream:
        stream.write(f'[paths]\nstate = "{shell.folder / "state"}"\n')
    path = Path(calibration_path(str(shell.folder / "state")))
    path.parent.mkdir(parents=True, exist_ok=True)
    # The folder of the job names this one: of the same size it is no other job.
    path.write_text(json.dumps(OWN._replace(at_s=float(int(time.time())))))
    shell.ran()
    return shell


def test_csub_takes_the_sites_margins_and_says_how_often_they_held(known: Shell) -> None:
    footprint = json.loads(known.run("--dry-run", "--format=json", "job.sh").stdout)["footprint"]
    assert (footprint["gpu_mem_peak_mib"]["q99"], footprint["confidence"]) == (near(5200), 0.97)
    assert (footprint["margin"], footprint["expected_mib"]) == (NAME, 4000)
    assert {"code": "margin-counted", "params": {"factor": 1.3, "floor_mib": 0.0, "answers": 200}} in footprint[
        "provenance_codes"
    ]
    assert "97 %" in known.run("--explain", "job.sh").stderr
    [kept] = known.decisions()
    assert (kept["margin"], kept["gpu_mem_expected_mib"], kept["gpu_mem_q99_mib"]) == (NAME, 4000, near(5200))


def test_csub_says_when_they_are_too_old_only_where_it_is_asked_to_explain(known: Shell) -> None:
    Path(calibration_path(str(known.folder / "state"))).write_text(json.dumps(OWN._replace(at_s=1e9)))
    old = words(because("margins-old", days=30))
    assert old in known.run("--dry-run", "--explain", "job.sh").stderr
    plain = known.run("job.sh")
    assert (plain.returncode, old in plain.stderr) == (0, False)
    assert len(known.calls()) == 1


def test_a_hint_has_no_confidence(known: Shell) -> None:
    shown = known.run("--dry-run", "--format=json", "--gpu-footprint=mem=9G,sm=5", "job.sh").stdout
    footprint = json.loads(shown)["footprint"]
    assert (footprint["confidence"], footprint["margin"], footprint["expected_mib"]) == (None, "", None)
