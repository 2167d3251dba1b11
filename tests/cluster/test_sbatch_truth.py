# SPDX-License-Identifier: Apache-2.0
"""Compare the reader of sbatch's language with sbatch itself; truth.py says how."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from slurm_colloc.slurm.directives import read_script
from slurm_colloc.slurm.option_tables import ENVIRONMENT_ONLY, ENVIRONMENT_ORDER
from tests.cluster.truth import GOOD_VALUES, SHEBANG, TABLE, Sbatch, compare

pytestmark = pytest.mark.cluster

RECORDED = Path(__file__).parent.parent / "recorded" / "slurm-22.05" / "sbatch"


@pytest.fixture(scope="session")
def sbatch(tmp_path_factory: pytest.TempPathFactory) -> Sbatch:
    if shutil.which("sbatch") is None:
        if os.environ.get("COLLOC_REQUIRE_CLUSTER") == "1":
            pytest.fail("COLLOC_REQUIRE_CLUSTER=1, but there is no sbatch on PATH")
        pytest.skip("no sbatch on PATH")
    found = Sbatch(tmp_path_factory.mktemp("truth"))
    version = found.run("--version")
    if not version.startswith("slurm-wlm 22.05") and not version.startswith("slurm 22.05"):
        if os.environ.get("COLLOC_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"COLLOC_REQUIRE_CLUSTER=1, but sbatch is of another release: {version}")
        pytest.skip(f"the table is for 22.05, not {version.strip()}")
    if "TRUTH" not in found.run("--wrap=true"):
        pytest.fail(f"sbatch runs no cli_filter.lua: {found.run('--wrap=true')}")
    return found


# --- the tables ---


def test_recording_is_what_this_sbatch_says(sbatch: Sbatch) -> None:
    assert sbatch.run("--help") == (RECORDED / "help.txt").read_text()
    assert sbatch.run("--usage") == (RECORDED / "usage.txt").read_text()


def test_long_options_and_their_arguments(sbatch: Sbatch) -> None:
    known = re.findall(r" '--([a-z-]+)'", sbatch.run("--=").partition("possibilities:")[2])
    assert sorted(known) == sorted(option.name for option in TABLE)
    for option in TABLE:
        needs = "requires an argument" in sbatch.run(f"--{option.name}")
        takes = "doesn't allow an argument" not in sbatch.run(f"--{option.name}=1")
        assert option.argument == ("required" if needs else "optional" if takes else "none"), option


def test_short_options(sbatch: Sbatch) -> None:
    shorts = {option.short: option for option in TABLE if option.short}
    for letter in map(chr, range(0x21, 0x7F)):
        if letter == "-":
            continue
        said = sbatch.run(f"-{letter}")
        assert ("invalid option" not in said) == (letter in shorts), said
        if letter in shorts:
            assert ("requires an argument" in said) == (shorts[letter].argument == "required"), said


ACT_AT_ONCE = ("help", "usage", "version")


def test_every_option_is_read_under_every_spelling(sbatch: Sbatch) -> None:
    for option in TABLE:
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


def test_every_variable_sets_what_the_table_says(sbatch: Sbatch) -> None:
    by_variable = {option.environment: option for option in (*TABLE, *ENVIRONMENT_ONLY) if option.environment}
    for variable in ENVIRONMENT_ORDER:
        option = by_variable[variable]
        value = "" if option.argument == "none" else GOOD_VALUES.get(option.name, "3")
        assert compare(sbatch, SHEBANG.encode(), {variable: value}, []) == "compared", variable
        if option.name not in ("req-switch", "switch-wait"):
            (reading,) = sbatch.ask(SHEBANG.encode(), {variable: value}, "a.sh").readings
            assert set(reading) == {option.name, "argv"}, variable


def test_no_other_variable_is_read(sbatch: Sbatch) -> None:
    program = Path(str(shutil.which("sbatch"))).read_bytes()
    known = set(ENVIRONMENT_ORDER) | {"SBATCH_MEM_BIND"}
    found = {name.decode() for name in re.findall(rb"\bSBATCH_[A-Z0-9_]+\b", program)}
    assert found <= known, found - known


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
    ("#SBATCH -J é\u00a0ü --comment='\u0085 ß'\n", {}, ["--wckey=é"]),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_cases(sbatch: Sbatch, case: tuple[str, dict[str, str], list[str]]) -> None:
    body, environ, argv = case
    compare(sbatch, (SHEBANG + body).encode(), environ, argv)


@pytest.mark.parametrize(
    "text",
    [
        b"", b" \n\t", b"\0", b"echo\n", b" #!/bin/sh\n", b"#", b"#!", b"#!/bin/sh", b"#!/bin/sh\n\0", b"#!/bin/sh\r\n",
        b"#!/bin/sh\necho\r\n", b"#!/bin/sh\r#SBATCH -N2\n", b"#!/bin/sh\n\r#\n#SBATCH -N2\r",
        b"\xef\xbb\xbf#!/bin/sh\n",
        b"#!/bin/sh\n#SBATCH --comment=" + b"x" * 8130 + b"\n#SBATCH -N2\n", b"#!" + b"x" * 8190, b" " * 8192,
    ],
)  # fmt: skip
def test_files_as_a_whole(sbatch: Sbatch, text: bytes) -> None:
    compare(sbatch, text, {}, [])


def test_components_of_a_script(sbatch: Sbatch) -> None:
    lines = "#SBATCH -J a -N1\n#SBATCH hetjob -c9\n#SBATCH -N2 -c2\n#SBATCHHETJOB\n#SBATCH -n3\n"
    text = (SHEBANG + lines).encode()
    truth = sbatch.ask(text, {"TRUTH_LAST": "2"}, "a.sh")
    parts = read_script(text, TABLE).components
    assert len(truth.readings) == len(parts) == 3, truth.said
    for reading, part in zip(truth.readings, parts, strict=True):
        for one in part:
            assert reading[one.name] == one.value
        # the job's name stays for all components, what is asked of nodes does not
        assert set(reading) == {one.name for one in part} | {"argv", "job-name"}


@pytest.mark.parametrize("commands", [99, 100, 101, 102])
@pytest.mark.parametrize("line", ["#PBS -N other", "#BSUB -J other"])
def test_reach_of_other_schedulers_lines(sbatch: Sbatch, commands: int, line: str) -> None:
    text = (SHEBANG + "#\n" + "\n" * 50 + "x\n" * (commands - 50) + "# x\n" + line + "\n").encode()
    (reading,) = sbatch.ask(text, {}, "a.sh").readings
    assert bool(read_script(text, TABLE).foreign) == (reading.get("job-name") == "other")


# --- mixed cases ---

NAMES = st.sampled_from(
    [option for option in TABLE if option.name not in ACT_AT_ONCE and option.name not in ("uid", "gid")]
)
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
def good_options(draw: st.DrawFn) -> str:
    """Write one option that is right, in one of the ways to write it; a space parts name and value where both stand."""
    option = draw(NAMES)
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
        if sum(one.name.startswith(option.name[:end]) for one in TABLE) == 1
    ]
    name = draw(st.sampled_from([option.name, option.name, *beginnings]))
    if not value:
        return f"--{name}"
    return f"--{name}{draw(st.sampled_from(['=', ' '])) if option.argument == 'required' else '='}{value}"


GOOD_LINE = st.tuples(
    st.lists(good_options(), min_size=1, max_size=3), st.sampled_from(["", " # why", "\t#x", " ", " -J 'a #b' "])
).map(lambda drawn: "#SBATCH " + " ".join(drawn[0]) + drawn[1])
WILD_LINE = st.lists(FRAGMENTS, max_size=7).map(lambda parts: "#SBATCH" + "".join(parts))
SPACED_LINE = st.lists(FRAGMENTS, max_size=7).map(lambda parts: "#SBATCH " + " ".join(parts))
SCRIPTS = st.lists(st.one_of(GOOD_LINE, GOOD_LINE, GOOD_LINE, WHOLE_LINES, SPACED_LINE, WILD_LINE), max_size=6)
GOOD_SCRIPTS = st.lists(st.one_of(GOOD_LINE, st.sampled_from(["", "# x", "echo"])), max_size=6)
GOOD_ARGUMENTS = st.lists(good_options(), max_size=4).map(lambda parts: " ".join(parts).split())
WILD_ARGUMENTS = st.lists(FRAGMENTS.filter(lambda word: word not in ("--help",)), max_size=5)
VARIABLES = {option.environment: option for option in (*ENVIRONMENT_ONLY, *TABLE) if option.environment}


@st.composite
def environments(draw: st.DrawFn) -> dict[str, str]:
    """Draw a few variables, flags with all kinds of values."""
    environ = {}
    for variable in draw(st.lists(st.sampled_from(ENVIRONMENT_ORDER), max_size=4, unique=True)):
        option = VARIABLES[variable]
        flags = st.sampled_from(["", "yes", "YES", "1", "0", "no", " 1", "1 ", "-3", "+0"])
        value = GOOD_VALUES.get(option.name, "3")
        environ[variable] = draw(flags) if option.argument == "none" else value
    return environ


def one_example(sbatch: Sbatch, lines: list[str], environ: dict[str, str], argv: list[str], ends: bool) -> None:
    text = SHEBANG + "\n".join(lines) + ("\n" if ends else "")
    after = ["a.sh", "--gres=gpu:7", "--zzz"] if len(argv) % 2 else ["a.sh"]
    whole = argv if "--wrap=x" in argv else [*argv, *after]
    went = compare(sbatch, text.encode(), environ, whole)
    event(went)
    COUNTS[went] = COUNTS.get(went, 0) + 1


COUNTS: dict[str, int] = {}


def mixed(examples: int) -> settings:
    return settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None, print_blob=True
    )


GOOD = (GOOD_SCRIPTS, environments(), GOOD_ARGUMENTS, st.booleans())
WILD = (SCRIPTS, environments(), st.one_of(GOOD_ARGUMENTS, WILD_ARGUMENTS), st.booleans())


def run_mixed(sbatch: Sbatch, kind: tuple[Any, ...], examples: int) -> dict[str, int]:
    """Run the examples and return how they went."""
    COUNTS.clear()

    @mixed(examples)
    @given(*kind)
    def check(lines: list[str], environ: dict[str, str], argv: list[str], ends: bool) -> None:
        one_example(sbatch, lines, environ, argv, ends)

    check()
    sys.stdout.write(f"{COUNTS}\n")
    return dict(COUNTS)


def test_good_jobs_are_read_alike(sbatch: Sbatch) -> None:
    went = run_mixed(sbatch, GOOD, 300)
    assert went["compared"] > 100, went


def test_wild_jobs_are_read_alike_or_not_at_all(sbatch: Sbatch) -> None:
    run_mixed(sbatch, WILD, 300)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [GOOD, WILD], ids=["good", "wild"])
def test_many_jobs(sbatch: Sbatch, kind: tuple[Any, ...]) -> None:
    run_mixed(sbatch, kind, 5000)
