# SPDX-License-Identifier: Apache-2.0
"""What runs had and used of their nodes for each GPU, and how check and doctor tell of it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slurm_colloc.accounting.host_needs import host_use
from slurm_colloc.accounting.store import Store
from slurm_colloc.audited import HostUse
from slurm_colloc.cli.colloc import site_doctor
from slurm_colloc.site.doctor.facts import Unread
from tests.unit.audited_site import DAY, SITE, sacct_text, tres
from tests.unit.doctor_sites import SOUND, ran, used
from tests.unit.doors import ingest
from tests.unit.made import device, host, seen
from tests.unit.stored import sampled


def known(folder: Path, runs: Sequence[dict[str, str]], sampled_jobs: int, now_s: float = 3 * DAY) -> list[HostUse]:
    """Return what is known of these runs, of the first of which the node was sampled for their day."""
    folder.mkdir(exist_ok=True)
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert ingest(folder / "store", folder / "runs", sacct_text(*runs), when, "--timezone", "UTC").status == 0
    store = Store(str(folder / "store"), SITE)
    jobs = range(1, sampled_jobs + 1)
    hosts = [host(str(job), cpu_s=4.0 * 1800, host_mem_mib=1000 * job) for job in jobs]
    times = range(DAY + 1800, 2 * DAY + 1, 1800)
    sampled(store, [seen(at_s, [device()], hosts=hosts, interval_s=1800.0) for at_s in times])
    return list(host_use(store, "c", now_s))


def test_of_twenty_runs_it_is_known_what_95_percent_stay_below(tmp_path: Path) -> None:
    rows = [{"AllocTRES": tres(8, "64G")} for _ in range(21)]
    (found,) = known(tmp_path, rows, 21)
    assert found == HostUse("gpu", "h100", 21, 8.0, 4.0, 65536.0, 20_000.0)


def test_of_several_gpus_each_has_its_part(tmp_path: Path) -> None:
    rows = [{"AllocTRES": tres(8, "64G", gpus=2)} for _ in range(21)]
    (found,) = known(tmp_path, rows, 21)
    assert (found.cpus_given, found.cores, found.mem_given_mib, found.host_mem_mib) == (4.0, 2.0, 32768.0, 10_000.0)


@pytest.mark.parametrize(
    "changed",
    [{"State": "FAILED"}, {"NodeList": "g[1-2]", "AllocTRES": tres(8, "64G", nodes=2)}],
    ids=["failed", "two nodes"],
)
def test_one_run_less_that_tells_is_too_few(tmp_path: Path, changed: dict[str, str]) -> None:
    rows = [{"AllocTRES": tres(8, "64G")} for _ in range(20)]
    assert known(tmp_path / "all", rows, 20) != []
    assert known(tmp_path / "less", [*rows[:19], rows[19] | changed], 20) == []
    assert known(tmp_path / "unsampled", rows, 19) == []
    assert known(tmp_path / "old", rows, 20, now_s=40 * DAY) == []


def test_check_tells_what_the_doctor_finds_and_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_doctor, "gather", lambda *_: SOUND)
    for silent in ((), Unread("closed")):
        monkeypatch.setattr(site_doctor, "_host_use", lambda silent=silent: silent)
        assert site_doctor.host_notes() == []
    monkeypatch.setattr(site_doctor, "_host_use", lambda: ran(used("h100", cores=3.2))["host_use"])
    (note,) = site_doctor.host_notes()
    assert note.startswith("partition 'gpu': DefCpuPerGPU is not set, 4 would do: of 30 runs on h100")


def test_where_there_is_no_store_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'schema = 1\nslurm_release = "22.05"\ncluster = "c"\n[paths]\nstate = "{tmp_path}/state"\n')
    monkeypatch.setenv("COLLOC_CONF", str(path))
    assert site_doctor._host_use() == ()
    (tmp_path / "state/store/ingest").mkdir(parents=True)
    (tmp_path / "state/store/ingest/a.json").write_text("{")
    assert isinstance(site_doctor._host_use(), Unread)
    path.write_text("nonsense")
    assert site_doctor._host_use() == ()
