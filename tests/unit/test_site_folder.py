# SPDX-License-Identifier: Apache-2.0
"""The folder that is rendered to: nothing outside it is written, and nothing in it that is not ours."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.site.folder import MANIFEST, write_folder


def test_files_are_written_for_everybody_to_read_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        done = write_folder(str(tmp_path / "out"), {"a": "1\n", "b": "2\n"})
    finally:
        os.umask(before)
    assert done.written == ("a", "b")
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {
        "a": 0o644,
        "b": 0o644,
        MANIFEST: 0o644,
    }
    argv = ["sha256sum", "-c", MANIFEST]
    assert subprocess.run(argv, cwd=tmp_path / "out", capture_output=True, check=False).returncode == 0


def test_again_changes_what_changed_and_takes_away_what_is_no_more(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    write_folder(out, {"a": "1", "b": "2", "c": "3", "d": "4"})
    (tmp_path / "out/d").write_text("mine")
    done = write_folder(out, {"a": "1", "b": "22"})
    assert done == (("b",), ("a",), ("c",))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a", "b", "d", MANIFEST}


def test_a_file_that_is_not_ours_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(str(out), {"a": "1", "b": "2"})
    (out / "b").write_text("changed by hand")
    (out / "c").write_text("foreign")
    for name in ("b", "c"):
        kept = (out / name).read_text()
        with pytest.raises(InputError, match=f"{name}' is not as it was rendered"):
            write_folder(str(out), {"a": "11", name: "new"})
        assert ((out / "a").read_text(), (out / name).read_text()) == ("1", kept)
    write_folder(str(out), {"a": "11", "c": "new"}, force=True)
    assert ((out / "a").read_text(), (out / "c").read_text()) == ("11", "new")


@pytest.mark.parametrize("what", ["link", "dangling", "folder", "fifo"])
def test_nothing_is_followed_out_of_the_folder(tmp_path: Path, what: str) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    write_folder(str(out), {"a": "1"})
    outside.write_text("secret")
    if what == "link":
        (out / "b").symlink_to(outside)
    elif what == "dangling":
        (out / "b").symlink_to(tmp_path / "absent")
    elif what == "folder":
        (out / "b").mkdir()
    else:
        os.mkfifo(out / "b")
    with pytest.raises(InputError, match=r"out/b' (cannot be replaced|is no regular file)"):
        write_folder(str(out), {"a": "2", "b": "2"}, force=True)
    assert ((out / "a").read_text(), outside.read_text()) == ("1", "secret")
    assert not (tmp_path / "absent").exists()


def test_a_hostile_manifest_names_nothing_outside(tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    write_folder(str(out), {"a": "1"})
    outside.write_text("x")
    (out / MANIFEST).write_text(f"{hashlib.sha256(b'x').hexdigest()}  ../outside\n")
    write_folder(str(out), {"a": "1"})
    assert outside.read_text() == "x"


def test_a_folder_that_is_a_link_or_open_to_all_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for end in ("", "/", "//", "/."):
        with pytest.raises(StoreError, match="is a link, which is not followed"):
            write_folder(f"{tmp_path}/link{end}", {"a": "1"})
    (tmp_path / "open").mkdir()
    for mode, who in ((0o1777, "everybody"), (0o770, "its group")):
        (tmp_path / "open").chmod(mode)
        with pytest.raises(StoreError, match=f"{who} may write into .*: chmod go-w"):
            write_folder(str(tmp_path / "open"), {"a": "1"})
    with pytest.raises(StoreError, match="No such file"):
        write_folder(str(tmp_path / "absent/out"), {"a": "1"})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chown(tmp_path / "out", 4201, -1)
    with pytest.raises(StoreError, match="belongs to uid 4201"):
        write_folder(str(tmp_path / "out"), {"a": "1"})


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert write_folder(str(out), {"a": "1"}, dry_run=True).written == ("a",)
    assert not out.exists()
    write_folder(str(out), {"a": "1", "b": "1"})
    assert write_folder(str(out), {"a": "2"}, dry_run=True) == (("a",), (), ("b",))
    assert ((out / "a").read_text(), (out / "b").read_text()) == ("1", "1")
