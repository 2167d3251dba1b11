# SPDX-License-Identifier: Apache-2.0
"""csub --pack and csub pack, unmodified, against a made-up sbatch on PATH: one job for many tasks, or the array."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Reason, because
from slurm_colloc.core.wording import words
from slurm_colloc.pack.command_line import one_command, read_commands
from slurm_colloc.pack.spec import MARK, Spec, from_json
from slurm_colloc.pack.starts_and_retries import Queue
from tests.unit.golden import Printed
from tests.unit.made import near
from tests.unit.shell import DEFINITE, DOUBTFUL, HINT, SBATCH, SITE, Shell

HEAD = "#!/bin/bash -l\n#SBATCH --gres=gpu:1 -t 10\n#SBATCH --array=0-99\n#SBATCH --output=logs/%A_%a.out --mem=4G\n"
SCRIPT = HEAD + "#SBATCH -c 2\n\necho $SLURM_ARRAY_TASK_ID\n"
WHOLE = SITE.replace(SITE[SITE.index("[[pool.slice]]") : SITE.index("[[partition]]")], "")


@pytest.fixture
def lab(shell: Shell) -> Shell:
    """A site of whole GPUs, a script with an array of 100 tasks, and a file of two commands."""
    site(shell)
    (shell.folder / "job.sh").write_text(SCRIPT)
    (shell.folder / "tasks").write_text("a\nb\n")
    return shell


def site(shell: Shell, **changes: str) -> None:
    text = WHOLE.replace("{order}", '"mps"').replace("{agent}", "false")
    text = text.replace("[observe]", f"{changes.get('sharing', '')}\n[observe]")
    text = text.replace('name = "gpu"\n', f'name = "gpu"\n{changes.get("partition", "")}\n')
    text = text.replace('policy = "auto"', changes.get("top", 'policy = "auto"'))
    (shell.folder / "site.toml").write_text(text)


def stored(shell: Shell, number: int = -1) -> str:
    files = sorted(shell.folder.glob("script.*"), key=lambda path: int(path.suffix[1:]))
    return files[number].read_text()


def spec_of(script: str) -> Spec:
    [line] = [line for line in script.encode().split(b"\n") if line.startswith(MARK)]
    return from_json(line.removeprefix(MARK))


def packed(shell: Shell, *argv: str, job: str = "4711") -> tuple[list[str], Spec]:
    """Submit, and return the arguments before the script and what the pack is told."""
    keep_the_script(shell)
    done = shell.run(*argv)
    assert (done.returncode, done.stdout) == (0, f"Submitted batch job {job}\n"), done.stderr
    words = shell.calls()[-1]
    at = next(index for index, word in enumerate(words) if "/csub-" in word)
    return words[:at], spec_of(stored(shell))


def keep_the_script(shell: Shell) -> None:
    """Have sbatch keep a script before the last argument too: its place is the only one that is a file."""
    first_file = 'for last; do [ ! -f "$last" ] || break; done\nif [ -f "$last" ]'
    (shell.folder / "bin/sbatch").write_text(SBATCH.replace('if [ -f "$last" ]', first_file))


def test_an_array_becomes_one_job(lab: Shell) -> None:
    options, spec = packed(lab, "--pack", HINT, "-J", "sweep", "job.sh", "a b")
    assert options == [
        *("-J", "sweep", "--ntasks=1", "--cpus-per-task=24", "--mem=48G", "--time=184"),
        "--output=logs/slurm-%j.pack.out",
    ]
    assert (spec.name, spec.array, spec.jobs, spec.script_args) == ("sweep", "0-99", 1, ("a b",))
    assert (spec.interpreter, spec.cpus_per_task, spec.time_limit_min) == (("/bin/bash", "-l"), 2, near(18.2857))
    assert (spec.load.memory_mib, spec.load.sm_active_pct, spec.room.tasks) == (4096 + 256, 10, 12)
    assert (spec.output, spec.error, spec.retries) == ("logs/%A_%a.out", "", 2)
    assert spec.argv == ("--pack", HINT, "-J", "sweep", "job.sh", "a b")
    script = stored(lab)
    assert script.startswith("#!/bin/sh\n#SBATCH --gres=gpu:1 -t 10\n#SBATCH --output=")
    assert script.endswith("}\n" + SCRIPT)
    assert "--array" not in script.partition(MARK.decode())[0]
    assert list((lab.folder / "tmp").iterdir()) == []


def test_a_packs_use_is_no_evidence_for_one_task(lab: Shell) -> None:
    alone = lab.request(HINT)
    lab.run("--pack", HINT, "job.sh")
    [decision] = lab.decisions()
    assert (decision["mode"], decision["asked"], decision["given"]) == ("mps", "gpu:1", "gpu:1")
    assert decision["signature"] != alone["signature"]
    assert (decision["gpu_mem_q99_mib"], decision["sm_active_q95_pct"]) == (None, None)
    assert decision["reasons"][0] == ["pack", {"at_once": 12, "tasks": 100, "jobs": 1, "units": "GPU"}]


@pytest.mark.parametrize(
    ("argv", "script", "left"),
    [
        (["--array", "0-9%4"], SCRIPT, []),
        (["-a0-9%4"], SCRIPT, []),
        (["-Ha0-9%4", "-J", "a"], SCRIPT, ["-H", "-J", "a"]),
        (["-Ha", "0-9%4", "-J", "0-9%4"], SCRIPT, ["-H", "-J", "0-9%4"]),
        (["--arr=0-9%4"], SCRIPT.replace("#SBATCH --array=0-99\n", ""), []),
    ],
)
def test_the_array_is_taken_out_wherever_it_stands(lab: Shell, argv: list[str], script: str, left: list[str]) -> None:
    (lab.folder / "job.sh").write_text(script)
    options, spec = packed(lab, "--pack", HINT, *argv, "job.sh")
    assert options[: len(left) + 1] == [*left, "--ntasks=1"]
    assert not [word for word in options if word.startswith(("-a", "--arr"))]
    assert (spec.array, spec.room.tasks) == ("0-9", 4)
    assert "--cpus-per-task=8" in options


def test_what_the_user_says_of_the_pack_holds(lab: Shell) -> None:
    options, spec = packed(lab, "--pack-tasks=5", "--pack-jobs", "2", "--pack-retries=0", "-e", "%a.err", "job.sh")
    assert "--array=0-1" in options
    assert options[-2:] == ["--output=logs/slurm-%j.pack.out", "--error=logs/slurm-%j.pack.out"]
    assert (spec.jobs, spec.room.tasks, spec.retries, spec.error) == (2, 5, 0, "%a.err")
    (lab.folder / "job.sh").write_text(SCRIPT.replace("\n\n", "\n#CSUB --pack --gpu-footprint=mem=9G,sm=20\n\n"))
    _, spec = packed(lab, "--no-requeue", "--open-mode=append", "-i", "in.%a", "job.sh")
    assert (spec.room.tasks, spec.retries, spec.append, spec.input) == (6, 0, True, "in.%a")
    assert "--input=/dev/null" in lab.calls()[-1]


def test_the_time_limit_of_the_partition_makes_more_jobs(lab: Shell) -> None:
    site(lab, partition="max_time_min = 60")
    options, spec = packed(lab, "--pack", HINT, "job.sh")
    assert spec.jobs == 3
    assert {"--array=0-2", "--time=60"} <= set(options)


def test_cores_that_come_with_the_gpu_stay_and_others_have_a_bound(lab: Shell) -> None:
    site(lab, partition="cpus_per_gpu = 16")
    options, spec = packed(lab, "--pack", HINT, "job.sh")
    assert ("--cpus-per-task=16" in options, spec.cpus_per_task) == (True, 1)
    (lab.folder / "job.sh").write_text(SCRIPT.replace("#SBATCH -c 2\n", ""))
    options, spec = packed(lab, "--pack", "--pack-tasks=4", "job.sh")
    assert ([word for word in options if "cpus" in word], spec.cpus_per_task) == ([], 4)


@pytest.mark.parametrize(
    ("partition", "cores", "asked", "said"),
    [
        ("", "-c 2", "--mem-per-gpu=16G", ["--mem=192G"]),
        ("", "-c 2", "--mem-per-cpu=4G", []),
        ("cpus_per_gpu = 16", "-c 4", "--mem-per-cpu=4G", ["--mem=192G"]),
        ("cpus_per_gpu = 16", "", "--mem-per-cpu=1000", ["--mem=192000"]),
        ("cpus_per_gpu = 16", "--cpus-per-gpu=8", "--mem-per-cpu=1G", ["--mem=96G"]),
        ("", "", "--mem-per-cpu=1G", []),
    ],
)
@pytest.mark.parametrize("by_argument", [True, False])
def test_each_task_has_the_host_memory_that_it_asked_for(
    lab: Shell, partition: str, cores: str, asked: str, said: list[str], by_argument: bool
) -> None:
    site(lab, partition=partition)
    lines = [f"#SBATCH {line}\n" for line in ("--array=0-99", cores, "" if by_argument else asked) if line != ""]
    (lab.folder / "job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1 -t 10\n" + "".join(lines) + "true\n")
    argv = asked.split("=") if by_argument else []
    options, spec = packed(lab, "--pack", HINT, *argv, "job.sh")
    assert spec.room.tasks == 12
    script = "\n".join(line for line in stored(lab).partition(MARK.decode())[0].split("\n") if line[:8] == "#SBATCH ")
    if said:
        assert [word for word in options if "mem" in word] == said
        assert "--mem" not in script
    else:
        assert (by_argument, asked in script) in ((True, False), (False, True))
        assert not [word for word in options if word.startswith("--mem=")]


@pytest.mark.parametrize(
    ("asked", "environ", "why"),
    [
        ("--mem-per-gpu=0", {}, "does not say how much host memory"),
        ("--mem-per-gpu=x", {}, "--mem-per-gpu=x' is not understood"),
        ("--mem-per-gpu='1G' --nice", {}, "cannot be taken apart with certainty"),
        ("--mincpus=4", {"SBATCH_MEM_PER_GPU": "1G"}, "which the pack has to say otherwise"),
        ("--mem-per-cpu=4G\n#SBATCH --mincpus=4", {}, "depends on too many options"),
    ],
)
def test_host_memory_of_which_nobody_is_sure_is_not_packed(
    lab: Shell, asked: str, environ: dict[str, str], why: str
) -> None:
    (lab.folder / "job.sh").write_text(f"#!/bin/sh\n#SBATCH --gres=gpu:1 -t 10\n#SBATCH {asked}\ntrue\n")
    done = lab.run("--pack", HINT, "--array=0-9", "job.sh", environ=environ)
    assert why in done.stderr
    assert ["--array=0-9" in call for call in lab.calls()] == [True]


def test_a_script_on_standard_input_is_packed_too(lab: Shell) -> None:
    done = lab.run("--pack", HINT, "--parsable", input=SCRIPT)
    assert done.returncode == 0
    assert lab.calls()[-1][-1].startswith("--output=")
    assert stored(lab).endswith("}\n" + SCRIPT)


def test_a_refused_pack_is_followed_by_the_array_once(lab: Shell, printed: Printed) -> None:
    lab.behave(0, f'echo "{DEFINITE}" >&2; exit 1')
    done = lab.run("--pack", HINT, "job.sh", "x")
    assert lab.calls()[1:] == [["job.sh", "x"]]
    printed("csub-pack", done.stderr)


def test_a_pack_of_which_nobody_knows_is_never_repeated(lab: Shell) -> None:
    lab.behave(0, f'echo "{DOUBTFUL}" >&2; exit 1')
    assert lab.run("--pack", HINT, "job.sh").returncode == 1
    assert len(lab.calls()) == 1


def body(*lines: str) -> str:
    return SCRIPT + "".join(f"{line}\n" for line in lines)


def no_such(asked: str, partition: str, there: str) -> Reason:
    return because("no-such-gpu", asked=asked, partitions=(partition,), there=there)


UNPACKED = [
    ([], SCRIPT.replace("gpu:1", "gpu:2"), because("several-gpus", gres=("gpu:2",))),
    ([], SCRIPT.replace("--gres=gpu:1", "--no-kill"), because("no-gpu")),
    ([], SCRIPT.replace("#SBATCH --array=0-99\n", ""), "the job is no array"),
    (["--array=7"], SCRIPT, "the array has one task"),
    (["--array=1-9%1"], SCRIPT, "one task at a time (%1)"),
    (["-N2"], SCRIPT, because("several-nodes", nodes="2")),
    (["-n4"], SCRIPT, because("task-starts-tasks", option="ntasks", tasks="4")),
    (["-d", "aftercorr:7"], SCRIPT, "aftercorr"),
    (["--mem=0"], SCRIPT, because("whole-node-memory")),
    (["--exclusive"], SCRIPT, "whole nodes"),
    (["--time-min=5"], SCRIPT, "--time-min"),
    (["--colloc=off"], SCRIPT, because("switched-off", wish="off")),
    ([], SCRIPT.replace("--array=0-99", "--array=0-99 -J 'a b'"), "cannot be taken apart with certainty"),
    (["--gres=gpu:a100:1"], SCRIPT, no_such("gpu:a100:1", "gpu", "gpu:h100")),
    (["-p", "cpu"], SCRIPT, no_such("gpu:1", "cpu", "no GPU")),
    (["--gpu-footprint=mem=4G,sm=10,dram=60"], SCRIPT, because("one-task-fills-memory-bandwidth", dram_pct=60)),
    ([], body("port=$((10000 + SLURM_JOB_ID % 1000))"), "SLURM_JOB_ID"),
    ([], body("mkdir /scratch/$SLURM_JOB_ID"), "SLURM_JOB_ID"),
    ([], body("scontrol requeue $SLURM_ARRAY_JOB_ID"), because("acts-on-its-job", command="scontrol requeue")),
    ([], body("  scancel --me"), "scancel"),
    ([], body("sbatch next.sh"), "sbatch"),
    ([], body("srun --gres=gpu:1 train"), because("srun-asks-for-gpu", option="--gres")),
    ([], body("srun --export=NONE train"), because("srun-exports")),
    (["--pack-jobs=2"], body("srun train"), "array numbers"),
    (["--gpu-footprint=mem=900G,sm=3"], SCRIPT, "GPU memory are enough for 0 tasks"),
]


@pytest.mark.parametrize(("argv", "script", "why"), UNPACKED)
def test_what_cannot_be_packed_is_the_array_it_was(lab: Shell, argv: list[str], script: str, why: str | Reason) -> None:
    (lab.folder / "job.sh").write_text(script)
    done = lab.run("--pack", HINT, *argv, "job.sh")
    assert done.returncode == 0
    assert "not packed: " in done.stderr
    assert (words(why) if isinstance(why, Reason) else why) in done.stderr
    [call] = lab.calls()
    assert not any(word.startswith("--pack") for word in call)
    kept = [word for word in argv if not word.startswith(("--colloc", "--pack", "--gpu-footprint"))]
    assert call[: len(kept)] == kept
    assert [Path(word).name for word in call if word.endswith("job.sh")] == ["job.sh"]
    assert MARK.decode() not in (stored(lab) if list(lab.folder.glob("script.*")) else "")


def test_what_the_job_exports_and_a_job_id_that_is_only_said_are_no_reasons_against(lab: Shell) -> None:
    said = ("echo job $SLURM_JOB_ID", "# $((SLURM_JOB_ID % 10))", "out=$SLURM_JOB_ID.$SLURM_ARRAY_TASK_ID")
    (lab.folder / "job.sh").write_text(body(*said, "srun train"))
    for export in ("--export=NONE", "--export=A,B"):
        packed(lab, "--pack", HINT, export, "job.sh")


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("--array=0-9 --gres=gpu:1 -t 10", "#SBATCH --gres=gpu:1 -t 10\n"),
        ("--gres=gpu:1 -a 0-9 -t 10", "#SBATCH --gres=gpu:1 -t 10\n"),
        ("--gres=gpu:1 -t 10 --arra 0-9", "#SBATCH --gres=gpu:1 -t 10\n"),
        ("--gres=gpu:1 -t 10\n#SBATCH -a0-9", "#SBATCH --gres=gpu:1 -t 10\n##SBATCH -a0-9\n"),
    ],
)
def test_an_array_that_shares_its_line_is_taken_out_of_it(lab: Shell, line: str, left: str) -> None:
    script = f"#!/bin/sh\n#SBATCH {line}\ntrue\n"
    (lab.folder / "job.sh").write_text(script)
    _, spec = packed(lab, "--pack", HINT, "job.sh")
    assert spec.array == "0-9"
    assert stored(lab).startswith(f"#!/bin/sh\n{left.replace('##SBATCH -a0-9' + chr(10), '')}")
    assert stored(lab).endswith(script)


def test_host_memory_that_comes_with_the_gpu_is_shared_and_said(lab: Shell) -> None:
    site(lab, partition="mem_per_gpu_mib = 64000")
    (lab.folder / "job.sh").write_text(SCRIPT.replace(" --mem=4G", ""))
    options, _ = packed(lab, "--pack", HINT, "job.sh")
    assert not [word for word in options if "mem" in word]
    said = ["shared-host-memory", {"mem_mib": 64000, "each_mib": 5333}]
    assert said in lab.decisions()[-1]["reasons"]
    packed(lab, "--pack", HINT, "--mem=4G", "job.sh")
    assert said not in lab.decisions()[-1]["reasons"]


@pytest.mark.parametrize(
    "hint", [(), (HINT.replace("sm=10", "sm=60"),), (HINT.replace("mem=4G,sm=10", "mem=1G,sm=30"),)]
)
@pytest.mark.parametrize("other", ["a smaller GPU", "a slice"])
def test_as_many_as_were_asked_for_run_at_a_time_on_whichever_gpu_it_is(
    lab: Shell, other: str, hint: tuple[str, ...]
) -> None:
    pool = SITE[SITE.index("[[pool]]") : SITE.index("[[pool.slice]]")]
    part = SITE[SITE.index("[[pool.slice]]") : SITE.index("[[partition]]")].replace("9984", "40448")
    smaller = pool.replace('"h"', '"a"').replace("h1", "a1").replace("81559", "40960")
    text = (lab.folder / "site.toml").read_text()
    more = part if other == "a slice" else smaller
    (lab.folder / "site.toml").write_text(text.replace("[[partition]]", more + "[[partition]]"))
    _, spec = packed(lab, "--pack", "--pack-tasks=4", *hint, "job.sh")
    assert spec.room.tasks == 4
    assert len(Queue(spec.tasks(), spec.load, spec.room, 0).ready()) == 4


def slices_only(shell: Shell, **changes: str) -> None:
    site(shell, **changes)
    text = (shell.folder / "site.toml").read_text().replace('gpu_type = "h100"\n', "")
    part = SITE[SITE.index("[[pool.slice]]") : SITE.index("[[partition]]")].replace("9984", "40448")
    text = text.replace("gpus_per_node = 1", "gpus_per_node = 0").replace("[[partition]]", part + "[[partition]]")
    (shell.folder / "site.toml").write_text(text)


def test_a_pack_of_a_slice_says_so(lab: Shell) -> None:
    slices_only(lab)
    packed(lab, "--pack", "--gpu-footprint=mem=4G,sm=2", "job.sh")
    pack = {"at_once": 5, "tasks": 100, "jobs": 1, "units": "slice"}
    assert lab.decisions()[-1]["reasons"][0] == ["pack", pack]
    done = lab.run("--pack", HINT, "--gres=gpu:h100:1", "job.sh")
    assert words(no_such("gpu:h100:1", "gpu", "gpu:h100_1g.10gb")) in done.stderr


def test_who_named_no_gpu_type_is_told_that_one_keeps_the_tasks_off_slices(lab: Shell, printed: Printed) -> None:
    lab.site('"mps"', agent=False)
    done = lab.run("--pack", "--gpu-footprint=mem=4G,sm=60", "job.sh")
    printed("csub-pack", done.stderr)
    done = lab.run("--pack", "--gpu-footprint=mem=4G,sm=90", "--gres=gpu:h100:1", "job.sh")
    assert "keep off slices" not in done.stderr


def test_a_pack_from_within_a_requeued_job_is_no_restart(lab: Shell) -> None:
    seen = lab.folder / "count"
    lab.behave(0, f'echo "${{SLURM_RESTART_COUNT-none}}" >{seen}')
    lab.run("--pack", HINT, "job.sh", environ={"SLURM_RESTART_COUNT": "2"})
    assert seen.read_text() == "none\n"
    lab.behave(1, f'echo "${{SLURM_RESTART_COUNT-none}}" >{seen}')
    lab.run("job.sh", environ={"SLURM_RESTART_COUNT": "2"})
    assert seen.read_text() == "2\n"


def test_the_environments_array_is_not_packed(lab: Shell, printed: Printed) -> None:
    done = lab.run("--pack", HINT, "job.sh", environ={"SBATCH_ARRAY_INX": "1-9"})
    printed("csub-pack", done.stderr)


def test_the_site_may_forbid_it(lab: Shell) -> None:
    for changes, why in (
        ({"sharing": 'protected_types = ["h100"]'}, because("protected", gpu_type="h100")),
        ({"partition": "suspends = true"}, because("partition-suspends", partition="gpu")),
    ):
        site(lab, **changes)
        assert f"not packed: {words(why)}" in lab.run("--pack", "--gres=gpu:h100:1", HINT, "job.sh").stderr
        assert MARK.decode() not in stored(lab)
    site(lab, top='policy = "off"')
    done = lab.run("--pack", HINT, "job.sh")
    assert (lab.calls()[-1], "the policy is off" in done.stderr) == (["job.sh"], True)


def test_shadow_records_the_pack_and_submits_the_array(lab: Shell) -> None:
    site(lab, top='policy = "shadow"')
    lab.run("--pack", HINT, "job.sh")
    assert lab.calls() == [["job.sh"]]
    [decision] = lab.decisions()
    assert [code for code, _ in decision["reasons"]] == ["policy-shadow", "would-have-been", "pack"]
    assert decision["reasons"][2][1]["at_once"] == 12
    assert decision["mode"] == "exclusive"
    assert (decision["shadow"], decision["would"], decision["would_not"]) == (True, "", "pack")


def test_a_pack_is_shown_before_it_is_submitted(lab: Shell, printed: Printed) -> None:
    done = lab.run("--pack", HINT, "--dry-run", "--explain", "job.sh")
    assert lab.calls() == []
    assert spec_of(done.stdout).room.tasks == 12
    printed("csub-pack", done.stderr)
    plan: dict[str, Any] = json.loads(lab.run("--pack", HINT, "--dry-run", "--format=json", "job.sh").stdout)
    assert (plan["pack"]["at_once"], plan["pack"]["tasks"]) == (12, 100)
    done = lab.run("--pack", HINT, "--dry-run", "--wrap=true", "--gres=gpu:1")
    assert (done.returncode, lab.calls()) == (0, [])
    printed("csub-pack", done.stderr)


def test_lines_of_a_file_are_tasks(lab: Shell) -> None:
    (lab.folder / "tasks").write_text(
        "# a sweep\n#SBATCH --gres=gpu:1 -t 5\n#CSUB --gpu-footprint=mem=9G,sm=20\n\n"
        "train --lr 0.1 > a\n\n  # no\ntrain 'b c' | tee d\n"
    )
    options, spec = packed(lab, "pack", "-J", "x", "tasks")
    assert options == ["-J", "x", "--ntasks=1", "--cpus-per-task=2", "--time=12", "--output=slurm-%j.pack.out"]
    assert spec.commands == ("train --lr 0.1 > a", "train 'b c' | tee d")
    assert (spec.array, spec.interpreter, spec.name, spec.room.tasks) == ("", ("/bin/sh",), "x", 2)
    assert spec.argv == ("pack", "-J", "x", "tasks")
    script = stored(lab)
    assert script.startswith("#!/bin/sh\n#SBATCH --gres=gpu:1 -t 5\n#CSUB --gpu-footprint=mem=9G,sm=20\n# --- csub")
    assert script.splitlines()[-1].startswith(MARK.decode())


def test_a_command_is_one_task_word_for_word(lab: Shell) -> None:
    options, spec = packed(lab, "pack", "--gres=gpu:1", HINT, "--", "python", "-x", "{a}", "${a}", ":::", "u v")
    assert options[:2] == ["--gres=gpu:1", "--ntasks=1"]
    assert spec.commands == ("python -x '{a}' '${a}' ::: 'u v'",)
    assert spec.name == "python"


@pytest.mark.parametrize(
    ("options", "command", "name"),
    [
        ([], "/opt/..", "pack"),
        ([], "run/", "pack"),
        ([], "n" * 256, "pack"),
        ([], "./train.sh", "train.sh"),
        (["-J", ".."], "run", ".."),
        (["-J", "x" * 300], "run", "x" * 300),
    ],
)
def test_a_name_that_no_file_can_have_is_pack(lab: Shell, options: list[str], command: str, name: str) -> None:
    done = lab.run("pack", "--gres=gpu:1", HINT, *options, "--", command)
    assert done.returncode == 0, done.stderr
    assert spec_of(stored(lab)).name == name
    assert lab.calls()[-1][-1].rpartition("/")[2] == ("pack" if options else name)
    assert list((lab.folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--gres=gpu:1", "--"], "no FILE and no command"),
        (["--gres=gpu:1", "gone"], "csub: error: file 'gone' cannot be read: No such file or directory; nothing"),
        (["--gres=gpu:1", "empty"], "holds no commands"),
        (["--gres=gpu:1", "nul"], "the file holds NUL bytes"),
        (["--gres=gpu:1", "line"], "the command of task 2 has 131072 bytes, and Linux takes 131071"),
        (["--gres=gpu:1", "tasks", "more"], "'more' behind the file"),
        (["--gres=gpu:1", "--array=1-3", "tasks"], "beside commands"),
        (["--gres=gpu:1", "-n4", "tasks"], "leave --nodes and --ntasks out"),
        (["--gres=gpu:1", "--no-such", "tasks"], "--no-such"),
        (["--gres=gpu:1", "--pack-tasks=x", "tasks"], "not a whole number"),
        (["tasks"], "a pack needs a GPU"),
        ([], "Usage"),
    ],
)
def test_commands_that_make_no_pack_submit_nothing(lab: Shell, argv: list[str], why: str) -> None:
    (lab.folder / "empty").write_text("# nothing\n")
    (lab.folder / "nul").write_bytes(b"a\nb\0c\n")
    (lab.folder / "line").write_bytes(b"true\n" + b"x" * 131072 + b"\n")
    done = lab.run("pack", *argv)
    assert (done.returncode, done.stdout, lab.calls()) == (2, "", [])
    assert why in done.stderr
    assert "nothing was submitted" in done.stderr


def test_commands_that_cannot_share_run_one_at_a_time(lab: Shell, printed: Printed) -> None:
    done = lab.run("pack", "--gres=gpu:1", "tasks")
    printed("csub-pack", done.stderr)
    assert spec_of(stored(lab)).room.tasks == 1
    [decision] = lab.decisions()
    assert decision["mode"] == "exclusive"


def test_tasks_that_run_together_are_one_job_whose_tasks_are_not_run_again(lab: Shell) -> None:
    (lab.folder / "tasks").write_text(
        "#SBATCH --gres=gpu:1\n#CSUB --pack-together --gpu-footprint=mem=4G,sm=20\na\nb\nc\n"
    )
    spec = packed(lab, "pack", "tasks")[1]
    assert (spec.together, spec.room.tasks, spec.jobs, spec.retries) == (True, 3, 1, 0)
    assert not packed(lab, "pack", "--gres=gpu:1", HINT, "--", "true")[1].together


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([HINT, "--pack-tasks=1"], words(because("tasks-asked-for", asked=1))),
        ([HINT, "--pack-tasks=2"], "of 3 tasks 2 run at a time"),
        ([HINT, "--pack-jobs=2"], "in 2 jobs"),
        ([HINT, "--pack-retries=1"], "leave --pack-retries out"),
        (["--gpu-footprint=mem=4G,sm=90"], words(because("tasks-fill-sms", sm_pct=90, max_pct=120))),
        ([], "--gpu-footprint"),
    ],
)
def test_tasks_that_cannot_run_together_are_refused_with_the_reason(lab: Shell, argv: list[str], why: str) -> None:
    (lab.folder / "tasks").write_text("a\nb\nc\n")
    done = lab.run("pack", "--gres=gpu:1", "--pack-together", *argv, "tasks")
    assert (done.returncode, done.stdout, lab.calls()) == (2, "", []), done.stderr
    assert why in done.stderr
    assert "(--pack-together)" in done.stderr


def test_fewer_cores_than_tasks_that_run_together_are_a_reason(lab: Shell) -> None:
    site(lab, partition="cpus_per_gpu = 1")
    done = lab.run("pack", "--gres=gpu:1", "-c1", HINT, "--pack-together", "tasks")
    assert (done.returncode, lab.calls(), "2 tasks have 1 core" in done.stderr) == (2, [], True), done.stderr


def test_an_arrays_tasks_never_run_together(lab: Shell) -> None:
    done = lab.run("--pack", "--pack-together", HINT, "job.sh")
    assert (done.returncode, lab.calls()) == (2, []), done.stderr


def test_a_pack_reserves_for_no_more_tasks_than_it_has(lab: Shell) -> None:
    options, spec = packed(lab, "pack", "--gres=gpu:1", "-c", "2", HINT, "--pack-tasks=5", "--", "true")
    assert (spec.room.tasks, "--cpus-per-task=2" in options) == (1, True)


def test_where_the_site_has_switched_csub_off_commands_make_no_pack(lab: Shell) -> None:
    site(lab, top='policy = "off"')
    done = lab.run("pack", "--gres=gpu:1", HINT, "tasks")
    assert (done.returncode, lab.calls(), "policy is 'off'" in done.stderr) == (2, [], True)
    site(lab, top='policy = "shadow"')
    done = lab.run("pack", "--gres=gpu:1", HINT, "tasks")
    assert (done.returncode, "--pack-tasks" in done.stderr, spec_of(stored(lab)).room.tasks) == (0, False, 1)


def test_who_gave_a_footprint_is_not_told_to_give_one(lab: Shell) -> None:
    done = lab.run("pack", "--gres=gpu:1", "--gpu-footprint=mem=4G,sm=90", "tasks")
    assert words(because("tasks-fill-sms", sm_pct=90, max_pct=120)) in done.stderr
    assert "add --pack-tasks=K\n" in done.stderr


def test_a_refused_pack_of_commands_is_sbatchs_own_error(lab: Shell) -> None:
    lab.behave(0, f'echo "{DEFINITE}" >&2; exit 1')
    done = lab.run("pack", "--gres=gpu:1", HINT, "tasks")
    assert (done.returncode, len(lab.calls())) == (1, 1)
    assert done.stderr.endswith(DEFINITE + "\n")


def test_a_file_called_pack_is_a_script_as_ever(lab: Shell) -> None:
    (lab.folder / "pack").write_text("#!/bin/sh\ntrue\n")
    lab.run("pack", "job.sh")
    assert lab.calls() == [["pack", "job.sh"]]


def test_a_byte_order_mark_hides_no_directive() -> None:
    text = b"#SBATCH --time=3\necho one\n"
    assert read_commands(b"\xef\xbb\xbf" + text) == read_commands(text)


def test_a_line_that_goes_on_is_refused() -> None:
    for text, said in ((b"a\nb \\\n  c\n", "line 2 ends with a backslash"), (b"a\r\nb\r\n", "DOS")):
        with pytest.raises(InputError, match=said):
            read_commands(text)
    with pytest.raises(InputError, match="newline"):
        one_command(["sh", "-c", "a\nb"])
