# SPDX-License-Identifier: Apache-2.0
"""Mutates the queries of the accounting, one place at a time, and prints what no test notices.

Mutation testing tools change Python. Here a query of a room is changed, but for its comments, and a process of its own
runs the tests: ``python -m tests.mutate_sql [--every N] [--quick] [--at LINE:COLUMN,..] [NAME..]``
"""

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest

import slurm_colloc
from slurm_colloc.store import queries

PACKAGE = Path(slurm_colloc.__file__).parent
# The tests that take a second or two of each query; the golden suite, a minute, comes last.
_QUERIES = {
    "test_aggregate test_gpu_equivalent test_compact": "day_runs device digests host inside peak pieces unit",
    "test_aggregate test_gpu_equivalent": "counted_hours idle_s job_usage near once open outdated runs usage",
    "test_cli_accounting test_lost": "endless kept other_rows run_count unaccounted",
    "test_gpu_equivalent test_cli_accounting": "decided_runs predictions runs_by_csub",
    "test_user_histories": "evidence level measured passes",
    "test_over_time test_page": "bin_parts bins cut group_bins hours idlest_runs over_time quarters run_bins sampled "
    "util_against_sm week week_parts",
    "test_usage test_cli_accounting": "groups",
    "test_run_rows test_sacct test_jobstats test_tres_usage": "reason settled steps taken text_values",
    "test_fits test_same_fit": "fits measured_alone run_fits",
    "test_audit_runs test_audit": "answer audited_nodes audited_runs idle_units",
    "test_col001 test_col001_tail test_col001_empty test_col001_running": "idle_runs",
    "test_col001 test_col001_tail test_col003 test_col012": "judged_runs",
    "test_first_look test_same_fit": "remedies",
    "test_several_by": "several_by",
    "test_fairness": "fairness",
    "test_holders": "runs_held",
    "test_several_gpus": "runs_of_several several_gpus units_of_several",
    "test_report_shadow test_shadow": "shadow_decisions shadow_judged shadow_pieces",
    "test_harm": "harm_runs",
    "test_bootstrap": "submitted_runs",
    "test_nvidia_smi_csv": "gpu_runs",
    "test_past_runs": "past_runs",
    "test_harm test_fairness test_holders test_nvidia_smi_csv": "sized",
    "test_library": "run_decisions run_shares",
    "test_one_job": "devices hours_of_job pieces_of_job",
}
TESTS = {name: tests.split() for tests, names in _QUERIES.items() for name in names.split()}
GOLDEN = "test_golden_accounting"
LIMIT_S = 240

_SWAPS = {
    r"<=": ("<",),
    r"<(?![=>])": ("<=",),
    r">=": (">",),
    r"(?<!-)>(?!=)": (">=",),
    r"!=": ("=",),
    r"(?<= )=(?= )": ("!=",),
    r"\bAND\b": ("OR",),
    r"\bOR\b(?! REPLACE)": ("AND",),
    r"\bNOT (?!MATERIALIZED|NULL)": ("",),
    r"\bIS NULL": ("IS NOT NULL",),
    r"\bIS NOT NULL": ("IS NULL",),
    r"\bgreatest\(": ("least(",),
    r"\bleast\(": ("greatest(",),
    r"\bmin\(": ("max(",),
    r"\bmax\(": ("min(",),
    r" \+ ": (" - ",),
    r" - ": (" + ",),
    r" / ": (" * ",),
    r"(?<!SELECT) \* (?!REPLACE|EXCLUDE|FROM)": (" / ",),
    r" FILTER \((?:[^()]|\([^()]*\))*\)": ("",),
    r"\b3600\b": ("60",),
    r"\b24\b": ("23",),
    r"\b60\b": ("61",),
    r"\b100\b": ("1",),
    r"\b1e6\b": ("1e3",),
    r"\b3\.6e9\b": ("3.6e6",),
    r"\b3\.6e6\b": ("3.6e3",),
    r"(?<![$.\w{])0(?![.\w])": ("1",),
    r"(?<![$.\w{])1(?![.\w])": ("2",),
    r"\$since": ("$until",),
    r"\$until": ("$since",),
    r"\$now": ("$until",),
    r"\bDISTINCT ": ("",),
    r"\bLEFT JOIN\b": ("JOIN",),
    r"\bUNION ALL\b": ("UNION",),
    r" DESC\b": ("",),
    r"\btrue\b": ("false",),
    r"\bfalse\b": ("true",),
}
# A call is replaced by its first argument.
_UNWRAPPED = re.compile(r"\b(?:coalesce|nullif|greatest|least|round|if)\(")


