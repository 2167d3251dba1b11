# SPDX-License-Identifier: Apache-2.0
"""Used hours without an agent: a real Slurm, what a real dcgm-exporter says, and a real Prometheus between them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pytest

from slurm_colloc.gpu.reader import GpuUnit, UnitReading
from slurm_colloc.gpu.simulated import SimulatedReader
from tests.cluster.lab import Lab
from tests.cluster.site import agents, write_site
from tests.cluster.test_prometheus import A100, CARD, prometheus
from tests.cluster.user import User
from tests.unit.made import near
from tests.unit.programs import need_program

pytestmark = pytest.mark.cluster

NODES = ("g1", "g2", "m1")
LOAD_S = 40
SCRIPT = """#!/bin/bash
#SBATCH --gres={gres} -t 5 -w {node} -p {partition}
COLLOC_SIMULATED_GPU_LOAD=mem={mem}G,util=60,sm={sm} sleep {load_s}
"""


def exposition(node: str, number: int, unit: GpuUnit, reading: UnitReading) -> str:
    """Return what dcgm-exporter says of a unit: the recorded lines of a real one, with its names and figures."""
    place = f',GPU_I_PROFILE="{unit.profile}",GPU_I_ID="{unit.gres_index + 3}"' if unit.profile else ""
    of = "GPU-of-m1" if unit.profile else unit.uuid
    lines = [
        line.replace(A100, of)
        .replace('gpu="0"', f'gpu="{0 if unit.profile else number}"')
        .replace('Hostname="ub20-a100-k8s"', f'Hostname="{node}",modelName="{unit.model}"{place}')
        for line in CARD
    ]
    labels = re.search(r"\{.*\}", lines[0])
    assert labels is not None
    found = [f"DCGM_FI_DEV_FB_USED{labels[0]} {reading.gpu_mem_used_mib}"]
    found += [line for line in lines if "FB_USED" not in line and "GR_ENGINE" not in line]
    active = (reading.sm_active_pct or 0.0) / 100
    found += [f"DCGM_FI_PROF_SM_ACTIVE{labels[0]} {active}"]
    found += [] if unit.profile else [f"DCGM_FI_DEV_GPU_UTIL{labels[0]} {reading.gpu_util_pct or 0.0}"]
    return "\n".join(found) + "\n"


@contextmanager
def exporters(lab: Lab) -> Iterator[int]:
    """Serve each node's text of this moment, as one exporter on each node would."""
    readers = {node: SimulatedReader(str(lab.gpus_dir / f"{node}.json"), node) for node in NODES}
    alone = Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            node = self.path.strip("/")
            with alone:
                readings, _ = readers[node].read()
                units = {unit.uuid: unit for unit in readers[node].units()}
            text = "".join(exposition(node, units[one.uuid].gres_index, units[one.uuid], one) for one in readings)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def scraping(port: int) -> list[dict[str, Any]]:
    return [
        {"job_name": node, "metrics_path": f"/{node}", "scrape_interval": "2s", "scrape_timeout": "2s",
         "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": f"{node}:9400"}}]}
        for node in NODES
    ]  # fmt: skip


def used(lab: Lab, site: Path, since: str) -> dict[str, dict[str, Any]]:
    """Return the report's groups by user, of a site's store."""
    argv = ["colloc", "report", "--since", since, "--format", "json"]
    told = lab.run(argv, env={"COLLOC_CONF": str(site / "site.toml")}, check=True, timeout=120)
    return {group["name"]: group for group in json.loads(told.stdout)["groups"]}


# The exporter, which runs outside of the lab, sees the loads of other labs as well.
@pytest.mark.alone
def test_used_hours_are_those_of_the_agent_within_the_sampling(lab: Lab, tmp_path: Path) -> None:
    """Two users on one node, a share and a slice: an account without rights notes who has what, each 3 s."""
    # Others have had jobs in this lab.
    since = datetime.now(UTC).isoformat(timespec="seconds")
    need_program("prometheus")
    with_agents, bare = write_site(lab, "agents"), write_site(lab, "bare", agent=False)
    carol = User(lab, "carol", bare)
    noted = carol.home / "holders"
    assert carol.run("mkdir", "-m", "700", str(noted)).returncode == 0
    asked = {"alice": ("gpu:h100:1", "g1", "gpu", 60, 20), "bob": ("gpu:h100:1", "g1", "gpu", 15, 8),
             "carol": ("gpu:nvidia_h100_80gb_hbm3_1g.10gb:1", "m1", "mig", 5, 6)}  # fmt: skip
    jobs = {}
    with agents(lab, with_agents), exporters(lab) as port, prometheus(tmp_path, scraping(port)) as url:
        for name, (gres, node, partition, sm, mem) in asked.items():
            user = User(lab, name, with_agents)
            user.script(
                SCRIPT.format(gres=gres, node=node, partition=partition, sm=sm, mem=mem, load_s=LOAD_S), "load.sh"
            )
            done = user.run("bash", "-c", f"cd {user.home} && sbatch load.sh")
            assert done.returncode == 0, done.stderr
            jobs[name] = done.stdout.split()[-1]
        for job in jobs.values():
            lab.wait_state(job)
        look = ("colloc", "holders", "--folder", str(noted), "--period", "3", "--count", "3")
        done = carol.run(*look)
        assert done.returncode == 0, done.stderr
        lab.wait_jobs(list(jobs.values()))
        for job in jobs.values():
            lab.wait_accounted([job])
        root = {"COLLOC_CONF": str(with_agents / "site.toml")}
        lab.run(["colloc", "ingest", "--since", since], env=root, check=True, timeout=120)
        root = {"COLLOC_CONF": str(bare / "site.toml")}
        lab.run(["colloc", "ingest", "--since", since], env=root, check=True, timeout=120)
        argv = ["colloc", "ingest", "--prometheus", url, "--since", since, "--holders", str(noted)]
        told = lab.run(argv, env=root, check=True, timeout=120).stderr
    by_agent, by_exporter = used(lab, with_agents, since), used(lab, bare, since)
    for name in jobs:
        mine, theirs = by_exporter[name], by_agent[name]
        assert mine["allocated_gpu_hours"] == near(theirs["allocated_gpu_hours"]), told
        assert mine["methods"] == ["whole device"], told
        assert mine["coverage_pct"] > 80, (name, mine, told)
        # A scrape each 2 s of a run of 40: its ends are known to 2 s each.
        assert mine["sm_used_gpu_hours"] == pytest.approx(theirs["sm_used_gpu_hours"], rel=0.15), (name, mine, theirs)
        assert mine["gpu_mem_peak_mib"] == theirs["gpu_mem_peak_mib"], (name, mine, theirs)
