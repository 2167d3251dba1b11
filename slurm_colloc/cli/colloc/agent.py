# SPDX-License-Identifier: Apache-2.0
"""colloc agent: the service that measures a GPU node, every job on it, all the time."""

import os
from typing import Annotated

from typer import Option

from slurm_colloc.cli.colloc.options import Count, Node, Period
from slurm_colloc.cli.colloc.output import node_name, site_or_none
from slurm_colloc.cli.sampling import Settings, become
from slurm_colloc.core.config_file import SYSTEM_FILE
from slurm_colloc.core.errors import ConfigError


def agent(
    node: Node = "",
    period: Period = None,
    journal: Annotated[str, Option(help="folder to keep every sample in; else the site's")] = "",
    count: Count = 0,
) -> None:
    """Measure this node's GPUs and jobs all the time, as a service. A driver that is away is waited for."""
    config = site_or_none()
    if config is None:
        raise ConfigError(
            "the agent needs a site.toml, which says where the journal lies; write one with 'colloc site init' on a "
            f"login node and put it into {SYSTEM_FILE}, or name another in $COLLOC_CONF"
        )
    settings = Settings(
        node=node or node_name(),
        cluster=os.environ.get("SLURM_CLUSTER_NAME") or config.cluster,
        period_s=period or config.observe.period_s,
        reader=config.observe.gpu_reader,
        dcgm=config.observe.dcgm,
        journal=journal or config.journal_folder,
        samples=count,
        prometheus=config.observe.prometheus,
        agent=True,
    )
    become(settings)
