# SPDX-License-Identifier: Apache-2.0
"""colloc-mps itself, as root, with a control program that needs no GPU: who gets which daemon, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes import mps_control
from tests.fakes.mps_control import Ill
from tests.fakes.mps_jobs import PROGRAM, UUIDS, Node, begin, ended, new_root, sleeper, working
from tests.unit.golden import Printed
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="it runs as root")

ALICE, BOB, ROOT = (85410, 85410), (85411, 85411), (0, 0)
# Of a partition where all users share a daemon of root's.
ALL = {"SLURM_JOB_PARTITION": "all"}
whose = pytest.mark.parametrize(("more", "owner"), [({}, ALICE), (ALL, ROOT)], ids=["her own", "of all"])


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node(new_root())
    yield made
    made.remove()


def environment_of(pid: int) -> dict[str, str]:
    items = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(item.split("=", 1) for item in items if "=" in item)


def the_daemon(node: Node, user: tuple[int, int] = ALICE, gpu: int | str = 0) -> int:
    return int((node.folder(user, gpu) / "pipe" / f"{mps_control.NAME}.pid").read_text())


# --- what it says ---


def test_where_there_is_no_syslog_its_words_stand_in_a_file_of_roots(node: Node) -> None:
    node.well(Ill.FAILS)
    why = "job 1 of uid 85410 runs without MPS: no MPS daemon on GPU"
    assert why in node.run("start", 1, ALICE)
    assert why in node.log.read_text()
    assert (node.log.stat().st_uid, node.log.stat().st_mode & 0o777) == (0, 0o600)
    node.run("start", 2, ALICE)
    assert [line.split()[2] for line in node.log.read_text().splitlines()] == ["1", "2"]
    with node.log.open("a") as file:
        file.truncate(1_000_000)
    node.run("start", 3, ALICE)
    assert (len(node.log.read_text().splitlines()), Path(f"{node.log}.1").stat().st_size) == (1, 1_000_000)
    # No link is followed, and what syslog took stands nowhere else.
    node.log.unlink()
    node.log.symlink_to(node.root / "elsewhere")
    assert node.run("start", 4, ALICE) != ""
    node.log.unlink()
    node.program("logger", "exit 0")
    assert node.run("start", 5, ALICE) == ""
    assert not (node.root / "elsewhere").exists()
    assert not node.log.exists()


# --- one for each GPU and user ---


def test_jobs_of_one_user_share_a_daemon_and_the_last_one_ends_it(node: Node) -> None:
    for job in range(1, 8):
        assert node.run("start", job, ALICE) == ""
    pid = the_daemon(node)
    assert node.daemons() == {pid}
    assert node.jobs(ALICE) == set(range(1, 8))
    told = {node.run("task", job, ALICE) for job in range(1, 8)}
    pipe = node.folder(ALICE) / "pipe"
    log = node.folder(ALICE) / "log"
    assert told == {
        f"export CUDA_MPS_PIPE_DIRECTORY={pipe}\nexport CUDA_MPS_LOG_DIRECTORY={log}\nexport CUDA_VISIBLE_DEVICES=0\n"
    }
    for job in range(1, 7):
        node.run("stop", job, ALICE)
        assert node.daemons() == {pid}
    node.run("stop", 7, ALICE)
    assert node.daemons() == set()
    assert not node.folder(ALICE).exists()


def test_each_gpu_has_its_own(node: Node) -> None:
    node.run("start", 1, ALICE)
    node.run("start", 2, ALICE, "1")
    assert len(node.daemons()) == 2
    assert [environment_of(the_daemon(node, gpu=gpu))["CUDA_VISIBLE_DEVICES"] for gpu in (0, 1)] == list(UUIDS)
    node.run("stop", 1, ALICE)
    assert node.daemons() == {the_daemon(node, gpu=1)}


def test_the_daemon_is_its_users_and_has_nothing_of_its_starters(node: Node) -> None:
    # The descriptor stands for one that slurmd, or the lock, left open.
    left_open = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(left_open, True)
    high = os.dup2(left_open, 200, inheritable=True)
    done = subprocess.run(
        ["choom", "-n", "500", "--", *node.argv("start")],
        env={
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_UID": "85410",
            "SLURM_JOB_GID": "85410",
            "SLURM_JOB_GPUS": "0",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "14",
            "SECRET": "of slurmd",
            "SECONDS": "1000",
        },
        pass_fds=(left_open, high),
        check=True,
        timeout=20,
    )
    os.close(left_open)
    os.close(high)
    assert done.returncode == 0
    pid = the_daemon(node)
    status = Path(f"/proc/{pid}/status").read_text()
    assert "Uid:\t85410\t85410\t85410\t85410" in status
    assert "Gid:\t85410\t85410\t85410\t85410" in status
    assert "CapEff:\t0000000000000000" in status
    named = environment_of(pid)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in named  # it would be every client's
    assert "SECRET" not in named
    assert named["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    held = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    assert [path for path in held if path != os.devnull and not path.startswith("socket:")] == []
    assert os.getsid(pid) != os.getsid(0)
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "0\n"


def test_it_has_a_cgroup_of_its_own_and_what_its_user_made_of_it_ends_with_it(node: Node) -> None:
    """Whoever may trace his own processes may make anything of one: nothing of it outlives the last job."""
    node.run("start", 1, ALICE)
    folders = [line.split(":", 2)[2] for line in Path(f"/proc/{the_daemon(node)}/cgroup").read_text().splitlines()]
    own = {folder for folder in folders if f"/colloc.slice/colloc-mps-85410-{UUIDS[0]}-" in folder}
    if not own:
        pytest.skip("no cgroup can be made here")
    (name,) = own
    procs = next(path for path in Path("/sys/fs/cgroup").glob(f"**{name}/cgroup.procs"))
    hidden = begin(85410, "setsid", "sleep", "60", env={})
    procs.write_text(str(hidden.pid))
    node.run("stop", 1, ALICE)
    assert hidden.wait(5) == -signal.SIGKILL
    assert not procs.parent.exists()


def test_under_systemd_a_scope_holds_it(node: Node) -> None:
    node.with_systemd('while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    node.run("start", 1, ALICE)
    pid = the_daemon(node)
    words = (node.root / "scopes").read_text().split()
    name = f"colloc-mps-85410-{UUIDS[0]}-{(node.folder(ALICE) / 'unit').stat().st_ino}"
    assert words[:5] == ["--quiet", "--scope", "--collect", "--slice=colloc", f"--unit={name}"]
    in_v2 = [line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::")]
    assert not any("colloc" in line for line in in_v2)  # only systemd makes cgroups there
    node.run("stop", 1, ALICE)
    assert node.daemons() == set()


@pytest.mark.parametrize("does", ["exit 1", "trap '' TERM; sleep 60"])
def test_where_systemd_does_not_help_it_starts_all_the_same(node: Node, does: str) -> None:
    node.with_systemd(does)
    assert node.run("start", 1, ALICE) == ""
    assert node.daemons() == {the_daemon(node)}


# --- two users ---


def test_a_second_user_gets_none_while_the_first_ones_jobs_run(node: Node, printed: Printed) -> None:
    node.squeue([1, 2])
    node.run("start", 1, ALICE)
    pid = the_daemon(node)
    said = node.run("start", 2, BOB)
    assert node.daemons() == {pid}
    printed("colloc-mps", said, node.run("task", 2, BOB))
    assert node.run("task", 2, BOB, SLURM_LOCALID="1") == ""
    assert not node.folder(BOB).exists()
    node.run("stop", 2, BOB)
    node.run("stop", 1, ALICE)
    node.run("start", 3, BOB)
    assert node.jobs(BOB) == {3}


@pytest.mark.parametrize(("running", "freed"), [([7], True), ([1], False), (None, False)])
def test_jobs_that_ended_without_an_epilog_hold_nothing_once_slurm_says_so(
    node: Node, running: list[int] | None, freed: bool
) -> None:
    """Asked only when another user gets the GPU; if Slurm does not answer they count as running."""
    node.run("start", 1, ALICE)
    assert not (node.root / "asked").exists()
    node.squeue(running)
    node.run("start", 2, BOB)
    assert node.folder(ALICE).exists() is not freed
    assert node.jobs(BOB) == ({2} if freed else set())
    assert (node.root / "asked").read_text() == "-h -w g1 -o %A\n"


def test_a_job_with_the_whole_gpu_frees_it_of_what_is_left(node: Node, printed: Printed) -> None:
    node.run("start", 1, ALICE)
    node.run("start", 2, ALICE, "1")
    node.squeue([2])
    assert node.run("start", 9, BOB, "0", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="") == ""
    assert node.daemons() == {the_daemon(node, gpu=1)}
    said = node.run("start", 10, BOB, "0,1", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="")
    printed("colloc-mps", said.replace(str(node.root), "ROOT"))
    assert node.jobs(ALICE, 1) == {2}


def test_other_jobs_are_none_of_its_business(node: Node) -> None:
    for command in ("start", "task", "stop"):
        assert node.run(command, 1, ALICE, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="") == ""
    assert not node.state.exists()


def test_a_component_of_a_het_job_takes_its_own_daemon_or_none(node: Node) -> None:
    """Its SLURM_JOB_ID is the leader's; of two on one node nobody can tell which of the daemons is whose."""
    het = {"SLURM_JOB_ID_HET_GROUP_0": "1", "SLURM_JOB_ID_HET_GROUP_1": "2"}
    node.run("start", 2, ALICE)
    assert f"export CUDA_MPS_PIPE_DIRECTORY={node.folder(ALICE)}/pipe\n" in node.run("task", 1, ALICE, **het)
    assert "without MPS" in node.run("task", 1, ALICE, **{**het, "SLURM_JOB_ID_HET_GROUP_1": "."})
    node.run("start", 1, ALICE, "1")
    assert "without MPS" in node.run("task", 1, ALICE, **het)
    assert f"{node.folder(ALICE, 1)}/pipe" in node.run("task", 1, ALICE)


