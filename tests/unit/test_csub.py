# SPDX-License-Identifier: Apache-2.0
"""csub, unmodified, against a made-up sbatch on PATH: what it imports, what it hands over, and how often."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_colloc.core.model import because
from slurm_colloc.core.wording import words
from tests.unit.golden import Printed
from tests.unit.programs import executable
from tests.unit.shell import CSUB, DEFINITE, DOUBTFUL, HINT, SCRIPT, Shell, on_a_terminal

CHECKOUT = Path(__file__).parents[2]
HEAVY = {"pandas", "numpy", "pyarrow", "duckdb", "pynvml", "pyslurm", "typer", "rich", "click", "ClusterShell"}
LIST = """
import sys, slurm_colloc.cli.csub as csub
import os
os._exit = sys.exit
try:
    csub.main()
finally:
    print(" ".join(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("policy", ["auto", "off"])
def test_nothing_of_the_plan_is_imported_for_a_job_that_is_not_placed(shell: Shell, policy: str) -> None:
    site = (shell.folder / "site.toml").read_text()
    (shell.folder / "site.toml").write_text(site.replace('policy = "auto"', f'policy = "{policy}"'))
    (shell.folder / "job.sh").write_text(SCRIPT if policy == "off" else SCRIPT.replace("#SBATCH --gres=gpu:1\n", ""))
    # It becomes sbatch: what it has imported by then is told.
    report = "csub.replace = lambda *_: print(' '.join(sorted(sys.modules)), file=sys.stderr)"
    done = shell.run("job.sh", code=LIST.replace("try:", f"{report}\ntry:"))
    names = set(done.stderr.splitlines()[0].split())
    assert "slurm_colloc.submit.own_options" in names, done.stderr
    assert not names & {"slurm_colloc.core.model", "slurm_colloc.submit.plan", "slurm_colloc.estimate.signature"}


@pytest.mark.parametrize("rendered", [False, True])
def test_a_submission_imports_nothing_heavy(shell: Shell, rendered: bool) -> None:
    shell.site('"mps"' if rendered else '"mig"', agent=True)
    for time in (1, 2):
        done = shell.run(HINT, "job.sh", code=LIST)
        assert done.returncode == 0, done.stderr
        names = done.stderr.splitlines()[-1].split()
        assert not [name for name in names if name.startswith(("slurm_colloc.pack", "slurm_colloc.rebind"))]
        loaded = {name.split(".")[0] for name in names}
        assert "re" in loaded
        assert loaded & HEAVY == set()
        assert ("jinja2" in loaded) is (rendered and time == 1)  # the site's part of a script is rendered once
        assert len(shell.calls()) == time


def test_the_placed_request_comes_last_before_the_script(shell: Shell) -> None:
    done = shell.run("-J", "x", "--gres=gpu:1", HINT, "job.sh", "--", "--gres=gpu:9", "a b")
    assert done.stdout == "Submitted batch job 4711\n"
    placed = ["-J", "x", "--gres=gpu:1", "--gres=gpu:h100_1g.10gb:1", "job.sh"]
    assert shell.calls() == [[*placed, "--", "--gres=gpu:9", "a b"]]
    assert [decision["given"] for decision in shell.decisions()] == ["gpu:h100_1g.10gb:1"]


@pytest.mark.parametrize(
    ("release", "option", "placed"),
    [
        ("26.11", "--comment=x", True),
        ("27.05", "--comment=x", True),
        # Known, but not on a piece of a GPU.
        ("26.11", "--runtime=crun", False),
        # What the newest known release has not is sbatch's to read.
        ("27.05", "--frobnicate=2", False),
        ("27.05", "--frobnicate", False),
        ("21.08", "--comment=x", False),
        ("27", "--comment=x", False),
    ],
)
def test_a_release_newer_than_those_known_is_read_as_the_newest(
    shell: Shell, release: str, option: str, placed: bool
) -> None:
    site = shell.folder / "site.toml"
    site.write_text(site.read_text().replace('slurm_release = "22.05"', f'slurm_release = "{release}"'))
    done = shell.run(HINT, option, "job.sh")
    assert done.stdout == "Submitted batch job 4711\n"
    assert shell.calls() == [[option, *(["--gres=gpu:h100_1g.10gb:1"] if placed else []), "job.sh"]]


def test_a_rendered_script_takes_the_place_of_the_users(shell: Shell) -> None:
    shell.site('"mps"', agent=True)
    done = shell.run(HINT, "job.sh", "arg")
    [call] = shell.calls()
    assert call[0] == "--gres=mps:10"
    assert Path(call[1]).name == "job.sh"
    assert call[2:] == ["arg"]
    assert Path(call[1]).read_text().endswith(SCRIPT[-11:])  # the Command= of the job names it
    assert list((shell.folder / "tmp").iterdir()) == []
    assert "mps:10 instead of gpu:1" in done.stderr


@pytest.mark.parametrize("together", [False, True])
def test_a_block_says_what_was_cut_out_of_the_directives_and_nothing_that_is_not_so(
    shell: Shell, together: bool, printed: Printed
) -> None:
    shell.site('"mps"', agent=True)
    lines = "#SBATCH --gres=gpu:1 -J a\n#SBATCH --mem-per-gpu=4G\n"
    text = f"#!/bin/sh\n{lines.replace(chr(10) + '#SBATCH', '') if together else lines}echo\n"
    (shell.folder / "job.sh").write_text(text)
    shell.run(HINT, "job.sh")
    (shell.folder / "job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\necho\n")
    shell.run(HINT, "job.sh")
    cut, whole = ((shell.folder / f"script.{number}").read_text() for number in (0, 1))
    left = "#SBATCH --gres=gpu:1 -J a\n" + "##SBATCH --mem-per-gpu=4G\n" * (not together)
    assert cut.startswith(f"#!/bin/sh\n{left}# --- csub: ")
    printed("csub", *(line for line in cut.splitlines() if line.startswith("# removed")))
    assert "# removed" not in whole
    assert "unchanged" not in cut + whole


@pytest.mark.parametrize("size", ["cpus-per-gpu=2", "mem-per-gpu=4G"])
def test_sizes_per_gpu_in_two_places(shell: Shell, size: str) -> None:
    """Slurm refuses them beside a share wherever they stand, so one left in the script or environment would lose it."""
    shell.site('"mps"', agent=True)
    (shell.folder / "job.sh").write_text(f"#!/bin/sh\n#SBATCH --gres=gpu:1\n#SBATCH --{size}\necho\n")
    other = size.replace("2", "3").replace("4", "5")
    shell.run(HINT, f"--{other}", "job.sh")
    [placed] = shell.calls()
    assert placed[0].startswith("--gres=mps:")
    assert not any("-per-gpu" in word for word in placed)
    assert f"##SBATCH --{size}\n" in (shell.folder / "script.0").read_text()
    name, _, value = size.partition("=")
    variable = f"SBATCH_{name.replace('-', '_').upper()}"
    (shell.folder / "job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\necho\n")
    shell.run(HINT, f"--{other}", "job.sh", environ={variable: value})
    assert shell.calls()[1] == [f"--{other}", "job.sh"]


def test_a_script_on_standard_input_is_handed_on(shell: Shell) -> None:
    shell.run(HINT, input=SCRIPT)
    assert shell.calls() == [["--gres=gpu:h100_1g.10gb:1"]]
    assert (shell.folder / "script.0").read_text() == SCRIPT
    shell.site('"mps"', agent=True)
    shell.run(HINT, input=SCRIPT)
    stored = (shell.folder / "script.1").read_text()
    assert stored.startswith("#!/bin/bash\n#SBATCH --gres=gpu:1\n# --- csub")
    assert stored.endswith("# --- end of csub's block ---\necho hello\n")


def test_a_definite_refusal_is_followed_by_one_original(shell: Shell, printed: Printed) -> None:
    shell.behave(0, f'echo "{DEFINITE}" >&2; exit 1')
    done = shell.run(HINT, "job.sh")
    assert shell.calls() == [["--gres=gpu:h100_1g.10gb:1", "job.sh"], ["job.sh"]]
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n")
    printed("csub", done.stderr)
    # Snakemake reads sbatch's standard error and drops a job of whose submission it says this.
    assert "submission failed" not in done.stderr


def test_a_refusal_of_the_original_is_sbatchs_own(shell: Shell) -> None:
    for number in (0, 1):
        shell.behave(number, f'echo "{DEFINITE}" >&2; exit 1')
    done = shell.run(HINT, "job.sh")
    assert len(shell.calls()) == 2
    assert done.returncode == 1
    assert done.stderr.endswith(DEFINITE + "\n")


@pytest.mark.parametrize(
    "said",
    [
        "Batch job submission failed: Pathname of a file, directory or other parameter too long",
        "Unable to open file $last",  # a site's sbatch that runs elsewhere, or the like, does not see csub's folder
    ],
)
@pytest.mark.parametrize("words", [["job.sh"], [HINT, "--export=ALL", "job.sh"]], ids=["measured", "share"])
def test_a_rendered_script_that_sbatch_cannot_have_is_followed_by_the_users(
    shell: Shell, said: str, words: list[str]
) -> None:
    shell.site('"mps"', agent=False)
    shell.behave(0, f'echo "sbatch: error: {said}" >&2; exit 1')
    done = shell.run(*words)
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n"), done.stderr
    assert [len(shell.calls()), shell.calls()[1]] == [2, [word for word in words if word != HINT]]


@pytest.mark.parametrize(
    "behaviour",
    [
        f'echo "{DOUBTFUL}" >&2; exit 1',
        "echo garbage; exit 3",
        'echo "Submitted batch job 5"; echo "' + DEFINITE + '" >&2; exit 1',
        "kill -9 $$",
        'echo "Submitted batch job 5"; kill -9 $$',
    ],
)
def test_an_ambiguous_end_is_never_repeated(shell: Shell, behaviour: str) -> None:
    shell.behave(0, behaviour)
    done = shell.run(HINT, "job.sh")
    assert len(shell.calls()) == 1
    assert done.returncode != 0


def test_what_sbatch_says_beside_a_job_is_passed_on(shell: Shell) -> None:
    shell.behave(0, 'echo "sbatch: warning: soon" >&2; echo "7;other"; echo more; echo "late" >&2; exit 0')
    done = shell.run("--quiet", HINT, "--parsable", "job.sh")
    assert (done.stdout, done.stderr) == ("7;other\nmore\n", "sbatch: warning: soon\nlate\n")
    assert [(decision["job_id"], decision["cluster"]) for decision in shell.decisions()] == [("7", "other")]


UNTOUCHED = [
    "-M other job.sh",
    "--no-such-option job.sh",
    "-p gpu -- job.sh",
    "-N1 : -N2 job.sh",
    "--gres=gpu:two job.sh",
    "--version",
    # Understood, and left alone.
    "--mem=0 job.sh",
    "--mem=0G job.sh",
    "--exclusive job.sh",
    "--nodelist=n1 job.sh",
    "-x h1 job.sh",  # all that have pieces
    "-x ./nodes job.sh",
    "-C fast job.sh",  # nobody says that a node has it
    "--gres-flags=x job.sh",
    "--container=/x job.sh",
]


FINE = ["-x n[1-3] job.sh", "-C ib job.sh", "--constraint=ib&h100 job.sh"]
FINE += [f"-C {one} job.sh" for one in ("ib|h100", "fast|ib", "[fast|ib|slow]", "(ib|fast)", "[ib]")]
FINE += ["--gres-flags=enforce-binding job.sh", "--gres-flags=disable-binding job.sh"]


@pytest.mark.parametrize("words", FINE)
def test_what_excludes_no_piece_stays_in_force_beside_one(shell: Shell, words: str) -> None:
    site = shell.folder / "site.toml"
    site.write_text(site.read_text().replace("mps_per_gpu", 'features = ["h100", "ib"]\nmps_per_gpu'))
    shell.run(HINT, *words.split())
    [call] = shell.calls()
    assert call == [*words.split()[:-1], "--gres=gpu:h100_1g.10gb:1", "job.sh"]


@pytest.mark.parametrize("asked", ["fast|slow", "[ib&h100]", "ib*2", "ib&fast", "ib,h100", "fast&slow|ib"])
def test_features_that_a_node_may_lack_leave_the_request(shell: Shell, asked: str) -> None:
    site = shell.folder / "site.toml"
    site.write_text(site.read_text().replace("mps_per_gpu", 'features = ["h100", "ib"]\nmps_per_gpu'))
    shell.run(HINT, "-C", asked, "job.sh")
    assert shell.calls() == [["-C", asked, "job.sh"]]


@pytest.mark.parametrize("words", UNTOUCHED)
def test_what_is_not_understood_or_left_alone_goes_through_unchanged(shell: Shell, words: str) -> None:
    shell.run(HINT, *words.split())
    assert shell.calls() == [words.split()]


def test_a_dry_run_never_reaches_sbatch(shell: Shell) -> None:
    for argv in (["--dry-run", "job.sh"], ["--dry-run", "--no-such", "job.sh"], ["--dry-run", "missing.sh"]):
        shell.run(HINT, *argv)
    (shell.folder / "site.toml").write_text("schema = 99")
    shell.run("--dry-run", "job.sh")
    assert shell.calls() == []


def test_a_dry_run_shows_the_line_and_respects_every_policy(shell: Shell) -> None:
    done = shell.run(HINT, "--dry-run", "job.sh", "a b")
    assert done.stdout == SCRIPT
    assert done.stderr.endswith("/bin/sbatch --gres=gpu:h100_1g.10gb:1 job.sh 'a b'\n")
    site = shell.folder / "site.toml"
    site.write_text(site.read_text().replace('policy = "auto"', 'policy = "off"'))
    done = shell.run(HINT, "--dry-run", "job.sh")
    assert (done.returncode, done.stdout) == (0, SCRIPT)
    assert done.stderr.endswith("/bin/sbatch job.sh\n")
    assert shell.calls() == []


TELL = 'echo "told=$SLURM_COLLOC" >&2; echo "Submitted batch job 4711"'


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([HINT], "0 auto"),
        (["--colloc=off"], "0 off"),
        (["--colloc=exclusive:all of the HBM"], "0 exclusive:all of the HBM"),
        (["--colloc=exclusive:a\nb\x1b"], "0 exclusive:a?b?"),
        # Not understood, and handed on as it is.
        (["--colloc=exclusive:why", "--gres=gpu:x:y:z:1"], "0 exclusive:why"),
    ],
)
def test_the_sites_policy_is_told_what_was_wished(shell: Shell, argv: list[str], told: str) -> None:
    with (shell.folder / "site.toml").open("a") as stream:
        stream.write('\n[[partition]]\nname = "judged"\njob_submit = "shadow"\n')
    shell.behave(0, TELL)
    assert f"told={told}\n" in shell.run(*argv, "job.sh").stderr
    [call] = shell.calls()
    assert not any("colloc" in word for word in call)
    shell.behave(1, TELL)
    inside = shell.run(*argv, "job.sh", environ={"SLURM_JOB_ID": "7", "SLURM_COLLOC": "0 exclusive:inherited"}).stderr
    assert f"told=7{told[1:]}\n" in inside


