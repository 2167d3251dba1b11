# SPDX-License-Identifier: Apache-2.0
import pytest

from slurm_colloc.core.errors import MisusedError, UnsureError
from slurm_colloc.slurm.directives import Script, options_in_force, read_script
from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS, Option
from slurm_colloc.slurm.options import Environment, Given, join_options, read_environment, split_command_line

TABLE = SBATCH_OPTIONS["22.05"]
OWN = (Option("dry-run", "", "none", ""), Option("mode", "", "required", ""))


def read(*lines: str, release: str = "22.05") -> Script:
    return read_script("\n".join(("#!/bin/bash", *lines, "")).encode(), SBATCH_OPTIONS[release], release, OWN)


def pairs(script: Script) -> list[tuple[str, str | None]]:
    return [(one.name, one.value) for one in script.options]


def held(script: str, environ: dict[str, str], *argv: str, release: str = "22.05") -> dict[str, str | None]:
    table = SBATCH_OPTIONS[release]
    found = options_in_force(
        read_script(script.encode(), table, release),
        read_environment(environ, table, release),
        split_command_line(argv, table),
    )
    return {name: one.value for name, one in found.items()}


# --- the file as a whole ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "empty"),
        (b" \n\t\n", "white space"),
        (b"#SBATCH -N2\n", "does not start"),
        (b" #!/bin/sh\n", "does not start"),
        (b"\xef\xbb\xbf#!/bin/sh\n", "does not start"),
        (b"#!/bin/sh\necho \0\n", "NUL"),
        (b"#!/bin/sh\necho\r\n", "DOS"),
    ],
)
def test_refused_files(text: bytes, said: str) -> None:
    with pytest.raises(UnsureError, match=said):
        read_script(text, TABLE, "22.05")


def test_interpreter_and_place_for_more_lines() -> None:
    text = "#!/usr/bin/env python3 \n# é\n#SBATCH -N2\n\nimport os\n#SBATCH -N3\n"
    script = read_script(text.encode(), TABLE, "22.05")
    assert script.interpreter == "/usr/bin/env python3"
    assert text.encode()[script.insert_at :] == b"import os\n#SBATCH -N3\n"
    assert pairs(script) == [("nodes", "2")]
    bare = b"#!/bin/sh\n#SBATCH -N2"
    assert read_script(bare, TABLE, "22.05").insert_at == len(bare)


# --- which lines count ---


@pytest.mark.parametrize(
    "line",
    ["##SBATCH -N3", "# SBATCH -N3", " #SBATCH -N3", "#sbatch -N3", "#Sbatch -N3", "", "  \t", "#", "\v\f#x", "\r#"],
)
def test_lines_that_count_for_nothing(line: str) -> None:
    assert pairs(read(line, "#SBATCH -N2")) == [("nodes", "2")]


