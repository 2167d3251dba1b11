# SPDX-License-Identifier: Apache-2.0
"""What was read of a project is not read again, and makes no job another or the same that it would not be without."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.estimate import chosen, files, forms, places, texts
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.signature import Signature, signature
from slurm_colloc.estimate.submitted import compared, keep_submitted, path_of, read_submitted
from slurm_colloc.estimate.texts import Text, Texts

MODULES = 40
Submit = Callable[[str], Signature]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of modules that import each other, old enough for what is read of them to be kept."""
    monkeypatch.setattr(places, "_SETTLED_NS", 0)
    for module in (chosen, files, places):
        monkeypatch.setattr(module, "_MOST_S", 60)
    folder = tmp_path / "job"
    folder.mkdir()
    for number in range(MODULES):
        (folder / f"part{number}.py").write_text(
            f"import part{number + 1}\nsize = {number}\nopen('/data/c{number}.yaml')"
        )
    (folder / "train.py").write_text("import part0\nimport sys\nsys.path.append('lib')\nos.listdir('sets')")
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that are read from now on."""
    names: list[str] = []
    real = chosen._text_of

    def text_of(path: str, kind: str, content: bytes) -> Text:
        names.append(os.path.basename(path))
        return real(path, kind, content)

    monkeypatch.setattr(chosen, "_text_of", text_of)
    return names


def submitted(folder: Path, *args: str) -> Signature:
    """Submit, as csub does, and return what the job is known by."""
    texts = Texts(str(folder.parent / "own"), str(folder))
    found = signature(b"#!/bin/sh\npython train.py\n", args, 1, (), {"HOME": "/home/ann"}, str(folder), texts=texts)
    assert found == signature(b"#!/bin/sh\npython train.py\n", args, 1, (), {"HOME": "/home/ann"}, str(folder))
    if texts.written():
        keep_submitted([(texts.path, texts.written())])
    return found


def reads(folder: Path, read: list[str], *args: str) -> int:
    """Return how many files a submission reads, beside those of the one that keeps nothing."""
    read.clear()
    found = submitted(folder, *args)
    return len(read) - len(found.read.files)


def test_what_is_as_it_was_is_read_once_whatever_the_arguments(project: Path, read: list[str]) -> None:
    assert reads(project, read) == MODULES + 1
    assert reads(project, read) <= 16
    assert reads(project, read, "--lr", "0.1") <= 16
    [kept] = (project.parent / "own/submitted").iterdir()
    release, head, *contents = kept.read_bytes().split(b"\0")[:-1]
    # Another process has the words of a file in another order.
    other = {
        path: [mark, key, [" ".join(reversed(words.split())) for words in of_words], *more]
        for path, (mark, key, of_words, *more) in json.loads(head).items()
    }
    body = b"\0".join([release, json.dumps(other).encode(), *contents])
    text = body + b"\0" + digest(body).encode()
    kept.write_bytes(text)
    submitted(project)
    assert kept.read_bytes() == text


@pytest.mark.parametrize("name", ["part3.py", "part30.py"])
def test_what_has_changed_is_read_though_its_size_and_time_are_as_before(
    project: Path, read: list[str], name: str
) -> None:
    before, path = submitted(project), project / name
    found = path.stat()
    path.write_text(path.read_text().replace("size", "Size"))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    after = submitted(project)
    assert before.text != after.text
    assert (reads(project, read) <= 16, submitted(project)) == (True, after)


def test_what_has_only_just_changed_is_read_again(
    project: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_SETTLED_NS", 3_600_000_000_000)
    assert [reads(project, read) for _ in range(2)] == [MODULES + 1] * 2
    assert not (project.parent / "own").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-1],
        lambda text: text.replace("size", "Size", 1),
        lambda text: text.replace(", {}]", "]"),
        lambda text: text.replace('", ["', '", [1, "'),
        lambda text: text.replace(", true, true, [", ", true, true, 1, ["),
        lambda text: "{}\n{}\n",
    ],
)
def test_what_is_kept_and_damaged_is_nothing(project: Path, read: list[str], damage: Callable[[str], str]) -> None:
    before = submitted(project)
    [kept] = (project.parent / "own/submitted").iterdir()
    assert kept.read_text() != damage(kept.read_text())
    kept.write_text(damage(kept.read_text()))
    read.clear()
    assert submitted(project) == before
    assert read.count("part30.py") == 2
    assert reads(project, read) <= 16


def test_what_another_release_kept_is_nothing(project: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    submitted(project)
    monkeypatch.setattr(texts, "__version__", "0")
    assert reads(project, read) == MODULES + 1


@pytest.mark.parametrize("is_slow", [False, True])
def test_files_whose_texts_are_kept_are_read_for_a_bounded_time(
    project: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    submitted(project)
    last = compared(submitted(project), None)[1]
    (project / f"part{MODULES}.py").write_text("size = 1")
    texts = Texts(str(project.parent / "own"), str(project))
    now = signature(b"#!/bin/sh\npython train.py\n", (), 1, (), {"HOME": "/home/ann"}, str(project), texts=texts)
    monkeypatch.setattr("slurm_colloc.estimate.forms._MOST_S", -1.0)
    paths, clock, real = list[str](), [0.0], places.content_of

    def content_of(path: str, most_bytes: int, known: str = "") -> tuple[bytes, int, str]:
        paths.append(path)
        clock[0] += 25.0 * is_slow
        return real(path, most_bytes, known)

    monkeypatch.setattr(chosen, "content_of", content_of)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    code = "too-many-files" if is_slow else "file-new"
    difference = compared(now, last)[2]
    assert difference is not None
    assert (difference.code, len(paths) == 3) == (code, is_slow)


@pytest.fixture
def formed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the contents of which a form is made from now on."""
    contents: list[bytes] = []
    real = forms.form_of

    def form_of(content: bytes, ending: str) -> str:
        contents.append(content)
        return real(content, ending)

    monkeypatch.setattr(forms, "form_of", form_of)
    monkeypatch.setattr(forms, "_MOST_S", 60)
    monkeypatch.setattr(texts, "_MOST_S", 60)
    return contents