def test_nobody_joins_another_ones_daemon(node: Node) -> None:
    node.run("start", 1, ALICE)
    assert "without MPS" in node.run("task", 1, BOB)


# --- again and again ---


def test_start_and_stop_may_come_twice_or_alone(node: Node) -> None:
    node.run("stop", 1, ALICE)
    node.run("start", 1, ALICE)
    pid = the_daemon(node)
    node.run("start", 1, ALICE)
    assert node.daemons() == {pid}
    node.run("stop", 5, ALICE)
    assert node.daemons() == {pid}
    node.run("stop", 1, ALICE)
    node.run("stop", 1, ALICE)
    assert node.daemons() == set()


def test_twenty_at_once(node: Node) -> None:
    with ThreadPoolExecutor(20) as pool:
        said = list(pool.map(lambda job: node.run("start", job, ALICE), range(20)))
        assert said == [""] * 20
        assert node.daemons() == {the_daemon(node)}
        assert node.jobs(ALICE) == set(range(20))
        said = list(pool.map(lambda job: node.run("stop", job, ALICE), range(20)))
    assert said == [""] * 20
    assert node.daemons() == set()
    assert not node.folder(ALICE).exists()


@whose
def test_after_a_crash_the_next_job_starts_another_for_all(
    node: Node, more: dict[str, str], owner: tuple[int, int]
) -> None:
    node.run("start", 1, ALICE, **more)
    old = the_daemon(node, owner)
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: node.daemons() == set())
    assert "runs without MPS" in node.run("task", 1, ALICE)
    node.run("start", 2, BOB if more else ALICE, **more)
    assert the_daemon(node, owner) != old
    assert node.jobs(owner) == {1, 2}
    assert f"export CUDA_MPS_PIPE_DIRECTORY={node.folder(owner)}/pipe\n" in node.run("task", 1, ALICE)


