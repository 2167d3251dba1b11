# SPDX-License-Identifier: Apache-2.0
"""Whose jobs go by which policy: the first rule that a job meets, the draw, and what csub does by it."""

import os
import pwd
from functools import partial

import pytest

from slurm_colloc.core.config import Rule, SiteConfig
from slurm_colloc.core.config_file import parse_site
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.core.model import CONTROL, PLACED, because
from slurm_colloc.core.wording import words
from slurm_colloc.estimate.site_stop import Stop, write_stop
from slurm_colloc.slurm.limits import Association, Limits
from slurm_colloc.submit.rollout import Chosen, Whose, choose, draw
from slurm_colloc.submit.slurm_answers import whose_job
from tests.unit.golden import Printed
from tests.unit.made import request, site
from tests.unit.shell import HINT, SCRIPT, Shell

ANN = Whose("ann", ("vision", "ann"), "lab", ("gpu",), "normal")
ME = pwd.getpwuid(os.geteuid()).pw_name
SLICE = "--gres=gpu:h100_1g.10gb:1"


def chosen(*rules: Rule, whose: Whose = ANN, policy: str = "shadow", drawn: float = 0.0) -> Chosen:
    return choose(site()._replace(policy=policy, rollout=rules), whose, lambda: drawn)


@pytest.mark.parametrize(
    ("rule", "met"),
    [
        (Rule("auto"), True),
        (Rule("auto", users=("bob", "ann")), True),
        (Rule("auto", users=("Ann",)), False),
        (Rule("auto", groups=("speech", "vision")), True),
        (Rule("auto", groups=("speech",)), False),
        (Rule("auto", accounts=("LAB",)), True),
        (Rule("auto", accounts=("other",)), False),
        (Rule("auto", qos=("Normal",)), True),
        (Rule("auto", partitions=("gpu", "mig")), True),
        (Rule("auto", partitions=("mig",)), False),
        (Rule("auto", users=("ann",), accounts=("lab",), qos=("normal",), partitions=("gpu",)), True),
        (Rule("auto", users=("ann",), accounts=("other",)), False),
    ],
)
def test_a_rule_is_for_a_job_that_all_its_lists_name(rule: Rule, met: bool) -> None:
    assert (chosen(rule).policy == "auto") is met


def test_a_job_of_several_partitions_may_start_in_each_of_them() -> None:
    several = ANN._replace(partitions=("gpu", "old"))
    assert chosen(Rule("auto", partitions=("gpu",)), whose=several).policy == "shadow"


def test_the_first_rule_that_is_met_is_in_force_and_else_the_sites_policy() -> None:
    rules = Rule("off", users=("bob",)), Rule("pack", accounts=("lab",)), Rule("auto")
    assert (chosen(*rules).policy, chosen(*reversed(rules)).policy) == ("pack", "auto")
    assert chosen(*rules).why == because("rule-met", number=2, rule="'pack' for accounts lab")
    assert chosen(*rules, whose=ANN._replace(user="bob")).policy == "off"
    assert chosen(rules[0], policy="auto") == Chosen("auto", because("policy-of-site"))


def test_late_binding_is_the_rules_and_else_the_sites_where_jobs_are_placed() -> None:
    on = site()._replace(policy="auto", sharing=site().sharing._replace(late_binding="on"))
    half = Rule("auto", percent=50, late_binding="slices")
    for rules, drawn, late in (
        ((), 0.0, "on"),
        ((Rule("auto"),), 0.0, "on"),
        ((half,), 49.0, "slices"),
        ((half,), 50.0, "off"),
        ((Rule("auto", late_binding="off"),), 0.0, "off"),
        ((Rule("pack", late_binding="on"),), 0.0, "off"),
    ):
        assert choose(on._replace(rollout=rules), ANN, partial(float, drawn)).late == late
    assert choose(on._replace(policy="shadow"), ANN, float).late == "off"
    assert choose(on, ANN, float, stopped="harm").late == "off"


def test_what_is_not_known_is_settled_by_looking_on() -> None:
    unknown = ANN._replace(account=None)
    # It could be an account whose jobs are to be left alone.
    assert chosen(Rule("off", accounts=("exam",)), policy="auto", whose=unknown).policy == "shadow"
    # What is known says already that the rule is for others.
    assert chosen(Rule("off", users=("bob",), accounts=("exam",)), policy="auto", whose=unknown).policy == "auto"


