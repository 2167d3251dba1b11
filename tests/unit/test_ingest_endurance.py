# SPDX-License-Identifier: Apache-2.0
"""Ingests that are killed, and many rows: a reduced form in every run, the long one by `make soak`."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rings import tenth

FIRST_S = 1_767_225_600
WINDOW = ["--since", "2026-01-01T00:00:00+00:00", "--until", "2027-01-01T00:00:00+00:00"]
COLLOC = [sys.executable, "-m", "slurm_colloc.cli.colloc"]


def write_rows(path: Path, count: int) -> dict[str, float]:
    """Write made-up runs as sacct prints them; return GPU-hours by user, added up here and not by the project."""
    draw = random.Random(count)
    hours: dict[str, float] = {}
    with path.open("w") as stream:
        for number in range(1, count + 1):
            user, gpus, length_s = f"u{draw.randrange(40)}", draw.choice((0, 1, 1, 2, 8)), draw.randrange(1, 86_400)
            start_s = FIRST_S + draw.randrange(300 * 86_400)
            tres = f"billing=4,cpu=4,mem=1G,node=1{f',gres/gpu={gpus}' if gpus else ''}"
            times = f"{start_s - 5}|{start_s}|{start_s + length_s}"
            stream.write(f"{number}|{number}|c|{user}|lab|gpu|normal|COMPLETED|{times}|00:00:00|{tres}|n1|job\n")
            if gpus:
                hours[user] = hours.get(user, 0.0) + gpus * length_s / 3600
    return hours


def ingest(source: Path, store: Path) -> list[str]:
    return [*COLLOC, "ingest", "--sacct-file", str(source), "--store", str(store)]


def reported(store: Path) -> dict[str, float]:
    argv = [*COLLOC, "report", "--store", str(store), "--format", "json", *WINDOW]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return {group["name"]: group["allocated_gpu_hours"] for group in json.loads(done.stdout)["groups"]}


@pytest.mark.parametrize("count", [5_000, pytest.param(2_000_000, marks=pytest.mark.soak)])
def test_every_row_counts_once_however_many(tmp_path: Path, count: int) -> None:
    hours = write_rows(tmp_path / "sacct.txt", tenth(count))
    begun = time.monotonic()
    for _ in range(2):
        subprocess.run(ingest(tmp_path / "sacct.txt", tmp_path / "store"), check=True, capture_output=True)
    found = reported(tmp_path / "store")
    print(f"{tenth(count)} rows, two ingests and a report: {time.monotonic() - begun:.1f} s")
    assert found == pytest.approx(hours, rel=1e-12)


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=pytest.mark.soak)])
def test_a_killed_ingest_harms_nothing(tmp_path: Path, kills: int) -> None:
    source, store = tmp_path / "sacct.txt", tmp_path / "store"
    hours = write_rows(source, 20_000)
    begun = time.monotonic()
    subprocess.run(ingest(source, store), check=True, capture_output=True)
    whole_s = time.monotonic() - begun
    draw = random.Random(kills)
    killed = 0
    for _ in range(kills):
        running = subprocess.Popen(ingest(source, store), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.2, 1.0) * whole_s)
        running.kill()
        killed += running.wait() != 0
        assert reported(store) == pytest.approx(hours, rel=1e-12)
    assert killed
    subprocess.run(ingest(source, store), check=True, capture_output=True)
    assert reported(store) == pytest.approx(hours, rel=1e-12)
