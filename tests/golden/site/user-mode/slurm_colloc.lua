-- SPDX-License-Identifier: Apache-2.0
-- Lmod module file. Only the links of that folder, never the interpreter beside the commands, come onto anybody's PATH.
help([[csub takes the place of sbatch and finds room on a shared GPU; colloc shows what jobs used.]])
whatis("Name: slurm_colloc")
whatis("Description: share GPUs between Slurm jobs that do not need a whole one")
prepend_path("PATH", "/etc/slurm_colloc/commands")
prepend_path("MANPATH", "/opt/slurm_colloc/share/man")
