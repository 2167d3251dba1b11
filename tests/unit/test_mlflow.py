# SPDX-License-Identifier: Apache-2.0
"""Metrics for MLflow: names and units are radT's, what arrives is what was sampled, and nobody waits for a server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.measured import HostSample, Round
from slurm_colloc.observe import mlflow as outlet_module
from slurm_colloc.observe.mlflow import CPU_NAME, DEVICE_NAMES, MlflowOutlet, points
from slurm_colloc.observe.sampler import Sampler
from tests.unit.made import RECORDED, device, near, process, seen
from tests.unit.programs import colloc

JOB = "1"


def _logged() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / "radt-0.2.30" / "logged.jsonl").read_text().splitlines()]


def _values(seen: Round) -> dict[str, float]:
    return {point.name: point.value for point in points(seen, JOB)}


def test_a_device_is_logged_as_radt_logs_it() -> None:
    radt = [{line["name"]: line["value"]} for line in reversed(_logged())]
    first = {name: value for line in radt for name, value in line.items()}  # of each name the first reading
    ours = _values(seen(10.0, [device()], [process()]))
    under_radts_names = {name: value for name, value in ours.items() if not name.startswith("system/colloc/")}
    assert under_radts_names.keys() == DEVICE_NAMES.keys()
    for name, value in under_radts_names.items():
        assert value == near(first[name]), name


def test_cpu_time_is_in_percent_of_a_core_as_top_gives_it() -> None:
    used = HostSample(JOB, 20.0, 4000, 1.5, None)
    ours = _values(seen(10.0, [device()], [process()], hosts=[used], interval_s=10.0))
    assert ours[CPU_NAME] == near(200.0)
    assert [line["value"] for line in _logged() if line["name"] == CPU_NAME][1] == 200.0
    assert ours["system/colloc/g1/host_mem_mib"] == 4000
    assert ours["system/colloc/g1/read_mib"] == near(1.5)
    assert "system/colloc/g1/written_mib" not in ours
    assert CPU_NAME not in _values(seen(10.0, [device()], [process()], hosts=[used], interval_s=0.0))


def test_radts_step_is_always_zero() -> None:
    assert {line["step"] for line in _logged()} == {0}


def test_what_is_not_known_is_not_logged() -> None:
    blind = device(
        gr_active_pct=None,
        sm_active_pct=None,
        sm_occupancy_pct=None,
        tensor_active_pct=None,
        power_w=None,
        energy_j=0.0,
    )
    ours = _values(seen(10.0, [blind], [process()]))
    assert not [name for name in ours if "SM " in name or "Power" in name or "sm_active" in name]
    assert ours["system/colloc/GPU-0/energy_j/measured"] == 0.0
    radts_defect = [line["value"] for line in _logged() if line["name"] == "system/DCGMI - SM Active"]
    assert radts_defect == [0.2, 0.0]


def test_a_shared_device_has_its_own_value_and_the_jobs_share_beside_it() -> None:
    neighbours = [process(sm_util_pct=30.0), process("2", 101, sm_util_pct=10.0)]
    ours = _values(seen(10.0, [device()], neighbours))
    assert ours["system/DCGMI - SM Active"] == near(0.2)
    assert ours["system/colloc/GPU-0/sm_active_pct/split by GPU time"] == near(15.0)
    assert ours["system/colloc/GPU-0/gpu_mem_used_mib"] == 3000
    assert not [name for name in ours if "/measured" in name]


def test_other_jobs_devices_are_not_logged_and_ones_own_share_a_name() -> None:
    two = [device("GPU-0", power_w=100.0), device("GPU-1", power_w=200.0), device("GPU-2", power_w=300.0)]
    own = [process(), process(pid=101, uuid="GPU-1"), process("2", 102, "GPU-2")]
    found = points(seen(10.0, two, own), JOB)
    assert [point.value for point in found if point.name == "system/SMI - Power Draw"] == [100.0, 200.0]
    assert not [point for point in found if "GPU-2" in point.name]


def test_names_are_such_as_every_mlflow_store_takes() -> None:
    shares = [process(sm_util_pct=None), process("2", 101, gpu_mem_used_mib=None)]
    for name in _values(seen(10.0, [device("MIG-0-1")], shares, hosts=[HostSample(JOB, 1.0, 1, 1.0, 1.0)])):
        assert all(letter.isalnum() or letter in "_-. /" for letter in name), name
        assert len(name) <= 250


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment of a job with a new run in a file store."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    server = f"file://{tmp_path}/store"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(server)
    run = client.create_run(client.create_experiment("test"))
    return {"MLFLOW_TRACKING_URI": server, "MLFLOW_RUN_ID": run.info.run_id, "SLURM_JOB_ID": JOB}


def _history(store: dict[str, str], name: str) -> list[tuple[float, int, int]]:
    from mlflow.tracking import MlflowClient

    found = MlflowClient(store["MLFLOW_TRACKING_URI"]).get_metric_history(store["MLFLOW_RUN_ID"], name)
    return sorted((metric.timestamp, metric.step, metric.value) for metric in found)


def _two_rounds() -> list[Round]:
    return [
        seen(1000.0, [device(power_w=300.5)], [process()]),
        seen(1010.25, [device(power_w=310.0, sm_active_pct=None)], [process()]),
    ]


def test_what_arrives_is_what_was_sampled(store: dict[str, str]) -> None:
    outlet = MlflowOutlet(store)
    for one in _two_rounds():
        outlet.add(one)
    outlet.close()
    assert _history(store, "system/SMI - Power Draw") == [(1_000_000, 0, 300.5), (1_010_250, 0, 310.0)]
    assert _history(store, "system/DCGMI - SM Active") == [(1_000_000, 0, near(0.2))]
    assert _history(store, "system/colloc/GPU-0/sm_active_pct/measured") == [(1_000_000, 0, 20.0)]


def test_more_than_the_server_takes_at_once_arrives_too(store: dict[str, str]) -> None:
    outlet = MlflowOutlet(store)
    rounds = [seen(float(at_s), [device()], [process()]) for at_s in range(150)]
    assert sum(len(points(one, JOB)) for one in rounds) > 2000
    for one in rounds:
        outlet.add(one)
    outlet.close()
    assert len(_history(store, "system/SMI - Mem Used")) == 150


def test_radts_own_run_is_found(store: dict[str, str]) -> None:
    store["RADT_RUN_ID"] = store.pop("MLFLOW_RUN_ID")
    outlet = MlflowOutlet(store)
    outlet.add(_two_rounds()[0])
    outlet.close()
    store["MLFLOW_RUN_ID"] = store["RADT_RUN_ID"]
    assert len(_history(store, "system/SMI - Power Draw")) == 1


@pytest.mark.parametrize("missing", ["MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "SLURM_JOB_ID"])
def test_without_a_run_it_says_what_is_missing(missing: str) -> None:
    environment = {"MLFLOW_TRACKING_URI": "file:///nowhere", "MLFLOW_RUN_ID": "r", "SLURM_JOB_ID": JOB}
    del environment[missing]
    with pytest.raises(InputError, match=rf"^no MLflow run of a job to log to: \${missing} not set$"):
        MlflowOutlet(environment)


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet_module, "find_spec", lambda _: None)
    environment = {"MLFLOW_TRACKING_URI": "file:///nowhere", "MLFLOW_RUN_ID": "r", "SLURM_JOB_ID": JOB}
    with pytest.raises(InputError, match="pip install mlflow-skinny"):
        MlflowOutlet(environment)


def test_a_run_that_is_not_there_is_said_once_and_given_up(store: dict[str, str]) -> None:
    outlet = MlflowOutlet(store | {"MLFLOW_RUN_ID": "0" * 32})
    outlet.add(_two_rounds()[0])
    outlet._thread.join(30)
    assert not outlet._thread.is_alive()
    with pytest.raises(StoreError, match=f"run '{'0' * 32}'.*; no more are sent"):
        outlet.add(_two_rounds()[1])
    outlet.add(_two_rounds()[1])
    outlet.close()


def refuses_files() -> bool:
    """Return whether this release of MLflow takes a folder for a server only where it is told to."""
    from mlflow import environment_variables

    return hasattr(environment_variables, "MLFLOW_ALLOW_FILE_STORE")


@pytest.mark.parametrize("server", ["bogus:///x", "http://[::1", "file:///nowhere", " "])
def test_a_setting_that_means_nothing_is_one_line_and_sampling_goes_on(
    server: str, store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if server in ("file:///nowhere", " ") and not refuses_files():
        pytest.skip("before MLflow 3 a folder is as good as a server")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    outlet = MlflowOutlet(store | {"MLFLOW_TRACKING_URI": server})
    outlet._thread.join(30)
    with pytest.raises(StoreError, match=r"did not take the metrics of run .*: [^ ].*; no more are sent") as error:
        outlet.add(_two_rounds()[0])
    assert "\n" not in str(error.value)
    outlet.add(_two_rounds()[1])
    outlet.close()


@pytest.fixture
def refused(store: dict[str, str]) -> Iterator[dict[str, str]]:
    """Return the environment of a run at a port where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield store | {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{unused.getsockname()[1]}"}


def test_a_server_that_is_away_is_tried_again_and_then_given_up(
    refused: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    outlet = MlflowOutlet(refused)
    for at_s in (1000.0, 1299.0):
        outlet.add(seen(at_s, [device()], [process()]))
    outlet.add(seen(1301.0, [device()], [process()]))
    outlet._thread.join(30)
    assert not outlet._thread.is_alive()
    with pytest.raises(StoreError, match=r"MLflow at 'http://127.0.0.1:\d+' did not take"):
        outlet.close()


def test_what_a_server_missed_it_gets_when_it_is_back() -> None:
    taken: list[list[outlet_module.Point]] = []
    held = [outlet_module.Point("a", 1.0, 0), outlet_module.Point("a", 2.0, 299_000)]

    def away(_: list[outlet_module.Point]) -> None:
        raise ConnectionError("away")

    held = outlet_module._sent(away, held, patient=True)
    assert len(held) == 2
    assert outlet_module._sent(taken.append, held, patient=True) == []
    assert taken == [held]
    with pytest.raises(ConnectionError):
        outlet_module._sent(away, held, patient=False)
    with pytest.raises(ConnectionError):
        outlet_module._sent(away, [*held, outlet_module.Point("a", 3.0, 301_000)], patient=True)


def test_a_server_that_never_answers_holds_nobody_up(store: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet_module, "_CLOSE_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        outlet = MlflowOutlet(store | {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        for one in _two_rounds():
            outlet.add(one)  # would not return if it waited
        asked, _ = silent.accept()
        with asked, pytest.raises(StoreError, match="did not answer: the last metrics of the run are missing"):
            outlet.close()
        assert isinstance(outlet._thread, Thread)
        assert outlet._thread.daemon


def test_nothing_but_the_outlets_thread_imports_mlflow() -> None:
    code = "import sys, slurm_colloc.cli.colloc.sample, slurm_colloc.observe.mlflow; print('mlflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_colloc_sample_logs_to_the_run(
    store: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "g1.json").write_text('{"devices": []}')
    rounds = iter(_two_rounds())
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(Sampler, "sample", lambda *_, **__: next(rounds))
    options = ["--node", "g1", "--reader", f"simulated:{tmp_path}", "--period", "0.05", "--count", "2"]
    assert colloc("sample", "--mlflow", *options) == 2
    assert "no MLflow run of a job to log to: $MLFLOW_RUN_ID" in capsys.readouterr().err
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    assert colloc("sample", "--mlflow", *options) == 0
    assert [value for _, _, value in _history(store, "system/SMI - Power Draw")] == [300.5, 310.0]
