# SPDX-License-Identifier: Apache-2.0
"""Hand a submission to sbatch: once.

An unchanged submission becomes sbatch by exec. A changed one runs beside csub, which passes on what sbatch prints and
learns the job's id from it; csub never kills it and never repeats it. Only a definite refusal, where sbatch ends with
an error and no job exists, lets the caller submit the original.
"""

import os
import re
import selectors
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

from slurm_colloc.errors import ProcessError
from slurm_colloc.process import spawn

_SUBMITTED = re.compile(rb"^(?:Submitted batch job )?(\d+)(?:;(\S+))?(?: on cluster (\S+))?\s*$", re.MULTILINE)
# What slurmctld says when it has judged the request and made no job. Time-outs and broken connections are not here:
# after those nobody knows whether a job exists.
_DEFINITE = (
    b"Requested node configuration is not available",
    b"Invalid generic resource (gres) specification",
    b"Invalid Trackable RESource (TRES) specification",
    b"Requested GRES option unsupported by configured SelectType plugin",
    b"Invalid account or account/partition combination specified",
    b"violates accounting/QOS policy",
    b"Requested partition configuration not available now",
    b"User's group not permitted to use this partition",
    b"Access/permission denied",
)


class Outcome(NamedTuple):
    """How sbatch ended; ``refused`` holds its words when it definitely made no job (they were not printed)."""

    status: int
    job_id: str
    cluster: str
    refused: bytes


def find_sbatch(configured: str, environ: Mapping[str, str], own: str) -> str:
    """Return the real sbatch: the configured one, else the first on PATH that is not csub itself.

    Raises:
        ProcessError: there is none.
    """
    if configured:
        return configured
    # Not only this very file: another checkout's csub behind the name sbatch would call us back for ever.
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        candidate = os.path.join(folder or ".", "sbatch")
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate) and not _is_csub(candidate, own):
            return candidate
    raise ProcessError("no sbatch on PATH but csub itself; is Slurm's client installed and its module loaded?")


def _is_csub(candidate: str, own: str) -> bool:
    real = os.path.realpath(candidate)
    return real == os.path.realpath(own) or os.path.basename(real) == "csub"


def stdin_descriptor(content: bytes) -> int:
    """Return a descriptor from which ``content`` can be read, as standard input for sbatch."""
    descriptor = os.memfd_create("csub-stdin", 0)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def submit(
    argv: Sequence[str], environ: Mapping[str, str], stdin: int | None, submitted: Callable[[str, str], None]
) -> Outcome:
    """Run sbatch to its end, passing its output on, and call ``submitted`` with job id and cluster once known.

    Raises:
        ProcessError: sbatch cannot be started; nothing was submitted.
    """
    # Ctrl-C reaches sbatch by itself; csub must stay to pass on how it ended. A handler, unlike SIG_IGN, is not
    # inherited.
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        running = spawn(argv, environ, stdin)
        assert running.stdout is not None
        assert running.stderr is not None
        relay = _Relay(submitted)
        relay.run(running.stdout, running.stderr)
        status = running.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
    refused = status != 0 and not relay.job_id and any(words in relay.held for words in _DEFINITE)
    if not refused:
        _write(sys.stderr.fileno(), bytes(relay.held))
    return Outcome(status, relay.job_id, relay.cluster, bytes(relay.held) if refused else b"")


class _Relay:
    """Pass output on as it comes; hold back standard error until it is known whether a job exists."""

    def __init__(self, submitted: Callable[[str, str], None]) -> None:
        self.job_id = ""
        self.cluster = ""
        self.held = bytearray()
        self._seen = bytearray()
        self._submitted = submitted

    def run(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ, self._from_stdout)
            selector.register(stderr, selectors.EVENT_READ, self._from_stderr)
            while selector.get_map():
                for key, _ in selector.select():
                    content = os.read(key.fd, 65536)
                    if content:
                        key.data(content)
                    else:
                        selector.unregister(key.fileobj)

    def _from_stdout(self, content: bytes) -> None:
        _write(sys.stdout.fileno(), content)
        if self.job_id:
            return
        self._seen += content
        whole = bytes(self._seen).rpartition(b"\n")[0]
        match = _SUBMITTED.search(whole)
        if match:
            self.job_id, self.cluster = match[1].decode(), (match[2] or match[3] or b"").decode()
            _write(sys.stderr.fileno(), bytes(self.held))
            self.held.clear()
            self._submitted(self.job_id, self.cluster)

    def _from_stderr(self, content: bytes) -> None:
        if self.job_id:
            _write(sys.stderr.fileno(), content)
        else:
            self.held += content


def _write(descriptor: int, content: bytes) -> None:
    """Write all of ``content``; a reader who went away changes nothing about the submission."""
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except BrokenPipeError:
        return
