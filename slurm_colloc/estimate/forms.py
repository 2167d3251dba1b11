# SPDX-License-Identifier: Apache-2.0
"""Forms of files, which stay however a file is written: Python's syntax tree, settings without the order of their keys.

Asked where a file was edited since the last submission of the same script: a job's signature stays as it is.
"""

import _ast
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from slurm_colloc.estimate.content import C_LIKE, COMPILED, ending_of, has_own_print, kind_of, said, says_nothing
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.places import TooMuchError
from slurm_colloc.estimate.seeds_and_sizes import is_inert, word_sets
from slurm_colloc.estimate.texts import FORM_BYTES

# A submission waits so long for the forms of files that were edited, or of which no contents are kept.
_MOST_S = 0.03
_NAMES = word_sets(
    {
        # These objects say something, by these of their functions.
        "speakers": "log logger logging _log _logger warnings console pbar tqdm",
        "says": "debug info warning warn error critical write log set_postfix basicConfig",
        # A message may call these: each asks for something small and changes nothing.
        "asks": "item size dim numel format join time perf_counter now strftime get_last_lr len str int float round"
        " type repr memory_allocated max_memory_allocated getLogger",
        "modules for messages": "logging warnings typing time datetime pprint __future__",
        "fields left out": "ctx kind type_comment type_ignores",
        # A line may begin with any number of blanks in files of these endings.
        "free": "js mjs cjs ts r jl lua",
        "ends a line": "r jl lua",
        "no texts": "true false yes no on off null y n",
    }
)
# An expression without these, and without other calls, computes nothing: they set a name or wait.
_SETS = (_ast.NamedExpr, _ast.Await, _ast.Yield, _ast.YieldFrom, _ast.comprehension)
# A program may read its own types by these.
_READS_TYPES = (
    rb"typer|tyro|jsonargparse|signature|__annotations__|type_hints|Annotated|pydantic|beartype|\bCLI\b|hydra"
)
_BLANKS = rb"(?m)^[ \t]+|[ \t]*([=*,;(){}]|<-)[ \t]*|[ \t]+$"
_KEY, _LIST = r"([\w.\"'/-]+)(?::(?: |$)|:? ?=\*$)", "- "
# A number under a name, wherever it stands in settings.
_NUMBER = r"(?<![\w.+-])([A-Za-z_][\w.-]*)([\"']?[ \t]*[:=][ \t]*)([-+]?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?)(?![\w.+-])"
# Each of these may hold something of its own on the GPU.
_SEVERAL = r"(?i)worker|thread"
_QUOTED = r"([\"'])([A-Za-z][\w./-]*)\1"


def forms(contents: Mapping[str, bytes], paths: Sequence[str]) -> dict[str, str]:
    """Return the forms of files by path, empty of those without one; of the first where there is no time for all."""
    until_s = time.monotonic() + _MOST_S
    forms_now = dict[str, str]()
    with suppress(TooMuchError):
        for path in paths:
            if time.monotonic() > until_s:
                break
            is_long = len(contents[path]) > FORM_BYTES
            forms_now[path] = "" if is_long else form_of(contents[path], ending_of(path))
    return forms_now


def form_of(content: bytes, ending: str) -> str:
    """Return what stays of a file of this ending (without its dot); empty where that is not known.

    Behind a hyphen stands what its numbers are known by that change no need of a GPU, where there are any: epochs.
    """
    inert = list[str]()
    try:
        if ending == "py":
            form = repr(_Python(content, inert).tree)
        else:
            form = _of_text(content if ending in ("json", "toml") else said(content, ending), ending, inert)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    numbers = f"-{digest(repr(sorted(inert)), 8)}" if inert else ""
    return f"{digest(form, 8)}{numbers}" if form else ""


def _number(inert: list[str], name: str, number: str) -> str:
    """Return what stands for a number in a form; one that changes a run time and no need of a GPU is kept apart."""
    if says_nothing(name, number):
        return "1"
    if not is_inert(name) or re.search(_SEVERAL, name):
        return number
    inert.append(f"{name}={number}")
    return "0"


def _of_text(text: bytes, ending: str, inert: list[str]) -> str:
    if kind_of(f".{ending}") == "settings":
        settings = re.sub(
            _NUMBER, lambda found: found[1] + found[2] + _number(inert, found[1], found[3]), text.decode()
        )
        if ending == "json":
            return json.dumps(json.loads(settings), sort_keys=True)
        if ending == "toml":
            import tomllib  # 2 ms

            return json.dumps(tomllib.loads(settings), sort_keys=True, default=str)
        return "\n".join(_in_order(settings.split("\n"))) if ending in ("yaml", "yml") else settings
    if ending not in COMPILED and ending not in _NAMES["free"]:
        return ""
    # A comment that goes on to the end of its line would take in the next.
    text = re.sub(rb"(?m)^(?!#)(.*)\n(?!#)", rb"\1 ", text) if ending in C_LIKE and b"//" not in text else text
    if ending in _NAMES["ends a line"]:
        text = re.sub(rb"[ \t]*;\s*", b"\n", text)
    return re.sub(_BLANKS, rb"\1", text).decode(errors="surrogateescape")


