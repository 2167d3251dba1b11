# SPDX-License-Identifier: Apache-2.0
"""The data that a job with --requeue carries in its script, so that it can begin again with more of a GPU.

``slurm_colloc.rebind.recover`` reads it, within the job.
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import JobRequest, Placement, Reason, because
from slurm_colloc.core.value_types import read_as
from slurm_colloc.placement.candidate import asked_partitions, partition_names
from slurm_colloc.placement.pieces import keeps_out
from slurm_colloc.slurm.job_files import file_name
from slurm_colloc.slurm.options import CommandLine, Given, value_of
from slurm_colloc.submit.reasons import without_comments

# Options that were not seen to work with a job that begins again.
_AGAINST = ("wait", "test-only")
# Options that are said anew when more is asked for.
_REPLACED = ("--gpu-footprint", "--colloc")
# Fields of an update by the option that a new submission would have. Those of a task are three in one call: one of them
# alone starts a program twice, or has each srun hang. Cores for each GPU no update changes so that srun still works.
CORE_FIELDS = {"cpus-per-task": ("CPUsPerTask", "NumCPUs", "MinCPUsNode"), "mincpus": ("NumCPUs", "MinCPUsNode")}
# Words of a script whose end is not csub's to see.
_OWN_END = re.compile(
    rb"(?:\btrap\b(?:(?!\btrap\b)[^\n]){0,500}?[\s'\"]|['\"](?:[ \t]+[A-Z]+){0,8}?[ \t]+(?=EXIT))(EXIT|0)"
    rb"(?:[ \t]+\w+){0,8}[ \t]*(?=$|[;&|#}])"
    rb"|(?:^|[;&|({]|\b(?:then|else|do))[ \t]*(exec)[ \t]+(?![<>&{\d])\S",
    re.MULTILINE,
)
# scancel and --signal tell a job so long before its end, where nothing is said of it.
_SIGNAL_S = 60.0
_LIMIT_BYTES = 256 * 1024


class Carried(NamedTuple):
    """A job's knowledge of its own piece of a GPU, or of one that it may get while it waits.

    ``option`` is the name of the request in the table of updates (rebind/forms.toml), empty where it has none;
    ``asked`` the user's own gres, in his ``partitions`` and not in the pools ``without`` what he wants of a node.
    ``fields`` are those that an update has to change beside it.
    ``budget_mib`` is the memory that a share was sized for, 0 where that is not known yet. ``open_mode`` is
    --open-mode, ``signal_s`` how long before its end the job is told of it. ``words`` are the arguments that submit it,
    but for what csub is told of its need.
    """

    cluster: str
    signature: str
    mode: str
    option: str
    asked: str
    partitions: tuple[str, ...]
    without: tuple[str, ...]
    fields: Mapping[str, str]
    budget_mib: int
    sm_active_pct: float | None
    open_mode: str
    signal_s: float
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return it as one word."""
        return json.dumps(self._asdict())


def parse_carried(text: str) -> Carried:
    """Return what a script carries.

    Raises:
        InputError: it is another release's, or none.
    """
    try:
        piece: Carried = read_as(Carried, json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"what the script says of its piece of a GPU is not of the expected form: {error}") from error
    return piece


def carried(
    request: JobRequest,
    placement: Placement,
    sm_active_pct: float | None,
    options: Mapping[str, Given],
    command_line: CommandLine,
    config: SiteConfig,
) -> Carried:
    """Return what a job carries that may begin again."""
    share = placement.gres.name if placement.gres is not None and placement.gres.name != "gpu" else ""
    option = option_of(request)
    own = [option.word for option in command_line.own if option.word.partition("=")[0] not in _REPLACED]
    script = () if command_line.script is None else (command_line.script,)
    return Carried(
        cluster=config.cluster,
        signature=request.signature,
        mode=placement.mode,
        option=option and (share or option),
        asked=request.asked,
        partitions=partition_names(request, config),
        without=tuple(pool.name for pool in config.pool if keeps_out(pool, request)),
        fields=_fields(request, placement, config),
        budget_mib=placement.memory_mib or 0,
        sm_active_pct=sm_active_pct,
        open_mode=value_of(options, "open-mode"),
        signal_s=_signal_s(value_of(options, "signal")) if "signal" in options else 0.0,
        words=(*own, *command_line.sbatch_argv[: command_line.end], *script, *command_line.script_args),
    )


def option_of(request: JobRequest) -> str:
    """Return the option by which a request asks for a GPU, empty where no update is known to change that."""
    # The field holds more than the GPU with cores for each task.
    return "" if request.gpu_style == "gpus-per-task" and request.cpus_given else request.gpu_style


def _fields(request: JobRequest, placement: Placement, config: SiteConfig) -> dict[str, str]:
    """Return the fields that csub has changed beside the GPU, as they were asked, as far as that is known."""
    fields = {}
    if placement.partition:
        fields["Partition"] = ",".join(partition_names(request, config))
    if placement.time_limit_min is not None and request.time_limit_min not in (None, math.inf):
        fields["TimeLimit"] = str(math.ceil(request.time_limit_min or 0))
    # Cores that followed from the GPU, or were asked for, are the job's again with a whole one.
    followed = max(partition.cpus_per_gpu for partition in asked_partitions(request, config))
    cpus = request.cpus_asked if request.cpus_given else request.cpus_per_gpu or followed
    name = placement.cpu_option.partition("=")[0]
    if cpus and request.tasks in (None, 1) and not request.cores_unclear:
        fields |= dict.fromkeys(CORE_FIELDS.get(name, ()), str(cpus))
    if placement.mem and request.mem_asked_mib:
        fields["MinMemoryNode"] = str(request.mem_asked_mib)
    return fields


def _signal_s(value: str) -> float:
    seconds = value.partition("@")[2]
    return float(seconds) if seconds.isdecimal() else _SIGNAL_S


def reason_against(request: JobRequest, options: Mapping[str, Given], text: bytes, *, is_shell: bool) -> Reason | None:
    """Return why a job with --requeue cannot begin again by itself; None where it can."""
    if against := [name for name in _AGAINST if name in options]:
        return because("option", option=against[0])
    if not is_shell:
        return because("interpreter-not-sh", interpreter=request.interpreter)
    if ends := _OWN_END.search(without_comments(text)):
        return because("ends-itself", word=(ends[1] or ends[2]).decode())
    return _reason_of_array(request, options, text) if "array" in options else None


def _reason_of_array(request: JobRequest, options: Mapping[str, Given], text: bytes) -> Reason | None:
    # Tasks that count each other cannot be submitted apart.
    if re.search(rb"\bSLURM_ARRAY_TASK_(?:COUNT|MIN|MAX|STEP)\b", text):
        return because("tasks-count-each-other")
    output = value_of(options, "output") or "slurm-%A_%a.out"
    facts = {"array_job_id": "0", "name": request.name, "user": "", "node": "", "folder": request.folder}
    for pattern in (output, value_of(options, "error") or output):
        path, next_path = (file_name(pattern, job_id=str(task), task=task, **facts) for task in (0, 1))
        if path == next_path != os.devnull:
            return because("tasks-share-output")
    return None


def asks_for_more(piece: Carried, more_mib: int | None) -> Sequence[str]:
    """Return the words of the command that submits the job for more; as asked where it is not known how much."""
    sm = "" if piece.sm_active_pct is None else f",sm={piece.sm_active_pct:g}"
    return ("csub", f"--gpu-footprint=mem={more_mib}M{sm}" if more_mib else "--colloc=off", *piece.words)
