# SPDX-License-Identifier: Apache-2.0
"""The examples of the documentation that ask Slurm something or need its job ids, as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import User, job_id
from tests.doc_examples import Example, examples, kept_as, once, runs_on_a_cluster
from tests.pages.json_output import TOP_LEVEL

pytestmark = pytest.mark.cluster

RUN = once(filter(runs_on_a_cluster, examples()))
SCRIPT = (
    "#!/bin/bash\n#SBATCH --gres=gpu:h100:1 --time=5\nCOLLOC_SIMULATED_GPU_LOAD=mem=6G,util=60,sm=11 sleep 3\nwait\n"
)
GPUS = """timestamp, uuid, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W]
2026/11/02 12:00:00.000, GPU-1, NVIDIA H100 80GB HBM3, 20 %, 900 MiB, 81559 MiB, 200.00 W
2026/11/02 12:00:10.000, GPU-1, NVIDIA H100 80GB HBM3, 20 %, 900 MiB, 81559 MiB, 200.00 W
"""
# Of an example that asks; everything else must end with 0.
MAY_END_WITH: dict[tuple[str, ...], tuple[int, ...]] = {
    ("colloc", "site", "check"): (0, 1),
    ("colloc", "site", "doctor"): (0, 1, 3),
}
NEEDS_ROOT = (("colloc", "comment"), ("colloc", "site", "doctor"))


@pytest.fixture(scope="module")
def site(lab: Lab) -> Path:
    return write_site(lab, "docs-site", agent=False)


@pytest.fixture(scope="module")
def bob(lab: Lab, site: Path) -> User:
    """Return a user whose files are those that the examples name, and one of whose jobs has ended."""
    user = User(lab, "bob", site)
    user.script(SCRIPT)
    user.script(SCRIPT.replace("--time=5", "--time=5 --array=0-9"), "sweep.sh")
    user.script(GPUS, "g1.csv")
    done = user.submit("train.sh")
    lab.wait_jobs([done])
    lab.wait_accounted([done])
    for run in (user.run, lambda *words: lab.run(words, env=user.environment)):
        run("colloc", "ingest", "--since", "1h").check_returncode()
    user.environment["COLLOC_DOCS_JOB"] = done
    return user


@pytest.mark.parametrize("example", RUN, ids=str)
def test_each_call_runs(example: Example, lab: Lab, bob: User) -> None:
    # No shell reads the words: where the lab lies is put in here.
    words = [word.replace("${HOME%/home/*}", str(lab.root)) for word in example.words]
    words = [re.sub("471[01]", bob.environment["COLLOC_DOCS_JOB"], word) for word in words]
    if words[:3] == ["colloc", "site", "init"]:
        # Never the machine's own: what no --user keeps in a home goes into the lab.
        words += ["--force"] if "--user" in words else ["--force", "-o", str(lab.root / "out/docs.toml")]
    if words[:3] == ["colloc", "site", "gpus"]:
        words += ["--node", "g1"]
    if "--gpus" in words:
        gpus = lab.run_as("bob", ["colloc", "site", "gpus", "--node", "g1"], env=bob.environment)
        bob.script(gpus.stdout, words[words.index("--gpus") + 1])
    as_root = kept_as(example, NEEDS_ROOT) or (words[2:3] == ["init"] and "--user" not in words)
    done = lab.run(words, env=bob.environment) if as_root else bob.run(*words)
    assert done.returncode in MAY_END_WITH.get(kept_as(example, MAY_END_WITH) or (), (0,)), done.stderr
    if words[0] == "csub":
        submitted = job_id(done)
        assert submitted in bob.jobs()
        lab.run(["scancel", "-u", "bob"])


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("colloc job --format json", ("JOB",)),
        ("colloc me --format json", ()),
        ("colloc site doctor --format json", ()),
        ("colloc site gpus", ("--node", "g1")),
    ],
)
def test_json_has_what_its_reference_says(command: str, options: tuple[str, ...], bob: User) -> None:
    done = bob.run(
        *command.split(), *(bob.environment["COLLOC_DOCS_JOB"] if word == "JOB" else word for word in options)
    )
    assert json.loads(done.stdout).keys() == set(TOP_LEVEL[command]), done.stderr
