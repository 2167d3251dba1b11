# SPDX-License-Identifier: Apache-2.0
"""A center that installs the .deb and follows ORDER.md: who may read what came of it, and what is left in the end."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.fixtures import need_cluster, new_lab
from tests.cluster.lab import Lab
from tests.cluster.machine import Machine, build_package
from tests.cluster.releases import HOST
from tests.cluster.site import MODEL
from tests.unit.programs import need_program

pytestmark = pytest.mark.cluster

NEXT = "9.9.9"
HINT = "--gpu-footprint=mem=2G,sm=10"
SECRET = "unannounced"
HEAD = f"#!/bin/bash\n#SBATCH --gres=gpu:h100:1 -t 5 -p gpu -J {SECRET}\n"
SITE = "/etc/slurm_colloc/site.toml"
# What everybody's csub reads; no word of a user is in it.
OPEN = (
    *(r"/etc/slurm_colloc/site\.toml", r"{state}/history/(calibration|waits)\.json", r"{state}/rendered/\w+\.json"),
    # For a node exporter.
    r"/var/lib/node/colloc(-jobs)?\.prom",
    # Links, and what lies in the package's folder.
    r"/opt/slurm_colloc-.*",
)
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
    return build_package(tmp_path_factory.mktemp("now")), build_package(tmp_path_factory.mktemp("next"), NEXT)


@pytest.fixture
def center(packages: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[Center]:
    """A cluster with agents whose administrator installed the package and did what ORDER.md says."""
    lab = new_lab()
    if lab.release != HOST:
        pytest.skip("packages are for the machine's own Slurm")
    failed_before = request.session.testsfailed
    machine = Machine(lab)
    try:
        lab.up()
        shutil.copy(packages[0], lab.root / "out/now.deb")
        shutil.copy(packages[1], lab.root / "out/next.deb")
        machine.done(f"dpkg -i {lab.root}/out/now.deb")
        made = Center(machine, set(machine.written()), lab.root / "shared", lab.root / "out/rendered")
        _set_up(made)
        yield made
    finally:
        lab.down()
        machine.end()
    if request.session.testsfailed == failed_before:
        lab.remove()


def _set_up(center: Center) -> None:
    machine, state = center.machine, center.state
    # There is no systemd, which would read the units.
    stub = machine.root / "usr/local/bin/systemctl"
    stub.write_text("#!/bin/sh\n")
    stub.chmod(0o755)
    settings = {
        "observe.agent": "true",
        "observe.gpu_reader": '"simulated"',
        "observe.simulated_devices": f'"{center.lab.gpus_dir}"',
        "observe.period_s": "0.5",
        "paths.state": f'"{state}"',
        "paths.decisions": f'"{state}/decisions"',
        "paths.journal": '"/var/lib/slurm_colloc/journal"',
        "notices.textfile": '"/var/lib/node/colloc.prom"',
        "notices.json_lines": '"/var/lib/node/findings.jsonl"',
        "sharing.mps_daemon": '"prolog"',
        "sharing.mps_single_user": "true",
        "audit.rule": '[{code="COL001", bounds={min_gpu_hours=0.0001}}]',
    }
    words = " ".join(f"--set '{key}={value}'" for key, value in settings.items())
    machine.done("install -d /etc/slurm_colloc")
    machine.done(f"colloc site init -o {SITE} --gpu 'h100={MODEL}' --shard-consent {words}")
    site = machine.root / SITE.lstrip("/")
    site.write_text(re.sub(r'(\[\[partition\]\]\nname = "gpu".*\n)', r'\1policy = "shadow"\n', site.read_text()))
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
    for name in ("agent", "seal", "compact", "audit", "audit-jobs"):
        text = (center.machine.root / f"etc/systemd/system/colloc-{name}.service").read_text()
        keys = dict(re.findall(r"^(User|UMask|ExecStart|StateDirectory|StateDirectoryMode)=(.*)$", text, re.MULTILINE))
        folder = keys.get("StateDirectory")
        made = f"install -d -m {keys['StateDirectoryMode']} -o {keys['User']} /var/lib/{folder}; " if folder else ""
        limit = "timeout 4 " if name == "agent" else ""
        node = " --node g1" if name in ("agent", "seal") else ""
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
    came = [*(path for path in center.machine.written() if path not in center.before)]
    came += map(str, center.state.rglob("*"))
    listed = center.lab.root / "out/came"
    listed.write_text("".join(f"{path}\n" for path in came))
    tell = (
        'while read -r path; do if [ -f "$path" ] && true <"$path"; then printf "%s\\n" "$path"; fi; done 2>/dev/null'
    )
    return set(center.machine.sh(f"{tell} <{listed}", user).stdout.splitlines())


def test_another_user_reads_nothing_of_anybody(center: Center) -> None:
    """Of all that the rendered files, ORDER.md and the programs made, the administrator's own files and OPEN alone."""
    machine = center.machine
    _ran(center)
    listed = machine.done("colloc site render --list-written").splitlines()
    installed = {line.split("\t")[0] for line in listed if line.endswith("installed from 'colloc site render'")}
    every = _readable(center, "root")
    report = "/var/log/slurm_colloc/report.html"
    assert {report, "/var/log/slurm_colloc/ingest.log", "/var/lib/slurm_colloc/policy.table"} <= every
    assert "alice" in machine.done(f"cat {report}")
    opened = re.compile("|".join(OPEN).replace("{state}", str(center.state)))
    to_all = _readable(center, "bob") - MACHINES
    assert {path for path in to_all - installed if not opened.fullmatch(path)} == set()
    texts = {path: (machine.root / path.lstrip("/")).read_bytes() for path in to_all}
    assert [path for path, text in texts.items() if b"alice" in text or SECRET.encode() in text] == []
