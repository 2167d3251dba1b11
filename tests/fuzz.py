# SPDX-License-Identifier: Apache-2.0
"""Throw spoiled text at every parser of what a user controls: `python -m tests.fuzz --seconds 540 --processes 16`.

The parsers are the table in fuzz_targets.py. Each worker takes them in turn, so each gets the same time. An input is
kept for further mutation where it led to an outcome not seen before: another line that refused it, another shape of
what it gave, or (Python 3.12) a line of the project that nothing had reached. Besides an exception that is no clean
refusal, more than a second of CPU time and more than 256 MiB of memory for at most 64 KiB are findings; each is kept
as a file. The standard library, the project and ClusterShell suffice; targets that want more are passed over by name.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import random
import re
import resource
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import slurm_colloc

LARGEST_BYTES = 64 * 1024
SLOW_S, HANGS_S = 1.0, 20.0
GREW_MIB, MOST_MIB = 256, 16_384
SLICE_S = 0.1
_KEPT = 400
_LARGE_EVERY = 64
_TEXT_EVERY = 3
_PROJECT = str(Path(slurm_colloc.__file__).parent)

# What parsers trip over: numbers beyond bounds, what other languages take for an end, digits and blanks of others.
TOKENS = (
    *(b"\0", b"\n", b"\r", b"\r\n", b"\\\n", b"\\", b"'", b'"', b"`", b"$(x)", b"${x}", b";", b"|", b"||", b"#", b"%"),
    *(b" ", b"\t", b"\x0b", b"\x0c", b"\x1c", b"\x1f", b"\x7f", b"\x1b[31m", b"\xff", b"\xc3", b"\xed\xa0\x80"),
    *(
        s.encode()
        for s in ("\u2028", "\u0085", "\u00a0", "\ufeff", "\u202e", "\u0663", "\u00b2", "\U0001d7d8", "\u0130")
    ),
    *(b"0", b"-1", b"-0", b"+1", b"1e308", b"1e999", b"nan", b"inf", b"0x10", b"1_000", b"4294967294", b"2147483648"),
    *(b"18446744073709551615", b"9" * 40, b"9" * 310, b"9" * 4400, b"1." + b"0" * 400, b"00000", b"0-4294967295"),
    *(
        b"(null)",
        b"None",
        b"N/A",
        b"Unknown",
        b"UNLIMITED",
        b"[",
        b"]",
        b"{",
        b"}",
        b"[[",
        b'{"a":',
        b"(",
        b")",
        b"IDX:",
    ),
    *(b",", b":", b"=", b"==", b"-", b"--", b".", b"..", b"/", b"../", b"~", b"+", b"*", b"@", b"&&", b">", b"<<EOF\n"),
    *(b"#SBATCH ", b"#CSUB ", b"#SBATCH hetjob\n", b"--gres=gpu:1", b"--wrap=", b"gpu:", b"gres/gpu=", b"mem=9G,sm=30"),
    *(b"srun -G 1 ", b"scontrol ", b"requeue", b"python -m ", b"source ", b"export A=", b"$A", b"python t.py --b 64 "),
    *(b"\nNodeName=", b" UserId=u(1)", b"2024-01-01T00:00:00", b"0001-01-01T00:00:00", b"9999-12-31T23:59:59+14:00"),
    *(b"<!--", b"DCGM_FI_PROF_SM_ACTIVE{", b'="', b"\x1fJobID\x1f", b"12+3", b"12_[1-3%2]", b"12.batch"),
)
# JSON's own traps; texts are put in as they are.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "0", "a", "\ud800", "\0", "\n", "../../x", "x" * 5000, "\u202e", "9" * 5000),
    *([], [[]], {}, {"": None}, [None], [1, 2, 3], {"a": 1}, ["\ud800"], [10**400]),
)
_NUMBER = re.compile(rb"\d+")


class Target(NamedTuple):
    """A parser: ``refusals`` are the exceptions by which it says no; any other, and AssertionError, is a finding."""

    name: str
    call: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    refusals: tuple[type[BaseException], ...]
    is_json: bool = False


class Finding(NamedTuple):
    """What an input did; ``key`` is the same for what has one cause."""

    target: str
    key: str
    said: str
    content: bytes
    seed: int


class Tally(NamedTuple):
    """What came of one target's inputs."""

    inputs: int
    spent_s: float
    outcomes: frozenset[int]
    slowest_ms: float


