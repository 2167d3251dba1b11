# SPDX-License-Identifier: Apache-2.0
"""The job in what sbatch, or a site's wrapper around it, answers."""

import pytest

from slurm_colloc.slurm.parse import Submitted, parse_submitted


@pytest.mark.parametrize(
    ("said", "job"),
    [
        (b"Submitted batch job 4711\n", Submitted("4711", "")),
        (b"Submitted batch job 4711 on cluster far\n", Submitted("4711", "far")),
        (b"4711\n", Submitted("4711", "")),
        (b"4711;far\n", Submitted("4711", "far")),
        (b"Welcome to the lab\nyou have 3 jobs\nSubmitted batch job 4711\nbye\n", Submitted("4711", "")),
        (b"4711;far\xff\n", Submitted("4711", "far\ufffd")),
    ],
)
def test_a_job_is_found_by_every_form_of_the_answer(said: bytes, job: Submitted) -> None:
    assert parse_submitted(said) == job


@pytest.mark.parametrize("said", [b"", b"sbatch: error: 4711\n", b"job 4711\n", b"Submitted batch job\n", b"47 11\n"])
def test_what_names_no_job_is_none(said: bytes) -> None:
    assert parse_submitted(said) is None
