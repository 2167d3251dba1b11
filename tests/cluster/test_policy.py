# SPDX-License-Identifier: Apache-2.0
"""The policy in Lua inside a real slurmctld and before real commands: what each policy does, and what it survives."""

from __future__ import annotations

import grp
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pytest

from slurm_colloc.core.config_file import load_site
from slurm_colloc.estimate.policy_table import PLACE, KnownJob, table_text
from slurm_colloc.site.render import Host, render_site
from tests.cluster.fixtures import CHECKOUT, RELEASE, new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.nodes import MIG_TYPE_PREFIX, MODEL
from tests.cluster.site import write_site

pytestmark = pytest.mark.cluster

SLICE = f"gpu:{MIG_TYPE_PREFIX}1g.10gb:1"
LUA = "JobSubmitPlugins=lua\nCliFilterPlugins=lua\n"
# The site has scripts of its own: what they do must go on whatever becomes of ours.
OWN = "-- the site's own\nlocal function own(job_desc) job_desc.admin_comment = 'site' end\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab(LUA, scripts_without_ours())
    make_smaller(lab)
    with running(lab):
        write_site(lab, agent=False)
        yield lab


def make_smaller(lab: Lab) -> None:
    """Let the node with slices have less of all else than those with whole GPUs."""
    lines = lab.slurm_conf.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith("NodeName=m1 "):
            less = {"CPUs=8": "CPUs=4", "CoresPerSocket=8": "CoresPerSocket=4", "RealMemory=8000": "RealMemory=4000"}
            for before, after in less.items():
                assert before in line
                line = line.replace(before, after)
            lines[number] = line
    lab.slurm_conf.write_text("".join(lines))


def scripts_without_ours() -> dict[str, str]:
    return {"job_submit.lua": with_ours("job_submit", ""), "cli_filter.lua": with_ours("cli_filter", "")}


def with_ours(name: str, folder: str) -> str:
    """Return the example as a site would have it among lines of its own."""
    text = (CHECKOUT / f"templates/site/{name}.lua.example.j2").read_text().replace("{{ lua_folder }}", folder)
    return text.replace("submit_uid)\n", "submit_uid)\n   own(job_desc)\n").replace("local _,", f"{OWN}local _,")


def install(lab: Lab, policy: str, **partition: str) -> None:
    """Render for this policy of partition ``all`` and copy what an administrator would."""
    site = load_site(str(lab.site_file))
    keys: dict[str, Any] = {"job_submit": policy, **partition}
    if "interactive_names" in keys:
        keys["interactive_names"] = (keys["interactive_names"],)
    changed = tuple(one._replace(**keys) if one.name == "all" else one for one in site.partition)
    rendered = render_site(
        site._replace(partition=changed), Host(str(lab.root / "opt"), slurm_conf=str(lab.slurm_conf))
    )
    folder = lab.root / "etc/colloc"
    folder.mkdir(exist_ok=True)
    for file in rendered:
        if Path(file.installed).parent == folder:
            (folder / file.name).write_text(file.text.replace(PLACE, f"{lab.root}/table/policy.table"))
    reload(lab, str(folder))


def reload(lab: Lab, folder: str) -> None:
    for name in ("job_submit", "cli_filter"):
        path = lab.root / f"etc/{name}.lua"
        path.write_text(with_ours(name, folder))
        # slurmctld compares whole seconds, and takes an older file for the one that it has.
        reload.mtime = max(reload.mtime, time.time()) + 10  # type: ignore[attr-defined]
        os.utime(path, (reload.mtime, reload.mtime))  # type: ignore[attr-defined]


reload.mtime = 0.0  # type: ignore[attr-defined]


def know(lab: Lab, *names: str, mem_mib: int = 3000, user: str = "alice") -> Path:
    """Put a table beside slurmctld as 'colloc policy table' does."""
    person = lab.users[user]
    folder = lab.root / "table"
    folder.mkdir(exist_ok=True)
    jobs = [KnownJob(person.uid, name, str(person.home), mem_mib, 10, 5, 4, MODEL) for name in names]
    new = folder / "new"
    new.write_bytes(table_text(jobs, time.time()))
    os.chown(new, 0, grp.getgrnam("slurm").gr_gid)
    new.chmod(0o640)
    new.replace(folder / "policy.table")
    return folder / "policy.table"


@pytest.fixture(scope="module", autouse=True)
def _known(lab: Lab) -> None:
    know(lab, "known", "spawner")