class Mutant(NamedTuple):
    """A query with one place changed."""

    name: str
    line: int
    column: int
    was: str
    now: str
    source: str

    def __str__(self) -> str:
        return f"{self.name}.sql:{self.line}:{self.column}: '{self.was}' -> '{self.now}'"


def mutants(name: str, source: str) -> Iterator[Mutant]:
    """Yield each mutant of a query."""
    for begin, end in _lines(source):
        places = [
            (match.start(), match.end(), new)
            for pattern, news in _SWAPS.items()
            for match in re.compile(pattern).finditer(source, begin, end)
            for new in news
        ]
        for match in _UNWRAPPED.finditer(source, begin, end):
            stop, first = _call(source, match.end(), end)
            if stop:
                places.append((match.start(), stop, f"({first})"))
        for start, stop, new in sorted(places):
            line = source.count("\n", 0, start) + 1
            column = start - source.rfind("\n", 0, start)
            changed = source[:start] + new + source[stop:]
            yield Mutant(name, line, column, " ".join(source[start:stop].split()), new, changed)


def _lines(source: str) -> Iterator[tuple[int, int]]:
    """Yield where the lines of a query begin and end, without those that are comments."""
    begin = 0
    for line in source.splitlines(keepends=True):
        if not line.lstrip().startswith("--"):
            yield begin, begin + len(line)
        begin += len(line)


def _call(source: str, begin: int, end: int) -> tuple[int, str]:
    """Return where the call whose arguments begin here ends, and its first argument; 0 where there is but one."""
    depth, first = 0, ""
    for at in range(begin, end):
        if source[at] in "([{":
            depth += 1
        elif source[at] in ")]}" and depth:
            depth -= 1
        elif source[at] == "," and not depth and not first:
            first = source[begin:at]
        elif source[at] == ")":
            return (at + 1 if first else 0), first
    return 0, ""


def attempt(mutant: Mutant, tests: Sequence[str]) -> None:
    """Exit with what pytest says of the mutant, 1 for a test that fails."""
    of_file = queries.text_of
    changed = {mutant.name: mutant.source}
    setattr(queries, "text_of", lambda file: changed.get(Path(file).name) or of_file(file))  # noqa: B010
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not hypothesis", *tests])
    os._exit(status)


def main(argv: Sequence[str]) -> None:
    """Run the tests with each mutant and print the survivors."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate_sql", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TESTS)}; all by default")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try each Nth only")
    parser.add_argument("--quick", action="store_true", help="without the golden suite")
    parser.add_argument("--at", default="", metavar="LINE:COLUMN,...", help="only those at these places")
    asked = parser.parse_args(argv)
    context = get_context("forkserver")
    context.set_forkserver_preload(["pytest", "hypothesis", "duckdb", "typer", "ClusterShell.NodeSet"])

    def status(mutant: Mutant) -> int | None:
        names = (*TESTS[mutant.name], *(() if asked.quick else (GOLDEN,)))
        tests = [f"tests/unit/{name}.py" for name in names]
        process = context.Process(target=attempt, args=(mutant, tests))
        process.start()
        process.join(LIMIT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        return process.exitcode

    places = asked.at.split(",")
    for query in asked.names or TESTS:
        (path,) = PACKAGE.rglob(f"{query}.sql")
        source = path.read_text(encoding="utf-8")
        found = [one for one in mutants(query, source) if not asked.at or f"{one.line}:{one.column}" in places]
        found = found[:: asked.every]
        counts = {"killed": 0, "survived": 0, "unsure": 0}
        with ThreadPoolExecutor(2) as pool:
            for mutant, code in zip(found, pool.map(status, found), strict=True):
                # 1: a test failed. 2 and 3: it could not be collected. Killed by the limit: it hangs.
                verdict = "survived" if code == 0 else "killed" if code in (1, 2, 3, -9) else "unsure"
                counts[verdict] += 1
                print(f"{sum(counts.values())}/{len(found)} ", end="", file=sys.stderr, flush=True)
                if verdict != "killed":
                    print(f"{verdict} ({code}): {mutant}", flush=True)
        print(f"{query}: {len(found)} mutants, {', '.join(f'{count} {name}' for name, count in counts.items())}")


if __name__ == "__main__":
    main(sys.argv[1:])
