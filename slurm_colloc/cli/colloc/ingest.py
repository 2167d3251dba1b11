# SPDX-License-Identifier: Apache-2.0
"""colloc ingest: sacct and samples into the store, and measured use into csub's history."""

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from time import sleep
from typing import Annotated, NamedTuple

from typer import Exit, Option

from slurm_colloc.cli.colloc.options import JournalFolder, StoreFolder, TimeZone, options_of
from slurm_colloc.cli.colloc.output import say, site_or_none, state_folder, window
from slurm_colloc.cli.colloc.progress import progress, told
from slurm_colloc.cli.colloc.sacct_text import Text, content_name, source_name
from slurm_colloc.cli.colloc.site_resume import tell_admins
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError, ProcessError, Status, StoreError
from slurm_colloc.core.files import remove_left, whose
from slurm_colloc.core.units import counted
from slurm_colloc.core.usage_model import AttributedUse, NodeSample, lost_of_all
from slurm_colloc.feedback.calibration import write_margins
from slurm_colloc.feedback.harm import judged_runs, stop_where_too_many
from slurm_colloc.feedback.user_histories import build_history, collect_decisions
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.observe.journal import hours
from slurm_colloc.report.usage_notes import rejected_rows
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.hostlist import expand
from slurm_colloc.sources import controller, nvidia_smi_csv, sacct_client
from slurm_colloc.sources.clustercockpit import parse_jobs
from slurm_colloc.sources.holders import SUFFIX, Holding, parse_holders
from slurm_colloc.sources.prometheus_server import TOKEN_VARIABLE, Server
from slurm_colloc.store.ingest import (
    keep_day,
    keep_history,
    keep_runs,
    keep_smi_log,
    keep_text,
)
from slurm_colloc.store.sacct_rows import WORK_DIR, Counted
from slurm_colloc.store.samples import flush_hours
from slurm_colloc.store.store import REJECTED_LINES, Store
from slurm_colloc.submit.render import site_parts

_SACCT_TIMEOUT_S = 600.0
_FIRST_SPAN = "2d"
_LONGEST_REST_S = 10.0
# Anybody may make names in the spool.
_MOST_FOREIGN = 10
# sacct and sacctmgr say so of a cluster without a database.
_NO_ACCOUNTING = ("accounting storage is disabled", "only 'accounting_storage/slurmdbd' is supported")


class Inputs(NamedTuple):
    """The inputs of one run, and how they are read."""

    since: Annotated[str, Option(help="ask sacct from here on; else where the last ingest ended, less a day")] = ""
    until: Annotated[str, Option(help="ask sacct up to here")] = "now"
    store: StoreFolder = ""
    sacct_file: Annotated[str, Option(help="text of sacct instead of the live one")] = ""
    fields: Annotated[str, Option(help="columns of that text, by comma")] = ""
    timezone: TimeZone = ""
    slurm_release: Annotated[str, Option(help="of the Slurm behind that text, as 24.05.4, for its TRESUsageInTot")] = ""
    clustercockpit: Annotated[str, Option(help="a ClusterCockpit job table (CSV)")] = ""
    journal: JournalFolder = ""
    nvidia_smi: Annotated[
        str, Option(help="a log of 'nvidia-smi --query-gpu=timestamp,uuid,... --format=csv -l N'")
    ] = ""
    node: Annotated[str, Option(help="what Slurm calls the node of that log")] = ""
    prometheus: Annotated[str, Option(help="a Prometheus server's URL: samples from there")] = ""
    prometheus_match: Annotated[str, Option(help="labels of this cluster's series there, as 'cluster=\"a\"'")] = ""
    holders: Annotated[str, Option(help="folder of colloc holders; else the site's")] = ""

    @property
    def text(self) -> Text:
        """Return the file that has columns, and how they are to be read."""
        return Text(self.sacct_file or self.nvidia_smi, self.fields, self.timezone)


