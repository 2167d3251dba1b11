# SPDX-License-Identifier: Apache-2.0
"""The agent as a service manager runs it: a process, started, told to end, killed."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.observe.journal import hours
from tests.unit.golden import Printed
from tests.unit.made import decoded

SITE = """schema = 1
cluster = "c"
slurm_release = "22.05"
[observe]
gpu_reader = "simulated:{folder}"
[paths]
state = "{folder}"
journal = "{folder}/journal"
"""
DEVICES = {"devices": [{"uuid": "GPU-0", "model": "M", "mem_total_mib": 80000, "sm_count": 132, "slices": []}]}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text(SITE.format(folder=tmp_path))
    (tmp_path / "g1.json").write_text(json.dumps(DEVICES))
    return tmp_path


def agent(
    node: Path, *options: str, environment: Mapping[str, str] | None = None, period: str = "0.05"
) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "slurm_colloc.cli.colloc", "agent", "--node", "g1", "--period", period, *options]
    own = {**os.environ, "COLLOC_CONF": str(node / "site.toml"), **(environment or {})}
    return subprocess.Popen(argv, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(node: Path, rounds: int) -> list[NodeSample]:
    deadline = time.monotonic() + 30
    while len(found := journal(node)) < rounds:
        assert time.monotonic() < deadline, "no agent writes"
        time.sleep(0.01)
    return found


def journal(node: Path) -> list[NodeSample]:
    return [seen for hour in hours(str(node / "journal")) for seen in hour]


def test_it_samples_until_told_to_end_and_closes_the_interval(node: Path) -> None:
    process = agent(node, period="600")
    wait_for(node, 1)
    assert "slurm_colloc.cli.sampling" in Path(f"/proc/{process.pid}/cmdline").read_text()
    time.sleep(0.2)
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    first, last = journal(node)
    assert (first.interval_s, last.node) == (0.0, "g1")
    assert last.interval_s == pytest.approx(last.at_s - first.at_s, abs=0.05)
    assert (node / "journal").stat().st_mode & 0o777 == 0o700


def test_it_keeps_nothing_in_memory_that_it_does_not_use(node: Path) -> None:
    process = agent(node)
    wait_for(node, 2)
    mapped = Path(f"/proc/{process.pid}/maps").read_text()
    process.kill()
    process.communicate()
    assert "python" in mapped
    assert not re.search("pandas|duckdb|numpy|pyarrow", mapped)


def test_a_second_one_is_refused_and_names_the_first(node: Path) -> None:
    first = agent(node)
    wait_for(node, 1)
    second = agent(node)
    _, said = second.communicate(timeout=30)
    assert second.returncode == 2
    assert f"process {first.pid} samples node 'g1'" in said
    first.kill()
    first.communicate()
    third = agent(node, "--count", "1")  # the kernel lets the lock go with the process
    assert third.wait(timeout=30) == 0
    third.communicate()


def test_it_tells_the_service_manager_that_it_lives(node: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(node / "notify"))
        manager.settimeout(30)
        process = agent(node, environment={"NOTIFY_SOCKET": str(node / "notify")})
        assert manager.recv(100) == b"READY=1\nWATCHDOG=1"
        process.kill()
        process.communicate()


def test_without_a_site_it_says_what_to_do(tmp_path: Path, printed: Printed) -> None:
    own = {**os.environ, "COLLOC_CONF": "", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "slurm_colloc.cli.colloc", "agent"]
    done = subprocess.run(argv, env=own, capture_output=True, text=True, check=False)
    if os.path.exists("/etc/slurm_colloc/site.toml"):
        pytest.skip("this machine has a site.toml")
    assert done.returncode == 2
    printed("agent", done.stderr)


def killed_again_and_again(node: Path, times: int) -> None:
    """Kill the agent at random instants; nothing that was written may change, nothing may count twice."""
    drawn = random.Random(times)
    began_s, before = time.time(), b""
    for _ in range(times):
        process = agent(node, period="0.2")
        had = len(before)
        deadline = time.monotonic() + 30
        while sum(hour.size_bytes() for hour in hours(str(node / "journal"))) <= had:
            assert time.monotonic() < deadline, "it does not come back"
            time.sleep(0.002)
        time.sleep(drawn.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        content = b"".join(Path(hour.path).read_bytes() for hour in hours(str(node / "journal")))
        assert content.startswith(before)
        before = content
    found = decoded(before)
    assert found.rejected <= times, "more lines were lost than intervals were open"
    times_s = [seen.at_s for seen in found.rounds]
    assert times_s == sorted(set(times_s))
    assert len(times_s) >= times
    for earlier, later in zip(found.rounds, found.rounds[1:], strict=False):
        assert later.at_s - later.interval_s >= earlier.at_s - 0.001, "a moment counted twice"
    assert sum(seen.interval_s for seen in found.rounds) <= time.time() - began_s
    assert sum(seen.interval_s == 0 for seen in found.rounds) == times


def test_killed_it_loses_the_open_interval_only(node: Path) -> None:
    killed_again_and_again(node, 12)


@pytest.mark.soak
def test_killed_a_thousand_times(node: Path) -> None:
    killed_again_and_again(node, 1000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_a_gap_and_no_more(node: Path) -> None:
    disk = node / "journal"
    disk.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode()}")
    try:
        process = agent(node)
        wait_for(node, 2)
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while stream.write(bytes(4096)):
                pass
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("cannot be written" in line or "in part only" in line for line in lines)
        filler.unlink()
        assert any("sampling again" in line for line in lines)
        process.terminate()
        process.communicate(timeout=30)
        (hour,) = hours(str(disk))
        found = decoded(Path(hour.path).read_bytes())
        assert found.rejected <= 1
        gap = max(b.at_s - b.interval_s - a.at_s for a, b in zip(found.rounds, found.rounds[1:], strict=False))
        assert gap > 0
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
