# SPDX-License-Identifier: Apache-2.0
"""Jobs that audits act on, on a real cluster: held or cancelled is the run that was found, and no other."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.audit.job_actions import act, in_words
from slurm_colloc.audit.state import opened
from slurm_colloc.core.audit_model import JOB, Finding
from slurm_colloc.core.config_audit import Notices
from tests.cluster.lab import Lab
from tests.unit.made import site
from tests.unit.noticed import finding
from tests.unit.programs import program
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster


def test_the_run_that_was_found_is_acted_on_and_no_other(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in lab.environment().items():
        monkeypatch.setenv(name, value)
    # Those of the lab's release, whatever this machine's are.
    for name in ("squeue", "scontrol", "scancel"):
        program(
            tmp_path,
            name,
            f'PATH={lab.environment()["PATH"]} exec {shlex.join(lab.command([name]))} "$@"\n',
            monkeypatch,
        )
    cluster = lab.run(["scontrol", "show", "config"], check=True).stdout.split("ClusterName", 1)[1].split()[1]
    config = site()._replace(cluster=cluster, notices=Notices(actions={"COL001": "cancel"}))

    def submit(*options: str) -> str:
        argv = ["sbatch", "--parsable", "-p", "all", "-o", "/dev/null", *options, "--wrap", "exec sleep 600"]
        return lab.run_as("alice", argv, check=True).stdout.strip()

    def told(job: str, form: str) -> list[str]:
        argv = ["squeue", "-h", "-a", "-r", "-t", "all", "-o", form, "-j", job]
        return lab.run(argv, env={"SLURM_TIME_FORMAT": "%s"}).stdout.split()

    def found(job: str, **fields: Any) -> Finding:
        one = finding(about=JOB, cluster=cluster, subject=job, user="alice")
        line = one.jobs[0]._replace(job_id=job, start_s=float(told(job, "%S")[0]))
        return one._replace(jobs=(line,))._replace(**fields)

    def running(job: str) -> None:
        wait_for(lambda: told(job, "%T") == ["RUNNING"], f"job {job} does not run")

    single, array, held, fixed = submit(), submit("--array=1-2"), submit("--requeue"), submit("--no-requeue")
    for job in (single, f"{array}_1", f"{array}_2", held, fixed):
        running(job)
    with opened(str(tmp_path)) as state:

        def acts(one: Finding) -> str:
            return in_words(act(state, one, config))

        for other in (
            found(single, user="bob"),
            found(single, cluster="another"),
            found(single)._replace(jobs=(found(single).jobs[0]._replace(start_s=1.0),)),
        ):
            assert "failed" in acts(other)
        assert told(single, "%T") == ["RUNNING"]
        assert acts(found(f"{array}_1")) == "cancel: done"
        wait_for(lambda: told(f"{array}_1", "%T")[:1] == ["CANCELLED"])
        assert told(f"{array}_2", "%T") == ["RUNNING"]
        assert acts(found(single)) == "cancel: done"
        wait_for(lambda: told(single, "%T") == ["CANCELLED"])
        assert "does not run any more" in acts(found(f"{array}_2", subject=single))
        config = config._replace(notices=Notices(actions={"COL001": "hold"}))
        assert acts(found(held)) == "hold: done"
        wait_for(lambda: told(held, "%T") == ["PENDING"])
        # Slurm requeues no job that forbids it; that is known, and not tried at each run.
        assert "is impossible for this job, and not tried again" in acts(found(fixed))
        assert told(fixed, "%T") == ["RUNNING"]
        assert "HELD" in told(held, "%r")[0].upper() or "held" in " ".join(told(held, "%r"))
    lab.run(["scancel", array, held, fixed], check=True)
