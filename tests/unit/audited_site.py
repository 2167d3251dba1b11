# SPDX-License-Identifier: Apache-2.0
"""A rule asked of a store that was filled as a site's is: runs by sacct's text, samples by the agent's rounds."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slurm_colloc.audit.rules import choose, entries, findings, question
from slurm_colloc.audit.timing import of_about
from slurm_colloc.core.audit_model import Finding
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_audit import Audit, AuditRule
from slurm_colloc.core.model import Decision
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.audited import answer, make_audited
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.doors import ingest
from tests.unit.made import HOUR, MPS_POOL, device, host, process, seen, site
from tests.unit.stored import sampled

# When the run begins, and how long it takes.
DAY = 24 * HOUR
# Of whole GPUs: 8 of them, 96 CPUs and 1 TiB on a node.
SITE = site(MPS_POOL._replace(gpus_per_node=8, cpus_per_node=96, mem_per_node_mib=1_048_576))
_RUN = {
    "JobIDRaw": "1",
    "JobID": "1",
    "Cluster": "c",
    "User": "ann",
    "Account": "lab",
    "Partition": "gpu",
    "QOS": "normal",
    "State": "COMPLETED",
    "Submit": str(DAY),
    "Start": str(DAY),
    "End": str(2 * DAY),
    "Suspended": "00:00:00",
    "TimelimitRaw": "1440",
    "AllocTRES": "billing=1,cpu=12,gres/gpu:h100=1,gres/gpu=1,mem=64G,node=1",
    "NodeList": "g1",
    "JobName": "train",
}


def tres(cpus: int, mem: str, gpus: int = 1, nodes: int = 1) -> str:
    return f"billing=1,cpu={cpus},gres/gpu:h100={gpus},gres/gpu={gpus},mem={mem},node={nodes}"


def sacct_text(*runs: dict[str, str]) -> bytes:
    """Return what sacct -P says of runs that differ from a day of one H100 like these."""
    rows = [{**_RUN, "JobIDRaw": str(at), "JobID": str(at), **fields} for at, fields in enumerate(runs, 1)]
    return "\n".join(["|".join(_RUN), *("|".join(row.values()) for row in rows), ""]).encode()


def day_of(job_id: str, cores: float, host_mem_mib: int, gpu_mem_mib: int = 3000) -> list[NodeSample]:
    """Return a day of one GPU's samples, each half an hour, with so much of the host."""
    hosts = [host(job_id, cpu_s=cores * 1800, host_mem_mib=host_mem_mib)]
    of_job, unit = [process(job_id, gpu_mem_used_mib=gpu_mem_mib)], device(gpu_mem_used_mib=gpu_mem_mib)
    return [seen(at_s, [unit], of_job, hosts=hosts, interval_s=1800.0) for at_s in range(DAY + 1800, 2 * DAY + 1, 1800)]


def found(
    folder: Path,
    code: str,
    text: bytes,
    rounds: Sequence[NodeSample] = (),
    decisions: Sequence[Decision] = (),
    config: SiteConfig | None = SITE,
    **settings: Any,
) -> list[Finding]:
    """Return what the rule, set like this, finds in the two days that begin with the run."""
    folder.mkdir(exist_ok=True)
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert ingest(folder / "store", folder / "runs", text, when, "--timezone", "UTC").status == 0
    store = Store(str(folder / "store"), config)
    sampled(store, rounds)
    store.write_decisions((one.user, one) for one in decisions)
    audit = Audit(rule=(AuditRule(code, **settings),))
    (entry,) = of_about(choose(entries(audit), [code]), "others")
    with store.connect(DAY, 3 * DAY) as database:
        aggregate(database, store, Window(DAY, 3 * DAY, 3 * DAY))
        make_audited(database, config)
        return findings(entry, answer(database, question(entry, 3 * DAY)), "")
