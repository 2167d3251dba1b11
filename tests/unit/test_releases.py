# SPDX-License-Identifier: Apache-2.0
"""How the laboratory gets Slurm's later releases, with made-up Debian tools."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.errors import LabError
from tests.cluster.releases import HOST, Release, find

# unshare ... debootstrap OPTIONS SUITE TARGET MIRROR SCRIPT
TOOLS = {
    "unshare": '#!/bin/sh\nwhile [ "$1" != debootstrap ]; do shift; done\nexec "$@"\n',
    "debootstrap": """#!/bin/sh
echo "$3 from $5" >>"$CALLS"
[ ! -e "$4" ] || exit 7
mkdir -p "$4/usr" || exit 8
sleep 0.1
exit "${FAIL:-0}"
""",
    "dpkg-query": "#!/bin/sh\nprintf 24.11.5-4\n",
    "apt-get": "#!/bin/sh\necho other main http://other/debian/\necho own main http://mirror/debian/\n",
    "apt-config": "#!/bin/sh\n",
}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in TOOLS.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("COLLOC_ROOTS", str(tmp_path / "roots"))
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"VERSION_CODENAME": "own"})
    return tmp_path / "calls"


def quiet(_: str) -> None:
    pass


def test_made_once_by_two_makers_from_the_machines_own_mirror(calls: Path) -> None:
    release = find("24.11")
    half = release.root.with_name(f"{release.root.name}.half")
    (half / "rest of an interrupted one").mkdir(parents=True)
    with ThreadPoolExecutor() as pool:
        list(pool.map(release.make, [quiet, quiet]))
    release.make(quiet)
    assert calls.read_text() == "trixie from http://mirror/debian/\n"
    assert list(release.root.iterdir()) == [release.root / "usr"]
    assert not half.exists()


def test_a_suite_that_moved_on_is_not_taken(calls: Path) -> None:
    moved = Release("26.05", "forky", "disabled")
    with pytest.raises(LabError, match=r"Debian forky has Slurm 24\.11\.5-4 by now, not 26\.05"):
        moved.make(quiet)
    assert not moved.is_there()


def test_a_failure_is_told_and_leaves_no_release(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "3")
    with pytest.raises(LabError, match=r"debootstrap of Debian trixie failed \(exit 3\)"):
        find("24.11").make(quiet)
    assert not find("24.11").is_there()


def test_the_machines_own_release_is_entered_as_it_is(tmp_path: Path) -> None:
    HOST.make(quiet)
    assert HOST.enter(["sbatch", "a b"], tmp_path / "mounts") == ["sbatch", "a b"]
    with pytest.raises(LabError, match=r"no release '20\.02': there are 22\.05, 24\.11, 26\.05"):
        find("20.02")


def test_mounts_of_a_folder_with_a_blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLOC_ROOTS", "/a b")
    release = find("26.05")
    release.write_mounts(tmp_path / "mounts", {Path("/lab/etc/passwd"): "/etc/passwd"})
    name = release.root.name
    assert (tmp_path / "mounts").read_text().splitlines() == [
        "/lab/etc/passwd /etc/passwd none bind 0 0",
        f"/a\\040b/{name}/etc/alternatives /etc/alternatives none bind 0 0",
        f"/a\\040b/{name}/usr /usr none bind 0 0",
    ]
