# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from slurm_colloc.core.config import Limits as Declared
from slurm_colloc.core.config import Paths, SiteConfig
from slurm_colloc.core.errors import InputError, ProcessError
from slurm_colloc.core.model import Reason, because
from slurm_colloc.slurm.limits import (
    Cap,
    Limits,
    broken_limit,
    caps_questions,
    limit_passed_by,
    limits_questions,
    parse_caps,
    parse_limits,
    parse_tres,
)
from slurm_colloc.submit import slurm_answers
from slurm_colloc.submit.slurm_answers import limits_of_user
from tests.unit.golden import Printed
from tests.unit.made import RECORDED, RELEASES


def row(*cells: str, **limits: str) -> str:
    """Return a line as sacctmgr 22.05.8 prints it."""
    of_association = ("GrpTRES", "MaxTRES", "MaxTRESPerNode", "MaxWall", "GrpTRESMins", "GrpTRESRunMins", "MaxTRESMins")
    more = ("MaxTRESPerUser", "MaxTRESPerAccount", "MinTRES") if len(cells) == 1 else ()
    assert set(limits) <= {*of_association, *more}
    return "|".join((*cells, *(limits.get(name, "") for name in (*of_association, *more)))) + "\n"


USER = (
    row("ml", "ml", "", "", "normal,small", GrpTRES="gres/gpu=8", MaxTRES="gres/mps=15")
    + row("ml", "vision", "", "low", "low", MaxTRES="gres/mps=40")
    + row("ml", "vision", "mig", "", "low,normal", MaxTRES="gres/gpu=1", MaxWall="1-01:00:00")
    + row("ml", "old", "", "", "normal")
)
ACCOUNTS = (
    row("root", "", "")
    + row("ml", "root", "", GrpTRES="gres/gpu=4", MaxWall="02:00:00")
    + row("vision", "ml", "", MaxTRES="gres/gpu=2,cpu=4")
    + row("phys", "root", "")
    + row("old", "root", "", GrpTRESMins="cpu=1000")
)
QOS = (
    row("Normal")
    + row(
        "Small",
        GrpTRES="gres/gpu:h100=3",
        MaxTRES="gres/gpu=1,gres/mps=20",
        MaxWall="00:30:00",
        MaxTRESPerUser="gres/gpu=2",
        MinTRES="gres/gpu=1",
    )
    + row("low", MaxTRESPerUser="gres/shard=1")
)


def limits() -> Limits:
    return parse_limits([USER, ACCOUNTS, QOS], 1.0)


def test_what_is_asked() -> None:
    user, accounts, qos = limits_questions("alice", "lab")
    assert user[-1].startswith("format=DefaultAccount,Account,Partition,DefaultQOS,QOS,GrpTRES,MaxTRES,MaxTRESPerNode")
    assert "name=alice" in user
    assert "cluster=lab" in user
    assert "user=" in accounts
    assert qos[-1].startswith("format=Name,GrpTRES,MaxTRES,")


def most(limit: str, what: str, name: str, most: int, tres: str) -> Reason:
    return because("limit-most", limit=limit, what=what, name=name, most=most, tres=tres)


def least(name: str, least: int, tres: str) -> Reason:
    return because("limit-least", limit="MinTRES", what="QOS", name=name, least=least, tres=tres)


