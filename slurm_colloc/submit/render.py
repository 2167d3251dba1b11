# SPDX-License-Identifier: Apache-2.0
"""Put csub's block into a batch script; around it every byte of the text stays as it is.

The block is a header, which says what was asked, given and why and assigns what is particular to the job to shell
variables, and behind it parts of sh that are the same for all jobs of a site: one for each sharing mode, and the
sampler's. Those are Jinja templates, rendered once and kept, for importing jinja2 would double csub's time; and what
a user may have written never passes through a template.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from slurm_colloc import __version__
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.errors import ConfigError, StoreError
from slurm_colloc.core.files import PRIVATE_FILE, PRIVATE_FOLDER, private_folder, read_bounded, write_atomic
from slurm_colloc.core.model import Footprint, JobRequest, Placement, SharingMode
from slurm_colloc.core.shipped import template_folders
from slurm_colloc.core.units import printable
from slurm_colloc.estimate.digest import digest
from slurm_colloc.placement.candidate import partition_names

BLOCK_BEGINS = "# --- csub: this block was added"
_FIRST_LINE = f"{BLOCK_BEGINS} at submission ---"
_BLOCK_ENDS = "# --- end of csub's block ---"
_SUFFIX = ".sbatch.j2"
_SAMPLE, _LATE, _RESTART, _END = "sample", "late", "restart", "end"
_PARTS = (*SharingMode, _SAMPLE, _LATE, _RESTART, _END)
_LIMIT_BYTES = 1024 * 1024
# Several installations and site files may take turns.
_KEPT = 8
# A job that waits for longer than so many more are submitted loses the file that its Command= names.
_KEPT_SCRIPTS = 256
# handover.py knows what sbatch says of one that it cannot open.
_SCRIPT_FOLDER = "csub-"


def render_script(text: bytes, insert_at: int, block: bytes) -> bytes:
    """Return the script with ``block`` before the user's first command."""
    head = text[:insert_at]
    # A script of directives alone may lack its last newline.
    joint = b"" if not head or head.endswith(b"\n") else b"\n"
    return head + joint + block + text[insert_at:]


def names_slice(request: JobRequest, placement: Placement) -> bool:
    """Return whether Slurm names the slice in a variable of a job that asked for a GPU of no type (SLURM_GPUS)."""
    return placement.mode is SharingMode.MIG and request.gpu_style != "gres" and request.names_no_type


def render_block(
    request: JobRequest,
    footprint: Footprint,
    placement: Placement,
    config: SiteConfig,
    cut: Sequence[str] = (),
    *,
    sampled: bool,
    late: bool = False,
    again: str = "",
) -> bytes:
    """Return the block of sh for this job, with its own sampler or without.

    ``cut`` are the options that were cut out of its directives; ``late`` says that what it is given is not known yet,
    ``again`` is what a job carries that may begin again with more.

    Raises:
        ConfigError: a site's template that does not render.
    """
    parts = site_parts(config)
    named = placement.gres if names_slice(request, placement) else None
    variables = {"csub_gpu_mem_mib": str(placement.memory_mib or "")}
    variables["csub_named"] = f"{named.type}:{named.quantity}" if named else ""
    body = [parts[placement.mode]]
    if late:
        variables |= {"csub_card_mib": str(card_mib(request, config) or ""), "csub_cluster": config.cluster}
        body = [parts[_LATE]]
    if again:
        body = [parts[_RESTART], 'if [ "$csub_has" != exclusive ] && [ "$csub_has" != mig ]; then', ":", *body, "fi"]
    if sampled:
        variables["csub_signature"] = request.signature
    if late or sampled or again:
        variables["csub_mode"] = placement.mode
    if sampled:
        variables["csub_evidence"] = user_data_folder()
        body.append(parts[_SAMPLE])
    lines = [
        *_header(request, footprint, placement, cut),
        *([f"csub_again={quote(again)}"] if again else ()),
        *(f"{name}={quote(value)}" for name, value in variables.items()),
        *filter(None, (part.rstrip("\n") for part in body)),
        f"unset {' '.join(variables)}{' csub_has csub_name csub_value' if again else ''}",
        *([parts[_END]] if again else ()),
        _BLOCK_ENDS,
    ]
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def card_mib(request: JobRequest, config: SiteConfig) -> int | None:
    """Return the memory of the GPUs whose shares the job may get in its own partitions; None where it cannot reckon."""
    names = set(partition_names(request, config))
    pools = [pool for pool in config.pool if pool.mps_per_gpu and names & set(pool.partitions)]
    # Slurm tells a job its share by whole percent.
    sizes = {None if 100 % pool.mps_per_gpu else pool.gpu_mem_mib for pool in pools}
    return sizes.pop() if len(sizes) == 1 else None


def pack_block(request: JobRequest, footprint: Footprint, placement: Placement) -> bytes:
    """Return the comments that say in a pack's script what it is; the footprint is one task's."""
    lines = [*_header(request, footprint, placement), _BLOCK_ENDS]
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def program(module: str, argument: str) -> bytes:
    """Return lines of sh that become a program of this installation, where the node has it."""
    python = quote(sys.executable)
    missing = f"csub: this node has no '{sys.executable}', so this job cannot run here; tell your administrators"
    lines = f"[ -x {python} ] || {{ echo {quote(missing)} >&2; exit 127; }}\nexec {python} -I -m {module} {argument}\n"
    return lines.encode(errors="surrogateescape")


