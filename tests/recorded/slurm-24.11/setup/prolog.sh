#!/bin/sh

if command -v nvidia-cuda-mps-control >/dev/null; then
    nvidia-smi -c ${CUDA_VISIBLE_DEVICES}
    nvidia-smi -c EXCLUSIVE_PROCESS
    pgrep -f nvidia-cuda-mps-control && echo quit | nvidia-cuda-mps-control
    place=/run/mps
    export CUDA_MPS_PIPE_DIRECTORY=$place/$SLURM_JOB_ID
    nvidia-cuda-mps-control -d -multiuser-server
fi
[ -n "${CUDA_VISIBLE_DEVICES-}" ] || exit 0
printf '%s\n' "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" "SLURM_JOB_GPUS=${SLURM_JOB_GPUS-}" \
    >/lab/gpu_env/"$SLURMD_NODENAME.$SLURM_JOB_ID"
