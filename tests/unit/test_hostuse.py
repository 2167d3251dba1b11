# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_colloc.core.usage_model import HostSample
from slurm_colloc.gpu.hostuse import HostUse, Use, grown, parse_figures, parse_mounts
from slurm_colloc.gpu.proc import ProcessTable
from tests.unit import fake_proc

HZ = os.sysconf("SC_CLK_TCK")
PAGES_PER_MIB = 2**20 // os.sysconf("SC_PAGE_SIZE")
V1_STAT = "cache 999\nrss 1\nshmem 1\ntotal_cache 999\ntotal_rss 209715200\ntotal_shmem 1048576\n"


class Node:
    """A /proc of a test's choosing, read again and again by one HostUse."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host_use = HostUse()
        self._table: ProcessTable | None = None

    def read(self, *jobs: str) -> tuple[HostSample, ...]:
        self._table = self._table or ProcessTable(str(self.root))
        self._table.refresh()
        return self.host_use.read(self._table, jobs)

    def mount(self, *lines: str) -> None:
        (self.root / "self").mkdir()
        (self.root / "self" / "mountinfo").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with job 7: slurmstepd 10 and its tasks."""
    fake_proc.stepd(tmp_path, 10, "7")
    return Node(tmp_path)


def test_sum_over_processes(node: Node) -> None:
    fake_proc.add(node.root, 11, 10, cpu_ticks=HZ, reaped_ticks=HZ, resident_pages=PAGES_PER_MIB, read_bytes=500)
    fake_proc.add(node.root, 12, 11, cpu_ticks=5, resident_pages=3 * PAGES_PER_MIB)
    fake_proc.add(node.root, 13, 1, cpu_ticks=77)
    assert node.read("7", "8") == (HostSample("7", None, 4, None, None),)
    fake_proc.add(node.root, 11, 10, cpu_ticks=2 * HZ, reaped_ticks=2 * HZ, read_bytes=500 + 2**20)
    fake_proc.add(node.root, 12, 11, cpu_ticks=5, written_bytes=3 * 2**19)
    assert node.read("7") == (HostSample("7", 2.0, 0, 1.0, 1.5),)
    assert node.read("7") == (HostSample("7", 0.0, 0, 0.0, 0.0),)


def test_a_job_not_asked_for_begins_anew(node: Node) -> None:
    fake_proc.add(node.root, 11, 10, cpu_ticks=HZ)
    node.read("7")
    assert node.read() == ()
    assert node.read("7")[0].cpu_s is None


def test_a_child_that_was_waited_for_counts_once(node: Node) -> None:
    fake_proc.add(node.root, 11, 10)
    fake_proc.add(node.root, 12, 11, cpu_ticks=10 * HZ)
    node.read("7")
    fake_proc.remove(node.root, 12)
    fake_proc.add(node.root, 11, 10, reaped_ticks=12 * HZ)
    assert node.read("7")[0].cpu_s == 2.0


def test_a_step_that_ends_takes_its_use_along(node: Node) -> None:
    fake_proc.add(node.root, 11, 10, cpu_ticks=1 * HZ)
    fake_proc.stepd(node.root, 20, "7", step="0")
    fake_proc.add(node.root, 21, 20, cpu_ticks=100 * HZ)
    node.read("7")
    fake_proc.remove(node.root, 20)
    fake_proc.remove(node.root, 21)
    fake_proc.add(node.root, 11, 10, cpu_ticks=3 * HZ)
    fake_proc.stepd(node.root, 30, "7", step="1")
    fake_proc.add(node.root, 31, 30, cpu_ticks=4 * HZ)
    assert node.read("7")[0].cpu_s == 6.0


def test_a_child_nobody_waited_for_makes_no_negative(node: Node) -> None:
    fake_proc.add(node.root, 11, 10)
    fake_proc.add(node.root, 12, 11, cpu_ticks=10 * HZ, read_bytes=10)
    node.read("7")
    fake_proc.remove(node.root, 12)
    assert node.read("7") == (HostSample("7", None, 0, None, 0.0),)
    assert node.read("7") == (HostSample("7", 0.0, 0, 0.0, 0.0),)


def test_what_may_not_be_read_is_not_known(node: Node) -> None:
    stranger = os.geteuid() + 4321
    fake_proc.add(node.root, 11, 10, uid=stranger)
    fake_proc.add(node.root, 12, 11, uid=stranger, read_bytes=None)
    node.read("7")
    assert node.read("7") == (HostSample("7", 0.0, 0, None, None),)
    # The extern step's own process is root's in everybody's job, and reads nothing.
    fake_proc.add(node.root, 12, 11, uid=0, read_bytes=None)
    node.read("7")
    assert node.read("7") == (HostSample("7", 0.0, 0, 0.0, 0.0),)


