-- The sampled hours of jobs on GPUs and slices, and those of them of which the accounting has a run.
SELECT coalesce(sum(jobs_us), 0) / 3.6e9, (SELECT coalesce(sum(whole_us), 0) / 3.6e9 FROM unit_parts)
FROM device_parts
