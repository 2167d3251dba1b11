# SPDX-License-Identifier: Apache-2.0
"""Every example of the documentation is read by the program itself, and runs where no live Slurm is needed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer.main

from slurm_colloc.cli.colloc import COMMANDS
from slurm_colloc.cli.colloc.app import build
from slurm_colloc.core.config_file import load_site, parse_site
from slurm_colloc.estimate.hint import parse_hint
from slurm_colloc.pack.command_line import RESUME
from slurm_colloc.submit.own_options import parse_arguments
from tests.doc_examples import CHECKOUT, ONLY_READ, Block, Example, blocks, examples, kept_as, once, printed, runs_here
from tests.pages.json_output import TOP_LEVEL
from tests.unit.made import run
from tests.unit.programs import colloc
from tests.unit.shell import SCRIPT, Shell, on_a_terminal
from tests.unit.stored import INGESTED_S, busy, stored

DEMO = CHECKOUT / "tests/recorded/demo"
# The recording is of the past: an example's "last 30 days" are those before its end.
NOW_S = datetime.fromisoformat(json.loads((DEMO / "recording.json").read_text())["until"]).timestamp() + 3600
SITE = 'schema = 1\ncluster = "c"\nslurm_release = "24.11"\n'
PROGRAM: Any = typer.main.get_command(build(COMMANDS))
EXAMPLES = [*examples(), *printed()]
RUN = once(one for one in EXAMPLES if runs_here(one))


@pytest.mark.parametrize("example", once(EXAMPLES), ids=str)
def test_each_call_is_one_that_the_program_takes(example: Example) -> None:
    program, *words = (re.sub(r"\$(\$|\w+)", "1", word) for word in example.words)
    if program == "csub":
        # A pack's words without "pack" and --resume, which csub takes away first, too.
        own = [word for word in words[words[0] == "pack" :] if not word.startswith(f"--{RESUME.name}=")]
        line = parse_arguments(tuple(own), None)
        for option in line.own:
            if option.name == "gpu-footprint":
                parse_hint(option.value or "")
        return
    command = PROGRAM
    while inner := getattr(command, "commands", {}):
        if not words or words[0].startswith("-"):
            break
        command = inner[words.pop(0)]
    # Fails as the program does: an option or an argument that there is not, or one that is missing.
    command.make_context("colloc", words, resilient_parsing=words in (["--version"],))


@pytest.mark.parametrize("key", ONLY_READ, ids=" ".join)
def test_what_is_only_read_is_there(key: tuple[str, ...]) -> None:
    assert any(kept_as(example, [key]) for example in EXAMPLES)


# What a command writes elsewhere by default lies in the test's folder as well.
OUTPUTS = '\n[paths]\nstate = "{folder}"\n'


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the store of the demo's recording, once for all examples."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "site.toml").write_text((DEMO / "site.toml").read_text() + OUTPUTS.format(folder=folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLOC_CONF", str(folder / "site.toml"))
        sources = ("--sacct-file", str(DEMO / "sacct.txt"), "--journal", str(DEMO / "journal"))
        assert colloc("ingest", "--store", str(folder / "store"), *sources) == 0
    return folder


def moved(words: tuple[str, ...], folders: Mapping[str, str]) -> list[str]:
    """Return words with a test's own folders in the place of the example's."""
    for before, after in folders.items():
        words = tuple(word.replace(before, after) for word in words)
    return list(words)


@pytest.mark.parametrize("example", [one for one in RUN if one.words[0] == "colloc"], ids=str)
def test_each_call_of_colloc_runs_on_a_recording(
    example: Example, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(recorded, tmp_path / "state")
    site = tmp_path / "state/site.toml"
    site.write_text(site.read_text().replace(str(recorded), str(tmp_path / "state")))
    for name in ("sacct.txt", "jobs.txt"):
        shutil.copy(DEMO / "sacct.txt", tmp_path / name)
    (tmp_path / "state/journal").mkdir()
    monkeypatch.setenv("COLLOC_CONF", str(site))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.time", lambda: NOW_S)
    before = set(tmp_path.iterdir())
    folders = {"/root/colloc-files": str(tmp_path / "files"), "/srv/colloc/pages": str(tmp_path / "pages")}
    status = colloc(*moved(example.words[1:], folders))
    # The recording has three users: no figure of a group of five is shown.
    assert status in ((2,) if "--min-group" in example.words else (0, 1)), colloc.err
    assert colloc.out or colloc.err or set(tmp_path.iterdir()) - before


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/how-to/my-jobs.md"])
def test_a_screen_has_lines_that_are_printed(page: str, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screens of a page are of one job: submitted, looked at when it has ended, and submitted again."""
    screen = "".join(one.text for one in blocks() if one.page == page and one.text.startswith("$ "))
    (shell.folder / "train.sh").write_text(SCRIPT)
    shell.site('"mig"', agent=True)
    ran, site = run("4710", job_name="train.sh"), shell.folder / "site.toml"
    site.write_text(site.read_text().replace('"lab"', f'"{ran.cluster}"').replace("max_slowdown = 2.1", ""))
    shell.behave(0, "echo Submitted batch job 4710\nexit 0\n")
    monkeypatch.setattr("time.time", lambda: INGESTED_S)
    rounds = busy(900, 1800, 2700, 3600, sm=4.0, mib=4000, job="4710")
    store = str(shell.folder / "store")
    stored(store, [ran], rounds).write_log("a", {})
    monkeypatch.setenv("COLLOC_CONF", str(site))
    for command, *lines in map(str.splitlines, screen.split("$ ")[1:]):
        program, *words = command.partition("#")[0].split()
        if shell.calls():  # what it used is known from then on
            shell.ran(
                signature=shell.request("train.sh")["signature"],
                sm_active_mean_pct=4.0,
                sm_active_q95_pct=4.0,
                busy_mean_pct=45.0,
            )
        if program == "colloc":
            assert colloc(*words, "--store", store) == 0
            text = colloc.out
        elif "--dry-run" in words:
            text = shell.run(*words).stderr
        else:
            text = f"Submitted batch job 471{len(shell.calls())}\n{on_a_terminal(shell, *words)}"
        said = iter(text.splitlines())
        for line in lines:  # in the order of what is printed, of which the screen leaves out some
            start = line.removesuffix(" ...")
            assert any(one == line or (start != line and one.startswith(start)) for one in said), line