def test_a_user_may_keep_all_jobs_on_whole_gpus(shell: Shell) -> None:
    (shell.folder / "own.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:1\n#CSUB {HINT}\n#CSUB --colloc=auto\n:\n")
    for argv, always in (
        (["own.sh"], ""),
        (["own.sh"], "off"),
        (["own.sh"], "exclusive:timing"),
        (["--colloc=auto", "own.sh"], "off"),
    ):
        shell.run(*argv, environ={"CSUB_COLLOC": always})
    piece = ["--gres=gpu:h100_1g.10gb:1", "own.sh"]
    assert shell.calls() == [piece, ["own.sh"], ["own.sh"], piece]
    done = shell.run("own.sh", environ={"CSUB_COLLOC": "of"})
    assert (done.returncode, len(shell.calls())) == (2, 4)
    assert "--colloc='of'" in done.stderr
    assert "CSUB_COLLOC is 'of'" in done.stderr


def test_a_whole_gpu_for_a_reason_is_left_whole_and_one_without_is_no_reason(shell: Shell) -> None:
    shell.run(HINT, "--colloc=exclusive:timing", "job.sh")
    assert shell.decisions()[0]["reasons"][0] == ["switched-off", {"wish": "exclusive:timing"}]
    for wish in ("exclusive", "exclusive:", "exclusive:  ", "exclusively:x"):
        done = shell.run(HINT, f"--colloc={wish}", "job.sh")
        assert done.returncode == 2
        assert "exclusive:REASON" in done.stderr
    assert shell.calls() == [["job.sh"]]


