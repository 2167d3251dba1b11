-- Runs of jobs that csub decided on, for what a piece of a GPU did to them.
WITH placed_runs AS (
    FROM sized WHERE cluster = $cluster AND start_s IS NOT NULL AND end_s IS NOT NULL
)
SELECT "user", job_id_raw, signature,
       -- With --requeue it begins again, and what is known of the job is known of its first run.
       if(out_of_memory AND state IN ('FAILED', 'REQUEUED'), '{gpu_oom}', state),
       -- What Slurm gave is believed, where its accounting says it: not each tells slices, or shares.
       CASE WHEN whole THEN '{exclusive}' WHEN blocked > 0 THEN '{mig}'
            WHEN kind IN ('mps', 'shard') THEN kind WHEN devices = 0 THEN mode
            ELSE nullif(mode, '{exclusive}') END AS had,
       node_list, kind, end_s, greatest(0, end_s - start_s - suspended_s), submit_s, start_s, start_s = first_s,
       coalesce(arm, ''), coalesce(rule, ''),
       if(arm = '{placed}', mode != '{exclusive}', coalesce(would, '') != ''),
       gpus * greatest(0, end_s - start_s - suspended_s) / 3600
FROM ({decided_runs}) WHERE signature IS NOT NULL AND devices <= 1 AND had IS NOT NULL
