# SPDX-License-Identifier: Apache-2.0
"""A center that installs the .deb and follows ORDER.md: who may read what came of it, and what is left in the end."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_colloc import __version__
from tests.cluster.fixtures import CHECKOUT, need_cluster, new_lab, running
from tests.cluster.lab import SYSTEM_PATH, Lab
from tests.cluster.machine import Machine, build_package, later_package
from tests.cluster.releases import HOST
from tests.cluster.site import MODEL, installed
from tests.unit.programs import need_program

pytestmark = pytest.mark.cluster

NEXT = "9.9.9"
HINT = "--gpu-footprint=mem=2G,sm=10"
SECRET = "unannounced"
HEAD = f"#!/bin/bash\n#SBATCH --gres=gpu:h100:1 -t 5 -p gpu -J {SECRET}\n"
STAYS = f"{HEAD}until [ -e go ]; do sleep 0.2; done\n"
SITE = "/etc/slurm_colloc/site.toml"
# What everybody's csub reads; no word of a user is in it.
OPEN = (
    *(r"/etc/slurm_colloc/site\.toml", r"{state}/history/(calibration|waits)\.json", r"{state}/rendered/\w+\.json"),
    # For a node exporter.
    r"/var/lib/node/colloc(-jobs)?\.prom",
)
# What dpkg, systemd-sysusers and userdel keep of anything.
KEPT = r"/var/(lib/dpkg|cache|log/(dpkg|alternatives)\.log)\b.*|/etc/((passwd|group|g?shadow|sub[ug]id)-?|\.pwd\.lock)"
REMOVE_DOC = CHECKOUT / "docs/how-to/upgrade.md"
# The test's own, and systemd-sysusers'.
MACHINES = {"/usr/local/bin/systemctl", "/etc/passwd-", "/etc/group-"}
_BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Center(NamedTuple):
    machine: Machine
    before: set[str]
    state: Path
    rendered: Path

    @property
    def lab(self) -> Lab:
        return self.machine.lab


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return this release and a later one."""
    need_cluster()
    need_program("dpkg-deb")
    now = build_package(tmp_path_factory.mktemp("now"), "--extras", "prometheus")
    return now, later_package(now, tmp_path_factory.mktemp("next"), NEXT)


@pytest.fixture(scope="module")
def center(packages: tuple[Path, Path]) -> Iterator[Center]:
    """A cluster with agents whose administrator installed the package and did what ORDER.md says."""
    lab = new_lab()
    if lab.release != HOST:
        pytest.skip("packages are for the machine's own Slurm")
    machine = Machine(lab)
    try:
        with running(lab, bare=True):
            shutil.copy(packages[0], lab.root / "out/now.deb")
            shutil.copy(packages[1], lab.root / "out/next.deb")
            machine.done(f"dpkg -i {lab.root}/out/now.deb")
            made = Center(machine, set(machine.written()), lab.root / "shared", lab.root / "out/rendered")
            _set_up(made)
            _ran(made)
            yield made
    finally:
        machine.end()


def _set_up(center: Center) -> None:
    machine, state = center.machine, center.state
    # There is no systemd, which would read the units.
    stub = machine.root / "usr/local/bin/systemctl"
    stub.write_text("#!/bin/sh\n")
    stub.chmod(0o755)
    settings = {
        "observe.agent": "true",
        "observe.gpu_reader": f'"simulated:{center.lab.gpus_dir}"',
        "observe.period_s": "0.5",
        "paths.state": f'"{state}"',
        "paths.decisions": f'"{state}/decisions"',
        "paths.journal": '"/var/lib/slurm_colloc/journal"',
        "notices.textfile": '"/var/lib/node/colloc.prom"',
        "policy": '"auto"',
        "sharing.mps_daemon": '"prolog"',
        "audit.rule": '[{code="COL001", bounds={min_gpu_hours=0.0001}}]',
    }
    words = " ".join(f"--set '{key}={value}'" for key, value in settings.items())
    machine.done("install -d /etc/slurm_colloc")
    machine.done(f"colloc site init -o {SITE} --gpu 'h100={MODEL}' --shard-consent {words}")
    site = machine.root / SITE.lstrip("/")
    site.write_text(re.sub(r'(\[\[partition\]\]\nname = "gpu".*\n)', r'\1job_submit = "shadow"\n', site.read_text()))
    machine.done(f"colloc site render -o {center.rendered}")
    for block in _BLOCK.findall((center.rendered / "ORDER.md").read_text()):
        for line in filter(None, block.splitlines()):
            if "policy table" in line:
                machine.done("colloc ingest")
            machine.done(line, cwd=center.rendered)
    machine.done("install -d -o colloc /var/lib/node")


