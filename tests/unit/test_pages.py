# SPDX-License-Identifier: Apache-2.0
"""A page for each user: his own figures, in a file that only he may read, wherever somebody plants something."""

import os
import pwd
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.cli.colloc import pages as command
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import passable_folder
from slurm_colloc.report.user_page import UserPage, page_maker
from tests.unit.golden import Printed
from tests.unit.hostile import HOSTILE
from tests.unit.made import MIG_POOL, run, site, usage
from tests.unit.programs import colloc, umask
from tests.unit.reports import page
from tests.unit.stored import busy, grouped, stored

WINDOW = ("--since", "1970-01-01T00:00Z")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
DAY = datetime(2026, 11, 1, tzinfo=UTC)


def made(name: str = "ann", **fields: Any) -> str:
    of = usage(**fields)
    return page_maker("")(UserPage("c", DAY, DAY, DAY, grouped([of])[-1]._replace(name=name), (of,)))


@pytest.fixture
def store(tmp_path: Path) -> str:
    rows = [run(str(number), user=user) for number, user in enumerate(("ann", "ann", "bob", "../x", "gone"), 1)]
    made = stored(tmp_path / "store", rows, busy(900, 1800, job="1"))
    made.write_log("a", {"rows_in": 5, "used": 5, "steps": 0, "rejected": {}})
    return str(tmp_path / "store")


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ann and bob users of this machine."""
    uids = {"ann": 70001, "bob": 70002, "../x": 70003, "me": os.geteuid()}

    def named(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", uids[name], uids[name], "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwnam", named)


def test_a_page_says_what_was_measured_of_what_and_when_it_was_made() -> None:
    text = made()
    assert 'Made <time datetime="2026-11-01T00:00:00+00:00">' in text
    for figure in ("25.0 %", "50.0 %", "100 %", "<td>1.00</td>", "<td>3000</td>", "Methods: measured"):
        assert figure in text
    unknown = made(sm_used_gpu_hours=None, gpu_mem_peak_mib=None)
    assert unknown.count("<td>-</td>") == 2
    assert "<dd>not known</dd>" in unknown


def test_what_a_piece_would_leave_to_others_is_on_the_page(tmp_path: Path) -> None:
    config = site(MIG_POOL._replace(gpu_type="h100", gpus_per_node=2))
    samples = busy(900, 1800, 2700, 3600, sm=10.0, mib=6000)
    source = stored(tmp_path, [run(), run("2", user="bob")], samples, config)
    source.write_log("a", {"rows_in": 2, "used": 2, "steps": 0, "rejected": {}})
    pages = command._pages(
        config, source.samples.folder, datetime.fromtimestamp(0, UTC), datetime.fromtimestamp(7200, UTC)
    )
    make = page_maker("")
    assert "<dd>0.86</dd>" in make(pages["ann"])
    assert "other jobs" not in make(pages["bob"])


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_word_of_a_user_is_more_than_text(hostile: str) -> None:
    plain = page(made())
    text = made(hostile, job_name=hostile, gres=hostile, state=hostile, job_id=hostile)
    assert (page(text).tags, page(text).attributes) == (plain.tags, plain.attributes)
    assert "script" not in plain.tags
    assert not any(ord(letter) < 32 and letter != "\n" for letter in text)
    assert "\u202e" not in text


@needs_root
def test_each_user_gets_a_page_of_his_own_that_nobody_else_may_read(
    store: str, tmp_path: Path, printed: Printed
) -> None:
    tmp_path.chmod(0o755)
    folder = tmp_path / "pages"
    assert colloc("pages", str(folder), "--store", store, *WINDOW) == 0
    printed("pages", colloc.err)
    assert sorted(os.listdir(folder)) == ["ann", "bob"]
    assert [folder.stat().st_mode & 0o777, (folder / "ann").stat().st_mode & 0o777] == [0o711, 0o711]
    for name, uid, runs in (("ann", 70001, 2), ("bob", 70002, 1)):
        made = (folder / name / "index.html").stat()
        assert (made.st_uid, made.st_mode & 0o777) == (uid, 0o600)
        assert (folder / name).stat().st_uid == 0
        text = (folder / name / "index.html").read_text()
        assert f"GPU use of {name} on c" in text
        assert text.count('<td class="name">') == runs
        assert ("bob" in text) == (name == "bob")
    assert not (tmp_path / "x").exists()


@needs_root
def test_what_stands_in_the_way_of_one_page_is_not_followed_and_hinders_no_other(
    store: str, tmp_path: Path, printed: Printed
) -> None:
    folder, elsewhere = tmp_path / "pages", tmp_path / "elsewhere"
    os.close(passable_folder(str(folder)))
    elsewhere.mkdir(0o755)
    (folder / "ann").symlink_to(elsewhere)
    assert colloc("pages", str(folder), "--store", store, *WINDOW) == 1
    printed("pages", colloc.err)
    assert os.listdir(elsewhere) == []
    assert (folder / "bob/index.html").exists()

    (folder / "ann").unlink()
    (folder / "ann").mkdir()
    os.chown(folder / "ann", 70001, 70001)  # she could put a link, or her own page of bob's, there
    assert colloc("pages", str(folder), "--store", store, *WINDOW) == 1
    assert "belongs to uid 70001" in colloc.err

    target = elsewhere / "shadow"
    target.write_text("secret")
    (folder / "bob/index.html").unlink()
    (folder / "bob/index.html").symlink_to(target)
    colloc("pages", str(folder), "--store", store, *WINDOW)
    assert target.read_text() == "secret"
    assert target.stat().st_uid == 0
    assert not (folder / "bob/index.html").is_symlink()


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, printed: Printed) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(StoreError, match=str(folder)) as raised:
        passable_folder(str(folder))
    printed("pages", str(raised.value).replace(f"uid {os.geteuid()}", "uid 0"))


def test_whatever_the_umask_users_may_pass_through(tmp_path: Path) -> None:
    with umask(0o077):
        os.close(passable_folder(str(tmp_path / "pages")))
    assert (tmp_path / "pages").stat().st_mode & 0o777 == 0o711


def test_a_link_with_a_slash_behind_it_is_no_folder_either(tmp_path: Path) -> None:
    (tmp_path / "pages").symlink_to(tmp_path)
    with pytest.raises(StoreError, match=f"{tmp_path}/pages'"):
        passable_folder(f"{tmp_path}/pages/")


def test_who_is_not_root_gets_his_own_page_only(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of a cluster do it as another user; here nobody can be one."""
    owner = os.geteuid()
    monkeypatch.setattr(command, "own_name", lambda: "ann")
    monkeypatch.setattr(command, "_uid", lambda name: owner)
    monkeypatch.setattr(command, "is_root", lambda: False)
    folder = tmp_path / "pages"
    assert colloc("pages", str(folder), "--store", store, *WINDOW) == 0
    assert os.listdir(folder) == ["ann"]
    assert "1 page written" in colloc.err
