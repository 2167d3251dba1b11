# SPDX-License-Identifier: Apache-2.0
"""The SPANK plugin without a Slurm: its options against csub's own grammar, and how it is built."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_colloc.core.errors import InputError, ProcessError
from slurm_colloc.estimate.hint import parse_hint
from slurm_colloc.site.plugin import Version, build, of_headers, of_programs
from tests.unit.golden import Printed
from tests.unit.programs import colloc

HEADERS = "/usr/include"
needs_headers = pytest.mark.skipif(
    not (Path(HEADERS, "slurm/spank.h").exists() and shutil.which("cc")), reason="no libslurm-dev, or no C compiler"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("plugin") / "colloc_spank.so"
    build(HEADERS, "cc", str(path), 60)
    found = ctypes.CDLL(str(path), mode=os.RTLD_LAZY)
    for name in ("colloc_mode_fault", "colloc_footprint_fault"):
        getattr(found, name).restype = ctypes.c_char_p
    return found


def footprint_fault(library: ctypes.CDLL, text: str) -> str:
    fault: bytes | None = library.colloc_footprint_fault(text.encode())
    return fault.decode() if fault else ""


def mode_fault(library: ctypes.CDLL, text: bytes) -> str:
    fault: bytes | None = library.colloc_mode_fault(text)
    return fault.decode() if fault else ""


_NUMBERS = st.one_of(
    st.sampled_from(
        ["0", "1", "0.5", "30", "100", "100.5", "1e1", "+5", "-1", ".5", "5.", "nan", "inf", "0x10", "", "1."]
    ),
    st.floats(0, 200).map(str),
    st.text("0123456789.eE+- ", max_size=6),
)
_PARTS = st.tuples(
    st.sampled_from(["mem", "sm", "dram", " mem", "sm ", "MEM", "x", ""]),
    st.sampled_from(["=", " = ", "", "=="]),
    _NUMBERS,
    st.sampled_from(["", "%", " %", "G", "g", "GB", "GiB", " MiB", "K", "T", "P", "Gi", "GG", "%%"]),
).map("".join)
_TEXTS = st.one_of(
    st.lists(_PARTS, max_size=4).map(",".join), st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
)


@needs_headers
@given(text=_TEXTS)
@example(text="mem=6G,sm=30")
@example(text="mem=1.5 gib , sm=0.5% ,dram=100")
@example(text="mem=6G,sm=0.5")
@example(text="mem=6G,mem=6G")
@example(text="mem=" + "0" * 200 + ".1K")
def test_sbatch_takes_the_footprints_that_csub_takes(library: ctypes.CDLL, text: str) -> None:
    try:
        parse_hint(text)
        csub_takes = True
    except InputError:
        csub_takes = False
    assert (footprint_fault(library, text) == "") == csub_takes


@needs_headers
@given(text=st.binary(max_size=600).filter(lambda text: b"\0" not in text))
def test_any_bytes_are_judged_and_none_of_them_is_repeated(library: ctypes.CDLL, text: bytes) -> None:
    """What is said comes from a fixed list: nothing of a user's text is ever a format, or printed."""
    for judge in (library.colloc_mode_fault, library.colloc_footprint_fault):
        fault = judge(text) or b""
        assert len(fault) < 100
        assert fault or all(32 <= byte < 127 for byte in text)


@needs_headers
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"auto", ""),
        (b"off", ""),
        (b"exclusive:timing runs for a paper, 100% of it", ""),
        (b"exclusive:" + b"x" * 245, ""),
        (b"exclusive:" + b"x" * 246, "is longer than 255 bytes"),
        (b"exclusive:caf\xc3\xa9", "not printable ASCII"),
        (b"exclusive", "is none of auto, off and exclusive:REASON"),
        (b"exclusive: ", "lacks its reason"),
        (b"Auto", "is none of"),
        (b"", "is none of"),
    ],
)
def test_modes(library: ctypes.CDLL, text: bytes, fault: str) -> None:
    assert fault in mode_fault(library, text)
    assert bool(mode_fault(library, text)) == bool(fault)


def _headers(folder: Path, number: str) -> str:
    (folder / "include/slurm").mkdir(parents=True, exist_ok=True)
    (folder / "include/slurm/slurm_version.h").write_text(f"#define SLURM_VERSION_NUMBER {number}\n")
    return str(folder / "include")


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_headers_say_their_version_or_what_to_install(tmp_path: Path, printed: Printed) -> None:
    with printed.raises("site-build-plugin", InputError, "libslurm-dev"):
        of_headers(str(tmp_path))
    assert of_headers(_headers(tmp_path, "0x160508")) == Version(22, 5, 8)
    assert str(Version(22, 5, 8)) == "22.05.8"
    assert of_headers(_headers(tmp_path, "0x1a0505")).release == "26.05"
    with pytest.raises(InputError, match="no SLURM_VERSION_NUMBER"):
        of_headers(_headers(tmp_path, "SLURM_VERSION_NUM(20,2,7)"))


def test_the_running_slurm_says_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with printed.raises("site-build-plugin", ProcessError):
        of_programs("", 5)
    _program(tmp_path / "path/slurmd", 'test "$1" = -V && echo slurm-wlm 22.05.8')
    assert of_programs("", 5) == Version(22, 5, 8)
    _program(tmp_path / "path/sinfo", "echo slurm 24.11.5")
    assert of_programs("", 5) == Version(24, 11, 5)
    _program(tmp_path / "bin/sinfo", "echo slurm 26.05.5-rc1")
    assert of_programs(str(tmp_path), 5) == Version(26, 5, 5)
    _program(tmp_path / "bin/sinfo", "echo no version; exit 1")
    assert of_programs(str(tmp_path), 5) == Version(22, 5, 8)


def test_headers_of_another_release_are_refused_before_anything_is_compiled(tmp_path: Path, printed: Printed) -> None:
    _headers(tmp_path, "0x180b05")
    _program(tmp_path / "bin/sinfo", "echo slurm 26.05.5")
    assert colloc("site", "build-plugin", "--slurm-prefix", str(tmp_path), "-o", str(tmp_path / "x.so")) == 2
    printed("site-build-plugin", colloc.err)
    assert not (tmp_path / "x.so").exists()


@needs_headers
def test_a_failed_build_leaves_the_old_plugin(tmp_path: Path) -> None:
    output = tmp_path / "colloc_spank.so"
    output.write_bytes(b"old")
    with pytest.raises(ProcessError, match=r"'false .*ended with status 1"):
        build(HEADERS, "false", str(output), 60)
    assert (output.read_bytes(), os.listdir(tmp_path)) == (b"old", ["colloc_spank.so"])


@needs_headers
def test_what_was_built_has_what_slurm_looks_for(tmp_path: Path) -> None:
    output = tmp_path / "colloc_spank.so"
    build(HEADERS, "cc", str(output), 60)
    assert output.stat().st_mode & 0o777 == 0o644
    built = ctypes.CDLL(str(output), mode=os.RTLD_LAZY)
    assert all(hasattr(built, name) for name in ("slurm_spank_task_init", "slurm_spank_init", "plugin_name"))
    assert not hasattr(built, "slurm_spank_job_prolog"), "it starts nothing as root"
    assert (ctypes.c_char * 6).in_dll(built, "plugin_type").value == b"spank"
    number = ctypes.c_uint.in_dll(built, "plugin_version").value
    assert Version(number >> 16, number >> 8 & 0xFF, number & 0xFF) == of_headers(HEADERS)
