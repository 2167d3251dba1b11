# SPDX-License-Identifier: Apache-2.0
"""A private real Slurm cluster in one folder: all its files lie there, and each of its processes is recorded there."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster import config, daemons, install, jobs, nodes, releases, users
from tests.cluster.errors import LabError
from tests.cluster.ports import Ports
from tests.cluster.processes import Book, Record, is_alive, is_stepd, with_environment
from tests.cluster.releases import HOST, Release
from tests.cluster.users import User
from tests.reaper import new_folder

__all__ = ["Lab", "LabError", "LabStatus", "Say", "missing_programs"]

FORMS = ("root", "user")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
FOLDERS = ("etc", "run", "log", "spool", "state", "dev", "home", "gpus", "gpu_env", "tmp", "out", "home/root")
PROGRAMS = {
    "user": ("slurmctld", "slurmd", "sbatch", "sinfo"),
    "root": ("slurmctld", "slurmd", "sbatch", "sinfo", "slurmdbd", "sacctmgr", "munged", "mariadbd"),
}
JOBS_END_WAIT_S = 10.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class LabStatus:
    """What runs of a lab: (daemon, pid, alive) in starting order, and sinfo's answer while the controller is up."""

    root: Path
    form: str
    release: str
    daemons: tuple[tuple[str, int, bool], ...]
    nodes: str

    @property
    def up(self) -> bool:
        return bool(self.daemons) and all(alive for _, _, alive in self.daemons)


def missing_programs(form: str, release: Release = HOST) -> list[str]:
    """Name the programs that a lab of this form and release needs and the machine lacks."""
    # The machine's own Slurm in any case: with it come the users that the daemons run as.
    wanted = PROGRAMS[form] if release.is_there() else (*PROGRAMS[form], "debootstrap")
    return [p for p in wanted if shutil.which(p, path=SYSTEM_PATH) is None]


