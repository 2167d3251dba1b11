# SPDX-License-Identifier: Apache-2.0
"""The planner on a real cluster: jobs queue, accounting is taken in, and the replay comes near to what they waited."""

from __future__ import annotations

import json
import time

import pytest

from slurm_colloc.core.config_file import load_site
from slurm_colloc.facts.run_rows import past_runs
from slurm_colloc.plan.past import Allocated, throttles
from slurm_colloc.store.store import Store
from tests.cluster.fixtures import RELEASE, install_checkout, need_cluster
from tests.cluster.plan_record import GPUS, NODES, cluster, run_trace, trace
from tests.cluster.site import write_site

pytestmark = pytest.mark.cluster


THROTTLED = "#!/bin/sh\n#SBATCH -N1 -n1 -c1 --mem=1000M -t5 -p plan -o /dev/null --gres=gpu:h100:1 -a 0-4%2\nsleep 3\n"


def test_a_real_queue_is_taken_in_and_replayed() -> None:
    """So few jobs wait by chance, half a mean wait more or less; 500 are in tests/recorded/plan."""
    need_cluster()
    jobs = trace(1.3, 33, 50)
    with cluster(RELEASE, print) as lab:
        install_checkout(lab)
        script = lab.root / "tmp/throttled.sh"
        script.write_text(THROTTLED)
        script.chmod(0o755)
        array = int(lab.run_as("alice", ["sbatch", "--parsable", str(script)], check=True).stdout)
        lab.wait_jobs([array], timeout=60)
        run_trace(lab, jobs, print)
        environment = {"COLLOC_CONF": str(write_site(lab, agent=False) / "site.toml")}
        lab.run(["colloc", "ingest", "--since", "1h"], env=environment, check=True, timeout=120)
        plan = ["colloc", "site", "plan", "--since", "1h"]
        done = lab.run([*plan, "--gpus", "+8", "--format", "json"], env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        table = lab.run(plan, env=environment, check=True, timeout=120).stdout
        site = load_site(environment["COLLOC_CONF"])
        runs = [Allocated(**row) for row in past_runs(Store(site.store_folder), site.cluster, 0.0, time.time())]
        assert [at_once for name, at_once in throttles(runs, 0.0).items() if name.startswith(f"{array}@")] == [2]
    found = json.loads(done.stdout)
    assert (found["jobs"], found["rejected"], found["too_large"]) == (len(jobs) + 5, {}, 0)
    assert found["gpus_then"] == found["gpus"] + 8
    total = found["classes"][-1]
    assert total["measured_mean_s"] > 5
    assert abs(found["bias_pct"]) <= 15
    assert total["then_mean_s"]["value"] < total["today_mean_s"]["value"]
    assert len(NODES) * GPUS <= found["gpus"]
    assert "today's replay against the waits that were" in table
