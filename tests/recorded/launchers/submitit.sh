#!/bin/bash

# Parameters
#SBATCH --error=/home/ann/logs/%j_0_log.err
#SBATCH --gpus-per-node=1
#SBATCH --job-name=submitit
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --output=/home/ann/logs/%j_0_log.out
#SBATCH --partition=gpu
#SBATCH --signal=USR2@90
#SBATCH --time=5
#SBATCH --wckey=submitit

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /home/ann/logs/%j_%t_log.out --error /home/ann/logs/%j_%t_log.err /home/ann/venv/bin/python -u -m submitit.core._submit /home/ann/logs
