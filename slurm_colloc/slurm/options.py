# SPDX-License-Identifier: Apache-2.0
"""Read sbatch's command line and SBATCH_* variables exactly as sbatch does, or raise UnsureError.

The scanner is GNU getopt_long with sbatch's own option string ("+..."): it stops at the first word that is no option.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.errors import ConfigError, MisusedError, UnsureError, nearest
from slurm_colloc.slurm.option_tables import (
    DEADLY_VARIABLES,
    EARLY_VARIABLES,
    VARIABLE_BEFORE,
    VARIABLES_AFTER,
    Option,
)

# The value of a flag whose variable takes it back (SBATCH_OVERCOMMIT=0): a NUL, which no variable or argument can hold.
RESET = "\0"
# The value of an option that is the next word.
_NEXT = "\0next"

_WHITE_SPACE = " \t\n\v\f\r"


class Given(NamedTuple):
    """One option as the user gave it."""

    name: str  # canonical long name; or csub's own option name
    value: str | None  # None where no value was given; RESET see above
    origin: str  # "argv" | "environment" | "directive"
    written: str  # "--gres=gpu:1", "SBATCH_GRES", "line 3: --gres=gpu:1"

    @property
    def word(self) -> str:
        """Return it as one word of a command line."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


def value_of(given: Mapping[str, Given], name: str) -> str:
    """Return an option's value; empty where it has none or is not given."""
    return (given[name].value or "") if name in given else ""


def count_of(given: Mapping[str, Given], name: str) -> int:
    """Return the number that an option gives; 0 where it is not given.

    Raises:
        UnsureError: it is no number.
    """
    text = value_of(given, name)
    if name in given and not (text.isascii() and text.isdigit()):
        raise UnsureError(f"--{name}='{text}' is not a number")
    return int(text or 0)


class CommandLine(NamedTuple):
    """A command line of csub, split into sbatch's part and csub's own."""

    options: tuple[Given, ...]
    own: tuple[Given, ...]
    sbatch_argv: tuple[str, ...]  # without the program's name and without csub's own options
    script_at: int | None  # where the script stands in sbatch_argv; None: read from stdin, or --wrap
    end: int  # the index in sbatch_argv before which further options can be inserted

    @property
    def heterogeneous(self) -> bool:
        """Return whether ":" arguments make a heterogeneous job."""
        return ":" in self.sbatch_argv[: self.script_at]

    @property
    def script(self) -> str | None:
        """Return the script as named by the user, None where it comes from stdin or --wrap."""
        return None if self.script_at is None else self.sbatch_argv[self.script_at]

    @property
    def script_args(self) -> tuple[str, ...]:
        """Return the arguments that the script gets."""
        if self.script_at is None:
            return ()
        return tuple(word for word in self.sbatch_argv[self.script_at + 1 :] if word != ":")


class Environment(NamedTuple):
    """What SBATCH_* variables give, in the order in which sbatch reads them."""

    early: tuple[Given, ...] = ()  # before the command line and the script
    late: tuple[Given, ...] = ()  # after the script


class Scan(NamedTuple):
    """What one run of getopt_long found in a vector of words."""

    found: tuple[tuple[Option, str | None, int, str], ...]  # option, value, index of its word, as written
    own: tuple[tuple[Option, str | None, int, str], ...]
    own_words: frozenset[int]  # indices of the words taken by csub's own options
    end: int  # index before which further options can be inserted
    stop: int  # index of the first word that is no option; the vector's length if there is none


def match_long(name: str, word: str, table: tuple[Option, ...], own: Collection[str] = ()) -> Option:
    """Find the option meant by a long name or by a unique beginning of it.

    getopt_long forgives an abbreviation that fits only spellings of one option; no table holds such a pair (a unit test
    says so), hence more than one fit is ambiguous. Of csub's ``own``, which are written out in full, the one that was
    meant is named.
    """
    fits = []
    for option in table:
        if option.name == name:
            return option
        if option.name.startswith(name):
            fits.append(option)
    if len(fits) == 1:
        return fits[0]
    if not fits:
        raise UnsureError(f"option '{word}' is unknown{nearest(f'--{name}', (f'--{one}' for one in own), '')}")
    raise UnsureError(f"option '{word}' is ambiguous: " + ", ".join(f"'--{option.name}'" for option in fits))


