# SPDX-License-Identifier: Apache-2.0
"""A job on a piece of a GPU that ends with an error: what is decided, and what its own end does about it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.config import MigSlice, Pool
from slurm_colloc.core.model import GPU_OOM, Gres, SharingMode
from slurm_colloc.gpu.failure import tried_mib
from slurm_colloc.placement.choose import as_asked
from slurm_colloc.rebind import recover
from slurm_colloc.rebind.verdict import End, Verdict, as_evidence, judge
from slurm_colloc.slurm.jobs import parse_controller
from slurm_colloc.slurm.options import CommandLine, Given
from slurm_colloc.submit.requeue_data import Carried, asks_for_more, carried, parse_carried
from tests.unit.golden import Printed
from tests.unit.made import MPS_POOL, RECORDED, RELEASES, SHARD_POOL, evidence, request, site
from tests.unit.programs import executable
from tests.unit.shell import HINT, Shell

SMALL, LARGE = "h100_1g.10gb", "h100_3g.40gb"
MIG = Pool(
    "m", "m1", ("mig",), slice=(MigSlice(LARGE, "3g.40gb", 40448, 60, 1), MigSlice(SMALL, "1g.10gb", 9984, 16, 2))
)
POOLS = (MIG, MPS_POOL, SHARD_POOL)
OOM = b"CUDA out of memory. Tried to allocate 2.00 GiB\n"
FAULT = b"CUDA error: an illegal memory access was encountered\n"
SLICE, SHARE, SHARD = Gres("gpu", SMALL, 1), Gres("mps", "", 5), Gres("shard", "", 2)


def piece(**fields: Any) -> Carried:
    whole = Carried(
        cluster="c",
        signature="abc",
        mode="mps",
        option="gres",
        asked="gpu:h100:1",
        partitions=("gpu",),
        without=(),
        fields={"TimeLimit": "30"},
        budget_mib=4352,
        sm_active_pct=10.0,
        open_mode="",
        signal_s=0.0,
        words=("--requeue", "train.sh", "a b"),
    )
    return whole._replace(**fields)


def end(has: Gres = SHARE, **fields: Any) -> End:
    return End(1, OOM, has, None, 3000.0, 0, "26.05")._replace(**fields)


def judged(one: End, **fields: Any) -> Verdict:
    verdict = judge(one, piece(**fields), POOLS)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("release", RELEASES)
def test_slurmctld_tells_how_jobs_ended(release: str) -> None:
    rows = parse_controller((RECORDED / f"slurm-{release}" / "ended/scontrol.txt").read_text())
    ended = {row.job_id: row for row in rows if row.is_final}
    assert sorted(ended) == ["1_0", "1_1", "1_2", "2", "3", "4"]
    assert [(one.state, one.status, one.task) for one in [ended["1_1"]]] == [("FAILED", 1, 1)]
    assert [ended[job].given for job in ("2", "3")] == [(Gres("shard", "", 2),), (Gres("mps", "", 25),)]
    assert ended["4"].status == -6
    assert len(rows) == 7  # an array that waits is one row


@pytest.mark.parametrize("release", ["24.11", "26.05"])
@pytest.mark.parametrize(
    ("has", "option", "update"),
    [
        (SHARE, "mps", {"Gres": "gpu:h100:1"}),
        (SHARD, "shard", {"Gres": "gpu:h100:1"}),
        (SLICE, "gres", {"Gres": "gpu:h100:1"}),
        (SLICE, "gpus-per-node", {"Gres": "gpu:h100:1"}),
        (SLICE, "gpus", {"TresPerNode": "", "TresPerJob": "gres/gpu:h100:1"}),
        (SLICE, "gpus-per-task", {"TresPerNode": "", "TresPerTask": "gres/gpu:h100:1"}),
    ],
)
def test_it_grows_to_what_was_asked(release: str, has: Gres, option: str, update: dict[str, str]) -> None:
    verdict = judged(end(has, release=release), option=option)
    assert (str(verdict.to), verdict.update) == ("gpu:h100:1", {**update, "TimeLimit": "30"})


def test_22_05_makes_a_share_all_shares_and_leaves_no_slice() -> None:
    """There the update changes neither time nor cores: it is another piece than was asked."""
    verdict = judged(end(release="22.05"), option="mps")
    assert (str(verdict.to), verdict.update) == ("mps:100", {"Gres": "mps:100"})
    assert judged(end(SHARD, release="22.05"), option="shard").update == {"Gres": "shard:4"}
    assert judge(end(Gres("mps", "", 100), release="22.05"), piece(option="mps"), POOLS) is None
    for option in ("gres", "gpus", "gpus-per-task"):
        verdict = judged(end(SLICE, release="22.05"), option=option)
        assert (verdict.to, verdict.update, verdict.more_mib) == (None, {}, 9985)
        assert verdict.why


@pytest.mark.parametrize(("option", "release"), [("", "26.05"), ("gres", "23.02"), ("gres", "")])
def test_what_is_in_no_table_is_not_changed(option: str, release: str) -> None:
    verdict = judged(end(SLICE, release=release), option=option)
    assert (verdict.to, bool(verdict.why)) == (None, True)


def test_what_the_site_has_tried_on_an_unknown_release_holds_for_a_job_that_grows() -> None:
    for has, option, probed in ((SLICE, "gpus", "gpus"), (SHARE, "mps", "gres"), (SHARD, "shard", "gres")):
        one, of = end(has, release="25.11"), piece(option=option)
        known = judge(end(has), of, POOLS)
        tried, other = (judge(one, of, POOLS, names) for names in ((probed,), ("gpus-per-node",)))
        assert tried is not None
        assert tried == known
        assert other is not None
        assert other.to is None
    untouched = judge(end(SLICE, release="22.05"), piece(), POOLS, ("gres",))
    assert untouched
    assert untouched.to is None


def test_one_gpu_of_no_type_may_be_the_same_slice_again() -> None:
    mig = {"partitions": ("mig",), "asked": "gpu:1"}
    assert judged(end(SLICE), **mig).update == {"Gres": f"gpu:{LARGE}:1"}
    last = judged(end(Gres("gpu", LARGE, 1)), **mig)
    assert (last.to, bool(last.why)) == (None, True)
    both = {"partitions": ("mig", "gpu"), "asked": "gpu:1"}
    assert judged(end(Gres("gpu", LARGE, 1)), **both).update == {"Gres": "gpu:h100:1", "TimeLimit": "30"}
    assert judged(end(SHARE), option="mps", **both).update["Gres"] == "gpu:h100:1"
    assert judged(end(SHARE), option="mps", asked="gpu:1").update["Gres"] == "gpu:1"


def test_it_grows_to_no_gpu_that_a_constraint_keeps_it_from() -> None:
    other = MPS_POOL._replace(name="other", gpu_type="a100")
    mig = MIG._replace(partitions=("both",))
    pools = [mig, other._replace(partitions=("both",)), MPS_POOL._replace(partitions=("both",))]
    for without, wanted in ((("other",), "gpu:h100:1"), (("g",), "gpu:a100:1")):
        verdict = judge(end(Gres("gpu", LARGE, 1)), piece(asked="gpu:1", partitions=("both",), without=without), pools)
        assert verdict is not None
        assert str(verdict.to) == wanted


def test_which_pools_a_job_is_kept_from_it_carries() -> None:
    config = site(MPS_POOL._replace(features=("fast",)), SHARD_POOL, MIG._replace(nodes="n[1-2]"))
    placed = as_asked(())._replace(mode=SharingMode.MPS, gres=SHARE, memory_mib=9)
    for asked, names in (
        ({}, ()),
        ({"features": ("fast",)}, (SHARD_POOL.name, MIG.name)),
        ({"excluded": ("n1", "n2")}, (MIG.name,)),
        ({"excluded": ("n1",)}, ()),
    ):
        found = carried(request(**asked), placed, None, {}, CommandLine((), (), ("a",), 0, 0), config)
        assert found.without == names


@pytest.mark.parametrize(
    ("peak", "said", "is_offender"),
    [
        (4000, b"", False),
        (4400, b"", True),
        (4000, b"Tried to allocate 2.00 GiB", True),
        (1000, b"Tried to allocate 2.00 GiB", False),
        (None, b"Tried to allocate 2.00 GiB", False),
    ],
)
def test_on_a_share_only_who_went_beyond_his_budget_is_the_offender(
    peak: int | None, said: bytes, is_offender: bool
) -> None:
    measured = evidence("12", peak) if peak is not None else None
    verdict = judged(end(SHARD, output=b"CUDA out of memory " + said, measured=measured), option="shard")
    assert (verdict.is_offender, verdict.more_mib) == (is_offender, 8704 if is_offender else None)
    command = asks_for_more(piece(), verdict.more_mib)
    hint = "--gpu-footprint=mem=8704M,sm=10" if is_offender else "--colloc=off"
    assert command == ("csub", hint, "--requeue", "train.sh", "a b")


def test_what_is_learned_is_more_than_it_had() -> None:
    for has, least in ((SLICE, 9985), (SHARE, 4353)):
        one = end(has)
        learned = as_evidence(one, judged(one), piece(), "12", 7.0)
        assert (learned.state, learned.gpu_mem_peak_mib, learned.job_id) == (GPU_OOM, least, "12")
    measured = end(SLICE, measured=evidence("12", 20_000))
    assert as_evidence(measured, judged(measured), piece(), "12", 7.0).gpu_mem_peak_mib == 20_000


def test_a_share_that_came_late_is_as_large_as_its_part_of_the_card() -> None:
    assert judged(end(SHARE), budget_mib=0).held_mib == 80000 * 5 // 100
    assert judged(end(SHARD), budget_mib=0).held_mib == 80000 * 2 // 4


def test_what_a_program_could_not_get_is_read_in_mib() -> None:
    said = b"Tried to allocate 20.00 MiB. GPU\nTried to allocate 1.50 GiB"
    assert tried_mib(said) == 1536
    assert tried_mib(b"trying to allocate 2147483648 bytes") == 2048
    assert tried_mib(b"CUDA_ERROR_OUT_OF_MEMORY") is None


@pytest.mark.parametrize("has", [Gres("gpu", "h100", 1), Gres("gpu", "", 1), Gres("", "", 0), Gres("mps", "", 100)])
def test_what_has_no_piece_is_none_of_its_business(has: Gres) -> None:
    assert judge(end(has), piece(), POOLS) is None


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, OOM),
        (1, b"ImportError\n"),
        (1, b"Detected 1 oom_kill event\n" + OOM),
        (1, b"device-side assert triggered\n"),
    ],
)
def test_other_ends_are_none_of_its_business(status: int, said: bytes) -> None:
    assert judge(end(status=status, output=said), piece(), POOLS) is None


def test_a_fault_counts_under_mps_alone_where_it_may_be_a_neighbours() -> None:
    verdict = judged(end(output=FAULT, measured=evidence("12", 9000)), option="mps")
    assert (str(verdict.to), verdict.is_offender, verdict.more_mib) == ("gpu:h100:1", False, None)
    for has in (SLICE, SHARD):
        assert judge(end(has, output=FAULT), piece(), POOLS) is None


def test_the_third_run_and_one_near_its_limit_are_left_alone() -> None:
    assert judged(end(runs=1)).to is not None
    assert judged(end(runs=2)).to is None
    assert judged(end(left_s=61.0)).to is not None
    assert judged(end(left_s=60.0)).to is None
    assert judged(end(left_s=200.0), signal_s=120.0).to is not None
    assert judged(end(left_s=180.0), signal_s=120.0).to is None
    assert judged(end(left_s=None)).to is not None


@pytest.mark.parametrize(
    ("asked", "given", "fields"),
    [
        ({}, {}, {}),
        ({"partitions": ("gpu", "big")}, {"partition": "mig"}, {"Partition": "gpu,big"}),
        ({}, {"partition": "mig"}, {"Partition": "gpu"}),
        ({"time_limit_min": 30.5}, {"time_limit_min": 48}, {"TimeLimit": "31"}),
        ({"time_limit_min": None}, {"time_limit_min": 48}, {}),
        (
            {"cpus_given": True, "cpus_asked": 8},
            {"cpu_option": "cpus-per-task=2"},
            {"CPUsPerTask": "8", "NumCPUs": "8", "MinCPUsNode": "8"},
        ),
        ({"cpus_per_gpu": 6}, {"cpu_option": "mincpus=2"}, {"NumCPUs": "6", "MinCPUsNode": "6"}),
        ({"tasks": 2, "cpus_per_gpu": 6}, {"cpu_option": "mincpus=2"}, {}),
        ({"mem_asked_mib": 4000}, {"mem": "1000M"}, {"MinMemoryNode": "4000"}),
        ({"mem_asked_mib": 4000}, {}, {}),
    ],
)
def test_what_csub_changes_beside_the_gpu_is_asked_for_again(
    asked: dict[str, Any], given: dict[str, Any], fields: dict[str, str]
) -> None:
    placed = as_asked(())._replace(mode=SharingMode.MPS, gres=SHARE, memory_mib=9, **given)
    config = site(MPS_POOL)
    found = carried(request(**asked), placed, None, {}, CommandLine((), (), ("a",), 0, 0), config)
    assert (found.fields, found.option, found.budget_mib, found.words) == (fields, "mps", 9, ("a",))
    assert parse_carried(found.text) == found


@pytest.mark.parametrize(("value", "lead_s"), [("B:USR1@300", 300.0), ("USR1", 60.0), ("TERM@x", 60.0)])
def test_how_long_before_its_end_a_job_is_told(value: str, lead_s: float) -> None:
    given = {"signal": Given("signal", value, "argv", "x")}
    placed = as_asked(())._replace(mode=SharingMode.MIG, gres=SLICE)
    style = request(gpu_style="gpus-per-task", cpus_given=True)
    found = carried(style, placed, None, given, CommandLine((), (), (), None, 0), site())
    assert (found.signal_s, found.option) == (lead_s, "")


# --- the job's own end, with a made-up scontrol ---


SCONTROL = """#!/bin/bash
folder=$CALLS/.. format=+%FT%T
[ "${SLURM_TIME_FORMAT-standard}" = standard ] || format=$SLURM_TIME_FORMAT
echo "$*" >> "$folder/asked"
case "$*" in
  *config*) printf '%s\\n' 'SLURM_VERSION = 26.05.0' "JobFileAppend = $(cat "$folder/append" 2>&-)"; exit ;;
  "requeue "*) [ ! -e "$folder/refuses" ] || { echo 'Requested operation is presently disabled' >&2; exit 1; }
    [ ! -e "$folder/dies" ] || kill -9 $PPID; exit ;;
