# SPDX-License-Identifier: Apache-2.0
"""colloc ingest: sacct and samples into the store, and measured use into csub's history."""

import hashlib
import os
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from slurm_colloc.accounting.feedback import build_history, collect_decisions
from slurm_colloc.accounting.ingest import Counted, keep_history, keep_means, keep_runs
from slurm_colloc.accounting.sources import controller, sacct
from slurm_colloc.accounting.sources.clustercockpit import parse_jobs
from slurm_colloc.accounting.sources.prometheus_server import TOKEN_VARIABLE, Server
from slurm_colloc.accounting.store import REJECTED_LINES, Store
from slurm_colloc.cli.colloc.output import say, site_or_none, state_folder, window
from slurm_colloc.cli.colloc.seal import seal_hours
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError, ProcessError, StoreError
from slurm_colloc.files import whose
from slurm_colloc.observe.attribute import attribute_round
from slurm_colloc.observe.journal import hours
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.submit.render import site_parts

_SACCT_TIMEOUT_S = 600.0


def ingest(
    since: Annotated[str, typer.Option("--since", help="ask sacct from here on")] = "2d",
    until: Annotated[str, typer.Option("--until", help="ask sacct up to here")] = "now",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
    sacct_file: Annotated[str, typer.Option("--sacct-file", help="sacct -P text instead of the live sacct")] = "",
    fields: Annotated[str, typer.Option("--fields", help="columns of that text, by comma")] = "",
    timezone: Annotated[str, typer.Option("--timezone", help="zone of times without one in that text")] = "",
    clustercockpit: Annotated[str, typer.Option("--clustercockpit", help="a ClusterCockpit job table (CSV)")] = "",
    journal: Annotated[str, typer.Option("--journal", help="folder of samples; else the site's")] = "",
    prometheus: Annotated[str, typer.Option("--prometheus", help="a Prometheus server's URL: samples from there")] = "",
    prometheus_match: Annotated[
        str, typer.Option("--prometheus-match", help="labels of this cluster's series there, as 'cluster=\"a\"'")
    ] = "",
) -> None:
    """Take in job runs and samples; repeating it changes nothing."""
    if bool(clustercockpit) + bool(prometheus) + bool(sacct_file or journal) > 1:
        raise InputError(
            "--clustercockpit and --prometheus are sources of their own; ingest sacct rows and samples by another call"
        )
    if journal and not os.path.isdir(journal):
        raise InputError(f"journal '{journal}' is no folder")
    config = site_or_none()
    folder = store or state_folder("store", writing=True)
    say(f"taking into '{folder}'")
    target = Store(folder)
    counted: list[Counted] = []
    if prometheus:
        counted.append(_prometheus(target, config, (since, until), (prometheus, prometheus_match)))
    elif clustercockpit:
        counted.append(_clustercockpit(target, clustercockpit))
    else:
        counted += _runs(target, config, (since, until), (sacct_file, fields, timezone))
        counted += _samples(target, config, journal)
    for item in counted:
        if not item.rows_in:
            continue
        rejected = "; ".join(f"{why}: {number}" for why, number in sorted(item.rejected.items()))
        say(
            f"{item.source}: {item.rows_in} rows in, {item.used} used, {item.steps} job steps, "
            f"{sum(item.rejected.values())} rejected{f' ({rejected})' if rejected else ''}"
        )
    empty = [item.source for item in counted if not item.rows_in]
    if empty:
        more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        say(f"no rows from {', '.join(empty[:3])}{more}")
    # The users' histories are the site's to write, not those of a user who looks at their own jobs.
    if config is not None and config.paths.decisions:
        if os.access(config.state_folder, os.W_OK):
            _history(target, config)
            site_parts(config)  # rendered again where a template or site.toml has changed, so that no submission has to
        elif folder == os.path.join(config.state_folder, "store"):
            say(f"no histories written: {whose(config.state_folder)}; ingest as root, who gives each user their own")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
            return stream.read()
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error


def _source(path: str) -> str:
    """Return a name for an exported file: its own, and what tells it from others of that name."""
    place = hashlib.sha256(os.path.abspath(path).encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{os.path.basename(path)}-{place}"


def _clustercockpit(target: Store, path: str) -> Counted:
    return keep_means(target, _source(path), parse_jobs(_read(path)), now())


def _prometheus(target: Store, config: SiteConfig | None, asked: tuple[str, str], server: tuple[str, str]) -> Counted:
    if config is None:
        raise InputError("a Prometheus server does not name the cluster; give a site.toml")
    start, end = window(*asked)
    known = Server(*server, token=os.environ.get(TOKEN_VARIABLE, ""))
    return keep_history(target, known, config.cluster, start.timestamp(), end.timestamp(), attribute_round)


def _runs(
    target: Store, config: SiteConfig | None, asked: tuple[str, str], text: tuple[str, str, str]
) -> list[Counted]:
    path, fields, timezone = text
    if path:
        names = tuple(fields.split(",")) if fields else sacct.FIELDS
        parsed = sacct.parse_text(_read(path), names, zone=_zone(timezone) if timezone else None)
        return [keep_runs(target, _source(path), parsed, config, os.stat(path).st_mtime)]
    start, end = window(*asked)
    counted = []
    for since_s, until_s in sacct.day_windows(start.timestamp(), end.timestamp()):
        try:
            parsed = sacct.read_live(since_s, until_s, _SACCT_TIMEOUT_S, os.environ)
        except ProcessError as error:
            if "accounting storage is disabled" not in str(error):
                raise
            return [_from_controller(target, config)]
        counted.append(keep_runs(target, f"sacct-{sacct.day_name(since_s)}", parsed, config, now()))
    return counted


def _from_controller(target: Store, config: SiteConfig | None) -> Counted:
    say("this cluster keeps no accounting; asking slurmctld, which remembers jobs for MinJobAge only")
    client = CliClient(_SACCT_TIMEOUT_S)
    cluster = config.cluster if config else client.config().get("ClusterName", "")
    # A name of its own for each day, so that what slurmctld has forgotten since stays in the store.
    name = f"controller-{sacct.day_name(now())}"
    return keep_runs(target, name, controller.parse_jobs(client.jobs_text(), cluster), config, now())


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise InputError(f"--timezone '{name}' is not a zone such as Europe/Berlin or UTC") from None


def _samples(target: Store, config: SiteConfig | None, journal: str) -> list[Counted]:
    folder = journal or (state_folder("journal") if config else "")
    if folder and config is None:
        raise InputError("samples do not name their cluster; give a site.toml, or no --journal")
    if config is None:
        return [Counted("samples", 0, 0, 0, {})]
    done = seal_hours(target.samples, config.cluster, hours(folder))
    for node in done.busy:
        say(f"another run is sealing the journal of {node}")
    if done.errors:
        raise StoreError("; ".join(done.errors))
    counts = {REJECTED_LINES: done.rejected} if done.rejected else {}
    return [Counted("samples", done.rounds + done.rejected, done.rounds, 0, counts)]


def _history(target: Store, config: SiteConfig) -> None:
    collected = collect_decisions(config.paths.decisions)
    written = build_history(target, config.cluster, config.state_folder, collected)
    if written.users_skipped:
        say(f"history: {written.users_skipped} users have none, because only root can write it for them")
    say(
        f"history: {written.runs} measured runs of {len(collected.decisions)} decisions, "
        f"{collected.rejected} decision files rejected"
    )
