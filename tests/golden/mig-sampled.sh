#!/bin/bash -l
#SBATCH --job-name=train --gres=gpu:1
#SBATCH --time=2:00:00   # enough

# load what it needs
# --- csub: this block was added at submission ---
# asked: gpu:1; given: gpu:nvidia_h100_80gb_hbm3_1g.10gb:1 (mig)
# why: code-one; code-two mib=9
# needs: code-four
# to switch this off: csub --colloc=off, or sbatch
csub_gpu_mem_mib='9472'
csub_named=''
csub_signature='0123456789abcdef'
csub_mode='mig'
csub_evidence='/home/ann/.local/share/slurm_colloc'
# Slurm names the slice in these. You named no type of GPU, so the script finds 1, as it would have.
if [ -n "$csub_named" ]; then
  [ "${SLURM_GPUS-}" != "$csub_named" ] || SLURM_GPUS=1
  [ "${SLURM_GPUS_PER_NODE-}" != "$csub_named" ] || SLURM_GPUS_PER_NODE=1
  [ "${SLURM_GPUS_PER_TASK-}" != "$csub_named" ] || SLURM_GPUS_PER_TASK=1
fi
# Measures this job's GPU use for its next submission. The subshell keeps it out of the script's own "wait".
if [ -x '/opt/slurm_colloc/bin/python3' ]; then
  ( '/opt/slurm_colloc/bin/python3' -I -m slurm_colloc.cli.colloc sample --period 10.0 --reader 'nvml' --signature "$csub_signature" --mode "$csub_mode" --evidence "$csub_evidence" --job "${SLURM_JOB_ID:-}" --watch-pid "$$" </dev/null >/dev/null 2>&1 & )
fi
unset csub_gpu_mem_mib csub_named csub_signature csub_mode csub_evidence
# --- end of csub's block ---
module load cuda
srun python train.py "$@"
