# SPDX-License-Identifier: Apache-2.0
"""`colloc site doctor` on real clusters: set up soundly, and wrong on purpose."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.cluster import broken, cgroups, jobs
from tests.cluster.fixtures import RELEASE, running
from tests.cluster.lab import Lab
from tests.cluster.nodes import MIG_TYPE_PREFIX, PARTITIONS
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

# The lab's GPUs are files, without daemons or a driver, and the one who asks is on none of its nodes.
NOT_TO_BE_SEEN = {"DOC006", "DOC020"}
# g1 has mps beside whole GPUs and g2 shards, and 22.05 gives a GPU to both.
GIVEN_TWICE = {"DOC021"} if RELEASE == "22.05" else set()
NVIDIA_SMI = """#!/bin/sh
case "$*" in
*query-gpu*) echo "GPU-8c092671-ad93, NVIDIA H100 80GB HBM3, Prohibited, Enabled" ;;
-L) echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-8c092671-ad93)"
    echo "  MIG 1g.10gb     Device  0: (UUID: MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a)"
    echo "  MIG 3g.40gb     Device  1: (UUID: MIG-a45882f0-9215-5733-a0c1-49286ab31cb5)" ;;
esac
"""


def ask(
    lab: Lab, *options: str, user: str | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    argv = ["colloc", "site", "doctor", *options]
    env = {"COLLOC_CONF": "", **(env or {})}  # these labs have no site.toml
    return lab.run_as(user, argv, env=env) if user else lab.run(argv, env=env)


def found(lab: Lab, **how: Any) -> tuple[dict[str, list[tuple[str, str]]], dict[str, str], int]:
    """Return findings by code as (subject, evidence), what was not checked, and the exit status."""
    done = ask(lab, "--format", "json", **how)
    shown = json.loads(done.stdout)
    findings: dict[str, list[tuple[str, str]]] = {}
    for one in shown["findings"]:
        findings.setdefault(one["code"], []).append((one["subject"], one["evidence"]))
    return findings, {one["code"]: one["why"] for one in shown["not_checked"]}, done.returncode


@pytest.fixture(scope="module")
def wrong() -> Iterator[Lab]:
    with running(broken.shared_wrongly(RELEASE)) as lab:
        broken.limit(lab)
        yield lab


@pytest.fixture(scope="module")
def untracked() -> Iterator[Lab]:
    with running(broken.untracked(RELEASE)) as lab:
        yield lab


def test_a_sound_cluster_has_no_findings() -> None:
    version = next((version for version in ("v1", "v2") if not cgroups.missing(version)), None)
    if version is None:
        pytest.skip("no cgroups here, so no lab is sound")
    with cgroups.swept():
        lab = cgroups.new_lab(RELEASE, version)
        broken.replace(lab.root / "etc/gres.conf", "Name=mps Count=200", "Name=mps Count=200 Flags=all_sharing")
        with running(lab):
            for name in PARTITIONS:
                lab.run(["scontrol", "update", f"PartitionName={name}", "MaxTime=1-0"], check=True)
            for user in (None, "alice", "dave"):
                findings, gaps, status = found(lab, user=user)
                expected = {"DOC031": [("cgroup.conf", "ConstrainRAMSpace is no")]} if version == "v2" else {}
                twice = [subject for subject, _ in findings.pop("DOC021", [])]
                assert twice == ["g[1-2]"] * len(GIVEN_TWICE)
                assert findings == expected
                assert set(gaps) == NOT_TO_BE_SEEN, gaps
                assert status == (1 if expected or twice else 3)
            skipped = ask(lab, *(f"--skip={code}" for code in (*NOT_TO_BE_SEEN, *GIVEN_TWICE, "DOC031")))
            assert (skipped.returncode, skipped.stdout[:14]) == (0, "0 findings, by"), skipped.stdout


def test_a_limit_on_gpus_is_escaped_as_the_doctor_says(wrong: Lab) -> None:
    findings, _, status = found(wrong)
    assert status == 1
    assert any(subject == "QOS 'one'" and "gres/shard" in evidence for subject, evidence in findings["DOC050"])
    assert not any("'sound'" in subject for subject, _ in findings["DOC050"])
    wanted = ("gpu:1", "gpu:1", "mps:100", "shard:4")
    begun = []
    for gres in wanted:
        argv = ["sbatch", "--parsable", "-o", "/dev/null", "-q", "one", f"--gres={gres}", "--wrap=sleep 300"]
        begun.append(int(wrong.run_as("alice", argv, check=True).stdout))
    wrong.wait_state(begun[-1])
    states = [jobs.states(wrong)[job] for job in begun]
    wrong.run(["scancel", *map(str, begun)], check=True)
    assert states == ["RUNNING", "PENDING", "RUNNING", "RUNNING"]  # one by the limit, and two more past it


def test_shares_cost_nothing_as_the_doctor_says(wrong: Lab) -> None:
    findings, _, _ = found(wrong)
    assert ("partition 'free'", "TRESBillingWeights price GPUs and not gres/mps, gres/shard") in findings["DOC061"]
    assert [subject for subject, _ in findings["DOC060"]] == ["partition 'dear'"]
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "-p", "free", "--gres=mps:100", "--wrap=true"]
    job = wrong.run_as("alice", argv, check=True).stdout.strip()
    wrong.wait_jobs([job])
    wrong.wait_accounted([job])
    allocated = wrong.run(["sacct", "-X", "-n", "-P", "-j", job, "-o", "AllocTRES"], check=True).stdout
    assert "gres/mps=100" in allocated
    assert "billing" not in allocated


def test_everything_that_is_wrong_is_found(wrong: Lab) -> None:
    broken.queue_up(wrong)
    broken.wait_for_backfill(wrong)
    assert "DOC071" in found(wrong, user="bob")[0]
    wrong.run(["scancel", "-u", "alice"], check=True)
    broken.lose_a_slice(wrong)
    findings, gaps, status = found(wrong)
    expected = {f"DOC00{number}" for number in range(1, 9)} | {
        "DOC010",
        "DOC011",
        "DOC013",
        "DOC016",
        "DOC045",
        "DOC074",
        "DOC102",
    }
    expected |= {"DOC030", "DOC031", "DOC032", "DOC050", "DOC051", "DOC052", "DOC060", "DOC061", *GIVEN_TWICE}
    assert set(findings) - {"DOC071"} == expected
    assert set(gaps) == {"DOC020"}
    assert status == 1
    lost = f"{MIG_TYPE_PREFIX}2g.20gb"
    assert re.match(rf"slurm\.conf .*{lost}; gres\.conf .*nvidia_a100_2g\.10gb", findings["DOC011"][0][1])
    ((subject, evidence),) = findings["DOC013"]
    assert (subject, evidence.split()[-1]) == ("AccountingStorageTRES of slurm.conf", "gres/gpu:a100")
    as_user, gaps_of_user, _ = found(wrong, user="bob")
    assert (set(as_user) - {"DOC071"}, set(gaps_of_user)) == (expected, set(gaps))


def test_on_a_gpu_node_its_driver_is_asked(wrong: Lab) -> None:
    folder = wrong.root / "tmp/driver"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(NVIDIA_SMI)
    (folder / "nvidia-smi").chmod(0o755)
    path = f"{folder}:{wrong.environment()['PATH']}"
    findings, gaps, _ = found(wrong, env={"SLURMD_NODENAME": "m1", "PATH": path})
    assert ["prohibited" in evidence for _, evidence in findings["DOC020"]] == [True, True]
    assert any(re.search(r"2g\.20gb; .* 1g\.10gb, 3g\.40gb$", evidence) for _, evidence in findings["DOC011"])
    assert "DOC020" in gaps


def test_what_is_hidden_from_a_user_is_not_called_sound(untracked: Lab) -> None:
    untracked.run(["sacctmgr", "-i", "modify", "account", "ml", "set", "MaxTRES=gres/mps=10"], check=True)
    findings, gaps, status = found(untracked)
    in_cgroup, in_accounting = {"DOC030", "DOC031", "DOC032"}, {"DOC040", "DOC041", "DOC042", "DOC044"}
    assert set(findings) == in_cgroup | in_accounting | GIVEN_TWICE | {"DOC016"}
    assert findings["DOC041"] == [("AccountingStorageTRES of slurm.conf", "it lacks gres/shard")]
    assert (set(gaps), status) == (NOT_TO_BE_SEEN, 1)
    of_bob, gaps_of_bob, _ = found(untracked, user="bob")
    assert set(of_bob) == set(findings) - {"DOC044"}
    assert set(gaps_of_bob) == NOT_TO_BE_SEEN | {"DOC013", "DOC044", "DOC050", "DOC051"}
    assert "shows no association of root" in gaps_of_bob["DOC044"]


def test_a_cluster_without_one_time_accounting_or_a_plugin_that_knows_gpus_and_at_last_none(untracked: Lab) -> None:
    lab = untracked
    skewed = broken.ahead_of_time(lab, "g2", 300)

    def clocks(env: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
        return found(lab, env=env)[0].get("DOC070", [])

    wait_for(lambda: [subject for subject, _ in clocks()] == ["g2"], "g2's clock is not found to be ahead")
    assert re.fullmatch(r"its slurmd started (2\d\d|300) s after now: .*", clocks()[0][1])
    (subject, evidence), *_ = clocks({**skewed, "SKEW_S": "-90"})
    assert subject.endswith(" (this machine)")
    assert re.fullmatch(r"its clock is (89|90|91) s behind slurmctld's", evidence)
    sound = found(lab)[0]
    assert not {"DOC014", "DOC043"} & set(sound)
    broken.without_database(lab)
    findings, _, status = found(lab)
    assert [subject for subject, _ in findings["DOC043"]] == ["slurm.conf"]
    assert ("DOC014" in findings, status) == (False, 1)
    broken.whole_nodes_only(lab)
    assert found(lab, user="alice")[0]["DOC014"] == [("slurm.conf", "SelectType is select/linear")]
    refused = lab.run_as("alice", ["sbatch", "--gpus=1", "--wrap=true"])
    assert "GRES option unsupported by configured SelectType plugin" in refused.stderr
    lab.book.stop([record for record in lab.book.records() if record.name == "slurmctld"])
    gone = ask(lab)
    assert (gone.returncode, gone.stdout) == (2, "")
    assert "'scontrol show config' ended with status 1" in gone.stderr
