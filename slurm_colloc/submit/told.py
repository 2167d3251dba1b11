# SPDX-License-Identifier: Apache-2.0
"""What csub tells the site's policy (plugin/colloc_policy.lua), which judges every submission, of its own.

A variable, because it reaches slurmctld with every batch job and touches nothing that the user wrote; SLURM_ at its
front, because those pass ``--export=NONE`` too. Jobs inherit it, so that it names the job that it was submitted from:
what that one says in its turn, with another id around it, is nobody's word.
"""

from collections.abc import Mapping

from slurm_colloc.units import printable

VARIABLE = "SLURM_COLLOC"
EXCLUSIVE = "exclusive"


def wrong_wish(wish: str) -> str:
    """Return what is wrong with a value of --colloc; empty of one of auto, off and exclusive:REASON."""
    if wish in ("auto", "off") or is_exclusive(wish):
        return ""
    if wish.partition(":")[0] == EXCLUSIVE:
        return "--colloc=exclusive needs a reason: --colloc=exclusive:REASON"
    return f"--colloc='{wish}' is none of auto, off and exclusive:REASON"


def is_exclusive(wish: str | None) -> bool:
    """Return whether a whole GPU is asked for, and why is said."""
    word, _, reason = (wish or "").partition(":")
    return word == EXCLUSIVE and bool(reason.strip())


def told(environ: Mapping[str, str], wish: str) -> dict[str, str]:
    """Return the environment that hands a wish on; it is one line, whatever the user wrote."""
    return {**environ, VARIABLE: f"{environ.get('SLURM_JOB_ID') or '0'} {printable(wish)}"}
