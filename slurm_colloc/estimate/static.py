# SPDX-License-Identifier: Apache-2.0
"""What the files that a job names say it needs at least: a veto, never a permission. No code is run or imported.

The weights of a model must lie on the GPU, in no fewer bytes than a program is likely to keep them in: numbers of four
bytes may be halved as they are read, and options that say four or eight bits are believed. A few files are looked at,
of which the first bytes alone are read.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.units import BYTES_PER_MIB as MIB
from slurm_colloc.units import printable

_MOST_FILES, _MOST_WORDS, _MOST_LETTERS = 8, 64, 120
_HEADER_BYTES = 8 * 1024 * 1024
_WORD = re.compile(r"[^\s\"'=;|&<>()`]+")
_ASSIGNED = re.compile(r"(?m)^[^\S\n]*(?:export\s+)?([A-Za-z_]\w*)=[\"']?([^\s\"';|&$`()]+)")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_FOUR_BITS = re.compile(r"(?i)\b(?:load[-_]in[-_]4bit|4[-_]?bit|int4|nf4|fp4|awq|gptq|qlora)\b|bits[= ]4\b")
_EIGHT_BITS = re.compile(r"(?i)\b(?:load[-_]in[-_]8bit|8[-_]?bit|int8|fp8|bitsandbytes)\b|quanti[sz]|bits[= ]8\b")
# Where not all of a model need lie on the GPU at a time.
_ELSEWHERE = re.compile(r"(?i)offload|device[-_]map|zero[-_]?3|deepspeed|fsdp|cpu[-_]only|no[-_]cuda|--device[= ]cpu")
_TRAINS = re.compile(r"(?i)--(?:do[-_]train|learning[-_]rate|lr|num[-_]train[-_]epochs|optim\w*)\b|fine[-_]?tun")
_PARTLY = re.compile(r"(?i)lora|peft|adapter|freez|frozen|linear[-_]?prob|prompt[-_]tun|prefix[-_]tun|\beval")
_ADAM = re.compile(r"(?i)--optim\w*[= ]\"?'?adamw?(?:_torch(?:_fused)?|_hf)?\b")


class Floor(NamedTuple):
    """How much GPU memory a job needs at least, in MiB, and why."""

    mib: float
    why: str


def least_memory(text: str, arguments: Sequence[str], environ: Mapping[str, str], folder: str) -> Floor | None:
    """Return what the files say that a script or its arguments name; None where they say nothing.

    Args:
        text: the script.
        arguments: its own.
        environ: of the submission.
        folder: where it will run.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    said = " ".join([*lines, *arguments])
    if _ELSEWHERE.search(said):
        return None
    variables = {**environ, **dict(_ASSIGNED.findall("\n".join(lines)))}
    left = _MOST_FILES
    best: Floor | None = None
    for name in _named(said, variables):
        files = _weights_at(os.path.join(folder, os.path.expanduser(name)), left)
        left -= len(files)
        size = sum(_least_bytes(path, said) for path in files)
        if size and (best is None or size / MIB > best.mib):
            best = Floor(size / MIB, f"the weights in '{printable(name)[:_MOST_LETTERS]}'")
        if left <= 0:
            break
    return best and _trained(best, said)


def _trained(floor: Floor, said: str) -> Floor:
    """Return what training all of the weights needs: gradients beside them, and for Adam two moments more."""
    if not _TRAINS.search(said) or _PARTLY.search(said) or _FOUR_BITS.search(said) or _EIGHT_BITS.search(said):
        return floor
    adam = bool(_ADAM.search(said))
    return Floor(floor.mib * (4 if adam else 2), f"{floor.why}, their gradients{' and moments of Adam' * adam}")


def _named(said: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the words that may be a model's file or folder."""
    seen = set()
    for word in _WORD.findall(said):
        name = _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), word)
        is_file = name.endswith(_WEIGHTS)
        if name in seen or "$" in name or name.startswith("-") or "\0" in name or not (is_file or "/" in name):
            continue
        if name.endswith((".py", ".sh", ".log", ".txt", ".out", ".yaml", ".json")) or name.startswith(
            ("/dev", "/proc")
        ):
            continue
        seen.add(name)
        yield name
        if len(seen) >= _MOST_WORDS // 4:
            return


def _weights_at(path: str, most: int) -> list[str]:
    """Return the weights' files at a path: itself, or those of a model's folder, which has a config.json."""
    try:
        if path.endswith(_WEIGHTS):
            return [path][:most]
        if not stat.S_ISREG(os.stat(os.path.join(path, "config.json")).st_mode):
            return []
        with os.scandir(path) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_MOST_WORDS), strict=False)]
    except (OSError, ValueError):
        return []
    found = sorted(name for name in names if name.endswith(".safetensors"))
    found = found or sorted(name for name in names if re.fullmatch(r"pytorch_model.*\.bin", name))
    return [os.path.join(path, name) for name in found[:most]]


def _least_bytes(path: str, said: str) -> float:
    """Return how many bytes the weights in a file take on a GPU at least; 0 of what is no such file."""
    try:
        # A link is followed, for model stores are made of them; a FIFO must not hang the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return 0.0
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return 0.0
        # Of a file with holes only what was written counts.
        size = min(found.st_size, found.st_blocks * 512)
        least = 0.5 if _FOUR_BITS.search(said) else 1 if _EIGHT_BITS.search(said) else 2
        if path.endswith(".safetensors"):
            return _of_header(descriptor, size, least)
        # A checkpoint may hold two moments of Adam beside each weight; and either may be of four bytes.
        weights = size if path.endswith(".bin") else size / 3
        return weights * least / 4
    except OSError:
        return 0.0
    finally:
        os.close(descriptor)


def _of_header(descriptor: int, size: int, least: float) -> float:
    """Return the bytes of the tensors that a safetensors header lists; 0 where it does not fit its file."""
    length = int.from_bytes(os.read(descriptor, 8), "little")
    if not 2 <= length <= min(_HEADER_BYTES, size):
        return 0.0
    try:
        header = json.loads(os.read(descriptor, length))
        total = stored = 0.0
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            width = _BYTES.get(tensor["dtype"], 1)
            if not 0 <= begin <= end <= size:
                return 0.0
            stored += end - begin
            total += (end - begin) * min(1.0, least / width)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return 0.0
    return total if stored <= size else 0.0
