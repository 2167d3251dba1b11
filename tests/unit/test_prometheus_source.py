# SPDX-License-Identifier: Apache-2.0
"""NodeSamples from what exporters said to a Prometheus server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.usage_model import DeviceAllocation, DeviceSample
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.sources.prometheus import EXPORTERS, Imported, fold, hours, names_there
from slurm_colloc.sources.prometheus_server import Series, Server, parse_names, parse_series
from tests.unit.golden import Printed
from tests.unit.made import H100, RECORDED, near

TIMES = (10.0, 20.0, 30.0)
A100 = "NVIDIA A100-SXM4-40GB"


def scraped(text: str, times: Sequence[float] = TIMES, **target: str) -> dict[str, list[Series]]:
    """Return what a server has of a text that was scraped at these times."""
    found: dict[str, list[Series]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if any(sample.name in exporter.metrics for exporter in EXPORTERS):
                found[sample.name].append((sample.labels | target, [(at_s, sample.value) for at_s in times]))
    return found


def recorded(name: str, times: Sequence[float] = TIMES, **target: str) -> dict[str, list[Series]]:
    return scraped((RECORDED / "prometheus" / f"{name}.txt").read_text(), times, **target)


def together(*parts: dict[str, list[Series]]) -> Imported:
    whole: dict[str, list[Series]] = defaultdict(list)
    for part in parts:
        for metric, series in part.items():
            whole[metric] += series
    return fold(whole)


def dcgm(metric: str, value: float, times: Sequence[float] = TIMES, **labels: str) -> dict[str, list[Series]]:
    named = {"gpu": "0", "UUID": "GPU-a", "modelName": H100, "Hostname": "g1", "instance": "g1:9400"} | labels
    return {f"DCGM_FI_{metric}": [(named, [(at_s, value) for at_s in times])]}


def one_device(found: Imported) -> DeviceSample:
    (unit,) = found.rounds[0].devices
    return unit


def test_what_dcgm_exporter_says_of_a_card_and_its_slice(printed: Printed) -> None:
    found = fold(recorded("dcgm-exporter", instance="10.0.0.7:9400"))
    assert [(one.at_s, one.interval_s, one.node) for one in found.rounds] == [
        (10.0, 10.0, "ub20-a100-k8s"),
        (20.0, 10.0, "ub20-a100-k8s"),
        (30.0, 10.0, "ub20-a100-k8s"),
    ]
    unit = one_device(found)
    assert (unit.uuid, unit.profile) == ("GPU-34319582-d595-d1c7-d1d2-179bcfa61660/13", "1g.5gb")
    assert unit.gr_active_pct == near(99.5687)
    assert unit.tensor_active_pct == near(93.0433)
    assert unit.dram_active_pct == near(80.0339)
    assert (unit.gpu_util_pct, unit.sm_active_pct, unit.gpu_mem_used_mib, unit.energy_j) == (None, None, None, None)
    assert not unit.process_list
    # One compute slice of seven: the text names no model.
    assert unit.sm_count / unit.whole_sm_count == 1 / 7
    assert found.points == 24
    assert list(found.rejected.values()) == [15]
    printed("ingest", *found.rejected)


def test_what_slurm_job_exporter_says_of_jobs() -> None:
    found = fold(recorded("slurm-job-exporter", instance="g1.cluster.org:9798"))
    assert {one.node for one in found.rounds} == {"g1"}
    first, second, fourth = found.rounds[0].devices
    # Each job calls its GPU 0.
    assert [unit.uuid for unit in (first, second, fourth)] == ["g1/1/0", "g1/2/0", "g1/4/0"]
    assert found.rounds[0].holders == tuple(DeviceAllocation(f"g1/{job}/0", job, None) for job in ("1", "2", "4"))
    # By way of DCGM "utilization" is SM activity.
    assert fourth.gpu_util_pct is None
    assert fourth.sm_active_pct == near(66.45358263087205)
    assert fourth.dram_active_pct == near(28.382148771860084)
    assert fourth.sm_occupancy_pct == near(36.94854688414347)
    assert fourth.tensor_active_pct == near(13.772009921218158)
    assert fourth.gpu_mem_used_mib == 8336
    assert fourth.power_w == near(302.176)
    assert fourth.energy_j == near(3021.76)
    assert (fourth.model, fourth.sm_count, fourth.whole_sm_count) == (A100, 108, 108)
    assert found.rejected == {}


def test_what_nvidia_gpu_exporter_says() -> None:
    found = fold(recorded("nvidia_gpu_exporter", instance="[fe80::1]:9835"))
    unit = one_device(found)
    assert unit.uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert (unit.gpu_util_pct, unit.gpu_mem_used_mib, unit.power_w) == (100.0, 19818, 631.95)
    assert found.rounds[0].node == "fe80-0000-0000-0000-0000-0000-0000-0001"
    assert [share.method for share in attribute_sample(found.rounds[0])] == ["unattributed"]


def jobstats(uuid: str = "GPU-a", name: str = H100, job: str = "7", **values: float) -> dict[str, list[Series]]:
    labels = {"uuid": uuid, "name": name, "minor_number": "3", "ordinal": "3", "GPU_I_ID": "", "jobid": job}
    named = labels | {"userid": "1001" if job else "", "instance": "g1:9445"}
    return {f"nvidia_gpu_{metric}": [(named, [(at_s, value) for at_s in TIMES])] for metric, value in values.items()}


def test_what_the_exporter_of_jobstats_says() -> None:
    """By its source, release of May 2026: percent in names of what are parts of 1, GPM's figures on Hopper only."""
    values: dict[str, Any] = {
        "duty_cycle": 40,
        "sm_util_percent": 0.11,
        "dram_bw_util_percent": 0.05,
        "any_tensor_util_percent": 0.02,
    }
    found = fold(jobstats(**values, memory_used_bytes=3000 * 2**20, power_usage_milliwatts=151_000))
    unit = one_device(found)
    assert (unit.uuid, unit.gres_index, unit.model, unit.sm_count) == ("GPU-a", 3, H100, 132)
    assert (unit.gpu_util_pct, unit.sm_active_pct, unit.dram_active_pct) == (40.0, near(11.0), near(5.0))
    assert (unit.tensor_active_pct, unit.gpu_mem_used_mib, unit.power_w) == (near(2.0), 3000, near(151.0))
    assert found.rounds[0].holders == (DeviceAllocation("GPU-a", "7", None),)
    assert [one.method for one in attribute_sample(found.rounds[0])] == ["whole device", "unattributed"]
    assert fold(jobstats(job="", duty_cycle=0)).rounds[0].holders == ()


