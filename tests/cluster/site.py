# SPDX-License-Identifier: Apache-2.0
"""site.toml for the lab, written by the project's own `colloc site init`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.lab import Lab

PERIOD_S = 0.5
MODEL = "NVIDIA H100 80GB HBM3"


def write_site(lab: Lab, name: str = "site", *, agent: bool = True, extra: Mapping[str, str] | None = None) -> Path:
    """Write a site of this name, with a spool of its own, and return its folder.

    Args:
        lab: the cluster.
        name: folder of the site inside the lab.
        agent: whether samplers run on the nodes; the caller starts them.
        extra: further keys as SECTION.KEY -> TOML value.
    """
    site = lab.root / name
    folders = ((site, 0o755), (site / "store", 0o700), (site / "journal", 0o700), (site / "spool", 0o1777))
    for folder, mode in folders:
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
    settings = {
        "observe.agent": "true" if agent else "false",
        "observe.period_s": str(PERIOD_S),
        "observe.gpu_reader": f'"simulated:{lab.gpus_dir}"',
        "paths.state": f'"{site}"',
        "paths.decisions": f'"{site / "spool"}"',
        "audit.rule": '[{code="COL001", bounds={min_gpu_hours=0.001, shortest_min=0}}]',
        # What a test shows of a decision, a busy machine must not take away: csub would hand the job over as asked.
        "timeouts.decide_s": "20",
        # Small slices are for jobs that keep few SMs busy: at the default bound these tests' jobs would have none.
        "sharing.max_slowdown": "2.1",
        # Which piece fits is tested, whatever the tests before were given; test_csub_free is about what is free.
        "sharing.ask_free": "false",
        # What a site that is new says of none of its jobs.
        "policy": '"auto"',
        **(extra or {}),
    }
    argv = ["colloc", "site", "init", "--force", "-o", str(site / "site.toml"), "--gpu", f"h100={MODEL}"]
    argv += ["--mps-daemon", "--shard-consent"]
    lab.run([*argv, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))], check=True)
    # No test looks for MPS on its made-up GPUs, and shares are as large as a user's own would be.
    file = site / "site.toml"
    file.write_text(file.read_text().replace('mps_users = "each"', 'mps_users = "all"'))
    return site


@contextmanager
def agents(lab: Lab, site: Path, *nodes: str) -> Iterator[None]:
    """Run agents on these nodes, or on all that have GPUs."""
    env = {"COLLOC_CONF": str(site / "site.toml")}
    started = [
        lab.spawn(f"agent-{node}", [lab.bin / "colloc", "agent", "--node", node], env=env)
        for node in nodes or ("g1", "g2", "m1")
    ]
    try:
        yield
    finally:
        for agent in started:
            lab.stop_spawned(agent)


def installed(rendered: Path) -> list[str]:
    """Return the places of the whole files that ORDER.md names in its first table."""
    return re.findall(r"^\| \S+ \| (/\S+) \| ", (rendered / "ORDER.md").read_text(), re.MULTILINE)
