# SPDX-License-Identifier: Apache-2.0
"""Which jobs of the store become known to slurmctld, and with which bounds; and the command that writes them."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import SharingMode
from slurm_colloc.estimate.calibration import SHIPPED
from slurm_colloc.estimate.policy_table import KnownJob, job_key
from slurm_colloc.feedback.known_jobs import known_jobs, mode_of
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.store.ingest import keep_text
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.made import H100, device, evidence, process, seen, site
from tests.unit.programs import colloc, umask
from tests.unit.stored import sampled

UID = os.geteuid()
NAME = pwd.getpwuid(UID).pw_name
FIELDS = "JobIDRaw JobID Cluster User Account Partition QOS State Submit Start End Suspended AllocTRES NodeList"
FIELDS += " WorkDir JobName"
LONG_S = 600


def line(number: int, **fields: str) -> str:
    start = 10_000 * number
    known = {"JobIDRaw": str(number), "JobID": str(number), "Cluster": "c", "User": NAME, "State": "COMPLETED"}
    times = {"Submit": str(start), "Start": str(start), "End": str(start + LONG_S), "NodeList": "g1"}
    what = {"AllocTRES": "cpu=1,gres/gpu:h100=1,gres/gpu=1", "WorkDir": "/home/ann", "JobName": "train"}
    values = dict.fromkeys(FIELDS.split(), "") | known | times | what | fields
    return "|".join(values[name] for name in FIELDS.split())


def store_of(folder: Path, lines: Sequence[str], peaks: Sequence[int], part: float = 1.0) -> Store:
    """Return a store of these runs, each sampled for this part of its time."""
    text = folder / "sacct.txt"
    text.write_text("\n".join([FIELDS.replace(" ", "|"), *lines]) + "\n")
    store = Store(str(folder / "store"))
    keep_text(store, "sacct", str(text), (), None, 1e9, "", "c")
    rounds = []
    for number, peak in enumerate(peaks, 1):
        for at in range(10, int(LONG_S * part) + 1, 10):
            of = process(str(number))._replace(gpu_mem_used_mib=peak)
            rounds.append(
                seen(10_000 * number + at, [device(gpu_mem_used_mib=peak)], [of], holders=[("GPU-0", str(number))])
            )
    sampled(store, rounds)
    return store


def config() -> SiteConfig:
    return site()._replace(cluster="c")


def found(tmp_path: Path, lines: Sequence[str], peaks: Sequence[int], part: float = 1.0) -> list[KnownJob]:
    return list(known_jobs(store_of(tmp_path, lines, peaks, part), config(), SHIPPED))


def test_three_runs_make_a_job_known_by_the_highest_of_them(tmp_path: Path) -> None:
    [job] = found(tmp_path, [line(1), line(2), line(3)], [3000, 4000, 3500])
    assert job == KnownJob(UID, "train", "/home/ann", 4600, 20, 13, 3, H100)


@pytest.mark.parametrize(
    "third",
    [{"JobName": "other"}, {"WorkDir": "/home/bob"}, {"WorkDir": ""}, {"State": "FAILED"}, {"AllocTRES": "gres/gpu=2"}],
    ids=str,
)
def test_two_runs_are_too_few_and_others_do_not_count(tmp_path: Path, third: dict[str, str]) -> None:
    assert found(tmp_path, [line(1), line(2), line(3, **third)], [3000] * 3) == []


def test_a_run_that_did_not_complete_raises_the_bound(tmp_path: Path) -> None:
    lines = [line(1), line(2), line(3), line(4, State="OUT_OF_MEMORY"), line(5, State="CANCELLED")]
    [job] = found(tmp_path, lines, [3000, 3000, 3000, 9000, 8000])
    assert (job.mem_mib, job.runs) == (9000, 3)


def test_runs_that_were_not_sampled_throughout_are_no_evidence_of_a_peak(tmp_path: Path) -> None:
    assert found(tmp_path, [line(1), line(2), line(3)], [3000] * 3, part=0.8) == []


def test_a_user_who_is_gone_has_no_record(tmp_path: Path) -> None:
    assert found(tmp_path, [line(number, User="nobody-here") for number in (1, 2, 3)], [3000] * 3) == []


@pytest.mark.parametrize(
    ("gres", "mode"),
    [
        ("gres/gpu=1", SharingMode.EXCLUSIVE),
        ("gres/gpu:h100=1,gres/gpu=1", SharingMode.EXCLUSIVE),
        ("gres/gpu=2", ""),
        ("gres/gpu:h100=1,gres/gpu:a100=1", ""),
        ("gres/mps=25", SharingMode.MPS),
        ("gres/shard=1", SharingMode.SHARD),
        ("gres/gpu=1,gres/nvme=1", ""),
        ("", ""),
        ("gres/gpu=x", ""),
    ],
)
def test_only_what_had_one_gpu_or_a_piece_of_one_counts(gres: str, mode: str) -> None:
    assert mode_of(evidence("1", 1, mode=""), gres) == mode
    if mode == SharingMode.EXCLUSIVE:
        assert mode_of(evidence("1", 1, mode=SharingMode.MIG), gres) == SharingMode.MIG


@pytest.fixture
def _at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_of(tmp_path, [line(1), line(2), line(3)], [3000] * 3)
    Store(str(tmp_path / "store")).write_log("sacct", {"used": 3})
    path = tmp_path / "site.toml"
    path.write_text(f'schema = 1\ncluster = "c"\nslurm_release = "22.05"\n[paths]\nstate = "{tmp_path}"\n')
    monkeypatch.setenv("COLLOC_CONF", str(path))


GROUP = grp.getgrgid(os.getegid()).gr_name


@pytest.mark.usefixtures("_at_work")
def test_the_command_writes_what_slurmctlds_group_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CliClient, "config", lambda _: {"SlurmUser": f"{NAME}({UID})"})
    path = tmp_path / "out/policy.table"
    with umask(0o077):
        assert colloc("policy", "table", "--output", str(path)) == 0
    assert path.stat().st_gid == pwd.getpwuid(UID).pw_gid
    assert colloc.err == f"colloc: 1 known jobs in '{path}'\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.parent.stat().st_mode & 0o777 == 0o755, "slurmctld must get there"
    assert (job_key(UID, "train", "/home/ann") or "none").encode() in path.read_bytes()
    assert [one.name for one in path.parent.iterdir()] == ["policy.table"]


@pytest.mark.usefixtures("_at_work")
def test_a_folder_that_others_write_to_and_a_group_that_nobody_knows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert colloc("policy", "table", "--output", str(open_to_all / "t"), "--group", GROUP) != 0
    assert "others may write" in colloc.err
    assert colloc("policy", "table", "--output", str(tmp_path / "t"), "--group", "no-such-group") != 0
    printed("policy", colloc.err)
    monkeypatch.setattr(CliClient, "config", lambda _: {"SlurmUser": "no-such-user(1)"})
    assert colloc("policy", "table", "--output", str(tmp_path / "t")) != 0
    printed("policy", colloc.err)
    assert list(open_to_all.iterdir()) == []
