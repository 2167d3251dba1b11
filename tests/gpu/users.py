# SPDX-License-Identifier: Apache-2.0
"""Several users on one GPU: `python -m tests.gpu.users FOLDER [--rounds N] [--minutes M]`.

One NVIDIA GPU that nobody else uses, MPS, PyTorch, root. No setting of the card is changed. Trainings of up to three
users run at the same time, and their steps are counted once all of them train: in turns without MPS ("plain"), all as
one user's under one daemon ("one"), each user's under a daemon of his own ("each"), the first user's under his daemon
beside the others without one ("beside"), and all under one multi-user daemon of root's ("all"). Then, in "each" and
"all", one user does what hurts, and what it does to the others is recorded; and he talks to a daemon not his.
Adds to FOLDER speeds.jsonl, a line for each mode of each round, and accidents.jsonl, with --report prints the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.pack.mps_daemon import CONTROL
from tests.gpu.loads import LOOP, NET, PROGRAMS
from tests.gpu.mps import ASSERTS, GREEDY, ILLEGAL, Client, rates, until
from tests.gpu.proof_report import add, read

UIDS = (20001, 20002, 20003)
MODES = ("plain", "one", "each", "beside", "all")
SIZES = {
    name: LOOP.format(prepare=NET.format(batch=batch), step="train()", pause="")
    for name, batch in (("small", 32), ("medium", 192), ("large", 768))
}
# Whose trainings, user by user.
SETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "seven small": (("small",) * 3, ("small",) * 2, ("small",) * 2),
    "three medium": (("medium",), ("medium",), ("medium",)),
    "two users, mixed": (("medium", "small"), ("small", "small")),
    "a large one and small ones": (("large",), ("small", "small")),
}
ACCIDENTS = {
    "illegal access": ILLEGAL,
    "assert": ASSERTS,
    "out of memory": GREEDY,
    "killed in a kernel": PROGRAMS["busy"],
}
_MEASURED_S, STARTS_S = 5.0, 60.0
# What somebody who may speak to a daemon could say.
_SAYS = (
    "get_server_list",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 5",
    "quit -t 1",
)


class Machine:
    """A folder for daemons and clients of several users."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="u-", dir="/tmp"))
        self.folder.chmod(0o711)
        self.own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        self.count = 0

    def become(self, user: int) -> list[str]:
        """Return what makes a command the user's, who has a home of his own."""
        home = self.folder / str(user)
        home.mkdir(exist_ok=True)
        os.chown(home, UIDS[user], UIDS[user])
        words = [f"HOME={home}", f"USER=user{user}", f"LOGNAME=user{user}", f"TMPDIR={home}"]
        return ["setpriv", f"--reuid={UIDS[user]}", f"--regid={UIDS[user]}", "--clear-groups", "env", *words]

    @contextlib.contextmanager
    def daemon(self, user: int | None) -> Iterator[dict[str, str]]:
        """Run a daemon of the user's, or root's for all users."""
        self.count += 1
        folder = self.folder / f"d{self.count}"
        folder.mkdir()
        own = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/p", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/l"}
        for path in own.values():
            Path(path).mkdir()
            if user is not None:
                os.chown(path, UIDS[user], UIDS[user])
        become = [] if user is None else self.become(user)
        words = [*become, "env", *(f"{name}={value}" for name, value in own.items())]
        subprocess.run([*words, CONTROL, "-d", *(["-multiuser-server"] if user is None else [])], check=True)
        try:
            yield own
        finally:
            subprocess.run([*words, CONTROL], input=b"quit -t 1\n", check=False, timeout=30)
            log = folder / "l" / "server.log"
            if log.exists():
                print(log.read_text(errors="replace")[-1500:], flush=True)

    @contextlib.contextmanager
    def daemons(self, mode: str, users: int) -> Iterator[list[dict[str, str]]]:
        """Run what a mode needs, and yield for each user what his clients are told."""
        with contextlib.ExitStack() as stack:
            if mode == "plain":
                yield [{}] * users
            elif mode in ("one", "all"):
                yield [stack.enter_context(self.daemon(0 if mode == "one" else None))] * users
            else:
                with_one = [stack.enter_context(self.daemon(user)) for user in range(users if mode == "each" else 1)]
                yield [*with_one, *[{}] * (users - len(with_one))]

    def client(self, name: str, code: str, user: int, told: Mapping[str, str]) -> Client:
        """Start a user's program."""
        self.count += 1
        environment = {**self.own, **told}
        return Client(self.folder, f"{self.count}-{name}", code, environment, self.become(user))


def end(clients: Sequence[Client]) -> None:
    """Kill what still runs."""
    for one in clients:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


def alone(machine: Machine, size: str) -> float:
    """Return the steps a second of one training alone."""
    one = machine.client("alone", SIZES[size], 0, {})
    one.told(STARTS_S)
    time.sleep(1.0)
    (rate,) = rates([one], _MEASURED_S).values()
    end([one])
    return rate


