# SPDX-License-Identifier: Apache-2.0
"""Record what the real MPS does: `python -m tests.gpu.mps FOLDER [PART...]`.

Needs an NVIDIA GPU nobody else uses, and PyTorch. Changes no setting of the card, ends what it starts, and takes less
than six minutes. Writes FOLDER/mps.json, after each part what is known so far, and prints a line for each part.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.core.model import Load
from slurm_colloc.pack.mps_clients import computing, with_gpu_open
from slurm_colloc.pack.mps_daemon import CONTROL, Mps, short_folder
from tests.gpu.loads import PROGRAMS

# No part begins after this; each is far shorter than what is left then.
LAST_START_S = 280.0
CLIENT_STARTS_S, ENDS_S, RATE_S = 60.0, 15.0, 4.0
BEGAN_S = time.monotonic()

# What a client sees; it holds its context until told to end.
PROBE = """
import json, os, sys, time, torch
seen = {}
try:
    seen["count"] = torch.cuda.device_count()
    x = torch.zeros(2**20, device="cuda"); torch.cuda.synchronize()
    p = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    seen |= {"sms": p.multi_processor_count, "uuid": str(getattr(p, "uuid", "")), "total_mib": p.total_memory >> 20,
             "free_mib": free >> 20, "info_total_mib": total >> 20}
except Exception as error:
    seen["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(seen), flush=True)
sys.stdin.readline()
"""
GREEDY = """
import torch
held = []
while True:
    held.append(torch.zeros(2**26, dtype=torch.uint8, device="cuda")); torch.cuda.synchronize()
    print(len(held) * 64, flush=True)
"""
PTX = (
    ".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry bad()\\n{\\n.reg .b64 %rd1;\\n.reg .b32 %r1;\\n"
    "mov.u64 %rd1, 16;\\nmov.u32 %r1, 1;\\nst.global.u32 [%rd1], %r1;\\nret;\\n}\\n"
)
ILLEGAL = f"""
import ctypes, torch
torch.zeros(1, device="cuda"); torch.cuda.synchronize()
cuda, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
print("load", cuda.cuModuleLoadData(ctypes.byref(module), b"{PTX}"), flush=True)
print("get", cuda.cuModuleGetFunction(ctypes.byref(function), module, b"bad"), flush=True)
print("launch", cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None), flush=True)
torch.cuda.synchronize()
"""
ASSERTS = """
import torch
x = torch.zeros(10, device="cuda"); i = torch.tensor([10**6], device="cuda")
print(x[i].cpu())
"""


class Client:
    """A process that uses the GPU, its output in a file and its steps, if it counts them, in another."""

    def __init__(
        self, folder: Path, name: str, code: str, environment: Mapping[str, str], become: Sequence[str] = ()
    ) -> None:
        """Start it; ``become`` makes a command another user's."""
        self.name, self.steps, self.output = name, folder / f"{name}.steps", folder / f"{name}.out"
        self.steps.write_bytes(bytes(8))
        self.steps.chmod(0o666)
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                [*become, sys.executable, "-c", code],
                env={**environment, "STEPS": str(self.steps)},
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
            )

    def done(self) -> int:
        """Return how many steps it has done."""
        return int.from_bytes(self.steps.read_bytes(), "little")

    def said(self) -> str:
        """Return the end of what it printed."""
        return self.output.read_text(errors="replace")[-2500:]

    def told(self, timeout_s: float = CLIENT_STARTS_S) -> bool:
        """Wait for its first line, its fifth step, or its end."""
        return until(
            lambda: self.process.poll() is not None or self.done() > 5 or "\n" in self.said(),
            timeout_s,
        )

    def end(self, timeout_s: float = ENDS_S) -> dict[str, Any]:
        """Wait for its end by itself; return how it ended."""
        began = time.monotonic()
        ended = until(lambda: self.process.poll() is not None, timeout_s)
        return {
            "name": self.name,
            "pid": self.process.pid,
            "ended": ended,
            "status": self.process.poll(),
            "after_s": round(time.monotonic() - began, 2),
            "said": self.said(),
        }


