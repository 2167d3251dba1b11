# SPDX-License-Identifier: Apache-2.0
"""DOC001 to DOC009: MPS daemons and compute modes in prologs and epilogs.

A script is read, not run: programs of other files that it calls are not followed.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from slurm_colloc.site.doctor.facts import Blank, Finder, Script, Seen, Site, Unread

# Run on the node as root or the job's user, and so in reach of a GPU.
ON_NODES = ("Prolog", "Epilog", "TaskProlog", "TaskEpilog")
_DEFAULT_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's default
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_DEVICES = r"(?:CUDA_VISIBLE_DEVICES|SLURM_JOB_GPUS|SLURM_STEP_GPUS|GPU_DEVICE_ORDINAL|NVIDIA_VISIBLE_DEVICES)"
_MODE = re.compile(r"""nvidia-smi\b.*?\s(?:-c|--compute-mode)(?:[=\s]+|(?=[0-9]))["']?([^\s"']+)""")
_ONE_GPU = re.compile(r"nvidia-smi\b.*\s(?:-i|--id)[=\s0-9]")
_OF_DEVICES = re.compile(rf"\$\{{?{_DEVICES}\b")
_QUIT = re.compile(r"\bquit\b.*nvidia-cuda-mps-control|nvidia-cuda-mps-control.*\bquit\b")
_START = re.compile(r"nvidia-cuda-mps-control\b[^|]*\s-(?:d|f)\b")
# The project's own program, and how a TaskProlog passes on what it says.
_OURS = re.compile(r"\bcolloc-mps\b.*\sstart\b")
_OURS_ENDED = re.compile(r"\bcolloc-mps\b.*\sstop\b")
_TOLD = re.compile(r"\bcolloc-mps\b.*\stask\b|slurm_colloc/task_prolog\b")
_SOUGHT = re.compile(r"(?:\bps\b.*\|.*grep.*|\bpgrep\b.*|\bpidof\b.*|\bpkill\b.*|\bkillall\b.*)nvidia-cuda-mps")
_MANY_USERS = re.compile(r"nvidia-cuda-mps-control\b.*\s-multiuser-server\b")
_ASSIGNED = re.compile(r"""(?:^|\s)([A-Za-z_]\w*)=("[^"]*"|'[^']*'|\S*)""")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
# The scripts around colloc-mps wait for it so long.
_MOST_S = 17
_JOB = re.compile(r"\$\{?SLURM_JOB_?ID\b")
_SPLIT = re.compile(r"\n|;|&&|\|\|")
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
_DEPTH = 5
# The second is of 26.05 and later. Either gives a job these two folders by default (job_container.conf, Dirs).
_NAMESPACES = ("JobContainerType", "NamespaceType")
_OWN_FOLDERS = ("/tmp/", "/dev/shm/")  # noqa: S108


class Command(NamedTuple):
    """A pipeline of a script, and the pipe directory that was set before it or in it; empty for none."""

    text: str
    pipe: str


def commands(script: Script) -> list[Command]:
    """Return the pipelines of a shell script, without comments, in the order of its lines; none of an unread one."""
    values: dict[str, str] = {}
    pipelines = []
    text = "" if isinstance(script.text, Unread) else script.text
    for part in _SPLIT.split(_COMMENT.sub("", text).replace("\\\n", " ")):
        for name, value in _ASSIGNED.findall(part):
            values[name] = value.strip("\"'")
        if part.strip():
            pipe = values.get(_PIPE, "")
            for _ in range(_DEPTH):
                pipe = _VARIABLE.sub(lambda match: values.get(match[1], match[0]), pipe)
            pipelines.append(Command(part.strip(), pipe))
    return pipelines


def _in_scripts(wrong: Callable[[Command], bool]) -> Finder:
    """Return a check that looks at each command of each script."""

    def find(site: Site) -> Iterator[Seen | Blank]:
        for script in site.scripts:
            if lines := [command.text for command in commands(script) if wrong(command)]:
                yield Seen(name_of(script), "; ".join(f"'{line}'" for line in lines))
        yield from unread(site.scripts)

    return find


def unread(scripts: Iterable[Script]) -> Iterator[Blank]:
    """Yield those of the scripts that could not be read."""
    return (Blank(name_of(script), script.text.why) for script in scripts if isinstance(script.text, Unread))


def name_of(script: Script) -> str:
    return f"{script.setting} '{script.path}'"


def _mode_of_devices(command: Command) -> bool:
    match = _MODE.search(command.text)
    return bool(match and _OF_DEVICES.search(match[1]))


def _mode_everywhere(command: Command) -> bool:
    return bool(_MODE.search(command.text)) and not (_mode_of_devices(command) or _ONE_GPU.search(command.text))


def _quits_default(command: Command) -> bool:
    return bool(_QUIT.search(command.text)) and not command.pipe


def takes(command: Command) -> bool:
    """Return whether a command leaves something behind on a GPU: a daemon, or a compute mode."""
    return any(pattern.search(command.text) for pattern in (_START, _OURS, _MODE))


def gives_back(command: Command) -> bool:
    """Return whether a command takes such a thing away."""
    return any(pattern.search(command.text) for pattern in (_QUIT, _OURS_ENDED, _MODE))


def _hidden(site: Site) -> Iterator[Seen]:
    kind = next(
        (site.settings[key] for key in _NAMESPACES if site.settings.get(key, "").partition("/")[2] == "tmpfs"), ""
    )
    for script, pipe in _started(site) if kind else ():
        place = pipe or _DEFAULT_PIPE
        if script.setting == "Prolog" and place.startswith(_OWN_FOLDERS):
            yield Seen(name_of(script), f"{_PIPE} is '{place}', and {kind} gives each job a folder of its own there")


def _impatient(site: Site) -> Iterator[Seen]:
    match = re.match(r"\d+", site.settings.get("PrologEpilogTimeout", ""))
    if match and int(match[0]) < _MOST_S and "mps" in site.shared():
        yield Seen(
            "PrologEpilogTimeout of slurm.conf", f"it is {match[0]} s; a daemon that hangs is waited for {_MOST_S} s"
        )


def _started(site: Site) -> list[tuple[Script, str]]:
    """Return the scripts that start a daemon, each with its pipe directory."""
    return [
        (script, command.pipe) for script in site.scripts for command in commands(script) if _START.search(command.text)
    ]


def _pipe_stays(site: Site) -> Iterator[Seen | Blank]:
    of_tasks = [script for script in site.scripts if script.setting == "TaskProlog"]
    texts = [script.text for script in of_tasks if isinstance(script.text, str)]
    if any(_PIPE in text or _TOLD.search(text) for text in texts):
        return
    yield from unread(site.scripts)
    if len(texts) < len(of_tasks):
        return
    for script in _ours(site):
        yield Seen(name_of(script), "colloc-mps starts daemons, and no TaskProlog calls 'colloc-mps task'")
    gap = "TaskProlog does not name it" if of_tasks else "there is no TaskProlog"
    for script, pipe in _started(site):
        if script.setting == "Prolog" and pipe not in ("", _DEFAULT_PIPE):
            yield Seen(name_of(script), f"{_PIPE} is '{pipe}' in the prolog alone: {gap}")


def _one_for_each_job(site: Site) -> Iterator[Seen | Blank]:
    if "mps" not in site.shared():
        return
    started = _started(site)
    for script, pipe in started:
        if _JOB.search(pipe):
            yield Seen(name_of(script), f"gres/mps is configured, and the daemon's pipe directory is '{pipe}'")
    hidden = list(unread(site.scripts))
    yield from hidden
    if not (started or hidden or _ours(site)):
        nodes = ",".join(node.name for node in site.nodes if node.quantity("mps"))
        why = "no script that slurm.conf names starts an MPS daemon; the check cannot see whether a service does"
        yield Blank(nodes, why)


def _ours(site: Site) -> list[Script]:
    """Return the scripts that call the project's own program: one daemon for each GPU and user."""
    return [script for script in site.scripts if any(_OURS.search(command.text) for command in commands(script))]


FINDERS: dict[str, Finder] = {
    "DOC001": _in_scripts(_mode_of_devices),
    "DOC002": _in_scripts(_mode_everywhere),
    "DOC003": _in_scripts(_quits_default),
    "DOC004": _pipe_stays,
    "DOC005": _in_scripts(lambda command: bool(_SOUGHT.search(command.text))),
    "DOC006": _one_for_each_job,
    "DOC007": _in_scripts(lambda command: bool(_MANY_USERS.search(command.text))),
    "DOC008": _impatient,
    "DOC009": _hidden,
}
