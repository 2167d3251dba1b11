# SPDX-License-Identifier: Apache-2.0
"""The policy in Lua: which jobs it understands, what it does about them, and that nothing makes it do harm."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.estimate.policy_table import KnownJob, table_text
from tests.unit.golden import Printed
from tests.unit.lua import HASH_OF_MODEL, NO_VAL, ONE, PIECE, VERSIONS, Loaded

MODEL = "made up"
SMALL = KnownJob(1000, "train", "/home/ann", 3000, 10, 30, 5, MODEL)
HOSTILE = ("a\nb", "a\0b", "%s%n%d%", "'\"`$(x)", "n" * 10_240, "\xff\xfe", "", "colloc=exclusive:")
OK, REFUSED = 0, -1


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("slurm_colloc.estimate.policy_table.model_hash", lambda model: HASH_OF_MODEL)
    path = tmp_path / "policy.table"
    path.write_bytes(table_text([SMALL, SMALL._replace(name="big", mem_mib=9800)], time.time()))
    return str(path)


@pytest.fixture(params=VERSIONS)
def loaded(request: pytest.FixtureRequest) -> Loaded:
    return Loaded(request.param)


def made(loaded: Loaded, spank: Sequence[str] = (), **fields: Any) -> Any:
    job = loaded.job(**fields)
    if spank:
        job.spank_job_env = loaded.lua.globals().at(loaded.to_lua(spank))
    return job


def submit(loaded: Loaded, table: str, policy: str, /, site: Any = None, **fields: Any) -> tuple[int, Any]:
    job = made(loaded, **fields)
    return loaded.new(table, policy=policy, **(site or {})).job_submit(job), job


# --- the four policies ---


def test_shadow_records_and_changes_nothing(loaded: Loaded, table: str) -> None:
    verdict, job = submit(loaded, table, "shadow")
    assert (verdict, job.tres_per_node, job.admin_comment) == (OK, "gres:gpu:1", f"colloc:shadow {ONE}")
    assert loaded.said == []
    assert any("3000 MiB" in line for line in loaded.logged)


def test_advise_says_what_to_type_and_changes_nothing(loaded: Loaded, table: str, printed: Printed) -> None:
    verdict, job = submit(loaded, table, "advise")
    assert (verdict, job.tres_per_node, job.admin_comment) == (OK, "gres:gpu:1", None)
    assert loaded.said[-1].endswith(f": sbatch --gres={ONE}")
    printed("policy", *loaded.said)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("gres:gpu:1", f"gres:{ONE}"),
        ("gres/gpu:1", f"gres/{ONE}"),
        ("gres/gpu", f"gres/{ONE}"),
        ("gres:gpu:h100:1", f"gres:{ONE}"),
        ("gres/gpu:h100", f"gres/{ONE}"),
    ],
)
def test_default_moves_the_job_by_the_prefix_of_its_release(loaded: Loaded, table: str, asked: str, given: str) -> None:
    verdict, job = submit(loaded, table, "default", tres_per_node=asked, admin_comment="site's")
    assert (verdict, job.tres_per_node) == (OK, given)
    assert job.admin_comment == f"site's; colloc:moved to {ONE}"
    assert len(loaded.said) == 1
    assert "--comment=colloc=off" in loaded.said[0]


def test_a_request_by_gpus_is_moved_in_its_own_field(loaded: Loaded, table: str) -> None:
    _, job = submit(loaded, table, "default", tres_per_node=None, tres_per_job="gres:gpu:1")
    assert (job.tres_per_node, job.tres_per_job) == (None, f"gres:{ONE}")


def test_enforce_refuses_and_names_the_line(loaded: Loaded, table: str, printed: Printed) -> None:
    verdict, job = submit(loaded, table, "enforce")
    assert (verdict, job.tres_per_node) == (REFUSED, "gres:gpu:1")
    assert loaded.said[-2].endswith(f": sbatch --gres={ONE}")
    printed("policy", *loaded.said)


# --- what a user wishes ---

OPTION = "_SLURM_SPANK_OPTION_colloc_colloc="


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"comment": "colloc=exclusive:all of the HBM"}, "all of the HBM"),
        ({"comment": "mine; colloc=exclusive: bandwidth "}, "bandwidth"),
        ({"spank": [f"{OPTION}exclusive:timing\n\x1b[31m"]}, "timing??[31m"),
        ({"spank": ["OTHER=1", f"{OPTION}exclusive:a"], "comment": "colloc=auto"}, "a"),
        ({"environment": {"SLURM_COLLOC": "0 exclusive:by csub"}}, "by csub"),
        ({"environment": {"SLURM_COLLOC": "7 exclusive:by csub", "SLURM_JOB_ID": "7"}}, "by csub"),
        ({"environment": {"SLURM_COLLOC": "0 auto"}, "comment": "colloc=exclusive:both"}, "both"),
    ],
)
def test_a_reason_keeps_the_whole_gpu_and_is_recorded(
    loaded: Loaded, table: str, fields: dict[str, Any], reason: str
) -> None:
    verdict, job = submit(loaded, table, "enforce", **fields)
    assert (verdict, job.tres_per_node, job.admin_comment) == (OK, "gres:gpu:1", f"colloc:exclusive:{reason}")


@pytest.mark.parametrize(
    "fields",
    [
        {"comment": "colloc=off"},
        {"comment": "colloc=exclusive:"},
        {"comment": "colloc=exclusive:   "},
        {"comment": "notcolloc=exclusive:reason"},
        {"comment": "colloc=exclusive"},
        {"environment": {"SLURM_COLLOC": "0 auto"}},
        {"environment": {"SLURM_COLLOC": "0 off"}},
        # Inherited from the job that it is submitted in.
        {"environment": {"SLURM_COLLOC": "0 exclusive:mine", "SLURM_JOB_ID": "7"}},
        {"environment": {"SLURM_COLLOC": "exclusive:no id"}},
    ],
)
def test_under_enforce_nothing_but_a_reason_will_do(loaded: Loaded, table: str, fields: dict[str, Any]) -> None:
    assert submit(loaded, table, "enforce", **fields)[0] == REFUSED


@pytest.mark.parametrize("policy", ["shadow", "advise", "default"])
@pytest.mark.parametrize(
    "fields", [{"comment": "colloc=off"}, {"environment": {"SLURM_COLLOC": "0 auto"}}], ids=["off", "csub"]
)
def test_elsewhere_off_is_enough_and_csub_is_not_second_guessed(
    loaded: Loaded, table: str, policy: str, fields: dict[str, Any]
) -> None:
    verdict, job = submit(loaded, table, policy, **fields)
    assert (verdict, job.tres_per_node, job.admin_comment, loaded.said) == (OK, "gres:gpu:1", None, [])


# --- which jobs ---


@pytest.mark.parametrize(
    "fields",
    [
        {"tres_per_node": "gres:gpu:2"},
        {"tres_per_node": "gres:gpu:h100:2"},
        {"tres_per_node": "gres:gpu:1,gres:nvme:1"},
        {"tres_per_node": "gres:gpu:a100:1"},
        {"tres_per_node": f"gres:{ONE}"},
        {"tres_per_node": "gres:shard:1"},
        {"tres_per_node": "gpu:1"},
        {"tres_per_node": None},
        {"tres_per_job": "gres:gpu:1"},
        {"tres_per_socket": "gres:gpu:1"},
        {"tres_per_task": "gres:gpu:1"},
        {"cpus_per_tres": "gres:gpu:8"},
        {"mem_per_tres": "gres:gpu:8000"},
        {"features": "a100"},
        {"req_nodes": "g1"},
        {"exc_nodes": "m1"},
        {"shared": 0},
        {"bitflags": 503316496},  # --gres-flags=enforce-binding, as 22.05, 24.11 and 26.05 have it
        {"reservation": "course"},
        {"num_tasks": 2},
        {"ntasks_per_node": 2},
        {"min_nodes": 2},
        {"het_job_offset": 0},
        {"partition": "other"},
        {"partition": "gpu,mig"},
        {"name": "unknown"},
        {"work_dir": "/home/bob"},
        {"user_id": 1001},
        {"name": "big"},  # with the headroom more than the slice has
        {"time_limit": 29},
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", ["default", "enforce"])
def test_what_is_not_plainly_one_whole_gpu_of_a_known_job_stays(
    loaded: Loaded, table: str, policy: str, fields: dict[str, Any]
) -> None:
    verdict, job = submit(loaded, table, policy, **fields)
    asked = {"tres_per_node": "gres:gpu:1", **fields}
    assert (verdict, job.tres_per_node, job.admin_comment) == (OK, asked["tres_per_node"], None)
    assert loaded.said == []


@pytest.mark.parametrize(
    "fields",
    # Any job that sbatch submits has flags, most of them of its own.
    [{"array_inx": "1-9"}, {"tres_per_task": "cpu=4"}, {"time_limit": 60}, {"bitflags": 550259130368}],
    ids=str,
)
def test_arrays_and_cores_are_fine(loaded: Loaded, table: str, fields: dict[str, Any]) -> None:
    assert submit(loaded, table, "default", **fields)[1].tres_per_node == f"gres:{ONE}"


@pytest.mark.parametrize(
    "fields",
    [
        {"script": None, "argc": 1},
        {"environment": {"SLURM_GPUS_PER_NODE": "h100:1"}, "tres_per_node": "gres:gpu:h100:1"},
        {"script": "#!/bin/sh\nsrun --gres=gpu:h100:1 python train.py\n"},
    ],
    ids=["srun", "--gpus-per-node=h100:1", "step"],
)
def test_what_a_step_would_miss_is_not_moved_and_enforced_all_the_same(
    loaded: Loaded, table: str, fields: dict[str, Any]
) -> None:
    verdict, job = submit(loaded, table, "default", **fields)
    assert (verdict, job.tres_per_node) == (OK, fields.get("tres_per_node", "gres:gpu:1"))
    assert job.admin_comment.startswith("colloc:kept, ")
    assert loaded.said == []
    assert submit(loaded, table, "enforce", **fields)[0] == REFUSED


def test_a_slice_of_another_partition_is_named_and_never_taken(loaded: Loaded, table: str) -> None:
    piece = {**PIECE, "partition": "mig"}
    assert submit(loaded, table, "default", {"pieces": [piece]})[1].tres_per_node == "gres:gpu:1"
    submit(loaded, table, "advise", {"pieces": [piece]})
    assert loaded.said[-1].endswith(f": sbatch -p mig --gres={ONE}")
    assert submit(loaded, table, "enforce", {"pieces": [{**piece, "max_min": 29}]})[0] == OK


@pytest.mark.parametrize(("change", "moved"), [({"sm": 10}, False), ({"sm": 11}, True), ({"model": "0"}, False)])
def test_a_slice_must_not_be_too_slow_nor_of_a_gpu_that_nobody_measured(
    loaded: Loaded, table: str, change: dict[str, Any], moved: bool
) -> None:
    job = submit(loaded, table, "default", {"pieces": [{**PIECE, **change}]})[1]
    assert (job.tres_per_node != "gres:gpu:1") is moved


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ({"cpus_per_task": 8, "min_mem_per_node": 4000}, True),
        ({"cpus_per_task": 65534, "pn_min_cpus": 65534, "min_cpus": NO_VAL, "min_mem_per_node": 2.0**64}, True),
        ({"cpus_per_task": 9}, False),
        ({"min_cpus": 9}, False),
        ({"pn_min_cpus": 9}, False),
        ({"min_mem_per_node": 4001}, False),
        ({"min_mem_per_cpu": 1000, "cpus_per_task": 4}, True),
        ({"min_mem_per_cpu": 1001, "cpus_per_task": 4}, False),
    ],
    ids=str,
)
def test_a_slices_node_must_have_what_the_job_asks_for(
    loaded: Loaded, table: str, fields: dict[str, Any], moved: bool
) -> None:
    """Slurm would refuse the job: no node with such a slice is large enough."""
    small = {"pieces": [{**PIECE, "cpus": 8, "host_mib": 4000}]}
    assert (submit(loaded, table, "default", small, **fields)[1].tres_per_node != "gres:gpu:1") is moved
    assert (submit(loaded, table, "enforce", small, **fields)[0] == REFUSED) is moved
    # Not known: as it was.
    assert submit(loaded, table, "enforce", {"pieces": [PIECE]}, **fields)[0] == REFUSED


# --- interactive ---

DESK = {"interactive": "gpu:desk:1", "names": ["spawner-jupyterhub"]}


def test_a_notebook_server_gets_the_interactive_piece(loaded: Loaded, table: str) -> None:
    _, job = submit(loaded, table, "default", DESK, name="spawner-jupyterhub")
    assert job.tres_per_node == "gres:gpu:desk:1"
    assert submit(loaded, table, "enforce", DESK, name="spawner-jupyterhub")[0] == REFUSED
    assert "sbatch --gres=gpu:desk:1" in loaded.said[-2]


@pytest.mark.parametrize(
    "fields", [{"argc": 0, "name": "x"}, {"argc": 1, "name": "interactive"}], ids=["22.05", "24.11"]
)
def test_slurmctld_refuses_salloc_and_never_rewrites_it(loaded: Loaded, table: str, fields: dict[str, Any]) -> None:
    verdict, job = submit(loaded, table, "default", DESK, script=None, environment=None, **fields)
    assert (verdict, job.tres_per_node) == (OK, "gres:gpu:1")
    assert submit(loaded, table, "enforce", DESK, script=None, environment=None, **fields)[0] == REFUSED
    assert "salloc --gres=gpu:desk:1" in loaded.said[-2]


def typed(**options: str) -> dict[str, str]:
    return {"type": "srun", "pty": "set", "gres": "gres:gpu:1", "nodes": "1-0", "ntasks": "1", "cpus-per-gpu": "0"} | {
        name.replace("_", "-"): value for name, value in options.items()
    }


def filtered(loaded: Loaded, policy: str, options: dict[str, Any], gres: str = "gpu:desk:1") -> tuple[int, Any]:
    table = loaded.to_lua(options)
    return loaded.new("/none", policy=policy, interactive=gres).cli_filter(table), table


@pytest.fixture
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


@pytest.mark.usefixtures("_outside")
@pytest.mark.parametrize(
    ("options", "name", "gets"),
    [
        (typed(), "gres", "gpu:desk:1"),
        (typed(pty="", gres="gres/gpu:1"), "gres", "gpu:desk:1"),
        (typed(type="salloc", pty="invalid-context"), "gres", "gpu:desk:1"),
        ({**typed(gpus="1"), "gres": "unset"}, "gpus", "desk:1"),
        ({**typed(gpus_per_node="h100:1"), "gres": ""}, "gpus-per-node", "desk:1"),
    ],
)
def test_a_person_at_a_terminal_gets_the_interactive_piece(
    loaded: Loaded, options: dict[str, str], name: str, gets: str
) -> None:
    verdict, table = filtered(loaded, "default", options)
    assert (verdict, table[name]) == (OK, gets)
    assert "colloc=off" in loaded.logged[-1]


@pytest.mark.usefixtures("_outside")
@pytest.mark.parametrize(
    "options",
    [
        typed(pty="unset"),
        typed(type="sbatch"),
        typed(jobid="12"),
        typed(constraint="a100"),
        typed(nodes="2"),
        typed(ntasks="4"),
        typed(gpus="1"),
        typed(gres="gres:gpu:2"),
        typed(cpus_per_gpu="8"),
        typed(comment="colloc=off"),
        typed(comment="colloc=exclusive:r"),
        {**typed(), "spank": {"colloc": {"colloc": "off"}}},
        {**typed(), "spank": {"colloc": "off"}},
        typed(partition="other"),
    ],
    ids=str,
)
def test_other_commands_stay(loaded: Loaded, options: dict[str, Any]) -> None:
    verdict, table = filtered(loaded, "default", options)
    assert (verdict, table["gres"], loaded.said) == (OK, options["gres"], [])


def test_a_step_inside_a_job_stays(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert filtered(loaded, "default", typed())[1]["gres"] == "gres:gpu:1"
    assert filtered(loaded, "enforce", typed())[0] == OK


@pytest.mark.usefixtures("_outside")
def test_a_share_is_not_put_where_gpus_were_asked_for(loaded: Loaded) -> None:
    options = {**typed(gpus="1"), "gres": ""}
    assert filtered(loaded, "default", options, "shard:1")[1]["gpus"] == "1"
    assert filtered(loaded, "default", typed(), "shard:1")[1]["gres"] == "shard:1"


@pytest.mark.usefixtures("_outside")
def test_srun_pty_is_refused_told_and_left_alone_by_policy(loaded: Loaded, printed: Printed) -> None:
    assert filtered(loaded, "enforce", typed())[0] == REFUSED
    printed("policy", *loaded.said)
    assert filtered(loaded, "advise", typed())[0] == OK
    printed("policy", *loaded.logged)
    before = len(loaded.logged)
    assert filtered(loaded, "shadow", typed())[0] == OK
    assert len(loaded.logged) == before


# --- what can go wrong ---


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("policy", ["shadow", "advise", "default", "enforce"])
def test_hostile_words_in_any_field_do_no_harm(loaded: Loaded, table: str, policy: str, value: str) -> None:
    for name in ("name", "work_dir", "partition", "comment", "tres_per_node", "script", "features", "user_id"):
        verdict, _ = submit(loaded, table, policy, **{name: value})
        assert verdict in (OK, REFUSED if policy == "enforce" else OK)
    for line in (*loaded.said, *loaded.logged):
        assert len(line) < 600
        assert line.isprintable()


def test_a_hostile_name_that_is_known_is_printed_without_harm(loaded: Loaded, tmp_path: Path, table: str) -> None:
    Path(table).write_bytes(table_text([SMALL._replace(name="a\n%s\x1b[31m")], time.time()))
    assert submit(loaded, table, "enforce", name="a\n%s\x1b[31m")[0] == REFUSED
    assert "'a?%s?[31m'" in loaded.said[0]


def test_every_field_may_be_missing_or_raise(loaded: Loaded, table: str) -> None:
    hooks = loaded.new(table, policy="enforce")
    for job in (loaded.to_lua({}), loaded.lua.globals().raising(), None, "job"):
        assert hooks.job_submit(job) == OK
        assert hooks.cli_filter(job) == OK


@pytest.mark.parametrize("name", ["tres_per_node", "name", "work_dir", "user_id", "script", "environment", "comment"])
@pytest.mark.parametrize("value", [None, 7, True, {"a": 1}], ids=str)
def test_any_one_field_may_be_of_another_kind(loaded: Loaded, table: str, name: str, value: Any) -> None:
    for policy in ("shadow", "advise", "default"):
        assert submit(loaded, table, policy, **{name: value})[0] == OK


LONG = 4_000_000


@pytest.mark.parametrize(
    "fields",
    [
        {"comment": "colloc=exclusive:" + " " * LONG},
        {"comment": "colloc=" * (LONG // 7)},
        {"spank": [f"{OPTION}exclusive:" + " " * LONG] * 64},
        {"spank": ["OPTION_colloc_" * (LONG // 14)] * 64},
        {"script": "\n" * LONG},
        {"script": "srun x\n" * (LONG // 7)},
        {"tres_per_node": "gres:gpu:" + ":1" * (LONG // 2)},
        {"name": "n" * LONG},
        {"work_dir": "/" * LONG},
        {"environment": {"SLURM_COLLOC": "0 exclusive:" + " " * LONG}},
        {"environment": {"SLURM_COLLOC": "1" * LONG}},
        {"environment": {"SLURM_GPUS": "1" * LONG}},
    ],
    ids=lambda fields: " ".join(fields),
)
def test_nobody_makes_slurmctld_wait_by_long_words(loaded: Loaded, table: str, fields: dict[str, Any]) -> None:
    hooks, job = loaded.new(table, policy="default"), made(loaded, **fields)
    hooks.job_submit(loaded.job())  # reads the table
    clock = loaded.lua.eval("os.clock")
    began = clock()
    assert hooks.job_submit(job) == OK
    assert clock() - began < 0.25, "what grows with the square of a text takes minutes"


def test_without_a_table_every_job_stays(loaded: Loaded) -> None:
    for _ in range(3):
        assert submit(loaded, "/none/policy.table", "enforce")[0] == OK


def test_what_slurm_itself_does_wrong_leaves_the_job(loaded: Loaded, table: str) -> None:
    loaded.lua.execute("slurm.log_user = function() error('no') end")
    assert submit(loaded, table, "advise")[0] == OK
    assert "left alone" in loaded.logged[-1]


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet=st.characters(max_codepoint=255), max_size=60))
def test_no_request_but_one_whole_gpu_is_read_as_one(text: str) -> None:
    found = LOADED.policy.one_gpu(text)
    if found is not None:
        prefix, kind = found
        assert text in {f"{prefix}gpu:{kind}:1", f"{prefix}gpu:{kind}", f"{prefix}gpu", f"{prefix}gpu:1"}


LOADED = Loaded()
