# SPDX-License-Identifier: Apache-2.0
"""Each command of docs/how-to/audits.md runs, and its examples of site.toml are valid."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from slurm_colloc.audit.rules import entries
from slurm_colloc.audit.state import audit_folder, opened
from slurm_colloc.config import parse_site
from tests.unit.programs import colloc
from tests.unit.test_backtest import store as store

PAGE = (Path(__file__).resolve().parents[2] / "docs/how-to/audits.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("colloc audit ")]
TOML = "\n".join(block for block in BLOCKS if block.startswith("["))
SITE = 'schema = 1\ncluster = "c"\nslurm_release = "24.11"\n'


def test_examples_of_site_toml_are_valid() -> None:
    site = parse_site(tomllib.loads(SITE + TOML), "docs")
    names = [entry.name for entry in entries(site.audit)]
    assert {"COL001", "low use, long jobs"} <= set(names)
    assert "COL002" not in names
    assert site.notices.quiet_days == 14


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_runs(
    store: str, tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.toml").write_text(f'{SITE}[paths]\nstate = "{Path(store).parent}"\n')
    (tmp_path / "proposed.toml").write_text('[[audit.rule]]\ncode = "COL001"\n')
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    monkeypatch.chdir(tmp_path)
    with opened(audit_folder(str(tmp_path))):
        pass
    # Nothing can be judged of days that are not in the store.
    assert colloc(*shlex.split(line, comments=True)[1:]) in (0, 1, 3), capsys.readouterr().err
