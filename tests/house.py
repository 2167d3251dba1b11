# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.house`: the size of each room of slurm_colloc, in tokens, against its ceiling in tests/house.toml.

Tokens are of code, without docstrings and comments; files that are not Python count by words. A room above its ceiling
fails, and one far below it until `--lower` has lowered the ceiling. So does a room of which more than 4 % of the
sentences do not begin with their subject, or of the names say nothing. Tests have a ceiling for the functions that
assert a phrase of five words or more. Any other tree is measured by `python -m tests.house FOLDER`:

    ReFrame 108,000 tokens, nvitop 76,000, ClusterShell 61,000, gcm 94,000, submitit 16,000
    sentences that do not begin with their subject: 2.4 %, 2.4, 3.6, 1.6, 2.7; names that say nothing: 1.4 %, 0.7, 2.2,
    0.2, 0; test functions with a phrase: ReFrame 7 %, submitit 11, HyperQueue 10
"""

from __future__ import annotations

import argparse
import ast
import io
import math
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parents[1]
CEILINGS = Path(__file__).with_suffix(".toml")
HEAD = "# Tokens of each room and percent of test functions with a phrase, at most: tests/house.py. They only fall.\n"
PHRASES = "phrases"
# A ceiling stays where a room is below it by less than this share, and by fewer tokens or percents than these.
SLACK, SLACK_TOKENS, SLACK_PERCENT = 0.05, 100, 2
PHRASE_WORDS = 5
# In each room, of sentences in docstrings and comments, and of variables and arguments.
WORDS_PERCENT = 4
WORDS = {"sentence": "do not begin with their subject", "name": "say nothing"}
# What a comment is in files that are not Python; a file without a suffix is a shell's if it begins as a script.
COMMENTS = {
    ".sql": r"--.*",
    ".lua": r"--.*",
    ".c": r"(?s:/\*.*?\*/)|//.*",
    ".h": r"(?s:/\*.*?\*/)|//.*",
    ".sh": r"(?m:^\s*#.*)",
    ".j2": r"(?s:\{#.*?#\})",
    "": r"(?m:^\s*#.*)",
}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
FRONTED = "of what who whoever whose where by from to so not nobody beside behind among lest without in on under"
FRONTED += " whatever whichever"
NAMELESS = "one of found told asked said known there left here it what why kept taken given seen made whole more other"
NAMELESS += " others own so_far at again first each wanted had ran shown"


class Place(NamedTuple):
    """A sentence or a name that a reader stumbles over."""

    line: int
    kind: str
    text: str


def tokens(source: str) -> int:
    """Return the tokens of a Python source."""
    docs = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    read = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in NO_CODE and token.start[0] not in docs for token in read)


def words(text: str, suffix: str) -> int:
    """Return the words of a source that is not Python."""
    return len(re.sub(COMMENTS[suffix], "", text).split())


def size(path: Path) -> int:
    """Return what a file counts; what is no source counts nothing."""
    if path.suffix == ".py":
        return tokens(path.read_text())
    if path.suffix not in COMMENTS or not path.is_file():
        return 0
    text = path.read_text()
    return words(text, path.suffix) if path.suffix or text.startswith("#!") else 0


def rooms(folder: Path) -> Counter[str]:
    """Return the size of each room of a package, that of its own files under its own name."""
    sizes = Counter[str]()
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if "__pycache__" not in parts and path.is_file():
            sizes[parts[0] if len(parts) > 1 else folder.name] += size(path)
    return +sizes


def phrase_percent(folder: Path) -> float:
    """Return how many test functions of a hundred assert a phrase."""
    functions = [
        _asserts_phrase(node)
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    ]
    return 100 * sum(functions) / max(len(functions), 1)


def _asserts_phrase(test: ast.FunctionDef) -> bool:
    parts = list(ast.walk(test))
    asserted: list[ast.AST] = [part for part in parts if isinstance(part, ast.Assert)]
    asserted += [key for part in parts if isinstance(part, ast.Call) for key in part.keywords if key.arg == "match"]
    texts = [part.value for node in asserted for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return any(isinstance(text, str) and len(re.findall(r"[A-Za-z]{2,}", text)) >= PHRASE_WORDS for text in texts)


def measured() -> dict[str, float]:
    """Return the numbers that have a ceiling."""
    templates = rooms(CHECKOUT / "templates").total()
    return {**rooms(CHECKOUT / "slurm_colloc"), "templates": templates, PHRASES: phrase_percent(CHECKOUT / "tests")}


def faults(numbers: Mapping[str, float], ceilings: Mapping[str, int]) -> list[str]:
    """Return what is wrong and what to do."""
    lines = []
    for name in sorted({*numbers, *ceilings}):
        number, ceiling = numbers.get(name, 0), ceilings.get(name)
        unit = "% of test functions" if name == PHRASES else "tokens"
        if ceiling is None:
            lines.append(f"{name} has no ceiling: give it one in tests/house.toml, {number:,.0f} {unit} or less")
        elif number > ceiling:
            over = math.ceil(number - ceiling)
            lines.append(
                f"{name}: {number:,.0f} {unit}, {ceiling:,} at most: take {over:,} out of it, or let it have them"
            )
        elif number < ceiling and (not number or ceiling - number >= _slack(name, ceiling)):
            lines.append(
                f"{name}: {number:,.0f} {unit}, {ceiling:,} at most: lower it by 'python -m tests.house --lower'"
            )
    return lines


def _slack(name: str, ceiling: int) -> float:
    return SLACK_PERCENT if name == PHRASES else max(SLACK * ceiling, SLACK_TOKENS)


def lowered(numbers: Mapping[str, float], ceilings: Mapping[str, int]) -> dict[str, int]:
    """Return the ceilings, none above what there is."""
    return {name: min(ceiling, math.ceil(numbers[name])) for name, ceiling in ceilings.items() if numbers.get(name)}


def table(ceilings: Mapping[str, float]) -> str:
    """Return the text of tests/house.toml."""
    return HEAD + "".join(f"{name} = {math.ceil(ceiling)}\n" for name, ceiling in sorted(ceilings.items()))


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of docstrings and comments, of four words or more."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    texts = [(getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in nodes]
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "SPDX" not in token.string:
            line, text = texts.pop() if token.start[0] == last + 1 else (token.start[0], "")
            texts.append((line, f"{text} {token.string.lstrip('# ')}"))
            last = token.start[0]
    for line, text in texts:
        joined = re.sub(r"\s+", " ", re.sub(r"\n\s*\n", ". ", text)).strip()
        for sentence in re.split(r"(?<=[.!?:;])\s+", joined):
            if len(re.findall(r"[A-Za-z']+", sentence)) >= 4:
                yield line, sentence


def names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the names of variables and arguments where they are bound."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def stumbles(source: str) -> tuple[list[Place], int, int]:
    """Return the sentences that do not begin with their subject and the names that say nothing, and of how many."""
    said, bound = list(sentences(source)), list(names(source))
    places = [
        Place(line, "sentence", text)
        for line, text in said
        if re.findall(r"[A-Za-z']+", text)[0].lower() in FRONTED.split()
    ]
    places += [Place(line, "name", name) for line, name in bound if name.lstrip("_") in NAMELESS.split()]
    return places, len(said), len(bound)


def hard_to_read(folder: Path) -> list[str]:
    """Return the rooms of a package in which a reader stumbles too often, and what to do."""
    places, counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        room = parts[0] if len(parts) > 1 else folder.name
        stumbled, sentence_count, name_count = stumbles(path.read_text())
        places.update((room, place.kind) for place in stumbled)
        counts.update({(room, "sentence"): sentence_count, (room, "name"): name_count})
    percents = {key: 100 * places[key] / counts[key] for key in sorted(places)}
    return [
        f"{room}: {percent:.1f} % of its {kind}s {WORDS[kind]}, {WORDS_PERCENT} % at most: "
        f"'python -m tests.house --worst slurm_colloc/{room}' lists them"
        for (room, kind), percent in percents.items()
        if percent > WORDS_PERCENT
    ]


def tell_of(folder: Path, *, each: bool) -> None:
    """Print the sizes of a tree and what its readers stumble over."""
    sizes, kinds, said, bound = rooms(folder), Counter[str](), 0, 0
    for path in sorted(folder.rglob("*.py")):
        places, more_said, more_bound = stumbles(path.read_text())
        kinds, said, bound = kinds + Counter(place.kind for place in places), said + more_said, bound + more_bound
        for place in places if each else ():
            print(f"{path}:{place.line}: {place.kind}: {place.text[:100]}")
    print(f"{folder}: {sizes.total():,} tokens: " + ", ".join(f"{room} {n:,}" for room, n in sizes.most_common()))
    print(f"sentences that do not begin with their subject: {100 * kinds['sentence'] / max(said, 1):.1f} % of {said:,}")
    print(f"names that say nothing: {100 * kinds['name'] / max(bound, 1):.1f} % of {bound:,}")
    print(f"test functions that assert a phrase: {phrase_percent(folder):.1f} %")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="measure this tree instead, against nothing")
    parser.add_argument("--worst", action="store_true", help="name each sentence and name that could be better")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings to what there is")
    parser.add_argument("--set", action="store_true", help="set them to what there is, higher ones as well")
    args = parser.parse_args(argv)
    if args.folder or args.worst:
        tell_of(args.folder or CHECKOUT / "slurm_colloc", each=args.worst)
        return 0
    numbers = measured()
    ceilings: dict[str, int] = tomllib.loads(CEILINGS.read_text()) if CEILINGS.exists() else {}
    if args.lower or args.set:
        CEILINGS.write_text(table(numbers if args.set else lowered(numbers, ceilings)))
        return 0
    lines = faults(numbers, ceilings) + hard_to_read(CHECKOUT / "slurm_colloc")
    print("\n".join(f"house: {line}" for line in lines) or "house: every room is below its ceiling and can be read")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
