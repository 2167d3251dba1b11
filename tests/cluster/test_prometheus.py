# SPDX-License-Identifier: Apache-2.0
"""The real Prometheus server between exporters that say what real ones said and our import, and before our endpoint."""

from __future__ import annotations

import csv
import json
import os
import pwd
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from threading import Thread
from typing import Any, NamedTuple

import pytest

from slurm_colloc.core.usage_model import HostSample
from slurm_colloc.estimate.records import parse_evidence
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.observe.prometheus import Endpoint
from slurm_colloc.sources.prometheus import Imported, names_there, read_rounds
from slurm_colloc.sources.prometheus_server import Server
from slurm_colloc.store.store import Store
from tests.cluster.ports import Ports, answers
from tests.unit.made import H100, RECORDED, device, near, process, seen
from tests.unit.programs import need_program

A100 = "GPU-34319582-d595-d1c7-d1d2-179bcfa61660"
CARD = [
    line for line in (RECORDED / "prometheus" / "dcgm-exporter.txt").read_text().splitlines() if "GPU_I_ID" not in line
]
# Scrapes of each kind, one a second: one job, two jobs, no value, no job; then the target is gone.
ONE, TWO, BLANK, NONE = 3, 6, 8, 11


def dcgm(scrape: int) -> str:
    """Return what dcgm-exporter says: one copy of each line for each job."""
    jobs = ["101"] if scrape < ONE else ["101", "102"] if scrape < TWO else []
    lines = [line.replace("}", f',hpc_job="{job}"}}') for line in CARD for job in jobs] or CARD
    if TWO <= scrape < BLANK:
        lines = [f"{line.split(' ')[0]} 9223372036854775794" for line in CARD]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[int], str]] = {
    "/dcgm": dcgm,
    "/twin": lambda _: "\n".join(CARD) + "\n",
}


@contextmanager
def exporters() -> Iterator[tuple[int, Counter[str]]]:
    """Serve PAGES, each by how often it was asked for, and then nothing; yield the port and the count."""
    served: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = PAGES[self.path](served[self.path])
            self.send_response(200 if served[self.path] < NONE else 503)
            self.end_headers()
            self.wfile.write(page.encode())
            served[self.path] += 1

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, served
    finally:
        server.shutdown()
        server.server_close()


def scrape_configs(exporter_port: int, endpoint_port: int) -> list[dict[str, Any]]:
    pages = {"/dcgm": "g1:9400", "/twin": "g1-service:9400"}
    targets = [(path, f"127.0.0.1:{exporter_port}", instance) for path, instance in pages.items()]
    targets.append(("/metrics", f"127.0.0.1:{endpoint_port}", "g4:9499"))
    return [
        {
            "job_name": path,
            "metrics_path": path,
            "scrape_interval": "3s" if path == "/twin" else "1s",
            "scrape_timeout": "1s",
            "static_configs": [{"targets": [target], "labels": {"instance": instance}}],
        }
        for path, target, instance in targets
    ]


