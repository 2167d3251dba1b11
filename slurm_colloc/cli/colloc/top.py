# SPDX-License-Identifier: Apache-2.0
"""colloc top: the cluster now, refreshed."""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import Annotated, NamedTuple

import typer

from slurm_colloc.accounting.collocation import installed_gpus
from slurm_colloc.accounting.equivalents import worth
from slurm_colloc.accounting.live import VALID_S, live_by_prometheus, live_use
from slurm_colloc.accounting.sources.prometheus_server import TOKEN_VARIABLE, Server
from slurm_colloc.charted import LiveUse
from slurm_colloc.cli.colloc.output import TEXT_OR_JSON, one_of, site_or_none, write
from slurm_colloc.cli.colloc.terminal import terminal
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError
from slurm_colloc.observe.attribute import attribute_round
from slurm_colloc.observe.journal import newest
from slurm_colloc.report.top import Top, TopJob, as_json, as_text
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.units import printable

# slurmctld answers everybody's squeue one after the other.
_LEAST_S, _EVERY_S, _SLOWEST_S = 5.0, 10.0, 300.0
# A server that is slow must not hold up the picture.
_PROMETHEUS_TIMEOUT_S = 5.0
_ENTER, _LEAVE, _HOME, _BELOW = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H", "\x1b[J"


def top(
    every_s: Annotated[
        float, typer.Option("--every", min=_LEAST_S, max=_SLOWEST_S, help="seconds between two looks")
    ] = _EVERY_S,
    once: Annotated[bool, typer.Option("--once", help="look once, as where there is no terminal")] = False,
    form: Annotated[str, typer.Option("--format", help="text or json; json looks once")] = "text",
    prometheus: Annotated[
        str, typer.Option("--prometheus", help="address of a Prometheus server that scrapes the nodes")
    ] = "",
) -> None:
    """Show who holds GPUs now, and what is known of their use; q ends."""
    one_of("--format", form, TEXT_OR_JSON)
    looking = _Looking(site_or_none(), _server(prometheus))
    if once or form == "json" or not (sys.stdin.isatty() and sys.stdout.isatty()):
        shown = looking.look()
        write(as_json(shown) if form == "json" else as_text(shown, terminal()), "")
        return
    with _screen():
        _refresh(looking.look, every_s)


def _server(url: str) -> Server | None:
    token = os.environ.get(TOKEN_VARIABLE, "")
    return Server(url, token=token, timeout_s=_PROMETHEUS_TIMEOUT_S) if url else None


class _Looking(NamedTuple):
    """Where one looks: the site, if there is one, and a Prometheus server."""

    config: SiteConfig | None
    server: Server | None

    def look(self) -> Top:
        """Return the cluster as it is now, by one question to slurmctld.

        Raises:
            ProcessError: squeue fails or does not answer.
        """
        config = self.config
        holders, rejected = CliClient().holders()
        at_s = now()
        live, source = self._live(at_s) if holders else ({}, "nobody was asked")
        jobs = [
            TopJob(held, worth(held.gres or (), held.node_list, config).gpus, live.get(held.raw_id)) for held in holders
        ]
        return Top(config.cluster if config else "", at_s, installed_gpus(config), jobs, source, rejected)

    def _live(self, at_s: float) -> tuple[dict[str, LiveUse], str]:
        """Return what jobs do, by their raw ids, and who saw it, or why nobody did."""
        if self.server:
            try:
                return live_by_prometheus(self.server, at_s), f"Prometheus, samples of the last {VALID_S:.0f} s"
            except CollocError as error:
                return {}, str(error)
        if self.config is None:
            return {}, "no site.toml, and no --prometheus"
        period_s = self.config.observe.period_s
        folder = self.config.journal_folder
        if not os.access(folder, os.R_OK | os.X_OK):
            return {}, "the nodes' journals are not open to you, or not here; a Prometheus server knows: --prometheus"
        try:
            return _by_journals(folder, at_s - max(60.0, 3 * period_s)), f"the agents' newest samples in '{folder}'"
        except CollocError as error:
            return {}, str(error)


def _by_journals(folder: str, since_s: float) -> dict[str, LiveUse]:
    units: dict[str, list[dict[str, float | None]]] = defaultdict(list)
    at_s: dict[str, float] = {}
    for seen in newest(folder, since_s):
        for share in attribute_round(seen):
            if share.job_id:
                figures = {"gpu_util_pct": share.gpu_util_pct, "sm_active_pct": share.sm_active_pct}
                units[share.job_id].append({**figures, "gpu_mem_mib": share.gpu_mem_used_mib})
                at_s[share.job_id] = max(at_s.get(share.job_id, 0.0), seen.at_s)
    return {job_id: live_use(of, at_s[job_id]) for job_id, of in units.items()}


def _refresh(look: Callable[[], Top], every_s: float) -> None:
    """Show picture after picture until q is pressed; what fails is asked for ever less often."""
    wait_s, shown, trouble = every_s, "", ""
    # Until then a slow squeue leaves nothing to look at.
    sys.stdout.write(f"{_HOME}squeue is asked ...{_BELOW}")
    sys.stdout.flush()
    while True:
        shown_on = terminal()
        try:
            picture = look()
            wait_s, trouble = every_s, ""
            shown = as_text(picture, shown_on, get_terminal_size().lines - 1)
        except CollocError as error:
            wait_s = min(_SLOWEST_S, 2 * wait_s)
            trouble = f"{printable(str(error))}; asked again in {wait_s:.0f} s"
        foot = (trouble or f"every {wait_s:.0f} s; q ends")[: (shown_on.columns or 1) - 1]
        # Line by line, for a longer one of the picture before may stand there.
        lines = [*shown.splitlines(), foot]
        sys.stdout.write(_HOME + "\r\n".join(f"{line}\x1b[K" for line in lines) + _BELOW)
        sys.stdout.flush()
        if _pressed(wait_s):
            return


def _pressed(wait_s: float) -> bool:
    """Wait, and return whether q was pressed, or there is nobody left to press it."""
    until_s = time.monotonic() + wait_s
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left_s)[0]:
            key = os.read(sys.stdin.fileno(), 64)
            if not key or b"q" in key.lower():
                return True
    return False


@contextmanager
def _screen() -> Iterator[None]:
    """Take the terminal's other screen, and leave the terminal as it was, whatever ends this."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    handlers = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setcbreak(descriptor)
        _without_keys(descriptor)
        sys.stdout.write(_ENTER)
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _without_keys(descriptor: int) -> None:
    """Take Ctrl-Z and Ctrl-\\ from the terminal: both would leave it on the other screen and without a cursor."""
    attributes = termios.tcgetattr(descriptor)
    attributes[6][termios.VSUSP] = attributes[6][termios.VQUIT] = b"\0"
    termios.tcsetattr(descriptor, termios.TCSANOW, attributes)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
