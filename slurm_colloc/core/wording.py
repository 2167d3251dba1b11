# SPDX-License-Identifier: Apache-2.0
"""The text of every reason, by its code.

Loaded only where somebody reads them. ``{name}`` in a text is a parameter; ``{runs:run}`` counts ("3 runs"),
``{wait_s:time}`` is a duration, ``{option:means}`` looks the value up in MEANS.
"""

from collections.abc import Iterable
from typing import Any

from slurm_colloc.core.model import Reason
from slurm_colloc.core.units import counted, in_words

MEANS = {
    # Options of sbatch that leave a job as asked.
    "clusters": "the job may run on another cluster",
    "constraint": "the job names node features",
    "deadline": "the job has a deadline",
    "exclude": "the job excludes nodes",
    "exclusive": "the job asks for whole nodes",
    "gid": "the job is submitted for another group",
    "gpu-bind": "the job binds to GPUs",
    "gpu-freq": "the job sets GPU clocks, which jobs that share a GPU cannot do",
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
    "wait": "sbatch waits for one job only",
    "test-only": "no job is submitted",
    "hold": "the job is held",
    "begin": "the job has a begin time",
    "quiet": "sbatch prints no job id",
    # Why a job that waits asks again for what was asked.
    "undo": "by the command of its user",
    "off": "the site gives such jobs none while they wait",
    "half": "Slurm took the change in part",
    "refused": "Slurm did not take the change",
    "changed": "somebody changed it",
    "free": "a whole GPU was free and its piece was not",
    "harmed": "a piece harmed a job like it",
    "grew": "its need is larger than its piece",
    # Why a job that waits, and whose need is known, stays as asked.
    "form": "this Slurm knows no way to give such a request a piece",
    "completed": "this Slurm knows no way back, so a run of it must have completed",
    "priority": "it would lose priority (PriorityWeightTRES)",
    "reason": "it waits for more than a GPU",
    "per-gpu": "its cores or memory are counted by GPU, so that it cannot become a share; -c and --mem would help where"
    " the partition has no DefMemPerGPU",
    "AdminComment": "an administrator has marked it",
    # Harm that a piece of a GPU did to a job.
    "out_of_memory": "ran out of GPU memory",
    "host_memory": "ran out of host memory",
    "slower": "ran slower than the site allows",
    "time_limit": "reached its time limit",
    "failed": "failed",
    # An option that was weighed.
    "as asked": "a whole GPU",
}

