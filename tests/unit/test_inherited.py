# SPDX-License-Identifier: Apache-2.0
"""What csub set for one job is no other job's: csub, its sh front, its block, colloc-mps and the plugin agree."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from slurm_colloc.core.model import SharingMode
from slurm_colloc.submit.inherited import environment_to_submit, mark
from tests.unit.shell import HINT, Shell
from tests.unit.test_csub_front import installed, run
from tests.unit.test_render import SHELLS, block

SET = (
    "8 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4G XLA_PYTHON_CLIENT_PREALLOCATE=false APPTAINER_BIND=/p,/l "
    "APPTAINERENV_TF=true CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 SLURM_STEP_GPUS=0 GPU_DEVICE_ORDINAL=0"
)
OURS = {
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "APPTAINER_BIND": "/p,/l",
    "APPTAINERENV_TF": "true",
}
# What another job finds of each, by what it inherits: a value that was changed is the user's.
LEFT = [
    (OURS, {}),
    ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}),
    ({"APPTAINER_BIND": "/data,/p,/l"}, {"APPTAINER_BIND": "/data"}),
    ({"APPTAINER_BIND": "/p,/l,/scratch"}, {"APPTAINER_BIND": "/scratch"}),
    ({"APPTAINER_BIND": "/a,/p,/l,/b"}, {"APPTAINER_BIND": "/a,/b"}),
    ({"APPTAINER_BIND": "/p,/lib"}, {"APPTAINER_BIND": "/p,/lib"}),
    ({"XLA_PYTHON_CLIENT_PREALLOCATE": "*"}, {"XLA_PYTHON_CLIENT_PREALLOCATE": "*"}),
]
# Slurm has set these anew by then.
SLURMS = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "SLURM_STEP_GPUS": "0", "GPU_DEVICE_ORDINAL": "0"}
NAMES = {*OURS, *SLURMS, "COLLOC_SET", "SLURM_SHARDS_ON_NODE"}


def only(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name in NAMES}


@pytest.mark.parametrize(("inherited", "left"), LEFT)
def test_csub_submits_without_it(
    monkeypatch: pytest.MonkeyPatch, inherited: dict[str, str], left: dict[str, str]
) -> None:
    for name, value in {**inherited, **SLURMS, "COLLOC_SET": SET, "SLURM_SHARDS_ON_NODE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert only(environment_to_submit()) == left


def test_nothing_is_taken_where_csub_set_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for set_, environ in (("", OURS), ("8", SLURMS), ("8 A", OURS)):
        for name, value in {**environ, "COLLOC_SET": set_}.items():
            monkeypatch.setenv(name, value)
        assert only(environment_to_submit()).items() >= environ.items()


def test_a_mark_has_csubs_part_alone() -> None:
    before = {"A": "mine", "BIND": "/data"}
    assert (
        mark("8", {"A": "mine", "B": "1", "BIND": "/data,/p", "CUDA_VISIBLE_DEVICES": "0"}, before) == "8 B=1 BIND=/p"
    )


@pytest.mark.parametrize("how", ["placed", "unchanged", "off", "broken"])
def test_sbatch_has_nothing_of_the_job_that_submits(shell: Shell, how: str) -> None:
    (shell.folder / "bin" / "sbatch").write_text('#!/bin/sh\ncat /proc/$$/environ >"$CALLS/../environ.0"\necho 1\n')
    csub = installed(shell, "/nonexistent" if how == "broken" else shutil.which("python3") or "")
    if how != "broken":
        csub = Path(shell.command()[0])
    options = {"placed": [HINT], "off": ["--colloc=off"]}.get(how, [])
    for inherited, left in LEFT:
        given = {**inherited, **SLURMS, "COLLOC_SET": SET, "SLURM_SHARDS_ON_NODE": "2", "SLURM_JOB_ID": "8"}
        assert run(shell, csub, *options, "job.sh", **given).returncode == 0
        text = (shell.folder / "environ.0").read_text()
        assert only(dict(entry.split("=", 1) for entry in text.split("\0") if entry)) == left


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("mode", [SharingMode.MPS, SharingMode.SHARD])
def test_a_block_takes_no_inherited_value_for_the_users(shell: str, mode: SharingMode) -> None:
    def ran(**environ: str) -> dict[str, str]:
        done = subprocess.run(
            [shell, "-eu"],
            input=block(mode, sampled=False) + b"env -0",
            env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": "9", **environ},
            capture_output=True,
            check=True,
        )
        return dict(item.split("=", 1) for item in done.stdout.decode().split("\0") if item)

    fresh = ran()
    assert fresh["COLLOC_SET"].split()[0] == "9"
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in fresh["COLLOC_SET"].split()
    own = {name for name in fresh if name in NAMES}
    for inherited, left in LEFT:
        found = ran(**inherited, COLLOC_SET=SET)
        assert {name: found[name] for name in left} == left
        assert {name for name in found if name in NAMES} == own | set(left)
    assert ran(XLA_PYTHON_CLIENT_PREALLOCATE="true")["COLLOC_SET"].count("XLA") == 0, "it is the user's"
    again = ran(**{name: fresh[name] for name in own})
    assert set(again["COLLOC_SET"].split()) == set(fresh["COLLOC_SET"].split())


# --- in a task ---

Told = Callable[[dict[str, str]], dict[str, str]]
HARNESS = r"""
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <slurm/spank.h>
int slurm_spank_task_init(spank_t spank, int count, char **words);
void slurm_error(const char *format, ...) { (void)format; }
spank_err_t spank_getenv(spank_t spank, const char *name, char *text, int length) {
    const char *found = getenv(name);
    if (!found) return ESPANK_ENV_NOEXIST;
    if (strlen(found) >= (size_t)length) return ESPANK_NOSPACE;
    strcpy(text, found);
    return ESPANK_SUCCESS;
}
spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int over) {
    return setenv(name, value, over) ? ESPANK_ERROR : ESPANK_SUCCESS;
}
spank_err_t spank_unsetenv(spank_t spank, const char *name) {
    return unsetenv(name) ? ESPANK_ERROR : ESPANK_SUCCESS;
}
spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...) {
    va_list into;
    va_start(into, item);
    *va_arg(into, uint32_t *) = 1;
    va_end(into);
    return ESPANK_SUCCESS;
}
spank_err_t spank_option_register(spank_t spank, struct spank_option *option) { return ESPANK_SUCCESS; }
spank_context_t spank_context(void) { return S_CTX_REMOTE; }
int main(void) {
    slurm_spank_task_init(NULL, 0, NULL);
    execlp("env", "env", "-0", (char *)NULL);
}
"""
PLUGIN = Path(__file__).parents[2] / "slurm_colloc" / "plugin"


@pytest.fixture(scope="module", params=["task", "plugin"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Return what makes of the environment that slurmstepd has for a task the one that the task finds."""
    folder = tmp_path_factory.mktemp("told")
    if request.param == "plugin":
        if not Path("/usr/include/slurm/spank.h").exists() or not shutil.which("cc"):
            pytest.skip("no libslurm-dev, or no C compiler")
        (folder / "harness.c").write_text(HARNESS)
        argv = ["cc", "-o", str(folder / "harness"), str(folder / "harness.c"), str(PLUGIN / "colloc_spank.c")]
        subprocess.run(argv, check=True)

    def run_it(environ: dict[str, str]) -> dict[str, str]:
        whole = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "9", "SLURM_LOCALID": "1", **environ}
        if request.param == "plugin":
            done = subprocess.run([folder / "harness"], env=whole, capture_output=True, text=True, check=True)
            return only(dict(item.split("=", 1) for item in done.stdout.split("\0") if item))
        done = subprocess.run(
            [PLUGIN / "colloc-mps", f"--state={folder}", "task"], env=whole, capture_output=True, text=True, check=True
        )
        for line in done.stdout.splitlines():
            verb, _, word = line.partition(" ")
            name, _, value = word.partition("=")
            whole.pop(name, None)
            whole |= {name: value} if verb == "export" else {}
        return only(whole)

    return run_it


@pytest.mark.parametrize(("inherited", "left"), LEFT)
def test_a_task_of_another_job_has_none_of_it(told: Told, inherited: dict[str, str], left: dict[str, str]) -> None:
    assert told({**inherited, **SLURMS, "COLLOC_SET": SET}) == left | SLURMS


def test_a_step_of_the_job_gets_again_what_slurm_took(told: Told) -> None:
    own = SET.replace("8", "9", 1)
    step = {**OURS, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20", "COLLOC_SET": own}
    assert told(step) == {**OURS, **SLURMS, "COLLOC_SET": own}
    without_share = {**OURS, "COLLOC_SET": own}
    assert told(without_share) == without_share
    assert told(OURS) == OURS
