# SPDX-License-Identifier: Apache-2.0
"""A look at the user's waiting jobs, against a slurmctld made up of records; tests/cluster has the real one."""

import json
import os
import pwd
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc.late import late
from slurm_colloc.cli.colloc.sample import sample
from slurm_colloc.cli.sampling import Settings, _Looks
from slurm_colloc.core.config import Rule, Sharing, SiteConfig
from slurm_colloc.core.errors import InputError, ProcessError, StoreError
from slurm_colloc.core.files import locked
from slurm_colloc.core.model import LATE, Evidence, Gres, JobRequest
from slurm_colloc.estimate.records import drop_decision, drop_evidence, latest_of_jobs, read_decisions
from slurm_colloc.estimate.site_stop import Stop, write_stop
from slurm_colloc.rebind.forms import form_of
from slurm_colloc.rebind.look import look
from slurm_colloc.rebind.probe import Trial, holding, probe, trials_of
from slurm_colloc.rebind.program import main
from slurm_colloc.rebind.waiting import Waiting, keep, keep_submitted, lock_path, read_one, read_waiting, start_look
from slurm_colloc.slurm.array import parse_array
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.free_gpus import Free
from slurm_colloc.slurm.jobs import QueuedJob
from slurm_colloc.slurm.limits import Limits
from slurm_colloc.slurm.pending import parse_pending, update
from slurm_colloc.submit.requeue_data import option_of
from tests.unit.golden import Printed
from tests.unit.made import MPS_POOL, decision, evidence, request, site
from tests.unit.programs import colloc
from tests.unit.shell import Shell

SIGNATURE = "0123456789abcdef0123456789abcdef.~~00000000"
ME = pwd.getpwuid(os.geteuid()).pw_name
RELEASES = {"22.05": "22.05.8", "24.11": "24.11.5", "26.05": "26.05.5"}


class Controller:
    """Records of jobs, changed as slurmctld would, but for what ``refuse`` says of a job, a field and a value."""

    def __init__(self, release: str = "26.05") -> None:
        self.release = release
        self.records: dict[str, dict[str, str]] = {}
        self.conf = {
            "SLURM_VERSION": RELEASES[release],
            "PriorityWeightTRES": "(null)",
            "SlurmctldParameters": "(null)",
        }
        self.refuse: Callable[[str, str, str], bool] = lambda target, field, value: False
        self.dies = ""
        self.asked: list[str] = []
        self.units: dict[tuple[str, str], int] = {}
        self.single: dict[tuple[str, str], int] = {}

    def submit(self, job_id: str, **fields: str) -> None:
        self.records[job_id] = {
            "JobId": job_id,
            "JobName": "train.sh",
            "UserId": f"ann({os.geteuid()})",
            "JobState": "PENDING",
            "Reason": "Priority",
            "Partition": "gpu",
            "TimeLimit": "01:00:00",
            "Deadline": "N/A",
            "OverSubscribe": "OK",
            "TresPerNode": "gres/gpu:h100:1",
            **fields,
        }

    def job_states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        return dict.fromkeys(job_ids, "RUNNING")

    def limits(self, cluster: str) -> Limits:
        raise AssertionError("nobody asked for limits")

    def config(self) -> Mapping[str, str]:
        return self.conf

    def own_queue(self, *filters: str) -> list[QueuedJob]:
        self.asked.append("squeue")
        waiting = (one for one in self.records.values() if one["JobState"] == "PENDING")
        queued = [(one["JobId"], parse_array(one.get("ArrayTaskId", "0"))) for one in waiting]
        return [QueuedJob(job_id, job_id, "ann", "PENDING") for job_id, tasks in queued for _ in tasks]

    def free(self, *, single: bool = False) -> Free:
        self.asked.append("sinfo")
        return Free(0.0, self.single if single else self.units)

    def control(self, lines: Sequence[str]) -> str:
        self.asked += lines
        if self.dies == "before" and any(line.startswith("update") for line in lines):
            raise ProcessError("killed")
        shown = []
        for line in lines:
            verb, _, rest = line.partition(" ")
            if verb == "update":
                target, *words = rest.removeprefix("JobId=").split(" ")
                self._update(target, dict(word.split("=", 1) for word in words))
            else:
                record = self.records.get(rest.removeprefix("job "), {})
                shown.append(" ".join(f"{name}={value}" for name, value in record.items()))
        if self.dies == "after" and any(line.startswith("update") for line in lines):
            raise ProcessError("killed")
        return "\n".join(shown)

    def _update(self, target: str, fields: Mapping[str, str]) -> None:
        record = self.records[target]
        for field, value in fields.items():
            if not self.refuse(target, field, value):
                value = f"gres/{value}" if field == "Gres" else value
                record["TresPerNode" if field == "Gres" else field] = value


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteConfig:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    pool = MPS_POOL._replace(gpus_per_node=1)
    sharing = Sharing(order=("mps",), mps_daemon="prolog", late_binding="on", max_slowdown=2.5)
    return site(pool)._replace(sharing=sharing, slurm_release="26.05")


@pytest.fixture
def slurm() -> Controller:
    return Controller()


def asked(**fields: object) -> JobRequest:
    return request(signature=SIGNATURE, time_limit_min=60.0, gres=(Gres("gpu", "h100", 1),))._replace(**fields)  # type: ignore[arg-type]


def wait(config: SiteConfig, slurm: Controller, job_id: str, **fields: object) -> None:
    """Have a job wait that csub submitted as asked."""
    slurm.submit(job_id)
    keep_submitted(config, job_id, asked(**fields))
    drop_decision(config.decisions_folder, decision(job_id=job_id, signature=SIGNATURE, given="as asked"))


def learn(**fields: object) -> None:
    known: Evidence = evidence(signature=SIGNATURE, peak_mib=4000, sm_active_mean_pct=5.0)
    drop_evidence(os.path.join(os.environ["XDG_DATA_HOME"], "slurm_colloc"), known._replace(**fields))  # type: ignore[arg-type]


def change(config: SiteConfig, job_id: str) -> tuple[str, bool, str] | None:
    """Return what a job's file says: what it is to ask for, whether Slurm was seen to have it, why it was undone."""
    kept = read_one(config.cluster, job_id)
    assert kept is not None
    return None if kept.change is None else (kept.change.gres, kept.change.is_told, kept.change.why)


