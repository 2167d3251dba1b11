# SPDX-License-Identifier: Apache-2.0
"""colloc report, job and me say of one steady run that the same slice holds it, where no slowdown is allowed."""

from pathlib import Path

import pytest

from slurm_colloc.accounting.fits import fits_of
from slurm_colloc.accounting.one_job import find_job
from slurm_colloc.accounting.one_user import user_in_store
from slurm_colloc.accounting.sweep import Window, sweep
from slurm_colloc.cli.colloc.job_next import advise
from slurm_colloc.cli.colloc.me import _fit_of, _fitting
from tests.unit.made import MIG_POOL, near, run, site
from tests.unit.stored import busy, stored

POOL = MIG_POOL._replace(gpu_type="h100", gpus_per_node=2)
SITE = site(POOL, max_slowdown=1.0)
WINDOW = Window(0, 1e5, 1e5)


@pytest.mark.parametrize(
    ("mib", "sm", "slice_type"),
    [
        (9728, 12.0, "h100_1g.10gb"),
        (9729, 12.0, "h100_1g.20gb"),
        (9000, 20.0, "h100_2g.20gb"),
        (30000, 1.0, "h100_3g.40gb"),
        (40193, 1.0, ""),
    ],
)
def test_one_run_fits_one_slice(mib: int, sm: float, slice_type: str, tmp_path: Path) -> None:
    store = stored(tmp_path, [run(node_list="m1")], busy(900, 1800, 2700, 3600, mib=mib, sm=sm), SITE)
    with store.connect() as database:
        sweep(database, store, WINDOW)
        reported, _ = fits_of(database, "user", SITE, "slices")
    own = _fit_of("ann", list(_fitting(user_in_store(store, "ann", WINDOW, SITE).runs, SITE)))
    (one,) = find_job(store, "1", WINDOW, SITE, 4)
    told = advise(one.usage, one.evidence, None, None, None, SITE).fit

    assert reported.unit == slice_type
    assert told.startswith(f"gpu:{slice_type}:1 (mig)" if slice_type else "no smaller piece")
    assert own is not None
    assert own == reported._replace(
        unit=f"gpu:{slice_type}:1" if slice_type else "",
        known_gpu_hours=near(reported.known_gpu_hours),
        freed_gpu_hours=near(reported.freed_gpu_hours),
    )


def test_only_the_report_has_no_slowdown(tmp_path: Path) -> None:
    store = stored(tmp_path, [run(node_list="m1")], busy(900, 1800, 2700, 3600, mib=9000, sm=20.0), SITE)
    (one,) = find_job(store, "1", WINDOW, SITE, 4)
    # 26 of 132 SMs are 19.7 %.
    slower = site(POOL, max_slowdown=1.25)
    assert advise(one.usage, one.evidence, None, None, None, slower).fit.startswith("gpu:h100_1g.20gb:1 (mig)")
