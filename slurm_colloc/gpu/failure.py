# SPDX-License-Identifier: Apache-2.0
"""The cause of a task's death, by its exit status and its last words.

Only a task that failed is asked: a program that met "out of memory", tried a smaller batch and ended well is done. The
words are those of CUDA, of the frameworks above it, and of srun and slurmstepd; those for the GPU's memory are data,
out_of_memory.toml.
"""

import math
import re
import tomllib
from enum import StrEnum
from importlib.resources import files

from slurm_colloc.core.units import size_mib

TAIL_BYTES = 64 * 1024
_LONGEST_WORDS = 200


class Outcome(StrEnum):
    """How one attempt at a task ended."""

    DONE = "done"
    FAILED = "failed"
    GPU_OOM = "gpu out of memory"
    GPU_FAULT = "gpu fault"
    NOT_SHARING = "not under mps"
    HOST_OOM = "host out of memory"
    TIME_LIMIT = "time limit"
    LOST = "lost"
    STOPPED = "stopped"


# Nothing runs on that GPU again before the node's administrator has seen to it.
_GONE = (rb"GPU has fallen off the bus", rb"GPU is lost", rb"NVML_ERROR_GPU_IS_LOST")
_OUT_OF_MEMORY = tomllib.loads(files("slurm_colloc.gpu").joinpath("out_of_memory.toml").read_text())["words"]
# Slurm's own words come first: they are said about the task, not by it. Then what broke the GPU's context: a program
# whose neighbour broke it prints, under MPS, the very words of that neighbour, and may well add that it cannot
# allocate either. Out of memory is last.
_WORDS: tuple[tuple[Outcome, tuple[bytes, ...]], ...] = (
    (
        Outcome.HOST_OOM,
        (rb"[Dd]etected \d+ oom[_-]kill event", rb"srun: error: [^:\n]{1,255}: tasks? [-,\d]+: Out Of Memory\b"),
    ),
    (Outcome.TIME_LIMIT, (rb"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+ DUE TO TIME LIMIT",)),
    (Outcome.STOPPED, (rb"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT ",)),
    # It breaks the context of the task that made it and, unlike an illegal access, of no neighbour: seen under MPS.
    (Outcome.FAILED, (rb"device-side assert triggered", rb"cudaErrorAssert", rb"CUDA_ERROR_ASSERT")),
    (
        Outcome.GPU_FAULT,
        (
            rb"CUDA error: an illegal memory access",
            rb"an illegal memory access was encountered",
            rb"cudaErrorIllegalAddress",
            rb"CUDA_ERROR_ILLEGAL_ADDRESS",
            rb"unspecified launch failure",
            rb"cudaErrorLaunchFailure",
            rb"CUDA_ERROR_LAUNCH_FAILED",
            rb"uncorrectable ECC error",
            *_GONE,
            rb"CUDA_ERROR_MPS_\w+",
            rb"cudaErrorMps\w+",
            rb"MPS_SERVER_NOT_READY",
            rb"MPS client failed to connect",
            rb"remote procedural call between the MPS server and the MPS client failed",
            rb"CU(?:DNN|BLAS)_STATUS_EXECUTION_FAILED",
            rb"MPS client (?:has been )?terminated",
        ),
    ),
    (Outcome.GPU_OOM, tuple(words["pattern"].encode() for words in _OUT_OF_MEMORY)),
    # numpy says it of host memory, and other libraries of the GPU's: the allocator's own words would have been found.
    (Outcome.HOST_OOM, (rb"_ArrayMemoryError", rb"DefaultCPUAllocator: can't allocate memory")),
    (Outcome.GPU_OOM, (rb"Unable to allocate",)),
)
# Sizes that PyTorch and JAX, and that CuPy and llama.cpp could not get.
_TRIED = re.compile(
    rb"(?:[Tt]r(?:ied|ying) to allocate|Out of memory allocating|allocating(?= [\d.]+ MiB on device \d+: cudaMalloc))"
    rb" ([\d,]*\d(?:\.\d+)?) ?(bytes|[KMG]i?B)\b"
)
_IS_GONE = re.compile(b"|".join(_GONE).decode())
_SAYS = [(outcome, re.compile(b"|".join(words))) for outcome, words in _WORDS]


def outcome_of(status: int, output: bytes) -> tuple[Outcome, str]:
    """Return how a task ended, and the line that told it ("" if none did).

    Args:
        status: its exit status; negative for the signal that ended it.
        output: the end of its output, or of what srun said of it.
    """
    if status == 0:
        return Outcome.DONE, ""
    tail = output[-TAIL_BYTES:]
    for outcome, pattern in _SAYS:
        if match := pattern.search(tail):
            return outcome, _line(tail, match)
    return Outcome.FAILED, ""


def tried_mib(output: bytes) -> int | None:
    """Return how much the last allocation that failed was to be, None where nobody said."""
    sizes = _TRIED.findall(output)
    if not sizes:
        return None
    amount, unit = sizes[-1]
    return math.ceil(size_mib(float(amount.replace(b",", b"")), "" if unit == b"bytes" else unit[:1].decode()))


def gpu_is_gone(line: str) -> bool:
    """Return whether the words that told a task's end say that there is no GPU any more."""
    return _IS_GONE.search(line) is not None


def _line(tail: bytes, match: "re.Match[bytes]") -> str:
    """Return the line around what was found, short enough for a table."""
    start = tail.rfind(b"\n", 0, match.start()) + 1
    last = tail.find(b"\n", match.end())
    start = max(start, match.end() - _LONGEST_WORDS)
    words = tail[start : last if last >= 0 else len(tail)].decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in words).strip()[:_LONGEST_WORDS]