esac
while read -r what id words; do
  echo "$what $id $words" >> "$folder/asked"
  case $what in
    update) [ -e "$folder/modify" ] || [ -e "$folder/deaf" ] ||
      { tr ' ' '\\n' <<< "$words" | sed -n 's/^Gres=//p' > "$folder/has"; } ;;
    show) task=${words#*_}
      [ ! -e "$folder/shown" ] || echo COMPLETING > "$folder/state"
      [ ! -e "$folder/cancelled" ] || touch "$folder/shown"
      [ ! -e "$folder/deaf" ] || ! grep -q ^update "$folder/asked" || { rm "$folder/deaf"; continue; }
      [ "$task" = "$words" ] && name= || name="ArrayJobId=${words%_*} ArrayTaskId=$task "
      echo "JobId=4711 ${name}JobName=x UserId=me($(id -u)) JobState=$(cat "$folder/state")" \\
        "Restarts=$(cat "$folder/restarts") EndTime=$(date -d "$(cat "$folder/until")" "$format")" \\
        "TresPerNode=gres/$(cat "$folder/has")" ;;
  esac
done
"""


class Job:
    """A job that csub has submitted, and that is run as slurmd would."""

    def __init__(
        self, shell: Shell, *words: str, script: str = "#!/bin/sh\n#SBATCH --gres=gpu:h100:1\n. ./part\n"
    ) -> None:
        self.shell = shell
        self.folder = shell.folder
        (self.folder / "job.sh").write_text(script)
        executable(self.folder / "bin/scontrol", SCONTROL)
        self.done = shell.run(*words, HINT, "job.sh")
        self.script = self.folder / "script.0"
        for name, text in (("has", "mps:13"), ("state", "RUNNING"), ("until", "2099-01-01T00:00:00")):
            self.put(name, text)

    def put(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    def run(self, part: str, *, shell: str = "sh", restarts: int = 0, **environ: str) -> int:
        """Run the script with these lines, and return its status."""
        self.put("part", part)
        given = {**self.shell.environment(), "SLURM_JOB_ID": "4711", **environ}
        self.put("restarts", str(restarts))
        if restarts:
            given["SLURM_RESTART_COUNT"] = str(restarts)
        with (self.folder / "out").open("ab") as out:
            argv = [shell, "-eu", str(self.script)]
            return subprocess.run(
                argv, env=given, cwd=self.folder, stdout=out, stderr=out, timeout=60, check=False
            ).returncode

    @property
    def said(self) -> str:
        path = self.folder / "out"
        return path.read_text() if path.exists() else ""

    def asked(self, word: str) -> list[str]:
        path = self.folder / "asked"
        return [line for line in (path.read_text().splitlines() if path.exists() else ()) if line.startswith(word)]

    def step(self, name: str = "4711") -> dict[str, Any]:
        path = self.folder / f"home/.local/share/slurm_colloc/recovered/lab/{name}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found


RUNS_OUT = f"echo '{OOM.decode().strip()}'; exit 3\n"


@pytest.fixture
def job(shell: Shell) -> Job:
    shell.site('"mps"', agent=True)
    return Job(shell, "--requeue")


SHELLS = [name for name in ("dash", "bash", "ksh", "mksh", "zsh", "yash", "sh") if shutil.which(name)]


@pytest.mark.parametrize("shell_name", SHELLS)
def test_a_job_that_ran_out_begins_again_with_what_was_asked(job: Job, shell_name: str, printed: Printed) -> None:
    assert job.run(RUNS_OUT, shell=shell_name) == 3
    assert job.asked("requeue") == ["requeue 4711"]
    assert job.asked("update") == ["update JobId=4711 Gres=gpu:h100:1"]
    assert job.said == ""
    kept = (job.folder / "out.run1").read_text()
    assert kept.startswith(OOM.decode())
    assert job.step()["outcome"] == kept.splitlines()[-1].removeprefix("csub: ")
    assert len(job.shell.calls()) == 1
    printed("recovery", kept.replace(str(job.folder), "FOLDER"))
    told = job.run('echo "${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT-none} ${SLURM_GPUS-none}"', restarts=1, SLURM_GPUS="0")
    assert (told, job.said) == (0, "none none\n")


def test_what_is_learned_outlives_the_sampler_and_the_next_run(shell: Shell) -> None:
    shell.site('"mps"', agent=True)
    job = Job(shell, "--requeue")
    signature = shell.decisions()[0]["signature"]
    measured = shell.ran(signature=signature, job_id="4711", state="RUNNING", mode="mps", gpu_mem_peak_mib=4300)
    before = measured.read_text()
    assert job.run(RUNS_OUT) == 3
    learned = json.loads((measured.parent / "4711.run1.json").read_text())
    assert (learned["state"], learned["gpu_mem_peak_mib"], learned["job_id"]) == (GPU_OOM, 4353, "4711.run1")
    assert measured.read_text() == before
    decided = [one for one in shell.decisions() if one["job_id"] == "4711"]
    assert [one["out_of_memory"] for one in decided] == [True]


@pytest.mark.parametrize("part", ["exit 0", "echo ImportError; exit 1", f"echo '{OOM.decode().strip()}'"])
def test_other_ends_ask_nothing_of_slurm(job: Job, part: str) -> None:
    status = job.run(part)
    assert (status, job.asked(""), job.step()) == (1 if "exit 1" in part else 0, [], {})


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "PENDING", "TIMEOUT"])
def test_a_job_that_somebody_ends_meanwhile_is_not_brought_back(job: Job, state: str) -> None:
    job.put("state", state)
    assert job.run(RUNS_OUT) == 3
    assert job.asked("requeue") == []


def test_one_that_is_cancelled_while_its_end_is_looked_at_is_not_brought_back(job: Job) -> None:
    """Slurm requeues a job that is being ended, too."""
    job.put("cancelled")
    assert job.run(RUNS_OUT) == 3
    assert len(job.asked("show 4711") + job.asked("show job")) == 2
    assert (job.asked("requeue"), (job.folder / "out.run1").exists()) == ([], False)


def test_a_count_of_the_job_that_submitted_it_is_not_its_own(job: Job) -> None:
    assert job.run(RUNS_OUT, SLURM_RESTART_COUNT="2") == 3
    assert job.asked("requeue") == ["requeue 4711"]
    assert (job.step()["restarts"], (job.folder / "out.run1").exists()) == (0, True)


def test_who_hides_the_count_has_no_more_runs(job: Job) -> None:
    assert job.run(f"unset SLURM_RESTART_COUNT\n{RUNS_OUT}", restarts=2) == 3
    assert job.asked("requeue") == []


def test_what_an_earlier_job_has_put_aside_stays_and_so_does_this_ones(job: Job) -> None:
    job.put("out.run1", "of another job\n")
    assert job.run(RUNS_OUT) == 3
    assert job.said == ""
    assert (job.folder / "out.run1").read_text() == "of another job\n"
    kept = (job.folder / "out.4711.run1").read_text()
    assert kept.startswith(OOM.decode())
    assert "out.4711.run1" in kept.splitlines()[-1]


def test_whose_step_is_lost_has_no_limit_on_its_whole_gpu(job: Job) -> None:
    assert job.run(RUNS_OUT) == 3
    shutil.rmtree(job.folder / "home/.local/share/slurm_colloc/recovered")
    assert (
        job.run('echo "${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT-none} ${SLURM_GPUS-none}"', restarts=1, SLURM_GPUS="0") == 0
    )
    assert job.said.split() == ["none", "none"]


def test_a_sites_part_that_is_only_words_ends_no_job(shell: Shell) -> None:
    templates = shell.folder / "templates"
    templates.mkdir()
    (templates / "mps.sbatch.j2").write_text("{# nothing #}# Ours.\n")
    shell.site('"mps"', agent=True)
    config = shell.folder / "site.toml"
    config.write_text(f'{config.read_text()}\n[paths]\ntemplates = "{templates}"\n')
    job = Job(shell, "--requeue")
    assert job.run("echo begun; exit 3") == 3
    assert job.said == "begun\n"


@pytest.mark.parametrize("shown_as", ["", "+%s", "+%a %T"])
def test_near_its_limit_it_ends_as_it_ends_and_says_how_to_ask_for_more(
    job: Job, shown_as: str, printed: Printed
) -> None:
    job.put("until", time.strftime("%FT%T", time.localtime(time.time() + 30)))
    assert job.run(RUNS_OUT, SLURM_TIME_FORMAT=shown_as or "standard") == 3
    assert (job.asked("requeue"), job.asked("update")) == ([], [])
    printed("recovery", job.said)


def test_a_requeue_that_slurm_refuses_is_said_and_the_output_stays(job: Job, printed: Printed) -> None:
    job.put("refuses")
    assert job.run(RUNS_OUT) == 3
    assert job.asked("update") == []
    assert not (job.folder / "out.run1").exists()
    printed("recovery", job.said)


def test_an_update_that_is_refused_leaves_the_job_on_its_piece_and_is_tried_once(job: Job, printed: Printed) -> None:
    job.put("modify")
    assert job.run(RUNS_OUT) == 3
    printed("recovery", (job.folder / "out.run1").read_text().replace(str(job.folder), "FOLDER"))
    before = len(job.asked("requeue"))
    assert job.run('echo "$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"', restarts=1) == 0
    assert (job.said, len(job.asked("requeue"))) == ("0=4352M\n", before)


def below(pid: int) -> list[int]:
    """Return the processes that a process has started, and theirs."""
    own = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*own, *(further for one in own for further in below(one))]


def test_while_slurmctld_does_not_answer_it_is_asked_again(job: Job) -> None:
    job.put("deaf")
    assert job.run(RUNS_OUT) == 3
    assert job.asked("update") == ["update JobId=4711 Gres=gpu:h100:1"] * 2
    assert "begins again on gpu:h100:1" in job.step()["outcome"]


def test_what_cannot_be_written_down_is_not_begun(job: Job) -> None:
    data = job.folder / "home/.local/share/slurm_colloc"
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    (data / "recovered").touch()
    assert job.run(RUNS_OUT) == 3
    assert job.asked("requeue") == []


def test_of_many_jobs_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(recover, "_MOST_KEPT", 3)
    for number in range(5):
        recover.keep_rerun("c", str(number), recover.Rerun(1, 0, "gpu:1", {}, f"words {number}"))
        os.utime(tmp_path / f"slurm_colloc/recovered/c/{number}.json", (number, number))
    assert [recover.told("c", str(number)) for number in range(6)] == ["", "", *map("words {}".format, (2, 3, 4)), ""]
    assert (tmp_path / "slurm_colloc/recovered/c").stat().st_mode & 0o777 == 0o700


def test_killed_between_the_two_the_next_start_does_the_rest(job: Job) -> None:
    job.put("dies")
    assert job.run(RUNS_OUT) == 3
    assert (job.asked("update"), job.step()["outcome"]) == ([], "")
    (job.folder / "dies").unlink()
    job.put("part", "echo not reached")
    job.put("restarts", "1")
    given = {**job.shell.environment(), "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"}
    argv = ["sh", str(job.script)]
    running = subprocess.Popen(argv, env=given, cwd=job.folder, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while not job.step()["outcome"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert running.poll() is None, "it waits for Slurm to end it"
    finally:
        for pid in (running.pid, *below(running.pid)):
            os.kill(pid, signal.SIGKILL)
        output, _ = running.communicate()
    assert output == b""
    assert job.asked("requeue") == ["requeue 4711"] * 2
    assert job.asked("update") == ["update JobId=4711 Gres=gpu:h100:1"]
    assert job.run("echo $SLURM_RESTART_COUNT", restarts=2) == 0
    assert job.said.splitlines()[-1] == "2"


def test_after_two_new_runs_it_ends_whoever_counted_them(job: Job, printed: Printed) -> None:
    """Slurm's count also holds what was requeued by others, and what this has no word of."""
    assert job.run(RUNS_OUT, restarts=2) == 3
    assert job.asked("requeue") == []
    printed("recovery", job.said)


@pytest.mark.parametrize(
    ("words", "setting", "aside"),
    [(["--open-mode=append"], "0", False), ([], "1", False), (["--open-mode=truncate"], "1", True)],
)
def test_output_that_slurm_adds_to_stays_where_it_is(shell: Shell, words: list[str], setting: str, aside: bool) -> None:
    shell.site('"mps"', agent=True)
    job = Job(shell, "--requeue", *words)
    job.put("append", setting)
    job.put("out", "earlier\n")
    assert job.run(RUNS_OUT) == 3
    assert (job.folder / "out.run1").exists() == aside
    assert (job.folder / ("out.run1" if aside else "out")).read_text().startswith(f"earlier\n{OOM.decode()}")


@pytest.mark.parametrize("has", ["gpu:0,gres/mps:13", "mps:13"])
def test_a_share_beside_an_option_that_was_taken_back(job: Job, has: str) -> None:
    job.put("has", has)
    assert job.run(RUNS_OUT) == 3
    assert job.asked("update") == ["update JobId=4711 Gres=gpu:h100:1"]


def test_words_that_stood_in_the_output_before_are_not_the_jobs(job: Job) -> None:
    job.put("out", OOM.decode())
    assert job.run("echo ImportError; exit 1") == 1
    assert job.asked("") == []


def test_a_task_of_an_array_goes_by_its_own_name(shell: Shell) -> None:
    shell.site('"mps"', agent=True)
    job = Job(shell, "--requeue", "--array=0-3", "-o", "out.%a")
    assert job.run(RUNS_OUT, SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="2") == 3
    assert job.asked("requeue") == ["requeue 4700_2"]
    assert job.asked("update") == ["update JobId=4700_2 Gres=gpu:h100:1"]
    assert "begins again" in job.step("4700_2")["outcome"]


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        ("", {}),
        ("", {"SBATCH_REQUEUE": "no"}),
        ("--requeue --no-requeue", {}),
        ("--requeue --test-only", {}),
        ("--requeue --wait", {}),
        ("--requeue --colloc=off", {}),
    ],
)
def test_who_does_not_allow_it_has_no_line_of_it(shell: Shell, words: str, environ: dict[str, str]) -> None:
    shell.site('"mps"', agent=True)
    shown = shell.run("--dry-run", "--format=json", *words.split(), HINT, "job.sh", environ=environ)
    assert shown.returncode == 0, shown.stderr
    assert "csub_again" not in shown.stdout