def test_a_part_of_the_jobs_is_drawn_and_the_others_are_what_it_is_compared_with(printed: Printed) -> None:
    half = Rule("auto", accounts=("lab",), percent=50)
    placed, control = chosen(half, Rule("off"), drawn=49.9), chosen(half, Rule("off"), drawn=50.0)
    assert (placed.policy, placed.arm, control.policy, control.arm) == ("auto", PLACED, "shadow", CONTROL)
    assert placed.rule == control.rule
    printed("csub-rollout", placed.rule)
    # Nothing is placed in either.
    assert chosen(Rule("off", percent=50), drawn=10.0).arm == ""
    assert chosen(Rule("auto", percent=0), drawn=0.0).policy == "shadow"


def test_while_the_site_is_stopped_nothing_is_placed_and_no_job_is_in_an_arm() -> None:
    config = site()._replace(rollout=(Rule("auto", percent=50),))
    assert choose(config, ANN, lambda: 10.0, "harm") == Chosen("shadow", because("placing-stopped", why="harm"))
    for policy in ("off", "pack"):
        assert choose(config._replace(rollout=(Rule(policy),)), ANN, lambda: 10.0, "harm").policy == policy


def test_draws_are_spread_evenly_over_jobs_users_and_days() -> None:
    for draws in (
        [draw("ann", f"job{number}", "c", 1.7e9) for number in range(10_000)],
        [draw(f"u{number}", "job", "c", 1.7e9) for number in range(10_000)],
        [draw("ann", "job", "c", 86400.0 * number) for number in range(10_000)],
    ):
        assert all(0 <= one < 100 for one in draws)
        tenths = [sum(low <= one < low + 10 for one in draws) for low in range(0, 100, 10)]
        # 1000 in each with a standard deviation of 30: beyond 4.5 of them one in 15,000 such tests is.
        assert all(abs(count - 1000) < 135 for count in tenths), tenths


def test_a_draw_is_the_same_all_day_and_on_every_host_and_another_one_tomorrow() -> None:
    noon = 20_000 * 86400.0 + 43_200
    today = draw("ann", "job", "c", noon)
    assert today == draw("ann", "job", "c", noon + 40_000)
    assert today != draw("ann", "job", "c", noon + 86400)
    # By no hash of this Python's or this machine's own.
    assert today == pytest.approx(53.69431273, abs=1e-8)


def test_account_and_qos_of_a_job_that_names_none_are_its_users_defaults() -> None:
    own = Association("lab", "root", "", "long", ("long", "normal"), {})
    limits = Limits(0.0, "lab", (own,), {"lab": own, "root": own}, {})

    def never() -> Limits:
        raise AssertionError("nobody is to be asked")

    config = site()._replace(rollout=(Rule("auto", accounts=("x",), qos=("y",)),))
    found = whose_job(request(), config, lambda: limits)
    assert (found.user, found.account, found.qos, found.partitions) == (ME, "lab", "long", ("gpu",))
    named = whose_job(request(account="a", qos="q", partitions=("mig",)), config, never)
    assert (named.account, named.qos, named.partitions) == ("a", "q", ("mig",))
    whose_job(request(), site()._replace(rollout=(Rule("auto", users=("x",), partitions=("y",)),)), never)


def rules(shell: Shell, *lines: str, policy: str = "shadow") -> None:
    path = shell.folder / "site.toml"
    text = path.read_text().replace('policy = "auto"', f'policy = "{policy}"')
    path.write_text(text + "".join(f"\n[[rollout]]\n{line}\n" for line in lines))


def test_csub_places_jobs_of_whom_a_rule_names_and_is_silent_to_others(shell: Shell) -> None:
    rules(shell, 'policy = "auto"\nusers = ["nobody-else"]')
    (shell.folder / "job.sh").write_text(SCRIPT.replace("echo hello", f"#CSUB {HINT}\necho hello"))
    other = shell.run("job.sh")
    rules(shell, f'policy = "auto"\nusers = ["{ME}"]')
    mine = shell.run("job.sh")
    assert shell.calls() == [["job.sh"], [SLICE, "job.sh"]]
    assert (other.stderr, "gpu:h100_1g.10gb:1 instead of" in mine.stderr) == ("", True)
    assert [one["shadow"] for one in shell.decisions()] == [True, False]
    by_rule = words(because("rule-met", number=2, rule=f"'auto' for users {ME}"))
    assert by_rule in shell.run("--explain", "job.sh").stderr