def test_a_server_that_outlives_its_daemon_is_killed_by_its_pipe_folder_and_not_by_its_name(node: Node) -> None:
    node.run("start", 1, ALICE)
    os.kill(the_daemon(node), signal.SIGKILL)
    pipe = node.folder(ALICE) / "pipe"
    program = sleeper(node.root, "nvidia-cuda-mps-server")
    hers, elsewhere, bobs = (
        begin(user, program, "60", env={"CUDA_MPS_PIPE_DIRECTORY": str(folder)})
        for user, folder in ((85410, pipe), (85410, "/x"), (85411, pipe))
    )
    with ended(hers, elsewhere, bobs):
        node.run("start", 2, ALICE)
        assert hers.wait(5) == -signal.SIGKILL
        assert (elsewhere.poll(), bobs.poll()) == (None, None)


# --- a control program that misbehaves ---


@whose
@pytest.mark.parametrize("ill", [Ill.FAILS, Ill.NO_PID_FILE, Ill.DEAF, Ill.DIES])
def test_what_does_not_start_leaves_nothing(
    node: Node, ill: Ill, more: dict[str, str], owner: tuple[int, int], printed: Printed
) -> None:
    node.well(ill)
    began = time.monotonic()
    said = node.run("start", 1, ALICE, **more)
    assert time.monotonic() - began < 12
    if ill != Ill.DIES:  # it answers once
        printed("colloc-mps", said)
        assert not node.folder(owner).exists()
    assert node.daemons() == set()
    assert "runs without MPS" in node.run("task", 1, ALICE)


def test_a_program_that_hangs_is_given_a_few_seconds(node: Node) -> None:
    node.script("trap '' TERM; sleep 60")
    began = time.monotonic()
    assert "runs without MPS" in node.run("start", 1, ALICE)
    assert time.monotonic() - began < 12
    assert not node.folder(ALICE).exists()
    assert subprocess.run(["pgrep", "-u", "85410", "-f", str(node.bin)], check=False).returncode == 1


def test_none_is_installed(node: Node) -> None:
    (node.bin / mps_control.NAME).unlink()
    assert f"is {mps_control.NAME} installed" in node.run("start", 1, ALICE)


