# SPDX-License-Identifier: Apache-2.0
"""Sources -> store, and what was counted on the way."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from itertools import groupby

from duckdb import DuckDBPyConnection

from slurm_colloc.core.clock import now
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.files import at_once
from slurm_colloc.core.units import counted, significant
from slurm_colloc.core.usage_model import AttributedUse, NodeSample
from slurm_colloc.sources import nvidia_smi_csv, prometheus, sacct_client
from slurm_colloc.sources.holders import Holding, Timeline, with_holders
from slurm_colloc.sources.prometheus_server import Server
from slurm_colloc.store.equivalents import node_names
from slurm_colloc.store.parquet import read
from slurm_colloc.store.queries import query, watched
from slurm_colloc.store.sacct_rows import ALLOCATION_COLUMNS, Counted, mark_runaways, take_rows
from slurm_colloc.store.store import Store
from slurm_colloc.store.text_rows import form_of
from slurm_colloc.store.window import Step, ignore

HOUR_S = 3600
_MOST_NAMED = 5


def keep_text(
    store: Store,
    source: str,
    path: str,
    fields: Sequence[str],
    zone: tzinfo | None,
    written_s: float,
    release: str = "",
    cluster: str | None = None,
    step: Step = ignore,
) -> Counted:
    """Write the runs of a sacct text, in place of what this source gave before, and return what was counted.

    Args:
        store: the store to write to.
        source: its name there.
        path: the text.
        fields: its columns, where it has no header; none: FIELDS, if it has as many.
        zone: the zone of times without one.
        written_s: the text knows of unfinished runs up to this time at the latest.
        release: the release of the Slurm that ran them, "24.05.4".
        cluster: the cluster of runs that name none; "" refuses those, None leaves them without.
        step: is told how many hundredths are read.

    Raises:
        StoreError: the store cannot be written.
        InputError: it is no text of sacct, or not one row can be read; the store stays as it is.
    """

    def fill(database: DuckDBPyConnection, work: str) -> Counted:
        with watched(database, step):
            taken = take_text(database, path, fields, zone, written_s, work, source, release=release)
        _name_runs(database, path, cluster)
        return taken

    return _log(store, store.take(source, fill))


def _name_runs(database: DuckDBPyConnection, path: str, cluster: str | None) -> None:
    """Give runs without a cluster this one; raise InputError where a run would not be known as others know it."""
    if database.execute("SELECT 1 FROM taken WHERE regexp_matches(job_id_raw, '[_+]') LIMIT 1").fetchone():
        raise InputError(
            f"'{path}' has jobs of arrays, or heterogeneous ones, and no JobIDRaw: export it with JobIDRaw"
        )
    if cluster is None or not database.execute("SELECT 1 FROM taken WHERE cluster = '' LIMIT 1").fetchone():
        return
    if not cluster:
        raise InputError(f"'{path}' does not name its cluster: export it with Cluster, or give a site.toml")
    database.execute("UPDATE taken SET cluster = $1 WHERE cluster = ''", [cluster])


def take_text(
    database: DuckDBPyConnection,
    path: str,
    fields: Sequence[str],
    zone: tzinfo | None,
    written_s: float,
    work: str,
    source: str,
    columns: Collection[str] = tuple(ALLOCATION_COLUMNS),
    release: str = "",
    *,
    live: bool = False,
) -> Counted:
    """Make the table ``taken``, with these ``columns``, of a sacct text; see ``keep_text``.

    A ``live`` text was written at ``written_s``; a file may have been copied since.
    """
    try:
        with open(path, "rb", opener=at_once) as stream:
            if not stream.seekable():
                raise InputError(f"'{path}' is a pipe; write it to a file first")
            if not stream.peek(1):
                raise InputError(f"'{path}' is empty, without even a header: export it again")
            form = form_of(stream, fields)
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error
    sacct_client.check_fields(form.fields)
    at_s = (written_s, None) if live else (now(), written_s)
    rows = take_rows(database, path, form, zone, at_s[0], work, columns, release, at_s[1])
    _check_any(source, rows.rows_in, rows.used, rows.rejected)
    return rows._replace(source=source)


def keep_day(
    store: Store,
    day_s: float,
    fields: Sequence[str],
    now_s: float,
    timeout_s: float,
    environment: Mapping[str, str],
    running: Callable[[], Collection[str] | None],
    gapless: bool = True,
) -> Counted:
    """Ask sacct for the runs that overlap a UTC day, and write them in place of what it said of that day before.

    ``running`` returns the raw ids of the jobs that slurmctld has, None where it cannot be asked. A run without an end
    that slurmctld knows nothing of is a runaway: it counts as far as it was seen to run before. ``gapless`` says that
    sacct was asked of all days up to this one, from where it was first asked: the next ingest goes on from here.

    Raises:
        StoreError: the store cannot be written.
        ProcessError: sacct fails or does not answer in time.
        InputError: none of its rows can be read.
    """
    source = f"sacct-{sacct_client.day_name(day_s)}"

    def fill(database: DuckDBPyConnection, work: str) -> Counted:
        path = os.path.join(work, "file.txt")
        with open(path, "wb") as out:
            out.write(sacct_client.ask_rows(day_s, day_s + sacct_client.DAY_S, fields, timeout_s, environment))
        taken = take_text(database, path, fields, None, now_s, work, source, live=True)
        # Asked after sacct, because a job that began in between would seem to be one.
        known = running()
        if known is not None:
            mark_runaways(database, known)
        return taken

    progress = {"asked_until_s": min(now_s, day_s + sacct_client.DAY_S)} if gapless else {}
    return _log(store, store.take(source, fill, keep=True), **progress)


def keep_runs(store: Store, source: str, parsed: sacct_client.Parsed, now_s: float, *, keep: bool = False) -> Counted:
    """Write the runs of one source, in place of what it gave before, and return what was counted; ``keep`` as in take.

    Raises:
        StoreError: the store cannot be written.
        InputError: there are rows and not one can be read: that is another format, no news.
    """
    _check_any(source, parsed.rows_in, len(parsed.rows) + parsed.steps, parsed.rejected)
    store.write_allocations(source, parsed.rows, now_s, parsed.means, keep=keep)
    until = {"seen_until_s": now_s} if keep else {}  # a live source, which knows of no run may be right
    return _log(store, Counted(source, parsed.rows_in, len(parsed.rows), parsed.steps, dict(parsed.rejected)), **until)


def _check_any(source: str, rows_in: int, readable: int, rejected: Mapping[str, int]) -> None:
    if rejected and not readable:
        reasons = "; ".join(sorted(rejected)[:3])
        raise InputError(f"none of {rows_in} rows of {source} can be read ({reasons}); the store stays as it was")


def keep_smi_log(
    store: Store,
    source: str,
    log: nvidia_smi_csv.Log,
    cluster: str,
    attribute: Callable[[NodeSample], tuple[AttributedUse, ...]],
) -> Counted:
    """Write what a log of nvidia-smi saw, hour by hour, of the runs that had all the node's GPUs meanwhile.

    Nothing in the log says whose a process is. The GPUs count for a run that the accounting has alone on the node, with
    as many GPUs as the log; else they are nobody's. Take the runs in first.

    Raises:
        StoreError: the store cannot be written, or another run takes in this log.
    """
    rejected = Counter(log.rejected)
    by_hour: dict[int, list[NodeSample]] = {}
    for sample in nvidia_smi_csv.holders_by_accounting(log.rounds, _gpu_runs(store, cluster)):
        by_hour.setdefault(int(sample.at_s // HOUR_S) * HOUR_S, []).append(sample)
    with store.samples.alone(f"'{source}'", source) as work:
        for began_s, rounds in sorted(by_hour.items()):
            node = rounds[0].node
            if _sampled_by_agents(store, cluster, began_s, began_s + HOUR_S) & _names(rounds):
                rejected["a reading in an hour that the node's agent sampled"] += sum(
                    len(sample.devices) for sample in rounds
                )
            else:
                store.samples.flush(cluster, _Hour(node, began_s, rounds), attribute, work)
    used = log.readings_in - rejected.total()
    return _log(store, Counted(source, log.readings_in, used, 0, dict(rejected)))


def _names(rounds: Iterable[NodeSample]) -> set[str]:
    """Return the nodes and the UUIDs of these rounds."""
    return {name for sample in rounds for name in (sample.node, *(device.uuid for device in sample.devices))}


def _gpu_runs(store: Store, cluster: str) -> list[nvidia_smi_csv.GpuRun]:
    """Return the runs with whole GPUs, as many on each of their nodes."""
    runs = []
    for job_id, node_list, devices, start_s, end_s in store.rows(query("store/sql/gpu_runs"), {"cluster": cluster}):
        nodes = node_names(node_list)
        if nodes and devices % len(nodes) == 0:
            runs.append(nvidia_smi_csv.GpuRun(job_id, nodes, devices // len(nodes), start_s, end_s))
    return runs


_READ = {field for exporter in prometheus.EXPORTERS for field, _ in exporter.metrics.values()}


class _Hour:
    """An hour of a node as a server or a log knows it, to be flushed as an hour of a journal is."""

    def __init__(self, node: str, began_s: int, rounds: Sequence[NodeSample]) -> None:
        self.node = node
        self.began_s = began_s
        # A later import may know more, which must not be taken for an hour that is in the store already.
        self.read_bytes = len(repr(rounds))
        self.rejected = 0
        self._rounds = rounds

    def __iter__(self) -> Iterator[NodeSample]:
        return iter(self._rounds)


def keep_history(
    store: Store,
    server: Server,
    cluster: str,
    since_s: float,
    until_s: float,
    attribute: Callable[[NodeSample], tuple[AttributedUse, ...]],
    step: Step = ignore,
    held: Sequence[Holding] = (),
) -> Counted:
    """Write what a Prometheus server knows of the hours that [since, until) touches, hour by hour.

    ``step`` is told how many hours are done; ``held`` says who had which GPU, where an exporter does not. Hours of
    which it knows nothing stay as they are in the store: a server forgets. Hours in which an agent sampled the node or
    one of its GPUs stay, too, whatever the node is called there: a GPU would be read by two.

    Raises:
        InputError: the server does not answer, or has nothing that can be read.
        StoreError: the store cannot be written, or another import of this server is running.
    """
    hours = list(prometheus.hours(since_s, until_s))
    names = prometheus.names_there(server, hours[0][0], hours[-1][1])
    source = f"prometheus-{hashlib.sha256(server.url.encode()).hexdigest()[:8]}"
    runs, held_runs = _gpu_runs(store, cluster), _runs_of(store, cluster, hours[0][0], hours[-1][1])
    timeline = Timeline(held, {job_id: [run[:2] for run in spans] for job_id, spans in held_runs.items()})
    unmatched, told_jobs, nodes = set[str](), set(timeline.jobs), set[str]()
    points = 0
    rejected: Counter[str] = Counter()
    with store.samples.alone(f"what '{server.url}' knows", source) as work:
        for done, (start_s, end_s) in enumerate(hours):
            step(done, len(hours))
            imported = prometheus.read_rounds(server, names, start_s, end_s)
            points += imported.points
            rejected.update(imported.rejected)
            samples = nvidia_smi_csv.holders_by_accounting(with_holders(imported.rounds, timeline, unmatched), runs)
            nodes.update(sample.node for sample in samples)
            told_jobs.update(holder.job_id for sample in samples for holder in sample.holders)
            by_node = sorted(samples, key=lambda sample: (sample.node, sample.at_s))
            sampled = _sampled_by_agents(store, cluster, start_s, end_s)
            for node, group in groupby(by_node, key=lambda sample: sample.node):
                rounds = list(group)
                if sampled & _names(rounds):
                    rejected["a reading in an hour that the node's agent sampled"] += sum(
                        getattr(device, name) is not None
                        for sample in rounds
                        for device in sample.devices
                        for name in _READ
                    )
                else:
                    store.samples.flush(cluster, _Hour(node, int(start_s), rounds), attribute, work)
    texts = _of_holders(held_runs, told_jobs, nodes, unmatched) if held else ()
    return _log(store, Counted(source, points, points - rejected.total(), 0, dict(rejected), said=texts))


# When each run of a job began and ended, where, and its GPU-hours.
_Runs = dict[str, list[tuple[float, float | None, frozenset[str], float]]]


def _runs_of(store: Store, cluster: str, since_s: float, until_s: float) -> _Runs:
    runs: _Runs = {}
    parameters = {"cluster": cluster, "since": since_s, "until": until_s}
    for job_id, node_list, start_s, end_s, gpu_hours in store.rows(query("store/sql/runs_held"), parameters):
        runs.setdefault(job_id, []).append((start_s, end_s, node_names(node_list), gpu_hours))
    return runs


def _of_holders(
    runs: _Runs, told_jobs: Collection[str], nodes: Collection[str], unmatched: Collection[str]
) -> tuple[str, ...]:
    """Return what is to be said of runs that no look saw, and of nodes whose GPUs cannot be matched."""
    unseen = {job: sum(run[3] for run in spans) for job, spans in runs.items() if job not in told_jobs
              and any(run[2] & set(nodes) for run in spans)}  # fmt: skip
    texts = []
    if unseen:
        named = ", ".join(sorted(unseen, key=lambda job: -unseen[job])[:_MOST_NAMED])
        texts.append(
            f"{counted(len(unseen), 'job')} with {significant(sum(unseen.values()))} GPU-h in no look of 'colloc "
            "holders' (too short for one, hidden from its account, or it did not run); its readings are nobody's: "
            f"{named}"
        )
    for node in sorted(unmatched):
        texts.append(f"node {node}: its exporter numbers GPUs or slices otherwise than Slurm, so nothing is joined")
    return tuple(texts)


def _sampled_by_agents(store: Store, cluster: str, since_s: float, until_s: float) -> set[str]:
    """Return the nodes, and the UUIDs, that have readings with a count of processes, which no server knows."""
    query = """
        SELECT DISTINCT unnest([node, uuid]) FROM shares
        WHERE cluster = $cluster AND process_count IS NOT NULL AND at_s > $since AND at_s <= $until
    """
    parameters = {"cluster": cluster, "since": since_s, "until": until_s}
    facts = [path for paths in store.samples.facts(since_s, until_s).values() for path in paths]
    if facts:
        query += f"""
            UNION SELECT DISTINCT unnest([node, uuid]) FROM {read(facts)}
            WHERE part = 'device' AND span_s = 3600 AND cluster = $cluster AND stray_us IS NOT NULL
              AND from_s < $until AND from_s + 3600 > $since
        """
    return {name for (name,) in store.rows(query, parameters, since_s, until_s)}


def _log(store: Store, counted: Counted, **extra: float) -> Counted:
    log: dict[str, object] = counted._asdict()
    del log["named"], log["said"]  # reports from a store do not need them
    log |= {"rejected": dict(counted.rejected), "refused": dict(counted.refused), "lost": list(counted.lost)}
    store.write_log(os.path.basename(counted.source), log | extra)
    return counted
