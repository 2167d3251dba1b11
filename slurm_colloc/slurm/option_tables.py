# SPDX-License-Identifier: Apache-2.0
"""What sbatch accepts, release by release: long and short names, argument kinds and SBATCH_* variables.

Asked of the real binary, which lists every long option it knows as "possibilities" of `sbatch --=`. The recording
lies in tests/recorded/slurm-22.05/sbatch/, and tests/cluster/test_sbatch_truth.py asks the sbatch installed again.
"""

from typing import NamedTuple


class Option(NamedTuple):
    """One long option of sbatch, or of csub itself."""

    name: str  # without dashes, e.g. "gpus-per-node"
    short: str  # "G" or ""
    argument: str  # "required" | "optional" | "none"
    environment: str  # "SBATCH_GPUS" or ""
    alias_of: str = ""  # the canonical name where this is a second spelling

    @property
    def canonical(self) -> str:
        """Return the name under which every spelling of this option is known."""
        return self.alias_of or self.name


SBATCH_22_05: tuple[Option, ...] = (
    Option("account", "A", "required", "SBATCH_ACCOUNT"),
    Option("acctg-freq", "", "required", "SBATCH_ACCTG_FREQ"),
    Option("array", "a", "required", "SBATCH_ARRAY_INX"),
    Option("batch", "", "required", "SBATCH_BATCH"),
    Option("begin", "b", "required", ""),
    Option("bb", "", "required", "SBATCH_BURST_BUFFER"),
    Option("bbf", "", "required", ""),
    Option("cluster-constraint", "", "required", "SBATCH_CLUSTER_CONSTRAINT"),
    Option("chdir", "D", "required", ""),
    Option("cluster", "", "required", "", "clusters"),
    Option("clusters", "M", "required", "SBATCH_CLUSTERS"),
    Option("comment", "", "required", ""),
    Option("container", "", "required", "SBATCH_CONTAINER"),
    Option("context", "", "required", ""),
    Option("contiguous", "", "none", ""),
    Option("constraint", "C", "required", "SBATCH_CONSTRAINT"),
    Option("core-spec", "S", "required", "SBATCH_CORE_SPEC"),
    Option("cores-per-socket", "", "required", ""),
    Option("cpu-freq", "", "required", "SBATCH_CPU_FREQ_REQ"),
    Option("cpus-per-gpu", "", "required", "SBATCH_CPUS_PER_GPU"),
    Option("cpus-per-task", "c", "required", ""),
    Option("deadline", "", "required", ""),
    Option("delay-boot", "", "required", "SBATCH_DELAY_BOOT"),
    Option("dependency", "d", "required", ""),
    Option("distribution", "m", "required", "SBATCH_DISTRIBUTION"),
    Option("error", "e", "required", "SBATCH_ERROR"),
    Option("exclude", "x", "required", ""),
    Option("exclusive", "", "optional", "SBATCH_EXCLUSIVE"),
    Option("export", "", "required", "SBATCH_EXPORT"),
    Option("export-file", "", "required", ""),
    Option("extra-node-info", "B", "required", ""),
    Option("get-user-env", "", "optional", "SBATCH_GET_USER_ENV"),
    Option("gid", "", "required", ""),
    Option("gpu-bind", "", "required", "SBATCH_GPU_BIND"),
    Option("gpu-freq", "", "required", "SBATCH_GPU_FREQ"),
    Option("gpus", "G", "required", "SBATCH_GPUS"),
    Option("gpus-per-node", "", "required", "SBATCH_GPUS_PER_NODE"),
    Option("gpus-per-socket", "", "required", "SBATCH_GPUS_PER_SOCKET"),
    Option("gpus-per-task", "", "required", "SBATCH_GPUS_PER_TASK"),
    Option("gres", "", "required", "SBATCH_GRES"),
    Option("gres-flags", "", "required", "SBATCH_GRES_FLAGS"),
    Option("help", "h", "none", ""),
    Option("hint", "", "required", "SBATCH_HINT"),
    Option("hold", "H", "none", ""),
    Option("ignore-pbs", "", "none", "SBATCH_IGNORE_PBS"),
    Option("input", "i", "required", "SBATCH_INPUT"),
    Option("job-name", "J", "required", "SBATCH_JOB_NAME"),
    Option("kill-on-invalid-dep", "", "required", ""),
    Option("licenses", "L", "required", ""),
    Option("mail-type", "", "required", ""),
    Option("mail-user", "", "required", ""),
    Option("mcs-label", "", "required", ""),
    Option("mem", "", "required", "SBATCH_MEM_PER_NODE"),
    Option("mem-bind", "", "required", "SBATCH_MEM_BIND"),
    Option("mem-per-cpu", "", "required", "SBATCH_MEM_PER_CPU"),
    Option("mem-per-gpu", "", "required", "SBATCH_MEM_PER_GPU"),
    Option("mincpus", "", "required", ""),
    Option("network", "", "required", "SBATCH_NETWORK"),
    Option("nice", "", "optional", ""),
    Option("no-kill", "k", "optional", "SBATCH_NO_KILL"),
    Option("no-requeue", "", "none", "SBATCH_NO_REQUEUE"),
    Option("nodefile", "F", "required", ""),
    Option("nodelist", "w", "required", ""),
    Option("nodes", "N", "required", ""),
    Option("ntasks", "n", "required", ""),
    Option("ntasks-per-core", "", "required", ""),
    Option("ntasks-per-gpu", "", "required", ""),
    Option("ntasks-per-node", "", "required", ""),
    Option("ntasks-per-socket", "", "required", ""),
    Option("ntasks-per-tres", "", "required", ""),
    Option("open-mode", "", "required", "SBATCH_OPEN_MODE"),
    Option("output", "o", "required", "SBATCH_OUTPUT"),
    Option("overcommit", "O", "none", "SBATCH_OVERCOMMIT"),
    Option("oversubscribe", "s", "none", ""),
    Option("parsable", "", "none", ""),
    Option("partition", "p", "required", "SBATCH_PARTITION"),
    Option("power", "", "required", "SBATCH_POWER"),
    Option("prefer", "", "required", ""),
    Option("priority", "", "required", ""),
    Option("profile", "", "required", "SBATCH_PROFILE"),
    Option("propagate", "", "optional", ""),
    Option("qos", "q", "required", "SBATCH_QOS"),
    Option("quiet", "Q", "none", ""),
    Option("reboot", "", "none", ""),
    Option("requeue", "", "none", "SBATCH_REQUEUE"),
    Option("reservation", "", "required", "SBATCH_RESERVATION"),
    Option("signal", "", "required", "SBATCH_SIGNAL"),
    Option("sockets-per-node", "", "required", ""),
    Option("spread-job", "", "none", "SBATCH_SPREAD_JOB"),
    Option("switches", "", "required", ""),
    Option("tasks-per-node", "", "required", "", "ntasks-per-node"),
    Option("test-only", "", "none", ""),
    Option("thread-spec", "", "required", "SBATCH_THREAD_SPEC"),
    Option("threads-per-core", "", "required", "SBATCH_THREADS_PER_CORE"),
    Option("time", "t", "required", "SBATCH_TIMELIMIT"),
    Option("time-min", "", "required", ""),
    Option("tmp", "", "required", ""),
    Option("uid", "", "required", ""),
    Option("use-min-nodes", "", "none", "SBATCH_USE_MIN_NODES"),
    Option("verbose", "v", "none", "SBATCH_DEBUG"),
    Option("version", "V", "none", ""),
    Option("usage", "", "none", ""),
    Option("wait", "W", "none", "SBATCH_WAIT"),
    Option("wait-all-nodes", "", "required", "SBATCH_WAIT_ALL_NODES"),
    Option("wckey", "", "required", "SBATCH_WCKEY"),
    Option("wrap", "", "required", ""),
)

