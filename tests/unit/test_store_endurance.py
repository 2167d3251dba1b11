# SPDX-License-Identifier: Apache-2.0
"""flush and compact, killed while a sampler writes: a reduced form in every run, the long one by `make soak`."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.observe.journal import append
from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.store.store import Store
from tests.unit.made import HOUR, device, host, process, seen
from tests.unit.made import run as run_of
from tests.unit.stored import job_usage

DAY = 24 * HOUR
COLLOC = [sys.executable, "-m", "slurm_colloc.cli.colloc"]
SITE = """schema = 1
cluster = "c"
slurm_release = "22.05"
[paths]
state = "{folder}"
[observe]
keep_raw_days = {keep}
"""


@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.soak)])
def test_killed_while_rounds_are_appended(tmp_path: Path, kills: int) -> None:
    today_s = int(time.time()) // DAY * DAY
    draw = random.Random(kills)
    # In any order: lines that come late, too, and hours that grow. Just after midnight yesterday's last is still open.
    hours = [today_s - day * DAY + hour * HOUR for day in (1, 2, 4, 5) for hour in (0, 22)]
    times = [began_s + 10 * number for began_s in hours for number in range(180)]
    draw.shuffle(times)
    used: dict[int, float] = {}
    environment = {**os.environ, "COLLOC_CONF": str(tmp_path / "site.toml"), "SLURMD_NODENAME": "g1"}

    def keep_raw_days(days: int) -> None:
        (tmp_path / "site.toml").write_text(SITE.format(folder=tmp_path, keep=days))

    def write(count: int) -> None:
        for _ in range(count):
            at_s, percent = times.pop(), draw.randrange(101)
            used[at_s] = percent * 10.0
            unit = device(gpu_util_pct=float(percent), energy_j=1.0 * percent)
            append(str(tmp_path / "journal"), seen(at_s, [unit], [process()], hosts=[host(cpu_s=float(percent))]))

    def run(command: str) -> None:
        done = subprocess.run([*COLLOC, command], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    for name in ("journal", "store"):
        (tmp_path / name).mkdir(mode=0o700)
    keep_raw_days(100)
    ran = run_of(user="alice", start_s=today_s - 5 * DAY - 10, end_s=today_s, gres=parse_gres("gpu:h100:1"))
    Store(str(tmp_path / "store")).write_allocations("a", [ran], 1.0)
    write(200)
    began = time.monotonic()
    run("flush")
    whole_s = time.monotonic() - began
    killed = 0
    for number in range(kills):
        command = ("flush", "compact")[number % 2]
        running = subprocess.Popen([*COLLOC, command], env=environment, stderr=subprocess.DEVNULL)
        until = time.monotonic() + draw.uniform(0.3, 1.1) * whole_s
        while time.monotonic() < until:
            write(min(len(times) // (kills * 4), 20))
            time.sleep(0.02)
        running.kill()
        killed += running.wait() != 0
    assert killed
    write(len(times) // 3)
    for command in ("flush", "compact", "flush", "compact"):
        run(command)
    store = Store(str(tmp_path / "store"))
    query = "SELECT at_s::BIGINT, gpu_util_pct * interval_s FROM shares WHERE job_id = '1' ORDER BY at_s"
    assert store.rows(query, {}) == sorted(used.items())
    keep_raw_days(3)
    for _ in range(kills // 2):
        running = subprocess.Popen([*COLLOC, "compact"], env=environment, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.3, 1.3) * whole_s)
        running.kill()
        running.wait()
    run("compact")
    run("compact")
    percent_s = sum(used.values())
    (found,) = job_usage(store, 0, today_s + DAY, today_s + DAY)
    assert found.util_used_gpu_hours == pytest.approx(percent_s / 100 / 3600, rel=1e-6)
    assert found.energy_j == pytest.approx(percent_s / 10, rel=1e-6)
    assert found.coverage_pct == pytest.approx(100 * 10 * len(used) / (5 * DAY + 10), rel=1e-6)
    assert found.cpu_cores_used == pytest.approx(percent_s / 10 / (10 * len(used)), rel=1e-6)
    left = [path.name for path in (tmp_path / "store/samples/c").rglob("*.parquet")]
    assert sorted(left) == ["00.parquet", "22.parquet", "raw.parquet"]
    assert len(list((tmp_path / "store/facts/c").glob("*.parquet"))) == 3
    assert [path.name for path in (tmp_path / "store/work").rglob("*") if path.is_file()] == 4 * ["lock"]
