-- SPDX-License-Identifier: Apache-2.0
-- Lmod module file. It puts only the links to csub and colloc on PATH, not the Python beside the commands.
help([[csub is a drop-in for sbatch: it gives a job that needs no whole GPU a piece of one. colloc shows what jobs used.]])
whatis("Name: slurm_colloc")
whatis("Description: share GPUs between Slurm jobs that do not need a whole one")
prepend_path("PATH", "/etc/slurm_colloc/commands")
prepend_path("MANPATH", "/opt/slurm_colloc/share/man")
