# SPDX-License-Identifier: Apache-2.0
"""colloc site at the terminal: whether this node's driver is read, and what is said when it does not answer."""

import os
import re
import shlex
import stat
from collections import Counter
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc import site as site_command
from slurm_colloc.core.errors import GpuError
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.report.first_look import with_to_do
from slurm_colloc.site.cluster import NodeGpus
from slurm_colloc.site.driver import to_json
from tests.fakes.devices import gpus
from tests.fakes.driver import Driver
from tests.unit.golden import Printed
from tests.unit.mail_service import no_mail_service
from tests.unit.programs import colloc, umask
from tests.unit.reports import NOTHING, report
from tests.unit.test_site import FakeClient


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_command, "CliClient", lambda *_: FakeClient())


@pytest.mark.parametrize(("node", "read"), [("g1", True), ("c1", False), ("login", False)])
def test_the_driver_is_read_on_a_node_with_gpus_only(node: str, read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(gpus(2)).install(monkeypatch)
    monkeypatch.setenv("SLURMD_NODENAME", node)
    found = site_command.look_around([], {})
    assert [item.node for item in found.gpus] == ([node] if read else [])
    assert bool(driver.counts) is read


def test_a_driver_that_is_silent_is_said_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], printed: Printed
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "g1")

    def silent(*_: object) -> NodeGpus:
        raise GpuError("the NVIDIA driver does not answer")

    monkeypatch.setattr(site_command, "read_driver", silent)
    assert site_command.look_around([], {}).gpus == ()
    printed("site-init", capsys.readouterr().err)


def test_what_a_file_says_of_this_node_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(gpus(2)).install(monkeypatch)
    told = NodeGpus("g1", NvmlReader().units())
    (tmp_path / "g1.json").write_text(to_json(told))
    monkeypatch.setenv("SLURMD_NODENAME", "g1")
    assert site_command.look_around([str(tmp_path / "g1.json")], {}).gpus == (told,)


def test_what_a_driver_says_needs_no_site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$COLLOC_CONF may name the file that 'site init' is about to write."""
    Driver(gpus(2)).install(monkeypatch)
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    assert colloc("site", "gpus", "--node", "g1") == 0
    assert '"g1"' in colloc.out
    (tmp_path / "site.toml").write_text("nothing = 1\n")
    assert colloc("site", "gpus", "--node", "g1") == 2
    assert "site.toml" in colloc.err


def written(path: Path, *options: str) -> int:
    return colloc("site", "init", "-o", str(path), *options)


def test_a_site_file_is_replaced_whole_and_a_link_to_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, link = tmp_path / "kept" / "site.toml", tmp_path / "site.toml"
    monkeypatch.setenv("HOME", str(tmp_path))
    with umask(0o077):
        real.parent.mkdir()
        real.write_text("old")
        link.symlink_to("kept/site.toml")
        with real.open() as reading:
            assert written(link, "--force") == 0
            assert reading.read() == "old"  # who reads it meanwhile has all of the old one
    assert link.is_symlink()
    assert "slurm_release" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o644  # csub reads it for everybody
    assert [path.name for path in real.parent.iterdir()] == ["site.toml"]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    """Renaming over /dev/null would take it from everybody."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name in ("fifo", "link"):
        assert written(tmp_path / name, "--force") == 2
        assert f"'{tmp_path}/{name}' is no regular file" in colloc.err
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


def test_a_folder_that_takes_no_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert written(tmp_path / "file/below/site.toml") == 2
    assert "cannot be written: " in colloc.err


