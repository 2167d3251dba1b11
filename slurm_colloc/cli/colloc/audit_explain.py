# SPDX-License-Identifier: Apache-2.0
"""colloc audit explain: what rules there are, and what one says, on which evidence, by which bounds."""

from typing import Annotated

import typer

from slurm_colloc.audit.explain import explained, listed
from slurm_colloc.audit.rules import all_entries
from slurm_colloc.cli.colloc.output import site_or_none
from slurm_colloc.cli.colloc.terminal import put
from slurm_colloc.config_audit import Audit
from slurm_colloc.units import printable


def explain(
    rule: Annotated[str, typer.Argument(metavar="CODE", help="a code or name; without one, all rules")] = "",
) -> None:
    """Print what a rule says, on which evidence, by which bounds. Without a code, list the rules."""
    config = site_or_none()
    known = all_entries(config.audit if config else Audit())
    text = explained(known, rule) if rule else listed(known)
    put("".join(f"{printable(line)}\n" for line in text.splitlines()))
