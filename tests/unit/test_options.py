# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.core.errors import MisusedError, UnsureError
from slurm_colloc.slurm.option_tables import (
    DEADLY_VARIABLES,
    EARLY_VARIABLES,
    RELEASES,
    SAME_VALUE,
    SBATCH_OPTIONS,
    VARIABLE_BEFORE,
    VARIABLES_AFTER,
    Option,
    known_as,
)
from slurm_colloc.slurm.options import RESET, CommandLine, read_environment, scan, split_command_line, without

TABLE = SBATCH_OPTIONS["22.05"]
RECORDED = Path(__file__).parent.parent / "recorded"
ASKED = ("22.05", "24.11", "26.05")  # releases whose sbatch was asked
OWN = (Option("dry-run", "", "none", ""), Option("mode", "", "required", ""), Option("explain", "", "optional", ""))


def split(*argv: str) -> CommandLine:
    return split_command_line(argv, TABLE, OWN)


def pairs(line: CommandLine) -> list[tuple[str, str | None]]:
    return [(one.name, one.value) for one in line.options]


# --- the table against what sbatch says of itself ---


@pytest.mark.parametrize("release", ASKED)
def test_table_is_what_the_binary_accepts(release: str) -> None:
    text = (RECORDED / f"slurm-{release}" / "sbatch" / "arguments.txt").read_text()
    recorded = dict(line.split() for line in text.splitlines())
    options = SBATCH_OPTIONS[release]
    table = {f"--{option.name}": option.argument for option in options}
    table |= {f"-{option.short}": option.argument for option in options if option.short not in ("", "h", "V")}
    assert table == recorded


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--gpu-footprin=mem=9G", "option '--gpu-footprin=mem=9G' is unknown; did you mean '--gpu-footprint'?"),
        ("--dryrun", "option '--dryrun' is unknown; did you mean '--dry-run'?"),
        ("--nothing-like-it", "option '--nothing-like-it' is unknown"),
    ],
)
def test_a_misspelt_option_of_csub_is_named(word: str, said: str) -> None:
    own = (Option("gpu-footprint", "", "required", ""), Option("dry-run", "", "none", ""))
    with pytest.raises(UnsureError) as raised:
        split_command_line([word, "job.sh"], SBATCH_OPTIONS["24.11"], own)
    assert str(raised.value) == said


@pytest.mark.parametrize("release", RELEASES)
def test_names_and_shorts_are_unique_and_aliases_exist(release: str) -> None:
    table = SBATCH_OPTIONS[release]
    names = [option.name for option in table]
    shorts = [option.short for option in table if option.short]
    assert len(set(names)) == len(names)
    assert len(set(shorts)) == len(shorts)
    assert {option.alias_of for option in table} - {""} <= set(names)
    assert set(SAME_VALUE) <= set(names)
    assert {option.argument for option in table} == {"none", "optional", "required"}
    assert {edge for option in table for edge in (option.since, option.until)} <= {"", *RELEASES}


@pytest.mark.parametrize("release", RELEASES)
def test_every_variable_sets_one_thing(release: str) -> None:
    options = (VARIABLE_BEFORE, *SBATCH_OPTIONS[release], *VARIABLES_AFTER)
    variables = [option.environment for option in options if option.environment]
    assert len(set(variables)) == len(variables)
    assert set(EARLY_VARIABLES) <= set(variables)
    assert not {variable for variable, since in DEADLY_VARIABLES.items() if release >= since} & set(variables)


