# SPDX-License-Identifier: Apache-2.0
"""Programs that take a part of the memory of whatever GPU they find: how much, as a script tells them, and for what.

Their memory says nothing of their need, but the part is written there. It is a part of the slice on a slice, and of the
whole GPU beside others. The command stays the user's: csub says which part goes with a piece.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.core.units import BYTES_PER_MIB


class Program(NamedTuple):
    """One program: how it is started, by which option or variable it is told its part, and what it takes untold.

    ``takes_more`` says that the part is of what it allocates at first, and that it takes more beside; ``unless`` are
    settings with which it takes only what it needs.
    """

    name: str
    starts: bytes
    told_by: str
    untold: float | None
    takes_more: bool = False
    unless: bytes = rb"(?!)"


# Taken from the programs' own documentation: vLLM 0.11, SGLang 0.5, text-generation-inference 3, JAX 0.7.
PROGRAMS = (
    Program("vLLM", rb"\bvllm(?:[ \t]+serve\b|\.entrypoints\.)", "--gpu-memory-utilization", 0.9),
    Program("SGLang", rb"\bsglang(?:\.launch_server\b|[ \t]+serve\b)", "--mem-fraction-static", 0.9, takes_more=True),
    Program("TGI", rb"\btext-generation-(?:launcher|server)\b", "--cuda-memory-fraction", 1.0),
    Program(
        "JAX",
        rb"\bXLA_PYTHON_CLIENT_MEM_FRACTION=",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        0.75,
        unless=rb"\bXLA_PYTHON_CLIENT_(?:PREALLOCATE=[\"']?(?:false|0)|ALLOCATOR=[\"']?platform)",
    ),
)
# Programs that load a model say where it lies; one that loads it smaller than it lies there is not judged.
_LOADS = re.compile(rb"\b(?:vllm|sglang|text-generation-launcher|llama-(?:server|cli))\b")
_MODEL = re.compile(
    rb"(?:\bvllm[ \t]+serve|--model(?:-path|-id)?|\bllama-(?:server|cli)\b[^\n;|&]{0,400}?[ \t]-m)"
    rb"[ \t=]+[\"']?([^\s\"'-][^\s\"']*)"
)
_SMALLER = re.compile(
    rb"--(?:quantization|quantize|load-in|load-format|dtype[ =]*fp8|cpu-offload|n-gpu-layers)|[ \t]-ngl\b"
)
_WEIGHTS = (".safetensors", ".gguf")
_MOST_FILES = 512


class Told(NamedTuple):
    """The part that one program is told; ``part`` is None where that is not a number."""

    program: Program
    part: float | None

    @property
    def part_of_gpu(self) -> float:
        """Return what it takes of a GPU that it finds, at most."""
        return 1.0 if self.part is None or self.program.takes_more else self.part


def memory_part(text: bytes, environ: Mapping[str, str]) -> Told | None:
    """Return which program a script, with its arguments behind it, starts, and its part; None of any other script."""
    text = text.replace(b"\\\n", b" ")
    named = b"\n".join(f"{name}={environ[name]}".encode() for name in environ if name.startswith("XLA_PYTHON_CLIENT_"))
    for program in PROGRAMS:
        where = text if program.told_by.startswith("-") else text + b"\n" + named
        if not re.search(program.starts, where) or re.search(program.unless, where):
            continue
        found = re.findall(re.escape(program.told_by).encode() + rb"[ \t=]+[\"']?([^\s\"']+)", where)
        if not found:
            return Told(program, program.untold)
        with suppress(ValueError):
            if 0 < (part := float(found[-1])) <= 1:
                return Told(program, part)
        return Told(program, None)
    return None


def weights_mib(text: bytes, folder: str, environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the model that a script loads and how much its weights are, by their files; None where nobody can say."""
    text = text.replace(b"\\\n", b" ")
    if not _LOADS.search(text) or _SMALLER.search(text) or (found := _MODEL.search(text)) is None:
        return None
    name = os.path.expanduser(found[1].decode(errors="surrogateescape"))
    size = sum(map(_size, _files(os.path.join(folder, name)) or _files(_cached(name, environ))))
    return (name, -(-size // BYTES_PER_MIB)) if size else None


def _files(path: str) -> list[str]:
    """Return the files of a model: those in its folder, or it itself with the further parts of the same one."""
    if path.endswith(_WEIGHTS) and os.path.isfile(path):
        if (part := re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", path)) is None:
            return [path]
        return [one for one in _listed(os.path.dirname(path)) if one.startswith(part[1]) and one.endswith(part[2])]
    return [one for one in _listed(path) if one.endswith(".safetensors")]


def _cached(name: str, environ: Mapping[str, str]) -> str:
    """Return the folder of the only snapshot of a model of the Hugging Face hub on this host; empty for none."""
    home = environ.get("HF_HOME") or os.path.join(environ.get("HOME", ""), ".cache/huggingface")
    hub = environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    there = (
        _listed(os.path.join(hub, f"models--{name.replace('/', '--')}", "snapshots")) if name.count("/") == 1 else []
    )
    return there[0] if len(there) == 1 else ""


def _listed(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for _, entry in zip(range(_MOST_FILES), entries, strict=False)]
    except OSError:
        return []


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
