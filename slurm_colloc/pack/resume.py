# SPDX-License-Identifier: Apache-2.0
"""A pack that came to its end before all its tasks were done: its missing tasks, and how it was submitted.

Its batch script, which Slurm removes with the job, and a list of who resumed it lie beside its ledgers.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import NamedTuple

from slurm_colloc.core.clock import tries
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.core.files import locked, private_folder, read_own, remove, write_atomic
from slurm_colloc.pack.ledger import ledger_folder, ledger_path, ledgers_of, missing, numbers_of, read_ledgers
from slurm_colloc.pack.spec import Spec, from_json, script_of, split_script
from slurm_colloc.slurm.options import scan, without
from slurm_colloc.submit.own_options import OWN_OPTIONS, option_table, parse_arguments

# About one call of csub or one place in the queue, not about the tasks.
_OF_THAT_CALL = frozenset(
    {"begin", "dependency", "hold", "kill-on-invalid-dep", "parsable", "quiet", "test-only", "verbose", "wait"}
)
_OWN_OF_THAT_CALL = frozenset({"dry-run", "explain", "format"})
# csub holds the lock while it submits.
_LOCK_TRIES = 30
_SCRIPT, _RESUMED, _LIMIT_BYTES = "sh", "resumed", 1024 * 1024 * 1024


def keep_script(cluster: str, job_id: str, content: bytes) -> None:
    """Keep a pack's batch script; all jobs of an array have one, under the array's id.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be written.
    """
    path = ledger_path(cluster, job_id, _SCRIPT)
    private_folder(os.path.dirname(path))
    write_atomic(path, content, durable=True)


def note_resumed(cluster: str, job_id: str, by: str) -> None:
    """Write down which job runs what is missing of a pack, for who holds ``resuming``.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be written.
    """
    path = ledger_path(cluster, job_id, _RESUMED)
    before = read_own(path, _LIMIT_BYTES) if os.path.lexists(path) else b""
    write_atomic(path, before + f"{by}\n".encode(), durable=True)


def forget_resumed(cluster: str, job_id: str) -> None:
    """Remove what says who resumed an earlier job of this id.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be removed.
    """
    remove(ledger_path(cluster, job_id, _RESUMED))


def _noted(cluster: str, job_id: str) -> list[str]:
    """Return the jobs that were submitted to run what is missing of a pack."""
    path = ledger_path(cluster, job_id, _RESUMED)
    words = read_own(path, _LIMIT_BYTES).split() if os.path.lexists(path) else []
    return [word.decode() for word in words if word.isdigit()]


def resumed_by(cluster: str, job_id: str) -> tuple[tuple[str, ...], str]:
    """Return the jobs that were to run what was missing of a pack, and of them in turn; and the last one that began.

    The tasks that the last one left are what is left of the pack; that is the pack itself where none began.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be read.
    """
    later_jobs: list[str] = []
    latest = ""
    following: str | None = job_id
    while following:
        latest = following
        noted = [job for job in _noted(cluster, latest) if job not in (job_id, *later_jobs)]
        later_jobs += noted
        following = next((job for job in reversed(noted) if _resumes(cluster, job, latest)), None)
    return tuple(later_jobs), latest


def _resumes(cluster: str, job_id: str, earlier: str) -> bool:
    """Return whether a job began that resumes the earlier one; Slurm may have given its id to another pack since."""
    return any(ledger.spec.resumes == earlier for ledger in read_ledgers(ledgers_of(cluster, job_id))[0])


@contextmanager
def beginning(cluster: str, job_id: str, earlier: str) -> Iterator[str]:
    """Note that a job begins which resumes an earlier pack, and give the job that did before it, "" for none.

    csub notes it, too, but not of a job whose id it never learned, and whose user may have submitted another since.
    Others are held off until the job's ledger is begun.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be noted.
    """
    with ExitStack() as held:
        path = f"{ledger_path(cluster, earlier)}.resuming"
        private_folder(os.path.dirname(path))
        for _ in tries(_LOCK_TRIES, 1.0):
            if held.enter_context(locked(path)):
                break
        noted = _noted(cluster, earlier)
        before = next((job for job in noted if job != job_id and _resumes(cluster, job, earlier)), "")
        if not before and job_id not in noted:
            note_resumed(cluster, earlier, job_id)
        yield before


class Earlier(NamedTuple):
    """A pack as its job left it.

    ``text`` is the user's script, or one that stands for the commands, ``folder`` where it ran. ``tasks`` are all that
    it had to run, ``left`` those that are not done. ``resumed_by`` are jobs that were to run them and have not begun.
    ``unreadable`` says what could not be used.
    """

    job_id: str
    spec: Spec
    text: bytes
    folder: str
    tasks: int
    left: tuple[int, ...]
    resumed_by: tuple[str, ...]
    unreadable: tuple[str, ...]


def read_earlier(cluster: str, job_id: str) -> Earlier:
    """Return what is known of a pack of the user who runs this.

    Args:
        cluster: the one that it ran on.
        job_id: as ``resuming`` gave it.

    Raises:
        InputError: it is no pack, or has not begun.
        StoreError: its ledgers or its script cannot be used.
    """
    ledgers, unreadable = read_ledgers(ledgers_of(cluster, job_id))
    if not ledgers:
        where = f"no ledger of it in '{ledger_folder()}'"
        reason = (
            unreadable[0] if unreadable else f"{where}: it is no pack of yours on cluster '{cluster}', or never began"
        )
        raise InputError(f"job {job_id} cannot be resumed: {reason}; submit it anew")
    spec, text = _submitted(cluster, job_id)
    return Earlier(
        job_id=job_id,
        spec=spec,
        text=text,
        folder=max(ledgers, key=lambda ledger: ledger.last_s).job.get("folder", ""),
        tasks=len(numbers_of(ledgers)),
        left=missing(ledgers),
        resumed_by=tuple(_noted(cluster, job_id)),
        unreadable=tuple(unreadable),
    )


def _submitted(cluster: str, job_id: str) -> tuple[Spec, bytes]:
    """Return a pack as it was submitted, and the user's script, or the one that stands for its commands."""
    try:
        head, line, script = split_script(read_own(ledger_path(cluster, job_id, _SCRIPT), _LIMIT_BYTES))
        spec = from_json(line)
    except (InputError, StoreError) as error:
        raise StoreError(
            f"job {job_id} cannot be resumed: csub's copy of its script is missing ({error}); submit it anew"
        ) from error
    if not spec.commands:
        return spec, script
    directives = (part for part in head.split(b"\n") if part.startswith((b"#SBATCH", b"#CSUB")))
    return spec, script_of(directives, (command.encode(errors="surrogateescape") for command in spec.commands))


