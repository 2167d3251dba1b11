# SPDX-License-Identifier: Apache-2.0
"""Settings that are missing for csub to place jobs, and remarks on the cluster for the administrator."""

from collections.abc import Iterable, Iterator

from slurm_colloc.core.config import TIERS, Pool, SiteConfig
from slurm_colloc.gpu.mig import model_named
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.site.cluster import SHARES, Cluster, free_of_charge, uses, with_gpus
from slurm_colloc.site.fragments import gpu_parts
from slurm_colloc.site.node_gpus import shapes_of
from slurm_colloc.site.pools import unconfirmed
from slurm_colloc.slurm.option_tables import RELEASES, known_as
from slurm_colloc.slurm.setup import parse_weights


def read_as_another(release: str) -> str:
    """Return what csub makes of a release that it does not know; empty of one that it knows."""
    nearest = known_as(release)
    if nearest == release:
        return ""
    newer = f"csub reads it as {nearest}; a job with an option that {nearest} has not is submitted as asked"
    return newer if nearest else "csub is plain sbatch"


def gaps(config: SiteConfig) -> list[str]:
    """Return where ``config`` keeps csub from placing jobs, by its own words and not by mistake."""
    places = config.tier == "place"
    lines = [] if places else [f"tier '{config.tier}': {TIERS[config.tier]}"]
    if config.policy == "shadow":
        exceptions = ", except for jobs of a [[rollout]] with 'auto'" if "auto" in config.policies else ""
        lines.append(f"policy is 'shadow': csub records what it would do and changes no job{exceptions}")
    if not config.pool:
        lines.append("no pool: no node with GPUs is described, so no job is placed")
    if otherwise := read_as_another(config.slurm_release):
        lines.append(f"slurm_release is '{config.slurm_release}', csub knows {', '.join(RELEASES)}: {otherwise}")
    if not config.paths.state and config.observe.agent:
        lines.append("observe.agent is set and paths.state is not: the samples of the nodes would lie in root's home")
    if places and config.paths.state and not config.paths.decisions:
        lines.append(
            "paths.decisions is not set, so csub's decisions lie in users' homes, where 'colloc ingest' and "
            "'colloc report --shadow' do not find them"
        )
    lines += [
        f"partition '{partition.name}': its jobs may be suspended and keep their GPU memory: no mps, no shard, no packs"
        for partition in config.partition
        if partition.suspends
    ]
    for pool in config.pool:
        shares = pool.mps_per_gpu or pool.shards_per_gpu
        if config.tier != "report" and (pool.sm_count is None or (pool.gpu_mem_mib is None and shares)):
            missing = " and ".join(key for key in ("sm_count", "gpu_mem_mib") if getattr(pool, key) is None)
            subject = "no job" if pool.sm_count is None else "no share"
            if pool.gpu_model and not model_named(pool.gpu_model):
                how = f"no GPU in our table is named '{pool.gpu_model}'; give the driver's, or use --gpus FILE"
            else:
                how = "'site init --gpu' may know them, 'site init --gpus' does"
            done = f"{subject} is placed" if places else "no packs are made"
            lines.append(f"pool '{pool.name}': {done} without its {missing}; {how}")
        elif places and not (pool.slice or shares):
            lines.append(f"pool '{pool.name}': no slices, mps or shard, so jobs get whole GPUs")
        elif places:
            lines += [f"pool '{pool.name}': {why}" for why in _off(pool, config)]
    return lines


_OF_MPS_USERS = {
    "": "gres/mps is not used in partition {}: mps_users does not say whose jobs may share a GPU",
    "one": "mps_users is 'one' in partition {}, whose nodes have several GPUs: a job on one share keeps all other "
    "users off its node (ExclusiveUser). With 'each' and without ExclusiveUser they get its other GPUs",
    "all": "mps_users is 'all' in partition {}: jobs of different users share one MPS daemon on each GPU, and a fault "
    "in one job ends the jobs of all users there. With 'each' a fault ends jobs of its own user only",
}


def _off(pool: Pool, config: SiteConfig) -> Iterable[str]:
    if pool.mps_per_gpu and not uses(config, "mps"):
        yield "csub gives no MPS shares here: 'colloc site init --mps-daemon' allows them where MPS daemons run"
    elif pool.mps_per_gpu:
        for users, text in _OF_MPS_USERS.items():
            named = [item.name for item in config.partition if item.name in pool.partitions and item.mps_users == users]
            if named and (users != "one" or pool.gpus_per_node > 1):
                yield text.format(", ".join(f"'{name}'" for name in named))
    if pool.shards_per_gpu and not uses(config, "shard"):
        yield "csub gives no shards here: 'colloc site init --shard-consent' allows them, without isolation of jobs"


def notes(config: SiteConfig, cluster: Cluster) -> list[str]:
    """Return what is no difference and yet worth knowing: gaps, absent nodes, shares that are free."""
    return [*gaps(config), *_of_cluster(config, cluster)]


def _of_cluster(config: SiteConfig, cluster: Cluster) -> Iterator[str]:
    yield from unconfirmed([node for node in cluster.nodes if node.quantity("gpu")])
    for node in cluster.nodes:
        for share in SHARES:
            if any(getattr(shape, share) is None for shape in shapes_of(node)):
                yield (
                    f"node '{node.name}': its GPUs do not have as many {share} each, so csub knows of none, "
                    "though Slurm may give a job one of them: write into its pool what gres.conf says"
                )
    yield from charges(config, cluster)
    for share in SHARES if config.tier == "place" else ():
        if any(shares_per_gpu(pool, share) for pool in config.pool):
            meant = share in config.sharing.unbilled
            if meant or not uses(config, share):  # else it is a difference
                state = "in sharing.unbilled" if meant else "off"
                yield from (f"gres/{share} ({state}): {reason}" for reason in free_of_charge(cluster, share))


# A weight is a number of few digits.
_NEARLY = 0.05


def charges(config: SiteConfig, cluster: Cluster) -> Iterator[str]:
    """Yield which pieces Slurm bills at another part of a whole GPU than they are, by compute slices and shares.

    Raises:
        InputError: billing weights outside their grammar.
    """
    # A typed GPU is a gres/gpu as well.
    added = max if "MAX_TRES" in cluster.settings.get("PriorityFlags", "").upper() else sum
    prices: dict[str, dict[str, float]] = {}
    parts: dict[str, dict[str, float]] = {}
    for partition in with_gpus(cluster):
        weights = parse_weights(partition.billing_weights)
        pieces = parts[partition.name] = dict(
            gpu_parts(pool for pool in config.pool if partition.name in pool.partitions)
        )
        named = {gres: (gres, *["GRES/gpu"] * gres.startswith("GRES/gpu:")) for gres in pieces}
        prices[partition.name] = {
            gres: added([weights.get(name.lower(), 0.0) for name in names]) for gres, names in named.items()
        }
    wholes = {
        name: max((price for gres, price in pieces.items() if parts[name][gres] == 1), default=0.0)
        for name, pieces in prices.items()
    }
    for name, priced in prices.items():
        whole = wholes[name] or max(wholes.values(), default=0.0)
        for gres, price in priced.items():
            part = parts[name][gres]
            if part < 1 and whole and price and abs(price / whole / part - 1) > _NEARLY:
                yield (
                    f"partition '{name}' bills {price:g} for {gres.lower()} and {whole:g} for a whole GPU, that is "
                    f"{100 * price / whole:.3g} %, and it is {100 * part:.3g} % of one; 'colloc report --billing' has "
                    "both"
                )
