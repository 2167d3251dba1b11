# SPDX-License-Identifier: Apache-2.0
import random
import time
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.usage_model import WHOLE_DEVICE
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.sources.nvidia_smi_csv import GpuRun, holders_by_accounting, parse_csv
from tests.unit.golden import Printed
from tests.unit.made import H100, RECORDED

# As `nvidia-smi --query-gpu=... --format=csv` heads its columns; nvidia-smi --help-query-gpu documents them.
HEADER = "timestamp, index, uuid, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W]\n"
TWICE = "a local time that the clock showed twice, or never"
BACK = "no later than the reading before it: a clock set back, or a log given twice"


def line(at_s: float, gpu: int = 0, util: str = "50 %", memory: str = "3000 MiB", power: str = "200.00 W") -> str:
    at = datetime.fromtimestamp(at_s, UTC).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
    return f"{at}, {gpu}, GPU-{gpu}aa, {H100}, {util}, {memory}, 81559 MiB, {power}\n"


def log(times_s: list[float], gpus: int = 1) -> str:
    return HEADER + "".join(line(at_s + gpu / 1000, gpu) for at_s in times_s for gpu in range(gpus))


def intervals(text: str) -> list[tuple[float, float]]:
    return [(seen.at_s, seen.interval_s) for seen in parse_csv(text, UTC).rounds]


def test_a_log() -> None:
    parsed = parse_csv(log([100, 105], gpus=2), UTC, "g1")
    assert (parsed.readings_in, parsed.rejected, len(parsed.rounds)) == (4, {}, 2)
    first, second = parsed.rounds
    assert (first.at_s, first.interval_s, first.node, first.holders) == (100.001, 0, "g1", ())
    assert (second.at_s, second.interval_s, second.processes, second.hosts) == (105.001, 5, (), ())
    zero, one = second.devices
    assert (zero.uuid, zero.gres_index, zero.model, zero.mem_total_mib) == ("GPU-0aa", 0, H100, 81559)
    assert (zero.gpu_util_pct, zero.gpu_mem_used_mib, zero.power_w, zero.energy_j) == (50, 3000, 200, 1000)
    assert (zero.process_list, zero.sm_active_pct, zero.sm_count) == (False, None, 132)
    assert (one.uuid, one.gres_index) == ("GPU-1aa", 1)


def test_any_order_and_choice_of_columns() -> None:
    text = "uuid, temperature.gpu, timestamp\nGPU-a, 35, 1970/01/01 00:01:40.000\n"
    ((seen,), *_) = (parse_csv(text, UTC).rounds,)
    (device,) = seen.devices
    assert (seen.at_s, device.uuid, device.gpu_util_pct, device.gpu_mem_used_mib) == (100, "GPU-a", None, None)
    assert (device.power_w, device.energy_j, device.model, device.mem_total_mib) == (None, None, "", 0)


@pytest.mark.parametrize("text", [line(100), line(100, util="50", memory="3000", power="200.00").replace(" MiB", "")])
def test_without_a_header_or_units(text: str) -> None:
    (seen,) = parse_csv(text, UTC).rounds
    assert (seen.devices[0].gpu_util_pct, seen.devices[0].gpu_mem_used_mib) == (50, 3000)


def test_a_real_answer_with_a_time_before_it() -> None:
    asked = "uuid,index,name,memory.total,memory.used,utilization.gpu,power.draw,mig.mode.current"
    fields = ("timestamp", *asked.split(","))
    text = "2026/11/21 23:20:32.123, " + (RECORDED / "nvml-h100/smi-gpus.csv").read_text()
    ((device,),) = (seen.devices for seen in parse_csv(text, UTC, fields=fields).rounds)
    assert (device.gpu_util_pct, device.gpu_mem_used_mib, device.power_w) == (98, 1625, 501.24)


