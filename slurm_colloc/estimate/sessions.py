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

from slurm_colloc.core.model import COMPLETED, Footprint, Reason, because
from slurm_colloc.estimate.calibration import SESSIONS
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.exact import footprint_by, usable
from slurm_colloc.estimate.places import content_of
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.records import peak_mib
from slurm_colloc.estimate.signature import BY_SESSION

# The next of so many alike holds more than all of them once in eleven times, before the margin.
_LEAST, _SPREAD = 10, 1.1
# A user ends a session, or its limit does: that is its end as any other.
_ENDS = (COMPLETED, "CANCELLED", "TIMEOUT")
# The name of the work in a job's name, which is the first line here, its folder, the second, or its script. An app of
# Open OnDemand starts any other launcher, a job of Snakemake none.
_NAMES_WORK = {
    "submitit": r"(?s)\A([^\n]*)\n.*submitit\.core\._submit\s+(\S+)",
    "Nextflow": r"(?m)^#(?: NEXTFLOW TASK|## name): '?([\w:.-]+)",
    "": r"-m snakemake --snakefile (\S{1,4096}) --target-jobs '([\w-]{1,99}):[^'\n]{0,4096}' --allowed-rules '?\2'? -",
    "Dask": r"\A([^\n]+)\n([^\n]*)",
}
_NAMES_APP = r"\A(\S*\bsys/\S+)\n"
# submitit leaves a call here until it knows the job's id: a pickle, of which the function stands before the arguments.
_CALL, _FUNCTION, _ARGUMENTS = r"[0-9a-f]{32}\.pkl", b"\x8c\x08function", b"\x8c\x04args"
_MOST_FILES, _MOST_BYTES = 10_000, 1024 * 1024


def session_key(launcher: str, job_name: str, folder: str, text: bytes, told_apart: Sequence[str]) -> str:
    """Return what sessions of one work are known by; empty where the launcher does not name it.

    Args:
        launcher: the one that the script starts; empty for none that hides its work.
        job_name: the job's.
        folder: the one that it will run in.
        text: its script.
        told_apart: anything else that makes it another job.
    """
    words = f"{job_name}\n{folder}\n{text.decode(errors='replace')}"
    found = re.search(_NAMES_WORK.get(launcher, _NAMES_APP), words)
    if not found:
        return ""
    function = _function_in(found[2]) if launcher == "submitit" else launcher or "rule"
    return f"{BY_SESSION}{digest(repr((function, found.groups(), *told_apart)))}.~~" if function else ""


def _function_in(folder: str) -> str:
    """Return a key of the function whose call submitit has just put into a folder; empty where none is seen."""
    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        files = list(islice(entries, _MOST_FILES + 1))
        calls = [entry.path for entry in files if re.fullmatch(_CALL, entry.name)]
        content = content_of(max(calls, key=os.path.getmtime, default=""), _MOST_BYTES)[0]
        function, end, _ = content.partition(_FUNCTION)[2].partition(_ARGUMENTS)
        return digest(function) if end and len(files) <= _MOST_FILES else ""
    return ""


def from_sessions(question: Question) -> Footprint | Reason:
    """Return the footprint that the last sessions of a key support, or the reason why they support none."""
    ended = [run._replace(state=COMPLETED) for run in question.runs if run.state in _ENDS]
    alike = usable(ended)
    newest = [] if isinstance(alike, Reason) else alike[-_LEAST:]
    peaks = sorted(map(peak_mib, newest))
    if len(newest) < _LEAST:
        return because("few-sessions", runs=len(newest), least=_LEAST)
    if peaks[-1] > _SPREAD * peaks[0]:
        return because("sessions-differ", runs=_LEAST, least_mib=peaks[0], most_mib=peaks[-1])
    reasons = [because("alike-sessions", runs=_LEAST, gpu_model=newest[-1].gpu_model)]
    return footprint_by(question, newest, SESSIONS, _LEAST, reasons, name=SESSIONS)