def test_a_slice_of_the_exporter_of_jobstats_is_beside_no_whole_card() -> None:
    part = jobstats("MIG-b", f"{A100} MIG 1g.5gb", memory_used_bytes=2**30)
    found = together(jobstats(name=A100, job="", memory_used_bytes=2**31), part)
    unit = one_device(found)
    assert (unit.uuid, unit.model, unit.profile, unit.mem_total_mib) == ("MIG-b", A100, "1g.5gb", 4864)
    assert list(found.rejected.values()) == [3]


def test_slurm_job_exporter_by_way_of_nvml_is_not_believed(printed: Printed) -> None:
    text = (RECORDED / "prometheus" / "slurm-job-exporter.txt").read_text()
    nvml = "\n".join(line for line in text.splitlines() if "occupancy" not in line and "tensor" not in line) + "\n"
    found = fold(scraped(nvml, instance="g1:9798"))
    assert found.rounds == ()
    assert list(found.rejected.values()) == [found.points]
    printed("ingest", *found.rejected)


def test_jobs_that_share_a_gpu_do_not_count_it_twice() -> None:
    text = (RECORDED / "prometheus" / "slurm-job-exporter.txt").read_text()
    fourth = [line for line in text.splitlines() if 'slurmjobid="4"' in line]
    text += "\n".join(line.replace('slurmjobid="4"', 'slurmjobid="5"') for line in fourth) + "\n"
    # A job's own second GPU stays one, however alike.
    text += "\n".join(line.replace('gpu="0"', 'gpu="1"') for line in fourth) + "\n"
    found = fold(scraped(text, instance="g1:9798"))
    shares = {(one.uuid, one.job_id): one for one in attribute_sample(found.rounds[0]) if one.job_id}
    assert set(shares) == {("g1/1/0", "1"), ("g1/2/0", "2"), ("g1/4/0", "4"), ("g1/4/0", "5"), ("g1/4/1", "4")}
    assert shares["g1/4/0", "5"].sm_active_pct == near(66.45358263087205 / 2)
    assert shares["g1/4/0", "5"].method == "split equally"
    assert shares["g1/4/0", "5"].gpu_mem_used_mib is None
    assert shares["g1/4/1", "4"].method == "whole device"


