-- For how many of its allocated GPU-hours a run's readings tell whether a kernel ran.
greatest(if(util_used IS NULL, 0, util_measured), if(sm_used IS NULL, 0, sm_measured))
