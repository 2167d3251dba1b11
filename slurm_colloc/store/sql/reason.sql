-- Why a row of sacct text is not taken; NULL of one that is.
CASE WHEN "JobID" IN ('JobID', 'JobIDRaw') THEN if(coalesce({is_header}, false), '{header}', '{changed}')
     WHEN misfit IS NOT NULL THEN misfit
     WHEN "JobID" = '' THEN 'the row has no JobID'
     {times}
     WHEN suspended_s IS NULL THEN 'duration ''' || left("Suspended", 40) || ''' is not [days-]hours:minutes:seconds'
     WHEN twice THEN '{twice}'
     WHEN greatest(start_s, end_s) > $now + {future_s} THEN '{future}'
     WHEN end_s < start_s THEN 'the run ends before it starts'
     WHEN "AllocTRES"[1] BETWEEN '0' AND '9' THEN 'TRES by number, as in a dump of slurmdbd; export with sacct'
     WHEN NOT contains("AllocTRES", 'gres/')
         AND NOT regexp_full_match("AllocTRES", '(?:[^=,]+=[^=,]*(?:,|$))*')
         THEN 'AllocTRES is not of the form name=value,name=value'
END
