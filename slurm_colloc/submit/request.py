# SPDX-License-Identifier: Apache-2.0
"""From what sbatch would understand to the JobRequest, with every reason to leave the job alone."""

import re
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError, UnsureError
from slurm_colloc.estimate.signature import signature
from slurm_colloc.model import Gres, JobRequest
from slurm_colloc.slurm.directives import Script
from slurm_colloc.slurm.gres import parse_gpus, parse_gres
from slurm_colloc.slurm.options import Given

_STYLES = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_MIG_TYPE = re.compile(r"\dg\.\d+gb")
# An inner step that names GPUs would no longer match a changed allocation. Its options may stand in a variable, so the
# long ones count wherever a script with an srun has them.
_INNER_SRUN = re.compile(rb"\bsrun\b")
_INNER_LONG = rb"--gres|--gpus|--gpu-bind|--cpus-per-gpu|--mem-per-gpu|--ntasks-per-gpu|--tres-per-task"
_INNER_GPUS = re.compile(rb"\bsrun\b[^\n]*?\s(-[A-Za-z]*G)|[\s\"'=(,](%s)\b|\b(SLURM_(?:GRES|GPUS\w*))=" % _INNER_LONG)
# A script that reads itself by line number or gives itself to another interpreter, and one that asks where it was
# submitted from; asking for the name of $0 alone does no harm, and awk's "print $0" is another $0.
_NAME_OF_SELF = re.compile(rb"\b(?:dirname|basename|realpath|readlink)(?:\s+-\S+)*\s+[\"']?\$\{?(?:0\b|BASH_SOURCE\b)")
_SELF = re.compile(rb"(?<!print )(\$0\b|\$\{0\b|\bBASH_SOURCE\b)")
_COMMAND_BY_SQUEUE = re.compile(rb"\bsqueue\b[^\n]*(?:%\.?\d*o\b|[Cc]ommand)")
# A shell that prints what it runs, is restricted, or runs nothing.
_SHELL_FLAGS = re.compile(r"\s(-[a-z]*[nrvx]|--(?:restricted|verbose))|\b(xtrace|verbose)\b")
BLOCK_BEGINS = b"# --- csub: this block was added"
_DIRECTIVE = re.compile(rb"^#(?:SBATCH|CSUB).*\n?", re.MULTILINE)
# Options after which "one GPU" no longer means one GPU of any node, or which another cluster must judge.
_LEAVE_ALONE = {
    "clusters": "it may go to another cluster",
    "constraint": "it names node features",
    "exclusive": "it asks for whole nodes",
    "gpu-bind": "it binds to GPUs",
    "gpu-freq": "it sets GPU clocks, which a share cannot",
    "gpus-per-socket": "it asks for GPUs per socket",
    "nodelist": "it names its nodes",
    "ntasks-per-gpu": "it starts tasks per GPU",
    "reservation": "it runs in a reservation",
    "tres-per-task": "it asks for GPUs per task",
}


def build_request(
    given: Mapping[str, Given],
    script: Script | None,
    text: bytes,
    script_name: str,
    script_args: Sequence[str],
    config: SiteConfig,
) -> JobRequest:
    """Return the request that decides a job's placement.

    Args:
        given: the options in force, by canonical name.
        script: the script as read; None for --wrap, whose text sbatch makes itself.
        text: the script's bytes, or the command given to --wrap.
        script_name: what sbatch will call the job unless told otherwise.
        script_args: the script's own arguments.
        config: the site.

    Raises:
        UnsureError: the GPU request is outside the grammar.
    """
    styles = [style for style in _STYLES if style in given and _gpus(style, given[style].value)]
    gres = tuple(gres for style in styles for gres in _gpus(style, given[style].value))
    gpu_count = sum(item.quantity for item in gres if item.name == "gpu")
    return JobRequest(
        name=(given["job-name"].value or "") if "job-name" in given else script_name,
        script_args=tuple(script_args),
        interpreter=script.interpreter if script else "",
        partition=given["partition"].value if "partition" in given else None,
        gres=gres,
        gpu_style=styles[0] if styles else "",
        per_gpu_options="cpus-per-gpu" in given or "mem-per-gpu" in given,
        array="array" in given,
        signature=signature(text, script_args, gpu_count),
        untouchable=tuple(_reasons(given, gres, styles, text, config)),
        origins=tuple((option.name, option.origin) for option in given.values()),
    )


def reason_to_keep_text(text: bytes, interpreter: str) -> str:
    """Return why csub's block must not go into a script of this text; empty when it may."""
    if _SHELL_FLAGS.search(interpreter):
        return f"its shell is started as '{interpreter}'"
    if BLOCK_BEGINS in text:
        return "the script holds csub's block already"
    found = _SELF.search(_NAME_OF_SELF.sub(b"", text))
    if found:
        return f"the script reads itself ({found[1].decode()})"
    if (b"Command" in text and b"scontrol" in text) or _COMMAND_BY_SQUEUE.search(text):
        return "the script asks Slurm for its own path"
    return ""


def _gpus(style: str, value: str | None) -> tuple[Gres, ...]:
    try:
        found = parse_gres(value or "") if style == "gres" else parse_gpus(value or "")
    except InputError as error:
        raise UnsureError(str(error)) from error
    return tuple(gres for gres in found if gres.quantity)


def _reasons(
    given: Mapping[str, Given], gres: Sequence[Gres], styles: Sequence[str], text: bytes, config: SiteConfig
) -> Iterator[str]:
    gpu_count = sum(item.quantity for item in gres if item.name == "gpu")
    others = sorted({item.name for item in gres} - {"gpu"})
    slices = {part.type for pool in config.pool for part in pool.slice}
    if others:
        yield f"it asks for gres/{others[0]} itself"
    elif gpu_count == 0:
        yield "it asks for no GPU"
    elif gpu_count > 1 or len(styles) > 1:
        yield f"it asks for GPUs as {' and '.join(str(item) for item in gres)}"
    for item in gres:
        if item.type in slices or _MIG_TYPE.search(item.type):
            yield f"it asks for the slice '{item.type}' itself"
    yield from (f"{why} (--{name})" for name, why in _LEAVE_ALONE.items() if name in given)
    if "nodes" in given and given["nodes"].value not in ("1", "1-1"):
        yield f"it asks for nodes '{given['nodes'].value}'"
    if "ntasks" in given and given["ntasks"].value != "1" and "nodes" not in given:
        yield f"its {given['ntasks'].value} tasks may spread over nodes"
    if "gpus-per-task" in styles and ("ntasks" not in given or given["ntasks"].value != "1"):
        yield "its GPUs follow the number of its tasks"
    steps = _DIRECTIVE.sub(b"", text).replace(b"\\\n", b" ")
    inner = _INNER_GPUS.search(steps) if _INNER_SRUN.search(steps) else None
    if inner:
        yield f"an srun inside it asks for GPUs itself ({(inner[1] or inner[2] or inner[3]).decode()})"