def _long(word: str, place: str, table: tuple[Option, ...], own: dict[str, Option]) -> tuple[Option, str | None, str]:
    """Read a word that begins with two dashes."""
    name, equals, rest = word[2:].partition("=")
    option = own.get(name) or match_long(name, place + word, table, own)
    if not equals:
        return option, _NEXT if option.argument == "required" else None, word
    if option.argument == "none":
        raise (MisusedError if name in own else UnsureError)(f"option '{place}{word}' does not take a value")
    # sbatch takes "--nice=" for "--nice"
    return option, None if option.argument == "optional" and not rest else rest, word


def _bundle(word: str, place: str, shorts: dict[str, Option]) -> Iterator[tuple[Option, str | None, str]]:
    """Read a word of short options ("-HN2")."""
    for at, letter in enumerate(word[1:], start=2):
        option = shorts.get(letter)
        if option is None:
            raise UnsureError(f"option '-{letter}' in '{place}{word}' is unknown")
        if option.argument == "none":
            yield option, None, f"-{letter}"
            continue
        rest = word[at:]
        yield option, rest or (_NEXT if option.argument == "required" else None), f"-{letter}{rest}"
        break


def _nowhere(_index: int) -> str:
    """Say nothing about where a command line's word stands."""
    return ""


def scan(
    words: Sequence[str],
    table: tuple[Option, ...],
    own: tuple[Option, ...] = (),
    where: Callable[[int], str] = _nowhere,
) -> Scan:
    """Run getopt_long over a vector of words.

    Args:
        words: The vector, without a program name.
        table: The options of sbatch.
        own: csub's own options, recognised by their whole long name only.
        where: Turns an index into a prefix for messages, such as "line 3: ".

    Raises:
        UnsureError: sbatch would refuse the vector, or it holds an option that the table does not.
    """
    shorts = {option.short: option for option in table if option.short}
    own_names = {option.name: option for option in own}
    found: list[tuple[Option, str | None, int, str]] = []
    mine: list[tuple[Option, str | None, int, str]] = []
    taken: set[int] = set()
    at, end = 0, None
    while at < len(words) and len(words[at]) > 1 and words[at][0] == "-":
        index, word, place = at, words[at], where(at)
        at += 1
        if word == "--":
            end = index
            break
        read = [_long(word, place, table, own_names)] if word[1] == "-" else _bundle(word, place, shorts)
        for option, value, text in read:
            is_own = own_names.get(option.name) is option
            if value is _NEXT:
                if at == len(words):
                    raise (MisusedError if is_own else UnsureError)(f"option '{place}{text}' has no value")
                # Whatever it looks like, as getopt does.
                value, text = words[at], f"{text} {words[at]}"
                at += 1
            (mine if is_own else found).append((option, value, index, text))
            taken.update(range(index, at) if is_own else ())
    return Scan(tuple(found), tuple(mine), frozenset(taken), at if end is None else end, at)


def split_command_line(argv: Sequence[str], table: tuple[Option, ...], own: tuple[Option, ...] = ()) -> CommandLine:
    """Split a command line (without the program's name) as sbatch would, and take csub's own options out.

    Options such as --help stay among `options`; sbatch acts on them at once, so the caller should look for them first.

    Raises:
        UnsureError: sbatch would refuse it, or an option is not in the table.
    """
    # sbatch drops every ":", even one that stands for a value or behind the script, to find the script.
    kept = [index for index, word in enumerate(argv) if word != ":"]
    result = scan([argv[index] for index in kept], table, own)
    own_indices = {kept[index] for index in result.own_words}
    rest = [index for index in range(len(argv)) if index not in own_indices]
    script_at = rest.index(kept[result.stop]) if result.stop < len(kept) else None
    options = tuple(Given(option.canonical, value, "argv", text) for option, value, _, text in result.found)
    if script_at is not None and any(given.name == "wrap" for given in options):
        raise UnsureError(f"a script ('{argv[kept[result.stop]]}') beside --wrap")
    return CommandLine(
        options=options,
        own=tuple(Given(option.name, value, "argv", text) for option, value, _, text in result.own),
        sbatch_argv=tuple(argv[index] for index in rest),
        script_at=script_at,
        end=result.end - len(result.own_words),
    )


