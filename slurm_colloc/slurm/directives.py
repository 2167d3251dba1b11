# SPDX-License-Identifier: Apache-2.0
"""Read a batch script as sbatch does: its checks of the file, the #SBATCH lines, and what wins over what."""

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from slurm_colloc.core.errors import MisusedError, UnsureError
from slurm_colloc.slurm.option_tables import (
    COMMAND_LINE_ONLY,
    ESCAPED_SPACE_SINCE,
    NO_SCRIPT,
    SAME_VALUE,
    Option,
)
from slurm_colloc.slurm.options import RESET, CommandLine, Environment, Given, scan, without

_BLANKS = b" \t\n\v\f\r"  # isspace() in the C locale; str.isspace() knows more
_FOREIGN_REACH = 100  # sbatch looks for #BSUB and #PBS until more lines than this did not start with "#"
# A word that makes a heterogeneous job.
_SECOND_JOB = rb"(?i:hetjob|packjob)(?![^ \t\n\v\f\r])"
# A #CSUB directive, not a comment that only starts alike.
_OF_CSUB = rb"#CSUB(?![^ \t-])"


class Script(NamedTuple):
    """A batch script as sbatch reads it."""

    interpreter: str  # the first line behind "#!"
    options: tuple[Given, ...]  # without what sbatch ignores in a script
    insert_at: int  # byte offset of the first command line, where more lines can go; the file's end if there is none
    own_directives: tuple[Given, ...]  # from #CSUB lines
    foreign: tuple[str, ...]  # "#PBS" and "#BSUB" lines that sbatch would translate unless --ignore-pbs


# A word of a directive and the line that it stands in.
_Word = tuple[str, int]


def _check_file(text: bytes) -> None:
    """Refuse what sbatch refuses before it reads a line."""
    if not text.strip(_BLANKS):
        raise UnsureError("the script is empty or only white space")
    if not text.startswith(b"#!"):
        raise UnsureError("the script does not start with '#!'")
    if b"\0" in text:
        raise UnsureError("the script holds a NUL byte")
    if b"\r\n" in text:
        raise UnsureError("the script has DOS line ends")


def _one_word(rest: bytes, number: int, release: str) -> tuple[bytes, int]:
    """Take the word at the start of the text: its bytes, and how many bytes of the text it took."""
    literal = b" " if release >= ESCAPED_SPACE_SINCE else b""
    word = bytearray()
    quote = 0
    end = 0
    while end < len(rest) and (quote or rest[end] not in _BLANKS):
        byte = rest[end]
        end += 1
        if byte == 0x5C:  # a backslash: the next character stands for itself, and one at the line's end is dropped
            if end == len(rest) or (not quote and rest[end] in _BLANKS and rest[end] not in literal):
                break
            word.append(rest[end])
            end += 1
        elif quote:
            if byte == quote:
                quote = 0
            else:
                word.append(byte)
        elif byte in b"\"'":
            quote = byte
        elif byte == 0x23:  # an unquoted "#" makes the rest a comment, even inside a word
            end = len(rest)
        else:
            word.append(byte)
    if quote:
        raise UnsureError(f"line {number}: a quote is not closed")
    return bytes(word), end


def split_directive(rest: bytes, number: int, release: str) -> list[_Word]:
    """Split what follows #SBATCH in a line into words.

    Args:
        rest: The bytes behind the magic word.
        number: The line's number, for messages.
        release: Of Slurm; a backslash before a space is read differently.

    Raises:
        UnsureError: An open quote, or a word that starts with ":".
    """
    words: list[_Word] = []
    while True:
        rest = rest.lstrip(_BLANKS)
        if not rest or re.match(_SECOND_JOB, rest):
            return words
        if rest.startswith(b":"):
            raise UnsureError(f"line {number}: a word that starts with ':'")
        word, used = _one_word(rest, number, release)
        if not word:  # a comment, or an empty pair of quotes: sbatch reads neither that word nor the rest of the line
            return words
        words.append((word.decode("utf-8", "surrogateescape"), number))
        rest = rest[used:]


def _read_vector(words: list[_Word], table: tuple[Option, ...], own: tuple[Option, ...]) -> tuple[Given, ...]:
    """Read all words, which form ONE argument vector however many lines they stand in."""

    def where(index: int) -> str:
        return f"line {words[index][1]}: "

    result = scan([word for word, _ in words], table, own, where)
    if result.stop < len(words):
        raise UnsureError(f"{where(result.stop)}'{words[result.stop][0]}' is no option")
    return tuple(
        Given(option.canonical, value, "directive", where(index) + text)
        for option, value, index, text in (result.own if own else result.options)
        if own or option.canonical not in COMMAND_LINE_ONLY
    )


def _check_options_of_csub(words: list[_Word], names: Collection[str]) -> None:
    """Refuse options of csub's behind #SBATCH, as sbatch does, and say where they belong."""
    for word, number in words:
        if word.startswith("--") and word[2:].partition("=")[0] in names:
            raise UnsureError(f"line {number}: option '{word}' is csub's; write it behind #CSUB and not #SBATCH")


@contextmanager
def _of_csub() -> Iterator[None]:
    """Tell what is wrong with #CSUB lines, which are comments to sbatch, from what sbatch may read differently."""
    try:
        yield
    except UnsureError as error:
        raise MisusedError(str(error)) from error


def _lines(text: bytes) -> list[tuple[int, bytes]]:
    """Return each line of the comment block with its offset, and the line that ends the block, if any, as the last."""
    lines: list[tuple[int, bytes]] = []
    start = 0
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        lines.append((start, text[start:end]))
        if _is_command(text[start:end]):
            break
        start = end + 1
    return lines


