# SPDX-License-Identifier: Apache-2.0
"""Jobs that wait as asked and get a piece once their need is known: by real updates, and each is seen to start."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.core.model import Evidence
from slurm_colloc.estimate.snapshot import write_snapshot
from tests.cluster.daemons import all_idle
from tests.cluster.fixtures import RELEASE
from tests.cluster.lab import Lab
from tests.cluster.site import agents, write_site
from tests.cluster.user import SLICE, User, tres
from tests.unit.made import HOUR, evidence
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster

SCRIPT = """#!/bin/bash
#SBATCH -t 60 -o out.%j
echo "mps=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-} limit=${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT-}"
timeout 20 srun -n1 sh -c 'echo step'
echo end
"""
LOOK = "from slurm_colloc.rebind.program import main; main(0)"
NOW = "import slurm_colloc.rebind.look as look; look._CYCLE_S = 0; " + LOOK
UNDO = "from slurm_colloc.rebind.program import main; main(0, undo=True)"
SMALL = f"gpu:{SLICE}_1g.10gb:1"
PIECES = {"mps": "mps:6", "shard": "shard:1", "mig": SMALL}
FORMS = {
    "gres": ["--gres=gpu:1"],
    "gres-type": ["--gres=gpu:h100:1"],
    "gpus": ["--gpus=1"],
    "gpus-type": ["--gpus=h100:1"],
    "per-node": ["--gpus-per-node=h100:1"],
    "per-task": ["-n1", "--gpus-per-task=1"],
    "cores": ["-c2", "--gres=gpu:h100:1"],
}


def site_of(lab: Lab, mode: str, late_back: str, late: str) -> Path:
    extra = {"sharing.order": f'["{mode}"]', "sharing.late_binding": f'"{late}"', "sharing.mps_daemon": '"prolog"'}
    extra |= {"sharing.late_back": f'"{late_back}"'}
    return write_site(lab, f"late-{mode}", agent=False, extra=extra)


def user_of(lab: Lab, mode: str, late_back: str = "off", late: str = "on") -> User:
    user = User(lab, "alice", site_of(lab, mode, late_back, late))
    user.script(SCRIPT)
    kept = user.home / ".local/share/slurm_colloc/waiting"
    # The last look of the test before may be to come, by another site's order: it is to know nothing.
    for path in (*kept.rglob("*.json"), *lab.root.glob("late-*/history/*")):
        path.unlink()
    return user


# slurmctld goes round its whole queue this often, if nothing has it look before.
SCHED_INTERVAL_S = 60.0


@pytest.fixture(autouse=True)
def _ended(lab: Lab) -> Iterator[None]:
    yield
    lab.run(["scancel", "-u", "alice"])
    lab.run(["scancel", "-u", "bob"])
    lab.run(["scancel", "-u", "carol"])
    wait_for(lambda: all_idle(lab), "the nodes do not become idle")


def fill(lab: Lab, *options: str) -> str:
    """Start a job of bob's that takes these, and return it once it runs."""
    argv = ["sbatch", "--parsable", "-t", "30", "-o", "/dev/null", *options, "--wrap=sleep 600"]
    job = lab.run_as("bob", argv, check=True).stdout.strip()
    lab.wait_state(job)
    return job


def known_run(user: User, *words: str, peak_mib: int = 4000) -> Evidence:
    """Return a run of an hour of the job that these words submit."""
    shown = user.run("csub", "--dry-run", "--colloc=off", "--format=json", *words).stdout
    signature = json.loads(shown)["request"]["signature"]
    return evidence(signature=signature, peak_mib=peak_mib, sm_active_mean_pct=5.0, elapsed_s=float(HOUR))


def learn(user: User, *words: str, peak_mib: int = 4000) -> None:
    """Have a run of the job that these words submit be known, and no other."""
    tell(user, known_run(user, *words, peak_mib=peak_mib))


def tell(user: User, *runs: Evidence) -> None:
    """Have the site's history know these runs of a user, and no others."""
    uid = user.lab.users[user.name].uid
    folder = user.folder / "history"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
    write_snapshot(str(folder / f"{uid}.sqlite"), [*runs], uid)


