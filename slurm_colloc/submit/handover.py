# SPDX-License-Identifier: Apache-2.0
"""Calls sbatch, once for each submission.

csub becomes sbatch by exec where it has nothing to decide about. A job with a GPU is submitted beside csub, which
passes on what sbatch prints and learns the job's id for the decision; csub never repeats it, and sbatch dies with csub.
Only a definite refusal, where sbatch ends with an error and no job exists, lets the caller submit the original.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.process import Running, read_all, spawn
from slurm_colloc.slurm.parse import parse_submitted
from slurm_colloc.submit.decision import record
from slurm_colloc.submit.invocation import CALLED, STDERR, STDOUT, Call, say, tell, write_all
from slurm_colloc.submit.own_options import is_exclusive, with_policy_variable
from slurm_colloc.submit.plan import Plan
from slurm_colloc.submit.render import keep_script, remove_script, write_script
from slurm_colloc.submit.show import said_of

# Of a script: longer than Slurm takes with csub's lines, or out of reach of a site's sbatch that runs elsewhere.
_TOO_LONG = "Pathname of a file, directory or other parameter too long"
_NOT_THERE = r"Unable to open file [^\n]*/csub-[0-9a-f]{16}/"
# Exit statuses of timeout, of a shell that started nothing, and of signals; 255 is sbatch's of a wrong value.
_NOT_ITS_OWN = range(124, 255)


def with_body(plan: Plan) -> tuple[tuple[str, ...], str]:
    """Return sbatch's arguments with the rendered script, and its path where it is to be removed; else ``""``."""
    argv, index = plan.sbatch_argv, plan.script_at
    if plan.body is None or index is None:
        return argv, ""
    name = os.path.basename(argv[index])
    lasting = keep_script(name, plan.body)
    path = lasting or write_script(name, plan.body)
    return (*argv[:index], path, *argv[index + 1 :]), "" if lasting else path


def submit(
    argv: Sequence[str],
    environ: Mapping[str, str],
    stdin: int | None,
    submitted: Callable[[str, str], None],
    *,
    silent: bool = False,
) -> tuple[int, str]:
    """Run sbatch to its end, passing its output on, and call ``submitted`` with job id and cluster once known.

    Returned are its status as a shell has it, and its words where it definitely made no job: those were not printed.
    Once sbatch runs a job may exist, so nothing is raised any more, lest somebody catch it and submit again.
    ``silent`` is of ``is_refusal``.

    Raises:
        ProcessError: sbatch cannot be started; nothing was submitted.
    """
    running = spawn(argv, environ, stdin, CALLED, tied=True)
    relay = _Relay(submitted)
    with _passing_on_signals(running.pid):
        try:
            relay.run(running)
        except BaseException as error:  # noqa: BLE001 - see above
            write_all(STDERR, f"csub: internal error, please report it: {error!r}\n".encode(errors="replace"))
            _drain(running)
        status = os.waitstatus_to_exitcode(os.waitpid(running.pid, 0)[1])
    words = relay.held.decode(errors="surrogateescape")
    refused = status > 0 and status not in _NOT_ITS_OWN and not relay.may_have_submitted
    if refused:
        from slurm_colloc.slurm.refusals import is_refusal  # few submissions are refused

        refused = is_refusal(words, silent=silent)
    if not refused:
        write_all(STDERR, bytes(relay.held))
    return status if status >= 0 else 128 - status, words if refused else ""


def is_of_script(refused: str) -> bool:
    """Return whether what sbatch said of a refusal is of the script, which the user's own may not meet with."""
    return _TOO_LONG in refused or re.search(_NOT_THERE, refused) is not None


def _drain(running: Running) -> None:
    """Pass on what is still to come, one pipe after the other: less exact, with nothing left that can go wrong."""
    for descriptor, source in ((STDOUT, running.stdout), (STDERR, running.stderr)):
        while content := os.read(source, 65536):
            write_all(descriptor, content)


