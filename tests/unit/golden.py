# SPDX-License-Identifier: Apache-2.0
"""What is printed, compared whole with a file of tests/golden. COLLOC_GOLDEN=write writes it, to be read then."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


def compare(name: str, printed: str | bytes) -> None:
    """Assert that a golden file holds what was printed, byte for byte."""
    path = GOLDEN / name
    text = printed.encode() if isinstance(printed, str) else printed
    if _written():
        path.write_bytes(text)
    assert text.decode() == path.read_text()


def titled(parts: Iterable[tuple[str, str]]) -> str:
    """Return texts of one file, each below its title."""
    return "".join(f"## {title}\n\n{text.rstrip()}\n\n" for title, text in parts)


def parts(name: str) -> dict[str, str]:
    """Return the texts of one file by their titles."""
    _, *rest = re.split(r"^## (.*)\n\n", (GOLDEN / name).read_text(), flags=re.MULTILINE)
    return dict(zip(rest[::2], rest[1::2], strict=True))


class Printed:
    """What one test has a command print: its parts of the command's file, below the test's name."""

    def __init__(self, title: str, plain: Callable[[str], str]) -> None:
        self.title, self.plain, self.calls = title, plain, Counter[str]()

    def __call__(self, command: str, *texts: object, case: str = "") -> None:
        """Assert that the next part of the command's file holds these texts, the same in all cases without a name."""
        self.calls[command] += 1
        more = f", {self.calls[command]}" if self.calls[command] > 1 else ""
        title = self.title + more + (f": {case}" if case else "")
        name = f"printed/{command}.txt"
        text = self.plain("\n".join(map(str, texts))).rstrip() + "\n\n"
        if _written():
            with (GOLDEN / name).open("a") as file:  # of which another test, in another process, has other parts
                flock(file, LOCK_EX)
                (GOLDEN / name).write_text(titled(sorted({**parts(name), title: text}.items())))
            return
        assert text == parts(name).get(title)

    @contextmanager
    def raises(self, command: str, error: type[Exception], match: str | None = None, case: str = "") -> Iterator[None]:
        """Assert that an error is raised, and that the next part holds what it says."""
        with pytest.raises(error, match=match) as raised:
            yield
        self(command, raised.value, case=case)


def _written() -> bool:
    return os.environ.get("COLLOC_GOLDEN") == "write"
