#!/usr/bin/env bash

#SBATCH -J dask-worker
#SBATCH -n 1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH -t 00:30:00
#SBATCH --gres=gpu:1

/home/ann/venv/bin/python -m distributed.cli.dask_worker tcp://192.0.2.2:45921 --name dummy-name --nthreads 1 --memory-limit 1.86GiB --nworkers 4 --nanny --death-timeout 60