@pytest.mark.parametrize(
    ("jobs", "methods"),
    [
        (("7",), {"7": ("whole device", 50.0), "": ("unattributed", 0.0)}),
        (
            ("7", "8"),
            {"7": ("split equally", 25.0), "8": ("split equally", 25.0), "": ("unattributed", 0.0)},
        ),
        (("",), {"": ("unattributed", 50.0)}),
        # What is no job's id is nobody.
        (("job-a",), {"": ("unattributed", 50.0)}),
    ],
)
def test_a_device_value_copied_to_each_job_is_one_value(
    jobs: Sequence[str], methods: dict[str, tuple[str, float]]
) -> None:
    found = together(*(dcgm("PROF_SM_ACTIVE", 0.5, hpc_job=job) for job in jobs))
    shares = attribute_sample(found.rounds[0])
    assert {share.job_id: (share.method, share.sm_active_pct) for share in shares} == methods


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("DEV_GPU_UTIL", 2147483632.0),
        ("DEV_GPU_UTIL", float("nan")),
        ("DEV_GPU_UTIL", -1.0),
        ("PROF_SM_ACTIVE", 140737488355328.0),
        ("PROF_SM_ACTIVE", float("inf")),
        ("DEV_FB_USED", 2147483632.0),
        ("DEV_FB_USED", 9223372036854775794.0),
        ("DEV_POWER_USAGE", 9223372036854775794.0),
        ("DEV_POWER_USAGE", 2147483632.0),
    ],
)
def test_blanks_are_missing_and_counted(metric: str, value: float, printed: Printed) -> None:
    found = together(dcgm(metric, value), dcgm("PROF_DRAM_ACTIVE", 0.25, (20.0,)))
    (only,) = found.rounds
    (unit,) = only.devices
    assert (only.at_s, unit.dram_active_pct) == (20.0, 25.0)
    assert {unit.gpu_util_pct, unit.sm_active_pct, unit.gpu_mem_used_mib, unit.power_w} == {None}
    assert list(found.rejected.values()) == [3]
    printed("ingest", *found.rejected)


def test_a_little_above_all_is_all_and_said() -> None:
    found = fold(dcgm("PROF_SM_ACTIVE", 1.294, (10.0,)))
    assert one_device(found).sm_active_pct == 100.0
    assert found.rejected == {"above 100 %, taken as 100 %": 1}


def test_a_reading_stands_for_the_time_since_the_one_before_and_a_gap_is_a_gap() -> None:
    found = fold(dcgm("PROF_SM_ACTIVE", 0.5, (10.0, 20.01, 30.0, 40.0, 100.0, 110.0)))
    assert [one.interval_s for one in found.rounds] == [
        near(10.0), near(10.01), near(9.99), near(10.0), near(10.0), near(10.0)
    ]  # fmt: skip
    assert [one.interval_s for one in fold(dcgm("PROF_SM_ACTIVE", 0.5, (10.0,))).rounds] == [0.0]


