# SPDX-License-Identifier: Apache-2.0
"""seal and compact, killed while a sampler writes: a reduced form in every run, the long one by `make soak`."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.accounting.store import Store
from slurm_colloc.observe.journal import append
from tests.unit.made import HOUR, device, host, process, seen

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
    write(200)
    began = time.monotonic()
    run("seal")
    whole_s = time.monotonic() - began
    killed = 0
    for number in range(kills):
        command = ("seal", "compact")[number % 2]
        running = subprocess.Popen([*COLLOC, command], env=environment, stderr=subprocess.DEVNULL)
        until = time.monotonic() + draw.uniform(0.3, 1.1) * whole_s
        while time.monotonic() < until:
            write(min(len(times) // (kills * 4), 20))
            time.sleep(0.02)
        running.kill()
        killed += running.wait() != 0
    assert killed
    write(len(times) // 3)
    for command in ("seal", "compact", "seal", "compact"):
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
    sums = "SELECT sum(interval_s), sum(gpu_util_pct * interval_s), sum(energy_j) FROM shares WHERE job_id = '1'"
    percent_s = sum(used.values())
    assert store.rows(sums, {}) == [pytest.approx((10 * len(used), percent_s, percent_s / 10), rel=1e-6)]
    ((cpu_s,),) = store.rows("SELECT sum(cpu_s) FROM hosts", {})
    assert cpu_s == pytest.approx(percent_s / 10, rel=1e-6)
    left = [path.name for path in (tmp_path / "store/samples/c").rglob("*.parquet")]
    assert sorted(left) == ["00.parquet", "22.parquet", "minute.parquet", "minute.parquet", "raw.parquet"]
    assert [path.name for path in (tmp_path / "store/work").rglob("*") if path.is_file()] == ["lock", "lock"]
