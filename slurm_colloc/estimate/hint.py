# SPDX-License-Identifier: Apache-2.0
"""The first rung: what the user says the job needs."""

from slurm_colloc.errors import InputError
from slurm_colloc.model import Footprint, Quantiles
from slurm_colloc.units import demand_mib, percent


def parse_hint(text: str) -> Footprint:
    """Return the footprint in ``mem=9G,sm=30``; ``sm`` is in percent of a whole GPU's SMs.

    Raises:
        InputError: unknown or repeated parts, no ``mem``, or a value outside its range.
    """
    parts: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        name = name.strip()
        if not equals or name not in ("mem", "sm") or name in parts:
            raise InputError(f"footprint '{text}': '{item}' is not one of mem=SIZE, sm=PERCENT, each at most once")
        parts[name] = value
    if "mem" not in parts:
        raise InputError(f"footprint '{text}' lacks mem=SIZE, for example 'mem=9G,sm=30'")
    memory = float(demand_mib(parts["mem"]))
    active = percent(parts["sm"], "sm") if "sm" in parts else None
    return Footprint(
        gpu_mem_peak_mib=Quantiles(memory, memory, memory),
        sm_active_pct=None if active is None else Quantiles(active, active, active),
        run_time_s=None,
        gpu_model="",
        rung="hint",
        evidence_count=0,
        provenance=f"given by the user: {text}",
    )