@pytest.mark.parametrize(
    ("wanted", "account", "qos", "partition", "said"),
    [
        ({"gres/mps": 15}, "", "normal", "gpu", None),
        ({"gres/mps": 16}, "", "normal", "gpu", most("MaxTRES", "account", "ml", 15, "gres/mps")),
        ({"gres/gpu": 4}, "", "NORMAL", "gpu", None),
        ({"gres/gpu": 5}, "", "normal", "gpu", most("GrpTRES", "account", "ml", 4, "gres/gpu")),
        # The user's own limit comes before the account's, what the account says of others still holds.
        ({"gres/mps": 40}, "vision", "", "gpu", None),
        ({"gres/gpu": 3}, "vision", "", "gpu", most("MaxTRES", "account", "vision", 2, "gres/gpu")),
        ({"gres/gpu": 2}, "vision", "", "gpu", None),
        # An association with the partition comes before the general one.
        ({"gres/gpu": 2}, "vision", "low", "mig", most("MaxTRES", "account", "vision", 1, "gres/gpu")),
        ({"gres/mps": 41}, "vision", "low", "mig", None),
        ({"gres/mps": 10}, "", "SMALL", "gpu", least("small", 1, "gres/gpu")),
        ({"gres/gpu": 1, "gres/gpu:h100_1g.10gb": 1}, "", "small", "gpu", None),
        ({"gres/gpu": 1, "gres/gpu:h100": 4}, "", "small", "gpu", most("GrpTRES", "QOS", "small", 3, "gres/gpu:h100")),
        ({"gres/gpu": 2}, "", "small", "gpu", most("MaxTRES", "QOS", "small", 1, "gres/gpu")),
        # The association's default QOS holds where none is asked; without one, any that the user may use.
        ({"gres/shard": 2}, "vision", "", "gpu", most("MaxTRESPerUser", "QOS", "low", 1, "gres/shard")),
        ({"gres/mps": 10}, "", "", "gpu", least("small", 1, "gres/gpu")),
        ({"gres/gpu": 1}, "", "strange", "gpu", because("qos-unknown", qos="strange")),
        ({"minutes": 121}, "", "normal", "gpu", most("MaxWall", "account", "ml", 120, "minutes")),
        ({"minutes": 1500}, "vision", "low", "mig", None),
        ({"minutes": 31, "gres/gpu": 1}, "", "small", "gpu", most("MaxWall", "QOS", "small", 30, "minutes")),
        ({"minutes": 1}, "old", "", "gpu", because("limit-time", limit="GrpTRESMins", what="account", name="old")),
        ({"gres/gpu": 1}, "old", "", "gpu", None),
        ({"gres/gpu": 1}, "phys", "", "gpu", because("no-association", account="phys")),
    ],
)
def test_broken_limits(wanted: dict[str, int], account: str, qos: str, partition: str, said: Reason | None) -> None:
    assert broken_limit(limits(), wanted, account, qos, partition, "") == said


def test_the_qos_of_a_partition_holds_too() -> None:
    found = broken_limit(limits(), {"gres/gpu": 2}, "", "normal", "gpu", "small")
    assert found == most("MaxTRES", "QOS", "small", 1, "gres/gpu")
    unknown = broken_limit(limits(), {"gres/gpu": 2}, "", "normal", "gpu", "unheard-of")
    assert unknown == because("qos-unknown", qos="unheard-of")


def test_accounts_in_a_circle_do_not_hang() -> None:
    accounts = row("a", "b", "") + row("b", "a", "", MaxTRES="gres/gpu=1")
    circle = parse_limits([row("a", "a", "", "", ""), accounts, ""], 0.0)
    assert broken_limit(circle, {"gres/gpu": 2}, "", "", "gpu", "") is not None


@pytest.mark.parametrize("answers", [["", ACCOUNTS, QOS], ["ml|ml\n", ACCOUNTS, QOS], [USER, ACCOUNTS, "x|gres/gpu"]])
def test_answers_of_another_form(answers: list[str]) -> None:
    with pytest.raises(InputError):
        parse_limits(answers, 0.0)


def test_tres(printed: Printed) -> None:
    assert parse_tres("cpu=4,gres/gpu:a=0,mem=8G,energy=-1") == {"cpu": 4, "gres/gpu:a": 0, "mem": 8192}
    with printed.raises("slurm", InputError, "'cpu'"):
        parse_tres("cpu")


def test_limits_are_kept_for_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SiteConfig(1, "c", "22.05", limits=Declared(True), paths=Paths(decisions=str(tmp_path)))
    asked: list[float] = []
    at_s = 1000.0

    def ask() -> Limits:
        asked.append(at_s)
        return limits()._replace(at_s=at_s)

    monkeypatch.setattr(slurm_answers, "now", lambda: at_s)
    for moment, times in ((1000.0, 1), (4600.0, 1), (4601.0, 2), (900.0, 3)):  # a clock set back asks again
        at_s = moment
        found = limits_of_user(config, ask)
        assert found == limits()._replace(at_s=asked[-1])
        assert len(asked) == times
    (kept,) = (tmp_path / str(os.geteuid())).iterdir()
    for number, damaged in enumerate(("{", "[" * 100_000, "7", "[]", '[1, "ml", [{}], {}, {}]'), 4):
        kept.write_text(damaged)
        assert isinstance(limits_of_user(config, ask), Limits)
        assert len(asked) == number


