# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.audit.rules import RULES, choose, entries, findings, kept_name, question
from slurm_colloc.audit.timing import of_about
from slurm_colloc.core.audit_model import RUNS, Finding
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_audit import Audit, AuditRule
from slurm_colloc.core.errors import ConfigError, InputError
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.audited import answer, make_audited
from slurm_colloc.facts.usage import used_hours_by, whole_usage
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.asked import IDLE, PARKED, ask, none, one
from tests.unit.golden import Printed
from tests.unit.made import decision, device, process, run, seen
from tests.unit.stored import stored


def test_a_finding(printed: Printed) -> None:
    answered, (found,) = ask("COL001", IDLE, {"user": "bob"})
    assert (answered.rows, answered.judged) == (2, 2)
    assert (found.rule, found.code, found.severity, found.about) == ("COL001", "COL001", "warning", "user")
    assert (found.subject, found.user, found.cluster, found.gpu_hours) == ("ann", "ann", "c", 24.0)
    printed("rules", found.evidence, found.reproduce)
    assert [(line.job_id, line.gres, line.gpu_hours) for line in found.jobs] == [("1", "gpu:h100:1", 24.0)]


def test_what_a_program_shows_that_only_opens_its_gpu_is_no_use(printed: Printed) -> None:
    opened = {"util_used": 0.0001, "sm_used": 0.024}
    found = one("COL001", IDLE | opened, IDLE)
    printed("rules", found.evidence)
    assert none("COL001", IDLE | {"sm_used": 0.0241})


def test_hours_of_a_user_add_up_and_users_and_clusters_stay_apart(printed: Printed) -> None:
    half = {**IDLE, "allocated": 16.0, "util_measured": 12.0, "sm_measured": 8.0, "coverage_pct": 75.0}
    found = one("COL001", half, half, half | {"user": "bob"}, half | {"cluster": "d"})
    assert (found.subject, found.cluster, found.gpu_hours, found.coverage_pct) == ("ann", "c", 24.0, 75.0)
    printed("rules", found.evidence)


def test_the_worst_are_named_first_and_the_others_counted() -> None:
    found = one("COL001", *(IDLE | {"util_measured": 10.0 + number} for number in range(7)))
    assert "in 7 runs (job 7, 6, 5, 4, 3, ...)" in one("COL001", *[IDLE] * 7).evidence
    assert [line.job_id for line in found.jobs] == ["7", "6", "5", "4", "3"]


def test_a_digest_is_of_which_runs_and_not_of_their_order() -> None:
    two = [IDLE | {"job_id": "7"}, IDLE | {"job_id": "8"}]
    assert one("COL001", *two).digest == one("COL001", *reversed(two)).digest
    assert one("COL001", *two).digest != one("COL001", two[0]).digest
    assert one("COL001", two[0]).digest != one("COL001", two[0] | {"start_s": 5}).digest


@pytest.mark.parametrize(
    "fields",
    [
        {"util_used": 0.0241},
        {"sm_used": 0.0241},
        # not measured at all is not zero
        {"util_used": None, "sm_used": None, "methods": [], "strong": False},
        # weaker than a measurement
        {"strong": False},
        {"coverage_pct": None},
        # too little seen
        {"util_measured": 14.0, "sm_measured": 14.0, "coverage_pct": 58.3},
        # sampled all the time, but the counters were there for a minute of it only
        {"util_measured": 0.5, "sm_measured": 0.0, "sm_used": None},
        # not enough of what was held was sampled to say "24 hours"
        {"allocated": 25.0, "util_measured": 23.0, "sm_measured": 20.0},
        # too little held, or of a size that nobody knows
        {"allocated": 23.9, "util_measured": 23.9, "sm_measured": 23.9},
        {"allocated": None},
        {"allocated": 0.0},
    ],
)
@pytest.mark.parametrize("run", [IDLE, PARKED])
def test_nobody_is_named_on_weak_evidence(run: dict[str, Any], fields: dict[str, Any]) -> None:
    assert none("COL001", run | fields)


def test_one_counter_is_enough() -> None:
    one("COL001", IDLE | {"util_used": None, "util_measured": 0.0})
    one("COL001", IDLE | {"sm_used": None, "sm_measured": 0.0})


def test_bounds_of_zero_name_nobody_without_hours() -> None:
    for idle in (IDLE, PARKED):
        assert none("COL001", idle | {"allocated": 0.0}, bounds={"min_gpu_hours": 0.0})