@pytest.mark.parametrize(
    "unknown", ["[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "N/A", "ERR!"]
)
def test_unknown_is_not_zero(unknown: str) -> None:
    (seen,) = parse_csv(HEADER + line(100, util=unknown, memory=unknown, power=unknown), UTC).rounds
    (device,) = seen.devices
    assert (device.gpu_util_pct, device.gpu_mem_used_mib, device.power_w, device.energy_j) == (None,) * 4


def test_names_for_the_same_column() -> None:
    text = "timestamp, gpu_uuid, gpu_name\n1970/01/01 00:01:40.000, GPU-a, Tesla T4\n"
    assert parse_csv(text, UTC).rounds[0].devices[0].model == "Tesla T4"


@pytest.mark.parametrize(
    ("header", "node", "why"),
    [
        ("uuid, utilization.gpu [%]", "", "no column uuid|no column timestamp"),
        ("timestamp, name", "g1", "no column uuid"),
        ("timestamp, index", "", "say its node"),
    ],
)
def test_a_column_that_is_missing(header: str, node: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_csv(f"{header}\n", UTC, node, fields=header.split(", "))


def test_an_index_names_a_gpu_of_a_node() -> None:
    (seen,) = parse_csv("timestamp, index\n1970/01/01 00:01:40.000, 3\n", UTC, "g1").rounds
    assert (seen.devices[0].uuid, seen.devices[0].gres_index) == ("g1/3", 3)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (line(100)[:40] + "\n", "4 columns instead of 8"),
        (line(100).replace("GPU-0aa", "../x"), "a GPU's index or uuid that is none"),
        (line(100).replace(", 0,", ", -1,"), "a GPU's index or uuid that is none"),
        (line(100, util="101 %"), "more than 100 %"),
        (line(100, util="3000 MiB"), "a utilization.gpu that is none"),
        (line(100, memory="nan"), "a memory.used that is none"),
        (line(100, memory="-5 MiB"), "a memory.used that is none"),
        (line(100, power="1e3 W"), "a power.draw that is none"),
        ("yesterday" + line(100)[23:], "a timestamp that is none"),
        ("0000/01/01 00:00:00.000" + line(100)[23:], "a timestamp that is none"),
        ("\0" * 20 + "\n", "1 columns instead of 8"),
    ],
)
def test_rows_that_are_none(row: str, why: str) -> None:
    parsed = parse_csv(HEADER + row + line(200), UTC)
    assert (len(parsed.rounds), parsed.readings_in, parsed.rejected) == (1, 2, {why: 1})


def test_a_cut_last_line_may_be_cut_within_a_number(printed: Printed) -> None:
    parsed = parse_csv(log([100, 105])[:-1], UTC)
    assert (len(parsed.rounds), *parsed.rejected.values()) == (1, 1)
    printed("ingest", *parsed.rejected)


def test_nothing() -> None:
    assert parse_csv("", UTC) == ((), 0, {})
    assert parse_csv(HEADER, UTC) == ((), 0, {})


def test_a_night_of_two_two_o_clocks() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    rows = [f"2026/10/25 {clock}:00.000, GPU-a\n" for clock in ("01:59", "02:30", "03:01")]
    rows += ["2026/03/29 02:30:00.000, GPU-a\n"]
    parsed = parse_csv("timestamp, uuid\n" + "".join(rows), berlin)
    # An hour and two minutes by the clock are two hours and two minutes.
    before, after = parsed.rounds
    assert (after.at_s - before.at_s, parsed.rejected) == (7320, {TWICE: 2})


def test_this_machines_own_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        parsed = parse_csv("timestamp, uuid\n2026/07/01 12:00:00.000, GPU-a\n2026/10/25 02:30:00.000, GPU-a\n", None)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert parsed.rounds[0].at_s == datetime(2026, 7, 1, 10, tzinfo=UTC).timestamp()
    assert parsed.rejected == {TWICE: 1}


def test_a_pause_is_a_gap() -> None:
    assert intervals(log([100, 105, 110, 125, 141, 146])) == [
        *((100, 0), (105, 5), (110, 5)),
        (125, 15),  # three periods
        (141, 0),
        (146, 5),
    ]


def test_a_gpu_that_misses_a_pass_has_an_interval_of_its_own() -> None:
    text = HEADER + "".join(
        line(at_s, gpu) for at_s in (100, 105, 110, 115) for gpu in (0, 1) if (at_s, gpu) != (105, 1)
    )
    seen = [(seen.at_s, seen.interval_s, len(seen.devices)) for seen in parse_csv(text, UTC).rounds]
    assert seen == [(100, 0, 2), (105, 5, 1), (110, 5, 1), (110, 10, 1), (115, 5, 2)]


