# SPDX-License-Identifier: Apache-2.0
"""Find the data that comes with the project, in a checkout or in an installed wheel."""

import os

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def template_folders(of_site: str) -> list[str]:
    """Return where templates are looked for: the site's own folder first, then the shipped one."""
    return [of_site, folder("templates")] if of_site else [folder("templates")]


def plugin_folder() -> str:
    """Return where what Slurm itself runs lies; no package, and so in the same place in a checkout as in a wheel."""
    return os.path.join(_PACKAGE, "plugin")


def plugin(name: str) -> str:
    """Return the text of a file of the plugin folder, which is installed as it is."""
    with open(os.path.join(plugin_folder(), name), encoding="utf-8") as stream:
        return stream.read()


def folder(name: str) -> str:
    """Return the folder ``templates`` or ``site-configs``.

    The checkout comes first, because in an editable install both exist and the checkout is what is being edited.

    Raises:
        FileNotFoundError: an incomplete installation.
    """
    checkout = os.path.join(os.path.dirname(_PACKAGE), name)
    in_checkout = os.path.isfile(os.path.join(os.path.dirname(_PACKAGE), "pyproject.toml"))
    for candidate in (checkout if in_checkout else "", os.path.join(_PACKAGE, "_shipped", name)):
        if os.path.isdir(candidate):
            return candidate
    raise FileNotFoundError(f"'{name}' is missing from the installation at '{_PACKAGE}'; install slurm-colloc again")
