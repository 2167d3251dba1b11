# SPDX-License-Identifier: Apache-2.0
"""A script's own arguments, followed to where the script uses them."""

import re
from collections.abc import Sequence

# "--name value", "--name=value", "NAME=value", "a.b=value", and a short option's "-b 64".
ARGUMENT = re.compile(
    r"(?P<name>(?<![\w.-])(?:--?[A-Za-z][\w.-]*|\+{0,2}[A-Za-z_][\w.]*(?==)))(?P<sep>=|[ \t]+)"
    r"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|\$\(\([^()\n]*\)\)|[^\s;&|<>()\"'-][^\s;&|<>()\"']*|-\d[^\s;&|<>()]*)"
)
# A position of the script's arguments, with a default or a message for want of one; and where it is only looked whether
# there is one.
_POSITION = r"\$(?:([1-9])|\{([1-9]\d?)(?::?(?:-([\w./:,+=-]*)|\?[^}$`]*))?\})"
# Sourced files, a loop that says no words and commands that are put together ask for arguments without saying so.
_ASKS_UNSAID = (
    r"(?m)\bfor\s+\w+\s*(?:;|\n|\bdo\b|$)|\beval\b|\bBASH_ARGV"
    r"|(?:^|[;&|]\s*|\s)(?:source|\.)\s+(?!\S*(?:activate|rc|profile|conda\.sh)\b)"
)
_IS_THERE = r"-[zn][ \t]+\"?\$\{\d+\}\"?"
_COUNTS_ANEW = r"\bshift\b|\bgetopts\b|\bset\s+--|\w\s*\(\s*\)|\bfunction\b|\$\{?[@*]|\$\{[1-9]\d?[^}\d]|\$\{!"
# A loop over all arguments, and whatever else asks for any of them.
_OVER_ALL = r"(?m)(\bfor\s+\w{1,40}\s+in)\s+\"?\$(?:[@*]|\{[@*]\})\"?(?=\s*(?:;|$))"
_ASKS_ANY = r"\bshift\b|\bgetopts\b|\bset\s+--|\$\{?[\d@*#!]"
_COUNT = r"\$\{?#"
# Nothing is compared before it.
_WRITTEN = r"(?m)^([^\[('\"\\\n>]*)((?:[ \t]*\d?>>?[ \t]*[^\s;&|<>()]+)+)"
_OPTIONS = r"(?:--[A-Za-z][\w.-]* [\w./:,+][\w./:,+-]*(?: |$))+"
_COUNTED_THROUGH = r"\bfor \w+ in (\$\(seq [^;\n()]*\))"
_PLAIN_WORD = r"[\w./:,+= -]+"
# A word with blanks is one where it is quoted: "--seed $1" of "1 --width 64" is two options.
_QUOTED = r"(?:export \w+=|-[\w.-]+[ =])\"\$\{%d\}\""
# The first argument goes, and the second takes its place; before that nothing may ask for another or be done twice.
_SHIFT = r"(?m)(?:^|(?<=;)) *shift(?: 1)? *(?:; *|$)"
_NOT_STRAIGHT = r"\b(?:for|while|until|if|case|function|shift|getopts|set)\b|\(\s*\)|\$\{?(?:[2-9@*#!]|1\d)|<<"


def _given(match: re.Match[str], words: Sequence[str]) -> str:
    """Return a position as ${1} where there is such an argument, and its default where there is none."""
    number = int(match[1] or match[2])
    if number > len(words):
        return match[0] if match[3] is None else match[3]
    return f"${{{number}}}" if words[number - 1] else match[0]


def followed(body: str, script_args: Sequence[str]) -> tuple[str, list[str]]:
    """Return a script with those of its arguments put in that are values of options or variables there, and the others.

    "--seed $1" is the seed of every call: the argument is judged by that name. One that stands anywhere
    else, or may be counted otherwise (shift, a function's own $1), is an argument without a name as before.
    """
    words = list(script_args)
    if re.search(_ASKS_UNSAID, body):
        return body, words
    shift = re.search(_SHIFT, body)
    if shift and words and not re.search(_NOT_STRAIGHT, body[: shift.start()]):
        (head, first), (tail, rest) = (
            followed(body[: shift.start()], words[:1]),
            followed(body[shift.end() :], words[1:]),
        )
        return f"{head}{shift[0]}{tail}", first + rest
    loop = re.search(_OVER_ALL, body)
    if loop and all(re.fullmatch(_PLAIN_WORD, word) and " " not in word for word in words):
        looped = f"{body[: loop.start()]}{loop[1]} {' '.join(words)}{body[loop.end() :]}"
        if not re.search(_ASKS_ANY, looped):
            return looped, []
    whole = body.replace('"$@"', options := " ".join(words))
    are_options = options.count(" ") < len(words) and re.fullmatch(_OPTIONS, options)
    if are_options and whole != body and not re.search(rf"'|{_COUNTS_ANEW}|{_ASKS_ANY}", whole):
        return whole, []
    given = re.sub(_POSITION, lambda match: _given(match, words), body)
    if re.search(_COUNTS_ANEW, given):
        return body, words
    # What is only written to needs no more for its name.
    body = re.sub(_WRITTEN, lambda match: match[1] + re.sub(_POSITION, "*", match[2]), re.sub(_IS_THERE, "*", given))
    values = "\n".join(
        [
            *(match["value"] for match in ARGUMENT.finditer(body) if not match["value"].startswith("'")),
            *re.findall(_COUNTED_THROUGH, body),
        ]
    )
    for number, word in enumerate(words, 1):
        position = f"${{{number}}}"
        as_one = len(re.findall(_QUOTED % number, body)) if " " in word else values.count(position)
        if 0 < body.count(position) == as_one and re.fullmatch(_PLAIN_WORD, word):
            body, words[number - 1] = body.replace(position, word), ""
    # Without any is as with all of them put in, unless they are counted.
    while words and not words[-1] and not re.search(_COUNT, body):
        words.pop()
    return body, words
