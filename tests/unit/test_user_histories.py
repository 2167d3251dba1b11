# SPDX-License-Identifier: Apache-2.0
import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.config import MigSlice, Observe, SiteConfig
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.model import Decision, Evidence
from slurm_colloc.estimate.exact import is_greedy
from slurm_colloc.estimate.records import drop_decision
from slurm_colloc.estimate.snapshot import read_snapshot, snapshot_path
from slurm_colloc.facts.compact import compact
from slurm_colloc.feedback import user_histories as feedback
from slurm_colloc.feedback.user_histories import Collected, build_history, collect_decisions
from slurm_colloc.observe.evidence import EvidenceBuilder
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.made import H100, MIG_POOL, decision, device, host, process, run, seen, site
from tests.unit.programs import umask
from tests.unit.stored import sampled

UID = os.geteuid()
NAME = pwd.getpwuid(UID).pw_name


def drop(spool: Path, name: str, what: Decision, owner: int = UID, **changes: Any) -> Path:
    folder = spool / str(owner)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps({**what._asdict(), **changes}))
    return path


def test_own_decisions(tmp_path: Path) -> None:
    drop(tmp_path, "a.json", decision("1", user="somebody-else"))
    drop(tmp_path, "b.json", decision("2"))
    drop(tmp_path, "c.txt", decision("3"))
    found = collect_decisions(str(tmp_path))
    # The user is the file's owner, whatever the file says.
    assert found.decisions.keys() == {(NAME, "1"), (NAME, "2")}
    assert (found.decisions[NAME, "2"], found.rejected) == ((UID, decision("2")), 0)


def test_no_spool(tmp_path: Path) -> None:
    assert collect_decisions(str(tmp_path / "none")) == Collected({}, 0)


def test_of_two_decisions_for_a_job_the_later_counts(tmp_path: Path) -> None:
    drop(tmp_path, "a.json", decision(signature="new", at_s=9.0))
    drop(tmp_path, "b.json", decision(signature="old", at_s=1.0))
    assert collect_decisions(str(tmp_path)).decisions[NAME, "1"][1].signature == "new"


