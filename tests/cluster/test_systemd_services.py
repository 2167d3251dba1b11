# SPDX-License-Identifier: Apache-2.0
"""The services under a real systemd, installed by the commands of ORDER.md into a copy of this machine's root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.programs import need_program
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.alone]
SYSTEMD = "/lib/systemd/systemd"
# What it writes goes into memory, and all that it sees of this machine's /run, /tmp and /dev is its own: it removes old
# files at its start. The kernel's settings are everybody's: it must not set them. systemd itself makes /dev for
# PrivateDevices=, and cannot in a root like this one. Here and to a service the folder of a checkout may be hidden, as
# /tmp is: the checkout is seen beneath /opt.
BOOT = f"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1"/up "$1"/work "$1"/root
mount -t overlay overlay -o lowerdir=/,upperdir="$1"/up,workdir="$1"/work "$1"/root
cd "$1"/root
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --rbind /sys sys
mount -o remount,bind,ro sys
see() {{
mkdir -p "$1/$2" "$1/$2.work" "opt/$2"
mount -t overlay overlay -o "lowerdir=$3,upperdir=$1/$2,workdir=$1/$2.work" "opt/$2"
}}
see "$1" checkout "$2"
see "$1" packages "$3"
for folder in run tmp dev var/tmp; do mount -t tmpfs -o mode=755 tmpfs $folder; done
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir dev/pts dev/shm
pivot_root . mnt
umount -l mnt
exec {SYSTEMD} --system --unit=basic.target --log-target=journal --show-status=no </dev/null
"""
CHECKOUT, PREFIX = Path(__file__).resolve().parents[2], "/opt/slurm_colloc"
IS_RUNNING = ("systemctl", "is-system-running")
SITE = """schema = 1
cluster = "c"
slurm_release = "22.05"
[observe]
agent = true
gpu_reader = "simulated:/etc/slurm_colloc/gpus"
period_s = 1.0
[paths]
state = "/shared/slurm_colloc"
journal = "/var/lib/slurm_colloc/journal"
[notices]
mode = "admins"
sender = "hpc@example.org"
admins = ["root@example.org"]
"""
DEVICES = {"devices": [{"uuid": "GPU-0", "model": "M", "mem_total_mib": 81559, "sm_count": 132, "slices": []}]}


class Machine:
    """A systemd that has booted, the first process of its own namespaces."""

    def __init__(self, started: subprocess.Popen[bytes]) -> None:
        self.started = started

    def pid(self) -> int:
        """Return the process number of systemd, as this machine sees it; 0 before it is there."""
        children = Path(f"/proc/{self.started.pid}/task/{self.started.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command there, and return what it prints."""
        enter = ["nsenter", f"--target={self.pid()}", "--mount", "--uts", "--ipc", "--pid", "--wd=/", "env", "-i"]
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run([*enter, path, *argv], capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file there."""
        self.run("sh", "-c", 'mkdir -p "${1%/*}" && printf %s "$2" >"$1"', "sh", path, text)

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).strip()


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    need_program(SYSTEMD)
    if os.geteuid() != 0:
        pytest.skip("only root can boot it")
    folder = tmp_path_factory.mktemp("root")
    argv = ["unshare", "--fork", "--pid", "--mount", "--uts", "--ipc", "--kill-child", "sh", "-c", BOOT, "sh"]
    started = subprocess.Popen(
        [*argv, folder, CHECKOUT, sysconfig.get_path("purelib")],
        env={"PATH": os.environ["PATH"], "container": "docker"},
        stdin=subprocess.DEVNULL,
    )
    booted = Machine(started)
    try:
        wait_for(lambda: booted.pid() and "running" in booted.run(*IS_RUNNING, check=False), "it does not boot")
        yield booted
    finally:
        started.kill()
        started.wait()


def test_what_order_md_says_installs_services_that_run_without_any_right(machine: Machine) -> None:
    python = Path(sys.executable).resolve()
    machine.run(str(python), "-m", "venv", "--without-pip", PREFIX)
    machine.write(f"{PREFIX}/lib/{python.name}/site-packages/tested.pth", "/opt/checkout\n/opt/packages\n")
    program = f"#!{PREFIX}/bin/python\nfrom slurm_colloc.cli.colloc import main\n\nmain()\n"
    machine.write(f"{PREFIX}/bin/colloc", program)
    # It may lie where only root may look; in this copy of the root everybody may.
    machine.run("chmod", "a+rx", *map(str, python.parents), "/opt/checkout", "/opt/packages", f"{PREFIX}/bin/colloc")
    machine.write("/etc/slurm_colloc/site.toml", SITE)
    machine.write(f"/etc/slurm_colloc/gpus/{os.uname().nodename.partition('.')[0]}.json", json.dumps(DEVICES))
    machine.run("install", "-d", "-m", "0755", "/shared")
    machine.run(f"{PREFIX}/bin/colloc", "site", "render", "-o", "/root/files", "--prefix", PREFIX)
    safe = machine.run("cat", "/root/files/ORDER.md").partition("\n## ")[2].partition("\n## ")[0]
    for name in ("flush", "compact", "audit", "audit-jobs"):
        machine.write(f"/etc/systemd/system/colloc-{name}.service.d/test.conf", "[Service]\nPrivateDevices=no\n")
    machine.write("/etc/systemd/system/colloc-agent.service.d/test.conf", "[Service]\nWatchdogSec=5\nRestartSec=1\n")
    for block in safe.split("\n```\n")[1::2]:
        machine.run("sh", "-ec", f"cd /root/files\n{block}")

    # Type=notify: it is active once it has said that it samples.
    assert machine.show("colloc-agent", "ActiveState") == "active"
    status = machine.run("cat", f"/proc/{machine.show('colloc-agent', 'MainPID')}/status")
    rights = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    nothing = "0000000000000000"
    assert (rights["CapEff"], rights["CapBnd"], rights["NoNewPrivs"], rights["Seccomp"]) == (nothing, nothing, "1", "2")
    assert rights["Uid"].split() == [machine.run("id", "-u", "colloc").strip()] * 4
    wait_for(
        lambda: machine.run("find", "/var/lib/slurm_colloc/journal", "-type", "f", "-size", "+0"),
        "it writes no samples",
    )

    for name in ("flush", "compact"):
        machine.run("systemctl", "start", f"colloc-{name}.service")
    # A store into which nothing came is said, and is no success.
    machine.run("systemctl", "start", "colloc-audit.service", check=False)
    assert machine.show("colloc-audit", "ExecMainStatus") == "2"
    timers = machine.run("systemctl", "list-timers", "--all", "--no-legend", "colloc-*")
    assert {line.split()[-1] for line in timers.splitlines()} == {
        f"colloc-{name}.service" for name in ("audit", "audit-jobs", "compact", "flush")
    }

    hung = machine.show("colloc-agent", "MainPID")
    machine.run("kill", f"-{signal.SIGSTOP.value}", hung)
    wait_for(lambda: machine.show("colloc-agent", "NRestarts") == "1", "its watchdog does nothing")
    wait_for(lambda: machine.show("colloc-agent", "ActiveState") == "active", "it is not started again")
    machine.run("systemctl", "stop", "colloc-agent")
    assert machine.show("colloc-agent", "Result") == "success"
