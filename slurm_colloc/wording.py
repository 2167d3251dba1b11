# SPDX-License-Identifier: Apache-2.0
"""The words of every reason, by its code: the one place where they are written.

Loaded only where somebody reads them. In a text ``{name}`` is a parameter; behind a colon ``{runs:run}`` counts
("3 runs"), ``{wait_s:time}`` is a duration, ``{option:means}`` looks the value up in MEANS.
"""

from collections.abc import Iterable
from typing import Any

from slurm_colloc.model import Reason
from slurm_colloc.units import counted, in_words

MEANS = {
    # Options of sbatch that leave a job as asked.
    "clusters": "the job may go to another cluster",
    "constraint": "the job names node features",
    "deadline": "the job must end by a deadline",
    "exclude": "the job excludes nodes",
    "exclusive": "the job asks for whole nodes",
    "gid": "the job is submitted for another group",
    "gpu-bind": "the job binds to GPUs",
    "gpu-freq": "the job sets GPU clocks, which no share can",
    "gpus-per-socket": "the job asks for GPUs per socket",
    "nodefile": "the job names its nodes",
    "nodelist": "the job names its nodes",
    "ntasks-per-gpu": "the job starts tasks per GPU",
    "ntasks-per-tres": "the job starts tasks per GPU",
    "reservation": "the job runs in a reservation",
    "time-min": "Slurm may cut the job's time limit",
    "tres-per-task": "the job asks for GPUs per task",
    "uid": "the job is submitted for another user",
    # Options of sbatch with which no job is followed by another.
    "wait": "--wait waits for one job alone",
    "test-only": "nothing is submitted",
    "hold": "it is held",
    "begin": "it begins at a time of its own",
    "quiet": "it says no job id",
    # What a piece of a GPU did to a job.
    "out_of_memory": "ran out of GPU memory",
    "host_memory": "ran out of host memory",
    "slower": "took longer than the site's bound allows",
    "time_limit": "was ended by its time limit",
    "failed": "failed",
    # An option that was weighed.
    "as asked": "a whole GPU",
}

