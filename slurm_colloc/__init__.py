# SPDX-License-Identifier: Apache-2.0
"""Share GPUs between Slurm jobs that do not need a whole one, and account for what each job really used.

The names in ``__all__`` are the public API (docs/how-to/python.md), which stays as it is within a major version;
every other module is private. They are imported when they are asked for: csub starts at each submission.
"""

__version__ = "0.1.0"
__all__ = ["Accounting", "CollocError", "Footprint", "Placement", "footprint", "open", "place"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc.library import Accounting, CollocError, Footprint, Placement, footprint, open, place


def __getattr__(name: str) -> object:
    """Return a name of the public API."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from slurm_colloc import library

    return getattr(library, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
