# SPDX-License-Identifier: Apache-2.0
import tomllib
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.audit.import_jds import Note, as_toml, convert
from slurm_colloc.audit.jds_alerts import ALERTS, COMMON, GLOBAL
from slurm_colloc.audit.rules import RULES, entries
from slurm_colloc.config import parse_site
from slurm_colloc.config_audit import Audit, AuditRule
from slurm_colloc.errors import InputError
from tests.unit.doors import colloc

SITE = {"schema": 1, "cluster": "c", "slurm_release": "24.11"}


def one(text: str) -> tuple[AuditRule, tuple[Note, ...]]:
    imported = convert(text)
    (rule,) = imported.rules
    return rule, imported.notes


def alert(name: str, **settings: Any) -> str:
    return "\n".join([f"{name}:", *(f"  {key}: {value}" for key, value in {"cluster": "della", **settings}.items())])


@pytest.mark.parametrize(
    ("text", "code", "bounds"),
    [
        (alert("zero-util-gpu-hours-1", gpu_hours_threshold_user=100), "COL001", {"min_gpu_hours": 100.0}),
        (alert("low-gpu-efficiency-7", absolute_thres_hours=50), "COL003", {"min_gpu_hours": 50.0}),
        (alert("gpu-model-too-powerful", gpu_hours_threshold=24), "COL007", {"min_gpu_hours": 24.0}),
        (alert("gpu-model-too-powerful"), "COL007", {"min_gpu_hours": 0.0}),
        (
            alert("too-many-cores-per-gpu-1", cores_per_gpu_limit=18),
            "COL008",
            {"cores_per_gpu": 18.0, "busy_below_pct": 100.0, "min_gpu_hours": 0.0},
        ),
        (
            alert("too-many-cores-per-gpu-1", cores_per_gpu_limit=18, cpu_eff_threshold=80, gpu_hours_threshold=5),
            "COL008",
            {"cores_per_gpu": 18.0, "busy_below_pct": 80.0, "min_gpu_hours": 5.0},
        ),
        (
            alert("too-much-cpu-mem-per-gpu-2", cpu_mem_per_gpu_limit=250, mem_eff_thres=0.8),
            "COL009",
            {"mem_per_gpu_mib": 256_000.0, "used_below_pct": 80.0, "min_gpu_hours": 0.0},
        ),
        (
            alert("multinode-gpu-fragmentation-1", gpus_per_node=8),
            "COL010",
            {"gpus_per_node": 8.0, "min_gpu_hours": 0.0},
        ),
        (
            alert("excessive-time-gpu-1", absolute_thres_hours=1000, overall_ratio_threshold=0.29),
            "COL011",
            {"min_unused_gpu_hours": 1000.0, "overall_pct": 29.0, "mean_pct": 100.0, "median_pct": 100.0},
        ),
        (
            alert("cancel-zero-gpu-jobs-1", first_warning_minutes=60, cancel_minutes=120),
            "COL016",
            {"first_warning_min": 60.0, "sliding_warning_min": 525_600.0},
        ),
        (
            alert("cancel-zero-gpu-jobs-1", sliding_warning_minutes=240, sliding_cancel_minutes=300),
            "COL016",
            {"first_warning_min": 240.0, "sliding_warning_min": 240.0},
        ),
    ],
)
def test_bounds_with_their_units_and_that_programs_defaults(text: str, code: str, bounds: dict[str, float]) -> None:
    rule, _ = one(text)
    assert (rule.code, dict(rule.bounds), rule.clusters) == (code, bounds, ("della",))