def speeds(machine: Machine, mode: str, sizes: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return each training's steps a second beside the others; in mode "one" all of them are the first user's."""
    with machine.daemons(mode, len(sizes)) as told:
        clients, kinds = [], []
        for user, of_user in enumerate(sizes):
            for size in of_user:
                clients.append(machine.client(size, SIZES[size], 0 if mode == "one" else user, told[user]))
                kinds.append((user, size))
        started = [one.told(STARTS_S) for one in clients]
        until(lambda: all(one.done() > 20 for one in clients), 30.0)
        found = rates(clients, _MEASURED_S)
        said = [one.said() for one in clients if one.process.poll() is not None]
        end(clients)
    steps = [
        {"user": user, "size": size, "steps_per_s": rate}
        for (user, size), rate in zip(kinds, found.values(), strict=True)
    ]
    return {"started": started, "trainings": steps, "fell": said}


def accident(machine: Machine, mode: str, name: str) -> dict[str, Any]:
    """Let the second user's program do what hurts beside two trainings of the others and one of his own."""
    with machine.daemons(mode, 3) as told:
        innocent = [machine.client(f"user{user}", SIZES["small"], user, told[user]) for user in (0, 2, 1)]
        for one in innocent:
            one.told(STARTS_S)
        before = rates(innocent, 2.0)
        limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G"} if name == "out of memory" else {}
        bad = machine.client("bad", ACCIDENTS[name], 1, {**told[1], **limit})
        if name == "killed in a kernel":
            bad.told(STARTS_S)
            time.sleep(0.5)
            bad.process.send_signal(signal.SIGKILL)
        how = bad.end(40.0)
        time.sleep(2.0)
        after = rates(innocent, 2.0)
        lives = [one.process.poll() is None for one in innocent]
        late = machine.client("late", SIZES["small"], 2, told[2])
        late.told(30.0)
        works = late.done() > 5
        found = {
            "before": [*before.values()],
            "after": [*after.values()],
            "lives": lives,
            "late_works": works,
            "status": how["status"],
            "said": how["said"][-300:],
        }
        end([*innocent, bad, late])
    return found


def talk(machine: Machine, mode: str) -> dict[str, Any]:
    """Let the second user speak to the daemon of the first, or to root's, and be its client."""
    found: dict[str, Any] = {}
    with machine.daemons(mode, 2) as told:
        one = machine.client("first", SIZES["small"], 0, told[0])
        one.told(STARTS_S)
        words = [*machine.become(1), *(f"{name}={value}" for name, value in told[0].items()), CONTROL]
        for text in _SAYS:
            done = subprocess.run(words, input=f"{text}\n", capture_output=True, text=True, check=False, timeout=40)
            found[text] = {"status": done.returncode, "said": (done.stdout + done.stderr)[-300:]}
            found[text]["first_lives"] = one.process.poll() is None
        other = machine.client("other", SIZES["small"], 1, told[0])
        other.told(20.0)
        found["as its client"] = {"steps": other.done(), "said": other.said()[-300:]}
        end([one, other])
    return found


def report(folder: Path) -> str:
    """Return the table of speeds: what all trainings do together, in times one alone, by mode."""
    lines = ["| trainings | mode | together, times one alone | slowest | rounds |", "| --- | --- | --- | --- | --- |"]
    of_mode: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in read(folder / "speeds.jsonl"):
        parts = [one["steps_per_s"] / row["alone"][one["size"]] for one in row["trainings"]]
        of_mode[row["set"], row["mode"]].append((sum(parts), min(parts)))
    for (name, mode), found in of_mode.items():
        together, slowest = ([one[k] for one in found] for k in (0, 1))
        spread = f"{statistics.median(together):.2f} ({min(together):.2f} to {max(together):.2f})"
        lines.append(f"| {name} | {mode} | {spread} | {min(slowest):.2f} | {len(found)} |")
    for row in read(folder / "accidents.jsonl"):
        lines.append(json.dumps(row))
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, as long as there is time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    if asked.report:
        print(report(asked.folder))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + asked.minutes * 60
    of_speeds, of_accidents = asked.folder / "speeds.jsonl", asked.folder / "accidents.jsonl"
    known = {(row["round"], row["set"], row["mode"]) for row in read(of_speeds)}
    tried = {(row["accident"], row["mode"]) for row in read(of_accidents)}
    machine = Machine()
    try:
        base = {size: alone(machine, size) for size in SIZES}
        print(base, flush=True)
        for round_ in range(asked.rounds):
            turn = round_ % len(MODES)
            for name, sizes in SETS.items():
                for mode in MODES[turn:] + MODES[:turn]:
                    if (round_, name, mode) not in known and time.monotonic() < until_s:
                        row = {
                            "round": round_,
                            "set": name,
                            "mode": mode,
                            "alone": base,
                            **speeds(machine, mode, sizes),
                        }
                        print(name, mode, [one["steps_per_s"] for one in row["trainings"]], flush=True)
                        add(of_speeds, [row])
            for mode in ("all", "each"):
                for name in (*ACCIDENTS, "talk"):
                    if (name, mode) in tried or time.monotonic() > until_s:
                        continue
                    found = talk(machine, mode) if name == "talk" else accident(machine, mode, name)
                    tried.add((name, mode))
                    print(name, mode, json.dumps(found), flush=True)
                    add(of_accidents, [{"accident": name, "mode": mode, **found}])
    finally:
        shutil.rmtree(machine.folder, ignore_errors=True)
    print(report(asked.folder))


if __name__ == "__main__":
    main()
