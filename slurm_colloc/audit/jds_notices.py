# SPDX-License-Identifier: Apache-2.0
"""What a job_defense_shield configuration says of mails and of cancelling -> a [notices] section, in comments."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from slurm_colloc.audit.message import check_settings
from slurm_colloc.config import parse_site
from slurm_colloc.errors import ConfigError, InputError

_SAME = {
    "smtp-server": "smtp_host",
    "smtp-port": "smtp_port",
    "smtp-user": "smtp_user",
    "sender": "sender",
    "reply-to": "reply_to",
    "report-emails": "admins",
    "holidays-file": "holidays",
}
_SECRET, _IN_FILE = "smtp_password_file", "/etc/slurm_colloc/smtp-password"
_WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# The least that site.toml takes, for each of both.
_LEAST_MIN = 10.0
# First warning, second warning and cancel; that program has no second one of what worked before.
_LADDERS = (
    ("first_warning_minutes", "second_warning_minutes", "cancel_minutes"),
    ("sliding_warning_minutes", "", "sliding_cancel_minutes"),
)
LADDER_KEYS = tuple(key for ladder in _LADDERS for key in ladder if key)


class Section(NamedTuple):
    """A [notices]: its keys; those of ``action`` are to be switched on by themselves; ``refused`` says what is not in.

    ``remarks`` has for a key what its reader must do.
    """

    settings: Mapping[str, Any]
    action: Mapping[str, Any]
    remarks: Mapping[str, str]
    refused: tuple[str, ...]


def section(table: Mapping[Any, Any], cancelling: Mapping[str, Mapping[Any, Any]]) -> Section:
    """Return what the settings of ``table`` and the alerts that cancel jobs, by name, come to.

    Raises:
        InputError: an alert's minutes do not ascend.
    """
    wanted = {ours: table[theirs] for theirs, ours in _SAME.items() if table.get(theirs) not in (None, "", [])}
    if isinstance(wanted.get("admins"), str):
        wanted["admins"] = [wanted["admins"]]
    if domain := str(table.get("email-domain-name") or "").lstrip("@"):
        wanted["address"] = "{user}@" + domain
    if table.get("workday-method") == "always":
        wanted["workdays"] = list(_WEEK)
    kept, refused = _accepted(wanted)
    remarks = {}
    if "smtp_user" in kept:
        kept |= {_SECRET: _IN_FILE, "smtp_tls": "tls" if kept.get("smtp_port") == 465 else "starttls"}
        remarks[_SECRET] = "write smtp-password into it, and close it to others"
    if table.get("workday-method") == "usa":
        refused.append("workday-method usa: write the holidays into a file of days, one a line as 2026-12-25: holidays")
    action: dict[str, Any] = {}
    if ladders := {name: found for name, settings in cancelling.items() if (found := _ladder(name, settings))}:
        quiet_min = max(quiet for quiet, _ in ladders.values())
        kept["job_quiet_min"] = quiet_min
        kept["job_deadline_min"] = max(_LEAST_MIN, *(whole - quiet_min for _, whole in ladders.values()))
        does = [name for name in ladders if cancelling[name].get("do_not_cancel") is not True]
        action = {"action": "cancel", "action_rules": does} if does else {}
    return Section(kept, action, remarks, tuple(refused))


def _accepted(wanted: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the keys whose values site.toml takes, and of the others why it does not."""
    kept, refused = {}, []
    for key, value in wanted.items():
        table = {"schema": 1, "cluster": "any", "slurm_release": "24.11", "notices": {key: value}}
        try:
            check_settings(parse_site(table, "site.toml").notices)
        except ConfigError as error:
            refused.append(str(error))
        else:
            kept[key] = value
    return kept, refused


def _ladder(name: str, settings: Mapping[Any, Any]) -> tuple[float, float] | None:
    """Return an alert's minutes from the first notice to the second, and from the first to the end; None without one.

    Of two ladders the later counts: nobody's job is to end sooner than it did.
    """
    found = []
    for keys in _LADDERS:
        minutes = [float(settings[key]) if key in settings else None for key in keys]
        known = [one for one in minutes if one is not None]
        if any(later <= earlier for earlier, later in pairwise(known)):
            given = ", ".join(key for key in keys if key in settings)
            raise InputError(f"alert '{name}': {given} must ascend")
        first, second, last = minutes
        if first is None or last is None:
            continue
        found.append(((last - first) / 2 if second is None else second - first, last - first))
    if not found:
        return None
    return max(_LEAST_MIN, *(quiet for quiet, _ in found)), max(whole for _, whole in found)


def lines_of(of: Section, as_toml: Mapping[str, str], action_as_toml: Mapping[str, str]) -> Iterable[str]:
    """Yield the section as comments; one "# " less in front of each line, and it is read."""
    if not (of.settings or of.refused):
        return
    yield "# Its mails. Without the first '# ' of each line they are read; nothing is sent before mode is 'admins' or"
    yield "# 'users'. Its --days is window_days, how far a run looks back, and quiet_days, until anybody is told again."
    yield from (f"# Not carried over: {one}" for one in of.refused)
    yield "# [notices]"
    yield '# mode = "off"'
    for key, value in as_toml.items():
        yield f"# {key} = {value}{'  # ' if key in of.remarks else ''}{of.remarks.get(key, '')}"
    if of.action:
        yield "# # # It cancels jobs. Here nothing is cancelled unless these are read, too:"
        yield from (f"# # {key} = {value}" for key, value in action_as_toml.items())
