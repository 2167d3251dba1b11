# SPDX-License-Identifier: Apache-2.0
"""colloc's commands from their arguments to their exit status, in this process."""

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc import COMMANDS
from slurm_colloc.core.config_file import file_to_write
from slurm_colloc.observe.journal import append
from slurm_colloc.store.store import Store
from tests.cluster.lab import Lab
from tests.cluster.ports import Ports
from tests.cluster.releases import HOST
from tests.unit.golden import Printed
from tests.unit.made import RECORDED, device, host, process, seen
from tests.unit.programs import colloc, timeless
from tests.unit.stored import sampled

TABLE = """job_id,user,project,cluster,partition,num_acc,start_time,duration_s,acc_utilization_avg,state
1,ann,lab,c,gpu,1,1767225600,3600,{util},completed
2,bob,lab,c,gpu,2,1767225600,3600,{util},completed
"""
WINDOW = ("--since", "2026-01-01T00:00:00+00:00", "--until", "2026-01-02T00:00:00+00:00")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def unnamed(text: str) -> str:
    """Return what was said without what a file's folder makes of its name."""
    return re.sub("sacct-[0-9a-f]{8}", "sacct-HASH", text)


def take(tmp_path: Path, store: str, util: str) -> None:
    (tmp_path / "jobs.csv").write_text(TABLE.replace("{util}", util))
    assert colloc("ingest", "--store", store, "--clustercockpit", str(tmp_path / "jobs.csv")) == 0


@pytest.mark.parametrize("command", [["report"], ["audit", "run"], ["job", "1"]])
def test_an_empty_store_is_an_error_and_never_a_clean_answer(store: str, command: list[str], printed: Printed) -> None:
    said = set()
    for more in (["--store", store], []):
        assert colloc(*command, *more) == 2
        assert colloc.out == ""
        assert len(colloc.err.splitlines()) == 1
        said.add(re.sub(".*store '.*?' ", "", colloc.err))
    printed("colloc", *said)


@pytest.mark.parametrize("util", ["", "0"])
def test_an_audit_that_can_judge_nothing_is_an_error(tmp_path: Path, store: str, util: str) -> None:
    take(tmp_path, store, util)
    why = "not one was measured" if util == "" else "2 were measured, none for as long, or in as much of its time"
    for window, reason in ((WINDOW, why), (("--since", "1h"), "there is none; does 'colloc ingest' still run?")):
        assert colloc("audit", "run", "--store", store, *window) == 3
        assert "0 findings" in colloc.out
        assert reason in colloc.err


