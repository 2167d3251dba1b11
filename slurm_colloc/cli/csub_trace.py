# SPDX-License-Identifier: Apache-2.0
"""csub --trace: run the job's program here without a GPU, within bounds, and keep what its tensors would hold."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress

from slurm_colloc.clock import pause, ticking
from slurm_colloc.config import SiteConfig, user_data_folder
from slurm_colloc.errors import CollocError, UnansweredError
from slurm_colloc.files import read_bounded
from slurm_colloc.history.traces import keep_trace, parse_trace, read_traces
from slurm_colloc.process import leave_running, spawn_into
from slurm_colloc.slurm.options import CommandLine
from slurm_colloc.submit.own_options import own_option
from slurm_colloc.submit.plan import Plan
from slurm_colloc.submit.tracing import Program, find_program

_TRACER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runtime/for_tasks/csub_trace.py")
_LIMIT_BYTES = 16 * 1024
# A rung that stands on more than tensors.
_KNOWN = ("hint", "exact")
# The tracer ends itself; this is for one that cannot.
_GRACE_S = 2.0


def trace(plan: Plan, command_line: CommandLine, environ: Mapping[str, str], config: SiteConfig) -> str:
    """Trace the job of a plan and keep the result; return in words what came of it, empty where nothing is new.

    Whatever goes wrong is said, and the job is submitted as if nobody had asked.
    """
    signature = plan.parts[0].request.signature
    if why := _needless(plan):
        return f"not traced: {why}"
    if read_traces(user_data_folder(), [signature]):
        return ""
    python = own_option("trace-python", command_line, None) or ""
    found = find_program(
        plan.script.decode(errors="surrogateescape"), plan.parts[0].request.script_args, environ, python
    )
    if isinstance(found, str):
        return f"not traced: {found}"
    try:
        traced = parse_trace(_run(found, plan.parts[0].request.folder, environ, config))
        keep_trace(user_data_folder(), signature, traced)
    except CollocError as error:
        return f"not traced: {error}"
    return f"traced {traced.what}: {traced.peak_mib:.0f} MiB of tensors (torch {traced.torch})"


def _needless(plan: Plan) -> str:
    if plan.packed or len(plan.parts) > 1:
        return "it is a pack, or a job of several components"
    request, footprint, _ = plan.parts[0]
    if request.gpu_count != 1:
        return f"it asks for {request.gpu_count or 'no'} GPUs"
    if footprint.rung in _KNOWN:
        return f"its footprint is known better ({footprint.rung})"
    if any(name == "export" for name, _ in request.origins):
        return "--export gives it another environment than this one"
    if not request.sh_like and plan.script.startswith(b"#!"):
        return f"its script is of '{request.interpreter}', not of a shell"
    return ""


def _run(program: Program, job_folder: str, environ: Mapping[str, str], config: SiteConfig) -> bytes:
    """Run the tracer in the Python of the user and return what it wrote; its words, and the program's, are lost.

    Raises:
        CollocError: it cannot be started, or did not end in time.
    """
    seconds = int(config.trace.timeout_s)
    folder = tempfile.mkdtemp(prefix="csub-trace-")
    try:
        out = os.path.join(folder, "traced.json")
        # A CUDA device must not be touched even where the login node has one; nobody's experiment shall be logged.
        quiet = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "TMPDIR": folder}
        quiet |= {"PYTHONDONTWRITEBYTECODE": "1", "TQDM_DISABLE": "1"}
        limits = ["--seconds", str(seconds), "--memory-mib", str(config.trace.memory_mib)]
        place = ["--folder", job_folder]
        argv = [program.python, "-W", "ignore", _TRACER, "--out", out, *limits, *place, "--", *program.argv]
        _run_bounded(argv, {**environ, **program.environ, **quiet}, seconds + _GRACE_S)
        return read_bounded(out, _LIMIT_BYTES)
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def _run_bounded(argv: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> None:
    """Run a program, silent and reading nothing, and end it and its helpers at the latest after ``timeout_s``.

    Raises:
        ProcessError: it cannot be started.
        UnansweredError: it had to be ended.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        pid = spawn_into(argv, environment, nowhere)
    finally:
        os.close(nowhere)
    ended = False
    try:
        until = ticking() + timeout_s
        while not ended and ticking() < until:
            # Not reaped: its number must stay its own until its helpers were looked for.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            if not ended:
                pause(0.05)
    finally:
        leave_running(pid)
    if not ended:
        raise UnansweredError(f"'{argv[0]}' did not end within {timeout_s:g} s")