def test_limits_that_cannot_be_asked_for(tmp_path: Path) -> None:
    config = SiteConfig(1, "c", "22.05", limits=Declared(True), paths=Paths(decisions=str(tmp_path)))

    def ask() -> Limits:
        raise ProcessError("sacctmgr is down")

    assert limits_of_user(config, ask) == because("limits-unknown", error="sacctmgr is down")


@pytest.mark.parametrize(
    ("share", "account", "qos", "said"),
    [
        ("gres/mps", "", "normal", ("account", "ml")),
        # A limit for each job is none that a share passes by, and what is above the account holds, too.
        ("gres/shard", "vision", "low", ("account", "ml")),
        ("gres/mps", "old", "small", ("QOS", "small")),
        ("gres/mps", "old", "normal", None),
        ("gres/mps", "nobody's", "normal", None),
    ],
)
def test_a_limit_on_gpus_is_not_passed_by_on_shares(
    share: str, account: str, qos: str, said: tuple[str, str] | None
) -> None:
    found = limit_passed_by(limits(), share, account, qos, "gpu", "")
    assert found == (said and because("limit-passed-by", limit="GrpTRES", what=said[0], name=said[1], share=share))


def test_a_level_that_limits_the_share_too_is_not_passed_by() -> None:
    both = ACCOUNTS.replace("gres/gpu=4", "gres/gpu:h100=4,gres/shard=9")
    known = parse_limits([USER, both, QOS], 1.0)
    known = known._replace(own=(known.own[0]._replace(limits={}), *known.own[1:]))
    assert limit_passed_by(known, "gres/shard", "", "normal", "gpu", "") is None
    assert limit_passed_by(known, "gres/mps", "", "normal", "gpu", "")


def test_caps_of_everybody() -> None:
    qos, associations = caps_questions("lab")
    assert (qos[-2], associations[-3:-1]) == ("qos", ("association", "cluster=lab"))
    cells = "|".join([""] * 6)
    text = f"root|root|||{cells}\nml|||gres/gpu=8|{cells}\nml|ann|gpu|gres/gpu=2|{cells}\n"
    assert [cap for cap in parse_caps([QOS, text]) if cap.key != "MaxWall"] == [
        Cap("QOS 'Small'", "GrpTRES", {"gres/gpu:h100": 3}),
        Cap("QOS 'Small'", "MaxTRES", {"gres/gpu": 1, "gres/mps": 20}),
        Cap("QOS 'Small'", "MaxTRESPerUser", {"gres/gpu": 2}),
        Cap("QOS 'Small'", "MinTRES", {"gres/gpu": 1}),
        Cap("QOS 'low'", "MaxTRESPerUser", {"gres/shard": 1}),
        Cap("account 'ml'", "GrpTRES", {"gres/gpu": 8}),
        Cap("user 'ann' in account 'ml' in partition 'gpu'", "GrpTRES", {"gres/gpu": 2}),
    ]


def test_an_answer_that_hides_others_is_none() -> None:
    rows = f"ml|ann||{'|' * 6}\n"
    with pytest.raises(InputError, match="no association of root"):
        parse_caps([QOS, rows])
    assert parse_caps([QOS, f"root|root||{'|' * 6}\n{rows}"])
    with pytest.raises(InputError, match="which has not 10 columns"):
        parse_caps([QOS, "root|root|\n"])


@pytest.mark.parametrize("slurm", RELEASES)
def test_recorded_caps_as_a_user_sees_them(slurm: str) -> None:
    folder = RECORDED / f"slurm-{slurm}/sacctmgr"
    caps = parse_caps([(folder / f"{name}.txt").read_text() for name in ("qos", "association")])
    assert caps == (
        Cap("QOS 'capped'", "MaxTRESPerUser", {"gres/gpu": 4}),
        Cap("QOS 'capped'", "MaxWall", {"minutes": 1440}),
        Cap("user 'alice' in account 'ml'", "MaxTRESMins", {"gres/gpu": 600}),
        Cap("account 'phys'", "GrpTRES", {"gres/gpu": 8, "gres/shard": 4}),
    )
