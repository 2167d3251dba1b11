#!/bin/bash -l
#SBATCH --job-name=train --gres=gpu:1
#SBATCH --time=2:00:00   # enough

# load what it needs
# --- csub: this block was added at submission ---
# asked: gpu:1; given: as asked (exclusive)
# why: code-one
# needs: code-four
# to switch this off: csub --colloc=off, or sbatch
csub_gpu_mem_mib='9472'
csub_named=''
unset csub_gpu_mem_mib csub_named
# --- end of csub's block ---
module load cuda
srun python train.py "$@"
