# SPDX-License-Identifier: Apache-2.0
"""csub on file systems that are slow or hang: few operations, a bound on the time, still one submission."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_colloc.estimate.records import drop_evidence
from tests.fakes import build_preload
from tests.unit.golden import Printed
from tests.unit.made import evidence
from tests.unit.shell import HINT, SCRIPT, Shell

PLACED = ["--gres=gpu:h100_1g.10gb:1", "job.sh"]
AT_MOST = 8


@pytest.fixture(scope="session")
def slowfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_preload("slowfs", tmp_path_factory.mktemp("slowfs"))


def on_slow(slowfs: Path, shell: Shell, under: Path, delay_ms: int) -> dict[str, str]:
    # /bin/sh as sbatch: what is counted shall be csub's own.
    (shell.folder / "bin/sbatch").write_text(
        '#!/bin/sh\nn=$(ls "$CALLS" | wc -l); printf "%s\\0" "$@" >"$CALLS/$n"\necho "Submitted batch job 4711"\n'
    )
    return {
        "LD_PRELOAD": str(slowfs),
        "SLOWFS_UNDER": str(under),
        "SLOWFS_MS": str(delay_ms),
        "SLOWFS_LOG": str(shell.folder / "operations"),
    }


def operations(shell: Shell) -> list[str]:
    log = shell.folder / "operations"
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("placed", [True, False])
def test_few_operations_under_home_with_a_site(slowfs: Path, shell: Shell, placed: bool) -> None:
    environ = on_slow(slowfs, shell, shell.folder / "home", 0)
    spool = shell.folder / "spool"
    spool.mkdir()
    with (shell.folder / "site.toml").open("a") as site:
        site.write(f'[paths]\ndecisions = "{spool}"\nstate = "{shell.folder}"\n')
    words = [*([HINT] if placed else []), "job.sh"]
    shell.run(*words, environ=environ)  # keeps what it was submitted with, of which a hint needs nothing
    assert len(operations(shell)) <= (3 if placed else 24), operations(shell)  # 4 of them for .local, which homes have
    (shell.folder / "operations").unlink(missing_ok=True)
    shell.run(*words, environ=environ)
    assert shell.calls() == [PLACED if placed else ["job.sh"]] * 2
    assert len(operations(shell)) <= (3 if placed else 5), operations(shell)


def test_few_operations_under_home_with_everything_in_it(slowfs: Path, shell: Shell) -> None:
    home = shell.folder / "home"
    config = home / ".config/slurm_colloc"
    config.mkdir(parents=True)
    (config / "site.toml").write_text((shell.folder / "site.toml").read_text())
    environ = on_slow(slowfs, shell, home, 0) | {"COLLOC_CONF": ""}
    shell.run(HINT, "job.sh", environ=environ)  # makes its folders
    (shell.folder / "operations").unlink()
    shell.run(HINT, "job.sh", environ=environ)
    assert shell.calls() == [PLACED, PLACED]
    assert len(operations(shell)) <= AT_MOST, operations(shell)


def test_no_operation_under_home_for_a_job_without_a_gpu(slowfs: Path, shell: Shell) -> None:
    (shell.folder / "home/train.py").write_text("import net")
    (shell.folder / "home/job.sh").write_text("#!/bin/bash\npython train.py\n")
    environ = on_slow(slowfs, shell, shell.folder / "home", 0)
    shell.run("home/job.sh", environ=environ)
    assert shell.calls() == [["home/job.sh"]]
    assert {line.rpartition("/")[2] for line in operations(shell)} == {"job.sh"}


HUNG = 600_000


def hung(slowfs: Path, shell: Shell, under: Path, *argv: str, **more: str) -> float:
    with (shell.folder / "site.toml").open("a") as site:
        site.write("[timeouts]\ndecide_s = 0.5\n")
    begun = time.monotonic()
    done = shell.run(*argv, environ=on_slow(slowfs, shell, under, HUNG) | more)
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n"), done.stderr
    (shell.folder / "said").write_text(done.stderr)
    return time.monotonic() - begun


def test_a_hung_history_leaves_the_job_as_asked(slowfs: Path, shell: Shell, printed: Printed) -> None:
    drop_evidence(str(shell.folder / "home/.local/share/slurm_colloc"), evidence("1"))
    took_s = hung(slowfs, shell, shell.folder / "home", "job.sh")
    assert shell.calls() == [["job.sh"]]
    assert took_s < 10
    printed("csub", (shell.folder / "said").read_text())


def test_a_hung_site_file_leaves_the_job_as_asked(slowfs: Path, shell: Shell) -> None:
    assert hung(slowfs, shell, shell.folder / "site.toml", HINT, "job.sh") < 10
    assert shell.calls() == [["job.sh"]]
    assert "took too long" in (shell.folder / "said").read_text()


def test_a_hung_tmpdir_leaves_the_job_as_asked(slowfs: Path, shell: Shell, printed: Printed) -> None:
    shell.site('"mps"', agent=True)
    shell.keep_no_scripts()
    assert hung(slowfs, shell, shell.folder / "tmp", HINT, "job.sh") < 10
    assert shell.calls() == [["job.sh"]]
    printed("csub", (shell.folder / "said").read_text())


def test_a_hung_home_leaves_the_job_as_asked(slowfs: Path, shell: Shell) -> None:
    assert hung(slowfs, shell, shell.folder / "home", HINT, "job.sh") < 10
    assert shell.calls() == [["job.sh"]]  # what is free now is kept there, so that nothing is known of it


def test_a_hung_script_folder_hangs_as_sbatch_would_and_no_longer(slowfs: Path, shell: Shell) -> None:
    (shell.folder / "far").mkdir()
    (shell.folder / "far/job.sh").write_text(SCRIPT)
    assert hung(slowfs, shell, shell.folder / "far", HINT, "far/job.sh") < 10
    assert shell.calls() == [["far/job.sh"]]
