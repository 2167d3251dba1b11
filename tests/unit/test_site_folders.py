# SPDX-License-Identifier: Apache-2.0
"""The paths that a site.toml names, on this host: each as it must be, and each way in which it is not."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.config import Observe, Paths, Pool, SiteConfig
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.site import named_folders as folders
from slurm_colloc.site.doctor.facts import Blank, Seen
from slurm_colloc.site.named_folders import Keepers, keepers, look

ME = pwd.getpwuid(os.geteuid()).pw_name
SERVICE = Keepers(ME, frozenset({0, os.geteuid()}))
NOBODY = 65534
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


def site(folder: Path, **fields: Any) -> SiteConfig:
    """Return a site with an agent whose folders are there as ORDER.md makes them."""
    for parent in (folder, *folder.parents):
        if "pytest-of" in str(parent):
            parent.chmod(0o755)
    for name, mode in (("state", 0o755), ("state/store", 0o700), ("journal", 0o700), ("spool", 0o1777)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    paths = Paths(str(folder / "state"), str(folder / "journal"), str(folder / "spool"))
    pools = (Pool("g", "g[1-2]", ("gpu",)),)
    made = SiteConfig(1, "c", "24.11", paths=paths, pool=pools, observe=Observe(agent=True))
    return made._replace(**fields)


def seen(config: SiteConfig, host: str = "login", keep: Keepers = SERVICE) -> list[str]:
    return [f"{one.subject}: {one.evidence}" for one in look(config, keep, host) if isinstance(one, Seen)]


def gaps(config: SiteConfig, keep: Keepers = SERVICE) -> list[str]:
    return [f"{one.subject}: {one.why}" for one in look(config, keep, "login") if isinstance(one, Blank)]


@pytest.mark.parametrize("host", ["login", "g1"])
def test_a_site_as_it_must_be(tmp_path: Path, host: str) -> None:
    config = site(tmp_path)
    assert (seen(config, host), gaps(config)) == ([], [])


def test_who_has_no_site_has_no_folders_of_one(tmp_path: Path) -> None:
    assert seen(site(tmp_path, paths=Paths())) == []


@pytest.mark.parametrize(
    ("spoil", "subject", "evidence"),
    [
        (lambda at: (at / "state").rename(at / "typo"), "paths.state '{0}/state'", "No such file or directory"),
        (
            lambda at: (at / "state/store").rmdir(),
            "the store (paths.state)",
            f"install -d -m 0700 -o {ME} {{0}}/state",
        ),
        (lambda at: (at / "state/store").chmod(0o705), "the store (paths.state)", "its mode is 0705"),
        (lambda at: (at / "state/store").chmod(0o770), "the store (paths.state)", "chmod o-rwx,g-w"),
        (lambda at: (at / "state").chmod(0o700), "paths.state", "users cannot pass"),
        (lambda at: (at / "state").chmod(0o757), "paths.state", "its mode is 0757: chmod o-w"),
        (lambda at: (at / "journal").rmdir(), "paths.journal", "No such file or directory"),
        (lambda at: (at / "journal").chmod(0o755), "paths.journal", "chmod o-rwx,g-w"),
        (lambda at: (at / "spool").rmdir(), "paths.decisions", "as root: install -d -m 1777"),
        (lambda at: (at / "spool").chmod(0o755), "paths.decisions", "its mode is 0755: chmod 1777"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    tmp_path: Path, spoil: Callable[[Path], object], subject: str, evidence: str
) -> None:
    config = site(tmp_path)
    spoil(tmp_path)
    (found,) = seen(config, "g1")
    assert found.startswith(subject.format(tmp_path))
    assert evidence.format(tmp_path) in found


def test_a_group_may_look_into_the_store(tmp_path: Path) -> None:
    """As how-to/mail.md opens it to SlurmUser."""
    config = site(tmp_path)
    (tmp_path / "state/store").chmod(0o2750)
    assert seen(config) == []


@ROOT_ONLY
@pytest.mark.parametrize("name", ["state", "state/store", "journal", "spool"])
def test_another_owner_is_said(tmp_path: Path, name: str) -> None:
    config = site(tmp_path)
    os.chown(tmp_path / name, NOBODY, NOBODY)
    (found,) = seen(config, "g1")
    assert f"it belongs to {pwd.getpwuid(NOBODY).pw_name}, not to {ME}" in found
    assert found.endswith(f"chown {ME} {tmp_path}/{name}")


@ROOT_ONLY
def test_whose_a_folder_is_must_be_able_to_write_there(tmp_path: Path) -> None:
    config = site(tmp_path)
    for name in ("state/store", "journal"):
        os.chown(tmp_path / name, NOBODY, NOBODY)
    nobody = Keepers(pwd.getpwuid(NOBODY).pw_name, frozenset({0, NOBODY}))
    assert seen(config, "g1", nobody) == []
    (tmp_path / "state/store").chmod(0o500)
    (tmp_path / "journal").chmod(0o700)
    (found,) = seen(config, "g1", nobody)
    assert found.startswith("the store (paths.state)")
    assert "cannot write there" in found
    assert os.geteuid() == 0


def test_without_the_services_user_its_folders_are_looked_at_all_the_same(tmp_path: Path) -> None:
    config = site(tmp_path)
    keep = Keepers("no-such-user", frozenset({0}))
    assert (seen(config, keep=keep), len(gaps(config, keep=keep))) == ([], 1)
    (tmp_path / "state/store").rmdir()
    assert "No such file or directory" in seen(config, keep=keep)[0]


def test_the_journal_is_looked_for_where_there_is_one(tmp_path: Path) -> None:
    config = site(tmp_path)
    (tmp_path / "journal").rmdir()
    assert seen(config, "login") == []
    shared = config._replace(paths=config.paths._replace(journal=""))
    assert seen(shared, "login")[0].startswith("the journal (paths.state)")


def test_nodes_that_nothing_came_from(tmp_path: Path) -> None:
    config = site(tmp_path)
    for node in ("g1", "g2"):
        assert gaps(config) == [] or node == "g2"
        (tmp_path / "state/store/samples/c/2026-01-05" / node).mkdir(parents=True)
        assert len(gaps(config)) == (1 if node == "g1" else 0)


def test_the_folder_of_the_audits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "audit"
    config = site(tmp_path, notices=Notices("users", state=str(kept), textfile=str(tmp_path / "no/file.prom")))
    assert (seen(config), len(gaps(config))) == ([], 2)
    kept.mkdir(mode=0o700)
    (outlet,) = seen(config)
    assert outlet.startswith(f"notices.textfile '{tmp_path}/no/file.prom'")
    # Audits that send nothing write it, too.
    assert seen(config._replace(notices=config.notices._replace(mode="off"))) == [outlet]
    monkeypatch.setattr(folders, "network_file_system", lambda path: "NFS")
    assert "each audit is refused" in seen(config)[-1]
    assert seen(config._replace(notices=Notices())) == []


def test_programs_that_are_not_there(tmp_path: Path) -> None:
    config = site(tmp_path, paths=Paths(templates=str(tmp_path / "t"), sbatch=str(tmp_path / "sbatch")))
    assert [one.partition(" ")[0] for one in seen(config)] == ["paths.templates", "paths.sbatch"]


def test_who_keeps_a_site(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("")
    assert keepers("", str(tmp_path / "site.toml")) == Keepers("", frozenset({0, os.geteuid()}))
    assert keepers("nobody", str(tmp_path / "site.toml")).owners >= {NOBODY}
