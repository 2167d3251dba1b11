# SPDX-License-Identifier: Apache-2.0
"""What csub takes for the same job: `python -m tests.pairs [HALF...]` judges pairs of submissions.

The pairs are in tests/recorded/job-pairs, whose README says what they are. Of each pair a run of the first submission
is recorded under what csub knows it by, and csub's own steps tell what is known of the second then: runs of the same
job, of nearly the same, or none. "Sized" is nearly the same where the estimate is larger at least in proportion to each
number that is larger, which is right of a job that is bigger; where the estimate says nothing, so does this. Figures by
class are printed of what is open alone, unless `--by-class` asks: who mends what is judged here is not to learn from
a half that is held out. `--names` says which pairs were taken for what they are not. A pair whose first submission is
not even known again says nothing of a bigger one: how many those are is the last line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.config_file import load_site
from slurm_colloc.core.errors import InputError, UnsureError
from slurm_colloc.core.model import COMPLETED, Evidence, JobRequest, SharingMode
from slurm_colloc.estimate.bounds import upper_bound
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.lookup import Known, look_up
from slurm_colloc.estimate.question import question
from slurm_colloc.estimate.records import drop_evidence
from slurm_colloc.estimate.signature import parts_of
from slurm_colloc.estimate.submitted import keep_submitted
from slurm_colloc.submit.own_options import parse_arguments
from slurm_colloc.submit.reasons import reason_against_history
from slurm_colloc.submit.request import build_request
from slurm_colloc.submit.submission import read_submission

TABLE = Path(__file__).parent / "recorded/job-pairs"
OPEN, KEPT_APART = (
    ("open", "habits-open", "later-open", "habits-kept-apart", "later-kept-apart"),
    ("held-out",),
)
HALVES = (*OPEN, *KEPT_APART, "habits-variants")
# A measure that no test asserts: a test that fails names pairs to who mends the code.
MEASURE = "fresh"
PRINTED = (*HALVES, MEASURE)
# Stands for the folder that a pair is laid out in.
HOME_OF_JOB = "HOME_OF_JOB"
_SITE = Path(__file__).parents[1] / "site-configs/h100-mps/site.toml"
_OLD_S = 7200.0
# Of this a CUDA context takes some, which does not grow.
_PEAK_MIB, _CONTEXT_MIB = 6144, 700.0

Which = Literal["first", "second"]
Answer = Literal["same", "near", "sized", "other"]
# A file's text, or its size where its content does not matter.
File = str | int


class Submission(NamedTuple):
    """What is submitted in which folder, relative to the home, and all files that are there then."""

    argv: tuple[str, ...]
    files: Mapping[str, File]
    env: Mapping[str, str]
    folder: str


class Pair(NamedTuple):
    """Two submissions; ``verdict`` is of the second's need against the first's: unchanged, bigger or unsure.

    ``edited`` are the files that are written between the two.
    """

    id: str
    kind: str
    like: str
    verdict: str
    why: str
    first: Submission
    second: Submission
    edited: frozenset[str]


def load(folder: Path) -> list[Pair]:
    """Return the pairs of all classes in one folder."""
    return [pair_of(row) for path in sorted(folder.glob("*.json")) for row in json.loads(path.read_text())]


def pair_of(row: Mapping[str, Any]) -> Pair:
    """Return a pair as a table has it, where of the second submission only what differs is written."""
    first, then = row["first"], row["second"]
    before = _files(first["files"])
    after = {**before, **_files(then.get("files", {}))}
    gone = {path for path, content in then.get("files", {}).items() if content is None}
    old = Submission(tuple(first["argv"]), before, first.get("env", {}), first.get("folder", ""))
    new = Submission(
        tuple(then.get("argv", old.argv)),
        {path: content for path, content in after.items() if path not in gone},
        {**old.env, **then.get("env", {})},
        then.get("folder", old.folder),
    )
    edited = frozenset(then.get("files", {}))
    return Pair(row["id"], row["class"], row["like"], row["verdict"], row["why"], old, new, edited)


def _files(given: Mapping[str, Any]) -> dict[str, File]:
    return {
        path: content["size"] if isinstance(content, dict) else content
        for path, content in given.items()
        if content is not None
    }


def materialise(pair: Pair, which: Which, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Lay out a submission below ``folder``, and return csub's arguments and the environment it is called in.

    The second is laid out over the first: what was not edited stays the file that it was. PWD is where to call csub.
    """
    wanted = pair.first if which == "first" else pair.second
    for path in pair.edited - set(wanted.files):
        (folder / path).unlink(missing_ok=True)
    for path, content in wanted.files.items():
        there = folder / path
        if which == "second" and path not in pair.edited and there.exists():
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        _write(there, content, folder)
        if which == "first":
            os.utime(there, (time.time() - _OLD_S,) * 2)
    submitted_from = folder / wanted.folder
    submitted_from.mkdir(parents=True, exist_ok=True)
    env = {"HOME": str(folder), "USER": "ann", "PATH": "/usr/bin:/bin", "PWD": str(submitted_from)}
    env |= {name: _placed(value, folder) for name, value in wanted.env.items()}
    return [_placed(word, folder) for word in wanted.argv], env


