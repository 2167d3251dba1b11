# SPDX-License-Identifier: Apache-2.0
"""What sbatch accepts, release by release: long and short names, argument kinds and SBATCH_* variables.

22.05, 24.11 and 26.05 were asked themselves: `sbatch --=` lists every long option as "possibilities"; the recordings
lie in tests/recorded/slurm-*/sbatch/, and tests/cluster/test_sbatch_truth.py asks each sbatch that it finds again. The
releases in between are as Slurm's history and documentation have them, and 26.11 is as the source of 26.11.0rc1 has it
(src/common/slurm_opt.c, src/sbatch/opt.c). A newer one is read as the newest of these. No option
depends on how Slurm was built, but a site's SPANK plugins add their own: see options.py.

A release means its maintained state. Known to differ in the very first ones: 22.05.0 does not read SBATCH_ERROR,
SBATCH_INPUT and SBATCH_OUTPUT, 25.05.0 not SBATCH_SEGMENT_SIZE.
"""

import re
from typing import NamedTuple


class Option(NamedTuple):
    """One long option of sbatch, or of csub itself."""

    name: str  # without dashes, e.g. "gpus-per-node"
    short: str  # "G" or ""
    argument: str  # "required" | "optional" | "none"
    environment: str  # "SBATCH_GPUS" or ""
    alias_of: str = ""  # the canonical name where this is a second spelling
    since: str = ""  # the first release that has it so; "" for the oldest of RELEASES
    until: str = ""  # the last one; "" for the newest

    @property
    def canonical(self) -> str:
        """Return the name under which every spelling of this option is known."""
        return self.alias_of or self.name


RELEASES = ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05", "26.11")

