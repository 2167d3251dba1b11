#!/bin/bash -l
#SBATCH --job-name=train --gres=gpu:1
#SBATCH --time=2:00:00   # enough

# load what it needs
# --- csub: this block was added at submission ---
# asked: gpu:1; given: shard:1 (shard)
# why: code-one
# needs: code-four
# to switch this off: csub --colloc=off, or sbatch
csub_gpu_mem_mib='9472'
csub_named=''
# Shares a GPU in turns, without isolation: these keep frameworks from taking the whole card.
: "${XLA_PYTHON_CLIENT_PREALLOCATE:=false}"; export XLA_PYTHON_CLIENT_PREALLOCATE
: "${TF_FORCE_GPU_ALLOW_GROWTH:=true}"; export TF_FORCE_GPU_ALLOW_GROWTH
# So that srun steps have them too.
case "${SLURM_EXPORT_ENV-ALL}" in
  ALL | ALL,*) ;;
  "" | [Nn][Oo][Nn][Ee]* | [Nn][Ii][Ll]*) SLURM_EXPORT_ENV=XLA_PYTHON_CLIENT_PREALLOCATE,TF_FORCE_GPU_ALLOW_GROWTH ;;
  *) SLURM_EXPORT_ENV="$SLURM_EXPORT_ENV,XLA_PYTHON_CLIENT_PREALLOCATE,TF_FORCE_GPU_ALLOW_GROWTH" ;;
esac
# Slurm says 0 in these for a share; absent, srun takes what the job has.
[ "${SLURM_GPUS-}" != 0 ] || unset SLURM_GPUS
[ "${SLURM_GPUS_PER_NODE-}" != 0 ] || unset SLURM_GPUS_PER_NODE
[ "${SLURM_GPUS_PER_TASK-}" != 0 ] || unset SLURM_GPUS_PER_TASK
unset csub_gpu_mem_mib csub_named
# --- end of csub's block ---
module load cuda
srun python train.py "$@"