HOSTILE: dict[str, Callable[[Path], object]] = {
    "fifo": lambda path: os.mkfifo(path),
    "link to a file": lambda path: path.symlink_to("good.json"),
    "link to a secret": lambda path: path.symlink_to("/etc/shadow"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "folder": lambda path: path.mkdir(),
    "huge": lambda path: path.write_bytes(b" " * 300_000),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "deep in reasons": lambda path: path.write_text(
        json.dumps({**decision()._asdict(), "reasons": "deep"}).replace('"deep"', "[" * 900 + "]" * 900)
    ),
    "huge number": lambda path: path.write_text(json.dumps({**decision()._asdict(), "at_s": 10**400})),
    "not a number": lambda path: path.write_text(json.dumps({**decision()._asdict(), "at_s": float("nan")})),
    "negative": lambda path: path.write_text(json.dumps({**decision()._asdict(), "gpu_mem_q99_mib": -1})),
    "surrogate": lambda path: path.write_text(json.dumps({**decision()._asdict(), "signature": "\ud800"})),
    "wrong type": lambda path: path.write_text(json.dumps({**decision()._asdict(), "job_id": 1})),
    "not utf-8": lambda path: path.write_bytes(b"\xff\xfe"),
    "empty": lambda path: path.touch(),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_costs_only_itself(tmp_path: Path, kind: str) -> None:
    drop(tmp_path, "good.json", decision("5"))
    HOSTILE[kind](tmp_path / str(UID) / "bad.json")
    found = collect_decisions(str(tmp_path))
    assert (list(found.decisions), found.rejected) == ([(NAME, "5")], 1)


# What int() takes for our own uid, too.
IN_OTHER_DIGITS = "".join(chr(0x660 + int(digit)) for digit in str(UID))


@pytest.mark.parametrize(
    "name", ["\u00b2", "\u0661", IN_OTHER_DIGITS, "notauid", "-1", "1" * 200, "99999999999999999999"]
)
def test_hostile_folder_names(tmp_path: Path, name: str) -> None:
    drop(tmp_path, "good.json", decision("5"))
    (tmp_path / name).mkdir()
    (tmp_path / name / "x.json").write_text(json.dumps(decision("6")._asdict()))
    assert list(collect_decisions(str(tmp_path)).decisions) == [(NAME, "5")]


def test_a_link_in_place_of_a_folder(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    drop(tmp_path / "elsewhere", "x.json", decision("6"))
    spool.mkdir()
    (spool / str(UID)).symlink_to(tmp_path / "elsewhere" / str(UID))
    assert collect_decisions(str(spool)) == Collected({}, 0, (f"'{spool}/{UID}' is no folder",))


def test_folders_that_are_not_their_users_are_said(tmp_path: Path) -> None:
    drop(tmp_path, "good.json", decision("5"))
    drop(tmp_path, "bad.json", decision("6"), owner=UID + 1)
    (tmp_path / str(UID + 2)).write_text("")
    (tmp_path / "readme").mkdir()
    found = collect_decisions(str(tmp_path))
    assert list(found.decisions) == [(NAME, "5")]
    assert found.foreign == (
        f"'{tmp_path}/{UID + 1}' belongs to uid {UID}",
        f"'{tmp_path}/{UID + 2}' is no folder",
    )


@pytest.mark.skipif(UID != 0, reason="only root can play two users")
def test_a_folder_planted_for_somebody_else(tmp_path: Path) -> None:
    """Neither another user's folder by my uid, nor another user's file in mine, speaks for me."""
    other = 54321
    drop(tmp_path, "x.json", decision("6"), owner=other)
    foreign = (f"'{tmp_path}/{other}' belongs to uid {UID}",)
    assert collect_decisions(str(tmp_path)) == Collected({}, 0, foreign)
    os.chown(drop(tmp_path, "theirs.json", decision("7")), other, other)
    assert collect_decisions(str(tmp_path)) == Collected({}, 1, foreign)
    # The folder's owner matches its name, and a file of root lies in it: a link made by its user.
    os.chown(tmp_path / str(other), other, other)
    found = collect_decisions(str(tmp_path))
    assert (found.decisions, found.rejected) == ({}, 2)


@pytest.mark.skipif(UID != 0, reason="only root can play two users")
def test_a_uid_without_a_name_is_rejected(tmp_path: Path) -> None:
    path = drop(tmp_path, "x.json", decision("6"), owner=54321)
    os.chown(path, 54321, 54321)
    os.chown(path.parent, 54321, 54321)
    assert collect_decisions(str(tmp_path)) == Collected({}, 1)


def test_folders_closed_to_us_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(tmp_path, "x.json", decision("6"))
    real = os.scandir

    def closed(path: str) -> Any:
        if path.endswith(str(UID)):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert collect_decisions(str(tmp_path)) == Collected({}, 0)


# --- history ---


def history(tmp_path: Path, rounds: list[Any], collected: Collected, *rows: Any) -> tuple[int, tuple[Evidence, ...]]:
    store = Store(str(tmp_path / "store"))
    store.write_allocations("a", rows or [run(user=NAME)], 1.0)
    sampled(store, rounds)
    written = build_history(store, "c", str(tmp_path / "state"), collected)
    return written.runs, read_snapshot(snapshot_path(str(tmp_path / "state"), UID), "sig").evidence


def decided(*items: Decision) -> Collected:
    return Collected({(NAME, item.job_id): (UID, item) for item in items}, 0)


def pass_at(at_s: float, sm: float | None, util: float | None = None, interval_s: float = 10.0, **unit: Any) -> Any:
    return seen(at_s, [device(sm_active_pct=sm, gpu_util_pct=util, **unit)], [process()], interval_s=interval_s)


def test_measured_use_becomes_evidence(tmp_path: Path) -> None:
    rounds = [pass_at(10, 20.0), pass_at(20, 20.0), pass_at(40, 60.0, interval_s=20.0), pass_at(9000, 99.0)]
    count, (found,) = history(tmp_path, rounds, decided(decision(mode="exclusive")))
    assert count == 1
    assert found == Evidence(
        *("1", "sig", "COMPLETED", "exclusive", H100, 3000, 40.0, 60.0, False, 3, 40.0, 3600.0, 3600.0, 5.0),
        gpu_mem_total_mib=81559,
        grew_until_s=0.0,
        busy_mean_pct=39.0,
    )
    _, (piece,) = history(tmp_path / "b", rounds, decided(decision(mode="mps")))
    assert piece.busy_mean_pct is None, "of a piece it would be another measure"


def test_what_a_run_used_of_the_host_becomes_evidence(tmp_path: Path) -> None:
    rounds = [
        seen(at_s, [device()], [process()], hosts=[host(cpu_s=cpu_s, host_mem_mib=mib)])
        for at_s, cpu_s, mib in [(10, 20.0, 4000), (20, 20.0, 7000), (30, None, None), (40, 30.0, 5000)]
    ]
    _, [found] = history(tmp_path, rounds, decided(decision()), run(user=NAME, start_s=0, end_s=40))
    assert (found.cpu_cores_q95, found.host_mem_peak_mib) == (3.0, 7000)
    _, [unseen] = history(tmp_path / "b", [pass_at(10, 20)], decided(decision()), run(user=NAME, start_s=0, end_s=40))
    assert (unseen.cpu_cores_q95, unseen.host_mem_peak_mib) == (None, None)


def grown(tmp_path: Path, *sizes: int | None, profile: str = "", config: SiteConfig | None = None) -> Evidence:
    store = Store(str(tmp_path / "store"))
    store.write_allocations("a", [run(user=NAME)], 1.0)
    sampled(
        store,
        [
            seen(10.0 * number, [device(profile=profile)], [process(gpu_mem_used_mib=mib)])
            for number, mib in enumerate(sizes, 1)
        ],
    )
    build_history(store, "c", str(tmp_path / "state"), decided(decision()), config)
    (found,) = read_snapshot(snapshot_path(str(tmp_path / "state"), UID), "sig").evidence
    return found


@pytest.mark.parametrize(
    ("sizes", "until_s"),
    [
        ((5000, 5000, 5040, 5000), 0.0),
        ((0, 1000, 3000, 6000, 6001, 2000), 20.0),
        ((1000, 1000, 1000, 9000), 30.0),
        ((0, 0), None),
    ],
)
def test_how_long_memory_grew_as_the_sampler_in_the_job_sees_it(
    tmp_path: Path, sizes: tuple[int, ...], until_s: float | None
) -> None:
    assert grown(tmp_path, *sizes).grew_until_s == until_s
    builder = EvidenceBuilder("1", "sig", "exclusive")
    for number, mib in enumerate(sizes, 1):
        inside = builder.add(seen(10.0 * number, [device()], [process(gpu_mem_used_mib=mib)]))
    assert inside.grew_until_s == until_s


def test_a_greedy_run_is_one_in_the_snapshot_too(tmp_path: Path) -> None:
    assert is_greedy(grown(tmp_path / "a", 100, int(81559 * 0.75), int(81559 * 0.75)))
    assert not is_greedy(grown(tmp_path / "b", 100, 30_000, 30_000))


def test_the_whole_of_a_slice_is_its_own(tmp_path: Path) -> None:
    assert grown(tmp_path / "known", 100, profile="1g.10gb").gpu_mem_total_mib == 9984
    ours = MIG_POOL._replace(nodes="g1", slice=(MigSlice("s", "1g.10gb", 9999, 16, 7),))
    assert grown(tmp_path / "site", 100, profile="1g.10gb", config=site(ours)).gpu_mem_total_mib == 9999
    assert grown(tmp_path / "gpu", 100, config=site(MIG_POOL._replace(nodes="g1"))).gpu_mem_total_mib == 81559
    assert grown(tmp_path / "odd", 100, profile="9g.99gb").gpu_mem_total_mib is None


def test_the_memorys_activity_is_of_a_whole_gpu_for_itself(tmp_path: Path) -> None:
    def moved(name: str, *percents: float | None, mode: str = "exclusive", **unit: Any) -> float | None:
        rounds = [pass_at(10.0 * number, 20.0, dram_active_pct=of, **unit) for number, of in enumerate(percents, 1)]
        return history(tmp_path / name, rounds, decided(decision(mode=mode)))[1][0].dram_active_q95_pct

    assert moved("mostly", *[10.0] * 19, 90.0) == 10.0
    assert moved("often", *[10.0] * 9, 90.0) == 90.0
    assert moved("gaps", None, 30.0, None) == 30.0
    assert moved("none", None, None) is None
    assert moved("slice", 30.0, profile="1g.10gb") is None
    assert moved("share", 30.0, mode="mps") is None


def test_the_high_value_is_of_time_and_not_of_rows(tmp_path: Path) -> None:
    """Twenty quick readings at the start of a job weigh as much as the time that they took."""
    quick = [pass_at(10 + n, 90.0, interval_s=1.0) for n in range(20)]
    slow = [pass_at(600 * n, 20.0, interval_s=600.0) for n in range(1, 4)]
    _, (found,) = history(tmp_path / "a", [*quick, *slow], decided(decision()))
    assert found.sm_active_q95_pct == 20.0
    _, (found,) = history(tmp_path / "b", [*quick, pass_at(600, 20.0, interval_s=300.0)], decided(decision()))
    assert found.sm_active_q95_pct == 90.0


def test_facts_say_what_readings_said_and_the_high_value_rounded_up(tmp_path: Path) -> None:
    rounds = [pass_at(10 * n, 7.5 if n < 150 else 33.25 + n % 2) for n in range(1, 200)]
    store = Store(str(tmp_path / "store"))
    store.write_allocations("a", [run(user=NAME)], 1.0)
    sampled(store, rounds)
    found: list[Evidence] = []
    for _ in range(3):
        build_history(store, "c", str(tmp_path / "state"), decided(decision()))
        found += read_snapshot(snapshot_path(str(tmp_path / "state"), UID), "sig").evidence
        assert compact(store, Observe(), 20 * 86_400.0, anyway=True)
    assert store.samples.days(0, 86_400) == []
    assert [one.sm_active_q95_pct for one in found] == [34.25, 36.0, 36.0]
    for one in found[1:]:
        assert one._replace(sm_active_q95_pct=34.25) == found[0]


def test_a_requeued_job_gives_two_runs_whatever_became_of_the_readings(tmp_path: Path) -> None:
    rows = [run(user=NAME, state="PREEMPTED"), run(user=NAME, start_s=4000, end_s=8000)]
    store = Store(str(tmp_path / "store"))
    store.write_allocations("a", rows, 1.0)
    sampled(store, [pass_at(10, 50.0), pass_at(4010, 10.0)])
    for _ in range(3):
        assert build_history(store, "c", str(tmp_path / "state"), decided(decision())).runs == 2
        found = read_snapshot(snapshot_path(str(tmp_path / "state"), UID), "sig").evidence
        assert [(one.state, one.sm_active_mean_pct) for one in found] == [("PREEMPTED", 50.0), ("COMPLETED", 10.0)]
        assert compact(store, Observe(), 300 * 86_400.0, anyway=True)


PAIR = [device("A", sm_active_pct=50.0), device("B", sm_active_pct=None, gpu_util_pct=None)]
NEIGHBOURS = [process(sm_util_pct=50.0), process("2", 7, sm_util_pct=50.0)]


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        # Time without a counter is not time at zero, and time without kernels is not in the mean.
        ([pass_at(10, 50.0), pass_at(20, None), pass_at(30, None), pass_at(40, None)], (50.0, 4, False)),
        ([pass_at(10, 0.0), pass_at(20, 0.0), pass_at(30, 50.0)], (50.0, 3, False)),
        ([pass_at(10, 0.0), pass_at(20, 0.0)], (0.0, 2, False)),
        # One GPU without a counter does not halve the sum.
        ([seen(10, PAIR, [process(uuid="A"), process("1", 7, "B")]), pass_at(20, 30.0)], (30.0, 2, False)),
        ([pass_at(10, None, 40.0), pass_at(20, None, 40.0)], (40.0, 2, True)),
        # A split among neighbours sizes nothing.
        ([pass_at(10, 30.0), seen(20, [device(sm_active_pct=40.0)], NEIGHBOURS)], (30.0, 2, False)),
    ],
)
def test_the_mean_is_of_what_is_known_of_the_job_alone(
    tmp_path: Path, rounds: list[Any], said: tuple[float, int, bool]
) -> None:
    _, (found,) = history(tmp_path, rounds, decided(decision()))
    assert (found.sm_active_mean_pct, found.sample_count, found.sm_is_bound) == said
    assert found.sampled_s == 10.0 * found.sample_count
    assert found.gpu_mem_peak_mib == (6000 if len(rounds[0].devices) == 2 else 3000)


def test_a_slice_names_the_mode(tmp_path: Path) -> None:
    part = pass_at(10, 50.0, profile="3g.40gb", sm_count=66)
    _, (found,) = history(tmp_path, [part], decided(decision(mode="exclusive")))
    assert (found.mode, found.sm_active_mean_pct) == ("mig", 25.0)


def test_somebody_elses_job_another_cluster_and_a_running_job_give_nothing(tmp_path: Path) -> None:
    rounds = [pass_at(10, 50.0)]
    foreign = Collected({("mallory", "1"): (UID, decision())}, 0)
    assert history(tmp_path / "1", rounds, foreign)[0] == 0
    assert history(tmp_path / "2", rounds, decided(decision(cluster="other")))[0] == 0
    assert history(tmp_path / "3", rounds, decided(decision()), run(user=NAME, end_s=None))[0] == 0
    assert history(tmp_path / "4", rounds, decided(decision("2")))[0] == 0


def test_the_snapshot_belongs_to_its_user(tmp_path: Path) -> None:
    history(tmp_path, [pass_at(10, 50.0)], decided(decision()))
    status = os.stat(snapshot_path(str(tmp_path / "state"), UID))
    assert (status.st_uid, status.st_mode & 0o777) == (UID, 0o600)


def test_tasks_of_an_array_belong_to_the_id_that_sbatch_printed(tmp_path: Path) -> None:
    task = run(user=NAME, job_id="1_3")._replace(job_id_raw="4")
    _, (found,) = history(tmp_path, [seen(10, [device()], [process("4")])], decided(decision("1")), task)
    assert found.job_id == "4"


def test_components_of_a_heterogeneous_job_belong_each_to_its_own_decision(tmp_path: Path) -> None:
    parts = [run(user=NAME, job_id=f"1+{part}")._replace(job_id_raw=str(1 + part)) for part in range(2)]
    asked = decided(decision("1", signature="first"), decision("2"))
    rounds = [seen(10 * part, [device()], [process(str(part))]) for part in (1, 2)]
    count, (found,) = history(tmp_path, rounds, asked, *parts)
    assert (count, found.job_id, found.signature) == (2, "2", "sig")


def test_what_csub_had_expected_stands_beside_what_was_measured(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write_allocations("a", [run(user=NAME)], 1.0)
    sampled(store, [pass_at(at_s, 50.0) for at_s in (10, 20, 30)])
    expected = decision(margin="same", gpu_mem_expected_mib=2800.0, gpu_mem_q99_mib=3220.0, at_s=7.0)
    state = str(tmp_path / "state")
    (found,) = build_history(store, "c", state, decided(expected)).answers
    assert tuple(found) == ("same", NAME, "1", 7.0, 2800.0, 3220.0, 3000, "COMPLETED")
    (out,) = build_history(store, "c", state, decided(expected._replace(out_of_memory=True))).answers
    assert out.state == "GPU_OOM", "accounting does not know it"
    for without in (decision(), expected._replace(gpu_mem_q99_mib=None)):
        assert build_history(store, "c", state, decided(without)).answers == ()


@pytest.mark.parametrize(
    ("fields", "mode", "unknown"),
    [({"gr_active_pct": None}, "exclusive", 1), ({"gr_active_pct": None}, "mps", 0), ({}, "exclusive", 0)],
)
def test_runs_without_busy_time_are_counted(tmp_path: Path, fields: dict[str, Any], mode: str, unknown: int) -> None:
    store = Store(str(tmp_path / "store"))
    store.write_allocations("a", [run(user=NAME)], 1.0)
    sampled(store, [pass_at(at_s, 50.0, **fields) for at_s in (10, 20, 30)])
    found = build_history(store, "c", str(tmp_path / "state"), decided(decision(mode=mode)))
    assert (found.runs, found.busy_unknown) == (1, unknown)


def test_without_root_only_ones_own_history_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path / "store"))
    store.write_allocations("a", [run(user=NAME)], 1.0)
    sampled(store, [pass_at(10, 50.0)])
    monkeypatch.setattr(os, "geteuid", lambda: UID + 1)
    written = build_history(store, "c", str(tmp_path / "state"), decided(decision()))
    assert (written.runs, written.users_skipped) == (0, 1)
    assert os.listdir(tmp_path / "state/history") == []


