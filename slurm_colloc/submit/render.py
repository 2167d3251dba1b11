# SPDX-License-Identifier: Apache-2.0
"""Put csub's block into a batch script; every byte of the user's own text stays as it is."""

import os
import time
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import ConfigError, StoreError
from slurm_colloc.files import PRIVATE_FOLDER
from slurm_colloc.model import Footprint, JobRequest, Placement
from slurm_colloc.shipped import template_folders


class Sampling(NamedTuple):
    """How the job's own sampler is started on the node."""

    python: str
    arguments: tuple[str, ...]


def render_script(text: bytes, insert_at: int, block: bytes) -> bytes:
    """Return the script with ``block`` before the user's first command."""
    head = text[:insert_at]
    # A script of directives alone may lack its last newline.
    joint = b"" if not head or head.endswith(b"\n") else b"\n"
    return head + joint + block + text[insert_at:]


def render_block(
    request: JobRequest, footprint: Footprint, placement: Placement, sampling: Sampling | None, config: SiteConfig
) -> bytes:
    """Return the block of sh that a sharing mode's template makes for this job.

    Raises:
        ConfigError: a site's template that does not render.
    """
    import jinja2  # 40 ms: only a submission whose script changes pays for it

    folders = template_folders(config.paths.templates)
    environment = jinja2.Environment(  # noqa: S701 - renders sh, not HTML
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["comment"] = _comment
    environment.filters["quote"] = _quote
    name = f"{placement.mode}.sbatch.j2"
    try:
        rendered = environment.get_template(name).render(
            asked=request.asked or "no GPU",
            given=placement.given,
            footprint=footprint,
            placement=placement,
            sampling=sampling,
        )
    except jinja2.TemplateError as error:
        raise ConfigError(f"template '{name}' from {' or '.join(folders)} does not render: {error}") from error
    return rendered.encode(errors="surrogateescape")


def _comment(text: object) -> str:
    """Return ``text`` fit for one line of a shell comment: a newline in it would end the comment and be run."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


def _quote(text: object) -> str:
    """Return ``text`` as one word of sh."""
    return "'" + str(text).replace("'", "'\\''") + "'"


def write_script(name: str, content: bytes) -> str:
    """Write the rendered script into a fresh private folder, named as the user's, and return its path.

    The name is kept because Slurm calls the job by it.

    Raises:
        StoreError: there is no room for it.
    """
    base = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - mkdir below refuses a folder that somebody planted
    try:
        # Absolute: sbatch would look for a relative one below --chdir.
        path = os.path.join(os.path.abspath(base), f"csub-{os.getpid()}-{time.time_ns()}", name)
    except OSError as error:
        raise StoreError(f"TMPDIR '{base}' is relative to a folder that is gone: {error.strerror}") from error
    try:
        os.mkdir(os.path.dirname(path), PRIVATE_FOLDER)
        with open(path, "xb") as stream:
            stream.write(content)
    except OSError as error:
        raise StoreError(f"rendered script '{path}' cannot be written: {error.strerror}") from error
    return path


def remove_script(path: str) -> None:
    """Remove what write_script made; sbatch has read it, so what stays behind harms nobody."""
    with suppress(OSError):
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
