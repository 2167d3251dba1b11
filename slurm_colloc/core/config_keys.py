# SPDX-License-Identifier: Apache-2.0
"""The meaning of each key of site.toml, for the reference and for errors."""

DOCUMENTATION: dict[str, str] = {
    "schema": "version of this file's form; 1",
    "cluster": "ClusterName of slurm.conf",
    "slurm_release": "Slurm's release, e.g. '22.05'; one newer than csub knows is read as the newest, an older one "
    "makes csub plain sbatch",
    "default_partition": "the partition of a job that names none",
    "default_mem": "DefMemPerCPU=... or DefMemPerNode=... of slurm.conf, for partitions without one of their own; "
    "empty: neither",
    "sbatch_options": "options that SPANK plugins add to sbatch: 'name' (a flag), 'name=' (needs a value), 'name=?'",
    "policy": "'auto' places jobs, 'shadow' records what it would have done and changes nothing, 'pack' packs what "
    "users ask to have packed and places nothing, 'off' is plain sbatch",
    "user_file": "'forbidden' has csub and colloc pass over a user's own site.toml, in ~/.config or $COLLOC_CONF; "
    "'allowed' does not. It counts in /etc/slurm_colloc/site.toml alone",
    "rollout": "[[rollout]] after [[rollout]], for whom another policy holds: the first that a job meets is in force, "
    "and policy where it meets none",
    "rollout.policy": "likewise",
    "rollout.users": "the job is of one of these users; empty: of any",
    "rollout.groups": "its user is in one of these groups",
    "rollout.accounts": "it goes to one of these accounts, the user's default one where it names none",
    "rollout.partitions": "it asks for one of these partitions, or for none and the default is one of them",
    "rollout.qos": "it asks for one of these QOS",
    "rollout.percent": "of the jobs that it is for, the policy is in force for so many, drawn by user, job and day; "
    "the others are recorded as under 'shadow', to compare with ('report --rollout')",
    "rollout.late_binding": "likewise, with 'auto'; empty: sharing.late_binding",
    "pool": "one [[pool]] for the nodes of one shape",
    "pool.name": "a name for people",
    "pool.nodes": "the nodes, in Slurm's bracket form",
    "pool.partitions": "partitions that contain these nodes",
    "pool.gpu_type": "gres type of the whole GPUs, e.g. 'h100'; empty when all GPUs are cut into slices",
    "pool.gpu_model": "the GPU's name as the driver gives it; evidence of past jobs is matched by it",
    "pool.gpus_per_node": "whole GPUs per node",
    "pool.gpu_mem_mib": "memory of one whole GPU in MiB; without it no share is placed here",
    "pool.sm_count": "streaming multiprocessors of one whole GPU; without it no job is placed here",
    "pool.mps_per_gpu": "gres/mps count per GPU (gres.conf), usually 100; 0: none",
    "pool.features": "features that each of its nodes has (ActiveFeatures): a job that asks for others, or by "
    "more than names and & or |, gets no piece here",
    "pool.shards_per_gpu": "gres/shard count per GPU (gres.conf); 0: none",
    "pool.cpus_per_node": "CPUs for jobs on one node; the policy offers no slice to who asks for more; 0: not known",
    "pool.mem_per_node_mib": "host memory, likewise",
    "pool.slice": "one [[pool.slice]] for each kind of MIG slice",
    "pool.slice.type": "gres type of the slice, in full, as slurmd -G prints it",
    "pool.slice.profile": "MIG profile, e.g. '1g.10gb'",
    "pool.slice.mem_mib": "usable memory of the slice in MiB",
    "pool.slice.sm_count": "streaming multiprocessors of the slice",
    "pool.slice.quantity": "slices of this kind per node",
    "partition": "one [[partition]] for each partition with GPUs, as 'scontrol show partition' has it",
    "partition.name": "its name",
    "partition.qos": "its QOS; empty: none",
    "partition.cpus_per_gpu": "DefCpuPerGPU, its own or slurm.conf's: given to shares in words, which would lose it",
    "partition.mem_per_gpu_mib": "DefMemPerGPU, likewise",
    "partition.default_mem": "DefMemPerCPU=... or DefMemPerNode=... of its own; empty: default_mem, the cluster's",
    "partition.default_time_min": "DefaultTime in minutes; without it max_time_min",
    "partition.max_time_min": "MaxTime in minutes; without it none",
    "partition.billing_weights": "TRESBillingWeights, by which csub says what a placed job's GPU counts in billing",
    "partition.pieces_in": "other partitions to which a job of this one may be moved for a piece of a GPU",
    "partition.restrictions": "whom and what it does not take, in scontrol's words, as 'AllowAccounts=lab,physics' and "
    "'MaxCPUsPerNode=4': no job is moved there that it would refuse or keep waiting for ever",
    "partition.suspends": "true where PreemptMode has SUSPEND or GANG: suspended jobs keep GPU memory, so no mps, no "
    "shard and no pack is placed there",
    "partition.mps_users": "whose jobs run beside each other on a GPU under gres/mps: 'one' user's (ExclusiveUser=YES: "
    "a node serves one user at a time), 'each' user's under a daemon of their own, which take turns, or 'all' users' "
    "under one daemon of root's, with nothing between them; empty: no gres/mps",
    "partition.job_submit": "what job_submit.lua does about jobs that ask for a whole GPU and need less: 'off', "
    "'shadow' (records it), 'advise', 'default' (moves them to a slice), 'enforce' (refuses them)",
    "partition.interactive_gres": "what salloc and srun --pty get there instead of one whole GPU, e.g. "
    "'gpu:h100_1g.10gb:1' or 'shard:1'; empty: as asked",
    "partition.interactive_names": "names of batch jobs that are interactive, too, e.g. 'spawner-jupyterhub'",
    "limits.enforced": "true when AccountingStorageEnforce has limits: csub then proposes nothing that breaks one",
    "sharing.order": "sharing modes in the order in which they are tried: 'mig', 'mps', 'shard'; a site that names "
    "'shard' accepts that jobs on shards are not isolated from each other",
    "sharing.mps_daemon": "who runs the MPS daemons of GPUs: 'prolog' (colloc-mps, by the scripts that "
    "'colloc site render -o FOLDER' writes), 'site' (the site's own way), or 'none': no gres/mps",
    "sharing.unbilled": "shares, 'mps' or 'shard', that are given although the cluster tracks or bills GPUs and not "
    "them: 'site init' then leaves them on, and to 'site check' that is no difference",
    "sharing.headroom_mib": "memory added to the estimate before a share is chosen",
    "sharing.max_slowdown": "how much slower than on a whole GPU a job on a slice or a share may be; few are slower. "
    "csub makes its time limit longer where it needs that, by as much at most",
    "sharing.protected_types": "GPU types whose jobs are never changed",
    "sharing.settle_s": "a run that is not over counts for the next job like it after so many seconds of samples and a "
    "tenth of its time limit, with GPU memory at rest and kernels running; 0: never",
    "sharing.ask_free": "false: a job gets the first piece that holds it, whatever is free, and nobody is asked",
    "sharing.late_binding": "whether a job that waits as asked, because nobody knew its need, is changed to ask for a "
    "piece once a run of the same job has shown it: 'off', 'shadow' (only recorded), 'slices' (MIG alone) or 'on'",
    "sharing.late_forms": "options of which 'colloc late --probe PARTITION' has shown to change a waiting job; for "
    "a Slurm release that csub does not know",
    "sharing.late_back": "whether such a job asks for a whole GPU again, once, where one is free and its piece is not: "
    "'single' (only on nodes with one GPU of its type: of several, one may be kept free for a larger job), 'any' or "
    "'off'; never on nodes that Slurm plans for a job",
    "sharing.rerun": "which jobs begin again with more where their piece has too little GPU memory: 'requeue' (those "
    "with --requeue), or 'allowed' (all without --no-requeue whose piece csub alone chose, if Slurm requeues jobs by "
    "default, JobRequeue=1); their users did not ask for a second run",
    "observe.agent": "true when 'colloc agent' runs on every GPU node; else jobs are sampled from inside",
    "observe.period_s": "seconds between two samples",
    "observe.gpu_reader": "'nvml', or on a test cluster 'simulated:FOLDER' with a <node>.json for each node",
    "observe.dcgm": "what to ask where NVML has no SM activity: 'http://host:port/path' of a dcgm-exporter, or 'dcgmi'",
    "observe.prometheus": "where the agent answers Prometheus, e.g. '127.0.0.1:9499', without a password: on "
    "another address the network sees job ids; empty: it does not",
    "observe.keep_raw_days": "for how long the store keeps every sample; then what each run used of a GPU in an hour",
    "observe.keep_job_days": "for how long it keeps that, at least as long",
    "paths.journal": "folder of a node's own journal, on its own disk; empty: below paths.state",
    "paths.state": "folder of journals, store and history; empty: the user's own data folder",
    "paths.decisions": "folder (mode 1777) where csub drops one file per submission; empty: the user's data folder",
    "paths.templates": "folder whose templates are taken before the shipped ones of the same name; keep what "
    "mps and shard include from exported.sbatch.j2, without which srun steps may take a whole GPU",
    "paths.sbatch": "the real sbatch; empty: the first on PATH that is not csub",
    "timeouts.decide_s": "after so many seconds without a decision csub hands the job to sbatch as asked",
    "audit.rule": "one [[audit.rule]] for each rule that runs with bounds, or on runs, of the site's choice; those "
    "that are not named run once with their own ('colloc audit explain')",
    "audit.rule.code": "which rule, e.g. 'COL003'",
    "audit.rule.name": "what its findings are known by; empty: the code. A code may be there several times, by names",
    "audit.rule.only": "only runs of these, by cluster, partition, gpu_type, user, account and qos, e.g. "
    "{ partition = ['gpu', 'long'] }",
    "audit.rule.excluded": "runs of these are not looked at, by the same, e.g. { user = ['teacher'] }",
    "audit.rule.tell": "'users'; 'admins': its findings are in their summary, and nobody else is told of them; "
    "'nobody': it does not run",
    "audit.rule.bounds": "the rule's own bounds, e.g. { min_gpu_hours = 50 }; 'colloc audit explain' lists them",
    "notices.mode": "'off': nothing is sent, 'colloc audit run --notify' prints what would be; 'admins': only the "
    "summary for them is; 'users': people are told, too",
    "notices.state": "folder of what audits remember, on a disk of this host; empty: the folder audit in paths.state",
    "notices.sender": "address that the mails are from",
    "notices.address": "a user's address, in which {user} stands for the name: '{user}@example.org'",
    "notices.admins": "addresses that get the summary of what was found and who was told",
    "notices.footer": "what stands at a mail's end, e.g. whom to ask",
    "notices.quiet_days": "for so long nobody is told of the same again; who is not found for so long begins anew",
    "notices.workdays": "days on which people are told and jobs are acted on",
    "notices.job_wait_min": "minutes between the two notices about a job that runs; where it worked in between, it "
    "begins anew. An action comes no sooner than twice as long after the second one",
    "notices.actions": "what is then done to the job, by the rule about jobs that found it: 'hold' (stopped, requeued "
    "and held) or 'cancel', e.g. { COL001 = 'hold' }",
    "notices.textfile": "file that is written for Prometheus (textfile collector); empty: none is",
    "notices.command": "program that gets what was found, without names, as JSON on its standard input, once a day; "
    "of root or of whoever runs the audit, and not to be changed by others; empty: none",
    "prices.currency": "what the prices are in",
    "prices.gpu_hour": "price of a whole GPU for an hour; reports then say what was allocated in money",
    "prices.kwh": "price of a kilowatt-hour; reports then say what the measured energy of the GPUs costs",
    "prices.co2_g_per_kwh": "grams of CO2 for each kilowatt-hour; reports then say how much the measured energy caused",
}