def test_concatenated_logs_in_any_order_and_twice() -> None:
    parts = [log([100, 105, 110]), log([111, 116, 121]), log([116, 121, 126])]
    expected = intervals("".join(parts))
    assert [at_s for at_s, _ in expected] == [100, 105, 110, 111, 116, 121, 126]
    for seed in range(5):
        shuffled = parts * 2
        random.Random(seed).shuffle(shuffled)
        parsed = parse_csv("".join(shuffled), UTC)
        assert [(seen.at_s, seen.interval_s) for seen in parsed.rounds] == expected
        assert parsed.readings_in == 18
        assert parsed.rejected == {BACK: 11}


def test_a_clock_that_is_set_back() -> None:
    parsed = parse_csv(log([100, 105, 110, 104, 109, 114]), UTC)
    assert [seen.at_s for seen in parsed.rounds] == [100, 105, 110, 114]
    assert parsed.rejected == {BACK: 2}


def test_each_reading_is_in_a_round_or_rejected() -> None:
    dice = random.Random(5)
    rows = [line(dice.randrange(1000), dice.randrange(3)) for _ in range(300)]
    parsed = parse_csv(HEADER + "".join(rows), UTC)
    assert sum(len(seen.devices) for seen in parsed.rounds) + sum(parsed.rejected.values()) == 300
    assert all(before.at_s <= after.at_s for before, after in pairwise(parsed.rounds))


RUN = GpuRun("7", frozenset({"g1"}), 2, 100, 200)


def held(runs: list[GpuRun], times_s: list[float], gpus: int = 2) -> list[tuple[float, list[str]]]:
    rounds = holders_by_accounting(parse_csv(log(times_s, gpus), UTC, "g1").rounds, runs)
    assert all(not seen.holders or len(seen.holders) == len(seen.devices) for seen in rounds)
    return [(round(seen.at_s), sorted({holder.job_id for holder in seen.holders})) for seen in rounds]


def test_the_run_that_had_all_gpus_holds_them() -> None:
    times_s = [95.0, 104.0, 110.0, 120.0, 130.0, 199.0, 205.0, 215.0]
    # 104 stands for time before its start, 199 for none after a pause, 205 for time after its end.
    assert held([RUN], times_s) == [
        *((95, []), (104, []), (110, ["7"]), (120, ["7"]), (130, ["7"]), (199, ["7"]), (205, []), (215, []))
    ]


@pytest.mark.parametrize(
    ("other", "whose"),
    [
        (RUN._replace(job_id="8", start_s=120), []),
        (RUN._replace(job_id="8", start_s=145, end_s=155), []),
        (RUN._replace(job_id="8", start_s=152, end_s=152), []),
        (RUN._replace(job_id="8", start_s=160.5, end_s=None), ["7"]),
        (RUN._replace(job_id="8", start_s=0, end_s=150), ["7"]),
        (RUN._replace(job_id="8", nodes=frozenset({"g2"})), ["7"]),
        (RUN._replace(job_id="8", gpus=0), ["7"]),
    ],
)
def test_another_run_on_the_node(other: GpuRun, whose: list[str]) -> None:
    assert held([RUN, other], [150, 160])[1] == (160, whose)


@pytest.mark.parametrize("run", [RUN._replace(gpus=1), RUN._replace(gpus=3), RUN._replace(nodes=frozenset({"g2"}))])
def test_a_run_that_had_not_these_gpus(run: GpuRun) -> None:
    assert held([run], [150, 160])[1] == (160, [])


def test_a_run_that_has_not_ended() -> None:
    assert held([RUN._replace(end_s=None)], [150, 160])[1] == (160, ["7"])


def test_two_nodes_are_told_apart() -> None:
    rounds = [seen._replace(node=node) for node in ("g1", "g2") for seen in parse_csv(log([150, 160], 2), UTC).rounds]
    runs = [RUN, RUN._replace(job_id="8", nodes=frozenset({"g2", "g3"}))]
    jobs = [(seen.node, seen.holders[0].job_id) for seen in holders_by_accounting(rounds, runs) if seen.holders]
    assert jobs == [("g1", "7")] * 2 + [("g2", "8")] * 2


def test_what_is_held_is_the_jobs() -> None:
    seen = holders_by_accounting(parse_csv(log([150, 160], 2), UTC, "g1").rounds, [RUN])[1]
    shares = {(share.uuid, share.job_id): share for share in attribute_sample(seen)}
    assert (shares["GPU-1aa", "7"].gpu_util_pct, shares["GPU-1aa", "7"].method) == (50, WHOLE_DEVICE)
    assert shares["GPU-1aa", ""].gpu_util_pct == 0
