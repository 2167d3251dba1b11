# SPDX-License-Identifier: Apache-2.0
"""site.toml and slurm.conf -> the nodes and rules of a replay. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from slurm_colloc.core.config import Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.units import time_limit_min
from slurm_colloc.plan.model import NodeKind, Priority, Scheduler, Site
from slurm_colloc.slurm.hostlist import expand

# What a node has of cores and MiB where site.toml does not say: no job waits for them.
ENDLESS = 10**9
UNTYPED = "gpu"
_MINUTE_S = 60.0


class Rules(NamedTuple):
    """How Slurm orders and looks ahead, and what of it could not be known or is not replayed."""

    scheduler: Scheduler
    priority: Priority
    left_out: tuple[str, ...]


def kind_of_pool(pool: Pool) -> str:
    """Return the kind of gres that a whole GPU of the pool is."""
    return pool.gpu_type or UNTYPED


def site_of(config: SiteConfig, rules: Rules) -> Site:
    """Return the nodes of all pools, a node that is in two of them with the GPUs of both.

    Raises:
        InputError: site.toml names no nodes with GPUs.
    """
    nodes: dict[str, NodeKind] = {}
    for pool in config.pool:
        for name in expand(pool.nodes):
            one = _node(name, pool)
            before = nodes.get(name)
            nodes[name] = one if before is None else before._replace(gres=before.gres + one.gres)
    if not any(count for node in nodes.values() for _, count in node.gres):
        raise InputError("site.toml names no nodes with GPUs; 'colloc site init' writes one from the cluster")
    one_user = frozenset(partition.name for partition in config.partition if partition.mps_users == "one")
    return Site(tuple(nodes.values()), rules.scheduler, rules.priority, one_user)


def _node(name: str, pool: Pool) -> NodeKind:
    whole = kind_of_pool(pool)
    gres = {whole: pool.gpus_per_node} if pool.gpus_per_node else {}
    for part in pool.slice:
        gres[part.type] = gres.get(part.type, 0) + part.quantity
    shares = tuple(
        (share, count) for share, count in (("mps", pool.mps_per_gpu), ("shard", pool.shards_per_gpu)) if count
    )
    return NodeKind(
        name,
        pool.partitions,
        tuple(gres.items()),
        pool.cpus_per_node or ENDLESS,
        pool.mem_per_node_mib or ENDLESS,
        whole if pool.gpus_per_node else "",
        shares if pool.gpus_per_node else (),
    )


def rules_of(settings: Mapping[str, str] | None) -> Rules:
    """Return the rules that ``scontrol show config`` tells, and Slurm's defaults for what it does not.

    Args:
        settings: its keys and values; None where Slurm could not be asked.
    """
    left_out = [
        "reservations, preemption, licenses, throttles of arrays that held no task of the window, limits of accounts "
        "and QOS, and nodes that were down are not replayed",
        "jobs without GPUs are not replayed: the cores that they took are taken for free",
    ]
    if settings is None:
        left_out.append(
            "slurm.conf is not known here: backfill and priority by Slurm's defaults, in order of submission"
        )
        return Rules(Scheduler(), Priority(age=1.0), tuple(left_out))
    scheduler = _scheduler(settings)
    if settings.get("PriorityType", "priority/multifactor") != "priority/multifactor":
        return Rules(scheduler, Priority(age=1.0), (*left_out, "jobs wait in order of submission (PriorityType)"))
    weights = {name: _weight(settings, name) for name in ("Age", "FairShare", "JobSize", "QOS", "Partition", "Assoc")}
    for name in ("QOS", "Partition", "Assoc"):
        if weights[name]:
            left_out.append(f"the factor of PriorityWeight{name} is not known here and counts for all jobs alike")
    if _given(settings, "PriorityWeightTRES"):
        left_out.append("PriorityWeightTRES is not replayed")
    if weights["FairShare"]:
        left_out.append("fair share by equal shares of all accounts and users, and by what they used in the window")
    if "NO_FAIR_TREE" in settings.get("PriorityFlags", ""):
        left_out.append("fair share goes by the fair tree, which this site has turned off")
    plain_priority = Priority()
    period_s = _span_s(settings.get("PriorityCalcPeriod", ""), plain_priority.calc_period_s)
    return Rules(
        scheduler,
        Priority(
            age=weights["Age"],
            fair_share=weights["FairShare"],
            size=weights["JobSize"],
            max_age_s=_span_s(settings.get("PriorityMaxAge", ""), plain_priority.max_age_s),
            half_life_s=_span_s(settings.get("PriorityDecayHalfLife", ""), plain_priority.half_life_s),
            calc_period_s=period_s or plain_priority.calc_period_s,
            favor_small=settings.get("PriorityFavorSmall", "").lower() in ("yes", "true", "1"),
        ),
        tuple(left_out),
    )


def _scheduler(settings: Mapping[str, str]) -> Scheduler:
    asked = dict(item.partition("=")[::2] for item in settings.get("SchedulerParameters", "").split(","))

    def number(key: str, otherwise: float, worth: float = 1.0) -> float:
        text = asked.get(key, "")
        return int(text) * worth if text.isdigit() else otherwise

    plain = Scheduler()
    release = tuple(int(part) for part in settings.get("SLURM_VERSION", "").split(".")[:2] if part.isdigit())
    return Scheduler(
        number("bf_interval", plain.bf_interval_s),
        number("bf_resolution", plain.bf_resolution_s),
        number("bf_window", plain.bf_window_s, _MINUTE_S),
        int(number("bf_max_job_test", plain.bf_max_job_test)),
        number("bf_window_linear", plain.bf_window_linear_s),
        number("batch_sched_delay", plain.batch_sched_delay_s),
        before_24_11=() < release < (24, 11),
        backfill=settings.get("SchedulerType", "sched/backfill") == "sched/backfill",
    )


def _given(settings: Mapping[str, str], key: str) -> bool:
    return settings.get(key, "") not in ("", "(null)", "0")


def _weight(settings: Mapping[str, str], name: str) -> float:
    text = next((value for key, value in settings.items() if key.lower() == f"priorityweight{name.lower()}"), "")
    return float(text) if text.isdigit() else 0.0


def _span_s(text: str, otherwise: float) -> float:
    try:
        return time_limit_min(text) * _MINUTE_S if text else otherwise
    except InputError:
        return otherwise