def _is_set(value: str) -> bool:
    """Say whether a flag's variable sets the flag: empty, "yes" or a number that is not 0."""
    if not value or value.lower() == "yes":
        return True
    digits = value.lstrip(_WHITE_SPACE)
    if digits[:1] in ("+", "-"):
        digits = digits[1:]
    return digits.isascii() and digits.isdigit() and digits.strip("0") != ""


def read_environment(environ: Mapping[str, str], table: tuple[Option, ...], release: str) -> Environment:
    """Read the variables that sbatch takes for options, in the order in which sbatch does.

    A flag's variable with any other value than those that set it takes the flag back: its Given has the value RESET.

    Raises:
        UnsureError: sbatch would refuse a variable.
    """
    for variable, since in DEADLY_VARIABLES.items():
        if variable in environ and release >= since:
            raise UnsureError(f"{variable} is set, with which sbatch ends")
    early: list[Given] = []
    late: list[Given] = []
    for option in (VARIABLE_BEFORE, *table, *VARIABLES_AFTER):
        variable = option.environment
        text = environ.get(variable) if variable else None
        if text is None:
            continue
        value: str | None = text
        if option.argument == "none":
            value = None if _is_set(text) else RESET
        elif option.argument == "optional" and not text:
            value = None
        given = Given(option.canonical, value, "environment", variable)
        (early if release >= EARLY_VARIABLES.get(variable, "~") else late).append(given)
    return Environment(tuple(early), tuple(late))


def without(words: Sequence[str], table: tuple[Option, ...], names: Collection[str]) -> list[str]:
    """Return a command line's options without these, whether long, short or behind other short ones."""
    left: dict[int, str] = dict(enumerate(words))
    read: dict[int, int] = {}  # how much of a word its options so far have taken
    for option, _, index, written in scan(words, table).found:
        word = words[index]
        is_long = word.startswith("--")
        at = read.get(index, 0 if is_long else 1)
        text = written if is_long else written[1:]
        in_next = not word.startswith(text, at)
        read[index] = len(word) if in_next else at + len(text)
        if option.canonical in names:
            left[index] = left[index].removesuffix(word[at:]) + word[read[index] :]
            if in_next:
                left.pop(index + 1, None)
    return [word for index, word in left.items() if index not in read or word not in ("", "-")]


# Options that a site's SPANK plugins add to sbatch: written in a site's configuration, found in what sbatch lists

_ARGUMENTS = {"=": "required", "=?": "optional", "": "none"}


def site_option(text: str) -> Option:
    """Make an option of "name=" (it needs a value), "name=?" (it may have one) or "name" (a flag).

    Raises:
        ConfigError: The text is none of these.
    """
    name, equals, rest = text.partition("=")
    argument = _ARGUMENTS.get(equals + rest)
    if argument is None or not name or name.startswith("-") or not all(0x20 < ord(letter) < 0x7F for letter in name):
        raise ConfigError(f"option '{text}' of a plugin is none of 'name', 'name=' and 'name=?'")
    return Option(name, "", argument, "")


def join_options(table: tuple[Option, ...], texts: Iterable[str]) -> tuple[Option, ...]:
    """Add a site's options to the table of a release, as sbatch does.

    A name that is taken stays what it is: sbatch, too, ignores the plugin's. A plugin's option has no short name, and
    an abbreviation that fits it as well as another option is ambiguous from now on.

    Raises:
        ConfigError: A text is no option.
    """
    joined = {option.name: option for option in table}
    for text in texts:
        option = site_option(text)
        joined.setdefault(option.name, option)
    return tuple(joined.values())


# In what sbatch of 22.05 and 24.11 says of a file that is not there or was made for another release; 26.05 is silent.
_UNLOADED = r"(?m)^sbatch: error: spank: (/[^\n]*)$"


def unloaded_plugins(said: str) -> tuple[str, ...]:
    """Return what sbatch says, at any call, of SPANK plugins that it cannot load."""
    return tuple(re.findall(_UNLOADED, said))


def listed_options(said: str) -> tuple[str, ...]:
    """Return the long names in what `sbatch --=` says, the plugins' among them; nothing where it lists none."""
    listed = said.partition("possibilities: ")[2].partition("\n")[0]
    return tuple(word.removeprefix("'--").removesuffix("'") for word in listed.split(" ") if word.startswith("'--"))
