# SPDX-License-Identifier: Apache-2.0
"""First estimator: the footprint that the user gives (--gpu-footprint)."""

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Footprint, Quantiles, because
from slurm_colloc.core.units import demand_mib, percent


def parse_hint(text: str) -> Footprint:
    """Return the footprint in ``mem=9G,sm=30,dram=20``.

    ``sm`` is in percent of a whole GPU's SMs, ``dram`` in percent of the time in which its memory moves data.

    Raises:
        InputError: unknown or repeated parts, no ``mem``, or a value outside its range.
    """
    parts: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        name = name.strip()
        if not equals or name not in ("mem", "sm", "dram") or name in parts:
            raise InputError(
                f"footprint '{text}': '{item}' is not one of mem=SIZE, sm=PERCENT, dram=PERCENT, each at most once"
            )
        parts[name] = value
    if "mem" not in parts:
        raise InputError(f"footprint '{text}' lacks mem=SIZE, for example 'mem=9G,sm=30'")
    memory = float(demand_mib(parts["mem"]))
    percents = {name: Quantiles(*[percent(parts[name], name)] * 3) for name in ("sm", "dram") if name in parts}
    return Footprint(
        gpu_mem_peak_mib=Quantiles(*[memory] * 3),
        sm_active_pct=percents.get("sm"),
        run_time_s=None,
        gpu_model="",
        rung="hint",
        evidence_count=0,
        provenance=(because("hint", hint=text),),
        dram_active_pct=percents.get("dram"),
    )
