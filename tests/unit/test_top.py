# SPDX-License-Identifier: Apache-2.0
"""colloc top: who holds GPUs now, and what is known of their use."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.cells import cell_len

from slurm_colloc.accounting.live import live_by_prometheus, live_use
from slurm_colloc.accounting.sources.prometheus_server import Series, Server
from slurm_colloc.chart_model import LiveUse
from slurm_colloc.cli.colloc.top import _by_journals
from slurm_colloc.errors import InputError, ProcessError
from slurm_colloc.model import Gres
from slurm_colloc.observe.journal import append, newest
from slurm_colloc.report.layout import Terminal
from slurm_colloc.report.top import Top, TopJob, as_json, as_text
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.jobs import QueuedJob
from tests.fakes.squeue import squeue_line
from tests.unit.hostile import HOSTILE
from tests.unit.made import device, near, process, seen
from tests.unit.programs import colloc, program

LINE = squeue_line("60_1", JobID="61", tres_alloc="cpu=4,gres/gpu=1,gres/gpu:h100=1").strip()


def held(name: str = "61", user: str = "ann", **fields: object) -> QueuedJob:
    gres = (Gres("gpu", "h100", 1),)
    job = QueuedJob(name, name, None, name, user, "RUNNING", "gpu", "g1", gres, ran_s=60.0)
    return job._replace(**fields)  # type: ignore[arg-type]


def live(sm: float | None = 10.0, **fields: object) -> LiveUse:
    return LiveUse(0.0, 1, 50.0, sm, 3000)._replace(**fields)  # type: ignore[arg-type]


def picture(*jobs: TopJob) -> Top:
    return Top("c", 0.0, 16.0, jobs, "the agents", 0)


# --- what squeue says ---


def test_holders_are_jobs_with_gpus_or_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        LINE,
        squeue_line("62", tres_alloc="cpu=1", tres_per_node="N/A"),
        squeue_line("63", UserName="eve", tres_alloc="cpu=1,gres/shard=2", tres_per_node=""),
        squeue_line("64", UserName="bob", tres_alloc="cpu=1", tres_per_node="gres:mps:30"),
        squeue_line("65", tres_alloc="gres/gpu=none"),
        "torn|line",
    ]
    (tmp_path / "lines").write_text("\n".join(lines))
    program(tmp_path, "squeue", f"echo \"$@\" >'{tmp_path}/asked'; cat '{tmp_path}/lines'", monkeypatch)
    found, rejected = CliClient(9.0).holders()
    assert [(one.job_id, one.user, [str(gres) for gres in one.gres or ()]) for one in found] == [
        ("60_1", "ann", ["gpu:h100:1"]),
        ("63", "eve", ["shard:2"]),
        ("64", "bob", ["mps:30"]),
    ]
    assert rejected == 2
    assert (tmp_path / "asked").read_text().endswith(" -t R\n")


# --- what is known of their use ---


class Known(Server):
    """A Prometheus server with these series."""

    def __init__(self, series: Mapping[str, Sequence[Series]]) -> None:
        super().__init__("http://prometheus:9090")
        self._series = series

    def names(self, wanted: object, since_s: float, until_s: float) -> frozenset[str]:
        return frozenset(self._series) & frozenset(wanted)  # type: ignore[call-overload, no-any-return]

    def samples(self, metric: str, since_s: float, until_s: float) -> tuple[Series, ...]:
        return tuple(
            (labels, [point for point in points if since_s <= point[0] < until_s])
            for labels, points in self._series[metric]
        )


def test_an_agents_metrics_by_a_prometheus_server() -> None:
    def of(job: str, uuid: str, *points: tuple[float, float]) -> Series:
        return {"job_id": job, "uuid": uuid, "method": "measured"}, points

    server = Known(
        {
            "colloc_job_gpu_sm_active_ratio": [
                of("1", "GPU-0", (900, 0.5), (990, 0.1)),
                of("1", "GPU-1", (990, 0.3)),
                of("2", "GPU-2", (100, 0.9)),
                of("", "GPU-3", (990, 0.9)),
            ],
            "colloc_job_gpu_memory_used_bytes": [of("1", "GPU-0", (990, 2**30)), of("1", "GPU-1", (990, 2**30))],
        }
    )
    found = live_by_prometheus(server, 1000.0)
    assert list(found) == ["1"]
    assert found["1"] == LiveUse(990, 2, None, near(20.0), 2048)


@pytest.mark.parametrize("newest_first", [True, False])
def test_of_two_series_of_a_job_the_one_that_goes_on_counts(newest_first: bool) -> None:
    labels = {"job_id": "61", "uuid": "GPU-0"}
    ended = labels | {"method": "split by GPU time"}, [(900.0, 0.9)]
    goes_on = labels | {"method": "measured"}, [(960.0, 0.2), (990.0, 0.1)]
    series = (goes_on, ended) if newest_first else (ended, goes_on)
    found = live_by_prometheus(Known({"colloc_job_gpu_utilization_ratio": series}), 1000.0)
    assert (found["61"].gpu_util_pct, found["61"].at_s) == (10.0, 990.0)


def test_an_exporters_figure_of_a_shared_gpu_is_nobodys() -> None:
    def of(job: str, uuid: str, *points: tuple[float, float]) -> Series:
        return {"hpc_job": job, "UUID": uuid, "gpu": "0", "Hostname": "g1", "modelName": "H100"}, points

    twice = ((930, 40.0), (960, 40.0), (990, 40.0))
    series = [of("1", "GPU-0", *twice), of("2", "GPU-1", *twice), of("3", "GPU-1", *twice)]
    found = live_by_prometheus(Known({"DCGM_FI_DEV_GPU_UTIL": series}), 1000.0)
    assert {job: one.gpu_util_pct for job, one in found.items()} == {"1": 40.0}
    with pytest.raises(InputError, match=r"no metric of the agents, and .* has no metric of dcgm-exporter"):
        live_by_prometheus(Known({}), 1000.0)


def test_the_newest_round_of_each_node_speaks(tmp_path: Path) -> None:
    folder = str(tmp_path / "journal")
    for at_s, util in ((1000.0, 90.0), (1010.0, 40.0)):
        append(folder, seen(at_s, [device(gpu_util_pct=util)], [process()]))
    append(folder, seen(500.0, [device("GPU-9")], [process("9", uuid="GPU-9")], node="g2"))
    with open(tmp_path / "journal/g1/19700101T00.journal", "ab") as stream:
        stream.write(b"torn")
    assert [one.at_s for one in newest(folder, 950.0)] == [1010.0]
    found = _by_journals(folder, 950.0)
    assert list(found) == ["1"]
    assert (found["1"].gpu_util_pct, found["1"].gpu_mem_mib) == (40.0, 3000)


def test_memory_of_which_a_part_is_not_known_is_not_known() -> None:
    assert live_use([{"gpu_mem_mib": 1.0}, {"gpu_mem_mib": None}], 0.0).gpu_mem_mib is None
    assert live_use([{}], 0.0) == LiveUse(0.0, 1, None, None, None)


# --- the picture ---


def test_what_is_not_known_of_any_or_of_a_part_is_not_nothing() -> None:
    top = picture(
        TopJob(held("1"), None, live(gpu_mem_mib=None)),
        TopJob(held("2"), None, live()),
        TopJob(held("3", "bob"), 2.0, live()),
    )
    lines = as_text(top).splitlines()
    assert ", 2+? GPUs of 16 installed" in lines[0]
    rows = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert rows["ann"] == ["2", "?", "10", "50", "-"]
    assert rows["bob"] == ["1", "2", "10", "50", "3000"]
    assert rows["all"] == ["3", "2+?", "10", "50", "-"]
    assert [one["gpus"] for one in json.loads(as_json(top))["users"]] == [2.0, None]
    assert ", 0 GPUs" in as_text(picture())


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_no_figure_is_cut_at_any_width(columns: int) -> None:
    jobs = [
        TopJob(held(f"4711_{number}", f"{number}日本語の長い名前の利用者です", node_list="a-long-name-of-a-node[01-12]",
                    gres=(Gres("gpu", "nvidia_h100_80gb_hbm3_1g.10gb", 11),)), 11 / 7, live(gpu_mem_mib=123_456))
        for number in range(3)
    ]  # fmt: skip
    lines = as_text(picture(*jobs), Terminal(columns)).splitlines()
    assert max(map(cell_len, lines)) <= columns, "a wide letter takes two columns"
    assert "4.714 GPUs" in " ".join(" ".join(lines).split())
    for line in lines:
        figures = [word for word in line.split() if re.fullmatch(r"[\d.]+", word)]
        known = {"16", "3", "10", "50", "1", "1.571", "4.714", "123456", "370368", "0"}
        assert set(figures) <= known, line
    if columns >= 80:
        assert sum("123456" in line for line in lines) == 6


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_picture(text: str) -> None:
    top = picture(TopJob(held(text, text, partition=text, node_list=text), 1.0, None))._replace(source=text)
    shown = as_text(top)
    assert [character for character in shown if not character.isprintable() and character != "\n"] == []
    assert json.loads(as_json(top))["jobs"][0]["user"] == text


# --- the program ---


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program(tmp_path, "squeue", f"echo x >> '{tmp_path}/calls'\n[ -e '{tmp_path}/fails' ] && {{ echo 'slurmctld is down' >&2; exit 1; }}\necho '{LINE}'\n", monkeypatch)  # fmt: skip  # noqa: E501
    (tmp_path / "site.toml").write_text('schema = 1\ncluster = "c"\nslurm_release = "22.05"\n')
    monkeypatch.setenv("COLLOC_CONF", str(tmp_path / "site.toml"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def test_what_top_prints(queue: Path) -> None:
    assert colloc("top") == 0
    assert "1 job with GPUs of 1 user, 1 GPUs" in colloc.out
    assert colloc("top", "--format", "json") == 0
    shown = json.loads(colloc.out)
    assert (shown["schema"], shown["jobs"][0]["live"], shown["installed_gpus"]) == (1, None, None)
    assert (queue / "calls").read_text() == "x\nx\n"
    (queue / "fails").touch()
    assert colloc("top") == CODE
    assert "slurmctld is down" in colloc.err


CODE = ProcessError.exit_status


@pytest.mark.parametrize("argv", [("--format", "csv"), ("--prometheus", "ftp://x")])
def test_what_top_refuses(queue: Path, argv: tuple[str, ...]) -> None:
    assert colloc("top", *argv) == 2
    assert not (queue / "calls").exists()
