# SPDX-License-Identifier: Apache-2.0
"""colloc-mps against its users: nobody reads, ends or delays what is another's, and root is led nowhere."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes import mps_control
from tests.fakes.mps_jobs import PROGRAM, UUIDS, Node, begin, ended, sleeper
from tests.unit.golden import Printed
from tests.unit.programs import umask
from tests.unit.test_colloc_mps import ALICE, BOB, the_daemon
from tests.unit.test_colloc_mps import node as node

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="it runs as root")

NAMED = "nvidia-cuda-mps-server"


def test_modes_and_owners_whatever_the_umask(node: Node) -> None:
    with umask(0):
        node.run("start", 1, ALICE)
    folder = node.folder(ALICE)
    seen = {
        str(path.relative_to(node.state.parent)): (path.stat().st_uid, oct(stat.S_IMODE(path.stat().st_mode)))
        for path in (
            node.state.parent,
            node.state,
            *node.state.iterdir(),
            *folder.iterdir(),
            *(folder / "jobs").iterdir(),
        )
    }
    name = f"mps/{folder.name}"
    assert seen == {
        ".": (0, "0o755"),
        "mps": (0, "0o755"),
        f"mps/{UUIDS[0]}.lock": (0, "0o600"),
        name: (0, "0o755"),
        f"{name}/unit": (0, "0o700"),
        f"{name}/pipe": (85410, "0o700"),
        f"{name}/log": (85410, "0o700"),
        f"{name}/jobs": (0, "0o755"),
        f"{name}/jobs/1": (0, "0o755"),
    }


def as_user(user: int, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", script], user=user, group=user, extra_groups=[], capture_output=True, text=True, check=False
    )


def test_another_user_reads_nothing_and_changes_nothing(node: Node) -> None:
    node.run("start", 1, ALICE)
    folder, lock = node.folder(ALICE), node.state / f"{UUIDS[0]}.lock"
    for tried in (
        f"ls {folder}/pipe",
        f"ls {folder}/log",
        f"cat {folder}/log/control.log",
        f"rmdir {folder}/jobs/1",
        f"mkdir {folder}/jobs/2",
        f"mkdir {node.state}/85411-{UUIDS[0]}",
        f"mv {folder} {folder}x",
        f"flock -n {lock} true",
        f"echo quit | CUDA_MPS_PIPE_DIRECTORY={folder}/pipe {node.root}/fake/{mps_control.NAME}",
    ):
        assert as_user(85411, tried).returncode != 0, tried
    assert as_user(85410, f"mkdir {folder}/jobs/2").returncode != 0  # its own user counts no jobs either
    assert node.jobs(ALICE) == {1}


@pytest.mark.parametrize("level", ["c", "c/mps"])
@pytest.mark.parametrize("how", ["link", "owner", "mode", "file"])
def test_a_folder_that_is_not_roots_alone_is_not_used(
    node: Node, level: str, how: str, tmp_path: Path, printed: Printed
) -> None:
    path = node.root / level
    path.parent.mkdir(mode=0o755, exist_ok=True)
    tmp_path.chmod(0o755)
    if how == "link":
        path.symlink_to(tmp_path)
    elif how == "file":
        path.touch()
    else:
        path.mkdir()
        path.chmod(0o777 if how == "mode" else 0o755)
        os.chown(path, 85410 if how == "owner" else 0, 0)
    printed("colloc-mps", node.run("start", 1, ALICE).replace(str(path), "FOLDER"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", [".", "jobs"])
@pytest.mark.parametrize("how", ["link", "owner", "mode"])
def test_nor_is_a_daemons_folder(node: Node, below: str, how: str, tmp_path: Path) -> None:
    path = node.folder(ALICE) / below
    path.parent.mkdir(parents=True)
    tmp_path.chmod(0o755)
    if how == "link":
        path.symlink_to(tmp_path)
    else:
        path.mkdir()
        path.chmod(0o777 if how == "mode" else 0o755)
        os.chown(path, 85410 if how == "owner" else 0, 0)
    assert "runs without MPS" in node.run("start", 1, ALICE)
    assert list(tmp_path.iterdir()) == []
    assert node.daemons() == set()


def test_what_a_user_plants_in_his_own_folders_harms_nobody(node: Node) -> None:
    """Links out of them, a FIFO and another one's pid for the pid file: root neither follows, nor waits, nor kills."""
    victim = begin(85411, "sleep", "60")
    precious = node.root / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    pipe, log = node.folder(ALICE) / "pipe", node.folder(ALICE) / "log"
    for planted in (
        f"ln -s {precious} {log}/d; ln -s {precious}/file {pipe}/f",
        f"rm {pipe}/*.pid; mkfifo {pipe}/{mps_control.NAME}.pid",
        f"echo {victim.pid} >{pipe}/{mps_control.NAME}.pid",
        f"rm {pipe}/*.pid; ln -s /etc/shadow {pipe}/{mps_control.NAME}.pid",
        f"chmod 0 {pipe}",
    ):
        node.run("start", 1, ALICE)
        assert as_user(85410, planted).returncode == 0, planted
        began = time.monotonic()
        node.run("start", 2, ALICE)
        node.run("stop", 1, ALICE)
        node.run("stop", 2, ALICE)
        assert time.monotonic() - began < 24, planted
        assert not node.folder(ALICE).exists(), planted
        assert node.daemons() == set(), planted
    assert victim.poll() is None
    assert (precious / "file").read_text() == "kept"
    victim.kill()
    victim.wait()


