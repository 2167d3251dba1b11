# SPDX-License-Identifier: Apache-2.0
"""What a past run would have fitted, and what csub would give the next one, by what was measured of it.

What accounting does not keep is not made up: the script, cores, host memory and the time limit are taken to allow a
piece, and so are the user's limits; nothing is known of what will be free.
"""

from collections.abc import Sequence
from math import inf

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.model import COMPLETED, Evidence, Footprint, Gres, JobRequest, Placement, Quantiles
from slurm_colloc.placement.choose import place
from slurm_colloc.slurm.gres import parse_gres


def past_request(shown: str, partition: str, account: str, qos: str, no_share: Sequence[str] = ()) -> JobRequest:
    """Return the request of a past job, as far as its allocation (``shown``, in Slurm's words) tells it."""
    return JobRequest(
        name="",
        script_args=(),
        interpreter="/bin/sh",
        partitions=(partition,),
        account=account,
        qos=qos,
        gres=_gpus(shown),
        gpu_style="gres",
        cpus_per_gpu=None,
        mem_per_gpu="",
        min_cpus=0,
        tasks=None,
        cpus_given=True,
        cores_unclear=False,
        mem_given=True,
        time_limit_min=inf,
        array=False,
        signature="",
        numbers=(),
        no_share=tuple(no_share),
        untouchable=(),
        components=(),
        origins=(),
    )


def _gpus(shown: str) -> tuple[Gres, ...]:
    try:
        return tuple(gres for gres in parse_gres(shown) if gres.name == "gpu")
    except InputError:  # of an odd source: any GPU
        return (Gres("gpu", "", 1),)


def had_piece(run: Evidence, shown: str) -> bool:
    """Return whether a run had a slice or a share of a GPU."""
    return bool(run.mode) or not _gpus(shown)


def not_judged(run: Evidence, shown: str, min_coverage_pct: float) -> str:
    """Return why nothing is said of what a run would have fitted; empty where something can be."""
    if had_piece(run, shown):
        return "it had a piece of a GPU already"
    if sum(gres.quantity for gres in _gpus(shown)) != 1:
        return "only runs of one GPU are judged"
    if run.state != COMPLETED:
        return f"it ended as {run.state}, so that its peak may be less than it needs"
    if run.gpu_mem_peak_mib is None or run.sm_active_q95_pct is None:
        return "its memory or its SM activity was not measured alone on the GPU"
    if run.elapsed_s and 100 * run.sampled_s / run.elapsed_s < min_coverage_pct:
        return f"less than {min_coverage_pct:.0f} % of its time was sampled"
    return ""


def would_have_fitted(run: Evidence, request: JobRequest, config: SiteConfig) -> Placement:
    """Return the piece that holds what was measured of a run, with the site's headroom and within its slowdown."""
    peak_mib, active_pct = float(run.gpu_mem_peak_mib or 0), run.sm_active_q95_pct or 0.0
    measured = Footprint(
        Quantiles(peak_mib, peak_mib, peak_mib),
        Quantiles(active_pct, active_pct, active_pct),
        None,
        run.gpu_model,
        "measured",
        1,
        "measured",
    )
    return place(request, measured, config)
