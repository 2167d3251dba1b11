# SPDX-License-Identifier: Apache-2.0
"""SQL in files: sql/NAME.sql holds one query, {words} in it stand for other SQL."""

import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).with_name("sql")
_WORD = re.compile(r"\{(\w+)\}")


def query(name: str, **words: object) -> str:
    """Return the query of that name, with these words replaced; one without a replacement is a KeyError."""
    return _WORD.sub(lambda found: str(words[found[1]]), text_of(name))


@cache
def text_of(name: str) -> str:
    """Return a query as it stands in its file."""
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
