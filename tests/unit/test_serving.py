# SPDX-License-Identifier: Apache-2.0
"""Servers that take a part of whatever GPU they find: what they are told, what is placed, and what is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import Footprint, because
from slurm_colloc.estimate.hint import parse_hint
from slurm_colloc.placement.candidate import Access
from slurm_colloc.placement.choose import place
from slurm_colloc.submit.footprint import as_served, part_to_tell
from slurm_colloc.submit.serving import PROGRAMS, memory_part, weights_mib
from tests.unit.made import MIG_POOL, MPS_POOL, request, site

MIB = 2**20


@pytest.mark.parametrize(
    ("script", "name", "part"),
    [
        ("vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.25 --port 8000", "vLLM", 0.25),
        ("python -m vllm.entrypoints.openai.api_server \\\n  --gpu-memory-utilization=.5", "vLLM", 0.5),
        ("exec vllm serve m", "vLLM", 0.9),
        ("vllm serve m --gpu-memory-utilization $PART", "vLLM", None),
        ("vllm serve m --gpu-memory-utilization 0.2 $*\n --gpu-memory-utilization 0.3", "vLLM", 0.3),
        ("python3 -m sglang.launch_server --model-path m --mem-fraction-static 0.7", "SGLang", 0.7),
        ("text-generation-launcher --model-id m --cuda-memory-fraction 0.4", "TGI", 0.4),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION=.10 python train.py", "JAX", 0.1),
    ],
)
def test_what_a_script_tells(script: str, name: str, part: float | None) -> None:
    told = memory_part(f"#!/bin/bash\n{script}\n".encode(), {})
    assert told is not None
    assert (told.program.name, told.part) == (name, part)
    assert told.part_of_gpu == (1.0 if part is None or name == "SGLang" else part)
    served, _ = as_served(parse_hint("mem=1G"), request(), f"#!/bin/bash\n{script}\n".encode(), {})
    assert served.part_taken == told.part_of_gpu


def test_the_environment_tells_jax() -> None:
    told = memory_part(b"python train.py", {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3", "HOME": "/h"})
    assert told is not None
    assert (told.program.name, told.part) == ("JAX", 0.3)
    own = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"}
    assert as_served(parse_hint("mem=1G"), request(), b"python train.py", own)[0].part_taken == 0.3
    takes_what_it_needs = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    assert memory_part(b"python train.py", takes_what_it_needs) is None


@pytest.mark.parametrize("script", ["python train.py", "ollama serve", "pip install vllm", "cat vllm-serve.log", ""])
def test_other_scripts_tell_nothing(script: str) -> None:
    assert memory_part(script.encode(), {}) is None


def test_each_program_has_a_way_to_be_told() -> None:
    assert all(one.told_by and one.untold for one in PROGRAMS)


def model(folder: Path, *names: str, mib: int = 8000) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with (folder / name).open("wb") as stream:
            stream.truncate(mib * MIB)
    return folder


def test_weights_are_what_their_files_are(tmp_path: Path) -> None:
    model(tmp_path / "m", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "old.bin")
    model(tmp_path, "a-00001-of-00003.gguf", "a-00002-of-00003.gguf", "a-00003-of-00003.gguf", "b.gguf", mib=100)
    snapshot = model(tmp_path / "hub/models--Qwen--Q8/snapshots/abc", "model.safetensors", mib=9)

    def weighs(script: str, **environ: str) -> Any:
        return weights_mib(script.encode(), str(tmp_path), {"HF_HUB_CACHE": str(tmp_path / "hub"), **environ})

    assert weighs("vllm serve ./m --port 1") == ("./m", 16000)
    assert weighs(f"vllm serve --port 1 --model {tmp_path}/m") == (f"{tmp_path}/m", 16000)
    assert weighs("python -m sglang.launch_server --model-path=Qwen/Q8") == ("Qwen/Q8", 9)
    assert weighs("llama-server -ctk q8_0 -m a-00001-of-00003.gguf") == ("a-00001-of-00003.gguf", 300)
    assert weighs("llama-cli -m b.gguf") == ("b.gguf", 100)
    # Loaded smaller than it lies there, by another program, from elsewhere, or not there.
    for script in ("vllm serve ./m --quantization fp8", "llama-cli -m b.gguf -ngl 10", "python t.py --model ./m",
                   "vllm serve $MODEL", "vllm serve Qwen/Q9", "vllm serve --port 1"):  # fmt: skip
        assert weighs(script) is None, script
    model(snapshot.parent / "def", "model.safetensors", mib=9)
    assert weighs("vllm serve Qwen/Q8") is None


def served(script: str, hint: str = "mem=9000M,sm=1", folder: str = "/", **environ: str) -> tuple[Footprint, Any]:
    return as_served(parse_hint(hint), request(folder=folder), f"#!/bin/sh\n{script}\n".encode(), environ)


CONFIG = site(MIG_POOL, headroom_mib=0)


def test_a_slice_must_hold_the_need_in_the_part_that_is_taken_of_it() -> None:
    """0.9 of 1g.10gb are 8985 MiB: told more, the server would fit."""
    footprint, _ = served("vllm serve m --gpu-memory-utilization 0.9")
    placement = place(request(), footprint, CONFIG)
    assert str(placement.gres) == "gpu:h100_1g.20gb:1"
    [said] = part_to_tell(request(), footprint, placement, CONFIG, Access())
    assert said == because("part-to-tell", part=0.91, would_fit="gpu:h100_1g.10gb:1")
    footprint, _ = served("vllm serve m --gpu-memory-utilization 0.95")
    placement = place(request(), footprint, CONFIG)
    assert str(placement.gres) == "gpu:h100_1g.10gb:1"
    assert part_to_tell(request(), footprint, placement, CONFIG, Access()) == ()


def test_a_part_of_a_whole_gpu_is_none_of_a_slice() -> None:
    """Told 0.12 of 80 GiB, a server would get 1.2 GiB of the slice that holds its 9."""
    footprint, _ = served("vllm serve m --gpu-memory-utilization 0.12")
    placement = place(request(), footprint, CONFIG)
    assert placement.as_asked
    [said] = part_to_tell(request(), footprint, placement, CONFIG, Access())
    assert (said.code, said.params["part"]) == ("part-to-tell", 0.91)


@pytest.mark.parametrize(("part", "shares"), [("0.25", 26), ("0.05", 12), ("0.9", None)])
def test_beside_others_it_takes_its_part_of_the_whole(part: str, shares: int | None) -> None:
    footprint, _ = served(f"vllm serve m --gpu-memory-utilization {part}")
    config = site(MPS_POOL, mps_daemon="site")
    placement = place(request(), footprint, config)
    assert placement.gres is None if shares is None else placement.gres is not None
    assert placement.gres is None or placement.gres.quantity == shares
    assert placement.gres is None or (placement.memory_mib or 0) >= float(part) * 80000


def test_what_is_not_said_in_a_number_is_not_guessed() -> None:
    footprint, _ = served("vllm serve m --gpu-memory-utilization $PART")
    placement = place(request(), footprint, CONFIG)
    assert placement.as_asked
    assert placement.reasons == (because("part-not-a-number", program="vLLM", told_by="--gpu-memory-utilization"),)
    assert part_to_tell(request(), footprint, placement, CONFIG, Access()) == ()


def test_a_hint_below_the_weights_is_answered_and_not_believed(tmp_path: Path) -> None:
    model(tmp_path / "m", "1.safetensors", "2.safetensors")
    footprint, notes = served("vllm serve ./m", "mem=9G,sm=1", str(tmp_path))
    assert footprint.gpu_mem_peak_mib is not None
    assert footprint.gpu_mem_peak_mib.q99 == 16000
    assert footprint.provenance[1:] == (because("raised-by-weights", model="./m", weights_mib=16000),)
    assert notes == (because("less-than-weights", model="./m", weights_mib=16000, need_mib=9216.0),)
    enough, none = served("vllm serve ./m", "mem=20G,sm=1", str(tmp_path))
    assert (enough.gpu_mem_peak_mib, none) == (parse_hint("mem=20G,sm=1").gpu_mem_peak_mib, ())


def test_other_jobs_keep_their_footprint() -> None:
    footprint, notes = served("python train.py")
    assert (footprint, notes) == (parse_hint("mem=9000M,sm=1"), ())
