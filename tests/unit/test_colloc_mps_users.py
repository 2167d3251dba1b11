# SPDX-License-Identifier: Apache-2.0
"""colloc-mps where several users are on a GPU: each under a daemon of his own, or all under one of root's."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes import mps_control
from tests.fakes.mps_jobs import UUIDS, Node
from tests.unit.golden import Printed
from tests.unit.programs import umask
from tests.unit.test_colloc_mps import ALICE, ALL, BOB, ROOT, environment_of, the_daemon
from tests.unit.test_colloc_mps import node as node
from tests.unit.test_colloc_mps_hostile import as_user
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="it runs as root")

EACH = {"SLURM_JOB_PARTITION": "each"}


def pipe_of(told: str) -> str:
    said = dict(line.removeprefix("export ").split("=", 1) for line in told.splitlines() if line.startswith("export "))
    return said.get("CUDA_MPS_PIPE_DIRECTORY", "")


def asked(node: Node, user: int, text: str, folder: Path) -> str:
    return as_user(
        user, f"echo {text} | CUDA_MPS_PIPE_DIRECTORY={folder}/pipe {node.root}/fake/{mps_control.NAME}"
    ).stdout


# --- each: a daemon for each user, side by side ---


def test_each_user_has_a_daemon_beside_the_others(node: Node) -> None:
    for job, user in ((1, ALICE), (2, BOB), (3, ALICE)):
        assert node.run("start", job, user, **EACH) == ""
    assert node.daemons() == {the_daemon(node), the_daemon(node, BOB)}
    assert (node.jobs(ALICE), node.jobs(BOB)) == ({1, 3}, {2})
    assert pipe_of(node.run("task", 2, BOB)) == f"{node.folder(BOB)}/pipe"
    assert not (node.root / "asked").exists()  # Slurm is not asked at each start
    assert as_user(85411, f"ls {node.folder(ALICE)}/pipe").returncode != 0
    node.run("stop", 2, BOB)
    assert node.daemons() == {the_daemon(node)}
    for job in (1, 3):
        node.run("stop", job, ALICE)
    assert node.daemons() == set()


def test_a_daemon_in_nobodys_hands_goes_when_another_user_comes(node: Node) -> None:
    node.run("start", 1, ALICE, **EACH)
    (node.folder(ALICE) / "jobs/1").rmdir()
    node.run("start", 2, BOB, **EACH)
    assert node.daemons() == {the_daemon(node, BOB)}
    assert not node.folder(ALICE).exists()


def test_who_is_to_be_alone_gets_no_daemon_beside_others(node: Node, printed: Printed) -> None:
    """Partitions of one user and of several on one node: the first gets no MPS, and says so."""
    node.run("start", 1, ALICE, **EACH)
    beside_hers = node.run("start", 2, BOB)
    node.run("stop", 1, ALICE)
    node.run("start", 3, ALICE, **ALL)
    printed("colloc-mps", beside_hers, node.run("start", 4, BOB))
    assert node.jobs(ROOT) == {3}


@pytest.mark.parametrize("partition", ["", "eac", "each,of-each", "*", "of-each,all", "EACH", " each"])
def test_a_partition_that_is_not_named_is_of_one_user(node: Node, partition: str) -> None:
    node.run("start", 1, ALICE, SLURM_JOB_PARTITION=partition)
    assert "serves jobs of uid 85410" in node.run("start", 2, BOB, SLURM_JOB_PARTITION=partition)


# --- all: one daemon of root's ---


def test_all_users_share_one_daemon_of_roots_and_the_last_job_ends_it(node: Node) -> None:
    for job, user in ((1, ALICE), (2, BOB), (3, BOB)):
        assert node.run("start", job, user, **ALL) == ""
    pid = the_daemon(node, ROOT)
    assert node.daemons() == {pid}
    assert node.jobs(ROOT) == {1, 2, 3}
    assert Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-3:-1] == [b"-d", b"-multiuser-server"]
    named = environment_of(pid)
    assert (named["CUDA_VISIBLE_DEVICES"], set(named) & {"SLURM_JOB_ID", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}) == (
        UUIDS[0],
        set(),
    )
    told = {node.run("task", job, user) for job, user in ((1, ALICE), (2, BOB), (3, BOB))}
    assert {pipe_of(text) for text in told} == {f"{node.folder(ROOT)}/pipe"}
    assert len(told) == 1
    node.run("stop", 1, ALICE)
    node.run("stop", 2, BOB)
    assert node.daemons() == {pid}
    node.run("stop", 3, BOB)
    assert node.daemons() == set()
    assert not node.folder(ROOT).exists()


def test_users_of_it_are_clients_and_no_more(node: Node) -> None:
    node.run("start", 1, ALICE, **ALL)
    folder, server = node.folder(ROOT), mps_control.NAME
    before = node.daemons()
    assert asked(node, 85411, f"join {os.getpid()}", folder) == ""
    wait_for(lambda: len(node.daemons()) == 2)
    (serving,) = asked(node, 85411, "get_server_list", folder).split()
    assert int(serving) in node.daemons() - before
    assert "privilege" in asked(node, 85411, "quit", folder)
    assert "Insufficient" in asked(node, 85411, "set_default_active_thread_percentage 5", folder)
    for tried in (
        f"ls {folder}/log",
        f"touch {folder}/pipe/x",
        f"rm -f {folder}/pipe/control",
        f"mv {folder}/pipe {folder}/x",
        f"echo 1 >{folder}/pipe/{server}.pid",
        f"echo 1 <>{folder}/pipe/log",
        f"flock -n {folder}/pipe/control_lock true",
        f"rm -f {folder}/pipe/{server}.pid",
        f"rmdir {folder}/jobs/1",
        f"mkdir {folder}/jobs/2",
        f"mkdir {node.state}/0-{UUIDS[1]}",
        f"kill -9 {the_daemon(node, ROOT)}",
        f"kill -9 {serving}",
    ):
        assert as_user(85411, tried).returncode != 0, tried
    assert node.run("start", 2, BOB, **ALL) == ""
    assert before < node.daemons()


def test_modes_and_owners_whatever_the_umask(node: Node) -> None:
    for mode in (0, 0o777):
        with umask(mode):
            node.run("start", 1, ALICE, **ALL)
        folder = node.folder(ROOT)
        paths = (folder, *folder.iterdir(), *(p for p in (folder / "pipe").iterdir() if p.name != "log"))
        assert {path.name: (path.stat().st_uid, oct(stat.S_IMODE(path.stat().st_mode))) for path in paths} == {
            folder.name: (0, "0o755"),
            "jobs": (0, "0o755"),
            "unit": (0, "0o700"),
            "pipe": (0, "0o755"),
            "log": (0, "0o700"),
            f"{mps_control.NAME}.pid": (0, "0o644"),
            # Others need this one alone. On the real GPU, who wrote to the log's pipe without end stopped the daemon.
            "control": (0, "0o777"),
            "control_lock": (0, "0o600"),
            "control_privileged": (0, "0o600"),
        }
        assert stat.S_IMODE((folder / "pipe/log").stat().st_mode) == 0o600
        node.run("stop", 1, ALICE)
        assert node.daemons() == set()


def test_nobody_reaches_it_before_its_pid_is_roots_alone(node: Node) -> None:
    """The daemon lets all write its pid; who has opened it before could have root take the daemon for dead."""
    node.program("chmod", f'stat -c %a {node.state}/0-*/pipe >>{node.root}/seen; PATH=/usr/bin:/bin; exec chmod "$@"')
    node.run("start", 1, ALICE, **ALL)
    assert set((node.root / "seen").read_text().split()) == {"700"}


@pytest.mark.parametrize("planted", ["a pid", "a link"])
def test_what_stands_in_the_place_of_its_folder_is_not_used(node: Node, planted: str, tmp_path: Path) -> None:
    folder = node.folder(ROOT)
    folder.parent.mkdir(parents=True)
    tmp_path.chmod(0o755)
    if planted == "a link":
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir()
        os.chown(folder, 85411, 85411)
    assert "runs without MPS" in node.run("start", 1, ALICE, **ALL)
    assert list(tmp_path.iterdir()) == []
    assert node.daemons() == set()


def test_a_link_in_the_place_of_its_pipes_is_moved_away_and_not_followed(node: Node, tmp_path: Path) -> None:
    folder = node.folder(ROOT)
    folder.mkdir(parents=True)
    (tmp_path / "kept").touch()
    (folder / "pipe").symlink_to(tmp_path)
    assert node.run("start", 1, ALICE, **ALL) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert not (folder / "pipe").is_symlink()


def test_the_end_of_a_job_without_it_is_not_held_up_by_it(node: Node) -> None:
    """Each job on the node has an epilog; one that has no share of the daemon does not wait for its lock."""
    node.run("start", 1, ALICE, **ALL)
    (node.folder(ROOT) / "jobs/1").rmdir()
    with subprocess.Popen(["flock", node.state / f"{UUIDS[0]}.lock", "sleep", "30"], start_new_session=True) as other:
        time.sleep(0.3)
        began = time.monotonic()
        assert node.run("stop", 9, BOB) == ""
        assert time.monotonic() - began < 5
        os.killpg(other.pid, signal.SIGKILL)


def test_a_job_with_the_whole_gpu_frees_it_of_what_is_left(node: Node) -> None:
    node.run("start", 1, ALICE, **ALL)
    node.run("start", 2, BOB, **EACH)
    node.squeue([])
    assert node.run("start", 9, BOB, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="") == ""
    assert node.daemons() == set()


def test_twenty_of_two_users_at_once(node: Node) -> None:
    users: Mapping[int, tuple[int, int]] = {job: (ALICE, BOB)[job % 2] for job in range(20)}
    for more, owners in ((ALL, {ROOT}), (EACH, {ALICE, BOB})):
        with ThreadPoolExecutor(20) as pool:
            said = list(pool.map(lambda job: node.run("start", job, users[job], **more), users))  # noqa: B023
            assert said == [""] * 20
            assert node.daemons() == {the_daemon(node, owner) for owner in owners}
            assert set.union(*(node.jobs(owner) for owner in owners)) == set(users)
            said = list(pool.map(lambda job: node.run("stop", job, users[job]), users))
        assert said == [""] * 20
        assert node.daemons() == set()
        assert not any(node.folder(owner).exists() for owner in owners)


def test_where_a_user_sees_no_process_of_roots_he_is_a_client_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run("start", 1, ALICE, **ALL)
    plain = node.argv
    hide = "mount -t proc -o hidepid=2 proc /proc 2>/dev/null || exit 77; exec setpriv --reuid=85410 --regid=85410 "
    hide += '--clear-groups "$@"'
    argv = ["unshare", "--mount", "sh", "-c", hide, "sh", *plain("task")]
    given = {"SLURM_JOB_ID": "1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "14", "PATH": os.environ["PATH"]}
    done = subprocess.run(argv, env=given, capture_output=True, text=True, check=False, timeout=20)
    if done.returncode == 77:
        pytest.skip("proc cannot be mounted here")
    assert pipe_of(done.stdout) == f"{node.folder(ROOT)}/pipe"