def _in_order(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of settings with the keys of each table in one order, each line as deep as its keys are many."""
    groups: list[list[str]] = []
    for line in lines:
        bare = line.lstrip(" ")
        indent = len(lines[0]) - len(lines[0].lstrip(" "))
        is_of_list = bool(groups) and bare.startswith(_LIST) and not groups[-1][0].lstrip().startswith(_LIST)
        if not groups or (len(line) - len(bare) <= indent and not is_of_list):
            groups.append([])
        groups[-1].append(line)
    keys = [match[1] for group in groups if (match := re.match(_KEY, group[0].lstrip()))]
    if len(keys) == len(groups) == len(set(keys)):
        groups.sort(key=lambda group: group[0].lstrip())
    for head, *rest in groups:
        bare = _without_comment(head.strip())
        # A text, or what goes on in the next line, is as it stands.
        is_table = bare.endswith(":") or bare.startswith(_LIST)
        yield re.sub(_QUOTED, lambda match: match[0] if match[2].lower() in _NAMES["no texts"] else match[2], bare)
        if rest:
            yield from (f" {line}" for line in (_in_order(rest) if is_table else rest))


def _without_comment(line: str) -> str:
    before, mark, _ = line.partition(" #")
    return before.rstrip() if mark and not before.count('"') % 2 and not before.count("'") % 2 else line


class _Python:
    """The syntax tree of a program, without its texts on itself, its messages, and types that nothing reads."""

    def __init__(self, content: bytes, inert: list[str]) -> None:
        self._inert = inert
        self._has_types, self._has_doc = bool(re.search(_READS_TYPES, content)), b"__doc__" in content
        self._has_print = not has_own_print(content)
        tree = compile(content, "", "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
        self.tree = self._of(tree, in_class=False)

    def _of(self, node: Any, *, in_class: bool) -> Any:
        if isinstance(node, list):
            if node and isinstance(node[0], _ast.stmt):
                return [statement for part in node for statement in self._statement(part, in_class=in_class)]
            return [self._of(statement, in_class=in_class) for statement in node]
        if not isinstance(node, _ast.AST):
            return node
        left_out = _NAMES["fields left out"]
        if isinstance(node, _ast.FunctionDef | _ast.AsyncFunctionDef) and not (self._has_types or node.decorator_list):
            left_out = _NAMES["fields left out"] | {"returns"}
            for statement in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                statement.annotation = None
        is_class = isinstance(node, _ast.ClassDef)
        fields = [self._of(getattr(node, name), in_class=is_class) for name in node._fields if name not in left_out]
        return (type(node).__name__, *fields)

    def _statement(self, node: Any, *, in_class: bool) -> Iterator[Any]:
        if isinstance(node, _ast.Pass) or self._is_idle(node):
            return
        if isinstance(node, _ast.Import | _ast.ImportFrom):
            for alias in node.names:
                module = getattr(node, "module", None) or alias.name
                if module not in _NAMES["modules for messages"]:
                    yield ("Import", getattr(node, "module", ""), getattr(node, "level", 0), alias.name, alias.asname)
            return
        if isinstance(node, _ast.AnnAssign) and not in_class and node.simple:
            if node.value:
                target, value = (self._of(part, in_class=False) for part in (node.target, node.value))
                yield ("Assign", [target], value)
            return
        match node:
            case _ast.Assign(targets=[target], value=_ast.Constant(value=int() | float() as number) as constant):
                constant.value = _number(self._inert, _name_of(target), repr(number))
        form = self._of(node, in_class=in_class)
        if not (isinstance(node, _ast.If) and self._is_plain(node.test) and form[2:] == ([], [])):
            yield form

    def _is_idle(self, node: Any) -> bool:
        """Return whether a statement only says something, or asserts what is known."""
        match node:
            case _ast.Assert():
                return self._is_plain(node.test)
            case _ast.Assign(value=_ast.Call(func=_ast.Attribute(value=_ast.Name("logging"), attr="getLogger"))):
                return True
            case _ast.Expr(value=_ast.Constant()):
                return not self._has_doc
            case _ast.Expr(value=_ast.Call(func=function, args=args, keywords=keywords)):
                is_print = self._has_print and isinstance(function, _ast.Name) and function.id == "print"
                owner = _name_of(getattr(function, "value", None))
                if is_print or (owner in _NAMES["speakers"] and _name_of(function) in _NAMES["says"]):
                    is_shown = all(keyword.arg != "file" for keyword in keywords)
                    return is_shown and all(map(self._is_plain, [*args, *(keyword.value for keyword in keywords)]))
        return False

    def _is_plain(self, node: Any) -> bool:
        """Return whether an expression computes nothing of any size and changes nothing."""
        if isinstance(node, list):
            return all(map(self._is_plain, node))
        if not isinstance(node, _ast.AST):
            return True
        is_array = isinstance(node, _ast.BinOp) and not _is_small(node)
        does_more = isinstance(node, _ast.Call) and _name_of(node.func) not in _NAMES["asks"]
        if is_array or does_more or isinstance(node, _SETS):
            return False
        return all(self._is_plain(getattr(node, name)) for name in node._fields)


def _name_of(node: Any) -> str:
    name: str = getattr(node, "id", getattr(node, "attr", ""))
    return name


def _is_small(node: _ast.BinOp) -> bool:
    """Return whether an operation makes no array of two others."""
    is_ratio = isinstance(node.op, _ast.Div | _ast.Mod | _ast.FloorDiv)
    return is_ratio or any(isinstance(one, _ast.Constant | _ast.Call) for one in (node.left, node.right))
