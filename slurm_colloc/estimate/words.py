# SPDX-License-Identifier: Apache-2.0
"""Words of a script and its arguments, without their numbers and without all that only tells runs apart."""

import os
import re
from collections.abc import Callable, Sequence

from slurm_colloc.estimate.arguments import ARGUMENT
from slurm_colloc.estimate.digest import digest
from slurm_colloc.estimate.files import without_seed
from slurm_colloc.estimate.seeds_and_sizes import IS_NUMBER, is_always_noise, is_choice, is_label, is_noise

_MOST_NUMBERS, _LONGEST = 24, 140
# Few submissions need these, and the first that does compiles them (100 us each).
_DATE = (
    r"(?<!\d)20[0-3]\d[-_./]?(?:0[1-9]|1[0-2])[-_./]?(?:0[1-9]|[12]\d|3[01])"
    r"(?:[-_T. ]?[0-2]\d[-_:.h]?[0-5]\d(?:[-_:.m]?[0-5]\d)?)?(?!\d)"
)
REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_FILE = r"(?<![\w./~+-])[\w./~+-]*\w\.\w+"
# Places where a command only puts or looks for something: the source of a copy stays.
_PUTS = (
    r"(?m)>>?\s*[^\s;&|]+|\btee\s+(?:-a\s+)?[^\s;&|]+|(?<![\w-])(?:mkdir|rm|touch)\b[^;&|\n]*"
    # Code and settings that a script looks for it runs, and writes none.
    r"|\[\[?\s+!?\s*-[defnrswxzL]\s+(?![^\s\]]*\.(?:sh|bash|py|R|jl|conf|cfg|env|rc)\b)[^\s\]]+"
    # The match goes to the end of a command, also without a second word: each is looked at once.
    r"|\b(?:cp|mv|rsync|ln)\b(?P<of>[^;&|\n]*?)(?:\s{1,8}[^\s;&|]+(?=\s*(?:$|[;&|]))|(?=[;&|\n]|\Z))"
)
_LOOP = re.compile(r"(\bfor\s+(\w{1,40})\s+in\s)[^;\n]*")
# Commands that run beside the next one: "2>&1" and "&&" start none.
_AT_ONCE = re.compile(r"(?<![>&<])&(?![>&])|\b(?:parallel|xargs|screen|tmux|coproc|sem)\b")
# More than one word, of which a shell makes options of their own.
_SEVERAL = r"\s(?:-|[\w.]+=)"
_RESULTS_PATH = r"(?<![\w./~$}-])(?:\./)?(?:outputs?|results?|work_dirs?|runs?|logs?)/[\w/-]+(?![\w./])"
_SHOWN_AT = r"(>>?\s?)(?:\./)?(?:outputs?|results?|runs?|logs?)/[\w./-]+\.(?:txt|log|out|err)(?![\w./])"
INDEX = "SLURM_ARRAY_TASK_ID"
# A variable that holds nothing but an array's index.
_IS_INDEX = r"(?m)^[ \t]*([A-Za-z_]\w*)=[\"']?\$\{?SLURM_ARRAY_TASK_ID\}?[\"']?\s*$"
# A variable counts without a dollar here: reckoned with, compared, or as the name in another one; and handed on.
_RECKONS = r"(?m)\(\([^\n]{0,1000}?\)\)|\[[^\n]{0,1000}?\]|\$\{!\w+|\b(?:let|expr|test)\s[^;\n]*|\bcase\s+\S+\s+in\b"
_EXPORTS, _EXPORTS_ALL = r"(?m)\b(?:export|declare|typeset)\b[^;\n]*", r"(?m)^\s*set\s+(?:-\w*a|-\w*o\s+allexport)"
_BARE = r"[A-Za-z_]\w*"
_LIST = r"[\[(]?[\d.+-]+(?:,[\d.+-]+)+[\])]?"
# An option that may well be a seed's: "-s $SEED".
_OF_SEED = r"(?i)-{1,2}s"


def _names_in(pattern: str, body: str) -> set[str]:
    return set(re.findall(_BARE, " ".join(re.findall(pattern, body))))


def _counted(body: str) -> set[str]:
    """Return the variables that a text reckons with, or hands on under a name that may be more than a seed's."""
    handed = {name for name in _names_in(_EXPORTS, body) if not is_always_noise(name)}
    exported = _names_in(".+", body) if re.search(_EXPORTS_ALL, body) else handed
    return exported | _names_in(_RECKONS, body)