@pytest.mark.parametrize("line", ["echo", "set -e", "X=1", " :", "cat <<E", "\u00a0", "\u0085#"])
def test_first_command_ends_the_reading(line: str) -> None:
    assert pairs(read(line, "#SBATCH -N2", "#SBATCH 'open")) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["#SBATCH--time=1"], [("time", "1")]),
        (["#SBATCH -N 2 -n 8"], [("nodes", "2"), ("ntasks", "8")]),
        (["#SBATCH\t-N\v2\f-n8"], [("nodes", "2"), ("ntasks", "8")]),
        (['#SBATCH --job-name="a b"'], [("job-name", "a b")]),
        (["#SBATCH '--job-name=a b'x"], [("job-name", "a bx")]),
        (["#SBATCH --comment='it\\'s'"], [("comment", "it's")]),
        (['#SBATCH --comment="a\\"b\\\\"'], [("comment", 'a"b\\')]),
        (["#SBATCH --comment=a\\tb\\#"], [("comment", "atb#")]),
        (["#SBATCH --mem=32GB#SBATCH -c 4"], [("mem", "32GB")]),
        (["#SBATCH -J job#1 -N2"], [("job-name", "job")]),
        (['#SBATCH --comment="#1" # -N2'], [("comment", "#1")]),
        (["#SBATCH -N2 \\", "#SBATCH -n3\\"], [("nodes", "2"), ("ntasks", "3")]),
        (["#SBATCH --mem", "#SBATCH -c 4"], [("mem", "-c"), ("?", "?")]),
        (['#SBATCH --comment "" -N 2', "#SBATCH -n3"], [("comment", "-n3")]),
        (['#SBATCH --comment="" -N2'], [("comment", ""), ("nodes", "2")]),
        (["#SBATCH -N2 hetjob -n3", "#SBATCH -c4"], [("nodes", "2"), ("cpus-per-task", "4")]),
        (["#SBATCH -J 'hetjob' -n3"], [("job-name", "hetjob"), ("ntasks", "3")]),
        (["#SBATCH --output=$HOME/${N}-%j"], [("output", "$HOME/${N}-%j")]),
        (["#SBATCH -N2 --"], [("nodes", "2")]),
        (["#SBATCH"], []),
        (["#SBATCH --help -V --usage -vQ --wrap=x -N2"], [("nodes", "2")]),
        (["#SBATCH -J é\u00a0ü"], [("job-name", "é\u00a0ü")]),
    ],
)
def test_words(lines: list[str], expected: list[tuple[str, str | None]]) -> None:
    if ("?", "?") in expected:
        with pytest.raises(UnsureError, match="'4' is no option"):
            read(*lines)
        return
    assert pairs(read(*lines)) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("#SBATCHX -N2", "line 2: 'X' is no option"),
        ("#SBATCH -N2 nodes", "line 2: 'nodes' is no option"),
        ("#SBATCH --mem = 4G", "line 2: '4G' is no option"),
        ("#SBATCH -N2 -- -n3", "line 2: '-n3' is no option"),
        ("#SBATCH --zzz", "line 2: --zzz' is unknown"),
        ("#SBATCH --time", "line 2: --time' has no value"),
        ("#SBATCH -J hetjob", "line 2: -J' has no value"),
        ("#SBATCH -J 'open", "quote is not closed"),
        ('#SBATCH -J "open\\"', "quote is not closed"),
        ("#SBATCH :", "starts with ':'"),
        ("#SBATCH -N1 :x", "starts with ':'"),
        ("#SBATCH hetjob :", "heterogeneous"),
        ("#SBATCHpackjob", "heterogeneous"),
        ("#SBATCH HetJob -N2", "heterogeneous"),
        ("#SLURM -N2", "#SLURM"),
        ("#SLURMX", "#SLURM"),
        ("#SBATCH --mode=mps", "line 2: .*#CSUB"),
        ("#SBATCH -N2 --dry-run", "line 2: .*#CSUB"),
        ("#CSUB --mem=2", "unknown"),
        ("#CSUB word", "is no option"),
    ],
)
def test_refused_lines(line: str, said: str) -> None:
    with pytest.raises(MisusedError if line.startswith("#CSUB") else UnsureError, match=said):
        read(line)


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        ("--comment=a\\ b", "'b' is no option", [("comment", "a b")]),
        ("--comment=a\\\\ -N2", [("comment", "a\\"), ("nodes", "2")], [("comment", "a\\"), ("nodes", "2")]),
        ("-N2 \\ -n3", [("nodes", "2")], "' -n3' is no option"),
        ("-N2 -J\\ x\\ ", [("nodes", "2"), ("job-name", "x")], [("nodes", "2"), ("job-name", " x ")]),
        ("--comment=a\\\t-N2", [("comment", "a"), ("nodes", "2")], [("comment", "a"), ("nodes", "2")]),
        ("--comment='a\\ b'", [("comment", "a b")], [("comment", "a b")]),
    ],
)
@pytest.mark.parametrize("release", SBATCH_OPTIONS)
def test_backslash_before_a_blank(
    line: str, old: str | list[tuple[str, str]], new: str | list[tuple[str, str]], release: str
) -> None:
    expected = old if release < "24.05" else new
    if isinstance(expected, list):
        assert pairs(read(f"#SBATCH {line}", release=release)) == expected
        return
    with pytest.raises(UnsureError, match=expected):
        read(f"#SBATCH {line}", release=release)