def _ran(center: Center) -> None:
    """Let alice run a job that is measured, with a decision, and all that the rendered files start."""
    machine, home = center.machine, center.machine.home("alice")
    (home / "job.sh").write_text(f"{HEAD}sleep 2\n")
    job = machine.done(f"csub {HINT} job.sh", "alice", cwd=home).split()[-1]
    assert center.lab.wait_jobs([job])[int(job)] == "COMPLETED"
    center.lab.wait_accounted([job])
    for command in _services(center):
        done = machine.sh(command)
        assert done.returncode in (0, 1, 3, 124), (command, done.stderr)
    for cron in ("colloc", "colloc-policy"):
        _cron(center, machine.root / "etc/cron.d" / cron)


def _services(center: Center) -> Iterator[str]:
    """Yield what each unit does, in the order of a day, as its user and with its umask."""
    for name in ("agent", "flush", "compact", "audit", "audit-jobs"):
        text = (center.machine.root / f"etc/systemd/system/colloc-{name}.service").read_text()
        keys = dict(re.findall(r"^(User|UMask|ExecStart|StateDirectory|StateDirectoryMode)=(.*)$", text, re.MULTILINE))
        folder = keys.get("StateDirectory")
        made = f"install -d -m {keys['StateDirectoryMode']} -o {keys['User']} /var/lib/{folder}; " if folder else ""
        limit = "timeout 4 " if name == "agent" else ""
        node = " --node g1" if name in ("agent", "flush") else ""
        command = f"umask {keys['UMask']}; {limit}{keys['ExecStart']}{node}"
        yield f"{made}setpriv --reuid={keys['User']} --regid={keys['User']} --clear-groups sh -c '{command}'"


def _cron(center: Center, path: Path) -> None:
    """Run each line as cron would."""
    lines = path.read_text().splitlines()
    variables = " ".join(line for line in lines if re.match(r"[A-Z_]+=", line))
    commands = [line.split(maxsplit=6)[6] for line in lines if " root " in line and not line.startswith("#")]
    assert commands
    for command in commands:
        done = center.machine.sh(f"env -i {variables} /bin/sh -c '{command}'")
        log = command.partition(">>")[2].split()[0]
        assert done.returncode in (0, 1), (command, center.machine.sh(f"tail -n 5 {log}").stdout)


def _readable(center: Center, user: str) -> set[str]:
    """Return the files that came of it, beside the package's own, that a user can open."""
    came = [path for path in center.machine.written() if path not in center.before]
    came += map(str, center.state.rglob("*"))
    listed = center.lab.root / "out/came"
    listed.write_text("".join(f"{path}\n" for path in came))
    opens = '[ -f "$path" ] && [ ! -L "$path" ] && true <"$path"'
    tell = f'while read -r path; do if {opens}; then printf "%s\\n" "$path"; fi; done 2>/dev/null'
    return set(center.machine.sh(f"{tell} <{listed}", user).stdout.splitlines())


def test_another_user_reads_nothing_of_anybody(center: Center) -> None:
    """Of all that the rendered files, ORDER.md and the programs made, the administrator's own files and OPEN alone."""
    machine = center.machine
    every = _readable(center, "root")
    report = "/var/log/slurm_colloc/report.html"
    assert {report, "/var/log/slurm_colloc/ingest.log", "/var/lib/slurm_colloc/policy.table"} <= every
    assert "alice" in machine.done(f"cat {report}")
    opened = re.compile("|".join(OPEN).replace("{state}", str(center.state)))
    to_all = _readable(center, "bob") - MACHINES
    assert {path for path in to_all - set(installed(center.rendered)) if not opened.fullmatch(path)} == set()
    texts = {path: (machine.root / path.lstrip("/")).read_bytes() for path in to_all}
    assert [path for path, text in texts.items() if b"alice" in text or SECRET.encode() in text] == []


def _path_of_users(center: Center) -> str:
    """Return the PATH of whoever loaded the rendered module."""
    module = (center.machine.root / "etc/slurm_colloc/modulefiles/slurm_colloc.lua").read_text()
    (folder,) = re.findall(r'^prepend_path\("PATH", "(.*)"\)$', module, re.MULTILINE)
    return f"{folder}:{SYSTEM_PATH}"