def test_an_audit_says_how_much_it_could_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RECORDED / "demo", tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    monkeypatch.chdir(tmp_path)
    taken = ("--sacct-file", "sacct.txt", "--journal", "journal")
    assert colloc("ingest", "--store", "store", *taken) == 0
    about = json.loads(Path("recording.json").read_text())
    argv = ["--store", str(tmp_path / "store"), "--since", about["since"], "--until", about["until"]]
    assert colloc("audit", "run", *argv) == 1
    # Typed as it stands, wherever: who reads it may have no site.toml in force.
    text = colloc.out
    (see,) = re.findall(r"^    see: (.*)$", text, re.MULTILINE)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    there = {"PATH": path, "HOME": str(tmp_path)}
    again = subprocess.run(["sh", "-c", see], cwd="/", env=there, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (1, "")
    assert colloc("audit", "run", "--format", "json", *argv) == 1
    shown = json.loads(colloc.out)
    judged = shown["rules"]["COL001"]
    assert shown["runs"] == shown["runs_measured"] == judged["rows"] >= judged["judged"] > 0
    assert shown["schema"] == 2
    (idle,) = (finding for finding in shown["findings"] if finding["code"] == "COL001")
    assert idle["reproduce"].endswith(f"--store {tmp_path / 'store'}")
    # What a finding says is how it is found again.
    assert colloc(*shlex.split(idle["reproduce"])[2:]) == 1
    assert all(idle["evidence"] in printed for printed in (text, again.stdout, colloc.out))


def test_the_store_is_closed_to_others_unless_opened(tmp_path: Path, store: str) -> None:
    take(tmp_path, store, "10")
    assert Path(store).stat().st_mode & 0o777 == 0o700
    Path(store).chmod(0o750)
    take(tmp_path, store, "10")
    assert Path(store).stat().st_mode & 0o777 == 0o750


def test_the_private_cluster_has_a_site_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    environment = Lab(tmp_path, "user", HOST, [], Ports({}), {}).environment()
    monkeypatch.setenv("COLLOC_CONF", environment["COLLOC_CONF"])
    assert file_to_write(user=False) == str(tmp_path / "site/site.toml")
    assert colloc("report") == 2
    printed("colloc", colloc.err)


def test_errors_of_the_system_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for argv in (
        ["demo", "-o", str(tmp_path / "file")],
        ["report", "--store", str(tmp_path / "file")],
        ["ingest", "--store", str(tmp_path / "file" / "x"), "--clustercockpit", "/nonexistent"],
    ):
        assert colloc(*argv) == 2, argv
        assert colloc.err.splitlines()[-1].startswith("colloc: error: "), colloc.err
        assert "Traceback" not in colloc.err


SACCT = "{job}|{job}|{cluster}|{user}|lab|gpu|normal|COMPLETED|1767225600|1767225600|{end}|00:00:00|gres/gpu=1|n1|x\n"
FINISHED = SACCT.replace("{end}", "1767229200")


def rows(tmp_path: Path, store: str, text: str, status: int = 0) -> None:
    """Take in a text of sacct's."""
    (tmp_path / "sacct").write_text(text)
    assert colloc("ingest", "--store", store, "--sacct-file", str(tmp_path / "sacct")) == status


def hours(store: str) -> dict[str, float]:
    assert colloc("report", "--store", store, "--format", "json", *WINDOW) == 0
    return {group["name"]: group["allocated_gpu_hours"] for group in json.loads(colloc.out)["groups"]}


def test_an_older_export_does_not_reopen_a_run(tmp_path: Path, store: str) -> None:
    (tmp_path / "new").write_text(FINISHED.format(job=1, cluster="c", user="ann"))
    running = SACCT.replace("COMPLETED", "RUNNING").format(job=1, cluster="c", user="ann", end="Unknown")
    (tmp_path / "old").write_text(running)
    os.utime(tmp_path / "old", (1767227400, 1767227400))
    assert colloc("ingest", "--store", store, "--sacct-file", str(tmp_path / "old")) == 0
    assert hours(store) == {"ann": 0.0}  # without ElapsedRaw it is known to have begun, and no more
    assert colloc("ingest", "--store", store, "--sacct-file", str(tmp_path / "new")) == 0
    assert colloc("ingest", "--store", store, "--sacct-file", str(tmp_path / "old")) == 0
    assert hours(store) == {"ann": 1.0}


def test_one_run_by_two_sources_is_one_run_and_keeps_its_mean(tmp_path: Path, store: str) -> None:
    take(tmp_path, store, "50")
    rows(tmp_path, store, "".join(FINISHED.format(job=j, cluster="c", user=u) for j, u in ((1, "ann"), (2, "bob"))))
    assert colloc("report", "--store", store, "--format", "json", *WINDOW) == 0
    whole = json.loads(colloc.out)["total"]
    assert (whole["jobs"], whole["allocated_gpu_hours"], whole["util_weighted_pct"]) == (2, 2.0, 50.0)


def test_rows_of_another_form_do_not_wipe_what_was_there(tmp_path: Path, store: str, printed: Printed) -> None:
    rows(tmp_path, store, FINISHED.format(job=1, cluster="c", user="ann"))
    wrong = ["--fields", "JobID,User,State,Start,End,AllocTRES"]
    assert colloc("ingest", "--store", store, "--sacct-file", str(tmp_path / "sacct"), *wrong) == 2
    printed("ingest", unnamed(colloc.err))
    assert hours(store) == {"ann": 1.0}


@pytest.mark.parametrize("name", ["user=eve", "cluster=x", "a[1]", "it's"])
def test_a_stores_path_is_only_a_path(tmp_path: Path, name: str) -> None:
    store = str(tmp_path / name / "store")
    rows(tmp_path, store, FINISHED.format(job=1, cluster="c", user="ann"))
    assert hours(store) == {"ann": 1.0}


OF_PERIOD, OF_TIMEOUT = "Invalid value for '--period'", "Invalid value for '--timeout'"
ONE_LINE = "colloc: error: "


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ingest --since never", ONE_LINE),
        ("ingest --sacct-file /nonexistent", ONE_LINE),
        ("ingest --nvidia-smi /x", ONE_LINE),
        ("ingest --journal /nonexistent", ONE_LINE),
        ("ingest --clustercockpit a --sacct-file b", ONE_LINE),
        ("report --since ²d", ONE_LINE),
        ("report --since 0001-01-01", ONE_LINE),
        ("sample --reader simulated:/nonexistent --count 1 --journal /proc/nope", ONE_LINE),
        ("history 1234", "No such command '1234'"),
        *((f"agent --period {seconds}", OF_PERIOD) for seconds in ("nan", "0", "inf")),
        *((f"site doctor --timeout {seconds}", OF_TIMEOUT) for seconds in ("nan", "0", "inf")),
        ("compact --store /nonexistent", "store '/nonexistent' is not there; is its file system mounted?"),
    ],
)
def test_what_cannot_be_done_is_not_called_done(words: str, said: str) -> None:
    assert colloc(*words.split()) == 2
    assert said in colloc.err
    if said == ONE_LINE:
        assert len(colloc.err.splitlines()) == 1


