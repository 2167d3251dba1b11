# SPDX-License-Identifier: Apache-2.0
"""A page of Markdown as a manual page: one text for both, in what of Markdown a manual page can say."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

_LICENSE = '.\\" SPDX-License-Identifier: Apache-2.0\n'
# When the pages were last read as a whole: not the day on which they are made, so that they stay what they are.
_DATE = "2026-11-23"
_WIDTH = 78
_ROFF = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", '"': "\\(dq"})


def manual_page(name: str, section: int, markdown: str, *, version: str, volume: str) -> str:
    """Return a page in man(7).

    A list's item of a first line and more paragraphs becomes a tagged paragraph, and so does a row of a table: the
    first cell, then the last, then those between them with their headings.

    Raises:
        ValueError: Markdown that has no such form, such as an image.
    """
    root = SyntaxTreeNode(MarkdownIt("commonmark").enable("table").parse(markdown))
    head = f'.TH {name.upper()} {section} {_DATE} "slurm_colloc {version}" "{volume}"\n'
    lines = [line for node in root.children for line in _block(node)]
    # Behind a heading a paragraph begins by itself.
    first = (line != ".PP" or not before.startswith((".SH", ".SS")) for before, line in pairwise(["", *lines]))
    return _LICENSE + head + "".join(f"{line}\n" for line in compress(lines, first))


def _block(node: SyntaxTreeNode) -> Iterable[str]:
    make = _BLOCKS.get(node.type)
    if make is None:
        raise ValueError(f"no manual page has a {node.type}")
    return make(node)


def _heading(node: SyntaxTreeNode) -> list[str]:
    text = _inline(node)
    return {"h1": [], "h2": [f".SH {text.upper()}"], "h3": [f".SS {text}"]}[node.tag]


def _paragraph(node: SyntaxTreeNode) -> list[str]:
    return [".PP", *_filled(node)]


def _code(node: SyntaxTreeNode) -> list[str]:
    lines = (_escaped(line) for line in node.content.rstrip("\n").split("\n"))
    return [".PP", ".in +4n", ".EX", *map(_guarded, lines), ".EE", ".in"]


def _list(node: SyntaxTreeNode) -> Iterable[str]:
    for number, item in enumerate(node.children, 1):
        first, *others = item.children
        if others:
            yield from (".TP", _guarded(_inline(first)), *_behind(others))
        else:
            yield ".IP \\(bu 2" if node.type == "bullet_list" else f".IP {number}. 3"
            yield from _filled(first)


def _behind(blocks: Sequence[SyntaxTreeNode]) -> Iterable[str]:
    for index, block in enumerate(blocks):
        lines = list(_block(block))
        yield from lines[1:] if index == 0 and lines[0] == ".PP" else [".IP", *lines[1:]]


def _table(node: SyntaxTreeNode) -> Iterable[str]:
    head, body = node.children
    titles = [_inline(cell) for cell in head.children[0].children]
    for row in body.children:
        first, *between, last = (_inline(cell) for cell in row.children)
        about = [f"{title}: {cell}" for title, cell in zip(titles[1:], between, strict=False) if cell]
        text = f"{last} ({', '.join(about)})" if about else last
        yield from (".TP", _guarded(first), *_wrapped(text))


_BLOCKS: dict[str, Callable[[SyntaxTreeNode], Iterable[str]]] = {
    "heading": _heading,
    "paragraph": _paragraph,
    "fence": _code,
    "bullet_list": _list,
    "ordered_list": _list,
    "table": _table,
}


def _filled(node: SyntaxTreeNode) -> list[str]:
    return _wrapped(_inline(node))


def _wrapped(text: str) -> list[str]:
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [_guarded(line) for line in lines]


def _guarded(line: str) -> str:
    """Return a line that roff does not take for a request."""
    return f"\\&{line}" if line[:1] in (".", "'") else line


def _inline(node: SyntaxTreeNode) -> str:
    (inline,) = node.children
    return "".join(map(_word, _tokens(inline)))


def _tokens(inline: SyntaxTreeNode) -> list[Token]:
    return inline.token.children or [] if inline.token else []


def _word(token: Token) -> str:
    if token.type == "code_inline":
        return f"\\fB{_escaped(token.content)}\\fP"
    if token.type == "text":
        return _prose(token.content)
    fixed = {
        **dict.fromkeys(("em_open",), "\\fI"),
        **dict.fromkeys(("strong_open",), "\\fB"),
        **dict.fromkeys(("em_close", "strong_close"), "\\fP"),
        **dict.fromkeys(("link_open", "link_close"), ""),
        "softbreak": " ",
    }
    if token.type not in fixed:
        raise ValueError(f"no manual page has a {token.type}")
    return fixed[token.type]


def _escaped(text: str) -> str:
    """Return what is to be typed, letter by letter."""
    return text.translate(_ROFF)


def _prose(text: str) -> str:
    """Return a text; its hyphens and apostrophes may look as they do in print."""
    return re.sub(r"[\\`^~]", lambda found: found[0].translate(_ROFF), text)
