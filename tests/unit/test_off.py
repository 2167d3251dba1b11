# SPDX-License-Identifier: Apache-2.0
"""colloc off: a user's jobs are left as they are asked for, by herself or by the site, until that is ended."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

import pytest

from slurm_colloc.core.config import Paths
from slurm_colloc.core.model import because
from slurm_colloc.core.wording import words
from slurm_colloc.estimate.calibration import SHIPPED
from slurm_colloc.estimate.site_stop import off_for_me, off_path
from slurm_colloc.feedback.known_jobs import known_jobs
from tests.unit.golden import Printed
from tests.unit.programs import colloc, timeless
from tests.unit.shell import HINT, Shell
from tests.unit.test_known_jobs import UID, config, line, store_of

COLLOC = Path(sys.executable).with_name("colloc")
PLACED = ["--gres=gpu:h100_1g.10gb:1", "job.sh"]
NOBODY = pwd.getpwnam("nobody")


def test_a_user_keeps_csub_off_all_of_her_jobs(shell: Shell, printed: Printed) -> None:
    switched = shell.run("off", "--why", "timings", program=COLLOC)
    shell.run(HINT, "job.sh")
    # What one job says of itself counts.
    shell.run(HINT, "--colloc=auto", "job.sh")
    shell.run(HINT, "job.sh", environ={"CSUB_COLLOC": "auto"})
    shown = shell.run(HINT, "--dry-run", "--explain", "job.sh").stderr
    ended = shell.run("off", "--end", program=COLLOC)
    shell.run(HINT, "job.sh")
    assert shell.calls() == [["job.sh"], PLACED, PLACED, PLACED]
    assert shell.decisions()[0]["reasons"][0][0] == "off-for-user"
    why = next(text for text in shown.splitlines() if text.startswith("csub:   why: "))
    printed("off", *(timeless(text).strip() for text in (switched.stderr, why, ended.stderr)))


@pytest.mark.parametrize("damage", ["folder", "link"])
def test_a_switch_that_cannot_be_read_is_off(shell: Shell, damage: str) -> None:
    data = shell.folder / "home/.local/share/slurm_colloc"
    data.mkdir(parents=True, mode=0o700)
    path = data / f"{os.geteuid()}.off"
    path.mkdir() if damage == "folder" else path.symlink_to("/nonexistent")
    shell.run(HINT, "job.sh")
    assert shell.calls() == [["job.sh"]]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the state folder of the site in force."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    text = f'schema = 1\ncluster = "c"\nslurm_release = "22.05"\n[paths]\nstate = "{tmp_path}/state"\n'
    (tmp_path / "site.toml").write_text(text)
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    return str(tmp_path / "state")


def test_a_site_keeps_csub_off_one_users_jobs(state: str, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    assert colloc("off", "nobody", "--why", "ticket 7") == 0
    said = [colloc.err]
    assert off_for_me(state) == ""
    with monkeypatch.context() as as_nobody:
        as_nobody.setattr(os, "geteuid", lambda: NOBODY.pw_uid)
        said.append(words(because("off-for-user", by=off_for_me(state))))
        assert off_for_me("") == ""
    assert colloc("off", "nobody", "--end") == 0
    assert not os.path.lexists(off_path(state, NOBODY.pw_uid))
    printed("off", *map(timeless, said), colloc.err)


@pytest.mark.parametrize("who", ["nosuchuser", "../../etc"])
def test_a_site_switches_off_users_that_there_are(state: str, who: str) -> None:
    assert colloc("off", who) == 2
    assert not os.path.lexists(state)


def test_a_site_without_a_folder_of_its_own_reaches_nobody_else(state: str, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(site.read_text().partition("[paths]")[0])
    assert colloc("off", "nobody") == 2


def test_slurmctld_does_not_know_the_jobs_of_who_is_off(tmp_path: Path) -> None:
    store = store_of(tmp_path, [line(1), line(2), line(3)], [3000, 4000, 3500])
    site = config()._replace(paths=Paths(state=str(tmp_path / "state")))
    assert len(list(known_jobs(store, site, SHIPPED))) == 1
    path = Path(off_path(site.paths.state, UID))
    path.parent.mkdir(parents=True)
    path.write_text("by root")
    assert list(known_jobs(store, site, SHIPPED)) == []
