# SPDX-License-Identifier: Apache-2.0
"""The reasons to leave a job unchanged, to give it no share of a GPU, or not to pack it."""

import re
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import Gres, JobRequest, Reason, because
from slurm_colloc.estimate.seeds_and_sizes import word_sets
from slurm_colloc.placement.candidate import asked_partitions, suspending
from slurm_colloc.slurm.options import Given, value_of
from slurm_colloc.submit.device_numbers import device_taken_for_number
from slurm_colloc.submit.launchers import launcher_of
from slurm_colloc.submit.render import BLOCK_BEGINS
from slurm_colloc.submit.submission import Submission

PER_GPU = ("cpus-per-gpu", "mem-per-gpu")
_OPTIONS = word_sets(
    {
        # After these "one GPU" no longer means one GPU of any node, or another cluster must judge.
        "leave alone": "clusters constraint deadline exclude exclusive gid gpu-bind gpu-freq gpus-per-socket"
        " nodefile nodelist ntasks-per-gpu ntasks-per-tres reservation tres-per-task uid",
        # Of those, these mean the same to a pack, which asks for the GPU that one task asked for.
        "fine for a pack": "constraint exclude nodelist reservation",
        # These mean the same to a job on a piece of a GPU. Any other, a new one too, leaves the job alone.
        "harmless": "account acctg-freq array begin chdir comment contiguous cores-per-socket cpu-freq"
        " cpus-per-gpu cpus-per-task delay-boot dependency distribution error export extra"
        " extra-node-info get-user-env gpus gpus-per-node gpus-per-task gres hint hold ignore-pbs"
        " input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind"
        " mem-per-cpu mem-per-gpu mincpus network nice no-kill no-requeue nodes ntasks"
        " ntasks-per-core ntasks-per-node ntasks-per-socket oom-kill-step open-mode output"
        " overcommit oversubscribe parsable partition priority profile propagate qos quiet requeue"
        " signal sockets-per-node spread-job stepmgr test-only threads-per-core time time-min tmp"
        " use-min-nodes verbose wait wait-all-nodes wckey wrap",
    }
)
# Options with the values that mean the same to a job on a piece; placement tells what a pool lacks or has excluded.
_HARMLESS_VALUES = {
    # One node, which such a job has, is of one alternative in brackets as without.
    "constraint": r"[\w.-]+(?:&[\w.-]+)*|(\[|\()?[\w.-]+(?:\|[\w.-]+)*(?(1)[])])",
    "exclude": r"[^/\s]+",  # with a slash it is a file of names
    "gres-flags": r"(?:disable|enforce)-binding",
}
_STEP = rb"\bsrun\b"
_STEP_EXPORT = rb"\s--export\b"
# A shell with any other flag may print what it runs, be restricted, or run nothing.
_SHELL_FLAG = r"-[abefhlmpuE]+|--(?:login|noprofile|norc|posix)|-o|pipefail|errexit|nounset"
# A script that reads itself by line number or gives itself to another interpreter, and one that asks where it was
# submitted from; asking for the name of $0 alone does no harm, and awk's "print $0" is another $0.
_NAME_OF_SELF = rb"\b(?:dirname|basename|realpath|readlink)(?:\s+-\S+)*\s+[\"']?\$\{?(?:0\b|BASH_SOURCE\b)"
_SELF = rb"(?<!print )(\$0\b|\$\{0\b|\bBASH_SOURCE\b)"
_COMMAND_BY_SQUEUE = rb"\bsqueue\b(?:(?!\bsqueue\b)[^\n])*(?:%\.?\d*o\b|[Cc]ommand)"
# Words that a script only prints, with nothing behind it that reads them.
_PRINTS = (
    rb"""(?m)(?:^|[;&|{]|\b(?:then|else|do)\b)[ \t]*+(?:echo|printf)\b"""
    rb"""(?:[ \t]++(?:"(?:[^"`$\\]|\\.|\$(?!\())*+"|'[^']*+'|[^\s;&|<>`("'\\])++)*+"""
    rb"""[ \t]*+(?:[12]?>&[12][ \t]*+)?(?=$|[;}]|\|\||&&)"""
)


def reason_to_keep(submission: Submission) -> Reason | None:
    """Return why csub's block must not go into a script, or a command of --wrap not become one; None when it may."""
    text, script = submission.text, submission.script
    if script:
        return reason_to_keep_text(text, script.interpreter)
    # sbatch looks for these behind a script's commands, too, and refuses one with DOS line ends.
    if text.startswith((b"#PBS", b"#BSUB")) or any(word in text for word in (b"\n#PBS", b"\n#BSUB", b"\r\n")):
        return because("wrap-read-otherwise")
    return reason_to_keep_text(text, "")


