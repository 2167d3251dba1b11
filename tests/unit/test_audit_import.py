# SPDX-License-Identifier: Apache-2.0
import tomllib
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.audit.import_jds import Note, as_toml, convert
from slurm_colloc.audit.jds_alerts import ALERTS, COMMON, GLOBAL
from slurm_colloc.audit.message import check_settings
from slurm_colloc.audit.rules import RULES, all_entries, entries
from slurm_colloc.config import parse_site
from slurm_colloc.config_audit import Audit, AuditRule, Notices
from slurm_colloc.errors import InputError
from tests.unit.doors import colloc

SITE = {"schema": 1, "cluster": "c", "slurm_release": "24.11"}


def one(text: str) -> tuple[AuditRule, tuple[Note, ...]]:
    imported = convert(text)
    (rule,) = (rule for rule in imported.rules if rule.name)
    return rule, imported.notes


def alert(name: str, **settings: Any) -> str:
    return "\n".join([f"{name}:", *(f"  {key}: {value}" for key, value in {"cluster": "della", **settings}.items())])


# That program judges a run however short it was, unless min_run_time says otherwise.
ANY_RUN = {"shortest_min": 0.0}


@pytest.mark.parametrize(
    ("text", "code", "bounds"),
    [
        (alert("zero-util-gpu-hours-1", gpu_hours_threshold_user=100), "COL001", {"min_gpu_hours": 100.0} | ANY_RUN),
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
        bounds=ANY_RUN,
    )
    assert one(alert("zero-util-gpu-hours-1", partitions='["*"]', include_running_jobs="True"))[0] == AuditRule(
        "COL001", "zero-util-gpu-hours-1", clusters=("della",), bounds=ANY_RUN
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
    assert imported.rules == tuple(AuditRule(code, enabled=False) for code in RULES)
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
        (alert("zero-util-gpu-hours-1", partitions="[]"), "'partitions' leaves nothing to look at"),
        (alert("zero-util-gpu-hours-1", cluster="[]"), "'cluster' leaves nothing to look at"),
        (alert("zero-util-gpu-hours-1", excluded_users='["*"]'), "'excluded_users' leaves nothing to look at"),
        (alert("too-many-cores-per-gpu-1", cores_per_gpu_limit=0), "'cores_per_gpu_limit' is 0"),
        (alert("too-much-cpu-mem-per-gpu-1", cpu_mem_per_gpu_limit=0), "'cpu_mem_per_gpu_limit' is 0"),
        (alert("multinode-gpu-fragmentation-1", gpus_per_node=0), "'gpus_per_node' is 0"),
        (alert("cancel-zero-gpu-jobs-1", first_warning_minutes=0), "'first_warning_minutes' is 0"),
        (
            alert("cancel-zero-gpu-jobs-1", first_warning_minutes=60, second_warning_minutes=60, cancel_minutes=90),
            "first_warning_minutes, second_warning_minutes, cancel_minutes must ascend",
        ),
        (alert("cancel-zero-gpu-jobs-1", cancel_minutes="soon"), "'cancel_minutes' must be a number"),
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
    shown, *_ = parse_site(SITE | tomllib.loads(as_toml(imported)), "x").audit.rule
    assert shown.excluded_users == tuple(names)


def test_what_it_prints_is_read_as_it_was_meant() -> None:
    every = "\n".join(
        alert(f"{name}-{number}", **dict.fromkeys(of.carried, 0.5), partitions="[gpu]")
        for number, (name, of) in enumerate(ALERTS.items())
    )
    imported = convert(every)
    assert sum(bool(rule.name) for rule in imported.rules) == sum(bool(of.code) for of in ALERTS.values())
    assert parse_site(SITE | {"audit": tomllib.loads(as_toml(imported))["audit"]}, "x").audit.rule == imported.rules


def test_every_alert_is_a_rule_with_its_bounds() -> None:
    for of in ALERTS.values():
        if of.code in RULES:
            bounds = {bound: 1.0 for bound, _ in of.carried.values()} | dict(of.absent)
            settings = AuditRule(of.code, bounds=bounds)
            assert entries(Audit(rule=(settings,)))
        assert not set(of.dropped) & {*of.carried, *COMMON}
    assert all(GLOBAL.values())


def uncommented(shown: str, depth: int = 1) -> dict[str, Any]:
    """Return [notices] as it is read once the block of comments is taken out of its comments so many times."""
    _, begin, block = shown.partition("# [notices]\n")
    lines = (begin + block).splitlines()
    for _ in range(depth):
        lines = [line.removeprefix("# ") for line in lines]
    found = tomllib.loads("\n".join(lines))["notices"]
    assert isinstance(found, dict)
    return found


# What the program's own examples set, alert by alert.
EXAMPLES = [
    alert(
        "cancel-zero-gpu-jobs-1",
        sampling_period_minutes=15,
        first_warning_minutes=60,
        second_warning_minutes=105,
        cancel_minutes=120,
        sliding_warning_minutes=240,
        sliding_cancel_minutes=300,
        max_interactive_hours=8,
        do_not_cancel="False",
        email_file_first_warning='"cancel_gpu_jobs_warning_1.txt"',
    ),
    alert("zero-util-gpu-hours-1", min_run_time=30, gpu_hours_threshold_user=100, gpu_hours_threshold_admin=24),
    alert("low-gpu-efficiency-1", eff_thres_pct=25, eff_target_pct=50, absolute_thres_hours=50, proportion_thres_pct=2),
    alert(
        "gpu-model-too-powerful-1",
        gpu_util_threshold=15,
        gpu_mem_usage_max=10,
        cpu_mem_usage_per_gpu=32,
        num_cores_per_gpu=12,
        gpu_hours_threshold=24,
    ),
    alert(
        "too-much-cpu-mem-per-gpu-1",
        cores_per_node=48,
        gpus_per_node=4,
        cpu_mem_per_node=1000,
        cpu_mem_per_gpu_target=240,
        cpu_mem_per_gpu_limit=250,
        mem_eff_thres=0.8,
    ),
    alert(
        "too-many-cores-per-gpu-1",
        cores_per_node=96,
        gpus_per_node=8,
        cores_per_gpu_target=12,
        cores_per_gpu_limit=18,
    ),
    alert("multinode-gpu-fragmentation-1", gpus_per_node=8, min_run_time=61),
    alert("excessive-time-gpu-1", absolute_thres_hours=1000, overall_ratio_threshold=0.2, num_top_users=10),
    alert("excessive-time-cpu-1", absolute_thres_hours=100000, mean_ratio_threshold=0.2),
    alert("zero-cpu-utilization-1", min_run_time=61),
    alert("low-cpu-efficiency-1", eff_thres_pct=60, eff_target_pct=90, absolute_thres_hours=50),
    alert("excess-cpu-memory-1", tb_hours_threshold=65, ratio_threshold=0.35, num_top_users=10),
    alert("serial-allocating-multiple-1", cpu_hours_threshold=100),
    alert("multinode-cpu-fragmentation-1", cores_per_node=32, cores_fraction=0.5, mem_per_node=190, safety_frac=0.2),
]
MAILS = """sender: hpc@example.org
reply-to: help@example.org
report-emails: [admin@example.org]
email-method: append
email-domain-name: "@example.org"
smtp-server: smtp.example.org
smtp-port: 587
smtp-user: hpc
smtp-password: hunter2
workday-method: always
"""


@pytest.mark.parametrize("text", [*EXAMPLES, MAILS, MAILS + "\n".join(EXAMPLES)])
def test_what_the_programs_own_examples_become_is_a_configuration(text: str) -> None:
    shown = as_toml(convert(text))
    read = parse_site(SITE | tomllib.loads(shown), "x")
    known = all_entries(read.audit)
    # What that program does not do, this one does not do either.
    assert {one.rule.code for one in known} == set(RULES)
    assert {one.name for one in known if one.settings.enabled} <= {line.split(":")[0] for line in text.splitlines()}
    assert read.notices == Notices()
    if "# [notices]" in shown:
        for depth in (1, 2):
            check_settings(parse_site(SITE | {"notices": uncommented(shown, depth)}, "x").notices)


def test_a_section_of_notices_is_ready_to_be_read() -> None:
    shown = as_toml(convert(MAILS + EXAMPLES[0]))
    assert uncommented(shown) == {
        "mode": "off",
        "sender": "hpc@example.org",
        "reply_to": "help@example.org",
        "admins": ["admin@example.org"],
        "address": "{user}@example.org",
        "smtp_host": "smtp.example.org",
        "smtp_port": 587,
        "smtp_user": "hpc",
        "smtp_tls": "starttls",
        "smtp_password_file": "/etc/slurm_colloc/smtp-password",
        "workdays": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
        "job_quiet_min": 45,
        "job_deadline_min": 15,
    }
    assert uncommented(shown, 2) == uncommented(shown) | {
        "action": "cancel",
        "action_rules": ["cancel-zero-gpu-jobs-1"],
    }
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("minutes", "quiet_min", "deadline_min"),
    [
        ({"first_warning_minutes": 60, "cancel_minutes": 120}, 30, 30),
        ({"sliding_warning_minutes": 240, "sliding_cancel_minutes": 300}, 30, 30),
        ({"first_warning_minutes": 60, "second_warning_minutes": 62, "cancel_minutes": 63}, 10, 10),
        ({"first_warning_minutes": 60}, None, None),
    ],
)
def test_the_steps_of_a_ladder(minutes: dict[str, int], quiet_min: int | None, deadline_min: int | None) -> None:
    found = convert(alert("cancel-zero-gpu-jobs-1", **minutes, do_not_cancel="True")).notices
    assert (found.settings.get("job_quiet_min"), found.settings.get("job_deadline_min")) == (quiet_min, deadline_min)
    assert not found.action
    off = convert(alert("cancel-zero-gpu-jobs-1", **minutes, enabled="False")).notices
    assert not off.settings


def test_a_mail_setting_that_is_refused_here_is_said_to_be() -> None:
    shown = as_toml(convert('sender: "HPC <hpc@example.org>"\nsmtp-port: 99999\nholidays-file: days.txt\n'))
    assert "# Not carried over: 'notices.sender': 'HPC <hpc@example.org>' is no plain address" in shown
    assert "'notices.smtp_port'" in shown
    assert uncommented(shown) == {"mode": "off"}


def test_jobs_that_run_are_what_a_rule_about_them_looks_at() -> None:
    rule, _ = one(alert("cancel-zero-gpu-jobs-1", first_warning_minutes=60, include_running_jobs="False"))
    assert rule.running


def test_efficiency_by_another_metric_is_off_until_its_bound_is_chosen() -> None:
    rule, notes = one(EXAMPLES[2])
    assert not rule.enabled
    assert any("choose bounds.below_pct, then switch it on" in str(note) for note in notes)


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("%YAML 1.1\n---\n" + alert("zero-util-gpu-hours-1", gpu_hours_threshold_user=100, max_num_jobid=4))
    said = colloc("audit", "import", str(file))
    assert said.status == 0
    assert said.err.endswith("zero-util-gpu-hours-1: max_num_jobid: a finding names its first five jobs\n")
    rule, *others = tomllib.loads(said.out)["audit"]["rule"]
    assert others == [{"code": code, "enabled": False} for code in RULES if code != "COL001"]
    assert [rule] == [
        {
            "code": "COL001",
            "name": "zero-util-gpu-hours-1",
            "clusters": ["della"],
            "running": False,
            "bounds": {"min_gpu_hours": 100, "shortest_min": 0},
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