# Variables that set something no row above names: second names, and the two halves of --switches=COUNT@TIME,
# which sbatch keeps apart ("req-switch" and "switch-wait" are its own words and no options).
ENVIRONMENT_ONLY: tuple[Option, ...] = (
    Option("clusters", "M", "required", "SLURM_CLUSTERS"),
    Option("hint", "", "required", "SLURM_HINT"),
    Option("req-switch", "", "required", "SBATCH_REQ_SWITCH"),
    Option("switch-wait", "", "required", "SBATCH_WAIT4SWITCH"),
)

# sbatch reads its variables in this order, and of two that set one thing the later wins.
ENVIRONMENT_ORDER: tuple[str, ...] = (
    "SBATCH_IGNORE_PBS",
    "SBATCH_ACCOUNT",
    "SBATCH_ARRAY_INX",
    "SBATCH_ACCTG_FREQ",
    "SBATCH_BATCH",
    "SBATCH_BURST_BUFFER",
    "SBATCH_CLUSTER_CONSTRAINT",
    "SBATCH_CLUSTERS",
    "SLURM_CLUSTERS",
    "SBATCH_CONTAINER",
    "SBATCH_CONSTRAINT",
    "SBATCH_CORE_SPEC",
    "SBATCH_CPU_FREQ_REQ",
    "SBATCH_CPUS_PER_GPU",
    "SBATCH_DEBUG",
    "SBATCH_DELAY_BOOT",
    "SBATCH_DISTRIBUTION",
    "SBATCH_EXCLUSIVE",
    "SBATCH_EXPORT",
    "SBATCH_GET_USER_ENV",
    "SBATCH_GRES",
    "SBATCH_GRES_FLAGS",
    "SBATCH_GPUS",
    "SBATCH_GPU_BIND",
    "SBATCH_GPU_FREQ",
    "SBATCH_GPUS_PER_NODE",
    "SBATCH_GPUS_PER_SOCKET",
    "SBATCH_GPUS_PER_TASK",
    "SLURM_HINT",
    "SBATCH_HINT",
    "SBATCH_JOB_NAME",
    "SBATCH_MEM_BIND",
    "SBATCH_MEM_PER_CPU",
    "SBATCH_MEM_PER_GPU",
    "SBATCH_MEM_PER_NODE",
    "SBATCH_NETWORK",
    "SBATCH_NO_KILL",
    "SBATCH_NO_REQUEUE",
    "SBATCH_OPEN_MODE",
    "SBATCH_OVERCOMMIT",
    "SBATCH_PARTITION",
    "SBATCH_POWER",
    "SBATCH_PROFILE",
    "SBATCH_QOS",
    "SBATCH_REQ_SWITCH",
    "SBATCH_REQUEUE",
    "SBATCH_RESERVATION",
    "SBATCH_SIGNAL",
    "SBATCH_SPREAD_JOB",
    "SBATCH_THREAD_SPEC",
    "SBATCH_THREADS_PER_CORE",
    "SBATCH_TIMELIMIT",
    "SBATCH_USE_MIN_NODES",
    "SBATCH_WAIT",
    "SBATCH_WAIT_ALL_NODES",
    "SBATCH_WAIT4SWITCH",
    "SBATCH_WCKEY",
    "SBATCH_ERROR",
    "SBATCH_INPUT",
    "SBATCH_OUTPUT",
)

# Obeyed on the command line only: in a directive sbatch reads past them in silence.
COMMAND_LINE_ONLY = frozenset({"help", "quiet", "usage", "verbose", "version", "wrap"})

# Read before the script, so that the script's own --ignore-pbs still holds after SBATCH_IGNORE_PBS=0.
EARLY_VARIABLES = frozenset({"SBATCH_IGNORE_PBS"})

# Two names for one value inside sbatch: whichever came last decides, whatever it was called.
SAME_VALUE: dict[str, str] = {
    "requeue": "no-requeue",
    "no-requeue": "requeue",
    "exclusive": "oversubscribe",
    "oversubscribe": "exclusive",
}

SBATCH_OPTIONS: dict[str, tuple[Option, ...]] = {"22.05": SBATCH_22_05}