class Reader:
    """Takes the numbers out of words, and what only tells runs apart."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.names: list[str] = []
        self.labels: set[str] = set()
        self._values: list[str] = []
        self.used: frozenset[str] = frozenset()
        self._folders = [folder.rstrip("/") for folder in folders if len(folder.rstrip("/")) > 1]

    def written(self) -> str:
        text = "_".join(self._values)
        if len(self._values) > _MOST_NUMBERS or len(text) > _LONGEST:
            return f"x{digest(text)}"
        return text

    def text(self, body: str) -> str:
        # A name or a folder in a variable may choose what runs: a model, a file; each may be part of another.
        for _ in range(4):
            references = self._asked(re.sub(_PUTS, r"\g<of>", ARGUMENT.sub(self._but_noise, body)))
            if self.used.issuperset(references):
                break
            self.used |= references
        # Which seeds they are is no difference; how many is, where they run at once.
        counted = self.used | _counted(body)
        if not _AT_ONCE.search(body):
            body = _LOOP.sub(lambda loop: loop[0] if loop[2] in counted else f"{loop[1]}*", body)
        return self._plain(ARGUMENT.sub(self._replace, body))

    def _asked(self, body: str) -> frozenset[str]:
        """Return the variables that a text asks for; a seed counts where it is reckoned with, or an option's value."""
        behind = (match for match in ARGUMENT.finditer(body) if not re.fullmatch(_OF_SEED, match["name"]))
        values = {match["value"].strip("\"'${}") for match in behind if match["name"].startswith("-")}
        sizing = values | _names_in(_RECKONS, body)
        references = (name for name in REFERENCE.findall(body) if not is_always_noise(name))
        return frozenset([*references, *filter(is_always_noise, sizing)])

    def asks_index(self, body: str) -> bool:
        """Return whether an array's index stands for more than a seed, a label or a place of results."""
        of_none = set(re.findall(_IS_INDEX, body)) - self.used - _counted(body)
        body = re.sub(r"(?m)^[ \t]*(\w+)=.*", lambda found: "" if found[1] in of_none else found[0], body)
        return INDEX in re.sub(_PUTS, r"\g<of>", ARGUMENT.sub(self._but_noise, body))

    def reads(self, body: str) -> str:
        """Return a script's text without its results' places, and without what it writes there and reads again."""
        bare = ARGUMENT.sub(self._but_noise, body)
        puts = list(re.finditer(_PUTS, bare))
        put = {os.path.basename(word) for match in puts for word in re.findall(_FILE, match[0])[-1:]}
        rest = re.sub(
            _FILE, lambda match: "" if os.path.basename(match[0]) in put else match[0], re.sub(_PUTS, " ", bare)
        )
        return "\n".join([rest, *(match["of"] for match in puts if match["of"])])

    def words(self, arguments: Sequence[str]) -> list[str]:
        """Return a script's own arguments, of which any number counts, the bare ones by their place."""
        parts: list[str] = []
        name = ""
        for number, word in enumerate(arguments, 1):
            flag, equals, value = word.partition("=")
            if name and not word.startswith("--") and not (word.startswith("-") and not IS_NUMBER.fullmatch(word)):
                parts.append(self.one(name, word))
                name = ""
            elif equals and not value.startswith("="):
                parts.append(f"{flag}={self.one(flag, value)}")
                name = ""
            elif word.startswith("-"):
                parts.append(word)
                name = word
            else:
                parts.append(self.one(f"argument {number}", word))
        return parts

    def one(self, name: str, value: str, plain: Callable[[str], str] | None = None) -> str:
        """Return what stands for one value in the family; ``plain`` is of what is neither a number nor noise."""
        bare = value.strip("\"'")
        if is_noise(name, bare) and not re.search(_SEVERAL, bare):
            if is_label(name):
                self.labels.add(bare)
            # How many seeds there are counts: they may run at once.
            return (
                self._plain(value)
                if name.lstrip("$") in self.used
                else "*" * (1 + bare.count(",") if re.fullmatch(_LIST, bare) else 1)
            )
        if IS_NUMBER.fullmatch(bare) and not is_choice(name):
            self.names.append(name.lstrip("-+$").encode("ascii", "replace").decode())
            # As a number, so that 64 and 64.0 are one; written shortly.
            self._values.append(f"{float(bare.replace('_', '')):.12g}")
            return "#"
        return (plain or self._plain)(value)

    def _but_noise(self, match: re.Match[str]) -> str:
        name, value = match["name"], match["value"].strip("\"'")
        only_tells_apart = is_noise(name, f"/{value}" if value.startswith("$") else value)
        return "" if only_tells_apart and name not in self.used else match[0]

    def _replace(self, match: re.Match[str]) -> str:
        return f"{match['name']}={self.one(match['name'], match['value'])}"

    def _plain(self, text: str) -> str:
        for folder in self._folders:
            text = text.replace(f"{folder}/", "").replace(folder, ".")
        text = re.sub(_RESULTS_PATH, "*", re.sub(_SHOWN_AT, r"\1*", text)) if "/" in text else text
        text = without_seed(text)
        return re.sub(_DATE, "@", text) if "20" in text else text