def resubmitted(folder: Path, script: str = "job.sh") -> str:
    """Submit, as csub does, a script that may have been submitted before; return what differs."""
    own = str(folder.parent / "own")
    path = path_of(own, script, str(folder))
    kept = Texts(own, str(folder))
    found = signature(b"#!/bin/sh\npython train.py\n", (), 1, (), {"HOME": "/home/ann"}, str(folder), texts=kept)
    _, now, difference = compared(found, read_submitted(path))
    keep_submitted([(path, text) for path, text in ((path, now.text), (kept.path, kept.written())) if text])
    return difference.code if difference else ""


def test_a_form_is_made_once_its_file_was_edited(project: Path, formed: list[bytes]) -> None:
    edited = project / "part30.py"
    assert (resubmitted(project), resubmitted(project, "other.sh"), formed) == ("", "", [])
    # Blanks within a line count for what is read of a file, and are no other program.
    for text in ("size  =  30", "size   =   30", "size =    30"):
        edited.write_text(f"import part31\n{text}\nopen('/data/c30.yaml')")
        assert resubmitted(project) == ""
    assert 0 < len(formed) <= 8
    # The other script was last submitted with what the file was three edits ago.
    assert resubmitted(project, "other.sh") == ""
    edited.write_text("import part31\nsize = 31\nopen('/data/c30.yaml')")
    assert (resubmitted(project), resubmitted(project, "other.sh")) == ("file-edited", "file-edited")


def test_a_form_of_what_is_not_kept_is_made_at_once(
    project: Path, formed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_SETTLED_NS", 3_600_000_000_000)
    assert (resubmitted(project), len(formed)) == ("", MODULES + 1)
    (project / "part30.py").write_text("import part31\nsize  =  30\nopen('/data/c30.yaml')")
    assert resubmitted(project) == ""


def looked_up(folder: Path, *args: str, script: bytes = b"#!/bin/sh\npython train.py\n") -> tuple[bool, str]:
    """Submit, as csub does; return whether all was taken for what it was, and what differs."""
    own = str(folder.parent / "own")
    path = path_of(own, "job.sh", str(folder))
    last = read_submitted(path)
    kept = Texts(own, str(folder))
    if last:
        kept.last = last.files, last.seen
    found, plain = (
        signature(script, args, 1, (), {"HOME": "/home/ann"}, str(folder), texts=one) for one in (kept, None)
    )
    known_by, now, difference = compared(found, last)
    known_by_plain, _, difference_plain = compared(plain, last)
    assert (known_by.text, difference) == (known_by_plain.text, difference_plain)
    keep_submitted([(path, text) for path, text in ((path, now.text), (kept.path, kept.written())) if text])
    return not found.read.contents, difference.code if difference else ""


def test_the_same_once_more_opens_none_of_its_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = list[str](), os.open

    def open_file(path: str, flags: int, mode: int = 0o777) -> int:
        opened.append(path)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "major", lambda device: 8)
    assert [looked_up(project) for _ in range(2)] == [(False, ""), (True, "")]
    last = read_submitted(path_of(str(project.parent / "own"), "job.sh", str(project)))
    assert last is not None
    texts = Texts(str(project.parent / "own"), str(project))
    texts.last = last.files, last.seen
    monkeypatch.setattr(os, "open", open_file)
    found = signature(b"#!/bin/sh\npython train.py\n", (), 1, (), {"HOME": "/home/ann"}, str(project), texts=texts)
    assert (opened, compared(found, last)[1:]) == ([], (last, None))
    # A network file system may tell times of a minute ago of what is not opened.
    monkeypatch.setattr(os, "major", lambda device: 0)
    signature(b"#!/bin/sh\npython train.py\n", (), 1, (), {"HOME": "/home/ann"}, str(project), texts=texts)
    assert {os.path.basename(path) for path in opened} >= {"train.py", "part0.py", "part39.py"}