def look(user: User, code: str = LOOK) -> None:
    done = user.run(str(user.lab.bin / "python"), "-I", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def waiting(user: User, job: str) -> dict[str, object]:
    [path] = (user.home / ".local/share/slurm_colloc/waiting").rglob(f"{job}.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def change_of(user: User, job: str) -> dict[str, object] | None:
    return waiting(user, job)["change"]  # type: ignore[return-value]


def bind(user: User, job: str) -> dict[str, object]:
    """Look until the job is changed, for csub may be looking itself, and return the change."""

    def is_changed() -> bool:
        look(user)
        change = change_of(user, job)
        return change is not None and bool(change["is_told"])

    wait_for(is_changed, f"job {job} is not changed")
    return change_of(user, job) or {}


def may_become(form: str, mode: str) -> bool:
    if RELEASE == "22.05":
        return mode == "mig" and form in ("gres", "gpus")
    return True


@pytest.mark.parametrize("mode", list(PIECES))
@pytest.mark.parametrize("form", list(FORMS))
def test_each_form_becomes_a_piece_and_starts(lab: Lab, form: str, mode: str) -> None:
    user = user_of(lab, mode)
    words = [*FORMS[form], "train.sh"]
    job = user.submit("-H", *words)
    asked = user.shown(job)
    learn(user, *words)
    if not may_become(form, mode):
        look(user)
        assert change_of(user, job) is None
        assert {name: value for name, value in user.shown(job).items() if name.startswith("Tres")} == {
            name: value for name, value in asked.items() if name.startswith("Tres")
        }
        return
    change = bind(user, job)
    assert change["gres"] == PIECES[mode]
    user.run("scontrol", "release", job)
    lab.wait_jobs([job])
    given = user.allocated(job)
    if mode == "mig":
        assert given[f"gres/gpu:{SLICE}_1g.10gb"] == "1"
        assert given["gres/gpu"] == "1"
    else:
        assert given[f"gres/{mode}"] == PIECES[mode].split(":")[1]
        assert "gres/gpu" not in given
    word, variables, *rest = (user.home / f"out.{job}").read_text().splitlines()
    assert f"became {PIECES[mode]} at " in word
    assert rest == ["step", "end"]
    if mode == "mps":
        assert variables == "mps=100 limit=0=4893M"
    if form == "cores":
        assert given["cpu"] == "2"


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no whole GPU to a share")
@pytest.mark.parametrize("form", ["gres-type", "gpus", "per-task"])
def test_cores_and_memory_that_came_with_a_gpu_go_with_its_share(lab: Lab, form: str) -> None:
    """Without a GPU the partition's defaults for each GPU are none: the job would have one core."""
    set_defaults = ["scontrol", "update", "PartitionName=all"]
    lab.run([*set_defaults, "JobDefaults=DefCpuPerGPU=8,DefMemPerGPU=300"], check=True)
    try:
        user = user_of(lab, "mps")
        words = [*FORMS[form], "train.sh"]
        job = user.submit("-H", *words)
        before = user.shown(job)
        learn(user, *words, peak_mib=30_000)
        assert bind(user, job)["gres"] == "mps:43"
        look(user, UNDO)
        after = user.shown(job)
        fields = ("TimeLimit", "NumCPUs", "MinCPUsNode", "CPUs/Task", "MinMemoryCPU")
        assert {name: after.get(name) for name in fields} == {name: before.get(name) for name in fields}
        user.run("scancel", job)
        user = user_of(lab, "mps")
        job = user.submit("-H", *words)
        learn(user, *words, peak_mib=30_000)
        bind(user, job)
        user.run("scontrol", "release", job)
        lab.wait_jobs([job])
        given = user.allocated(job)
        assert (given["gres/mps"], given["cpu"], given["mem"]) == ("43", "3", "300M"), given
        assert (user.home / f"out.{job}").read_text().split("\n")[2:] == ["step", "end", ""]
    finally:
        lab.run([*set_defaults, "JobDefaults="], check=True)


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no request that names its type")
def test_defaults_by_gpu_stay_with_a_slice_and_keep_a_share_from_jobs_that_slurmctld_has_looked_at(lab: Lab) -> None:
    """From then on the job has CpusPerTres and MemPerTres, with which Slurm refuses gres/mps (24.11, 26.05)."""
    set_defaults = ["scontrol", "update", "PartitionName=all"]
    lab.run([*set_defaults, "JobDefaults=DefCpuPerGPU=2,DefMemPerGPU=300"], check=True)
    try:
        whole = [fill(lab, "-w", "g1", "--gres=gpu:2"), fill(lab, "-w", "g2", "--gres=gpu:2")]
        words = ["--gres=gpu:h100:1", "train.sh"]
        user = user_of(lab, "mps")
        job = user.submit(*words)
        wait_for(lambda: user.shown(job).get("CpusPerTres"), "slurmctld does not look at the job", 2 * SCHED_INTERVAL_S)
        learn(user, *words)
        look(user)
        assert (change_of(user, job), waiting(user, job)["left"]) == (None, "per-gpu")
        assert "counted by GPU" in user.run("colloc", "late").stdout
        user.run("scancel", job)
        user = user_of(lab, "mig")
        job = user.submit(*words)
        wait_for(lambda: user.shown(job).get("CpusPerTres"), "slurmctld does not look at the job", 2 * SCHED_INTERVAL_S)
        learn(user, *words)
        assert bind(user, job)["gres"] == SMALL
        lab.wait_jobs([job])
        given = user.allocated(job)
        assert (given[f"gres/gpu:{SLICE}_1g.10gb"], given["cpu"], given["mem"]) == ("1", "2", "300M"), given
        assert (user.home / f"out.{job}").read_text().split("\n")[-3:] == ["step", "end", ""]
        lab.run(["scancel", *whole], check=True)
    finally:
        lab.run([*set_defaults, "JobDefaults="], check=True)


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no whole GPU to a share")
def test_the_charge_before_and_after_is_said_as_slurm_bills_it(lab: Lab) -> None:
    weights = ["scontrol", "update", "PartitionName=all"]
    lab.run([*weights, "TRESBillingWeights=CPU=1.0,GRES/gpu=8,GRES/mps=0.08"], check=True)
    try:
        user = user_of(lab, "mps")
        words = ["--gres=gpu:h100:1", "train.sh"]
        job = user.submit("-H", *words)
        learn(user, *words)
        change = bind(user, job)
        assert (change["billed"], change["bills"]) == ("9", "1")
        user.run("scontrol", "release", job)
        assert user.allocated(job)["billing"] == "1"
    finally:
        lab.run([*weights, "TRESBillingWeights=CPU=1.0"])
    assert "; Slurm bills 1, not 9;" in (user.home / f"out.{job}").read_text().splitlines()[0]
    lab.wait_accounted([job])
    assert "Slurm bills 1 for it" in user.run("colloc", "job", job).stdout


def test_back_by_one_command(lab: Lab) -> None:
    user = user_of(lab, "mps")
    if RELEASE == "22.05":
        pytest.skip("22.05 changes no whole GPU to a share")
    words = ["--gpus=h100:1", "train.sh"]
    job = user.submit("-H", *words)
    before = user.shown(job)
    learn(user, *words)
    bind(user, job)
    look(user, UNDO)
    assert (change_of(user, job) or {})["why"] == "undo"
    after = user.shown(job)
    fields = ("TresPerNode", "TresPerJob", "TimeLimit", "NumCPUs", "MinCPUsNode", "CPUs/Task")
    assert {name: after.get(name) or None for name in fields} == {name: before.get(name) for name in fields}
    user.run("scontrol", "release", job)
    lab.wait_jobs([job])
    assert user.allocated(job)["gres/gpu:h100"] == "1"
    assert tres("gpu:h100:1") in (before.get("TresPerJob"), before.get("TresPerNode"))


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 knows no way back from a slice")
def test_a_slice_that_waits_goes_back_to_a_free_gpu_but_not_to_one_that_is_planned(lab: Lab) -> None:
    user = user_of(lab, "mig", "any")
    for profile, number in (("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)):
        fill(lab, "-p", "mig", f"--gres=gpu:{SLICE}_{profile}:{number}")
    whole = [fill(lab, "-w", "g1", "--gres=gpu:2"), fill(lab, "-w", "g2", "--gres=gpu:2")]
    words = ["--gres=gpu:h100:1", "train.sh"]
    job = user.submit(*words)
    learn(user, *words)
    assert bind(user, job)["gres"] == SMALL
    look(user, NOW)
    assert tres(SMALL) in user.shown(job).values(), "nothing is free"
    larger = lab.run_as(
        "carol", ["sbatch", "--parsable", "-N2", "--gres=gpu:2", "--wrap=true"], check=True
    ).stdout.strip()
    lab.run(["scancel", whole[0]], check=True)
    state = ["sinfo", "-h", "-n", "g1", "-p", "all", "-o", "%t"]
    wait_for(lambda: lab.run(state).stdout.split() in (["plnd"], ["planned"], ["idle-"]), "g1 is not planned")
    look(user, NOW)
    assert tres(SMALL) in user.shown(job).values(), "a larger job is to have it"
    lab.run(["scancel", larger], check=True)

    def is_back() -> bool:
        look(user, NOW)
        return (change_of(user, job) or {})["why"] == "free"

    wait_for(is_back, "it does not go back")
    lab.wait_jobs([job])
    given = user.allocated(job)
    assert (given["gres/gpu:h100"], given["gres/gpu"]) == ("1", "1")
    word, *rest = (user.home / f"out.{job}").read_text().splitlines()
    assert [word.partition(" ")[0], *rest] == ["mps=", "step", "end"]


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 knows no way back from a slice")
def test_an_array_on_slices_goes_back_once_each_of_its_tasks_finds_a_gpu(lab: Lab) -> None:
    user = user_of(lab, "mig", "any")
    for profile, number in (("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)):
        fill(lab, "-p", "mig", f"--gres=gpu:{SLICE}_{profile}:{number}")
    whole = [fill(lab, "-w", node, "--gres=gpu:1") for node in ("g1", "g1", "g2", "g2")]
    words = ["--gres=gpu:h100:1", "--array=1-2", "train.sh"]
    job = user.submit(*words)
    learn(user, *words)
    assert bind(user, job)["gres"] == SMALL
    lab.run(["scancel", whole[0]], check=True)
    lab.wait_jobs([whole[0]])
    look(user, NOW)
    assert tres_of(user, job) == [f"1-2 {tres(SMALL)}"], "one is free"
    lab.run(["scancel", whole[2]], check=True)

    def is_back() -> bool:
        look(user, NOW)
        return (change_of(user, job) or {})["why"] == "free"

    wait_for(is_back, "it does not go back")
    lab.wait_jobs([job])
    lab.wait_accounted([job])
    rows = lab.run(["sacct", "-a", "-X", "-n", "-P", "-j", job, "-o", "JobID,State,AllocTRES"]).stdout.split()
    assert [row.split("|")[:2] for row in rows] == [[f"{job}_{task}", "COMPLETED"] for task in (1, 2)]
    assert all("gres/gpu:h100=1" in row for row in rows)


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no request that names its type")
def test_in_shadow_it_is_recorded_what_a_job_would_have_become(lab: Lab) -> None:
    user = user_of(lab, "mig", late="shadow")
    whole = [fill(lab, "-w", "g1", "--gres=gpu:2"), fill(lab, "-w", "g2", "--gres=gpu:2")]
    words = ["--gres=gpu:h100:1", "train.sh"]
    job = user.submit(*words)
    learn(user, *words)
    before = user.shown(job)
    spool = user.folder / "spool"

    def decided() -> list[dict[str, object]]:
        look(user)
        return [json.loads(path.read_text()) for path in sorted(spool.rglob(f"*-{job}.json"))]

    wait_for(lambda: len(decided()) > 1, "nothing is recorded")
    last = decided()[-1]
    after = user.shown(job)
    fields = ("TresPerNode", "TresPerJob", "TimeLimit", "NumCPUs", "MinCPUsNode")
    assert {name: after.get(name) for name in fields} == {name: before.get(name) for name in fields}
    assert (last["given"], last["would"], last["arm"], last["shadow"]) == ("as asked", SMALL, "late", True)
    assert last["would_wait_s"] is not None, "slices were free"
    stored = lab.run(["scontrol", "write", "batch_script", job, "-"]).stdout
    assert "csub_card_mib" not in stored
    lab.run(["scancel", *whole], check=True)
    lab.wait_jobs([job])
    assert user.allocated(job)["gres/gpu"] == "1"


def tres_of(user: User, job: str) -> list[str]:
    """Return what each record of a job asks for of GPUs."""
    lines = user.lab.run(["scontrol", "show", "job", "-o", job]).stdout.splitlines()
    found = []
    for line in lines:
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        found += [
            f"{fields.get('ArrayTaskId', '')} {value}"
            for name, value in fields.items()
            if name == "TresPerNode" and value
        ]
    return sorted(found)


def test_an_array_is_changed_whole_and_each_task_has_its_piece(lab: Lab) -> None:
    user = user_of(lab, "mig")
    words = ["--gres=gpu:1", "--array=0-3%2", "-p", "all", "train.sh"]
    job = user.submit("-H", *words)
    learn(user, *words)
    bind(user, job)
    asked = tres(SMALL)
    if RELEASE == "22.05":
        assert tres_of(user, job) == []
    else:
        assert tres_of(user, job) == [f"0-3%2 {asked}"]
    user.run("scontrol", "release", job)
    lab.wait_jobs([job])
    lab.wait_accounted([job])
    rows = lab.run(["sacct", "-a", "-X", "-n", "-P", "-j", job, "-o", "JobID,AllocTRES"]).stdout.split()
    assert [row.split("|")[0] for row in rows] == [f"{job}_{task}" for task in range(4)]
    assert all(f"gres/gpu:{SLICE}_1g.10gb=1" in row for row in rows)


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no whole GPU to a share")
@pytest.mark.parametrize("tasks", ["1-298:3", ",".join(str(number + number % 7) for number in range(100, 900, 11))])
def test_an_array_whose_tasks_have_no_short_name(lab: Lab, tasks: str) -> None:
    """A step scontrol shows and does not take, and a long list it shows in part."""
    user = user_of(lab, "mps")
    words = ["--gres=gpu:h100:1", f"--array={tasks}", "train.sh"]
    job = user.submit("-H", *words)
    learn(user, *words)
    bind(user, job)
    assert [one.split()[-1] for one in tres_of(user, job)] == [tres("mps:6")]
    look(user, UNDO)
    assert [one.split()[-1] for one in tres_of(user, job)] == [tres("gpu:h100:1")]


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no whole GPU to a share")
def test_an_array_of_which_tasks_run_and_one_is_held(lab: Lab) -> None:
    """Records of their own: the task that runs stays, each that waits is changed; the held one is root's by now."""
    user = user_of(lab, "mps")
    user.script(SCRIPT.replace("echo end", "sleep 30"))
    words = ["--gres=gpu:h100:1", "--array=1-5%1", "train.sh"]
    job = user.submit(*words)
    running = ["squeue", "-h", "-t", "RUNNING", "-j", job, "-o", "%K"]
    wait_for(lambda: lab.run(running).stdout.split() == ["1"], "no task runs")
    lab.run(["scontrol", "hold", f"{job}_3"], check=True)
    learn(user, *words)
    bind(user, job)
    whole, part = tres("gpu:h100:1"), tres("mps:6")
    assert tres_of(user, job) == [f"1 {whole}", f"2,4-5%1 {part}", f"3 {whole}"]


NEVER = {
    "limit": ["scontrol", "update", "JobId={job}", "TimeLimit=30"],
    "gres": ["scontrol", "update", "JobId={job}", "Gres=gpu:1"],
    "admin-comment": ["scontrol", "update", "JobId={job}", "AdminComment=x"],
    "admin-hold": ["scontrol", "hold", "{job}"],
    "deadline": ["scontrol", "update", "JobId={job}", "Deadline=now+3days"],
}


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no whole GPU to a share")
@pytest.mark.parametrize("name", list(NEVER))
def test_what_others_have_changed_since_is_left(lab: Lab, name: str) -> None:
    user = user_of(lab, "mps")
    words = ["--gres=gpu:h100:1", "train.sh"]
    job = user.submit("-H", *words)
    lab.run([word.format(job=job) for word in NEVER[name]], check=True)
    before = user.shown(job)
    learn(user, *words)
    for _ in range(3):
        look(user)
    assert change_of(user, job) is None
    after = user.shown(job)
    assert {name: after.get(name) for name in ("TresPerNode", "TimeLimit")} == {
        name: before.get(name) for name in ("TresPerNode", "TimeLimit")
    }


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no whole GPU to a share")
def test_a_piece_that_no_node_has_is_put_back_once_and_not_tried_again(lab: Lab) -> None:
    """The site file says that shares are there; Slurm says that they are not, once it has tried."""
    user = user_of(lab, "mps")
    words = ["--gres=gpu:h100:1", "train.sh"]
    job, other = user.submit("-H", *words), user.submit("-H", *words)
    learn(user, *words)
    bind(user, job)
    lab.run(["scontrol", "update", f"JobId={job}", "ReqNodeList=g2"], check=True)
    user.run("scontrol", "release", job)

    def is_back() -> bool:
        look(user)
        return bool((change_of(user, job) or {})["why"])

    wait_for(is_back, "it is not put back")
    assert user.shown(job)["TresPerNode"] == tres("gpu:h100:1")
    look(user)
    later = user.submit("-H", "--colloc=auto", *words)
    assert change_of(user, other) is not None
    assert later


def test_off_by_the_users_word(lab: Lab) -> None:
    user = user_of(lab, "mig")
    job = user.submit("-H", "--gres=gpu:1", "--colloc=late=off", "train.sh")
    assert list((user.home / ".local/share/slurm_colloc/waiting").rglob(f"{job}.json")) == []
    stored = lab.run(["scontrol", "write", "batch_script", job, "-"]).stdout
    assert "csub_card_mib" not in stored


SWEEP = """#!/bin/bash
#SBATCH --gres=gpu:h100:1 -t 1 -p gpu -o /dev/null
COLLOC_SIMULATED_GPU_LOAD=mem=3G,util=40,sm=9 sleep 25
wait
"""


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no whole GPU to a share")
def test_a_loop_at_a_site_with_agents_gets_shares_while_its_first_run_goes_on(lab: Lab) -> None:
    """Twelve submissions and nothing typed after them: the first four run, and what they show the others are given."""
    extra = {"sharing.order": '["mps"]', "sharing.late_binding": '"on"', "sharing.mps_daemon": '"prolog"'}
    extra |= {"sharing.settle_s": "7"}
    user = User(lab, "carol", write_site(lab, "late-loop", agent=True, extra=extra))
    shutil.rmtree(user.home / ".local/share/slurm_colloc", ignore_errors=True)
    user.script(SWEEP, "sweep.sh")
    with agents(lab, user.folder):
        jobs = [user.submit("sweep.sh") for _ in range(12)]
        states = lab.wait_jobs(jobs, timeout=240)
    assert set(states.values()) == {"COMPLETED"}
    given = [user.allocated(job) for job in jobs]
    shared = [one for one in given if "gres/mps" in one]
    assert all("gres/gpu" not in one for one in shared)
    # As asked four run at once, in three rounds of 25 s: what waits after seven seconds becomes shares.
    assert len(shared) >= 4, given


TRAIN = """import sys
import time

time.sleep(8)
print("seed", sys.argv[2])
"""
SEEDS = """#!/bin/bash
#SBATCH --gres=gpu:h100:1 -t 5 -o seed.%j
COLLOC_SIMULATED_GPU_LOAD=mem=3G,util=40,sm=9 python3 train.py --seed $1
"""


def test_a_loop_of_seeds_is_one_job_and_what_waits_gets_its_piece(lab: Lab) -> None:
    """Twenty seeds by argument: the first runs are measured, and those that wait then are the same job.

    The site has no agent: it is known by what csub's sampler in the first job kept.
    """
    user = User(lab, "carol", site_of(lab, "mps", "off", "on"))
    shutil.rmtree(user.home / ".local/share/slurm_colloc", ignore_errors=True)
    user.script(SEEDS, "seeds.sh")
    user.script(TRAIN, "train.py")
    loop = user.run("sh", "-c", "for s in $(seq 20); do csub seeds.sh $s || exit; done")
    jobs = [line.split()[3] for line in loop.stdout.splitlines()]
    assert (len(jobs), loop.returncode) == (20, 0), loop.stderr
    assert set(lab.wait_jobs(jobs, timeout=80).values()) == {"COMPLETED"}
    outputs = [(user.home / f"seed.{job}").read_text().splitlines()[-1] for job in jobs]
    assert outputs == [f"seed {seed}" for seed in range(1, 21)]
    given = ["gres/mps" in user.allocated(job) for job in (*jobs, user.submit("seeds.sh", "21"))]
    assert not given[0]
    assert given[-1]
    # Four of 8 s run at once as asked, and a look comes each 20 s: after the first end all are changed that wait then.
    assert RELEASE == "22.05" or all(given[16:]), given
    evidence = (user.home / ".local/share/slurm_colloc/evidence").rglob("*.json")
    assert len({path.parent for path in evidence}) == 1


@pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no whole GPU to a share")
def test_killed_at_any_moment_each_job_is_as_asked_or_as_meant(lab: Lab) -> None:
    user = user_of(lab, "mps")
    words = ["--gpus=h100:1", "train.sh"]
    jobs = [user.submit("-H", *words) for _ in range(6)]
    learn(user, *words)
    draw = random.Random(1)
    for _ in range(12):
        argv = ["timeout", "-s", "KILL", f"{draw.uniform(0.1, 1.2):.3f}", str(lab.bin / "python"), "-I", "-c", LOOK]
        user.run(*argv)
    asked, meant = {"TresPerJob": tres("gpu:h100:1")}, {"TresPerNode": tres("mps:6")}
    for job in jobs:
        shown = user.shown(job)
        assert {name: value for name, value in shown.items() if name.startswith("TresPer") and value} in (asked, meant)
    for job in jobs:
        bind(user, job)
    user.run("scontrol", "release", ",".join(jobs))
    assert set(lab.wait_jobs(jobs).values()) == {"COMPLETED"}
    assert [user.allocated(job).get("gres/mps") for job in jobs] == ["6"] * 6
    assert user.jobs().count(jobs[0]) == 1


def test_a_probe_says_which_requests_this_release_changes(lab: Lab) -> None:
    user = user_of(lab, "mig")
    before = set(user.jobs())
    shown = json.loads(user.run("colloc", "late", "--probe", "all", "--format=json").stdout)
    why = {(one["option"], one["gpu"]["type"], one["piece"]["name"]): one["why"] for one in shown["trials"]}
    if RELEASE == "22.05":
        assert shown["late_forms"] == []
        assert why["gres", "", "mps"]
        assert why["gpus", "h100", "shard"]
    else:
        assert shown["late_forms"] == ["gres", "gpus", "gpus-per-node", "gpus-per-task"], shown
        assert len(shown["trials"]) == 4 * 2 * 3 * 2
    wait_for(lambda: all_idle(lab), "the nodes do not become idle")
    assert {user.shown(job)["JobState"] for job in set(user.jobs()) - before} <= {"COMPLETED", "CANCELLED", "FAILED"}
