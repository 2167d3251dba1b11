# SPDX-License-Identifier: Apache-2.0
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_colloc.gpu import proc
from slurm_colloc.gpu.proc import ProcessTable, Stat, parse_cgroup_folders, parse_cgroup_job, parse_stat
from tests.unit import fake_proc

RECORDINGS = Path(__file__).parents[1] / "recorded"


@pytest.mark.parametrize("name", ["python", "a b", "a) R 9 (b", "((", "x\ny", ") S 1", ""])
def test_a_line_of_stat_whatever_the_name(name: str) -> None:
    text = f"42 ({name}) S 7 {'0 ' * 9}1 20 300 4000 {'0 ' * 4}12345 0 0\n".encode()
    assert parse_stat(text) == Stat(42, 7, 12345, name, ended=False, cpu_ticks=4321)
    assert parse_stat(text.replace(b") S 7", b") Z 7")) == Stat(42, 7, 12345, name, ended=True, cpu_ticks=4321)
    assert parse_stat(text[:30]) is None


@pytest.mark.parametrize(
    ("line", "job"),
    [
        # v1, one slurmd for each host and several
        ("4:devices:/slurm/uid_1000/job_55/step_0/task_0", "55"),
        ("4:devices:/slurm_node1/uid_1000/job_55/step_batch", "55"),
        ("4:memory:/slurm/uid_1000/job_55", "55"),
        # v2
        ("0::/system.slice/slurmstepd.scope/job_55/step_0/user/task_0", "55"),
        ("0::/system.slice/node1_slurmstepd.scope/job_55/step_extern/user/task_special", "55"),
        ("0::/other.slice/node1_slurmstepd.scope/job_55/step_batch/user", "55"),
        ("0::/kubepods.slice/cri-containerd-1f.scope/system.slice/slurmstepd.scope/job_55/step_0", "55"),
        # v2 from 26.05: a SLUID
        ("0::/system.slice/slurmstepd.scope/s0123456789ABC/step_0/user/task_0", "s0123456789ABC"),
        ("0::/system.slice/slurmstepd.scope/s012345678IABC/step_0/user/task_0", None),
        # no job
        ("0::/user.slice/user-1000.slice/session-1.scope", None),
        ("0::/system.slice/slurmd.service", None),
        ("0::/system.slice/slurmstepd.scope/system", None),
        ("0::/system.slice/slurmstepd.scope/job_x/step_0", None),
        ("0::/job_55", None),
        # folders that a user may name
        ("0::/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_99", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_99/step_0", None),
        ("0::/system.slice/slurmstepd.scope/job_55/step_0/user/task_0/slurmstepd.scope/job_99/x", "55"),
        ("4:devices:/slurm/uid_1000/job_55/step_0/job_99/x", "55"),
        ("0::/kubepods.slice/cri-1f.scope/user.slice/user-7.slice/slurmstepd.scope/job_99", None),
        ("0::/user.slice/x\r0::/slurm/uid_0/job_99/step_0", None),
        ("0::/user.slice/x\x0b0::/slurm/uid_0/job_99/step_0", None),
        ("0::/user.slice/x\u20280::/slurm/uid_0/job_99/step_0", None),
        ("0::/user.slice/x:0::/slurm/uid_0/job_99/step_0", None),
        ("0::/system.slice/cron.service/job_99/x", None),
        # containers: docker's and rootful podman's are children of a service, apptainer's processes stay in the job
        ("0::/system.slice/docker-0123456789abcdef.scope", None),
        ("4:devices:/docker/0123456789abcdef", None),
        ("0::/machine.slice/libpod-0123456789abcdef.scope/container", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-0123456789abcdef.scope", None),
        ("0::/system.slice/slurmstepd.scope/job_55/step_0/user/task_0/apptainer-4711", "55"),
        # seen from another cgroup namespace
        ("0::/../../job_55/step_0/user/task_0", None),
        ("0::/system.slice/slurmstepd.scope/job_55_99/x", None),
    ],
)
def test_cgroup(line: str, job: str | None) -> None:
    assert parse_cgroup_job(f"12:pids:/\n{line}\n1:name=systemd:/user.slice\n") == job


RECORDED = [
    ("slurm-22.05/cgroup", "1", {"freezer": "/slurm_g1/uid_66000/job_1"}),
    ("slurm-24.11/cgroup", "1", {"": "/system.slice/g1_slurmstepd.scope/job_1"}),
    ("slurm-26.05/cgroup", "s8ZSM7ZXQT7800", {"": "/system.slice/g1_slurmstepd.scope/s8ZSM7ZXQT7800"}),
    ("slurm-26.05/cgroup-v1", "1", {"freezer": "/slurm_g1/uid_66000/job_1"}),
]


@pytest.mark.parametrize(("folder", "job", "least"), RECORDED)
def test_recorded_cgroups(folder: str, job: str, least: dict[str, str]) -> None:
    """Real slurmstepds, what they started, and the process that stands for the extern step where there is one."""
    texts = [path.read_text() for path in (RECORDINGS / folder).glob("*.txt")]
    assert len(texts) >= 5
    for text in texts:
        assert parse_cgroup_job(text) == job
        found = parse_cgroup_folders(text)
        assert found.items() >= least.items()
        assert set(found.values()) == set(least.values())


@pytest.mark.parametrize("kind", ["batch-task", "step-task"])
@pytest.mark.parametrize("folder", ["slurm-22.05/cgroup", "slurm-26.05/cgroup-v1"])
def test_recorded_v1_tasks_have_the_controllers_of_host_use(folder: str, kind: str) -> None:
    text = (RECORDINGS / folder / f"{kind}.txt").read_text()
    assert parse_cgroup_folders(text).keys() >= {"memory", "cpuacct"}


def test_job_by_cgroup_and_by_ancestor(tmp_path: Path) -> None:
    fake_proc.stepd(tmp_path, 10, "7")
    fake_proc.add(tmp_path, 11, 10, "bash")
    fake_proc.add(tmp_path, 12, 11, "py (v) 3")
    fake_proc.add(tmp_path, 13, 1, cgroup="0::/system.slice/slurmstepd.scope/job_8/step_0/user/task_0")
    fake_proc.add(tmp_path, 14, 1)
    table = ProcessTable(str(tmp_path))
    assert [table.job_of_pid(pid) for pid in (11, 12, 13, 14, 10, 99)] == ["7", "7", "8", "", "7", ""]
    assert sorted(table.pids()) == [10, 11, 12, 13, 14]
    assert table.status(12) == Stat(12, 11, 777, "py (v) 3", ended=False, cpu_ticks=0)
    assert table.status(99) is None


def test_the_kernel_is_believed_before_the_ancestors(tmp_path: Path) -> None:
    fake_proc.stepd(tmp_path, 10, "7")
    fake_proc.add(tmp_path, 11, 10, cgroup="4:devices:/slurm/uid_1/job_8/step_0")
    assert ProcessTable(str(tmp_path)).job_of_pid(11) == "8"


def test_forged_slurmstepd(tmp_path: Path) -> None:
    """A user's program by that name, with that command line: whoever owns its /proc folder, its real uid tells."""
    stranger = os.geteuid() + 4321
    fake_proc.stepd(tmp_path, 20, "99", uid=stranger)
    fake_proc.add(tmp_path, 21, 20, uid=stranger)
    fake_proc.add(tmp_path, 30, 1, "slurmstepd", cmdline="bash slurmstepd: [98.0]", uid=0)
    fake_proc.add(tmp_path, 31, 30)
    fake_proc.add(tmp_path, 40, 1, "not-stepd", cmdline="slurmstepd: [97.0]", uid=0)
    fake_proc.add(tmp_path, 41, 40)
    # sudo, which waits for a password as root, called through a link by a user's choice of name and arguments
    fake_proc.add(tmp_path, 50, 1, "slurmstepd", cmdline="slurmstepd: [96.0]\0true", uid=0)
    fake_proc.add(tmp_path, 51, 50)
    table = ProcessTable(str(tmp_path))
    assert [table.job_of_pid(pid) for pid in (21, 31, 41, 51)] == ["", "", "", ""]
    assert table.jobs() == set()


def test_the_title_of_slurmstepd_may_end_in_zeros(tmp_path: Path) -> None:
    fake_proc.add(tmp_path, 10, 1, "slurmstepd", cmdline="slurmstepd: [7.batch]\0\0\0", uid=0)
    assert ProcessTable(str(tmp_path)).jobs() == {"7"}


def test_own_slurmstepd_on_a_cluster_without_root(tmp_path: Path) -> None:
    fake_proc.stepd(tmp_path, 20, "5", uid=os.geteuid(), step="0")
    fake_proc.add(tmp_path, 21, 20)
    assert ProcessTable(str(tmp_path)).job_of_pid(21) == "5"


SCOPE = "0::/system.slice/g1_slurmstepd.scope"


def test_sluid_by_its_slurmstepd(tmp_path: Path) -> None:
    """From 26.05 on the path has the job's SLUID; its own slurmstepd says which job that is, and nobody else."""
    stranger = os.geteuid() + 4321
    fake_proc.add(tmp_path, 10, 1, "slurmstepd", f"{SCOPE}/s8ZSM7ZXQT7800/step_0/slurm", "slurmstepd: [7.0]", uid=0)
    fake_proc.add(tmp_path, 11, 1, cgroup=f"{SCOPE}/s8ZSM7ZXQT7800/step_0/user/task_0")
    fake_proc.add(tmp_path, 12, 1, cgroup=f"{SCOPE}/s8ZSM7ZXQTAJ00/step_0/user/task_0")
    user = f"{SCOPE}/s8ZSM7ZXQTDB00/step_0/user/task_0"
    fake_proc.add(tmp_path, 13, 1, "slurmstepd", user, "slurmstepd: [8.0]", uid=stranger)
    fake_proc.add(tmp_path, 14, 1, cgroup=user)
    table = ProcessTable(str(tmp_path))
    assert [table.job_of_pid(pid) for pid in (11, 12, 13, 14)] == ["7", "", "", ""]
    assert table.members() == {"7": [11]}


def test_members(tmp_path: Path) -> None:
    fake_proc.stepd(tmp_path, 10, "7")
    fake_proc.add(tmp_path, 11, 10, "bash")
    fake_proc.add(tmp_path, 12, 11)
    fake_proc.stepd(tmp_path, 20, "7", step="0")
    fake_proc.add(tmp_path, 21, 20)
    fake_proc.add(tmp_path, 30, 1, "ran-away", cgroup="4:devices:/slurm/uid_1/job_8/step_0")
    fake_proc.add(tmp_path, 31, 30, "sshd", cgroup="4:devices:/slurm/uid_1/job_7/step_extern")
    fake_proc.add(tmp_path, 40, 41)
    fake_proc.add(tmp_path, 41, 40)
    fake_proc.add(tmp_path, 50, 1)
    table = ProcessTable(str(tmp_path))
    assert {job: sorted(pids) for job, pids in table.members().items()} == {"7": [11, 12, 21, 31], "8": [30]}
    fake_proc.remove(tmp_path, 11)
    fake_proc.add(tmp_path, 51, 21)
    table.refresh()
    # 12 was adopted by init and shows nothing more of its job; what is known of it is looked at anew in a minute.
    assert sorted(table.members()["7"]) == [21, 31, 51]


def test_gone_in_between(tmp_path: Path) -> None:
    fake_proc.stepd(tmp_path, 10, "7")
    fake_proc.add(tmp_path, 11, 10)
    fake_proc.add(tmp_path, 12, 1)
    table = ProcessTable(str(tmp_path))
    shutil.rmtree(tmp_path / "10")
    shutil.rmtree(tmp_path / "12")
    assert table.job_of_pid(12) == ""
    table.refresh()
    assert table.job_of_pid(11) == ""
    assert table.jobs() == set()


def test_circle_of_parents_ends(tmp_path: Path) -> None:
    fake_proc.add(tmp_path, 5, 6)
    fake_proc.add(tmp_path, 6, 5)
    assert ProcessTable(str(tmp_path)).job_of_pid(5) == ""


def test_empty_stat_is_no_process(tmp_path: Path) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "stat").touch()
    (tmp_path / "self").mkdir()
    assert ProcessTable(str(tmp_path)).pids() == ()


def test_jobs(tmp_path: Path) -> None:
    """A step with tasks, and an allocation that runs nothing: its extern step is there."""
    fake_proc.stepd(tmp_path, 10, "7")
    fake_proc.add(tmp_path, 11, 10)
    fake_proc.stepd(tmp_path, 20, "8", step="extern")
    assert ProcessTable(str(tmp_path)).jobs() == {"7", "8"}


def test_this_machine() -> None:
    table = ProcessTable()
    own = table.status(os.getpid())
    assert own is not None
    assert own.parent == os.getppid()


class Counted(ProcessTable):
    """A table that notes what it reads, and how much."""

    def __init__(self, root: Path) -> None:
        self.files: list[tuple[int | str, str]] = []
        self.read_bytes = 0
        super().__init__(str(root))

    def read(self, pid: int | str, name: str) -> bytes:
        self.files.append((pid, name))
        content = super().read(pid, name)
        self.read_bytes += len(content)
        return content

    def again(self) -> list[tuple[int | str, str]]:
        self.files.clear()
        self.refresh()
        return self.files


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(proc, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


CGROUP = "0::/system.slice/slurmstepd.scope/job_{job}/step_batch/{who}"


def job(root: Path, pid: int, number: str) -> None:
    """Add a slurmstepd in its cgroup, and a task."""
    own = CGROUP.format(job=number, who="slurm")
    fake_proc.add(root, pid, 1, "slurmstepd", own, f"slurmstepd: [{number}.batch]", uid=0, start_ticks=pid)
    task = CGROUP.format(job=number, who="user/task_0")
    fake_proc.add(root, pid + 1, pid, "bash", task, start_ticks=pid)


def test_what_is_known_is_not_read_again(tmp_path: Path, ticking: SimpleNamespace) -> None:
    job(tmp_path, 10, "7")
    fake_proc.add(tmp_path, 30)
    table = Counted(tmp_path)
    assert table.jobs() == {"7"}
    assert table.again() == []
    ticking.now_s = 60.0
    assert sorted(table.again()) == [(10, "stat"), (11, "stat"), (30, "stat")], "it may have become another program"
    fake_proc.add(tmp_path, 40)
    assert table.again() == [(40, "stat")]
    ticking.now_s = 120.0
    assert table.again() == [(40, "stat")]
    ticking.now_s = 180.0
    assert table.again() == []
    for minute in range(4, 10):
        ticking.now_s = minute * 60.0
        assert table.again() == []
    ticking.now_s = 600.0
    assert len(table.again()) == 4
    assert table.jobs() == {"7"}


def test_false_slurmstepds_are_looked_at_once(tmp_path: Path, ticking: SimpleNamespace) -> None:
    """However many and long they are: of each its user is read, once, and of what it says nothing."""
    job(tmp_path, 10, "7")
    stranger = os.geteuid() + 4321
    for pid in range(100, 150):
        fake_proc.add(tmp_path, pid, 1, "slurmstepd", cmdline=f"slurmstepd: [{pid}.0]" + "x" * 100_000, uid=stranger)
    table = Counted(tmp_path)
    assert table.read_bytes < 52 * 1000
    assert {name for pid, name in table.files if pid != 10} == {"stat", "uid_map", "status"}
    assert table.again() == []
    ticking.now_s = 60.0
    assert {files.count(file) for files in [table.again()] for file in files} == {1}
    assert table.again() == []


def test_a_title_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    fake_proc.add(tmp_path, 10, 1, "slurmstepd", cmdline="slurmstepd: [7.batch]" + "x" * 5_000_000, uid=0)
    table = Counted(tmp_path)
    assert table.jobs() == set()
    assert table.read_bytes < 2000


@pytest.mark.parametrize("name", ["stat", "status", "cgroup", "cmdline", "io", "statm", "environ", "uid_map"])
def test_no_file_is_read_whole_however_long(tmp_path: Path, name: str) -> None:
    fake_proc.add(tmp_path, 5)
    (tmp_path / "5" / name).write_bytes(b"x" * 5_000_000)
    assert len(ProcessTable(str(tmp_path)).read(5, name)) <= 2**20


def test_in_another_user_namespace_a_process_is_nobodys(tmp_path: Path) -> None:
    """The kernel would write its 65,536 groups for each look at its status."""
    (tmp_path / "self").mkdir()
    fake_proc.stepd(tmp_path, 10, "7")
    fake_proc.stepd(tmp_path, 20, "8")
    for pid, first in (("self", 0), ("10", 0), ("20", 100000)):
        (tmp_path / pid / "uid_map").write_text(f"0 {first} 4294967295\n")
    table = Counted(tmp_path)
    assert (table.jobs(), table.owner(10), table.owner(20), table.owner(99)) == ({"7"}, 0, -1, None)
    assert (20, "status") not in table.files


def test_a_long_line_of_ancestors_is_not_read_again(tmp_path: Path) -> None:
    fake_proc.stepd(tmp_path, 10, "7")
    for pid in range(11, 200):
        fake_proc.add(tmp_path, pid, pid - 1)
    table = Counted(tmp_path)
    table.files.clear()
    assert table.job_of_pid(199) == "7"
    assert table.files == [(199, "cgroup"), (199, "stat")]


def test_a_pid_that_came_round_is_no_slurmstepd(tmp_path: Path) -> None:
    job(tmp_path, 10, "7")
    table = ProcessTable(str(tmp_path))
    fake_proc.add(tmp_path, 10, 1, "slurmstepd", cmdline="slurmstepd: [7.batch]", uid=1000, start_ticks=5000)
    table.refresh()
    assert table.jobs() == ({"7"} if os.geteuid() == 1000 else set())


def test_a_child_of_slurmstepd_becomes_the_users_program(tmp_path: Path) -> None:
    job(tmp_path, 10, "7")
    fake_proc.add(tmp_path, 12, 10, "slurmstepd", cmdline="slurmstepd: [7.batch]", uid=0, start_ticks=12)
    table = ProcessTable(str(tmp_path))
    # Beneath slurmstepd it is a task that has not begun; under a name of its user's choice it is the user's.
    assert table.members() == {"7": [11]}
    fake_proc.add(tmp_path, 12, 10, "slurmstepd", cmdline="slurmstepd: [8.batch]", uid=os.geteuid() + 1, start_ticks=12)
    fake_proc.add(tmp_path, 13, 12, "python", start_ticks=13)
    table.refresh()
    assert table.jobs() == {"7"}
    assert table.members() == {"7": [11, 12, 13]}


def test_a_child_whose_parent_ended_has_another(tmp_path: Path) -> None:
    fake_proc.add(tmp_path, 20, 1)
    fake_proc.add(tmp_path, 21, 20)
    table = ProcessTable(str(tmp_path))
    fake_proc.remove(tmp_path, 20)
    fake_proc.add(tmp_path, 21, 1)
    table.refresh()
    assert table.known(21) == Stat(21, 1, 777, "python", ended=False, cpu_ticks=0)


def test_a_slurmstepd_gets_its_cgroup_later(tmp_path: Path) -> None:
    sluid = "sDXKZ0S3GYRT00"
    folder = f"0::/system.slice/slurmstepd.scope/{sluid}/step_batch"
    fake_proc.stepd(tmp_path, 10, "7")
    fake_proc.add(tmp_path, 11, 1, cgroup=f"{folder}/user/task_0")
    table = ProcessTable(str(tmp_path))
    assert table.job_of_pid(11) == ""
    fake_proc.add(tmp_path, 10, 1, "slurmstepd", f"{folder}/slurm", "slurmstepd: [7.batch]", uid=0)
    table.refresh()
    assert table.job_of_pid(11) == "7"