@options_of(Inputs)
def ingest(inputs: Inputs) -> None:
    """Read jobs from sacct, and samples, into the store. It may run as often as you like.

    Exit status 3: it was done, and more than 1 % of the GPU-hours may be in rows that were rejected.
    """
    _check(inputs)
    config = site_or_none()
    folder = inputs.store or state_folder("store", writing=True)
    target = Store(folder, config)
    counts = take_in(target, config, inputs)
    say(f"added to the store '{folder}':")
    _tell(counts)
    lost = lost_of_all(count.lost for count in counts)
    # The users' histories are the site's to write, not those of a user who looks at their own jobs.
    if config is not None and config.paths.decisions:
        if os.access(config.state_folder, os.W_OK):
            with progress("writing histories"):
                _history(target, config)
            site_parts(config)  # rendered again where a template or site.toml has changed, so that no submission has to
        elif folder == config.store_folder:
            say(f"no histories written: {whose(config.state_folder)}; ingest as root, who gives each user their own")
    if lost.too_many:
        raise Exit(Status.UNKNOWN)


_ALONE = ("--clustercockpit", "--prometheus", "--nvidia-smi")
# Each option is of use with one of these alone.
_NEEDED = {
    "--fields": ("--sacct-file", "--nvidia-smi"),
    "--timezone": ("--sacct-file", "--nvidia-smi"),
    "--slurm-release": ("--sacct-file",),
    "--node": ("--nvidia-smi",),
    "--prometheus-match": ("--prometheus",),
    "--holders": ("--prometheus",),
}


def _check(inputs: Inputs) -> None:
    """Raise an InputError for options that contradict each other, or do nothing."""
    used = {f"--{name.replace('_', '-')}" for name, value in inputs._asdict().items() if value}
    if len(used & {*_ALONE}) + bool(used & {"--sacct-file", "--journal"}) > 1:
        raise InputError(f"{', '.join(_ALONE)} and --sacct-file are sources of their own; take in each by its own call")
    for option, needed in _NEEDED.items():
        if option in used and not used & {*needed}:
            raise InputError(f"{option} does nothing without {' or '.join(needed)}")
    if (inputs.since, inputs.until) != ("", "now") and used & {"--sacct-file", "--nvidia-smi", "--clustercockpit"}:
        raise InputError("--since and --until are for sacct and --prometheus; a file is taken in whole")
    if inputs.journal and not os.path.isdir(inputs.journal):
        raise InputError(f"journal '{inputs.journal}' is no folder")


def take_in(target: Store, config: SiteConfig | None, inputs: Inputs) -> list[Counted]:
    """Take in all inputs, and return the counts of their rows without a word."""
    if inputs.prometheus:
        return [_prometheus(target, config, inputs)]
    if inputs.clustercockpit:
        with progress("taking in the table"):
            path = inputs.clustercockpit
            return [keep_runs(target, source_name(path), parse_jobs(_read(path)), now())]
    if inputs.nvidia_smi:
        with progress("taking in the log"):
            return [_smi_log(target, config, inputs.text, inputs.node)]
    if not inputs.sacct_file:
        return [*_live(target, config, inputs), *_samples(target, config, inputs.journal)]
    with progress("taking in the text") as step:
        text, cluster = inputs.text, config.cluster if config else ""
        runs = keep_text(
            target,
            content_name(text.path),
            text.path,
            text.columns,
            text.zone,
            text.written_s,
            inputs.slurm_release,
            cluster,
            step,
        )
    return [runs, *_samples(target, config, inputs.journal)]


def _tell(sources: Sequence[Counted]) -> None:
    """Say how many rows of each source were used and rejected."""
    for item in sources:
        if not item.rows_in:
            continue
        say(
            f"{item.source}: {item.rows_in} rows in, {item.used} used, {item.steps} job steps, "
            f"{rejected_rows(item.rejected, item.lost)}"
        )
        for text in item.said:
            say(f"{item.source}: {text}")
        for named in item.named:
            say(f"{item.source}: rejected: {named}")
        if item.refused:
            refused = "; ".join(f"{reason}: {number}" for reason, number in sorted(item.refused.items()))
            say(f"{item.source}: figures of GPU use that cannot be believed: {refused}")
    empty = [item.source for item in sources if not item.rows_in]
    if empty:
        rest = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
        say(f"no rows from {', '.join(empty[:3])}{rest}")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
            return stream.read()
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error