def no_daemon(pid: str) -> str:
    """Return what takes the pid file's place and says this."""
    return f"rm {mps_control.NAME}.pid; printf {pid} >{mps_control.NAME}.pid"


@pytest.mark.parametrize("whose", ["hers, by another name", "another's, by the daemon's name", "a path"])
def test_a_pid_file_that_names_something_else_keeps_no_daemon_from_starting(node: Node, whose: str) -> None:
    """Root believes neither another process nor, of a path, a status that a user wrote."""
    node.run("start", 1, ALICE)
    old = the_daemon(node)
    os.kill(old, signal.SIGKILL)
    program = sleeper(node.root, NAMED)
    user = 85411 if whose.startswith("another") else 85410
    with (
        tempfile.TemporaryDirectory(prefix="", dir="/tmp") as forged,
        begin(user, program if user == 85411 else "sleep", "60", env={}) as other,
    ):
        Path(forged, "status").write_text(f"Name:\t{NAMED[:15]}\nState:\tS (sleeping)\nUid:\t85410\n")
        Path(forged).chmod(0o755)
        pid = f"..{forged}" if whose == "a path" else str(other.pid)
        assert len(pid) <= 16  # what is read of it
        assert as_user(85410, f"cd {node.folder(ALICE)}/pipe; {no_daemon(pid)}").returncode == 0
        assert node.run("start", 2, ALICE) == ""
        alive = other.poll() is None
        other.kill()
    assert alive
    assert node.jobs(ALICE) == {1, 2}
    assert the_daemon(node) != old


def test_a_pid_file_that_is_a_link_is_none(node: Node) -> None:
    """Root would open what it leads to, and some devices do something when they are opened."""
    node.run("start", 1, ALICE)
    old = the_daemon(node)
    name = f"{mps_control.NAME}.pid"
    assert as_user(85410, f"cd {node.folder(ALICE)}/pipe; mv {name} x; ln -s x {name}").returncode == 0
    assert node.run("start", 2, ALICE) == ""
    assert the_daemon(node) != old


def test_a_fifo_for_a_pid_file_is_not_waited_for(node: Node) -> None:
    node.program("dd", f'echo began >>{node.root}/read; /bin/dd "$@"; echo ended >>{node.root}/read')
    node.run("start", 1, ALICE)
    assert as_user(85410, f"cd {node.folder(ALICE)}/pipe; rm *.pid; mkfifo {mps_control.NAME}.pid").returncode == 0
    node.run("start", 2, ALICE)
    read = (node.root / "read").read_text().split()
    assert read.count("began") == read.count("ended") >= 2  # one that waits is killed, and does not end by itself


