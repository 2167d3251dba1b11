-- The runs in a sacct text; ``reason`` says why a row is not taken.
WITH rows_in AS ({rows}),
timed AS (
    SELECT r.*, {times}, {eligible} AS eligible_at, {suspended} AS suspended_s, {elapsed} AS elapsed_s
    FROM rows_in r{zones}
    WHERE misfit IS NOT NULL OR NOT contains("JobID", '.')
),
settled AS ({settled}),
named AS (
    SELECT coalesce("Cluster", '') AS cluster, "JobID" AS job_id,
           coalesce(nullif("JobIDRaw", ''), "JobID") AS job_id_raw,
           "User" AS "user", coalesce("Account", '') AS account, coalesce("Partition", '') AS "partition",
           coalesce("QOS", '') AS qos,
           CASE WHEN contains("State", ' ') OR ends_with("State", '+')
                THEN rtrim(split_part("State", ' ', 1), '+') ELSE "State" END AS state,
           if(Submit_other IS NULL, Submit_at, NULL) AS submit_s,
           -- Of a resized job 22.05 gives the last run the start of the first, and its own as Submit.
           CASE WHEN start_s IS NULL OR submit_s > end_s THEN start_s ELSE greatest(start_s, submit_s) END AS start_s,
           end_s, suspended_s,
           coalesce("NodeList", '') AS node_list, coalesce("JobName", '') AS job_name,
           coalesce("WorkDir", '') AS work_dir,
           -- Energy makes each text another, and says nothing of what was given.
           CASE WHEN NOT contains("AllocTRES", 'gres/') THEN ''
                WHEN contains("AllocTRES", 'energy=') THEN regexp_replace("AllocTRES", '(^|,)energy=[^,]*', '')
                ELSE "AllocTRES" END AS gres,
           -- Others are UNLIMITED and Partition_Limit.
           nullif(TRY_CAST(regexp_extract("TimelimitRaw", '^[0-9]{1,9}$') AS INTEGER), 0) AS limit_min,
           if(eligible_at BETWEEN submit_s AND start_s, eligible_at, NULL) AS eligible_s,
           NULL::DOUBLE AS mean_gpu_util_pct, NULL::BIGINT AS mean_gpu_mem_mib,
           NULL::INTEGER AS mean_gpus, NULL::VARCHAR AS mean_method,
           elapsed_s,
           CASE WHEN $written IS NULL THEN $now::DOUBLE
                WHEN end_s IS NOT NULL OR start_s IS NULL THEN $written::DOUBLE
                WHEN elapsed_s IS NOT NULL THEN least($written::DOUBLE, start_s + elapsed_s + suspended_s)
                END AS ingested_s,
           {comment} {reason} AS reason
    FROM settled
)
SELECT {columns}, reason, elapsed_s FROM named