def test_which_runs_it_looks_at() -> None:
    rule, _ = one(
        alert(
            "zero-util-gpu-hours-1",
            partitions="[gpu, llm]",
            min_run_time=30,
            excluded_users="[ann]",
            excluded_qos="[test]",
            excluded_partitions="[short]",
            enabled="False",
        )
    )
    assert rule == AuditRule(
        "COL001",
        "zero-util-gpu-hours-1",
        enabled=False,
        clusters=("della",),
        partitions=("gpu", "llm"),
        excluded_users=("ann",),
        excluded_partitions=("short",),
        excluded_qos=("test",),
        min_run_min=30.0,
        running=False,
    )
    assert one(alert("zero-util-gpu-hours-1", partitions='["*"]', include_running_jobs="True"))[0] == AuditRule(
        "COL001", "zero-util-gpu-hours-1", clusters=("della",)
    )
    assert one(alert("cancel-zero-gpu-jobs-1", cluster="[a, b]"))[0].clusters == ("a", "b")


def test_a_partition_that_it_renames_is_named_as_slurm_does() -> None:
    renamed = "partition-renamings:\n  datascience: ds\n  data2: ds\n"
    assert one(renamed + alert("zero-util-gpu-hours-1", partitions="[ds, gpu]"))[0].partitions == (
        *("datascience", "data2"),
        "gpu",
    )


def test_what_has_no_counterpart_is_named_with_why() -> None:
    text = "sender: a@b.c\nsmtp-password: hunter2\n" + alert(
        "low-gpu-efficiency-1", eff_thres_pct=25, email_file='"x.txt"', admin_emails="[a@b.c]", nodelist="[g1]"
    )
    rule, notes = one(text)
    assert "below_pct" not in rule.bounds
    assert not rule.enabled
    said = [str(note) for note in notes]
    assert "sender: [notices] sender" in said
    assert (
        "low-gpu-efficiency-1: admin_emails, email_file: mails are the site's, not a rule's: section [notices]" in said
    )
    assert any("eff_thres_pct: it is a bound on GPU_UTIL" in one and "SM activity" in one for one in said)
    assert any("low-gpu-efficiency-1: nodelist: " in one for one in said)
    shown = as_toml(convert(text))
    assert all(f"# {one}" in shown for one in said)
    assert "hunter2" not in shown


def test_alerts_on_cpus_are_named_and_left() -> None:
    imported = convert(alert("low-cpu-efficiency-1", eff_thres_pct=60) + "\n" + alert("zero-cpu-utilization-1"))
    assert imported.rules == ()
    assert [note.alert for note in imported.notes] == ["low-cpu-efficiency-1", "zero-cpu-utilization-1"]
    assert "# low-cpu-efficiency-1: it is about jobs on CPUs" in as_toml(imported)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (alert("zero-util-gpu-hour-1"), "unknown key \"zero-util-gpu-hour-1\"; did you mean 'zero-util-gpu-hours'?"),
        ("sendr: x", "unknown key \"sendr\"; did you mean 'sender'?"),
        ("1: 2", "unknown key 1"),
        ("? [a]\n: 1", "no YAML: found unhashable key|unknown key"),
        (alert("too-many-cores-per-gpu-1", core_per_gpu_limit=1), "did you mean 'cores_per_gpu_limit'?"),
        (alert("low-cpu-efficiency-1", eff_pct=1), 'unknown key "eff_pct"'),
        (alert("zero-util-gpu-hours-1") + "\n" + alert("zero-util-gpu-hours-1"), 'line 3: "zero-util-gpu-hours-1" is'),
        ("zero-util-gpu-hours-1:\n  min_run_time: 1\n  min_run_time: 2", 'line 3: "min_run_time" is there twice'),
        (alert("zero-util-gpu-hours-1", min_run_time=""), "'min_run_time' has no value"),
        (alert("zero-util-gpu-hours-1", min_run_time="soon"), "'min_run_time' must be a number, 0 or more"),
        (alert("zero-util-gpu-hours-1", min_run_time="-1"), "must be a number"),
        (alert("zero-util-gpu-hours-1", gpu_hours_threshold_user=".nan"), "must be a number"),
        (alert("zero-util-gpu-hours-1", gpu_hours_threshold_user=".inf"), "must be a number"),
        (alert("zero-util-gpu-hours-1", gpu_hours_threshold_user="True"), "must be a number"),
        (alert("zero-util-gpu-hours-1", enabled="1"), "'enabled' must be True or False"),
        (alert("zero-util-gpu-hours-1", partitions="gpu"), "'partitions' must be a list of names"),
        (alert("zero-util-gpu-hours-1", excluded_users="[1234]"), "put each in quotes"),
        ("zero-util-gpu-hours-1: 7", "has no settings"),
        ("partition-renamings: 7", "must name a partition"),
        ("- a", "is a table of settings"),
        ("", "is a table of settings"),
        ("a: [", "line 1: no YAML: "),
        ("a: !!python/object/apply:os.system [id]", "line 1: no YAML: could not determine a constructor"),
        ("a: \x1b[31m", "no YAML"),
        ("a: " + "[" * 5000, "no configuration: RecursionError"),
        ("a: 2001-99-99", "no configuration: ValueError"),
    ],
)
def test_mistakes_are_errors_that_name_what_was_meant(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("[", r"\[").replace("(", r"\(") if "|" not in said else said):
        convert(text)