def _submit(center: Center, words: str, path: str) -> str:
    home = center.machine.home("alice")
    return center.machine.done(f"csub {HINT} {words}", "alice", cwd=home, path=path).split()[-1]


def _named_by(center: Center, release: str) -> set[str]:
    """Return the jobs that the loop of the page finds for a release."""
    (loop,) = re.findall(r"^for job in .*done$", REMOVE_DOC.read_text(), re.MULTILINE)
    return set(center.machine.done(f"{loop.replace('slurm_colloc-0.1/', f'slurm_colloc-{release}/')}; true").split())


def test_an_upgrade_and_a_removal_under_jobs(center: Center) -> None:
    """Last: a later release beside this one, this one purged, then all of it: commands and jobs stay, no file does."""
    machine, lab, home = center.machine, center.lab, center.machine.home("alice")
    release = re.compile(rf"slurm_colloc-{re.escape(__version__)}")
    assert [path.name for path in center.rendered.iterdir() if release.search(path.read_text())] == []
    path = _path_of_users(center)
    assert machine.done("command -v python3", "bob", path=path).strip() == "/usr/bin/python3"
    (home / "stays.sh").write_text(STAYS)
    running, waiting = (_submit(center, f"{words} stays.sh", path) for words in ("", "--hold"))
    packed = _submit(center, "--pack --array=0-1 --hold stays.sh", path)

    machine.done(f"dpkg -i {lab.root}/out/next.deb")
    for where in (path, SYSTEM_PATH):
        assert machine.done("csub --help", "bob", path=where).count(f"csub {NEXT}") == 1
    assert "unchanged: all files" in machine.done(f"colloc site render -o {center.rendered}")
    _cron(center, machine.root / "etc/cron.d/colloc")
    assert packed in _named_by(center, __version__)
    (home / "go").touch()
    lab.run(["scontrol", "release", waiting, packed], check=True)
    assert set(lab.wait_jobs([running, waiting, packed], timeout=120).values()) == {"COMPLETED"}
    assert _named_by(center, __version__) == set()
    _purge(center, __version__)
    assert not (machine.root / f"opt/slurm_colloc-{__version__}").exists()
    assert machine.done("csub --help", "bob", path=path).count(f"csub {NEXT}") == 1

    (home / "go").unlink()
    jobs = [_submit(center, f"{words} stays.sh", path) for words in ("", "--hold")]
    _take_away(center)
    (home / "go").touch()
    lab.run(["scontrol", "release", jobs[1]], check=True)
    assert set(lab.wait_jobs(jobs).values()) == {"COMPLETED"}
    _nothing_is_left(center)


def _take_away(center: Center) -> None:
    """Step 7 of docs/how-to/upgrade.md: what it names, the program last, and folders that are then empty."""
    machine = center.machine
    below = [f"{center.state}/{name}" for name in ("store", "history", "rendered", "audit", "decisions")]
    named = ["/var/lib/slurm_colloc/journal", "/var/lib/slurm_colloc/policy.table", "/var/lib/node/colloc*.prom"]
    others = ["/var/log/slurm_colloc", "/run/colloc", "/var/log/colloc-mps.log", "/etc/slurm_colloc"]
    machine.done(f"rm -rf {' '.join([*installed(center.rendered), *below, *named, *others])}")
    _purge(center, NEXT)
    (folders,) = re.findall(r"`rmdir ([^`]*)`", REMOVE_DOC.read_text())
    machine.sh(f"rmdir {folders} {center.state}; userdel colloc")


def _purge(center: Center, release: str) -> None:
    done = center.machine.sh(f"dpkg --purge slurm-colloc-{release}")
    # The last package in /opt takes it away, but not where it is a mount.
    said = [line for line in done.stderr.splitlines() if "directory '/opt'" not in line]
    assert (done.returncode, said) == (0, [])


def _nothing_is_left(center: Center) -> None:
    machine = center.machine
    left = {path for path in machine.written() if not (machine.root / path.lstrip("/")).is_dir()}
    assert {path for path in left - MACHINES if not re.fullmatch(KEPT, path)} == set()
    assert "\ncolloc:" not in (machine.root / "etc/passwd").read_text()
    assert [path for path in machine.written() if "colloc" in path] == []
    assert not center.state.exists()
