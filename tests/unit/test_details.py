# SPDX-License-Identifier: Apache-2.0
"""What a page draws beside its table: metric against metric, and each group's idlest runs."""

from pathlib import Path

from slurm_colloc.core.chart_model import Charts, UtilAgainstSm
from slurm_colloc.core.model import Gres
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.over_time import bins_of, charts_of
from slurm_colloc.facts.usage import used_hours_by_kind
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.made import HOUR, run
from tests.unit.stored import busy, stored

WINDOW = Window(0, 24 * HOUR, 1e6)


def charts(store: Store, by: str = "user") -> Charts:
    bins = bins_of(WINDOW.since_s, WINDOW.until_s)
    with store.connect(WINDOW.since_s, WINDOW.until_s) as database:
        aggregate(database, store, WINDOW, bins)
        return charts_of(database, by, WINDOW, bins, None, used_hours_by_kind(database, by)[1])


def test_gpu_util_against_sm_activity_is_of_whole_gpus_with_both(tmp_path: Path) -> None:
    rows = [run(str(job)) for job in range(5)] + [run("5", gres=(Gres("gpu", "h100_1g.10gb", 1),))]
    rounds = [
        *busy(900.0, job="0", uuid="GPU-0", util=100.0, sm=4.75),
        *busy(900.0, 1800.0, job="1", uuid="GPU-1", util=100.0, sm=4.0),
        *busy(900.0, job="2", uuid="GPU-2", util=50.0, sm=100.0),
        *busy(900.0, job="3", uuid="GPU-3", util=None, sm=10.0),
        *busy(900.0, job="5", uuid="MIG-5", util=10.0, sm=10.0),
    ]
    found = charts(stored(tmp_path, rows, rounds)).util_against_sm
    assert found == (UtilAgainstSm(50.0, 95.0, 5.0, 1, 1.0), UtilAgainstSm(95.0, 0.0, 5.0, 2, 2.0))


def test_the_idlest_runs_of_each_group_by_sm_activity_else_gpu_util(tmp_path: Path) -> None:
    rows = [run(str(job), job_name=f"n{job}") for job in range(1, 8)]
    rows += [run("8", user="bob"), run("9", user="eve"), run("10", user="eve", gres=(Gres("mps", "", 5),))]
    rounds = [one for job in range(1, 8) for one in busy(900.0, job=str(job), uuid=f"GPU-{job}", sm=job * 10.0)]
    rounds += busy(900.0, job="8", uuid="GPU-8", sm=None, util=60.0)
    rounds += busy(900.0, job="9", uuid="GPU-9", sm=100.0)
    by_name = {detail.name: detail for detail in charts(stored(tmp_path, rows, rounds)).details}
    assert [(job, name) for job, name, *_ in by_name["ann"].idlest] == [(str(job), f"n{job}") for job in range(1, 6)]
    assert by_name["ann"].idlest[0] == ("1", "n1", "gpu:h100:1", 1.0, 0.225)
    assert by_name["bob"].idlest == (("8", "train", "gpu:h100:1", 1.0, 0.1),)
    assert by_name["eve"].idlest == ()
    assert [(kind.name, kind.allocated_gpu_hours) for kind in by_name["eve"].kinds] == [("h100", 1.0), ("mps", None)]
