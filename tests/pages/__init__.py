# SPDX-License-Identifier: Apache-2.0
"""The pages that are made of the code, and the code that makes them: `make docs` writes them, a test compares them."""

import re
from collections.abc import Callable
from pathlib import Path

from slurm_colloc import __version__
from slurm_colloc.audit.rules import RULES
from slurm_colloc.core.errors import Status
from tests.pages.audit_rules import rules_page
from tests.pages.commands import commands, sections
from tests.pages.completion import script
from tests.pages.doctor import doctor_reference
from tests.pages.json_output import nouns, top_level
from tests.pages.json_schema import json_schema
from tests.pages.man import manual_page
from tests.pages.site_keys import reference
from tests.pages.store import store_page
from tests.pages.templates import templates_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
_PARTS = Path(__file__).resolve().parent
_USER, _FORMATS = "User Commands", "File Formats"


def pages() -> dict[str, Callable[[], str]]:
    """Return what makes each page, by its path below docs/."""
    return {
        "reference/site.toml.md": reference,
        "reference/doctor.md": doctor_reference,
        "reference/audit-rules.md": lambda: rules_page(RULES.values()),
        "reference/report.schema.json": json_schema,
        "reference/colloc.md": colloc_page,
        "reference/exit-status.md": exit_status_page,
        "reference/json.md": lambda: _filled("json.md", TOP_LEVEL=top_level(), NOUNS=nouns()),
        "reference/templates.md": templates_page,
        "reference/store.md": store_page,
        "completion/csub.bash": script,
        "man/csub.1": lambda: _manual("csub", 1, (DOCS / "reference/csub.md").read_text(), _USER),
        "man/colloc.1": lambda: _manual("colloc", 1, colloc_page(), _USER),
        "man/slurm_colloc.toml.5": lambda: _manual("slurm_colloc.toml", 5, site_manual(), _FORMATS),
    }


def colloc_page() -> str:
    """Return the reference of colloc: what is written by hand, with every command of the program in it."""
    return _filled("colloc.md", COMMANDS=sections(), STATUSES=_statuses())


def site_manual() -> str:
    """Return slurm_colloc.toml(5) in Markdown: what is written by hand, with the table of all keys in it."""
    return _filled("site.toml.md", KEYS="".join(reference().partition("| key")[1:]))


def exit_status_page() -> str:
    """Return what every exit status means."""
    return _filled("exit-status.md", STATUSES=_statuses(), COMMANDS=_special())


def _filled(name: str, **generated: str) -> str:
    """Return a text written by hand, with what is generated in the place of the lines that name it."""
    text = (_PARTS / name).read_text()
    for line, made in generated.items():
        assert f"\n{line}\n" in text, (name, line)
        text = text.replace(f"\n{line}\n", f"\n{made.strip()}\n")
    return text


def _statuses() -> str:
    assert list(_MEANS) == list(Status)
    return "\n".join(f"- `{status:d}`\n\n  {meaning}\n" for status, meaning in _MEANS.items())


_MEANS = {
    Status.DONE: "It was done, and nothing was found where something is looked for.",
    Status.FOUND: "It was done, and there is something: findings, differences, or a part that could not be done.",
    Status.ERROR: "An error: what was tried and what came back stands on standard error, in a line that starts with "
    "`colloc:`. Also a command, an option or a value that there is not.",
    Status.UNKNOWN: "What there is does not suffice to say anything: neither that all is well, nor that it is not.",
    Status.INTERRUPTED: "Interrupted.",
}


def _special() -> str:
    """Return a row for each command that says of itself when it ends with which status."""
    rows = []
    for command in commands():
        said = [" ".join(line.split()) for line in re.split(r"(?<=[.])\s+|\n\n", command.help) if "xit status" in line]
        rows += [f"| `colloc {command.words}` | {' '.join(said)} |" for _ in said[:1]]
    return "\n".join(["| command | |", "| --- | --- |", *rows]) + "\n"


def _manual(name: str, section: int, text: str, volume: str) -> str:
    return manual_page(name, section, text, version=__version__, volume=volume)
