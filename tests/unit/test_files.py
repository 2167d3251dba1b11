# SPDX-License-Identifier: Apache-2.0
import os
import tempfile
import time
from pathlib import Path

import pytest

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import (
    as_owner,
    closed_folder,
    file_mode,
    locked,
    private_folder,
    read_bounded,
    read_own,
    remove_left,
    temporary_folder,
    write_atomic,
)
from slurm_colloc.core.links import place
from tests.unit.golden import Printed
from tests.unit.programs import umask

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can plant a folder of somebody else")


def test_write_replaces_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(str(path), b"one")
    write_atomic(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["f"]


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        write_atomic(str(tmp_path / "folder"), b"x")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(StoreError, match="No such file"):
        write_atomic(str(tmp_path / "none" / "f"), b"x")


def test_write_goes_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "f").symlink_to(victim)
    write_atomic(str(tmp_path / "f"), b"new")
    assert (victim.read_bytes(), (tmp_path / "f").read_bytes()) == (b"mine", b"new")
    monkeypatch.setattr(os, "urandom", lambda size: b"x" * size)
    for name, plant in (("g", os.symlink), ("h", os.link)):
        plant(victim, tmp_path / f"{name}.{b'xxxxxx'.hex()}.new")
        with pytest.raises(StoreError):
            write_atomic(str(tmp_path / name), b"new")
        assert victim.read_bytes() == b"mine"


def put(path: Path, content: bytes = b"new") -> int | None:
    """Write where ``path`` leads, and return the mode of what was there."""
    with place(str(path)) as there:
        write_atomic(there.name, content, folder=there.folder)
        return there.found and there.found.st_mode & 0o777


def test_a_way_leads_through_links_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "real/below").mkdir(parents=True)
    (tmp_path / "folder").symlink_to("real/below/")
    (tmp_path / "absolute").symlink_to(tmp_path / "folder")
    (tmp_path / "real/latest").symlink_to("../made")
    (tmp_path / "made").touch(mode=0o640)
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.chdir(tmp_path / "real")
    assert put(Path("latest"), b"1") == 0o640
    assert put(tmp_path / "absolute/../latest", b"2") == 0o600
    assert (tmp_path / "made").read_bytes() == b"2"
    assert put(tmp_path / "absolute/new") is None
    assert (tmp_path / "real/below/new").read_bytes() == b"new"
    for name, why in (("none/x", "No such file"), ("made/x", "Not a directory"), ("circle", "Too many levels")):
        if name == "circle":
            (tmp_path / name).symlink_to(name)
        with pytest.raises(StoreError, match=why):
            put(tmp_path / name)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can plant a link of somebody else")
@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o775, 0o755])
@pytest.mark.parametrize("which", ["latest", "folder"])
def test_a_link_that_another_planted_is_not_followed(tmp_path: Path, mode: int, which: str) -> None:
    """In a folder where others may write; in one of root's alone whoever made it is believed."""
    (tmp_path / "victims").mkdir()
    victim = tmp_path / "victims/made"
    victim.write_bytes(b"old")
    open_ = tmp_path / "open"
    open_.mkdir()
    (open_ / "latest").symlink_to(victim)
    (open_ / "folder").symlink_to(victim.parent)
    open_.chmod(mode)
    way = open_ / "latest" if which == "latest" else open_ / "folder/made"
    put(way, b"root's own")
    os.chown(open_ / which, 85410, 85410, follow_symlinks=False)
    if mode == 0o755:
        put(way)
        assert victim.read_bytes() == b"new"
    else:
        with pytest.raises(StoreError, match="link"):
            put(way)
        assert victim.read_bytes() == b"root's own"
        os.chown(open_, 85410, 85410)  # a user's own folder and link
        put(way)
        assert victim.read_bytes() == b"new"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can plant a file of somebody else")
def test_a_file_that_another_planted_decides_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "made").touch()
    (tmp_path / "made").chmod(0o666)
    os.chown(tmp_path / "made", 85410, 85410)
    assert put(tmp_path / "made") is None
    assert ((tmp_path / "made").stat().st_mode & 0o777, (tmp_path / "made").stat().st_uid) == (0o600, 0)


def test_read_bounds(tmp_path: Path, printed: Printed) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_bounded(str(path), 5) == b"12345"
    with printed.raises("files", StoreError, "4 bytes"):
        read_bounded(str(path), 4)
    os.truncate(path, 1 << 40)  # of which no more is read than that
    with pytest.raises(StoreError, match="4 bytes"):
        read_bounded(str(path), 4)
    with pytest.raises(StoreError, match="No such file"):
        read_bounded(str(tmp_path / "none"), 4)