# Each row is an Option; one that changed has several. Bare tuples, for csub reads this file at every submission, and
# Python has those ready.
_ROWS: tuple[tuple[str, ...], ...] = (
    ("account", "A", "required", "SBATCH_ACCOUNT"),
    ("acctg-freq", "", "required", "SBATCH_ACCTG_FREQ"),
    ("array", "a", "required", "SBATCH_ARRAY_INX"),
    ("autocomplete", "", "required", "", "", "23.02"),
    ("batch", "", "required", "SBATCH_BATCH"),
    ("bb", "", "required", "SBATCH_BURST_BUFFER"),
    ("bbf", "", "required", ""),
    ("begin", "b", "required", ""),
    ("chdir", "D", "required", ""),
    ("cluster", "", "required", "", "clusters"),
    ("cluster-constraint", "", "required", "SBATCH_CLUSTER_CONSTRAINT"),
    ("clusters", "M", "required", "SBATCH_CLUSTERS"),
    ("comment", "", "required", ""),
    ("consolidate-segments", "", "none", "SBATCH_CONSOLIDATE_SEGMENTS", "", "25.11"),
    ("constraint", "C", "required", "SBATCH_CONSTRAINT"),
    ("container", "", "required", "SBATCH_CONTAINER"),
    ("container-id", "", "required", "SBATCH_CONTAINER_ID", "", "23.02"),
    ("container-type", "", "required", "SBATCH_CONTAINER_TYPE", "", "26.05", "26.05"),
    ("context", "", "required", ""),
    ("contiguous", "", "none", ""),
    ("core-spec", "S", "required", "SBATCH_CORE_SPEC"),
    ("cores-per-socket", "", "required", ""),
    ("cpu-freq", "", "required", "SBATCH_CPU_FREQ_REQ"),
    ("cpus-per-gpu", "", "required", "SBATCH_CPUS_PER_GPU"),
    ("cpus-per-task", "c", "required", ""),
    ("deadline", "", "required", ""),
    ("delay-boot", "", "required", "SBATCH_DELAY_BOOT"),
    ("dependency", "d", "required", ""),
    ("distribution", "m", "required", "SBATCH_DISTRIBUTION"),
    ("error", "e", "required", "SBATCH_ERROR"),
    ("exclude", "x", "required", ""),
    ("exclusive", "", "optional", "SBATCH_EXCLUSIVE"),
    ("export", "", "required", "SBATCH_EXPORT"),
    ("export-file", "", "required", "", "", "", "23.02"),
    ("export-file", "", "required", "", "", "24.05"),
    ("external", "", "none", "", "", "25.05"),
    ("extra", "", "required", "", "", "23.02"),
    ("extra-node-info", "B", "required", ""),
    ("get-user-env", "", "optional", "SBATCH_GET_USER_ENV", "", "", "24.11"),
    ("get-user-env", "", "none", "SBATCH_GET_USER_ENV", "", "25.05"),
    ("gid", "", "required", ""),
    ("gpu-bind", "", "required", "SBATCH_GPU_BIND"),
    ("gpu-freq", "", "required", "SBATCH_GPU_FREQ"),
    ("gpus", "G", "required", "SBATCH_GPUS"),
    ("gpus-per-node", "", "required", "SBATCH_GPUS_PER_NODE"),
    ("gpus-per-socket", "", "required", "SBATCH_GPUS_PER_SOCKET"),
    ("gpus-per-task", "", "required", "SBATCH_GPUS_PER_TASK"),
    ("gres", "", "required", "SBATCH_GRES"),
    ("gres-flags", "", "required", "SBATCH_GRES_FLAGS"),
    ("help", "h", "none", ""),
    ("hint", "", "required", "SBATCH_HINT"),
    ("hold", "H", "none", ""),
    ("ignore-pbs", "", "none", "SBATCH_IGNORE_PBS"),
    ("input", "i", "required", "SBATCH_INPUT"),
    ("job-name", "J", "required", "SBATCH_JOB_NAME"),
    ("kill-on-invalid-dep", "", "required", ""),
    ("licenses", "L", "required", ""),
    ("mail-type", "", "required", ""),
    ("mail-user", "", "required", ""),
    ("mcs-label", "", "required", ""),
    ("mem", "", "required", "SBATCH_MEM_PER_NODE"),
    ("mem-bind", "", "required", "SBATCH_MEM_BIND"),
    ("mem-per-cpu", "", "required", "SBATCH_MEM_PER_CPU"),
    ("mem-per-gpu", "", "required", "SBATCH_MEM_PER_GPU"),
    ("mem-update", "", "required", "", "", "26.05"),
    ("mincpus", "", "required", ""),
    ("network", "", "required", "SBATCH_NETWORK"),
    ("nice", "", "optional", ""),
    ("no-kill", "k", "optional", "SBATCH_NO_KILL"),
    ("no-requeue", "", "none", "SBATCH_NO_REQUEUE"),
    ("nodefile", "F", "required", ""),
    ("nodelist", "w", "required", ""),
    ("nodes", "N", "required", ""),
    ("ntasks", "n", "required", ""),
    ("ntasks-per-core", "", "required", ""),
    ("ntasks-per-gpu", "", "required", ""),
    ("ntasks-per-node", "", "required", ""),
    ("ntasks-per-socket", "", "required", ""),
    ("ntasks-per-tres", "", "required", ""),
    ("oom-kill-step", "", "optional", "", "", "24.11"),
    ("open-mode", "", "required", "SBATCH_OPEN_MODE"),
    ("output", "o", "required", "SBATCH_OUTPUT"),
    ("overcommit", "O", "none", "SBATCH_OVERCOMMIT"),
    ("oversubscribe", "s", "none", ""),
    ("parsable", "", "none", ""),
    ("partition", "p", "required", "SBATCH_PARTITION"),
    ("power", "", "required", "SBATCH_POWER", "", "", "23.11"),
    ("prefer", "", "required", ""),
    ("priority", "", "required", ""),
    ("profile", "", "required", "SBATCH_PROFILE"),
    ("propagate", "", "optional", ""),
    ("qos", "q", "required", "SBATCH_QOS"),
    ("quiet", "Q", "none", ""),
    ("reboot", "", "none", ""),
    ("requeue", "", "none", "SBATCH_REQUEUE", "", "", "25.05"),
    ("requeue", "", "optional", "SBATCH_REQUEUE", "", "25.11"),
    ("reservation", "", "required", "SBATCH_RESERVATION"),
    ("resources", "", "required", "", "", "25.11"),
    ("resv-ports", "", "optional", "", "", "24.05"),
    ("runtime", "", "required", "SBATCH_RUNTIME", "", "26.11"),
    ("segment", "", "required", "", "", "24.05", "24.11"),
    ("segment", "", "required", "SBATCH_SEGMENT_SIZE", "", "25.05"),
    ("signal", "", "required", "SBATCH_SIGNAL"),
    ("sockets-per-node", "", "required", ""),
    ("spread-job", "", "none", "SBATCH_SPREAD_JOB"),
    ("spread-segments", "", "none", "SBATCH_SPREAD_SEGMENTS", "", "25.11"),
    ("stepmgr", "", "none", "", "", "24.05"),
    ("switches", "", "required", ""),
    ("tasks-per-node", "", "required", "", "ntasks-per-node"),
    ("test-only", "", "none", ""),
    ("thread-spec", "", "required", "SBATCH_THREAD_SPEC"),
    ("threads-per-core", "", "required", "SBATCH_THREADS_PER_CORE"),
    ("time", "t", "required", "SBATCH_TIMELIMIT"),
    ("time-min", "", "required", ""),
    ("tmp", "", "required", ""),
    ("tres-bind", "", "required", "SBATCH_TRES_BIND", "", "23.11"),
    ("tres-per-task", "", "required", "SBATCH_TRES_PER_TASK", "", "23.02"),
    ("uid", "", "required", ""),
    ("usage", "", "none", ""),
    ("use-min-nodes", "", "none", "SBATCH_USE_MIN_NODES"),
    ("verbose", "v", "none", "SBATCH_DEBUG"),
    ("version", "V", "none", ""),
    ("wait", "W", "none", "SBATCH_WAIT"),
    ("wait-all-nodes", "", "required", "SBATCH_WAIT_ALL_NODES"),
    ("wckey", "", "required", "SBATCH_WCKEY"),
    ("wrap", "", "required", ""),
)

