# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from slurm_colloc.audit.rules import RULES, all_entries, explained, listed
from slurm_colloc.core.config_audit import Audit, AuditRule
from slurm_colloc.core.errors import InputError
from tests.unit.doors import colloc

SET = Audit(
    rule=(
        AuditRule("COL003", "long ones", only={"partition": ("gpu", "long")}, bounds={"below_pct": 10.0}),
        AuditRule("COL003"),
        AuditRule("COL002", tell="nobody"),
    )
)


def test_all_rules_with_their_names_and_which_are_on() -> None:
    lines = listed(all_entries(SET)).splitlines()
    assert len(lines) == len(RULES) + 1
    assert lines[0].split()[:4] == ["COL001", "idle", "on", "GPUs"]
    assert lines[1].split()[:4] == ["COL002", "outside", "jobs", "off"]
    assert lines[2].endswith("on   GPUs used little  (long ones)")


@pytest.mark.parametrize("wanted", ["COL003", "low use"])
def test_a_rule_its_bounds_and_what_the_site_made_of_it(wanted: str) -> None:
    text = explained(all_entries(SET), wanted)
    assert text.startswith("COL003: low use of GPUs.\n\nOver the window")
    assert "  below_pct = 25; here 10 by 'long ones'\n      SM activity in percent" in text
    assert "  min_gpu_hours = 50\n" in text
    assert text.endswith("'long ones' is on; only partition: gpu, long\n'COL003' is on\n")


def test_one_entry_alone() -> None:
    assert explained(all_entries(SET), "long ones").endswith("'long ones' is on; only partition: gpu, long\n")
    assert explained(all_entries(SET), "COL002").endswith("'COL002' is off\n")


def test_what_is_no_rule() -> None:
    with pytest.raises(InputError, match="no rule is called 'lo use'; did you mean 'low use'"):
        explained(all_entries(SET), "lo use")
    with pytest.raises(InputError, match="'colloc audit explain' lists all"):
        explained(all_entries(SET), "?")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [line.split()[0] for line in colloc("audit", "explain").out.splitlines()] == list(RULES)
    for code, rule in RULES.items():
        said = colloc("audit", "explain", code)
        assert said.status == 0
        assert said.out.startswith(f"{code}: ")
        assert all(f"  {key} = {bound.default:g}\n" in said.out for key, bound in rule.bounds.items())
    assert colloc("audit", "explain", "COL1").status == 2
    config = 'schema = 1\ncluster = "c"\nslurm_release = "24.11"\n'
    entry = '[[audit.rule]]\ncode = "COL001"\nname = "a\\u001b[31m\\n"\n'
    (tmp_path / "site.toml").write_text(config + entry)
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    shown = colloc("audit", "explain").out + colloc("audit", "explain", "COL001").out
    assert "(a?[31m" in shown
    assert "\x1b" not in shown
