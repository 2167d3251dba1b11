# SPDX-License-Identifier: Apache-2.0
"""The options of sbatch, release by release: long and short names, argument kinds and SBATCH_* variables.

22.05, 24.11 and 26.05 were asked themselves: `sbatch --=` lists every long option as "possibilities"; the recordings
lie in tests/recorded/slurm-*/sbatch/, and tests/cluster/test_sbatch_truth.py asks each sbatch that it finds again. The
releases in between are as Slurm's history and documentation have them, and 26.11 is as the source of 26.11.0rc1 has it
(src/common/slurm_opt.c, src/sbatch/opt.c). A newer one is read as the newest of these. No option
depends on how Slurm was built, but a site's SPANK plugins add their own: see options.py.

A release means its maintained state. Known to differ in the very first ones: 22.05.0 does not read SBATCH_ERROR,
SBATCH_INPUT and SBATCH_OUTPUT, 25.05.0 not SBATCH_SEGMENT_SIZE.
"""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple


class Option(NamedTuple):
    """One long option of sbatch, or of csub itself."""

    name: str  # "gpus-per-node"
    short: str  # "G" or ""
    argument: str  # "required" | "optional" | "none"
    environment: str = ""  # "SBATCH_GPUS" or ""
    alias_of: str = ""  # the canonical name where this is a second spelling
    since: str = ""  # the first release that has it so; "" for the oldest of RELEASES
    until: str = ""  # the last one; "" for the newest

    @property
    def canonical(self) -> str:
        """Return the name under which every spelling of this option is known."""
        return self.alias_of or self.name


RELEASES = ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05", "26.11")

# Variables that set something no line of sbatch_options.txt names: second names, and the two halves of
# --switches=COUNT@TIME, which sbatch keeps apart ("req-switch" and "switch-wait" are its own words and no options). The
# later of two variables that set one thing wins: sbatch reads the first of these before those of the file, the others
# after them, and SBATCH_REQUEUE after SBATCH_NO_REQUEUE, as the lines stand. No other order shows.
VARIABLE_BEFORE = Option("hint", "", "required", "SLURM_HINT")
VARIABLES_AFTER: tuple[Option, ...] = (
    Option("clusters", "M", "required", "SLURM_CLUSTERS"),
    Option("req-switch", "", "required", "SBATCH_REQ_SWITCH"),
    Option("switch-wait", "", "required", "SBATCH_WAIT4SWITCH"),
)

# Read before the script and the command line, by the first release that does: the script's own --ignore-pbs still holds
# after SBATCH_IGNORE_PBS=0. 22.05 reads SBATCH_DEBUG among the others.
EARLY_VARIABLES: dict[str, str] = {"SBATCH_IGNORE_PBS": "22.05", "SBATCH_DEBUG": "23.02"}

# Still read from this release on, though the option is gone: sbatch exits without a word if one is set.
DEADLY_VARIABLES: dict[str, str] = {"SBATCH_POWER": "24.05"}

# The first release in which a backslash makes a space literal; until then the word ends there.
ESCAPED_SPACE_SINCE = "24.05"

# Obeyed on the command line only: sbatch reads past them in silence in a directive.
COMMAND_LINE_ONLY = frozenset({"help", "quiet", "usage", "verbose", "version", "wrap"})

# With these sbatch submits no script: it prints words for a shell's completion and ends, or makes an external job.
NO_SCRIPT = frozenset({"autocomplete", "external"})

# Two names for one value inside sbatch: the last one decides, by either name.
SAME_VALUE: dict[str, str] = {
    "requeue": "no-requeue",
    "no-requeue": "requeue",
    "exclusive": "oversubscribe",
    "oversubscribe": "exclusive",
}

_TABLE = os.path.join(os.path.dirname(__file__), "sbatch_options.txt")


def _options() -> Iterator[Option]:
    with open(_TABLE, encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("#"):
                yield Option(*("" if word == "-" else word for word in line.split()))


_OPTIONS = tuple(_options())
SBATCH_OPTIONS: dict[str, tuple[Option, ...]] = {
    release: tuple(option for option in _OPTIONS if option.since <= release <= (option.until or release))
    for release in RELEASES
}


def known_as(release: str) -> str:
    """Return the release by whose options one is read: its own, of a newer one the newest known; else "".

    A job with an option that only a newer release brings is submitted as asked, since that option is not in the table.
    """
    if release in SBATCH_OPTIONS:
        return release
    return RELEASES[-1] if re.fullmatch(r"\d\d\.\d\d", release) and release > RELEASES[-1] else ""
