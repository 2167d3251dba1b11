# SPDX-License-Identifier: Apache-2.0
"""What each key of a job_defense_shield configuration (1.2 and 1.3) becomes here, or why it becomes nothing."""

from collections.abc import Mapping
from typing import NamedTuple

_MAIL = "mails are the site's, not a rule's: section [notices]"
_LADDER = "what follows a first notice is the same for all rules: section [notices]"
_EVERYBODY = "everybody beyond the bounds is named, however many"
_UTIL = (
    "it is a bound on GPU_UTIL (a kernel ran), {} by SM activity (how much of the GPU it used), and one says nothing "
    "of the other: choose it anew"
)
_NODE = "it was for the words of a mail alone; what a node has is in site.toml's pools"
_TARGET = "it was for the words of a mail alone"
_FITS = "COL007 judges by what csub would give: the pieces of GPUs in site.toml, with the memory and SMs of each"
_SAMPLES = "nothing is asked of a server each time: the agent's samples are in the store"


class Alert(NamedTuple):
    """One kind of alert: the code of the rule that it is here, empty where there is none.

    ``carried`` says which bound a key is, and by what its value is multiplied; ``absent`` are bounds that stand for a
    key which is not there, by that program's own default. ``dropped`` says why a key has no counterpart, ``remark``
    where the rule differs from the alert. A key of ``over_zero`` is carried to a bound that means another one at 0.
    ``anew`` is a bound that cannot be carried over and without which the rule would be another: it is switched off.
    """

    code: str
    carried: Mapping[str, tuple[str, float]] = {}
    absent: Mapping[str, float] = {}
    dropped: Mapping[str, str] = {}
    remark: str = ""
    over_zero: tuple[str, ...] = ()
    anew: str = ""