def test_consent_may_stand_in_a_variable_or_a_directive(shell: Shell) -> None:
    shell.site('"mps"', agent=True)
    shown = shell.run("--dry-run", "--format=json", HINT, "job.sh", environ={"SBATCH_REQUEUE": "1"})
    assert "csub_again" in shown.stdout
    (shell.folder / "job.sh").write_text("#!/bin/sh\n#SBATCH --requeue --gres=gpu:1\n")
    assert "csub_again" in shell.run("--dry-run", "--format=json", HINT, "job.sh").stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--array=0-3 -o %a", "echo $SLURM_ARRAY_TASK_COUNT"),
        ("--array=0-3 -o all.txt", ""),
        ("--array=0-3 -o out.%A", ""),
        ("", "trap 'rm -f lock' EXIT"),
        ("", "trap cleanup 0"),
        ("", "trap 'a\nb' INT EXIT; true"),
        ("", "trap - TERM EXIT # ours"),
        ("", "cd x && exec python train.py"),
    ],
)
def test_whose_end_csub_cannot_see_or_tell_apart_is_told(shell: Shell, words: str, line: str, printed: Printed) -> None:
    shell.site('"mps"', agent=True)
    (shell.folder / "job.sh").write_text(f"#!/bin/sh\n#SBATCH --gres=gpu:1\n{line}\n")
    done = shell.run("--requeue", *words.split(), HINT, "job.sh")
    assert done.returncode == 0
    assert "csub_again" not in (shell.folder / "script.0").read_text()
    printed("recovery", done.stderr, case=f"{words} {line}".replace("\n", " "))


