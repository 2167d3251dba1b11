# SPDX-License-Identifier: Apache-2.0
"""A short run of `python -m tests.fuzz` with a fixed seed, and what longer ones found, one smallest input for each."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC

import pytest

from slurm_colloc.core.config_file import parse_site
from slurm_colloc.core.errors import ConfigError, GpuError, InputError
from slurm_colloc.core.model import Footprint, Gres, Placement, SharingMode, because
from slurm_colloc.estimate.content import said
from slurm_colloc.estimate.signature import signature
from slurm_colloc.gpu import hostuse, mig, nvidia_smi, simulated
from slurm_colloc.pack import ledger, spec
from slurm_colloc.slurm import gres, parse, setup, sinfo
from slurm_colloc.slurm.array import parse_array
from slurm_colloc.slurm.jobs import parse_queue
from slurm_colloc.slurm.refusals import is_refusal
from slurm_colloc.sources import clustercockpit
from slurm_colloc.sources.controller import parse_jobs
from slurm_colloc.submit import reasons
from slurm_colloc.submit.render import pack_block
from slurm_colloc.submit.requeue_data import parse_carried
from tests import fuzz, fuzz_submit, fuzz_targets
from tests.fakes.squeue import squeue_line
from tests.unit.golden import Printed

TARGETS, PASSED_OVER = fuzz_targets.targets()
LARGE = 64 * 1024
DIGITS = "9" * 5000


@pytest.fixture(autouse=True)
def interruptible() -> None:
    fuzz.prepare()


def test_nothing_is_passed_over_here() -> None:
    assert PASSED_OVER == []
    names = [target.name for target in TARGETS]
    assert len(names) == len(set(names)) > 70


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_short_run_finds_nothing(target: fuzz.Target) -> None:
    count = 5 if target.name == "sacct-taken" else 120
    assert [said for content in fuzz.inputs(target, 1, count) if (said := fuzz.problem(target, content))] == []


def test_the_seeds_are_read_as_what_they_are() -> None:
    """Else the fuzzer would only ever see refusals."""

    def is_read(target: fuzz.Target, content: bytes) -> bool:
        try:
            target.call(content)
        except target.refusals:
            return False
        return True

    assert [one.name for one in TARGETS if not any(is_read(one, content) for content in one.seeds)] == []


def test_a_bug_is_found_and_a_refusal_is_none() -> None:
    def bad(content: bytes) -> int:
        if content[:1] == b"x":
            raise InputError("a clean refusal")
        return 1 // (b"\0" not in content)

    target = fuzz.Target("bad", bad, (b"abc", b"xyz"), (InputError,))
    found = [content for content in fuzz.inputs(target, 3, 2000) if fuzz.problem(target, content)]
    assert found
    assert all(b"\0" in content for content in found)


# --- what was found ---


def blown_up(piece: str) -> str:
    return piece * (LARGE // len(piece))


def keep(text: str) -> object:
    return reasons.step_gpus(text.encode()), reasons.reason_to_keep_text(text.encode(), "/bin/sh")


def keys(text: str) -> str:
    """Return as many keys as there is room for."""
    return " ".join(f"k{number}=1" for number in range(len(text) // 8))


def refused(parse_it: Callable[[str], object]) -> Callable[[str], object]:
    def call(text: str) -> None:
        with pytest.raises(InputError):
            parse_it(text)

    return call


JOB = (
    "JobId=5 JobName=x UserId=u(1) GroupId=g(1) MCS_label=N/A Account=a QOS=q JobState=RUNNING Reason=None"
    " TimeLimit=1 SubmitTime=1970-01-01T01:00:00 A=1"
    " StartTime=1970-01-01T01:00:00 EndTime=Unknown A=1 Partition=p A=1 NodeList=g1"
)
BEGIN = "UserId=u(1) GroupId=g(1) a Account=a QOS=q JobState=RUNNING a TimeLimit=1 SubmitTime=1 a "


def refused_job(text: str) -> None:
    assert parse_jobs(f"JobId=5 JobName=x UserId=u(1) GroupId=g(1) {text}", "c", UTC).rows == ()


MPS = ",".join(["mps:1"] * 60)
SLOW: tuple[tuple[str, Callable[[str], object], str], ...] = (
    ("signature", lambda text: signature(text.encode(), (), 1, folder="/nonexistent"), "~"),
    ("signature", lambda text: signature(text.encode(), (), 1, folder="/nonexistent"), "+"),
    ("signature", lambda text: signature(b"#!/bin/sh\ncp", (f"cp {text}", "|"), 1, folder="/nonexistent"), " "),
    ("sbatch's words", is_refusal, "submission failed: "),
    ("program", lambda text: said(text.encode(), "py"), ':\n"""x'),
    ("program", lambda text: said(text.encode(), "py"), " # "),
    ("program", lambda text: said(text.encode(), "cu"), "/* "),
    ("wrapper", lambda text: said(text.encode(), "sh"), " # "),
    ("input", lambda text: said(text.encode(), "in"), "velocity a create "),
    ("seeds", lambda text: said(text.encode(), "txt"), "seed "),
    ("array", refused(parse_array), "90-99995:4,"),
    ("scontrol jobs", refused_job, "a UserId="),
    ("scontrol jobs", refused_job, "a UserId=u(1) GroupId=g(1) "),
    ("scontrol jobs", refused_job, "a Account=a QOS=q JobState="),
    ("scontrol jobs", refused_job, BEGIN),
    ("scontrol jobs", refused_job, f"{BEGIN} StartTime=1 EndTime=1 a Partition=p "),
    ("scontrol jobs", lambda text: parse_jobs(text, "c", UTC), f"{JOB} "),
    ("settings", lambda text: said(text.encode(), "yaml"), "-" * 998 + "\n"),
    ("settings", lambda text: said(text.encode(), "yaml"), "a: "),
    ("reasons", keep, "srun "),
    ("reasons", keep, "squeue "),
    ("reasons", lambda text: re.search(reasons._ACTS_ON_JOB, text.encode()), "scontrol a "),
    ("release", refused(parse.parse_release), "9"),
    ("weights of TRES", refused(lambda text: setup.parse_weights(f"a={text}x")), "9"),
    ("gres", refused(gres.parse_gres), ","),
    ("gres", refused(gres.parse_gres), "(,"),
    ("sinfo", refused(lambda text: sinfo.parse_shares(f"g1|a|gpu:1|{text}|idle")), ","),
    ("sinfo", refused(lambda text: sinfo.parse_shares(f"g1|a|gpu:1|gpu:{text}|idle")), "a1"),
    ("sinfo", refused(lambda text: sinfo.parse_free(f"g1|a|{text}mps:1|{text}mps:1|idle")), "gpu:a1:1,"),
    ("sinfo", refused(lambda text: sinfo.parse_free(f"g1|a|{MPS}|mps:1({text}1/2)|idle")), "1/2,"),
    ("sinfo", refused(lambda text: sinfo.parse_free(f"g1|a|{MPS}|mps:1(IDX:{text}1)|idle")), "0-1023,"),
    ("sdiag", refused(setup.parse_queue), "\n"),
    ("sdiag", lambda text: setup.parse_queue(f"sdiag output at x (1)\n{text}"), "\n"),
)