SPOILED = {
    "code": ('[[audit.rule]]\ncode = "COL03"', "[[audit.rule]] has code 'COL03'"),
    "rule to act by": (
        '[notices]\nactions = { COL003 = "hold" }',
        "'notices.actions': 'COL003' is no rule in force about jobs",
    ),
    "action": (
        '[notices]\nactions = { COL001 = "kill" }',
        "'notices.actions': 'COL001' must be 'hold' or 'cancel', not 'kill'",
    ),
    "bound of jobs": (
        '[[audit.rule]]\ncode = "COL001"\nbounds = { first_warning_min = 9000 }',
        "'bounds.first_warning_min' of 9000 min is not shorter than the window",
    ),
    "partition": (
        '[[audit.rule]]\ncode = "COL003"\nonly = { partition = ["gqu"] }',
        "'COL003': 'only' names the partition 'gqu'",
    ),
    "option": ('sbatch_options = ["--x"]', "option '--x' of a plugin"),
    "path": ('[paths]\nstate = "/a/../b"', "paths.state is '/a/../b'"),
    "word": ('[paths]\nstate = "/a b"', "cannot be written into a configuration file"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_check_looks_at_the_whole_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a nightly audit, render or csub would refuse, a person hears of when it is written."""
    path = tmp_path / "site.toml"
    monkeypatch.setenv("COLLOC_CONF", str(path))
    assert written(path, "--gpu", "h100=NVIDIA H100 80GB HBM3") == 0
    sound = path.read_text()
    assert colloc("site", "check") == 0, colloc.out
    more, why = SPOILED[name]
    if not more.startswith("["):
        sound, more = (
            "\n".join(line for line in sound.splitlines() if not line.startswith("sbatch_options")),
            more + "\n",
        )
        path.write_text(more + sound)
    else:
        path.write_text(f"{sound}\n{more}\n")
    assert colloc("site", "check") == 1
    assert why in colloc.out


def test_each_line_of_check_begins_with_its_level_and_the_last_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    path = tmp_path / "site.toml"
    monkeypatch.setenv("COLLOC_CONF", str(path))
    options = (f'paths.state="{tmp_path}/typo"', 'notices.mode="admins"', 'notices.sender="a@b.c"')
    given = [word for option in (*options, 'notices.admins=["a@b.c"]') for word in ("--set", option)]
    assert written(path, *given) == 0
    assert colloc("site", "check") == 1
    *lines, last = colloc.out.splitlines()
    levels = Counter(line.partition(": ")[0] for line in lines)
    assert levels.keys() == {"error", "not checked", "note"}
    assert last.startswith(f"'{path}' differs")
    counts = [int(number) for number in re.findall(r"(\d+) (?:errors?|not checked|notes?)\b", last)]
    assert counts == [levels[level] for level in ("error", "not checked", "note")]
    printed("site-check", last)


def test_what_a_report_without_samples_says_to_do_ends_in_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site.toml"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLLOC_CONF", str(path))
    for agents, more in ((None, ("-o", str(path), "--gpu", "h100=NVIDIA H100 80GB HBM3")), (False, ())):
        (one,) = with_to_do(report(NOTHING, total=NOTHING, of_text=True), 0, (), agents).to_do
        command = one.command.replace("/shared", str(tmp_path))
        assert colloc(*shlex.split(command)[1:], *more) == 0, colloc.err
    assert (tmp_path / "colloc-files/colloc-agent.service").exists()


def test_a_file_that_some_command_would_refuse_is_not_written(tmp_path: Path, printed: Printed) -> None:
    path = tmp_path / "site.toml"
    assert written(path, "--set", 'audit.rule=[{code="COL003", bounds={min_gpu_huors=5}}]') == 2
    printed("site-init", colloc.err)
    assert not path.exists()


@pytest.mark.parametrize("mails", ["admins", "off"])
def test_check_reads_the_file_of_the_audits_where_these_run(
    mails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    path, kept = tmp_path / "site.toml", tmp_path / "state/audit"
    for folder, mode in ((tmp_path / "state", 0o755), (tmp_path / "state/store", 0o700), (tmp_path / "spool", 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    monkeypatch.setenv("COLLOC_CONF", str(path))
    options = {
        "paths.state": tmp_path / "state",
        "paths.decisions": tmp_path / "spool",
        "notices.mode": mails,
        "notices.sender": "a@b.c",
        "notices.command": tmp_path / "command",
    }
    given = [word for key, value in options.items() for word in ("--set", f'{key}="{value}"')]
    assert written(path, *given, "--set", 'notices.admins=["a@b.c"]') == 0
    assert colloc("site", "check") == 0
    assert f"not checked: notices.command '{tmp_path}/command': " in colloc.out
    kept.mkdir(mode=0o700)
    assert colloc("site", "check") == 1
    assert "sendmail" not in colloc.out
    no_mail_service(tmp_path, monkeypatch)
    assert colloc("site", "check") == 1
    assert ("'sendmail'" in colloc.out) == (mails == "admins")
    if mails == "admins":
        printed("site-check", *(line for line in colloc.out.splitlines() if "notices." in line))


def test_check_says_which_path_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    path = tmp_path / "site.toml"
    monkeypatch.setenv("COLLOC_CONF", str(path))
    assert written(path, "--set", f'paths.state="{tmp_path}/typo"', "--set", f'paths.decisions="{tmp_path}"') == 0
    noted = colloc.err
    assert colloc("site", "check") == 1
    printed("site-check", *(line for line in (noted + colloc.out).splitlines() if "/typo'" in line))
