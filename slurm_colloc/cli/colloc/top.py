# SPDX-License-Identifier: Apache-2.0
"""colloc top: the cluster now."""

import os
from collections import defaultdict
from typing import Annotated

import typer

from slurm_colloc.accounting.collocation import installed_gpus
from slurm_colloc.accounting.equivalents import gpu_equivalent
from slurm_colloc.accounting.live import VALID_S, live_by_prometheus, live_use
from slurm_colloc.accounting.sources.prometheus_server import TOKEN_VARIABLE, Server
from slurm_colloc.chart_model import LiveUse
from slurm_colloc.cli.colloc.output import one_of, site_or_none
from slurm_colloc.cli.colloc.terminal import show
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.observe.journal import newest
from slurm_colloc.report.top import FORMATS, Top, TopJob
from slurm_colloc.slurm.client import CliClient

# A server that is slow must not hold up the picture.
_PROMETHEUS_TIMEOUT_S = 5.0


def top(
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    prometheus: Annotated[
        str, typer.Option("--prometheus", help="address of a Prometheus server that scrapes the nodes")
    ] = "",
) -> None:
    """Show who holds GPUs now, and what is known of their use. 'watch -n 10 colloc top' shows it anew."""
    one_of("--format", form, FORMATS)
    token = os.environ.get(TOKEN_VARIABLE, "")
    server = Server(prometheus, token=token, timeout_s=_PROMETHEUS_TIMEOUT_S) if prometheus else None
    show(_look(site_or_none(), server), FORMATS, form)


def _look(config: SiteConfig | None, server: Server | None) -> Top:
    """Return the cluster as it is now, by one question to slurmctld.

    Raises:
        ProcessError: squeue fails or does not answer.
    """
    holders, rejected = CliClient().holders()
    at_s = now()
    live, source = _live(config, server, at_s) if holders else ({}, "nobody was asked")
    jobs = [
        TopJob(held, gpu_equivalent(held.gres or (), held.node_list, config).gpus, live.get(held.raw_id))
        for held in holders
    ]
    return Top(config.cluster if config else "", at_s, installed_gpus(config), jobs, source, rejected)


def _live(config: SiteConfig | None, server: Server | None, at_s: float) -> tuple[dict[str, LiveUse], str]:
    """Return what jobs do, by their raw ids, and who saw it, or why nobody did."""
    try:
        if server:
            return live_by_prometheus(server, at_s), f"Prometheus, samples of the last {VALID_S:.0f} s"
        if config is None:
            return {}, "no site.toml, and no --prometheus"
        folder = config.journal_folder
        if not os.access(folder, os.R_OK | os.X_OK):
            return {}, "the nodes' journals are not open to you, or not here; a Prometheus server knows: --prometheus"
        since_s = at_s - max(60.0, 3 * config.observe.period_s)
        return _by_journals(folder, since_s), f"the agents' newest samples in '{folder}'"
    except CollocError as error:
        return {}, str(error)


def _by_journals(folder: str, since_s: float) -> dict[str, LiveUse]:
    units: dict[str, list[dict[str, float | None]]] = defaultdict(list)
    at_s: dict[str, float] = {}
    for seen in newest(folder, since_s):
        for share in attribute_sample(seen):
            if share.job_id:
                figures = {"gpu_util_pct": share.gpu_util_pct, "sm_active_pct": share.sm_active_pct}
                units[share.job_id].append({**figures, "gpu_mem_mib": share.gpu_mem_used_mib})
                at_s[share.job_id] = max(at_s.get(share.job_id, 0.0), seen.at_s)
    return {job_id: live_use(of, at_s[job_id]) for job_id, of in units.items()}
