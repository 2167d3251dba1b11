# SPDX-License-Identifier: Apache-2.0
"""Estimator of jobs whose script starts a launcher, and whose work is told elsewhere: by earlier sessions of one key.

A key is what the launcher itself calls the work: a process, a rule, a folder of calls, an app. One session says nothing
of the next. The last ones do where all of them needed about as much.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from math import inf

from slurm_colloc.core.model import COMPLETED, Footprint, Reason, because
from slurm_colloc.estimate.calibration import SESSIONS
from slurm_colloc.estimate.content import shell_lines
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.exact import footprint_by, usable
from slurm_colloc.estimate.places import content_of
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.records import peak_mib
from slurm_colloc.estimate.signature import BY_SESSION

# The next of so many alike holds more than all of them once in eleven times, before the margin.
_LEAST, _SPREAD = 10, 1.1
# Each of these is an end after so long: a user ends a session, or its limit does. One who does so at once, to an array
# say, made a mistake, and all of its tasks held as little.
_ENDS_AFTER_S = {COMPLETED: 0.0, "TIMEOUT": 0.0, "CANCELLED": 600.0}
# A job is its name, its folder and what its script does, with a NUL between. An app of Open OnDemand starts any other
# launcher, a job of Snakemake none. Lines of a script that may choose what runs stand in the key.
_NAMES_WORK = {
    "submitit": r"(?s)\A([^\0]*)\0[^\0]*\0(.*) submitit\.core\._submit (\S+)\Z",
    # A task runs in a folder of its own beneath the one of its pipeline.
    "Nextflow": r"(?s)\A[^\0]*\0([^\0]*?)(?:/[0-9a-f]{2}/[0-9a-f]{30})?\0"
    r".*?\n#(?: NEXTFLOW TASK|## name): '?([\w:.-]+)",
    "": r"\A[^\0]*\0([^\0]*)\0(?:#![^\n]*\n)?\S+ -m snakemake --snakefile (\S{1,4096}) --target-jobs "
    r"'([\w-]{1,99}):[^'\n]{0,4096}' --allowed-rules '?\3'? -[^\n;&|]*\Z",
    # Its own name for each job says nothing of the work.
    "Dask": r"(?s)\A(?!dask-worker\0)([^\0]+)\0([^\0]*)\0(.*) \w+://\S+(?: --name \S+)?([^\n]*)\Z",
}
_NAMES_APP = r"\A([^\s\0]{0,999}\bsys/dashboard/[^\s\0]{1,999})\0"
# A workflow of Snakemake is another by these.
_CONFIGURES = r" --(?:config|configfiles?|directory) .*?(?= --|\n|\Z)"
# submitit leaves a call here until it knows the job's id: a pickle, of which the function stands before the arguments.
_CALL, _FUNCTION, _ARGUMENTS = r"[0-9a-f]{32}\.pkl", b"\x8c\x08function", b"\x8c\x04args"
_MOST_FILES, _MOST_CALLS, _MOST_BYTES = 10_000, 256, 1024 * 1024
# The calls of an array are left within so long, and those of another program at the same time, too.
_AT_ONCE_S = 30.0


def session_key(launcher: str, job_name: str, folder: str, text: bytes, told_apart: Sequence[str]) -> str:
    """Return what sessions of one work are known by; empty where the launcher does not name it.

    Args:
        launcher: the one that the script starts; empty for none that hides its work.
        job_name: the job's.
        folder: the one that it will run in.
        text: its script.
        told_apart: anything else that makes it another job.
    """
    script = text.decode(errors="replace")
    body = script if launcher == "Nextflow" else shell_lines(script)
    found = re.search(_NAMES_WORK.get(launcher, _NAMES_APP), f"{job_name}\0{folder}\0{body}")
    if not found:
        return ""
    function = _function_in(found[3]) if launcher == "submitit" else launcher or "rule"
    words = function, found.groups(), re.findall(_CONFIGURES, body), *told_apart
    return f"{BY_SESSION}{digest(repr(words))}.~~" if function else ""


def _function_in(folder: str) -> str:
    """Return a key of the function whose calls submitit has just put into a folder; empty for none, and for several."""
    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        files = list(islice(entries, _MOST_FILES + 1))
        calls = {entry.path: entry.stat().st_mtime for entry in files if re.fullmatch(_CALL, entry.name)}
        since_s = max(calls.values()) - _AT_ONCE_S
        newest = [path for path, left_s in calls.items() if left_s > since_s]
        if len(files) <= _MOST_FILES and len(newest) <= _MOST_CALLS:
            contents = (content_of(path, _MOST_BYTES)[0] for path in newest)
            ((function, end),) = {one.partition(_FUNCTION)[2].partition(_ARGUMENTS)[:2] for one in contents}
            return digest(function) if end else ""
    return ""


def from_sessions(question: Question) -> Footprint | Reason:
    """Return the footprint that the last sessions of a key support, or the reason why they support none."""
    ended = [
        run._replace(state=COMPLETED)
        for run in question.runs
        if (run.elapsed_s or 0.0) >= _ENDS_AFTER_S.get(run.state, inf)
    ]
    alike = usable(ended)
    newest = [] if isinstance(alike, Reason) else alike[-_LEAST:]
    peaks = sorted(map(peak_mib, newest))
    if len(newest) < _LEAST:
        return because("few-sessions", runs=len(newest), least=_LEAST)
    if peaks[-1] > _SPREAD * peaks[0]:
        return because("sessions-differ", runs=_LEAST, least_mib=peaks[0], most_mib=peaks[-1])
    reasons = [because("alike-sessions", runs=_LEAST, gpu_model=newest[-1].gpu_model)]
    return footprint_by(question, newest, SESSIONS, _LEAST, reasons, name=SESSIONS)