def test_a_gpu_scraped_through_two_targets_counts_once(printed: Printed) -> None:
    seldom = dcgm("PROF_SM_ACTIVE", 0.5, (12.0, 22.0), instance="g1-service:9400")
    found = together(seldom, dcgm("PROF_SM_ACTIVE", 0.5))
    assert [one.at_s for one in found.rounds] == list(TIMES)
    assert list(found.rejected.values()) == [2]
    printed("ingest", *found.rejected)
    replica = together(dcgm("PROF_SM_ACTIVE", 0.5), dcgm("PROF_SM_ACTIVE", 0.5, (11.0, 21.0), replica="b"))
    assert [one.at_s for one in replica.rounds] == list(TIMES)


def test_of_two_exporters_on_a_node_the_one_that_knows_jobs_counts() -> None:
    jobs = recorded("slurm-job-exporter", instance="g1:9798")
    found = together(dcgm("PROF_SM_ACTIVE", 0.5), jobs)
    assert {unit.uuid for one in found.rounds for unit in one.devices} == {"g1/1/0", "g1/2/0", "g1/4/0"}
    found = together(dcgm("PROF_SM_ACTIVE", 0.5, hpc_job="1"), jobs)
    assert {unit.uuid for one in found.rounds for unit in one.devices} == {"GPU-a"}
    # On another node it says nothing of this one.
    found = together(dcgm("PROF_SM_ACTIVE", 0.5, Hostname="g2"), jobs)
    assert {one.node for one in found.rounds} == {"g1", "g2"}


@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_the_node_by_old_and_new_label(label: str) -> None:
    labels = {"UUID": "GPU-a", "instance": "10.1.2.3:9400", label: "g7.cluster"}
    assert fold({"DCGM_FI_PROF_SM_ACTIVE": [(labels, [(1.0, 0.5)])]}).rounds[0].node == "g7"


@pytest.mark.parametrize(
    ("model", "profile", "sm_counts"),
    [
        (H100, "1g.10gb", (16, 132)),
        # DCGM rounds the memory of some profiles down.
        ("NVIDIA A100 80GB PCIe", "7g.79gb", (7, 7)),
        ("NVIDIA A30", "1g.6gb", (14, 56)),
        ("NVIDIA RTX PRO 5000 Blackwell", "1g.24gb", (1, 2)),
        (H100, "", (132, 132)),
        ("NVIDIA L40S", "", (0, 0)),
    ],
)
def test_the_size_of_a_unit(model: str, profile: str, sm_counts: tuple[int, int]) -> None:
    slice_ = {"GPU_I_PROFILE": profile, "GPU_I_ID": "3"} if profile else {}
    unit = one_device(fold(dcgm("PROF_SM_ACTIVE", 0.5, TIMES, modelName=model, **slice_)))
    assert (unit.sm_count, unit.whole_sm_count) == sm_counts


def test_a_slice_does_not_get_the_figures_of_its_card(printed: Printed) -> None:
    slice_ = {"GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": "3"}
    found = together(
        dcgm("PROF_SM_ACTIVE", 0.5, TIMES, **slice_),
        dcgm("DEV_POWER_USAGE", 400.0, TIMES, **slice_),
        dcgm("DEV_GPU_UTIL", 9.0, TIMES, **slice_),
    )
    unit = one_device(found)
    assert (unit.sm_active_pct, unit.power_w, unit.energy_j, unit.gpu_util_pct) == (50.0, None, None, None)
    assert list(found.rejected.values()) == [6]
    printed("ingest", *found.rejected)


def test_a_slice_of_unknown_size_is_not_taken_for_a_gpu(printed: Printed) -> None:
    labels = {"slurmjobid": "1", "gpu": "MIG-1", "gpu_type": A100, "instance": "g1:9798"}
    found = fold({"slurm_job_sm_occupancy_gpu": [(labels, [(1.0, 5.0)])]})
    assert (found.rounds, *found.rejected.values()) == ((), 1)
    printed("ingest", *found.rejected)


def test_a_series_without_uuid_is_counted(printed: Printed) -> None:
    found = fold(dcgm("PROF_SM_ACTIVE", 0.5, UUID=""))
    assert (found.rounds, *found.rejected.values()) == ((), 3)
    printed("ingest", *found.rejected)


