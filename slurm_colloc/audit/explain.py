# SPDX-License-Identifier: Apache-2.0
"""What a rule says of itself, and what a site made of it."""

from collections.abc import Sequence

from slurm_colloc.audit.rules import Entry, called, suggested
from slurm_colloc.core.audit_model import JOB
from slurm_colloc.core.errors import InputError


def listed(known: Sequence[Entry]) -> str:
    """Return a line for each entry: its code, the rule's name, whether it is on, and its own name where it has one."""
    known = [entry for entry in known if entry.rule.about != JOB]
    widest = max(len(entry.rule.name) for entry in known)
    lines = []
    for entry in known:
        own = f"  ({entry.name})" if entry.name != entry.rule.code else ""
        state = "on " if entry.runs else "off"
        lines.append(f"{entry.rule.code}  {entry.rule.name:{widest}}  {state}  {entry.rule.title}{own}")
    return "\n".join(lines) + "\n"


def explained(known: Sequence[Entry], wanted: str) -> str:
    """Return the documentation of a rule, and its bounds: what they mean, their defaults, and what the site says.

    Args:
        known: all entries, those that are off, too.
        wanted: a code, a rule's name, or an entry's.

    Raises:
        InputError: it is none of them.
    """
    chosen = called(known, wanted)
    if not chosen:
        raise InputError(f"no rule is called '{wanted}'{suggested(known, wanted)}")
    rule = chosen[0].rule
    lines = [rule.documentation.strip(), "", "Bounds, in site.toml's [[audit.rule]]:"]
    for key, bound in rule.bounds.items():
        set_to = [
            f"{one.bounds[key]:g} by '{one.name}'" for one in chosen if key in one.settings.bounds and one.rule is rule
        ]
        here = f"; here {', '.join(set_to)}" if set_to else ""
        lines.append(f"  {key} = {bound.default:g}{here}\n      {bound.meaning}")
    lines += ["", *(_state(entry) for entry in chosen if entry.rule.about != JOB)]
    return "\n".join(lines) + "\n"


def _state(entry: Entry) -> str:
    """Return whether an entry is on, and which runs it looks at."""
    settings = entry.settings
    said = [f"'{entry.name}' is {'on' if entry.runs else 'off'}"]
    for word, filters in (("only", settings.only), ("no", settings.excluded)):
        said += [f"{word} {key}: {', '.join(names)}" for key, names in filters.items() if names]
    return "; ".join([*said, *(["tells admins only"] if entry.settings.tell == "admins" else [])])
