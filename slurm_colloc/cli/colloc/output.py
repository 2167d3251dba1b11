# SPDX-License-Identifier: Apache-2.0
"""Printing and exiting for every colloc command, and the place where a site file and a store are found."""

import codecs
import io
import os
import pwd
import shlex
import socket
import stat
import sys
import traceback
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, NoReturn

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.config_file import find_site_file, how_to_write_one, load_site
from slurm_colloc.core.errors import CollocError, ConfigError, InputError, Status, StoreError
from slurm_colloc.core.files import write_atomic
from slurm_colloc.core.links import place
from slurm_colloc.core.process import open_standard_descriptors
from slurm_colloc.core.units import printable
from slurm_colloc.report.text import local, stamp
from slurm_colloc.slurm.job_visibility import own_name

_SIGNS = str.maketrans("█▒░▁▂▃▄▅▆▇…", "#=._.:-=+*~")


def run(main: Callable[[], Any]) -> NoReturn:
    """Run ``main``; an error of ours becomes one line with its causes, a reader who went away is no error."""
    _open_standard_streams()
    try:
        for stream in (sys.stdout, sys.stderr):  # escape the letters that they lack, instead of failing over them
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="signs")
        try:
            main()
        finally:
            _flush()
        sys.stdout.flush()
    except CollocError as error:
        say(f"error: {error}")
        sys.exit(error.exit_status)
    except BrokenPipeError:
        sys.exit(Status.DONE)
    except ModuleNotFoundError as error:  # the package of csub alone lacks what reports are made with
        say(f"error: '{error.name}' is not installed here; run it on a host with all of slurm-colloc")
        sys.exit(Status.ERROR)
    except OSError as error:
        where = f"'{error.filename}' cannot be used: " if error.filename else ""
        say(f"error: {where}{error.strerror or error}")
        sys.exit(Status.ERROR)
    except KeyboardInterrupt:
        sys.exit(Status.INTERRUPTED)
    except Exception:  # noqa: BLE001 - a fault of ours: Python's own status of it, 1, is one of findings
        traceback.print_exc()
        sys.exit(Status.ERROR)
    sys.exit(Status.DONE)


def _in_signs(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for letters that a stream's encoding lacks: for those of bars a sign, for others an escape."""
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end].translate(_SIGNS)
    return letters.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error("signs", _in_signs)


def _open_standard_streams() -> None:
    """Have those streams lead nowhere that were closed when Python started, of which it has none."""
    open_standard_descriptors()
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def _flush() -> None:
    """Write what is left of the output, whatever the command ended by; its reader may have read enough.

    Raises:
        InputError: standard output cannot be written.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        # The interpreter would flush again on its way out, complain, and end with a status of its own.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise _unwritable(error) from error


def _unwritable(error: OSError) -> InputError:
    return InputError(f"standard output cannot be written: {error.strerror}")


def say(text: str) -> None:
    """Tell the person at the terminal; results go to standard output instead."""
    print(f"colloc: {printable(text)}", file=sys.stderr, flush=True)


def caller() -> str:
    """Return the name of the person who calls: whom sudo let in, not who they are by it."""
    name, uid = os.environ.get("SUDO_USER", ""), os.environ.get("SUDO_UID", "")
    try:
        return name if name and str(pwd.getpwnam(name).pw_uid) == uid else own_name()
    except KeyError:
        return own_name()


def site() -> SiteConfig:
    """Return the site in force.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    config = site_or_none()
    if config is None:
        raise ConfigError(f"no site.toml found; write one with '{how_to_write_one()}', or name one in $COLLOC_CONF")
    return config


def site_or_none() -> SiteConfig | None:
    """Return the site in force, None without a file.

    Raises:
        ConfigError: there is one and it cannot be used.
    """
    path = find_site_file()
    return load_site(path) if path else None


def state_folder(name: str, *, writing: bool = False) -> str:
    """Return the folder ``name`` (store, journal) of the site where this user may use it, else of the user's own data.

    Everybody's jobs are not for everybody to see: the site's folders are closed to all but those who keep them, and
    who looks at their own jobs does so in their own data. Root keeps a site, and gets its folder or an error.

    Raises:
        StoreError: this is root, and the site's folder is not there.
    """
    own_folder = os.path.join(user_data_folder(), name)
    config = site_or_none()
    journal = config.paths.journal if config and name == "journal" else ""
    if config is None or not (journal or config.paths.state):
        if config is not None and os.geteuid() == 0:
            say(f"site.toml sets no paths.state; using root's own '{own_folder}'")
        return own_folder
    if os.geteuid() == 0:
        return service_folder(name, "")
    shared = journal or os.path.join(config.paths.state, name)
    access = os.R_OK | os.X_OK | (os.W_OK if writing else 0)
    if os.access(shared, access) or (not os.path.exists(shared) and os.access(os.path.dirname(shared), os.W_OK)):
        return shared
    say(f"the site's {name} '{shared}' is {_why_unused(shared)}; your own is used")
    return own_folder