def _write(path: Path, content: File, folder: Path) -> None:
    if isinstance(content, int):
        with path.open("wb") as stream:
            stream.truncate(content)  # of no blocks: tables hold weights of many GB
    else:
        path.write_text(_placed(content, folder))
        if content.startswith("#!"):
            path.chmod(0o755)


def _placed(text: str, folder: Path) -> str:
    return text.replace(HOME_OF_JOB, str(folder))


def answer(pair: Pair) -> Answer:
    """Return what csub takes the second submission for after a run of the first."""
    site = load_site(str(_SITE))
    site = site._replace(paths=site.paths._replace(state=""))
    # A busy machine has nothing to do with it.
    slow = [patch(f"slurm_colloc.estimate.{name}._MOST_S", 60.0) for name in ("chosen", "files", "forms", "places")]
    with slow[0], slow[1], slow[2], slow[3], TemporaryDirectory() as place:
        home = Path(place, "ann")
        # What csub keeps stays apart, so that no pair finds it among its own files.
        own = {"XDG_DATA_HOME": f"{place}/data", "XDG_CACHE_HOME": f"{place}/cache"}
        argv, env = materialise(pair, "first", home)
        with _called_in(env, own):
            first = _request(argv, env, site)
            if first:
                keep_submitted(first.submitted)
                drop_evidence(user_data_folder(), _ran(first.signature))
        argv, env = materialise(pair, "second", home)
        with _called_in(env, own):
            second = _request(argv, env, site)
            if not first or not second:
                return "other"
            return _taken_for(first.signature, second, look_up(site, second.signature, None))


def known_again(pair: Pair) -> bool:
    """Return whether the first submission, submitted again as it was, is taken for the same."""
    return answer(pair._replace(second=pair.first, edited=frozenset())) == "same"


def is_wrong(pair: Pair, found: Answer) -> bool:
    """Return whether a pair was taken for what it is not."""
    return (pair.verdict == "bigger" and found in {"same", "near"}) or (pair.verdict == "unchanged" and found != "same")


def _taken_for(first: str, second: JobRequest, known: Known) -> Answer:
    if known.evidence:
        return "same"
    memory = estimate(question(second.signature, second.numbers, known)).gpu_mem_peak_mib
    before, after = parts_of(first), parts_of(second.signature)
    if not known.relatives or memory is None or not before or not after:
        return "other"
    ratio = math.prod(max(1.0, b / a) for a, b in zip(before.values or (), after.values or (), strict=True) if a > 0)
    in_proportion = _CONTEXT_MIB + (_PEAK_MIB - _CONTEXT_MIB) * ratio
    return "sized" if ratio > 1 and memory.q99 >= in_proportion else "near"


class _called_in:
    """A process's folder and environment, as csub would find them."""

    def __init__(self, env: Mapping[str, str], own: Mapping[str, str]) -> None:
        self._folder, self._environ = chdir(env["PWD"]), patch.dict(os.environ, {**env, **own}, clear=True)

    def __enter__(self) -> None:
        self._folder.__enter__()
        self._environ.start()

    def __exit__(self, *_: object) -> None:
        self._environ.stop()
        self._folder.__exit__(None, None, None)


