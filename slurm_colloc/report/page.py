# SPDX-License-Identifier: Apache-2.0
"""Pages: one self-contained file of HTML each, from a template that a site may replace."""

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

import jinja2
from markupsafe import Markup

from slurm_colloc.core.errors import ConfigError
from slurm_colloc.core.shipped import template_folders
from slurm_colloc.core.units import printable


def renderer(templates: str, **filters: Callable[..., Any]) -> Callable[..., str]:
    """Return what renders a template by its name, with the values that it shows.

    Args:
        templates: the site's own folder of them; empty for none.
        filters: more of them than all pages have.

    Raises:
        ConfigError: when it is called, a site's template that does not render.
    """
    loader = jinja2.FileSystemLoader(template_folders(templates))
    environment = jinja2.Environment(
        loader=loader,
        autoescape=jinja2.select_autoescape((), ("txt.j2",), default=True),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"printable": printable, "in_script": in_script, **filters}
    environment.globals |= {
        "asset": lambda name: loader.get_source(environment, name)[0],
        "hashed": hashed,
        "inline": inline,
    }

    def render(template: str, **values: Any) -> str:
        try:
            return environment.get_template(template).render(**values)
        except jinja2.TemplateError as error:
            raise ConfigError(f"template '{template}' does not render: {error}") from error

    return render


def in_script(value: object) -> Markup:
    """Return ``value`` as JSON that a script element may hold: nothing in it ends the element or opens a comment."""
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 (what HTML would act on is escaped above, the rest is ASCII)


def inline(text: str) -> Markup:
    """Return our own style or script as it is, for the element of that name."""
    return Markup(text)  # noqa: S704 (from a file of ours, of the site's, or of the installed Vega)


def hashed(text: str) -> Markup:
    """Return the source by which a Content-Security-Policy lets just this text in."""
    return Markup(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")  # noqa: S704
