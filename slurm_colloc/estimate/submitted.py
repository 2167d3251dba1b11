# SPDX-License-Identifier: Apache-2.0
"""The last submission of a script, to say what differs now, and to tell results from what it reads.

One small file for each script and folder, replaced whole. A file that appeared since is no difference where nothing
names it: the run before left it behind.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import private_folder, read_own, write_atomic
from slurm_colloc.core.model import Reason, because
from slurm_colloc.core.units import printable
from slurm_colloc.core.value_types import read_as
from slurm_colloc.estimate.content import COMPILED, OF_TOOLS, WRITTEN_BY_PROGRAMS, ending_of, kind_of
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.files import OF_LABEL, Read
from slurm_colloc.estimate.places import TooMuchError
from slurm_colloc.estimate.seeds_and_sizes import is_rate
from slurm_colloc.estimate.signature import Signature, but_numbers, parts_of
from slurm_colloc.estimate.texts import ENDING, Seen

_LIMIT_BYTES = 1024 * 1024
_MOST_LETTERS = 80
# A home holds texts of so many folders, and records of so many scripts: a launcher may write one for each run.
_MOST = {ENDING: 32, ".json": 256}
# A signature has these for a number, for a name that only tells runs apart, behind the last word, and for none.
_STANDS_FOR_OTHERS = frozenset(("#", "*", "$", ""))


class Submitted(NamedTuple):
    """A submission's words, its files by path, what these are known by, and what it was known by, with its numbers.

    ``forms`` has by path the key of a file, and its form, which stays however it is written; ``seen`` is by what it is
    known that nothing of all this has changed.
    """

    words: tuple[str, ...]
    files: Mapping[str, str]
    program: str
    known_by: str = ""
    names: tuple[str, ...] = ()
    forms: Mapping[str, tuple[str, ...]] = {}
    seen: Seen = Seen()

    @property
    def text(self) -> bytes:
        """Return what is written of it: no more than is read again."""
        text = json.dumps(self._asdict()).encode()
        is_long = self.seen.key and len(text) > _LIMIT_BYTES
        return self._replace(seen=Seen()).text if is_long else text


def path_of(folder: str, script: str, runs_in: str) -> str:
    """Return where it is kept what a script was submitted with in a folder."""
    key = digest(f"{runs_in}\0{script}")
    return os.path.join(folder, "submitted", f"{key}.json")


def read_submitted(path: str) -> Submitted | None:
    """Return what is kept; None where that is nothing, or cannot be used."""
    with suppress(StoreError, ValueError, TypeError, RecursionError):
        record: Submitted = read_as(Submitted, json.loads(read_own(path, _LIMIT_BYTES)))
        return record
    return None


def keep_submitted(texts: Sequence[tuple[str, bytes]]) -> None:
    """Replace what is kept in one folder: paths and their texts.

    Raises:
        StoreError: it cannot be written.
    """
    for path, text in texts:
        folder = os.path.dirname(path)
        for path_made in (os.path.dirname(folder), folder):  # either may be another user's link in a shared parent
            private_folder(path_made)
        write_atomic(path, text)
        _remove_oldest(folder, os.path.splitext(path)[1])


def _remove_oldest(folder: str, ending: str) -> None:
    """Remove files beyond the newest, and what killed submissions left of such, once they are a quarter too many."""
    most = _MOST[ending]
    with suppress(OSError):
        paths = [os.path.join(folder, name) for name in os.listdir(folder) if ending in name]
        # Under a home of 5 ms an operation each submission would ask all of them for their times.
        if len(paths) > most * 5 // 4:
            for path in sorted(paths, key=os.path.getmtime)[:-most]:
                os.unlink(path)


def compared(submission: Signature, last: Submitted | None) -> tuple[Signature, Submitted, Reason | None]:
    """Return a submission's signature, what is to be kept of it, and how it differs from the last; None: it does not.

    A file that only appeared since counts if a word names it, or if people write such; if the words are the same
    the run before did without, and the file counts from now on.
    """
    read, program = submission.read, submission.read.key
    submission = _as_last(submission, last)
    forms_before = _forms_before(read, last) if last and read.fits else {}
    forms_now, seen = _forms_now(read, forms_before) if read.fits else ({}, Seen())
    now = Submitted(submission.words, read.files, program, submission.text, submission.names, forms_now, seen)
    if not read.fits:
        return submission, now, because("too-many-files")
    if last is None:
        return submission, now, None
    as_before = {
        path: form == forms_before[path][1]
        for path, (_, form) in forms_now.items()
        if form and path in forms_before and but_numbers(form) == but_numbers(forms_before[path][1])
    }
    changed = [
        path for path, content in last.files.items() if path not in as_before and read.files.get(path) != content
    ]
    new = [path for path in read.files if path not in last.files]
    counted = [path for path in new if path.startswith(OF_LABEL)]
    try:
        counted += [
            path
            for path in new
            if (submission.words != last.words and path in read.named) or _is_written(path, last, read)
        ]
    except TooMuchError:
        return submission, now, because("too-many-files")
    if changed or counted:
        path = (changed or counted)[0]
        code = "file-new" if not changed else "file-edited" if path in read.files else "file-gone"
        return submission, now, because(code, path=_short(path))
    named = {path: read.files[path] for path in (*(path for path in new if path in read.named), *as_before)}
    before, _, folder = submission.text.rpartition("~")
    program = last.program
    if not all(as_before.values()):
        program = f"{but_numbers(program)}-{digest(repr(sorted(forms_now.values())), 4)}"
    text = f"{before.rpartition('~')[0]}~{program}~{folder}"
    files = {**last.files, **named}
    # A file that appeared and does not count may at the next look, by what the record has then.
    is_final = read.files.keys() <= files.keys() or (files, forms_now) == (last.files, last.forms)
    record = now._replace(files=files, program=program, known_by=text, seen=seen if is_final else Seen())
    return submission._replace(text=text), record, _other_word(submission.words, last.words)


def _forms_before(read: Read, last: Submitted) -> dict[str, tuple[str, ...]]:
    """Return the forms of the last submission's files, with those that can be made now that a file was edited."""
    forms_of = read.contents.texts.forms
    edited = ((path, key) for path, key in last.files.items() if read.files.get(path, key) != key)
    found: dict[str, tuple[str, ...]] = {path: (key, form) for path, key in edited if (form := forms_of(path).get(key))}
    return found | {path: pair for path, pair in last.forms.items() if len(pair) == 2}


