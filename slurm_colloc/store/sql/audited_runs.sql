-- The columns of runs that a rule uses; a run that goes on behind the window's end runs there.
SELECT {columns}, job_id_raw || '@' || start_s AS run
FROM (SELECT * REPLACE (if(end_s > to_s, NULL, end_s) AS end_s, if(end_s > to_s, 'RUNNING', state) AS state)
      FROM usage)
{joins}
