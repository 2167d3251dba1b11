# SPDX-License-Identifier: Apache-2.0
"""colloc holders: which job holds which GPU, asked of slurmctld by one ordinary account on one host."""

import os
from typing import Annotated

from typer import Option

from slurm_colloc.cli.colloc.output import say, service_folder
from slurm_colloc.core.errors import CollocError, StoreError
from slurm_colloc.core.files import file_mode, locked, read_bounded, write_atomic
from slurm_colloc.core.units import counted
from slurm_colloc.observe.loop import Pace
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.sources.holders import SUFFIX, Holding, after_a_look, parse_holders, text_of
from slurm_colloc.sources.sacct_client import day_name

# A busy day has 100,000 rows, which are 8 MB.
_LIMIT_BYTES = 256 * 1024 * 1024
_ANSWER_S = 50.0


def holders(
    folder: Annotated[str, Option(help="where to; else holders in the site's paths.state")] = "",
    period: Annotated[float, Option(min=1.0, max=3600.0, help="seconds between two looks")] = 60.0,
    count: Annotated[int, Option(min=0, help="end after so many looks; 0: go on")] = 0,
) -> None:
    """Note which job holds which GPU, for ingest --prometheus.

    It asks scontrol, on one host, without root. Where PrivateData hides jobs it needs Slurm's Operator.
    """
    target = service_folder("holders", folder)
    with locked(os.path.join(target, "lock")) as alone:
        if not alone:
            raise StoreError(f"another 'colloc holders' writes to '{target}'; end that one first")
        pace = Pace(period, count=count)
        pace.stop_on_signals()
        rows: dict[str, list[Holding]] = {}
        complained = ""
        for at_s, _ in pace:
            name = day_name(at_s)
            try:
                # Rows of one day alone are kept: held units come again with the first look of the next.
                before = rows.get(name) or _there(os.path.join(target, name + SUFFIX))
                rows = {name: after_a_look(before, CliClient(_ANSWER_S).held(), int(at_s))}
                write_atomic(os.path.join(target, name + SUFFIX), text_of(rows[name]).encode(), file_mode(target))
                trouble = ""
            except CollocError as error:
                if count:
                    raise
                trouble = str(error)
            if trouble != complained:
                say(trouble or "looking again")
            complained = trouble
    if count:
        say(f"{counted(sum(map(len, rows.values())), 'row')} of jobs and their GPUs in '{target}' today")


def _there(path: str) -> tuple[Holding, ...]:
    if not os.path.exists(path):
        return ()
    return parse_holders(read_bounded(path, _LIMIT_BYTES).decode(errors="replace")).rows