def _forms_now(read: Read, before: Mapping[str, tuple[str, ...]]) -> tuple[dict[str, tuple[str, ...]], Seen]:
    """Return the forms of files, but for those that can be made once their file was edited, and what was seen.

    Edited files go first, then those that the job's words name. While some are missing nothing counts as seen.
    """
    found = {path: pair for path, pair in before.items() if read.files.get(path) == pair[0]}
    missing = [
        path
        for path in read.contents.keys() & read.files.keys() - found.keys()
        if path in before or not read.contents.texts.keeps(path, read.files[path])
    ]
    if missing:
        from slurm_colloc.estimate.forms import forms  # most submissions have no use for it

        missing.sort(key=lambda path: (path not in before, path not in read.named, path))
        found |= {path: (read.files[path], form) for path, form in forms(read.contents, missing).items()}
    return found, read.seen if found.keys() >= set(missing) else Seen()


def _is_written(path: str, last: Submitted, read: Read) -> bool:
    """Return whether a new file is one that people write and no run does: settings among others, apart from code.

    Or one that the program asks for, and does not write itself.
    """
    name, folder = os.path.basename(path), os.path.dirname(path)
    kind = kind_of(name)
    is_sourced = rf"(?m)(?:\bsource|(?:^|\s)\.) [\"']?(?:\S*/)?{re.escape(name)}(?![\w.-])"
    if name == ".env" or re.search(is_sourced, "\n".join(last.words)):
        return True
    if re.fullmatch(OF_TOOLS, name):
        return False
    if kind == "code" and ending_of(name) not in COMPILED:
        return read.contents.ask_for_own(path)
    if kind == "settings" and read.contents.ask_for_own(path):
        return True
    if kind != "settings" or ending_of(name) in WRITTEN_BY_PROGRAMS:
        return False
    above = [path for path in last.files if f"{folder}/".startswith(f"{os.path.dirname(path)}/")]
    code, settings = (
        {os.path.dirname(path) for path in above if kind_of(path) == kind} for kind in ("code", "settings")
    )
    return not code or bool(settings - code)


def _as_last(now: Signature, last: Submitted | None) -> Signature:
    """Return a submission as the last one of its script was known where they differ in order and in rates alone."""
    if last is None or now.text == last.known_by:
        return now
    from slurm_colloc.estimate.any_order import in_one_order  # the same job once more has no use for it

    if in_one_order(now.words) != in_one_order(last.words):
        return now
    written = now.text.partition(".")[2].partition("~")[0]
    values = written.split("_") if written else []
    by_name = dict(zip(now.names, values, strict=False))
    before = parts_of(last.known_by)
    if before is None or before.values is None:
        return now
    # A name that stands twice says nothing of its order.
    if not len(by_name) == len(now.names) == len(values) == len(last.names) or by_name.keys() != set(last.names):
        return now
    ordered = [
        was if is_rate(name) and float(was) and float(by_name[name]) else by_name[name]  # 0 turns off, as a dropout
        for name, was in zip(last.names, before.written.split("_"), strict=False)
    ]
    rest = now.text.partition("~")[2]
    text = f"{before.family}.{'_'.join(ordered)}~{rest}"
    return now._replace(text=text, names=last.names, words=last.words)


def _other_word(words: tuple[str, ...], last: tuple[str, ...]) -> Reason | None:
    ours, theirs = "\n".join(words).split(), "\n".join(last).split()
    for place, (one, other) in enumerate(zip((*ours, ""), (*theirs, ""), strict=False)):
        if one != other:
            if _STANDS_FOR_OTHERS & {one, other}:
                return because("arguments-differ")
            # A number alone would not say of which option it is.
            behind = " ".join(ours[max(0, place - 1) : place])
            word, before = (_short(f"{behind} {word}".strip()) for word in (one, other))
            return because("word-differs", word=word, before=before)
    return None


def _short(text: str) -> str:
    return printable(text)[-_MOST_LETTERS:]
