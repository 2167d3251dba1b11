# SPDX-License-Identifier: Apache-2.0
"""The lab as a pytest fixture, one for the whole session."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import cgroups, install, releases
from tests.cluster.lab import Lab, missing_programs
from tests.reaper import RUN

CHECKOUT = Path(__file__).resolve().parents[2]
# Which Slurm the labs of the tests run.
RELEASE = os.environ.get("COLLOC_TEST_RELEASE") or releases.HOST.name
# Of which version their cgroups are, where they have any.
CGROUPS = "v1" if releases.HOST.name == RELEASE else "v2"
_failed: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Know which tests of this process failed."""
    if report.failed:
        _failed.append(report.nodeid)


def reason_for_none() -> str:
    """Say why no root-form lab can run here; empty when one can."""
    if os.getuid() != 0:
        return "the cluster's root form needs root"
    missing = missing_programs("root", releases.find(RELEASE))
    return (
        f"Slurm is not installed (no {', '.join(missing)}): run tests/cluster/bootstrap.sh --releases"
        if missing
        else ""
    )


def need_cluster() -> None:
    """Skip where no lab can run; fail where COLLOC_REQUIRE_CLUSTER=1 says that one must."""
    if reason := reason_for_none():
        if os.environ.get("COLLOC_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"COLLOC_REQUIRE_CLUSTER=1, but {reason}", pytrace=False)
        pytest.skip(reason)


def new_lab(extra_slurm_conf: str = "", files: Mapping[str, str] | None = None, root: Path | None = None) -> Lab:
    """Make a lab of the release that is tested, where one can run; see Lab.create."""
    need_cluster()
    return Lab.create(root, release=RELEASE, extra_slurm_conf=extra_slurm_conf, files=files)


@contextmanager
def running(lab: Lab, *, bare: bool = False) -> Iterator[Lab]:
    """Let a lab run, with the checkout's wheel in it unless it is bare; its folder stays where a test failed."""
    failed_before = len(_failed)
    if not bare:
        install_checkout(lab)
    with lab:
        yield lab
        lab.is_kept = len(_failed) > failed_before
    if lab.is_kept:
        print(f"\nthe lab's folder is kept: {lab.root}")


@contextmanager
def in_cgroups() -> Iterator[Lab]:
    """Make a lab that is not up yet and whose jobs run in real cgroups; skip where the kernel has none."""
    need_cluster()
    if reason := cgroups.missing(CGROUPS):
        pytest.skip(reason)
    with cgroups.swept():
        yield cgroups.new_lab(RELEASE, CGROUPS)


def install_checkout(lab: Lab) -> None:
    """Install the checkout's wheel into a lab; only the first of a test run waits for pip, all have the same files."""
    shared = Path(os.environ[RUN])
    ours, kept = lab.root / "opt", shared / "opt"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            lab.install(CHECKOUT)
            install.copy(ours, kept)
            return
    install.copy(kept, ours)


@pytest.fixture(scope="session")
def bare_lab() -> Iterator[Lab]:
    """A running cluster without the project in it."""
    with running(new_lab(), bare=True) as lab:
        yield lab


@pytest.fixture(scope="session")
def lab(bare_lab: Lab) -> Lab:
    """A running cluster with the checkout's wheel installed, its commands on every user's PATH."""
    install_checkout(bare_lab)
    return bare_lab
