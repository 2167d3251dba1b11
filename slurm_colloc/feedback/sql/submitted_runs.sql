-- The runs in a sacct text beside the command line and the folder of their submission.
SELECT t.rowid, t.job_id_raw, t.job_id, t.cluster, t."user", t.state, t.start_s, t.end_s, t.gres, t.node_list,
       t.job_name, t.mean_gpu_util_pct, t.mean_gpu_mem_mib, coalesce(t.mean_method, ''),
       coalesce(l.line, ''), coalesce(l.folder, '')
FROM taken t LEFT JOIN (
    -- A job that ran several times was submitted once.
    SELECT "JobIDRaw" AS id, any_value("SubmitLine") AS line, any_value("WorkDir") AS folder
    FROM ({lines}) WHERE misfit IS NULL AND "SubmitLine" != '' GROUP BY ALL
    HAVING count(DISTINCT "SubmitLine") = 1
) l ON l.id = t.job_id_raw
ORDER BY t.start_s