def test_what_talks_to_a_daemon_is_its_users_and_holds_nothing_of_roots(node: Node) -> None:
    """Else a user who traces it had root's rights, root's groups, or the lock for as long as he likes."""
    (node.root / "seen").mkdir()
    (node.root / "seen").chmod(0o777)
    look = "id -u; id -G; pwd; umask; cut -d' ' -f6 /proc/$$/stat; "
    look += f"readlink /proc/$$/fd/* | grep -F {node.state}; env | cut -d= -f1 | sort"
    then = f'[ "$1" != -d ] || sleep 1.2; exec {node.root}/fake/{mps_control.NAME} "$@"'
    node.script(f"{{ {look}; }} >{node.root}/seen/${{1:-asked}}; {then}")
    environment = {"SLURM_JOB_UID": "85410", "SLURM_JOB_GID": "85410", "SLURM_JOB_GPUS": "0", "SECRET": "slurmd's",
                   "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "14"}  # fmt: skip
    for job in ("1", "2"):
        argv, given = node.argv("start"), {**environment, "SLURM_JOB_ID": job, "SECONDS": "1000"}
        subprocess.run(argv, env=given, extra_groups=[0, 4201], check=True, timeout=30, cwd=node.root, umask=0)
    assert node.jobs(ALICE) == {1, 2}
    for verb in ("-d", "asked"):
        uid, gids, folder, umask, session, *names = (node.root / "seen" / verb).read_text().splitlines()
        assert (uid, gids, folder) == ("85410", "85410", "/"), verb
        if verb == "-d":
            assert umask == "0077"
            assert int(session) != os.getsid(0)  # what ends the session of its starter would end it
        assert set(names) - {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} == {
            *("CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PIPE_DIRECTORY", "PATH", "PWD")
        }, verb


def test_a_pid_that_became_another_ones_is_not_killed(node: Node) -> None:
    """While environments are read, which their owners can draw out; and nobody else's are read at all."""
    node.run("start", 1, ALICE)
    os.kill(the_daemon(node), signal.SIGKILL)
    program, told = sleeper(node.root, NAMED), {"CUDA_MPS_PIPE_DIRECTORY": f"{node.folder(ALICE)}/pipe"}
    hers, bobs = (begin(user, program, "60", env=told) for user in (85410, 85411))
    node.program("grep", f'echo "$*" >>{node.root}/read; /bin/grep "$@"; echo /proc/{bobs.pid}/environ')
    with ended(hers, bobs):
        node.run("start", 2, ALICE)
        assert hers.wait(5) == -signal.SIGKILL
        assert bobs.poll() is None
        assert f"/proc/{hers.pid}/environ" in (node.root / "read").read_text()
        assert f"/proc/{bobs.pid}/environ" not in (node.root / "read").read_text()


def hide_cgroups(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = node.argv
    hide = ["unshare", "--mount", "sh", "-c", 'umount -l -a -t cgroup,cgroup2; exec "$@"', "sh"]
    monkeypatch.setattr(node, "argv", lambda command: [*hide, *plain(command)])


def test_without_cgroups_a_daemon_is_asked_and_ended_all_the_same(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_cgroups(node, monkeypatch)
    assert node.run("start", 1, ALICE) == ""
    assert node.run("start", 2, ALICE) == ""
    assert (node.folder(ALICE) / "unit/none").is_dir()
    assert len(node.daemons()) == 1
    (node.folder(ALICE) / "unit/none").rmdir()
    assert "runs without MPS" in node.run("start", 3, ALICE)  # it ought to have a cgroup
    (node.folder(ALICE) / "unit/none").mkdir()
    node.run("stop", 1, ALICE)
    node.run("stop", 2, ALICE)
    assert node.daemons() == set()
    assert not node.folder(ALICE).exists()


def test_a_group_is_a_number(node: Node) -> None:
    assert "runs without MPS" in node.run("start", 1, ALICE, SLURM_JOB_GID="root")


def test_a_number_of_a_gpu_is_not_reckoned_out(node: Node, tmp_path: Path) -> None:
    """To bash NAME[$(command)] is a number."""
    for shares in ("14", ""):
        gpu = f"BASH_VERSINFO[$(touch {tmp_path}/seen)]"
        node.run("start", 1, ALICE, gpu, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=shares)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "g1,g2", "-a", "g1 x"])
def test_slurm_is_not_asked_about_a_node_without_a_name(node: Node, name: str) -> None:
    """What it says of another one would have all daemons here taken for nobody's."""
    node.squeue([])
    node.run("start", 1, ALICE)
    assert "serves jobs of uid 85410" in node.run("start", 2, BOB, SLURMD_NODENAME=name)
    assert not (node.root / "asked").exists()
    assert node.jobs(ALICE) == {1}


def test_slurm_is_asked_about_all_states(node: Node) -> None:
    node.run("start", 1, ALICE)
    node.program("squeue", f"env | cut -d= -f1 | sort >{node.root}/asked")
    node.run("start", 2, BOB, SQUEUE_STATES="PENDING", SLURM_CONF="/etc/slurm.conf")
    assert (node.root / "asked").read_text().split() == ["PATH", "PWD", "SLURM_CONF"]


@pytest.mark.parametrize("has_cgroups", [True, False])
def test_a_cgroup_is_a_cgroups_own_file_system(node: Node, has_cgroups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever may write where something is mounted, such as /tmp, had root kill what he lists, or write there."""
    if not has_cgroups:
        hide_cgroups(node, monkeypatch)
    node.run("start", 1, ALICE)
    shared = node.root / "t"
    shared.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "none", shared], check=True)
    victim = begin(85411, "sleep", "60")
    try:
        name = f"colloc-mps-85410-{UUIDS[0]}-{(node.folder(ALICE) / 'unit').stat().st_ino}.scope"
        leaf = shared / "colloc.slice" / name
        forged = f"mkdir -p {leaf}; echo {victim.pid} >{leaf}/cgroup.procs; chmod 666 {leaf}/cgroup.procs"
        assert as_user(85410, forged).returncode == 0
        node.run("start", 2, ALICE)
        node.run("stop", 1, ALICE)
        node.run("stop", 2, ALICE)
        assert node.daemons() == set()
        assert victim.poll() is None
        assert (leaf / "cgroup.procs").read_text() == f"{victim.pid}\n"
    finally:
        victim.kill()
        victim.wait()
        subprocess.run(["umount", "-l", shared], check=True)


def test_only_root_starts_and_stops(node: Node, printed: Printed) -> None:
    done = subprocess.run(
        node.argv("start"),
        env={"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "85410"},
        user=85410,
        group=85410,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=True,
    )
    printed("colloc-mps", done.stderr)
    assert subprocess.run([PROGRAM, "restart"], capture_output=True, check=False).returncode == 2


def test_functions_and_files_of_the_environment_are_not_run(node: Node, tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    evil.write_text(f"touch {tmp_path}/seen\n")
    for name in ("stat", "mkdir", "flock", "setpriv", "timeout"):
        (tmp_path / name).write_text(f"#!/bin/sh\n. {evil}\n")
        (tmp_path / name).chmod(0o755)
    named = {"BASH_ENV": str(evil), "ENV": str(evil), "BASH_FUNC_stat%%": f"() {{ . {evil}; }}"}
    node.run("start", 1, ALICE, PATH=f"{tmp_path}:/usr/bin:/bin", **named)
    assert node.jobs(ALICE) == {1}
    assert not (tmp_path / "seen").exists()


# --- who would keep a GPU from others, or get out of his job ---------------------------------------------------------


def test_who_keeps_filling_his_folder_keeps_nobody_from_the_gpu(node: Node) -> None:
    """A process of another job of his has the folder as its own, and makes files faster than anybody removes them."""
    node.squeue([])
    node.run("start", 1, ALICE)
    node.program("rm", f'echo "$*" >>{node.root}/removed; exec /bin/rm "$@"')
    fill = "import os, sys\nos.chdir(sys.argv[1])\nwhile True:\n for n in range(200): open(f'f{n}', 'w').close()"
    filling = [begin(85410, "python3", "-c", fill, node.folder(ALICE) / "pipe", cwd="/") for _ in range(2)]
    with ended(*filling):
        time.sleep(0.5)
        os.kill(the_daemon(node), signal.SIGKILL)
        assert node.run("start", 3, ALICE) == ""
        assert node.jobs(ALICE) == {1, 3}  # nor the user's own next job
        assert node.run("start", 2, BOB) == ""
        assert node.jobs(BOB) == {2}
        assert not node.folder(ALICE).exists()
        removed = (node.root / "removed").read_text().replace("-rf --one-file-system --", "").split()
        assert [path for path in removed if not path.startswith(f"{node.state}/.gone/")] == []
        gone = (node.state / ".gone").stat()
        assert (gone.st_uid, stat.S_IMODE(gone.st_mode)) == (0, 0o700)
    node.run("stop", 2, BOB)
    assert list((node.state / ".gone").iterdir()) == []  # what was left goes with the next


def test_what_is_mounted_on_his_folder_hides_nothing_of_his(node: Node) -> None:
    """As FUSE lets any user do who owns a folder."""
    node.run("start", 1, ALICE)
    pid, pipe = the_daemon(node), node.folder(ALICE) / "pipe"
    if "/colloc.slice/" not in Path(f"/proc/{pid}/cgroup").read_text():
        pytest.skip("no cgroup can be made here")
    subprocess.run(["mount", "-t", "tmpfs", "none", pipe], check=True)
    try:
        (leaf,) = {line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
                   if "/colloc.slice/" in line}  # fmt: skip
        procs = next(path for path in Path("/sys/fs/cgroup").glob(f"**{leaf}/cgroup.procs"))
        hidden = begin(85410, "setsid", "sleep", "60", env={})
        procs.write_text(str(hidden.pid))
        (pipe / "of another file system").touch()
        node.run("stop", 1, ALICE)
        assert hidden.wait(5) == -signal.SIGKILL
        assert list(node.state.glob(".gone/*/pipe/of another file system"))
        assert node.daemons() == set()
        assert not node.folder(ALICE).exists()
        node.run("start", 2, BOB)
        assert node.jobs(BOB) == {2}
    finally:
        subprocess.run(["umount", "-l", *node.state.glob(".gone/*/pipe"), *node.state.glob("85410-*/pipe")], check=True)


def test_others_with_the_daemons_name_make_nobody_wait(node: Node) -> None:
    """A name is any process's to have: no program is run for one of them."""
    for name in ("dd", "grep", "setpriv", "timeout"):
        node.program(name, f'echo {name} >>{node.root}/ran; PATH=/usr/bin:/bin; exec {name} "$@"')
    crowd = (
        "import ctypes, os, signal, sys\nctypes.CDLL(None).prctl(15, b'nvidia-cuda-mps')\n"
        "for _ in range(30):\n if not os.fork():\n  ctypes.CDLL(None).prctl(1, 9); signal.pause()\n"
        "print('.', flush=True)\nsignal.pause()"
    )
    ran = []
    for there in (False, True):
        others = begin(85411, "python3", "-c", crowd if there else "print('.')", stdout=subprocess.PIPE)
        assert others.stdout is not None
        others.stdout.read(1)
        node.run("start", 1, ALICE)
        node.run("stop", 1, ALICE)
        others.kill()
        others.communicate()
        ran.append(len((node.root / "ran").read_text().split()))
        (node.root / "ran").unlink()
    # One for each of the crowd would be 30 more; how often a daemon is asked until it answers is the machine's.
    assert ran[1] < ran[0] + 30


@pytest.mark.parametrize("planted", ["a fifo", "a daemon that does not answer"])
def test_nothing_runs_as_the_user_outside_of_the_daemons_cgroup(node: Node, planted: str) -> None:
    """Whoever may trace his processes may make anything of one: it must end with the daemon, as all in its cgroup."""
    uid = 2**20 + os.getpid()  # nobody else's, nor that of an earlier run that left a process
    user = uid, uid
    node.run("start", 1, user)
    pid, pipe = the_daemon(node, user), node.folder(user) / "pipe"
    if "/colloc.slice/" not in Path(f"/proc/{pid}/cgroup").read_text():
        pytest.skip("no cgroup can be made here")
    if planted == "a fifo":
        assert as_user(uid, f"cd {pipe}; rm *.pid; mkfifo {mps_control.NAME}.pid").returncode == 0
    else:
        os.kill(pid, signal.SIGSTOP)
    outside = set()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(node.run, "start", 2, user)
        while not running.done():
            for number in filter(str.isdigit, os.listdir("/proc")):
                process = Path("/proc", number)
                try:
                    if (
                        f"Uid:\t{uid}\t" in (process / "status").read_text()
                        and "colloc.slice" not in (process / "cgroup").read_text()
                    ):
                        outside.add((process / "cmdline").read_bytes())
                except OSError:
                    continue
    if planted != "a fifo":
        os.kill(pid, signal.SIGCONT)
    assert outside - {b""} == set()  # one that has ended is in no cgroup, and has no words
