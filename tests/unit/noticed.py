# SPDX-License-Identifier: Apache-2.0
"""Findings and settings made up for tests of notices."""

from typing import Any

from slurm_colloc.audit_model import Finding, JobLine


def finding(**fields: Any) -> Finding:
    """Return a finding of COL001 about ann that differs by these fields."""
    line = JobLine("12_3", "train", "gpu:h100:1", "gpu", 1_767_225_600.0, 24.0)
    one = Finding(
        rule="COL001",
        code="COL001",
        severity="warning",
        about="user",
        cluster="c",
        subject="ann",
        user="ann",
        title="GPUs held at zero use",
        gpu_hours=24.0,
        evidence="24 GPU-h in 1 run (job 12_3) with no kernel seen",
        remedy="end jobs that wait at a prompt",
        reproduce="colloc audit run --rule COL001 --user ann",
        coverage_pct=97.0,
        methods=("measured",),
        jobs=(line,),
        digest="new",
        newest_s=99 * 86_400.0,
    )
    return one._replace(**fields)
