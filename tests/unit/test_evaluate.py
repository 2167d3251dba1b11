# SPDX-License-Identifier: Apache-2.0
"""Replaying a table of runs: what counts as what, and that a run never knows of itself."""

import csv
import io
import json
import math
import re
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.cli.colloc.evaluate import evaluate
from slurm_colloc.config import Partition, SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.estimate.bounds import lower_bound, upper_bound
from slurm_colloc.report.cases import MODES, SAME, pairs
from slurm_colloc.report.replay import CSUB, Judged, Kept, Score, kept, replay, scores
from slurm_colloc.report.runs_table import COLUMNS, MAY_BE_EMPTY, Table, parse_table
from slurm_colloc.report.speeds import GPU_UTIL, SM_ACTIVITY, Speed, speeds
from tests.unit.made import MIG_POOL, MPS_POOL, near, site

HEAD = ",".join((*COLUMNS, *MAY_BE_EMPTY))
# Four shares of 2000 MiB, of which a job gets one or two.
SHARES = site(
    MPS_POOL._replace(gpu_model="A100", gpu_mem_mib=8000, mps_per_gpu=4),
    order=("mps",),
    mps_daemon="slurm",
    headroom_mib=0,
)
SITE = SHARES._replace(partition=(Partition("gpu", mps_users="one"),))


def row(
    at_s: object, batch: object, peak_mib: object, *, state: str = "COMPLETED", model: str = "A100", sm: object = ""
) -> str:
    return f"{at_s},python train.py --batch-size {batch},{model},{state},{peak_mib},{sm},,,,"


def table(*rows: str) -> Table:
    return parse_table("\n".join((HEAD, *rows)) + "\n")


def judged(mode: str, found: Table, config: SiteConfig = SITE) -> list[Judged]:
    return list(replay(MODES[mode](found.rows), config).judged)


def scored(mode: str, found: Table, config: SiteConfig = SITE) -> dict[tuple[str, str], Score]:
    return {(one.policy, one.known): one for one in scores(judged(mode, found, config))}


def by_csub(mode: str, found: Table, config: SiteConfig = SITE) -> list[Judged]:
    return [one for one in judged(mode, found, config) if one.policy == CSUB]


# --- bounds ---


def test_bounds_are_those_of_clopper_and_pearson() -> None:
    assert upper_bound(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert upper_bound(1, 10) == pytest.approx(0.39416, abs=1e-5)
    assert upper_bound(5, 100) == pytest.approx(0.10225, abs=1e-5)
    assert lower_bound(9, 10) == pytest.approx(1 - 0.39416, abs=1e-5)
    assert (upper_bound(0, 0), lower_bound(0, 0), upper_bound(7, 7)) == (1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="no share"):
        upper_bound(3, 2)


@given(st.integers(1, 20_000), st.data())
def test_a_bound_lies_beyond_the_rate_and_grows_with_it(of: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, of - 1))
    assert count / of < upper_bound(count, of) < upper_bound(count + 1, of) <= 1
    assert lower_bound(count, of) <= count / of


# --- the table ---


def test_rows_that_cannot_be_used_are_counted_by_reason() -> None:
    found = table(
        row(1, 8, 900),
        row(2, 8, ""),
        row(3, 8, "nan"),
        row(4, 8, -1),
        row(5, 8, "much"),
        row("", 8, 900),
        row(6, 8, 0),
        row(7, 8, "", state="GPU_OOM"),
        row(8, 8, 900, model=""),
        row(9, 8, 900, state=""),
        "1,2",
        row(10, 8, "inf"),
        row(11, 8, 900, sm=250),
    )
    assert (found.rows_in, len(found.rows), sum(found.rejected.values())) == (13, 1, 12)
    assert found.rejected == {
        "no peak_mib of a run that completed": 2,
        "peak_mib is NaN, negative or beyond all bounds": 3,
        "peak_mib is no number": 1,
        "no at_s": 1,
        "no peak_mib of a run that did not complete": 1,
        "no gpu_model": 1,
        "no state": 1,
        "not as many values as the header has names": 1,
        "sm_active_pct is NaN, negative or beyond all bounds": 1,
    }