WORDS = {
    # What the job gets.
    "slice-holds": "slice {profile} holds {need_mib} MiB of its {mem_mib} MiB",
    "shares-hold": "{units} of {of_units} shares hold {need_mib} MiB and {sm_pct:.0f} % of the SMs",
    "slowdown": "the job takes about {expected:.2g}x as long, rarely above {upper:.3g}x",
    "slowdown-beside-users": "other users' jobs beside it are reckoned to slow the job by {upper:.3g}x at most",
    "slowdown-unknown": "how much its neighbours slow the job is not known",
    "time-limit": "the time limit is {limit_min} min",
    "moved": "the job moves to partition '{partition}', as this site allows",
    "host-part": "{options}: the piece's part of what comes with a GPU, or what the job needs",
    "host-unchanged": "{options}: as the job would have had",
    "cores-limit": "cores allow {jobs:such job} on a node ({cores_each} each), its GPUs {pieces}",
    "host-memory-limit": "host memory allows {jobs:such job} on a node ({each_mib} MiB each), its GPUs {pieces}",
    "would-have-been": "would have been {given}",
    # Who wants nothing changed.
    "switched-off": "--colloc={wish} was given",
    "policy-off": "the site's policy is 'off'",
    "policy-pack": "the site's policy is 'pack': only packs change anything",
    "policy-shadow": "the policy is 'shadow': csub only records what it would do",
    "policy-of-site": "the site's",
    "placing-stopped": "this site places no jobs for now: {why}",
    "rule-met": "by rollout rule {number} ({rule})",
    "rule-drawn": "by rollout rule {number} ({rule}), drawn {drawn:.1f}",
    "rule-may-be-met": "whether rollout rule {number} ({rule}) is for this job is not known",
    "protected": "the site protects jobs on '{gpu_type}'",
    "max-slowdown-lowered": "--max-slowdown={asked} is above this site's bound: {most:g} holds",
    "followup": "{why}",
    # What of the request leaves a job as asked.
    "no-gpu": "the job asks for no GPU",
    "several-gpus": "the job asks for several GPUs: {gres}",
    "other-gres": "the job asks for gres/{gres}",
    "asks-for-slice": "the job asks for slice '{slice}' itself",
    "option": "{option:means} (--{option})",
    "option-untried": "--{option} is not known to work with a piece of a GPU or a pack",
    "whole-node-memory": "the job asks for all host memory of its node (--mem=0)",
    "several-nodes": "the job asks for nodes '{nodes}'",
    "tasks-may-spread": "the job's {tasks} tasks may spread over nodes",
    "gpus-follow-tasks": "the number of GPUs follows the number of tasks (--gpus-per-task)",
    "srun-asks-for-gpus": "an srun in the script asks for GPUs ({option})",
    "variable-names-slice": "the script reads {variable}, which would name the slice",
    # What leaves it without a share (MPS, shard).
    "srun-asks-for-gpu": "an srun in the script asks for a GPU ({option}), which a share or a task of a pack has not",
    "reads-variable": "the script reads {variable}, which Slurm does not set for shares",
    "srun-exports": "an srun in the script chooses what it exports (--export), perhaps not what sharing needs",
    "variable-sizes-per-gpu": "{variable} sizes cores or memory per GPU, and a share is none",
    "memory-sized-twice": "the job sizes its host memory twice",
    "cores-sized-twice": "the job sizes its cores twice",
    "het-one-environment": "components of a heterogeneous job have one environment",
    "wrap-may-call-srun": "a command of --wrap may ask for a GPU by srun",
    "interpreter-not-sh": "csub cannot write into a script for '{interpreter}'",
    "shell-flags": "the script's shell is started as '{interpreter}'",
    "script-unknown": "what the script of a past job does is not known",
    "has-block": "the script holds csub's block already",
    "reads-itself": "the script reads itself ({word})",
    "asks-own-path": "the script asks Slurm for its own path",
    "wrap-read-otherwise": "sbatch would read the words of --wrap otherwise in a script",
    "not-understood": "{error}",
    # Where it may not go.
    "not-in-partition": "the pool is not in partition {partitions}",
    "other-gpu-type": "the job asks for GPU type '{gpu_type}'",
    "other-gpu-model": "the footprint was measured on {measured_on}, the pool has {pool_has}",
    "pool-lacks-model": "the footprint was measured on {measured_on}: site.toml lacks gpu_model of pool '{pool}'",
    "site-lacks": "site.toml lacks {key} of pool '{pool}'",
    "site-has-no-gpus": "site.toml describes no GPUs",
    "components-compete": "{components} components may each need a node of it, and it has {nodes}",
    "partition-access-unknown": "partition '{partition}' is not open to every {what}, and the job's is not known",
    "partition-closed": "partition '{partition}' is closed to {what} '{name}'",
    "partition-groups": "partition '{partition}' is open to groups {groups} only",
    "partition-time": "partition '{partition}' allows {max_min:g} min, the job's time limit is longer",
    "partition-suspends": "partition '{partition}' suspends jobs, which then keep their GPU memory",
    "partition-lacks-mps-users": "site.toml does not say whom MPS serves in partition '{partition}' (mps_users)",
    "partition-not-described": "site.toml does not say what partition '{partition}' gives with a GPU",
    "partition-other-memory": "partition '{partition}' would give the job another amount of host memory",
    "partition-limits-time": "partition '{partition}' would limit the job's time, which its own does not",
    "may-land-elsewhere": "Slurm might give the job one of pool '{pool}', where it may not go",
    "hosts-differ": "the job's partitions give different cores or memory with a GPU",
    "time-limits-differ": "the job's partitions have different time limits",
    "cores-unclear": "how many cores the job would have depends on too many of its options",
    "cores-not-divisible": "{cores} cores cannot be divided by {tasks} tasks",
    "no-mps-daemon": "the site runs no shared MPS daemon",
    "no-shard-consent": "the site does not allow shards, which isolate nothing",
    # What does not hold it.
    "no-pieces": "no GPU in partition {partitions} has slices or shares that csub may use",
    "nothing-holds": "no piece of a GPU in partition {partitions} suits a job of {need_mib} MiB "
    "and {sm_pct:.0f} % of the SMs",
    "too-little-memory": "{mem_mib} MiB do not hold {need_mib} MiB",
    "too-slow": "{sms} of {of_sms} SMs slow the job about {expected:.2g}x, rarely above {upper:.3g}x; "
    "the bound is {bound:g}x",
    "too-busy-to-share": "the job keeps {sm_pct:.0f} % of the SMs busy: another would slow it by more than {bound:g}x",
    "too-busy-beside-users": "the job keeps {sm_pct:.0f} % of the SMs busy: a job of another user would slow it by "
    "more than {bound:g}x",
    "no-room-beside": "{units} of {of_units} shares leave no room for another job",
    "runs-too-long": "slowed {slowdown:.2f}x the job would take {needed_min:.0f} min, by earlier runs; "
    "the time limit is {limit_min:g} min and may become {most_min:g} min",
    "time-limit-too-short": "slowed {slowdown:.2f}x the job would take {needed_min:.0f} min if it uses its time limit; "
    "that is {limit_min:g} min and may become {most_min:g} min",
    # When it would end.
    "free-now": "{option:means} is free now",
    "not-free": "{option:means} is not free now",
    "waited": "jobs waited {wait_s:time} for {option:means} (median of {runs:job}, last week)",
    "array-rounds": "the array's tasks would run {rounds} after each other on {option:means}, and {other_rounds} on "
    "{other:means}",
    "ends-sooner": "with {option:means} the job would end after {ends_s:time}, with {other:means} after {other_s:time}",
    "free-unknown": "what is free now is not known: {error}",
    # What the user may have.
    "limits-unknown": "this user's limits are not known: {error}",
    "no-association": "no association with account '{account}' is known",
    "qos-unknown": "QOS '{qos}' is not known",
    "limit-most": "{limit} of {what} '{name}' allows {most} of {tres}",
    "limit-least": "{limit} of {what} '{name}' wants at least {least} of {tres}",
    "limit-time": "{limit} of {what} '{name}' may not allow a longer time limit",
    "limit-passed-by": "{limit} of {what} '{name}' limits GPUs but not {share}, which would pass it by",
    # What the job needs, and what says so.
    "hint": "the user said {hint}",
    "completed-runs": "{runs:completed run} on {gpu_model}",
    "measured-by": "measured by {sources}",
    "margin": "memory margin {factor:.2f}x",
    "margin-counted": "memory margin {factor:.2f}x, from {answers:earlier answer}",
    "margin-floor": "memory margin {factor:.2f}x, at least {floor_mib:.0f} MiB",
    "margin-floor-counted": "memory margin {factor:.2f}x, at least {floor_mib:.0f} MiB, from {answers:earlier answer}",
    "margins-unreadable": "the shipped margins hold, the site's cannot be read: {error}",
    "margins-old": "the shipped margins hold, the site's are older than {days} days: does 'colloc ingest' run?",
    "grew": "the newest run needed {more_pct:.0f} % more than any before, so as much again is added",
    "ran-out-of-memory": "job {job_id} ran out of GPU memory with less than {least_mib} MiB",
    "raised-by-weights": "raised to the weights of '{model}': {weights_mib} MiB",
    "raised-by-smaller": "job {job_id}, which is no larger, held {least_mib} MiB",
    "same-command": "past jobs of the same command, whose script may have changed since",
    "sm-not-measured": "SM activity was not measured on a whole GPU",
    "card-tells-no-sm": "reports only on this card: '{gpu}' tells no SM activity without DCGM",
    "sm-bounded-by-readings": "SM activity is that of few readings, with a margin for how few they are",
    "sm-bounded-by-util": "GPU_UTIL stands for SM activity, which it bounds",
    "sm-of-relatives": "SM activity is from {runs:run} with other numbers",
    "sm-from-runs": "SM activity is from earlier runs",
    "other-numbers": "{runs:run} on {gpu_model} with other numbers",
    "nearly-same": "only numbers differ that size nothing, or files that csub did not look at",
    "line": "by a line through {name} = {low:g} and {high:g}",
    "bound-by-one-run": "at most, by one run with another {names}",
    "cut-at-rest": "{runs:run} on {gpu_model}, cut by a time limit when memory had stopped growing",
    # Why that is not known.
    "no-earlier-run": "no earlier run of this job is known",
    "none-completed": "{runs:earlier run} known, none completed with {samples} samples",
    "memory-taken-at-once": "{runs:earlier run} known, but the framework took {part_pct:.0f} % of GPU memory at once",
    "gpu-unused": "{runs:earlier run} known, with no GPU memory used",
    "cut-while-growing": "{runs:run} cut by a time limit while memory still grew, or with too few samples",
    "too-many-numbers": "the job has too many numbers to be compared with others",
    "no-relatives": "no earlier run differs in numbers alone",
    "no-size": "{name} = {value} is no size: it may mean all there is",
    "numbers-tell-nothing": "{runs:run} with another {names} do not tell what this one needs",
    "one-run-does-not-bound": "one run does not tell what more of {names} needs",
    "launcher-script": "scripts of {launcher} are the same whatever they run, so earlier runs say nothing",
    "sm-unknown": "SM activity is not known: add sm=PERCENT to --gpu-footprint",
    "need-unknown": "what a task needs is not known",
    "harmed": "job {job_id} {harm:means} on a piece of a GPU: whole GPUs for {runs:more run}, to measure it again",
    "part-not-a-number": "the part of a GPU that {program} takes is not given as a number ({told_by})",
    "file-new": "file '{path}' is new since the last submission",
    "file-edited": "file '{path}' was edited since the last submission",
    "file-gone": "file '{path}' is gone since the last submission",
    "arguments-differ": "its arguments differ from those of the last submission",
    "word-differs": "'{word}' stands where '{before}' stood in the last submission",
    "too-many-files": "the job may read more files than csub looks at",
    # Notes.
    "never-measured": "csub cannot measure this job; say --gpu-footprint=mem=SIZE,sm=PERCENT",
    "several-components": "the job has several components",
    "history-error": "{error}",
    "forgotten-ahead": "runs of this job are forgotten up to a time to come: run 'colloc history --forget {signature}'",
    "runs-impossible": "{runs:run} in history '{path}' cannot be true and do not count",
    "evidence-unreadable": "{files:evidence file} of this job could not be read",
    "less-than-weights": "the weights of '{model}' alone are {weights_mib} MiB, the estimate was {need_mib:.0f} MiB: "
    "the job is placed by its weights, which is still too little",
    "part-to-tell": "told to take {part:g} of GPU memory, the program would fit {would_fit}",
    # Packs.
    "pack": "pack of {at_once} at a time: {tasks:task} in {jobs:job} of one {units}",
    "pack-may-not-share": "one task at a time: {why}",
    "pack-shares-nothing": "one task at a time: {why}; say {say}",
    "not-packed": "not packed: {why}",
    "no-packer": "nobody is there to make packs",
    "command-of-wrap": "it is a command of --wrap",
    "heterogeneous": "it is a heterogeneous job",
    "no-array": "it is no array (--array)",
    "array-by-variable": "SBATCH_ARRAY_INX is set, which would make an array of the pack",
    "one-task": "the array has one task",
    "one-at-a-time": "the array runs one task at a time (%1)",
    "no-two-fit": "no two of its tasks fit on its GPU",
    "srun-gets-array": "an srun inside its tasks would get the array numbers of the pack's jobs",
    "on-device": "that is on {device}",
    "type-keeps-off-slices": "a GPU's type in the request keeps it off slices",
    "no-such-gpu": "the job asks for {asked} in partition {partitions}, where site.toml has {there}",
    "jobs-exceed-most": "{jobs} jobs would run more tasks at a time than %{most}",
    "most-exceeds-time": "with {most} at a time it does not fit the partition's time limit",
    "tasks-lack-time": "give the tasks a --time",
    "no-packs": "the site runs no packs (sharing.pack)",
    "resumes": "what is missing of job {job_id}",
    "most-tasks": "at most {most:task} may share it",
    "tasks-asked-for": "{asked:task} at a time were asked for",
    "memory-holds-tasks": "{mem_mib} MiB of GPU memory hold {held:task} of {each_mib} MiB",
    "tasks-exceed-memory": "{mem_mib} MiB of GPU memory hold {held:task} at a time, not {tasks}",
    "tasks-fill-sms": "each task keeps {sm_pct:.3g} % of the SMs busy, and all may come to {max_pct:.4g} %",
    "one-task-fills-memory-bandwidth": "one task keeps GPU memory busy for {dram_pct:.0f} % of the time",
    "task-sm-unknown": "SM activity of a task is not known",
    "equal-parts": "each task is taken to need one part of {tasks}",
    "sms-above-bound": "SM activity of all tasks comes to {sum_pct:.0f} %; the site's bound is {max_pct:g} %",
    "tasks-busy-memory": "each task keeps GPU memory busy for {dram_pct:.0f} % of the time and may slow the others",
    "task-slowdown": "each task takes about {expected:.2g}x as long as alone, rarely above {upper:.3g}x",
    "more-would-fit": "{tasks} would fit",
    "tasks-take-too-long": "{tasks} tasks at a time, slowed {slowdown:.2f}x, need {needed_min} min of the {most_min:g} "
    "min that a job may take; run fewer at a time, or give a task less than {limit_min:g} min",
    "no-time-for-retries": "no time is left for tasks that run again",
    "shared-host-memory": "tasks share the {mem_mib} MiB of host memory that come with the GPU, {each_mib} MiB each; "
    "more by --mem",
    "task-starts-tasks": "each task starts {tasks} of its own (--{option})",
    "dependency-task-by-task": "each task waits for another job's of the same number (--dependency=aftercorr)",
    "acts-on-its-job": "the script acts on its job ({command}), which would be the whole pack",
    "uses-job-id": "the script uses SLURM_JOB_ID, which tasks of a pack have in common",
    "tasks-count-each-other": "the tasks count each other (SLURM_ARRAY_TASK_COUNT, _MIN, _MAX or _STEP)",
    # Why a job is not followed by another: measured first, or run again after it ran out of GPU memory.
    "no-companions": "the site wants no companion jobs",
    "is-a-pack": "it is to be a pack, whose tasks need a footprint before: run one task alone",
    "known-already": "what it needs is known: {why}",
    "no-sampler": "no sampler can be put into its script",
    "waits-for-any": "it waits for any of several jobs (--dependency with '?')",
    "waits-task-by-task": "its dependency is one of task by task, or makes it part of another job",
    "canary-needs-array": "it is no array; --probe measures a job of its own",
    "array-too-long": "without its first task the array is too long to be named",
    "no-probe-partition": "site.toml names no partition for probes (probe.partition)",
    "partition-unknown": "in which partition it would run is not known (default_partition in site.toml)",
    "requeues-itself": "it is told of its end or requeues itself (--signal, scontrol requeue), so a probe of it might "
    "never end",
    "shorter-than-probe": "its time limit is no longer than a probe's {probe_min} min",
    "tasks-share-output": "its tasks write to one output file, so which of them ran out could not be told",
    "output-added-to": "its tasks add to output files that other runs write too",
    # Why a past run is not judged.
    "had-a-piece": "it had a piece of a GPU already",
    "not-one-gpu": "only runs of one GPU are judged",
    "not-completed": "it ended as {state}, so that its peak may be less than it needs",
    "not-measured-alone": "its memory or its SM activity was not measured alone on the GPU",
    "too-little-sampled": "less than {least_pct:.0f} % of its time was sampled",
    # Why shadow mode would have left a job as asked.
    "would-not-off": "--colloc=off was given",
    "would-not-request": "the request rules pieces out: several GPUs, whole nodes, a reservation and the like",
    "would-not-need": "what it needs was not known",
    "would-not-fit": "no piece holds it or may be had, its script cannot change, or a whole GPU would have been sooner",
    "would-not-pack": "it would have been one pack with the other tasks of its array",
}