# Variables that set something no row above names: second names, and the two halves of --switches=COUNT@TIME, which
# sbatch keeps apart ("req-switch" and "switch-wait" are its own words and no options). Of two variables that set one
# thing the one that sbatch reads later wins: it reads the first of these before those of the rows above, the others
# after them, and SBATCH_REQUEUE after SBATCH_NO_REQUEUE, as the rows stand. No other order shows.
VARIABLE_BEFORE = Option("hint", "", "required", "SLURM_HINT")
VARIABLES_AFTER: tuple[Option, ...] = (
    Option("clusters", "M", "required", "SLURM_CLUSTERS"),
    Option("req-switch", "", "required", "SBATCH_REQ_SWITCH"),
    Option("switch-wait", "", "required", "SBATCH_WAIT4SWITCH"),
)

# Read before the script and the command line, by the first release that does: the script's own --ignore-pbs still holds
# after SBATCH_IGNORE_PBS=0. 22.05 reads SBATCH_DEBUG among the others.
EARLY_VARIABLES: dict[str, str] = {"SBATCH_IGNORE_PBS": "22.05", "SBATCH_DEBUG": "23.02"}

# Still read from this release on, though the option is gone: where one is set, sbatch exits without a word.
DEADLY_VARIABLES: dict[str, str] = {"SBATCH_POWER": "24.05"}

# The first release in which a backslash makes a space literal; until then the word ends there.
ESCAPED_SPACE_SINCE = "24.05"

# Obeyed on the command line only: in a directive sbatch reads past them in silence.
COMMAND_LINE_ONLY = frozenset({"help", "quiet", "usage", "verbose", "version", "wrap"})

# With these sbatch submits no script: it prints words for a shell's completion and ends, or makes an external job.
NO_SCRIPT = frozenset({"autocomplete", "external"})

# Two names for one value inside sbatch: whichever came last decides, whatever it was called.
SAME_VALUE: dict[str, str] = {
    "requeue": "no-requeue",
    "no-requeue": "requeue",
    "exclusive": "oversubscribe",
    "oversubscribe": "exclusive",
}

_UNCHANGED = tuple(Option(*row) for row in _ROWS if len(row) < 6)
_CHANGED = tuple(Option(*row) for row in _ROWS if len(row) >= 6)
SBATCH_OPTIONS: dict[str, tuple[Option, ...]] = {
    release: _UNCHANGED + tuple(row for row in _CHANGED if row.since <= release <= (row.until or release))
    for release in RELEASES
}


def known_as(release: str) -> str:
    """Return the release by whose options one is read: its own, of a newer one the newest known; else "".

    What a newer release brings is an option that is not known, with which a job is submitted as asked.
    """
    if release in SBATCH_OPTIONS:
        return release
    return RELEASES[-1] if re.fullmatch(r"\d\d\.\d\d", release) and release > RELEASES[-1] else ""