@contextmanager
def resuming(cluster: str, job_id: str) -> Iterator[str]:
    """Give the pack to resume, which is the last one that began of those that resumed ``job_id``.

    Every other csub of this user is kept from resuming it meanwhile, for no task may run twice.

    Args:
        cluster: the one that it ran on.
        job_id: as csub said it; "4711_2", a job of an array, stands for the whole array.

    Raises:
        InputError: it is no id, or another csub is at it.
        StoreError: the file system knows no locks.
    """
    array_id = job_id.partition("_")[0]
    if not (array_id.isascii() and array_id.isdigit()):
        raise InputError(f"--resume='{job_id}' is no id of a job")
    latest = resumed_by(cluster, array_id)[1]
    # The reader of the ledgers will say so if there is nothing to resume.
    ledgers = ledgers_of(cluster, latest)
    with locked(f"{ledger_path(cluster, latest)}.resuming") if ledgers else nullcontext(True) as held:
        if not held or resumed_by(cluster, latest)[1] != latest:
            raise InputError(f"another csub is resuming job {latest} right now; 'squeue --me' shows what it submits")
        yield latest


def merged_options(
    earlier: Earlier, further: Sequence[str], config: SiteConfig
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options to submit a pack with again, and what stood behind them: a script, a file or a command.

    Args:
        earlier: the pack.
        further: options, which win over those it was submitted with.
        config: the site.

    Raises:
        UnsureError: options that this release, or the site, does not know any more.
    """
    table = option_table(config.slurm_release, config)
    words: Sequence[str] = earlier.spec.argv
    if earlier.spec.commands:
        end = scan(words[1:], table, OWN_OPTIONS).end + 1
        words, rest = words[1:end], tuple(words[end:])
        line = parse_arguments(words, config)
    else:
        line = parse_arguments(words, config)
        rest = line.sbatch_argv[line.end :]
    own_words = [option.word for option in line.own if option.name not in _OWN_OF_THAT_CALL]
    dropped = _OF_THAT_CALL | ({"chdir"} if earlier.folder else set())
    sbatch_words = without(line.sbatch_argv[: line.end], table, dropped)
    chdir = [f"--chdir={earlier.folder}"] if earlier.folder else []
    return (*own_words, *sbatch_words, *chdir, *further), rest