class Lab:
    """A cluster in its folder. `create` makes one, `open` attaches to one that an earlier process made."""

    def __init__(
        self,
        root: Path,
        form: str,
        release: Release,
        people: Iterable[User],
        ports: Ports,
        names: Mapping[str, str],
    ) -> None:
        self.root = root
        self.form = form
        self.release = release
        self.users = {u.name: u for u in people}
        self.ports = ports
        self.names = dict(names)
        self.book = Book(root / "run/pids")
        self.is_kept = False

    @property
    def slurm_conf(self) -> Path:
        return self.root / "etc/slurm.conf"

    @property
    def mounts(self) -> Path:
        """The table of what the lab's release lays over the machine's own files."""
        return self.root / "etc/mounts"

    @property
    def site_file(self) -> Path:
        """The administrator's site.toml, so that `colloc site init` never writes the machine's own."""
        return self.root / "site/site.toml"

    @property
    def gpus_dir(self) -> Path:
        """The folder of `NODE.json`: each node's simulated devices."""
        return self.root / "gpus"

    @property
    def bin(self) -> Path:
        """The folder of the installed project's commands, first on everybody's PATH."""
        return self.root / "opt/bin"

    @classmethod
    def create(
        cls,
        root: Path | None = None,
        *,
        form: str | None = None,
        release: str = HOST.name,
        say: Say = lambda _: None,
        extra_slurm_conf: str = "",
        files: Mapping[str, str] | None = None,
    ) -> Self:
        """Write a new lab into root, or into a fresh folder under /var/tmp; start nothing yet.

        Args:
            root: an absent or empty folder that other uids can reach.
            form: "root" (all daemons, several users) or "user" (no root, no database, one user); by default what
                this process's uid allows.
            release: Slurm's, one of releases.py; any but the machine's own needs the root form.
            say: told when the release's programs have to be fetched first, which takes a minute.
            extra_slurm_conf: lines put last in slurm.conf.
            files: further files beside slurm.conf, by name; those that begin with `#!` are made executable.
        """
        form = form or ("root" if os.getuid() == 0 else "user")
        chosen = releases.find(release)
        _check_form(form, chosen)
        chosen.make(say)
        root = _new_folder(root)
        ports = Ports.find(config.port_names(form))
        people = users.invent(root / "home") if form == "root" else [users.myself(root / "home")]
        for name in FOLDERS:
            (root / name).mkdir(parents=True, exist_ok=True)
        names = _name_variables(root, form, chosen, people)
        lab = cls(root, form, chosen, people, ports, names)
        lab._write(extra_slurm_conf, files or {})
        return lab

    @classmethod
    def open(cls, root: Path) -> Self:
        """Attach to the lab in this folder, running or not."""
        try:
            saved = json.loads((root / "lab.json").read_text())
        except OSError as exc:
            raise LabError(f"no lab in {root}: {exc.strerror}") from exc
        ports = Ports({})
        ports.numbers.update(saved["ports"])
        release = releases.find(saved["release"])
        return cls(root, saved["form"], release, map(User.from_json, saved["users"]), ports, saved["names"])

    def _write(self, extra_slurm_conf: str, files: Mapping[str, str]) -> None:
        root, ports = self.root, self.ports.numbers
        for name in ("tmp", "out"):
            (root / name).chmod(0o1777)
        users.make_homes(self.users.values(), own=self.form == "root")
        nodes.write_descriptions(self.gpus_dir)
        devices = nodes.make_devices(root / "dev")
        first = next(iter(self.users.values())).name
        texts = {
            "slurm.conf": config.slurm_conf(root, self.form, ports, first, extra_slurm_conf),
            "gres.conf": config.gres_conf(devices),
            "cgroup.conf": config.cgroup_conf(self.release.cgroup_plugin),
            **config.scripts(root, self.names),
            **files,
        }
        for name, text in texts.items():
            path = root / "etc" / name
            path.write_text(text)
            path.chmod(0o755 if text.startswith("#!") else 0o644)
        if self.release != HOST:
            # Also because 26.05 holds a job for which `su` does not know the user, and gives `su` no variables.
            over = {root / "etc" / name: f"/etc/{name}" for name in ("passwd", "group")}
            self.release.write_mounts(self.mounts, over)
        for node in nodes.NODES:
            (root / "spool" / node.name).mkdir()
        if self.form == "root":
            self._write_database_files()
        saved = {
            "form": self.form,
            "release": self.release.name,
            "ports": ports,
            "names": self.names,
            "users": [u.to_json() for u in self.users.values()],
        }
        (root / "lab.json").write_text(json.dumps(saved, indent=1) + "\n")

    def _write_database_files(self) -> None:
        slurm = daemons.ids_of("slurm")
        password = secrets.token_urlsafe(18)
        dbd = config.slurmdbd_conf(self.root, self.ports.numbers, password)
        # 22.05 wants slurmdbd.conf at 0600 and owned by SlurmUser, as it holds the password.
        path = self.root / "etc/slurmdbd.conf"
        daemons.write_private(path, dbd.encode(), slurm)
        path.chmod(0o600)
        init = config.database_init(password)
        daemons.write_private(self.root / "etc/database.sql", init.encode(), daemons.ids_of("mysql"))
        for name in ("state", "run", "log"):
            os.chown(self.root / name, *slurm)

    # --- up and down ---------------------------------------------------------------------------------------------

    def up(self, say: Say = lambda _: None) -> None:
        """Start every daemon and wait until all nodes are idle; on any failure, also Ctrl-C, stop them again."""
        if any(map(is_alive, self.book.records())):
            raise LabError(f"the lab in {self.root} is up already")
        self.book.clear()
        began = time.monotonic()
        try:
            # Let go first: a lab that failed half-way may hold some of them still.
            self.ports.release_all()
            self.ports = Ports.hold(self.ports.numbers)
            for name, step in daemons.steps(self.form):
                at = time.monotonic()
                step(self)
                say(f"{name}: ready in {time.monotonic() - at:.1f} s")
        except BaseException:
            self.ports.release_all()
            self.down(say)
            raise
        say(f"cluster up in {time.monotonic() - began:.1f} s, {self.root}")

    def down(self, say: Say = lambda _: None) -> None:
        """End all jobs, then stop what was started, by recorded pid and start time; harmless when nothing runs."""
        began = time.monotonic()
        records = self.book.records()
        running = [r for r in records if is_alive(r)]
        if "slurmctld" in {r.name for r in running}:
            self._end_jobs()
        for group in daemons.stop_order(running):
            self.book.stop(group)
        # What was killed half-way through its launch, and all jobs of a controller that is gone.
        self.book.stop(self._job_processes(), term_wait_s=1)
        left = [r for r in records if is_alive(r)]
        if left:
            raise LabError("still running: " + ", ".join(f"{r.name} (pid {r.pid})" for r in left))
        self.book.clear()
        if running:
            say(f"{len(running)} processes stopped in {time.monotonic() - began:.1f} s")

    def _end_jobs(self) -> None:
        # While the daemons run they end jobs in order; slurmd's own end would leave the jobs' processes alive. The
        # controller is asked too: a job that it has just started may have no process yet.
        deadline = time.monotonic() + JOBS_END_WAIT_S
        told: set[int] = set()
        while time.monotonic() < deadline:
            try:
                active = {job for job, state in jobs.states(self).items() if state in jobs.ACTIVE}
            except (LabError, OSError, subprocess.TimeoutExpired):
                return
            if not active and not self._job_processes():
                return
            if active - told:
                self.run(["scancel", *map(str, active - told)], timeout=15)
                told |= active
            time.sleep(0.05)

    def _job_processes(self) -> list[Record]:
        return with_environment([f"SLURM_CONF={self.slurm_conf}", "SLURM_JOB_ID="]) + [
            r for r in with_environment([f"SLURM_CONF={self.slurm_conf}"]) if is_stepd(r.pid)
        ]

    def remove(self) -> None:
        """Delete the folder of a lab that is down."""
        if any(map(is_alive, self.book.records())):
            raise LabError(f"the lab in {self.root} is up: take it down first")
        self.ports.release_all()
        if self.root.exists():
            shutil.rmtree(self.root)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        """Take it down, and delete it unless something failed or it is to be kept."""
        self.down()
        if not (kind or self.is_kept):
            self.remove()

    def status(self) -> LabStatus:
        records = [(r.name, r.pid, is_alive(r)) for r in self.book.records()]
        answer = ""
        if any(name == "slurmctld" and alive for name, _, alive in records):
            answer = self.run(["sinfo", "-N", "-p", "all", "-o", "%N %T %G"], timeout=15).stdout
        return LabStatus(self.root, self.form, self.release.name, tuple(records), answer)

    # --- what runs in it ------------------------------------------------------------------------------------------

    def environment(self, user: str | None = None) -> dict[str, str]:
        """Return the clean environment of one of the lab's users, or of its administrator."""
        person = self._person(user)
        name, home = (person.name, person.home) if person else ("root", self.root / "home/root")
        passed = {k: os.environ[k] for k in ("TZ",) if k in os.environ}
        return {
            "PATH": f"{self.bin}:{SYSTEM_PATH}",
            "HOME": str(home),
            "USER": name,
            "LOGNAME": name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.root / "tmp"),
            "SLURM_CONF": str(self.slurm_conf),
            **({} if person else {"COLLOC_CONF": str(self.site_file)}),
            **self.names,
            **passed,
        }

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the lab's administrator (root, or oneself in the user form)."""
        return self._run(None, argv, input=input, env=env, cwd=cwd, timeout=timeout, check=check)

    def run_as(
        self,
        user: str,
        argv: Sequence[str | Path],
        *,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as one of the lab's users, in his home by default."""
        return self._run(user, argv, input=input, env=env, cwd=cwd, timeout=timeout, check=check)

    def _run(
        self,
        user: str | None,
        argv: Sequence[str | Path],
        *,
        input: str | None,
        env: Mapping[str, str] | None,
        cwd: Path | None,
        timeout: float,
        check: bool,
    ) -> subprocess.CompletedProcess[str]:
        environment = self.environment(user) | dict(env or {})
        return subprocess.run(
            self.command(argv, user),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            env=environment,
            cwd=cwd or environment["HOME"],
            timeout=timeout,
            check=check,
        )

    def spawn(
        self, name: str, argv: Sequence[str | Path], *, user: str | None = None, env: Mapping[str, str] | None = None
    ) -> Record:
        """Start a long-lived helper (a sampler, say) whose output goes to log/NAME.out; `down` ends it first."""
        return self.book.start(
            name,
            self.command(argv, user),
            log=self.root / f"log/{name}.out",
            env=self.environment(user) | dict(env or {}),
            cwd=Path(self.environment(user)["HOME"]),
        )

    def start_daemon(
        self, name: str, argv: Sequence[str], ids: tuple[int, int] | None, release: Release | None = None
    ) -> Record:
        """Start one of the cluster's own processes, under other ids and of another release where given."""
        words = (release or self.release).enter(_under(ids, argv), self.mounts)
        log = self.root / f"log/{name}.out"
        return self.book.start(name, words, log=log, env=self.environment(), cwd=self.root / "run")

    def stop_spawned(self, record: Record, term_wait_s: float = 5.0) -> None:
        self.book.stop([record], term_wait_s)

    def wait_jobs(self, job_ids: Iterable[int | str], timeout: float = 60) -> dict[int, str]:
        """Wait until these jobs have finished; job id -> final state. For an array, give its id: all tasks count."""
        return jobs.wait_finished(self, job_ids, timeout)

    def wait_state(self, job: int | str, state: str = "RUNNING", timeout: float = 60) -> None:
        """Wait until a job is in this state."""
        jobs.wait_state(self, job, state, timeout)

    def wait_accounted(self, job_ids: Iterable[int | str], timeout: float = 30) -> None:
        """Wait until sacct gives these jobs and their tasks an end."""
        jobs.wait_accounted(self, job_ids, timeout)

    def install(self, checkout: Path, say: Say = lambda _: None) -> float:
        """Install the checkout as a center would: its wheel, in a venv that every user may run; return seconds."""
        return install.install(self, checkout, say)

    def _person(self, user: str | None) -> User | None:
        if user is None or user in self.users:
            return self.users[user] if user else None
        raise LabError(f"no user {user!r} in this lab (it has {', '.join(self.users)})")

    def command(self, argv: Sequence[str | Path], user: str | None = None) -> list[str]:
        """Return the command that runs argv as this user among the programs of the lab's release."""
        person = self._person(user)
        ids = (person.uid, person.gid) if person and self.form == "root" else None
        return self.release.enter(_under(ids, argv), self.mounts)


def _under(ids: tuple[int, int] | None, argv: Sequence[str | Path]) -> list[str]:
    words = [str(a) for a in argv]
    if ids is None:
        return words
    return ["setpriv", f"--reuid={ids[0]}", f"--regid={ids[1]}", "--clear-groups", "--", *words]


def _check_form(form: str, release: Release) -> None:
    if form not in FORMS:
        raise LabError(f"no form {form!r}: there are {' and '.join(FORMS)}")
    if form == "root" and os.getuid() != 0:
        raise LabError("the root form needs root: use form 'user'")
    if form == "user" and release != HOST:
        raise LabError(f"Slurm {release.name} is not this machine's own and needs the root form")
    if missing := missing_programs(form, release):
        raise LabError(f"not installed: {', '.join(missing)} (tests/cluster/bootstrap.sh --releases installs them)")


def _new_folder(root: Path | None) -> Path:
    if root is None:
        root = new_folder("colloc-lab-")
    root = root.absolute()
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise LabError(f"{root} is not empty")
    root.chmod(0o755)
    return root


def _name_variables(root: Path, form: str, release: Release, people: list[User]) -> dict[str, str]:
    passwd, group = root / "etc/passwd", root / "etc/group"
    users.write_name_files(people, passwd, group)
    if release != HOST:
        return {}  # they lie over the machine's own files
    try:
        return users.wrapper_variables(passwd, group)
    except LabError:
        # One user alone has a name of his own already, unless his uid is in no passwd at all.
        if form == "user" and people[0].name != "me":
            return {}
        raise
