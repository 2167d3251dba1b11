# SPDX-License-Identifier: Apache-2.0
"""Ask the real sbatch how it reads a case, and compare the reader's answer.

A cli_filter.lua beside a private slurm.conf prints sbatch's own reading of script, variables and arguments for each
component and then sends the job to a cluster that nobody knows, so that no controller is needed. Instead of modelling
how sbatch rewrites values ("10" to "00:10:00"), what the reader returns is given to sbatch again as plain
`--name=value` arguments, and both of sbatch's readings are compared; values that sbatch keeps verbatim, and --gres but
for its "gres:" or "gres/", are compared directly as well.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from slurm_colloc.core.errors import UnsureError
from slurm_colloc.slurm.directives import Script, options_in_force, read_script
from slurm_colloc.slurm.option_tables import SAME_VALUE, SBATCH_OPTIONS, VARIABLES_AFTER
from slurm_colloc.slurm.options import Given, read_environment, split_command_line
from tests.cluster.releases import Release

SHEBANG = "#!/bin/sh\n"

SLURM_CONF = """
ClusterName=truth
SlurmctldHost=localhost(127.0.0.1)
AuthType=auth/none
CliFilterPlugins=lua
SelectType=select/cons_tres
GresTypes=gpu,mps,shard
NodeName=n1 CPUs=1
PartitionName=p Nodes=n1
"""
# A cluster that nobody knows ends sbatch behind the last component, when it has accepted them all.
CLI_FILTER = """
function slurm_cli_setup_defaults(options, early_pass) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
    io.stderr:write("TRUTH " .. slurm.json_cli_options(options) .. "\\n")
    if offset >= tonumber(os.getenv("TRUTH_LAST") or "0") then options["clusters"] = "nowhere" end
    return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job_id, step_id) return slurm.SUCCESS end
"""
ACCEPTED = "'nowhere' can't be reached"
# What sbatch says when it cannot read the words, as against a value that it reads and does not like.
SYNTAX = re.compile(
    "unrecognized option|invalid option|is ambiguous|requires an argument|doesn't allow an argument|Invalid directive|"
    "Unexpected `:`|Unmatched|does not look like a batch script|is empty!|only whitespace|NULL character|DOS line|"
    "Script arguments not permitted|Change from #SLURM"
)
# Where the reader stands aside though sbatch goes on.
DELIBERATE = re.compile("'#SLURM'|a heterogeneous job|takes no script")
# Kept letter by letter in sbatch's own reading.
VERBATIM = (
    "account",
    "comment",
    "constraint",
    "job-name",
    "licenses",
    "mail-user",
    "output",
    "partition",
    "qos",
    "reservation",
    "wckey",
)
# Kept as well, but for "gres:" (22.05) or "gres/" before each item.
WITH_TYPE = ("gres", "gpus", "gpus-per-node")


class Truth(NamedTuple):
    """What sbatch made of a case: a reading for each component it came to, and what it said."""

    readings: list[dict[str, Any]]
    said: str

    @property
    def accepted(self) -> bool:
        """Say whether sbatch would have asked the controller."""
        return ACCEPTED in self.said


class Sbatch:
    """The real sbatch of a release with a configuration of its own."""

    def __init__(self, release: Release, folder: Path) -> None:
        self.release = release.name
        self.table = SBATCH_OPTIONS[release.name]
        self.folder = folder
        self._release = release
        folder.chmod(0o755)
        (folder / "slurm.conf").write_text(SLURM_CONF)
        (folder / "cli_filter.lua").write_text(CLI_FILTER)
        release.write_mounts(folder / "mounts", {})

    def program(self) -> bytes:
        """Return the program itself and the library behind it."""
        usr = (self._release.root if self._release.suite else Path("/")) / "usr"
        return b"".join(path.read_bytes() for path in (usr / "bin/sbatch", *(usr / "lib").rglob("libslurmfull.so")))

    def run(self, *argv: str, environ: dict[str, str] | None = None) -> str:
        """Run sbatch and return all it said."""
        bare = {name: text for name, text in os.environ.items() if not name.startswith(("SBATCH_", "SLURM_", "SPANK_"))}
        done = subprocess.run(
            self._release.enter(["sbatch", *argv], self.folder / "mounts"),
            env={**bare, "SLURM_CONF": str(self.folder / "slurm.conf"), **(environ or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        return done.stdout.decode("utf-8", "surrogateescape")

    def ask(self, script: bytes | None, environ: dict[str, str], *argv: str, last: int = 0) -> Truth:
        """Let sbatch read a case; the script's name in argv is "a.sh"."""
        if script is not None:
            (self.folder / "a.sh").write_bytes(script)
        said = self.run(*argv, environ={"TRUTH_LAST": str(last), **environ})
        readings = [json.loads(line[6:]) for line in said.split("\n") if line.startswith("TRUTH ")]
        return Truth(readings, said)


