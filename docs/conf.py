# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: `make html`. The pages are Markdown as GitHub shows it, and nothing is fetched."""

import re

from sphinx.application import Sphinx

from slurm_colloc import __version__

project = "slurm_colloc"
release = version = __version__
extensions = ["myst_parser"]
exclude_patterns = ["man", "completion", "_build"]
# As GitHub makes them, so that one link serves both.
myst_heading_anchors = 4
highlight_language = "none"
nitpicky = True

html_theme = "furo"
html_title = f"slurm_colloc {release}"
html_show_copyright = False
html_copy_source = False


def setup(app: Sphinx) -> None:
    """Take the order of the pages from the lists of index.md."""
    app.connect("source-read", _add_toctrees)


def _add_toctrees(_: Sphinx, name: str, source: list[str]) -> None:
    """Add to index.md one hidden toctree for each of its headings with a list of pages.

    Sphinx's own directive would show on GitHub as a block of code.
    """
    if name != "index":
        return
    for heading, text in re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", source[0], re.MULTILINE):
        pages = "\n".join(re.findall(r"^- \[.*?\]\((?!\.\./|https:)([^)#]+)\.md\)", text, re.MULTILINE))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```\n"
