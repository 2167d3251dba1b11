-- What runs did on each node besides. A whole interval's figures count for the part of it that lies inside.
SELECT run{hour}, node, sum(if(cpu_s IS NULL, 0, us))::BIGINT AS cpu_us,
       sum(round(cpu_s::DOUBLE * us / nullif(interval_s, 0)))::BIGINT AS cpu_used_us,
       sum(round(read_mib::DOUBLE * us / nullif(interval_s, 0)))::BIGINT AS read_umib,
       sum(round(written_mib::DOUBLE * us / nullif(interval_s, 0)))::BIGINT AS written_umib,
       max(if(inside, host_mem_mib, NULL)) AS host_mem_mib
FROM ({inside}) GROUP BY run{hour}, node HAVING sum(us) > 0
