# SPDX-License-Identifier: Apache-2.0
"""Which policy holds for one job: the first of the site's rules that it meets, and the draw where that is for a part.

The draw is by user, job (its signature) and day (UTC). So one job has the same answer for a whole day, however often it
is submitted again, and on other days the other one: both arms have the same users and the same jobs, and nobody gets
another answer by asking twice.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from slurm_colloc.core.config import Rule, SiteConfig
from slurm_colloc.core.model import CONTROL, PLACED, Params, Reason, because
from slurm_colloc.estimate.digest import digest

# The code of the reason where it is not known whether a job meets a rule.
MAY_BE_MET = "rule-may-be-met"
_DRAW_BYTES, _DAY_S = 8, 86400


class Whose(NamedTuple):
    """The user of a job and where it goes, as rules see it; None is not known."""

    user: str
    groups: Collection[str]
    account: str | None
    partitions: Collection[str]
    qos: str | None


# Nobody is asked whose job it is at a site without rules.
NOBODY = Whose("", (), None, (), None)


class Chosen(NamedTuple):
    """The policy in force for one job, why, and, where the job was drawn, which arm it is in of which rule.

    ``late`` is the late binding in force.
    """

    policy: str
    why: Reason
    arm: str = ""
    rule: str = ""
    late: str = "off"


def choose(config: SiteConfig, whose: Whose, drawn: Callable[[], float], stopped: str = "") -> Chosen:
    """Return the policy for a job.

    Args:
        config: the site.
        whose: the facts that the rules look at.
        drawn: says the job's draw, from 0 to 100.
        stopped: why nothing is placed at this site for now; empty where it is.
    """
    chosen = _first(config, whose, drawn)
    if stopped and chosen.policy == "auto":
        # Nobody knows any more what placing does to a job that would have been placed: it is in no arm.
        return Chosen("shadow", because("placing-stopped", why=stopped))
    return chosen


def _first(config: SiteConfig, whose: Whose, drawn: Callable[[], float]) -> Chosen:
    for number, rule in enumerate(config.rollout, 1):
        met = _meets(rule, whose)
        params: Params = {"number": number, "rule": in_words(rule)}
        if met is None:
            return Chosen("shadow", Reason(MAY_BE_MET, params))
        if met:
            chosen = _drawn(rule, params, drawn)
            return chosen._replace(late=_late(chosen.policy, rule.late_binding or config.sharing.late_binding))
    return Chosen(config.policy, because("policy-of-site"), late=_late(config.policy, config.sharing.late_binding))


def _late(policy: str, late_binding: str) -> str:
    """Return the late binding in force: a job that is not placed gets no piece while it waits."""
    return late_binding if policy == "auto" else "off"


def _drawn(rule: Rule, params: Params, drawn: Callable[[], float]) -> Chosen:
    if rule.percent >= 100:
        return Chosen(rule.policy, Reason("rule-met", params))
    number = drawn()
    chosen = number < rule.percent
    arm, name = (PLACED if chosen else CONTROL, in_words(rule)) if rule.policy == "auto" else ("", "")
    return Chosen(rule.policy if chosen else "shadow", Reason("rule-drawn", {**params, "drawn": number}), arm, name)


def _meets(rule: Rule, whose: Whose) -> bool | None:
    """Return whether a rule is for a job; None where that is not known."""
    sure = (
        (not rule.users or whose.user in rule.users)
        and (not rule.groups or not set(rule.groups).isdisjoint(whose.groups))
        and (not rule.partitions or set(whose.partitions) <= set(rule.partitions))
    )
    # Slurm takes names of accounts and QOS in any case.
    named = [(rule.accounts, whose.account), (rule.qos, whose.qos)]
    among = [None if name is None else name.lower() in map(str.lower, names) for names, name in named if names]
    if not sure or False in among:
        return False
    return None if None in among else True


def in_words(rule: Rule) -> str:
    """Return whom a rule is for, and the part of them."""
    lists = ("users", "groups", "accounts", "partitions", "qos")
    whom = ", ".join(f"{name} {' '.join(getattr(rule, name))}" for name in lists if getattr(rule, name))
    part = f"{rule.percent:g} % of " if rule.percent < 100 else ""
    return f"'{rule.policy}' for {part}{whom or 'all'}"


def draw(user: str, signature: str, cluster: str, at_s: float) -> float:
    """Return a number from 0 to 100, the same for one job of one user all day."""
    key = "\0".join((cluster, user, signature, str(int(at_s // _DAY_S)))).encode(errors="surrogateescape")
    return 100.0 * int(digest(key, _DRAW_BYTES), 16) / 2.0 ** (8 * _DRAW_BYTES)