def test_what_can_be_judged_is_counted() -> None:
    answered, _ = ask("COL001", {}, {"strong": False}, {"util_used": None, "sm_used": None, "held_idle_hours": None})
    assert (answered.rows, answered.judged) == (3, 1)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"only": {"partition": ("gpu", "long")}}, 1),
        ({"only": {"partition": ("long",)}}, 0),
        ({"only": {"cluster": ("d",)}}, 0),
        ({"only": {"gpu_type": ("a100",), "partition": ("gpu",)}}, 0),
        ({"excluded": {"user": ("ann",)}}, 0),
        ({"excluded": {"user": ("bob",)}}, 1),
        ({"excluded": {"account": ("lab",)}}, 0),
        ({"excluded": {"partition": ("gpu",)}, "only": {"user": ("ann",)}}, 0),
        ({"excluded": {"qos": ("normal",)}}, 0),
    ],
)
def test_what_an_entry_looks_at(settings: dict[str, Any], found: int) -> None:
    answered, said = ask("COL001", IDLE, **settings)
    assert (answered.rows, len(said)) == (found, found)


def test_a_rule_may_run_twice_by_two_names_and_not_at_all(printed: Printed) -> None:
    audit = Audit(
        rule=(
            AuditRule("COL003", name="long ones", only={"partition": ("long",)}),
            AuditRule("COL003"),
            AuditRule("COL002", tell="nobody"),
        )
    )
    names = [entry.name for entry in entries(audit)]
    assert names == ["COL001", "COL001", "long ones", *(code for code in RULES if code not in ("COL001", "COL002"))]
    assert [entry.name for entry in choose(entries(audit), ["COL003"])] == ["long ones", "COL003"]
    assert [entry.name for entry in choose(entries(audit), ["long ones"])] == ["long ones"]
    assert [entry.name for entry in choose(entries(audit), ["Low use", "col001"])] == [
        *("COL001", "COL001", "long ones", "COL003")
    ]
    with printed.raises("audit", InputError, "'COL0033'.*'COL003'"):
        choose(entries(audit), ["COL0033"])
    with printed.raises("audit", InputError, "'x'"):
        choose(entries(audit), ["x"])


