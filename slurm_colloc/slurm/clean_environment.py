# SPDX-License-Identifier: Apache-2.0
"""An environment for questions to Slurm without the user's own settings (SQUEUE_*, SINFO_* and the like)."""

from collections.abc import Mapping

# SQUEUE_PARTITION and its like hide jobs, SCANCEL_NAME passes over them, SCANCEL_INTERACTIVE asks before it acts.
_FILTERS = ("SQUEUE_", "SINFO_", "SCANCEL_")


def unfiltered(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what makes squeue, sinfo and scancel pass over jobs and nodes."""
    return {name: value for name, value in environ.items() if not name.startswith(_FILTERS)}