def test_read_refuses_what_is_no_file_and_leaks_nothing(tmp_path: Path, printed: Printed) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for name in ("link", "fifo", "folder"):
        with pytest.raises(StoreError):
            read_bounded(str(tmp_path / name), 10)
    with printed.raises("files", StoreError, "/dev/null"):
        read_bounded("/dev/null", 10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_read_of_the_owner(tmp_path: Path, printed: Printed) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    assert read_bounded(str(path), 10, owners=(os.geteuid(),)) == b"x"
    with pytest.raises(StoreError, match=f"uid {os.geteuid()}, .*uid 424242") as refused:
        read_bounded(str(path), 10, owners=(424242,))
    printed("files", str(refused.value).replace(f"uid {os.geteuid()},", "uid OWN,"))


def test_private_folder(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b" / "c"
    assert private_folder(str(made)) == str(made)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert private_folder(str(made)) == str(made)


def test_planted_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name, why in (("link", "is a link"), ("file", "is no folder")):
        with pytest.raises(StoreError, match=why):
            private_folder(str(tmp_path / name))
    with pytest.raises(StoreError, match="/file' is no folder"):
        private_folder(str(tmp_path / "file" / "below"))


@needs_root
def test_folder_of_somebody_else(tmp_path: Path, printed: Printed) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    with printed.raises("files", StoreError, "uid 12345"):
        private_folder(str(tmp_path / "theirs"))


def test_a_folder_made_closed_is_closed_whatever_the_umask(tmp_path: Path) -> None:
    with umask(0):
        closed_folder(str(tmp_path / "a/b"))
        with locked(str(tmp_path / "lock")) as held:
            assert held
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "lock")]
    assert modes == [0o777, 0o700, 0o600]


def test_a_lock_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot be opened"), locked(str(tmp_path / "lock")):
        pass
    assert not (tmp_path / "elsewhere").exists()


@needs_root
def test_root_makes_files_as_the_folders_owner_and_is_root_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # what is above it is root's alone
    os.chown(tmp_path, 12345, 23456)
    before = os.geteuid(), os.getegid()

    def fail() -> None:
        with as_owner(str(tmp_path)):
            write_atomic("f", b"")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (os.geteuid(), os.getegid()) == before
    with as_owner(str(tmp_path / "not there")):
        assert (os.geteuid(), os.getegid()) == before
    made = (tmp_path / "f").stat()
    assert (made.st_uid, made.st_gid) == (12345, 23456)


def test_what_a_killed_writer_left_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / f"f.{os.getpid()}.new").write_bytes(b"half")
    write_atomic(str(tmp_path / "f"), b"new")
    assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o750, 0o640), (0o2750, 0o640), (0o755, 0o640)])
def test_files_are_open_to_whom_the_folder_is(tmp_path: Path, folder: int, file: int) -> None:
    tmp_path.chmod(folder)
    with umask(0o077):
        write_atomic(str(tmp_path / "f"), b"", file_mode(str(tmp_path)))
    assert (tmp_path / "f").stat().st_mode & 0o777 == file


def test_what_is_somebody_elses_is_not_read_as_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"words")
    assert read_own(str(path), 10) == b"words"
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(StoreError, match="belongs to uid"):
        read_own(str(path), 10)


def test_what_killed_runs_have_left_is_removed_and_nothing_of_live_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    hours_ago = time.time() - 7200
    names = ("colloc-0killed0", "colloc-00live00", "colloc-00young0", "colloc-demo-x1", "other-00000000")
    killed, live, young, *others = (tmp_path / name for name in names)
    for folder in (killed, live, young, *others):
        folder.mkdir()
        (folder / "spilled").touch()
        if folder != young:
            os.utime(folder, (hours_ago, hours_ago))
    with locked(str(live / "lock")):
        os.utime(live, (hours_ago, hours_ago))
        with temporary_folder() as own:
            assert {path.name for path in tmp_path.iterdir()} == {*names, os.path.basename(own)} - {killed.name}
            with locked(os.path.join(own, "lock")) as held:
                assert not held, "the next run sees that this one lives"
    assert not os.path.exists(own)


def test_files_that_a_killed_writer_left_are_removed(tmp_path: Path) -> None:
    old, young, others = tmp_path / "a.json.0123456789ab.new", tmp_path / "a.json.ba9876543210.new", tmp_path / "b.new"
    for path in (old, young, others):
        path.touch()
    for path in (old, others):
        os.utime(path, (time.time() - 7200,) * 2)
    remove_left(str(tmp_path))
    assert sorted(tmp_path.iterdir()) == [young, others]
    remove_left(str(tmp_path / "none"))
