# SPDX-License-Identifier: Apache-2.0
"""Compare the reader of sbatch's language with sbatch itself; truth.py says how."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from slurm_colloc.slurm.directives import read_script
from slurm_colloc.slurm.option_tables import DEADLY_VARIABLES, VARIABLE_BEFORE, VARIABLES_AFTER, Option
from slurm_colloc.slurm.options import listed_options
from tests.cluster import releases
from tests.cluster.fixtures import RELEASE, need_cluster
from tests.cluster.truth import GOOD_VALUES, SHEBANG, Sbatch, compare

pytestmark = pytest.mark.cluster

RECORDED = Path(__file__).parent.parent / "recorded"


@pytest.fixture(scope="session")
def sbatch(tmp_path_factory: pytest.TempPathFactory) -> Sbatch:
    need_cluster()
    found = Sbatch(releases.find(RELEASE), tmp_path_factory.mktemp("truth"))
    assert f" {found.release}." in found.run("--version")
    if "TRUTH" not in found.run("--wrap=true"):
        pytest.fail(f"sbatch runs no cli_filter.lua: {found.run('--wrap=true')}")
    return found


# Variables that sbatch sets for the job.
FOR_THE_JOB = {f"SBATCH_MEM_BIND_{what}" for what in ("LIST", "PREFER", "SORT", "TYPE", "VERBOSE")}


# --- the tables ---


def test_recording_is_what_this_sbatch_says(sbatch: Sbatch) -> None:
    recorded = RECORDED / f"slurm-{sbatch.release}" / "sbatch"
    assert sbatch.run("--help") == (recorded / "help.txt").read_text()
    assert sbatch.run("--usage") == (recorded / "usage.txt").read_text()
    assert sbatch.run("--=") == (recorded / "possibilities.txt").read_text()


def test_long_options_and_their_arguments(sbatch: Sbatch) -> None:
    assert sorted(listed_options(sbatch.run("--="))) == sorted(option.name for option in sbatch.table)
    for option in sbatch.table:
        needs = "requires an argument" in sbatch.run(f"--{option.name}")
        takes = "doesn't allow an argument" not in sbatch.run(f"--{option.name}=1")
        assert option.argument == ("required" if needs else "optional" if takes else "none"), option


def test_short_options(sbatch: Sbatch) -> None:
    shorts = {option.short: option for option in sbatch.table if option.short}
    for letter in map(chr, range(0x21, 0x7F)):
        if letter == "-":
            continue
        said = sbatch.run(f"-{letter}")
        assert ("invalid option" not in said) == (letter in shorts), said
        if letter in shorts:
            assert ("requires an argument" in said) == (shorts[letter].argument == "required"), said


# --autocomplete and --external are no jobs that the reader reads.
ACT_AT_ONCE = ("help", "usage", "version", "autocomplete", "external")


def test_every_option_is_read_under_every_spelling(sbatch: Sbatch) -> None:
    for option in sbatch.table:
        if option.name in ACT_AT_ONCE:
            continue
        value = "" if option.argument == "none" else GOOD_VALUES.get(option.name, "word")
        words = [f"--{option.name}={value}" if value else f"--{option.name}"]
        words += [f"-{option.short}{value}"] if option.short else []
        for word in words:
            went = compare(sbatch, SHEBANG.encode(), {}, [word])
            assert went == "compared" or (option.name in ("uid", "gid") and os.getuid() != 0), (word, went)
            script = f"{SHEBANG}#SBATCH {word}\n".encode()
            assert compare(sbatch, script, {}, []) == went, word


def variables(sbatch: Sbatch) -> dict[str, Option]:
    options = (VARIABLE_BEFORE, *sbatch.table, *VARIABLES_AFTER)
    return {option.environment: option for option in options if option.environment}


def test_every_variable_sets_what_the_table_says(sbatch: Sbatch) -> None:
    for variable, option in variables(sbatch).items():
        value = "" if option.argument == "none" else GOOD_VALUES.get(option.name, "3")
        assert compare(sbatch, SHEBANG.encode(), {variable: value}, []) == "compared", variable
        if option.name not in ("req-switch", "switch-wait"):
            (reading,) = sbatch.ask(SHEBANG.encode(), {variable: value}, "a.sh").readings
            assert set(reading) == {option.name, "argv"}, variable


def test_no_other_variable_is_read(sbatch: Sbatch) -> None:
    deadly = {variable for variable, since in DEADLY_VARIABLES.items() if sbatch.release >= since}
    found = {name.decode() for name in re.findall(rb"\bSBATCH_[A-Z0-9_]+\b", sbatch.program())}
    assert found - FOR_THE_JOB == {name for name in variables(sbatch) if name.startswith("SBATCH_")} | deadly
    for variable in deadly:
        assert not sbatch.ask(SHEBANG.encode(), {variable: "1"}, "a.sh").said
        assert compare(sbatch, SHEBANG.encode(), {variable: "1"}, []) == "refused by both"


# --- cases by hand ---

CASES: list[tuple[str, dict[str, str], list[str]]] = [
    ("#SBATCH --gres=gpu:1 -t 10 # mine\n", {}, ["--part=gpu", "a.sh", "x", "--gres=gpu:7"]),
    ("#SBATCH --job-name=\"a b\" '--comment=c d'\n", {}, []),
    ("#SBATCH--time=1\n", {}, []),
    ("#SBATCHX -N2\n", {}, []),
    ("#SBATCH -N 2 -n 8\n#SBATCH\t-c4\v-HN3\n", {}, []),
    ("##SBATCH -N3\n# SBATCH -N3\n #SBATCH -N3\n#sbatch -N3\n\n \t\n#SBATCH -N2\n", {}, []),
    ("#SBATCH -N2\necho\n#SBATCH -N3\n", {}, []),
    (" \v\fX=1\n#SBATCH -N3\n", {}, []),
    ("\u00a0\n#SBATCH -N3\n", {}, []),
    ("#SBATCH -N2", {}, []),
    ("#SBATCH --mem=32GB#SBATCH -c 4\n", {}, []),
    ("#SBATCH -J job#1 -N2\n#SBATCH --comment='#1'\n", {}, []),
    ("#SBATCH --comment=a\\tb\\\\\\# -N2\\\n#SBATCH -n3\n", {}, []),
    ('#SBATCH --comment="it\\\'s \\"a\\" \\ b"\'x\'\n', {}, []),
    ("#SBATCH --comment=a\\ b\n", {}, []),
    ("#SBATCH -J 'open\n", {}, []),
    ('#SBATCH -J "open\\"\n', {}, []),
    ("#SBATCH --mem\n#SBATCH -c 4\n", {}, []),
    ("#SBATCH --comment\n#SBATCH -c4 -n3\n", {}, []),
    ('#SBATCH --comment "" -N 2\n#SBATCH -n3\n', {}, []),
    ('#SBATCH --comment="" -N 2\n', {}, []),
    ("#SBATCH -N2 :\n", {}, []),
    ("#SBATCH -J a:b :c\n", {}, []),
    ("#SBATCH -N2 hetjob -n3\n", {}, []),
    ("#SBATCH -J hetjob\n", {}, []),
    ("#SBATCH -J 'hetjob' -n3 hetjobs\n", {}, []),
    ("#SBATCH packjob\n", {}, []),
    ("#SBATCH hetjob\n", {}, []),
    ("#SLURM -N2\n", {}, []),
    ("#SBATCH word\n", {}, []),
    ("#SBATCH --mem = 4G\n", {}, []),
    ("#SBATCH -t=1:00\n", {}, []),
    ("#SBATCH -N2 --\n", {}, []),
    ("#SBATCH -N2 -- -n3\n", {}, []),
    ("#SBATCH -N2 -\n", {}, []),
    ("#SBATCH --help --version -V -h --usage --wrap=x -vQ -N2\n", {}, []),
    ("#SBATCH --gpu=1\n", {}, []),
    ("#SBATCH --clust=a\n", {}, []),
    ("#SBATCH --cluster=a --tasks-per=3\n", {}, []),
    ("#SBATCH --gres-f=enforce-binding --gres=gpu --no-k\n", {}, []),
    ("#SBATCH --exclusive user\n", {}, []),
    ("#SBATCH --exclusive=user --nice=5 -kset --propagate=CPU\n", {}, []),
    ("#SBATCH --exclusive= --nice= -k\n", {}, []),
    ("#SBATCH --exclusive -s --requeue\n", {"SBATCH_NO_REQUEUE": "1"}, ["--exclusive=mcs"]),
    ("#SBATCH --requeue -O --spread-job\n", {"SBATCH_NO_REQUEUE": "0", "SBATCH_OVERCOMMIT": "no"}, ["-N2"]),
    ("#SBATCH -O\n", {"SBATCH_OVERCOMMIT": "0"}, ["-O"]),
    ("", {"SBATCH_OVERCOMMIT": "Yes", "SBATCH_WAIT": " 2", "SBATCH_SPREAD_JOB": "2x"}, []),
    ("", {"SBATCH_EXCLUSIVE": "", "SBATCH_GRES": "", "SBATCH_NO_KILL": ""}, []),
    ("#SBATCH --ignore-pbs\n", {"SBATCH_IGNORE_PBS": "0"}, []),
    ("", {"SBATCH_IGNORE_PBS": "0"}, ["--ignore-pbs"]),
    ("", {"SBATCH_DEBUG": "0"}, ["-v"]),
    ("", {"SBATCH_DEBUG": "1"}, []),
    ("#SBATCH --gres=gpu:1 -p a\n", {"SBATCH_GRES": "gpu:2", "SBATCH_PARTITION": "b"}, ["--gres=gpu:a:3,shard:2"]),
    ("#SBATCH --gres=gres:gpu:1,gpu:2\n", {}, []),
    ("#SBATCH --gres=none\n", {}, []),
    ("", {"SLURM_CLUSTERS": "b", "SBATCH_CLUSTERS": "a", "SBATCH_HINT": "compute_bound", "SLURM_HINT": "x"}, []),
    ("#SBATCH --switches=2@10\n", {"SBATCH_REQ_SWITCH": "3", "SBATCH_WAIT4SWITCH": "20"}, []),
    ("#SBATCH -N2\n", {}, ["--wrap=echo"]),
    ("", {}, ["--wrap=echo", "a.sh"]),
    ("", {}, ["--", "a.sh", "-N2"]),
    ("", {}, ["-J", "--", "a.sh", "--", "-x"]),
    ("", {}, ["-HkN", "2", "a.sh"]),
    ("", {}, ["-Hkset", "-J", "-x", "--comment", "--gres=gpu:1", "a.sh"]),
    ("", {}, ["--zzz", "a.sh"]),
    ("", {}, ["--n=3", "a.sh"]),
    ("", {}, ["-Z", "a.sh"]),
    ("", {}, ["-H-", "a.sh"]),
    ("", {}, ["--hold=1", "a.sh"]),
    ("", {}, ["a.sh", "--zzz", "-Z"]),
    ("", {}, ["-N1", ":", "-N2", "a.sh"]),
    ("#PBS -N x\n", {}, []),
    ("#PBS -N x\n", {}, ["--ignore-pbs"]),
    ("#SBATCH --comment=a\\ b -N2\n", {}, []),
    ("#SBATCH \\ -N2 -n3\n#SBATCH -c2\n", {}, []),
    ("#SBATCH --comment=a\\\tb -N2\n", {}, []),
    ("#SBATCH --comment='a\\ b'\\ \\  -N2 \\\n", {}, []),
    ("#SBATCH -J a\\  hetjob\n", {}, []),
    ("", {"SBATCH_DEBUG": "0"}, ["-vv"]),
    ("#SBATCH --requeue\n", {"SBATCH_REQUEUE": "0"}, []),
    ("", {"SBATCH_REQUEUE": "yes"}, []),
    ("", {"SBATCH_GET_USER_ENV": "0"}, []),
    ("#SBATCH --get-user-env=10\n", {}, []),
    ("#SBATCH --requeue=expedite\n", {}, []),
    ("#SBATCH --tres-per-task=gres/gpu:1 --segment=2 --stepmgr --oom-kill-step=1\n", {}, []),
    ("#SBATCH --exclusive=topo\n", {}, []),
    ("#SBATCH --exclusive=oversubscribe\n", {}, []),
    ("#SBATCH --gres=gres/gpu:1,gres:mps:50 --gpus=a100:2 --gpus-per-node=gpu:a:1\n", {}, []),
    ("#SBATCH --export-file=x --power=level --cluster-constraint=x --reboot\n", {}, []),
    ("#SBATCH --gres-flags=disable-binding --gres-flags=one-task-per-sharing\n", {}, ["--gres-flags=enforce-binding"]),
    ("", {}, ["--external"]),
    ("", {}, ["--autocomplete=x"]),
    ("", {}, ["--auto=x", ":", "a.sh"]),
    ("#SBATCH -J é\u00a0ü --comment='\u0085 ß'\n", {}, ["--wckey=é"]),
]


# Whether they are one job, or heterogeneous ones, which the reader leaves alone.
ONE_OR_MORE: list[tuple[str, list[str], bool]] = [
    ("#SBATCH -N1 -A a\n#SBATCHHETJOB\n#SBATCH -n3\n", ["-t5", "--gres=gpu:1"], True),
    ("#SBATCH -N1\n#SBATCH packjob\n#SBATCH -N2\n", ["-Q"], True),
    ("#SBATCH -N1 -A a\n#SBATCH -N2 hetjob -c9\n", [], False),
    ("#SBATCH -N1\necho\n#SBATCH hetjob\n", ["-N2"], False),
    ("", ["-N1", ":", "-N2", "--", "a.sh"], True),
    ("", ["-N1", "a.sh", ":", "-N2"], False),
    ("", ["-N1", ":", "-N2", "--wrap=x"], True),
    ("#SBATCH hetjob\n", ["--wrap=x", "-N1"], False),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_cases(sbatch: Sbatch, case: tuple[str, dict[str, str], list[str]]) -> None:
    body, environ, argv = case
    compare(sbatch, (SHEBANG + body).encode(), environ, argv)


@pytest.mark.parametrize(("body", "argv", "several"), ONE_OR_MORE)
def test_heterogeneous_jobs(sbatch: Sbatch, body: str, argv: list[str], several: bool) -> None:
    script = (SHEBANG + body).encode()
    truth = sbatch.ask(script, {}, *argv, *([] if {"a.sh", "--wrap=x"} & set(argv) else ["a.sh"]), last=int(several))
    assert len(truth.readings) == 1 + several, truth.said
    assert compare(sbatch, script, {}, argv) == ("unsure" if several else "compared")


# --- real scripts ---


def texts_of_the_project() -> Iterator[str]:
    """Give every file of the project, each code block of its documents and each string in its Python.

    Those in tests/golden are scripts as csub hands them to sbatch.
    """
    root = RECORDED.parents[1]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout.decode()
    for path in (root / name for name in listed.split("\0") if name):
        text = path.read_text(errors="surrogateescape") if path.is_file() else ""
        if path.suffix == ".py":
            constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            yield from (one if isinstance(one, str) else "" for one in constants)
        else:
            yield from (text, *text.split("```")[1::2])


def test_scripts_of_the_project(sbatch: Sbatch) -> None:
    scripts = [text for text in texts_of_the_project() if text.startswith("#!") or "#SBATCH" in text]
    scripts += [SHEBANG + text for text in scripts if not text.startswith("#!")]
    assert len(scripts) > 100
    went: Counter[str] = Counter()
    for script in scripts:
        went[compare(sbatch, script.encode(errors="surrogateescape"), {}, [])] += 1
    assert went["compared"] > 50, went


@pytest.mark.parametrize("commands", [99, 100, 101, 102])
@pytest.mark.parametrize("line", ["#PBS -N other", "#BSUB -J other"])
def test_reach_of_other_schedulers_lines(sbatch: Sbatch, commands: int, line: str) -> None:
    text = (SHEBANG + "#\n" + "\n" * 50 + "x\n" * (commands - 50) + "# x\n" + line + "\n").encode()
    (reading,) = sbatch.ask(text, {}, "a.sh").readings
    assert bool(read_script(text, sbatch.table, sbatch.release).foreign) == (reading.get("job-name") == "other")


# --- mixed cases ---

FRAGMENT = (
    "-N", "2", "-N2", "-HN", "-k", "-J", "--mem", "=", "4G", "--gres=gpu:1", "--gres", "gpu:2", "--part",
    "--gpus-per-n=1", "--exclusive", "--nice=", "-t1", "-t=1", "--", "-", ":", ":x", "hetjob", "HETJOB", "packjob",
    "#", "#x", "\\", "\\\\", '"', "'", '""', "''", '"a b"', "'#'", "\\#", "\\'", '\\"', " ", "  ", "\t", "\x0b",
    "\r", "é", "a", "--comment=", "-vQ", "--comm", "--requeue", "--no-req", "--gpu", "--clusters=c", "-O", "-s",
    "X", "=x", "--wrap=x", "--help", "\xa0",
)  # fmt: skip
WHOLE_LINE = (
    "", " ", "#", "# words", "##SBATCH -N9", " #SBATCH -N9", "#sbatch -N9", "#SBATCH hetjob", "#SBATCHhetjob -N1",
    "echo", "#PBS -N x", "#SLURM -N2", "\x0c", "#SBATCH", "#CSUB --mode=x", "#SBATCH #-N9",
)  # fmt: skip
FRAGMENTS = st.sampled_from(FRAGMENT)
WHOLE_LINES = st.sampled_from(WHOLE_LINE)


@st.composite
def good_options(draw: st.DrawFn, table: tuple[Option, ...], wanted: tuple[Option, ...]) -> str:
    """Write one option that is right, in one of the ways to write it; a space parts name and value where both stand."""
    option = draw(st.sampled_from(wanted))
    value = (
        "" if option.argument == "none" else GOOD_VALUES.get(option.name, draw(st.sampled_from(["word", "a.b", "x=1"])))
    )
    if option.argument == "optional" and draw(st.booleans()):
        value = ""
    if option.short and draw(st.booleans()):
        blank = draw(st.sampled_from(["", " "])) if option.argument == "required" else ""
        return f"-{option.short}{blank}{value}"
    beginnings = [
        option.name[:end]
        for end in range(2, len(option.name))
        if sum(one.name.startswith(option.name[:end]) for one in table) == 1
    ]
    name = draw(st.sampled_from([option.name, option.name, *beginnings]))
    if not value:
        return f"--{name}"
    return f"--{name}{draw(st.sampled_from(['=', ' '])) if option.argument == 'required' else '='}{value}"


WILD_LINE = st.lists(FRAGMENTS, max_size=7).map(lambda parts: "#SBATCH" + "".join(parts))
SPACED_LINE = st.lists(FRAGMENTS, max_size=7).map(lambda parts: "#SBATCH " + " ".join(parts))
WILD_ARGUMENTS = st.lists(FRAGMENTS.filter(lambda word: word not in ("--help",)), max_size=5)


@st.composite
def environments(draw: st.DrawFn, by_variable: dict[str, Option]) -> dict[str, str]:
    """Draw a few variables, flags with all kinds of values."""
    environ = {}
    for variable in draw(st.lists(st.sampled_from(list(by_variable)), max_size=4, unique=True)):
        option = by_variable[variable]
        flags = st.sampled_from(["", "yes", "YES", "1", "0", "no", " 1", "1 ", "-3", "+0"])
        value = GOOD_VALUES.get(option.name, "3")
        environ[variable] = draw(flags) if option.argument == "none" else value
    return environ


def kind_of_jobs(sbatch: Sbatch, kind: str) -> tuple[Any, ...]:
    """Return the strategies for a kind of jobs: "good" or "wild"."""
    wanted = tuple(option for option in sbatch.table if option.name not in (*ACT_AT_ONCE, "uid", "gid"))
    by_variable = variables(sbatch)
    option = good_options(sbatch.table, wanted)
    line = st.tuples(
        st.lists(option, min_size=1, max_size=3), st.sampled_from(["", " # why", "\t#x", " ", " -J 'a #b' "])
    ).map(lambda drawn: "#SBATCH " + " ".join(drawn[0]) + drawn[1])
    arguments = st.lists(option, max_size=4).map(lambda parts: " ".join(parts).split())
    if kind == "good":
        lines = st.lists(st.one_of(line, st.sampled_from(["", "# x", "echo"])), max_size=6)
    else:
        lines = st.lists(st.one_of(line, line, line, WHOLE_LINES, SPACED_LINE, WILD_LINE), max_size=6)
        arguments = st.one_of(arguments, WILD_ARGUMENTS)
    return lines, environments(by_variable), arguments, st.booleans()


def one_example(sbatch: Sbatch, lines: list[str], environ: dict[str, str], argv: list[str], ends: bool) -> None:
    text = SHEBANG + "\n".join(lines) + ("\n" if ends else "")
    after = ["a.sh", "--gres=gpu:7", "--zzz"] if len(argv) % 2 else ["a.sh"]
    whole = argv if "--wrap=x" in argv else [*argv, *after]
    went = compare(sbatch, text.encode(), environ, whole)
    event(went)
    COUNTS[went] += 1


COUNTS: Counter[str] = Counter()


def mixed(examples: int) -> settings:
    return settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None, print_blob=True
    )


def run_mixed(sbatch: Sbatch, kind: str, examples: int) -> dict[str, int]:
    """Run the examples and return how they went."""
    COUNTS.clear()

    @mixed(examples)
    @given(*kind_of_jobs(sbatch, kind))
    def check(lines: list[str], environ: dict[str, str], argv: list[str], ends: bool) -> None:
        one_example(sbatch, lines, environ, argv, ends)

    check()
    sys.stdout.write(f"{sbatch.release} {kind}: {COUNTS}\n")
    return dict(COUNTS)


def test_good_jobs_are_read_alike(sbatch: Sbatch) -> None:
    went = run_mixed(sbatch, "good", 200)
    assert went["compared"] > 100, went


def test_wild_jobs_are_read_alike_or_not_at_all(sbatch: Sbatch) -> None:
    run_mixed(sbatch, "wild", 200)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["good", "wild"])
def test_many_jobs(sbatch: Sbatch, kind: str) -> None:
    run_mixed(sbatch, kind, 5000)
