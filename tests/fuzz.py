# SPDX-License-Identifier: Apache-2.0
"""Throw spoiled text at every parser of what a user controls: `python -m tests.fuzz --seconds 540`.

The parsers are the table in fuzz_targets.py. Besides an exception that is no clean refusal, more than a second of CPU
time and more than 256 MiB of memory for at most 64 KiB are findings; each is printed with its input.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

LARGEST_BYTES = 64 * 1024
SLOW_S, HANGS_S = 1.0, 20.0
GREW_MIB = 256
_LARGE_EVERY = 64
_TEXT_EVERY = 3

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


def inputs(target: Target, seed: int, count: int) -> list[bytes]:
    """Return the target's seeds as they are, and so many spoiled ones."""
    rng = random.Random(f"{target.name} {seed}")
    kept = [text[:LARGEST_BYTES] for text in target.seeds] or [b""]
    found = list(kept)
    for _ in range(count):
        content = None
        if target.is_json and rng.random() * _TEXT_EVERY >= 1:
            content = mutate_json(rng, kept)
        if content is None:
            content = mutate(rng, kept, rng.random() * _LARGE_EVERY < 1)
        found.append(content[:LARGEST_BYTES])
    return found


def problem(target: Target, content: bytes) -> str:
    """Return what is wrong with what the target makes of an input; empty where it reads it, or refuses it."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S)
    began_s = time.thread_time()
    try:
        target.call(content)
    except target.refusals:
        pass
    except _HangsError:
        return f"no end after {HANGS_S:g} s of CPU time"
    except Exception as error:  # noqa: BLE001 - what is looked for
        return "".join(traceback.format_exception(error))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    spent_s = time.thread_time() - began_s
    if spent_s > SLOW_S:
        return f"{spent_s:.1f} s of CPU time for {len(content)} bytes"
    grew_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    return f"{grew_mib:.0f} MiB for {len(content)} bytes" if grew_mib > GREW_MIB else ""


def prepare() -> None:
    """Let an input that hangs be interrupted."""

    def hangs(_number: int, _frame: FrameType | None) -> None:
        raise _HangsError

    signal.signal(signal.SIGVTALRM, hangs)


def main() -> int:
    """Fuzz for a time and print what was found, the first of each target; 1 where something was."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default="", help="targets whose name holds this")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    from tests import fuzz_targets

    prepare()
    left = [target for target in fuzz_targets.targets()[0] if given.only in target.name]
    until_s, seed, total, found = time.monotonic() + given.seconds, given.seed, 0, 0
    while left and time.monotonic() < until_s:
        for target in tuple(left):
            for content in inputs(target, seed, 100):
                total += 1
                if said := problem(target, content):
                    print(f"{target.name}: {content!r}\n{said}")
                    left.remove(target)
                    found += 1
                    break
        seed += 1
    print(f"{total:,} inputs, {found} findings")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