def until(done: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for something; tell whether it came."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def ask(pipes: str, text: str, timeout_s: float = 25.0, *, extra: Sequence[str] = ()) -> dict[str, Any]:
    """Give commands to the real control program; return its words verbatim, its status and the time it took."""
    own = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipes}
    began = time.monotonic()
    try:
        done = subprocess.run(
            [CONTROL, *extra], input=text, capture_output=True, text=True, env=own, timeout=timeout_s, check=False
        )
        answer: dict[str, Any] = {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    except (subprocess.TimeoutExpired, OSError) as error:
        answer = {"error": repr(error)}
    return {"asked": text, "extra": list(extra), **answer, "took_s": round(time.monotonic() - began, 3)}


def listing(folder: str) -> list[str]:
    """Return what is in a folder, as ls -l would say it."""
    with contextlib.suppress(OSError):
        return [
            f"{stat.filemode(path.lstat().st_mode)} {path.lstat().st_uid} {path.lstat().st_size} {path.name}"
            for path in [Path(folder), *sorted(Path(folder).iterdir())]
        ]
    return []


def logs(folder: str) -> dict[str, str]:
    """Return the ends of the logs in a folder."""
    with contextlib.suppress(OSError):
        return {path.name: path.read_text(errors="replace")[-15000:] for path in sorted(Path(folder).iterdir())}
    return {}


def process(pid: int) -> dict[str, Any]:
    """Return what /proc says of a process."""
    base, found = Path(f"/proc/{pid}"), dict[str, Any]()
    with contextlib.suppress(OSError):
        found["comm"] = (base / "comm").read_text().strip()
        found["cmdline"] = (base / "cmdline").read_bytes().decode().split("\0")
        found["stat"] = (base / "stat").read_text().rpartition(")")[2].split()[:5]
        found["environ"] = [e for e in (base / "environ").read_bytes().decode().split("\0") if e.startswith("CUDA")]
        found["open"] = {n: os.readlink(base / "fd" / n) for n in sorted(os.listdir(base / "fd"), key=int)[:40]}
    return found


def numbers(answer: Mapping[str, Any]) -> list[int]:
    """Return the numbers in an answer."""
    return [int(word) for word in str(answer.get("stdout", "")).split() if word.isdigit()]


def state(pipes: str) -> dict[str, Any]:
    """Return everything that a daemon tells of itself."""
    servers = ask(pipes, "get_server_list\n")
    found = {"servers": servers, "ps": ask(pipes, "ps\n")}
    for server in numbers(servers):
        for command in ("get_client_list", "get_server_status", "get_active_thread_percentage"):
            found[f"{command} {server}"] = ask(pipes, f"{command} {server}\n")
    return found


def rates(clients: Sequence[Client], duration_s: float = RATE_S) -> dict[str, float]:
    """Return the steps per second of each client now."""
    before, began = [one.done() for one in clients], time.monotonic()
    time.sleep(duration_s)
    took = time.monotonic() - began
    return {one.name: round((one.done() - was) / took, 1) for one, was in zip(clients, before, strict=True)}


class Bench:
    """One part's folder, daemons and clients: all gone when it ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
        self.uuid = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", "-i", "0"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        self.clients: list[Client] = []
        self.daemons: list[Mps] = []
        self.own = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        self.found: dict[str, Any] = {}

    def mps(self) -> Mps:
        """Start a daemon as a pack does."""
        daemon = Mps.start(short_folder("1", self.own), self.uuid, self.own)
        self.daemons.append(daemon)
        return daemon

    def under(self, daemon: Mps, memory_mib: int = 8000, **more: str | None) -> dict[str, str]:
        """Return a client's environment; None takes a variable out."""
        own = {**self.own, **daemon.environment(Load(memory_mib, 20.0), {})}
        for name, value in more.items():
            own.pop(name, None)
            if value is not None:
                own[name] = value
        return own

    def client(self, name: str, code: str, environment: Mapping[str, str]) -> Client:
        """Start a client."""
        self.clients.append(Client(self.folder, name, PROGRAMS.get(code, code), environment))
        return self.clients[-1]

    def close(self) -> None:
        """End everything."""
        for one in self.clients:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
        for daemon in self.daemons:
            daemon.quit()
        shutil.rmtree(self.folder, ignore_errors=True)


def silent(bench: Bench) -> None:
    """What the control program answers where no daemon is."""
    empty = bench.folder / "empty"
    empty.mkdir()
    for name, pipes in (("empty folder", str(empty)), ("no folder", "/nonexistent/pipe")):
        for command in ("get_server_list\n", "quit\n"):
            bench.found[f"{name}: {command.strip()}"] = ask(pipes, command)
    for option in ("-v", "--version", "-h"):
        bench.found[option] = ask(str(empty), "", extra=[option])
    bench.found["which"] = shutil.which(CONTROL)
    bench.found["no folder: -d"] = ask(str(bench.folder / "missing"), "", extra=["-d"])
    bench.found["no folder: listing"] = listing(str(bench.folder / "missing"))
    bench.found["no folder: quit"] = ask(str(bench.folder / "missing"), "quit\n")


COMMANDS = (
    "get_server_list",
    "get_client_list 1",
    "get_server_status 1",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 50",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 100",
    "set_default_device_pinned_mem_limit 0 4G",
    "get_default_device_pinned_mem_limit 0",
    "get_device_client_list",
    "terminate_client 1 2",
    "ps",
    "lspart",
    "help",
    "nonsense",
    "",
)


def idle(bench: Bench) -> None:
    """A daemon started by hand with its output in pipes: what it leaves, and what it answers without clients."""
    pipes, log = bench.folder / "pipe", bench.folder / "log"
    pipes.mkdir(mode=0o700)
    log.mkdir(mode=0o700)
    os.environ["CUDA_MPS_LOG_DIRECTORY"] = str(log)
    os.environ["CUDA_VISIBLE_DEVICES"] = bench.uuid
    try:
        bench.found["start"] = ask(str(pipes), "", 15.0, extra=["-d"])
        bench.found["pid file when -d returned"] = (pipes / f"{CONTROL}.pid").exists()
        began = time.monotonic()
        bench.found["pid file came"] = until((pipes / f"{CONTROL}.pid").exists, 10.0)
        bench.found["pid file after_s"] = round(time.monotonic() - began, 3)
        bench.found["pid file"] = (pipes / f"{CONTROL}.pid").read_text()
        daemon = int(bench.found["pid file"])
        bench.found["own session"] = os.getsid(0)
        bench.found["daemon"] = process(daemon)
        bench.found["listing"] = listing(str(pipes))
        bench.found["second start"] = ask(str(pipes), "", 15.0, extra=["-d"])
        for command in COMMANDS:
            bench.found[f"answer: {command}"] = ask(str(pipes), f"{command}\n")
        bench.found["two at once"] = ask(
            str(pipes), "get_default_active_thread_percentage\nget_default_active_thread_percentage\n"
        )
        bench.found["no newline"] = ask(str(pipes), "get_default_active_thread_percentage")
        bench.found["quit"] = ask(str(pipes), "quit\n")
        bench.found["daemon gone after_s"] = gone_after_s(daemon)
        bench.found["listing after quit"] = listing(str(pipes))
        bench.found["logs"] = logs(str(log))
        bench.found["quit again"] = ask(str(pipes), "quit\n")
    finally:
        with contextlib.suppress(OSError, KeyError):
            os.kill(int(bench.found["pid file"]), signal.SIGKILL)
        del os.environ["CUDA_MPS_LOG_DIRECTORY"], os.environ["CUDA_VISIBLE_DEVICES"]


def gone_after_s(pid: int, timeout_s: float = ENDS_S) -> float | None:
    """Return how long a process still took to end; None: it did not."""
    began = time.monotonic()

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    return round(time.monotonic() - began, 3) if until(gone, timeout_s) else None


def seven(bench: Bench) -> None:
    """Seven trainings as a pack runs them: their speed, one terminated, one killed, and quit beneath the rest."""
    began = time.monotonic()
    daemon = bench.mps()
    bench.found["Mps.start took_s"] = round(time.monotonic() - began, 3)
    alone = bench.client("alone", "train", bench.own)
    alone.told()
    bench.found["alone, no MPS"] = rates([alone])
    alone.process.kill()
    alone.process.wait()
    tasks = [bench.client(f"t{n}", "train", bench.under(daemon, 7)) for n in range(7)]
    bench.found["all started"] = [one.told() for one in tasks]
    bench.found["rates"] = rates(tasks)
    bench.found["pids"] = [one.process.pid for one in tasks]
    bench.found["Mps.clients"] = sorted(daemon.clients() or ())
    bench.found["state"] = state(daemon.pipe)
    bench.found["pipe folder"] = listing(daemon.pipe)
    server = numbers(bench.found["state"]["servers"])[0]
    bench.found["server"] = process(server)
    commands = f"get_client_list {server}\nget_server_status {server}\n"
    bench.found["two at once"] = ask(daemon.pipe, commands)
    bench.found["terminate_client"] = ask(daemon.pipe, f"terminate_client {server} {tasks[0].process.pid}\n")
    bench.found["terminated"] = tasks[0].end()
    bench.found["terminate of two unknown"] = ask(daemon.pipe, f"terminate_client {server} 1\nterminate_client 1 1\n")
    began = time.monotonic()
    daemon.terminate([tasks[1].process.pid])
    bench.found["Mps.terminate took_s"] = round(time.monotonic() - began, 3)
    bench.found["terminated by Mps"] = tasks[1].end(5.0)
    tasks[1].process.kill()
    tasks[2].process.kill()
    bench.found["the rest's rates after a SIGKILL"] = rates(tasks[3:])
    tasks[3].process.terminate()
    bench.found["after a SIGTERM"] = tasks[3].end()
    bench.found["status then"] = state(daemon.pipe)
    bench.found["quit with clients"] = ask(daemon.pipe, "quit\n", 5.0)
    bench.found["clients then"] = [one.end(5.0) for one in tasks[4:]]
    bench.found["daemon alive"] = daemon.alive()
    bench.found["server gone after_s"] = gone_after_s(server, 2.0)
    bench.found["logs"] = logs(daemon.log)


def killed(bench: Bench) -> None:
    """Clients in the middle of a kernel: SIGKILL after terminate_client, then alone; quit -t at the end."""
    daemon = bench.mps()
    neighbours = [bench.client(f"n{n}", "train", bench.under(daemon, 5)) for n in range(2)]
    victims = [bench.client(f"busy{n}", "busy", bench.under(daemon, 5)) for n in range(3)]
    bench.found["started"] = [one.told() for one in [*neighbours, *victims]]
    bench.found["rates"] = rates([*neighbours, *victims], 2.0)
    began = time.monotonic()
    daemon.terminate([victims[0].process.pid])
    bench.found["terminate took_s"] = round(time.monotonic() - began, 3)
    victims[0].process.kill()
    bench.found["terminated and killed"] = victims[0].end()
    bench.found["rates after terminate and SIGKILL"] = rates([*neighbours, *victims[1:]], 3.0)
    bench.found["state after terminate and SIGKILL"] = state(daemon.pipe)
    victims[1].process.kill()
    bench.found["killed ended"] = victims[1].end()
    bench.found["rates after SIGKILL"] = rates([*neighbours, victims[2]], 3.0)
    bench.found["state after SIGKILL"] = state(daemon.pipe)
    bench.found["ended of it"] = [one.end(1.0) for one in [*neighbours, victims[2]]]
    last = [bench.client(f"last{n}", "train", bench.under(daemon, 5)) for n in range(2)]
    bench.found["started then"] = [one.told() for one in last]
    bench.found["quit -t 1 with clients"] = ask(daemon.pipe, "quit -t 1\n", 30.0)
    bench.found["clients then"] = [one.end(5.0) for one in last]
    bench.found["logs"] = logs(daemon.log)


def fault(code: str) -> Callable[[Bench], None]:
    """A client that breaks its context beneath two others."""

    def part(bench: Bench) -> None:
        daemon = bench.mps()
        neighbours = [bench.client(f"n{n}", "train", bench.under(daemon, 3)) for n in range(2)]
        idler = bench.client("idler", "resident", bench.under(daemon, 3))
        bench.found["started"] = [one.told() for one in [*neighbours, idler]]
        bad = bench.client("bad", code, bench.under(daemon, 3))
        began = time.monotonic()
        fell = until(lambda: bad.process.poll() is not None or neighbours[0].process.poll() is not None, 40.0)
        bench.found["came after_s"] = round(time.monotonic() - began, 2) if fell else None
        bench.found["state at once"] = state(daemon.pipe)
        bench.found["bad"] = bad.end(10.0)
        bench.found["neighbours"] = [one.end(3.0) for one in [*neighbours, idler]]
        bench.found["rates"] = rates(neighbours, 1.0)
        late = bench.client("late", "train", bench.under(daemon, 3))
        bench.found["a late one started"] = late.told(25.0)
        bench.found["late"] = {"steps": late.done(), "status": late.process.poll(), "said": late.said()}
        bench.found["state then"] = state(daemon.pipe)
        for one in bench.clients:
            one.process.kill()
            one.process.wait()
        after = bench.client("after", "train", bench.under(daemon, 3))
        bench.found["one after all are gone started"] = after.told(25.0)
        bench.found["after"] = {"steps": after.done(), "status": after.process.poll(), "said": after.said()}
        bench.found["logs"] = logs(daemon.log)

    return part


def seen(bench: Bench) -> None:
    """What clients see under each environment, and whether they are clients at all."""
    daemon = bench.mps()
    empty = bench.folder / "empty"
    empty.mkdir()
    variants: dict[str, dict[str, str]] = {
        "as a pack of two": bench.under(daemon),
        "no MPS": bench.own,
        "no limits": bench.under(daemon, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=None, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=None),
        "threads 29": bench.under(daemon, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="29"),
        "threads 10": bench.under(daemon, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10"),
        "threads 1": bench.under(daemon, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="1"),
        "threads 500": bench.under(daemon, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="500"),
        "memory 200M": bench.under(daemon, memory_mib=200),
        "memory 1000000M": bench.under(daemon, memory_mib=1000000),
        "memory of device 1": bench.under(daemon, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2000M,1=2000M"),
        "visible 0": bench.under(daemon, CUDA_VISIBLE_DEVICES="0"),
        "visible unset": bench.under(daemon, CUDA_VISIBLE_DEVICES=None),
        "visible uuid": bench.under(daemon, CUDA_VISIBLE_DEVICES=bench.uuid),
        "visible 1": bench.under(daemon, CUDA_VISIBLE_DEVICES="1"),
        "pipe folder missing": bench.under(daemon, CUDA_MPS_PIPE_DIRECTORY="/nonexistent/pipe"),
        "pipe folder empty": bench.under(daemon, CUDA_MPS_PIPE_DIRECTORY=str(empty)),
        "pipe variable empty": bench.under(daemon, CUDA_MPS_PIPE_DIRECTORY=""),
    }
    probes = {name: bench.client(name.replace(" ", "-"), PROBE, environment) for name, environment in variants.items()}
    for probe in probes.values():
        probe.told()
    bench.found["state"] = state(daemon.pipe)
    members = daemon.clients() or set()
    bench.found["seen"] = {
        name: {"client": probe.process.pid in members, "status": probe.process.poll(), "said": probe.said()}
        for name, probe in probes.items()
    }
    bench.found["logs"] = logs(daemon.log)


def greedy(bench: Bench) -> None:
    """Clients that take memory until they may not, one with its limit from the daemon, beside one that does not."""
    daemon = bench.mps()
    neighbour = bench.client("neighbour", "train", bench.under(daemon))
    bench.found["started"] = neighbour.told()
    bench.found["default"] = ask(daemon.pipe, "set_default_device_pinned_mem_limit 0 2G\n")
    clients = [
        bench.client("limit-1500M", GREEDY, bench.under(daemon, 1500)),
        bench.client("limit-3000M", GREEDY, bench.under(daemon, 3000)),
        bench.client("default-2G", GREEDY, bench.under(daemon, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=None)),
    ]
    bench.found["ended"] = [one.end(40.0) for one in clients]
    bench.found["neighbour's rate"] = rates([neighbour], 1.0)


def deaths(bench: Bench) -> None:
    """SIGKILL of the server beneath its clients, then of the daemon beneath others."""
    daemon = bench.mps()
    first = [bench.client(f"s{n}", "train", bench.under(daemon)) for n in range(2)]
    bench.found["started"] = [one.told() for one in first]
    server = numbers(ask(daemon.pipe, "get_server_list\n"))[0]
    os.kill(server, signal.SIGKILL)
    bench.found["clients of the killed server"] = [one.end(20.0) for one in first]
    bench.found["state"] = state(daemon.pipe)
    for one in first:
        one.process.kill()
        one.process.wait()
    second = [bench.client(f"d{n}", "train", bench.under(daemon)) for n in range(2)]
    bench.found["started after"] = [one.told(30.0) for one in second]
    bench.found["steps after"] = [one.done() for one in second]
    bench.found["state after"] = state(daemon.pipe)
    servers = numbers(ask(daemon.pipe, "get_server_list\n"))
    os.kill(int((Path(daemon.pipe) / f"{CONTROL}.pid").read_text()), signal.SIGKILL)
    time.sleep(0.5)
    bench.found["alive without daemon"] = daemon.alive()
    bench.found["rates without daemon"] = rates(second, 3.0)
    bench.found["answer without daemon"] = ask(daemon.pipe, "get_server_list\n")
    bench.found["listing without daemon"] = listing(daemon.pipe)
    late = bench.client("late", PROBE, bench.under(daemon))
    bench.found["a client without daemon told"] = late.told(20.0)
    bench.found["a client without daemon"] = {"status": late.process.poll(), "said": late.said()}
    bench.found["server alive"] = [bool(process(pid)) for pid in servers]
    bench.found["server"] = [process(pid) for pid in servers]
    own = {**bench.own, "CUDA_MPS_PIPE_DIRECTORY": daemon.pipe, "CUDA_MPS_LOG_DIRECTORY": daemon.log}
    again = subprocess.run([CONTROL, "-d"], env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    bench.found["started anew in the same folder"] = again.returncode
    time.sleep(1.0)
    bench.found["state of the new one"] = state(daemon.pipe)
    bench.found["rates under the new one"] = rates(second, 1.0)
    bench.found["quit of the new one"] = ask(daemon.pipe, "quit -t 1\n")
    bench.found["clients then"] = [one.end(5.0) for one in second]
    bench.found["logs"] = logs(daemon.log)


LENGTHS = (80, 88, 89, 99, 108)


def lengths(bench: Bench) -> None:
    """Pipe folders whose paths are as long as a socket's may be, and longer."""
    started: dict[int, str] = {}
    probes: dict[int, Client] = {}
    try:
        for length in LENGTHS:
            pipes = str(bench.folder) + "/" + "p" * (length - len(str(bench.folder)) - 1)
            os.mkdir(pipes, 0o700)
            own = {**bench.own, "CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": pipes}
            began = time.monotonic()
            output = bench.folder / f"{length}.start"
            with output.open("wb") as stream:
                done = subprocess.run([CONTROL, "-d"], env=own, stdout=stream, stderr=stream, timeout=15, check=False)
            bench.found[f"{length}: start"] = [
                done.returncode,
                output.read_text(errors="replace"),
                round(time.monotonic() - began, 3),
            ]
            until((Path(pipes) / f"{CONTROL}.pid").exists, 3.0)
            started[length] = pipes
            probes[length] = bench.client(f"probe{length}", PROBE, own)
        for length, pipes in started.items():
            probes[length].told(30.0)
            state_now = state(pipes)
            members = [pid for key, answer in state_now.items() if "client" in key for pid in numbers(answer)]
            bench.found[f"{length}"] = {
                "state": state_now,
                "listing": listing(pipes),
                "client": probes[length].process.pid in members,
                "status": probes[length].process.poll(),
                "said": probes[length].said(),
                "logs": (Path(pipes) / "control.log").read_text()[-1500:]
                if (Path(pipes) / "control.log").exists()
                else "",
            }
    finally:
        for probe in probes.values():
            probe.process.kill()
        for length, pipes in started.items():
            bench.found[f"{length}: quit"] = ask(pipes, "quit -t 1\n")
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((Path(pipes) / f"{CONTROL}.pid").read_text()), signal.SIGKILL)


# Programs that have something to do with a GPU; each says a line once it has done it, and waits.
_WAIT = "print(1, flush=True)\nsys.stdin.readline()\n"
_TENSOR = "import os, subprocess, sys, torch\nx = torch.zeros(9, device='cuda')\ntorch.cuda.synchronize()\n"
_STAYS = f"{_TENSOR}__import__('time').sleep(60)"
HOLDERS = {
    "cuInit": f"import ctypes, sys\nctypes.CDLL('libcuda.so.1').cuInit(0)\n{_WAIT}",
    "device count": f"import sys, torch\ntorch.cuda.device_count(), torch.cuda.is_available()\n{_WAIT}",
    "NVML": f"import sys, pynvml\npynvml.nvmlInit()\nh = pynvml.nvmlDeviceGetHandleByIndex(0)\n{_WAIT}",
    "tensor": f"{_TENSOR}{_WAIT}",
    "tensor and fork": f"{_TENSOR}os.fork() or __import__('time').sleep(60)\n{_WAIT}",
    "launcher": "import subprocess, sys, torch\ntorch.cuda.device_count()\n"
    f"subprocess.Popen([sys.executable, '-c', {_STAYS!r}])\n{_WAIT}",
}


def holding(bench: Bench) -> None:
    """Which of a GPU's device files each kind of program has open, and who of them is a client."""
    daemon = bench.mps()
    under, past = bench.under(daemon), bench.under(daemon, CUDA_MPS_PIPE_DIRECTORY="/nonexistent")
    held = [bench.client(name, code, under) for name, code in HOLDERS.items()]
    held.append(bench.client("tensor past MPS", HOLDERS["tensor"], past))
    bench.found["started"] = [one.told() for one in held]
    time.sleep(8.0)
    clients, listed = daemon.clients() or set(), computing()
    for one in held:
        children = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
        for pid in (one.process.pid, *map(int, children)):
            links: list[str] = []
            with contextlib.suppress(OSError):
                links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
            bench.found[f"{one.name}{'' if pid == one.process.pid else ', its child'}"] = {
                "client": pid in clients,
                "open_as_csub_sees_it": bool(with_gpu_open([pid])),
                "computes_says_nvidia_smi": pid in listed,
                "open": sorted({link for link in links if "nvidia" in link}),
            }
    for name, of in bench.found.items():
        print(name, of, flush=True)


PARTS: dict[str, Callable[[Bench], None]] = {
    "no daemon": silent,
    "idle daemon": idle,
    "seven trainings": seven,
    "illegal access": fault(ILLEGAL),
    "what clients see": seen,
    "killed mid-kernel": killed,
    "memory limits": greedy,
    "device assert": fault(ASSERTS),
    "deaths": deaths,
    "path lengths": lengths,
    "holding": holding,
}


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """Lend a Bench and clear it up."""
    lent = Bench()
    try:
        yield lent
    finally:
        lent.close()


def machine() -> dict[str, Any]:
    """Return what was recorded on."""
    said = subprocess.run(["nvidia-smi", "-q", "-d", "COMPUTE"], capture_output=True, text=True, check=False)
    query = ["nvidia-smi", "--query-gpu=name,uuid,driver_version,compute_mode,memory.total", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, check=False)
    torch = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda)"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {"gpu": asked.stdout, "mode": said.stdout[-300:], "torch": torch.stdout.strip(), "uid": os.getuid()}


def main(folder: Path, only: Sequence[str] = ()) -> None:
    """Record every part, or those named."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in [name for name in os.environ if name.startswith("CUDA_MPS_")]:
        del os.environ[name]
    recorded: dict[str, Any] = {"machine": machine()}
    for name, part in PARTS.items():
        if only and name not in only:
            continue
        began = time.monotonic()
        if began - BEGAN_S > LAST_START_S:
            recorded[name] = {"skipped": "no time left"}
            print(f"{name:20} skipped", flush=True)
            continue
        wrong = ""
        with bench() as lent:
            recorded[name] = lent.found
            try:
                part(lent)
            except Exception:  # noqa: BLE001 - recorded; the other parts are worth having
                wrong = traceback.format_exc()
                lent.found["went wrong"] = wrong
                lent.found["outputs"] = {one.name: one.said() for one in lent.clients}
        lent.found["took_s"] = round(time.monotonic() - began, 1)
        (folder / "mps.json").write_text(json.dumps(recorded, indent=1, default=str))
        last = wrong.strip().splitlines()[-1] if wrong else "recorded"
        print(f"{name:20} {lent.found['took_s']:6.1f} s  {last}", flush=True)
    left = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=False).stdout
    recorded["left behind"] = [line for line in left.splitlines() if "nvidia-cuda-mps" in line]
    (folder / "mps.json").write_text(json.dumps(recorded, indent=1, default=str))
    print(f"{'all':20} {time.monotonic() - BEGAN_S:6.1f} s  left behind: {recorded['left behind']}", flush=True)
    summary(recorded)


def summary(recorded: Mapping[str, Any]) -> None:
    """Print what matters most."""
    trainings = recorded.get("seven trainings", {})
    alone = sum(trainings.get("alone, no MPS", {}).values())
    together = sum(trainings.get("rates", {}).values())
    print(f"one alone {alone:.0f} steps/s, seven under MPS {together:.0f} ({together / max(alone, 0.1):.2f}x)")
    print("after a SIGKILL:", recorded.get("killed mid-kernel", {}).get("rates after SIGKILL"))
    for part in ("illegal access", "device assert"):
        ended = recorded.get(part, {}).get("neighbours", [])
        print(f"{part}: neighbours ended", [(one["ended"], one["status"]) for one in ended])
    for name, what in recorded.get("what clients see", {}).get("seen", {}).items():
        print(f"{name:22} client {what['client']!s:5} {what['said'][-200:].strip()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