def reason_to_keep_text(text: bytes, interpreter: str) -> Reason | None:
    """Return why csub's block must not go into a script of this text; None when it may."""
    words = interpreter.split()
    flags = words[2:] if words and words[0].endswith("/env") else words[1:]
    if not all(re.fullmatch(_SHELL_FLAG, flag) for flag in flags):
        return because("shell-flags", interpreter=interpreter)
    if BLOCK_BEGINS.encode() in text:
        return because("has-block")
    acts = _without_prints(without_comments(text))
    if word := _name_of_itself(acts):
        return because("reads-itself", word=word)
    return because("asks-own-path") if _asks_for_its_path(acts) else None


def _name_of_itself(acts: bytes) -> str:
    """Return the word by which a script reads itself; empty where it does not."""
    if not any(word in acts for word in (b"$0", b"${0", b"BASH_SOURCE")):  # few scripts have one, and these are quick
        return ""
    word = re.search(_SELF, re.sub(_NAME_OF_SELF, b"", acts))
    return word[1].decode() if word else ""


def _asks_for_its_path(acts: bytes) -> bool:
    return (b"Command" in acts and b"scontrol" in acts) or re.search(_COMMAND_BY_SQUEUE, acts) is not None


def without_comments(text: bytes) -> bytes:
    """Return a script without its lines of comments."""
    return re.sub(rb"(?m)^[ \t]*#[^\n]*", b"", text)


def _without_prints(commands: bytes) -> bytes:
    """Return a script that has no comments without what it only prints."""
    return re.sub(_PRINTS, b"", commands) if b"echo" in commands or b"printf" in commands else commands


def reason_against_history(text: bytes, arguments: Sequence[str] = ()) -> Reason | None:
    """Return why earlier runs of the same text and arguments say nothing of the next one; None when they may."""
    launcher = launcher_of(text, arguments)
    return because("launcher-script", launcher=launcher) if launcher else None


# An inner step that names GPUs must match the allocation. Its options may stand in a variable, so the long ones count
# wherever a script with an srun has them: written in full, or as far as srun knows them from others.
_STEP_OPTION = (
    rb"""[\s"'=(,]--((?:gre|gpu|cpus-per-g|mem-per-g|ntasks-per-g|tres-p)[a-z-]*)(?![\w-])(?:[=\s]\s*([^\s"';)|&]*))?"""
)
_STEP_OPTIONS = frozenset(
    {b"gres", b"gres-flags", b"gpus", b"gpus-per-node", b"gpus-per-socket", b"gpus-per-task", b"gpu-bind", b"gpu-freq"}
    | {b"cpus-per-gpu", b"mem-per-gpu", b"ntasks-per-gpu", b"tres-per-task"}
)
# It begins at the nearest srun: to the end of the line from each one takes seconds where a line has thousands.
_STEP_SHORT = rb"\bsrun\b(?:(?!\bsrun\b)[^\n])*?\s(-[A-Za-z]*G)\s*([^\s\"';)|&]*)"
_STEP_VARIABLE = rb"\b(SLURM_(?:GRES|GPUS\w*|CPUS_PER_GPU|MEM_PER_GPU|TRES_PER_TASK))="
# One GPU of whatever type: a whole one and a slice alike.
_ONE_GPU = {
    b"--gres": (b"gpu", b"gpu:1", b"gres/gpu:1", b"gres:gpu:1"),
    b"--gpus": (b"1",),
    b"--gpus-per-node": (b"1",),
    b"--gpus-per-task": (b"1",),
    b"-G": (b"1",),
}


def step_gpus(commands: bytes) -> tuple[tuple[str, bool], ...]:
    """Return the GPU options of a script's inner steps, each with whether it means one GPU of whatever type."""
    steps = commands.replace(b"\\\n", b" ")
    if not re.search(_STEP, steps):
        return ()
    # srun takes a word for the only option that begins so; --gpu-collect is a program's own.
    words = [
        (b"--" + name, value)
        for name, value in re.findall(_STEP_OPTION, steps)
        if name in _STEP_OPTIONS or sum(option.startswith(name) for option in _STEP_OPTIONS) == 1
    ]
    words += re.findall(_STEP_SHORT, steps)
    words += [(name, b"") for name in re.findall(_STEP_VARIABLE, steps)]
    return tuple((name.decode(), value in _ONE_GPU.get(name, ())) for name, value in words)