def sbatch(lab: Lab, *words: str, name: str = "known", env: dict[str, str] | None = None, ok: bool = True) -> str:
    argv = ["sbatch", f"--job-name={name}", "--gres=gpu:1", "-p", "all", "-H", *words, "--wrap", "true"]
    done = lab.run_as("alice", argv, env=env)
    assert (done.returncode == 0) is ok, done.stderr
    return done.stdout.split()[-1] if ok else ""


def shown(lab: Lab, job_id: str) -> tuple[str, str]:
    """Return what a job asks for on a node, without the release's prefix, and its AdminComment."""
    text = lab.run(["scontrol", "show", "job", job_id], check=True).stdout
    gres, comment = (re.search(rf"{key}=(.*)", text) for key in ("TresPerNode", "AdminComment"))
    lab.run(["scancel", job_id])
    return (gres[1].split()[0][5:] if gres else ""), (comment[1].strip() if comment else "")


def say(lab: Lab, *argv: str, user: str = "alice") -> subprocess.CompletedProcess[str]:
    return lab.run_as(user, list(argv), timeout=60)


def log(lab: Lab) -> str:
    return (lab.root / "log/slurmctld.log").read_text()


# --- sbatch ---


def test_shadow_records_advise_says_default_moves(lab: Lab) -> None:
    install(lab, "shadow")
    assert shown(lab, sbatch(lab)) == ("gpu:1", f"site; colloc:shadow {SLICE}")
    assert shown(lab, sbatch(lab, name="unknown")) == ("gpu:1", "site")
    install(lab, "advise")
    done = say(lab, "sbatch", "-J", "known", "--gres=gpu:1", "-p", "all", "-H", "--wrap", "true")
    assert re.search(r"^sbatch: colloc: 4 .*'known' .*\b3000 MiB .*\b10 %", done.stderr, re.MULTILINE)
    assert f": sbatch --gres={SLICE}" in done.stderr
    assert shown(lab, done.stdout.split()[-1]) == ("gpu:1", "site")
    install(lab, "default")
    assert shown(lab, sbatch(lab)) == (SLICE, f"site; colloc:moved to {SLICE}")
    assert shown(lab, sbatch(lab, "--array=1-3"))[0] == SLICE
    assert shown(lab, sbatch(lab, "--comment=colloc=off")) == ("gpu:1", "site")


def test_a_moved_job_runs_with_its_steps_and_accounting_has_the_record(lab: Lab) -> None:
    install(lab, "default")
    out = lab.root / "out/moved"
    command = "srun -n1 true && echo step; echo $CUDA_VISIBLE_DEVICES"
    jobs = []
    for style in ("--gres=gpu:1", "--gpus=1", "--gpus-per-node=1"):
        argv = ["sbatch", "-J", "known", style, "-p", "all", "-o", str(out), "--open-mode=append", "--wrap", command]
        jobs.append(say(lab, *argv).stdout.split()[-1])
    assert set(lab.wait_jobs(jobs).values()) == {"COMPLETED"}
    assert out.read_text().count("step") == 3
    lab.wait_accounted(jobs)
    rows = lab.run(["sacct", "-X", "-n", "-P", "-j", ",".join(jobs), "-o", "AllocTRES,AdminComment"]).stdout
    assert rows.count(f"gres/{SLICE.rpartition(':')[0]}=1") == 3
    assert rows.count(f"site; colloc:moved to {SLICE}") == 3


def test_enforce_refuses_but_for_a_reason(lab: Lab) -> None:
    install(lab, "enforce")
    done = say(lab, "sbatch", "-J", "known", "--gres=gpu:1", "-p", "all", "--wrap", "true")
    assert done.returncode == 1
    assert f"sbatch: error: colloc: type: sbatch --gres={SLICE}" in done.stderr
    assert "--comment=colloc=exclusive:REASON" in done.stderr
    sbatch(lab, "--comment=colloc=off", ok=False)
    assert shown(lab, sbatch(lab, "--comment=colloc=exclusive:all HBM")) == (
        "gpu:1",
        "site; colloc:exclusive:all HBM",
    )


def test_csub_is_not_second_guessed_and_hands_a_reason_on(lab: Lab) -> None:
    judged = lab.root / "out/judged.toml"
    text = lab.site_file.read_text()
    judged.write_text(re.sub(r'(\[\[partition\]\]\nname = "all".*\n)', r'\1job_submit = "default"\n', text))
    assert judged.read_text() != text
    env = {"COLLOC_CONF": str(judged)}
    install(lab, "default")

    def csub(*words: str, call: str = "csub") -> subprocess.CompletedProcess[str]:
        argv = [call, *words, "-J", "known", "--gres=gpu:1", "-p", "all", "-H", "--wrap", "true"]
        return lab.run_as("alice", argv, env=env)

    done = csub()
    assert shown(lab, done.stdout.split()[-1]) == ("gpu:1", "site"), done.stderr
    install(lab, "enforce")
    assert csub().returncode == 1
    for more in ((), ("--export=NONE",)):
        done = csub("--colloc=exclusive:all HBM", *more)
        assert shown(lab, done.stdout.split()[-1]) == ("gpu:1", "site; colloc:exclusive:all HBM"), done.stderr