def _header(request: JobRequest, footprint: Footprint, placement: Placement, cut: Sequence[str] = ()) -> list[str]:
    from slurm_colloc.core.wording import sentence  # only where a script is changed

    lines = [
        _FIRST_LINE,
        f"# asked: {request.asked or 'no GPU'}; given: {placement.given} ({placement.mode})",
        f"# why: {sentence(placement.reasons)}",
        f"# needs: {sentence(footprint.provenance)}",
        *(
            f"# removed: --{name} of your #SBATCH lines; a share has no whole GPU, so other options ask for the same"
            for name in cut
        ),
        "# to switch this off: csub --colloc=off, or sbatch",
    ]
    # A newline in what a user wrote would end the comment and be run.
    return [printable(line) for line in lines]


def site_parts(config: SiteConfig) -> dict[str, str]:
    """Return the site's parts by name (the sharing modes and ``sample``), as kept, else rendered now and kept.

    Raises:
        ConfigError: a template that does not render, or is missing.
    """
    folders = template_folders(config.paths.templates)
    path = os.path.join(config.state_folder, "rendered", f"{_key(config, folders)}.json")
    try:
        content = json.loads(read_bounded(path, _LIMIT_BYTES, owners=(0, os.geteuid())))
        parts = {str(name): content[name] for name in _PARTS}
        if not all(isinstance(part, str) for part in parts.values()):
            raise TypeError("a part is not a text")
        return parts
    except (StoreError, ValueError, KeyError, TypeError):  # missing, or cut off by a full disk: rendered again
        parts = _render(config, folders)
        with suppress(StoreError, OSError):  # only its administrator can write in a site's folder
            _keep(path, parts, config)
        return parts


def _key(config: SiteConfig, folders: list[str]) -> str:
    """Return a word that changes with all that the parts are made of."""
    templates = []
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX):
                    status = entry.stat()
                    templates.append((entry.path, status.st_mtime_ns, status.st_size))
    return digest(repr((__version__, sys.executable, sorted(templates), config)).encode(errors="surrogateescape"))


def _render(config: SiteConfig, folders: list[str]) -> dict[str, str]:
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 - renders sh, not HTML
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quote"] = quote
    parts = {}
    for name in _PARTS:
        try:
            template = environment.get_template(f"{name}{_SUFFIX}")
            parts[str(name)] = template.render(config=config, python=sys.executable).strip("\n")
        except jinja2.TemplateError as error:
            where = " or ".join(folders)
            raise ConfigError(f"template '{name}{_SUFFIX}' from {where} does not render: {error}") from error
    return parts


def _keep(path: str, parts: dict[str, str], config: SiteConfig) -> None:
    folder = os.path.dirname(path)
    if not config.paths.state:
        private_folder(folder)
    elif not os.path.isdir(folder):
        os.mkdir(folder)
        os.chmod(folder, 0o755)  # noqa: S103 - every user's csub reads it
    write_atomic(path, json.dumps(parts).encode(), mode=0o644)
    files = sorted((item.stat().st_mtime, item.path) for item in os.scandir(folder) if item.name.endswith(".json"))
    for _, old in files[:-_KEPT]:
        os.unlink(old)


def quote(text: object) -> str:
    """Return ``text`` as one word of sh."""
    return "'" + str(text).replace("'", "'\\''") + "'"


def keep_script(name: str, content: bytes) -> str:
    """Keep the rendered script where scontrol's Command= finds it while the job runs, and return its path, or ``""``.

    One text has one file. Half of too many go, those that were submitted longest ago.
    """
    if len(content) > _LIMIT_BYTES:
        return ""
    with suppress(StoreError, OSError):  # a full disk, or no home: sbatch needs it for no longer than it reads
        scripts = private_folder(os.path.join(os.path.abspath(user_data_folder()), "scripts"))
        folder = private_folder(os.path.join(scripts, f"{_SCRIPT_FOLDER}{digest(content)[:16]}"))
        path = os.path.join(folder, name)
        if _holds(path, content):
            os.utime(folder)
        else:
            write_atomic(path, content)
            with suppress(OSError):  # another csub thins them out
                _thin_out(scripts)
        return path
    return ""


def _holds(path: str, content: bytes) -> bool:
    try:
        return read_bounded(path, _LIMIT_BYTES) == content
    except StoreError:
        return False


def _thin_out(scripts: str) -> None:
    folders = os.listdir(scripts)
    if len(folders) <= _KEPT_SCRIPTS:
        return
    paths = [os.path.join(scripts, name) for name in folders]
    for path in sorted(paths, key=os.path.getmtime)[: len(paths) // 2]:
        with suppress(OSError):  # somebody else has put it there
            for name in os.listdir(path):
                os.unlink(os.path.join(path, name))
            os.rmdir(path)


def write_script(name: str, content: bytes) -> str:
    """Write the rendered script into a fresh private folder, named as the user's, and return its path.

    The name is kept because Slurm calls the job by it.

    Raises:
        StoreError: there is no room for it.
    """
    base = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - mkdir below refuses a folder that somebody planted
    try:
        # Absolute: sbatch would look for a relative one below --chdir.
        path = os.path.join(os.path.abspath(base), f"{_SCRIPT_FOLDER}{os.urandom(8).hex()}", name)
    except OSError as error:
        raise StoreError(f"TMPDIR '{base}' is relative to a folder that is gone: {error.strerror}") from error
    try:
        os.mkdir(os.path.dirname(path), PRIVATE_FOLDER)
        try:
            with open(path, "xb") as stream:
                os.fchmod(stream.fileno(), PRIVATE_FILE)  # whatever the umask: sbatch must read it
                stream.write(content)
        except OSError:
            remove_script(path)
            raise
    except OSError as error:
        raise StoreError(f"rendered script '{path}' cannot be written: {error.strerror}") from error
    return path


def remove_script(path: str) -> None:
    """Remove the file of write_script; sbatch has read it, so that one that stays behind harms nobody."""
    with suppress(OSError):
        os.unlink(path)
    with suppress(OSError):
        os.rmdir(os.path.dirname(path))
