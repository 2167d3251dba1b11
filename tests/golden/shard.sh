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
# Shares a GPU in turns, without isolation: these keep frameworks from taking the whole GPU.
# COLLOC_SET names what csub set for a job. What the job that submitted this one has left of it goes.
COLLOC_SET=${COLLOC_SET-} csub_left=
case $COLLOC_SET in
  "${SLURM_JOB_ID-} "*) ;;
  *) csub_left="${COLLOC_SET#* } " COLLOC_SET=${SLURM_JOB_ID-} ;;
esac
while [ -n "$csub_left" ]; do
  csub_name=${csub_left%%[= ]*}
  csub_word=${csub_left%% *}
  csub_left=${csub_left#* }
  case $csub_name in
    "" | *[!A-Z_]* | CUDA_MPS_ACTIVE_THREAD_PERCENTAGE | GPU_DEVICE_ORDINAL | SLURM_GPUS_ON_NODE | SLURM_STEP_GPUS) continue ;;
  esac
  csub_word=,${csub_word#*=},
  eval "csub_value=,\${$csub_name-},"
  case $csub_value in
    *"$csub_word"*)
      csub_value=${csub_value%%"$csub_word"*},${csub_value#*"$csub_word"}
      csub_value=${csub_value#,}
      csub_value=${csub_value%,}
      unset "$csub_name"
      [ -z "$csub_value" ] || export "$csub_name=$csub_value"
      ;;
  esac
done
unset csub_left
for csub_word in XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_GPU_ALLOW_GROWTH=true; do
  csub_name=${csub_word%%=*}
  eval "csub_value=\${$csub_name-}"
  [ -n "$csub_value" ] || { export "$csub_word"; COLLOC_SET="$COLLOC_SET $csub_word"; }
done
export COLLOC_SET
unset csub_word csub_name csub_value
# So that srun steps have them too.
case "${SLURM_EXPORT_ENV-ALL}" in
  ALL | ALL,* | *COLLOC_SET,XLA_PYTHON_CLIENT_PREALLOCATE,TF_FORCE_GPU_ALLOW_GROWTH*) ;;
  "" | [Nn][Oo][Nn][Ee]* | [Nn][Ii][Ll]*) SLURM_EXPORT_ENV=COLLOC_SET,XLA_PYTHON_CLIENT_PREALLOCATE,TF_FORCE_GPU_ALLOW_GROWTH ;;
  *) SLURM_EXPORT_ENV="$SLURM_EXPORT_ENV,COLLOC_SET,XLA_PYTHON_CLIENT_PREALLOCATE,TF_FORCE_GPU_ALLOW_GROWTH" ;;
esac
# Slurm says 0 in these for a share; absent, srun takes what the job has.
[ "${SLURM_GPUS-}" != 0 ] || unset SLURM_GPUS
[ "${SLURM_GPUS_PER_NODE-}" != 0 ] || unset SLURM_GPUS_PER_NODE
[ "${SLURM_GPUS_PER_TASK-}" != 0 ] || unset SLURM_GPUS_PER_TASK
unset csub_gpu_mem_mib csub_named
# --- end of csub's block ---
module load cuda
srun python train.py "$@"
