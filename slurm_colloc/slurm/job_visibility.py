# SPDX-License-Identifier: Apache-2.0
"""The jobs that a user may see by Slurm's rules: PrivateData, admin levels, coordinators of accounts."""

import os
import pwd
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.units import whole
from slurm_colloc.slurm.parse import parse_config

# Words of PrivateData that hide what a report shows: runs, their sums, and users.
_HIDING = frozenset({"jobs", "usage", "users", "all"})
_LEVELS = ("Operator", "Administrator")


class Visible(NamedTuple):
    """The runs that may be shown: everybody's, or those of ``user`` and of ``accounts``; ``why``, for people."""

    everybody: bool
    user: str = ""
    accounts: tuple[str, ...] = ()
    why: str = ""

    @property
    def nameless(self) -> str:
        """Return as ``whose`` without a name."""
        return "" if self.everybody else f"of what you may see ({self.why})"

    @property
    def whose(self) -> str:
        """Return in words whose runs are shown, empty for everybody's."""
        if self.everybody:
            return ""
        accounts = f", and of the accounts {', '.join(self.accounts)}" if self.accounts else ""
        return f"of what you may see: the runs of {self.user or 'nobody'}{accounts} ({self.why})"

    def shows(self, user: str, account: str) -> bool:
        """Return whether a run of this user and account may be shown."""
        return self.everybody or bool(self.user and user == self.user) or account in self.accounts


EVERYBODY = Visible(everybody=True)


class Rights(NamedTuple):
    """Slurm's words on privacy and on one user.

    ``private`` is what PrivateData names in slurm.conf or slurmdbd.conf, ``accounts`` are those that the user
    coordinates, what is below them included, ``in_database`` that a slurmdbd keeps the jobs.
    """

    slurm_uid: int | None
    private: frozenset[str]
    level: str
    accounts: tuple[str, ...]
    in_database: bool = False

    @property
    def hidden(self) -> frozenset[str]:
        """Return what of PrivateData hides runs."""
        return self.private & _HIDING

    def sees_all(self, uid: int) -> bool:
        """Return whether nothing is hidden from this user, whatever PrivateData says."""
        return uid == self.slurm_uid or self.level in _LEVELS


def visible_to(name: str, uid: int, *, keeps_store: bool, rights: Rights | None) -> Visible:
    """Return whose runs the user ``name`` may see.

    Args:
        name: the user's; empty for a uid without one.
        uid: the user's.
        keeps_store: whether what is shown is the user's own store.
        rights: what Slurm says; None where it could not be asked.
    """
    if uid == 0 or keeps_store:
        return EVERYBODY
    if rights is None:
        return Visible(False, name, (), "Slurm could not be asked whether you may see more")
    if rights.sees_all(uid) or not rights.hidden:
        return EVERYBODY
    why = f"PrivateData={','.join(sorted(rights.hidden))}, and you are no operator in Slurm"
    return Visible(False, name, rights.accounts, why)


def rights_questions(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the two calls of sacctmgr whose answers ``parse_rights`` reads."""
    show = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show")
    columns = "format=User,AdminLevel,Coordinators"
    return ("sacctmgr", "--readonly", "show", "config"), (*show, "user", f"name={name}", "withcoord", columns)


def shown_question(raw_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the command that asks accounting which of these jobs it shows."""
    return ("sacct", "-a", "-X", "-n", "-P", "-j", ",".join(raw_ids), "-o", "JobIDRaw")


def parse_rights(config: Mapping[str, str], of_database: str, of_user: str) -> Rights:
    """Return what ``scontrol show config`` and the answers to ``rights_questions`` say; empty without a slurmdbd."""
    # Its first part repeats slurm.conf.
    database = parse_config(of_database.partition("SlurmDBD configuration")[2])
    private = ",".join(settings.get("PrivateData", "") for settings in (config, database)).lower()
    # A user who is not known there has no row.
    _, level, accounts = [*of_user.partition("\n")[0].split("|"), "", "", ""][:3]
    return Rights(
        slurm_uid=whole(config.get("SlurmUser", "").partition("(")[2].rstrip(")")),
        private=frozenset(private.split(",")) - {"", "none"},
        level=level,
        accounts=tuple(filter(None, accounts.split(","))),
        in_database=bool(of_database),
    )


def own_name() -> str:
    """Return the name of whoever runs this, empty for a uid without one."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container without this user
        return ""
