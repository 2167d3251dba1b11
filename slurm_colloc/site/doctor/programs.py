# SPDX-License-Identifier: Apache-2.0
"""DOC100 to DOC104: how slurmd runs the site's programs around jobs, and what it gives to our plugin."""

import re
from collections.abc import Iterator

from slurm_colloc.site.doctor.facts import TRIED, Blank, Check, Seen, Site
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
    trusted = {0} | {int(found[1]) for key in ("SlurmUser", "SlurmdUser")
                     if (found := re.search(r"\((\d+)\)", site.settings.get(key, "")))}  # fmt: skip
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
    prologs, epilogs = ([one for one in site.scripts if one.setting == setting] for setting in _BY_ROOT)
    if any(gives_back(command) for script in epilogs for command in commands(script)):
        return
    said = "no Epilog ends what it starts" if epilogs else "there is no Epilog"
    left = [(script, next((one.text for one in commands(script) if takes(one)), "")) for script in prologs]
    found = [Seen(name_of(script), f"'{taken}', and {said}") for script, taken in left if taken]
    hidden = list(unread(epilogs)) if found else []
    yield from hidden or found
    yield from unread(prologs)


def _too_late(site: Site) -> Iterator[Seen]:
    flags = site.words("PrologFlags")
    there = [script.setting for script in site.scripts]
    if site.shared() and "Prolog" in there and ("nohold" in flags or not flags & {"alloc", "contain", "x11"}):
        yield Seen("PrologFlags of slurm.conf", f"it is {site.settings.get('PrologFlags', '(null)')}")


def _strange_words(site: Site) -> Iterator[Seen | Blank]:
    for file in site.plugstack:
        words = " ".join(_PLUGIN.findall(file.text)).split() if isinstance(file.text, str) else []
        if strange := [word for word in words if not word.startswith(("sampler=/", "site=/"))]:
            yield Seen(name_of(file), f"colloc_spank.so is given '{' '.join(strange)}'")
    yield from unread(site.plugstack)


CHECKS = (
    Check(
        "DOC100",
        "error",
        "a program that slurmd cannot run",
        "by a Prolog or Epilog the first job drains the node, by a TaskProlog each job fails; so does a README that a "
        "pattern like prolog.d/* takes in",
        "chmod 0755, on every node; nothing but programs in the folder",
        f"slurm.conf(5), Prolog; seen on {TRIED}, also for a pattern that matches nothing",
        _unrunnable,
    ),
    Check(
        "DOC101",
        "error",
        "others may write a program that slurmd runs",
        "whoever writes into a Prolog or Epilog is root at the next job; into a TaskProlog, is any user who has one",
        "chown root, chmod 0755, the file and its folder",
        f"slurm.conf(5), Prolog: it is run as root; so was a line that another user had added, on {TRIED}",
        _open_to_others,
    ),
    Check(
        "DOC102",
        "error",
        "a Prolog without its Epilog",
        "what it starts or sets for a job outlives it: a daemon holds the GPU, a compute mode keeps the next job out",
        "install an Epilog that ends the daemon of the job, and sets the mode back",
        f"slurm.conf(5), Epilog; what a Prolog had made was there after the job on {TRIED}",
        _unpaired,
    ),
    Check(
        "DOC103",
        "warning",
        "a job may begin before its Prolog",
        "in salloc a user's commands run while there is no MPS daemon yet, or none is ever started",
        "PrologFlags=Alloc, without NoHold",
        f"slurm.conf(5), PrologFlags; seen with salloc on {TRIED}",
        _too_late,
    ),
    Check(
        "DOC104",
        "warning",
        "plugstack.conf gives the SPANK plugin words that it does not know",
        "it ignores them: with mps=PATH no MPS daemon is started, and jobs on shares of a GPU take turns",
        'take them out of the line. Prolog and Epilog start MPS daemons: write sharing.mps_daemon = "prolog" into '
        "site.toml, and install what 'colloc site render -o FOLDER' then writes",
        "docs/how-to/plugins.md",
        _strange_words,
    ),
)