def _smi_log(target: Store, config: SiteConfig | None, text: Text, node: str) -> Counted:
    if config is None or not node:
        raise InputError("a log of nvidia-smi names neither cluster nor node; give a site.toml, and --node")
    if config.pool and not any(node in expand(pool.nodes) for pool in config.pool):
        raise InputError(
            f"--node '{node}' is in no pool of site.toml; name it as Slurm does, or run 'colloc site check'"
        )
    columns = tuple(text.fields.split(",")) if text.fields else nvidia_smi_csv.FIELDS
    log = nvidia_smi_csv.parse_csv(_read(text.path), text.zone, node, columns)
    if log.rejected and not log.rounds:
        reasons = "; ".join(sorted(log.rejected)[:3])
        raise InputError(
            f"none of {log.readings_in} rows of '{text.path}' can be read ({reasons}); the store stays as it was"
        )
    held = 0

    def attribute(sample: NodeSample) -> tuple[AttributedUse, ...]:
        nonlocal held
        held += len(sample.holders)
        return attribute_sample(sample)

    counts = keep_smi_log(target, source_name(text.path), log, config.cluster, attribute)
    if text.zone is None:
        say(f"times in '{text.path}' read as this machine's zone; else --timezone")
    say(f"{counts.source}: {held} of {counts.used} readings counted for a run that had all GPUs of '{node}'")
    return counts


def _prometheus(target: Store, config: SiteConfig | None, inputs: Inputs) -> Counted:
    if config is None:
        raise InputError("a Prometheus server does not name the cluster; give a site.toml")
    start, end = window(inputs.since or _FIRST_SPAN, inputs.until)
    server = Server(inputs.prometheus, inputs.prometheus_match, token=os.environ.get(TOKEN_VARIABLE, ""))
    with progress("asking Prometheus, hour by hour") as step:
        ends = start.timestamp(), end.timestamp()
        held = _held(inputs.holders or os.path.join(config.state_folder, "holders"), *ends)
        return keep_history(target, server, config.cluster, *ends, attribute_sample, step, held)


def _held(folder: str, since_s: float, until_s: float) -> list[Holding]:
    """Return which jobs 'colloc holders' saw on GPUs in the days of [since, until)."""
    # A run of a window may have been seen on the day before alone.
    begin, end = (sacct_client.day_name(at_s) for at_s in (since_s - sacct_client.DAY_S, until_s))
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    days = [parse_holders(_read(os.path.join(folder, name))) for name in names
            if name.endswith(SUFFIX) and begin <= name.removesuffix(SUFFIX) <= end]  # fmt: skip
    if rejected := sum(day.rejected for day in days):
        say(f"holders '{folder}': {counted(rejected, 'row')} cannot be read")
    return [holding for day in days for holding in day.rows]


def _live(target: Store, config: SiteConfig | None, inputs: Inputs) -> Iterator[Counted]:
    """Ask sacct day by day; after each answer comes a rest as long as it took: slurmdbd has others to serve."""
    # sacct was asked up to then without a gap; this run begins a day before, for what slurmdbd learns late.
    last_s = max((log["asked_until_s"] for log in target.logs().values() if "asked_until_s" in log), default=None)
    resumed = _FIRST_SPAN if last_s is None else datetime.fromtimestamp(last_s - sacct_client.DAY_S, UTC).isoformat()
    start, end = window(inputs.since or resumed, inputs.until)
    gapless = last_s is None or start.timestamp() <= last_s
    try:
        sacct_client.ask_tracked(_SACCT_TIMEOUT_S, os.environ)
        fields = sacct_client.ask_fields(
            _SACCT_TIMEOUT_S, os.environ, ["AdminComment", WORK_DIR, sacct_client.LIMIT, sacct_client.ELIGIBLE]
        )
    except ProcessError as error:
        if shutil.which("sacct") is None:
            raise ProcessError(f"{error} without Slurm here, --sacct-file takes a text exported elsewhere") from error
        if not any(words in str(error).lower() for words in _NO_ACCOUNTING):
            raise
        yield _from_controller(target, config)
        return
    days = [day_s for day_s, _ in sacct_client.day_windows(start.timestamp(), end.timestamp())]
    # A run that was not over when sacct was last asked of it, and of which the days asked now will not tell.
    open_days = [day_s for day_s in target.open_days(days[0]) if day_s not in days]
    took_s = 0.0
    with progress("asking sacct, day by day") as step:
        for day_s in told([*open_days, *days], step):
            sleep(min(took_s, _LONGEST_REST_S))
            began_s = now()
            yield keep_day(target, day_s, fields, began_s, _SACCT_TIMEOUT_S, os.environ, _running, gapless)
            took_s = max(0.0, now() - began_s)


