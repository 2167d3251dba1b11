# SPDX-License-Identifier: Apache-2.0
"""Job runs from slurmctld's own memory, for a cluster without accounting.

It remembers a finished job for MinJobAge only, and of a requeued job only the last run. The job completion log
(jobcomp/filetxt) does not help there: its Tres has no gres where there is no slurmdbd.
"""

import re
from collections import Counter
from collections.abc import Collection
from datetime import tzinfo

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.usage_model import AllocationRow
from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.sources.sacct_client import Parsed, bounded, checked, parse_limit, parse_time, shown_id

# The keys come in a fixed order; JobName is the user's words and may hold "Key=value" too, so the order is the grammar.
# Each part takes the first place that fits and is not taken back: a later one leaves no more room for what follows, and
# trying all of them takes hours for a line of 64 KiB.
_FROM_USER = (
    r" UserId=(?P<user>[^(]{0,256}+)\(\d++\) GroupId=\S++ )"
    r"(?>.*? Account=(?P<account>\S*+) QOS=(?P<qos>\S*+) )(?>.*?(?<!\S)JobState=(?P<state>\S++) )"
    r"(?>.*? TimeLimit=(?P<limit>\S++) )(?>.*? SubmitTime=(?P<submit>\S++) )"
    r"(?>.*? StartTime=(?P<start>\S++) EndTime=(?P<end>\S++) )"
    r"(?>.*? Partition=(?P<partition>\S*+) )(?>.*? NodeList=(?P<nodes>\S*+) )"
    r"(?:.*?(?<!\S)JOB_GRES=(?P<gres>\S++))?"
)
_JOB = re.compile(
    r"JobId=(?P<raw>\d++) (?:ArrayJobId=(?P<array>\d++) ArrayTaskId=(?P<task>\S++) )?"
    rf"(?:HetJobId=(?P<het>\d++) HetJobOffset=(?P<offset>\d++) )?JobName=(?>(?P<name>.*?){_FROM_USER}"
)
# A name such as "x UserId=other(1) GroupId=..." makes a line with two readings; this is the other one.
_LONGER_NAME = re.compile(rf"(?>.*?{_FROM_USER}")
# Slurm itself prints more behind the name, 26.05 an id of the submission: it is read as part of the name.
_BEHIND_NAME = re.compile(r"(?: SLUID=s[0-9A-Z]{13})?(?: HetJobIdSet=\d[\d,-]*)?$")
_NEVER_RAN = ("PENDING", "CONFIGURING")


def parse_jobs(text: str, cluster: str, zone: tzinfo | None = None, known: Collection[str] | None = None) -> Parsed:
    """Parse the output of ``scontrol show job -d -o``.

    Args:
        text: one line for each job.
        cluster: the cluster's name, which the output does not give.
        zone: the zone of the times, which are local ones; None: this machine's.
        known: the raw ids of the jobs there are; None: any. A job's name may hold newlines, and a whole line of another
            job after one: then that job has two lines, or does not exist.
    """
    rows, rejected, rows_in = [], Counter[str](), 0
    lines = [line for line in text.split("\n") if line.strip()]
    times = Counter(match["raw"] for line in lines if (match := _JOB.match(line)))
    for line in lines:
        if line.startswith("No jobs in the system"):
            continue
        rows_in += 1
        match = _JOB.match(line)
        try:
            if match is None:
                raise InputError("not a line of 'scontrol show job -d -o'")
            if _LONGER_NAME.match(line, match.end("name") + 1):
                raise InputError("a name in the line imitates its keys")
            if known is not None and (match["raw"] not in known or times[match["raw"]] > 1):
                raise InputError("the line is of a job that does not exist or has another line; a name may imitate one")
            rows.append(_row(match, cluster, zone))
        except InputError as error:
            rejected[str(error)] += 1
    return Parsed(tuple(rows), rows_in, 0, bounded(rejected))


def _row(match: re.Match[str], cluster: str, zone: tzinfo | None) -> AllocationRow:
    state = match["state"]
    # EndTime of a job that has not ended is the time at which its limit will be reached.
    ended = state not in ("RUNNING", "SUSPENDED", "COMPLETING", *_NEVER_RAN)
    return checked(
        AllocationRow(
            cluster=cluster,
            job_id=shown_id(match),
            job_id_raw=match["raw"],
            user=match["user"],
            account=_known(match["account"]),
            partition=match["partition"],
            qos=_known(match["qos"]),
            state=state,
            submit_s=parse_time(match["submit"], zone),
            start_s=None if state in _NEVER_RAN else parse_time(match["start"], zone),
            end_s=parse_time(match["end"], zone) if ended else None,
            suspended_s=0,
            gres=() if state in _NEVER_RAN else parse_gres(match["gres"] or ""),
            node_list=match["nodes"],
            job_name=_BEHIND_NAME.sub("", match["name"], count=1),
            limit_min=parse_limit(match["limit"]),
        )
    )


def _known(text: str) -> str:
    return "" if text in ("(null)", "N/A") else text
