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


def value_of(options: Mapping[str, Given], name: str) -> str:
    """Return an option's value; empty where it has none or is not given."""
    return (options[name].value or "") if name in options else ""


def count_of(options: Mapping[str, Given], name: str) -> int:
    """Return the number that an option gives, and 0 if it is not given.

    Raises:
        UnsureError: it is no number.
    """
    text = value_of(options, name)
    if name in options and not (text.isascii() and text.isdigit()):
        raise UnsureError(f"--{name}='{text}' is not a number")
    return int(text or 0)


class CommandLine(NamedTuple):
    """A command line of csub, split into sbatch's part and csub's own."""

    options: tuple[Given, ...]
    own: tuple[Given, ...]
    sbatch_argv: tuple[str, ...]  # the words but the program's name and csub's own options
    script_at: int | None  # the script's index in sbatch_argv; None: read from stdin, or --wrap
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
    """Options from SBATCH_* variables, in the order in which sbatch reads them."""

    early: tuple[Given, ...] = ()  # before the command line and the script
    late: tuple[Given, ...] = ()  # after the script


# An option, its value, the index of its word, and how it was written.
_Read = tuple[Option, str | None, int, str]


class Scan(NamedTuple):
    """The options in a vector of words, as one run of getopt_long reads them."""

    options: tuple[_Read, ...]
    own: tuple[_Read, ...]
    own_words: frozenset[int]  # indices of the words taken by csub's own options
    end: int  # index before which further options can be inserted
    stop: int  # index of the first word that is no option; the vector's length if there is none


def match_long(name: str, word: str, table: tuple[Option, ...], own: Collection[str] = ()) -> Option:
    """Find the option meant by a long name or by a unique beginning of it.

    getopt_long forgives an abbreviation that fits only spellings of one option; no table holds such a pair (a unit test
    says so), hence more than one fit is ambiguous. An error names the nearest of csub's ``own``, which are written out
    in full.
    """
    fits = [option for option in table if option.name.startswith(name)]
    exact = [option for option in fits if option.name == name]
    if len(exact or fits) == 1:
        return (exact or fits)[0]
    if not fits:
        raise UnsureError(f"option '{word}' is unknown{nearest(f'--{name}', (f'--{option}' for option in own), '')}")
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
    for end, letter in enumerate(word[1:], start=2):
        option = shorts.get(letter)
        if option is None:
            raise UnsureError(f"option '-{letter}' in '{place}{word}' is unknown")
        if option.argument == "none":
            yield option, None, f"-{letter}"
            continue
        rest = word[end:]
        yield option, rest or (_NEXT if option.argument == "required" else None), f"-{letter}{rest}"
        break


def scan(
    words: Sequence[str],
    table: tuple[Option, ...],
    own: tuple[Option, ...] = (),
    where: Callable[[int], str] = lambda _: "",
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
    of_sbatch: list[_Read] = []
    of_csub: list[_Read] = []
    own_words: set[int] = set()
    after, end = 0, None
    while after < len(words) and len(words[after]) > 1 and words[after][0] == "-":
        index, word, place = after, words[after], where(after)
        after += 1
        if word == "--":
            end = index
            break
        read = [_long(word, place, table, own_names)] if word[1] == "-" else _bundle(word, place, shorts)
        for option, value, text in read:
            is_own = own_names.get(option.name) is option
            if value is _NEXT:
                if after == len(words):
                    raise (MisusedError if is_own else UnsureError)(f"option '{place}{text}' has no value")
                # getopt takes it whatever it looks like.
                value, text = words[after], f"{text} {words[after]}"
                after += 1
            (of_csub if is_own else of_sbatch).append((option, value, index, text))
            own_words.update(range(index, after) if is_own else ())
    return Scan(tuple(of_sbatch), tuple(of_csub), frozenset(own_words), after if end is None else end, after)


def split_command_line(argv: Sequence[str], table: tuple[Option, ...], own: tuple[Option, ...] = ()) -> CommandLine:
    """Split a command line (without the program's name) as sbatch would, and take csub's own options out.

    Options such as --help stay among `options`; sbatch acts on them at once, so the caller should look for them first.

    Raises:
        UnsureError: sbatch would refuse it, or an option is not in the table.
    """
    # sbatch drops every ":", even one that stands for a value or behind the script, to find the script.
    read = [index for index, word in enumerate(argv) if word != ":"]
    result = scan([argv[index] for index in read], table, own)
    own_indices = {read[index] for index in result.own_words}
    rest = [index for index in range(len(argv)) if index not in own_indices]
    script_at = rest.index(read[result.stop]) if result.stop < len(read) else None
    options = tuple(Given(option.canonical, value, "argv", text) for option, value, _, text in result.options)
    if script_at is not None and any(option.name == "wrap" for option in options):
        raise UnsureError(f"a script ('{argv[read[result.stop]]}') beside --wrap")
    return CommandLine(
        options=options,
        own=tuple(Given(option.name, value, "argv", text) for option, value, _, text in result.own),
        sbatch_argv=tuple(argv[index] for index in rest),
        script_at=script_at,
        end=result.end - len(result.own_words),
    )


def _is_set(value: str) -> bool:
    """Say whether a flag's variable sets the flag: empty, "yes" or a number that is not 0."""
    return re.fullmatch(r"|(?ai:yes)|[ \t\n\v\f\r]*[+-]?0*[1-9][0-9]*", value) is not None


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
        options = early if release >= EARLY_VARIABLES.get(variable, "~") else late
        options.append(Given(option.canonical, value, "environment", variable))
    return Environment(tuple(early), tuple(late))


def without(words: Sequence[str], table: tuple[Option, ...], names: Collection[str]) -> list[str]:
    """Return a command line's options without these, whether long, short or behind other short ones."""
    remaining: dict[int, str] = dict(enumerate(words))
    read: dict[int, int] = {}  # how much of a word its options so far have taken
    for option, _, index, written in scan(words, table).options:
        word = words[index]
        is_long = word.startswith("--")
        start = read.get(index, 0 if is_long else 1)
        text = written if is_long else written[1:]
        in_next = not word.startswith(text, start)
        read[index] = len(word) if in_next else start + len(text)
        if option.canonical in names:
            remaining[index] = remaining[index].removesuffix(word[start:]) + word[read[index] :]
            if in_next:
                remaining.pop(index + 1, None)
    return [word for index, word in remaining.items() if index not in read or word not in ("", "-")]


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


# sbatch of 22.05 and 24.11 says so of a file that is not there or was made for another release; 26.05 is silent.
_UNLOADED = r"(?m)^sbatch: error: spank: (/[^\n]*)$"


def unloaded_plugins(answer: str) -> tuple[str, ...]:
    """Return what sbatch says, at any call, of SPANK plugins that it cannot load."""
    return tuple(re.findall(_UNLOADED, answer))


def listed_options(answer: str) -> tuple[str, ...]:
    """Return the long names in what `sbatch --=` says, the plugins' among them; nothing where it lists none."""
    listed = answer.partition("possibilities: ")[2].partition("\n")[0]
    return tuple(word.removeprefix("'--").removesuffix("'") for word in listed.split(" ") if word.startswith("'--"))
