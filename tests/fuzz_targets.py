# SPDX-License-Identifier: Apache-2.0
"""What `python -m tests.fuzz` attacks: each parser of what a user controls or can influence.

One function for each kind of text. A target's function takes bytes as they come from outside; it raises what the parser
raises, or AssertionError where a property does not hold.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from zlib import crc32

from slurm_colloc.core.errors import GpuError, InputError
from slurm_colloc.core.model import Decision, Evidence, Load, Room, because
from tests.fuzz import Target
from tests.fuzz_submit import submitting
from tests.fuzz_texts import InFolder, in_file, of_text, recorded

_DECISION = Decision(
    *(
        "1",
        "c",
        1.0,
        "ann",
        "train",
        "f.64_3~p~d",
        "gpu:1",
        "gpu:1",
        "mig",
        "hint",
        9000.0,
        None,
        (because("no-pieces", partitions=("gpu",)),),
        ("--b",),
    )
)
_EVIDENCE = Evidence("1", "f.64~~d", "COMPLETED", "exclusive", "NVIDIA H100", 800, 20.0, None, False, 9, 90.0, 1.0, 9.0)


def targets() -> tuple[list[Target], list[str]]:
    """Return the targets, and in words those that cannot run here."""
    found: list[Target] = []
    passed_over: list[str] = []
    for some in (
        submitting,
        _of_a_user,
        _of_a_pack,
        _kept,
        _of_slurm,
        _configured,
        _of_a_node,
        _of_accounting,
        _tables,
    ):
        try:
            found.extend(some())
        except ImportError as error:
            passed_over.append(f"{some.__name__.strip('_')} ({error})")
    return found, passed_over


def _json(*values: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


def _round_trip(parse: Callable[[bytes], Any]) -> Callable[[bytes], object]:
    """Return a parser of a record that must come back from its own fields."""

    def call(content: bytes) -> object:
        found = parse(content)
        assert parse(json.dumps(found._asdict()).encode()) == found, "what was read is not what it says"
        return found

    return call


# --- files of a user's own that root, the ingest or the next submission reads ---


def _of_a_user() -> Iterator[Target]:
    from slurm_colloc.estimate import records

    decisions = _json(_DECISION._asdict(), {**_DECISION._asdict(), "would_memory_mib": 5, "shadow": True})
    yield Target("decision", _round_trip(records.parse_decision), decisions, (InputError,), is_json=True)
    yield Target(
        "evidence", _round_trip(records.parse_evidence), _json(_EVIDENCE._asdict()), (InputError,), is_json=True
    )
    yield in_file(
        "forgotten",
        InFolder("evidence/f/64/forgotten", lambda folder: records.forgotten_s(folder, "f.64")),
        b"1764158400.5\n",
    )
    yield in_file("snapshot", InFolder("1.sqlite", _snapshot), _snapshot_seed())


def _snapshot(folder: str) -> object:
    from slurm_colloc.estimate import snapshot

    path = os.path.join(folder, "1.sqlite")
    found = snapshot.read_snapshot(path, _EVIDENCE.signature)
    return found, snapshot.read_relatives(path, snapshot.signatures_kept(path, "f"))


def _snapshot_seed() -> bytes:
    import tempfile

    from slurm_colloc.estimate.snapshot import write_snapshot

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "1.sqlite")
        write_snapshot(path, [_EVIDENCE._replace(job_id=str(number)) for number in range(9)])
        with open(path, "rb") as stream:
            return stream.read()


def _of_a_pack() -> Iterator[Target]:
    from slurm_colloc.gpu import failure
    from slurm_colloc.pack import ledger, spec
    from slurm_colloc.rebind import recover
    from slurm_colloc.submit import requeue_data

    pack = spec.Spec(
        *(spec.VERSION, "train", "0-3", (), (), 1, ("/bin/sh",), (), Load(9000, 30.0), Room(80000, 100.0, 4), 1),
        *(60.0, "%x.out", "", "", False, 2, ("--pack", "job.sh")),
    )
    served = pack._replace(commands=("a b", "c"))

    def read_spec(content: bytes) -> object:
        found = spec.from_json(content)
        assert spec.from_json(spec.to_json(found)) == found, "a pack is not what it says"
        return found, found.tasks()[:9]

    def entry(line: bytes) -> object:
        found = ledger.parse_entry(line)
        short = found._replace(message=found.message[:2000])
        assert ledger.parse_entry(ledger.encode(found)) == short, "a line of a ledger does not come back"
        return found

    def read_ledger(folder: str) -> object:
        told = ledger.read_ledger(os.path.join(folder, "1.jsonl"))
        return ledger.missing([told])[:9], told

    lines = [
        ledger.Entry(1.0, "pack", spec=spec.to_json(pack), job={"SLURM_JOB_ID": "1"}),
        ledger.Entry(2.0, "start", 1, 1, "1.0"),
        ledger.Entry(3.0, "end", 1, 1, "1.0", "done", 0, "words"),
        ledger.Entry(4.0, "note", message="x"),
        ledger.Entry(5.0, "stop", message="y"),
    ]
    encoded = tuple(map(ledger.encode, lines))
    yield Target("spec", read_spec, tuple(spec.to_json(one).encode() for one in (pack, served)), (InputError,), True)
    script = b"#!/bin/sh\n#SBATCH -n1\n" + spec.MARK + b"{}\n#!/bin/bash\nrun\n"
    yield Target("pack-script", spec.split_script, (script,), (InputError,))
    yield Target("ledger-line", entry, encoded, (InputError,), True)
    yield in_file("ledger", InFolder("1.jsonl", read_ledger), b"".join(encoded))
    piece = requeue_data.Carried(
        "c", "f.64~~d", "mps", "mps", "gpu:h100:1", ("gpu",), ("p",), {"TimeLimit": "5"}, 9, 1.0, "", 60.0, ("a",)
    )
    yield of_text("carried", requeue_data.parse_carried, piece.text.encode(), is_json=True)
    step = recover.Rerun(1, 0, "gpu:1", {"Gres": "gpu:1"}, "it began again")
    yield in_file("recovered", InFolder("4711.json", _recovered), *_json(step._asdict()), is_json=True)
    words = (b"step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.5 GiB\n", b"srun: error: g1: x")
    yield Target("last-words", lambda words: failure.outcome_of(1, words), words, ())


def _recovered(folder: str) -> object:
    from slurm_colloc.rebind.recover import read_rerun

    return read_rerun(os.path.join(folder, "4711.json"))


# --- what is kept between submissions ---


def _kept() -> Iterator[Target]:
    from slurm_colloc.core.value_types import read_as
    from slurm_colloc.estimate import site_margins
    from slurm_colloc.estimate.calibration import SHIPPED
    from slurm_colloc.slurm import limits
    from slurm_colloc.slurm.free_gpus import Free

    def of(read: Callable[[object], object]) -> Callable[[bytes], object]:
        def call(content: bytes) -> object:
            try:
                return read(json.loads(content))
            except (ValueError, TypeError, RecursionError) as error:
                raise InputError("another form") from error

        return call

    one = limits.Association("ml", "root", "", "normal", ("normal",), {"GrpTRES": {"gres/gpu": 8}})
    known = limits.Limits(1.0, "ml", (one,), {"ml": one}, {"normal": {"MaxTRESPerJob": {"gres/gpu": 2}}})
    yield Target("kept-limits", of(partial(read_as, limits.Limits)), _json(known), (InputError,), True)
    free = (1.0, [[["gpu", "gpu:h100"], 9]], "")
    yield Target("kept-free", of(partial(read_as, Free)), _json(free), (InputError,), True)
    yield Target("kept-margins", of(site_margins.from_json), _json(SHIPPED), (InputError,), True)


# --- Slurm's words: node and job names, reasons and comments in them are people's ---


def _of_slurm() -> Iterator[Target]:
    from slurm_colloc.slurm import hostlist, jobs, limits, parse, setup, sinfo
    from tests.fakes.squeue import squeue_line

    def every(name: str) -> tuple[bytes, ...]:
        return recorded(*(f"recorded/slurm-*/{one}" for one in name.split()))

    nodes, partitions = every("scontrol/node.txt setup/node.txt"), every("scontrol/partition.txt setup/partition.txt")
    configs = every("scontrol/config.txt setup/config.txt setup/cgroup-config.txt")
    yield of_text("nodes", parse.parse_nodes, *nodes)
    yield of_text("partitions", parse.parse_partitions, *partitions)
    yield of_text("config", lambda text: (parse.parse_config(text), setup.parse_config_parts(text)), *configs)
    yield of_text("hostlist", lambda text: _names(hostlist, text), b"g[1-3,7],m1", b"n[098-100]x[1-2],r1n08,r1n[09-10]")
    yield of_text("release", parse.parse_release, *every("scontrol/version.txt"))
    yield of_text("states", parse.parse_states, b"1|RUNNING\n2|CANCELLED by 1001\n")
    yield of_text("sinfo-free", sinfo.parse_free, *every("sinfo/*.txt"))
    yield of_text("sinfo-shares", sinfo.parse_shares, *every("sinfo/*.txt"))
    lines = squeue_line("1") + squeue_line("4_2", State="PENDING", Dependency="afterany:3(unfulfilled)")
    yield of_text("squeue", jobs.parse_queue, lines.encode(), refusals=())
    user, account, qos = "ml|ml||normal|normal|gres/gpu=4", "ml|root|normal|", "normal|"
    ends = (
        "|" * (len(limits._OF_ASSOCIATION) - 1),
        "|" * (len(limits._OF_ASSOCIATION) - 1),
        "|" * (len(limits._OF_QOS) - 1),
    )
    answers = "\f".join(f"{row}{end}" for row, end in zip((user, account, qos), ends, strict=True)).encode()
    read = lambda text: limits.parse_limits((*text.split("\f", 2), "", "")[:3], 1.0)  # noqa: E731
    yield of_text("limits", read, answers)
    yield of_text("sdiag", setup.parse_queue, *every("setup/queue.txt"))


def _names(hostlist: Any, text: str) -> object:
    names = hostlist.expand(text)
    assert set(hostlist.expand(hostlist.fold(names))) == set(names), "a name is lost"
    return names[:24], len(names)


# --- files of administrators ---


def _configured() -> Iterator[Target]:
    from slurm_colloc.core.config_file import load_site
    from slurm_colloc.core.config_schema import parse_url
    from slurm_colloc.site.driver import parse_gpus_file
    from slurm_colloc.slurm import setup

    sites = recorded("recorded/demo/site.toml", "../site-configs/*/site.toml")
    yield in_file("site-toml", InFolder("site.toml", lambda folder: load_site(f"{folder}/site.toml")), *sites)
    yield of_text("exporter-url", parse_url, b"http://localhost:9400/metrics", b"https://[::1]/m?x", refusals=())
    confs = recorded("recorded/slurm-*/setup/gres.conf", "../site-configs/*/*.conf*", "golden/site/**/*.conf*")
    yield of_text("gres-conf", setup.parse_gres_conf, *confs)
    yield of_text("weights-conf", setup.parse_weights, b"CPU=1.0,Mem=0.25G,GRES/gpu=2e1")
    units = {"uuid": "GPU-1", "gres_index": 0, "model": "H100", "profile": "", "mem_total_mib": 80000, "sm_count": 132}
    gpus = {"schema": 1, "node": "g1", "complete": True, "units": [{**units, "whole_sm_count": 132, "parent_uuid": ""}]}
    read = lambda text: parse_gpus_file(text, "x")  # noqa: E731
    yield of_text("gpus-file", read, *_json(gpus), refusals=(GpuError,), is_json=True)


# --- a GPU node: names, environments and folders of anybody's processes, and what drivers and exporters say ---


def _of_a_node() -> Iterator[Target]:
    from slurm_colloc.gpu import dcgm, hostuse, mig, nvidia_smi, proc, simulated
    from slurm_colloc.gpu.proc import parse_stat
    from slurm_colloc.observe import journal

    journals = recorded("recorded/h100-slurm-22.05/*.journal", "recorded/demo/journal/*/*.journal")

    def read_journal(content: bytes) -> object:
        found = [seen for seen in journal.decode(content.splitlines()) if seen]
        again = b"".join(map(journal.encode, found))
        assert list(journal.decode(again.splitlines())) == found, "a round does not come back"
        return found

    def with_checksum(content: bytes) -> object:
        body = content.replace(b"\n", b" ")
        return read_journal(b"%08x %s\n" % (crc32(body), body))

    yield Target("journal", read_journal, tuple(b"\n".join(one.split(b"\n")[:3]) for one in journals), ())
    bodies = tuple(line.partition(b" ")[2] for one in journals for line in one.split(b"\n")[:2])
    yield Target("journal-line", with_checksum, bodies, (), True)
    groups = recorded("recorded/slurm-*/cgroup*/*.txt")
    yield of_text(
        "cgroup", lambda text: (proc.parse_cgroup_job(text), proc.parse_cgroup_folders(text)), *groups, refusals=()
    )
    yield Target("proc-stat", parse_stat, (b"12 (a) b) S 1 12 " + b"0 " * 40,), ())
    yield of_text(
        "cgroup-figures",
        lambda text: hostuse.parse_figures(text, ("anon", "shmem")),
        b"anon 12\nshmem 5\n",
        refusals=(),
    )
    yield of_text(
        "mountinfo",
        hostuse.parse_mounts,
        b"30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
        refusals=(),
    )
    yield of_text("exporter", dcgm.parse_exposition, *recorded("recorded/dcgm/exporter-*.txt"), refusals=())
    yield of_text("dcgm-dmon", dcgm.parse_dmon, *recorded("recorded/dcgm/dmon-*.txt"), refusals=())
    yield of_text("dcgm-discovery", dcgm.parse_discovery, *recorded("recorded/dcgm/discovery-*.txt"), refusals=())
    smi = recorded("recorded/nvml-h100/smi-*")
    yield of_text(
        "nvidia-smi",
        lambda text: [nvidia_smi.parse_pids(text), nvidia_smi.parse_devices(text, text)],
        *smi,
        refusals=(),
    )
    yield of_text("mig-profile", mig.parse_profile, b"nvidia_h100_80gb_hbm3_1c.4g.40gb+me.all", refusals=())
    yield of_text("simulated-load", simulated.parse_load, b"mem=9G,util=30,sm=20,dram=5")
    part = {"uuid": "MIG-1", "profile": "1g.10gb", "mem_total_mib": 9984, "sm_count": 16, "gi_id": 7}
    whole = {"uuid": "GPU-1", "model": "NVIDIA H100 80GB HBM3", "mem_total_mib": 81559, "sm_count": 132, "slices": []}
    devices = _json({"devices": [whole, {**whole, "slices": [part]}]})
    yield of_text("simulated-devices", simulated.parse_devices, *devices, refusals=(GpuError,), is_json=True)


# --- what an analyst takes in; names, comments and command lines in it are users' ---


def _of_accounting() -> Iterator[Target]:
    from datetime import UTC

    from slurm_colloc.sources import (
        clustercockpit,
        controller,
        holders,
        jobstats,
        nvidia_smi_csv,
        prometheus_server,
        sacct_client,
        tres_usage,
    )

    blob = b"JS1:H4sIAAAAAAACA6tWykvMTVWyUqhWSk9KjU9PzEnVLy3JzMnMS9VNTyzRzUnNSy/JULICqq0FAJmVCSIwAAAA"
    yield of_text("jobstats", jobstats.parse_blob, blob, b"JS1:Short", b"other words")
    yield of_text(
        "tres-usage",
        tres_usage.parse_tres_usage,
        *recorded("recorded/documented/*.txt"),
        b"cpu=00:01,gres/gpuutil=99,mem=5M",
    )
    yield of_text(
        "sacct-time", lambda text: sacct_client.parse_time(text, UTC), b"2026-11-21T23:44:27", b"1795296758", b"Unknown"
    )
    jobs = recorded("recorded/slurm-*/scontrol/job.txt")
    yield of_text("scontrol-jobs", lambda text: controller.parse_jobs(text, "c", UTC), *jobs)
    table = b"\n".join(recorded("recorded/clustercockpit-alex/jobs.csv")[0].split(b"\n")[:5])
    yield of_text("clustercockpit", clustercockpit.parse_jobs, table)
    log = (
        b"timestamp, uuid, name, utilization.gpu [%], memory.used [MiB], power.draw [W]\n"
        b"2026/11/21 23:44:27.123, GPU-1a, NVIDIA H100 80GB HBM3, 30 %, 500 MiB, 70.5 W\n" * 2
    )
    yield of_text("smi-log", lambda text: nvidia_smi_csv.parse_csv(text, UTC, "g1"), log)
    series = {"metric": {"__name__": "x", "gpu": "0"}, "values": [[1.5, "30"], [2, "NaN"]]}
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
    yield of_text("holders", holders.parse_holders, b"7,60,g1,h100,2,,60,120\n8,60,g1,,0,30.0,60,120\nx\n")
    yield of_text("prometheus-series", prometheus_server.parse_series, *_json(answer), is_json=True)
    yield of_text(
        "prometheus-names", prometheus_server.parse_names, *_json({"status": "success", "data": ["a"]}), is_json=True
    )


# --- rows of sacct, as DuckDB takes them in ---


def _tables() -> Iterator[Target]:
    import duckdb

    from slurm_colloc.store.sacct_rows import take_rows
    from slurm_colloc.store.text_rows import form_of, parse_header, read_rows

    texts = tuple(b"\n".join(one.split(b"\n")[:4]) + b"\n" for one in recorded("recorded/slurm-*/sacct/*.txt"))

    def rows(folder: str) -> object:
        path = f"{folder}/sacct.txt"
        with open(path, "rb") as stream:
            form = form_of(stream, ())
        found = read_rows(path, form, folder, each=True)
        assert found.rows_in == sum(found.rejected.values()) + len(found.odd) + _plain_rows(found.plain)
        return form.fields, found.rows_in, len(found.odd), tuple(found.rejected)

    def taken(folder: str) -> object:
        path = f"{folder}/sacct.txt"
        with open(path, "rb") as stream:
            form = form_of(stream, ())
        with duckdb.connect(config={"threads": 1}) as database:
            found = take_rows(database, path, form, None, 2e9, folder)
        assert found.rows_in == found.used + found.steps + sum(found.rejected.values()), "a row was lost"
        return found

    yield Target("sacct-header", parse_header, tuple(one.split(b"\n")[0] + b"\n" for one in texts), (InputError,))
    yield in_file("sacct-rows", InFolder("sacct.txt", rows), *texts)
    yield in_file("sacct-taken", InFolder("sacct.txt", taken), *texts)


def _plain_rows(path: str) -> int:
    with open(path, "rb") as stream:
        return stream.read().count(b"\n")
