# SPDX-License-Identifier: Apache-2.0
"""The site.toml in force: where it lies, whose it may be, and what it says as a SiteConfig."""

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_audit import Audit
from slurm_colloc.core.config_schema import section
from slurm_colloc.core.errors import ConfigError

SCHEMA = 1
ENVIRONMENT_VARIABLE = "COLLOC_CONF"
SYSTEM_FILE = "/etc/slurm_colloc/site.toml"


class Proposed(NamedTuple):
    """Audit rules that are in force nowhere yet."""

    audit: Audit


def user_config_file() -> str:
    """Return the path of the user's own site.toml."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "slurm_colloc", "site.toml")


def site_files() -> tuple[str, ...]:
    """Return where a site.toml may lie; the first that is there is in force. One that was named must be there."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if passed_over():
        return (SYSTEM_FILE,)
    return (named,) if named else (user_config_file(), SYSTEM_FILE)


def passed_over() -> str:
    """Return the site.toml that is not in force because the system's forbids users' own; empty where there is none.

    Root may name any file, and everybody one of root's or of whoever wrote the system's: services and plugins do.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    path = named or user_config_file()
    if os.geteuid() == 0 or not (named or os.path.lexists(path)):
        return ""
    try:
        if load_site(SYSTEM_FILE).user_file == "allowed":
            return ""
        trusted = {0, os.stat(SYSTEM_FILE).st_uid}
    except (ConfigError, OSError):  # then it forbids nothing
        return ""
    try:
        return "" if named and os.stat(path).st_uid in trusted else path
    except OSError:
        return path


def how_passed_over(path: str) -> str:
    """Return in words that a site.toml is passed over, and what to do."""
    by = f"unset {ENVIRONMENT_VARIABLE}" if os.environ.get(ENVIRONMENT_VARIABLE) else "move it away"
    return f"site file '{path}' is not used, because '{SYSTEM_FILE}' forbids users' own (user_file); {by}"


def typed(command: str) -> str:
    """Return a command as it is typed elsewhere to go by the same site.toml; there $COLLOC_CONF may not be set."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if not named or passed_over():
        return command
    import shlex  # csub loads this file at every submission

    return f"{ENVIRONMENT_VARIABLE}={shlex.quote(os.path.abspath(named))} {command}"


def find_site_file() -> str | None:
    """Return the site.toml in force: $COLLOC_CONF, the user's own, or the system's; None when there is none."""
    paths = site_files()
    return next((path for path in paths if os.path.isfile(path) or path == os.environ.get(ENVIRONMENT_VARIABLE)), None)


def file_to_write(user: bool) -> str:
    """Return where ``site init`` writes: the file that would then be in force."""
    return user_config_file() if user else os.environ.get(ENVIRONMENT_VARIABLE) or SYSTEM_FILE


def how_to_write_one() -> str:
    """Return the command that gives whoever runs this a site.toml."""
    return "colloc site init" if os.geteuid() == 0 else "colloc site init --user"


def load_site(path: str) -> SiteConfig:
    """Read and check a site.toml.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key, a value of the wrong type or outside its choices.
    """
    return parse_site(_read(path), path)


def load_audit(path: str) -> Audit:
    """Read and check proposed rules: a whole site.toml, or a file with nothing but its [audit].

    Raises:
        ConfigError: see load_site.
    """
    table = _read(path)
    if "schema" in table:
        return parse_site(table, path).audit
    if not table:
        raise ConfigError(f"{path}: no rules in it; write them as [[audit.rule]]")
    return Proposed(**section(Proposed, table, "", path)).audit


def _read(path: str) -> dict[str, Any]:
    try:
        # O_NONBLOCK: a FIFO in its place must not hang a submission.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(
                    f"site file '{path}' is no file; put a site.toml there, or name one in ${ENVIRONMENT_VARIABLE}"
                )
            if path == user_config_file() and status.st_uid not in (0, os.geteuid()):  # which programs run stands in it
                raise ConfigError(
                    f"site file '{path}' belongs to uid {status.st_uid}, neither to you nor to root; move it away"
                )
            text = stream.read(1 << 24)
        # tomllib takes time and memory by the square of a key's parts, and an error cannot print a longer number.
        is_long = (line.count(b".") > 31 or len(line) > 999 for line in text.split(b"\n"))
        absurd = rb"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}|(?<!\w)(?:\d|0[xob])\w{999}"""
        if any(is_long) and re.search(absurd, text):
            raise ValueError("a key of more than 32 parts, or a number of more than 1000 digits")
        table = tomllib.loads(text.decode())
    except OSError as error:
        by = f" (named by ${ENVIRONMENT_VARIABLE})" if path == os.environ.get(ENVIRONMENT_VARIABLE) else ""
        raise ConfigError(f"site file '{path}'{by} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError, a number of 5000 digits
        raise ConfigError(f"site file '{path}' is not valid TOML: {error}") from error
    schema = table.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise ConfigError(f"site file '{path}' has schema {schema}, newer than this release's {SCHEMA}; upgrade")
    return table


def parse_site(table: Mapping[str, Any], source: str) -> SiteConfig:
    """Return the SiteConfig that ``table`` declares; ``source`` names it in errors.

    Raises:
        ConfigError: see load_site.
    """
    site = SiteConfig(**section(SiteConfig, table, "", source))
    kept = site.observe
    if kept.keep_raw_days > kept.keep_job_days:
        raise ConfigError(
            f"{source}: 'observe.keep_raw_days' must be at most 'keep_job_days', but they are {kept.keep_raw_days:g} "
            f"and {kept.keep_job_days:g}"
        )
    return site
