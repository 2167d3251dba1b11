# SPDX-License-Identifier: Apache-2.0
"""colloc sample: measure a node by hand, or one's own job from inside."""

import os
from typing import Annotated

from typer import Argument, Option

from slurm_colloc.cli import sampling
from slurm_colloc.cli.colloc.options import Count, Node, Period
from slurm_colloc.cli.colloc.output import node_name, site_or_none, state_folder
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import ConfigError, InputError
from slurm_colloc.estimate.question import settles_after_s
from slurm_colloc.submit.running_signature import known_by


def sample(
    node: Node = "",
    period: Period = None,
    reader: Annotated[str, Option(help="nvml, or simulated:FOLDER")] = "",
    journal: Annotated[str, Option(help="folder to keep every sample in")] = "",
    evidence: Annotated[str, Option(help="folder to keep one job's evidence in")] = "",
    job: Annotated[str, Option(help="look at this job only")] = "",
    signature: Annotated[str, Option(help="of that job, from csub")] = "",
    mode: Annotated[str, Option(help="how that job shares its GPU")] = "exclusive",
    watch_pid: Annotated[int, Option(help="end with this process")] = 0,
    count: Count = 0,
    script: Annotated[str, Option(help="of that job, submitted without csub: keep its evidence for csub")] = "",
    arguments: Annotated[list[str] | None, Argument(help="the script's own, after '--'", show_default=False)] = None,
) -> None:
    """Measure this node's GPUs by hand, or from inside one job. It goes on until told to stop."""
    config = site_or_none()
    site = config or SiteConfig(1, "", "")
    if arguments and not script:
        raise InputError(f"argument '{arguments[0]}' is left over: only with --script are there any")
    if script:
        cluster = site.cluster or os.environ.get("SLURM_CLUSTER_NAME", "")
        signature, mode = known_by(script, arguments or (), os.environ, cluster)
        evidence = user_data_folder()
    if evidence and not (job and signature):
        raise InputError("--evidence needs --job and --signature")
    if not journal and not evidence:
        if config is None:
            raise ConfigError("no folder for samples: give --journal, or a site.toml with paths.state")
        journal = state_folder("journal", writing=True)
    # Slurm 22.05 does not say when the job ends at the latest; a limit is of whole minutes.
    end_s = os.environ.get("SLURM_JOB_END_TIME", "")
    limit_min = (int(end_s) - now()) // 60 + 1 if end_s.isdecimal() else None
    sampling.sample(
        sampling.Settings(
            node=node or node_name(),
            cluster=os.environ.get("SLURM_CLUSTER_NAME") or site.cluster,
            period_s=period or site.observe.period_s,
            reader=reader or site.observe.gpu_reader,
            dcgm=site.observe.dcgm,
            journal=journal,
            evidence=evidence,
            job=job,
            signature=signature,
            mode=mode,
            watch_pid=watch_pid,
            samples=count,
            late=site.cluster if site.binds_late else "",
            settle_s=settles_after_s(site.sharing.settle_s, limit_min),
        )
    )
