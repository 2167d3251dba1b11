# SPDX-License-Identifier: Apache-2.0
"""A script's own arguments, followed to where the script uses them."""

import re
from collections import Counter
from collections.abc import Sequence

# "--name value", "--name=value", "NAME=value", "a.b=value", and a short option's "-b 64".
ARGUMENT = re.compile(
    r"(?P<name>(?<![\w.-])(?:--?[A-Za-z][\w.-]*|\+{0,2}[A-Za-z_][\w.]*(?==)))(?P<sep>=|[ \t]+)"
    r"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|\$\(\([^()\n]*\)\)|[^\s;&|<>()\"'-][^\s;&|<>()\"']*|-\d[^\s;&|<>()]*)"
)
# A position of the script's arguments: $1, ${1}, ${1:-0}; and where it is only looked whether there is one.
_POSITION = r"\$(?:([1-9])(?!\d)|\{([1-9]\d?)(?::?[-?][^}\s]*)?\})"
# Sourced files, a loop that says no words and commands that are put together ask for arguments without saying so.
_ASKS_UNSAID = (
    r"(?m)\bfor\s+\w+\s*(?:;|\n|\bdo\b|$)|\beval\b|\bBASH_ARGV"
    r"|(?:^|[;&|]\s*|\s)(?:source|\.)\s+(?!\S*(?:activate|rc|profile|conda\.sh)\b)"
)
_IS_THERE = r"-[zn][ \t]+\"?\$\{?[1-9]\}?\"?"
_COUNTS_ANEW = r"\bshift\b|\bgetopts\b|\bset\s+--|\w\s*\(\s*\)|\bfunction\b|\$\{?[@*]|\$\{[1-9]\d?[^}\d:?-]|\$\{!"
# A loop over all arguments, and whatever else asks for any of them.
_OVER_ALL = r"(?m)(\bfor\s+\w{1,40}\s+in)\s+\"?\$(?:[@*]|\{[@*]\})\"?(?=\s*(?:;|$))"
_ASKS_ANY = r"\bshift\b|\bgetopts\b|\bset\s+--|\$\{?[\d@*#!]"
_PLAIN_WORD = r"[\w./:,+= -]+"


def _is_one(word: str, number: str, body: str) -> bool:
    """Return whether an argument is one word wherever it is used: "--seed $1" of "1 --width 64" is two options."""
    used = rf"export\s+\w+=\"\$\{{?{number}\}}?\""
    return " " not in word or not re.search(rf"\$\{{?{number}\b", re.sub(used, "", body))


def followed(body: str, script_args: Sequence[str]) -> tuple[str, list[str]]:
    """Return a script with those of its arguments put in that are values of options or variables there, and the others.

    "--seed $1" is the seed of every call: the argument is judged by that name. One that stands anywhere
    else, or may be counted otherwise (shift, a function's own $1), is an argument without a name as before.
    """
    words = list(script_args)
    if not words or re.search(_ASKS_UNSAID, body):
        return body, words
    loop = re.search(_OVER_ALL, body)
    if loop and all(re.fullmatch(_PLAIN_WORD, word) and " " not in word for word in words):
        looped = f"{body[: loop.start()]}{loop[1]} {' '.join(words)}{body[loop.end() :]}"
        if not re.search(_ASKS_ANY, looped):
            return looped, []
    if re.search(_COUNTS_ANEW, body):
        return body, words
    body = re.sub(_IS_THERE, "*", body)
    values = "\n".join(match["value"] for match in ARGUMENT.finditer(body) if not match["value"].startswith("'"))
    anywhere, named = (Counter(map("".join, re.findall(_POSITION, text))) for text in (body, values))
    put = {
        number: word.replace(" ", "\1")
        for number, word in ((str(number), word) for number, word in enumerate(words, 1))
        if 0 < anywhere[number] == named[number] and re.fullmatch(_PLAIN_WORD, word) and _is_one(word, number, body)
    }
    rest = ["" if str(number) in put else word for number, word in enumerate(words, 1)]
    return re.sub(_POSITION, lambda match: put.get(match[1] or match[2], match[0]), body), rest
