(
    FROM {runs} u SEMI JOIN decisions d
      ON d.cluster = u.cluster AND d."user" = u."user"
     AND d.job_id = if(contains(u.job_id, '_'), split_part(u.job_id, '_', 1), u.job_id_raw)
)
