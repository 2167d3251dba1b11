# SPDX-License-Identifier: Apache-2.0
"""Job runs from slurmctld's job completion log (JobCompType=jobcomp/filetxt), for a site without a slurmdbd's history.

It has no suspensions. Its Tres is what the job asked for, not what it got: one that asked for gpu:1 is untyped, and in
22.05 one that gave up a node keeps its first size. Nothing in it tells Slurm's lines from those that a user may write
into the name of a job, with newlines around them: where users are not trusted, sacct is the source.
"""

import re
from collections import Counter
from datetime import tzinfo

from slurm_colloc.accounting.sources.sacct import Parsed, bounded, checked, parse_limit, parse_time, shown_id
from slurm_colloc.errors import InputError
from slurm_colloc.measured import AllocationRow
from slurm_colloc.slurm.gres import parse_tres_gres

# Name, WorkDir and WcKey are the user's words and may hold "Key=value" too, so the keys' order is the grammar. What
# stands behind each is taken where it first fits and is not taken back: a later place leaves no more room for the rest.
_FROM_WCKEY = (
    r" Cluster=(?P<cluster>\S*+) SubmitTime=(?P<submit>\S++) EligibleTime=\S++"
    r"(?: ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\d+))?(?: HetJobId=(?P<het>\d+) HetJobOffset=(?P<offset>\d+))?"
    r" DerivedExitCode=\S++ ExitCode=\S++ ?"
)
_FROM_FOLDER = (
    r" ReservationName=\S*+ Tres=(?P<tres>\S*+) Account=(?P<account>\S*+) QOS=(?P<qos>\S*+) WcKey=)"
    rf"(?P<wckey>.*?){_FROM_WCKEY}"
)
_FROM_NAME = (
    r" JobState=(?P<state>\S++) Partition=(?P<partition>\S*+) TimeLimit=(?P<limit>\S++) StartTime=(?P<start>\S++)"
    r" EndTime=(?P<end>\S++) NodeList=(?P<nodes>\S*+) NodeCnt=\d++ ProcCnt=\d++ WorkDir=)"
    rf"(?>(?P<folder>.*?){_FROM_FOLDER}"
)
_JOB = re.compile(
    r"JobId=(?P<raw>\d++) UserId=(?P<user>[^(]*+)\(\d++\) GroupId=[^(]*+\(\d++\) Name="
    rf"(?>(?P<name>.*?){_FROM_NAME}"
)
# Where a line can also be read with a longer name or folder, it has no one reading.
_LONGER_NAME, _LONGER_FOLDER = re.compile(rf"(?>.*?{_FROM_NAME}"), re.compile(rf"(?>.*?{_FROM_FOLDER}")


def parse_jobcomp(text: str, zone: tzinfo | None = None) -> Parsed:
    """Parse the file that JobCompLoc names.

    Args:
        text: one line for each run that ended.
        zone: of the times, which are local ones; None: this machine's.

    Raises:
        InputError: there are runs, and not one names a gres: GPUs are not tracked there, which is not 0 GPUs.
    """
    rows, rejected, rows_in = [], Counter[str](), 0
    for line in filter(str.strip, text.split("\n")):
        rows_in += 1
        try:
            rows.append(_row(line, zone))
        except InputError as error:
            rejected[str(error)] += 1
    ran = [row for row in rows if row.start_s is not None]
    if ran and not any(row.gres for row in ran):
        raise InputError(
            f"GPUs are not tracked in it: none of {len(ran)} runs has a gres in its Tres; slurmctld writes it only "
            "beside a slurmdbd, with AccountingStorageTRES=gres/gpu; without one run plain 'colloc ingest' every few "
            "minutes: it asks slurmctld"
        )
    return Parsed(tuple(rows), rows_in, 0, bounded(rejected))


def _row(line: str, zone: tzinfo | None) -> AllocationRow:
    match = _JOB.fullmatch(line)
    if match is None:
        raise InputError("not a line of jobcomp/filetxt")
    ends = ((_LONGER_NAME, match.end("name")), (_LONGER_FOLDER, match.end("folder")))
    if any(longer.fullmatch(line, end + 1) for longer, end in ends):
        raise InputError("a name in the line imitates its keys")
    if match["state"] == "RESIZING":
        raise InputError("the part of a run before its size changed: the line has no start")
    # Of one that never ran, Start is when it was cancelled and Tres what it would have got.
    ran = match["nodes"] != "(null)"
    return checked(
        AllocationRow(
            cluster=match["cluster"],
            job_id=shown_id(match),
            job_id_raw=match["raw"],
            user=match["user"],
            account=match["account"],
            partition=match["partition"],
            qos=match["qos"],
            # A run is written when it ends: one that then waits anew was requeued.
            state="REQUEUED" if match["state"] == "PENDING" else match["state"],
            submit_s=_time(match["submit"], zone),
            start_s=_time(match["start"], zone) if ran else None,
            end_s=_time(match["end"], zone),
            suspended_s=0,
            gres=parse_tres_gres(match["tres"]) if ran else (),
            node_list=match["nodes"] if ran else "",
            job_name=match["name"],
            limit_min=parse_limit(match["limit"]),
        )
    )


def _time(text: str, zone: tzinfo | None) -> int | None:
    return None if text.lower() == "unknown" else parse_time(text, zone)
