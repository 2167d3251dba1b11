# SPDX-License-Identifier: Apache-2.0
"""colloc audit import: a job_defense_shield configuration as entries of [[audit.rule]]."""

from typing import Annotated

import typer

from slurm_colloc.audit.import_jds import as_toml, convert
from slurm_colloc.cli.colloc.output import say, write
from slurm_colloc.errors import InputError

_MOST_BYTES = 1 << 20


def import_(file: Annotated[str, typer.Argument(metavar="FILE.yaml", help="its config.yaml")]) -> None:
    """Print a job_defense_shield configuration as [[audit.rule]]. What has no counterpart in site.toml is said."""
    try:
        with open(file, "rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"'{file}' cannot be read: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise InputError(f"'{file}' is larger than any configuration")
    try:
        imported = convert(data.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"'{file}' is not UTF-8: byte {error.start}") from error
    except InputError as error:
        raise InputError(f"'{file}': {error}") from error
    write(as_toml(imported), "")
    for note in imported.notes:
        say(str(note))
