# SPDX-License-Identifier: Apache-2.0
"""How jobs ended and what they truly had, as sacct and scontrol tell it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from slurm_colloc.errors import InputError
from slurm_colloc.model import Gres
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.slurm.parse import FINAL_STATES, parse_records, parse_state
from slurm_colloc.units import whole

_SACCT_FIELDS = "JobID,JobIDRaw,State,ExitCode,NodeList,AllocTRES"


class Ended(NamedTuple):
    """One job, or one task of an array: ``task`` is its number, None for a job of its own.

    ``status`` is its exit status, negative for the signal that ended it.
    """

    job_id: str
    raw_id: str
    task: int | None
    state: str
    status: int
    node: str
    gres: tuple[Gres, ...]

    @property
    def is_final(self) -> bool:
        """Return whether the job does not come back."""
        return self.state in FINAL_STATES


def sacct_question(job_id: str) -> tuple[str, ...]:
    """Return the command whose answer parse_sacct reads."""
    return ("sacct", "-X", "-n", "-P", "-j", job_id, "-o", _SACCT_FIELDS)


def scontrol_question(job_id: str) -> tuple[str, ...]:
    """Return the command whose answer parse_scontrol reads."""
    return ("scontrol", "show", "job", "-o", job_id)


def parse_sacct(text: str) -> tuple[Ended, ...]:
    """Return the rows of ``sacct_question``.

    Raises:
        InputError: a row outside its form.
    """
    return tuple(_row(line.split("|")) for line in text.splitlines() if line.strip())


def parse_scontrol(text: str) -> tuple[Ended, ...]:
    """Return the jobs in the answer to ``scontrol_question``; tasks of an array that wait together are one entry.

    Raises:
        InputError: a line outside its form.
    """
    return tuple(_rows_of_records(parse_records(text)))


def _rows_of_records(records: Iterable[dict[str, str]]) -> Iterator[Ended]:
    for record in records:
        try:
            raw_id, tasks = record["JobId"], record.get("ArrayTaskId", "")
            job_id = f"{record['ArrayJobId']}_{tasks}" if tasks else raw_id
            # 22.05 calls it TRES.
            tres = record.get("AllocTRES", record.get("TRES", ""))
            fields = [job_id, raw_id, record["JobState"], record["ExitCode"], record.get("NodeList", ""), tres]
        except KeyError as error:
            raise InputError(f"'scontrol show job -o' printed a line without {error}") from error
        yield _row(fields)


def _row(fields: list[str]) -> Ended:
    try:
        job_id, raw_id, state, code, node, tres = fields
        exit_status, _, signal = code.partition(":")
        # Of several tasks that still wait the number is no number: "12_[3-5]".
        task = job_id.partition("_")[2]
        return Ended(
            job_id=job_id,
            raw_id=raw_id,
            task=whole(task),
            state=parse_state(state),
            status=-int(signal) if int(signal or 0) else int(exit_status),
            node=node,
            gres=parse_tres_gres("" if tres == "(null)" else tres),
        )
    except ValueError as error:
        raise InputError(f"'{'|'.join(fields)}' is not a job as sacct and scontrol print it") from error