def test_whole_hours() -> None:
    assert list(hours(3601.0, 7200.0)) == [(3600.0, 7200.0)]
    assert list(hours(3600.0, 7201.0)) == [(3600.0, 7200.0), (7200.0, 10800.0)]


def test_every_metric_fills_a_field() -> None:
    fields = {field for exporter in EXPORTERS for field, _ in exporter.metrics.values()}
    assert fields <= set(DeviceSample._fields)
    assert all(exporter.proof in ("", *(field for field, _ in exporter.metrics.values())) for exporter in EXPORTERS)


def test_answers_are_read() -> None:
    assert parse_names('{"status":"success","data":["a","b"]}') == ("a", "b")
    text = (
        '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"m","gpu":"0"},'
        '"values":[[1.5,"2"],[2.5,"NaN"],[3,"+Inf"]]},{"metric":{}}]}}'
    )
    (labels, points), (_, none) = parse_series(text)
    assert labels == {"__name__": "m", "gpu": "0"}
    assert points[0] == (1.5, 2.0)
    assert [at_s for at_s, _ in points] == [1.5, 2.5, 3.0]
    assert none == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<html>", "not of the form of Prometheus"),
        ("[]", "not of the form of Prometheus"),
        ("[" * 100_000, "not of the form of Prometheus"),
        ('{"status":"success"}', "not of the form of Prometheus"),
        ('{"status":"error","errorType":"x","error":"too many samples"}', "refused: too many samples"),
        ('{"status":"success","data":{"resultType":"vector","result":[]}}', "range of samples"),
        ('{"status":"success","data":{"resultType":"matrix","result":[1]}}', "range of samples"),
        (
            '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1]]}]}}',
            "range of samples",
        ),
        ('{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"x"]]}]}}', "range of"),
        (
            '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1%s,"1"]]}]}}'
            % ("0" * 400),
            "range of",
        ),
    ],
)
def test_an_answer_that_is_none(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_series(text)


@pytest.mark.parametrize("text", ['{"status":"success","data":{}}', '{"status":"success","data":[1]}'])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="no list of names"):
        parse_names(text)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "prometheus:9090",
        "file:///etc/passwd",
        "http://",
        "http://u:secret@h:9090",
        "http://h:x",
        "http://h?a=1",
        "http://[h",
    ],
)
def test_an_address_that_is_none_is_not_repeated(url: str) -> None:
    with pytest.raises(InputError, match="http://host:9090") as error:
        Server(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "\x00", "ümlaut"])
def test_a_token_that_is_none_is_not_repeated(token: str) -> None:
    with pytest.raises(InputError, match="COLLOC_PROMETHEUS_TOKEN") as error:
        Server("http://h:9090", token=token)
    assert token not in str(error.value)


def test_nothing_that_can_be_read(monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    def none(*_: object) -> frozenset[str]:
        return frozenset()

    monkeypatch.setattr(Server, "names", none)
    with printed.raises("ingest", InputError):
        names_there(Server("http://h:9090"), 0.0, 1.0)


@pytest.mark.parametrize(
    ("host", "node"),
    [
        ("g1", "g1"),
        ("G_1-a.cluster:9400", "G_1-a"),
        ("10.0.0.7:9400", "10.0.0.7"),
        ("[::1]:9400", "0000-" * 7 + "0001"),
    ],
)
def test_the_name_of_a_node(host: str, node: str) -> None:
    assert fold(dcgm("DEV_GPU_UTIL", 50.0, Hostname=host)).rounds[0].node == node


PATHS = ["../../evil", "..", "/tmp/x", "a/b", "[fe80::1%../..]:1", "http://g1:9400"]


@pytest.mark.parametrize("host", [*PATHS, "a\n", "a=b", "*", "-a", "x" * 254, ""])
def test_what_is_no_name_of_a_node_is_rejected(host: str, printed: Printed) -> None:
    """It would name a folder of the store, or one elsewhere."""
    found = fold(dcgm("DEV_GPU_UTIL", 50.0, Hostname=host, instance=""))
    assert (found.rounds, found.points, *found.rejected.values()) == ((), 3, 3)
    printed("ingest", *found.rejected)
