# SPDX-License-Identifier: Apache-2.0
"""The rendered script: compared whole with tests/golden (COLLOC_GOLDEN=write writes them), and run by real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from slurm_colloc.core.config import Observe, Paths, SiteConfig
from slurm_colloc.core.errors import ConfigError, StoreError
from slurm_colloc.core.model import Gres, Load, Placement, Rejected, SharingMode, because
from slurm_colloc.pack.mps_daemon import Mps
from slurm_colloc.pack.srun import into_containers
from slurm_colloc.slurm.directives import read_script
from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS
from slurm_colloc.submit.render import keep_script, render_block, render_script, site_parts, write_script
from tests.unit.golden import compare
from tests.unit.made import MPS_POOL, footprint, request, site

SCRIPT = b"""\
#!/bin/bash -l
#SBATCH --job-name=train --gres=gpu:1
#SBATCH --time=2:00:00   # enough

# load what it needs
module load cuda
srun python train.py "$@"
"""
NEED = footprint(9216.0, 12.0, provenance=(because("code-four"),))
# Of codes that the catalogue has not: its words are no matter of the block.
PLACEMENTS = {
    SharingMode.EXCLUSIVE: (None, (because("code-one"),)),
    SharingMode.MIG: (
        Gres("gpu", "nvidia_h100_80gb_hbm3_1g.10gb", 1),
        (because("code-one"), because("code-two", mib=9)),
    ),
    SharingMode.MPS: (Gres("mps", "", 12), (because("code-one"), because("code-two", mib=9))),
    SharingMode.SHARD: (Gres("shard", "", 1), (because("code-one"),)),
}


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/slurm_colloc/bin/python3")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def placement(mode: SharingMode) -> Placement:
    gres, reasons = PLACEMENTS[mode]
    return Placement(mode, gres, 9472, 256, "", "", "", None, reasons, (Rejected("x", because("code-three")),))


def block(mode: SharingMode, *, sampled: bool, config: SiteConfig | None = None) -> bytes:
    asked = request(signature="0123456789abcdef")
    return render_block(asked, NEED, placement(mode), config or site(), sampled=sampled)


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("mode", list(SharingMode))
def test_golden(mode: SharingMode, sampled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = read_script(SCRIPT, SBATCH_OPTIONS["22.05"], "22.05")
    text = render_script(SCRIPT, script.insert_at, block(mode, sampled=sampled))
    text = text.replace(str(tmp_path).encode(), b"/home/ann/.local/share")
    compare(f"{mode}{'-sampled' if sampled else ''}.sh", text)
    head, tail = SCRIPT[: script.insert_at], SCRIPT[script.insert_at :]
    assert text.startswith(head)  # the user's own text stands verbatim around the block
    assert text.endswith(tail)


SHELLS = [name for name in ("dash", "bash", "ksh", "mksh", "zsh", "yash", "sh") if shutil.which(name)]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("mode", list(SharingMode))
def test_a_block_runs_silently_and_leaves_no_trace(shell: str, mode: SharingMode, tmp_path: Path) -> None:
    config = site()._replace(observe=Observe(gpu_reader="simulated:/a b/'c"))
    before = 'set -- one "two 3"\n'
    after = '[ "$#/$2" = "2/two 3" ] || exit 3\nset | grep "^csub_" || echo "none left"\nwait\n'
    after += 'echo "${XLA_PYTHON_CLIENT_PREALLOCATE-unset}"\n'
    text = before.encode() + block(mode, sampled=True, config=config) + after.encode()
    done = subprocess.run([shell, "-eu"], input=text, capture_output=True, cwd=tmp_path, timeout=30, check=False)
    taming = mode in (SharingMode.MPS, SharingMode.SHARD)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (b"none left\n" + (b"false\n" if taming else b"unset\n"))


def test_what_the_user_set_is_kept(tmp_path: Path) -> None:
    text = (
        block(SharingMode.MPS, sampled=False) + b'echo "$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT $TF_FORCE_GPU_ALLOW_GROWTH"'
    )
    for environ, said in (({}, b"0=9472M true\n"), ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}, b"0=1G true\n")):
        done = subprocess.run(["sh"], input=text, env=environ, capture_output=True, check=True)
        assert done.stdout == said


def ran(text: bytes, **environ: str) -> dict[str, str]:
    """Return the environment that a program has behind a block under ``set -eu``."""
    whole = {"PATH": os.environ["PATH"], **environ}
    done = subprocess.run(["sh", "-eu"], input=text + b"env -0", env=whole, capture_output=True, check=True)
    assert done.stderr == b""
    return dict(item.split("=", 1) for item in done.stdout.decode().split("\0") if item)


@pytest.mark.parametrize("mode", [SharingMode.MPS, SharingMode.SHARD])
def test_steps_inside_are_handed_the_variables_of_sharing_and_nothing_else(mode: SharingMode) -> None:
    text = block(mode, sampled=False)
    added = ran(text, SLURM_EXPORT_ENV="NONE")["SLURM_EXPORT_ENV"]
    assert ("CUDA_MPS_PIPE_DIRECTORY" in added.split(",")) == (mode is SharingMode.MPS)
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" in added.split(",")
    assert "SLURM_EXPORT_ENV" not in ran(text)
    kept = {"ALL": "ALL", "ALL,A=1": "ALL,A=1", "PATH,A": f"PATH,A,{added}", "none": added, "": added, "NIL": added}
    assert {value: ran(text, SLURM_EXPORT_ENV=value)["SLURM_EXPORT_ENV"] for value in kept} == kept


@pytest.mark.parametrize("style", ["gpus", "gpus-per-node", "gpus-per-task"])
def test_a_script_is_told_of_one_gpu_where_slurm_tells_of_a_piece(style: str) -> None:
    name = f"SLURM_{style.upper().replace('-', '_')}"
    slice_name = f"{PLACEMENTS[SharingMode.MIG][0]}".removeprefix("gpu:")
    typed, untyped = ((Gres("gpu", kind, 1),) for kind in ("h100", ""))
    for gres, told in ((untyped, "1"), (typed, slice_name)):
        asked = request(gpu_style=style, gres=gres)
        text = render_block(asked, footprint(9216.0, 12.0), placement(SharingMode.MIG), site(), sampled=False)
        assert ran(text, **{name: slice_name})[name] == told
        assert name not in ran(text)
    for mode in (SharingMode.MPS, SharingMode.SHARD):
        found = ran(block(mode, sampled=False), **{name: "0"})
        assert (name in found, found.get("SLURM_GPUS_ON_NODE")) == (False, "1" if mode is SharingMode.MPS else None)
    assert ran(block(SharingMode.SHARD, sampled=False), SLURM_GPUS_ON_NODE="1")["SLURM_GPUS_ON_NODE"] == "1"


SLICE = "csub: asked gpu:1 at 1; became gpu:nvidia_h100_80gb_hbm3_1g.10gb:1 at 2, by 1 run; never again: x\n"
SLICE_GRES = "gpu:nvidia_h100_80gb_hbm3_1g.10gb:1"
SHARE = SLICE.replace(SLICE_GRES, "mps:7")
TOLD = {"SLURM_GPUS": "1", "SLURM_GPUS_PER_NODE": "1", "SLURM_TRES_BIND": "x"}
# What Slurm tells a job that has a whole GPU, or a slice.
HAS_GPU = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "1", **TOLD}


def late(
    tmp_path: Path,
    said: str,
    *,
    shell: str,
    behind: str,
    environ: dict[str, str],
    has: str = "",
    stderr: IO[str] | int = subprocess.PIPE,
) -> tuple[str, str]:
    """Return what a block says and what comes behind it, of a job that may have got a piece while it waited.

    Slurm says that it ``has`` these GPUs, and that the first task of its array has a slice.
    """
    path = tmp_path / "slurm_colloc/waiting/c/7.said"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(said) if said else path.unlink(missing_ok=True)
    config = site(MPS_POOL)
    text = render_block(request(signature="s"), NEED, placement(SharingMode.EXCLUSIVE), config, sampled=True, late=True)
    records = f"JobId=8 ArrayJobId=7 JOB_GRES={SLICE_GRES} \nJobId=7 ArrayJobId=7 JOB_GRES={has} Nodes=g1 \n"
    scontrol = tmp_path / "bin/scontrol"
    scontrol.parent.mkdir(exist_ok=True)
    scontrol.write_text(f"#!/bin/sh\n[ -z \"${{SLURM_CLUSTERS-}}\" ] && [ '{has}' ] && printf '{records}'\n")
    scontrol.chmod(0o755)
    whole = {"PATH": f"{scontrol.parent}:{os.environ['PATH']}", "SLURM_CLUSTERS": "other", **environ}
    script = tmp_path / "script"
    script.write_bytes(text + behind.encode())
    argv = [shell, "-eu", str(script)]
    done = subprocess.run(argv, env=whole, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr or "", done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_late_block_leaves_a_job_with_a_whole_gpu_as_it_is(shell: str, tmp_path: Path) -> None:
    """Also where the change came too late, as for the tasks of an array that an administrator holds."""
    behind = 'set | grep "^csub_" || echo "$SLURM_GPUS $SLURM_GPUS_PER_NODE $SLURM_TRES_BIND"'
    for said in ("", SHARE):
        assert late(tmp_path, said, shell=shell, behind=behind, environ=HAS_GPU) == ("", "1 1 x\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_that_reads_what_it_asked_for_finds_it_on_a_slice(shell: str, tmp_path: Path) -> None:
    """An srun fits a slice with a number, and none with the name of another type."""
    behind = 'echo "$SLURM_GPUS ${SLURM_GPUS_PER_NODE-none} ${SLURM_TRES_BIND-none}"; set | grep "^csub_" || :'
    typed = {**HAS_GPU, "SLURM_GPUS_PER_NODE": "h100:1"}
    assert late(tmp_path, SLICE, shell=shell, behind=behind, environ=typed, has=f"{SLICE_GRES}") == (
        SLICE,
        "1 none none\n",
    )
    # Slurm does not answer.
    assert late(tmp_path, SLICE, shell=shell, behind=behind, environ=typed) == ("", "1 none none\n")
    # A look was killed before Slurm was told of the change, or once it was undone.
    for whole in ("gpu:h100:1", "(null)"):
        assert late(tmp_path, SLICE, shell=shell, behind=behind, environ=typed, has=whole) == ("", "1 h100:1 x\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_late_share_says_so_and_asks_for_it_no_more(shell: str, tmp_path: Path) -> None:
    behind = 'echo "${SLURM_GPUS-none} $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"'
    share = {"SLURM_JOB_ID": "7", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "7", **TOLD}
    for said in ("", SHARE):
        assert late(tmp_path, said, shell=shell, behind=behind, environ=share) == (said, "none 0=5600M\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_word_that_cannot_be_said_ends_no_job(shell: str, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        behind = 'echo "$SLURM_GPUS"'
        assert late(tmp_path, SLICE, shell=shell, behind=behind, stderr=full, environ=HAS_GPU) == ("", "1\n")


def test_containers_are_handed_the_sites_daemon(tmp_path: Path) -> None:
    pipe, log = tmp_path / "p", tmp_path / "l"
    text = block(SharingMode.MPS, sampled=False)
    assert not [name for name in ran(text, CUDA_MPS_PIPE_DIRECTORY=str(pipe)) if name.startswith("APPTAINER")]
    pipe.mkdir()
    found = ran(text, CUDA_MPS_PIPE_DIRECTORY=str(pipe), SINGULARITY_BIND="/data")
    assert found["APPTAINER_BIND"] == found["SINGULARITY_BIND"] == f"/data,{pipe}"
    assert found["APPTAINERENV_CUDA_MPS_PIPE_DIRECTORY"] == str(pipe)
    assert found["SINGULARITYENV_CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=9472M"
    assert "APPTAINERENV_CUDA_MPS_LOG_DIRECTORY" not in found
    log.mkdir()
    given = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
    assert ran(text, **given, APPTAINER_BIND="")["APPTAINER_BIND"] == f"{pipe},{log}"


def test_a_share_and_a_task_of_a_pack_are_the_same_client_of_a_daemon(tmp_path: Path) -> None:
    """The one is told by sh in its script, the other by the program of its pack."""
    mps = Mps(str(tmp_path), {})
    for folder in (mps.pipe, mps.log):
        Path(folder).mkdir()
    user = {"APPTAINER_BIND": "/data", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    ours = mps.environment(Load(9472, 12.0), user)
    ours |= into_containers(ours, (mps.pipe, mps.log), user)
    folders = {"CUDA_MPS_PIPE_DIRECTORY": mps.pipe, "CUDA_MPS_LOG_DIRECTORY": mps.log}
    found = ran(block(SharingMode.MPS, sampled=False), **user, **folders)
    # Slurm says which GPU a job on a share has; a pack's daemon has but one.
    alike = {name: value for name, value in ours.items() if not name.endswith("CUDA_VISIBLE_DEVICES")}
    assert {name: found.get(name) for name in alike} == alike


def test_hostile_words_are_not_run(tmp_path: Path) -> None:
    hostile = "x\ntouch a #\r`touch b`$(touch c)'; touch d; '\x1b[2J\u2028"
    one = placement(SharingMode.MPS)._replace(reasons=(because("history-error", error=hostile), because(hostile)))
    asked = request(gres=(Gres("gpu", "a\ntouch e", 1),), signature=hostile)
    text = render_block(asked, footprint(provenance=(because(hostile, a=hostile),)), one, site(), sampled=True)
    folder = tmp_path / "empty"
    folder.mkdir()
    done = subprocess.run(["sh", "-eu"], input=text + b"echo ok\n", capture_output=True, cwd=folder, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ok\n", b"")
    assert list(folder.iterdir()) == []


# --- what a site makes of the templates ---


def test_a_sites_own_template_comes_first_and_is_seen_when_it_changes(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "mps.sbatch.j2").write_text("echo {{ config.cluster | quote }}\n")
    config = site()._replace(paths=Paths(templates=str(mine)))
    assert site_parts(config)["mps"] == "echo 'c'"
    assert "XLA" in site_parts(config)["shard"]
    (mine / "mps.sbatch.j2").write_text("echo changed\n")
    assert site_parts(config)["mps"] == "echo changed"
    for number in range(20):
        (mine / "mps.sbatch.j2").write_text(f"echo {number:030}\n" + "#" * number)
        site_parts(config)
    assert len(list((tmp_path / "slurm_colloc/rendered").iterdir())) == 8, "what is out of date is removed in time"


@pytest.mark.parametrize("text", ["{{ nothing }}", "{% if %}", "{% extends 'none' %}"])
def test_a_template_that_does_not_render_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "mps.sbatch.j2").write_text(text)
    with pytest.raises(ConfigError, match=r"'mps\.sbatch\.j2'"):
        site_parts(site()._replace(paths=Paths(templates=str(tmp_path))))


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"mps": 1}'])
def test_a_broken_keepsake_is_rendered_again(tmp_path: Path, kept: str) -> None:
    parts = site_parts(site())
    (path,) = (tmp_path / "slurm_colloc/rendered").iterdir()
    path.write_text(kept)
    assert site_parts(site()) == parts


def test_somebody_elses_keepsake_is_not_run(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    parts = site_parts(site())
    (path,) = (tmp_path / "slurm_colloc/rendered").iterdir()
    path.write_text(path.read_text().replace("XLA", "EVIL"))
    os.chown(path, 4242, 4242)
    assert site_parts(site()) == parts
    assert "EVIL" not in str(parts)


@pytest.mark.parametrize("name", [".", "n" * 256])
def test_a_script_that_cannot_be_written_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "empty"))
    with pytest.raises(StoreError, match="cannot be written"):
        write_script(name, b"true")
    assert list((tmp_path / "empty").iterdir()) == []


# --- the file that Command= names ---


def test_one_text_has_one_file_and_of_many_the_newest_stay(tmp_path: Path) -> None:
    scripts = tmp_path / "slurm_colloc" / "scripts"
    first = Path(keep_script("a.sh", b"one"))
    assert (first.name, first.read_bytes(), first.parent.parent) == ("a.sh", b"one", scripts)
    assert [oct(path.stat().st_mode & 0o777) for path in (first, first.parent, scripts)] == ["0o600", "0o700", "0o700"]
    assert keep_script("a.sh", b"one") == str(first)
    first.write_bytes(b"tampered with")
    assert Path(keep_script("a.sh", b"one")).read_bytes() == b"one"
    others = [Path(keep_script("a.sh", b"%d" % number)) for number in range(255)]
    os.utime(others[7].parent, (1, 1))
    os.utime(first.parent, (2, 2))
    assert Path(keep_script("a.sh", b"one")).exists()
    last = Path(keep_script("a.sh", b"last"))
    assert not others[7].parent.exists()
    assert first.exists()
    assert last.exists()
    assert len(list(scripts.iterdir())) == 129


def test_what_csub_did_not_put_there_is_left_and_the_rest_goes(tmp_path: Path) -> None:
    scripts = Path(keep_script("a.sh", b"one")).parent.parent
    (scripts / "stray").touch()
    (scripts / "csub-full" / "inside").mkdir(parents=True)
    for number in range(300):
        (scripts / f"csub-{number}").mkdir()
    for path in scripts.iterdir():
        os.utime(path, (1, 1) if path.name in ("stray", "csub-full") else (2, 2))
    assert Path(keep_script("a.sh", b"last")).read_bytes() == b"last"
    assert (scripts / "stray").exists()
    assert (scripts / "csub-full" / "inside").exists()
    assert len(list(scripts.iterdir())) == 304 - 150


def test_what_cannot_be_kept_is_not(tmp_path: Path) -> None:
    assert keep_script("a.sh", bytes(1024 * 1024 + 1)) == ""
    assert keep_script(".", b"") == ""
    (tmp_path / "slurm_colloc").mkdir(exist_ok=True)
    (tmp_path / "elsewhere").mkdir()
    scripts = tmp_path / "slurm_colloc" / "scripts"
    shutil.rmtree(scripts)
    scripts.symlink_to(tmp_path / "elsewhere")
    assert keep_script("a.sh", b"one") == ""
    assert list((tmp_path / "elsewhere").iterdir()) == []
