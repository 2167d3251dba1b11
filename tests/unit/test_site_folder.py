# SPDX-License-Identifier: Apache-2.0
"""The folder that is rendered to: a new one, or one of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.site.render import ORDER, write_folder
from tests.unit.golden import Printed
from tests.unit.programs import umask

FIRST = {"a": "1", "b": "2", "c": "3", ORDER: "how"}


def test_files_are_written_for_everybody_to_read_whatever_the_umask(tmp_path: Path) -> None:
    with umask(0o077):
        write_folder(str(tmp_path / "out"), FIRST)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o644}


def test_again_changes_what_changed_and_takes_away_what_is_no_more(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert write_folder(str(out), FIRST) == (["a", "b", "c", ORDER], [])
    (out / "a").write_text("by hand")
    (out / "notes").write_text("mine")
    assert write_folder(str(out), {"a": "1", "b": "22", ORDER: "how"}, FIRST) == (["a", "b"], ["c"])
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        "a": "1",
        "b": "22",
        "notes": "mine",
        ORDER: "how",
    }


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, printed: Printed) -> None:
    """Such as /etc/slurm, which has files of these names."""
    (tmp_path / "gres.conf").write_text("Name=gpu\n")
    with printed.raises("site-render", InputError, r"ORDER\.md"):
        write_folder(str(tmp_path), {"gres.conf": "", ORDER: ""})
    assert (tmp_path / "gres.conf").read_text() == "Name=gpu\n"


def test_a_folder_that_is_a_link_or_open_to_others_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to("own")
    for end in ("", "/"):
        with pytest.raises(StoreError, match="is a link"):
            write_folder(f"{tmp_path}/link{end}", FIRST)
    for mode in (0o775, 0o757):
        (tmp_path / "own").chmod(mode)
        with pytest.raises(StoreError, match="others may write there"):
            write_folder(str(tmp_path / "own"), FIRST)
    with pytest.raises(StoreError, match="No such file"):
        write_folder(str(tmp_path / "absent/out"), FIRST)
    assert not list((tmp_path / "own").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    os.chown(tmp_path / "out", 1, 1)
    with pytest.raises(StoreError, match="others may write there"):
        write_folder(str(tmp_path / "out"), FIRST)