def edit_within(folder: Path, name: str, text: str, other: str) -> None:
    found = (folder / name).stat()
    (folder / name).write_text((folder / name).read_text().replace(text, other))
    os.utime(folder / name, ns=(found.st_atime_ns, found.st_mtime_ns))


def make_other(folder: Path) -> None:
    (folder / "new").write_text((folder / "part9.py").read_text().replace("size = 9", "size = 8"))
    os.replace(folder / "new", folder / "part9.py")


def link_to(folder: Path, name: str) -> None:
    (folder / "set.py").unlink(missing_ok=True)
    (folder / "set.py").symlink_to(f"../{name}")


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda folder: edit_within(folder, "part30.py", "size", "Size"), "file-edited"),
        (make_other, "file-edited"),
        (lambda folder: (folder / "part9.py").unlink(), "file-gone"),
        (lambda folder: (folder / f"part{MODULES}.py").write_text("size = 1"), "file-new"),
        (lambda folder: link_to(folder, "two.py"), "file-edited"),
        (lambda folder: edit_within(folder.parent, "one.py", "1", "2"), "file-edited"),
        (lambda folder: (folder / "data/part.bin").write_bytes(b"." * 900), "file-edited"),
        (lambda folder: (folder / "data/more.bin").write_bytes(b"." * 900), "file-edited"),
        (lambda folder: edit_within(folder, "data/set.yaml", "1", "2"), "file-edited"),
        (lambda folder: (folder.parent / "shared/a.yaml").write_text("b: 1"), "file-edited"),
        (lambda folder: (folder.parent / "lead/b.yaml").write_text("b: 1"), "file-new"),
        (lambda folder: (folder / "config.yaml").write_text("b: 1"), ""),
        (lambda folder: (folder / "slurm-1.out").write_text("b: 1"), None),
    ],
)
def test_what_has_changed_since_is_seen(project: Path, change: Callable[[Path], object], differs: str | None) -> None:
    above = project.parent
    for name, text in (("one.py", "n = 1"), ("two.py", "n = 2"), ("shared/a.yaml", "a: 1"), ("lead/c.txt", "")):
        (above / name).parent.mkdir(exist_ok=True)
        (above / name).write_text(text)
    (project / "data").mkdir()
    (project / "data/part.bin").write_bytes(b"." * 100)
    (project / "data/set.yaml").write_text("a: 1")
    (project / "settings.yaml").write_text("a: 1")
    link_to(project, "one.py")
    program = project / "train.py"
    program.write_text(f"{program.read_text()}\nimport set\nopen('../shared/a.yaml')\nopen('../lead/b.yaml')")
    args = ("--data", "data/*")
    assert [looked_up(project, *args) for _ in range(2)] == [(False, ""), (True, "")]
    change(project)
    assert looked_up(project, *args) == (differs is None, differs or "")
    assert looked_up(project, *args, "--lr", "0.1")[0] is False


def test_a_file_that_appeared_and_is_not_named_counts_once_it_stayed(tmp_path: Path, project: Path) -> None:
    folder, left = tmp_path / "small", tmp_path / "small/left.json"
    folder.mkdir()
    (folder / "train.py").write_text("import sys")
    assert [looked_up(folder) for _ in range(2)] == [(False, ""), (True, "")]
    left.write_text('{"a": 1}')
    assert [looked_up(folder) for _ in range(3)] == [(False, ""), (False, ""), (True, "")]
    left.write_text('{"a": 2}')
    assert looked_up(folder) == (False, "file-edited")


def test_of_data_the_size_is_seen_and_it_is_not_opened(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "major", lambda device: 0)
    (project / "data").mkdir()
    for number in range(20):
        (project / f"data/{number}.npy").write_bytes(b"." * 100)
    opened, real = list[str](), os.open

    def open_file(path: str, *given: int, **named: Any) -> int:
        opened.append(os.path.splitext(path)[1])
        return real(path, *given, **named)

    monkeypatch.setattr(os, "open", open_file)
    args = ("--data", "data/*")
    assert [looked_up(project, *args) for _ in range(2)] == [(False, ""), (True, "")]
    assert ".npy" not in opened
    (project / "data/3.npy").write_bytes(b"." * 900)
    assert looked_up(project, *args) == (False, "file-edited")