def test_an_entrys_own_name_comes_before_a_rules() -> None:
    audit = Audit(rule=(AuditRule("COL003", name="low use"),))
    assert [entry.name for entry in choose(entries(audit), ["low use"])] == ["low use"]
    assert [kept_name(entries(audit), text) for text in ("low use", "Idle", "gone")] == [
        "low use",
        "COL001",
        "gone",
    ]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            [AuditRule("COL002", only={"partition": ("gpu",)})],
            "COL002 looks at nodes, of which 'partition' says nothing; remove it",
        ),
        ([AuditRule("COL002", excluded={"user": ("ann",)})], "'user' says nothing"),
        ([AuditRule("COL001", only={"users": ("ann",)})], "runs have no 'users'; did you mean 'user'?"),
        (
            [AuditRule("COL001", only={"partition": ("a", "b")}, excluded={"partition": ("c", "b", "a")})],
            "'COL001': each 'partition' in 'only' is in 'excluded', too; remove one",
        ),
        ([AuditRule("COL0022")], "has code 'COL0022'; did you mean 'COL002'?"),
        ([AuditRule("COL001"), AuditRule("COL001")], "two .* are called 'COL001'; give each a 'name' of its own"),
        (
            [AuditRule("COL001", bounds={"min_gpu_hour": 1.0})],
            "has no bound 'min_gpu_hour'; did you mean 'min_gpu_hours'?",
        ),
        ([AuditRule("COL001", bounds={"min_gpu_hours": -1.0})], "must be 0 or more, not '-1'"),
        ([AuditRule("COL001", bounds={"min_gpu_hours": float("nan")})], "must be 0 or more"),
    ],
)
def test_mistakes_in_entries(rules: list[AuditRule], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        entries(Audit(rule=tuple(rules)))


def test_every_rule_is_documented() -> None:
    for code, rule in RULES.items():
        assert rule.code == code
        assert rule.documentation.startswith(f"{code}: ")
        assert all(bound.meaning and bound.default >= 0 for bound in rule.bounds.values())
    assert list(RULES) == sorted(RULES)


def test_low_use_is_weighted_by_time(printed: Printed) -> None:
    # 4.8 of 24 GPU-h and 1 of 48: 8 % over 72 h.
    long = {"allocated": 48.0, "sm_measured": 48.0, "sm_used": 1.0, "coverage_pct": 80.0}
    found = one("COL003", {}, long, IDLE)
    assert (found.gpu_hours, [line.job_id for line in found.jobs]) == (72.0, ["2", "1"])
    printed("rules", found.evidence)
    assert none("COL003", {}, long, bounds={"below_pct": 8.0})
    assert none("COL003", {}, long, bounds={"min_gpu_hours": 72.5})


@pytest.mark.parametrize("fields", [{"blackout_s": 30.0}, {"sm_used": None}, {"sm_measured": 14.0}, {"strong": False}])
def test_low_use_needs_sm_activity_that_is_true(fields: dict[str, Any]) -> None:
    busy = {"allocated": 100.0, "util_measured": 100.0, "sm_measured": 100.0, "sm_used": 1.0}
    one("COL003", busy)
    assert none("COL003", busy | {"allocated": 24.0 if "sm_measured" in fields else 100.0} | fields)


def audited(
    store: Store,
    code: str,
    since_s: float,
    until_s: float,
    about: str = "others",
    site: SiteConfig | None = None,
    **settings: Any,
) -> list[Finding]:
    config = Audit(rule=(AuditRule(code, **settings),))
    (entry,) = of_about(choose(entries(config), [code]), about)
    with store.connect(since_s, until_s) as database:
        aggregate(database, store, Window(since_s, until_s, until_s))
        make_audited(database, site)
        return findings(entry, answer(database, question(entry, until_s)), "")


def test_runs_of_a_store_are_judged_by_what_was_sampled_of_them(tmp_path: Path) -> None:
    idle = device(gpu_util_pct=0.0, sm_active_pct=0.0, gpu_mem_used_mib=500)
    dark = device("GPU-1", gpu_util_pct=50.0, sm_active_pct=0.0)
    rounds = [
        seen(at_s, [idle, dark], [process("1", 7, gpu_mem_used_mib=500), process("2", 8, "GPU-1")], interval_s=900.0)
        for at_s in (900.0, 1800.0, 2700.0, 3600.0)
    ]
    store = stored(tmp_path, [run("1"), run("2", user="bob")], rounds)
    low = {"min_gpu_hours": 0.5}
    assert [one.subject for one in audited(store, "COL001", 0.0, 3600.0, bounds=low)] == ["ann"]
    # While the counters were taken away, 0 is no measurement.
    assert audited(store, "COL003", 0.0, 3600.0, bounds=low | {"below_pct": 100.0}) == []


def test_in_little_memory_the_same_is_found(tmp_path: Path) -> None:
    idle = device(gpu_util_pct=0.0, sm_active_pct=0.0, gpu_mem_used_mib=500)
    busy = device("GPU-1", gpu_util_pct=50.0, sm_active_pct=3.0)
    rounds = [
        seen(
            at_s,
            [idle, busy],
            [process(str(day), 7, gpu_mem_used_mib=500), process(str(day + 10), 8, "GPU-1")],
            interval_s=900.0,
        )
        for day in range(1, 4)
        for at_s in (day * 86_400 + 900.0 * number for number in range(1, 97))
    ]
    runs = [
        run(str(day + more), day * 86_400, (day + 1) * 86_400, user=user)
        for day in range(1, 4)
        for more, user in ((0, "ann"), (10, "bob"))
    ]
    store = stored(tmp_path, runs, rounds)
    store.write_decisions([("ann", decision("2", at_s=2 * 86_400.0))])
    config = Audit()
    found = []
    for in_file in (False, True):
        with store.connect(0.0, 1e6) as database:
            aggregate(database, store, Window(100_000.0, 1e6, 1e6), in_file=in_file)
            make_audited(database)
            rows = database.execute(f"SELECT * FROM {RUNS} ORDER BY run").fetchall()
            answers = {entry.form: answer(database, question(entry, 1e6)) for entry in entries(config)}
            *_, last = used_hours_by(database, "user")
            assert whole_usage(database) == last
            said = [one for entry in entries(config) for one in findings(entry, answers[entry.form], "")]
            found.append((rows, answers, said, last))
    assert found[0] == found[1]
    assert {one.code for one in found[0][2]} >= {"COL001", "COL003"}


def test_a_window_of_the_past_is_judged_as_it_was_at_its_end(tmp_path: Path) -> None:
    idle = device(gpu_util_pct=0.0, sm_active_pct=0.0, gpu_mem_used_mib=500)
    rounds = [
        seen(at_s, [idle], [process("1", 7, gpu_mem_used_mib=500)], interval_s=900.0)
        for at_s in (900.0, 1800.0, 2700.0, 3600.0)
    ]
    store = stored(tmp_path, [run("1")], rounds)
    low = {"min_gpu_hours": 0.1}
    # It has ended since; then it ran.
    assert audited(store, "COL001", 0.0, 1800.0, bounds=low) == []
    assert len(audited(store, "COL001", 0.0, 3600.0, bounds=low)) == 1
