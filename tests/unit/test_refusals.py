# SPDX-License-Identifier: Apache-2.0
"""Which last words of sbatch say that there is no job: seen on Slurm 22.05, 24.11 and 26.05."""

import pytest

from slurm_colloc.slurm.refusals import is_refusal, verdict
from tests.unit.shell import DEFINITE, HINT, Shell

FAILED = "sbatch: error: Batch job submission failed: "
OF_CONTROLLER = (
    "Invalid license specification",
    "Node count specification invalid",
    "Requested time limit is invalid (missing or exceeds some limit)",
    "Invalid partition name specified",
    "Time limit specification required, but not provided",
    "Duplicate generic resource (gres) specification",
    "Insufficient GRES available in allocation",
    "Unspecified error",
    "Unknown error 2999",
)
OF_CLIENT = (
    "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.",
    "sbatch: fatal: --cpus-per-task, --tres-per-task=cpu:#, and --cpus-per-gpu are mutually exclusive",
    "sbatch: error: Invalid generic resource (gres) specification",
    "sbatch: error: Invalid --mem specification",
    "sbatch: error: invalid number of cpus per task (-c 0)",
    "sbatch: error: cli_filter/lua: say --gres=gpu:N\nsbatch: error: cli_filter plugin terminated with error",
    "sbatch: error: spank: required plugin x.so: init_post_opt() failed with rc=-1\n"
    "sbatch: error: Plugin stack post-option processing failed",
    "sbatch: error: Unable to open file /tmp/csub-0123456789abcdef/job.sh",
    "sbatch: unrecognized option '--mincpus'\nTry \"sbatch --help\" for more information",
)
UNCLEAR = (
    "",
    FAILED + "Socket timed out on send/recv operation",
    FAILED + "Unable to contact slurm controller (connect failure)",
    FAILED + "Zero Bytes were transmitted or received",
    FAILED + "Connection refused",
    FAILED + "Slurm backup controller in standby mode",
    FAILED + "Slurm internal error, contact system administrator",
    FAILED + "Unknown error 1999",
    FAILED + "Unknown error 20000",
    DEFINITE + "\nsbatch: error: Socket timed out on send/recv operation",
    "sbatch: error: Job 5 no longer found and exit code not found",
    "sbatch: error: Currently unable to load job state information, retrying: Invalid job id specified",
    "sbatch: Following options are mutually exclusive with --hint: -B. Ignoring --hint.",
    "sbatch: error: my wrapper: Invalid license specification",
    "sbatch: fatal: malloc failed",
    # A site's log_user says the name of a job.
    "sbatch: lua: job Batch job submission failed: Invalid license specification",
    "sbatch: Batch job submission failed: Invalid license specification",
    FAILED + FAILED + "Invalid license specification",
)


@pytest.mark.parametrize("said", [*(FAILED + words for words in OF_CONTROLLER), *OF_CLIENT])
def test_no_job(said: str) -> None:
    assert is_refusal(f"sbatch: warning: something\n{said}\n")
    assert "submission failed" not in verdict(said)
    assert is_refusal(said.replace("sbatch: ", "sbatch.real: ", 1) if said.startswith("sbatch: error: ") else said)


@pytest.mark.parametrize("said", UNCLEAR)
def test_nobody_knows(said: str) -> None:
    assert not is_refusal(said + "\n")


@pytest.mark.parametrize("said", OF_CLIENT)
def test_a_warning_may_be_the_last_that_is_heard_of_a_silent_job(said: str) -> None:
    assert not is_refusal(said, silent=True)
    assert is_refusal(DEFINITE, silent=True)


def test_the_words_of_a_sites_plugin_are_told() -> None:
    plugin = "sbatch: error: You must always specify a type"
    assert verdict(f"{plugin}\n{FAILED}Unspecified error\n") == "You must always specify a type; Unspecified error"


@pytest.mark.parametrize("said", [FAILED + "Invalid license specification", OF_CLIENT[0], OF_CLIENT[5]])
def test_what_was_refused_goes_as_asked(shell: Shell, said: str) -> None:
    shell.behave(0, f"cat >&2 <<'END'\n{said}\nEND\nexit 1")
    done = shell.run(HINT, "job.sh")
    assert shell.calls() == [["--gres=gpu:h100_1g.10gb:1", "job.sh"], ["job.sh"]]
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n")
    [line] = [line for line in done.stderr.splitlines() if "refused" in line]
    assert verdict(said) in line


@pytest.mark.parametrize("said", ["", OF_CLIENT[0]])
@pytest.mark.parametrize("words", [["--quiet", "--wait"], ["-QW"]])
def test_a_silent_job_that_fails_is_not_run_again(shell: Shell, words: list[str], said: str) -> None:
    shell.behave(0, f"printf %s '{said}' >&2; exit 3")
    done = shell.run(HINT, *words, "job.sh")
    assert (done.returncode, len(shell.calls())) == (3, 1)
    assert done.stderr.endswith(said)


@pytest.mark.parametrize(
    "wrapper",
    [
        f"echo '{DEFINITE}' >&2; kill -INT $$",
        f"echo '{DEFINITE}' >&2; exit 124",
        f"printf 'Submitted batch job 5'; echo '{DEFINITE}' >&2; exit 1",
        f"echo 'job 5 was submitted'; echo '{DEFINITE}' >&2; exit 1",
        f"printf '\\033[32mSubmitted batch job 5\\033[0m\\n'; echo '{DEFINITE}' >&2; exit 1",
        f"echo 'Submitted batch job 5' >&2; echo '{DEFINITE}' >&2; exit 1",
        f"echo 'sbatch: job {DEFINITE}' >&2; exit 1",
    ],
)
def test_a_wrapper_that_may_have_submitted_is_not_called_again(shell: Shell, wrapper: str) -> None:
    shell.behave(0, wrapper)
    done = shell.run(HINT, "job.sh")
    assert len(shell.calls()) == 1
    assert done.returncode != 0
    assert DEFINITE in done.stderr


def test_a_wrapper_may_greet(shell: Shell) -> None:
    shell.behave(0, f"echo 'welcome to the cluster'; echo '{DEFINITE}' >&2; exit 1")
    assert shell.run(HINT, "job.sh").returncode == 0
    assert len(shell.calls()) == 2


def test_a_value_that_sbatch_does_not_take(shell: Shell) -> None:
    shell.behave(0, 'echo "sbatch: error: Invalid --mem specification" >&2; exit 255')
    assert shell.run(HINT, "job.sh").returncode == 0
    assert [len(shell.calls()), shell.calls()[1]] == [2, ["job.sh"]]
