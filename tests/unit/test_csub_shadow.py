# SPDX-License-Identifier: Apache-2.0
"""csub under the policy shadow: what sbatch gets is what it would have got, nobody hears of it, and it is recorded."""

import subprocess
from pathlib import Path

import pytest

from slurm_colloc.core.model import because
from slurm_colloc.core.wording import words
from tests.unit.shell import DEFINITE, HINT, SCRIPT, Shell
from tests.unit.test_csub_free import SLICE_FULL, WHOLE_FULL, sinfo

SLICE = "gpu:h100_1g.10gb:1"
HINTED = SCRIPT.replace("echo hello", f"#CSUB {HINT}\necho hello")
# What it was started with; of the shell's own variables these depend on who starts it.
SEEN = '(env -0 -u _ -u SHLVL -u PPID | sort -z; pwd; umask) > "$CALLS/../env.$n"'


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shadow = Shell(tmp_path)
    (tmp_path / "job.sh").write_text(HINTED)
    switch(shadow, '"mig", "mps"')
    return shadow


def switch(shell: Shell, order: str, *, agent: bool = True) -> None:
    shell.site(order, agent=agent)
    path = shell.folder / "site.toml"
    path.write_text(path.read_text().replace('policy = "auto"', 'policy = "shadow"'))


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["job.sh", "a b", "--explain"], None),
        (["-p", "gpu", "--parsable", "job.sh"], None),
        (["--array=0-3", "job.sh"], None),
        (["--gres=gpu:1", "--wrap=hostname"], None),
        ([], HINTED),
        (["--no-such-option", "job.sh"], None),
        (["job.sh", ":", "job.sh"], None),
        (["missing.sh"], None),
    ],
)
@pytest.mark.parametrize("order", ['"mig"', '"mps"'])
def test_sbatch_gets_what_it_would_have_got(shell: Shell, argv: list[str], text: str | None, order: str) -> None:
    switch(shell, order, agent=False)
    for number in (0, 1):
        shell.behave(number, SEEN)
    shadow, bare = shell.run(*argv, input=text), shell.run(*argv, input=text, program=shell.folder / "bin/sbatch")
    assert (shadow.returncode, shadow.stdout, shadow.stderr) == (bare.returncode, bare.stdout, "")
    # Of no arguments the program of the test keeps an empty one.
    assert shell.calls() == [argv or [""]] * 2
    scripts = [path.read_bytes() if path.exists() else None for path in map(shell.folder.joinpath, SCRIPTS)]
    assert scripts[0] == scripts[1]
    assert (shell.folder / "env.0").read_bytes() == (shell.folder / "env.1").read_bytes()


SCRIPTS = ("script.0", "script.1")


@pytest.mark.parametrize("words", [["job.sh"], ["--wait", "job.sh"], ["--parsable", "job.sh"]])
def test_outputs_read_as_one_are_in_sbatchs_order(shell: Shell, words: list[str]) -> None:
    """A program that reads both with 2>&1 takes the last line for the job's id."""
    for number in (0, 1):
        shell.behave(number, "echo 'sbatch: warning: of a plugin' >&2")
    shadow, bare = (
        shell.run(*words, program=program, stderr=subprocess.STDOUT) for program in ("", shell.folder / "bin/sbatch")
    )
    assert shadow.stdout == bare.stdout
    assert shadow.stdout.startswith("sbatch: warning")


def test_a_refusal_is_sbatchs_own_and_comes_once(shell: Shell) -> None:
    shell.behave(0, f'echo "{DEFINITE}" >&2; exit 1')
    done = shell.run("job.sh")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{DEFINITE}\n")
    assert (len(shell.calls()), shell.decisions()) == (1, [])


def test_what_would_have_been_is_recorded(shell: Shell) -> None:
    shell.run("job.sh")
    [kept] = shell.decisions()
    assert (kept["given"], kept["mode"], kept["shadow"]) == ("as asked", "exclusive", True)
    assert (kept["would"], kept["would_not"], kept["would_partition"]) == (SLICE, "", "")
    assert [code for code, _ in kept["reasons"]][:2] == ["policy-shadow", "would-have-been"]
    assert kept["would_memory_mib"] is None  # of a slice site.toml says what it holds
    switch(shell, '"mps"')
    shell.run("job.sh")
    kept = shell.decisions()[-1]
    assert str(kept["would"]).startswith("mps:")
    assert kept["would_memory_mib"] == 4096 + 256, "the site's headroom"


@pytest.mark.parametrize(
    ("argv", "order", "text", "why"),
    [
        (["--colloc=off"], '"mig"', HINTED, "off"),
        (["--exclusive"], '"mig"', HINTED, "request"),
        ([], '"mig"', SCRIPT, "need"),
        (["--gpu-footprint=mem=70G,sm=10"], '"mig"', HINTED, "fit"),
        # A share needs a block, and this script must stay as it is.
        ([], '"mps"', HINTED.replace("echo hello", 'cat "$0"'), "fit"),
    ],
)
def test_why_nothing_would_have_been_is_recorded(
    shell: Shell, argv: list[str], order: str, text: str, why: str
) -> None:
    switch(shell, order)
    (shell.folder / "job.sh").write_text(text)
    shell.run(*argv, "job.sh")
    [kept] = shell.decisions()
    assert (kept["shadow"], kept["would"], kept["would_not"]) == (True, "", why)


@pytest.mark.parametrize(
    ("used", "argv", "wait"),
    [
        (WHOLE_FULL, [], 0.0),
        (SLICE_FULL, [], None),
        (WHOLE_FULL, ["--array=0-9"], None),
        (WHOLE_FULL, ["--dependency=afterok:1"], None),
        (WHOLE_FULL, ["--begin=now+1hour"], None),
    ],
)
def test_what_was_free_is_recorded_of_a_job_that_waits_for_a_gpu_alone(
    shell: Shell, used: str, argv: list[str], wait: float | None
) -> None:
    sinfo(shell, used)
    shell.run(*argv, "job.sh")
    [kept] = shell.decisions()
    # Ten tasks on the one slice would run after each other.
    would = "mps:10" if "--array=0-9" in argv else SLICE
    assert (kept["would"], kept["would_wait_s"]) == (would, wait)


def test_a_decision_that_cannot_be_written_is_nobodys_trouble(shell: Shell) -> None:
    (shell.folder / "home/.local").write_text("no folder")
    done = shell.run("job.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 4711\n", "")


def test_whoever_asks_csub_is_answered(shell: Shell) -> None:
    done = shell.run("--explain", "job.sh")
    assert words(because("would-have-been", given="gpu:h100_1g.10gb:1")) in done.stderr
    assert "not known" in shell.run("--gpu-footprint=mem=4G", "job.sh").stderr
    assert shell.calls() == [["job.sh"]] * 2
