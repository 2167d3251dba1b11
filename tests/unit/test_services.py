# SPDX-License-Identifier: Apache-2.0
"""What a tired administrator does to the services of a site, and what they say then."""

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from slurm_colloc.cli import sampling
from slurm_colloc.cli.sampling import Settings, sample
from slurm_colloc.core.errors import DeadlineError
from slurm_colloc.core.files import whose
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.observe.journal import append, hours
from slurm_colloc.store.samples import Samples
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.made import device, process, run, seen
from tests.unit.programs import colloc
from tests.unit.test_agent import DEVICES, agent, node, wait_for  # noqa: F401

NOBODY = 65534
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text = (
        'schema = 1\ncluster = "c"\nslurm_release = "22.05"\n[paths]\nstate = "{0}/shared"\njournal = "{0}/journal"\n'
    )
    (tmp_path / "site.toml").write_text(text.format(tmp_path))
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    (tmp_path / "journal").mkdir(mode=0o700)
    append(str(tmp_path / "journal"), seen(7200.0, [device()], [process()]))
    return tmp_path


@pytest.mark.parametrize("command", ["flush", "compact"])
def test_with_the_store_away_nothing_is_written_elsewhere_and_nothing_dropped(site: Path, command: str) -> None:
    argv = [command, "--node", "g1"] if command == "flush" else [command]
    for shared in (False, True):  # the mount point is missing, and then there and empty
        (site / "shared").mkdir() if shared else None
        for _ in range(2):
            assert colloc(*argv) == 2
            assert f"'{site}/shared/store'" in colloc.err
    assert len(list(hours(str(site / "journal")))) == 1
    assert not (site / "home").exists()
    assert not (site / "shared/store").exists()


@pytest.mark.parametrize("mode", [None, 0o700])
def test_a_user_looks_at_their_own_where_the_sites_store_is_away_or_closed(
    site: Path, mode: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if mode:
        (site / "shared/store").mkdir(parents=True)
        monkeypatch.setattr(os, "access", lambda path, wanted: False)
    assert colloc("report") == 2
    why = "open to you" if mode else "there"
    assert f"the site's store '{site}/shared/store' is not {why}; your own is used" in colloc.err


@pytest.mark.parametrize(
    "command",
    [
        ["ingest", "--sacct-file", "/dev/null"],
        ["report"],
        ["me"],
        ["job", "1"],
        ["pages", "out"],
        ["audit", "run"],
        ["audit", "run", "--notify"],
        ["history", "bootstrap", "--all", "--slurm-release", "24.05.4"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_root_gets_the_sites_store_or_an_error(
    site: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """A typo in paths.state, a folder that was removed: nothing of it goes to root's home, or comes from there."""
    monkeypatch.chdir(site)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for shared in (False, True):
        (site / "shared").mkdir() if shared else None
        assert colloc(*command) == 2
        printed("store", colloc.err)
    assert not (site / "home").exists()
    assert [*(site / "shared").iterdir()] == []


def test_who_audits_for_the_site_gets_its_store_or_an_error(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert colloc("audit", "run", "--notify") == 2
    assert f"'{site}/shared/store'" in colloc.err
    assert not (site / "home").exists()


def test_a_node_that_has_no_journal_is_an_error(site: Path, printed: Printed) -> None:
    (site / "shared/store").mkdir(parents=True)
    assert colloc("flush", "--node", "vm") == 2
    printed("flush", colloc.err)


@ROOT_ONLY
def test_root_writes_as_the_owner_of_the_store(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if "pytest-of" in str(parent):
            parent.chmod(0o755)
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    store = Store(str(folder))
    store.write_allocations("a", [run()], 1.0)
    store.write_log("a", {"rows_in": 1, "used": 1, "steps": 0, "rejected": {}})
    journal = tmp_path / "journal"
    append(str(journal), seen(7200.0, [device()], [process()]))
    for path in (journal, *journal.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (hour,) = hours(str(journal))
    with Samples(str(folder)).work("flush", "c", "g1") as work:
        assert work is not None
        Samples(str(folder)).flush("c", hour, attribute_sample, work)
    assert {path.stat().st_uid for path in folder.rglob("*")} == {NOBODY}
    assert (os.geteuid(), os.getegid()) == (0, 0)


def test_who_stands_in_the_way(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    said = whose(str(tmp_path / "a/b"))
    assert said == f"'{tmp_path}' belongs to uid {os.getuid()}, mode 0750; this is uid {os.geteuid()}"


def test_a_taken_port_ends_no_measuring(node: Path) -> None:  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as other:
        text = (node / "site.toml").read_text()
        (node / "site.toml").write_text(
            text.replace("[observe]", f'[observe]\nprometheus = "127.0.0.1:{other.getsockname()[1]}"')
        )
        running = agent(node)
        wait_for(node, 2)
        running.terminate()
        _, said = running.communicate(timeout=30)
    assert running.returncode == 0
    assert "cannot listen on '127.0.0.1'" in said
    assert "sampling goes on without" in said


def test_a_job_that_slurm_does_not_tell_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    doubt = sampling._doubter(Settings("g1", "c", 10.0, "nvml"), SimpleNamespace(unknown_jobs={"7"}))  # type: ignore[arg-type]
    for at_s in (0.0, 10.0):
        doubt(seen(at_s, [device()], []))
    assert capsys.readouterr().err.count("node 'g1'") == 1


def test_two_samples_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g1.json").write_text(json.dumps(DEVICES))
    journal = str(tmp_path / "journal")
    sample(Settings("g1", "c", 0.5, f"simulated:{tmp_path}", journal=journal, samples=2))
    assert f"sampling node g1 every 0.5 s into '{journal}'" in capsys.readouterr().err
    (hour,) = hours(journal)
    assert [seen.interval_s > 0 for seen in hour] == [False, True]


def test_a_driver_that_hangs_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], printed: Printed
) -> None:
    def hang(*_: object, **__: object) -> int:
        raise DeadlineError("reading the GPUs took too long")

    def end(status: int) -> NoReturn:
        raise SystemExit(status)

    (tmp_path / "g1.json").write_text(json.dumps(DEVICES))
    monkeypatch.setattr(sampling, "follow", hang)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit) as ended:
        sample(Settings("g1", "c", 0.05, f"simulated:{tmp_path}", journal=str(tmp_path / "journal"), agent=True))
    assert ended.value.code == DeadlineError.exit_status != 0
    printed("agent", capsys.readouterr().err.splitlines()[-1])


def test_the_agent_is_patient_and_a_sampler_by_hand_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[int, float] = {}

    def note(*_: object, patience_s: float, **__: object) -> int:
        found[len(found)] = patience_s
        return 1

    (tmp_path / "g1.json").write_text(json.dumps(DEVICES))
    monkeypatch.setattr(sampling, "follow", note)
    for agent_ in (True, False):
        sample(Settings("g1", "c", 0.05, f"simulated:{tmp_path}", agent=agent_))
    assert found == {0: 300.0, 1: float("inf")}