# --- srun, salloc, notebooks ---

DESK = {"interactive_gres": SLICE, "interactive_names": "spawner"}


def test_interactive_jobs_get_their_piece_and_their_steps_run(lab: Lab) -> None:
    install(lab, "default", **DESK)
    before = f"SLURM_JOB_GPUS=.*|{SLICE}"
    done = say(lab, "srun", "--pty", "--gres=gpu:1", "-p", "all", "sh", "-c", "scontrol show job $SLURM_JOB_ID")
    assert done.returncode == 0, done.stderr
    assert SLICE in done.stdout, (before, done.stdout)
    done = say(lab, "salloc", "--gres=gpu:1", "-p", "all", "srun", "-n1", "sh", "-c", "scontrol show job $SLURM_JOB_ID")
    assert (done.returncode, SLICE in done.stdout) == (0, True), done.stderr
    assert "interactive jobs here get" in done.stderr
    done = say(lab, "srun", "--gres=gpu:1", "-p", "all", "true")
    assert (done.returncode, "colloc" in done.stderr) == (0, False), done.stderr
    # As batchspawner submits.
    assert shown(lab, sbatch(lab, name="spawner"))[0] == SLICE


def test_under_enforce_they_are_told_what_to_type(lab: Lab) -> None:
    install(lab, "enforce", **DESK)
    for argv, line in (
        (("srun", "--pty"), f"type: srun --pty --gres={SLICE}"),
        (("salloc",), f"type: salloc --gres={SLICE}"),
        (("sbatch", "-J", "spawner", "-H"), f"type: sbatch --gres={SLICE}"),
    ):
        rest = ("--wrap", "true") if argv[0] == "sbatch" else ("true",)
        done = say(lab, *argv, "--gres=gpu:1", "-p", "all", *rest)
        assert done.returncode == 1
        assert line in done.stderr
    assert say(lab, "srun", "--pty", f"--gres={SLICE}", "-p", "all", "true").returncode == 0


# --- what is known ---


def test_accounting_and_slurmctld_call_a_job_by_the_same_name_and_folder(lab: Lab) -> None:
    """By which alone the table is searched: what 'colloc ingest' keeps of a job must be what job_desc has."""
    install(lab, "advise")
    folder = lab.users["alice"].home / "a b"
    lab.run_as("alice", ["mkdir", "-p", str(folder)], check=True)
    name = 'it\'s "known" %s'
    argv = ["sbatch", "-J", name, "--gres=gpu:1", "-p", "all", "-o", "/dev/null", "--wrap", "true"]
    job = lab.run_as("alice", argv, cwd=folder).stdout.split()[-1]
    lab.wait_jobs([job])
    lab.wait_accounted([job])
    done = lab.run(["colloc", "ingest"])
    assert done.returncode == 0, done.stderr
    with duckdb.connect() as database:
        runs = f"read_parquet('{lab.root}/site/store/allocations/*.parquet', union_by_name = true)"
        kept = database.execute(f"SELECT job_name, work_dir FROM {runs} WHERE job_id = ?", [job]).fetchone()
    assert kept is not None
    path = know(lab, "known")
    known = KnownJob(lab.users["alice"].uid, kept[0], kept[1], 3000, 10, 5, 4, MODEL)
    path.write_bytes(table_text([known], time.time()))
    install(lab, "advise")
    assert "next time" in lab.run_as("alice", argv, cwd=folder).stderr
    know(lab, "known", "spawner")


# --- what it costs ---

CLOCKED = "local began = os.clock(); local verdict = colloc.job_submit(job_desc); "
CLOCKED += "slurm.log_info('took %.0f us', (os.clock() - began) * 1e6); return verdict"