class _HangsError(BaseException):
    """An input that takes too long; not an Exception, so that no parser catches it."""


# --- inputs ---


def mutate(rng: random.Random, kept: Sequence[bytes], large: bool) -> bytes:
    """Return a text of ``kept`` with a few things changed, now and then one blown up to 64 KiB."""
    content = bytearray(kept[int(rng.random() * len(kept))])
    for _ in range(1 + int(rng.random() ** 3 * 6)):
        _CHANGES[int(rng.random() * len(_CHANGES))](rng, content, kept)
    if large:
        _blow_up(rng, content)
    return bytes(content[:LARGEST_BYTES])


def _span(rng: random.Random, content: bytearray) -> tuple[int, int]:
    at = int(rng.random() * (len(content) + 1))
    return at, min(len(content), at + 1 + int(rng.random() ** 3 * 64))


def _flip(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    if content:
        content[int(rng.random() * len(content))] ^= 1 << int(rng.random() * 8)


def _put_token(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    at, end = _span(rng, content)
    content[at : end if rng.random() < 0.3 else at] = TOKENS[int(rng.random() * len(TOKENS))]


def _put_number(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    found = _NUMBER.search(content, int(rng.random() * (len(content) + 1))) or _NUMBER.search(content)
    if found:
        content[found.start() : found.end()] = rng.choice(
            (b"0", b"1", b"", b"-1", b"9" * int(rng.random() * 30), b"1.5", b"%d" % rng.getrandbits(40))
        )


def _cut(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    at, end = _span(rng, content)
    del content[at:end]


def _truncate(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    del content[int(rng.random() * (len(content) + 1)) :]


def _double(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    at, end = _span(rng, content)
    content[at:at] = content[at:end] * int(1 + rng.random() * 3)


def _splice(rng: random.Random, content: bytearray, kept: Sequence[bytes]) -> None:
    other = kept[int(rng.random() * len(kept))]
    begin, at = int(rng.random() * (len(other) + 1)), int(rng.random() * (len(content) + 1))
    content[at:] = other[begin:]


_CHANGES = (_flip, _put_token, _put_token, _put_number, _cut, _truncate, _double, _splice)


def _blow_up(rng: random.Random, content: bytearray) -> None:
    """Repeat a token, or a part of the text, as often as there is room: what is quadratic takes seconds then."""
    at, end = _span(rng, content)
    piece = bytes(content[at:end]) if rng.random() < 0.5 else TOKENS[int(rng.random() * len(TOKENS))]
    size = LARGEST_BYTES if rng.random() < 0.5 else int(1024 * 64 ** rng.random())
    content[at:at] = (piece or b" ") * max(0, (size - len(content)) // max(1, len(piece)))


def mutate_json(rng: random.Random, kept: Sequence[bytes]) -> bytes | None:
    """Return a JSON text of ``kept`` with one value or key changed; None where it is no JSON."""
    try:
        root: list[Any] = [json.loads(kept[int(rng.random() * len(kept))])]
        holder: Any = root
        key: Any = 0
        while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.8:
            holder = holder[key]
            key = rng.choice(list(holder)) if isinstance(holder, dict) else int(rng.random() * len(holder))
        if rng.random() < 0.2 and holder is not root:
            del holder[key]
        else:
            holder[key] = VALUES[int(rng.random() * len(VALUES))]
        return json.dumps(root[0]).encode()
    except (ValueError, RecursionError, TypeError, IndexError):
        return None


# --- one target ---


class Hunt:
    """One worker's attack on one target, so far."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target, self.seed = target, seed
        self.rng = random.Random(f"{target.name} {seed}")
        self.kept = [text[:LARGEST_BYTES] for text in target.seeds] or [b""]
        self.outcomes: set[int] = set()
        self.findings: dict[str, Finding] = {}
        self.inputs, self.spent_s, self.slowest_s = 0, 0.0, 0.0

    def run(self, inputs: int = sys.maxsize, until_s: float = float("inf")) -> None:
        """Try so many inputs, or until this time of the monotonic clock; the seeds as they are come first."""
        for _ in range(inputs):
            content = self._next()
            reached = len(_reached)
            outcome = self._try(content)
            if outcome not in self.outcomes or len(_reached) > reached:
                self.outcomes.add(outcome)
                if len(content) < 4096 and len(self.kept) < _KEPT:
                    self.kept.append(content)
                else:
                    self.kept[int(self.rng.random() * len(self.kept))] = content[:4096]
            if time.monotonic() >= until_s:
                return

    def tally(self) -> Tally:
        return Tally(self.inputs, self.spent_s, frozenset(self.outcomes), 1000 * self.slowest_s)

    def _next(self) -> bytes:
        if self.inputs < len(self.target.seeds):
            return self.kept[self.inputs]
        if self.target.is_json and self.rng.random() * _TEXT_EVERY >= 1:
            content = mutate_json(self.rng, self.kept)
            if content is not None:
                return content[:LARGEST_BYTES]
        return mutate(self.rng, self.kept, self.rng.random() * _LARGE_EVERY < 1)

    def _try(self, content: bytes) -> int:
        """Return what came of one input, as a number."""
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S)
        began_s = time.thread_time()
        try:
            outcome = shape(self.target.call(content))
        except self.target.refusals as error:
            outcome = hash((type(error).__name__, *_lines(error)))
        except _HangsError:
            self._found("hangs", f"no end after {HANGS_S:g} s of CPU time", content)
            outcome = hash("hangs")
        except Exception as error:  # noqa: BLE001 - what is looked for
            said = "".join(traceback.format_exception(error))
            self._found(f"{type(error).__name__} {_where(error)}", said, content)
            outcome = hash(type(error).__name__)
        spent_s = time.thread_time() - began_s
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self.inputs += 1
        self.spent_s += spent_s
        self.slowest_s = max(self.slowest_s, spent_s)
        if spent_s > SLOW_S:
            self._found("slow", f"{spent_s:.1f} s of CPU time for {len(content)} bytes", content)
        grew_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
        if grew_mib > GREW_MIB:
            self._found("memory", f"{grew_mib:.0f} MiB for {len(content)} bytes", content)
        return outcome

    def _found(self, key: str, said: str, content: bytes) -> None:
        before = self.findings.get(key)
        if before is None or len(content) < len(before.content):
            self.findings[key] = Finding(self.target.name, key, said, content, self.seed)


def shape(value: object, depth: int = 3) -> int:
    """Return a number for what a result looks like: its kinds and rough sizes, not its words."""
    if value is None or isinstance(value, bool):
        return hash(value) + 7
    if isinstance(value, int | float):
        return hash((type(value).__name__, value > 0, value > 2**31))
    if isinstance(value, str | bytes):
        return hash((type(value).__name__, len(value).bit_length() // 3))
    if isinstance(value, dict):
        value = tuple(value.items())
    if isinstance(value, tuple | list) and depth:
        return hash((type(value).__name__, len(value).bit_length(), *(shape(one, depth - 1) for one in value[:24])))
    return hash(type(value).__name__)


def _lines(error: BaseException) -> list[int]:
    found = []
    at = error.__traceback__
    while at is not None:
        found.append(at.tb_lineno)
        at = at.tb_next
    return found


def _where(error: BaseException) -> str:
    """Return the project's last line that the error came through; of an invariant, which one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(_PROJECT)] or [frames[-1]]
    at = frames[-1] if isinstance(error, AssertionError) else ours[-1]
    return f"{Path(at.filename).name}:{at.lineno}"


# --- lines reached, where Python tells for nothing ---

_reached: set[tuple[int, int]] = set()


def watch_lines() -> bool:
    """Note each line of the project when it is first reached; False before Python 3.12, which could not do it cheaply.

    A line that was seen once is switched off, so that this costs nothing in the long run.
    """
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None:
        return False

    def reached(code: CodeType, line: int) -> object:
        if code.co_filename.startswith(_PROJECT):
            _reached.add((id(code), line))
        return monitoring.DISABLE

    monitoring.use_tool_id(monitoring.COVERAGE_ID, "fuzz")
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, reached)
    monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
    return True


def prepare() -> None:
    """Let an input that hangs be interrupted."""

    def hangs(_number: int, _frame: FrameType | None) -> None:
        raise _HangsError

    signal.signal(signal.SIGVTALRM, hangs)


# --- all of them ---


def _work(job: tuple[int, float, str]) -> tuple[dict[str, Tally], list[Finding]]:
    from tests import fuzz_targets
    from tests.fuzz_texts import FOLDERS

    seed, until_s, only = job
    # What waits for ever takes no CPU time: where it does is shown, or where an interpreter dies, and the whole ends.
    faulthandler.enable()
    faulthandler.dump_traceback_later(until_s - time.monotonic() + 2 * HANGS_S, exit=True)
    # Who asks for all memory shall be refused it, not end the machine.
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MIB << 20, MOST_MIB << 20))
    prepare()
    watch_lines()
    hunts = [Hunt(target, seed) for target in fuzz_targets.targets()[0] if only in target.name]
    while time.monotonic() < until_s:
        for hunt in hunts:
            hunt.run(until_s=min(until_s, time.monotonic() + SLICE_S))
    FOLDERS.remove()
    faulthandler.cancel_dump_traceback_later()
    return {hunt.target.name: hunt.tally() for hunt in hunts}, [f for hunt in hunts for f in hunt.findings.values()]


def table(results: Sequence[dict[str, Tally]], findings: Sequence[Finding]) -> list[str]:
    lines = [f"{'target':24} {'inputs':>12} {'per s':>9} {'outcomes':>9} {'slowest ms':>11} {'findings':>9}"]
    total = 0
    for name in results[0]:
        all_of = [result[name] for result in results]
        inputs, spent_s = sum(one.inputs for one in all_of), sum(one.spent_s for one in all_of)
        outcomes = len(frozenset().union(*(one.outcomes for one in all_of)))
        slowest, count = max(one.slowest_ms for one in all_of), len({f.key for f in findings if f.target == name})
        per_s = inputs / max(spent_s, 1e-9)
        lines.append(f"{name:24} {inputs:12,} {per_s:9,.0f} {outcomes:9,} {slowest:11,.1f} {count:9}")
        total += inputs
    return [*lines, f"{'all':24} {total:12,}"]


def save(folder: Path, findings: Sequence[Finding]) -> list[str]:
    """Write each finding's smallest input, and beside it what it did and the seed that makes it."""
    smallest: dict[tuple[str, str], Finding] = {}
    for one in sorted(findings, key=lambda one: len(one.content)):
        smallest.setdefault((one.target, one.key), one)
    said = []
    for (target, key), one in sorted(smallest.items()):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{target}-{zlib.crc32(key.encode()):08x}"
        path.with_suffix(".input").write_bytes(one.content)
        path.with_suffix(".txt").write_text(f"{target}: {key}\nseed {one.seed}\n{one.said}\n", errors="replace")
        said.append(f"{target}: {key}: {path.with_suffix('.input')}")
    return said


def main() -> int:
    """Fuzz for a time and print what came of it; 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", default="", help="targets whose name holds this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="where findings are kept")
    given = parser.parse_args()
    from tests import fuzz_targets

    _, passed_over = fuzz_targets.targets()
    until_s = time.monotonic() + given.seconds
    jobs = [(given.seed + number, until_s, given.only) for number in range(given.processes)]
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("fork")) as pool:
        done = list(pool.map(_work, jobs))
    findings = [one for _, found in done for one in found]
    print("\n".join(table([tallies for tallies, _ in done], findings)))
    print("\n".join([*(f"passed over: {name}" for name in passed_over), *save(given.out, findings)]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