@pytest.mark.parametrize("policy", ["shadow", "auto"])
def test_where_nothing_is_decided_or_judged_not_a_variable_is_another(shell: Shell, policy: str) -> None:
    path = shell.folder / "site.toml"
    path.write_text(path.read_text().replace('policy = "auto"', f'policy = "{policy}"'))
    if policy == "shadow":
        path.write_text(path.read_text() + '\n[[partition]]\nname = "judged"\njob_submit = "enforce"\n')
    shell.behave(0, TELL)
    assert "told=\n" in shell.run(HINT, "job.sh").stderr


def test_history_of_an_earlier_run_places_the_next(shell: Shell) -> None:
    """Evidence without an end is settled by one question to Slurm and then trusted."""
    shell.ran(state="RUNNING")
    executable(shell.folder / "bin/sacct", '#!/bin/sh\necho asked >> "$CALLS/../sacct"\necho "9|COMPLETED"\n')
    for _ in range(2):
        shell.run("job.sh")
    assert shell.calls() == [["--gres=gpu:h100_1g.10gb:1", "job.sh"]] * 2
    assert (shell.folder / "sacct").read_text() == "asked\n"
    for state in ("FAILED", "OUT_OF_MEMORY", "TIMEOUT", "CANCELLED"):
        shell.ran(state=state)
        assert json.loads(shell.run("--dry-run", "--format=json", "job.sh").stdout)["placement"]["gres"] == "as asked"


