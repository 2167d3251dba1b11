# SPDX-License-Identifier: Apache-2.0
"""Does real Slurm keep the bound that `colloc site need` said? `python -m tests.cluster.need_record SHAPE SHARES`.

The planner says first on how many GPUs. One cluster then has three partitions on nodes of their own: today's GPUs, as
many as were said, and a tenth less. Each job of the trace (tests/need_trace.py) is submitted to all three, in the last
two on shares where the planner had it on one, and sleeps as long as the planner has it run there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from tests import need_trace
from tests.cluster.plan_record import TAIL_S, Layout, cluster, rows, submit, times, write
from tests.cluster.releases import HOST, RELEASES
from tests.need_trace import CPUS, FULL, GPUS, KIND, MEM_MIB, PRIORITY, RECORDED, SCHEDULER, SHARES


def _nodes(letter: str, gpus: int) -> dict[str, int]:
    """Return nodes with so many GPUs, the last perhaps with fewer."""
    return {f"{letter}{at // GPUS + 1}": min(GPUS, gpus - at) for at in range(0, gpus, GPUS)}


def record(shape: str, release: str, shares: str, say: Callable[[str], None]) -> Path:
    """Ask the planner, submit the trace, and keep what sacct says of each job in each partition."""
    trace, planner = need_trace.trace(shape), need_trace.Planner(shares, release)
    past = planner.as_replayed(trace)
    need = planner.need(past)
    gpus = {"today": FULL, "need": need, "less": need - -(-need // 10)}
    say(f"{shape}: {len(trace)} jobs; {need} of {FULL} GPUs were said to do")
    pieces = {name: planner.pieces(past, gpus[name]).pieces if name != "today" else {} for name in gpus}
    partitions = {name: _nodes(name[0], gpus[name]) for name in gpus}
    numbers: dict[str, list[int]] = {name: [] for name in gpus}
    with cluster(release, say, Layout(partitions, CPUS, MEM_MIB, shares, SHARES[shares], PRIORITY, SCHEDULER)) as lab:
        began_s, late_s = time.time(), 0.0
        for number, one in enumerate(trace):
            time.sleep(max(0.0, began_s + one.submit_s - time.time()))
            for name in gpus:
                piece = pieces[name].get(number)
                gres = f"{shares}:{piece.units}" if piece else f"gpu:{KIND}:{one.gpus}"
                run_s = round(one.run_s * (piece.slowdown.expected if piece else 1.0), 1)
                numbers[name].append(submit(lab, one._replace(run_s=run_s), name, gres))
            late_s = max(late_s, time.time() - began_s - one.submit_s)
        say(f"all submitted, at most {late_s:.1f} s late")
        every = [number for name in gpus for number in numbers[name]]
        lab.wait_jobs(every, timeout=TAIL_S)
        lab.wait_accounted(every)
        found = rows(lab, every)
    head = {"release": release, "shape": shape, "shares": shares, "seed": need_trace.SEED, "gpus": gpus}
    lines: list[dict[str, object]] = [head]
    for number, one in enumerate(trace):
        lines.append(one._asdict() | {name: times(found, numbers[name][number], int(began_s)) for name in gpus})
    return write(RECORDED / f"{release}-{shape}-{shares}.jsonl", lines, say)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=need_trace.SHAPES, help="of the trace")
    parser.add_argument("shares", choices=SHARES, help="of GPUs")
    parser.add_argument("--release", choices=RELEASES, default=HOST.name, help="of Slurm (%(default)s)")
    args = parser.parse_args()
    record(args.shape, args.release, args.shares, lambda line: print(f"need_record: {line}", flush=True))


if __name__ == "__main__":
    main()
