# SPDX-License-Identifier: Apache-2.0
"""colloc site build-plugin: the SPANK plugin, compiled for the Slurm that is installed."""

import os
from typing import Annotated

import typer

from slurm_colloc.cli.colloc.output import say
from slurm_colloc.core.errors import InputError
from slurm_colloc.site.plugin import build, of_headers, of_programs

_ASK_S, _COMPILE_S = 10.0, 120.0


def build_plugin(
    slurm_prefix: Annotated[
        str, typer.Option("--slurm-prefix", help="where Slurm is installed; else /usr, and sinfo of PATH")
    ] = "",
    output: Annotated[str, typer.Option("--output", "-o", help="file to write")] = "colloc_spank.so",
    compiler: Annotated[str, typer.Option("--cc", help="C compiler")] = "cc",
) -> None:
    """Compile the SPANK plugin for the installed Slurm. It takes that one's headers."""
    headers = os.path.join(slurm_prefix or "/usr", "include")
    built_for = of_headers(headers)
    runs = of_programs(slurm_prefix, _ASK_S)
    if runs.release != built_for.release:
        raise InputError(
            f"the headers in '{headers}' are of Slurm {built_for}, but Slurm {runs} runs here, which would refuse the "
            "plugin: install the headers of the same release, or name the right one by --slurm-prefix"
        )
    build(headers, compiler, output, _COMPILE_S)
    say(f"wrote '{output}' for Slurm {built_for}; docs/how-to/plugins.md says where it belongs")