def test_users_reach_their_history_whatever_the_umask(tmp_path: Path) -> None:
    with umask(0o077):
        history(tmp_path, [pass_at(10, 50.0)], decided(decision()))
    assert (tmp_path / "state/history").stat().st_mode & 0o777 == 0o711


@pytest.mark.parametrize("how", ["link", "somebody else's"])
def test_a_history_folder_that_is_not_roots_own_is_not_opened_to_all(
    tmp_path: Path, how: str, printed: Printed
) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    if how == "link":
        (tmp_path / "history").symlink_to(tmp_path / "closed")
    elif UID != 0:
        pytest.skip("only root can give a folder away")
    else:
        (tmp_path / "closed").rename(tmp_path / "history")
        os.chown(tmp_path / "history", 54321, 54321)
    with pytest.raises(StoreError, match=str(tmp_path / "history")) as raised:
        feedback.make_history_folder(str(tmp_path))
    if how == "link":
        printed("history", str(raised.value).replace(f"uid {UID}", "uid 1000"))
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o700


def test_no_user_fills_the_memory_of_the_ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest decisions of a user count, so many bytes of them; another user's are not touched by that."""
    folder = tmp_path / str(os.geteuid())
    for number in range(9):
        drop_decision(str(folder), decision(str(number), at_s=float(number)))
    monkeypatch.setattr(feedback, "_MOST_BYTES_OF_USER", 4 * max(path.stat().st_size for path in folder.iterdir()))
    found = collect_decisions(str(tmp_path))
    assert sorted(job for _, job in found.decisions) == ["5", "6", "7", "8"]
    assert found.rejected == 5