def _request(argv: Sequence[str], env: Mapping[str, str], site: SiteConfig) -> JobRequest | None:
    """Return what csub makes of a submission; None where its history is not asked."""
    with suppress(UnsureError, InputError):
        line = parse_arguments(argv, site)
        submission = read_submission(line, env, None, site)
        if not reason_against_history(submission.text):
            return build_request(submission, (line.script, line.script_args), site, env)
    return None


def _ran(signature: str) -> Evidence:
    told = ("1001", signature, COMPLETED, SharingMode.EXCLUSIVE, "NVIDIA H100 80GB HBM3", _PEAK_MIB)
    return Evidence(*told, 20.0, 25.0, False, 700, 3500.0, time.time(), 3500.0)


class Judged(NamedTuple):
    """How many pairs of each class, and of all, were taken for what, and how many first ones were not known again."""

    counts: Mapping[str, Counter[tuple[str, Answer]]]
    forgotten: int
    wrong: Sequence[str]


def judged(pairs: Sequence[Pair]) -> Judged:
    """Return what csub takes pairs for."""
    counts: dict[str, Counter[tuple[str, Answer]]] = {"all": Counter()}
    wrong = []
    for pair in pairs:
        found = answer(pair)
        for name in (pair.kind, "all"):
            counts.setdefault(name, Counter())[pair.verdict, found] += 1
        if is_wrong(pair, found):
            wrong.append(f"{pair.id}: {pair.verdict}, taken for {found}: {pair.why}")
    return Judged(counts, sum(not known_again(pair) for pair in pairs), wrong)


def total(judged_halves: Sequence[Judged]) -> Judged:
    """Return what was counted of several halves, without classes."""
    counts = sum((half.counts["all"] for half in judged_halves), Counter[tuple[str, Answer]]())
    return Judged({"all": counts}, sum(half.forgotten for half in judged_halves), ())


def figures(half: Judged, *, by_class: bool) -> Iterator[str]:
    """Yield lines of how many pairs were taken for what."""
    names: tuple[Answer, ...] = ("same", "near", "sized", "other")
    yield " " * 18 + "".join(f"{name:>10}" for name in ("bigger", *names, "unchanged", *names))
    for name in [*sorted(set(half.counts) - {"all"}), "all"] if by_class else ["all"]:
        of = half.counts[name]
        cells = [[of[verdict, found] for found in names] for verdict in ("bigger", "unchanged")]
        yield f"{name:18}" + "".join(f"{cell:10}" for row in cells for cell in (sum(row), *row))
    (bigger, same, near, *_), (unchanged, known, nearly, *_) = ((sum(row), *row) for row in cells)
    yield f"bigger taken for the same: {_share(same, bigger)}; or for nearly the same: {_share(same + near, bigger)}"
    for what, count in (("the same", unchanged - known), ("nearly the same either", unchanged - known - nearly)):
        yield f"unchanged not taken for {what}: {count} of {unchanged}, {count / unchanged:.1%}"
    yield f"first ones not known when submitted again as they were: {half.forgotten}"


def _share(count: int, of: int) -> str:
    return f"{count} of {of}, {count / of:.1%} (with 95 % certainty below {upper_bound(count, of):.1%})"


def main() -> None:
    """Print today's figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.pairs", description=__doc__.partition("\n")[0])
    parser.add_argument("half", nargs="*", default=PRINTED, help=f"{', '.join(PRINTED)}, or a folder; all without any")
    parser.add_argument("--by-class", action="store_true", help="figures by class, of what is held out, too")
    parser.add_argument("--names", action="store_true", help="which pairs were taken for what they are not")
    args = parser.parse_args()
    halves = {name: judged(load(TABLE / name)) for name in args.half}
    for name, half in halves.items():
        print(f"{name}:", *(half.wrong if args.names else ()), sep="\n")
        print(*figures(half, by_class=args.by_class or name not in {*KEPT_APART, MEASURE}), sep="\n")
    for names in (OPEN, KEPT_APART) if args.half is PRINTED else ():
        print(f"{', '.join(names)}:", *figures(total([halves[name] for name in names]), by_class=False), sep="\n")


if __name__ == "__main__":
    main()
