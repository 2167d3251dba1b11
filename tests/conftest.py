# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples at every run and no clock: what fails must fail again, also on a slow machine. New ones are the
# soak's to find.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("soak", deadline=None)
settings.load_profile("same")

# A run in the background of a script, or under nohup, ignores these, and so would the programs that tests start: csub
# and its sbatch keep what they inherit.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

pytest_plugins = ["tests.reaper", "tests.cluster.fixtures", "tests.rings"]


def pytest_configure(config: pytest.Config) -> None:
    """Let the soak draw examples of its own."""
    if config.option.markexpr == "soak":
        settings.load_profile("soak")


@pytest.fixture(autouse=True)
def _no_site_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the machine's own site file, home and Slurm out of every test."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("COLLOC_CONF", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _sigterm_as_before() -> Iterator[None]:
    """Undo what a program that ran within the test did: those of later tests would ignore SIGTERM too."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
