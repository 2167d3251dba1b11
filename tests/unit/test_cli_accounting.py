# SPDX-License-Identifier: Apache-2.0
"""colloc ingest from a live sacct, a program of the test's, and colloc report of what came of it."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.cli.colloc import ingest
from slurm_colloc.sources.sacct_client import FIELDS
from tests.unit.golden import Printed
from tests.unit.made import near
from tests.unit.programs import colloc, program
from tests.unit.stored import at

# Prints what is in the file of the day asked for, in the form asked for.
SACCT = r"""
echo "$*" >> "{folder}/calls"
[ "$1" = -e ] && { cat "{folder}/fields"; exit 0; }
for word; do
    case $before in -S) day=${word%T*} ;; -o) names=$word ;; esac
    case $word in --delimiter=*) end=${word#--delimiter=} ;; esac
    before=$word
done
[ -e "{folder}/fails-$day" ] && { echo "sacct: error: slurmdbd: Connection refused" >&2; exit 1; }
echo "$names," | sed "s/,/$end/g"
if [ -e "{folder}/$day" ]; then sed "s/|/$end/g; s/\$/$end/" "{folder}/$day"; fi
"""
SACCTMGR = 'echo "sacctmgr $*" >> "{folder}/calls"\ncat "{folder}/tres"\n'
NOON_S = at("2026-01-05T12:00")


class Site:
    """A cluster's accounting, as its programs tell it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.store = str(folder / "store")
        (folder / "fields").write_text(" ".join(FIELDS) + "\n")
        (folder / "tres").write_text("cpu|\nmem|\ngres|gpu\n")
        for name, script in (("sacct", SACCT), ("sacctmgr", SACCTMGR)):
            program(folder, name, script.replace("{folder}", str(folder)), monkeypatch)

    def day(self, name: str, *rows: str) -> None:
        (self.folder / name).write_text("".join(f"{row}\n" for row in rows))

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def days_asked(self) -> list[str]:
        return [call.split(" -S ")[1][:10] for call in self.calls() if " -S " in call]

    def ingest(self, *argv: str) -> int:
        return colloc("ingest", "--store", self.store, *argv)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(ingest, "now", lambda: NOON_S)
    return Site(tmp_path, monkeypatch)


def row(job: str, start: str, end: str, state: str = "COMPLETED", gres: str = "gres/gpu=1", **fields: str) -> str:
    values = {"user": "ann", "qos": "normal"} | fields
    times = "|".join(str(at(time)) if time != "Unknown" else time for time in (start, start, end))
    return f"{job}|{job}|c|{values['user']}|lab|gpu|{values['qos']}|{state}|{times}|00:00:00|{gres}|n1|train"


def reported(*argv: str) -> dict[str, Any]:
    window = ("--since", "2026-01-01T00:00:00+00:00", "--until", "2026-01-11T00:00:00+00:00")
    assert colloc("report", *window, "--format", "json", *argv) == 0
    shown: dict[str, Any] = json.loads(colloc.out)
    return shown


def hours(shown: dict[str, Any]) -> dict[str, float]:
    return {group["name"]: group["allocated_gpu_hours"] for group in shown["groups"]}


# --- the live ingest ---

SINCE = ("--since", "2026-01-03T00:00:00+00:00", "--until", "2026-01-05T12:00:00+00:00")
LATER = ("--until", "2026-01-06T06:00:00+00:00")


def test_each_day_is_one_question(cluster: Site, printed: Printed) -> None:
    over_midnight = row("1", "2026-01-03T22:00", "2026-01-04T02:00")
    cluster.day("2026-01-03", over_midnight)
    cluster.day("2026-01-04", over_midnight, row("2", "2026-01-04T05:00", "2026-01-04T06:00", gres="gres/gpu=8"))
    assert cluster.ingest(*SINCE) == 0
    printed("ingest", *(line for line in colloc.err.splitlines() if "sacct-" in line))
    tres, listed, *questions = cluster.calls()
    assert (tres, listed) == ("sacctmgr -n -P show tres format=type,name", "-e")
    assert len(questions) == 3
    assert all(" -X -p --noconvert --delimiter=" in one and one.endswith(f"-o {','.join(FIELDS)}") for one in questions)
    assert len({one.split("--delimiter=")[1].split()[0] for one in questions}) == 3  # nobody can guess the next one
    assert hours(reported("--store", cluster.store)) == {"ann": 12.0}


def test_the_next_ingest_goes_on_where_the_last_one_ended_less_a_day(cluster: Site) -> None:
    assert cluster.ingest(*SINCE) == 0
    assert cluster.days_asked() == ["2026-01-03", "2026-01-04", "2026-01-05"]
    assert cluster.ingest(*LATER) == 0
    assert cluster.days_asked() == ["2026-01-04", "2026-01-05", "2026-01-06"]
    assert cluster.ingest("--since", "2026-01-01T00:00:00+00:00", "--until", "2026-01-02T00:00:00+00:00") == 0
    assert cluster.days_asked() == ["2026-01-01"]
    assert cluster.ingest(*LATER) == 0
    assert cluster.days_asked()[0] == "2026-01-04"  # an older window does not set it back


def test_the_first_ingest_asks_for_two_days(cluster: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster.ingest() == 0
    assert 3 <= len(cluster.days_asked()) <= 4


def test_days_of_runs_whose_end_is_not_known_are_asked_again(cluster: Site) -> None:
    running = row("7", "2026-01-03T12:00", "Unknown", "RUNNING")
    for day in ("2026-01-03", "2026-01-04", "2026-01-05"):
        cluster.day(day, running)
    assert cluster.ingest(*SINCE) == 0
    assert hours(reported("--store", cluster.store)) == {"ann": 48.0}, "so far"
    cluster.calls()
    ended = row("7", "2026-01-03T12:00", "2026-01-05T13:00")
    for day in ("2026-01-03", "2026-01-04", "2026-01-05"):
        cluster.day(day, ended)
    # The days asked by themselves would not tell of it.
    assert cluster.ingest("--since", "2026-01-06T00:00:00+00:00", *LATER) == 0
    assert cluster.days_asked() == ["2026-01-03", "2026-01-05", "2026-01-06"]
    assert hours(reported("--store", cluster.store)) == {"ann": 49.0}
    assert cluster.ingest("--since", "2026-01-06T00:00:00+00:00", *LATER) == 0
    assert cluster.days_asked() == ["2026-01-06"]  # and not once it is over


def test_slurmdbd_rests_as_long_as_it_worked(cluster: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def clock(took_s: float) -> Iterator[float]:
        at_s = float(NOON_S)
        while True:
            yield at_s
            at_s += took_s

    for took_s, rest_s in ((3.0, 3.0), (500.0, 10.0), (-60.0, 0.0)):
        slept: list[float] = []
        times = clock(took_s)
        monkeypatch.setattr(ingest, "now", lambda times=times: next(times))
        monkeypatch.setattr(ingest, "sleep", slept.append)
        assert cluster.ingest(*SINCE) == 0
        assert slept == [0.0, rest_s, rest_s]  # no rest before the first question


def test_days_are_told_of(cluster: Site, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    told: list[tuple[str, int, int]] = []

    @contextmanager
    def recorded(what: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, of: told.append((what, done, of))

    monkeypatch.setattr(ingest, "progress", recorded)
    assert cluster.ingest(*SINCE) == 0
    assert [numbers for _, *numbers in told] == [[done, 3] for done in range(4)]
    printed("ingest", *{what for what, _, _ in told})


def test_a_day_that_fails_leaves_the_others_and_the_watermark(cluster: Site) -> None:
    for day in ("2026-01-03", "2026-01-04"):
        cluster.day(day, row(day[-1], f"{day}T01:00", f"{day}T02:00"))
    (cluster.folder / "fails-2026-01-04").touch()
    assert cluster.ingest(*SINCE) == 2
    assert "slurmdbd: Connection refused" in colloc.err
    assert hours(reported("--store", cluster.store)) == {"ann": 1.0}
    cluster.calls()
    (cluster.folder / "fails-2026-01-04").unlink()
    assert cluster.ingest("--until", "2026-01-05T12:00:00+00:00") == 0
    assert cluster.days_asked() == ["2026-01-03", "2026-01-04", "2026-01-05"]
    assert hours(reported("--store", cluster.store)) == {"ann": 2.0}


def test_an_accounting_that_does_not_track_gpus_is_an_error_and_no_zero(cluster: Site, printed: Printed) -> None:
    (cluster.folder / "tres").write_text("cpu|\nmem|\ngres|gpumem\ngres|gpuutil\n")
    assert cluster.ingest(*SINCE) == 2
    printed("ingest", colloc.err)
    assert cluster.days_asked() == []
    assert not Path(cluster.store).exists()


def test_a_sacct_without_a_column_that_is_only_good_to_have(cluster: Site) -> None:
    (cluster.folder / "fields").write_text(" ".join(name for name in FIELDS if name not in ("Suspended", "QOS")))
    cells = row("1", "2026-01-03T01:00", "2026-01-03T02:00").split("|")
    cluster.day("2026-01-03", "|".join([*cells[:6], *cells[7:11], *cells[12:]]))
    assert cluster.ingest(*SINCE) == 0
    assert hours(reported("--store", cluster.store)) == {"ann": 1.0}
    assert [group["name"] for group in reported("--store", cluster.store, "--by", "qos")["groups"]] == ["(not known)"]


def test_rows_that_cannot_be_read_leave_a_day_as_it_was(cluster: Site, printed: Printed) -> None:
    cluster.day("2026-01-03", row("1", "2026-01-03T01:00", "2026-01-03T02:00"))
    assert cluster.ingest(*SINCE) == 0
    cluster.day("2026-01-03", "something else")
    assert cluster.ingest(*SINCE) == 2
    printed("ingest", colloc.err)
    assert hours(reported("--store", cluster.store)) == {"ann": 1.0}


# --- reports of a text alone ---


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "sacct.txt"
    rows = [
        row("1", "2026-01-03T01:00", "2026-01-03T03:00", gres="gres/gpu=2,gres/gpu:h100=2", qos="high"),
        row("2", "2026-01-03T01:00", "2026-01-03T08:00", gres="gres/gpu:h100_1g.20gb=1,gres/gpu=1", user="bob"),
        row("3", "2026-01-03T01:00", "2026-01-03T02:00", gres=""),
        "3.batch|" + row("3", "2026-01-03T01:00", "2026-01-03T02:00").split("|", 1)[1].replace("3|", "3.batch|", 1),
        "junk",
    ]
    path.write_text("|".join(FIELDS) + "\n" + "".join(f"{one}\n" for one in rows))
    return str(path)


def test_a_text_is_reported_without_a_store(text: str, tmp_path: Path) -> None:
    shown = reported("--sacct-file", text)
    assert hours(shown) == {"ann": 4.0, "bob": near(1.0)}
    assert (shown["runs"], shown["runs_without_gpu"], shown["cluster"]) == (3, 1, "c")
    counts = {"rows_in": 5, "rows_used": 3, "job_steps": 1, "rejected": {"1 columns instead of 15": 1}}
    assert {name: shown[name] for name in counts} == counts
    assert (shown["total"]["coverage_pct"], shown["total"]["util_used_gpu_hours"]) == (0.0, None)
    assert (shown["collocation"], shown["strays"], shown["equivalents"]) == ([], [], "compute slices")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sacct.txt"]


def test_a_table_of_a_text_has_no_columns_of_use(text: str, tmp_path: Path, printed: Printed) -> None:
    store = str(tmp_path / "store")
    window = ("--since", "2026-01-01T00:00:00+00:00", "--until", "2026-01-11T00:00:00+00:00")
    assert colloc("report", *window, "--sacct-file", text) == 0
    said = colloc.out
    assert ("ALLOC GPU-h" in said, "HELD GPU-h" in said) == (True, False)
    assert [word for word in ("UTIL", "SM ", "SAMPLED", "IDLE", "EMPTY", "kWh") if word in said] == []
    # It tells of the time in which it was written, whenever it is taken in.
    os.utime(text, (1768000000, 1768000000))
    assert colloc("ingest", "--store", store, "--sacct-file", text) == 0
    assert colloc("report", *window, "--store", store) == 0
    said = colloc.out
    assert "2026-01-09 23:06:40+00:00" in said
    printed("report", said)
    assert "SAMPLED %" in said  # of a store what is not known is a dash


def test_a_text_and_a_store_give_the_same(text: str, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    assert colloc("ingest", "--store", store, "--sacct-file", text) == 0
    for by in ("user", "account", "partition", "qos", "gpu"):
        of_store, of_text = (reported(*source, "--by", by) for source in (("--store", store), ("--sacct-file", text)))
        assert (of_store.pop("ingested") is None, of_text.pop("ingested")) == (False, None)
        # Which GPUs of several a run used is known of samples alone.
        assert (of_store.pop("several")["known_runs"], of_text.pop("several")) == (0, None)
        (size,) = of_store.pop("several_by_size")
        assert (size["size"], size["known_runs"], of_text.pop("several_by_size")) == (2, 0, [])
        assert of_store == of_text


SITE = """schema = 1
cluster = "c"
slurm_release = "24.11"
[[pool]]
name = "mig"
nodes = "n1"
partitions = ["gpu"]
gpu_model = "NVIDIA H100 80GB HBM3"
gpu_mem_mib = 81559
sm_count = 132
[[pool.slice]]
type = "h100_1g.20gb"
profile = "1g.20gb"
mem_mib = 20090
sm_count = 26
quantity = 4
"""


@pytest.mark.parametrize(
    ("by", "words", "part"),
    [("slices", "compute slices", 1 / 7), ("sms", "SMs", 26 / 132), ("memory", "usable memory", 20090 / 81559)],
)
def test_equivalents(
    text: str, tmp_path: Path, by: str, words: str, part: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "site.toml").write_text(SITE)
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    shown = reported("--sacct-file", text, "--equivalents", by)
    assert shown["equivalents"] == words
    groups = {group["name"]: (group["allocated_gpu_hours"], group["held_gpu_hours"]) for group in shown["groups"]}
    assert groups == {"ann": (4.0, 4.0), "bob": (near(7 * part), near(1.0))}
    installed_hours = 4 / 7 * 240
    assert shown["installed_gpu_hours"] == near(installed_hours)
    assert shown["of_installed"]["allocated_pct"] == near(100 * (4.0 + 7 * part) / installed_hours)


def test_the_time_to_come_is_not_installed(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    monkeypatch.setattr("slurm_colloc.store.window.now", lambda: at("2026-01-03T00:00"))
    shown = reported("--sacct-file", text)
    assert (shown["installed_gpu_hours"], shown["so_far"]) == (near(4 / 7 * 48), True)


def test_a_window_without_runs_says_where_they_are(text: str, printed: Printed) -> None:
    assert colloc("report", "--since", "2025-01-01", "--until", "2025-02-01", "--sacct-file", text) == 0
    printed("report", colloc.out)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--by", "day"], "--by 'day' is not one of user, account, partition, qos, gpu, node, state, cluster"),
        (["--equivalents", "price"], "--equivalents 'price' is not one of slices, sms, memory"),
        (["--store", "x"], "--sacct-file is read in place of a store"),
        (["--timezone", "Nowhere/City"], "--timezone 'Nowhere/City' is not a zone"),
        (["--format", "json", "--charts"], "--charts adds to --format json of a store"),
        (["--since", "2026-01-02", "--until", "2026-01-01"], "is empty"),
    ],
)
def test_what_a_report_of_a_text_cannot_be_asked(text: str, argv: list[str], said: str) -> None:
    assert colloc("report", "--sacct-file", text, *argv) == 2
    assert (said in colloc.err, colloc.out) == (True, "")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("ingest --fields JobID", "--fields does nothing without --sacct-file or --nvidia-smi"),
        ("ingest --clustercockpit x --timezone UTC", "--timezone does nothing without"),
        ("ingest --node g1", "--node does nothing without --nvidia-smi"),
        ("ingest --prometheus-match a", "--prometheus-match does nothing without --prometheus"),
        ("ingest --sacct-file x --since 7d", "a file is taken in whole"),
        ("ingest --sacct-file x --until 7d", "a file is taken in whole"),
    ],
)
def test_options_that_would_do_nothing_are_refused(argv: str, said: str, tmp_path: Path) -> None:
    assert colloc(*argv.split(), "--store", str(tmp_path / "store")) == 2
    assert said in colloc.err


def test_without_slurm_a_text_is_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert colloc("ingest", "--store", str(tmp_path / "store")) == 2
    printed("ingest", colloc.err)


H100 = "gres/gpu=1,gres/gpu:h100=1"
SMI_HEADER = "timestamp, uuid, utilization.gpu [%], memory.used [MiB]\n"


def test_a_log_of_nvidia_smi_says_what_it_was_taken_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    path, text, store = tmp_path / "n1.csv", tmp_path / "sacct.txt", str(tmp_path / "store")
    text.write_text("|".join(FIELDS) + "\n" + row("1", "2026-01-03T01:00", "2026-01-03T02:00", gres=H100) + "\n")
    assert colloc("ingest", "--store", store, "--sacct-file", str(text)) == 0
    log = ("--nvidia-smi", str(path), "--store", store)
    path.write_text(SMI_HEADER + "yesterday, GPU-1a, 50 %, 1 MiB\n" * 3)
    assert colloc("ingest", *log, "--node", "n1") == 2
    printed("ingest", colloc.err)
    readings = "".join(f"2026/01/03 {time}.000, GPU-1a, 50 %, 1 MiB\n" for time in ("01:00:10", "01:00:20", "03:00:00"))
    path.write_text(SMI_HEADER + readings)
    assert colloc("ingest", *log, "--node", "n2") == 2
    printed("ingest", colloc.err)
    for _ in range(2):
        assert colloc("ingest", *log, "--node", "n1", "--timezone", "UTC") == 0
    printed("ingest", re.sub("csv-[0-9a-f]+", "csv-HASH", colloc.err))
    assert colloc("ingest", *log, "--node", "n1") == 0
    printed("ingest", colloc.err.splitlines()[0])


def test_texts_that_say_nothing(tmp_path: Path) -> None:
    for content, said in (
        ("JobID|User\n1|ann\n", "sacct columns State, Start, End, AllocTRES are missing"),
        ("", "is empty, without even a header: export it again"),
        ("|".join(FIELDS) + "\n1|2|3\n", "none of 1 rows of"),
        ("|".join(FIELDS) + "\n1|1.0" + 13 * "|" + "\nx\n", "none of 2 rows of"),
    ):
        (tmp_path / "text").write_text(content)
        assert colloc("report", "--sacct-file", str(tmp_path / "text")) == 2
        assert said in colloc.err


# --- what Slurm's own job accounting saw ---


@pytest.mark.parametrize(
    "times",
    [
        ("1767402000", "1767405600"),
        ("2026-01-03T01:00:00+00:00", "2026-01-03T02:00:00Z"),
        ("2026-01-03T01:00:00", "2026-01-03T02:00:00"),
    ],
)
def test_the_steps_of_a_run_tell_its_peak(times: tuple[str, str], tmp_path: Path) -> None:
    path, store = tmp_path / "sacct.txt", str(tmp_path / "store")
    began, ended = times
    path.write_text(
        "JobIDRaw|JobID|Cluster|User|State|Start|End|AllocTRES|NodeList|TRESUsageInTot|JobName\n"
        f"1|1|c|ann|COMPLETED|{began}|{ended}|gres/gpu=1|n1||train\n"
        f"1.batch|1.batch|c||COMPLETED|{began}|{ended}|gres/gpu=1|n1|gres/gpumem=2G,gres/gpuutil=40|batch\n"
    )
    argv = ("--sacct-file", str(path), "--slurm-release", "24.05.4", "--timezone", "UTC")
    assert colloc("ingest", "--store", store, *argv) == 0
    total = reported("--store", store)["total"]
    assert (total["gpu_mem_peak_mib"], total["util_used_gpu_hours"]) == (2048, None)
    assert total["methods"] == ["job peak by Slurm"]


def test_an_ingest_leaves_no_copy_of_the_rows(text: str, tmp_path: Path) -> None:
    """A carriage return makes each row be looked at: the plain ones go through a file."""
    store = tmp_path / "store"
    broken = Path(text).read_bytes()[:-3]
    for content, status in ((Path(text).read_bytes().replace(b"junk", b"ju\rnk"), 0), (broken, 2)):
        Path(text).write_bytes(content)
        assert colloc("ingest", "--store", str(store), "--sacct-file", text) == status
    assert {path.name for path in (store / "work").rglob("*") if path.is_file()} == {"lock"}