def test_a_job_costs_slurmctld_less_than_a_millisecond_at_100000_known_ones(lab: Lab) -> None:
    know(lab, "known", *(f"job-{number}" for number in range(100_000)))
    install(lab, "shadow")
    script = lab.root / "etc/job_submit.lua"
    script.write_text(script.read_text().replace("return colloc.job_submit(job_desc)", CLOCKED))
    os.utime(script, (reload.mtime + 5, reload.mtime + 5))  # type: ignore[attr-defined]
    loop = "for i in $(seq 50); do sbatch -J known --gres=gpu:1 -p all -H --wrap true || exit 1; done"
    done = lab.run_as("alice", ["sh", "-c", loop], timeout=120)
    assert done.returncode == 0, done.stderr
    lab.run(["scancel", "-u", "alice"])
    took_us = [int(found) for found in re.findall(r"took (\d+) us", log(lab))]
    assert len(took_us) == 50
    load_us, *rest_us = took_us
    print(f"Slurm {RELEASE}: the load {load_us} us, then median {median(rest_us)}, worst {max(rest_us)} us")
    assert median(rest_us) < 1000
    assert load_us < 1_000_000
    know(lab, "known", "spawner")


# --- what can go wrong ---


def test_a_fault_in_ours_leaves_the_sites_script_at_work(lab: Lab) -> None:
    install(lab, "enforce")
    sbatch(lab, ok=False)
    folder = lab.root / "etc/colloc"
    for name, text in (
        ("colloc_policy.lua", "this is no lua ("),
        ("colloc.lua", ""),
        ("colloc.lua", "error('no')"),
        ("colloc.lua", "return { job_submit = function() error('no') end }"),
        ("colloc.lua", "return 7"),
    ):
        install(lab, "enforce")
        (folder / name).write_text(text)
        reload(lab, str(folder))
        assert shown(lab, sbatch(lab)) == ("gpu:1", "site"), (name, text)
        assert say(lab, "srun", "--pty", "--gres=gpu:1", "-p", "all", "true").returncode == 0
    install(lab, "enforce")
    sbatch(lab, ok=False)


def test_the_table_is_replaced_while_jobs_are_submitted(lab: Lab) -> None:
    """Every second reload reads it: no submission may fail, and none may be moved by half a table."""
    know(lab, "known")
    install(lab, "advise")
    table = lab.root / "etc/colloc/colloc_table.lua"
    table.write_text(table.read_text().replace("M.REFRESH_S = 60", "M.REFRESH_S = 0"))
    reload(lab, str(table.parent))
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            know(lab, "known", *(f"j{number}" for number in range(2000)))
            know(lab, "known")

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        argv = ["sh", "-c", "for i in $(seq 40); do sbatch -J known --gres=gpu:1 -p all -H --wrap true || exit 1; done"]
        done = lab.run_as("alice", argv, timeout=120)
    finally:
        stop.set()
        thread.join()
    lab.run(["scancel", "-u", "alice"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Submitted") == 40
    assert done.stderr.count("next time") == 40


# --- what a slice's node may lack ---


@pytest.mark.parametrize(
    "words",
    [
        ("--exclude=m1",),
        ("--exclusive",),
        ("--ntasks-per-gpu=2",),
        ("--ntasks-per-node=2",),
        ("--ntasks=2", "-N1"),
        ("--gres-flags=enforce-binding",),
    ],
    ids=lambda words: words[0],
)
def test_who_says_more_about_his_node_keeps_it(lab: Lab, words: tuple[str, ...]) -> None:
    install(lab, "default")
    assert shown(lab, sbatch(lab, *words))[0] == "gpu:1"


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        (("-c4",), True),
        (("-c5",), False),
        (("--mincpus=5",), False),
        (("--mem=4000",), True),
        (("--mem=4001",), False),
        (("-c2", "--mem-per-cpu=2000"), True),
        (("-c2", "--mem-per-cpu=2001"), False),
        (("--mem=0",), True),
    ],
    ids=str,
)
def test_who_asks_for_more_than_its_node_has_is_not_moved_there(lab: Lab, words: tuple[str, ...], moved: bool) -> None:
    """slurmctld would refuse him, and he asked for what is there."""
    install(lab, "default")
    there = say(lab, "sbatch", f"--gres={SLICE}", "-p", "all", "-o", "/dev/null", *words, "--wrap", "true")
    assert ("Requested node configuration is not available" in there.stderr) is not moved, there.stderr
    assert shown(lab, sbatch(lab, *words))[0] == (SLICE if moved else "gpu:1")


def test_a_component_of_a_het_job_stays(lab: Lab) -> None:
    install(lab, "default")
    argv = ["sbatch", "-J", "known", "-H", "-p", "all", "--gres=gpu:1", "--wrap", "true"]
    done = say(lab, *argv, ":", "-J", "known", "-p", "all", "--gres=gpu:1")
    text = lab.run(["scontrol", "show", "job", done.stdout.split()[-1]], check=True).stdout
    lab.run(["scancel", done.stdout.split()[-1]])
    assert (len(re.findall("^JobId=", text, re.MULTILINE)), SLICE in text) == (2, False), done.stderr