def test_csub_keeps_which_arm_a_job_is_in(shell: Shell) -> None:
    rules(shell, 'policy = "auto"\npercent = 50')
    arms = set()
    for number in range(64):
        shell.run(HINT, "job.sh", f"--lr=0.{number}")
        decision = shell.decisions()[-1]
        is_placed = shell.calls()[-1][0] == SLICE
        arms.add(str(decision["arm"]))
        assert (decision["arm"], decision["rule"]) == ("placed" if is_placed else "control", "'auto' for 50 % of all")
        assert bool(decision["would"]) is not is_placed
        assert (draw(ME, str(decision["signature"]), "lab", float(str(decision["at_s"]))) < 50) is is_placed
        if len(arms) == 2:
            break
    assert arms == {PLACED, CONTROL}


def test_off_by_a_rule_is_plain_sbatch(shell: Shell) -> None:
    rules(shell, f'policy = "off"\nusers = ["{ME}"]', policy="auto")
    done = shell.run("job.sh")
    assert (shell.calls(), done.stderr, shell.decisions()) == ([["job.sh"]], "", [])
    assert "the policy is off" in shell.run("--explain", "job.sh").stderr


def test_where_only_packs_are_made_other_jobs_are_plain_sbatchs(shell: Shell) -> None:
    rules(shell, policy="pack")
    assert (shell.run(HINT, "job.sh").stderr, shell.calls(), shell.decisions()) == ("", [["job.sh"]], [])
    assert words(because("policy-pack")) in shell.run(HINT, "--explain", "--dry-run", "job.sh").stderr
    packed = "--pack", HINT, "--array=0-7", "--gres=gpu:h100:1", "job.sh"
    assert "a pack of 8" in shell.run(*packed).stderr
    assert shell.calls()[-1][:1] != ["--array=0-7"]
    # An array that cannot be one goes as it is, and on no piece.
    assert "not packed" in shell.run("--pack", HINT, "--array=0-7", "job.sh").stderr
    assert shell.calls()[-1] == ["--array=0-7", "job.sh"]


def test_a_misused_line_of_csubs_breaks_no_job_that_is_only_looked_at(shell: Shell) -> None:
    (shell.folder / "job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n#CSUB --colloc=nonsense\n")
    rules(shell, 'policy = "auto"\nusers = ["nobody-else"]')
    assert (shell.run("job.sh").returncode, shell.calls()) == (0, [["job.sh"]])


@pytest.mark.parametrize("line", ["percent = 101", "percent = -1", 'users = "ann"', 'policy = "maybe"'])
def test_rules_that_cannot_be_meant_are_refused(line: str) -> None:
    table = {"schema": 1, "cluster": "c", "slurm_release": "22.05", "rollout": [{"policy": "auto"}]}
    name, value = line.split(" = ")
    table["rollout"] = [{"policy": "auto", name: eval(value)}]
    with pytest.raises(ConfigError, match="rollout"):
        parse_site(table, "f")


def test_the_tier_follows_from_the_policies() -> None:
    def tier(policy: str, *rules: Rule) -> str:
        config: SiteConfig = site()._replace(policy=policy, rollout=rules, partition=())
        return config.tier

    assert [tier(policy) for policy in ("off", "pack", "shadow", "auto")] == ["report", "pack", "place", "place"]
    assert [tier("off", Rule("pack")), tier("off", Rule("pack"), Rule("auto"))] == ["pack", "place"]


def test_a_stopped_site_submits_as_asked_until_it_is_resumed(shell: Shell) -> None:
    path, state = shell.folder / "site.toml", str(shell.folder / "state")
    path.write_text(path.read_text() + f'\n[paths]\nstate = "{state}"\n')
    os.makedirs(os.path.join(state, "history"))
    write_stop(state, Stop("20 of 60 runs were harmed", 0.0))
    shell.run(HINT, "job.sh")
    write_stop(state, Stop("", 5.0))
    shell.run(HINT, "job.sh")
    assert shell.calls() == [["job.sh"], [SLICE, "job.sh"]]
    assert [(one["shadow"], one["would"]) for one in shell.decisions()] == [
        (True, SLICE.partition("=")[2]),
        (False, ""),
    ]