@pytest.mark.parametrize(("parse_it", "piece"), [one[1:] for one in SLOW], ids=[f"{a}-{c[:9]!r}" for a, _, c in SLOW])
def test_no_text_takes_long(parse_it: Callable[[str], object], piece: str) -> None:
    """A pattern that is quadratic holds the interpreter's lock, and with it csub's own time limit."""
    began_s = time.thread_time()
    parse_it(blown_up(piece))
    assert time.thread_time() - began_s < 1.0


def test_digits_that_int_does_not_take() -> None:
    assert mig.parse_profile(f"1g.{DIGITS}gb") is None
    assert nvidia_smi.parse_pids(f"GPU-1, {DIGITS}, 5\nGPU-1, ², 5\n") == set()
    assert hostuse.parse_figures(f"anon {DIGITS}\n", ("anon",)) is None
    queue = squeue_line("1", StartTime=DIGITS) + squeue_line("2", StartTime="²")
    assert [job.start_s for job in parse_queue(queue)[0]] == [None, None]
    assert sinfo.parse_shares("g1|a|gpu:1|mps:1(1/10²,0/100)|idle\n") == {"g1": ((Gres("mps", "", 0), (100,)),)}
    assert sinfo.parse_free("g1|a|gpu:1|gpu:1(IDX:0-99999999999)|idle\n")[("a", "gpu")] == 0
    [node] = parse.parse_nodes(f"NodeName=g1 CfgTRES=gres/gpu={DIGITS},gres/gpu=² SlurmdStartTime=²")
    assert (node.configured, node.slurmd_start_s) == ((), None)
    assert parse_queue("1|RUNNING\n") == ((), 1)


