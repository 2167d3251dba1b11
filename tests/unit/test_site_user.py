# SPDX-License-Identifier: Apache-2.0
"""colloc site check --user NAME: the policy of somebody's jobs, by partition and account, as csub would have it."""

import os
import pwd
from pathlib import Path

import pytest

from slurm_colloc.estimate.site_stop import Stop, write_stop
from slurm_colloc.model import because
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.limits import Association, Limits
from slurm_colloc.wording import words
from tests.unit.programs import colloc

ME = pwd.getpwuid(os.geteuid()).pw_name
SITE = """
schema = 1
slurm_release = "22.05"
cluster = "c"
policy = "shadow"
[paths]
state = "{folder}"
[[partition]]
name = "gpu"
[[partition]]
name = "mig"
[[rollout]]
policy = "off"
partitions = ["mig"]
accounts = ["exam"]
[[rollout]]
policy = "auto"
accounts = ["exam", "vision"]
percent = 50
[[rollout]]
policy = "pack"
users = ["{user}"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site whose user has three accounts."""
    path = tmp_path / "site.toml"
    path.write_text(SITE.format(folder=tmp_path, user=ME))
    monkeypatch.setenv("COLLOC_CONF", str(path))
    own = tuple(Association(name, "root", "", "normal", ("normal",), {}) for name in ("vision", "exam", "other"))
    limits = Limits(0.0, "vision", own, {one.account: one for one in own}, {})
    monkeypatch.setattr(CliClient, "limits", lambda self, cluster, user: limits)
    (tmp_path / "history").mkdir()
    return tmp_path


def policies(capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return policy and reason by partition and account."""
    assert colloc("site", "check", "--user", ME) == 0
    found = {}
    for line in capsys.readouterr().out.splitlines():
        where, _, said = line.partition(": policy ")
        _, partition, _, account, _ = where.split("'")
        policy, _, why = said.partition(": ")
        found[partition, account] = policy.strip("'"), why
    return found


def test_the_first_rule_that_is_met_is_told_for_each_partition_and_account(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = policies(capsys)
    assert {where: policy for where, (policy, _) in found.items()} == {
        ("gpu", "exam"): "auto",
        ("gpu", "vision"): "auto",
        ("gpu", "other"): "pack",
        # The rule before it is for these jobs, too, and comes later.
        ("mig", "exam"): "off",
        ("mig", "vision"): "auto",
        ("mig", "other"): "pack",
    }
    assert [found[where][1].split(" (")[0] for where in (("mig", "exam"), ("gpu", "vision"), ("gpu", "other"))] == [
        "set by rollout rule 1",
        "set by rollout rule 2",
        "set by rollout rule 3",
    ]


def test_a_stopped_site_places_nobodys_jobs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_stop(str(folder), Stop("20 of 60 runs were harmed"))
    found = policies(capsys)
    assert found["gpu", "vision"] == ("shadow", words(because("placing-stopped", why="20 of 60 runs were harmed")))
    assert (found["mig", "exam"][0], found["gpu", "other"][0]) == ("off", "pack")


def test_without_rules_on_accounts_the_accounting_is_not_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(self: CliClient, cluster: str, user: str) -> Limits:
        raise AssertionError("nobody is to be asked")

    monkeypatch.setattr(CliClient, "limits", never)
    path = folder / "site.toml"
    path.write_text(path.read_text().partition("[[rollout]]")[0])
    assert colloc("site", "check", "--user", ME) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "partition 'gpu': policy 'shadow': set by the site",
        "partition 'mig': policy 'shadow': set by the site",
    ]


def test_nobody_has_no_policy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert colloc("site", "check", "--user", "nobody-of-that-name") == 2
    assert "nobody-of-that-name" in capsys.readouterr().err
