# SPDX-License-Identifier: Apache-2.0
"""A job on a slice that nears its time limit has more of it after an ingest, where the site says so, and once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import SLICE, User, tres

pytestmark = pytest.mark.cluster

JOB = "#!/bin/bash\n#SBATCH --gres=gpu:1 -t 1\n#CSUB --gpu-footprint=mem=4G,sm=1\nsleep 100\n"


@pytest.fixture(scope="module")
def site(lab: Lab) -> Path:
    return write_site(lab, "time-site", agent=False, extra={"sharing.extend_time_limits": "true"})


def test_a_job_that_nears_its_limit_has_more_once(lab: Lab, site: Path) -> None:
    alice = User(lab, "alice", site)
    job = alice.submit(alice.script(JOB))
    plain = alice.run("sbatch", "--parsable", "-t", "1", "--gres=gpu:1", "--wrap", "sleep 100").stdout.strip()
    try:
        assert alice.shown(job)["TresPerNode"] == tres(f"gpu:{SLICE}_1g.10gb:1")
        # What csub added for a slower slice is taken away again: nobody waits here for longer than a minute.
        assert alice.shown(job)["TimeLimit"] == "00:02:00"
        lab.run(["scontrol", "update", f"JobId={job}", "TimeLimit=1"], check=True)
        assert f"job {job} of alice" not in _ingest(lab, site), "it has hardly begun"
        until_s = time.monotonic() + 120
        while alice.shown(job)["RunTime"] < "00:00:49":
            assert time.monotonic() < until_s, alice.shown(job)
            time.sleep(0.5)
        assert f"job {job} of alice" in (said := _ingest(lab, site)), said
        # At most 2.1 times what was asked for.
        assert alice.shown(job)["TimeLimit"] == "00:02:00", said
        assert alice.shown(plain)["TimeLimit"] == "00:01:00", "what csub put on no piece is left alone"
        _ingest(lab, site)
        assert alice.shown(job)["TimeLimit"] == "00:02:00"
    finally:
        lab.run(["scancel", job, plain])


def _ingest(lab: Lab, site: Path) -> str:
    environment = {"COLLOC_CONF": str(site / "site.toml")}
    return lab.run(["colloc", "ingest", "--since", "1h"], env=environment, check=True, timeout=120).stderr
