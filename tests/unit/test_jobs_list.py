# SPDX-License-Identifier: Apache-2.0
"""colloc jobs: a line for each run of a user."""

import csv
import io
import json
from pathlib import Path

import pytest

from slurm_colloc.core.model import Gres
from slurm_colloc.facts.judgement import DO, TAIL, RunFound, judge
from slurm_colloc.report.columns import FORMATS, table_of
from slurm_colloc.report.jobs import JobRow, listing_of
from slurm_colloc.report.layout import Terminal
from slurm_colloc.report.text import local
from tests.unit.golden import Printed
from tests.unit.hostile import HOSTILE
from tests.unit.made import HOUR, near, run, usage
from tests.unit.programs import colloc
from tests.unit.shell import SITE
from tests.unit.stored import busy, sampled, stored

ENDS = ("--since", "1970-01-01T00:00:00+00:00", "--until", "1970-01-02T00:00:00+00:00")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a store of three runs of ann: one that used its GPU, one that never did, one that was suspended."""
    (tmp_path / "site.toml").write_text(SITE.format(order='"mig"', agent="false"))
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    rows = [
        run("1", limit_min=120),
        run("2", state="TIMEOUT", end_s=4 * HOUR, limit_min=240, node_list="g2", gres=(Gres("gpu", "h100", 2),)),
        run("3", state="FAILED", end_s=3 * HOUR, suspended_s=HOUR, limit_min=None, node_list="g3"),
        run("4", user="bob"),
    ]
    kept = stored(tmp_path / "store", rows, busy(*range(900, HOUR + 1, 900)))
    idle = [busy(at_s, job="2", uuid=f"GPU-{unit}", util=0.0, sm=0.0, mib=400)[0] for unit in (1, 2)
            for at_s in range(900, 4 * HOUR + 1, 900)]  # fmt: skip
    sampled(kept, [one._replace(node="g2") for one in idle])
    kept.write_log("a", {"rows_in": 4, "used": 4, "steps": 0, "rejected": {}})
    return kept.samples.folder


def test_state_elapsed_of_limit_use_peak_and_what_to_do(store: str, printed: Printed) -> None:
    command = ["jobs", "--user", "ann", "--store", store, *ENDS]
    assert colloc(*command) == 0
    printed("jobs", colloc.out)
    assert colloc(*command, "--format", "json") == 0
    first, second, third = json.loads(colloc.out)["rows"]
    assert (first["state"], first["elapsed_s"], first["limit_s"], first["elapsed_pct"]) == ("COMPLETED", HOUR, 7200, 50)
    assert (first["used_pct"], first["metric"], first["gpu_mem_peak_mib"]) == (near(20.0), "SM activity", 3000)
    assert (second["allocated_gpu_hours"], second["used_gpu_hours"], second["to_do_gres"]) == (8.0, 0.0, "none")
    assert (second["elapsed_pct"], second["could_free_gpu_hours"]) == (100.0, 8.0)
    # Suspended time is no part of what ran, and without a limit there is no part of it.
    assert (third["elapsed_s"], third["suspended_s"], third["elapsed_pct"]) == (2 * HOUR, HOUR, None)
    assert (third["used_pct"], third["to_do"], third["could_free_gpu_hours"]) == (None, "", None)


def test_what_to_do_is_what_colloc_job_says(store: str) -> None:
    assert colloc("jobs", "--user", "ann", "--store", store, *ENDS, "--format", "json") == 0
    said = json.loads(colloc.out)["rows"][1]["to_do"]
    assert colloc("job", "2", "--store", store, "--since", ENDS[1]) == 0
    assert said in colloc.out


def test_a_forgotten_notebook_is_to_be_ended_in_the_list_and_in_the_story(store: str, tmp_path: Path) -> None:
    rounds = [*busy(*range(900, HOUR + 1, 900)), *busy(*range(HOUR + 900, 9 * HOUR + 1, 900), sm=0.0, util=0.0)]
    kept = stored(tmp_path / "other", [run("1", end_s=9 * HOUR)], rounds)
    kept.write_log("a", {"rows_in": 1, "used": 1, "steps": 0, "rejected": {}})
    assert colloc("jobs", "--user", "ann", "--store", kept.samples.folder, *ENDS, "--format", "json") == 0
    (row,) = json.loads(colloc.out)["rows"]
    assert (row["to_do"], row["to_do_gres"], row["could_free_gpu_hours"]) == (DO[TAIL], "", near(8.0))
    assert colloc("job", "1", "--store", kept.samples.folder, "--since", ENDS[1]) == 0
    assert DO[TAIL] in colloc.out


def test_csv_has_every_field_and_no_other_user(store: str) -> None:
    assert colloc("jobs", "--user", "bob", "--store", store, *ENDS, "--format", "csv") == 0
    (row,) = csv.DictReader(io.StringIO(colloc.out))
    assert (list(row), row["job_id"], row["elapsed_pct"]) == (list(JobRow._fields), "4", "")
    assert colloc("jobs", "--user", "nobody", "--store", store, *ENDS) == 0
    assert colloc.out.startswith("0 runs of nobody")


def test_a_run_that_the_window_cuts_has_its_whole_time_and_the_windows_hours(store: str) -> None:
    assert colloc("jobs", "--user", "ann", "--store", store, "--since", "1970-01-01T03:00:00+00:00",
                  "--until", ENDS[3], "--format", "json") == 0  # fmt: skip
    (row,) = json.loads(colloc.out)["rows"]
    assert (row["allocated_gpu_hours"], row["elapsed_s"]) == (2.0, 4 * HOUR)


@pytest.mark.parametrize("text", [text for text in HOSTILE if text])
def test_hostile_names(text: str) -> None:
    said = [judge(RunFound(usage(job_name=text, job_id=text, gres=text, state=text), None, None))]
    listing = listing_of(text, (local(0), local(1)), text, said, 0)
    for shown in (table_of(listing, Terminal(60)), table_of(listing)):
        assert [letter for letter in shown if not letter.isprintable() and letter != "\n"] == []
    assert json.loads(FORMATS["json"](listing))["rows"][0]["job_name"] == text
    assert len(list(csv.reader(io.StringIO(FORMATS["csv"](listing))))) == 2
