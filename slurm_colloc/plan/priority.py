# SPDX-License-Identifier: Apache-2.0
"""The order of those that wait: Slurm's multifactor priority, with the fair tree of accounts and users.

Left out: nice, the factors of QOS and partition, PriorityWeightAssoc, PriorityWeightTRES, site factors, and what was
used before the first job.
"""

from collections import defaultdict
from collections.abc import Iterable

from slurm_colloc.plan.model import Job, Priority


class Ordering:
    """Priorities of jobs, by what their users and accounts have used so far."""

    def __init__(self, rules: Priority, jobs: Iterable[Job], nodes: int, cpus: int) -> None:
        self._rules, self._nodes, self._cpus = rules, max(1, nodes), max(1, cpus)
        self._users = sorted({(job.account, job.user) for job in jobs})
        self._used: dict[tuple[str, str], float] = {}
        # (cores now, since when, core-seconds up to then that are not in ``_used`` yet).
        self._running: dict[tuple[str, str], tuple[float, float, float]] = {}
        self._at_s: float | None = None
        self._fair: dict[tuple[str, str], float] = {}
        self._rank()

    def uses(self, job: Job, now_s: float, *, begins: bool) -> None:
        """Let a job's usage count from now on, or no more."""
        cpus = job.shape.cpus * job.shape.nodes * (1 if begins else -1)
        key = job.account, job.user
        rate, since_s, used = self._running.get(key, (0.0, now_s, 0.0))
        self._running[key] = (rate + cpus, now_s, used + rate * (now_s - since_s))

    def due(self, now_s: float) -> bool:
        """Return whether Slurm reckons anew; if so, usage and ranks are those of now."""
        if self._at_s is None:
            self._at_s = now_s
            return True
        periods = int((now_s - self._at_s) // self._rules.calc_period_s)
        if periods < 1:
            return False
        spent_s = periods * self._rules.calc_period_s
        kept = 0.5 ** (spent_s / self._rules.half_life_s) if self._rules.half_life_s else 1.0
        for key, (rate, since_s, used) in self._running.items():
            self._used[key] = self._used.get(key, 0.0) * kept + used + rate * (now_s - since_s)
            self._running[key] = (rate, now_s, 0.0)
        self._at_s += spent_s
        self._rank()
        return True

    def of(self, job: Job, now_s: float) -> float:
        """Return a job's priority now."""
        rules = self._rules
        nodes, cpus = job.shape.nodes, job.shape.nodes * job.shape.cpus
        size = (nodes / self._nodes + cpus / self._cpus) / 2
        age = min(1.0, (now_s - job.submit_s) / rules.max_age_s) if rules.max_age_s else 0.0
        return (
            rules.age * age
            + rules.fair_share * self._fair[job.account, job.user]
            + rules.size * (1 - size if rules.favor_small else size)
        )

    def _rank(self) -> None:
        """Rank users as Slurm's fair tree does, all shares alike: accounts by what they used, and their users by it."""
        of_account = defaultdict[str, float](float)
        for account, user in self._users:
            of_account[account] += self._used.get((account, user), 0.0)
        used = [(of_account[pair[0]], pair[0], self._used.get(pair, 0.0), pair[1]) for pair in self._users]
        rank, before = 0, (-1.0, "", -1.0)
        for position, (account_used, account, user_used, user) in enumerate(sorted(used)):
            tied = user_used == before[2] if account == before[1] else account_used == before[0]
            rank = rank if tied else len(used) - position
            # A user of whom no job is in the window has a rank as well.
            self._fair[account, user] = rank / (len(used) + 1)
            before = account_used, account, user_used