@pytest.mark.parametrize("release", RELEASES)
def test_no_abbreviation_fits_only_spellings_of_one_option(release: str) -> None:
    table = SBATCH_OPTIONS[release]
    for option in table:
        for end in range(1, len(option.name)):
            fits = {one for one in table if one.name.startswith(option.name[:end])}
            names = {one.name for one in fits}
            if len(fits) > 1 and option.name[:end] not in names:
                assert len({one.canonical for one in fits}) > 1, option.name[:end]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("requeue", "none none none none none none optional optional optional"),
        ("get-user-env", "optional optional optional optional optional none none none none"),
        ("export-file", "required required - required required required required required required"),
        ("power", "required required required - - - - - -"),
        ("tres-per-task", "- required required required required required required required required"),
        ("external", "- - - - - none none none none"),
        ("exclusive", " ".join(["optional"] * 9)),
        ("container-type", "- - - - - - - required -"),
        ("runtime", "- - - - - - - - required"),
    ],
)
def test_options_that_changed(name: str, kinds: str) -> None:
    found = [{option.name: option.argument for option in SBATCH_OPTIONS[release]} for release in RELEASES]
    assert [one.get(name, "-") for one in found] == kinds.split()


@pytest.mark.parametrize(
    ("release", "known"),
    [
        ("22.05", "22.05"),
        ("26.11", "26.11"),
        ("27.05", "26.11"),
        ("99.11", "26.11"),
        ("22.11", ""),
        ("27.05.1", ""),
        ("", ""),
    ],
)
def test_a_newer_release_is_known_as_the_newest(release: str, known: str) -> None:
    assert known_as(release) == known


# --- getopt_long ---


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--gres=gpu:1", "a.sh"], [("gres", "gpu:1")]),
        (["--gres", "gpu:1", "a.sh"], [("gres", "gpu:1")]),
        (["--gres=", "a.sh"], [("gres", "")]),
        (["--comment=a=b", "a.sh"], [("comment", "a=b")]),
        (["-G2", "a.sh"], [("gpus", "2")]),
        (["-G", "2", "a.sh"], [("gpus", "2")]),
        (["-t1:00", "a.sh"], [("time", "1:00")]),
        (["-t=1:00", "a.sh"], [("time", "=1:00")]),
        (["-HN2", "a.sh"], [("hold", None), ("nodes", "2")]),
        (["-HN", "2", "a.sh"], [("hold", None), ("nodes", "2")]),
        (["-k", "a.sh"], [("no-kill", None)]),
        (["-koff", "a.sh"], [("no-kill", "off")]),
        (["--exclusive", "a.sh"], [("exclusive", None)]),
        (["--exclusive=user", "a.sh"], [("exclusive", "user")]),
        (["--nice=", "a.sh"], [("nice", None)]),
        (["--part=gpu", "a.sh"], [("partition", "gpu")]),
        (["--cpus-per-t=4", "a.sh"], [("cpus-per-task", "4")]),
        (["--gres-f=x", "--gres=y", "a.sh"], [("gres-flags", "x"), ("gres", "y")]),
        (["--tasks-per-node=2", "--cluster=a", "a.sh"], [("ntasks-per-node", "2"), ("clusters", "a")]),
        (["-J", "-x", "a.sh"], [("job-name", "-x")]),
        (["-J", "--", "a.sh"], [("job-name", "--")]),
        (["--mem", "--gres=gpu:1", "a.sh"], [("mem", "--gres=gpu:1")]),
        (["-N1", "-N2", "a.sh"], [("nodes", "1"), ("nodes", "2")]),
        (["-N1", "--", "a.sh"], [("nodes", "1")]),
        (["a.sh", "-N1", "--gres=gpu:7"], []),
        (["-N1", "-", "-n2"], [("nodes", "1")]),
    ],
)
def test_options(argv: Sequence[str], expected: list[tuple[str, str | None]]) -> None:
    assert pairs(split(*argv)) == expected


@pytest.mark.parametrize(
    "argv",
    [
        ["--zzz"],
        ["--gpu=1"],
        ["--n=3"],
        ["--clust=a"],
        ["--=x"],
        ["--hold=yes"],
        ["--mem"],
        ["-t"],
        ["-HN"],
        ["-Z"],
        ["-W=4"],
        ["-H-"],
        ["-é"],
        ["---mem=1"],
        ["--tres-per-task=gres/gpu:1"],
        ["--wrap=hostname", "a.sh"],
        ["--immediate"],
        ["--Mem=1"],
    ],
)
def test_refused(argv: Sequence[str]) -> None:
    with pytest.raises(UnsureError):
        split(*argv)


