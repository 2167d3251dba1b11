# SPDX-License-Identifier: Apache-2.0
import base64
import gzip
import json
from typing import Any

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.sources.jobstats import METHOD, parse_blob
from slurm_colloc.sources.means import JobMeans

MIB = 1024 * 1024


def blob(text: str) -> str:
    return "JS1:" + base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def node(util: Any, memory: Any = None) -> dict[str, Any]:
    """Return a node as jobstats describes one (docs/setup/summaries.md there), without what is missing."""
    said = {"cpus": 4, "total_time": 9.5, "total_memory": 10**9, "used_memory": 10**8}
    return said | {k: v for k, v in (("gpu_utilization", util), ("gpu_used_memory", memory)) if v is not None}


def means(**nodes: Any) -> JobMeans | None:
    return parse_blob(blob(json.dumps({"nodes": nodes, "total_time": 600, "gpus": 9})))


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([node({"1": 98.6}, {"1": 5 * MIB + 1})], (98.6, 6, 1)),
        # The mean is over GPUs, and memory is of the node with the most.
        ([node({"0": 0, "1": 30}, {"0": MIB, "1": 2 * MIB}), node({"0": 90}, {"0": 4 * MIB})], (40, 4, 3)),
        # A node without data does not void the others, and a sum with a part missing is no peak.
        ([node({"0": 50}, {"0": 7 * MIB}), node(None), {}], (50, 7, 1)),
        ([node({"0": 10, "1": 20}, {"0": 9 * MIB}), node({"0": 0}, {"0": MIB})], (10, 1, 3)),
        ([node({"0": 10}, {})], (10, None, 1)),
        ([node(None, {"0": 3 * MIB})], (None, 3, 0)),
    ],
)
def test_means_and_peaks(nodes: list[dict[str, Any]], found: tuple[float | None, int | None, int]) -> None:
    assert means(**{f"n{at}": one for at, one in enumerate(nodes)}) == (*found, METHOD)


@pytest.mark.parametrize("comment", ["", "JS1:Short", "JS1:None", "my best run", "js1:H4sI"])
def test_comments_without_a_blob(comment: str) -> None:
    assert parse_blob(comment) is None


def test_a_job_without_gpus() -> None:
    assert means(n1=node(None)) is None
    assert parse_blob(blob('{"nodes": {}, "gpus": 0}')) is None


PACKED = blob('{"nodes": {"n": {"gpu_utilization": {"0": 5}}}}')


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        ("JS1:", "cut"),
        ("JS1:nonsense", "not base64 of gzip"),
        ("JS1:H4sI é", "not base64 of gzip"),
        ("JS1:" + base64.b64encode(b"{}").decode(), "not base64 of gzip"),
        (PACKED[:-8], "cut"),
        ("JS1:" + base64.b64encode(base64.b64decode(PACKED[4:]) + b"more").decode(), "goes on behind its end"),
        (blob(" " * (MIB + 1)), "larger than 1 MiB"),
        (blob("{"), "not JSON"),
        (blob("[" * 100_000), "not JSON"),
        (blob('{"nodes": {"n": {"gpu_utilization": {"0": NaN}}}}'), "not JSON"),
        (blob('{"nodes": {"n": {"gpu_utilization": {"0": Infinity}}}}'), "not JSON"),
        (blob('{"nodes": {"n": {"gpu_utilization": {"0": 1e999}}}}'), "from 0 to 100"),
        (blob("[]"), "no table 'nodes'"),
        (blob('{"gpus": 1}'), "no table 'nodes'"),
        (blob('{"nodes": {"n": 5}}'), "no table 'gpu_utilization'"),
        (blob('{"nodes": {"n": {"gpu_utilization": 98}}}'), "no table 'gpu_utilization'"),
        (blob('{"nodes": {"n": {"gpu_utilization": {"0": "98"}}}}'), "gpu_utilization that is no number"),
        (blob('{"nodes": {"n": {"gpu_utilization": {"0": true}}}}'), "gpu_utilization that is no number"),
        (blob('{"nodes": {"n": {"gpu_utilization": {"0": null}}}}'), "gpu_utilization that is no number"),
        (blob('{"nodes": {"n": {"gpu_utilization": {"0": -1}}}}'), "gpu_utilization that is no number"),
        (blob('{"nodes": {"n": {"gpu_utilization": {"0": 100.1}}}}'), "gpu_utilization that is no number"),
        (blob('{"nodes": {"n": {"gpu_used_memory": {"0": -1}}}}'), "gpu_used_memory that is no number"),
        (blob('{"nodes": {"n": {"gpu_used_memory": {"0": 1e30}}}}'), "gpu_used_memory that is no number"),
    ],
)
def test_what_is_no_blob(comment: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_blob(comment)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = "JS1:" + base64.b64encode(gzip.compress(bytes(200 * MIB), 1, mtime=0)).decode()
    with pytest.raises(InputError, match="larger than 1 MiB"):
        parse_blob(bomb)