WORDS = {
    # The piece that the job gets.
    "slice-holds": "the job needs {need_mib} MiB of GPU memory, a reserve included, and slice {profile} has {mem_mib}",
    "shares-hold": "the job needs {need_mib} of the GPU's {mem_mib} MiB of memory, a reserve included, and "
    "{sm_pct:.0f} % of its SMs; {units} of {of_units} shares are enough",
    "shards-hold": "the job needs {need_mib} of the GPU's {mem_mib} MiB of memory; {units} of {of_units} shards do",
    "slowdown": "it should take {expected:.2g} times as long as on a whole GPU, in 9 of 10 cases at most {upper:.3g} "
    "(limit: {bound:g})",
    "slowdown-beside-users": "up to {upper:.3g} times as long beside others; {turns:extra share}, as users take turns",
    "slowdown-unknown": "csub cannot tell how much jobs on the same GPU will slow this job",
    "time-limit": "csub sets the time limit to {limit_min} min",
    "time-limit-raised": "csub raises the time limit from {asked_min:g} min to {limit_min} min",
    "billed": "Slurm bills {after:.4g} for its GPU instead of {before:.4g} (TRES billing)",
    "moved": "csub moves the job to partition '{partition}', as this site allows",
    "host-part": "{options}: the part of the node's cores and memory that goes with this piece, or what the job needs",
    "cores-limit": "the node's cores are enough for {jobs:such job} ({cores_each} each), its GPUs for {pieces}",
    "host-memory-limit": "the node's memory is enough for {jobs:such job} ({each_mib} MiB each), its GPUs for {pieces}",
    "would-have-been": "csub would have given {given}",
    # People who want nothing changed.
    "switched-off": "the user said --colloc={wish}",
    "off-for-user": "csub is switched off for this user, {by}",
    "policy-off": "the site has switched csub's changes off (policy 'off')",
    "policy-pack": "the site allows packs only (policy 'pack')",
    "policy-shadow": "the site only records what csub would do (policy 'shadow')",
    "policy-of-site": "set by the site",
    "placing-stopped": "the site has stopped giving out pieces of GPUs: {why}",
    "rule-met": "set by rollout rule {number} ({rule})",
    "rule-drawn": "set by rollout rule {number} ({rule}), with the random number {drawn:.1f}",
    "rule-may-be-met": "csub cannot tell whether rollout rule {number} ({rule}) applies to this job",
    "protected": "the site keeps jobs on '{gpu_type}' as they are",
    "max-slowdown-lowered": "--max-slowdown={asked} is above the site's limit; csub uses {most:g}",
    # Parts of the request that leave a job as asked.
    "no-gpu": "the job asks for no GPU",
    "asked-twice": "the job asks for {gres} more than once ({styles}), and csub changes a job only if it asks once",
    "several-gpus": "csub does not change jobs that ask for several GPUs",
    "other-gres": "the job asks for gres/{gres}",
    "asks-for-slice": "the job itself asks for slice '{slice}'",
    "option": "{option:means} (--{option})",
    "option-untried": "csub does not know whether --{option} works on a piece of a GPU or in a pack",
    "whole-node-memory": "the job asks for all memory of its node (--mem=0)",
    "several-nodes": "the job asks for several nodes ('{nodes}')",
    "tasks-may-spread": "the job's {tasks} tasks may run on several nodes; with --nodes=1 they do not",
    "gpus-follow-tasks": "the job asks for GPUs per task (--gpus-per-task) without a number of tasks",
    "srun-asks-for-gpus": "an srun in the script asks for GPUs ({option})",
    "variable-names-slice": "the script reads {variable}, which would have another value on a slice",
    # Reasons that leave it without a share (MPS, shard).
    "srun-asks-for-gpu": "an srun in the script asks for a whole GPU ({option}), which a share does not have",
    "reads-variable": "the script reads {variable}, which Slurm does not set for a share",
    "device-as-number": "the script may take {variable} for the number of a GPU, and on a slice it is not that",
    "steps-limited": "an srun in the script would keep the share's limit on threads: where a site runs MPS daemons in "
    "its own way, nothing lifts it in steps",
    "srun-exports": "an srun in the script uses --export, which may drop variables that sharing needs",
    "variable-sizes-per-gpu": "{variable} asks for cores or memory per GPU, and a share has no whole GPU",
    "memory-sized-twice": "the job asks for memory in two ways",
    "cores-sized-twice": "the job asks for cores in two ways",
    "wrap-may-call-srun": "a --wrap job gets no share, because its command may start an srun that asks for a GPU; "
    "put the command in a script",
    "interpreter-not-sh": "csub cannot add lines to a script for '{interpreter}'",
    "shell-flags": "the script starts its shell as '{interpreter}'",
    "has-block": "the script already contains csub's lines",
    "reads-itself": "the script reads its own file ({word}), which csub would change",
    "asks-own-path": "the script asks Slurm for its own path, which csub would change",
    "wrap-read-otherwise": "the command of --wrap would mean something else in a script",
    "not-understood": "{error}",
    # Partitions that it may not go to.
    "not-in-partition": "its nodes are not in partition {partitions}",
    "pool-lacks-feature": "the job asks for feature '{feature}', which site.toml does not give its nodes",
    "pool-excluded": "the job excludes all of its nodes",
    "slice-shares-memory": "others use the memory of a compute instance ({profile}) as well",
    "other-gpu-type": "the job asks for GPU type '{gpu_type}'",
    "other-gpu-model": "the job was measured on {measured_on}, this pool has {pool_has}",
    "pool-lacks-model": "the job was measured on {measured_on}, and site.toml does not say the GPU model (gpu_model) "
    "of pool '{pool}'",
    "site-lacks": "site.toml has no {key} for pool '{pool}'",
    "site-has-no-gpus": "site.toml lists no GPUs",
    "partition-access-unknown": "partition '{partition}' is not open to every {what}, and csub does not know the "
    "{what} of this job",
    "partition-closed": "partition '{partition}' does not admit {what} '{name}'",
    "partition-groups": "partition '{partition}' admits only groups {groups}",
    "partition-shut": "partition '{partition}' has {restriction}, so a piece of a GPU is of no use there",
    "partition-cores": "partition '{partition}' has {restriction}, and the job would have more cores",
    "partition-memory": "partition '{partition}' has {restriction}, and the job may need more memory",
    "partition-time": "partition '{partition}' allows {max_min:g} min, and the job's time limit is longer",
    "partition-suspends": "partition '{partition}' suspends jobs, and a suspended job keeps its GPU memory",
    "partition-lacks-mps-users": "site.toml does not say whose jobs may share a GPU by MPS in partition '{partition}' "
    "(mps_users)",
    "partition-not-described": "site.toml does not say how many cores and how much memory partition '{partition}' "
    "gives with a GPU",
    "partition-other-memory": "partition '{partition}' would give the job a different amount of memory",
    "partition-limits-time": "partition '{partition}' has a time limit, and the job's own partition has none",
    "may-land-elsewhere": "Slurm might place the job in pool '{pool}', which the job cannot use",
    "hosts-differ": "the job's partitions give different cores or memory with a GPU",
    "time-limits-differ": "the job's partitions have different time limits",
    "cores-unclear": "csub cannot tell how many cores the job gets from its options",
    "cores-not-divisible": "{cores} cores cannot be divided by {tasks} tasks",
    "no-mps-daemon": "the site runs no MPS daemon",
    # Pieces that do not hold it.
    "no-pieces": "no GPU in partition {partitions} has slices or shares that csub may use",
    "nothing-holds": "the job needs {need_mib} MiB of GPU memory, a reserve included, and {sm_pct:.0f} % of the SMs; "
    "partition {partitions} has no such piece",
    "too-little-memory": "at most {mem_mib} MiB of GPU memory",
    "too-slow": "too few SMs: on {sms} of {of_sms} the job would take about {expected:.2g} times as long, perhaps "
    "{upper:.3g} times, and the limit is {bound:g} times",
    "too-busy-to-share": "too many SMs in use: the job uses {sm_pct:.0f} %, and beside another job it would take "
    "more than {bound:g} times as long",
    "too-busy-beside-users": "too many SMs in use: the job uses {sm_pct:.0f} %, and beside another user's job it would "
    "take more than {bound:g} times as long",
    "no-room-beside": "the job needs {units} of {of_units} shares, which leaves no room for another job",
    "runs-too-long": "slowed {slowdown:.2f} times, the job would take {needed_min:.0f} min, judged by earlier runs; "
    "its time limit is {limit_min:g} min and csub may raise it to {most_min:g} min",
    "time-limit-too-short": "slowed {slowdown:.2f} times, the job may take {needed_min:.0f} min; its time limit is "
    "{limit_min:g} min and csub may raise it to {most_min:g} min",
    # When it would begin.
    "free-now": "{option:means} is free now",
    "not-free": "{option:means} is not free now",
    "array-rounds": "the array would need {rounds} rounds on {option:means}, and {other_rounds} on {other:means}",
    "free-unknown": "csub cannot tell what is free now: {error}",
    # The limits of the user.
    "limits-unknown": "csub cannot read this user's limits: {error}",
    "no-association": "Slurm knows no association of this user with account '{account}'",
    "qos-unknown": "Slurm knows no QOS '{qos}'",
    "limit-most": "{limit} of {what} '{name}' allows {most} of {tres}",
    "limit-least": "{limit} of {what} '{name}' asks for at least {least} of {tres}",
    "limit-time": "{limit} of {what} '{name}' may forbid a longer time limit",
    "limit-passed-by": "{limit} of {what} '{name}' limits GPUs but not {share}, so the job would escape that limit",
    # The need of the job, and what says so.
    "hint": "your hint {hint}",
    "completed-runs": "{runs:completed run} on {gpu_model}",
    "measured-by": "measured by {sources}",
    "margin": "the job's memory includes a margin of {factor:.2f}x",
    "margin-counted": "the job's memory includes a margin of {factor:.2f}x, learned from {answers:earlier estimate}",
    "margin-floor": "the job's memory includes a margin of {factor:.2f}x, at least {floor_mib:.0f} MiB",
    "margin-floor-counted": "the job's memory includes a margin of {factor:.2f}x, at least {floor_mib:.0f} MiB, "
    "learned from {answers:earlier estimate}",
    "margins-unreadable": "csub uses the built-in memory margins, because it cannot read the site's: {error}",
    "margins-old": "csub uses the built-in memory margins, because the site's are older than {days} days: does "
    "'colloc ingest' run?",
    "grew": "the newest run needed {more_pct:.0f} % more GPU memory than any before; csub adds as many percent again",
    "ran-out-of-memory": "job {job_id} ran out of GPU memory, so this job needs more than {least_mib} MiB",
    "raised-by-weights": "raised to {weights_mib} MiB, the size of the weights of '{model}'",
    "raised-by-smaller": "raised to {least_mib} MiB, which the smaller job {job_id} used",
    "same-command": "past jobs ran the same command, but their script may have been different",
    "sm-not-measured": "SM activity was not measured on a whole GPU",
    "card-tells-no-sm": "'{gpu}' reports no SM activity without DCGM, so csub changes nothing on it",
    "sm-bounded-by-readings": "SM activity comes from few samples, so csub adds a margin",
    "sm-bounded-by-util": "SM activity is taken as GPU_UTIL, which is never lower",
    "sm-of-relatives": "SM activity comes from {runs:run} of the same script with other numbers",
    "sm-from-runs": "SM activity comes from earlier runs",
    "other-numbers": "{runs:run} of the same script with other numbers on {gpu_model}",
    "nearly-same": "the runs differ only in numbers or files that should not change the need",
    "bound-by-one-run": "an upper limit from one run with another value of {names}",
    "cut-at-rest": "{runs:run} on {gpu_model} that reached a time limit after GPU memory had stopped growing",
    "running-at-rest": "{runs:run} on {gpu_model} still running, whose GPU memory has stopped growing",
    "alike-sessions": "the last {runs:session} of the same name on {gpu_model} needed about as much GPU memory",
    # Why that is not known.
    "few-sessions": "csub knows {runs:earlier session} of the same name, of {least} that it needs to compare",
    "sessions-differ": "the last {runs:session} of the same name held {least_mib} to {most_mib} MiB of GPU memory",
    "no-earlier-run": "csub knows no earlier run of this job",
    "none-completed": "csub knows {runs:earlier run}, but none that completed with {samples} samples",
    "memory-taken-at-once": "csub knows {runs:earlier run}, but the framework reserved {part_pct:.0f} % of GPU memory "
    "at once, so the real need is not visible",
    "gpu-unused": "csub knows {runs:earlier run}, which used no GPU memory",
    "cut-while-growing": "{runs:run} reached a time limit while GPU memory still grew, or had too few samples",
    "not-settled": "the same job {job_id} still runs and has been measured for {sampled_s:time}; it counts from "
    "{settle_s:time} on, if kernels run and GPU memory has not grown for half of the time",
    "too-many-numbers": "the job has too many numbers to compare it with other runs",
    "no-relatives": "no earlier run differs from this job in numbers only",
    "no-size": "{name} = {value} may mean 'all'",
    "numbers-tell-nothing": "{runs:run} with another value of {names} do not show what this job needs",
    "launcher-script": "the script starts {launcher} and does not say what will run there, so earlier runs say nothing "
    "about this one",
    "sm-unknown": "SM activity is not known; add sm=PERCENT to --gpu-footprint",
    "need-unknown": "csub does not know what one task needs",
    "harmed": "job {job_id} {harm:means} on a piece of a GPU, so the next {runs:run} get a whole GPU and are measured",
    "part-not-a-number": "{program} is told which part of the GPU to take, but not as a number ({told_by})",
    "file-new": "file '{path}' is new since the last submission",
    "file-edited": "file '{path}' has changed since the last submission",
    "file-gone": "file '{path}' no longer exists",
    "arguments-differ": "the arguments differ from those of the last submission",
    "word-differs": "perhaps because its command changed from '... {before}' to '... {word}'",
    "too-many-files": "the job may read more files than csub checks",
    # The fate of a job while it waited.
    "late-bound": "the job asked for {asked}; while it waited, {runs:run} of the same job showed what it needs",
    "late-billed": "Slurm bills {given} for it instead of {asked} (TRES billing)",
    "late-would": "while it waited, the job would have come to ask for {given}, by {runs:run} of the same job",
    "late-undone": "the job asks for {asked} again, as it was submitted",
    "cards-differ": "the job may get GPUs of different sizes, so that its share's memory is not known",
    # Notes.
    "never-measured": "csub cannot measure this job; to get a piece of a GPU, add --gpu-footprint=mem=SIZE,sm=PERCENT",
    "history-error": "{error}",
    "forgotten-ahead": "the runs of this job are forgotten up to a time in the future; run 'colloc history --forget "
    "{signature}'",
    "runs-impossible": "csub ignores {runs:run} in history '{path}' with impossible values",
    "evidence-unreadable": "csub cannot read {files:evidence file} of this job",
    "less-than-weights": "the weights of '{model}' alone need {weights_mib} MiB, more than the estimate of "
    "{need_mib:.0f} MiB; csub uses the size of the weights, and the job will need more",
    "part-to-tell": "told to take {part:g} of GPU memory, the program would fit {would_fit}",
    # Packs.
    "pack": "a pack of {tasks:task} in {jobs:job} of one {units}, {at_once} at a time",
    "pack-may-not-share": "the tasks run one at a time: {why}",
    "pack-shares-nothing": "the tasks run one at a time: {why}; to share the GPU, add {say}",
    "not-packed": "not packed: {why}",
    "no-packer": "packs are not available here",
    "command-of-wrap": "the job is a command of --wrap",
    "no-array": "the job is no array (--array)",
    "array-by-variable": "SBATCH_ARRAY_INX is set, which would turn the pack into an array",
    "one-task": "the array has one task",
    "one-at-a-time": "the array runs one task at a time (%1)",
    "no-two-fit": "no two tasks fit on one GPU",
    "srun-gets-array": "an srun inside a task would see the pack's own array numbers",
    "on-device": "this is so on {device}, which Slurm may give the job",
    "type-keeps-off-slices": "to get a whole GPU, name its type: --gres=gpu:TYPE:1",
    "no-such-gpu": "the job asks for {asked} in partition {partitions}, where site.toml has {there}",
    "jobs-exceed-most": "{jobs} jobs would run more tasks at a time than %{most} allows",
    "most-exceeds-time": "with {most} tasks at a time, the array does not fit the partition's time limit",
    "tasks-lack-time": "the tasks have no time limit; add --time",
    "resumes": "this job runs what job {job_id} did not finish",
    "most-tasks": "at most {most:task} may share a GPU here",
    "tasks-asked-for": "you asked for {asked:task} at a time",
    "memory-holds-tasks": "{mem_mib} MiB of GPU memory are enough for {held:task} of {each_mib} MiB",
    "tasks-exceed-memory": "{mem_mib} MiB of GPU memory are enough for {held:task} at a time, not for {tasks}",
    "tasks-fill-sms": "each task uses {sm_pct:.3g} % of the SMs, and csub puts tasks together up to {max_pct:.4g} %",
    "one-task-fills-memory-bandwidth": "one task uses GPU memory bandwidth {dram_pct:.0f} % of the time",
    "task-sm-unknown": "the SM activity of a task is not known",
    "equal-parts": "csub assumes that each task needs one part of {tasks}",
    "sms-above-bound": "all tasks together use {sum_pct:.0f} % of the SMs; the site's limit is {max_pct:g} %",
    "tasks-busy-memory": "each task uses GPU memory bandwidth {dram_pct:.0f} % of the time and may slow the others",
    "task-slowdown": "each task takes about {expected:as_long} alone, in 9 of 10 cases at most {upper:.3g}",
    "more-would-fit": "the GPU has room for {tasks} tasks at a time",
    "tasks-take-too-long": "{tasks} tasks at a time, slowed {slowdown:.2f} times, need {needed_min} min, and the job "
    "may take {most_min:g} min; run fewer tasks at a time, or give each task less than {limit_min:g} min",
    "no-time-for-retries": "there is no time left to run failed tasks again",
    "shared-host-memory": "the tasks share the {mem_mib} MiB of host memory that come with the GPU, {each_mib} MiB "
    "each; --mem asks for more",
    "task-starts-tasks": "each task starts {tasks} tasks of its own (--{option})",
    "dependency-task-by-task": "each task waits for one task of another array (--dependency=aftercorr)",
    "acts-on-its-job": "the script acts on its own job ({command}), which would be the whole pack",
    "uses-job-id": "the script uses SLURM_JOB_ID, which all tasks of a pack have in common",
    "tasks-count-each-other": "the script reads SLURM_ARRAY_TASK_COUNT, _MIN, _MAX or _STEP",
    # A job that may begin again.
    "begins-again": "if it runs out of GPU memory it begins again on more ({by})",
    "ends-as-it-ends": "if it runs out of GPU memory it does not begin again",
    "ends-itself": "the script has an end of its own ({word})",
    "tasks-share-output": "the tasks write to one output file, so csub could not tell which task ran out of memory",
    # Why a past run is not judged.
    "had-a-piece": "the job already had a piece of a GPU",
    "never-used": "it never used its GPU",
    "not-one-gpu": "only runs of one GPU are compared with pieces",
    "not-completed": "the run ended as {state}, so its peak may be less than the job needs",
    "not-measured-alone": "GPU memory or SM activity was not measured with the job alone on the GPU",
    "size-not-known": "site.toml does not tell what part of a GPU the piece is",
    "too-little-sampled": "less than {least_pct:.0f} % of the run time was sampled",
    # Why shadow mode would have left a job as asked.
    "would-not-off": "the user said --colloc=off",
    "would-not-request": "the request excludes pieces: several GPUs, whole nodes, a reservation and the like",
    "would-not-need": "csub did not know what the job needs",
    "would-not-fit": "no piece was large enough or allowed, the script could not be changed, or a whole GPU was "
    "free and no piece was",
    "would-not-pack": "the job would have been part of a pack of its array",
}


class _Number(float):
    def __format__(self, spec: str) -> str:
        if spec == "time":
            return in_words(self)
        if spec == "as_long":
            return "as long as" if f"{self:.2g}" == "1" else f"{self:.2g} times as long as"
        if len(spec) > 2 and spec[0].isalpha():
            return counted(int(self), spec)
        return f"{float(self):{spec}}" if spec else f"{int(self) if self.is_integer() else float(self)}"


class _Text(str):
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
