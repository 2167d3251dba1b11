#!/bin/bash -l
#SBATCH --job-name=train --gres=gpu:1
#SBATCH --time=2:00:00   # enough

# load what it needs
# --- csub: this block was added at submission ---
# asked: gpu:1; given: mps:12 (mps)
# why: code-one; code-two mib=9
# needs: code-four
# to switch this off: csub --colloc=off, or sbatch
csub_gpu_mem_mib='9472'
csub_named=''
# Shares a GPU under MPS: the limit caps this job's memory, the next two keep frameworks from taking the whole GPU.
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
for csub_word in "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=${csub_gpu_mem_mib}M" XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_GPU_ALLOW_GROWTH=true "GPU_DEVICE_ORDINAL=${CUDA_VISIBLE_DEVICES-}" SLURM_GPUS_ON_NODE=1; do
  csub_name=${csub_word%%=*}
  eval "csub_value=\${$csub_name-}"
  [ -n "$csub_value" ] || { export "$csub_word"; COLLOC_SET="$COLLOC_SET $csub_word"; }
done
# Its size leaves room for its neighbours on average: a limit on its threads as well would slow it even where it is alone.
export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100
COLLOC_SET="$COLLOC_SET CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 SLURM_STEP_GPUS=${SLURM_JOB_GPUS-}"
# A program that these do not reach would take the whole GPU: srun steps, and containers, are to have them.
case "${SLURM_EXPORT_ENV-ALL}" in
  ALL | ALL,* | *COLLOC_SET,CUDA_MPS_PINNED_DEVICE_MEM_LIMIT,XLA_PYTHON_CLIENT_PREALLOCATE,TF_FORCE_GPU_ALLOW_GROWTH,CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,CUDA_MPS_PIPE_DIRECTORY,CUDA_MPS_LOG_DIRECTORY*) ;;
  "" | [Nn][Oo][Nn][Ee]* | [Nn][Ii][Ll]*) SLURM_EXPORT_ENV=COLLOC_SET,CUDA_MPS_PINNED_DEVICE_MEM_LIMIT,XLA_PYTHON_CLIENT_PREALLOCATE,TF_FORCE_GPU_ALLOW_GROWTH,CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,CUDA_MPS_PIPE_DIRECTORY,CUDA_MPS_LOG_DIRECTORY ;;
  *) SLURM_EXPORT_ENV="$SLURM_EXPORT_ENV,COLLOC_SET,CUDA_MPS_PINNED_DEVICE_MEM_LIMIT,XLA_PYTHON_CLIENT_PREALLOCATE,TF_FORCE_GPU_ALLOW_GROWTH,CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,CUDA_MPS_PIPE_DIRECTORY,CUDA_MPS_LOG_DIRECTORY" ;;
esac
if [ -d "${CUDA_MPS_PIPE_DIRECTORY-}" ]; then
  for csub_name in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT XLA_PYTHON_CLIENT_PREALLOCATE TF_FORCE_GPU_ALLOW_GROWTH CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; do
    eval "csub_value=\${$csub_name-}"
    [ -z "$csub_value" ] || for csub_word in "APPTAINERENV_$csub_name=$csub_value" "SINGULARITYENV_$csub_name=$csub_value"; do
      export "$csub_word"
      COLLOC_SET="$COLLOC_SET $csub_word"
    done
  done
  csub_value=$CUDA_MPS_PIPE_DIRECTORY
  [ ! -d "${CUDA_MPS_LOG_DIRECTORY-}" ] || csub_value=$csub_value,$CUDA_MPS_LOG_DIRECTORY
  APPTAINER_BIND=${APPTAINER_BIND-${SINGULARITY_BIND-}}
  export APPTAINER_BIND="${APPTAINER_BIND:+$APPTAINER_BIND,}$csub_value"
  export SINGULARITY_BIND="${SINGULARITY_BIND:+$SINGULARITY_BIND,}$csub_value"
  COLLOC_SET="$COLLOC_SET APPTAINER_BIND=$csub_value SINGULARITY_BIND=$csub_value"
  # These a part of csub has set, for this job.
  COLLOC_SET="$COLLOC_SET CUDA_MPS_PIPE_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY=${CUDA_MPS_LOG_DIRECTORY-}"
fi
export COLLOC_SET
unset csub_word csub_name csub_value
# Slurm says 0 in these for a share; absent, srun takes what the job has.
[ "${SLURM_GPUS-}" != 0 ] || unset SLURM_GPUS
[ "${SLURM_GPUS_PER_NODE-}" != 0 ] || unset SLURM_GPUS_PER_NODE
[ "${SLURM_GPUS_PER_TASK-}" != 0 ] || unset SLURM_GPUS_PER_TASK
unset csub_gpu_mem_mib csub_named
# --- end of csub's block ---
module load cuda
srun python train.py "$@"