def _why_unused(folder: str) -> str:
    try:
        os.stat(folder)
    except FileNotFoundError:
        return "not there"
    except OSError as error:
        return f"not open to you ({error.strerror})"
    return "not open to you"


def node_name() -> str:
    """Return what Slurm calls this node, as far as it can be known from here."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".", 1)[0]


def service_folder(name: str, folder_option: str) -> str:
    """Return the folder ``name`` (store, journal) of the site for its keeper, or the one that an option names.

    Raises:
        ConfigError: there is no site.toml.
        StoreError: the site's folder is not there.
    """
    if folder_option:
        return folder_option
    config = site()
    folder = config.journal_folder if name == "journal" else os.path.join(config.state_folder, name)
    if not os.path.isdir(folder) and (config.paths.state or config.paths.journal):
        named = f"paths.{'journal' if name == 'journal' and config.paths.journal else 'state'}"
        raise StoreError(
            f"{name} '{folder}' ({named} of '{find_site_file()}') is {_why_unused(folder)}; is its file system "
            "mounted, and that path right? the first time, make it for the user whom agent, flush and compact run as: "
            f"install -d -m 0700 -o USER {shlex.quote(folder)}"
        )
    return folder


def moment(text: str, present: datetime, *, ahead: bool = False) -> datetime:
    """Return a time given as ISO 8601 (the machine's zone without an offset), ``now``, or ``7d``/``12h`` ago.

    With ``ahead`` such a span is from now on.

    Raises:
        InputError: anything else.
    """
    if text == "now":
        return present
    if (back := _span(text)) is not None:
        return present + back if ahead else present - back
    try:
        time = datetime.fromisoformat(text)
        return time if time.tzinfo else time.astimezone()
    except (ValueError, OverflowError):
        raise InputError(f"time '{text}' is neither ISO 8601, 'now', nor a span such as 7d or 12h") from None


def _span(text: str) -> timedelta | None:
    units = {"d": "days", "h": "hours", "m": "minutes"}
    if text[-1:] in units and text[:-1].isascii() and text[:-1].isdigit() and len(text) < 7:
        return timedelta(**{units[text[-1]]: int(text[:-1])})
    return None


def span(option: str, text: str) -> timedelta:
    """Return a length of time given as ``7d`` or ``12h``.

    Raises:
        InputError: it is none, or 0.
    """
    length = _span(text)
    if not length:
        raise InputError(f"{option} '{text}' is no span such as 7d or 12h")
    return length


def one_of(option: str, word: str, choices: Iterable[str]) -> None:
    """Check the value of an option that takes one of some words.

    Raises:
        InputError: it is none of them.
    """
    words = tuple(choices)
    if word not in words:
        raise InputError(f"{option} '{word}' is not one of {', '.join(words)}")


def window(since: str, until: str) -> tuple[datetime, datetime]:
    """Return the half-open window [since, until).

    Raises:
        InputError: a time that cannot be read, or an empty window.
    """
    present = local(now())
    start, end = moment(since, present), moment(until, present)
    if start >= end:
        raise InputError(f"the window from {stamp(start)} to {stamp(end)} is empty: --since must be the earlier one")
    return start, end


def write(content: str | bytes, path: str) -> None:
    """Print ``content``, or write it to ``path``, whole or not at all; bytes need a path.

    A file that is there keeps its mode and group, a new one has the one that the umask says.

    Raises:
        InputError: the file, or standard output, cannot be written.
    """
    if not path:
        assert isinstance(content, str)
        try:
            # No more than that: an audit that cannot print what it found shall send its mails all the same.
            sys.stdout.write(content)
        except BrokenPipeError:  # its reader has read enough
            raise
        except OSError as error:
            raise _unwritable(error) from error
        return
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        status = os.stat(path) if os.path.exists(path) else None
        if status and not stat.S_ISREG(status.st_mode):  # a pipe, or /dev/stdout
            with open(path, "wb") as stream:
                stream.write(data)
            return
        with place(path) as target:
            # A mode is for some group: it would let others in with another group.
            mode, group = (target.found.st_mode & 0o777, target.found.st_gid) if target.found else (None, None)
            write_atomic(target.name, data, mode, target.folder, group=group)
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from error
    except StoreError as error:
        raise InputError(str(error)) from error
