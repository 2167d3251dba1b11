# SPDX-License-Identifier: Apache-2.0
"""How targets of the fuzzer are made, and the recordings that they start from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from slurm_colloc.core.errors import ConfigError, GpuError, InputError, StoreError
from tests.fuzz import Target

TESTS = Path(__file__).parent
NOWHERE = "/nonexistent"
_SEED_BYTES = 12_000


class InFolder(NamedTuple):
    """A reader of the file ``name`` in a folder that it is given."""

    name: str
    read: Callable[[str], object]


def recorded(*patterns: str) -> tuple[bytes, ...]:
    """Return the beginnings of these files below tests/."""
    paths = [path for pattern in patterns for path in sorted(TESTS.glob(pattern)) if path.is_file()]
    assert paths, patterns
    return tuple(dict.fromkeys(path.read_bytes()[:_SEED_BYTES] for path in paths))


def text_of(content: bytes) -> str:
    return content.decode(errors="surrogateescape")


def of_text(
    name: str,
    parse: Callable[[str], object],
    *seeds: bytes,
    refusals: tuple[type[BaseException], ...] = (InputError,),
    is_json: bool = False,
) -> Target:
    return Target(name, lambda content: parse(text_of(content)), seeds, refusals, is_json)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="colloc-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def in_file(name: str, file: InFolder, *seeds: bytes, is_json: bool = False) -> Target:
    """Return a target that writes each input into a file of its own folder first."""

    def call(content: bytes) -> object:
        folder = os.path.join(_folder().name, name)
        path = os.path.join(folder, file.name)
        if not os.path.isdir(os.path.dirname(path)):
            os.makedirs(os.path.dirname(path), mode=0o700)
        with open(path, "wb") as stream:
            stream.write(content)
        return file.read(folder)

    return Target(name, call, seeds, (StoreError, InputError, ConfigError, GpuError), is_json)
