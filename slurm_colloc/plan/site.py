# SPDX-License-Identifier: Apache-2.0
"""site.toml and slurm.conf -> the nodes and rules of a replay. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from slurm_colloc.core.config import Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.units import time_limit_min
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.plan.model import NodeKind, Priority, Scheduler, Site
from slurm_colloc.slurm.hostlist import expand
from slurm_colloc.slurm.limits import Cap

# The cores and MiB of a node where site.toml does not say: no job waits for them.
ENDLESS = 10**9
UNTYPED = "gpu"
_MULTIFACTOR = "priority/multifactor"
# SchedulerParameters by the fields of ``Scheduler``, whose names are theirs and a unit, and how many units each is of.
_PARAMETERS = dict.fromkeys(Scheduler._fields[:6], 1) | {"bf_window_s": 60}
_LEFT_OUT = (
    "reservations, preemption, licenses, limits of arrays ('%8') that held no task back, limits of accounts and QOS, "
    "and nodes that were down are not replayed",
    "jobs without GPUs are not replayed: the cores that they took are taken for free",
)
_NO_SETTINGS = "Slurm was not reachable from here; its standard rules were assumed: backfill, order of submission"


class Rules(NamedTuple):
    """How Slurm orders and looks ahead, what of it is not known or not replayed, and its limits, None if not known."""

    scheduler: Scheduler
    priority: Priority
    left_out: tuple[str, ...]
    caps: tuple[Cap, ...] | None = None


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
            node = _node(name, pool)
            before = nodes.get(name)
            nodes[name] = node if before is None else before._replace(gres=before.gres + node.gres)
    if not any(count for node in nodes.values() for _, count in node.gres):
        raise InputError("site.toml names no nodes with GPUs; 'colloc site init' writes one from the cluster")
    one_user = frozenset(partition.name for partition in config.partition if partition.mps_users == "one")
    return Site(tuple(nodes.values()), rules.scheduler, rules.priority, one_user)


def _node(name: str, pool: Pool) -> NodeKind:
    kind, gpus = kind_of_pool(pool), pool.gpus_per_node
    gres = {kind: gpus} if gpus else {}
    for part in pool.slice:
        gres[part.type] = gres.get(part.type, 0) + part.quantity
    shares = {name: per_gpu for name in ("mps", "shard") if (per_gpu := shares_per_gpu(pool, name)) and gpus}
    return NodeKind(
        name,
        pool.partitions,
        tuple(gres.items()),
        pool.cpus_per_node or ENDLESS,
        pool.mem_per_node_mib or ENDLESS,
        kind if gpus else "",
        tuple(shares.items()),
    )


def rules_of(settings: Mapping[str, str] | None) -> Rules:
    """Return the rules that ``scontrol show config`` tells, and Slurm's defaults for what it does not.

    Args:
        settings: its keys and values; None where Slurm could not be asked.
    """
    if settings is None:
        return Rules(Scheduler(), Priority(age=1.0), (*_LEFT_OUT, _NO_SETTINGS))
    scheduler = _scheduler(settings)
    if settings.get("PriorityType", _MULTIFACTOR) != _MULTIFACTOR:
        return Rules(scheduler, Priority(age=1.0), (*_LEFT_OUT, "jobs wait in order of submission (PriorityType)"))
    lower = {key.lower(): value for key, value in settings.items()}

    def weight(name: str) -> float:
        text = lower.get(f"priorityweight{name}", "")
        return float(text) if text.isdigit() else 0.0

    by_default = Priority()
    rules = Priority(
        weight("age"),
        weight("fairshare"),
        weight("jobsize"),
        _span_s(settings, "PriorityMaxAge", by_default.max_age_s),
        _span_s(settings, "PriorityDecayHalfLife", by_default.half_life_s),
        _span_s(settings, "PriorityCalcPeriod", by_default.calc_period_s) or by_default.calc_period_s,
        settings.get("PriorityFavorSmall", "").lower() in ("yes", "true", "1"),
    )
    lines = [
        f"the factor of PriorityWeight{name} is not known here and counts for all jobs alike"
        for name in ("QOS", "Partition", "Assoc")
        if weight(name.lower())
    ]
    if settings.get("PriorityWeightTRES", "") not in ("", "(null)", "0"):
        lines.append("PriorityWeightTRES is not replayed")
    if rules.fair_share:
        lines.append("fair share by equal shares of all accounts and users, and by what they used in the window")
    if "NO_FAIR_TREE" in settings.get("PriorityFlags", ""):
        lines.append("fair share goes by the fair tree, which this site has turned off")
    return Rules(scheduler, rules, (*_LEFT_OUT, *lines))


def _scheduler(settings: Mapping[str, str]) -> Scheduler:
    texts = dict(item.partition("=")[::2] for item in settings.get("SchedulerParameters", "").split(","))
    numbers: dict[str, Any] = {
        field: int(text) * units
        for field, units in _PARAMETERS.items()
        if (text := texts.get(field.removesuffix("_s"), "")).isdigit()
    }
    release = tuple(int(part) for part in settings.get("SLURM_VERSION", "").split(".")[:2] if part.isdigit())
    return Scheduler(
        **numbers,
        before_24_11=() < release < (24, 11),
        backfill=settings.get("SchedulerType", "sched/backfill") == "sched/backfill",
    )


def _span_s(settings: Mapping[str, str], key: str, otherwise_s: float) -> float:
    try:
        return time_limit_min(settings[key]) * 60 if settings.get(key) else otherwise_s
    except InputError:
        return otherwise_s
