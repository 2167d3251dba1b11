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
# Shares a GPU under MPS: the limit caps this job's memory, the others keep frameworks from taking the whole card.
: "${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT:=0=${csub_gpu_mem_mib}M}"; export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
: "${XLA_PYTHON_CLIENT_PREALLOCATE:=false}"; export XLA_PYTHON_CLIENT_PREALLOCATE
: "${TF_FORCE_GPU_ALLOW_GROWTH:=true}"; export TF_FORCE_GPU_ALLOW_GROWTH
# Its size leaves room for its neighbours on average: a limit on its threads as well would slow it even where it is alone.
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 COLLOC_MPS_THREADS=100; export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE COLLOC_MPS_THREADS
# A program that these do not reach would take the whole GPU: srun steps, and containers, are to have them.
case "${SLURM_EXPORT_ENV-ALL}" in
  ALL | ALL,*) ;;
  "" | [Nn][Oo][Nn][Ee]* | [Nn][Ii][Ll]*) SLURM_EXPORT_ENV=COLLOC_MPS_THREADS,CUDA_MPS_PINNED_DEVICE_MEM_LIMIT,XLA_PYTHON_CLIENT_PREALLOCATE,TF_FORCE_GPU_ALLOW_GROWTH,CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,CUDA_MPS_PIPE_DIRECTORY,CUDA_MPS_LOG_DIRECTORY ;;
  *) SLURM_EXPORT_ENV="$SLURM_EXPORT_ENV,COLLOC_MPS_THREADS,CUDA_MPS_PINNED_DEVICE_MEM_LIMIT,XLA_PYTHON_CLIENT_PREALLOCATE,TF_FORCE_GPU_ALLOW_GROWTH,CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,CUDA_MPS_PIPE_DIRECTORY,CUDA_MPS_LOG_DIRECTORY" ;;
esac
if [ -d "${CUDA_MPS_PIPE_DIRECTORY-}" ]; then
  for csub_name in COLLOC_MPS_THREADS CUDA_MPS_PINNED_DEVICE_MEM_LIMIT XLA_PYTHON_CLIENT_PREALLOCATE TF_FORCE_GPU_ALLOW_GROWTH CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; do
    eval "[ -z \"\${$csub_name+x}\" ] || export APPTAINERENV_$csub_name=\"\$$csub_name\" SINGULARITYENV_$csub_name=\"\$$csub_name\""
  done
  csub_folders=$CUDA_MPS_PIPE_DIRECTORY
  [ ! -d "${CUDA_MPS_LOG_DIRECTORY-}" ] || csub_folders=$csub_folders,$CUDA_MPS_LOG_DIRECTORY
  APPTAINER_BIND=${APPTAINER_BIND-${SINGULARITY_BIND-}}
  export APPTAINER_BIND="${APPTAINER_BIND:+$APPTAINER_BIND,}$csub_folders"
  export SINGULARITY_BIND="${SINGULARITY_BIND:+$SINGULARITY_BIND,}$csub_folders"
  unset csub_name csub_folders
fi
# Slurm says 0 in these for a share; absent, srun takes what the job has.
[ "${SLURM_GPUS-}" != 0 ] || unset SLURM_GPUS
[ "${SLURM_GPUS_PER_NODE-}" != 0 ] || unset SLURM_GPUS_PER_NODE
[ "${SLURM_GPUS_PER_TASK-}" != 0 ] || unset SLURM_GPUS_PER_TASK
: "${SLURM_GPUS_ON_NODE:=1}"; export SLURM_GPUS_ON_NODE
unset csub_gpu_mem_mib csub_named
# --- end of csub's block ---
module load cuda
srun python train.py "$@"
