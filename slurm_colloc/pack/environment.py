# SPDX-License-Identifier: Apache-2.0
"""The variables that bring MPS and its limits into the steps and containers of a task.

An srun exports what SLURM_EXPORT_ENV says, which sbatch --export leaves behind; "NONE" and a list keep all but what
begins with SLURM_. Apptainer drops variables (--cleanenv) and folders (--contain), and takes what has its own prefix.
"""

from collections.abc import Mapping, Sequence

_PREFIXES = ("APPTAINER", "SINGULARITY")


def into_steps(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return SLURM_EXPORT_ENV with the names of ``variables`` added; nothing where it keeps none of them back.

    Args:
        variables: that a step inside is to have.
        environ: the user's, with what sbatch set in it.
    """
    exported = environ.get("SLURM_EXPORT_ENV")
    if exported is None or exported == "ALL" or exported.startswith("ALL,"):
        return {}
    # srun looks at the first letters alone, and then at no more of the list.
    listed = "" if exported.upper().startswith(("NONE", "NIL")) else exported
    names = [name for name in variables if not name.startswith("SLURM_")]
    return {"SLURM_EXPORT_ENV": ",".join(filter(None, [listed, *names]))}


def into_containers(variables: Mapping[str, str], folders: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return what makes Apptainer, or Singularity, hand ``variables`` on and mount ``folders``.

    Args:
        variables: that a program in a container is to have.
        folders: that it is to find.
        environ: the user's; what is mounted by it stays so.
    """
    handed = {f"{prefix}ENV_{name}": value for prefix in _PREFIXES for name, value in variables.items()}
    # Apptainer reads Singularity's where its own is not set.
    before = environ.get("SINGULARITY_BIND", "")
    binds = {"SINGULARITY_BIND": before, "APPTAINER_BIND": environ.get("APPTAINER_BIND", before)}
    return handed | {name: ",".join(filter(None, [value, *folders])) for name, value in binds.items()}
