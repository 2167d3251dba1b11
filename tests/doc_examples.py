# SPDX-License-Identifier: Apache-2.0
"""What the documentation shows to be typed or written: commands, site.toml, Python, JSON; where each stands."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
PROGRAMS = ("colloc", "csub")


class Block(NamedTuple):
    """A block of code: the page and the line that it begins at."""

    page: str
    line: int
    language: str
    text: str

    @property
    def kind(self) -> str:
        """Return "toml", "json", "python" or "shell", by its language or what it looks like; else "text"."""
        if self.language:
            return {"sh": "shell", "console": "shell", "bash": "shell"}.get(self.language, self.language)
        if re.search(r"^\[\[?[a-z_.]+\]\]?\s*(#.*)?$", self.text, re.MULTILINE):
            return "toml"
        if re.match(r"(from|import) \w", self.text):
            return "python"
        if re.match(r"[{\[]\s", self.text):
            return "json"
        return "shell" if re.search(rf"(^|[\s(/])({'|'.join(PROGRAMS)}) ", self.text) else "text"


class Example(NamedTuple):
    """A call of colloc or csub: the page, its line and its words, the program first."""

    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def tokens(page: Path) -> list[Token]:
    """Return a page as CommonMark with tables reads it, as GitHub and Sphinx do."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def blocks() -> Iterator[Block]:
    """Yield every block of code of README and docs."""
    for page in PAGES:
        name = str(page.relative_to(CHECKOUT))
        for token in tokens(page):
            if token.type in ("fence", "code_block") and token.map:
                yield Block(name, token.map[0] + 1, token.info.strip(), token.content)


def examples() -> list[Example]:
    """Return every call of colloc and csub in a block of shell, by page."""
    return [
        Example(block.page, block.line, words)
        for block in blocks()
        if block.kind == "shell"
        for words in calls(block.text)
    ]


def calls(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the calls of colloc and csub in lines of shell, without comments, prompts, redirections and variables."""
    for line in text.replace("\\\n", " ").splitlines():
        reader = shlex.shlex(line.removeprefix("$ ").strip(), posix=True, punctuation_chars="();&|<>")
        reader.whitespace_split = True
        command: list[str] = []
        try:
            words = [*reader, ";"]
        except ValueError:  # what a program printed
            continue
        for word in words:
            if not re.fullmatch(r"[();&|<>]+", word):
                command.append(word)
                continue
            while command and "=" in command[0]:
                del command[0]
            start = next((index for index, one in enumerate(command) if Path(one).name in PROGRAMS), None)
            # srun ... colloc: what is run by another program is a call, too.
            if start is not None and (start == 0 or command[0] == "srun"):
                yield (Path(command[start]).name, *command[start + 1 :])
            command = [] if not word.startswith((">", "<")) else ["", ""]


# A command in quotes, in a string or a text that the package prints; "csub had ..." is none.
_QUOTED = re.compile(r"['`]((?:colloc (?!had )[a-z]|csub (?:-|pack))[^'`]*)['`]")


def printed() -> list[Example]:
    """Return every call of colloc and csub that a message of the package names in quotes, by file; values are 7."""
    return [
        Example(str(path.relative_to(CHECKOUT)), line, (words[0], *words[1:]))
        for path in sorted((CHECKOUT / "slurm_colloc").rglob("*.py"))
        for line, text in _strings(ast.parse(path.read_text()))
        for words in map(shlex.split, _QUOTED.findall(text.replace("[OPTIONS] ", "")))
    ]


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that is no documentation."""
    parts = {part for one in ast.walk(tree) if isinstance(one, ast.JoinedStr | ast.Expr) for part in _parts(one)}
    for one in ast.walk(tree):
        if isinstance(one, ast.JoinedStr):
            yield one.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in one.values)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and one not in parts:
            yield one.lineno, one.value


def _parts(one: ast.JoinedStr | ast.Expr) -> list[ast.expr]:
    return one.values if isinstance(one, ast.JoinedStr) else [one.value]


# What no test runs as it stands, and why; its words are read by the program's own parser all the same.
ONLY_READ = {
    ("colloc", "agent"): "runs until it is told to stop",
    ("colloc", "compact", "--engine"): "submits a job for each day",
    ("colloc", "ingest", "--prometheus"): "needs a Prometheus server of that name",
    ("colloc", "job", "--to"): "needs an MLflow server of that name",
    ("colloc", "site", "build-plugin"): "needs the headers of the Slurm that runs",
    ("csub", "pack", "--resume"): "needs a pack that is not done",
}
# What a test of its own runs.
ELSEWHERE = {
    ("colloc", "late", "--probe"): "tests/cluster/test_rebind.py",
    ("colloc", "holders"): "tests/cluster/test_holders.py",
    ("colloc", "off"): "tests/unit/test_off.py",
    ("colloc", "why"): "tests/unit/test_cli_job.py",
    ("colloc", "demo"): "tests/package/test_distribution.py",
    ("colloc", "audit"): "tests/unit/test_docs_audits.py",
    ("colloc", "history", "--correct"): "tests/unit/test_said.py",
    ("colloc", "history", "--forget"): "tests/unit/test_said.py",
    ("colloc", "history", "bootstrap"): "tests/cluster/test_past_jobs.py",
    # Of the usage, without what a pack's jobs ask for.
    ("csub", "pack", "--"): "tests/unit/test_csub_pack.py",
}
# What needs a Slurm to answer: tests/cluster/test_docs.py runs it.
ON_A_CLUSTER = {
    *(("colloc", "site", name) for name in ("init", "check", "doctor", "gpus")),
    *(("colloc", name) for name in ("ingest", "job", "me", "comment")),
    # Several jobs, which know each other by ids.
    ("csub", "--requeue"),
}


def once(some: Iterable[Example]) -> list[Example]:
    """Return the first example of each call."""
    return list({example.words: example for example in reversed(list(some))}.values())[::-1]


def kept_as(example: Example, among: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return which of these beginnings a call has, options without their values; the longest."""
    plain = [word.partition("=")[0] for word in example.words]
    found = [key for key in among if plain[: len(key)] == [*key] or ({*key[1:]} <= {*plain} and plain[0] == key[0])]
    return max(found, key=len, default=None)


def runs_on_a_cluster(example: Example) -> bool:
    """Return whether the call is one for the tests of the real cluster."""
    return not kept_as(example, ONLY_READ) and kept_as(example, ON_A_CLUSTER) is not None


def runs_here(example: Example) -> bool:
    """Return whether the call runs without Slurm: on a recording, or with a made-up sbatch."""
    return not kept_as(example, (*ONLY_READ, *ELSEWHERE, *ON_A_CLUSTER))