class _Number(float):
    def __format__(self, spec: str) -> str:
        if spec == "time":
            return in_words(self)
        if len(spec) > 2 and spec[0].isalpha():
            return counted(int(self), spec)
        return f"{float(self):{spec}}" if spec else f"{int(self) if self.is_integer() else float(self)}"


class _Text(str):
    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return MEANS.get(self, str(self)) if spec == "means" else format(str(self), spec)


def words(reason: Reason) -> str:
    """Return a reason in words; one of another release, or that somebody else wrote, by its code and parameters."""
    try:
        return WORDS[reason.code].format(**{name: _as_word(value) for name, value in reason.params.items()})
    except (KeyError, ValueError):
        return " ".join([reason.code, *(f"{name}={value}" for name, value in reason.params.items())])


def sentence(reasons: Iterable[Reason]) -> str:
    """Return several reasons in words, one after the other."""
    return "; ".join(map(words, reasons))


def _as_word(value: object) -> str | float:
    if isinstance(value, tuple | list):
        return ", ".join(f"'{one}'" for one in value)
    if isinstance(value, int | float):
        return _Number(value)
    return "not known" if value is None else _Text(value)


def shown(record: Any) -> dict[str, Any]:
    """Return a NamedTuple for JSON: reasons as texts, and beside them their codes and parameters."""
    found: dict[str, Any] = {}
    for name, kind in type(record).__annotations__.items():
        value = getattr(record, name)
        if kind == tuple[Reason, ...]:
            found[name] = list(map(words, value))
            found[f"{name}_codes"] = [one._asdict() for one in value]
        elif kind in (Reason, Reason | None):
            found[name] = words(value) if value else ""
            found[f"{name}_code"] = value and value._asdict()
        else:
            found[name] = _plain(value)
    return found


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return shown(value) if hasattr(value, "_asdict") else [_plain(one) for one in value]
    return value
