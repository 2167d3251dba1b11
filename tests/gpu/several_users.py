# SPDX-License-Identifier: Apache-2.0
"""Several users under the real colloc-mps: `python -m tests.gpu.several_users FOLDER`, about three minutes.

One NVIDIA GPU that nobody else uses (and a second one, where there is one), MPS, PyTorch, root. No setting of a card is
changed. `colloc-mps` is called as prolog, epilog and task prolog call it, for jobs of three users, in each of its
modes. In "each" trainings of several users run in many mixes, the others stopped meanwhile; in "all" one user does what
he could do to the others: he talks to the daemon, takes its locks, floods its log, asks for more memory than root
allows, looks for others' data, and faults. Writes FOLDER/several_users.json, prints a line for each thing tried, and
ends with 1 where something was other than docs/explanation/security.md says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.gpu.reader import UnitReading
from slurm_colloc.pack.mps_daemon import CONTROL
from tests.gpu.loads import LOOP, NET
from tests.gpu.mps import Client, listing, rates, until
from tests.gpu.tries import FLOOD, GREEDY, GREEDY_MIB, HOLDS, ILLEGAL, READS, TOUCH, TRIES, WRITES

PROGRAM = Path(__file__).parents[2] / "slurm_colloc/plugin/colloc-mps"
UIDS = (20001, 20002, 20003)
_TRAINING_S, _SETTLES_S, _FAULT_S = 1.2, 0.15, 6.0
LOADS = {
    "small": LOOP.format(prepare=NET.format(batch=32), step="train()", pause=""),
    "light": LOOP.format(prepare=NET.format(batch=32), step="train()", pause="time.sleep(0.008)"),
    "medium": LOOP.format(prepare=NET.format(batch=192), step="train()", pause=""),
}
# Whose trainings, by name; and which of them run at the same time.
JOBS = {"a1": (0, "small"), "a2": (0, "small"), "b1": (1, "small"), "b2": (1, "medium"), "c1": (2, "small"),
        "c2": (2, "light")}  # fmt: skip
MIXES = ("a1", "a2", "b1", "b2", "c1", "c2", "a1 a2", "a1 b1", "a1 c2", "a1 b1 c2", "a1 b1 c1", "a1 a2 b1 c1", "a1 b2",
         "a1 b2 c1", "a1 a2 b1 b2 c1 c2")  # fmt: skip
_SAID_BY_ANOTHER = (
    "get_server_list",
    "ps",
    "get_client_list {server}",
    "set_default_active_thread_percentage 5",
    "set_active_thread_percentage {server} 5",
    "set_device_pinned_mem_limit {server} 0 60G",
    "terminate_client {server} {client}",
    "shutdown_server {server} -f",
    "quit -t 1",
)


# Of what TRIES tries, what root's daemon lets everybody do.
_MAY_IN_ALL = ("connect to control", "count its jobs", "list the pipe folder")


class Node:
    """A node of its own for colloc-mps, with three users and their programs."""

    def __init__(self, seen: Any) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="c-", dir="/run"))
        self.root.chmod(0o755)
        self.state = self.root / "c/mps"
        self.own = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "SLURM_"))}
        self.count, self.seen, self.clients = 0, seen, dict[str, Client]()
        found = subprocess.run(["sh", "-c", f"command -v {CONTROL}"], capture_output=True, text=True, check=True).stdout
        self.argv = [str(PROGRAM), f"--state={self.state}", f"--log={self.root}/log", f"--bin={Path(found).parent}",
                     "--each=each", "--all=all"]  # fmt: skip

    def become(self, user: int) -> list[str]:
        """Return what makes a command the user's, who has a home of his own."""
        home = self.root / str(user)
        home.mkdir(exist_ok=True)
        os.chown(home, UIDS[user], UIDS[user])
        words = [f"HOME={home}", f"USER=user{user}", f"LOGNAME=user{user}", f"TMPDIR={home}"]
        return ["setpriv", f"--reuid={UIDS[user]}", f"--regid={UIDS[user]}", "--clear-groups", "env", *words]

    def call(self, verb: str, job: int, user: int, gpu: int = 0, partition: str = "all") -> str:
        """Call colloc-mps as a prolog, an epilog or a task prolog would, and return what it said."""
        environment = {
            "PATH": os.environ["PATH"],
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_UID": str(UIDS[user]),
            "SLURM_JOB_GID": str(UIDS[user]),
            "SLURM_JOB_GPUS": str(gpu),
            "SLURM_JOB_PARTITION": partition,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "14",
        }
        argv = [*(self.become(user) if verb == "task" else []), *self.argv, verb]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=40, check=False)
        return done.stdout + done.stderr

    def told(self, job: int, user: int) -> dict[str, str]:
        """Return what a task of the job is told."""
        said = self.call("task", job, user)
        return dict(line[7:].split("=", 1) for line in said.splitlines() if line.startswith("export "))

    def begin(self, job: int, user: int, gpu: int, partition: str) -> dict[str, str]:
        """Let a job begin, and return what its tasks are told."""
        said = self.call("start", job, user, gpu, partition)
        told = self.told(job, user)
        self.seen(f"{partition}: job {job} of user {user} on GPU {gpu}", said.strip() or sorted(told), bool(told))
        return told

    def client(self, name: str, code: str, user: int, told: Mapping[str, str], **more: str) -> Client:
        """Start a user's program."""
        self.count += 1
        one = Client(self.root, f"{self.count}-{name}", code, {**self.own, **told, **more}, self.become(user))
        self.clients[name] = one
        return one

    def short(self, name: str, code: str, user: int, told: Mapping[str, str], **more: str) -> dict[str, Any]:
        """Run a short program of a user's to its first line, and return that and whether it is a client of MPS."""
        one = self.client(name, code, user, told, **more)
        one.told(5.0)
        text = one.said().strip().splitlines()
        try:
            found: dict[str, Any] = json.loads(text[0])
        except (IndexError, ValueError):
            found = {"said": one.said()[-300:]}
        found["client"] = one.process.pid in self.members(told)
        self.end(one)
        return found

    def ask(self, told: Mapping[str, str], text: str, user: int | None = None, timeout_s: float = 8.0) -> str:
        """Say something to a daemon as a user, or as root."""
        words = [] if user is None else self.become(user)
        pipe = f"CUDA_MPS_PIPE_DIRECTORY={told['CUDA_MPS_PIPE_DIRECTORY']}"
        try:
            done = subprocess.run(
                ["env", pipe, *words, CONTROL],
                input=f"{text}\n", capture_output=True, text=True, check=False, timeout=timeout_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "no answer in time"
        return (done.stdout + done.stderr).strip()[-300:]

    def members(self, told: Mapping[str, str]) -> list[int]:
        """Return the pids of the clients of a daemon."""
        if "CUDA_MPS_PIPE_DIRECTORY" not in told:
            return []
        servers = [word for word in self.ask(told, "get_server_list").split() if word.isdigit()]
        return [int(word) for one in servers for word in self.ask(told, f"get_client_list {one}").split()]

    def end(self, *clients: Client) -> None:
        """Kill programs."""
        for one in clients:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()

    def end_all(self) -> None:
        """Kill all that runs."""
        self.end(*self.clients.values())
        self.clients.clear()

    def processes(self) -> list[str]:
        """Return the daemons and servers of this node."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.state).encode() in (process / "environ").read_bytes():
                    found.append(f"{process.name} {(process / 'comm').read_text().strip()}")
        return [one for one in found if "mps" in one]


class Found:
    """What was tried and what came of it, printed as it comes; a surprise is kept."""

    def __init__(self, folder: Path) -> None:
        self.file, self.rows, self.surprises = folder / "several_users.json", dict[str, Any](), list[str]()
        self.began_s = time.monotonic()

    def __call__(self, what: str, came: object, expected: bool = True) -> None:
        """Keep one; ``expected`` is whether it is what the documents say."""
        print(f"{time.monotonic() - self.began_s:5.1f} {'' if expected else 'SURPRISE '}{what}: {came}", flush=True)
        self.rows[what] = came
        if not expected:
            self.surprises.append(what)
        self.file.write_text(json.dumps({"found": self.rows, "surprises": self.surprises}, indent=1, default=str))


@contextlib.contextmanager
def only(clients: Mapping[str, Client], names: Sequence[str]) -> Iterator[list[Client]]:
    """Let these run and stop the others."""
    for name, one in clients.items():
        one.process.send_signal(signal.SIGCONT if name in names else signal.SIGSTOP)
    time.sleep(_SETTLES_S)
    yield [clients[name] for name in names]


def activity() -> Callable[[], UnitReading] | None:
    """Return what tells how busy the first GPU is, or None where the driver does not say."""
    try:
        reader = NvmlReader()
        reader.read()
        return lambda: reader.read()[0][0]
    except Exception as error:  # noqa: BLE001 - a missing reading is no reason to measure nothing
        print(f"no activity: {error!r}", flush=True)
        return None


def of_one(node: Node, seen: Found, gpus: int) -> None:
    """A partition whose nodes serve one user at a time: the second user gets no daemon."""
    node.begin(1, 0, 0, "one")
    said = node.call("start", 2, 1, 0, "one")
    seen("one: a second user on the GPU", said.strip()[-200:], "serves jobs of uid 20001" in said)
    seen("one: what his tasks are told", node.told(2, 1), not node.told(2, 1))
    node.call("stop", 2, 1)
    node.call("stop", 1, 0)
    if gpus > 1:
        node.begin(3, 1, 1, "one")
        node.call("stop", 3, 1)
    seen("one: what is left", node.processes(), not node.processes())


def of_each(node: Node, seen: Found, gpus: int) -> None:
    """A daemon for each user: mixes of their trainings, and what one may do to another's daemon."""
    told = [node.begin(11 + user, user, 0, "each") for user in range(3)]
    seen("each: daemons", node.processes(), len({one.get("CUDA_MPS_PIPE_DIRECTORY") for one in told}) == 3)
    clients = {name: node.client(name, LOADS[load], user, told[user]) for name, (user, load) in JOBS.items()}
    other = None
    if gpus > 1:
        other = node.client("other", LOADS["small"], 0, node.begin(14, 0, 1, "each"))
    read = activity()
    started = [one.told(30.0) and one.process.poll() is None for one in clients.values()]
    seen("each: trainings begin", [*zip(JOBS, started, strict=True)], all(started))
    until(lambda: all(one.done() > 20 for one in clients.values()), 10.0)
    rate: dict[str, dict[str, float]] = {}
    for mix in MIXES:
        with only(clients, mix.split()) as running:
            if read:
                read()
            found = rates([*running, other] if other else running, _TRAINING_S)
            busy = read() if read else None
        rate[mix] = {name.partition("-")[2]: value for name, value in found.items()}
        alone = {name: rate[name][name] for name in mix.split() if name in rate}
        slower = {name: round(alone[name] / rate[mix][name], 2) for name in alone if rate[mix][name]}
        said: dict[str, Any] = {"rate": rate[mix], "slowdown": slower}
        if busy is not None:
            said |= {key: getattr(busy, key) for key in ("gr_active_pct", "sm_active_pct")}
        seen(f"each: {mix}", said)
    for one in clients.values():
        one.process.send_signal(signal.SIGCONT)
    tries(node, seen, "each", 1, told[0], ("count its jobs",))
    # His own daemon is his own: what root set there he may lift.
    node.ask(told[1], "set_default_device_pinned_mem_limit 0 6G")
    server = (node.ask(told[1], "get_server_list").split() or ["0"])[0]
    seen(
        "each: its user lifts a limit of his own daemon",
        node.ask(told[1], f"set_device_pinned_mem_limit {server} 0 20G", 1),
    )
    seen("each: what he then takes", node.short("lifted", GREEDY, 1, told[1]))
    memory(node, seen, "each", told)
    bad = node.short("bad", ILLEGAL, 1, told[1])
    until(lambda: all(one.process.poll() is not None for name, one in clients.items() if JOBS[name][0] == 1), _FAULT_S)
    alive = {name: one.process.poll() is None for name, one in clients.items()}
    seen("each: an illegal access of user 1", {"by": bad, "lives": alive}, alive == {n: JOBS[n][0] != 1 for n in JOBS})
    node.end_all()
    for user in range(3):
        node.call("stop", 11 + user, user)
    node.call("stop", 14, 0)
    seen("each: what is left", node.processes(), not node.processes())


def tries(node: Node, seen: Found, mode: str, user: int, told: Mapping[str, str], allowed: Sequence[str]) -> None:
    """Let a user try at the files of a daemon that is not his."""
    pipe = told["CUDA_MPS_PIPE_DIRECTORY"]
    argv = [*node.become(user), sys.executable, "-c", TRIES, pipe]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    found = json.loads(done.stdout) if done.stdout else {"failed": done.stderr[-300:]}
    for what, came in found.items():
        refused = came in ("EACCES", "EPERM", "ENOENT", "ENXIO")
        seen(f"{mode}: may user {user} {what}", came, refused or what in allowed)


def memory(node: Node, seen: Found, mode: str, told: Sequence[Mapping[str, str]]) -> None:
    """Let one user write and end, and another one look for it."""
    wrote = node.client("writes", WRITES, 0, told[0])
    until(lambda: wrote.process.poll() is not None, 10.0)
    seen(f"{mode}: user 0 fills memory and ends", wrote.said()[-200:])
    seen(f"{mode}: user 1 finds it again", node.short("reads", READS, 1, told[1]))


def of_all(node: Node, seen: Found, gpus: int) -> None:
    """One daemon of root's for all: who may do what to it, and to the others."""
    told = [node.begin(21 + user, user, 0, "all") for user in range(3)]
    pipes = {one.get("CUDA_MPS_PIPE_DIRECTORY") for one in told}
    seen("all: daemons", node.processes(), len(pipes) == 1)
    if gpus > 1:
        second = node.begin(24, 2, 1, "all")
        seen("all: another one on the second GPU", second, second.get("CUDA_MPS_PIPE_DIRECTORY") not in pipes)
    folder = pipes.pop() or ""
    seen("all: its files", listing(folder))
    node.ask(told[0], "set_default_device_pinned_mem_limit 0 6G")
    clients = [node.client(name, LOADS["small"], user, told[user]) for user, name in enumerate(("a", "b", "c"))]
    tries(node, seen, "all", 1, told[0], _MAY_IN_ALL)
    # Its limit of memory, and what a client may say against it.
    limits = (("nothing", ""), ("less", "0=3G"), ("more", "0=40G"), ("a device that is not there", "0=40G,1=40G"))
    for what, limit in limits:
        more = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit} if limit else {}
        took = node.short(f"limit-{len(what)}", GREEDY, 1, told[1], **more)
        # A client's own context counts; a limit for a device that is not there takes all of them away.
        most = {"less": 3 << 10, "a device that is not there": GREEDY_MIB}.get(what, 6 << 10)
        expected = most - 640 < took.get("mib", 0) <= most
        seen(f"all: under root's limit of 6 GiB a client that asks for {what} takes", took, expected)
    server = (node.ask(told[0], "get_server_list").split() or ["0"])[0]
    node.ask(told[0], "set_default_device_pinned_mem_limit 0 9G")
    seen("all: a default changed under a running server holds for", node.short("later", GREEDY, 1, told[1]))
    seen("all: root changes the server's", node.ask(told[0], f"set_device_pinned_mem_limit {server} 0 12G"))
    seen("all: that holds for", node.short("last", GREEDY, 1, told[1]))
    clients[0].told(20.0)
    for text in _SAID_BY_ANOTHER:
        asked = text.format(server=server, client=clients[0].process.pid)
        said = node.ask(told[0], asked, 1)
        lives = clients[0].process.poll() is None
        seen(f"all: user 1 says '{text}'", {"said": said, "user 0 lives": lives}, lives)
    before = listing(f"{folder}/../log")
    argv = [*node.become(1), "timeout", "4", sys.executable, "-c", FLOOD, folder]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    seen("all: user 1 floods its log pipe", {"status": done.returncode, "said": done.stderr[-120:],
                                             "before": before, "after": listing(f"{folder}/../log")})  # fmt: skip
    # To tell what the flood did from what the locks do.
    seen("all: after that root is answered", node.ask(told[0], "get_server_list", timeout_s=3.0))
    for what, code in HOLDS.items():
        holds = f"import sys, time\n{code}\nprint('holds', flush=True)\ntime.sleep(60)"
        with subprocess.Popen([*node.become(1), sys.executable, "-c", holds, folder],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:  # fmt: skip
            time.sleep(0.5)
            began = time.monotonic()
            said = node.ask(told[0], "get_server_list", timeout_s=3.0)
            took = node.short("beside", TOUCH, 0, told[0])
            seen(f"all: while user 1 holds {what}", {"holds": holder.poll() is None, "root is answered": said,
                 "another client": took, "s": round(time.monotonic() - began, 1)})  # fmt: skip
            holder.kill()
    memory(node, seen, "all", told)
    seen("all: together", rates(clients, _TRAINING_S))
    bad = node.short("bad", ILLEGAL, 1, told[1])
    until(lambda: all(one.process.poll() is not None for one in clients), _FAULT_S)
    alive = [one.process.poll() is None for one in clients]
    seen(
        "all: an illegal access of user 1", {"by": bad, "lives": alive, "together": rates(clients, 1.0)}, not any(alive)
    )
    late = node.begin(25, 2, 0, "all")
    seen("all: who comes later works", node.short("late", TOUCH, 2, late))
    node.end_all()
    for job, user in ((21, 0), (22, 1), (23, 2), (24, 2)):
        node.call("stop", job, user)
    seen("all: while one job has it", node.processes(), bool(node.processes()))
    node.call("stop", 25, 2)
    seen("all: what is left", node.processes(), not node.processes())


def of_every_gpu(node: Node, seen: Found, gpus: int) -> None:
    """Daemons and trainings of three users on each GPU of the node at once, in each mode."""
    reader = NvmlReader()
    for mode, users in (("one", 1), ("each", 3), ("all", 3)):
        jobs = {100 + 3 * gpu + n: ((gpu + n) % 3, gpu) for gpu in range(gpus) for n in range(users)}
        told = {job: node.begin(job, user, gpu, mode) for job, (user, gpu) in jobs.items()}
        wanted = gpus * (3 if mode == "each" else 1)
        pipes = {one.get("CUDA_MPS_PIPE_DIRECTORY") for one in told.values()}
        seen(f"{mode}: daemons on {gpus} GPUs at once", [len(pipes), len(node.processes())], len(pipes) == wanted)
        clients = {job: node.client(f"{mode}{job}", LOADS["light"], user, told[job]) for job, (user, _) in jobs.items()}
        for one in clients.values():
            one.told(60.0)
        _, processes = reader.read()
        index = {unit.uuid: unit.gres_index for unit in reader.units()}
        on = {process.pid: index[process.uuid] for process in processes}
        seen(f"{mode}: trainings on GPUs", [on.get(one.process.pid) for one in clients.values()],
             [on.get(one.process.pid) for one in clients.values()] == [gpu for _, gpu in jobs.values()])  # fmt: skip
        seen(f"{mode}: steps per second", {job: round(rate) for job, rate in rates([*clients.values()], 2.0).items()})
        node.end_all()
        for job, (user, gpu) in jobs.items():
            node.call("stop", job, user, gpu, mode)
        seen(f"{mode}: what is left on {gpus} GPUs", node.processes(), not node.processes())


def main() -> int:
    """Try all, whatever fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parts", default="one,each,all,every GPU")
    asked = parser.parse_args()
    folder = asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    seen = Found(folder)
    seen("GPUs", listed.split("\n"))
    node = Node(seen)
    gpus = listed.count("UUID: GPU-")
    parts = {"one": of_one, "each": of_each, "all": of_all, "every GPU": of_every_gpu}
    try:
        for name, part in parts.items():
            if name not in asked.parts.split(","):
                continue
            try:
                part(node, seen, gpus)
            except Exception as error:  # noqa: BLE001 - the other parts are measured all the same
                seen(f"{name}: failed", repr(error)[:300], expected=False)
                node.end_all()
    finally:
        node.end_all()
        for line in node.processes():
            with contextlib.suppress(OSError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        log = node.root / "log"
        seen("what colloc-mps said", log.read_text().splitlines()[-20:] if log.exists() else [])
        shutil.rmtree(node.root, ignore_errors=True)
    print(f"{len(seen.surprises)} surprises: {seen.surprises}", flush=True)
    return int(bool(seen.surprises))


if __name__ == "__main__":
    sys.exit(main())
