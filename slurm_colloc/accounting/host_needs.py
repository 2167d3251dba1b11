# SPDX-License-Identifier: Apache-2.0
"""What completed runs had and used of their node for each GPU, slice or share: what defaults of partitions rest on."""

from slurm_colloc.accounting.parquet import named
from slurm_colloc.accounting.store import Store
from slurm_colloc.audited import HostUse

_DAY_S = 86400.0
_SPAN_S = 30 * _DAY_S
# Of fewer runs, or of a run of which less was sampled, nothing is said.
_LEAST_RUNS, _LEAST_PART = 20, 0.6
_ASK = f"""
WITH ended AS (
    SELECT a.cluster, a.job_id_raw, a.start_s, a.end_s, a."partition", w.kind, w.devices, w.cpus, w.mem_given_mib
    FROM allocations a JOIN worths w ON w.text = a.gres AND w.place = if(a.gres IN (FROM placed), a.node_list, '')
    WHERE a.cluster = $cluster AND a.state = 'COMPLETED' AND a.start_s >= $since AND a.end_s > a.start_s
      AND w.devices > 0 AND w.nodes = 1 AND NOT contains(w.kind, '+')
),
used AS (
    SELECT e.job_id_raw, e.start_s, e.end_s, e."partition", e.kind, e.devices, e.cpus, e.mem_given_mib,
           max(h.host_mem_mib) AS host_mem_mib,
           quantile_disc(h.cpu_s / h.interval_s, 0.95) AS cores
    FROM hosts h JOIN ended e ON h.job_id = e.job_id_raw AND h.cluster = e.cluster
     AND h.at_s > e.start_s AND h.at_s - h.interval_s < e.end_s AND h.interval_s > 0
    GROUP BY ALL HAVING sum(h.interval_s) >= {_LEAST_PART} * (e.end_s - e.start_s)
)
SELECT "partition", kind, count(*) AS runs, quantile_cont(cpus / devices, 0.95) AS cpus_given,
       quantile_cont(used.cores / devices, 0.95) AS cores,
       quantile_cont(used.mem_given_mib / devices, 0.95) AS mem_given_mib,
       quantile_cont(used.host_mem_mib / devices, 0.95) AS host_mem_mib
FROM used WHERE cores IS NOT NULL AND host_mem_mib IS NOT NULL AND cpus > 0 AND mem_given_mib > 0
GROUP BY ALL HAVING count(*) >= {_LEAST_RUNS} ORDER BY ALL
"""


def host_use(store: Store, cluster: str, now_s: float) -> tuple[HostUse, ...]:
    """Return what runs of the last month that completed on one node used of it, where enough are sampled and kept.

    Raises:
        StoreError: the store cannot be read.
    """
    since_s = now_s - _SPAN_S
    with store.connect(since_s, now_s) as database:
        rows = named(database, _ASK, {"cluster": cluster, "since": since_s})
        return tuple(HostUse(**row) for row in rows)
