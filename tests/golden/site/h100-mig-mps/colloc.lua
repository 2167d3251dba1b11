-- SPDX-License-Identifier: Apache-2.0
-- Written by 'colloc site render' from site.toml. Your job_submit.lua and cli_filter.lua call it (docs/how-to/plugins.md).
local site = {
   default_partition = "batch",
   headroom_mib = 256,
   max_slowdown = 1.25,
   table_path = "/var/lib/slurm_colloc/policy.table",
   partitions = {
      ["batch"] = {
         policy = "shadow",
         whole = { "h100", },
         names = { "spawner-jupyterhub", },
         interactive = "gpu:nvidia_h100_80gb_hbm3_1g.10gb:1",
         default_min = 60.0,
         pieces = {
            {
               gres = "gpu:nvidia_h100_80gb_hbm3_1g.10gb:1", mem_mib = 9984, sm = 16, whole_sm = 132,
               model = "9f0ea6d7", cpus = 96, host_mib = 1000000,
            },
            {
               gres = "gpu:nvidia_h100_80gb_hbm3_2g.20gb:1", mem_mib = 20090, sm = 32, whole_sm = 132,
               model = "9f0ea6d7", cpus = 96, host_mib = 1000000,
            },
            {
               gres = "gpu:nvidia_h100_80gb_hbm3_3g.40gb:1", mem_mib = 40448, sm = 60, whole_sm = 132,
               model = "9f0ea6d7", cpus = 96, host_mib = 1000000,
            },
         },
      },
      ["gpu"] = {
         policy = "advise",
         whole = { "h100", },
         names = { },
         default_min = 60.0,
         pieces = {
            {
               gres = "gpu:nvidia_h100_80gb_hbm3_1g.10gb:1", mem_mib = 9984, sm = 16, whole_sm = 132,
               model = "9f0ea6d7", cpus = 96, host_mib = 1000000, partition = "mig", max_min = 2880.0,
            },
            {
               gres = "gpu:nvidia_h100_80gb_hbm3_2g.20gb:1", mem_mib = 20090, sm = 32, whole_sm = 132,
               model = "9f0ea6d7", cpus = 96, host_mib = 1000000, partition = "mig", max_min = 2880.0,
            },
            {
               gres = "gpu:nvidia_h100_80gb_hbm3_3g.40gb:1", mem_mib = 40448, sm = 60, whole_sm = 132,
               model = "9f0ea6d7", cpus = 96, host_mib = 1000000, partition = "mig", max_min = 2880.0,
            },
         },
      },
   },
}
return dofile("/etc/slurm/colloc/colloc_policy.lua").new(site, dofile("/etc/slurm/colloc/colloc_table.lua"))
