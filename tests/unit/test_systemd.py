# SPDX-License-Identifier: Apache-2.0
"""The unit files as systemd itself reads them, the rights they give, and the commands they start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_file import load_site
from slurm_colloc.site.render import Host, render_site
from tests.unit.programs import need_program

CONFIG = load_site(str(Path(__file__).resolve().parents[2] / "site-configs" / "h100-mig-mps" / "site.toml"))
UNITS = {
    file.name: file.text
    for file in render_site(CONFIG, Host("/opt/slurm_colloc"))
    if file.name.endswith((".service", ".timer", ".sysusers.conf"))
}
SERVICES = sorted(name for name in UNITS if name.endswith(".service"))
COMMANDS = {
    "colloc-agent.service": "agent",
    "colloc-flush.service": "flush",
    "colloc-compact.service": "compact",
    "colloc-audit.service": "audit run --notify --about others --wait 30m",
    "colloc-audit-jobs.service": "audit run --notify --about jobs --wait 20m",
}
# systemd's own measure, 0 (nothing allowed) to 10; a service without any of these lines has 9.6.
MOST_EXPOSURE = {
    "colloc-agent.service": 2.5,
    "colloc-flush.service": 1.0,
    "colloc-compact.service": 1.0,
    # They call the host's sendmail, which has rights of its own.
    "colloc-audit.service": 8.5,
    "colloc-audit-jobs.service": 8.5,
}


def _settings(name: str) -> dict[str, list[str]]:
    """Return the lines of a unit file, by key."""
    found: dict[str, list[str]] = {}
    for line in UNITS[name].splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def _installed(folder: Path, config: SiteConfig = CONFIG, *site_file: str) -> list[Path]:
    """Write the unit files into a folder in which their program is, too."""
    (folder / "bin").mkdir()
    os.symlink("/bin/true", folder / "bin" / "colloc")
    rendered = render_site(config, Host(str(folder), *site_file))
    units = {folder / file.name: file.text for file in rendered if file.installed.startswith("/etc/systemd/")}
    for path, text in units.items():
        path.write_text(text)
    return list(units)


MOVED = CONFIG._replace(paths=CONFIG.paths._replace(journal="/local/journal", state="/lustre/colloc"))


@pytest.mark.parametrize(("config", "site_file"), [(CONFIG, ()), (MOVED, ("/srv/site.toml",))], ids=["plain", "moved"])
def test_systemd_understands_every_line(tmp_path: Path, config: SiteConfig, site_file: tuple[str, ...]) -> None:
    units = _installed(tmp_path, config, *site_file)
    argv = [need_program("systemd-analyze"), "verify", *map(str, units)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (len(units), done.returncode, done.stderr) == (9, 0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_rights_do_not_grow_unnoticed(tmp_path: Path, name: str) -> None:
    _installed(tmp_path)
    argv = [need_program("systemd-analyze"), "security", "--offline=true", "--no-pager", str(tmp_path / name)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert exposure, done.stderr
    assert float(exposure[1]) <= MOST_EXPOSURE[name]


def test_every_service_starts_its_own_command() -> None:
    assert {name: _settings(name)["ExecStart"] for name in SERVICES} == {
        name: [f"/opt/slurm_colloc/bin/colloc {command}"] for name, command in COMMANDS.items()
    }


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_runs_as_root(name: str) -> None:
    user = [line.split() for line in UNITS["colloc.sysusers.conf"].splitlines() if line[:2] == "u "]
    assert [words[1] for words in user] == _settings(name)["User"] == ["colloc"]


def test_the_agent_sees_processes_and_nobody_has_a_right_at_all() -> None:
    agent = _settings("colloc-agent.service")
    assert not {"ProtectProc", "ProcSubset", "PrivatePIDs", "PrivateUsers", "PrivateDevices"} & agent.keys()
    for name in SERVICES:
        assert "AmbientCapabilities" not in _settings(name)
    for name in ("colloc-agent.service", "colloc-flush.service", "colloc-compact.service"):
        assert _settings(name)["CapabilityBoundingSet"] == [""]


@pytest.mark.parametrize("name", ["colloc-audit.service", "colloc-audit-jobs.service"])
def test_sendmail_keeps_the_rights_that_it_has(name: str) -> None:
    """What each of these lines implies is in systemd.exec(5): a setgid sendmail of postfix could queue nothing."""
    implied = ("NoNewPrivileges", "SystemCall", "Restrict", "LockPersonality", "MemoryDenyWriteExecute", "DynamicUser")
    devices = ("PrivateDevices", "ProtectKernel", "ProtectClock", "ProtectHostname", "CapabilityBoundingSet", "Secure")
    assert [key for key in _settings(name) if key.startswith((*implied, *devices))] == []
    assert _settings(name)["ProtectSystem"] == ["full"], "queues are in /var"


def test_findings_are_no_failure_and_errors_are() -> None:
    assert _settings("colloc-audit.service")["SuccessExitStatus"] == ["1"]
    # At some hours no running job can be judged; who no longer ingests is told by 2.
    assert _settings("colloc-audit-jobs.service")["SuccessExitStatus"] == ["1 3"]


def test_the_two_audits_differ_by_what_they_ask_alone() -> None:
    nightly, jobs = (UNITS[f"colloc-audit{name}.service"].splitlines() for name in ("", "-jobs"))
    differ = {line.partition("=")[0] for line in set(nightly) ^ set(jobs) if line[:1] != "#"}
    assert differ == {"Description", "ExecStart", "SuccessExitStatus"}


def test_the_audit_writes_to_its_own_folder_alone() -> None:
    settings = _settings("colloc-audit.service")
    (folder,) = settings["RequiresMountsFor"]
    assert settings["ReadWritePaths"] == [f"-{folder}"]
    assert settings["ReadOnlyPaths"] == [f"-{folder.removesuffix('/audit')}"]
    asked = CONFIG._replace(notices=CONFIG.notices._replace(textfile="/var/lib/node/colloc.prom"))
    (unit,) = (file.text for file in render_site(asked, Host("/opt/x")) if file.name == "colloc-audit.service")
    assert "\nReadWritePaths=-/var/lib/node\n" in unit


FILES = ("cgroup", "stat", "cmdline", "status", "environ", "io")
_STATUS_CAPS = re.compile(r"CapEff:\s*([0-9a-f]+)")
# CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SYS_PTRACE.
_NEEDED_CAPS = 1 << 2 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 19


@pytest.mark.parametrize(
    ("rights", "readable"),
    [
        ("-all", FILES[:4]),
        ("-all,+sys_ptrace", FILES[:4]),
        ("-all,+dac_read_search", FILES[:4]),
        ("-all,+sys_ptrace,+dac_read_search", FILES),
    ],
)
def test_the_two_rights_of_the_agent_are_what_it_takes_to_see_others_processes(
    rights: str, readable: tuple[str, ...]
) -> None:
    if int(_STATUS_CAPS.findall(Path("/proc/self/status").read_text())[0], 16) & _NEEDED_CAPS != _NEEDED_CAPS:
        pytest.skip("needs root, with the rights that are given away here")
    setpriv = need_program("setpriv")
    other = subprocess.Popen([setpriv, "--reuid=4201", "--regid=4201", "--clear-groups", "sleep", "60"])
    try:
        while Path(f"/proc/{other.pid}/comm").read_text() != "sleep\n":
            assert other.poll() is None
        sets = [f"--{kind}={rights}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
        identity = ["--reuid=4202", "--regid=4202", "--clear-groups", "--no-new-privs"]
        script = (
            f"cd /proc/{other.pid}; for name in {' '.join(FILES)}; do head -c 1 $name >/dev/null && echo $name; done"
        )
        argv = [setpriv, *identity, *sets, "sh", "-c", script]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert tuple(done.stdout.split()) == readable, done.stderr
    finally:
        other.kill()
        other.wait()


# The kernel's own form of MemoryDenyWriteExecute=: prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN).
MDWE = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0:
    sys.exit(77)
os.execv(sys.executable, [sys.executable, "-I", "-c", sys.argv[1]])
"""


@pytest.mark.parametrize(
    "code",
    [
        "import ctypes, pynvml; assert ctypes.CDLL(None).getpid() > 0",
        "import duckdb, pandas; duckdb.sql('select sum(range) from range(100000)').fetchall()",
    ],
    ids=["agent", "flush"],
)
def test_what_the_services_load_needs_no_memory_both_writable_and_executable(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", MDWE, code], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this kernel (before 6.3) has no PR_SET_MDWE")
    assert done.returncode == 0, done.stderr
