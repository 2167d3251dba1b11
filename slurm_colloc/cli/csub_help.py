# SPDX-License-Identifier: Apache-2.0
"""csub's help: one screen of 24 lines and 80 columns."""

from slurm_colloc import __version__

# "csub --version" is sbatch's, whose output programs read.
HELP = f"""\
Usage: csub [SBATCH'S OPTIONS] [OPTIONS] [SCRIPT [ARGUMENTS]]

  Submit a batch job as sbatch does, and give it a piece of a GPU (a MIG slice
  or a share) instead of a whole one where that holds what the job needs.

  csub takes every option of sbatch, and these of its own. What a job needs
  you say with --gpu-footprint, or csub measures it while the job runs. A job
  that it does not understand with certainty stays as you asked.

Options:
  --gpu-footprint mem=SIZE[,sm=PCT][,dram=PCT]
                        what the job needs of one GPU
  --colloc auto|off     off or exclusive:WHY: as asked [default: auto]
  --pack                run an array's tasks together on a GPU
  --explain             say why, and what was rejected
  --dry-run             print the script, submit nothing
  --format script|json  of --dry-run [default: script]

  Packs:        csub pack -h; --pack-tasks=K --pack-jobs=N --pack-retries=N
                --pack-together
  Also:         --max-slowdown=F (1.1: at most 10 % slower)
  In a script:  #CSUB --gpu-footprint=mem=9G,sm=30 or #CSUB --colloc=off
  {f"csub {__version__}:":<13} man csub; sbatch --help; what it decided for you: colloc history
"""