def _running() -> Collection[str] | None:
    try:
        return CliClient(_SACCT_TIMEOUT_S).job_ids()
    except ProcessError as error:
        say(f"slurmctld cannot be asked for runaway jobs: {error}")
        return None


def _from_controller(target: Store, config: SiteConfig | None) -> Counted:
    say("this cluster keeps no accounting; asking slurmctld, which remembers jobs for MinJobAge only")
    client = CliClient(_SACCT_TIMEOUT_S)
    cluster = config.cluster if config else client.config().get("ClusterName", "")
    # A name of its own for each day, so that what slurmctld has forgotten since stays in the store.
    name = f"controller-{sacct_client.day_name(now())}"
    parsed = controller.parse_jobs(client.jobs_text(), cluster, known=client.job_ids())
    return keep_runs(target, name, parsed, now(), keep=True)  # slurmctld forgets


def _samples(target: Store, config: SiteConfig | None, journal: str) -> list[Counted]:
    if config is None:
        if journal:
            raise InputError("samples do not name their cluster; give a site.toml, or no --journal")
        return [Counted("samples", 0, 0, 0, {})]
    # The journal of a host that is no node of the site may well be none.
    of_site = os.geteuid() == 0 and config.paths.state
    folder = journal or (config.journal_folder if of_site else state_folder("journal"))
    if config.observe.agent and not os.path.isdir(folder):
        say(f"no journal '{folder}' here: what was sampled comes by 'colloc flush', where the journals are")
        return []
    with progress("reading samples, hour by hour") as step:
        done = flush_hours(target.samples, config.cluster, told(list(hours(folder)), step), attribute_sample)
    for node in done.busy:
        say(f"another run is flushing the journal of {node}")
    if done.errors:
        raise StoreError("; ".join(done.errors))
    if done.kept and not done.hours:
        say(f"samples: all {len(done.kept)} h of the journal '{folder}' were in the store already")
        return []
    counts = {REJECTED_LINES: done.rejected} if done.rejected else {}
    return [Counted("samples", done.rounds + done.rejected, done.rounds, 0, counts)]


def _history(target: Store, config: SiteConfig) -> None:
    for folder in (os.path.join(config.state_folder, "history"), os.path.join(target.samples.folder, "ingest")):
        remove_left(folder)
    collected = collect_decisions(config.paths.decisions)
    for foreign in collected.foreign[:_MOST_FOREIGN]:
        say(f"decisions are not taken in: {foreign}; its name is another user's uid: move it away as root")
    if len(collected.foreign) > _MOST_FOREIGN:
        say(f"and {len(collected.foreign) - _MOST_FOREIGN} more in '{config.paths.decisions}'")
    target.write_decisions((user, decision) for (user, _), (_, decision) in collected.decisions.items())
    written = build_history(target, config.cluster, config.state_folder, collected, config)
    with target.connect(now(), now()) as database:
        runs = judged_runs(database, config)
    for is_late, reason in enumerate(stop_where_too_many(runs, config.state_folder, now())):
        if reason:
            tell_admins(config, reason, late=bool(is_late))
    margins = write_margins(written.answers, config.state_folder, now()).margins
    if written.users_skipped:
        say(f"history: {written.users_skipped} users have none, because only root can write it for them")
    say(
        f"history: {written.runs} measured runs of {len(collected.decisions)} decisions, "
        f"{collected.rejected} decision files rejected"
    )
    if written.busy_unknown:
        say(
            f"history: of {written.busy_unknown} runs on whole GPUs no busy time is known: their jobs go by SM activity"
        )
    for name, margin in margins.items():
        say(f"margin '{name}': {margin}, of which at least {margin.confidence or 0:.0%} held")
