# SPDX-License-Identifier: Apache-2.0
"""Each command of docs/how-to/audits.md runs, and its examples of site.toml are valid."""

import re
import shlex
import tomllib
from datetime import datetime
from pathlib import Path

import pytest

from slurm_colloc.audit.post import check_settings
from slurm_colloc.audit.rules import entries
from slurm_colloc.audit.state import audit_folder, opened
from slurm_colloc.audit.timing import nights
from slurm_colloc.cli.colloc import audit
from slurm_colloc.core.config_file import parse_site
from tests.unit.programs import colloc
from tests.unit.test_audit_past import four_weeks as four_weeks
from tests.unit.test_audit_past import store as store

PAGE = (Path(__file__).resolve().parents[2] / "docs/how-to/audits.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("colloc audit ")]
TOML = [block for block in BLOCKS if block.startswith("[")]
SITE = 'schema = 1\ncluster = "c"\nslurm_release = "24.11"\n'


def test_examples_of_site_toml_are_valid() -> None:
    rules, *others = [parse_site(tomllib.loads(SITE + block), "docs") for block in TOML]
    names = [entry.name for entry in entries(rules.audit)]
    assert {"COL001", "low use, long jobs"} <= set(names)
    assert "COL002" not in names
    for site in others:
        check_settings(site.notices)
    assert [site.notices.quiet_days for site in others if site.notices.mode == "admins"] == [14]


def last_night(since: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
    """Return one of up to 90 windows: this store has nothing of any of them."""
    return nights(since, until)[-1:]


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_runs(store: str, tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Which jobs run is not known from a store that nobody takes in anything to any more: that is an error to --notify.
    quiet = '[[audit.rule]]\ncode = "COL001"\nbounds = { reading_age_min = 1e9 }\n' if "--notify" in line else ""
    (tmp_path / "site.toml").write_text(f'{SITE}[paths]\nstate = "{Path(store).parent}"\n{quiet}')
    (tmp_path / "proposed.toml").write_text('[[audit.rule]]\ncode = "COL001"\n')
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(audit, "nights", last_night)
    with opened(audit_folder(f"{tmp_path}/audit")):
        pass
    # Nothing can be judged of days that are not in the store.
    assert colloc(*shlex.split(line, comments=True)[1:]) in (0, 1, 3), colloc.err
