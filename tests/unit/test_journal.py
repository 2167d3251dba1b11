# SPDX-License-Identifier: Apache-2.0
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.usage_model import DeviceAllocation, DeviceSample, HostSample, NodeSample, ProcessSample
from slurm_colloc.observe.journal import append, encode, hours
from tests.unit.made import decoded, device, process, seen

ROUND = seen(7200.5, [device()], [process()], [("GPU-0", "1")])
TEXT = st.text(max_size=8)


MOST = {"pct": 100, "mib": 2**40, "w": 10**5, "j": 10**9}


def of(kind: type) -> SearchStrategy[Any]:
    """Return records of ``kind`` with values that fit its annotations and units."""
    lists = {"devices": DeviceSample, "processes": ProcessSample, "holders": DeviceAllocation, "hosts": HostSample}

    def values(name: str, sort: Any) -> SearchStrategy[Any]:
        most = MOST.get(name.rsplit("_", 1)[-1], 10**10)
        kinds: dict[Any, SearchStrategy[Any]] = {str: TEXT, bool: st.booleans()}
        kinds |= {int: st.integers(0, most), float: st.floats(0, most)}
        kinds |= {int | None: st.none() | kinds[int], float | None: st.none() | kinds[float]}
        return kinds[sort]

    fields = [
        st.lists(of(lists[name]), max_size=3).map(tuple) if name in lists else values(name, sort)
        for name, sort in kind.__annotations__.items()
    ]
    return st.builds(kind, *fields)


ROUNDS = of(NodeSample)


@given(st.lists(ROUNDS, max_size=3))
def test_decode_is_the_inverse_of_encode(rounds: list[NodeSample]) -> None:
    found = decoded(b"".join(map(encode, rounds)))
    assert found == (tuple(rounds), 0)
    assert all(isinstance(one, DeviceSample) for passed in found.rounds for one in passed.devices)


@given(st.integers(0, len(encode(ROUND)) - 2))
def test_a_line_cut_short_is_counted_not_used(length: int) -> None:
    found = decoded(encode(ROUND) + encode(ROUND)[:length])
    assert found == ((ROUND,), 1 if length else 0)


@given(st.integers(0, len(encode(ROUND)) - 2), st.integers(1, 255))
def test_a_changed_byte_never_passes(place: int, change: int) -> None:
    line = bytearray(encode(ROUND))
    line[place] ^= change
    found = decoded(bytes(line))
    # Capital letters in the checksum, or a zero before it, say the same number.
    assert found.rounds in ((), (ROUND,))
    assert found.rounds == () or place < 8


def test_an_empty_line_of_a_race_is_nothing() -> None:
    assert decoded(encode(ROUND) + b"\n" + encode(ROUND)) == ((ROUND, ROUND), 0)


@pytest.mark.parametrize("line", [b"junk", b"00000000 {}", b"zz {}", b" ", b"\xff\xfe", b"8d5fe3c7 [1,2]"])
def test_junk_is_counted(line: bytes) -> None:
    assert decoded(encode(ROUND) + line + b"\n" + encode(ROUND)) == ((ROUND, ROUND), 1)


def test_right_checksum_of_a_wrong_form_is_counted() -> None:
    import zlib

    for body in (b"[1,2]", b"3", b'"text"', b'[1,0,"n","b",[[1]],[],[]]', b"[" * 100_000):
        assert decoded(b"%08x %s\n" % (zlib.crc32(body), body)) == ((), 1)


