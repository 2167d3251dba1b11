# SPDX-License-Identifier: Apache-2.0
"""colloc from its arguments to what it says, in this process and at a chosen time."""

import io
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from slurm_colloc.cli.colloc import main
from slurm_colloc.core import clock

GOLDEN = Path(__file__).resolve().parents[1] / "golden/accounting"
SITE = GOLDEN / "site.toml"


class Said(NamedTuple):
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str


def colloc(*argv: str) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", ["colloc", *argv]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            return Said(int(ended.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("colloc went on after its end")


@contextmanager
def at_site(moment: datetime) -> Iterator[None]:
    """Be at the site of the golden cases, at that time."""
    still = SimpleNamespace(time=moment.timestamp, monotonic=time.monotonic)
    with mock.patch.object(clock, "time", still), mock.patch.dict(os.environ, {"COLLOC_CONF": str(SITE)}):
        yield


def ingest(store: Path, file: Path, text: bytes, written: datetime, *options: str) -> Said:
    """Take in ``text`` as a file of that name, written at that time."""
    file.write_bytes(text)
    os.utime(file, (written.timestamp(), written.timestamp()))
    return colloc("ingest", "--store", str(store), "--sacct-file", str(file), *options)


def report(store: Path, since: datetime, until: datetime, by: str = "user") -> Said:
    window = ("--since", since.isoformat(), "--until", until.isoformat())
    return colloc("report", "--store", str(store), "--format", "json", "--by", by, *window)


def shown(store: Path, since: datetime, until: datetime, by: str = "user") -> dict[str, Any]:
    """Return what a report of these hours says, of which there must be one."""
    said = report(store, since, until, by)
    assert said.status == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found