def test_hostile_names_stay_names() -> None:
    names = ["=cmd|'\"<b>\r\n", "\u202e\x1b[31m\x7f\x00", "𝔵 # [[audit.rule]]\ncode = 'COL002'"]
    escaped = ", ".join('"' + "".join(f"\\U{ord(letter):08x}" for letter in name) + '"' for name in names)
    imported = convert(alert("zero-util-gpu-hours-1", excluded_users=f"[{escaped}]"))
    ((shown,),) = (parse_site(SITE | tomllib.loads(as_toml(imported)), "x").audit.rule,)
    assert shown.excluded_users == tuple(names)


def test_what_it_prints_is_read_as_it_was_meant() -> None:
    every = "\n".join(
        alert(f"{name}-{number}", **dict.fromkeys(of.carried, 0.5), partitions="[gpu]")
        for number, (name, of) in enumerate(ALERTS.items())
    )
    imported = convert(every)
    assert len(imported.rules) == sum(bool(of.code) for of in ALERTS.values())
    assert parse_site(SITE | {"audit": tomllib.loads(as_toml(imported))["audit"]}, "x").audit.rule == imported.rules


def test_every_alert_is_a_rule_with_its_bounds() -> None:
    for of in ALERTS.values():
        if of.code in RULES:
            bounds = {bound: 1.0 for bound, _ in of.carried.values()} | dict(of.absent)
            settings = AuditRule(of.code, bounds=bounds)
            assert entries(Audit(rule=(settings,)))
        assert not set(of.dropped) & {*of.carried, *COMMON}
    assert all(GLOBAL.values())


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("%YAML 1.1\n---\n" + alert("zero-util-gpu-hours-1", gpu_hours_threshold_user=100, max_num_jobid=4))
    said = colloc("audit", "import", str(file))
    assert said.status == 0
    assert said.err.endswith("zero-util-gpu-hours-1: max_num_jobid: a finding names its first five jobs\n")
    assert tomllib.loads(said.out)["audit"]["rule"] == [
        {
            "code": "COL001",
            "name": "zero-util-gpu-hours-1",
            "clusters": ["della"],
            "running": False,
            "bounds": {"min_gpu_hours": 100},
        }
    ]
    file.write_text("sendr: x")
    said = colloc("audit", "import", str(file))
    assert (said.status, said.out) == (2, "")
    assert said.err == f"colloc: error: '{file}': unknown key \"sendr\"; did you mean 'sender'?\n"
    for content in (b"\xff", b"#" * (1 << 20) + b"#"):
        file.write_bytes(content)
        assert colloc("audit", "import", str(file)).status == 2
    assert colloc("audit", "import", str(tmp_path / "none")).status == 2