def _is_command(line: bytes) -> bool:
    return line.lstrip(_BLANKS)[:1] not in (b"", b"#")


def _foreign(text: bytes) -> tuple[str, ...]:
    """Find the lines of other schedulers that sbatch would translate; commands do not end this search."""
    if b"#PBS" not in text and b"#BSUB" not in text:
        return ()
    directives: list[str] = []
    plain_lines = 0
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.startswith((b"#PBS", b"#BSUB")):
            directives.append(f"line {number}: {line.decode('utf-8', 'surrogateescape')}")
        plain_lines += not line.startswith(b"#")
        if plain_lines > _FOREIGN_REACH:
            break
    return tuple(directives)


def read_script(text: bytes, table: tuple[Option, ...], release: str, own: tuple[Option, ...] = ()) -> Script:
    """Read a batch script (not the command of --wrap, in which sbatch reads no directives).

    Args:
        text: The whole file.
        table: The options of sbatch.
        release: Of Slurm.
        own: csub's own options; #CSUB lines are comments if there are none.

    Raises:
        UnsureError: For all that sbatch refuses or calls an error, and for what the table does not know.
        MisusedError: A #CSUB line that is none of csub's own options.
    """
    _check_file(text)
    lines = _lines(text)
    words: list[_Word] = []
    own_words: list[_Word] = []
    insert_at = len(text)
    for number, (start, line) in enumerate(lines, start=1):
        if line.startswith(b"#SBATCH"):
            rest = line[7:].lstrip(_BLANKS)
            if re.match(_SECOND_JOB, rest):
                raise UnsureError("it is a heterogeneous job")
            words += split_directive(rest, number, release)
        elif line.startswith(b"#SLURM"):
            raise UnsureError(f"line {number}: '#SLURM', about which sbatch complains")
        elif own and re.match(_OF_CSUB, line):
            with _of_csub():
                own_words += split_directive(line[5:], number, release)
        elif _is_command(line):
            insert_at = start
    _check_options_of_csub(words, {option.name for option in own} - {option.name for option in table})
    with _of_csub():
        own_directives = _read_vector(own_words, (), own) if own_words else ()
    return Script(
        interpreter=lines[0][1][2:].strip(_BLANKS).decode("utf-8", "surrogateescape"),
        options=_read_vector(words, table, ()),
        insert_at=insert_at,
        own_directives=own_directives,
        foreign=_foreign(text),
    )


def without_options(text: bytes, table: tuple[Option, ...], release: str, names: Collection[str]) -> bytes:
    """Return the script without these options in its directives; a line that holds nothing else is commented out.

    Raises:
        UnsureError: Such an option stands in a line with quotes or a comment, or in two lines.
    """
    lines = _lines(text)
    changed = [_line_without(line, number, table, release, names) for number, (_, line) in enumerate(lines, start=1)]
    end = lines[-1][0] + len(lines[-1][1])
    result = b"\n".join(changed) + text[end:]
    before, after = (read_script(version, table, release).options for version in (text, result))
    remaining = [(option.name, option.value) for option in before if option.name not in names]
    if [(option.name, option.value) for option in after] != remaining:
        raise UnsureError("the script would be read differently without " + " and ".join(f"--{name}" for name in names))
    return result


def _line_without(line: bytes, number: int, table: tuple[Option, ...], release: str, names: Collection[str]) -> bytes:
    if not line.startswith(b"#SBATCH"):
        return line
    words = [word for word, _ in split_directive(line[7:], number, release)]
    try:
        remaining = without(words, table, names)
    except UnsureError:  # half of an option: whether it is one of these shows in the end
        return line
    if remaining == words:
        return line
    if not remaining:
        return b"#" + line
    plain = " ".join(words).encode(errors="surrogateescape")
    if b" ".join(line[7:].split()) != plain or set(b"\"'\\#") & set(plain):
        raise UnsureError(f"line {number}: '{plain.decode(errors='replace')}' cannot be taken apart with certainty")
    return b"#SBATCH " + " ".join(remaining).encode(errors="surrogateescape")


def _apply(held: dict[str, Given], options: Iterable[Given]) -> None:
    """Let later settings replace earlier ones, also under the other name of the same value."""
    for option in options:
        held.pop(option.name, None)
        held.pop(SAME_VALUE.get(option.name, option.name), None)
        if option.value != RESET:
            held[option.name] = option


def options_in_force(script: Script | None, environment: Environment, command_line: CommandLine) -> dict[str, Given]:
    """Return what holds in the end: directives, then the environment, then the command line.

    The last wins, and a dictionary's order is that of the last setting. --switches and its two variables stay apart, as
    in sbatch, which reads the command line once before the rest and once behind it.

    Args:
        script: None for --wrap.
        environment: As read_environment returns it.
        command_line: As split_command_line returns it.

    Raises:
        UnsureError: No script is submitted, or it is a heterogeneous job.
    """
    if command_line.heterogeneous:
        raise UnsureError("it is a heterogeneous job")
    held: dict[str, Given] = {}
    _apply(held, environment.early)
    _apply(held, command_line.options)
    _apply(held, script.options if script is not None else ())
    _apply(held, environment.late)
    _apply(held, (option for option in command_line.options if option.name not in COMMAND_LINE_ONLY))
    for name, option in held.items():
        if name in NO_SCRIPT:
            raise UnsureError(f"'{option.written}', with which sbatch takes no script")
    return held
