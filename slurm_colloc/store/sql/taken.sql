-- The runs in a sacct text; ``reason`` says why a row is not taken.
WITH rows_in AS ({rows}),
timed AS (
    SELECT r.*, {times}, time_s("Eligible", NULL) AS eligible_at, duration_s("Suspended") AS suspended_s,
           coalesce(TRY_CAST("ElapsedRaw" AS UINTEGER), if("Elapsed" != '', duration_s("Elapsed"), NULL)) AS elapsed_s
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
           -- Of a resized job 22.05 gives the last run the start of the first, and its own as Submit and Eligible.
           if(eligible_at = submit_s AND submit_s BETWEEN start_s AND coalesce(end_s, start_s + elapsed_s, $now),
              submit_s, start_s) AS start_s,
           end_s,
           -- Elapsed rules: some export it alone.
           CASE WHEN elapsed_s <= end_s - start_s THEN end_s - start_s - elapsed_s
                WHEN end_s IS NULL AND $written < start_s + elapsed_s + suspended_s
                THEN greatest(0, $written::BIGINT - start_s - elapsed_s)
                ELSE suspended_s END AS suspended_s,
           coalesce("NodeList", '') AS node_list, coalesce("JobName", '') AS job_name,
           coalesce("WorkDir", '') AS work_dir,
           -- What parse_tres_gres would find nothing in, and nothing wrong with. Energy makes each text another, and says
           -- nothing of what was given.
           CASE WHEN NOT contains("AllocTRES", 'gres/')
                     AND regexp_full_match("AllocTRES", '(?:[^=,0-9][^=,]*=[^=,]*(?:,|$))*') THEN ''
                WHEN contains("AllocTRES", 'energy=') THEN regexp_replace("AllocTRES", '(^|,)energy=[^,]*', '')
                ELSE "AllocTRES" END AS gres,
           -- Others are UNLIMITED and Partition_Limit.
           nullif(TRY_CAST(TRY_CAST("TimelimitRaw" AS UINTEGER) AS INTEGER), 0) AS limit_min,
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
