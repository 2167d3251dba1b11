# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from tests.unit.golden import Printed
from tests.unit.made import device, process, run, seen
from tests.unit.stored import stored
from tests.unit.test_audit import audited


def test_processes_outside_any_job_name_their_node(tmp_path: Path, printed: Printed) -> None:
    stranger = [process("", 7, "GPU-1"), process("1", 8)]
    rounds = [seen(at_s, [device(), device("GPU-1")], stranger, interval_s=900.0) for at_s in (900.0, 1800.0, 2700.0)]
    rounds += [seen(3600.0, [device(), device("GPU-1")], [process("1", 8)], interval_s=900.0)]
    store = stored(tmp_path, [run()], rounds)
    (found,) = audited(store, "COL002", 450.0, 1e6, bounds={"min_gpu_hours": 0.5})
    assert (found.code, found.subject, found.user, found.about) == ("COL002", "g1", "", "node")
    printed("rules", found.evidence)
    assert audited(store, "COL002", 2700.0, 1e6, bounds={"min_gpu_hours": 0.5}) == []
    for bound, named in ((0.625, 1), (0.626, 0), (0.0, 0)):
        assert len(audited(store, "COL002", 450.0, 1e6, bounds={"min_gpu_hours": bound})) == named
