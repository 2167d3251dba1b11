# SPDX-License-Identifier: Apache-2.0
"""Mutates the queries of the accounting, one place at a time, and prints what no test notices.

Mutation testing tools change Python and leave strings alone. Here a string that holds SQL is changed where it stands in
the source, f-string or not, and a process of its own runs the tests with the changed module in place of the module:
``python -m tests.mutate_sql [--every N] [--quick] [--at LINE:COLUMN,...] [aggregate usage runs sql/unit ...]``. Queries
in files (``sql/NAME``) are changed as a whole, but for their comments.
"""

import argparse
import ast
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import pytest

from slurm_colloc.accounting import parquet

PACKAGE = "slurm_colloc.accounting"
# Those that take a second or two; the golden suite, a minute, comes last.
TESTS = {
    "aggregate": ("test_aggregate", "test_gpu_equivalent"),
    **{
        f"sql/{name}": ("test_aggregate", "test_gpu_equivalent", "test_compact")
        for name in ("pieces", "inside", "unit", "peak", "host", "device")
    },
    **{f"sql/{name}": ("test_user_histories",) for name in ("passes", "evidence", "level", "measured")},
    **{f"sql/{name}": ("test_over_time",) for name in ("hours", "cut", "bin_parts", "week_parts")},
    "usage": ("test_usage", "test_cli_accounting"),
    "runs": ("test_run_rows", "test_sacct", "test_jobstats", "test_tres_usage"),
}
GOLDEN = "test_golden_accounting"
LIMIT_S = 240

_SQL = re.compile(r"\b(?:SELECT|FROM|WHERE|CASE|WHEN|FILTER|IS NULL|IS NOT NULL)\b|\b(?:sum|coalesce|nullif|epoch)\(")
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
    """A module's source with one place changed."""

    module: str
    line: int
    column: int
    was: str
    now: str
    source: str

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line}:{self.column}: '{self.was}' -> '{self.now}'"


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Yield each mutant of the queries in a module that is still Python, or of a query in a file."""
    in_file = module.startswith("sql/")
    for begin, end in _lines(source) if in_file else _queries(source):
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
            changed = source[:start] + new + source[stop:]
            with contextlib.suppress(SyntaxError):
                if not in_file:
                    ast.parse(changed)
                line = source.count("\n", 0, start) + 1
                column = start - source.rfind("\n", 0, start)
                yield Mutant(module, line, column, " ".join(source[start:stop].split()), new, changed)


def _lines(source: str) -> Iterator[tuple[int, int]]:
    """Yield where the lines of a query begin and end, without those that are comments."""
    begin = 0
    for line in source.splitlines(keepends=True):
        if not line.lstrip().startswith("--"):
            yield begin, begin + len(line)
        begin += len(line)


def _queries(source: str) -> list[tuple[int, int]]:
    """Return where strings with SQL in them begin and end, f-strings whole."""
    tree = ast.parse(source)
    lines = [len(line.encode()) for line in source.splitlines(keepends=True)]
    assert len(source) == len(source.encode()), "columns are of bytes"
    found: list[tuple[int, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            for item in node.body:
                if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
                    item.value.value = ""  # documentation
        text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        if not text or (isinstance(node, ast.Constant) and not node.value):
            continue
        assert isinstance(node, ast.expr)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = sum(lines[: node.lineno - 1]) + node.col_offset
        end = sum(lines[: node.end_lineno - 1]) + node.end_col_offset
        inside = any(a <= begin and end <= b for a, b in found)
        if not inside and _SQL.search(source, begin, end):
            found.append((begin, end))
    return found


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


class Changed(SourceFileLoader):
    """Gives the import the changed source of one module."""

    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(f"{PACKAGE}.{mutant.module}", path)
        self._source = mutant.source

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of that module."""
        return spec_from_loader(name, self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        """Compile it, past the cache."""
        return compile(self._source, self.path, "exec")


def attempt(mutant: Mutant, path: str, tests: Sequence[str]) -> None:
    """Exit with what pytest says of the mutant, 1 for a test that fails."""
    if mutant.module.startswith("sql/"):
        of_file = parquet.text_of
        changed = {mutant.module: mutant.source}
        setattr(parquet, "text_of", lambda name: changed.get(f"sql/{name}") or of_file(name))  # noqa: B010
    else:
        sys.meta_path.insert(0, Changed(mutant, path))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not hypothesis", *tests])
    assert mutant.module.startswith("sql/") or f"{PACKAGE}.{mutant.module}" in sys.modules
    os._exit(status)


def _path(folder: Path, module: str) -> Path:
    return folder / f"{module}{'.sql' if module.startswith('sql/') else '.py'}"


def main(argv: Sequence[str]) -> None:
    """Run the tests with each mutant and print the survivors."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate_sql", description=__doc__)
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(TESTS)}; all by default")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try each Nth only")
    parser.add_argument("--quick", action="store_true", help="without the golden suite")
    parser.add_argument("--at", default="", metavar="LINE:COLUMN,...", help="only those at these places")
    asked = parser.parse_args(argv)
    folder = Path(__file__).parents[1] / PACKAGE.replace(".", "/")
    context = get_context("forkserver")
    context.set_forkserver_preload(["pytest", "hypothesis", "duckdb", "typer", "ClusterShell.NodeSet"])

    def status(mutant: Mutant) -> int | None:
        names = (*TESTS[mutant.module], *(() if asked.quick else (GOLDEN,)))
        tests = [f"tests/unit/{name}.py" for name in names]
        process = context.Process(target=attempt, args=(mutant, str(_path(folder, mutant.module)), tests))
        process.start()
        process.join(LIMIT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        return process.exitcode

    places = asked.at.split(",")
    for module in asked.modules or TESTS:
        source = _path(folder, module).read_text(encoding="utf-8")
        found = [one for one in mutants(module, source) if not asked.at or f"{one.line}:{one.column}" in places]
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
        print(f"{module}: {len(found)} mutants, {', '.join(f'{count} {name}' for name, count in counts.items())}")


if __name__ == "__main__":
    main(sys.argv[1:])
