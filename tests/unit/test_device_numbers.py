# SPDX-License-Identifier: Apache-2.0
"""What scripts do with the variables that name their GPU: which of them work with MIG-<uuid>."""

from __future__ import annotations

import time

import pytest

from slurm_colloc.submit.device_numbers import device_taken_for_number

NUMBERS = [
    "namd3 +p1 +setcpuaffinity +devices $CUDA_VISIBLE_DEVICES in.inp",
    "namd2 +devices ${GPU_DEVICE_ORDINAL} apoa1.namd",
    "echo dorado basecaller sup in --device cuda:$CUDA_VISIBLE_DEVICES",  # at the end of a sentence, too
    "dorado basecaller sup in --device cuda:$CUDA_VISIBLE_DEVICES > calls.bam",
    'dorado basecaller sup in --device "cuda:${CUDA_VISIBLE_DEVICES}"',
    'relion_refine --gpu "$CUDA_VISIBLE_DEVICES"',
    "relion_refine --gpu ${CUDA_VISIBLE_DEVICES//,/:}",
    "python train.py --gpu=$CUDA_VISIBLE_DEVICES",
    "python train.py --gpu $SLURM_JOB_GPUS",
    "gmx mdrun -gpu_id $SLURM_STEP_GPUS",
    "export CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS",
    'CUDA_VISIBLE_DEVICES="${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}" python train.py',
    'docker run --gpus "device=$SLURM_JOB_GPUS" -e NVIDIA_VISIBLE_DEVICES=$SLURM_JOB_GPUS image',
    "nvidia-smi -i $CUDA_VISIBLE_DEVICES",
    "nvidia-smi dmon -i ${SLURM_JOB_GPUS} > util.log &",
    "GPU=$CUDA_VISIBLE_DEVICES\nprog --gpu $GPU",
    "N=$(( (${#CUDA_VISIBLE_DEVICES} + 1) / 2 ))",
    'IFS=, read -ra GPUS <<< "$CUDA_VISIBLE_DEVICES"',
    "for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do prog --device $gpu & done",
    "GPUS=($(echo $CUDA_VISIBLE_DEVICES | tr ',' ' '))",
    "first=$(echo $CUDA_VISIBLE_DEVICES | cut -d, -f1)",
    "echo $CUDA_VISIBLE_DEVICES | xargs prog --gpu",
    "echo $CUDA_VISIBLE_DEVICES; prog --gpu $CUDA_VISIBLE_DEVICES",
    "echo start && prog --gpu $CUDA_VISIBLE_DEVICES",
    "echo $(prog --gpu $CUDA_VISIBLE_DEVICES)",
    "echo `prog --gpu $CUDA_VISIBLE_DEVICES`",
    'echo "now $(prog --gpu $CUDA_VISIBLE_DEVICES)"',
    'echo "now `prog --gpu $CUDA_VISIBLE_DEVICES`"',
    'echo "a"; prog "$CUDA_VISIBLE_DEVICES" "b"',
    'echo "device: $CUDA_VISIBLE_DEVICES" >> config.yaml',
    "cat > config.yaml <<E\ndevice: $CUDA_VISIBLE_DEVICES\nE",
    '[ "$CUDA_VISIBLE_DEVICES" -ge 0 ] && prog',
    'if [ "$CUDA_VISIBLE_DEVICES" == "0" ]; then port=1; else port=2; fi',
    '[ -n "$CUDA_VISIBLE_DEVICES" ] && prog --gpu $CUDA_VISIBLE_DEVICES',
    "prog ${CUDA_VISIBLE_DEVICES:+--gpu $CUDA_VISIBLE_DEVICES}",
    "PORT=$((29500 + CUDA_VISIBLE_DEVICES + $CUDA_VISIBLE_DEVICES))",
    'python - <<P\nimport os\nprint(int(os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0]))\nP',
    "python - <<P\nimport os\ngpu = os.environ.get('CUDA_VISIBLE_DEVICES', '0')\nP",
    "julia -e 'CUDA.device!(parse(Int, ENV[\"CUDA_VISIBLE_DEVICES\"]))'",
    "Rscript -e 'x <- as.integer(Sys.getenv(\"CUDA_VISIBLE_DEVICES\"))'",
    "gpu=$(printenv CUDA_VISIBLE_DEVICES)",
    "podman run --device nvidia.com/gpu=$CUDA_VISIBLE_DEVICES image",
    "prog \\\n  --gpu \\\n  $CUDA_VISIBLE_DEVICES",
]
NONE = [
    "echo $CUDA_VISIBLE_DEVICES",
    '  echo "GPUs: ${CUDA_VISIBLE_DEVICES}"',
    'echo "on $(hostname) with $CUDA_VISIBLE_DEVICES"',
    'echo "GPU $CUDA_VISIBLE_DEVICES" >&2',
    'echo "node $(hostname) | GPU ${CUDA_VISIBLE_DEVICES:-auto} (of $SLURM_JOB_ID); then"',
    "printf 'GPU (%s) > %s;\\n' \"${CUDA_VISIBLE_DEVICES:-<unset>}\" x",
    '[[ "$CUDA_VISIBLE_DEVICES" != *,* ]] || exit 1',
    'echo "GPU $CUDA_VISIBLE_DEVICES" | tee -a run.log',
    'echo "GPU $CUDA_VISIBLE_DEVICES" >> $LOG_FILE.log',
    "printf 'gpu %s\\n' \"$CUDA_VISIBLE_DEVICES\"",
    'echo "JOB GPUS=$SLURM_JOB_GPUS"; nvidia-smi',
    "date; echo job $SLURM_JOB_ID gpu $CUDA_VISIBLE_DEVICES; date",
    "if true; then echo $CUDA_VISIBLE_DEVICES; fi",
    'if [ -z "$CUDA_VISIBLE_DEVICES" ]; then echo none; exit 1; fi',
    "if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then echo ok; fi",
    "[ -v CUDA_VISIBLE_DEVICES ] || exit 1",
    '[ x"$CUDA_VISIBLE_DEVICES" = x"" ] && exit 1',
    '[ "$CUDA_VISIBLE_DEVICES" = "NoDevFiles" ] && exit 1',
    ': "${CUDA_VISIBLE_DEVICES:?no GPU}"',
    "prog ${CUDA_VISIBLE_DEVICES:+--gpu}",
    "export CUDA_VISIBLE_DEVICES=0",
    "CUDA_VISIBLE_DEVICES=0 python train.py --gpu 0",
    "export CUDA_VISIBLE_DEVICES",
    "unset CUDA_VISIBLE_DEVICES",
    "export CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES",
    'export NVIDIA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES"',
    "export APPTAINERENV_CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES}",
    "singularity exec --env CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES x.sif python t.py",
    'docker run --rm --gpus "device=$CUDA_VISIBLE_DEVICES" image',
    "docker run --gpus '\"device='$CUDA_VISIBLE_DEVICES'\"' image",
    "docker run -e NVIDIA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES image",
    "mpirun -x CUDA_VISIBLE_DEVICES python t.py",
    "NGPU=$(echo $CUDA_VISIBLE_DEVICES | tr ',' '\\n' | wc -l)",
    "NGPU=$(echo \"$CUDA_VISIBLE_DEVICES\" | awk -F, '{print NF}')",
    "NGPU=`echo $CUDA_VISIBLE_DEVICES | tr , ' ' | wc -w`",
    "printenv CUDA_VISIBLE_DEVICES",
    "env | grep CUDA_VISIBLE_DEVICES",
    'python - <<P\nimport os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\nP',
    "python - <<P\nimport os\nprint('gpu', os.environ.get('CUDA_VISIBLE_DEVICES'))\nP",
    "python - <<P\nimport os\nn = len(os.environ['CUDA_VISIBLE_DEVICES'].split(','))\nP",
    "prog --gpu $MY_CUDA_VISIBLE_DEVICES_LIST $CUDA_VISIBLE_DEVICES_OLD",
]


@pytest.mark.parametrize("text", NUMBERS)
def test_taken_for_a_number(text: str) -> None:
    assert (device_taken_for_number(f"cd x\n{text}\ndate\n".encode()) or "none") in text


@pytest.mark.parametrize("text", NONE)
def test_taken_for_none(text: str) -> None:
    assert device_taken_for_number(f"cd x\n{text}\ndate\n".encode()) is None


@pytest.mark.parametrize(
    "unit",
    [
        "echo $CUDA_VISIBLE_DEVICES|",
        "$(",
        "print(",
        "\n",
        " ",
        "echo ",
        "--gpus '",
        '"$CUDA_VISIBLE_DEVICES',
        ';echo "a',
    ],
)
def test_long_lines_take_no_time(unit: str) -> None:
    began = time.process_time()
    device_taken_for_number(b"$CUDA_VISIBLE_DEVICES" + unit.encode() * 20000)
    assert time.process_time() - began < 2