def test_a_known_need_becomes_a_piece_and_the_ledger_says_so(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    assert look(config, slurm).bound == ()
    learn()
    assert look(config, slurm).bound == ("7",)
    assert slurm.records["7"]["TresPerNode"] == "gres/mps:7"
    assert change(config, "7") == ("mps:7", True, "")
    decided = read_decisions(config.decisions_folder, "-7.json")[0]
    assert [one.given for one in decided] == ["as asked", "mps:7"]
    other = decision(job_id="8", given="as asked")
    assert latest_of_jobs([decided[0], other, decided[1]]) == [other, decided[1]]
    assert latest_of_jobs([other, other]) == [other, other]
    assert (decided[1].mode, decided[1].rung, decided[1].arm) == ("mps", "exact", LATE)
    said = Path(lock_path(config.cluster)).parent / "7.said"
    assert "mps:7" in said.read_text()


def test_the_charge_before_and_after_is_said_as_slurm_bills_it(config: SiteConfig, slurm: Controller) -> None:
    def bill(target: str, field: str, value: str) -> bool:
        slurm.records[target]["ReqTRES"] = "cpu=1,mem=100M,node=1,billing=6,gres/mps=7"
        return False

    slurm.refuse = bill
    for job_id, asked in (("7", {"ReqTRES": "cpu=8,billing=90,gres/gpu=1"}), ("8", {})):
        wait(config, slurm, job_id)
        slurm.records[job_id] |= asked
        learn()
        look(config, slurm)
        found = read_one(config.cluster, job_id)
        assert found
        assert found.change
        assert (found.change.billed, found.change.bills) == ("90" if asked else "", "6")
        said = (Path(lock_path(config.cluster)).parent / f"{job_id}.said").read_text()
        reasons = read_decisions(config.decisions_folder, f"-{job_id}.json")[0][-1].reasons
        assert (" 6, not 90;" in said, len(reasons)) == ((True, 2) if asked else (False, 1))
    assert reasons[0].code == "late-bound"


def test_where_nothing_waits_or_is_known_slurm_is_asked_for_no_more(config: SiteConfig, slurm: Controller) -> None:
    learn()
    look(config, slurm)
    assert slurm.asked == []
    wait(config, slurm, "7", signature="f" * 32 + ".~~0")
    look(config, slurm)
    assert slurm.asked == ["squeue"]


def test_two_looks_at_once_are_one(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    learn()
    with locked(lock_path(config.cluster)) as held:
        assert held
        look(config, slurm)
    assert slurm.asked == []


def test_what_is_refused_is_tried_once(config: SiteConfig, slurm: Controller) -> None:
    slurm.refuse = lambda target, field, value: True
    wait(config, slurm, "7")
    learn()
    assert look(config, slurm).undone == ("7",)
    assert change(config, "7") == ("mps:7", True, "refused")
    wait(config, slurm, "8")
    slurm.asked.clear()
    look(config, slurm)
    assert slurm.asked == ["squeue"]
    assert len(read_decisions(config.decisions_folder, "-7.json")[0]) == 1


@pytest.mark.parametrize("refused", ["TimeLimit", "Gres"])
def test_what_is_changed_by_half_is_put_back(config: SiteConfig, slurm: Controller, refused: str) -> None:
    wait(config, slurm, "7")
    learn(elapsed_s=3600.0)
    before = dict(slurm.records["7"])
    slurm.refuse = lambda target, field, value: field == refused and value not in ("01:00:00", "gpu:h100:1")
    assert look(config, slurm).undone == ("7",)
    assert slurm.records["7"] == before
    assert (change(config, "7") or ("", "", ""))[2] == "half"


def test_a_plugin_that_gives_another_value_is_seen(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    learn()
    answer = slurm.control

    def control(lines: Sequence[str]) -> str:
        return answer([line.replace("mps:7", "mps:8") for line in lines])

    slurm.control = control  # type: ignore[method-assign]
    assert look(config, slurm) == ((), ("7",))
    assert slurm.records["7"]["TresPerNode"] == "gres/gpu:h100:1"
    assert change(config, "7") == ("mps:7", True, "half")


@pytest.mark.parametrize("dies", ["before", "after"])
def test_who_comes_after_a_kill_knows_what_was_meant(config: SiteConfig, slurm: Controller, dies: str) -> None:
    wait(config, slurm, "7")
    learn()
    slurm.dies = dies
    with suppress(ProcessError):
        look(config, slurm)
    assert change(config, "7") == ("mps:7", False, "")
    # It may begin before the next look.
    assert "; became mps:7 at " in (Path(lock_path(config.cluster)).parent / "7.said").read_text()
    slurm.dies = ""
    assert look(config, slurm).bound == ("7",)
    assert change(config, "7") == ("mps:7", True, "")
    assert slurm.records["7"]["TresPerNode"] == "gres/mps:7"
    assert [one.given for one in read_decisions(config.decisions_folder, "-7.json")[0]] == ["as asked", "mps:7"]


@pytest.mark.parametrize(
    ("dies", "undo", "given"), [("before", False, "as asked"), ("after", False, "mps:7"), ("after", True, "as asked")]
)
@pytest.mark.parametrize("again", [False, True])
def test_the_ledger_says_what_a_job_began_with_whoever_was_killed(
    config: SiteConfig, slurm: Controller, dies: str, given: str, *, undo: bool, again: bool
) -> None:
    """But not of one that begins again, and may have more by then."""
    wait(config, slurm, "7")
    learn()
    if undo:
        look(config, slurm)
    slurm.dies = dies
    with pytest.raises(ProcessError):
        look(config, slurm, undo=undo)
    slurm.dies = ""
    before = read_decisions(config.decisions_folder, "-7.json")[0]
    slurm.records["7"] |= {"JobState": "RUNNING", "Restarts": str(int(again))}
    look(config, slurm)
    decided = read_decisions(config.decisions_folder, "-7.json")[0]
    assert decided == before if again else decided[-1].given == given
    assert read_waiting(config.cluster) == ([], 0)


def test_a_new_reason_to_wait_puts_a_job_back_for_good(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    slurm.records["7"]["Reason"] = "BadConstraints"
    assert look(config, slurm).undone == ("7",)
    assert slurm.records["7"]["TresPerNode"] == "gres/gpu:h100:1"
    assert change(config, "7") == ("mps:7", True, "BadConstraints")
    assert [one.given for one in read_decisions(config.decisions_folder, "-7.json")[0]][-1] == "as asked"
    wait(config, slurm, "8")
    look(config, slurm)
    assert change(config, "8") is None


@pytest.mark.parametrize("reason", ["QOSMaxJobsPerUserLimit", "BeginTime", "JobHeldAdmin", "Priority", "PartitionDown"])
def test_a_reason_that_has_nothing_to_do_with_the_piece_changes_nothing(
    config: SiteConfig, slurm: Controller, reason: str
) -> None:
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    slurm.records["7"]["Reason"] = reason
    assert look(config, slurm) == (("7",), ())


WHOLE, SHARES = ("gpu", "gpu:h100"), ("gpu", "mps")


@pytest.fixture
def bound(config: SiteConfig, slurm: Controller, monkeypatch: pytest.MonkeyPatch) -> Controller:
    """Return a controller with a job that was bound an hour ago, no share free and a whole GPU on a node of one."""
    wait(config, slurm, "7")
    learn()
    assert look(config, slurm).bound == ("7",)
    slurm.units = {WHOLE: 1, SHARES: 6}
    slurm.single = {WHOLE: 1}
    later(monkeypatch, 3600.0)
    return slurm


def later(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    at_s = time.time() + by_s
    monkeypatch.setattr("slurm_colloc.rebind.look.now", lambda: at_s)


def test_a_piece_that_waits_goes_back_where_a_gpu_is_free_once(config: SiteConfig, bound: Controller) -> None:
    before = dict(bound.records["7"])
    assert look(config, bound) == ((), ("7",))
    assert bound.records["7"] == before | {"TresPerNode": "gres/gpu:h100:1"}
    assert change(config, "7") == ("mps:7", True, "free")
    assert [one.given for one in read_decisions(config.decisions_folder, "-7.json")[0]][-1] == "as asked"
    assert look(config, bound) == ((), ())
    wait(config, bound, "8")
    assert look(config, bound).bound == ("8",)  # it says nothing against the piece


@pytest.mark.parametrize("dies", ["before", "after"])
def test_who_comes_after_a_kill_on_the_way_back_puts_it_back_too(
    config: SiteConfig, bound: Controller, dies: str
) -> None:
    bound.dies = dies
    with suppress(ProcessError):
        look(config, bound)
    bound.dies = ""
    assert look(config, bound).undone == ("7",)
    assert bound.records["7"]["TresPerNode"] == "gres/gpu:h100:1"
    assert change(config, "7") == ("mps:7", True, "free" if dies == "before" else "changed")
    assert [one.given for one in read_decisions(config.decisions_folder, "-7.json")[0]][-1] == "as asked"
    wait(config, bound, "8")
    assert look(config, bound).bound == ("8",)  # it says nothing against the piece


@pytest.mark.parametrize("reason", ["JobHeldUser", "Dependency", "JobArrayTaskLimit", "QOSMaxJobsPerUserLimit"])
def test_a_piece_whose_job_waits_for_something_else_stays(config: SiteConfig, bound: Controller, reason: str) -> None:
    bound.records["7"]["Reason"] = reason
    assert look(config, bound) == (("7",), ())


@pytest.mark.parametrize(
    ("units", "single", "back"),
    [
        ({WHOLE: 1, SHARES: 6}, {WHOLE: 1}, True),
        ({WHOLE: 1, SHARES: 7}, {WHOLE: 1}, False),
        ({WHOLE: 1, SHARES: 6}, {WHOLE: 0}, False),
        ({WHOLE: 2, SHARES: 6}, {}, False),
        ({}, {}, False),
        ({("other", "gpu:h100"): 1}, {("other", "gpu:h100"): 1}, False),
        ({("gpu", "gpu:a100"): 1}, {("gpu", "gpu:a100"): 1}, False),
    ],
)
def test_what_must_be_free_for_a_way_back(
    config: SiteConfig,
    bound: Controller,
    units: dict[tuple[str, str], int],
    single: dict[tuple[str, str], int],
    back: bool,
) -> None:
    bound.units, bound.single = units, single
    assert look(config, bound).undone == (("7",) if back else ())


def test_nodes_of_several_gpus_count_where_the_site_says_so(config: SiteConfig, bound: Controller) -> None:
    bound.single = {}
    for late_back, back in (("off", False), ("single", False), ("any", True)):
        chosen = config._replace(sharing=config.sharing._replace(late_back=late_back))
        assert look(chosen, bound).undone == (("7",) if back else ())


def test_where_no_node_has_a_single_gpu_nobody_is_asked_what_is_free(config: SiteConfig, bound: Controller) -> None:
    look(config._replace(pool=(MPS_POOL,)), bound)
    assert "sinfo" not in bound.asked


def test_a_job_that_was_bound_just_now_has_its_cycle_first(
    config: SiteConfig, bound: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for by_s, back in ((50.0, False), (70.0, True)):
        later(monkeypatch, by_s)
        assert look(config, bound).undone == (("7",) if back else ())


def test_as_many_go_back_as_gpus_are_free(
    config: SiteConfig, bound: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("8", "9"):
        wait(config, bound, job_id)
    look(config._replace(sharing=config.sharing._replace(late_back="off")), bound)
    later(monkeypatch, 7200.0)
    assert look(config, bound).undone == ("7",)
    assert look(config, bound).undone == (), "the first has not begun, and the GPU is its own"
    bound.records["7"]["JobState"] = "RUNNING"
    assert look(config, bound).undone == ("8",)


def test_an_array_goes_back_where_all_that_wait_of_it_find_a_gpu(
    config: SiteConfig, bound: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(config, bound, "8")
    look(config._replace(sharing=config.sharing._replace(late_back="off")), bound)
    later(monkeypatch, 7200.0)
    bound.records["7_[1-3]"] = bound.records.pop("7") | {"ArrayJobId": "7", "ArrayTaskId": "1-3"}
    answer = bound.control
    bound.control = lambda lines: answer([line.replace("job 7", "job 7_[1-3]") for line in lines])  # type: ignore[method-assign]
    for free, undone in ((0, ()), (3, ("7",)), (3, ()), (4, ("8",))):
        bound.units = bound.single = {WHOLE: free, SHARES: 6}
        assert look(config, bound).undone == undone
    assert bound.records["7_[1-3]"]["TresPerNode"] == "gres/gpu:h100:1"


def test_an_array_does_not_go_back_for_fewer_gpus_nor_while_a_task_is_held(
    config: SiteConfig, bound: Controller
) -> None:
    bound.records["7"] |= {"ArrayJobId": "7", "ArrayTaskId": "1-3"}
    for reason, free in (("Priority", 2), ("JobArrayTaskLimit", 9)):
        bound.records["7"]["Reason"] = reason
        bound.units = bound.single = {WHOLE: free, SHARES: 6}
        assert look(config, bound) == (("7",), ())


def test_a_gpu_of_any_type_is_one_of_the_partitions(
    config: SiteConfig, slurm: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(config, slurm, "7", gres=(Gres("gpu", "", 1),))
    slurm.records["7"]["TresPerNode"] = "gres/gpu:1"
    learn()
    look(config, slurm)
    slurm.units = slurm.single = {WHOLE: 1, SHARES: 0}
    later(monkeypatch, 3600.0)
    assert look(config, slurm).undone == ("7",)
    assert slurm.records["7"]["TresPerNode"] == "gres/gpu:1"


def test_without_an_answer_of_what_is_free_a_piece_stays(config: SiteConfig, bound: Controller) -> None:
    def free(*, single: bool = False) -> Free:
        raise ProcessError("'sinfo' did not answer")

    bound.free = free  # type: ignore[method-assign]
    assert look(config, bound) == (("7",), ())


@pytest.mark.parametrize(("peak_mib", "state"), [(12000, "COMPLETED"), (5000, "GPU_OOM")])
def test_a_need_that_has_grown_beyond_the_piece_is_a_way_back(
    config: SiteConfig, bound: Controller, peak_mib: int, state: str
) -> None:
    bound.units = bound.single = {}
    learn(job_id="2", gpu_mem_peak_mib=peak_mib, state=state, mode="exclusive" if state == "COMPLETED" else "mps")
    assert look(config, bound).undone == ("7",)
    assert bound.records["7"]["TresPerNode"] == "gres/gpu:h100:1"
    assert change(config, "7") == ("mps:7", True, "grew" if state == "COMPLETED" else "harmed")


def test_a_job_that_a_piece_has_harmed_gets_none_late_for_a_month(
    config: SiteConfig, slurm: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is measured on a whole GPU again, by which a new submission may have a piece; what waits has none."""
    at_s = time.time()
    for job_id, state, mode in (
        ("1", "COMPLETED", "exclusive"),
        ("2", "GPU_OOM", "mps"),
        ("3", "COMPLETED", "exclusive"),
    ):
        learn(job_id=job_id, state=state, mode=mode, ended_s=at_s - 100 + int(job_id))
    wait(config, slurm, "7")
    look(config, slurm)
    assert change(config, "7") is None
    # Others of its runs have taken the place of this one.
    shutil.rmtree(Path(os.environ["XDG_DATA_HOME"]) / "slurm_colloc/evidence")
    learn()
    for by_s, is_bound in ((29 * 86400.0, False), (31 * 86400.0, True)):
        for module in ("look", "waiting"):
            monkeypatch.setattr(f"slurm_colloc.rebind.{module}.now", lambda by_s=by_s: at_s + by_s)
        look(config, slurm)
        assert (change(config, "7") is not None) is is_bound


def test_a_need_that_has_grown_within_the_piece_is_none(config: SiteConfig, bound: Controller) -> None:
    bound.units = bound.single = {}
    learn(job_id="2", gpu_mem_peak_mib=4001)
    assert look(config, bound) == (("7",), ())


@pytest.fixture
def shadow(config: SiteConfig) -> SiteConfig:
    return config._replace(sharing=config.sharing._replace(late_binding="shadow"))


def test_in_shadow_nothing_is_changed_and_what_would_have_been_is_recorded_once(
    shadow: SiteConfig, slurm: Controller
) -> None:
    for job_id in ("7", "8", "9"):
        wait(shadow, slurm, job_id)
    slurm.records["8"]["Reason"] = "Dependency"
    learn()
    before = {job_id: dict(record) for job_id, record in slurm.records.items()}
    slurm.units = {SHARES: 13}
    assert look(shadow, slurm) == look(shadow, slurm) == ((), ())
    assert (slurm.records, slurm.asked.count("sinfo")) == (before, 1)
    assert not any(line.startswith("update") for line in slurm.asked)
    found = [read_decisions(shadow.decisions_folder, f"-{job_id}.json")[0] for job_id in ("7", "8", "9")]
    assert [[one.would for one in decided] for decided in found] == [["", "mps:7"]] * 3
    last = [decided[-1] for decided in found]
    assert {(one.given, one.mode, one.shadow, one.arm) for one in last} == {("as asked", found[0][0].mode, True, LATE)}
    assert all(one.would_memory_mib and one.gpu_mem_q99_mib for one in last)
    waits = [one.would_wait_s for one in last]
    # One waits for another job, and there are no shares for both of the others.
    assert waits[1] is None
    assert sorted(wait_s is None for wait_s in (waits[0], waits[2])) == [False, True]
    assert all(0 <= wait_s < 60 for wait_s in waits if wait_s is not None)


def test_a_job_that_is_in_shadow_since_is_put_back(shadow: SiteConfig, bound: Controller) -> None:
    assert look(shadow, bound).undone == ("7",)
    assert change(shadow, "7") == ("mps:7", True, "off")
    wait(shadow, bound, "8")
    assert change(shadow, "8") is None


def test_the_rule_that_a_job_meets_says_whether_it_is_bound(config: SiteConfig, slurm: Controller) -> None:
    off = config.sharing._replace(late_binding="off")
    rule = Rule("auto", partitions=("gpu",), percent=50.0, late_binding="on")
    for_gpu = config._replace(sharing=off, policy="shadow", rollout=(rule,))
    for_others = for_gpu._replace(rollout=(rule._replace(partitions=("other",)),))
    wait(config, slurm, "7", partitions=("gpu",))
    learn()
    assert look(for_others, slurm) == ((), ())
    # Of a job that was placed nobody draws once more.
    assert look(for_gpu, slurm).bound == ("7",)
    assert look(for_gpu._replace(rollout=(rule._replace(late_binding="slices"),)), slurm).bound == ("7",)
    # Without an answer it could be another account's, and it stays as it is.
    unsure = for_gpu._replace(rollout=(rule._replace(partitions=(), accounts=("lab",)),))
    slurm.limits = lambda cluster: Limits(0.0, "", (), {}, {})  # type: ignore[method-assign]
    assert look(unsure, slurm) == (("7",), ())
    wait(config, slurm, "8", partitions=("gpu",))
    assert look(unsure, slurm) == (("7",), ())
    assert look(for_others, slurm).undone == ("7",)


@pytest.mark.parametrize("reason", ["QOSMaxGRESPerUser", "AssocGrpGRESMinutes", "QOSMaxWallDurationPerJobLimit"])
def test_a_limit_that_the_piece_meets_puts_it_back(config: SiteConfig, slurm: Controller, reason: str) -> None:
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    slurm.records["7"]["Reason"] = reason
    assert look(config, slurm) == ((), ("7",))


def test_what_somebody_changed_back_is_left_and_no_failure(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    slurm.records["7"]["TresPerNode"] = "gres/gpu:h100:1"
    assert look(config, slurm).undone == ("7",)
    assert change(config, "7") == ("mps:7", True, "changed")
    wait(config, slurm, "8")
    look(config, slurm)
    assert change(config, "8") == ("mps:7", True, "")


def test_what_its_user_has_changed_since_is_left(config: SiteConfig, slurm: Controller) -> None:
    """The piece is put back, and of the rest what is still as the look had it."""
    wait(config, slurm, "7")
    learn(elapsed_s=3600.0)
    look(config, slurm)
    assert slurm.records["7"]["TimeLimit"] == "120"
    slurm.records["7"]["TimeLimit"] = "03:00:00"
    assert look(config, slurm) == (("7",), ())
    assert (Path(lock_path(config.cluster)).parent / "7.said").exists()
    assert look(config, slurm, undo=True).undone == ("7",)
    assert (slurm.records["7"]["TresPerNode"], slurm.records["7"]["TimeLimit"]) == ("gres/gpu:h100:1", "03:00:00")


def test_another_gpu_that_its_user_asks_for_since_is_left(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    learn(elapsed_s=3600.0)
    look(config, slurm)
    slurm.records["7"]["TresPerNode"] = "gres/gpu:a100:1"
    assert look(config, slurm).undone == ("7",)
    assert slurm.records["7"]["TresPerNode"] == "gres/gpu:a100:1"
    assert change(config, "7") == ("mps:7", True, "changed")


def test_a_piece_that_cannot_be_put_back_is_not_said_to_be_gone(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    learn(elapsed_s=3600.0)
    look(config, slurm)
    slurm.refuse = lambda target, field, value: field == "Gres"
    assert look(config, slurm, undo=True).undone == ()
    assert slurm.records["7"]["TresPerNode"] == "gres/mps:7"
    slurm.refuse = lambda target, field, value: False
    assert look(config, slurm, undo=True).undone == ("7",)


@pytest.mark.parametrize("limit", ["00:20:00", "05:00:00"])
def test_a_time_limit_that_was_left_to_slurm_and_changed_since_is_left(
    config: SiteConfig, slurm: Controller, limit: str
) -> None:
    config = config._replace(partition=(config.partition[0]._replace(default_time_min=60.0),))
    wait(config, slurm, "7", time_limit_min=None)
    learn(elapsed_s=3600.0)
    slurm.records["7"]["TimeLimit"] = limit
    look(config, slurm)
    assert change(config, "7") is None


def test_those_that_may_not_be_changed_keep_no_other_waiting(config: SiteConfig, slurm: Controller) -> None:
    slurm.conf["SlurmctldParameters"] = "rl_enable"
    for number in range(8):
        wait(config, slurm, str(100 + number))
        slurm.records[str(100 + number)] |= {"Reason": "JobHeldAdmin"} if number < 6 else {}
    learn()
    bound = {job for _ in range(60) for job in look(config, slurm).bound}
    assert bound == {"106", "107"}


def test_a_job_of_the_same_number_on_another_cluster_is_another(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    drop_decision(config.decisions_folder, decision(job_id="7", cluster="other", given="as asked", at_s=9e9))
    learn()
    look(config, slurm)
    decided = read_decisions(config.decisions_folder, "-7.json")[0]
    assert sorted((one.cluster, one.given) for one in decided) == [
        (config.cluster, "as asked"),
        (config.cluster, "mps:7"),
        ("other", "as asked"),
    ]


def test_a_longer_time_limit_asks_for_a_longer_look_at_a_run(config: SiteConfig, slurm: Controller) -> None:
    """What has run for a tenth of the time limit of one job has not for that of the other."""
    config = config._replace(sharing=config.sharing._replace(settle_s=60.0))
    wait(config, slurm, "7", time_limit_min=60.0)
    wait(config, slurm, "8", time_limit_min=600.0)
    slurm.records["8"]["TimeLimit"] = "10:00:00"
    run = {"sampled_s": 600.0, "ran_s": 600.0, "sample_count": 60, "grew_until_s": 1.0, "sm_active_q95_pct": 5.0}
    learn(job_id="5", state="RUNNING", elapsed_s=600.0, **run)
    look(config, slurm)
    assert [change(config, job_id) is None for job_id in ("7", "8")] == [False, True]


def test_a_job_whose_number_comes_round_again_has_no_word_of_the_old_one(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    said = Path(lock_path(config.cluster)).parent / "7.said"
    assert said.exists()
    wait(config, slurm, "7")
    assert not said.exists()


def test_an_undo_beside_another_look_says_that_nothing_was_done(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    with locked(lock_path(config.cluster)), pytest.raises(StoreError):
        look(config, slurm, undo=True)


def test_words_of_jobs_that_have_begun_are_nothing_to_look_at(
    config: SiteConfig, slurm: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    slurm.records["7"]["JobState"] = "RUNNING"
    look(config, slurm)
    os.utime(lock_path(config.cluster), (0, 0))
    monkeypatch.setattr("slurm_colloc.rebind.waiting.detach", lambda argv, environ: 1)
    assert start_look(config.cluster, {}) is None
    wait(config, slurm, "8")
    assert [start_look(config.cluster, {}) for _ in range(3)] == [1, None, None]


# What a run has shown, from its first sample on.
Shown = Mapping[str, object]
AT_REST = {"grew_until_s": 0.0}


def tries(monkeypatch: pytest.MonkeyPatch, settle_s: float, pid: int | None, *runs: tuple[float, Shown]) -> list[float]:
    """Return when a look was tried by the sampler of a run that had shown so much by then; each try ends at once."""
    tried: list[float] = []

    def start(cluster: str, environ: Mapping[str, str], gap_s: float) -> int | None:
        tried.append(at_s)
        return pid

    monkeypatch.setattr("slurm_colloc.cli.sampling.start_look", start)
    monkeypatch.setattr("slurm_colloc.cli.sampling.os.waitpid", lambda pid, options: (pid, 0))
    looks = _Looks("c", settle_s)
    for at_s, shown in runs:
        so_far = {"elapsed_s": at_s, "sampled_s": at_s, "ran_s": at_s}
        looks.after(evidence("1", 8000, state="RUNNING", **{**so_far, **shown}))
    return tried


def test_a_look_that_was_not_due_is_had_as_soon_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As this job begins to count for those like it, the last look of another one may be some seconds old."""
    times = (0.0, 3.0, 5.0, 9.0, 11.0, 598.0, 600.0, 603.0, 605.0)
    assert tries(monkeypatch, 600.0, None, *((at_s, AT_REST) for at_s in times)) == [
        0.0,
        5.0,
        11.0,
        598.0,
        600.0,
        605.0,
    ]


@pytest.mark.parametrize(
    ("settle_s", "shown", "looked"),
    [
        (12.0, AT_REST, [0.0, 12.0, 42.0]),
        (36.0, AT_REST, [0.0, 30.0, 36.0]),
        # Memory that grew until then is at rest when as much time again has passed.
        (12.0, {"grew_until_s": 8.0}, [0.0, 16.0]),
        (12.0, {"sm_active_q95_pct": 0.0, "grew_until_s": 0.0}, [0.0, 30.0]),
        (12.0, {"grew_until_s": 0.0, "sampled_s": 11.0}, [0.0, 30.0]),
        (0.0, AT_REST, [0.0, 30.0]),
    ],
)
def test_waiting_jobs_are_looked_at_when_a_run_begins_to_count(
    monkeypatch: pytest.MonkeyPatch, settle_s: float, shown: Shown, looked: list[float]
) -> None:
    assert tries(monkeypatch, settle_s, 1, *((float(at_s), shown) for at_s in range(0, 44, 2))) == looked


@pytest.mark.parametrize(
    ("limit_s", "settle_s"), [(None, 600.0), ("", 600.0), ("later", 600.0), (3600, 600.0), (7200, 720.0)]
)
def test_a_sampler_knows_the_tenth_of_its_jobs_limit(
    config: SiteConfig, monkeypatch: pytest.MonkeyPatch, limit_s: int | str | None, settle_s: float
) -> None:
    settings: list[Settings] = []
    monkeypatch.setattr("slurm_colloc.cli.sampling.sample", settings.append)
    monkeypatch.setattr("slurm_colloc.cli.colloc.sample.site_or_none", lambda: config)
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    if isinstance(limit_s, str):  # a script may set it to anything
        monkeypatch.setenv("SLURM_JOB_END_TIME", limit_s)
    elif limit_s:  # it begins a little after its job
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + limit_s - 2))
    sample(node="g1", evidence="/e", job="7", signature=SIGNATURE)
    assert settings[0].settle_s == settle_s


def test_a_run_that_begins_to_count_waits_less_for_its_look(
    config: SiteConfig, slurm: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_colloc.rebind.waiting.detach", lambda argv, environ: 1)
    wait(config, slurm, "7")
    path = Path(lock_path(config.cluster))
    path.touch()
    for since_s, gaps, started in ((4.0, (5.0, 20.0), [None, None]), (6.0, (20.0, 5.0), [None, 1])):
        os.utime(path, (time.time() - since_s,) * 2)
        assert [start_look(config.cluster, {}, gap_s) for gap_s in gaps] == started


def test_where_nothing_waits_nobody_keeps_others_from_a_look(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    look(config, slurm)
    slurm.records["7"]["JobState"] = "RUNNING"
    look(config, slurm)
    os.utime(lock_path(config.cluster), (0, 0))
    assert start_look(config.cluster, {}) is None
    assert os.stat(lock_path(config.cluster)).st_mtime == 0


@pytest.mark.parametrize("switch", ["late_binding", "policy", "stopped", "user"])
def test_what_is_switched_off_while_a_look_waits_is_put_back(
    config: SiteConfig, slurm: Controller, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    wait(config, slurm, "7")
    learn()
    files = [config]
    off = {
        "late_binding": config._replace(sharing=config.sharing._replace(late_binding="off")),
        "policy": config._replace(policy="shadow"),
    }.get(switch, config)

    def wait_a_while(wait_s: float) -> None:
        if not wait_s:
            return
        assert slurm.records["7"]["TresPerNode"] == "gres/mps:7"
        files.append(off)
        if switch == "stopped":
            monkeypatch.setattr("slurm_colloc.rebind.program.why_stopped", lambda folder, late: "harm")
        if switch == "user":
            assert colloc("off") == 0

    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    monkeypatch.setattr("slurm_colloc.rebind.program.find_site_file", lambda: "x")
    monkeypatch.setattr("slurm_colloc.rebind.program.load_site", lambda path: files[-1])
    monkeypatch.setattr("slurm_colloc.rebind.program.CliClient", lambda: slurm)
    monkeypatch.setattr("slurm_colloc.rebind.program.sleep", wait_a_while)
    assert main() == 0
    assert slurm.records["7"]["TresPerNode"] == "gres/gpu:h100:1"
    assert "SLURM_CLUSTERS" not in os.environ


def test_a_share_that_slurm_rounds_down_is_not_given(config: SiteConfig, slurm: Controller) -> None:
    """Slurm tells a job its share in whole percent, by which its memory is limited."""
    config = config._replace(pool=(config.pool[0]._replace(mps_per_gpu=150),))
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    assert change(config, "7") is None


def test_undo_puts_all_back_and_changes_none(config: SiteConfig, slurm: Controller) -> None:
    for job_id in ("7", "8"):
        wait(config, slurm, job_id)
    learn()
    look(config, slurm)
    wait(config, slurm, "9")
    assert look(config, slurm, undo=True).undone == ("7", "8")
    assert {one["TresPerNode"] for one in slurm.records.values()} == {"gres/gpu:h100:1"}


def test_a_job_that_began_is_kept_with_its_change_and_one_without_is_forgotten(
    config: SiteConfig, slurm: Controller
) -> None:
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    wait(config, slurm, "8", signature="f" * 32 + ".~~0")
    for record in slurm.records.values():
        record["JobState"] = "RUNNING"
    look(config, slurm)
    assert read_waiting(config.cluster) == ([], 0)
    assert change(config, "7") == ("mps:7", True, "")
    assert read_one(config.cluster, "8") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"Reason": "JobHeldAdmin"},
        {"Reason": "QOSMaxGRESPerUser"},
        {"Reason": "BeginTime"},
        {"TresPerNode": "gres/gpu:2"},
        {"TresPerNode": "gres/gpu:h100:1,gres/lscratch:100"},
        {"TimeLimit": "00:30:00"},
        {"Partition": "other"},
        {"AdminComment": "x"},
        {"Reservation": "x"},
        {"HetJobId": "6"},
        {"OverSubscribe": "NO"},
        {"OverSubscribe": "NO", "Exclusive": "NODE"},
        {"CpusPerTres": "gres/gpu:2"},
        {"UserId": "bob(12345)"},
    ],
)
def test_such_a_record_is_left(config: SiteConfig, slurm: Controller, fields: Mapping[str, str]) -> None:
    wait(config, slurm, "7")
    learn()
    slurm.records["7"] |= fields
    look(config, slurm)
    assert change(config, "7") is None
    assert not any(line.startswith("update") for line in slurm.asked)


def test_of_a_known_need_that_changes_nothing_it_is_kept_why(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    slurm.records["7"] |= {"CpusPerTres": "gpu:8", "MemPerTres": "gpu:300"}
    learn()
    look(config, slurm)
    kept = read_one(config.cluster, "7")
    assert kept is not None
    assert kept.left == "per-gpu"
    slurm.records["7"] |= {"CpusPerTres": "", "MemPerTres": ""}
    assert look(config, slurm).bound == ("7",)


def test_a_deadline_stands_against_a_longer_time_limit_alone(config: SiteConfig, slurm: Controller) -> None:
    for job_id, longest_s in (("7", 3600.0), ("8", 60.0)):
        wait(config, slurm, job_id)
        slurm.records[job_id]["Deadline"] = "2027-01-01T00:00:00"
        learn(elapsed_s=longest_s)
        look(config, slurm)
    assert change(config, "7") == change(config, "8") == ("mps:7", True, "")


def test_priority_that_counts_gpus_keeps_a_job_on_gpus(config: SiteConfig, slurm: Controller) -> None:
    slurm.conf["PriorityWeightTRES"] = "CPU=1000,gres/gpu=3000"
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    assert change(config, "7") is None


def test_slices_alone(config: SiteConfig, slurm: Controller) -> None:
    config = config._replace(sharing=config.sharing._replace(late_binding="slices"))
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    assert change(config, "7") is None


def test_of_a_slow_door_a_few_go_through_at_a_look(config: SiteConfig, slurm: Controller) -> None:
    slurm.conf["SlurmctldParameters"] = "rl_enable,rl_bucket_size=30"
    for number in range(9):
        wait(config, slurm, str(100 + number))
    learn()
    assert len(look(config, slurm).bound) == 5
    assert len(look(config, slurm).bound) == 9


def test_what_waits_is_shown_and_put_back_by_one_command(
    config: SiteConfig,
    slurm: Controller,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    printed: Printed,
) -> None:

    def client() -> Controller:
        assert "SLURM_CLUSTERS" not in os.environ
        return slurm

    monkeypatch.setattr("slurm_colloc.cli.colloc.late.site", lambda: config)
    monkeypatch.setattr("slurm_colloc.cli.colloc.late.CliClient", client)
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    wait(config, slurm, "7")
    wait(config, slurm, "8", signature="f" * 32 + ".~~0")
    learn()
    look(config, slurm)
    shown = []
    for undo in (False, True):
        for form in ("json", "text"):
            late(undo=undo and form == "json", form=form)
            said = re.sub(r"20\d\d-[-:+ \d]+\d|1[78]\d{8}\.\d+", "TIME", capsys.readouterr().out)
            shown.append((f"{'--undo ' if undo else ''}--format={form}", said))
    assert json.loads(shown[2][1].replace("TIME", "0"))["undone"] == ["7"]
    assert slurm.records["7"]["TresPerNode"] == "gres/gpu:h100:1"
    printed("late", *(said for name, said in shown if name.endswith("text")))


def test_cards_of_two_sizes_give_no_share(config: SiteConfig, slurm: Controller) -> None:
    other = config.pool[0]._replace(name="other", gpu_mem_mib=40960)
    config = config._replace(pool=(*config.pool, other))
    wait(config, slurm, "7")
    learn()
    look(config, slurm)
    assert change(config, "7") is None


def test_a_file_that_cannot_be_used_costs_no_other(config: SiteConfig, slurm: Controller) -> None:
    wait(config, slurm, "7")
    learn()
    folder = Path(lock_path(config.cluster)).parent
    for name, text in (("1.json", "{"), ("2.json", "[]"), ("3.json", '{"request": {}}'), ("4.json", "9" * 300_000)):
        (folder / name).write_text(text)
    assert read_waiting(config.cluster)[1] == 4
    assert look(config, slurm).bound == ("7",)


def test_a_waiting_job_is_read_as_it_was_kept(config: SiteConfig) -> None:
    kept = Waiting(1, config.cluster, "7", 12.5, asked())
    keep(kept)
    assert read_one(config.cluster, "7") == kept


def test_a_value_with_a_blank_is_no_update() -> None:
    with pytest.raises(Exception, match="blank"):
        update(["7"], {"Gres": "mps:6 Partition=x"})


@pytest.mark.parametrize(
    ("tasks", "target"),
    [("3", "7_3"), ("3-6%2", "7_[3-6]"), ("1-7:3", "7_[1,4,7]"), ("1-999999:2", "7_[1-999999:2]")],
)
def test_tasks_are_named_as_scontrol_takes_them(tasks: str, target: str) -> None:
    assert list(parse_pending(f"JobId=9 ArrayJobId=7 ArrayTaskId={tasks} JobName=x")) == [target]


def test_scontrol_is_asked_for_all_tasks_of_an_array(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\necho "$SLURM_BITSTR_LEN"\n')
    program.chmod(0o755)
    client = CliClient(environment={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_BITSTR_LEN": "9"})
    assert client.control(["show job 7"]) == "0\n"


@pytest.mark.parametrize(
    ("argv", "environ", "is_late"),
    [
        (["job.sh"], {}, True),
        (["--colloc=late=off", "job.sh"], {}, False),
        (["--max-slowdown=1.1", "job.sh"], {}, False),
        (["job.sh", "vllm", "serve", "m"], {}, False),
        (["job.sh"], {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}, False),
    ],
)
def test_which_job_may_get_a_piece_while_it_waits(
    shell: Shell, argv: list[str], environ: dict[str, str], is_late: bool
) -> None:
    """One whose user, arguments or variables say more than what is kept of it has its piece at once, or none."""
    path = shell.folder / "site.toml"
    path.write_text(path.read_text().replace("[sharing]", '[sharing]\nlate_binding = "on"'))
    done = shell.run("--dry-run", *argv, environ=environ)
    assert (done.returncode, "csub_card_mib" in done.stdout) == (0, is_late)


# --- what a release that csub does not know does ---


class Tried(Controller):
    """A slurmctld whose jobs begin with what they ask for, or with what ``begins`` says instead."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: Callable[[str, str], str] = lambda job_id, tres: tres
        self.cancelled: list[str] = []

    def submit(self, arguments: Sequence[str]) -> str:  # type: ignore[override]
        job_id = str(4711 + len(self.records))
        option, _, value = next(word for word in arguments if word.startswith("--g")).partition("=")
        field = {"--gpus": "TresPerJob", "--gpus-per-task": "TresPerTask"}.get(option, "TresPerNode")
        assert "-H" in arguments
        super().submit(job_id, **{"TresPerNode": "(null)", field: f"gres/gpu:{value.removeprefix('gpu:')}"})
        return job_id

    def cancel(self, job_ids: Sequence[str]) -> None:
        self.cancelled += job_ids

    def control(self, lines: Sequence[str]) -> str:
        for line in lines:
            if line.startswith("release "):
                record = self.records[line.split()[1]]
                asked = next(record[name] for name in FIELDS if record.get(name, "(null)") not in ("(null)", ""))
                name, _, count = asked.removeprefix("gres/").rpartition(":")
                record["AllocTRES"] = self.begins(record["JobId"], f"cpu=1,gres/{name}={count}")
                record["JobState"] = "COMPLETED" if record["AllocTRES"] else "PENDING"
                record["Reason"] = "None" if record["AllocTRES"] else "BadConstraints"
        return super().control([line for line in lines if not line.startswith("release ")])


FIELDS = ("TresPerNode", "TresPerJob", "TresPerTask")
ALL = ["gres", "gpus", "gpus-per-node", "gpus-per-task"]


def tried(config: SiteConfig, slurm: Tried) -> tuple[list[str], dict[Trial, str]]:
    outcomes = probe(trials_of(config, "gpu"), "gpu", slurm, 0.0)
    assert slurm.cancelled == list(slurm.records)
    return holding(outcomes), {one.trial: one.why for one in outcomes}


def test_a_probe_names_the_options_of_which_all_jobs_began_as_meant(config: SiteConfig) -> None:
    held, why = tried(config, Tried())
    assert (held, set(why.values())) == (ALL, {""})
    assert [trial.asks for trial in why][:4] == [
        "--gres=gpu:1",
        "--gres=gpu:1",
        "--gres=gpu:h100:1",
        "--gres=gpu:h100:1",
    ]


def test_a_probe_believes_no_record(config: SiteConfig, printed: Printed) -> None:
    """A job that shows what it was changed to may begin with both, with the GPU, or never; and some are refused."""
    slurm = Tried()
    slurm.begins = lambda job_id, tres: {"4711": f"{tres},gres/gpu:h100=1", "4715": ""}.get(job_id, tres)
    slurm.refuse = lambda target, field, value: target == "4720" and value == "mps:10"
    held, why = tried(config, slurm)
    assert held == ["gpus-per-task"]
    printed("late", *(text for text in why.values() if text))


def test_what_a_probe_has_shown_holds_for_unknown_releases_alone() -> None:
    assert form_of("gres", "25.11") is None
    assert form_of("gres", "25.11", ("gpus",)) is None
    assert form_of("gres", "25.11", ("gres",)) == form_of("gres", "26.05")
    assert form_of("gres", "22.05", ("gres",)) == form_of("gres", "22.05")
    assert option_of(asked(gpu_style="gpus-per-task", cpus_given=True)) == ""


def test_a_probe_needs_pieces(config: SiteConfig) -> None:
    with pytest.raises(InputError, match="'cpu'"):
        trials_of(config, "cpu")


def test_a_site_that_stopped_late_binding_has_no_job_wait_for_a_piece(shell: Shell) -> None:
    path, state = shell.folder / "site.toml", shell.folder / "state"
    text = path.read_text().replace("[sharing]", '[sharing]\nlate_binding = "on"')
    path.write_text(f'{text}\n[paths]\nstate = "{state}"\n')
    (state / "history").mkdir(parents=True)
    for why, is_late in (("", True), ("5 jobs were harmed", False)):
        write_stop(str(state), Stop("", 0.0, why))
        assert ("csub_card_mib" in shell.run("--dry-run", "job.sh").stdout) is is_late


@pytest.mark.parametrize(
    ("site_late", "rule_late", "is_late", "is_kept"),
    [
        ("off", "on", True, True),
        ("on", "off", False, False),
        ("on", "", True, True),
        ("off", "", False, False),
        ("shadow", "", False, True),
        ("off", "shadow", False, True),
    ],
)
def test_whose_jobs_may_get_a_piece_while_they_wait_the_rules_say(
    shell: Shell, site_late: str, rule_late: str, is_late: bool, is_kept: bool
) -> None:
    path = shell.folder / "site.toml"
    text = path.read_text().replace("[sharing]", f'[sharing]\nlate_binding = "{site_late}"')
    path.write_text(f'{text}\n[[rollout]]\npolicy = "auto"\nusers = ["{ME}"]\nlate_binding = "{rule_late}"\n')
    plain = (shell.folder / "job.sh").read_text()
    done = shell.run("--dry-run", "job.sh")
    assert ("csub_card_mib" in done.stdout) is is_late
    shell.run("job.sh")
    kept = list((shell.folder / "home").rglob("waiting/*/4711.json"))
    assert bool(kept) is is_kept
    assert (shell.folder / "job.sh").read_text() == plain
