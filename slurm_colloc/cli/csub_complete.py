# SPDX-License-Identifier: Apache-2.0
"""csub's shell completion, by Typer: sbatch's options of the site's release beside csub's own.

``python -m slurm_colloc.cli.csub_complete SHELL`` prints the script that a package installs (`make docs`).
"""

import os
import sys
from collections.abc import Mapping
from copy import copy
from typing import Any, NoReturn

import typer

from slurm_colloc.cli.csub_help import app
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import ConfigError
from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS, Option
from slurm_colloc.submit.own_options import option_table

VARIABLE = "_CSUB_COMPLETE"
_LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"
# Bash makes words of their own of these, wherever they stand (COMP_WORDBREAKS).
_BREAKS = frozenset("=:")


def complete(config: SiteConfig | None) -> NoReturn:
    """Answer the question that a shell asks by the environment, and exit. Nothing is read or submitted.

    Args:
        config: the site; None where there is none, and the options of every release are offered.
    """
    try:
        head = _before_value(os.environ)
        command = typer.main.get_command(app)
        like = {item.name: item for item in command.params if item.name}
        command.params += [_option(option, like) for option in _options(config) if option.name != "help"]
        for name in ("colloc", "form"):
            _put_before_values(head, like[name])
        command([], prog_name="csub")
    except Exception:  # noqa: BLE001 - what is printed here would stand in the line that somebody is typing
        raise SystemExit(1) from None
    raise SystemExit(0)


def _options(config: SiteConfig | None) -> tuple[Option, ...]:
    """Return sbatch's options: the site's, or those of any release."""
    if config is not None:
        try:
            return option_table(config.slurm_release, config)
        except ConfigError:  # of the site's plugins
            return option_table(config.slurm_release, None)
    return tuple({option.name: option for table in SBATCH_OPTIONS.values() for option in table}.values())


def _option(option: Option, like: Mapping[str, Any]) -> Any:
    """Return an option of sbatch as Typer has it; an optional value stands behind "=" and is not the next word.

    Made from one of csub's own: what it takes to make one anew changes from one Typer to the next.
    """
    made = copy(like["gpu_footprint" if option.argument == "required" else "explain"])
    made.name = f"sbatch_{option.name.replace('-', '_')}"
    made.opts = [f"--{option.name}", *([f"-{option.short}"] if option.short else [])]
    made.help = None
    return made


def _put_before_values(head: str, option: Any) -> None:
    values = option.shell_complete

    def shell_complete(ctx: object, incomplete: str) -> list[Any]:
        found: list[Any] = values(ctx, incomplete)
        for item in found:
            item.value = head + item.value
        return found

    option.shell_complete = shell_complete


def _before_value(environ: Mapping[str, str]) -> str:
    """Return what of an unfinished ``--option=value`` the shell takes for part of the word to be completed.

    Bash usually breaks the line there, too, which is mended on the way: Typer is to see whole words.
    """
    if environ.get(VARIABLE) == "complete_bash":
        words = environ["COMP_WORDS"].split("\n")[: int(environ["COMP_CWORD"]) + 1]
        whole = _joined(words)
        os.environ["COMP_WORDS"] = "\n".join(whole)
        os.environ["COMP_CWORD"] = str(len(whole) - 1)
        word = words[-1]
    else:
        word = environ.get("_TYPER_COMPLETE_ARGS", "").rpartition(" ")[2]
    name, equals, _ = word.partition("=")
    return name + equals if equals and name.startswith("--") else ""


def _joined(words: list[str]) -> list[str]:
    """Put together what bash took apart; a ":" before an option is the one between components."""
    whole: list[str] = []
    glue = False
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else "none"
        is_break = bool(word) and _BREAKS.issuperset(word) and index > 1
        if is_break and not (word == ":" and following[:1] in ("", "-")):
            whole[-1] += word
            glue = True
        elif glue:
            whole[-1] += word
            glue = False
        else:
            whole.append(word)
    return whole


def script(shell: str) -> str:
    """Return Typer's completion script for a shell, fit for the place where the shell looks for it by itself."""
    # Not typer.completion: which module has it changes from release to release, the protocol does not.
    from typer.testing import CliRunner

    text = CliRunner().invoke(app, [], prog_name="csub", env={VARIABLE: f"source_{shell}"}).stdout.strip() + "\n"
    if shell == "bash":
        # Not what is being completed: called sbatch it may be the real one, which would read the terminal.
        return _LICENSE + text.replace("complete_bash $1 )", "complete_bash csub )")
    if shell == "zsh":
        # Loaded by the first completion, of which it is the body.
        first, _, rest = text.partition("\n")
        call = '[[ $zsh_eval_context[-1] != loadautofunc ]] || _csub_completion "$@"\n'
        return f"{first}\n{_LICENSE}{rest}\n{call}"
    return _LICENSE + text


if __name__ == "__main__":
    sys.stdout.write(script(sys.argv[1]))