@contextmanager
def prometheus(folder: Path, configs: list[dict[str, Any]]) -> Iterator[str]:
    """Run the server on what ``folder`` holds; yield its address."""
    port = Ports.find(["prometheus"]).release("prometheus")
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": configs}))
    with (folder / "prometheus.log").open("ab") as log:
        running = subprocess.Popen(
            [
                need_program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait(lambda: answers(port) and ready(port), running, folder)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.kill()
        running.wait()


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait(done: Callable[[], bool], running: subprocess.Popen[bytes], folder: Path) -> None:
    deadline_s = time.monotonic() + 60
    while not done():
        log = folder / "prometheus.log"
        assert running.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.1)


class History(NamedTuple):
    """A server that has scraped it all, was killed, and runs again with nothing to scrape."""

    url: str
    began_s: float
    ended_s: float


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    need_program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    began_s = time.time()
    endpoint = Endpoint("127.0.0.1", 0, period_s=600.0)
    endpoint.show(
        seen(
            began_s,
            [device()],
            [process("1")],
            hosts=[HostSample("1", cpu_s=1.0, host_mem_mib=1, read_mib=1, written_mib=1)],
        )
    )
    try:
        with exporters() as (port, served):
            configs = scrape_configs(port, endpoint.port)
            with prometheus(folder, configs):
                deadline_s = time.monotonic() + 60
                while any(served[page] <= NONE for page in PAGES if page != "/twin"):
                    assert time.monotonic() < deadline_s, served
                    time.sleep(0.1)
    finally:
        endpoint.close()
    ended_s = time.time()
    with prometheus(folder, []) as url:
        yield History(url, began_s, ended_s)


@pytest.fixture(scope="module")
def imported(history: History) -> Imported:
    server = Server(history.url)
    until_s = history.ended_s + 600
    return read_rounds(server, names_there(server, history.began_s, until_s), history.began_s, until_s)


def scrapes(history: History, page: str) -> list[float]:
    """Return when a page was scraped well, by the server's own record."""
    series = Server(history.url, f'job="{page}"').samples("up", history.began_s, history.ended_s + 1)
    return [at_s for _, points in series for at_s, up in points if up]


def test_a_card_through_dcgm_exporter(history: History, imported: Imported) -> None:
    rounds = [one for one in imported.rounds if one.node == "ub20-a100-k8s"]
    times = scrapes(history, "/dcgm")
    assert len(times) == NONE
    # The same card through the other target counts once, and what has no value is a gap.
    assert [one.at_s for one in rounds] == times[:TWO] + times[BLANK:]
    jobs = [tuple(holder.job_id for holder in one.holders) for one in rounds]
    assert jobs == [("101",)] * ONE + [("101", "102")] * (TWO - ONE) + [()] * (NONE - BLANK)
    for one in rounds:
        (unit,) = one.devices
        assert (unit.uuid, unit.gr_active_pct, unit.tensor_active_pct) == (A100, near(99.563), near(92.926))
        assert (unit.dram_active_pct, unit.gpu_mem_used_mib, unit.power_w) == (near(69.0789), 4845, 409.692)
        assert unit.energy_j == near(409.692 * one.interval_s)
        shares = {share.job_id: share for share in attribute_sample(one)}
        # Sums over the jobs and the rest are the card's value, however often the exporter repeated it.
        assert sum(share.gr_active_pct or 0.0 for share in shares.values()) == near(99.563)
        method = {0: set(), 1: {"whole device"}, 2: {"split equally"}}[len(one.holders)]
        assert {share.method for job_id, share in shares.items() if job_id} == method
    assert [count for why, count in imported.rejected.items() if "NaN" in why] == [(BLANK - TWO) * 5]


def test_a_range_query_would_have_invented_points(history: History, imported: Imported) -> None:
    """So raw samples are asked for. The server died here without marking its series as ended."""
    last_s = scrapes(history, "/metrics")[-1]
    query = f"query_range?query=colloc_gpu_power_watts&start={last_s + 1}&end={last_s + 100}&step=1"
    with urllib.request.urlopen(f"{history.url}/api/v1/{query}", timeout=10) as answer:
        (series,) = json.load(answer)["data"]["result"]
    assert len(series["values"]) == 100
    ((_, points),) = Server(history.url).samples("colloc_gpu_power_watts", history.began_s, history.ended_s + 600)
    assert [at_s for at_s, _ in points] == scrapes(history, "/metrics")
    assert max(one.at_s for one in imported.rounds) <= history.ended_s


def test_our_own_endpoint_is_scraped(history: History) -> None:
    server = Server(history.url, match='method!="unattributed"')
    ((labels, points),) = server.samples("colloc_job_gpu_sm_active_ratio", history.began_s, history.ended_s)
    assert (labels["uuid"], labels["job_id"], labels["method"]) == ("GPU-0", "1", "measured")
    assert {value for _, value in points} == {0.2}


def test_promtool_accepts_our_endpoint() -> None:
    promtool = need_program("promtool")
    endpoint = Endpoint("127.0.0.1", 0, period_s=600.0)
    try:
        both = [process("1", 1), process("2", 2)]
        host = HostSample("1", cpu_s=1.0, host_mem_mib=1, read_mib=1.0, written_mib=1.0)
        endpoint.show(seen(1000.0, [device()], both, hosts=[host]))
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=10) as answer:
            text = answer.read()
    finally:
        endpoint.close()
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def to_the_joule(value: float) -> Any:
    """Return what equals ``value`` as the store keeps it: each of its readings in steps of 1/16 J."""
    return pytest.approx(value, abs=1.0)