@pytest.mark.parametrize(("limit", "speed"), [(0, 40), (150, 40), (50, 0), (50, -1), (50, "nan"), (50, "inf"), ("", 1)])
def test_impossible_times_on_a_part_are_rejected(limit: object, speed: object) -> None:
    lines = [f"python a.py,A100,{at},COMPLETED,{of},20,5,900" for at, of in ((100, 50), (limit, speed))]
    found = parse_table("\n".join((LIMITS, *lines)) + "\n")
    assert found.rows[0].slowdowns == ((100.0, 1.0),)
    assert sum(found.rejected.values()) == 1
    alone = parse_table("\n".join((LIMITS, lines[0].replace(",100,", ",50,"))) + "\n")
    assert (alone.rows, alone.rejected) == ((), {"not measured on all SMs": 1})


def test_a_clock_that_goes_back_is_counted_and_the_rows_are_put_in_order() -> None:
    found = table(row(5, 8, 900), row(3, 16, 900), row(9, 32, 900))
    assert (found.clock_back, [one.run.ended_s for one in found.rows]) == (1, [3, 5, 9])


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (HEAD.replace("peak_mib", "peak_mb", 1), "column 'peak_mb' is not known; the nearest that is: 'peak_mib'"),
        (HEAD.replace("sm_active_pct", "sm_active_percent"), "the nearest that is: 'sm_active_pct'"),
        (HEAD.replace("state,", ""), "lacks the column 'state'"),
        (f"{HEAD},at_s", "names a column twice"),
        ("", "lacks the column 'at_s'"),
    ],
)
def test_a_header_that_is_not_understood_is_an_error(header: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_table(f"{header}\n")


def test_other_columns_are_not_read_and_named() -> None:
    found = parse_table("at_s,command,gpu_model,state,peak_mib,owner\n1,python a.py,A100,COMPLETED,900,ann\n")
    assert (len(found.rows), found.not_read) == (1, ("owner",))


@given(st.text(max_size=200))
def test_any_text_is_a_table_or_an_error_of_ours(text: str) -> None:
    with suppress(InputError):
        found = parse_table(f"{HEAD}\n{text}")
        assert found.rows_in == len(found.rows) + sum(found.rejected.values())


# --- the replay ---


def test_a_run_knows_only_what_ended_before_it() -> None:
    """Three batch sizes on a line: nothing is known of the first, one run of the second, a line of the third."""
    found = by_csub("history", table(row(1, 8, 900), row(2, 16, 1100), row(3, 32, 1500)))
    assert [one.footprint.margin for one in found] == ["", "one", "line"]
    assert [one.given for one in found] == [1.0, 0.25, 0.5], "what gets no piece has a whole GPU"
    assert [one.ideal for one in found] == [0.25] * 3


def test_runs_of_the_same_moment_do_not_know_each_other() -> None:
    assert all(one.piece is None for one in by_csub("history", table(row(1, 8, 900), row(1, 8, 900))))


def test_what_ran_out_of_memory_has_a_whole_gpu_once_more() -> None:
    small = by_csub("history", table(row(1, 8, 1500), row(2, 8, 3000)))[1]
    assert (small.missed, small.out_of_memory, small.given, small.ideal) == (True, True, 1.25, 0.5)
    held = by_csub("history", table(row(1, 8, 1000), row(2, 8, 1500)))[1]
    assert (held.missed, held.out_of_memory, held.given) == (True, False, 0.25)


def test_what_did_not_complete_is_a_bound_and_never_the_truth() -> None:
    found = table(row(1, 8, 900), row(2, 8, 3000, state="GPU_OOM"), row(3, 8, 3500))
    of = by_csub("history", found)
    assert len(of) == 2, "the run that failed is not placed"
    assert (of[1].given, of[1].out_of_memory) == (0.5, False), "but raises what the next one gets"


def test_what_was_measured_on_another_gpu_is_no_answer() -> None:
    found = table(row(1, 8, 900, model="H100"), row(2, 8, 900), row(3, 8, 900))
    assert [one.piece is not None for one in by_csub("history", found)] == [False, True]


def test_a_job_that_is_too_busy_for_a_piece_has_a_whole_gpu() -> None:
    found = by_csub("history", table(row(1, 8, 900, sm=95), row(2, 8, 900, sm=95)))[1]
    assert (found.given, found.memory_given, found.out_of_memory) == (1.0, 0.25, False)
    assert (found.ideal, found.memory_ideal) == (1.0, 0.25)


LIMITS = "command,gpu_model,limit_pct,state,steps_per_s,sm_active_pct,dram_active_pct,gpu_mem_used_mib"


def test_an_oracle_knows_the_time_on_each_piece() -> None:
    """A quarter of the SMs takes twice as long: csub gives fewer, on which it is slower than the site allows."""
    speeds = [(100, 50), (50, 45.0), (25, 25.0)]
    lines = [f"python a.py,A100,{limit},COMPLETED,{speed},20,5,900" for limit, speed in speeds]
    found = parse_table("\n".join((LIMITS, *lines)) + "\n")
    assert (found.rows_in, len(found.rows), found.rejected) == (3, 1, {})
    assert found.rows[0].slowdowns == ((25.0, 2.0), (50.0, near(50 / 45)), (100.0, 1.0))
    slices = site(MIG_POOL._replace(gpu_model="A100"), order=("mig",), headroom_mib=0)
    [one] = [one for one in by_csub("leave-one-out", found, slices) if one.case.known == SAME]
    part, given, needed = 20090 / 81559, 2 * 25 / (100 * 26 / 132), 2 * 25 / (100 * 32 / 132)
    assert (one.slowdown, one.too_slow, one.given) == (near(given), True, near(part * given))
    assert (one.ideal, one.memory_ideal) == (near(part * needed), near(9984 / 81559))
    [one] = [one for one in by_csub("leave-one-out", found) if one.case.known == SAME]
    assert (one.slowdown, one.too_slow, one.given, one.ideal) == (1.0, False, 0.25, 0.25), (
        "beside others it has all SMs"
    )


def test_of_several_passes_the_fastest_counts() -> None:
    lines = [
        f"python a.py,A100,{limit},COMPLETED,{speed},20,5,900" for limit, speed in ((100, 40), (100, 50), (50, 40))
    ]
    assert parse_table("\n".join((LIMITS, *lines, lines[0])) + "\n").rows[0].slowdowns == (
        (50.0, near(1.25)),
        (100.0, 1.0),
    )


def test_the_rule_for_slices_is_judged_by_card_and_telemetry() -> None:
    """On half of the SMs: of 10 % active the upper end is 1.08, of 20 % 1.16, of 40 % 1.34."""
    head = f"{LIMITS},gpu_util_pct"
    runs = [
        ("a", "A100", 10, 1.0, ""),
        ("b", "A100", 20, 1.3, 80),
        ("c", "A100", 40, 1.2, ""),
        ("d", "H100", 20, 1.1, ""),
    ]
    lines = [
        f"python {name}.py,{model},{limit},COMPLETED,{speed},{sm},5,900,{util}"
        for name, model, sm, slowdown, util in runs
        for limit, speed in ((100, 60), (50, 60 / slowdown))
    ]
    found = speeds(parse_table("\n".join((head, *lines)) + "\n").rows, 1.25)
    assert found == [
        Speed("A100", SM_ACTIVITY, 3, accepted=2, over=1, near=1, near_over=1, within=2, both=1),
        Speed("H100", SM_ACTIVITY, 1, accepted=1, over=0, near=1, near_over=0, within=1, both=1),
        Speed("all", SM_ACTIVITY, 4, accepted=3, over=1, near=2, near_over=1, within=3, both=2),
        Speed("A100", GPU_UTIL, 1, accepted=0, over=0, near=0, near_over=0, within=0, both=0),
        Speed("all", GPU_UTIL, 1, accepted=0, over=0, near=0, near_over=0, within=0, both=0),
    ]
    assert [one.near_chance for one in found] == [near(0.02), 1.0, near(1 - 0.98**2), 1.0, 1.0]


def test_a_share_is_too_small_for_what_is_busier_than_it_holds() -> None:
    """An earlier run of half the size kept 3 % of the SMs busy, this one keeps half of them."""
    [one] = by_csub("history", table(row(1, 8, 900, sm=3), row(2, 8, 900, sm=50)))[1:]
    assert one.piece is not None
    assert (one.slowdown, one.too_slow) == (None, True)
    [one] = by_csub("history", table(row(1, 8, 900, sm=3), row(2, 8, 900)))[1:]
    assert one.too_slow is None


def test_cores_that_are_kept_are_given_with_the_piece() -> None:
    pool = SITE.pool[0]._replace(cpus_per_node=8, gpus_per_node=1)
    config = SITE._replace(pool=(pool,), partition=(Partition("gpu", mps_users="one", cpus_per_gpu=8),))
    whole = config._replace(sharing=config.sharing._replace(part_of_host=False))
    found = table(row(1, 8, 900), row(2, 8, 900))
    assert by_csub("history", found, config)[1].given == 0.25
    assert by_csub("history", found, whole)[1].given == 1.0, "a share frees no GPU whose cores it keeps"


def test_what_a_run_used_of_the_host_counts_for_all() -> None:
    pool = SITE.pool[0]._replace(cpus_per_node=8, gpus_per_node=1)
    config = SITE._replace(pool=(pool,), partition=(Partition("gpu", mps_users="one", cpus_per_gpu=8),))
    lines = [f"{at_s},python train.py,A100,COMPLETED,900,5,5,3,0," for at_s in (1, 2)]
    found = by_csub("history", table(*lines), config)[1]
    assert (found.given, found.ideal) == (0.5, 0.375), "four cores of eight, for a run that used three"


def test_leaving_a_configuration_out_leaves_its_repeats_out_too() -> None:
    found = table(row(1, 8, 900), row(2, 8, 900), row(3, 16, 1100), row(4, 32, 1500))
    of = scored("leave-one-out", found)
    assert {known: one.placements for (policy, known), one in of.items() if policy == CSUB} == {
        SAME: 3,
        "one other": 6,
        "two others": 3,
        "all others": 3,
    }
    assert of[CSUB, "all others"].median_error == near(0)
    assert of[CSUB, SAME].missed == 0


def test_a_family_of_many_sizes_is_replayed_in_bounded_time() -> None:
    found = table(*(row(number, number, 500 + number) for number in range(1, 61)))
    assert scored("leave-one-out", found)[CSUB, "two others"].placements <= 60 * 60


def test_what_cannot_be_placed_is_counted_by_reason() -> None:
    found = table(row(1, 8, 900), row(2, 8, 900, model="B"), row(3, 8, 9000))
    done = replay(MODES["history"](found.rows), SITE)
    assert done.not_placed == {"site.toml describes no GPU of that model": 1, "larger than the whole GPU": 1}


def test_a_margin_is_judged_by_source() -> None:
    rows = table(row(1, 8, 900), row(2, 8, 900), row(3, 8, 2000)).rows
    found = kept(judged("history", Table(tuple(one._replace(source="a") for one in rows), 3, {}, 0)))
    assert found == [Kept("same", "", 0.99, 2, 1), Kept("same", "a", 0.99, 2, 1)]


def test_the_policy_to_beat() -> None:
    """The same job and a margin, a line through the nearest two, or all but 700 MiB in proportion."""
    rows = (row(1, 8, 1000), row(2, 8, 1000), row(3, 16, 1200), row(4, 32, 1400), row(5, 4, 800))
    found = [one.footprint.gpu_mem_peak_mib for one in judged("history", table(*rows)) if one.policy == "line"]
    assert [said and said.q99 for said in found] == [
        None,
        near(1150),
        near(700 + 300 * 2),
        near(1.15 * 1600),
        near(1.15 * 900),
    ]


# --- the command ---


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = tmp_path / "table.csv"
    rows = [row(number, batch, 500 + 20 * batch) for number, batch in enumerate((8, 16, 32, 64, 8, 16))]
    made.write_text("\n".join((HEAD, *rows, row(9, 8, ""))) + "\n")
    return str(made)


def test_the_headline_is_what_csub_gives_over_what_is_needed(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate([path], shares="8000", mode="leave-one-out")
    text = capsys.readouterr().out
    assert [line.partition(":")[0] for line in text.splitlines()[:4]] == [SAME, "one other", "two others", "all others"]
    assert "7 rows in, 6 used, 1 rejected (no peak_mib of a run that completed: 1); 0 of those used did not" in text
    assert re.search(r"^same +table +99.0 % +100.0 % +4$", text, re.MULTILINE)


def test_json_and_csv_hold_the_same_figures(path: str, tmp_path: Path) -> None:
    made = [tmp_path / "out.json", tmp_path / "out.csv"]
    other = tmp_path / "other.csv"
    other.write_text(Path(path).read_text())
    for form, out in zip(("json", "csv"), made, strict=True):
        evaluate([path, str(other)], slices="1000,2000", mode="leave-one-out", form=form, output=str(out))
    shown = json.loads(made[0].read_text())
    rows = list(csv.DictReader(io.StringIO(made[1].read_text())))
    assert [one["out_of_memory"] for one in shown["scores"]] == [int(one["out_of_memory"]) for one in rows]
    assert all(one["over_ideal"] == near(one["given"] / one["ideal"]) for one in shown["scores"])
    assert (shown["schema"], shown["rejected"]) == (3, {"no peak_mib of a run that completed": 2})
    assert shown["speeds"] == []
    assert shown["times_measured"] == 0 < shown["without_speed"] == shown["placements"]


def test_without_pieces_the_sites_pools_say_what_there_is(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where = "slurm_colloc.cli.colloc.evaluate.site_or_none"
    monkeypatch.setattr(where, lambda: site(MIG_POOL._replace(gpu_model="A100"), headroom_mib=256))
    evaluate([path])
    monkeypatch.setattr(where, site)
    with pytest.raises(InputError, match="describes no GPU of that model: 6"):
        evaluate([path])
    monkeypatch.setattr(where, lambda: None)
    with pytest.raises(InputError, match=r"no site.toml .* give --slices or --shares"):
        evaluate([path])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slices": "5G"}, "--slices '5G' is not MiB by comma"),
        ({"slices": "", "shares": "0"}, "--shares '0' is not MiB by comma"),
        ({"mode": "random"}, "is not one of history, leave-one-out"),
        ({"form": "html"}, "is not one of text, json, csv"),
        ({"max_slowdown": 0.9}, "is no number of at least 1"),
        ({"slices": "10"}, r"larger than the whole GPU: 6"),
        ({"shares": "1000"}, "give one of them"),
        ({"slices": "", "shares": "500,1000"}, "is the MiB of one GPU"),
    ],
)
def test_what_cannot_be_evaluated_is_an_error(path: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        evaluate([path], **{"slices": "1000", **options})
    with pytest.raises(InputError, match="cannot be read"):
        evaluate([f"{path}.none"], slices="1000")
    with pytest.raises(InputError, match="two tables are called"):
        evaluate([path, path], slices="1000")


@pytest.mark.parametrize("many", [*range(8), 40, 41])
def test_pairs_are_those_of_combinations_at_even_distances(many: int) -> None:
    every = list(combinations(range(many), 2))
    assert list(pairs(range(many))) == every[:: max(1, math.ceil(len(every) / 60))]


def test_of_a_large_sweep_no_more_is_looked_at_than_csub_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_colloc.report.cases.RELATIVES_READ", 3)
    cases = list(MODES["leave-one-out"](table(*(row(size, size, 900) for size in range(1, 9))).rows))
    assert {len(case.relatives) for case in cases if case.known == "all others"} == {3}
