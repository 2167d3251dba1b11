# SPDX-License-Identifier: Apache-2.0
"""Why ORDER.md has Prolog, Epilog and TaskProlog on every node before slurm.conf names them, on real Slurm."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from slurm_colloc.core.config_file import load_site
from slurm_colloc.site.render import Host, render_site
from tests.cluster.fixtures import CHECKOUT, new_lab, running
from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

WAIT_S = 30.0
NODE = "c1"  # has no GPU


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with running(new_lab(), bare=True) as lab:
        yield lab


def _become(lab: Lab, base: str, **settings: object) -> None:
    """Give slurm.conf these settings, and the node back to jobs."""
    for key, value in settings.items():
        base = re.sub(rf"^{key}=.*", f"{key}={value}", base, flags=re.MULTILINE)
    lab.slurm_conf.write_text(base)
    lab.run(["scontrol", "reconfigure"], check=True)
    time.sleep(3.0)  # later releases start their daemons anew
    if _state(lab).startswith("drain"):
        lab.run(["scontrol", "update", f"nodename={NODE}", "state=resume"], check=True)


def _state(lab: Lab) -> str:
    return lab.run(["sinfo", "-h", "-n", NODE, "-p", "cpu", "-o", "%T"]).stdout.strip()


def _job(lab: Lab) -> str:
    """Return what became of a job on the node: its state, or why it waits, and that of the node."""
    submitted = lab.run_as("alice", ["sbatch", "-p", "cpu", "-o", "/dev/null", "--wrap", "true"], check=True)
    job = submitted.stdout.split()[-1]
    end = time.monotonic() + WAIT_S
    while True:
        told = lab.run(["scontrol", "show", "job", job]).stdout
        found = re.search(r"JobState=(COMPLETED|FAILED)|Reason=(launch_failed_requeued_held)", told)
        if found or time.monotonic() > end:
            time.sleep(1.0)  # the epilog's word comes after the job's end
            lab.run(["scancel", job])
            return f"{(found[1] or found[2]) if found else told} {_state(lab)}"
        time.sleep(0.2)


def test_a_node_that_lacks_what_slurm_conf_names(lab: Lab) -> None:
    base = lab.slurm_conf.read_text()
    folder = lab.root / "etc/prolog.d"
    folder.mkdir()
    _become(lab, base, TaskProlog=folder / "none")
    assert _job(lab) == "FAILED idle"
    _become(lab, base, Prolog=f"{folder}/*")
    assert _job(lab) == "launch_failed_requeued_held drained", "an empty folder is none"
    folder.rmdir()
    _become(lab, base, Epilog=f"{folder}/*")
    assert _job(lab) == "COMPLETED drained"
    _become(lab, base)
    assert _job(lab) == "COMPLETED idle"


def test_a_node_without_gpu_has_our_files_and_not_our_program(lab: Lab) -> None:
    base = lab.slurm_conf.read_text()
    config = load_site(str(CHECKOUT / "site-configs/h100-mps/site.toml"))
    files = {file.name: file for file in render_site(config, Host("/opt/slurm_colloc"))}
    names = ("prolog.50-colloc", "epilog.50-colloc", "task_prolog")
    assert {files[name].hosts for name in names} == {"each node, without GPUs too"}
    for name in names:
        place = lab.root / "etc" / name.partition(".")[0] / "50-colloc"
        place.parent.mkdir()
        place.write_text(files[name].text.replace("/usr/libexec/slurm_colloc", str(lab.root / "none")))
        place.chmod(0o755)
    etc = lab.root / "etc"
    _become(lab, base, Prolog=f"{etc}/prolog/*", Epilog=f"{etc}/epilog/*", TaskProlog=f"{etc}/task_prolog/50-colloc")
    assert _job(lab) == "COMPLETED idle"
