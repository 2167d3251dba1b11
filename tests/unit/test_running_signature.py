# SPDX-License-Identifier: Apache-2.0
"""What a job submitted without csub is known by, seen from inside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.core.model import SharingMode
from slurm_colloc.estimate.signature import signature
from slurm_colloc.slurm.array import array_written
from slurm_colloc.submit.render import BLOCK_BEGINS
from slurm_colloc.submit.running_signature import known_by
from tests.unit.golden import Printed

TEXT = b"#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py --model $MODEL --batch 64\n"
# As Slurm 22.05 gives it to a batch job with gres/gpu:1, and what its user had.
JOB = {
    "MODEL": "large",
    "HOME": "/home/alice",
    "SLURM_JOB_ID": "4711",
    "SLURM_GPUS_ON_NODE": "1",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_GPUS": "0",
    "CUDA_VISIBLE_DEVICES": "0",
    "GPU_DEVICE_ORDINAL": "0",
    "ENVIRONMENT": "BATCH",
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "slurm_script"
    path.write_bytes(TEXT)
    return path


def at_submission(text: bytes, folder: Path, told_apart: tuple[str, ...] = ("lab",)) -> str:
    return signature(text, ["a", "7"], 1, told_apart, {"MODEL": "large", "HOME": "/home/alice"}, str(folder)).text


def test_it_is_what_csub_would_know_it_by(script: Path, tmp_path: Path) -> None:
    assert known_by(str(script), ["a", "7"], JOB, "lab") == (at_submission(TEXT, tmp_path), SharingMode.EXCLUSIVE)
    other = {**JOB, "MODEL": "small"}
    assert known_by(str(script), ["a", "7"], other, "lab")[0] != at_submission(TEXT, tmp_path)


def test_variables_of_slurm_do_not_count_though_the_script_names_them(script: Path, tmp_path: Path) -> None:
    text = TEXT + b"echo $SLURM_JOB_ID $SLURM_ARRAY_TASK_ID $GPU_DEVICE_ORDINAL >log\n"
    script.write_bytes(text)
    found = known_by(str(script), ["a", "7"], {**JOB, "SLURM_ARRAY_TASK_ID": "3"}, "lab")[0]
    assert found == at_submission(text, tmp_path)


@pytest.mark.parametrize(
    ("submitted", "told", "is_same"),
    [
        ("0-6:2%3", ("0", "6", "2", "4"), True),
        ("2,0,4,6", ("0", "6", "2", "4"), True),
        ("7", ("7", "7", "1", "1"), True),
        ("0-6", ("0", "6", "2", "4"), False),
        ("1,3,4", ("1", "4", "1", "3"), False),  # nobody tells it which
    ],
)
def test_the_indices_of_its_array_are_those_of_the_submission(
    script: Path, tmp_path: Path, submitted: str, told: Sequence[str], is_same: bool
) -> None:
    text = TEXT + b"python train.py c/$SLURM_ARRAY_TASK_ID.yaml\n"
    script.write_bytes(text)
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("MIN", "MAX", "STEP", "COUNT")]
    environ = {**JOB, "SLURM_ARRAY_TASK_ID": told[0], **dict(zip(names, told, strict=True))}
    given = {"MODEL": "large", "HOME": "/home/alice"}
    at_submission = signature(text, ["a", "7"], 1, ("lab",), given, str(tmp_path), array=array_written(submitted))
    assert (known_by(str(script), ["a", "7"], environ, "lab")[0] == at_submission.text) is is_same


def test_a_jobs_name_counts_where_the_script_uses_it(script: Path, tmp_path: Path) -> None:
    text = TEXT + b"python eval.py $SLURM_JOB_NAME\n"
    script.write_bytes(text)
    found = known_by(str(script), ["a", "7"], {**JOB, "SLURM_JOB_NAME": "big"}, "lab")[0]
    given = {"MODEL": "large", "HOME": "/home/alice", "SLURM_JOB_NAME": "big"}
    assert found == signature(text, ["a", "7"], 1, ("lab",), given, str(tmp_path)).text


def test_tasks_and_a_wrapped_command_count_as_for_csub(script: Path, tmp_path: Path) -> None:
    found = known_by(str(script), ["a", "7"], {**JOB, "SLURM_NTASKS": "4"}, "lab")[0]
    assert found == at_submission(TEXT, tmp_path, ("lab", "4 tasks"))
    script.write_bytes(b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\npython train.py\n\n")
    assert known_by(str(script), ["a", "7"], JOB, "lab")[0] == at_submission(b"python train.py", tmp_path)


def test_the_mode_is_that_of_the_gres(script: Path) -> None:
    assert known_by(str(script), [], {**JOB, "SLURM_SHARDS_ON_NODE": "1"}, "lab")[1] == SharingMode.SHARD
    with pytest.raises(InputError, match="limit on its threads"):
        known_by(str(script), [], {**JOB, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}, "lab")


def test_what_csub_measures_and_what_teaches_nothing_is_left(script: Path, tmp_path: Path, printed: Printed) -> None:
    for more in ({"SLURM_GPUS_ON_NODE": "2"}, {"SLURM_JOB_NUM_NODES": "2"}):
        with printed.raises("history", InputError):
            known_by(str(script), [], JOB | more, "lab")
    script.write_bytes(TEXT.replace(b"python", BLOCK_BEGINS.encode() + b" ...\npython"))
    with pytest.raises(InputError, match="was submitted by csub"):
        known_by(str(script), [], JOB, "lab")
    (tmp_path / "link").symlink_to(script)
    with pytest.raises(StoreError, match="cannot be read"):
        known_by(str(tmp_path / "link"), [], JOB, "lab")