def cgroup_v1(node: Node) -> Path:
    for controller in ("cpu,cpuacct", "memory"):
        place = node.root / "cg roup" / controller
        (place / "slurm/uid_5/job_7").mkdir(parents=True)
    where = str(node.root / "cg roup").replace(" ", "\\040")
    node.mount(
        "30 23 0:27 / / rw shared:1 - ext4 /dev/vda rw",
        f"32 31 0:29 /docker/1f {where}/elsewhere rw - cgroup cgroup rw,memory",
        f"33 31 0:29 / {where}/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct",
        f"35 31 0:32 / {where}/memory rw - cgroup cgroup rw,memory",
        f"36 31 0:33 / {where}/blkio rw - cgroup cgroup rw,blkio",
    )
    return node.root / "cg roup"


V1_TASK = "5:memory:/slurm/uid_5/job_7/step_0/task_0\n4:blkio:/\n3:cpu,cpuacct:/slurm/uid_5/job_7/step_0/task_0\n0::/"


def test_cgroup_v1(node: Node) -> None:
    place = cgroup_v1(node)
    usage = place / "cpu,cpuacct/slurm/uid_5/job_7/cpuacct.usage"
    usage.write_text("1500000000\n")
    (place / "memory/slurm/uid_5/job_7/memory.stat").write_text(V1_STAT)
    fake_proc.add(node.root, 11, 10, cgroup=V1_TASK, cpu_ticks=1, resident_pages=1)
    # Ran away from its ancestors, not from its cgroup.
    fake_proc.add(node.root, 12, 1, cgroup=V1_TASK)
    assert node.read("7") == (HostSample("7", None, 201, None, None),)
    usage.write_text("4000000000\n")
    fake_proc.add(node.root, 12, 1, cgroup=V1_TASK, written_bytes=2**20)
    assert node.read("7") == (HostSample("7", 2.5, 201, 0.0, 1.0),)
    usage.write_text("1\n")  # the folder was made anew
    assert node.read("7")[0].cpu_s is None


def test_between_two_sources_there_is_no_difference(node: Node) -> None:
    place = cgroup_v1(node)
    fake_proc.add(node.root, 11, 10, cgroup=V1_TASK, cpu_ticks=HZ)
    node.read("7")
    usage = place / "cpu,cpuacct/slurm/uid_5/job_7/cpuacct.usage"
    usage.write_text("9000000000\n")
    assert node.read("7")[0].cpu_s is None
    usage.write_text("strange\n")
    assert node.read("7")[0].cpu_s is None
    assert node.read("7")[0].cpu_s == 0.0


def test_cgroup_v2_with_sluid(node: Node) -> None:
    scope = "/system.slice/g1_slurmstepd.scope/s8ZSM7ZXQT7800"
    (folder := node.root / f"cgroup{scope}").mkdir(parents=True)
    node.mount(f"30 23 0:27 / {node.root}/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate")
    fake_proc.add(node.root, 10, 1, "slurmstepd", f"0::{scope}/step_0/slurm", "slurmstepd: [7.0]", uid=0)
    fake_proc.add(node.root, 11, 10, cgroup=f"0::{scope}/step_0/user/task_0", resident_pages=9 * PAGES_PER_MIB)
    (folder / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 9\nsystem_usec 9\n")
    assert node.read("7") == (HostSample("7", None, 9, None, None),)
    (folder / "cpu.stat").write_text("usage_usec 1250000\nuser_usec 9\nsystem_usec 9\n")
    (folder / "memory.stat").write_text("anon 1048577\nfile 99999999\nshmem 1048576\n")
    assert node.read("7") == (HostSample("7", 0.25, 3, 0.0, 0.0),)


@pytest.mark.parametrize(
    ("text", "names", "value"),
    [
        ("17\n", ("",), 17),
        ("a 1\nb 2\n", ("a", "b"), 3),
        ("a 1\n", ("a", "b"), None),
        ("", ("",), None),
        ("a -1\nb 1.5\nc\n", ("a",), None),
    ],
)
def test_figures(text: str, names: tuple[str, ...], value: int | None) -> None:
    assert parse_figures(text, names) == value


@given(st.text(max_size=80))
@example("a\r1 2 0:1 / /forged rw - cgroup2 cgroup2 rw\r")
@example("a\v1\v2\v0:1\v/\v/forged\vrw\v-\vcgroup2\vcgroup2\vrw")
def test_a_mount_point_cannot_forge_another(name: str) -> None:
    """The kernel escapes blank, tab, newline and backslash in it, and no more."""
    for plain, escaped in (("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")):
        name = name.replace(plain, escaped)
    text = f"31 23 0:28 / /home/{name}/- cgroup2 rw - fuse x rw\n33 31 0:29 / /cg rw - cgroup2 cgroup2 rw\n"
    assert parse_mounts(text) == {"": "/cg"}


processes = st.dictionaries(st.tuples(st.integers(1, 9), st.integers(1, 2)), st.integers(0, 99))


@given(processes, processes, st.integers(1, 9))
def test_growth_is_never_negative(
    before: dict[tuple[int, int], int], now: dict[tuple[int, int], int], root: int
) -> None:
    def uses(seen: dict[tuple[int, int], int]) -> dict[tuple[int, int] | str, Use]:
        return {key: Use((root, 1), amount) for key, amount in seen.items()}

    change = grown(uses(now), uses(before))
    assert change is None or 0 <= change <= sum(now.values())