# Variables by which Slurm tells a job of its own request, by the option that asks: a piece would have others.
_TOLD = {
    "gpus": ("SLURM_GPUS",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    "gpus-per-task": ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND"),
    "cpus-per-gpu": ("SLURM_CPUS_PER_GPU",),
    "mem-per-gpu": ("SLURM_MEM_PER_GPU",),
}
_OF_EVERY_JOB = "SLURM_GPUS_ON_NODE"
_NAMES_TOLD = (
    rb"\bSLURM_(?:GPUS(?:_PER_NODE|_PER_TASK|_ON_NODE)?|(?:CPUS|MEM)_PER_GPU|TRES_PER_TASK|TRES_BIND)(?![A-Z])"
)


def variables_read(options: Mapping[str, Given], commands: bytes) -> tuple[str, ...]:
    """Return the variables in a script that tell of its request; ON_NODE tells of every one."""
    if b"SLURM_" not in commands:
        return ()
    named = {name.decode() for name in re.findall(_NAMES_TOLD, commands)}
    of_request = [name for option, names in _TOLD.items() if option in options for name in names]
    return tuple(name for name in (*of_request, _OF_EVERY_JOB) if name in named)


def reasons_against_pack(
    options: Mapping[str, Given], request: JobRequest, text: bytes, config: SiteConfig, are_commands: bool
) -> Iterator[Reason]:
    """Yield why tasks may not be run as a pack, in one job that asks for what one of them asks.

    Args:
        options: those in force, by canonical name.
        request: of one task.
        text: its script.
        config: the site.
        are_commands: the tasks are commands, which were never to be jobs of their own.
    """
    plugins = _plugin_names(config)
    yield from _not_one_gpu(request.gres, [request.gpu_style])
    if protected := [gres.type for gres in request.gres if gres.type in config.sharing.protected_types]:
        yield because("protected", gpu_type=protected[0])
    if suspends := suspending(asked_partitions(request, config)):
        yield suspends
    for name in options:
        if name in plugins or (name not in _OPTIONS["harmless"] and name not in _OPTIONS["leave alone"]):
            yield because("option-untried", option=name)
        elif name in _OPTIONS["leave alone"] and name not in _OPTIONS["fine for a pack"]:
            yield because("option", option=name)
    if any(mark in value_of(options, "nodelist") for mark in ",["):  # several nodes
        yield because("option", option="nodelist")
    yield from _more_than_one_node(options)
    for name in ("ntasks", "ntasks-per-node"):
        if name in options and options[name].value != "1":
            yield because("task-starts-tasks", option=name, tasks=options[name].value)
    if "time-min" in options:
        yield because("option", option="time-min")
    yield from _badly_sized(options, "mem")
    if "aftercorr" in value_of(options, "dependency"):
        yield because("dependency-task-by-task")
    yield from _reasons_of_text(without_comments(text), are_commands=are_commands)


# Signs of what tasks that are one job to Slurm would do to each other.
_ACTS_ON_JOB = (
    rb"\b(?:scontrol\s+(?:(?!\S*\bscontrol\b)\S+\s+)*?(?:requeue\w*|update|u?hold|release|suspend)|scancel|sbatch)\b"
)


def _reasons_of_text(commands: bytes, *, are_commands: bool) -> Iterator[Reason]:
    """Yield what a script without its comments does that tasks cannot do side by side in one job."""
    if steps := step_gpus(commands):
        yield because("srun-asks-for-gpu", option=steps[0][0])
    if re.search(_STEP, commands) and re.search(_STEP_EXPORT, commands):
        yield because("srun-exports")
    if act := re.search(_ACTS_ON_JOB, commands):
        yield because("acts-on-its-job", command=b" ".join(act[0].split()).decode(errors="replace"))
    if are_commands:
        return
    if _asks_for_its_path(_without_prints(commands)):
        yield because("asks-own-path")
    if any(map(_uses_job_id, commands.replace(b"\\\n", b" ").splitlines())):
        yield because("uses-job-id")


def _uses_job_id(line: bytes) -> bool:
    """Return whether a line takes the job's id for its own, which all tasks of a pack share.

    A line that also has the task's number keeps tasks apart, and one that only prints does no harm, unless they reckon.
    """
    if not re.search(rb"\bSLURM_JOB_?ID\b", line):
        return False
    if b"$((" in line or re.search(rb"\b(?:expr|let|bc)\b", line):
        return True
    return b"SLURM_ARRAY_TASK_ID" not in line and not re.match(rb"^\s*(?:echo|printf)\b[^>|`(]*$", line)


def _not_one_gpu(gres: Sequence[Gres], styles: Sequence[str]) -> Iterator[Reason]:
    gpu_count = sum(item.quantity for item in gres if item.name == "gpu")
    if names := sorted({item.name for item in gres} - {"gpu"}):
        yield because("other-gres", gres=names[0])
    elif gpu_count == 0:
        yield because("no-gpu")
    elif len(gres) > 1 and len(set(gres)) == 1 and gres[0].quantity == 1:
        # Slurm gives one, and a piece would have to replace each.
        yield because("asked-twice", gres=str(gres[0]), styles=tuple(styles))
    elif gpu_count > 1:
        yield because("several-gpus", gres=tuple(map(str, gres)))


def _more_than_one_node(options: Mapping[str, Given]) -> Iterator[Reason]:
    if "nodes" in options and options["nodes"].value not in ("1", "1-1"):
        yield because("several-nodes", nodes=options["nodes"].value or "")


def _badly_sized(options: Mapping[str, Given], memory: str) -> Iterator[Reason]:
    """Yield why the cores and memory that are asked for cannot be those of a share or a task; ``memory`` by which."""
    if sum(name in options for name in ("mem", "mem-per-cpu", "mem-per-gpu")) > 1:
        yield because("memory-sized-twice")
    if _is_all(options, memory):
        yield because("whole-node-memory")
    if "cpus-per-gpu" in options and "cpus-per-task" in options:
        yield because("cores-sized-twice")


def _is_all(options: Mapping[str, Given], name: str) -> bool:
    """Return whether an option of memory is 0 in any unit, by which Slurm means all of the node's."""
    return name in options and value_of(options, name).strip("0KMGTkmgtBb") == ""


def _plugin_names(config: SiteConfig) -> set[str]:
    return {text.partition("=")[0] for text in config.sbatch_options}


def reasons_against_share(
    submission: Submission, steps: Sequence[tuple[str, bool]], read: Sequence[str], config: SiteConfig
) -> Iterator[Reason]:
    """Yield why a job cannot run on a share (MPS, shard); its ``steps`` ask for GPUs, and variables are ``read``."""
    text, options = submission.text, submission.options
    for name in sorted(_plugin_names(config) & set(options)):
        yield because("option-untried", option=name)
    if steps:
        yield because("srun-asks-for-gpu", option=steps[0][0])
    for name in read:
        # srun takes them for its own options, so csub's block cannot set them.
        if name != _OF_EVERY_JOB:
            yield because("reads-variable", variable=name)
    if re.search(_STEP, text) and re.search(_STEP_EXPORT, without_comments(text)):
        yield because("srun-exports")
    # A variable is in force again without its argument, and the job is to find the variables of its submission.
    for variable in submission.variables:
        if variable.name in PER_GPU:
            yield because("variable-sizes-per-gpu", variable=variable.written)
    yield from _badly_sized(options, "mem-per-gpu")


def reasons_against_slice(commands: bytes) -> Iterator[Reason]:
    """Yield why a job of these commands cannot run on a slice."""
    if variable := device_taken_for_number(commands):
        yield because("device-as-number", variable=variable)


def reasons_against_mps(commands: bytes, read: Sequence[str], config: SiteConfig) -> Iterator[Reason]:
    """Yield why a job cannot run under MPS: Slurm takes from steps, or sets anew, what csub's block sets."""
    if not re.search(_STEP, commands):
        return
    if _OF_EVERY_JOB in read:
        yield because("reads-variable", variable=_OF_EVERY_JOB)
    # TaskProlog and the SPANK plugin lift the limit in steps; a daemon of the site's own comes without either.
    if config.sharing.mps_daemon == "site":
        yield because("steps-limited")


def reasons_untouchable(
    options: Mapping[str, Given],
    gres: Sequence[Gres],
    styles: Sequence[str],
    steps: Sequence[tuple[str, bool]],
    config: SiteConfig,
) -> Iterator[Reason]:
    """Yield why the request must reach Slurm as it was written: ``gres``, by the options ``styles``."""
    plugins = _plugin_names(config)
    slices = {part.type for pool in config.pool for part in pool.slice}
    yield from _not_one_gpu(gres, styles)
    for item in gres:
        if item.type in slices or re.search(r"\dg\.\d+gb", item.type):
            yield because("asks-for-slice", slice=item.type)
    # Portals name the cluster with each submission.
    harmless_values = {**_HARMLESS_VALUES, "clusters": re.escape(config.cluster)}
    for name in options:
        if name in harmless_values and re.fullmatch(harmless_values[name], value_of(options, name)):
            continue
        if name in _OPTIONS["leave alone"]:
            yield because("option", option=name)
        elif name not in _OPTIONS["harmless"] and name not in plugins:
            yield because("option-untried", option=name)
    if _is_all(options, "mem"):
        yield because("whole-node-memory")
    yield from _more_than_one_node(options)
    if "ntasks" in options and options["ntasks"].value != "1" and "nodes" not in options:
        yield because("tasks-may-spread", tasks=options["ntasks"].value)
    if "gpus-per-task" in styles and ("ntasks" not in options or options["ntasks"].value != "1"):
        yield because("gpus-follow-tasks")
    if several := [name for name, is_one in steps if not is_one]:
        yield because("srun-asks-for-gpus", option=several[0])
