# SPDX-License-Identifier: Apache-2.0
"""The public API: what ``import slurm_colloc`` offers, as frames whose columns are those of reports."""

import ast
import csv
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

import slurm_colloc
from slurm_colloc.cli.colloc.demo import BEGIN_S, END_S
from slurm_colloc.core.config_file import load_site
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import SharingMode
from slurm_colloc.facts.aggregate import aggregate, usages_of
from slurm_colloc.facts.fits import fitted_of, key_of
from slurm_colloc.library import Accounting
from slurm_colloc.slurm.job_visibility import Visible
from slurm_colloc.store.store import Store, open_store
from slurm_colloc.store.window import Window
from tests.doc_examples import blocks
from tests.pages import DOCS
from tests.pictures import DIGEST, digest_of
from tests.unit.made import HOUR, MIG_POOL, decision, run, site
from tests.unit.programs import colloc
from tests.unit.shell import HINT, Shell
from tests.unit.stored import busy, stored

WINDOW = ("1970-01-01T00:00:00+00:00", "1970-01-02T00:00:00+00:00")
ENDS = ("--since", WINDOW[0], "--until", WINDOW[1])


@pytest.fixture
def kept(tmp_path: Path) -> Store:
    """A store with a run of ann that was sampled for half of its hour, and one of bob that was not."""
    rows = [run("1", account="lab"), run("2", user="bob", state="FAILED", start_s=HOUR, end_s=2 * HOUR)]
    store = stored(tmp_path / "store", rows, busy(900, 1800), site(MIG_POOL))
    store.write_decisions([("ann", decision("1", at_s=0.0)), ("bob", decision("2", at_s=HOUR, user="bob"))])
    store.write_log("a", {"rows_in": 2, "used": 2, "steps": 0, "rejected": {}})
    return store


@pytest.fixture
def accounting(kept: Store, monkeypatch: pytest.MonkeyPatch) -> Accounting:
    monkeypatch.delenv("COLLOC_CONF", raising=False)
    return slurm_colloc.open(kept.samples.folder)


def test_importing_the_package_imports_no_other_module() -> None:
    code = "import sys; before = set(sys.modules); import slurm_colloc; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["slurm_colloc"]


def test_every_public_name_is_there_and_no_other() -> None:
    assert [getattr(slurm_colloc, name).__module__.partition(".")[0] for name in slurm_colloc.__all__] == [
        "slurm_colloc"
    ] * len(slurm_colloc.__all__)
    assert set(slurm_colloc.__all__) <= set(dir(slurm_colloc))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        slurm_colloc.nothing  # noqa: B018


def test_a_frame_has_each_run_and_what_is_not_known_is_missing(accounting: Accounting) -> None:
    frame = accounting.runs(*WINDOW)
    assert list(frame["job_id"]) == ["1", "2"]
    assert list(frame["start"]) == [pd.Timestamp(0, tz="UTC"), pd.Timestamp(HOUR, unit="s", tz="UTC")]
    assert list(frame["methods"]) == ["measured", ""]
    assert frame["gpu_mem_peak_mib"].isna().tolist() == [False, True]
    assert frame["sm_used_gpu_hours"].isna().tolist() == [False, True]
    by_user = frame.groupby("user", observed=True)["allocated_gpu_hours"].sum()
    assert by_user.to_dict() == {"ann": 1.0, "bob": 1.0}
    # One of the two hours has samples, of the half of it.
    assert {name: frame.attrs[name] for name in ("cluster", "since", "until", "coverage_pct", "visible")} == {
        "cluster": "c", "since": WINDOW[0], "until": WINDOW[1], "coverage_pct": 25.0, "visible": "",
    }  # fmt: skip