def test_script_and_its_arguments() -> None:
    line = split("-N", "2", "job.sh", "--gres=gpu:1", "--dry-run", "--")
    assert (line.script, line.script_args) == ("job.sh", ("--gres=gpu:1", "--dry-run", "--"))
    assert (line.own, line.end, line.script_at) == ((), 2, 2)
    assert split("--", "-N2").script == "-N2"


def test_no_script() -> None:
    for argv in ([], ["-N2"], ["--wrap=echo"], ["-N2", "--"]):
        line = split(*argv)
        assert (line.script_at, line.script, line.script_args) == (None, None, ())


def test_own_options_are_taken_out() -> None:
    line = split("-N2", "--dry-run", "--mode", "mps", "--explain=long", "--mem", "--mode", "a.sh", "--dry-run")
    assert [(one.name, one.value, one.written) for one in line.own] == [
        ("dry-run", None, "--dry-run"),
        ("mode", "mps", "--mode mps"),
        ("explain", "long", "--explain=long"),
    ]
    assert line.sbatch_argv == ("-N2", "--mem", "--mode", "a.sh", "--dry-run")
    assert (line.script, line.script_args) == ("a.sh", ("--dry-run",))


def test_own_options_are_never_abbreviated_and_disturb_no_abbreviation() -> None:
    own = (Option("partial", "", "none", ""), Option("gpus-per-minute", "", "none", ""))
    assert split_command_line(["--part=gpu", "a.sh"], TABLE, own).options[0].name == "partition"
    with pytest.raises(UnsureError):
        split_command_line(["--parti=gpu", "--partia", "a.sh"], TABLE, own)


@pytest.mark.parametrize(
    ("argv", "options", "end"),
    [
        ([], [], 0),
        (["a.sh", "-N1"], [], 0),
        (["-N1", "a.sh"], ["-N1"], 1),
        (["-N1", "--", "a.sh"], ["-N1"], 1),
        (["-N1", "--mode", "mps", "-k", "--dry-run", "a.sh"], ["-N1", "-k"], 2),
        (["-N1", "a.sh", "x", ":"], ["-N1"], 1),
        (["--wrap=x", "-N2"], ["--wrap=x", "-N2"], 2),
    ],
)
def test_where_further_options_go(argv: list[str], options: list[str], end: int) -> None:
    line = split(*argv)
    assert [one.written for one in line.options] == options
    assert (line.end, line.heterogeneous) == (end, False)
    again = split(*line.sbatch_argv[:end], "--comment=1", *line.sbatch_argv[end:])
    assert [one.written for one in again.options] == [*options, "--comment=1"]
    assert (again.script, again.script_args) == (line.script, line.script_args)


@pytest.mark.parametrize("argv", ["-N1 : -N2 a.sh x", ": a.sh", "--wrap=x : -N2", "-J : -N1 a.sh", "-N1 -- : a.sh"])
def test_a_colon_before_the_script_makes_a_heterogeneous_job(argv: str) -> None:
    assert split(*argv.split()).heterogeneous


def test_written() -> None:
    line = split("--gres=gpu:1", "-N", "2", "-HJx", "a.sh")
    assert [one.written for one in line.options] == ["--gres=gpu:1", "-N 2", "-H", "-Jx"]
    assert {one.origin for one in line.options} == {"argv"}


@given(st.lists(st.sampled_from(["-N", "2", "-HN2", "--mode=x", "--mode", "--dry-run", "a.sh", "--", "-k", "--mem=1"])))
def test_what_remains_reads_the_same_without_own_options(argv: list[str]) -> None:
    try:
        line = split(*argv)
    except (UnsureError, MisusedError):
        return
    again = split_command_line(line.sbatch_argv, TABLE)
    assert again.options == line.options
    assert (again.script_at, again.sbatch_argv) == (line.script_at, line.sbatch_argv)