@pytest.mark.parametrize("text", [f"gpu:{2**64}", f"gpu:{10**21}", "me:559086326542G", "gpu:" + "9" * 16 + "T"])
def test_a_count_beyond_reason_is_no_type(text: str) -> None:
    """One of 16 digits was taken for a type, and one GPU of it for what was asked."""
    with pytest.raises(InputError, match="beyond reason"):
        gres.parse_gres(text)


def test_a_large_count_is_one() -> None:
    (one,) = gres.parse_gres("bandwidth:lustre:9999999999999999")
    assert one.quantity == 9999999999999999
    assert gres.parse_gres(str(one)) == (one,)


def test_a_gres_named_gres_is_none() -> None:
    """Its own text would be read as another's."""
    with pytest.raises(InputError, match="not of the form"):
        gres.parse_gres("gres:gres:g")


def test_devices_nested_too_deep(printed: Printed) -> None:
    with pytest.raises(GpuError) as raised:
        simulated.parse_devices("[" * 100_000)
    printed("agent", str(raised.value).partition(": ")[0])


def test_a_csv_that_breaks_in_its_header() -> None:
    with pytest.raises(InputError, match="first line"):
        clustercockpit.parse_jobs("job_id\rx,cluster\n")


SPEC = json.loads(next(target for target in TARGETS if target.name == "spec").seeds[0])
CARRIED = json.loads(next(target for target in TARGETS if target.name == "carried").seeds[0])
HUGE = 10**400


@pytest.mark.parametrize(
    "changed",
    [
        *(
            {"commands": True},
            {"commands": [None]},
            {"jobs": 0},
            {"jobs": 1.5},
            {"jobs": 977436738534},
            {"array": None},
        ),
        *({"load": [HUGE, 1]}, {"load": ["", 1]}, {"room": []}, {"only": ["1"]}, {"more": 1}),
    ],
    ids=str,
)
def test_a_pack_that_is_none(changed: dict[str, object]) -> None:
    with pytest.raises(InputError, match="no pack"):
        spec.from_json(json.dumps({**SPEC, **changed}))


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "null", "{}", '{"version": 1}'])
def test_a_text_that_is_no_pack(text: str) -> None:
    with pytest.raises(InputError, match="no pack"):
        spec.from_json(text)


def test_the_tasks_of_many_jobs_are_counted_at_once() -> None:
    whole = spec.from_json(json.dumps({**SPEC, "array": "0-99999", "jobs": 100_000}))
    told = ledger.Ledger(whole, {}, (), (), "", 0.0, 0.0, 0, 0)
    assert len(ledger.missing([told])) == 100_000


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster": None},
        {"option": 5},
        {"words": [1]},
        {"words": "--explain"},
        {"fields": {"A": 1}},
        {"budget_mib": []},
    ],
    ids=str,
)
def test_what_a_script_carries_that_is_none(changed: dict[str, object]) -> None:
    for content in (json.dumps({**CARRIED, **changed}), "{}", "[" * 100_000):
        with pytest.raises(InputError, match="script"):
            parse_carried(content)


@pytest.mark.skipif(shutil.which("sh") is None, reason="no sh")
@pytest.mark.parametrize("words", ["a\ntouch x", "'; touch x; '", "$(touch x)", "\\", "\u2028touch x", "`x`", "a\0b\r"])
def test_the_block_is_sh_and_runs_nothing(words: str) -> None:
    """What the fuzzer asks of the block's form, asked of a shell."""
    placement = Placement(
        SharingMode.MPS, Gres("mps", "", 5), 1, 2, "", "", "", None, (because("history-error", error=words),), ()
    )
    block = pack_block(fuzz_submit.REQUEST, Footprint(None, None, None, words, words, 0, (because(words),)), placement)
    done = subprocess.run(["sh", "-c", block + b"exit 7\n"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"", b"")


def test_what_a_long_run_found() -> None:
    """Each held the interpreter for seconds, or raised what nobody catches."""
    began = time.process_time()
    with pytest.raises(InputError, match="more than"):
        parse_array(",".join(["0-99999"] * 9000))
    assert time.process_time() - began < 0.5
    with pytest.raises(ConfigError, match="must be a number"):
        parse_site({"schema": 1, "cluster": "c", "slurm_release": "22.05", "prices": {"kwh": 10**400}}, "site.toml")
