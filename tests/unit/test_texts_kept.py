# SPDX-License-Identifier: Apache-2.0
"""What was read of a project is not read again, and makes no job another or the same that it would not be without."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc.estimate import chosen, files, forms, places, texts
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
    _, head, contents = kept.read_text().split("\n", 2)
    # Another process has the words of a file in another order.
    other = {
        path: [mark, key, [" ".join(reversed(words.split())) for words in of_words], *more]
        for path, (mark, key, of_words, *more) in json.loads(head).items()
    }
    text = texts._sealed(json.dumps(other), contents)
    kept.write_text(text)
    submitted(project)
    assert kept.read_text() == text


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
    keep_submitted([(str(own / "last.texts"), "")])
    assert sorted(path.name for path in own.iterdir()) == sorted(
        ["script.json", "last.texts", *(f"{number}.texts" for number in range(9, 40))]
    )