# Keys of every alert that are keys of [[audit.rule]] are import_jds.py's; these are keys of every alert, too.
COMMON: Mapping[str, str] = {
    "nodelist": "rules choose runs by partitions, gpu_types and clusters, not by nodes; choose so, and switch it on",
    **dict.fromkeys(("admin_emails", "email_file", "email_subject", "report_title"), _MAIL),
    "show_all_users": "only who is beyond the bounds is shown",
    "num_top_users": _EVERYBODY,
    "num_jobs_display": "a finding names its first five jobs",
}
_LIMITS = {
    "absolute_thres_hours": ("min_unused_gpu_hours", 1.0),
    "overall_ratio_threshold": ("overall_pct", 100.0),
    "mean_ratio_threshold": ("mean_pct", 100.0),
    "median_ratio_threshold": ("median_pct", 100.0),
}
_CPU_KEYS = {
    "zero-cpu-utilization": ("cpu_hours_threshold",),
    "low-cpu-efficiency": ("eff_thres_pct", "eff_target_pct", "absolute_thres_hours", "proportion_thres_pct"),
    "excess-cpu-memory": (
        *("tb_hours_threshold", "ratio_threshold", "mean_ratio_threshold", "median_ratio_threshold", "cores_per_node"),
        *("mem_per_node", "cores_fraction", "combine_partitions"),
    ),
    "serial-allocating-multiple": ("cpu_hours_threshold", "lower_ratio", "cores_per_node", "ignore_job_arrays"),
    "multinode-cpu-fragmentation": (
        *("cores_per_node", "cores_fraction", "mem_per_node", "safety_frac", "safety_fraction", "min_nodes_thres"),
        "cores_per_node_thres",
    ),
    "excessive-time-cpu": tuple(_LIMITS),
}
ALERTS: Mapping[str, Alert] = {
    "cancel-zero-gpu-jobs": Alert(
        "COL016",
        carried={
            "first_warning_minutes": ("first_warning_min", 1.0),
            "sliding_warning_minutes": ("sliding_warning_min", 1.0),
        },
        dropped={
            **dict.fromkeys(("second_warning_minutes", "cancel_minutes", "sliding_cancel_minutes"), _LADDER),
            "do_not_cancel": "nothing is held or cancelled unless [notices] action says so",
            "warnings_to_admin": _MAIL,
            **dict.fromkeys(
                (
                    *("email_file_first_warning", "email_file_second_warning", "email_file_cancel"),
                    *("email_file_sliding_warning", "email_file_sliding_cancel"),
                ),
                _MAIL,
            ),
            "sampling_period_minutes": "what was said of a job is kept, so that a late or skipped run loses no warning",
            **dict.fromkeys(("jobid_cache_path", "fraction_of_period", "warning_frac"), _SAMPLES),
            **dict.fromkeys(
                ("max_interactive_hours", "max_interactive_gpus"),
                "interactive jobs are no exception; exclude their partition, QOS or accounts",
            ),
            "gpu_frac_threshold": "a job is idle when all of its GPUs are",
            "util_thres": "idle is no kernel at all",
            "unlimited": "there is no limit to how often a job is looked at",
        },
        over_zero=("first_warning_minutes", "sliding_warning_minutes"),
        remark="minutes count from the last activity that was seen, or from the start where there was none",
    ),
    "zero-util-gpu-hours": Alert(
        "COL001",
        carried={"gpu_hours_threshold_user": ("min_gpu_hours", 1.0)},
        absent={"shortest_min": 0.0},
        dropped={
            "gpu_hours_threshold_admin": "one bound for all: give it to a second [[audit.rule]] with a name of its own",
            "max_num_jobid": "a finding names its first five jobs",
        },
        remark="a run counts where none of its GPUs was used, not each unused GPU of a run",
    ),
    "low-gpu-efficiency": Alert(
        "COL003",
        carried={"absolute_thres_hours": ("min_gpu_hours", 1.0)},
        dropped={
            "eff_thres_pct": _UTIL.format("and COL003's below_pct judges"),
            "eff_target_pct": _TARGET,
            "proportion_thres_pct": "the bound is in hours alone, whatever others used",
            "gpu_mem_eff_pct": "memory is no part of it: a run at zero use with its memory filled is COL006's",
        },
        remark="runs without SM activity are not judged; choose bounds.below_pct, then switch it on",
        anew="below_pct",
    ),
    "gpu-model-too-powerful": Alert(
        "COL007",
        carried={"gpu_hours_threshold": ("min_gpu_hours", 1.0)},
        absent={"min_gpu_hours": 0.0},
        dropped={
            "gpu_util_threshold": _UTIL.format("and COL007 judges"),
            "gpu_util_target": _TARGET,
            **dict.fromkeys(("gpu_mem_usage_max", "gpu_mem_threshold", "num_gpus"), _FITS),
            **dict.fromkeys(("num_cores_per_gpu", "num_cores_threshold"), _FITS),
            **dict.fromkeys(("cpu_mem_usage_per_gpu", "cpu_mem_threshold"), _FITS),
            "max_num_jobid_admin": "a finding names its first five jobs",
        },
        remark="it names slices of the same GPU model, not smaller models",
    ),
    "too-much-cpu-mem-per-gpu": Alert(
        "COL009",
        carried={
            # Its GB are of 1024 MB.
            "cpu_mem_per_gpu_limit": ("mem_per_gpu_mib", 1024.0),
            "mem_eff_thres": ("used_below_pct", 100.0),
            "gpu_hours_threshold": ("min_gpu_hours", 1.0),
        },
        absent={"used_below_pct": 100.0, "min_gpu_hours": 0.0},
        dropped={
            **dict.fromkeys(("cores_per_node", "gpus_per_node", "cpu_mem_per_node"), _NODE),
            "cpu_mem_per_gpu_target": _TARGET,
        },
        remark="slices and shares are not judged",
        over_zero=("cpu_mem_per_gpu_limit",),
    ),
    "too-many-cores-per-gpu": Alert(
        "COL008",
        carried={
            "cores_per_gpu_limit": ("cores_per_gpu", 1.0),
            "cpu_eff_threshold": ("busy_below_pct", 1.0),
            "gpu_hours_threshold": ("min_gpu_hours", 1.0),
        },
        absent={"busy_below_pct": 100.0, "min_gpu_hours": 0.0},
        dropped={
            **dict.fromkeys(("cores_per_node", "gpus_per_node"), _NODE),
            "cores_per_gpu_target": _TARGET,
        },
        remark="slices and shares are not judged",
        over_zero=("cores_per_gpu_limit",),
    ),
    "multinode-gpu-fragmentation": Alert(
        "COL010",
        carried={"gpus_per_node": ("gpus_per_node", 1.0)},
        absent={"min_gpu_hours": 0.0},
        over_zero=("gpus_per_node",),
        remark="a run counts where fewer nodes hold its GPUs, cores and memory, by cpus_per_node and mem_per_node_mib "
        "of site.toml's pools",
    ),
    "excessive-time-gpu": Alert(
        "COL011",
        carried=_LIMITS,
        absent={"mean_pct": 100.0, "median_pct": 100.0},
    ),
    **{name: Alert("", dropped=dict.fromkeys(keys, "")) for name, keys in _CPU_KEYS.items()},
}
OUTSIDE = "it is about jobs on CPUs, and nothing here is: leave it where it is"
GLOBAL: Mapping[str, str] = {
    **dict.fromkeys(("jobstats-module-path", "jobstats-config-path", "use-external-db"), _SAMPLES),
    "violation-logs-path": "what was said to whom is kept in the site's paths.state",
    "email-files-path": "mails are made from templates: paths.templates",
    **dict.fromkeys(("email-method", "email-domain-name", "external-emails"), "[notices] address"),
    **dict.fromkeys(("greeting-method", "ldap-displayname"), "mails greet by the user's name"),
    **dict.fromkeys(
        ("ldap-server", "ldap-dn", "ldap-base-dn", "ldap-password", "ldap-uid", "ldap-mail"),
        "no directory is asked: [notices] address",
    ),
    "sender": "[notices] sender",
    "reply-to": "[notices] reply_to",
    "report-emails": "[notices] admins",
    "workday-method": "[notices] workdays",
    "holidays-file": "[notices] holidays",
    "smtp-server": "[notices] smtp_host",
    "smtp-port": "[notices] smtp_port",
    "smtp-user": "[notices] smtp_user",
    "smtp-password": "[notices] smtp_password_file",
    "verbose": "a run always says what it judged",
    "show-empty-reports": "a run always says what it judged",
}