@pytest.mark.parametrize("group", [[], ["site"], ["history"], ["policy"], ["audit"]])
def test_the_list_of_commands_cuts_none_of_them_short(group: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert colloc(*group, "--help") == 0
    listed = colloc.out.partition("\nCommands")[2].splitlines()[1:]
    assert listed
    assert [line for line in listed if line.endswith("...") or line.startswith("   ")] == []


def test_bars_are_signs_where_the_encoding_has_no_blocks() -> None:
    code = "from slurm_colloc.cli.colloc.output import run; run(lambda: print('é█▒░ ▁▇…é'))"
    argv = [sys.executable, "-c", code]
    for encoding, shown in (("ascii", b"\\xe9#=. _*~\\xe9\n"), ("latin-1", b"\xe9#=. _*~\xe9\n")):
        environ = {**os.environ, "PYTHONIOENCODING": encoding}
        assert subprocess.run(argv, capture_output=True, check=True, env=environ).stdout == shown


@pytest.mark.parametrize(
    ("where", "status", "said"),
    [
        (">&-", 0, ""),
        ("<&-", 0, ""),
        (">/dev/full", 2, "colloc: error: standard output cannot be written: No space left on device\n"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_standard_stream_that_takes_nothing(where: str, status: int, said: str, unbuffered: str) -> None:
    argv = ["/bin/sh", "-c", f'exec "$0" audit explain {where}', str(Path(sys.executable).with_name("colloc"))]
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert (done.returncode, done.stderr) == (status, said)


def test_no_escape_reaches_the_terminal(tmp_path: Path, store: str) -> None:
    row = FINISHED.format(job=1, cluster="c", user="ann")
    rows(tmp_path, store, row + row.replace("|1767225600|1767229200", "|\x1b]0;pwn\x07\x1b[2J|1"), 3)
    assert "1 rejected" in colloc.err
    assert "\x1b" not in colloc.err


def test_an_ingest_seals_the_journal_that_it_can_reach(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    (tmp_path / "site.toml").write_text('schema = 1\ncluster = "c"\nslurm_release = "22.05"\n')
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    (tmp_path / "sacct").write_text(FINISHED.format(job=1, cluster="c", user="ann"))
    argv = ["--store", store, "--sacct-file", str(tmp_path / "sacct"), "--journal", str(tmp_path / "journal")]
    for node in ("g1", "g2"):
        unit, mine = device(f"GPU-{node}"), process(uuid=f"GPU-{node}")
        append(str(tmp_path / "journal"), seen(1767225610, [unit], [mine], hosts=[host()], node=node))
    with open(tmp_path / "journal/g1/20260101T00.journal", "ab") as stream:
        stream.write(b"torn")
    assert colloc("ingest", *argv) == 0
    printed("ingest", unnamed(colloc.err))
    assert colloc("ingest", *argv) == 0
    printed("ingest", unnamed(colloc.err))
    assert colloc("report", "--store", store, *WINDOW, "--explain") == 0
    printed("report", *(line for line in colloc.out.splitlines() if "rejected" in line))
    assert colloc("job", "1", "--store", store) == 0
    printed("job", colloc.out)
    with open(Path(store, "work/flush/c/g2/lock"), "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert colloc("ingest", *argv) == 0
        printed("ingest", colloc.err.splitlines()[0])


def test_compact(tmp_path: Path, store: str, printed: Printed) -> None:
    noon_s = (time.time() // 86_400 - 30) * 86_400 + 43_200
    sampled(Store(store), [seen(noon_s + hour * 3600, [device()], [process()]) for hour in range(2)])
    assert colloc("compact", "--store", store) == 1
    printed("compact", timeless(colloc.err))
    sampled(Store(store), [seen(time.time() // 86_400 * 86_400, [device()], [process()], node="g9")])
    assert colloc("compact", "--store", store) == 0
    assert f"2 files written, 0 removed in '{store}'" in colloc.err
    assert colloc("compact", "--store", store) == 0
    sampled(Store(store), [seen(noon_s + 10 * n, [device()], [process()]) for n in range(2)])
    assert colloc("compact", "--store", store) == 1
    printed("compact", timeless(colloc.err))
    with open(Path(store, "work/compact/lock"), "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert colloc("compact", "--store", store) == 0
        printed("compact", colloc.err)
    (facts,) = Path(store, "facts").rglob("*.parquet")
    facts.write_bytes(b"junk")
    assert colloc("compact", "--store", store) == 1
    assert f"error: store file '{facts}' cannot be read" in colloc.err


def test_without_what_reports_are_made_with_the_other_commands_are_there(tmp_path: Path, printed: Printed) -> None:
    """As where csub's package alone is installed."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        lacks = "sys.modules.update(dict.fromkeys(('altair', 'duckdb', 'pandas', 'vl_convert')))"
        code = f"import sys; {lacks}; from slurm_colloc.cli.colloc import main; main()"
        argv = [sys.executable, "-c", code, *words]
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)

    shown = run("--help").stdout
    assert {name for name in COMMANDS if f"\n  {name} " in shown} == {
        "history",
        "late",
        "off",
        "agent",
        "sample",
        "holders",
    }
    assert [run("off").returncode, run("off", "--end").returncode] == [0, 0]
    lacking = [run("report"), run("history", "bootstrap")]
    assert [(done.returncode, done.stdout) for done in lacking] == [(2, "")] * 2
    printed("colloc", *(done.stderr for done in lacking))