def test_a_message_on_a_page_is_one_that_is_printed() -> None:
    texts = (path.read_text().splitlines() for path in (CHECKOUT / "tests/golden/printed").iterdir())
    printed = {line for text in texts for line in text}
    shown = [line for one in blocks() if one.text.startswith("csub: ") for line in one.text.splitlines()]
    assert len(shown) > 3
    assert [line for line in shown if line not in printed] == []


@pytest.mark.parametrize("example", [one for one in RUN if one.words[0] == "csub"], ids=str)
def test_each_call_of_csub_submits_once(example: Example, shell: Shell) -> None:
    for name in ("train.sh", "dlrm.sh", "profile.sh", "SCRIPT"):
        (shell.folder / name).write_text(SCRIPT)
    (shell.folder / "sweep.sh").write_text(SCRIPT.replace("gpu:1", "gpu:1 --array=0-9 --time=10"))
    (shell.folder / "commands.txt").write_text("#SBATCH --time=10\npython train.py 1\npython train.py 2\n")
    (shell.folder / "producer.py").write_text("")
    done = shell.run(*example.words[1:])
    assert done.returncode == 0, done.stderr
    assert len(shell.calls()) == (0 if "--dry-run" in example.words else 1), done.stderr
    assert "the job stays as you asked: " not in done.stderr
    assert "error" not in done.stderr


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("colloc audit run --format json", "--since=1d"),
        ("colloc history --format json", ""),
        ("colloc report --shadow --format json", "--since=1d"),
        ("colloc report --harm --format json", "--since=1d"),
        ("colloc report --rollout --format json", "--since=1d"),
    ],
)
def test_json_has_what_its_reference_says(
    command: str, options: str, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLOC_CONF", str(recorded / "site.toml"))
    monkeypatch.setattr("time.time", lambda: NOW_S)
    assert colloc(*command.split()[1:], *options.split()) in (0, 1), colloc.err
    assert json.loads(colloc.out).keys() == set(TOP_LEVEL[command])


def test_json_of_csub_has_what_its_reference_says(shell: Shell) -> None:
    command = "csub --dry-run --format=json"
    assert json.loads(shell.run(*command.split()[1:], "job.sh").stdout).keys() == set(TOP_LEVEL[command])


@pytest.mark.parametrize(
    "block", [one for one in blocks() if one.kind == "toml"], ids=lambda one: f"{one.page}:{one.line}"
)
def test_each_part_of_site_toml_is_valid(block: Block) -> None:
    text = block.text if "schema =" in block.text else SITE + block.text
    assert parse_site(tomllib.loads(text), block.page)


@pytest.mark.parametrize(
    "block", [one for one in blocks() if one.kind == "python"], ids=lambda one: f"{one.page}:{one.line}"
)
def test_each_program_in_python_can_be_read(block: Block) -> None:
    compile(block.text, f"{block.page}:{block.line}", "exec")


@pytest.mark.parametrize(
    "site", sorted((CHECKOUT / "site-configs").glob("*/site.toml")), ids=lambda path: path.parent.name
)
def test_example_sites_are_valid(site: Path) -> None:
    assert load_site(str(site)).pool


def test_what_users_are_told_to_put_on_path_has_no_interpreter(tmp_path: Path) -> None:
    """The environment's python3 would take the place of theirs."""
    text = (CHECKOUT / "docs/quickstart.md").read_text()
    (command,) = re.findall(r"^ *(mkdir -p ~/\.local/bin .*)$", text, re.MULTILINE)
    (tmp_path / "colloc/bin").mkdir(parents=True)
    for name in ("csub", "colloc", "python3"):
        (tmp_path / "colloc/bin" / name).touch()
    subprocess.run(["sh", "-c", command], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
    assert sorted(path.name for path in (tmp_path / ".local/bin").iterdir()) == ["colloc", "csub"]
    pages = [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "templates").rglob("*.j2")]
    assert [page for page in pages if re.search(r"PATH=\S*colloc\S*/bin\b", page.read_text())] == []
