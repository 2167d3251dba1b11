# SPDX-License-Identifier: Apache-2.0
"""All rules over what an agent saw on an H100, where each user's name says what that user did to it."""

import json
import os
import shutil
from unittest import mock

import pytest

from tests.unit.doors import Said, colloc
from tests.unit.made import RECORDED

RECORDING = RECORDED / "h100-audits"
SITE = """schema = 1
cluster = "gpulab"
slurm_release = "22.05"
[[pool]]
name = "all"
nodes = "n1"
partitions = ["all"]
gpu_type = "h100"
gpu_model = "NVIDIA H100 80GB HBM3"
gpus_per_node = 1
gpu_mem_mib = 81559
sm_count = 132
mps_per_gpu = 100
[[partition]]
name = "all"
mps_users = "one"
[sharing]
order = ["mps"]
mps_daemon = "prolog"
"""
# What takes hours in a center takes seconds here.
BOUNDS = {
    "COL001": {"min_gpu_hours": 0.005, "shortest_min": 0.5, "tail_min": 1},
    "COL002": {"min_gpu_hours": 0.005},
    "COL003": {"min_gpu_hours": 0.005, "shortest_min": 0.5},
    "COL007": {"min_gpu_hours": 0.005},
    "COL012": {"min_gpu_hours": 0.005, "shortest_min": 0.5},
    "COL014": {"min_hours": 0.005, "direct_min": 0.5},
}
TRUTH = {
    ("COL001", "zero"),
    ("COL002", "n1"),
    ("COL003", "little"),
    ("COL003", "starved"),
    ("COL001", "tail"),
    ("COL001", "parked"),
    ("COL007", "little"),
    ("COL007", "starved"),
    # Its one core starts small kernels as fast as it can.
    ("COL012", "little"),
    ("COL012", "starved"),
    ("COL014", "beside"),
}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Said:
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copytree(RECORDING / "journal", folder / "journal")
    bounds = {code: ", ".join(f"{key} = {value}" for key, value in found.items()) for code, found in BOUNDS.items()}
    rules = "".join(f'[[audit.rule]]\ncode = "{code}"\nbounds = {{ {text} }}\n' for code, text in bounds.items())
    (folder / "site.toml").write_text(SITE + rules)
    store, runs = f"{folder}/store", f"{RECORDING}/sacct.txt"
    with mock.patch.dict(os.environ, {"COLLOC_CONF": f"{folder}/site.toml"}):
        taken = colloc("ingest", "--store", store, "--sacct-file", runs, "--journal", f"{folder}/journal")
        assert taken.status == 0, taken.err
        assert "samples: 207 rows in, 207 used, 0 job steps, 0 rejected" in taken.err
        window = ("--since", "2026-11-23T03:00:00+00:00", "--until", "2026-11-23T04:00:00+00:00")
        return colloc("audit", "run", "--store", store, *window, "--format", "json")


def test_everybody_is_named_for_what_they_did_and_for_nothing_else(audited: Said) -> None:
    assert audited.status == 1, audited.err
    found = json.loads(audited.out)["findings"]
    assert {(finding["code"], finding["subject"]) for finding in found} == TRUTH
    assert len(found) == len(TRUTH)