@contextmanager
def _passing_on_signals(pid: int) -> Iterator[None]:
    """Let sbatch have what would end it, while csub stays to pass on how it ended."""

    def pass_on(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    # Signals that csub was started to ignore (nohup, "&" in a script) sbatch ignores too.
    previous = {number: signal.getsignal(number) for number in numbers}
    heard = [number for number in numbers if previous[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, previous[number])


class _Relay:
    """Pass output on as it comes; hold back standard error until it is known whether a job exists."""

    def __init__(self, submitted: Callable[[str, str], None]) -> None:
        self.job_id = ""
        self.cluster = ""
        self.held = bytearray()
        self._seen = bytearray()
        self._submitted = submitted
        self._said_number = False

    @property
    def may_have_submitted(self) -> bool:
        """Return whether a job's id may have been told, by a wrapper in words of its own: sbatch tells none else."""
        return self._said_number or b"Submitted batch job" in self.held

    def run(self, running: Running) -> None:
        """Read what sbatch says until it has ended: processes that it or a site's wrapper left behind may go on."""
        # sbatch's warnings come before the job's id, which 2>&1 | tail -1 takes for the last line.
        read_all(running, {running.stderr: self._from_stderr, running.stdout: self._from_stdout})

    def _from_stdout(self, content: bytes) -> None:
        if self.job_id:
            write_all(STDOUT, content)
            return
        self._said_number = self._said_number or re.search(rb"\d", content) is not None
        lines, newline, begun = (self._seen + content).rpartition(b"\n")
        submitted = parse_submitted(lines) if newline else None
        self._seen = begun
        if submitted:
            self.job_id, self.cluster = submitted
            write_all(STDERR, bytes(self.held))
            self.held.clear()
        write_all(STDOUT, content)
        if submitted:
            self._submitted(self.job_id, self.cluster)

    def _from_stderr(self, content: bytes) -> None:
        if self.job_id:
            write_all(STDERR, content)
        else:
            self.held += content


def handed_on(environ: Mapping[str, str], plan: Plan, config: SiteConfig) -> dict[str, str]:
    """Return sbatch's environment: a pack from within a requeued job must not pass for one that goes on itself."""
    # Not a variable is another where nobody judges csub's decisions, or it has taken none.
    judged = config.policy != "shadow" and any(partition.job_submit != "off" for partition in config.partition)
    handed = with_policy_variable(environ, plan.colloc) if judged or is_exclusive(plan.colloc) else dict(environ)
    if plan.packed is not None:
        handed.pop("SLURM_RESTART_COUNT", None)
    return handed


def hand_over(
    plan: Plan,
    argv: tuple[str, ...],
    script: str,
    source: int | None,
    call: Call,
    config: SiteConfig,
    then: Callable[[str], None] = lambda job_id: None,
) -> tuple[int, str]:
    """Run sbatch once and return its status, and a reason where nothing was submitted and plain sbatch is to follow.

    ``then`` is called with the job's id as soon as there is one; a rendered ``script`` is removed at the end.
    """

    def submitted(job_id: str, cluster: str) -> None:
        then(job_id)
        shadow = config.policy == "shadow"
        record(plan, job_id, cluster or config.cluster, config, partial(tell, call) if shadow else say)
        tell(call, *said_of(plan, call, job_id))

    try:
        silent = {"quiet", "wait"} <= set(plan.part.request.options)
        environ = handed_on(call.environ, plan, config)
        status, refused = submit([call.sbatch, *argv], environ, source, submitted, silent=silent)
    except BaseException as error:  # noqa: BLE001 - sbatch was not started
        return 1, str(error)
    finally:
        if script:
            remove_script(script)
    has_original = plan.packed is None or plan.packed.has_original
    # The same request is refused once more, unless it was csub's text.
    is_other = not plan.as_asked or (plan.body is not None and is_of_script(refused))
    if refused and is_other and has_original:
        from slurm_colloc.slurm.refusals import verdict  # few submissions are refused

        changed = "the script with csub's lines" if plan.as_asked else plan.part.placement.given
        return status, f"Slurm refused {'the pack' if plan.packed else changed} ({verdict(refused)})"
    write_all(STDERR, refused.encode(errors="surrogateescape"))
    return status, ""
