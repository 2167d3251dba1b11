# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UnsureError
from slurm_colloc.slurm.option_tables import ENVIRONMENT_ONLY, ENVIRONMENT_ORDER, SAME_VALUE
from slurm_colloc.slurm.options import (
    RESET,
    SBATCH_OPTIONS,
    CommandLine,
    Option,
    read_environment,
    split_command_line,
)

TABLE = SBATCH_OPTIONS["22.05"]
RECORDED = Path(__file__).parent.parent / "recorded" / "slurm-22.05" / "sbatch"
OWN = (Option("dry-run", "", "none", ""), Option("mode", "", "required", ""), Option("explain", "", "optional", ""))


def split(*argv: str) -> CommandLine:
    return split_command_line(argv, TABLE, OWN)


def pairs(line: CommandLine) -> list[tuple[str, str | None]]:
    return [(one.name, one.value) for one in line.options]


# --- the table against what sbatch says of itself ---


def test_table_is_what_the_binary_accepts() -> None:
    recorded = dict(line.split() for line in (RECORDED / "arguments.txt").read_text().splitlines())
    table = {f"--{option.name}": option.argument for option in TABLE}
    table |= {f"-{option.short}": option.argument for option in TABLE if option.short not in ("", "h", "V")}
    assert table == recorded


def test_table_covers_help() -> None:
    text = (RECORDED / "help.txt").read_text()
    said = re.findall(r"^ +(?:-(\w), )?--([a-z-]+)", text, re.MULTILINE)
    assert len(said) > 80
    shorts = {option.name: option.short for option in TABLE}
    for short, name in said:
        assert name in shorts, name
        assert not short or shorts[name] == short, name


def test_table_covers_usage() -> None:
    text = (RECORDED / "usage.txt").read_text()
    for name in re.findall(r"--([a-z-]+)", text):
        assert name in {option.name for option in TABLE}
    # "-r n" stands in the usage text, but sbatch 22.05 refuses it
    assert set(re.findall(r"\[-(\w)", text)) - {option.short for option in TABLE} == {"r"}


def test_names_and_shorts_are_unique_and_aliases_exist() -> None:
    names = [option.name for option in TABLE]
    shorts = [option.short for option in TABLE if option.short]
    assert len(set(names)) == len(names)
    assert len(set(shorts)) == len(shorts)
    assert {option.alias_of for option in TABLE} - {""} <= set(names)
    assert set(SAME_VALUE) <= set(names)


def test_every_variable_has_its_place_in_the_order() -> None:
    variables = [option.environment for option in (*TABLE, *ENVIRONMENT_ONLY) if option.environment]
    assert sorted(variables) == sorted(ENVIRONMENT_ORDER)


def test_no_abbreviation_fits_only_spellings_of_one_option() -> None:
    for option in TABLE:
        for end in range(1, len(option.name)):
            fits = {one for one in TABLE if one.name.startswith(option.name[:end])}
            names = {one.name for one in fits}
            if len(fits) > 1 and option.name[:end] not in names:
                assert len({one.canonical for one in fits}) > 1, option.name[:end]


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
    with pytest.raises(UnsureError, match="handed to sbatch unchanged"):
        split(*argv)


def test_script_and_its_arguments() -> None:
    line = split("-N", "2", "job.sh", "--gres=gpu:1", "--dry-run", "--")
    assert (line.script, line.script_args) == ("job.sh", ("--gres=gpu:1", "--dry-run", "--"))
    assert (line.own, line.components, line.script_at) == ((), 1, 2)
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


def test_components() -> None:
    line = split("-N1", "--mode", ":", "mps", ":", "--gres=gpu:1", "a.sh")
    assert line.components == 3
    assert line.sbatch_argv == ("-N1", ":", ":", "--gres=gpu:1", "a.sh")
    assert line.script == "a.sh"
    assert split("-N1", "a.sh", "x", ":").components == 2


def test_written() -> None:
    line = split("--gres=gpu:1", "-N", "2", "-HJx", "a.sh")
    assert [one.written for one in line.options] == ["--gres=gpu:1", "-N 2", "-H", "-Jx"]
    assert {one.origin for one in line.options} == {"argv"}


@given(st.lists(st.sampled_from(["-N", "2", "-HN2", "--mode=x", "--mode", "--dry-run", "a.sh", "--", "-k", "--mem=1"])))
def test_what_remains_reads_the_same_without_own_options(argv: list[str]) -> None:
    try:
        line = split(*argv)
    except UnsureError:
        return
    again = split_command_line(line.sbatch_argv, TABLE)
    assert again.options == line.options
    assert (again.script_at, again.sbatch_argv) == (line.script_at, line.sbatch_argv)


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
    (one,) = read_environment({"SBATCH_OVERCOMMIT": text}, TABLE)
    assert one == ("overcommit", value, "environment", "SBATCH_OVERCOMMIT")


def test_variables_in_the_order_of_sbatch() -> None:
    environ = {"SLURM_CLUSTERS": "b", "SBATCH_CLUSTERS": "a", "SBATCH_HINT": "y", "SLURM_HINT": "x", "SBATCH_GRES": ""}
    read = [(one.written, one.name, one.value) for one in read_environment(environ, TABLE)]
    assert read == [
        ("SBATCH_CLUSTERS", "clusters", "a"),
        ("SLURM_CLUSTERS", "clusters", "b"),
        ("SBATCH_GRES", "gres", ""),
        ("SLURM_HINT", "hint", "x"),
        ("SBATCH_HINT", "hint", "y"),
    ]


def test_other_variables_mean_nothing() -> None:
    environ = {"SBATCH_NODES": "2", "SBATCH_TRES_PER_TASK": "x", "SLURM_GRES": "gpu:1", "sbatch_gres": "gpu:1"}
    assert read_environment(environ, TABLE) == ()
    assert read_environment({"SBATCH_EXCLUSIVE": ""}, TABLE)[0].value is None


def test_import_is_lean() -> None:
    root = Path(__file__).parents[2]
    code = (
        f"import sys, typing; sys.path.insert(0, {str(root)!r}); before = set(sys.modules);"
        "import slurm_colloc.slurm.directives; print(sorted(set(sys.modules) - before))"
    )
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    modules = ["", ".errors", ".slurm", ".slurm.directives", ".slurm.option_tables", ".slurm.options"]
    assert said.stdout.strip() == str([f"slurm_colloc{name}" for name in modules])