def test_what_a_submission_says_of_tasks_and_variables_makes_another_job(shell: Shell) -> None:
    (shell.folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun python t.py\necho $BATCH > b\n")

    def known_by(*options: str) -> tuple[str, str]:
        found = shell.request(*options)
        return found["signature"].partition(".")[0], found["command"]

    plain = known_by()
    assert known_by("--ntasks=1") == plain
    for options in (["--ntasks=4"], ["--ntasks-per-node=4"], ["--export=ALL,SIZE=4"], ["--export=ALL,BATCH=4"]):
        other = known_by(*options)
        assert other[0] != plain[0]
        assert other[1] != plain[1]
    assert known_by("--export=ALL,SIZE=4")[1] == ""  # past jobs of the command were handed nobody knows what
    assert known_by("--export=ALL,SEED=4")[0] == known_by("--export=ALL,SEED=5")[0]


SUBMITIT = """#!/bin/bash

# Parameters
#SBATCH --gpus-per-node=1
#SBATCH --job-name=submitit

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /home/a/logs/%j_%t_log.out /usr/bin/python3 -u -m submitit.core._submit /home/a/logs
"""


def test_earlier_runs_do_not_count_where_the_script_says_nothing_of_the_job(shell: Shell) -> None:
    """submitit's second function would get the piece that was right for its first."""
    for text, placed in ((SUBMITIT, False), (SUBMITIT.replace("submitit.core._submit", "train"), True)):
        (shell.folder / "job.sh").write_text(text)
        shell.ran()
        done = shell.run("--explain", "job.sh")
        assert (shell.calls()[-1] != ["job.sh"]) is placed
        assert ("starts submitit" in done.stderr) is not placed
    (shell.folder / "job.sh").write_text(SUBMITIT.replace("\n# command", f"\n#CSUB {HINT}\n# command"))
    shell.run("job.sh")
    assert shell.calls()[-1][0] == "--gpus-per-node=h100_1g.10gb:1"


HEAD = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n"


@pytest.mark.parametrize("words", [["--wrap=a; b # {{ x }}"], ["--wrap", "old", "-Hn1", "--wra", "a; b # {{ x }}"]])
def test_a_wrapped_command_is_measured_in_a_script_of_the_same_words(shell: Shell, words: list[str]) -> None:
    shell.site('"mig"', agent=False)
    done = shell.run("--gres=gpu:1", *words, "-J", "mine")
    assert done.returncode == 0, done.stderr
    [call] = shell.calls()
    assert call[:-1] == ["--gres=gpu:1", *(["-Hn1"] if "-Hn1" in words else []), "-J", "mine"]
    assert Path(call[-1]).name == "wrap"  # sbatch calls the job by it
    head, _, rest = (shell.folder / "script.0").read_text().partition("# --- csub")
    assert head == HEAD
    assert "colloc sample " in rest
    assert rest.partition("# --- end of csub's block ---\n")[2] == "a; b # {{ x }}\n"
    assert list((shell.folder / "tmp").iterdir()) == []
    [decision] = shell.decisions()
    assert "wrap" not in str(decision.get("command", ""))


@pytest.mark.parametrize("command", ["a\n#PBS -l x", "#BSUB -n 2\na", "a\r\nb", "cat $0"])
def test_a_wrapped_command_that_would_be_another_as_a_script_stays_and_that_is_said(shell: Shell, command: str) -> None:
    shell.site('"mig"', agent=False)
    done = shell.run("--gres=gpu:1", f"--wrap={command}")
    assert shell.calls() == [["--gres=gpu:1", f"--wrap={command}".replace("\r", "")]]
    assert words(because("never-measured")) in done.stderr


def test_a_wrapped_command_gets_a_slice_that_it_is_told_of_as_of_a_gpu_and_no_share(
    shell: Shell, printed: Printed
) -> None:
    shell.run(HINT, "--gpus=1", "--wrap=echo $SLURM_GPUS")
    [call] = shell.calls()
    assert call[:-1] == ["--gpus=1", "--gpus=h100_1g.10gb:1"]
    assert "SLURM_GPUS=1\n" in (shell.folder / "script.0").read_text()
    shell.run(HINT, "--gres=gpu:1", "--wrap=true")
    shell.site('"mps"', agent=True)
    done = shell.run(HINT, "--gres=gpu:1", "--wrap=true")
    assert [code for code, _ in shell.decisions()[-1]["reasons"]] == ["wrap-may-call-srun"]
    printed("csub", done.stderr)  # one would be large enough
    assert shell.calls()[1:] == [
        ["--gres=gpu:1", "--wrap=true", "--gres=gpu:h100_1g.10gb:1"],
        ["--gres=gpu:1", "--wrap=true"],
    ]


def test_a_job_that_cannot_be_measured_is_told_so_where_that_is_all_that_lacks(shell: Shell) -> None:
    shell.site('"mig"', agent=False)
    for shebang in ("/usr/bin/env python3", "/usr/bin/Rscript", "/bin/csh -f", "/bin/bash -x"):
        (shell.folder / "job").write_text(f"#!{shebang}\n#SBATCH --gres=gpu:1\nx\n")
        said = shell.run("job").stderr
        why = because("shell-flags" if "-x" in shebang else "interpreter-not-sh", interpreter=shebang)
        assert words(because("never-measured")) in said
        assert words(why) in said
        for argv in ([HINT], ["--colloc=off"], ["--gres=gpu:2"], ["--gres=none"]):
            assert "measure" not in shell.run(*argv, "job").stderr, argv
    assert "measure" not in shell.run("job.sh").stderr
    shell.site('"mig"', agent=True)
    assert "measure" not in shell.run("job").stderr


@pytest.mark.parametrize("lines", ["--gres=gpu:4", "-N2 --gres=gpu:1", "--exclusive --gres=gpu"])
def test_what_csub_cannot_place_is_not_touched_for_measurement_either(shell: Shell, lines: str) -> None:
    shell.site('"mps"', agent=False)
    (shell.folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH {lines}\nsleep 1\n")
    shell.run("job.sh")
    assert shell.calls() == [["job.sh"]]


def test_a_csub_line_says_what_concerns_the_job_only(shell: Shell) -> None:
    (shell.folder / "job.sh").write_text(SCRIPT.replace("echo", "#CSUB --dry-run\necho"))
    done = shell.run(HINT, "job.sh")
    assert (done.returncode, shell.calls()) == (2, [])
    assert "--dry-run" in done.stderr


def test_quiet_is_sbatchs_option_and_not_the_scripts(shell: Shell) -> None:
    assert "instead of" in shell.run(HINT, "job.sh", "-Q").stderr
    for quiet in ("-HQ", "--qui", "-Q"):
        assert shell.run(HINT, quiet, "job.sh").stderr == ""


def test_nothing_is_left_behind_when_sbatch_cannot_be_started(shell: Shell) -> None:
    shell.site('"mps"', agent=True)
    (shell.folder / "bin/sbatch").write_text("#!/nonexistent/interpreter\n")
    assert shell.run(HINT, "job.sh").returncode == 1
    assert list((shell.folder / "tmp").iterdir()) == []


def test_a_footprint_without_a_value_does_not_take_the_script_for_one(shell: Shell, printed: Printed) -> None:
    done = shell.run("--gpu-footprint", "job.sh", input=SCRIPT)
    assert (done.returncode, shell.calls()) == (2, [])
    printed("csub", done.stderr)


@pytest.mark.parametrize("argv", [["--version"], ["--usage"], ["--colloc=off", "job.sh"]])
def test_without_a_site_what_needs_none_is_silent(shell: Shell, argv: list[str]) -> None:
    assert shell.run(*argv, environ={"COLLOC_CONF": "/nonexistent"}).stderr == ""
    assert len(shell.calls()) == 1


def test_a_job_is_another_by_its_name_where_its_script_uses_that(shell: Shell) -> None:
    (shell.folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1\npython3 train.py -m $SLURM_JOB_NAME\n")
    for name in ("small", "small", "large"):
        shell.run("-J", name, "--export=NONE", "job.sh")
    first, again, other = (decision["signature"] for decision in shell.decisions())
    assert first == again != other


def test_a_job_has_a_bound_of_its_own_on_how_slow_it_may_be(shell: Shell) -> None:
    hint = "--gpu-footprint=mem=5G,sm=10"
    shell.run("--gres=gpu:1", hint, "job.sh")
    [usual] = shell.decisions()
    assert usual["given"] == "gpu:h100_1g.10gb:1"
    expected, upper = float(str(usual["slowdown_expected"])), float(str(usual["slowdown_upper"]))
    assert 1 < expected < upper
    shell.run("--gres=gpu:1", hint, "--max-slowdown=1.4", "job.sh")
    larger = next(one for one in shell.decisions() if one["given"] != usual["given"])
    assert float(str(larger["slowdown_upper"])) <= 1.4 < upper
    (shell.folder / "own.sh").write_text(f"#!/bin/sh\n#SBATCH --gres=gpu:1\n#CSUB --max-slowdown=1 {hint}\ntrue\n")
    shell.run("own.sh")
    assert shell.calls()[-1] == ["own.sh"]


def test_the_sites_bound_is_the_most(shell: Shell) -> None:
    above = shell.run("--gres=gpu:1", HINT, "--max-slowdown=9", "job.sh")
    assert words(because("max-slowdown-lowered", asked="9", most=2.1)) in above.stderr
    assert shell.calls() == [["--gres=gpu:1", "--gres=gpu:h100_1g.10gb:1", "job.sh"]]


def test_the_first_run_is_said_to_be_measured_on_a_terminal_alone(shell: Shell, printed: Printed) -> None:
    printed("csub", on_a_terminal(shell, "job.sh"), on_a_terminal(shell, "--explain", "job.sh"))
    assert shell.run("job.sh").stderr == ""
    for argv in ([HINT], ["--colloc=off"], ["--gres=gpu:2"], ["--gres=none"]):
        assert "is measured" not in on_a_terminal(shell, *argv, "job.sh")
    assert on_a_terminal(shell, "--explain", HINT, "job.sh").count("a reserve included") == 1
    site = shell.folder / "site.toml"
    site.write_text(site.read_text().replace('policy = "auto"', 'policy = "shadow"'))
    # Nothing is given in shadow mode.
    assert "is measured" not in on_a_terminal(shell, "--max-slowdown=1.2", "job.sh")


@pytest.mark.parametrize(
    ("order", "words"),
    [
        pytest.param("mig", ["job.sh", "two words"], id="slice"),
        pytest.param("mps", ["job.sh"], id="share"),
        pytest.param("mig", ["--gres=gpu:1", "--wrap=echo a b"], id="command"),
        pytest.param("mps", ["--pack", "-t10", "--array=1-4", "--gres=gpu:h100:1", "job.sh"], id="pack"),
        pytest.param("mig", ["--gpu-footprint=mem=500G,sm=10", "job.sh"], id="none"),
    ],
)
def test_a_person_reads_what_happens_why_and_what_to_do(
    shell: Shell, order: str, words: list[str], request: pytest.FixtureRequest, printed: Printed
) -> None:
    shell.site(f'"{order}"', agent=True)
    (shell.folder / "job.sh").write_text(SCRIPT.replace("\n", "\n#SBATCH --gres=gpu:1 -n1 -c1 --mem=1G\n", 1))
    told = on_a_terminal(shell, HINT, *words)
    printed("csub", told, case=request.node.callspec.id)
    placed = shell.calls()[0]
    gres = [word.removeprefix("--gres=") for word in placed if word.startswith(("--gres=mps", "--gres=gpu:h100_"))]
    assert all(told.count(one) == 1 for one in gres)
    # What it says to do is done by a shell.
    if " scancel 4711 && " in told:
        executable(shell.folder / "bin" / "scancel", "#!/bin/sh\n[ $1 = 4711 ]")
        (shell.folder / "bin" / "csub").symlink_to(CSUB)
        command = told.partition(" scancel 4711 && ")[2].splitlines()[0]
        assert shell.run("-c", f"scancel 4711 && {command}", program="/bin/sh").returncode == 0
        assert shell.calls()[1] == words
    assert (" scancel 4711 && " in told) is bool(gres)


def test_a_person_is_told_of_a_refusal_and_why(shell: Shell, printed: Printed) -> None:
    shell.behave(0, f"echo '{DEFINITE}' >&2; exit 1")
    printed("csub", on_a_terminal(shell, HINT, "job.sh"))


def test_a_person_is_told_what_the_piece_counts_in_billing(shell: Shell, printed: Printed) -> None:
    shell.site('"mps"', agent=True)
    with (shell.folder / "site.toml").open("a") as file:
        file.write(
            '[[partition]]\nname = "billed"\nmps_users = "one"\nbilling_weights = "GRES/gpu:h100=8,GRES/mps=0.08"\n'
        )
    site = shell.folder / "site.toml"
    site.write_text(site.read_text().replace('partitions = ["gpu"]', 'partitions = ["gpu", "billed"]'))
    printed("csub", on_a_terminal(shell, HINT, "-p", "billed", "--gres=gpu:h100:1", "job.sh"))


def test_the_screen_of_the_manual_is_what_is_printed(shell: Shell) -> None:
    shell.site('"mps"', agent=True)
    assert on_a_terminal(shell, HINT, "job.sh") in (CHECKOUT / "docs" / "reference" / "csub.md").read_text()


def test_what_nobody_can_paste_is_not_offered(shell: Shell) -> None:
    assert " && " not in on_a_terminal(shell, HINT, input=SCRIPT)
    assert " && " not in on_a_terminal(shell, HINT, "job.sh", "x" * 200)
    assert " && " not in on_a_terminal(shell, HINT, "job.sh", "a\nb")
    shim = shell.folder / "shim" / "sbatch"
    shim.parent.mkdir()
    shim.symlink_to(CSUB)
    assert " && sbatch --colloc=off " in on_a_terminal(shell, HINT, "job.sh", program=shim)


def test_who_gets_a_piece_is_told_how_to_keep_the_gpu_and_of_no_nodes_elsewhere(shell: Shell) -> None:
    with (shell.folder / "site.toml").open("a") as stream:
        stream.write('\n[[pool]]\nname = "far"\nnodes = "f1"\npartitions = ["other"]\ngpu_type = "a100"\n')
    given = shell.run(HINT, "--explain", "job.sh").stderr
    assert "--colloc=off job.sh\n" in given
    assert "far" not in given
    assert "--colloc" not in shell.run("--gpu-footprint=mem=500G,sm=99", "--explain", "job.sh").stderr
