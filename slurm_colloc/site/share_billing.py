# SPDX-License-Identifier: Apache-2.0
"""Checks that Slurm accounts for shares and bills them as it does GPUs.

To Slurm gres/mps and gres/shard are no gres/gpu: what is said of GPUs alone, a job on a share passes by.
"""

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.site.cluster import Cluster, with_gpus
from slurm_colloc.slurm.limits import names_tres
from slurm_colloc.slurm.setup import parse_weights

SHARES = ("mps", "shard")
# How a site file keeps csub from giving them.
OFF = {"mps": 'write sharing.mps_daemon = "none"', "shard": 'take "shard" out of sharing.order'}


def uses(config: SiteConfig, share: str) -> bool:
    """Return whether csub may give shares of this kind, as far as the site file goes."""
    sharing = config.sharing
    return sharing.mps_daemon != "none" if share == "mps" else share in sharing.order


def free_of_charge(cluster: Cluster, share: str) -> list[str]:
    """Return why jobs on gres/``share`` would not be billed where jobs on GPUs are; each with what to do.

    Raises:
        InputError: billing weights outside their grammar.
    """
    if not cluster.accounts:
        return []
    tracked = cluster.settings.get("AccountingStorageTRES", "").split(",")
    if names_tres(tracked, "gres/gpu") and not names_tres(tracked, f"gres/{share}"):
        return [
            f"AccountingStorageTRES names gres/gpu and not gres/{share}, so that such jobs could neither be accounted "
            f"for nor billed nor limited: add gres/{share} there"
        ]
    sharing = {name for node in cluster.nodes if node.quantity(share) for name in node.partitions}
    found = []
    for partition in with_gpus(cluster):
        charged = [name for name, weight in parse_weights(partition.billing_weights).items() if weight]
        if partition.name in sharing and names_tres(charged, "gres/gpu") and not names_tres(charged, f"gres/{share}"):
            found.append(
                f"partition '{partition.name}' bills gres/gpu and not gres/{share}: add gres/{share} to its "
                "TRESBillingWeights"
            )
    return found
