# SPDX-License-Identifier: Apache-2.0
"""DOC100 to DOC104: how slurmd runs the site's programs around jobs, and our plugin's words in plugstack.conf."""

import re
from collections.abc import Iterator

from slurm_colloc.site.doctor.facts import Blank, Finder, Seen, Site
from slurm_colloc.site.doctor.prolog import commands, gives_back, name_of, takes, unread

_BY_ROOT = ("Prolog", "Epilog")
_ANY_X, _OTHERS_X, _OTHERS_W, _STICKY = 0o111, 0o001, 0o002, 0o1000

_PLUGIN = re.compile(r"(?m)^[ \t]*(?:optional|required)[ \t]+\S*colloc_spank\.so\b([^#\n]*)")


def _unrunnable(site: Site) -> Iterator[Seen | Blank]:
    here = any(node.name == site.this_node for node in site.nodes)
    for script in site.scripts:
        wanted = _ANY_X if script.setting in _BY_ROOT else _OTHERS_X
        if script.mode is not None and not script.mode & wanted:
            who = "root" if script.setting in _BY_ROOT else "every user"
            yield Seen(name_of(script), f"its mode is {script.mode & 0o7777:04o}, and {who} runs it")
        elif script.mode is None and here:
            yield Seen(name_of(script), "there is none on this node")
        elif script.mode is None:
            yield Blank(name_of(script), "there is none on this machine, which is no node: look on one")


def _open_to_others(site: Site) -> Iterator[Seen]:
    trusted = {0} | {int(uid[1]) for key in ("SlurmUser", "SlurmdUser")
                     if (uid := re.search(r"\((\d+)\)", site.settings.get(key, "")))}  # fmt: skip
    for script in site.scripts:
        if script.mode is None:
            continue
        if script.mode & _OTHERS_W:
            yield Seen(name_of(script), f"its mode is {script.mode & 0o7777:04o}")
        elif script.folder_mode & _OTHERS_W and not script.folder_mode & _STICKY:
            yield Seen(name_of(script), f"the mode of its folder is {script.folder_mode & 0o7777:04o}")
        elif script.owner not in trusted:
            yield Seen(name_of(script), f"it belongs to uid {script.owner}")


def _unpaired(site: Site) -> Iterator[Seen | Blank]:
    prologs, epilogs = ([script for script in site.scripts if script.setting == setting] for setting in _BY_ROOT)
    if any(gives_back(command) for script in epilogs for command in commands(script)):
        return
    gap = "no Epilog ends what it starts" if epilogs else "there is no Epilog"
    starts = [
        (script, next((command.text for command in commands(script) if takes(command)), "")) for script in prologs
    ]
    faults = [Seen(name_of(script), f"'{start}', and {gap}") for script, start in starts if start]
    hidden = list(unread(epilogs)) if faults else []
    yield from hidden or faults
    yield from unread(prologs)


def _too_late(site: Site) -> Iterator[Seen]:
    flags = site.words("PrologFlags")
    settings = [script.setting for script in site.scripts]
    if site.shared() and "Prolog" in settings and ("nohold" in flags or not flags & {"alloc", "contain", "x11"}):
        yield Seen("PrologFlags of slurm.conf", f"it is {site.settings.get('PrologFlags', '(null)')}")


def _strange_words(site: Site) -> Iterator[Seen | Blank]:
    for file in site.plugstack:
        words = " ".join(_PLUGIN.findall(file.text)).split() if isinstance(file.text, str) else []
        if strange := [word for word in words if not word.startswith(("sampler=/", "site=/"))]:
            yield Seen(name_of(file), f"colloc_spank.so is given '{' '.join(strange)}'")
    yield from unread(site.plugstack)


FINDERS: dict[str, Finder] = {
    "DOC100": _unrunnable,
    "DOC101": _open_to_others,
    "DOC102": _unpaired,
    "DOC103": _too_late,
    "DOC104": _strange_words,
}
