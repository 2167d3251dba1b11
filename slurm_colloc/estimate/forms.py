# SPDX-License-Identifier: Apache-2.0
"""What stays of a file however it is written: of Python its syntax tree, of settings all but the order of their keys.

Asked where a file was edited since the last submission of the same script: what a job is known by stays as it is.
"""

import _ast
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurm_colloc.estimate.content import C_LIKE, COMPILED, OWN_PRINT, ending_of, said, says_nothing
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.option_names import is_label

# So long a submission waits for the forms of files that are new to it; those that are left the next one makes.
_MOST_S, _MOST_BYTES = 0.03, 128 * 1024
# Who says something by which of their functions.
_SPEAKERS = frozenset({"log", "logger", "logging", "_log", "_logger", "warnings", "console", "pbar", "tqdm"})
_SAYS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "write", "log", "set_postfix"})
# What a message may call: it asks for something small and changes nothing.
_ASKS = frozenset(
    {"item", "size", "dim", "numel", "format", "join", "time", "perf_counter", "now", "strftime", "get_last_lr"}
    | {"len", "str", "int", "float", "round", "type", "repr", "memory_allocated", "max_memory_allocated", "getLogger"}
)
# What none of these is made of computes: calls, but for those, and what sets a name or waits.
_SETS = (_ast.NamedExpr, _ast.Await, _ast.Yield, _ast.YieldFrom, _ast.comprehension)
_FOR_MESSAGES = frozenset({"logging", "warnings", "typing", "time", "datetime", "pprint", "__future__"})
# By these a program may read its own types; or it has a print of its own.
_READS_TYPES = re.compile(
    rb"typer|tyro|jsonargparse|signature|__annotations__|type_hints|Annotated|pydantic|beartype|\bCLI\b|hydra"
)
_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
# In these a line may begin with any number of blanks.
_FREE = frozenset({"js", "mjs", "cjs", "ts", "r", "jl", "lua"})
_BLANKS = re.compile(rb"(?m)^[ \t]+|[ \t]*([=,;(){}]|<-)[ \t]*|[ \t]+$")
_KEY, _LIST = re.compile(r"([\w.\"'/-]+):(?: |$)"), "- "
_QUOTED = re.compile(r"([\"'])([A-Za-z][\w./-]*)\1")
_NO_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def forms(
    contents: Mapping[str, bytes], files: Mapping[str, str], known: Mapping[str, tuple[str, ...]], first: frozenset[str]
) -> dict[str, tuple[str, ...]]:
    """Return the forms of files by path, with what each file is known by; ``known`` are those of the last time.

    What was edited since goes before what the job's words name ``first``.
    """
    until_s = time.monotonic() + _MOST_S
    found = {path: pair for path, pair in known.items() if files.get(path) == pair[0]}
    for path in sorted(contents.keys() - found.keys(), key=lambda path: (path not in known, path not in first, path)):
        if time.monotonic() > until_s:
            break
        if path in files and len(contents[path]) <= _MOST_BYTES and (form := form_of(contents[path], ending_of(path))):
            found[path] = (files[path], form)
    return found


def form_of(content: bytes, ending: str) -> str:
    """Return what stays of a file of this ending (without its dot); empty where that is not known."""
    try:
        form = repr(_Python(content).tree) if ending == "py" else _of_text(said(content, ending), ending)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    return digest(form.encode(errors="surrogateescape"), 8) if form else ""


def _of_text(told: bytes, ending: str) -> str:
    if ending == "json":
        return json.dumps(_but_noise(json.loads(told)), sort_keys=True)
    if ending == "toml":
        import tomllib  # 2 ms

        return json.dumps(_but_noise(tomllib.loads(told.decode())), sort_keys=True, default=str)
    if ending in ("yaml", "yml"):
        return "\n".join(_in_order(told.decode().split("\n")))
    if ending not in COMPILED and ending not in _FREE:
        return ""
    # A comment that goes on to the end of its line would take in the next.
    told = re.sub(rb"(?m)^(?!#)(.*)\n(?!#)", rb"\1 ", told) if ending in C_LIKE and b"//" not in told else told
    return _BLANKS.sub(rb"\1", told).decode(errors="surrogateescape")


def _but_noise(found: Any) -> Any:
    if isinstance(found, dict):
        return {
            key: "*" if says_nothing(key, str(one)) and not is_label(key) else _but_noise(one)
            for key, one in found.items()
        }
    return list(map(_but_noise, found)) if isinstance(found, list) else found


