# SPDX-License-Identifier: Apache-2.0
"""Options that a site's SPANK plugins add to sbatch: written in a site's configuration, found in what sbatch lists."""

import re
from collections.abc import Iterable

from slurm_colloc.errors import ConfigError
from slurm_colloc.slurm.option_tables import Option

_ARGUMENTS = {"=": "required", "=?": "optional", "": "none"}


def site_option(text: str) -> Option:
    """Make an option of "name=" (it needs a value), "name=?" (it may have one) or "name" (a flag).

    Raises:
        ConfigError: The text is none of these.
    """
    name, equals, rest = text.partition("=")
    argument = _ARGUMENTS.get(equals + rest)
    if argument is None or not name or name.startswith("-") or not all(0x20 < ord(letter) < 0x7F for letter in name):
        raise ConfigError(f"option '{text}' of a plugin is none of 'name', 'name=' and 'name=?'")
    return Option(name, "", argument, "")


def join_options(table: tuple[Option, ...], texts: Iterable[str]) -> tuple[Option, ...]:
    """Add a site's options to the table of a release, as sbatch does.

    A name that is taken stays what it is: sbatch, too, ignores the plugin's. A plugin's option has no short name, and
    an abbreviation that fits it as well as another option is ambiguous from now on.

    Raises:
        ConfigError: A text is no option.
    """
    joined = {option.name: option for option in table}
    for text in texts:
        option = site_option(text)
        joined.setdefault(option.name, option)
    return tuple(joined.values())


# In what sbatch of 22.05 and 24.11 says of a file that is not there or was made for another release; 26.05 is silent.
_UNLOADED = re.compile(r"^sbatch: error: spank: (/[^\n]*)$", re.MULTILINE)


def unloaded_plugins(said: str) -> tuple[str, ...]:
    """Return what sbatch says, at any call, of SPANK plugins that it cannot load."""
    return tuple(_UNLOADED.findall(said))


def listed_options(said: str) -> tuple[str, ...]:
    """Return the long names in what `sbatch --=` says, the plugins' among them; nothing where it lists none."""
    listed = said.partition("possibilities: ")[2].partition("\n")[0]
    return tuple(word.removeprefix("'--").removesuffix("'") for word in listed.split(" ") if word.startswith("'--"))