@pytest.mark.parametrize("table", ["runs", "usage", "shares", "decisions"])
def test_types_do_not_depend_on_what_there_is(accounting: Accounting, table: str) -> None:
    full, empty = (
        getattr(accounting, table)(since=since, until=until)
        for since, until in (WINDOW, ("1999-01-01T00:00:00+00:00", "1999-01-02T00:00:00+00:00"))
    )
    assert len(full) == {"runs": 2, "usage": 2, "shares": 1, "decisions": 2}[table]
    assert len(empty) == 0
    kinds = {name: kind for name, kind in full.dtypes.astype(str).items() if kind != "category"}
    assert {name: str(empty.dtypes[name]) for name in kinds} == kinds
    assert set(kinds.values()) <= {"Int64", "float64", "boolean", "string", "datetime64[us, UTC]"}
    assert {name for name in full if str(full.dtypes[name]) == "category"} == {
        name for name in empty if str(empty.dtypes[name]) == "category"
    }


def test_runs_are_those_of_the_report_and_can_be_filtered(accounting: Accounting, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    assert colloc("report", "--store", str(tmp_path / "store"), *ENDS, "--runs", str(path)) == 0
    written = list(csv.DictReader(path.open()))
    frame = accounting.runs(*WINDOW)
    assert list(written[0]) == list(frame)
    assert [float(row["allocated_gpu_hours"]) for row in written] == list(frame["allocated_gpu_hours"])
    assert [pd.Timestamp(row["start"]) for row in written] == list(frame["start"])
    assert list(accounting.runs(*WINDOW, user="bob")["job_id"]) == ["2"]
    assert list(accounting.runs(*WINDOW, state=["FAILED", "TIMEOUT"])["job_id"]) == ["2"]
    with pytest.raises(InputError, match="no column 'usr'"):
        accounting.runs(*WINDOW, usr="bob")
    with pytest.raises(InputError, match="is empty"):
        accounting.runs(*reversed(WINDOW))


@pytest.mark.parametrize("by", ["user", "account", "gpu", "signature"])
def test_usage_is_the_parquet_of_the_report(accounting: Accounting, tmp_path: Path, by: str) -> None:
    path = tmp_path / "use.parquet"
    asked = ("--store", str(tmp_path / "store"), *ENDS, "--by", by, "--format", "parquet", "-o", str(path))
    assert colloc("report", *asked) == 0
    reported = duckdb.from_parquet(str(path))
    frame = accounting.usage(by, *WINDOW)
    assert reported.columns == list(frame)
    found = [tuple(None if pd.isna(value) else value for value in row) for row in frame.itertuples(index=False)]
    assert found == reported.fetchall()


def test_runs_as_csv_are_inert_in_a_spreadsheet(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", [run("1", job_name="=cmd()")])
    store.write_log("a", {"rows_in": 1, "used": 1, "steps": 0, "rejected": {}})
    path = tmp_path / "runs.csv"
    assert colloc("report", "--store", str(tmp_path / "store"), *ENDS, "--runs", str(path)) == 0
    (found,) = csv.DictReader(path.open())
    assert (found["job_id"], found["job_name"], found["gpu_mem_peak_mib"]) == ("1", "'=cmd()", "")


def test_what_a_run_had_of_each_gpu_its_readings_and_what_was_foretold(accounting: Accounting) -> None:
    (share,) = accounting.shares(*WINDOW).to_dict("records")
    assert (share["job_id"], share["user"], share["sampled_s"], share["jobs_at_once"]) == ("1", "ann", 1800.0, 1)
    samples = accounting.samples("1")
    assert samples["interval_s"].sum() == 1800.0
    assert samples["at"].is_monotonic_increasing
    assert samples["gpu_mem_used_mib"].max() == share["gpu_mem_peak_mib"]
    assert accounting.samples(2).empty
    assert accounting.samples("no such").empty
    foretold = accounting.decisions(*WINDOW).set_index("job_id")
    assert list(foretold["gpu_mem_q99_mib"]) == [9000.0, 9000.0]
    assert foretold["gpu_mem_peak_mib"].isna().to_dict() == {"1": False, "2": True}


def test_nothing_is_shown_of_others(kept: Store) -> None:
    only_bob = Accounting(Store(kept.samples.folder, None, visible=Visible(False, "bob", (), "of bob")), None, "slices")
    assert list(only_bob.runs(*WINDOW)["user"]) == ["bob"]
    assert list(only_bob.usage("user", *WINDOW)["user"]) == ["bob"]
    assert list(only_bob.decisions(*WINDOW)["user"]) == ["bob"]
    assert only_bob.shares(*WINDOW).empty
    assert only_bob.samples("1").empty
    assert "bob (of bob)" in only_bob.runs(*WINDOW).attrs["visible"]


def test_a_job_is_placed_as_csub_places_it(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLOC_CONF", str(shell.folder / "site.toml"))
    monkeypatch.setenv("HOME", str(shell.folder / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(shell.folder / "home"))
    script = shell.folder / "job.sh"
    placed = slurm_colloc.place(script, [HINT])
    assert (placed.mode, str(placed.gres)) == (SharingMode.MIG, "gpu:h100_1g.10gb:1")
    needed = slurm_colloc.footprint(script, [HINT])
    assert needed.gpu_mem_peak_mib is not None
    assert needed.gpu_mem_peak_mib.q99 == 4096
    assert slurm_colloc.place(script).as_asked
    assert shell.calls() == []
    shell.run(HINT, "job.sh")
    assert shell.calls() == [[f"--gres={placed.gres}", "job.sh"]]
    with pytest.raises(slurm_colloc.CollocError):
        slurm_colloc.place(script, ["--no-such-option"])
    monkeypatch.setenv("COLLOC_CONF", "")
    monkeypatch.setattr("slurm_colloc.library.find_site_file", lambda: None)
    with pytest.raises(slurm_colloc.CollocError, match=r"site\.toml"):
        slurm_colloc.place(script)


PAGE = [block.text for block in blocks() if block.page == "docs/how-to/python.md" and block.kind == "python"]


def test_the_examples_of_the_page_run(kept: Store, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    site_file = shell.folder / "site.toml"
    monkeypatch.setenv("COLLOC_CONF", str(site_file))
    monkeypatch.setenv("XDG_DATA_HOME", str(shell.folder / "home"))
    monkeypatch.chdir(shell.folder)
    (shell.folder / "job.sh").rename("train.sh")
    site_file.write_text(f'{site_file.read_text()}[paths]\nstate = "{Path(kept.samples.folder).parent}"\n')
    accounts, places = PAGE
    found: dict[str, Any] = {}
    exec(accounts, found)
    assert found["runs"].empty
    exec(places, found)
    assert str(found["placed"].gres) == "gpu:h100_1g.10gb:1"


def judged_of(demo: Path) -> dict[str, float]:
    """Return what the runs of each user could have left to others while they held their GPUs, by colloc job's fit."""
    config = load_site(str(demo / "site.toml"))
    store = open_store(str(demo / "store"), config)
    window = Window(BEGIN_S, END_S, END_S)
    with store.connect(BEGIN_S, END_S) as database:
        aggregate(database, store, window)
        fitted, usages = fitted_of(database, config), usages_of(database)
    found: dict[str, float] = {}
    for usage in usages:
        of = fitted.get(key_of(usage))
        found[usage.user] = found.get(usage.user, 0.0) + (of.freed_gpu_hours + of.spare_gpu_hours if of else 0.0)
    return found


def test_the_notebook_runs_on_the_week_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLOC_CONF", "")  # which the demo sets
    assert colloc("demo", "-o", str(tmp_path)) == 0
    *_, told, worth = colloc.out.split("\n\n")
    assert [line[:5].strip() for line in told.splitlines()] == ["page", "try", "", "", "", ""]
    fewer, sooner, longer, certain = worth.splitlines()
    assert re.findall(r"[\d.]*\d", f"{fewer} {sooner}") == [
        *("8", "7", "2", "3", "8.1", "0", "4", "7", "15", "10"),
        *("8", "1.7", "3.9", "25", "8.8"),
    ]
    durations = ["2.2 h", "1.4 h", "18 h", "17 h", "21 min", "4.2 h"]
    assert re.findall(r"\d[\d.]* (?:h|min)\b", f"{longer} {certain}") == durations
    assert digest_of((tmp_path / "report.html").read_text()) == DIGEST.read_text().strip(), "run 'make pictures'"
    # Of one week one figure: what pieces leave is the same to a report, to shadow mode and to a plan.
    figures = json.loads((tmp_path / "report.json").read_text())
    left, spare = (figures["fits"][-1][name] for name in ("freed_gpu_hours", "spare_gpu_hours"))
    assert (round(left), round(left + spare), round(figures["total"]["allocated_gpu_hours"])) == (267, 345, 887)
    most = {one["name"]: max(one["freed_gpu_hours"], one["spare_gpu_hours"]) for one in figures["fits"]}
    # The notebooks of moreau were forgotten: nobody can give a dead one a piece.
    most["moreau"] = next(one["held_idle_gpu_hours"] for one in figures["groups"] if one["name"] == "moreau")
    assert [one["who"] for one in figures["to_do"]] == ["rossi", "novak", "diaz", "haddad", "moreau"]
    assert [one["gpu_hours"] for one in figures["to_do"]] == pytest.approx(
        [most[one["who"]] for one in figures["to_do"]], rel=1e-3
    )
    assert figures["to_do"][-1]["line"] == ""
    week = ("--since", "2026-11-02", "--until", "2026-11-09", "--format", "json")
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    for asked in (("report", "--shadow"), ("site", "plan", "--mps")):
        assert colloc(*asked, *week) == 0
        assert json.loads(colloc.out)["could_free_gpu_hours"] == pytest.approx(left)
    assert round(left) == 267
    fits = json.loads((tmp_path / "report.json").read_text())["fits"]
    free = {one["name"]: one["freed_gpu_hours"] + one["spare_gpu_hours"] for one in fits}
    judged = judged_of(tmp_path)
    assert free == pytest.approx({name: judged.get(name, math.fsum(judged.values())) for name in free})
    # No STORE: the demo's site file names its own.
    for name, value in (("SINCE", "2026-11-02"), ("UNTIL", "2026-11-09")):
        monkeypatch.setenv(name, value)
    found: dict[str, Any] = {}
    cells = json.loads((DOCS / "how-to/use.ipynb").read_text())["cells"]
    drawn = []
    for text in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
        *before, last = ast.parse(text).body
        exec(compile(ast.Module(before, []), "cell", "exec"), found)
        assert isinstance(last, ast.Expr)
        shown = eval(compile(ast.Expression(last.value), "cell", "eval"), found)
        drawn += [shown.to_dict()] if hasattr(shown, "mark_bar") or hasattr(shown, "layer") else []
    assert len(drawn) == 3
    by_user, week, _ = drawn
    colours = by_user["encoding"]["color"]["scale"]
    assert len(set(colours["range"])) == len(colours["domain"]) == 12
    assert week["encoding"]["y"]["sort"][:2] == ["Monday", "Tuesday"]
    assert found["alt"].renderers.active == "svg"
    picture = found["alt"].renderers.get()(week)
    assert picture["image/svg+xml"].startswith("<svg")
    assert len(found["week"]) > 140
    assert len(found["decided"]) > 50
    # What is spread over hours is what the runs had.
    runs, hours = found["runs"], found["hours"]
    assert hours["allocated_gpu_hours"].sum() == pytest.approx(runs["allocated_gpu_hours"].sum())
    assert hours["sm_used_gpu_hours"].sum() == pytest.approx(runs["sm_used_gpu_hours"].sum())
    assert (found["geometry"]["runs_held"] <= len(found["whole"])).all()
    assert found["geometry"]["runs_held"].is_monotonic_increasing


def test_colloc_and_csub_run_where_pandas_is_not(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pandas'] = sys.modules['numpy'] = None; import slurm_colloc.cli.csub, "
        "slurm_colloc.cli.colloc as colloc; sys.argv[1:] = ['demo', '-o', sys.argv[1]]; colloc.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000