def _in_order(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of settings with the keys of each table in one order, each line as deep as its keys are many."""
    groups: list[list[str]] = []
    for line in lines:
        bare = line.lstrip(" ")
        first = len(lines[0]) - len(lines[0].lstrip(" "))
        is_of_list = bool(groups) and bare.startswith(_LIST) and not groups[-1][0].lstrip().startswith(_LIST)
        if not groups or (len(line) - len(bare) <= first and not is_of_list):
            groups.append([])
        groups[-1].append(line)
    keys = [found[1] for group in groups if (found := _KEY.match(group[0].lstrip()))]
    if len(keys) == len(groups) == len(set(keys)):
        groups.sort(key=lambda group: group[0].lstrip())
    for head, *rest in groups:
        bare = _without_comment(head.strip())
        # A text, or what goes on in the next line, is as it stands.
        is_table = bare.endswith(":") or bare.startswith(_LIST)
        yield _QUOTED.sub(lambda found: found[0] if found[2].lower() in _NO_TEXT else found[2], bare)
        if rest:
            yield from (f" {line}" for line in (_in_order(rest) if is_table else rest))


def _without_comment(line: str) -> str:
    before, mark, _ = line.partition(" #")
    return before.rstrip() if mark and not before.count('"') % 2 and not before.count("'") % 2 else line


class _Python:
    """The syntax tree of a program, without its texts on itself, its messages, and types that nothing reads."""

    def __init__(self, content: bytes) -> None:
        self._has_types, self._has_doc = bool(_READS_TYPES.search(content)), b"__doc__" in content
        self._has_print = not OWN_PRINT.search(content)
        tree = compile(content, "", "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
        self.tree = self._of(tree, in_class=False)

    def _of(self, node: Any, *, in_class: bool) -> Any:
        if isinstance(node, list):
            if node and isinstance(node[0], _ast.stmt):
                return [one for part in node for one in self._statement(part, in_class=in_class)]
            return [self._of(one, in_class=in_class) for one in node]
        if not isinstance(node, _ast.AST):
            return node
        left_out = _LEFT_OUT
        if isinstance(node, _ast.FunctionDef | _ast.AsyncFunctionDef) and not (self._has_types or node.decorator_list):
            left_out = _LEFT_OUT | {"returns"}
            for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                one.annotation = None
        is_class = isinstance(node, _ast.ClassDef)
        fields = [self._of(getattr(node, name), in_class=is_class) for name in node._fields if name not in left_out]
        return (type(node).__name__, *fields)

    def _statement(self, node: Any, *, in_class: bool) -> Iterator[Any]:
        if isinstance(node, _ast.Pass) or self._is_idle(node):
            return
        if isinstance(node, _ast.Import | _ast.ImportFrom):
            for alias in node.names:
                module = getattr(node, "module", None) or alias.name
                if module not in _FOR_MESSAGES:
                    yield ("Import", getattr(node, "module", ""), getattr(node, "level", 0), alias.name, alias.asname)
            return
        if isinstance(node, _ast.AnnAssign) and not in_class and node.simple:
            if node.value:
                target, value = (self._of(part, in_class=False) for part in (node.target, node.value))
                yield ("Assign", [target], value)
            return
        found = self._of(node, in_class=in_class)
        if not (isinstance(node, _ast.If) and self._is_plain(node.test) and found[2:] == ([], [])):
            yield found

    def _is_idle(self, node: Any) -> bool:
        """Return whether a statement only says something, or asserts what is known."""
        if isinstance(node, _ast.Assert):
            return self._is_plain(node.test)
        if isinstance(node, _ast.Assign):
            return isinstance(node.value, _ast.Call) and self._is_of(node.value.func, {"getLogger"}, {"logging"})
        if not isinstance(node, _ast.Expr):
            return False
        if isinstance(node.value, _ast.Constant):
            return not self._has_doc
        call = node.value
        if not isinstance(call, _ast.Call) or any(one.arg == "file" for one in call.keywords):
            return False
        says = self._has_print and isinstance(call.func, _ast.Name) and call.func.id == "print"
        says = says or self._is_of(call.func, _SAYS, _SPEAKERS) or self._is_of(call.func, {"basicConfig"}, _SPEAKERS)
        return says and all(map(self._is_plain, [*call.args, *(one.value for one in call.keywords)]))

    def _is_of(self, function: Any, names: Any, owners: Any) -> bool:
        if not isinstance(function, _ast.Attribute) or function.attr not in names:
            return False
        return getattr(function.value, "id", getattr(function.value, "attr", "")) in owners

    def _is_plain(self, node: Any) -> bool:
        """Return whether an expression computes nothing of any size and changes nothing."""
        if isinstance(node, list):
            return all(map(self._is_plain, node))
        if not isinstance(node, _ast.AST):
            return True
        if isinstance(node, (*_SETS, _ast.MatMult)):
            return False
        if isinstance(node, _ast.BinOp) and not _is_small(node):
            return False
        if isinstance(node, _ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called not in _ASKS:
                return False
        return all(self._is_plain(getattr(node, name)) for name in node._fields)


def _is_small(node: _ast.BinOp) -> bool:
    """Return whether an operation makes no array of two others."""
    is_ratio = isinstance(node.op, _ast.Div | _ast.Mod | _ast.FloorDiv)
    return is_ratio or any(isinstance(one, _ast.Constant | _ast.Call) for one in (node.left, node.right))
