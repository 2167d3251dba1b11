# SPDX-License-Identifier: Apache-2.0
"""Job runs from slurmctld's job completion log (JobCompType=jobcomp/filetxt), for a cluster without a database."""

import re
from collections import Counter
from datetime import datetime, tzinfo

from slurm_colloc.accounting.sources.sacct import Parsed, parse_time
from slurm_colloc.errors import InputError
from slurm_colloc.model import AllocationRow
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.slurm.parse import parse_state

# The plugin writes its keys in a fixed order; Name and WorkDir are the user's words and may hold "Key=value" too, so
# the order is the grammar, not a split at blanks.
_LINE = re.compile(
    r"JobId=(?P<job_id>\d+) UserId=(?P<user>[^(]*)\(\d+\) GroupId=\S* Name=(?P<name>.*) JobState=(?P<state>[A-Z_]+)"
    r" Partition=(?P<partition>\S*) TimeLimit=\S* StartTime=(?P<start>\S+) EndTime=(?P<end>\S+)"
    r" NodeList=(?P<nodes>\S*) NodeCnt=.* Tres=(?P<tres>\S*) Account=(?P<account>\S*) QOS=(?P<qos>\S*) WcKey=\S*"
    r" Cluster=(?P<cluster>\S*) SubmitTime=(?P<submit>\S+) "
)


def parse_jobcomp(text: str, cluster: str, zone: tzinfo | None) -> Parsed:
    """Parse the log.

    Args:
        text: the log; a job name with a newline in it makes two lines, both of which are counted as rejected.
        cluster: the cluster's name, which the log itself may give as "unknown".
        zone: of the log's times, which are slurmctld's local ones; None: this machine's.
    """
    rows, rejected, rows_in = [], Counter[str](), 0
    for line in filter(str.strip, text.split("\n")):
        rows_in += 1
        match = _LINE.match(line)
        if match is None:
            rejected["not a line of jobcomp/filetxt"] += 1
            continue
        try:
            rows.append(_row(match, cluster, zone))
        except InputError as error:
            rejected[str(error)] += 1
    return Parsed(tuple(rows), rows_in, 0, rejected)


def _row(match: re.Match[str], cluster: str, zone: tzinfo | None) -> AllocationRow:
    local = zone or datetime.now().astimezone().tzinfo
    return AllocationRow(
        cluster=cluster or match["cluster"],
        job_id=match["job_id"],
        job_id_raw=match["job_id"],
        user=match["user"],
        account=match["account"],
        partition=match["partition"],
        qos=match["qos"],
        state=parse_state(match["state"]),
        submit_s=parse_time(match["submit"], local),
        start_s=parse_time(match["start"], local),
        end_s=parse_time(match["end"], local),
        suspended_s=0,
        gres=parse_tres_gres(match["tres"]),
        node_list=match["nodes"],
        job_name=match["name"],
    )
