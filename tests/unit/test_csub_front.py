# SPDX-License-Identifier: Apache-2.0
"""csub's sh front: apart from the user's Python, and plain sbatch where its own Python does not start."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import slurm_colloc
from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS, Option
from slurm_colloc.submit.own_options import OWN_OPTIONS, without_own_options
from tests.unit.golden import Printed
from tests.unit.programs import executable, need_program
from tests.unit.shell import CSUB, HINT, SCRIPT, Shell
from tests.waiting import wait_for

PACKAGE = Path(slurm_colloc.__file__).parent
FRONT = Path(__file__).parents[2] / "slurm_colloc" / "front" / "csub"
PLACED = ["--gres=gpu:h100_1g.10gb:1", "job.sh"]


def installed(shell: Shell, interpreter: str, name: str = "csub") -> Path:
    """Install the front into a folder of its own, first on PATH, beside a colloc of this interpreter."""
    place = shell.folder / "installed"
    place.mkdir()
    shutil.copy2(FRONT, place / "csub")
    (place / "colloc").write_text(f"#!{interpreter}\nprint('colloc')\n")
    if name != "csub":
        (place / name).symlink_to("csub")
    return place / name


def run(shell: Shell, program: Path | str, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return shell.run(*argv, program=program, environ=environ)


def broken(shell: Shell, kind: str) -> str:
    """Return an interpreter that does not start."""
    path = shell.folder / "python3-broken"
    texts = {
        "fails": "#!/bin/sh\necho 'Fatal Python error: init_fs_encoding' >&2\nexit 1\n",
        "no library": "#!/nonexistent/loader\n",
        "wrong format": "\x7fELF garbage",
        "killed": "#!/bin/sh\nkill -9 $$\n",
    }
    if kind in texts:
        path.write_text(texts[kind])
    path.touch()
    path.chmod(0o644 if kind == "not executable" else 0o755)
    return "/nonexistent/python3" if kind == "missing" else str(path)


def own_prefix(shell: Shell, *without: str) -> Path:
    """Return the interpreter of an installation as pip makes one, whose packages are this one's, but for some."""
    place = Path(shell.folder / "prefix" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix))
    place.mkdir(parents=True)
    for name in {"slurm_colloc", "jinja2", "markupsafe", "ClusterShell"} - set(without):
        (place / name).symlink_to(PACKAGE if name == "slurm_colloc" else Path(sysconfig.get_path("purelib")) / name)
    python = shell.folder / "prefix" / "bin" / "python3"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    (shell.folder / "prefix" / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
    return python


def replaced(shell: Shell, place: Path, name: str, text: str) -> None:
    """Put another text in place of a module of an installation, which is a link to this one's."""
    at = place
    for part in Path("slurm_colloc", name).parts[:-1]:
        at /= part
        source = at.resolve()
        if at.is_symlink():
            at.unlink()
            at.mkdir()
            for one in source.iterdir():
                (at / one.name).symlink_to(one)
    at /= Path(name).name
    at.unlink()
    at.write_text(text)


@pytest.mark.parametrize("kind", ["missing", "not executable", "fails", "no library", "wrong format", "killed"])
def test_an_interpreter_that_does_not_start_leaves_plain_sbatch(shell: Shell, kind: str, printed: Printed) -> None:
    csub = installed(shell, broken(shell, kind))
    done = run(shell, csub, "-J", "a b", HINT, "--colloc", "auto", "--explain", "-HN2", "job.sh", HINT, "*", "")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n")
    assert shell.calls() == [["-J", "a b", "-HN2", "job.sh", HINT, "*", ""]]
    (said,) = re.findall("^csub: .*", done.stderr, re.MULTILINE)
    printed("csub", re.sub("'.*'", "'PATH'", said))


@pytest.mark.parametrize(
    ("argv", "left"),
    [
        (["--excl", "--colloc=off", "job.sh", "--colloc=off"], ["--excl", "job.sh", "--colloc=off"]),
        (["-Hn", "2", "--colloc=off", "job.sh"], ["-Hn", "2", "job.sh"]),
        (["-Hn2", "--colloc", "off", "job.sh"], ["-Hn2", "job.sh"]),
        (["-QHJ", "x", "-k", "--explain", "job.sh", "--explain"], ["-QHJ", "x", "-k", "job.sh", "--explain"]),
        (["--part", "gpu", "--colloc=off", "job.sh"], ["--part", "gpu", "job.sh"]),
        (["-N1", ":", "-n", "2", "--colloc=off", "job.sh"], ["-N1", ":", "-n", "2", "job.sh"]),
        (["--wrap=x", "--colloc=off"], ["--wrap=x"]),
        (["--pack", "--array=1-9", "job.sh", "--pack"], ["--array=1-9", "job.sh", "--pack"]),
        (["--pack-tasks", "3", "--pack-jobs=2", "-a1", "--pack-retries", "0", "job.sh"], ["-a1", "job.sh"]),
        (["--no-such", "--pack-tasks=3", "job.sh"], ["--no-such", "job.sh"]),
    ],
)
def test_a_broken_interpreter_takes_csubs_own_options_with_it(shell: Shell, argv: list[str], left: list[str]) -> None:
    run(shell, installed(shell, "/nonexistent/python3"), *argv)
    assert shell.calls() == [left]


@pytest.mark.parametrize("option", OWN_OPTIONS, ids=lambda option: option.name)
def test_behind_a_flag_of_the_sites_own_each_of_csubs_options_is_seen(shell: Shell, option: Option) -> None:
    word, value = f"--{option.name}", "json" if option.name == "format" else "1"
    ways = {
        "none": [[word]],
        "optional": [[word], [f"{word}={value}"]],
        "required": [[f"{word}={value}"], [word, value]],
    }
    csub = installed(shell, "/nonexistent/python3")
    for way in ways[option.argument]:
        argv = ["--no-such", *way, "job.sh"]
        assert without_own_options(argv) == (("--no-such", "job.sh"), tuple(way))
        done = run(shell, csub, *argv)
        if option.name in ("dry-run", "format"):
            assert (done.returncode, shell.calls(), "nothing was submitted" in done.stderr) == (1, [], True)
        else:
            assert shell.calls()[-1] == ["--no-such", "job.sh"]


def test_an_interpreter_without_the_package_leaves_plain_sbatch(shell: Shell) -> None:
    csub = installed(shell, "/usr/bin/python3")
    done = run(shell, csub, HINT, "--hold", "job.sh")
    assert (done.returncode, shell.calls()) == (0, [["--hold", "job.sh"]])
    assert "cannot start (ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("interpreter", [sys.executable, "/nonexistent/python3"])
def test_a_link_called_sbatch_first_on_path_finds_the_real_one(shell: Shell, interpreter: str) -> None:
    shim = installed(shell, interpreter, "sbatch")
    wrapper = executable(shell.folder / "wrapper" / "sbatch", '#!/bin/sh\nexec /opt/site/bin/csub "$@"\n')
    path = f"{shim.parent}:{wrapper.parent}:{shell.environment()['PATH']}"
    done = run(shell, "sbatch", HINT, "job.sh", PATH=path)
    assert done.stdout == "Submitted batch job 4711\n", done.stderr
    assert shell.calls() == [PLACED if interpreter == sys.executable else ["job.sh"]]


def test_no_sbatch_but_the_shim_is_an_error_and_no_loop(shell: Shell, printed: Printed) -> None:
    shim = installed(shell, "/nonexistent/python3", "sbatch")
    done = run(shell, shim, "job.sh", PATH=f"{shim.parent}:/nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    printed("csub", done.stderr)


def test_standard_input_status_and_arguments_go_through_a_broken_installation(shell: Shell) -> None:
    shell.behave(0, "exit 7")
    assert shell.run(program=installed(shell, "/nonexistent/python3"), input=SCRIPT).returncode == 7
    assert (shell.folder / "script.0").read_text() == SCRIPT


SHELLS = ["dash", "bash", "busybox sh"]
ENDS = {"raises": "raise ValueError", "leaves": "raise SystemExit", "interrupts": "raise KeyboardInterrupt"}


@pytest.mark.parametrize("line", [*ENDS.values(), "import os; os._exit(0)", "print(1)"])
@pytest.mark.parametrize("together", [True, False])
def test_what_a_pth_file_begins_loses_nothing(shell: Shell, line: str, together: bool) -> None:
    """It is not even read where all that csub needs lies in one folder; else nothing but the first start may end."""
    python = own_prefix(shell, *([] if together else ["ClusterShell"]))
    [place] = (shell.folder / "prefix").glob("lib/*/site-packages")
    (place / "a.pth").write_text(f"import sys; exec({line!r})\n")
    done = run(shell, installed(shell, str(python)), HINT, "job.sh")
    goes_on = together or line in (ENDS["raises"], "print(1)")
    assert (done.stdout, shell.calls()) == ("Submitted batch job 4711\n", [PLACED if goes_on else ["job.sh"]])


@pytest.mark.parametrize("text", [*ENDS.values(), "raise MemoryError"])
@pytest.mark.parametrize("name", ["cli/csub.py", "submit/plan.py", "core/wording.py", "submit/show.py"])
def test_a_module_that_ends_csub_loses_nothing(shell: Shell, name: str, text: str) -> None:
    python = own_prefix(shell)
    [place] = (shell.folder / "prefix").glob("lib/*/site-packages")
    replaced(shell, place, name, text)
    csub = installed(shell, str(python))
    done = shell.run("--explain", HINT, program=csub, input=SCRIPT)
    assert (done.returncode, done.stdout, shell.calls()) == (0, "Submitted batch job 4711\n", [[""]]), done.stderr
    assert (shell.folder / "script.0").read_text() == SCRIPT


@pytest.mark.parametrize("name", ["encodings", "enum.py", "json", "tomllib", "fcntl"])
def test_a_standard_library_with_a_gap_loses_nothing(shell: Shell, name: str) -> None:
    own_prefix(shell)
    (shell.folder / "prefix" / "pyvenv.cfg").unlink()
    python = shell.folder / "prefix" / "bin" / "python3"
    python.unlink()
    shutil.copy2(os.path.realpath(sys.executable), python)
    library = Path(sysconfig.get_path("stdlib"))
    place = shell.folder / "prefix" / "lib" / library.name
    for one in library.iterdir():
        if one.name not in (name, "site-packages", "dist-packages"):
            (place / one.name).symlink_to(one)
    done = run(shell, installed(shell, str(python)), HINT, "job.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 4711\n"), done.stderr
    assert shell.calls() in ([["job.sh"]], [PLACED] if name == "fcntl" else [])


@contextmanager
def anybodys(shell: Shell) -> Iterator[Path]:
    """Give a folder in which another user finds csub and an sbatch that starts no process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "calls").mkdir()
        (folder / "calls").chmod(0o777)
        # By bash, which needs fewer descriptors than any other shell.
        text = f'#!/bin/bash\nprintf "%s\\0" "$@" "$KEPT" >{folder}/calls/$$\necho "Submitted batch job 4711"\n'
        executable(folder / "bin" / "sbatch", text)
        shutil.copy2(FRONT, folder / "csub")
        (folder / "csub").chmod(0o755)
        (folder / "colloc").write_text(f"#!{sys.executable}\n")
        yield folder


def limited(folder: Path, sh: str, name: str, *limits: str) -> tuple[int, str, list[list[str]]]:
    """Return how csub ended at a limit, what it printed, and the submissions."""
    program = need_program(sh.split()[0])
    who = [] if os.geteuid() else ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
    argv = [*who, "prlimit", *limits, program, *sh.split()[1:], str(folder / name), "--excl", HINT, "a b", HINT, "*"]
    environ = {"PATH": f"{folder}:{folder / 'bin'}:/usr/bin:/bin", "KEPT": "a\nb", "HOME": str(folder)}
    done = subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout, [one.read_text().split("\0")[:-1] for one in (folder / "calls").iterdir()]


PLAIN = (0, "Submitted batch job 4711\n", [["--excl", "a b", HINT, "*", "a\nb"]])


@pytest.mark.parametrize("name", ["csub", "sbatch"])
@pytest.mark.parametrize("sh", SHELLS)
def test_where_no_process_can_be_started_csub_becomes_sbatch(shell: Shell, sh: str, name: str) -> None:
    """Bash tries for 15 s."""
    with anybodys(shell) as folder:
        if name == "sbatch":
            (folder / name).symlink_to("csub")
        assert limited(folder, sh, name, "--nproc=1") == PLAIN


@pytest.mark.parametrize("open_files", range(5, 14))
def test_few_descriptors_lose_nothing(shell: Shell, open_files: int) -> None:
    """Dash and busybox begin no script with less than 12 of them, and so no csub."""
    with anybodys(shell) as folder:
        assert limited(folder, "bash", "csub", f"--nofile={open_files}") == PLAIN
        if open_files > 12:
            for sh in ("dash", "busybox sh"):
                shutil.rmtree(folder / "calls")
                (folder / "calls").mkdir(mode=0o777)
                (folder / "calls").chmod(0o777)
                assert limited(folder, sh, "csub", f"--nofile={open_files}") == PLAIN


@pytest.mark.parametrize("sh", SHELLS)
def test_an_interpreter_that_can_be_asked_but_not_become(shell: Shell, sh: str) -> None:
    """As where its arguments, which are more than those of sbatch, are too long."""
    python = executable(shell.folder / "python3", f'#!/bin/sh\nrm "$0"\nexec {sys.executable} "$@"\n')
    csub = installed(shell, str(python))
    done = run(shell, need_program(sh.split()[0]), *sh.split()[1:], str(csub), HINT, "job.sh")
    assert (done.stdout, shell.calls()) == ("Submitted batch job 4711\n", [["job.sh"]]), done.stderr


@pytest.mark.parametrize("sh", SHELLS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_csub_before_sbatch_was_started_gets_no_job(shell: Shell, sh: str, number: signal.Signals) -> None:
    at_work = shell.folder / "at-work"
    text = f"#!/bin/sh\ntouch {at_work}\nexec sleep 2\n"
    csub = installed(shell, str(executable(shell.folder / "python3", text)))
    argv = ["env", f"--default-signal={number.name.removeprefix('SIG')}", *sh.split(), str(csub), HINT, "job.sh"]
    need_program(sh.split()[0])
    running = subprocess.Popen(argv, cwd=shell.folder, env=shell.environment(), stdin=subprocess.DEVNULL)
    wait_for(at_work.exists, "the interpreter was not asked", 20)
    running.send_signal(number)
    assert running.wait(timeout=20) == -number
    reading = subprocess.Popen([CSUB, HINT], cwd=shell.folder, env=shell.environment(), stdin=subprocess.PIPE)
    try:
        wait_for(lambda: ignores_and_leaves(reading.pid), "no interpreter", 20)
        reading.send_signal(number)
        assert (reading.wait(timeout=20), shell.calls()) == (-number, [])
    finally:
        reading.kill()


def ignores_and_leaves(pid: int) -> bool:
    """Return whether a process ignores SIGPIPE, as Python does, and leaves SIGINT alone, as csub does."""
    found = dict(re.findall(r"Sig(Ign|Cgt):\s+(\w+)", Path(f"/proc/{pid}/status").read_text()))
    return bool(int(found["Ign"], 16) >> signal.SIGPIPE - 1 & 1) and not int(found["Cgt"], 16) >> signal.SIGINT - 1 & 1


def test_a_folder_as_standard_input_with_which_no_python_starts_leaves_plain_sbatch(shell: Shell) -> None:
    folder = os.open(shell.folder, os.O_RDONLY)
    done = shell.run(HINT, "job.sh", program=installed(shell, sys.executable), stdin=folder)
    os.close(folder)
    assert (done.returncode, done.stdout, shell.calls()) == (0, "Submitted batch job 4711\n", [["job.sh"]]), done.stderr


def test_the_users_python_changes_nothing(shell: Shell) -> None:
    hostile = shell.folder / "mine"
    hostile.mkdir()
    for folder in (hostile, shell.folder):
        for name in ("json", "re", "sitecustomize", "usercustomize", "slurm_colloc"):
            (folder / f"{name}.py").write_text("raise SystemExit(9)\n")
    environ = {
        "PYTHONPATH": f"{hostile}:",
        "PYTHONHOME": "/nonexistent",
        "PYTHONSTARTUP": str(hostile / "json.py"),
        "PYTHONINSPECT": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "CONDA_PREFIX": "/nonexistent",
        "VIRTUAL_ENV": "/nonexistent",
    }
    done = run(shell, CSUB, HINT, "job.sh", **environ)
    assert (done.returncode, shell.calls()) == (0, [PLACED]), done.stderr


ODD = {
    "LANG": "C",
    "ODD": "a\nb",
    "EMPTY": "",
    "BASH_FUNC_module%%": "() { echo 'it'\\''s' \"$1\"\n}",
    "dotted.name": "1",
    "PYTHONPATH": "x",
    "PS1": "$ ",
    "SHELLOPTS": "braceexpand:hashall:interactive-comments",
    "SHLVL": "3",
    "PPID": "77",
    "OPTIND": "3",
}


@pytest.mark.parametrize("sh", ["dash", "bash"])
@pytest.mark.parametrize("how", ["placed", "unchanged", "broken"])
def test_sbatch_gets_the_environment_as_it_was(shell: Shell, how: str, sh: str) -> None:
    """Bash's exported functions above all: without them a job loses "module"."""
    (shell.folder / "bin" / "sbatch").write_text('#!/bin/sh\ncat /proc/$$/environ >"$CALLS/../environ.0"\necho 1\n')
    csub = installed(shell, "/nonexistent" if how == "broken" else sys.executable)
    (shell.folder / "sh").symlink_to(str(shutil.which(sh)))
    done = run(shell, shell.folder / "sh", str(csub), *([HINT] if how == "placed" else []), "job.sh", **ODD)
    assert done.returncode == 0, done.stderr
    text = (shell.folder / "environ.0").read_bytes()
    seen = dict(entry.decode().split("=", 1) for entry in text.split(b"\0") if entry)
    assert seen == shell.environment() | ODD


@pytest.mark.parametrize("argv", [["--some-spank=1", HINT, "job.sh", "--dry-run", HINT], ["--some-spank=1", "job.sh"]])
def test_an_option_that_only_sbatch_knows_does_not_lose_the_submission(shell: Shell, argv: list[str]) -> None:
    """Neither csub's own option before the script nor the script's own --dry-run."""
    done = run(shell, CSUB, *argv)
    assert done.returncode == 0
    assert shell.calls() == [[word for at, word in enumerate(argv) if word != HINT or at > 2]]
    assert run(shell, CSUB, "--some-spank=1", "--dry-run", "job.sh").returncode == 2
    assert len(shell.calls()) == 1
    run(shell, CSUB, "--some-spank=1", "-", "--dry-run")
    assert shell.calls()[1:] == [["--some-spank=1", "-", "--dry-run"]], "a dash alone is a script"


@pytest.mark.parametrize("argv", [["--colloc=off"], [HINT]])
def test_signals_are_ignored_in_sbatch_where_they_were_before(shell: Shell, argv: list[str]) -> None:
    """Python ignores the two."""
    (shell.folder / "bin" / "sbatch").write_text('#!/bin/sh\ngrep SigIgn /proc/self/status >"$CALLS/../ignored"\n')
    both = 1 << 12 | 1 << 24
    for before, ignored in (("trap '' PIPE XFSZ; ", both), ("", 0)):
        run(shell, "sh", "-c", f'{before}exec "$@"', "sh", str(CSUB), *argv, "job.sh")
        [mask] = re.findall(r"\w+$", (shell.folder / "ignored").read_text().strip())
        assert int(mask, 16) & both == ignored


def test_the_front_knows_which_options_take_no_value() -> None:
    text = FRONT.read_text()
    lines = re.findall(r'^flags="(.*)"$', text, re.MULTILINE)
    listed = {word[2:] for line in lines for word in line.split() if word.startswith("--")}
    flags, with_value = re.search(r"in \[(\w+)\]\*\)", text), re.search(r"'' \| (\w)\*\)", text)
    assert flags
    assert with_value
    shorts = set(flags[1] + with_value[1])
    options = [option for table in SBATCH_OPTIONS.values() for option in table]
    valueless = {option.name for option in options if option.argument != "required"}
    assert valueless <= listed
    assert not listed & {option.name for option in options if option.argument == "required"}
    assert shorts == {option.short for option in options if option.short and option.argument != "required"}


def test_the_front_knows_csubs_own_options_as_they_are() -> None:
    lines = re.search(r"(?s)case \$word in\n(\s+--gpu-footprint.*?)\*\) next= ;;", FRONT.read_text())
    assert lines
    assert set(re.findall(r"--[\w-]+", lines[1])) == {f"--{option.name}" for option in OWN_OPTIONS}