def test_a_daemon_that_does_not_quit_is_killed(node: Node) -> None:
    node.well(Ill.HANGS)
    node.run("start", 1, ALICE)
    began = time.monotonic()
    node.run("stop", 1, ALICE)
    assert time.monotonic() - began < 12
    assert node.daemons() == set()
    assert not node.folder(ALICE).exists()


@whose
def test_a_daemon_that_is_only_slow_is_not_taken_from_the_jobs_that_have_it(
    node: Node, more: dict[str, str], owner: tuple[int, int]
) -> None:
    node.run("start", 1, ALICE, **more)
    pid = the_daemon(node, owner)
    os.kill(pid, signal.SIGSTOP)
    said = node.run("start", 2, BOB if more else ALICE, **more)
    os.kill(pid, signal.SIGCONT)
    assert f"job 2 of uid {85411 if more else 85410} runs without MPS" in said
    assert (node.daemons(), node.jobs(owner)) == ({pid}, {1})


def test_a_lock_that_is_not_let_go_holds_nobody_up_for_long(node: Node, printed: Printed) -> None:
    node.run("start", 1, ALICE)
    with subprocess.Popen(["flock", node.state / f"{UUIDS[0]}.lock", "sleep", "30"], start_new_session=True) as other:
        time.sleep(0.3)
        began = time.monotonic()
        said = node.run("start", 2, ALICE) + node.run("stop", 1, ALICE)
        printed("colloc-mps", said.replace(str(node.root), "ROOT"))
        assert time.monotonic() - began < 16
        os.killpg(other.pid, signal.SIGKILL)
    node.run("start", 3, BOB)
    assert node.jobs(BOB) == {3}  # alice's daemon was in nobody's hands
    assert not node.folder(ALICE).exists()


# --- which GPU ---


def test_gpus_are_counted_as_pci_does_without_those_that_are_excluded(node: Node) -> None:
    node.card("0000:0a:00.0", "GPU-cccccccc-2222-4222-8222-222222222222", excluded="Yes")
    node.run("start", 1, ALICE, "1")
    assert node.jobs(ALICE, 1) == {1}


@pytest.mark.parametrize("uuid", ["GPU-????????-????-????-????-????????????", "../../../etc", ""])
def test_what_has_no_uuid_has_its_number(node: Node, uuid: str) -> None:
    node.card("0000:00:00.0", uuid)
    node.run("start", 1, ALICE, "0")
    assert environment_of(the_daemon(node, gpu="0"))["CUDA_VISIBLE_DEVICES"] == "0"
    node.run("start", 2, ALICE, "9")
    assert node.jobs(ALICE, "9") == {2}


@pytest.mark.parametrize("gpu", ["0,1", "", "../x", "$(id)", "-1", "01", "1 2"])
def test_only_one_number_is_a_gpu(node: Node, gpu: str, printed: Printed) -> None:
    said = node.run("start", 1, ALICE, gpu)
    assert "$(" not in said
    printed("colloc-mps", said.rpartition(" (")[0])
    assert node.daemons() == set()


@pytest.mark.parametrize(
    "wrong",
    [{"SLURM_JOB_ID": "../../x"}, {"SLURM_JOB_ID": ""}, {"SLURM_JOB_UID": "alice"}, {"SLURM_JOB_UID": "085410"}],
)
def test_ids_are_numbers(node: Node, wrong: dict[str, str]) -> None:
    assert "nothing is done" in node.run("start", 1, ALICE, **wrong)
    assert node.run("task", 1, ALICE, SLURM_JOB_ID="1\nprint mine") == ""
    assert not node.state.exists()


def test_root_gets_none(node: Node, printed: Printed) -> None:
    printed("colloc-mps", *{node.run("start", 1, ROOT, **partition) for partition in ({}, ALL)})


def test_a_path_too_long_for_a_socket_is_not_tried(node: Node) -> None:
    node.state = node.root / ("x" * 40) / "mps"
    assert "has more than 80 bytes" in node.run("start", 1, ALICE)


def test_the_usual_pipe_folder_is_short_enough() -> None:
    assert "state=/run/colloc/mps" in PROGRAM.read_text()
    assert len(f"/run/colloc/mps/{2**32 - 2}-{UUIDS[0]}/pipe") <= 80


def test_nothing_of_another_node_is_touched(node: Node) -> None:
    """Two state folders on one machine: as two nodes of a test cluster have."""
    other = Node(new_root())
    try:
        node.run("start", 1, ALICE)
        other.run("start", 2, ALICE)
        node.run("stop", 1, ALICE)
        assert [pid for pid, _ in working(str(other.state))] == [the_daemon(other)]
        other.run("stop", 2, ALICE)
    finally:
        other.remove()
