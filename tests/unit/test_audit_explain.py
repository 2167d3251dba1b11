# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from slurm_colloc.audit.rules import RULES, all_entries, explained, listed
from slurm_colloc.core.config_audit import Audit, AuditRule
from slurm_colloc.core.errors import InputError
from tests.unit.doors import colloc
from tests.unit.golden import Printed

SET = Audit(
    rule=(
        AuditRule("COL003", "long ones", only={"partition": ("gpu", "long")}, bounds={"below_pct": 10.0}),
        AuditRule("COL003"),
        AuditRule("COL002", tell="nobody"),
    )
)


def test_all_rules_with_their_names_and_which_are_on(printed: Printed) -> None:
    text = listed(all_entries(SET))
    assert len(text.splitlines()) == len(RULES) + 1
    printed("audit", text)


@pytest.mark.parametrize("wanted", ["COL003", "low use"])
def test_a_rule_its_bounds_and_what_the_site_made_of_it(wanted: str, printed: Printed) -> None:
    text = explained(all_entries(SET), wanted)
    printed("audit", text)


def test_one_entry_alone(printed: Printed) -> None:
    texts = (explained(all_entries(SET), wanted) for wanted in ("long ones", "COL002"))
    printed("audit", *(text.splitlines()[-1] for text in texts))


def test_what_is_no_rule(printed: Printed) -> None:
    with printed.raises("audit", InputError, "'lo use'.*'low use'"):
        explained(all_entries(SET), "lo use")
    with printed.raises("audit", InputError):
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
