# SPDX-License-Identifier: Apache-2.0
"""The reference of colloc: every command with its options, from the program itself."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import typer.core
import typer.main

from slurm_colloc.cli.colloc import COMMANDS
from slurm_colloc.cli.colloc.app import build

# What Typer adds to each program, and --help, are said once.
_EVERYWHERE = {"--help", "--install-completion", "--show-completion"}


class Command(NamedTuple):
    """One command: ``words`` behind the program's name, and what the program says of it."""

    words: str
    help: str
    arguments: tuple[Any, ...]
    options: tuple[Any, ...]


def commands() -> Iterator[Command]:
    """Yield every command of colloc, in the order of its help."""
    yield from _below(typer.main.get_command(build(COMMANDS)), "")


def _below(command: Any, words: str) -> Iterator[Command]:
    # Typer brings its own click, so groups are known by what they have.
    inner = getattr(command, "commands", {})
    shown = [item for item in command.params if not getattr(item, "hidden", False) and item.opts[0] not in _EVERYWHERE]
    options = tuple(item for item in shown if isinstance(item, typer.core.TyperOption))
    arguments = tuple(item for item in shown if not isinstance(item, typer.core.TyperOption))
    if (words and not inner) or (inner and words and (options or arguments)):
        yield Command(words, command.help or "", arguments, options)
    for name, one in inner.items():
        yield from _below(one, f"{words} {name}".strip())


def sections() -> str:
    """Return a section of Markdown for each command."""
    return "\n".join(map(_section, commands()))


def _section(command: Command) -> str:
    usage = " ".join([f"`colloc {command.words}`", "[*options*]", *map(_usage, command.arguments)])
    parts = [f"### colloc {command.words}", usage, command.help.replace("\b\n", "").strip()]
    rows = [f"| *{item.name}* | | {_cell(item.help)} |" for item in command.arguments]
    rows += [f"| {_names(item)} | {_default(item)} | {_cell(item.help)} |" for item in command.options]
    if rows:
        parts.append("\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _usage(argument: Any) -> str:
    shown = f"*{argument.name}*" + (" ..." if argument.nargs == -1 else "")
    return shown if argument.required else f"[{shown}]"


def _names(option: Any) -> str:
    written = sorted((*option.opts, *option.secondary_opts), key=len)
    value = "" if option.is_flag else f" *{(option.metavar or 'value').lower()}*"
    return ", ".join(f"`{name}`" for name in written) + value


def _default(option: Any) -> str:
    given = option.default
    text = given if isinstance(given, str) else f"{given:g}" if isinstance(given, int | float) and given else ""
    return f"`{text}`" if text and not option.is_flag else ""


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("*", "\\*").replace("<", "\\<").replace("[", "\\[")
