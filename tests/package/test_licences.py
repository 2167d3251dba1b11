# SPDX-License-Identifier: Apache-2.0
"""Everything that an installation with all extras brings may be used beside Apache-2.0, as far as it says so itself."""

from __future__ import annotations

from importlib.metadata import PackageMetadata, distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"),
}
# Used as it comes, imported and never copied from: ours may stay under its own licence.
WEAK_COPYLEFT = {"clustershell": "LGPL-2.1-or-later"}
# What metadata of before SPDX expressions says, in the field License or as a classifier.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "LGPLv2+": "LGPL-2.1-or-later",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


def brought(name: str, extras: tuple[str, ...]) -> dict[str, PackageMetadata]:
    """Return the metadata of a package and of all that it brings here, by canonical name."""
    found: dict[str, PackageMetadata] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    asked = [(name, extras)]
    while asked:
        one = asked.pop()
        if one in seen:
            continue
        seen.add(one)
        package = distribution(one[0])
        found[one[0]] = package.metadata
        for requirement in map(Requirement, package.requires or ()):
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *one[1])):
                asked.append((canonicalize_name(requirement.name), tuple(sorted(requirement.extras))))
    return found


def licence(metadata: PackageMetadata) -> str:
    """Return a package's licence in SPDX's words, or what it says in its own."""
    classifiers = [line for line in metadata.get_all("Classifier") or () if line.startswith("License :: ")]
    fields = [text for name in ("License-Expression", "License") for text in metadata.get_all(name) or ()]
    said = [*fields, *(line.split(" :: ")[-1] for line in classifiers)]
    texts = [text for text in said if text and "\n" not in text and text != "OSI Approved"]
    return SPDX.get(texts[0], texts[0]) if texts else "(nothing)"


def allowed(name: str, expression: str) -> bool:
    """Return whether a licence is on the lists; parentheses and exceptions are not."""
    free = PERMISSIVE | {WEAK_COPYLEFT.get(name, "")}
    return all(any(one in free for one in term.split(" OR ")) for term in expression.split(" AND "))


def test_all_that_is_brought_may_be_used() -> None:
    metadata = brought("slurm-colloc", ("all",))
    assert {"duckdb", "markupsafe", "vl-convert-python", "submitit", "pyyaml"} <= set(metadata)
    licences = {name: licence(one) for name, one in metadata.items()}
    assert {name: one for name, one in licences.items() if not allowed(name, one)} == {}
    assert licences["clustershell"] == WEAK_COPYLEFT["clustershell"]


@pytest.mark.parametrize(
    ("expression", "may"),
    [
        ("MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("LGPL-2.1-or-later", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("(nothing)", False),
    ],
)
def test_what_is_refused(expression: str, may: bool) -> None:
    assert allowed("some-package", expression) is may