def test_a_user_without_a_name_has_the_decision_recorded_all_the_same(shell: Shell) -> None:
    code = (
        "import pwd\ndef nobody(uid): raise KeyError('getpwuid(): uid not found')\n"
        "pwd.getpwuid = nobody\nfrom slurm_colloc.cli.csub import main; main()"
    )
    done = shell.run("--requeue", "--array=0-1", HINT, "job.sh", code=code)
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n")
    assert "csub_again" in (shell.folder / "script.0").read_text()
    assert len(shell.decisions()) == 1


@pytest.mark.parametrize(
    "line", ["exec > log 2>&1", "exec 3<file", "# trap x EXIT", "trap 'exit 0' USR1", "trap '' USR1", "echo exec x"]
)
def test_what_only_looks_so_hinders_nothing(shell: Shell, line: str) -> None:
    shell.site('"mps"', agent=True)
    (shell.folder / "job.sh").write_text(f"#!/bin/sh\n#SBATCH --gres=gpu:1\n{line}\n")
    assert shell.run("--requeue", HINT, "job.sh").returncode == 0
    assert "csub_again" in (shell.folder / "script.0").read_text()


@pytest.mark.parametrize(
    ("words", "environ", "begins_again"),
    [
        ("", {}, True),
        ("--requeue", {}, True),
        ("--no-requeue", {}, False),
        ("", {"SBATCH_NO_REQUEUE": "1"}, False),
        (HINT, {}, False),
        (f"--requeue {HINT}", {}, True),
    ],
)
def test_a_site_may_take_slurms_default_for_consent_to_a_piece_that_csub_alone_chose(
    shell: Shell, words: str, environ: dict[str, str], begins_again: bool, printed: Printed
) -> None:
    shell.site('"mps"', agent=True)
    shell.ran()
    argv = ("--dry-run", "--explain", *words.split(), "job.sh")
    off = shell.run(*argv, environ=environ)
    assert ("csub_again" in off.stdout) is ("--requeue" in words)
    path = shell.folder / "site.toml"
    path.write_text(path.read_text().replace("[sharing]", '[sharing]\nrerun = "allowed"'))
    shell.ran()  # the folder's files are a part of the job
    done = shell.run(*argv, environ=environ)
    assert ("csub_again" in done.stdout) is begins_again
    said = [line for line in done.stderr.splitlines() if "begins again" in line]
    assert bool(said) is begins_again
    if begins_again:
        printed("recovery", *said, case=words)
