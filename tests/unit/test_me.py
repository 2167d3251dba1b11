# SPDX-License-Identifier: Apache-2.0
"""colloc me: one's own last month."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.cli.colloc import me as command
from slurm_colloc.cli.colloc.user_runs import kept_evidence
from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.estimate.records import drop_decision, drop_evidence, own_decisions
from slurm_colloc.facts.fits import fit_of
from slurm_colloc.facts.judgement import Fitted, Judgement, RunFound, judge
from slurm_colloc.facts.one_user import user_in_store, with_evidence
from slurm_colloc.report.job import Advice
from slurm_colloc.report.layout import Terminal
from slurm_colloc.report.me import Hint, MyReport, as_json, as_text, best, hints_of, idlest, sums_of
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.job_visibility import own_name
from slurm_colloc.store.window import Window
from tests.unit.golden import Printed
from tests.unit.hostile import HOSTILE
from tests.unit.made import HOUR, MIG_POOL, decision, evidence, near, run, site, usage
from tests.unit.programs import colloc, program
from tests.unit.stored import busy, stored
from tests.unit.test_cli_accounting import Site, row

SITE = site(MIG_POOL._replace(gpu_type="h100", gpus_per_node=2))
BEGAN, ENDED = (datetime.fromtimestamp(at_s, UTC) for at_s in (0, 86400))


def mine(*runs: JobUsage, **fields: Any) -> MyReport:
    return MyReport("ann", "c", BEGAN, ENDED, "the store of measurements", runs, 4, None, ())._replace(**fields)


def text_of(report: MyReport) -> Sequence[str]:
    return as_text(report).splitlines()


def test_shares_of_unknown_size_alone_are_not_nothing(printed: Printed) -> None:
    report = mine(usage(allocated_gpu_hours=None))
    printed("me", *(line for line in text_of(report) if line.startswith("  allocated")))
    assert json.loads(as_json(report))["total"]["allocated_gpu_hours"] is None
    assert sums_of([]).allocated_gpu_hours == 0.0


def test_sums_are_of_runs_whose_size_is_known() -> None:
    sums = sums_of([usage(), usage(allocated_gpu_hours=None)])
    assert (sums.runs, sums.without_size, sums.allocated_gpu_hours, sums.sm_used_gpu_hours) == (2, 1, 1.0, 0.25)


def test_the_idlest_are_by_sm_activity_else_by_gpu_util() -> None:
    runs = [usage(job_id=str(number), sm_used_gpu_hours=number / 10) for number in range(7)]
    found = idlest([*runs, usage(job_id="u", sm_used_gpu_hours=None, util_used_gpu_hours=0.0)])
    assert [(one.job_id, idle) for one, idle in found] == [
        ("0", 1.0),
        ("u", 1.0),
        ("1", near(0.9)),
        ("2", near(0.8)),
        ("3", near(0.7)),
    ]


def test_gpus_that_nobody_used_and_idle_tails_are_said(printed: Printed) -> None:
    unused = usage(job_id="7", sm_used_gpu_hours=0.0, util_used_gpu_hours=0.0, allocated_gpu_hours=5.0)
    tail = usage(job_id="8", end_s=10 * HOUR, allocated_gpu_hours=10.0, idle_tail_s=2 * HOUR)
    hints = list(hints_of([judge(RunFound(one, None, None)) for one in (unused, tail, usage())]))
    assert [(one.command, one.gpu_hours) for one in hints] == [("colloc job 7", 5.0), ("colloc job 8", 2.0)]
    printed("me", *(one.evidence for one in hints))
    writes = judge(RunFound(tail._replace(idle_tail_s=2 * HOUR - 1), None, None))
    assert list(hints_of([writes])) == []
    thin = [judge(RunFound(one._replace(coverage_pct=50.0), None, None)) for one in (unused, tail)]
    assert list(hints_of(thin)) == []


def test_gpus_of_several_that_were_never_used_are_said_first(printed: Printed) -> None:
    hours = dict.fromkeys((f"{of}_gpu_hours" for of in ("allocated", "held", "util_measured", "sm_measured")), 96.0)
    four = usage(job_id="9", end_s=24 * HOUR, gres="gpu:h100:4", util_used_gpu_hours=20.0, sm_used_gpu_hours=12.0,
                 **hours)  # fmt: skip
    said = [judge(RunFound(four, None, None, Fitted("not-one-gpu", "", None, None, 0.0, 4, 3, 72.0)))]
    (hint,) = hints_of(said)
    assert (hint.command, hint.gpu_hours, said[0].remedies[0].gres) == ("colloc job 9", 72.0, "gpu:h100:1")
    printed("me", as_text(mine(four, hints=[hint], fit=fit_of("ann", said))))


def test_the_best_advice_comes_first_and_there_are_three() -> None:
    hints = [Hint(str(hours), "", "colloc job 1", hours) for hours in (0.5, 3.0, 0.001, 2.0, 1.0)]
    assert [one.what for one in best(hints)] == ["3.0", "2.0", "1.0"]
    lines = text_of(mine(usage(), hints=hints))
    assert lines[lines.index("  1. 3.0") + 2] == "     $ colloc job 1"


def test_the_piece_that_is_named_holds_each_run_that_fits_one(printed: Printed) -> None:
    text = as_text(
        mine(*(usage(job_id=str(job)) for job in range(1, 6)), fit=Fit("ann", 5.0, 3.0, 2.7, "mps:10", 5, 3, 0))
    )
    printed("me", text)


def test_the_piece_to_submit_a_name_by_holds_each_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    pieces = {"1": ("mps:40", 0.4), "2": ("mps:66", 0.66), "3": ("mps:65", 0.65)}
    said = [
        judge(RunFound(usage(job_id=job), None, evidence(job), Fitted("", unit, gpus, 9000, 1 - gpus, 1, None, 0.0)))
        for job, (unit, gpus) in pieces.items()
    ]
    (hint,) = command._fit_hints(said, SITE._replace(cluster="c", policy="shadow"))
    assert (hint.what.count("mps:66"), hint.gpu_hours) == (2, near(0.6 + 0.34 + 0.35))
    # What csub gives is by its margins: no figure of a run that is over.
    (by_csub,) = command._fit_hints(said, SITE._replace(cluster="c", policy="auto"))
    printed("me", hint.what, hint.evidence, by_csub.what, by_csub.evidence)


def test_the_line_is_for_the_run_that_held_most_memory_and_says_what_csub_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    peaks = {"1": 3000, "2": 9000, "3": 5000}
    seen: list[tuple[str, str]] = []
    said = [
        judge(
            RunFound(
                usage(job_id=job),
                None,
                evidence(job, mib),
                Fitted("", "mps:40", 0.4, 9900, 0.6, 1, None, 0.0),
            )
        )
        for job, mib in peaks.items()
    ]

    def advice_for(run: RunFound, submitted: JobUsage, config: SiteConfig) -> Advice:
        seen.append((run.usage.job_id, submitted.job_id))
        return Advice("mps:40", "csub train.sh", "submitted so it gets mps:47")

    monkeypatch.setattr(command, "advice_for", advice_for)
    (hint,) = command._fit_hints(said, SITE._replace(cluster="c", policy="auto"))
    assert seen == [("2", "3")]
    assert hint.command == "csub train.sh"
    assert ("mps:40" in hint.what, "mps:47" in hint.evidence) == (True, True)


def test_gpus_that_differ_have_no_piece_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def fits(*pieces: tuple[str, str]) -> list[Judgement]:
        return [
            judge(
                RunFound(usage(job_id="1", gpu_type=kind), None, None, Fitted("", unit, 0.4, 9900, 0.6, 1, None, 0.0))
            )
            for kind, unit in pieces
        ]

    for pieces, unit in (
        ([("h100", "mps:40"), ("a100", "mps:40")], "mps:40"),
        ([("h100", "mps:40"), ("a100", "mps:60")], ""),
    ):
        said = fits(*pieces)
        both = fit_of("ann", said)
        assert both is not None
        assert (both.unit, both.fitting_runs) == (unit, 2)
        (hint,) = command._fit_hints(said, SITE._replace(cluster="c", policy="shadow"))
        assert ("mps" in hint.what) == bool(unit)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_month(text: str) -> None:
    report = mine(usage(job_name=text, job_id=text, gres=text), user=text, cluster=text, source=text,
                  hints=[Hint(text, text, text, 1.0)])  # fmt: skip
    shown = as_text(report, Terminal(60))
    assert [character for character in shown if not character.isprintable() and character != "\n"] == []
    assert json.loads(as_json(report))["idlest"][0]["job_name"] == text


# --- where it is from ---


def test_only_ones_own_runs_are_taken(tmp_path: Path) -> None:
    rows = [run(), run("2", user="bob"), run("3", gres=())]
    found = user_in_store(stored(tmp_path, rows, busy(900, 1800, 2700, 3600)), "ann", Window(0, 1e5, 1e5), SITE)
    assert ([one.usage.job_id for one in found.runs], found.without_gpu) == (["1"], 1)
    (one,) = found.runs
    assert one.evidence is not None
    assert one.evidence.gpu_mem_peak_mib == 3000


def test_what_the_runs_would_have_fitted(tmp_path: Path) -> None:
    store = stored(tmp_path, [run()], busy(900, 1800, 2700, 3600, sm=10.0, mib=6000))
    runs = user_in_store(store, "ann", Window(0, 1e5, 1e5), SITE).runs
    fit = fit_of("ann", map(judge, runs))
    assert fit == Fit("ann", 1.0, 1.0, near(6 / 7), "gpu:h100_1g.10gb:1", 1, 1, 0)
    blank = user_in_store(stored(tmp_path / "blank", [run()]), "ann", Window(0, 1e5, 1e5), SITE).runs
    said = [judge(one) for one in blank]
    assert fit_of("ann", said) is None
    assert [one.why for one in said] == ["not-measured-alone"]


def test_what_csub_submitted_is_not_to_be_submitted_by_csub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [run(), run("2_1", job_id_raw="3", job_name="other")]
    store = stored(tmp_path, rows, [*busy(900, 1800, 2700, 3600, sm=10.0),
                                    *busy(900, 1800, 2700, 3600, sm=10.0, job="3", uuid="GPU-1")])  # fmt: skip
    fitting = [judge(one) for one in user_in_store(store, "ann", Window(0, 1e5, 1e5), SITE).runs]
    monkeypatch.setattr(CliClient, "accounted", lambda self, job_id: ())

    def advised(*by_csub: str) -> list[str]:
        monkeypatch.setattr(command, "own_decisions", lambda config: ([decision(job) for job in by_csub], 0))
        return sorted(hint.what.split("'")[1] for hint in command._fit_hints(fitting, SITE))

    assert advised() == ["other", "train"]
    assert advised("1") == ["other"]
    assert advised("1", "2") == []


def test_kept_evidence_gives_a_run_its_figures(printed: Printed) -> None:
    blank = usage(util_used_gpu_hours=None, sm_used_gpu_hours=None, gpu_mem_peak_mib=None, methods=())
    kept = evidence(sampled_s=1800.0, sm_active_mean_pct=20.0)
    shown = with_evidence(RunFound(blank, None, None), kept).usage
    assert (shown.sm_measured_gpu_hours, shown.sm_used_gpu_hours) == (0.5, 0.1)
    assert (shown.coverage_pct, shown.gpu_mem_peak_mib) == (50.0, 8000)
    printed("me", *shown.methods)
    bound = with_evidence(RunFound(blank, None, None), kept._replace(sm_is_bound=True)).usage
    assert (bound.sm_measured_gpu_hours, bound.sm_used_gpu_hours) == (0.0, None)
    assert with_evidence(RunFound(usage(), None, None), kept).usage == usage()


def test_what_was_decided_before_the_site_had_a_spool_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """csub goes by what was measured of those jobs, so that they are no jobs of which nothing is known."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "spool").mkdir(mode=0o1777)
    config = SITE._replace(cluster="c", paths=SITE.paths._replace(decisions=str(tmp_path / "spool")))
    home = tmp_path / "data/slurm_colloc"
    for job, cluster in (("61", "c"), ("62", "other")):
        drop_decision(str(home / "decisions"), decision(job, cluster=cluster))
        drop_evidence(str(home), evidence(job, 6000))
    drop_decision(config.decisions_folder, decision("63", cluster="c"))
    assert [one.job_id for one in own_decisions(config)[0]] == ["61", "63"]
    assert kept_evidence(config)["61"].gpu_mem_peak_mib == 6000
    at_home = config._replace(paths=config.paths._replace(decisions=""))
    assert [one.job_id for one in own_decisions(at_home)[0]] == ["61", "62"]


def test_without_a_store_slurm_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    (tmp_path / "site.toml").write_text('schema = 1\ncluster = "c"\nslurm_release = "22.05"\n')
    began, ended = (f"{datetime.now(UTC) - timedelta(hours=hours):%Y-%m-%dT%H:%M}" for hours in (2, 1))
    cluster = Site(tmp_path, monkeypatch)
    first_day = f"{datetime.now(UTC) - timedelta(days=30):%Y-%m-%d}"
    cluster.day(first_day, row("61", began, ended, user=own_name()))
    assert colloc("me") == 0
    assert all(call.startswith(f"-u {own_name()} ") for call in cluster.calls() if " -S " in call)
    said = colloc.out
    assert "no site.toml" not in colloc.err
    printed("me", *said.splitlines()[1:])
    monkeypatch.delenv("COLLOC_CONF")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    assert colloc("me") == 0
    printed("me", colloc.err)
    program(tmp_path, "sacct", "echo 'slurmdbd: Connection refused' >&2\nexit 1\n", monkeypatch)
    assert colloc("me") == 2
    printed("me", colloc.err)
