-- Why a row of sacct text is not taken; NULL of one that is.
coalesce(
CASE WHEN "JobID" IN ('JobID', 'JobIDRaw') THEN if(coalesce({is_header}, false), '{header}', '{changed}')
     WHEN misfit IS NOT NULL THEN misfit
     WHEN "JobID" = '' THEN 'the row has no JobID'
END,
why_no_time("Submit", Submit_at, '{of_local}'),
why_no_time("Start", Start_at, '{of_local}'),
why_no_time("End", End_at, '{of_local}'),
CASE WHEN suspended_s IS NULL THEN 'duration ''' || left("Suspended", 40) || ''' is not [days-]hours:minutes:seconds'
     WHEN twice THEN '{twice}'
     WHEN greatest(start_s, end_s) > $now + {future_s} THEN '{future}'
     WHEN end_s < start_s THEN 'the run ends before it starts'
     WHEN suspended_s > greatest(0, coalesce(end_s, $now) - start_s) AND (elapsed_s IS NULL OR elapsed_s > end_s - start_s)
         THEN 'the run was suspended for longer than it ran'
     WHEN end_s IS NULL AND start_s IS NOT NULL AND coalesce(elapsed_s > {longest_s}, "ElapsedRaw" != '')
         THEN 'ElapsedRaw ''' || left("ElapsedRaw", 40) || ''' is the length of no run'
END)
