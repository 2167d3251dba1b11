# SPDX-License-Identifier: Apache-2.0
"""How each daemon of the lab starts, and how one knows that it is ready."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster import ports
from tests.cluster.config import cluster_name
from tests.cluster.errors import LabError
from tests.cluster.nodes import NODES
from tests.cluster.processes import Record, is_alive, tail
from tests.cluster.releases import HOST
from tests.cluster.users import User

if TYPE_CHECKING:
    from tests.cluster.lab import Lab

READY_WAIT_S = 30.0

Step = tuple[str, Callable[["Lab"], None]]


def steps(form: str) -> list[Step]:
    """Return the start-up in order; each step ends when what it started is ready."""
    controller: list[Step] = [("slurmctld", start_slurmctld), (f"{len(NODES)} slurmd", start_slurmds)]
    if form == "user":
        return controller
    return [
        ("munged", start_munged),
        ("database files", make_database),
        ("mariadbd", start_mariadbd),
        ("slurmdbd", start_slurmdbd),
        ("accounts and users", add_associations),
        *controller,
    ]


def start_munged(lab: Lab) -> None:
    root, ids = lab.root, ids_of("munge")
    key, socket = root / "etc/munge.key", root / "mrun/munge.sock"
    own(root / "mrun", ids)
    if not key.exists():
        write_private(key, os.urandom(1024), ids)
    argv = ["munged", "-F", "--force", f"--key-file={key}", f"--socket={socket}"]
    argv += [f"--pid-file={root}/mrun/munged.pid", f"--log-file={root}/mrun/munged.log"]
    argv += [f"--seed-file={root}/mrun/munged.seed", "--num-threads=4"]
    record = lab.start_daemon("munged", argv, ids, release=HOST)
    _await(record, socket.exists, root / "mrun/munged.log")


def make_database(lab: Lab) -> None:
    root, ids = lab.root, ids_of("mysql")
    for folder in ("db", "dbrun"):
        own(root / folder, ids)
    if (root / "db/mysql").exists():
        return
    log = root / "log/mariadb-install-db.out"
    # As mysql and without --user: with it, the script changes owners under /usr/lib/mysql.
    argv = ["mariadb-install-db", "--no-defaults", f"--datadir={root}/db", f"--tmpdir={root}/dbrun"]
    argv += ["--skip-test-db", "--auth-root-authentication-method=socket", "--innodb-log-file-size=16M"]
    with log.open("wb") as out:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=lab.environment(),
            cwd=root / "dbrun",
            user=ids[0],
            group=ids[1],
            extra_groups=[],
            timeout=120,
            check=False,
        )
    if done.returncode:
        raise LabError(f"mariadb-install-db failed (exit {done.returncode})\n{tail(log)}")


def start_mariadbd(lab: Lab) -> None:
    root, ids = lab.root, ids_of("mysql")
    socket, log = root / "dbrun/my.sock", root / "log/mariadbd.out"
    argv = ["mariadbd", "--no-defaults", f"--datadir={root}/db", f"--socket={socket}"]
    argv += [f"--pid-file={root}/dbrun/my.pid", f"--tmpdir={root}/dbrun", f"--init-file={root}/etc/database.sql"]
    argv += ["--bind-address=127.0.0.1", f"--port={lab.ports.release('mariadbd')}", "--skip-name-resolve"]
    # A lab may lose its last second at a power cut; it may not wait for a disk at every job.
    argv += ["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=256M", "--innodb-log-file-size=16M"]
    argv += ["--innodb-lock-wait-timeout=900", "--max-allowed-packet=64M"]
    record = lab.start_daemon("mariadbd", argv, ids, release=HOST)
    _await(record, lambda: ports.answers(lab.ports.numbers["mariadbd"]), log)


def start_slurmdbd(lab: Lab) -> None:
    port = lab.ports.release("slurmdbd")
    record = lab.start_daemon("slurmdbd", ["slurmdbd", "-D"], ids_of("slurm"))
    _await(record, lambda: ports.answers(port), lab.root / "log/slurmdbd.log")


def add_associations(lab: Lab) -> None:
    """Register the cluster and its people before slurmctld first asks for them."""
    marker = lab.root / "state/associations"
    if marker.exists():
        return
    plan = lab.root / "etc/associations.cfg"
    plan.write_text(associations(cluster_name(lab.ports.numbers), lab.users.values()))
    # One load: each `sacctmgr add` would take half a second.
    done = lab.run(["sacctmgr", "-i", "load", plan], timeout=30)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise LabError(f"sacctmgr load {plan}: {said}\n{tail(lab.root / 'log/slurmdbd.log')}")
    marker.touch()


def associations(cluster: str, people: Iterable[User]) -> str:
    members: dict[str, list[str]] = {}
    for user in people:
        if user.account:
            members.setdefault(user.account, []).append(user.name)
    lines = [f"Cluster - '{cluster}'", "Parent - 'root'", *(f"Account - '{account}'" for account in members)]
    for account, names in members.items():
        lines += [f"Parent - '{account}'", *(f"User - '{name}'" for name in names)]
    return "\n".join(lines) + "\n"


def start_slurmctld(lab: Lab) -> None:
    port = lab.ports.release("slurmctld")
    record = lab.start_daemon("slurmctld", ["slurmctld", "-D"], None if lab.form == "user" else ids_of("slurm"))
    _await(record, lambda: ports.answers(port), lab.root / "log/slurmctld.log")


def start_slurmds(lab: Lab) -> None:
    # A slurmctld that cannot run may answer at its port before it ends.
    records = [record for record in lab.book.records() if record.name == "slurmctld"]
    for node in NODES:
        lab.ports.release(f"slurmd-{node.name}")
        records.append(lab.start_daemon(f"slurmd-{node.name}", ["slurmd", "-N", node.name, "-D"], None))
    deadline = time.monotonic() + READY_WAIT_S
    while not all_idle(lab):
        for record in records:
            if not is_alive(record):
                log = tail(lab.root / "log" / f"{record.name}.log")
                raise LabError(f"{record.name} ended before it was ready\n{log}")
        if time.monotonic() > deadline:
            said = lab.run(["sinfo", "-N"], timeout=10)
            log = tail(lab.root / "log/slurmctld.log")
            raise LabError(f"nodes not idle after {READY_WAIT_S:.0f} s:\n{said.stdout}{said.stderr}\n{log}")
        time.sleep(0.05)


def all_idle(lab: Lab) -> bool:
    with suppress(subprocess.TimeoutExpired):  # of a slurmctld that has ended some releases ask again and again
        done = lab.run(["sinfo", "-h", "-p", "all", "-o", "%T %D"], timeout=15)
        return done.stdout.strip() == f"idle {len(NODES)}"
    return False


def ids_of(name: str) -> tuple[int, int]:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise LabError(f"user {name!r} is missing: its Debian package is not installed") from None
    return entry.pw_uid, entry.pw_gid


def own(folder: Path, ids: tuple[int, int]) -> None:
    folder.mkdir(exist_ok=True)
    os.chown(folder, *ids)


def write_private(path: Path, data: bytes, ids: tuple[int, int]) -> None:
    """Write a file that only these ids may read; never, not even for a moment, readable by others."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o400)
    with os.fdopen(fd, "wb") as out:
        os.fchown(out.fileno(), *ids)
        out.write(data)


def stop_order(records: Iterable[Record]) -> list[list[Record]]:
    """Group records for stopping, last started first; the slurmds form one group and so end side by side.

    The controller is still up then: a slurmd that cannot reach it ignores SIGTERM for ten seconds and more.
    """
    groups: list[list[Record]] = []
    for record in reversed(list(records)):
        alike = bool(groups) and record.name.startswith("slurmd-") and groups[-1][0].name.startswith("slurmd-")
        if alike:
            groups[-1].append(record)
        else:
            groups.append([record])
    return groups


def _await(record: Record, ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + READY_WAIT_S
    while not ready():
        if not is_alive(record):
            raise LabError(f"{record.name} ended before it was ready\n{tail(log)}")
        if time.monotonic() > deadline:
            raise LabError(f"{record.name} not ready after {READY_WAIT_S:.0f} s\n{tail(log)}")
        time.sleep(0.03)
