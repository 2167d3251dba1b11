# SPDX-License-Identifier: Apache-2.0
"""The lab's people: real uids that no /etc/passwd knows, named for all that the lab runs.

libnss_wrapper names them where the machine's own Slurm runs, a private /etc/passwd where a later release does.
"""

from __future__ import annotations

import os
import pwd
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.cluster.errors import LabError

# dave has a login and no association: Slurm must refuse his jobs.
PEOPLE: dict[str, str | None] = {"alice": "ml", "bob": "ml", "carol": "phys", "dave": None}

# Above what distributions, systemd and nobody use, below the first subordinate uids of /etc/subuid.
UID_FIRST, UID_LAST = 66000, 99000


@dataclass(frozen=True)
class User:
    name: str
    uid: int
    gid: int
    home: Path
    account: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"home": str(self.home)}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> User:
        return cls(**(row | {"home": Path(row["home"])}))


def invent(homes: Path) -> list[User]:
    """Give the four people uids that nobody on this machine has, in files or in running processes."""
    busy = _uids_running()
    for _ in range(100):
        base = random.randrange(UID_FIRST, UID_LAST, 10)
        uids = range(base, base + len(PEOPLE))
        if not any(uid in busy or _known(uid) for uid in uids):
            people = zip(PEOPLE.items(), uids, strict=True)
            return [User(name, uid, uid, homes / name, account) for (name, account), uid in people]
    raise LabError(f"found no free uids in {UID_FIRST}-{UID_LAST}")


def myself(homes: Path) -> User:
    uid, gid = os.getuid(), os.getgid()
    name = pwd.getpwuid(uid).pw_name if _known(uid) else "me"
    return User(name, uid, gid, homes / name, None)


def make_homes(users: Iterable[User], *, own: bool) -> None:
    for user in users:
        user.home.mkdir(mode=0o700, parents=True, exist_ok=True)  # of the lab's own root, who may be its only user
        if own:
            os.chown(user.home, user.uid, user.gid)


def write_name_files(users: Iterable[User], passwd: Path, group: Path) -> None:
    """Write passwd and group of the lab: the machine's own files and our people.

    The people's own lines come first: where the machine knows the same name or uid, the lab means its own. Not "x" for
    a password: PAM would miss their lines in /etc/shadow.
    """
    ours = [f"{u.name}:*:{u.uid}:{u.gid}:{u.name} of the lab:{u.home}:/bin/bash" for u in users]
    passwd.write_text("\n".join(ours) + "\n" + Path("/etc/passwd").read_text())
    group.write_text("\n".join(f"{u.name}:x:{u.gid}:" for u in users) + "\n" + Path("/etc/group").read_text())
    passwd.chmod(0o644)
    group.chmod(0o644)


def wrapper_variables(passwd: Path, group: Path) -> dict[str, str]:
    """Return the environment that makes a process know the lab's people."""
    library = next(
        (p for where in ("lib/*", "lib64", "lib") for p in Path("/usr").glob(f"{where}/libnss_wrapper.so")), None
    )
    if library is None:
        raise LabError("libnss_wrapper.so is not installed (Debian package libnss-wrapper)")
    return {"LD_PRELOAD": str(library), "NSS_WRAPPER_PASSWD": str(passwd), "NSS_WRAPPER_GROUP": str(group)}


def _known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _uids_running() -> set[int]:
    uids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                uids.add(entry.stat().st_uid)
            except OSError:
                continue
    return uids