def test_the_command(history: History, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('schema = 1\ncluster = "c"\nslurm_release = "22.05"\n')
    argv = ["ingest", "--prometheus", history.url, "--since", "1h", "--store", str(tmp_path / "store")]
    argv += ["--prometheus-match", 'job!="/metrics"']
    said = subprocess.run(
        [sys.executable, "-m", "slurm_colloc.cli.colloc", *argv],
        env={"COLLOC_CONF": str(tmp_path / "site.toml"), "HOME": str(tmp_path), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert re.search(r"\bNaN\b.*: 10\b", said.stderr)
    query = "SELECT job_id, method, count(*), sum(energy_j / interval_s) FROM shares GROUP BY ALL"
    with Store(str(tmp_path / "store")).connect() as connection:
        rows = sorted(connection.execute(query).fetchall())
    assert rows == [
        ("", "unattributed", NONE - BLANK + TWO, to_the_joule(409.692 * (NONE - BLANK))),
        ("101", "split equally", TWO - ONE, to_the_joule(409.692 / 2 * (TWO - ONE))),
        ("101", "whole device", ONE, to_the_joule(409.692 * ONE)),
        ("102", "split equally", TWO - ONE, to_the_joule(409.692 / 2 * (TWO - ONE))),
    ]


# The readings of tests/gpu/readings_h100.csv, as if each were of three seconds: jobs of 33 minutes, scraped each half.
STRETCH, SCRAPE_S, FIRST_JOB = 30, 30, 501


class Truth(NamedTuple):
    """What a job used: the mean SM activity of its GPU and the peak of its memory; and when it ran."""

    sm_pct: float
    peak_mib: int
    start_s: int
    end_s: int


def replayed(now_s: int) -> tuple[dict[str, Truth], str]:
    """Return the truth of each job, one after the other on one GPU, and what the exporter of jobstats said of it."""
    by_job: dict[str, list[tuple[int, float | None, float]]] = {}
    with (Path(__file__).resolve().parents[1] / "gpu" / "readings_h100.csv").open() as stream:
        for job, _, mib, sm, util in list(csv.reader(stream))[1:]:
            by_job.setdefault(job, []).append((int(mib), float(sm) if sm else None, float(util)))
    truth: dict[str, Truth] = {}
    lines: dict[str, list[str]] = {}
    at_s = now_s - len(by_job) * 3600
    for number, readings in enumerate(by_job.values()):
        job = str(FIRST_JOB + number)
        long_s = len(readings) * STRETCH // 10
        known = [sm for _, sm, _ in readings if sm is not None]
        truth[job] = Truth(fmean(known), max(mib for mib, _, _ in readings), at_s, at_s + long_s)
        labels = f'uuid="GPU-0",name="{H100}",minor_number="0",jobid="{job}",instance="g1:9445"'
        for after_s in range(SCRAPE_S, long_s, SCRAPE_S):
            upto = after_s * 10 // STRETCH
            span = [sm for _, sm, _ in readings[upto - SCRAPE_S * 10 // STRETCH : upto] if sm is not None]
            values = {"memory_used_bytes": readings[upto][0] * 2**20, "duty_cycle": readings[upto][2]}
            values |= {"sm_util_percent": fmean(span) / 100} if span else {}
            for metric, value in values.items():
                lines.setdefault(metric, []).append(f"nvidia_gpu_{metric}{{{labels}}} {value} {at_s + after_s}")
        at_s += 3600
    text = [f"# TYPE nvidia_gpu_{metric} gauge\n" + "\n".join(of) for metric, of in lines.items()]
    return truth, "\n".join(text) + "\n# EOF\n"


def test_what_an_exporter_said_of_past_jobs_sizes_their_next_run(tmp_path: Path) -> None:
    """Eight jobs measured on an H100, one reading each half minute in a real server: what csub believes of them."""
    promtool = need_program("promtool")
    truth, text = replayed(int(time.time()) // 3600 * 3600)
    (tmp_path / "metrics.txt").write_text(text)
    argv = [
        promtool,
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(tmp_path / "metrics.txt"),
        str(tmp_path / "data"),
    ]
    subprocess.run(argv, check=True, capture_output=True)
    (tmp_path / "site.toml").write_text(
        'schema = 1\ncluster = "c"\nslurm_release = "24.11"\n[[pool]]\nname = "g"\nnodes = "g1"\npartitions = ["gpu"]\n'
        f'gpu_type = "h100"\ngpu_model = "{H100}"\ngpus_per_node = 2\ngpu_mem_mib = 81559\n'
    )
    fields = ("JobIDRaw|JobID|Cluster|User|Account|Partition|QOS|State|Submit|Start|End|Suspended|AllocTRES|NodeList|"
              "TimelimitRaw|ElapsedRaw|SubmitLine|WorkDir|JobName")  # fmt: skip
    user = pwd.getpwuid(os.geteuid()).pw_name
    rows = [
        f"{job}|{job}|c|{user}|a|gpu|q|COMPLETED|{one.start_s}|{one.start_s}|{one.end_s}|0|gres/gpu=1|g1|600|"
        f"{one.end_s - one.start_s}|sbatch train.sh {job}|/w|train.sh"
        for job, one in truth.items()
    ]
    (tmp_path / "jobs.txt").write_text("\n".join([fields, *rows]) + "\n")
    environment = {"COLLOC_CONF": str(tmp_path / "site.toml"), "HOME": str(tmp_path), "PATH": "/usr/bin"}

    def colloc(*words: str) -> str:
        argv = [sys.executable, "-m", "slurm_colloc.cli.colloc", *words]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    colloc("ingest", "--sacct-file", str(tmp_path / "jobs.txt"))
    with prometheus(tmp_path, []) as url:
        colloc("ingest", "--prometheus", url, "--since", "12h")
    said = colloc("history", "bootstrap", "--sacct-file", str(tmp_path / "jobs.txt"), "--slurm-release", "24.11.5")
    assert f"{len(truth)} runs used ({len(truth)} " in said
    kept = [parse_evidence(path.read_bytes()) for path in tmp_path.rglob("evidence/**/*.json")]
    assert {one.job_id for one in kept} == set(truth)
    for one in kept:
        of = truth[one.job_id]
        assert one.gpu_mem_peak_mib == of.peak_mib
        assert of.sm_pct <= (one.sm_active_mean_pct or 0.0) <= 2 * of.sm_pct + 1