WORDS = [
    "-Ha",
    "-HaQ",
    "-QpHs",
    "-a1-3",
    "-HaH",
    "-QQs",
    "-s",
    "-a",
    "--arr",
    "--array=-a",
    "--mem=1",
    "5",
    "",
    "-",
    "a b",
]


@given(st.lists(st.sampled_from(WORDS), max_size=5), st.sampled_from([{"array"}, {"hold", "quiet"}, {"array", "mem"}]))
def test_what_remains_reads_the_same_without_some_options(words: list[str], names: set[str]) -> None:
    try:
        before = scan(words, TABLE)
    except UnsureError:
        return
    words = words[: before.stop]
    after = scan(without(words, TABLE, names), TABLE)
    wanted = [(option.canonical, value) for option, value, _, _ in before.options if option.canonical not in names]
    assert [(option.canonical, value) for option, value, _, _ in after.options] == wanted


# --- variables ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("yes", None),
        ("YES", None),
        ("1", None),
        ("-1", None),
        (" +07", None),
        ("0", RESET),
        ("00", RESET),
        ("no", RESET),
        ("1 ", RESET),
        ("1x", RESET),
        ("true", RESET),
        ("-", RESET),
        ("²", RESET),
    ],
)
def test_flag_variable(text: str, value: str | None) -> None:
    (one,) = read_environment({"SBATCH_OVERCOMMIT": text}, TABLE, "22.05").late
    assert one == ("overcommit", value, "environment", "SBATCH_OVERCOMMIT")


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"),
        ("SLURM_HINT", "SBATCH_HINT"),
        ("SBATCH_NO_REQUEUE", "SBATCH_REQUEUE"),
    ],
)
def test_of_two_variables_that_set_one_thing_the_later_wins_as_in_sbatch(earlier: str, later: str) -> None:
    for release, table in SBATCH_OPTIONS.items():
        read = read_environment({later: "1", earlier: "1", "SBATCH_GRES": ""}, table, release).late
        assert [one.written for one in read if one.written != "SBATCH_GRES"] == [earlier, later]


def test_other_variables_mean_nothing() -> None:
    environ = {"SBATCH_NODES": "2", "SBATCH_TRES_PER_TASK": "x", "SLURM_GRES": "gpu:1", "sbatch_gres": "gpu:1"}
    assert read_environment(environ, TABLE, "22.05") == ((), ())
    assert read_environment({"SBATCH_EXCLUSIVE": ""}, TABLE, "22.05").late[0].value is None


@pytest.mark.parametrize("release", RELEASES)
def test_variables_by_release(release: str) -> None:
    environ = {"SBATCH_TRES_PER_TASK": "a", "SBATCH_SEGMENT_SIZE": "2", "SBATCH_DEBUG": "1", "SBATCH_REQUEUE": "0"}
    early, late = read_environment(environ, SBATCH_OPTIONS[release], release)
    expected = ["debug"] * (release < "23.02") + ["requeue"]
    expected += ["segment_size"] * (release >= "25.05") + ["tres_per_task"] * (release >= "23.02")
    assert [one.written.removeprefix("SBATCH_").lower() for one in late] == expected
    assert [one.name for one in early] == ["verbose"] * (release >= "23.02")
    (requeue,) = (one for one in late if one.name == "requeue")
    assert requeue.value == (RESET if release < "25.11" else "0")


@pytest.mark.parametrize("release", RELEASES)
def test_the_variable_of_an_option_that_is_gone(release: str) -> None:
    environ = {"SBATCH_POWER": "level"}
    if release < "24.05":
        assert read_environment(environ, SBATCH_OPTIONS[release], release).late[0].name == "power"
        return
    with pytest.raises(UnsureError, match="SBATCH_POWER"):
        read_environment(environ, SBATCH_OPTIONS[release], release)
