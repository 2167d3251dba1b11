# SPDX-License-Identifier: Apache-2.0
"""What a job's files say that it needs at least, and what the user's other jobs say."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.prior import FEWEST, from_prior
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.static import least_memory
from slurm_colloc.history.snapshot import FamilyUse, read_families, write_snapshot
from slurm_colloc.model import Quantiles
from tests.unit.made import H100, evidence, near
from tests.unit.shell import Shell

MIB = 2**20


def weights(path: Path, mib: int = 4, dtype: str = "F32") -> Path:
    """Write a safetensors file of so many MiB."""
    header = json.dumps({"w": {"dtype": dtype, "shape": [1], "data_offsets": [0, mib * MIB]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"x" * (mib * MIB))
    return path


def least(text: str, folder: Path, *arguments: str) -> float | None:
    found = least_memory(text, arguments, {"STORE": str(folder)}, str(folder))
    return found and found.mib


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "llm").mkdir()
    (tmp_path / "llm/config.json").write_text("{}")
    weights(tmp_path / "llm/model-1.safetensors", 4, "BF16")
    weights(tmp_path / "llm/model-2.safetensors", 4, "F32")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("python run.py --model ./llm", 6.0),
        ("python run.py --model=$STORE/llm", 6.0),
        ("M=./llm\npython run.py --model ${M}", 6.0),
        ("python run.py --model ./llm --load-in-8bit", 3.0),
        ("python run.py --model ./llm --bits 4", 1.5),
        ("python train.py --model ./llm --learning-rate 1e-5", 12.0),
        ("python train.py --model ./llm --lr 1e-5 --optim adamw_torch", 24.0),
        ("python train.py --model ./llm --lr 1e-5 --optim adamw_torch --use-lora", 6.0),
        ("python run.py ./llm/model-1.safetensors", 4.0),
        ("python run.py --model ./llm --device_map auto", None),
        ("# python run.py --model ./llm", None),
        ("python run.py --model meta/llm", None),
        ("python run.py", None),
    ],
)
def test_weights_bound_what_a_job_needs(text: str, mib: float | None, model: Path) -> None:
    assert least(text, model) == (None if mib is None else near(mib))


def test_arguments_of_the_script_count_and_links_are_followed(model: Path) -> None:
    (model / "link").symlink_to(model / "llm")
    assert least("python run.py --model $1", model, "./link") == near(6.0)


def test_a_checkpoint_may_be_mostly_its_optimizers(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"x" * 6 * MIB)
    assert least("python run.py --resume a.pt", tmp_path) == near(1.0)
    with (tmp_path / "b.pt").open("wb") as stream:
        stream.truncate(1 << 40)
    assert least("python run.py --resume b.pt", tmp_path) is None


def test_hostile_files_say_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.safetensors")
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    (tmp_path / "dir.safetensors").mkdir()
    contents = {
        "huge": (1 << 62).to_bytes(8, "little") + b"{}",
        "empty": b"",
        "bomb": (200000).to_bytes(8, "little") + b"[" * 200000,
        "list": (2).to_bytes(8, "little") + b"[]",
        "beyond": b"",
        "negative": b"",
    }
    for name, offsets in (("beyond", [0, 1 << 50]), ("negative", [5, 1])):
        header = json.dumps({"w": {"dtype": "F32", "data_offsets": offsets}}).encode()
        contents[name] = len(header).to_bytes(8, "little") + header
    header = json.dumps({f"w{number}": {"dtype": "F32", "data_offsets": [0, 900]} for number in range(99)}).encode()
    contents["overlapping"] = len(header).to_bytes(8, "little") + header + b"x" * 1000
    for name, content in contents.items():
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    for path in sorted(tmp_path.iterdir()):
        assert least(f"python run.py {path}", tmp_path) is None, path.name
    assert least("python run.py " + "x/" * 5000, tmp_path) is None
    assert least("python run.py a\0b.pt", tmp_path) is None


def test_no_more_than_eight_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        weights(tmp_path / f"llm/model-{number:02}.safetensors", 1, "BF16")
    (tmp_path / "llm/config.json").write_text("{}")
    opened: list[object] = []
    real: Any = os.open

    def counting(path: object, *rest: Any, **more: Any) -> Any:
        opened.append(path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", counting)
    assert least("python run.py ./llm ./llm/model-19.safetensors", tmp_path) == near(8.0)
    assert len(opened) == 8


def test_the_bound_raises_what_is_foretold_and_never_what_was_measured() -> None:
    bound: dict[str, Any] = {"least_mib": 9999.0, "least_why": "the weights in 'x'"}
    hinted = estimate(Question("mem=1G,sm=1")._replace(**bound))
    assert hinted.gpu_mem_peak_mib == Quantiles(1024, 1024, 9999)
    assert "raised to 9999 MiB: the weights in 'x'" in hinted.provenance
    exact = estimate(Question(runs=[evidence()])._replace(**bound))
    assert exact.gpu_mem_peak_mib
    assert exact.gpu_mem_peak_mib.q99 < 9999
    unknown = estimate(Question()._replace(**bound))
    assert unknown.gpu_mem_peak_mib is None
    assert "it needs at least 9999 MiB: the weights in 'x'" in unknown.provenance


def families(count: int, model: str = H100) -> tuple[FamilyUse, ...]:
    return tuple(FamilyUse(model, 100.0 * (number + 1), float(number), None) for number in range(count))


def test_the_prior_needs_49_families_and_covers_the_largest_of_them() -> None:
    assert FEWEST == 49
    found = estimate(Question(families=families(49), trusts_prior=True))
    assert (found.rung, found.evidence_count, found.gpu_model) == ("prior", 49, H100)
    assert found.gpu_mem_peak_mib == Quantiles(2500, 4900, 4900)
    assert found.sm_active_pct == Quantiles(24, 48, 48)
    assert found.dram_active_pct is None
    many = from_prior(Question(families=families(99)))
    assert not isinstance(many, str)
    assert many.gpu_mem_peak_mib
    assert many.gpu_mem_peak_mib.q99 == 9800, "the second largest of 99"
    assert estimate(Question(families=families(99))).rung == "unknown", "unless the site says so"
    few = estimate(Question(families=families(48), trusts_prior=True))
    assert few.rung == "unknown"
    assert f"48 other jobs of this user are known on {H100}, 49 would be enough" in few.provenance
    mixed = from_prior(Question(families=(*families(48), *families(10, "A100"))))
    assert "48 other jobs" in str(mixed)


def test_the_prior_says_nothing_of_a_job_that_names_a_type_and_stays_above_bounds() -> None:
    assert "names a type of GPU" in str(from_prior(Question(families=families(60), names_gpu_type=True)))
    failed = evidence(peak_mib=9999, state="FAILED")
    found = from_prior(Question(families=families(49), runs=(failed,)))
    assert not isinstance(found, str)
    assert found.gpu_mem_peak_mib
    assert found.gpu_mem_peak_mib.q99 == 9999


def test_a_snapshot_has_one_row_for_each_family(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert read_families(path) == ()
    runs = [
        evidence("1", 1000, signature="a.1~p~f", ended_s=1.0),
        evidence("2", 3000, signature="a.2~p~f", ended_s=2.0, mode="mig", sm_active_q95_pct=99.0),
        evidence("3", 9000, signature="a.2~p~f", state="FAILED"),
        evidence("4", 500, signature="b.~p~f", ended_s=9.0),
        evidence("5", None, signature="c.~p~f"),
    ]
    write_snapshot(path, runs)
    assert read_families(path) == (FamilyUse(H100, 500, 30.0, None), FamilyUse(H100, 3000, 30.0, None))


@pytest.mark.parametrize("how", ["option", "directive"])
def test_names_are_looked_for_where_the_job_will_run(shell: Shell, how: str) -> None:
    folder = shell.folder / "elsewhere"
    weights(folder / "llm/model.safetensors")
    (folder / "llm/config.json").write_text("{}")
    directive = f"#SBATCH -D {folder}\n" * (how == "directive")
    (shell.folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{directive}python run.py --model ./llm\n")
    argv = ["-D", "elsewhere"] * (how == "option")
    done = shell.run("--dry-run", "--format=json", *argv, str(shell.folder / "job.sh"))
    assert "the weights in './llm'" in json.loads(done.stdout)["footprint"]["provenance"], done.stdout
