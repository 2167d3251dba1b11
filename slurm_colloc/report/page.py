# SPDX-License-Identifier: Apache-2.0
"""Pages: one self-contained file of HTML each, from a template that a site may replace."""

from collections.abc import Callable
from typing import Any

import jinja2

from slurm_colloc.errors import ConfigError
from slurm_colloc.report.text import printable
from slurm_colloc.shipped import template_folders


def render_page(template: str, templates: str, number: Callable[..., str], **values: Any) -> str:
    """Return a page.

    Args:
        template: its name.
        templates: the site's own folder of them; empty for none.
        number: the filter of that name.
        values: what the template shows.

    Raises:
        ConfigError: a site's template that does not render.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_folders(templates)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = number
    environment.filters["printable"] = printable
    try:
        return environment.get_template(template).render(**values)
    except jinja2.TemplateError as error:
        raise ConfigError(f"template '{template}' does not render: {error}") from error