def test_written_names_the_line() -> None:
    assert read("", "#SBATCH --gres=gpu:1 -N 2").options == (
        Given("gres", "gpu:1", "directive", "line 3: --gres=gpu:1"),
        Given("nodes", "2", "directive", "line 3: -N 2"),
    )


def test_own_directives() -> None:
    script = read(
        "#CSUB --mode='mps' --dry-run # why", "#SBATCH -N2", "#CSUBMIT is another word", "echo", "#CSUB --bad"
    )
    assert [(one.name, one.value, one.written) for one in script.own_directives] == [
        ("mode", "mps", "line 2: --mode=mps"),
        ("dry-run", None, "line 2: --dry-run"),
    ]
    assert pairs(script) == [("nodes", "2")]
    assert read_script(b"#!/bin/sh\n#CSUB --bad\n", TABLE, "22.05").own_directives == ()
    # One that a plugin adds to sbatch is sbatch's.
    plugins = join_options(TABLE, ["mode="])
    assert pairs(read_script(b"#!/bin/sh\n#SBATCH --mode=mps\n", plugins, "22.05", OWN)) == [("mode", "mps")]


def test_other_schedulers_lines_are_found_behind_commands() -> None:
    near = ["echo", *["x"] * 99, "#PBS -l walltime=1"]
    assert read(*near).foreign == ("line 102: #PBS -l walltime=1",)
    assert read("x", *near).foreign == ()
    assert read("", *["#"] * 300, "#BSUB -n 2").foreign == ("line 303: #BSUB -n 2",)
    assert read(" #PBS", "##PBS", "# PBS").foreign == ()


# --- what wins ---


def test_the_last_wins() -> None:
    script = "#!/bin/sh\n#SBATCH --gres=gpu:1 --gres=gpu:2 -p a -t 1\n"
    environ = {"SBATCH_PARTITION": "b", "SBATCH_TIMELIMIT": "2"}
    assert held(script, environ, "-t3", "-t4", "a.sh") == {"gres": "gpu:2", "partition": "b", "time": "4"}
    held_by_wrap = options_in_force(None, Environment(), split_command_line(["--wrap=x"], TABLE))
    assert held_by_wrap["wrap"].origin == "argv"


def test_a_variable_takes_a_flag_back() -> None:
    script = "#!/bin/sh\n#SBATCH -O --requeue\n"
    environ = {"SBATCH_OVERCOMMIT": "0", "SBATCH_NO_REQUEUE": "no", "SBATCH_JOB_NAME": "reset"}
    assert held(script, environ, "a.sh") == {"job-name": "reset"}
    assert held(script, environ, "-O", "a.sh") == {"job-name": "reset", "overcommit": None}
    assert held(script, {"SBATCH_DEBUG": "0"}, "-v", "a.sh") == {"overcommit": None, "requeue": None}
    later = held(script, {"SBATCH_DEBUG": "0"}, "-v", "a.sh", release="23.02")
    assert later == {"overcommit": None, "requeue": None, "verbose": None}


def test_two_names_for_one_value() -> None:
    script = "#!/bin/sh\n#SBATCH --exclusive --no-requeue\n"
    assert held(script, {"SBATCH_REQUEUE": ""}, "-s", "a.sh") == {"requeue": None, "oversubscribe": None}


def test_a_scripts_ignore_pbs_outlives_the_variable() -> None:
    assert "ignore-pbs" in held("#!/bin/sh\n#SBATCH --ignore-pbs\n", {"SBATCH_IGNORE_PBS": "0"}, "a.sh")


def test_a_heterogeneous_job_is_left_alone() -> None:
    with pytest.raises(UnsureError, match="heterogeneous"):
        held("#!/bin/sh\n", {}, "-N1", ":", "-N2", "a.sh")


@pytest.mark.parametrize("word", ["--external", "--autocomplete=x"])
def test_no_script_is_submitted(word: str) -> None:
    line = split_command_line([word], SBATCH_OPTIONS["26.05"])
    with pytest.raises(UnsureError, match="takes no script"):
        options_in_force(None, Environment(), line)