def test_a_look_in_vain_leaves_the_files_their_time(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up(project)
    (project / "train.py").write_text("import part0\nsize = 2")
    clock, real = [0.0], places.mark_of

    def mark_of(path: str, *before: str) -> str:
        clock[0] += 70.0
        return real(path, *before)

    monkeypatch.setattr("slurm_colloc.estimate.files.mark_of", mark_of)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    assert looked_up(project)[1] == "file-edited"


def test_what_is_looked_at_for_too_long_is_no_look_to_begin_with(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "data").mkdir()
    (project / "data/a.npy").write_bytes(b"." * 100)
    clock, real = [0.0], places.mark_of

    def mark_of(path: str, *before: str) -> str:
        clock[0] += 70.0 * path.endswith(".npy")
        return real(path, *before)

    monkeypatch.setattr("slurm_colloc.estimate.texts.mark_of", mark_of)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    assert [looked_up(project, "--data", "data/*") for _ in range(2)] == [(False, "")] * 2


def test_what_is_too_long_to_be_read_again_is_kept_without_what_was_seen(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(str(project.parent / "own"), "job.sh", str(project))
    looked_up(project)
    whole = read_submitted(path)
    assert whole is not None
    monkeypatch.setattr("slurm_colloc.estimate.submitted._LIMIT_BYTES", len(whole.text) - 1)
    assert [looked_up(project) for _ in range(2)] == [(False, "")] * 2
    kept = read_submitted(path)
    assert kept is not None
    assert (kept.files, kept.seen.key) == (whole.files, "")


def test_a_tools_variables_stand_in_one_order(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, real = list[files.Job](), files.files_of

    def files_of(job: files.Job, texts: Texts) -> files.Read:
        jobs.append(job)
        return real(job, texts)

    monkeypatch.setattr("slurm_colloc.estimate.signature.files_of", files_of)
    variables = {f"APPTAINER_{name}": f"{name}1" for name in "ABCDEFGH"}
    signature(b"#!/bin/sh\napptainer run a.sif\n", (), 1, (), variables, str(project))
    assert re.findall(r"^[A-H]1$", jobs[0].text, re.MULTILINE) == [f"{name}1" for name in "ABCDEFGH"]


def test_nothing_that_has_only_just_changed_counts_as_seen(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_SETTLED_NS", 3_600_000_000_000)
    assert [looked_up(project) for _ in range(2)] == [(False, "")] * 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: {**record, "seen": []},
        lambda record: {**record, "seen": ["", {}]},
        lambda record: {**record, "seen": [record["seen"][0], {"/nowhere": 1}, []]},
        lambda record: {**record, "seen": [record["seen"][0], {}, []]},
        lambda record: {**record, "seen": [*record["seen"][:2], ["LR"]]},
        lambda record: {**record, "seen": [record["seen"][0], {**record["seen"][1], "\0": "1"}, []]},
        lambda record: {**record, "seen": {"key": 1}},
        lambda record: {key: value for key, value in record.items() if key != "seen"},
    ],
)
def test_what_was_seen_and_is_damaged_is_nothing(project: Path, damage: Callable[[Any], Any]) -> None:
    assert looked_up(project) == (False, "")
    path = Path(path_of(str(project.parent / "own"), "job.sh", str(project)))
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    assert [looked_up(project) for _ in range(2)] == [(False, ""), (True, "")]


def test_a_few_files_are_read_without_a_look_at_what_is_kept(project: Path) -> None:
    (project / "part5.py").write_text("")
    submitted(project)
    assert not (project.parent / "own").exists()


def test_texts_of_the_newest_projects_are_kept(project: Path) -> None:
    own = project.parent / "own/submitted"
    submitted(project)
    [kept] = own.iterdir()
    (own / f"{kept.name}.0123456789ab.new").write_text("")
    other = own / "script.json"
    other.write_text("")
    for at_s, path in enumerate((other, kept, own / f"{kept.name}.0123456789ab.new")):
        os.utime(path, (at_s, at_s))
    for number in range(40):
        (own / f"{number}.texts").write_text("")
        os.utime(own / f"{number}.texts", (100 + number,) * 2)
    submitted(project, "again")
    keep_submitted([(str(own / "last.texts"), b"")])
    assert sorted(path.name for path in own.iterdir()) == sorted(
        ["script.json", "last.texts", *(f"{number}.texts" for number in range(9, 40))]
    )


def test_records_of_the_newest_scripts_are_kept(tmp_path: Path) -> None:
    """A launcher that writes a script for each run would fill a home."""
    own = tmp_path / "submitted"
    for number in range(320):
        keep_submitted([(str(own / f"{number}.json"), b"")])
        os.utime(own / f"{number}.json", (number,) * 2)
    assert len(list(own.iterdir())) == 320
    keep_submitted([(str(own / "last.json"), b"")])
    assert {path.name for path in own.iterdir()} == {"last.json", *(f"{number}.json" for number in range(65, 320))}