# A right value for each option whose value cannot be any word.
GOOD_VALUES = {
    "acctg-freq": "task=30", "array": "1-3", "batch": "x", "begin": "2035-01-02T03:04", "chdir": "/tmp",
    "container": "/tmp", "core-spec": "1", "cores-per-socket": "2", "cpu-freq": "high", "cpus-per-gpu": "2",
    "cpus-per-task": "2", "deadline": "2036-01-02T03:04", "delay-boot": "10", "distribution": "block",
    "exclusive": "user", "export-file": "1", "extra-node-info": "1:1:1", "get-user-env": "10", "gid": "0",
    "gpu-bind": "closest", "gpu-freq": "high", "gres": "gpu:1", "gres-flags": "enforce-binding",
    "hint": "nomultithread", "kill-on-invalid-dep": "yes", "mail-type": "END", "mem": "4G", "mem-bind": "local",
    "mem-per-cpu": "1G", "mem-per-gpu": "2G", "mincpus": "2", "nice": "7", "no-kill": "set", "nodefile": "f",
    "nodes": "2-3", "ntasks": "3", "ntasks-per-core": "1", "ntasks-per-gpu": "1", "ntasks-per-node": "2",
    "ntasks-per-socket": "1", "ntasks-per-tres": "1", "open-mode": "append", "power": "level", "priority": "5",
    "profile": "task", "propagate": "CPU", "signal": "B:USR1@60", "sockets-per-node": "1", "switches": "2@10",
    "tasks-per-node": "2", "thread-spec": "1", "threads-per-core": "2", "time": "1:00:00", "time-min": "10",
    "tmp": "1G", "uid": "0", "wait-all-nodes": "1", "container-type": "oci", "mem-update": "10@5",
    "oom-kill-step": "1", "requeue": "expedite", "resv-ports": "2", "segment": "2", "tres-bind": "gres/gpu:closest",
    "tres-per-task": "gres/gpu:1",
    "error": "/tmp/e", "input": "/tmp/i", "output": "/tmp/o",
}  # fmt: skip


def normal(reading: dict[str, Any], held: dict[str, Given]) -> dict[str, Any]:
    """Make a reading comparable.

    sbatch reports an option under the spelling used; it reports both names of one value, both with what the later
    says; -v and -Q are counted; --mail-type and --gres-flags add up, and --requeue does not take --requeue=expedite
    back, where the reader has the last only; the two halves of --switches may come from different places.
    """
    counted = {"verbose", "quiet", "mail-type", "gres-flags"}
    if "req-switch" in held or "switch-wait" in held:
        counted.add("switches")
    result = dict(reading)
    result.pop("argv")
    if result.get("requeue") == "expedite":
        result["requeue"] = "requeue"
    for alias, name in (("cluster", "clusters"), ("tasks-per-node", "ntasks-per-node")):
        if alias in result:
            result[name] = result.pop(alias)
    for name, other in SAME_VALUE.items():
        if name not in held and (other in held or result.get(name) == "unset"):
            result.pop(name, None)
    return {name: name if name in counted else value for name, value in result.items()}


def plain(held: dict[str, Given]) -> tuple[dict[str, str], list[str]]:
    """Write what holds as variables (for what has no option) and arguments."""
    only = {option.name: option.environment for option in VARIABLES_AFTER if option.name.find("switch") >= 0}
    environ = {only[name]: one.value or "" for name, one in held.items() if name in only}
    argv = [
        f"--{name}" if one.value is None else f"--{name}={one.value}" for name, one in held.items() if name not in only
    ]
    return environ, argv


def untyped(text: str | None) -> str | None:
    """Take away what sbatch puts before each item of a list of generic resources."""
    return text if text is None else re.sub("gres[:/]", "", text)


def compare(sbatch: Sbatch, script: bytes, environ: dict[str, str], argv: list[str]) -> str:
    """Compare one case and return how it went; the script stands behind the options as "a.sh" unless argv says so."""
    argv = argv if "a.sh" in argv or any(word.startswith("--wrap") for word in argv) else [*argv, "a.sh"]
    table, release = sbatch.table, sbatch.release
    refusal = ""
    try:
        line = split_command_line(argv, table)
        wrapped = any(one.name == "wrap" for one in line.options)
        # "a.sh" may have become the value of an option; sbatch then reads its standard input, which is empty.
        read: Script | None = None if wrapped else read_script(script if line.script else b"", table, release)
        held = options_in_force(read, read_environment(environ, table, release), line)
    except UnsureError as error:
        refusal = str(error)
    if refusal:
        truth = sbatch.ask(script, environ, *argv)
        fine = DELIBERATE.search(refusal) or SYNTAX.search(truth.said) or not truth.readings
        assert fine, f"reader: {refusal}\n{script!r}\n{environ}\n{argv}\nsbatch: {truth.said}"
        return "unsure" if truth.accepted else "refused by both"
    truth = sbatch.ask(script, environ, *argv)
    about = f"\n{script!r}\n{environ}\n{argv}\n{held}\nsbatch: {truth.said}"
    if read is not None and read.foreign and "ignore-pbs" not in held:
        return "other schedulers"
    assert not SYNTAX.search(truth.said), about
    assert len(truth.readings) == 1 or not (truth.readings or truth.accepted), about
    for reading in truth.readings:
        assert reading["argv"][1:] == list(line.script_args), about
        assert line.script is None or Path(reading["argv"][0]).name == Path(line.script).name, about
        for name in VERBATIM:
            assert reading.get(name) == (held[name].value if name in held else None), f"{name}: {held}{about}"
        for name in WITH_TYPE:
            assert untyped(reading.get(name)) == (untyped(held[name].value) if name in held else None), (
                f"{name}: {held}{about}"
            )
        environ_again, argv_again = plain(held)
        again = sbatch.ask(SHEBANG.encode(), environ_again, *argv_again, *([] if read is None else ["a.sh"]))
        assert again.readings, f"{argv_again}: {again.said}{about}"
        assert normal(again.readings[0], held) == normal(reading, held), f"{held}{about}"
    return "compared" if truth.readings else "value refused by sbatch"
