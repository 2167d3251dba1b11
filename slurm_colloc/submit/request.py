# SPDX-License-Identifier: Apache-2.0
"""Makes the JobRequest of a submission as sbatch would understand it, with every reason to leave the job alone."""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres, JobRequest, Reason, because
from slurm_colloc.core.units import asked_mib, time_limit_min
from slurm_colloc.estimate.signature import (
    BY_SESSION,
    Signature,
    apart_by,
    command_signature,
    names_from_outside,
    signature,
)
from slurm_colloc.estimate.submitted import compared, path_of, read_submitted
from slurm_colloc.estimate.texts import Texts
from slurm_colloc.slurm.array import array_written, parse_array
from slurm_colloc.slurm.gres import check_prefix, parse_gpus, parse_gres
from slurm_colloc.slurm.options import Given, count_of, value_of
from slurm_colloc.submit.launchers import launcher_of
from slurm_colloc.submit.reasons import (
    reason_to_keep,
    reasons_against_mps,
    reasons_against_share,
    reasons_against_slice,
    reasons_untouchable,
    step_gpus,
    variables_read,
    without_comments,
)
from slurm_colloc.submit.submission import GPU_STYLES, Submission

_SHAPES_CORES = frozenset(
    {"cores-per-socket", "extra-node-info", "hint", "ntasks-per-core", "ntasks-per-socket", "overcommit"}
    | {"sockets-per-node", "threads-per-core"}
)


def build_request(
    submission: Submission,
    called: tuple[str | None, Sequence[str]],
    config: SiteConfig,
    environ: Mapping[str, str],
    *,
    is_hinted: bool = False,
) -> JobRequest:
    """Return the request that decides the placement of a submission.

    ``called`` are the script's path as it was given (None where there is none) and its own arguments; ``is_hinted``
    says that its user tells all that it needs, so that the last submission says nothing.

    Raises:
        InputError: the GPU request or the time limit is outside its grammar.
        UnsureError: a number is none.
    """
    script, options, commands = submission.script, submission.options, without_comments(submission.text)
    check_prefix(value_of(options, "gres"), config.slurm_release)
    by_style = {style: _gpus(style, value_of(options, style)) for style in GPU_STYLES if style in options}
    styles, gres = [style for style, gpus in by_style.items() if gpus], tuple(chain(*by_style.values()))
    steps, read = step_gpus(commands), variables_read(options, commands)
    tasks = count_of(options, "ntasks") or count_of(options, "ntasks-per-node") or None
    request = JobRequest(
        name=value_of(options, "job-name") if "job-name" in options else submission.name,
        script_args=tuple(called[1]),
        interpreter=script.interpreter if script else "",
        partitions=tuple(filter(None, value_of(options, "partition").split(","))),
        account=value_of(options, "account"),
        qos=value_of(options, "qos"),
        gres=gres,
        gpu_style=next(iter(styles), ""),
        cpus_per_gpu=count_of(options, "cpus-per-gpu") or None,
        mem_per_gpu=value_of(options, "mem-per-gpu"),
        min_cpus=count_of(options, "mincpus"),
        tasks=tasks,
        cpus_given="cpus-per-task" in options,
        cores_unclear=_cores_unclear(options),
        mem_given="mem" in options or "mem-per-cpu" in options,
        time_limit_min=time_limit_min(value_of(options, "time")) if "time" in options else None,
        array="array" in options,
        array_at_once=_at_once(value_of(options, "array")),
        no_slice=tuple(reasons_against_slice(commands)),
        no_mps=tuple(reasons_against_mps(commands, read, config)),
        no_share=tuple(reasons_against_share(submission, steps, read, config)),
        untouchable=tuple(reasons_untouchable(options, gres, styles, steps, config)),
        options=tuple(options),
        folder=os.path.join(os.getcwd(), value_of(options, "chdir")),
        cpus_asked=count_of(options, "cpus-per-task") * (tasks or 1) or None,
        mem_asked_mib=asked_mib(value_of(options, "mem")),
        mem_per_cpu=value_of(options, "mem-per-cpu"),
        features=tuple(filter(None, value_of(options, "constraint").strip("[()]").split("&"))),
        excluded=_excluded(value_of(options, "exclude")),
    )
    request = request._replace(untouchable=(*request.untouchable, *_reads_slice(request, submission, read)))
    return _with_past(request, submission, called[0], apart_by(config.cluster, tasks), environ, is_hinted=is_hinted)