def test_one_file_for_each_node_and_hour(tmp_path: Path) -> None:
    later = ROUND._replace(at_s=7200.0 + 3600)
    other = ROUND._replace(node="g2")
    for one in (ROUND, ROUND, later, other):
        append(str(tmp_path), one)
    names = [os.path.relpath(hour.path, tmp_path) for hour in hours(str(tmp_path))]
    assert names == ["g1/19700101T02.journal", "g1/19700101T03.journal", "g2/19700101T02.journal"]
    assert decoded((tmp_path / names[0]).read_bytes()) == ((ROUND, ROUND), 0)
    assert (tmp_path / names[0]).stat().st_mode & 0o777 == 0o600


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    def child(number: int) -> None:
        for turn in range(100):
            append(str(tmp_path), ROUND._replace(interval_s=float(number * 1000 + turn)))

    pids = []
    for number in (1, 2):
        pid = os.fork()
        if pid == 0:
            try:
                child(number)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    (hour,) = hours(str(tmp_path))
    found = decoded(Path(hour.path).read_bytes())
    expected = {float(number * 1000 + turn) for number in (1, 2) for turn in range(100)}
    assert (found.rejected, len(found.rounds)) == (0, 200)
    assert {one.interval_s for one in found.rounds} == expected


def test_a_torn_line_takes_only_itself(tmp_path: Path) -> None:
    append(str(tmp_path), ROUND)
    (hour,) = hours(str(tmp_path))
    with open(hour.path, "ab") as stream:
        stream.write(encode(ROUND)[:50])
    append(str(tmp_path), ROUND)
    append(str(tmp_path), ROUND)
    assert decoded(Path(hour.path).read_bytes()) == ((ROUND,) * 3, 1)


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda _, line: len(line) // 2)
    with pytest.raises(StoreError, match="in part only"):
        append(str(tmp_path), ROUND)


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    (tmp_path / "g1").mkdir()
    (tmp_path / "g1" / "19700101T02.journal").symlink_to(victim)
    with pytest.raises(StoreError, match="cannot be written"):
        append(str(tmp_path), ROUND)
    assert victim.read_bytes() == b""


def line(body: str) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(body.encode()), body.encode())


@pytest.mark.parametrize(
    "body",
    [
        '[2,Infinity,10.0,"g1","b",[],[],[],[]]',
        '[2,1.0,"10","g1","b",[],[],[],[]]',
        '[3,1.0,10.0,"g1","b",[],[],[],[]]',
        '[2,1.0,10.0,"g1","b",[["GPU-0"]],[],[],[]]',
        '[2,1.0,10.0,"g1","b",[],[["GPU-0",1,7,"compute",7,null,null]],[],[]]',
        '[2,1.0,10.0,"g1","b",[],[],[["GPU-0",7,null]],[]]',
        '[2,1.0,10.0,"g1","b",[],[],[],[["1","x",null,null,null]]]',
        '[2,1.0,10.0,"g1","b",5,[],[],[]]',
        '[2,1.0,-10.0,"g1","b",[],[],[],[]]',
        '[2,1.0,10.0,"g1","b",[],[["GPU-0",1,7,"compute","7",4611686018427387904,null]],[],[]]',
        '[2,1.0,10.0,"g1","b",[],[["GPU-0",1,7,"compute","7",null,100.5]],[],[]]',
        '[2,1.0,10.0,"g1","b",[],[],[["GPU-0","7",-1.0]],[]]',
        '[1.0,10.0,"g1","b",[],[],[]]',
        '{"a":1}',
    ],
)
def test_a_line_of_the_wrong_kinds_is_counted_not_used(body: str) -> None:
    assert decoded(line(body)) == ((), 1)


def test_an_hour_has_nothing_of_another_time_or_node(tmp_path: Path) -> None:
    append(str(tmp_path), ROUND)
    ((hour,)) = hours(str(tmp_path))
    strangers = [ROUND._replace(at_s=ROUND.at_s + 86_400), ROUND._replace(at_s=0.0), ROUND._replace(node="g2")]
    with open(hour.path, "ab") as stream:
        stream.writelines(map(encode, strangers))
    assert list(hour) == [ROUND]
    assert hour.rejected == 3


def test_a_fifo_in_place_of_an_hour_is_refused_and_hangs_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "20260101T00.journal")
    (hour,) = hours(str(tmp_path))
    with pytest.raises(StoreError, match="is not a regular file"):
        list(hour)
