# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests."""

import pytest

pytest_plugins = ["tests.cluster.fixtures"]


@pytest.fixture(autouse=True)
def _no_site_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the machine's own site file, home and Slurm out of every test."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("COLLOC_CONF", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