def _with_past(
    request: JobRequest,
    submission: Submission,
    path: str | None,
    apart: Sequence[str],
    environ: Mapping[str, str],
    *,
    is_hinted: bool,
) -> JobRequest:
    """Return the request with what earlier runs of the job are known by, and how it differs from the last one.

    ``apart`` are words by which else the same jobs are told apart; for the other arguments see ``build_request``.
    """
    before = "" if is_hinted else path_of(user_data_folder(), path or "", request.folder)
    last, texts = read_submitted(before), Texts(user_data_folder(), request.folder)
    if last:
        texts.last = last.files, last.seen
    known_by, command = _known_by(request, submission, path, apart, environ, texts)
    if known_by.text.startswith(BY_SESSION):
        before, last = "", None
    known_by, submitted, differs = compared(known_by, last)
    to_keep = (before, b"" if submitted == last else submitted.text), (texts.path, texts.written())
    return request._replace(
        signature=known_by.text,
        numbers=known_by.names,
        command=command,
        submitted=tuple((path, written) for path, written in to_keep if path and written),
        differs=differs,
    )


def _excluded(nodes: str) -> tuple[str, ...]:
    """Return the names of the nodes that the job will not run on; none where a file has them."""
    if not nodes or "/" in nodes:
        return ()
    # 20 ms, and of such jobs alone.
    from slurm_colloc.slurm.hostlist import expand

    return expand(nodes)


def _at_once(array: str) -> int:
    """Return how many tasks of an array may run at once; one job, or an array that we cannot read, is 1."""
    numbers, _, most = array.partition("%")
    if not array:
        return 1
    try:
        tasks = len(parse_array(numbers))
    except InputError:
        return 1
    return min(tasks, int(most)) if most.isdigit() and int(most) else tasks


def _reads_slice(request: JobRequest, submission: Submission, read: Sequence[str]) -> Iterator[Reason]:
    """Yield the variables that a script reads and in which Slurm would name a slice, unless csub's block puts it right.

    srun takes them for its own options: one without a type fits a slice, one with the GPU's is refused.
    """
    named = [name for name in read if name.startswith(("SLURM_GPUS", "SLURM_TRES")) and name != "SLURM_GPUS_ON_NODE"]
    if not named:
        return
    has_block = (submission.script is None or request.sh_like) and not reason_to_keep(submission)
    for name in named:
        if not has_block or not request.names_no_type or name.startswith("SLURM_TRES"):
            yield because("variable-names-slice", variable=name)


def _known_by(
    request: JobRequest,
    submission: Submission,
    path: str | None,
    apart: Sequence[str],
    environ: Mapping[str, str],
    texts: Texts,
) -> tuple[Signature, str]:
    """Return what earlier runs of a job are known by, and what those are whose script is not known (empty: none)."""
    text, options = submission.text, submission.options
    arguments, folder = request.script_args, request.folder
    launcher = launcher_of(text, arguments)
    if launcher or b" --target-jobs " in text:
        from slurm_colloc.estimate.sessions import session_key  # few jobs are such

        if key := session_key(launcher, request.name, folder, text, (*map(str, request.gres), *apart)):
            return Signature(key, ()), ""
    exported = {**_exported(options, environ), "SLURM_JOB_NAME": request.name}
    # The variables that --export sets.
    handed = [word.partition("=")[0] for word in value_of(options, "export").split(",") if "=" in word]
    array = array_written(value_of(options, "array"))
    gpus = request.gpu_count
    known_by = signature(text, arguments, gpus, apart, exported, folder, handed=handed, array=array, texts=texts)
    # Which values past jobs of the command found in such variables nobody kept.
    if not path or handed or names_from_outside(text, exported):
        return known_by, ""
    return known_by, command_signature(path, arguments, gpus, apart, folder)


def _exported(options: Mapping[str, Given], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the job will find, of those it could be handed at its submission."""
    # A comma inside quotes is part of a value; a split in two then only makes another job of it.
    words = value_of(options, "export").split(",") if "export" in options else ["ALL"]
    named = dict(word.split("=", 1) for word in words if "=" in word)
    if "ALL" in words:
        return {**environ, **named}
    return {name: environ[name] for name in (*words, "HOME") if name in environ} | named


def _cores_unclear(options: Mapping[str, Given]) -> bool:
    """Return whether more than tasks and --cpus-per-task has a say in how many cores the job gets."""
    tasks = {count_of(options, name) for name in ("ntasks", "ntasks-per-node") if name in options}
    return len(tasks) > 1 or bool(_SHAPES_CORES & set(options))


def _gpus(style: str, value: str) -> tuple[Gres, ...]:
    return tuple(gres for gres in (parse_gres if style == "gres" else parse_gpus)(value) if gres.quantity)
