# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.cluster up|down|status|enter|env|root|record|demo`: a private real Slurm cluster by hand."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster import record as recording
from tests.cluster.demo import tell
from tests.cluster.lab import FORMS, Lab, LabError, missing_programs
from tests.cluster.record_setup import record_setup
from tests.cluster.releases import HOST, RELEASES, find

CHECKOUT = Path(__file__).resolve().parents[2]


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    # Ended from outside, a start-up must clean up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code: int = args.act(args)
    except LabError as exc:
        print(f"cluster: error: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: interrupted; everything started is stopped", file=sys.stderr)
        return 130
    return code


def up(args: argparse.Namespace) -> int:
    lab = Lab.create(args.root, form=args.form, release=args.release, say=say)
    lab.up(say)
    _remember(lab.root)
    if args.install:
        lab.install(CHECKOUT, say)
    if lab.release == HOST:
        say('in a shell: eval "$(python -m tests.cluster env)"')
    say("or: python -m tests.cluster enter [--user alice] [COMMAND...]")
    return 0


def down(args: argparse.Namespace) -> int:
    lab = Lab.open(_root(args))
    lab.down(say)
    if args.remove:
        lab.remove()
        say(f"removed {lab.root}")
    return 0


def status(args: argparse.Namespace) -> int:
    lab = Lab.open(_root(args))
    seen = lab.status()
    print(f"{seen.root} (Slurm {seen.release}, {seen.form} form): {'up' if seen.up else 'down'}")
    for name, pid, alive in seen.daemons:
        print(f"  {name:<10} pid {pid:<8} {'running' if alive else 'GONE'}")
    print(seen.nodes, end="")
    return 0 if seen.up else 3


def env(args: argparse.Namespace) -> int:
    lab = Lab.open(_root(args))
    if lab.release != HOST:
        raise LabError(f"Slurm {lab.release.name} is not on this shell's PATH: use `enter`")
    wanted = lab.environment()
    for name in ("PATH", "SLURM_CONF", "COLLOC_CONF", *lab.names):
        print(f"export {name}={shlex.quote(wanted[name])}")
    return 0


def enter(args: argparse.Namespace) -> int:
    lab = Lab.open(_root(args))
    argv = lab.command(args.command or ["bash"], args.user)
    # Everybody's: without it a user's commands would go by the machine's own. Until root has written one, by theirs.
    known = lab.site_file.exists() or not args.user
    environment = lab.environment(args.user) | ({"COLLOC_CONF": str(lab.site_file)} if known else {})
    return subprocess.run(argv, env=environment, check=False).returncode


def root(args: argparse.Namespace) -> int:
    release = find(args.release)
    release.make(say)
    say(f"Slurm {release.name}: {release.root if release.suite else 'the machine itself'}")
    return 0


def record(args: argparse.Namespace) -> int:
    kept = (recording.record, recording.record_free)
    for keep in (*kept, recording.record_preemption, record_setup):
        keep(args.release, CHECKOUT / "tests/recorded", say)
    return 0


def demo(args: argparse.Namespace) -> int:
    form = "root" if os.getuid() == 0 else "user"
    if missing := missing_programs(form, find(args.release)):
        say(f"no Slurm to be had ({', '.join(missing)} missing): the same story from a recording")
        folder = CHECKOUT / "demo-output" / f"recorded-{os.getpid()}"
        return subprocess.run([Path(sys.executable).with_name("colloc"), "demo", "-o", folder], check=False).returncode
    return tell(CHECKOUT, args.release, say, keep_recording=args.record)


def say(line: str) -> None:
    print(f"cluster: {line}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    texts = {
        up: "make and start a lab",
        down: "stop it",
        status: "show it",
        enter: "run a command, or a shell, in it",
        env: "print exports",
        root: "fetch a Slurm release that is not this machine's own",
        record: "keep what a release's commands print, for the tests of the parsers",
        demo: "tell the whole story on a lab of its own, then leave nothing running",
    }
    commands = parser.add_subparsers(required=True, metavar="|".join(act.__name__ for act in texts))
    made = {act: commands.add_parser(act.__name__, help=text, description=text) for act, text in texts.items()}
    for act, command in made.items():
        command.set_defaults(act=act)
        if act in (up, down, status, enter, env):
            folder = "the lab's folder (default: up makes one, others take the last)"
            command.add_argument("--root", type=Path, help=folder)
        if act in (up, demo):
            command.add_argument("--release", choices=RELEASES, default=HOST.name, help="of Slurm (%(default)s)")
    made[up].add_argument("--form", choices=FORMS, help="default: what this uid allows")
    made[up].add_argument("--install", action="store_true", help="install this checkout into the lab as well")
    made[down].add_argument("--remove", action="store_true", help="delete the folder as well")
    made[enter].add_argument("--user", help="one of the lab's users (default: its administrator)")
    made[enter].add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND...")
    for act in (root, record):
        made[act].add_argument("release", choices=RELEASES)
    made[demo].add_argument("--record", action="store_true", help="keep its data as the one of 'colloc demo'")
    return parser


def _memory() -> Path:
    venv = CHECKOUT / ".venv"
    if os.access(venv, os.W_OK):
        return venv / "last-lab"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slurm_colloc/last-lab"


def _remember(root: Path) -> None:
    memory = _memory()
    memory.parent.mkdir(parents=True, exist_ok=True)
    memory.write_text(f"{root}\n")


def _root(args: argparse.Namespace) -> Path:
    given: Path | None = args.root
    if given is not None:
        return given.absolute()
    try:
        return Path(_memory().read_text().strip())
    except OSError:
        raise LabError("no lab was started from this checkout: give --root, or run `up`") from None


if __name__ == "__main__":
    sys.exit(main())
