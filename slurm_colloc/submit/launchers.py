# SPDX-License-Identifier: Apache-2.0
"""Launchers: programs whose work is told to them elsewhere, so that the text of their script says nothing of it."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slurm_colloc.estimate.seeds_and_sizes import word_sets


class Launcher(NamedTuple):
    """One launcher: the commands that start it, apart by commas, and where its documentation shows them in a job.

    ``serves`` says that its work may stand in the same script, as that of a cluster's driver does.
    """

    name: str
    commands: str
    source: str
    serves: bool = False


LAUNCHERS = (
    # Sessions: their user types or uploads what runs.
    Launcher(
        "Jupyter",
        "jupyter lab, jupyter notebook, jupyter server, jupyter nbclassic, jupyter-lab, jupyter-notebook"
        ", jupyter-server, jupyterlab, notebook, jupyter kernel, jupyter kernelgateway, ipykernel_launcher"
        ", ipykernel -f",
        "Jupyter Server: public server; JupyterLab: starting; Jupyter Kernel Gateway",
    ),
    Launcher("JupyterHub", "jupyterhub-singleuser, batchspawner-singleuser", "batchspawner: SlurmSpawner"),
    Launcher("marimo", "marimo edit", "marimo: remotely hosted notebooks"),
    Launcher("VS Code", "code tunnel, code serve-web, code-insiders tunnel, cursor tunnel", "VS Code: remote tunnels"),
    Launcher("code-server", "code-server, openvscode-server", "code-server: usage"),
    Launcher("JetBrains Gateway", "remote-dev-server.sh", "JetBrains: remote development, manual server"),
    Launcher("RStudio", "rserver, rstudio-server, rsession", "Rocker: RStudio Server by Singularity on Slurm"),
    Launcher("MATLAB", "matlab -desktop, matlab-proxy-app", "MathWorks: matlab (Linux); matlab-proxy"),
    Launcher("Open OnDemand", "source_helpers, wait_until_port_used", "Open OnDemand: ood_core batch_connect template"),
    Launcher("VNC", "vncserver, tigervncserver, Xvnc, x11vnc, x0vncserver, xpra start", "TurboVNC: user's guide"),
    Launcher("a desktop", "startxfce4, xfce4-session, mate-session, gnome-session, dcv", "Open OnDemand: bc_desktop"),
    Launcher("ParaView", "pvserver", "ParaView: remote and parallel visualization"),
    Launcher("sshd", "sshd, dropbear", "OpenSSH: sshd(8)"),
    Launcher("a terminal", "ttyd, tmate, gotty, xterm", "ttyd: command-line options"),
    Launcher("sleep", "sleep inf*, sleep *[hd], sleep [0-9][0-9][0-9][0-9]*", "coreutils: sleep", serves=True),
    Launcher("tail", "tail -f /dev/null", "coreutils: tail", serves=True),
    # Workers: a queue elsewhere hands them what runs.
    Launcher("submitit", "submitit.core._submit", "submitit: SlurmExecutor"),
    Launcher("Ray", "ray start", "Ray: deploying on Slurm", serves=True),
    Launcher(
        "Dask",
        "dask worker, dask-worker, dask cuda worker, dask-cuda-worker, distributed.cli.dask_worker, dask_cuda.cli",
        "Dask: command line; dask-jobqueue: SLURMCluster",
        serves=True,
    ),
    Launcher(
        "ipyparallel", "ipengine, ipcluster start, ipcluster engines, ipyparallel.engine", "ipyparallel", serves=True
    ),
    Launcher(
        "Spark", "start-worker.sh, start-slave.sh, spark-class org.apache*Worker", "Spark: standalone", serves=True
    ),
    Launcher("HyperQueue", "hq worker start", "HyperQueue: deployment of workers", serves=True),
    Launcher(
        "Parsl",
        "process_worker_pool.py, parsl.executors.high_throughput.process_worker_pool",
        "Parsl: HighThroughputExecutor",
    ),
    Launcher("Work Queue", "work_queue_worker, vine_worker, taskvine_worker", "CCTools: TaskVine manual"),
    Launcher("Weights & Biases", "wandb agent, wandb launch-agent", "Weights & Biases: sweeps"),
    Launcher("ClearML", "clearml-agent daemon, clearml-agent execute", "ClearML Agent: reference"),
    Launcher("Celery", "celery worker, celery -A * worker", "Celery: workers guide"),
    Launcher("Merlin", "merlin run-workers", "Merlin: workflow management, run-workers"),
    Launcher("Prefect", "prefect worker start, prefect agent start", "Prefect: workers"),
    Launcher("FireWorks", "rlaunch", "FireWorks: launching by a queue"),
    Launcher("Balsam", "balsam launcher", "Balsam: site configuration"),
    Launcher("RADICAL-Pilot", "bootstrap_0.sh, radical-pilot-agent", "RADICAL-Pilot: design"),
    Launcher("PanDA", "runpilot2-wrapper.sh, runpilot3-wrapper.sh", "PanDA: pilot wrappers"),
    Launcher("DIRAC", "dirac-pilot.py", "DIRAC: pilots"),
    Launcher("HTCondor", "condor_master, condor_startd, glidein_startup.sh", "GlideinWMS: glideins"),
    Launcher("GitHub Actions", "Runner.Listener, actions-runner/run.sh", "GitHub: self-hosted runners"),
    Launcher("GitLab Runner", "gitlab-runner run, gitlab-runner run-single", "GitLab Runner: commands"),
    Launcher("Buildkite", "buildkite-agent start", "Buildkite: agent start"),
    Launcher("Jenkins", "java -jar *agent.jar, java -jar *remoting.jar", "Jenkins: remoting, launching an agent"),
    Launcher("CryoSPARC", "cryosparcw run", "CryoSPARC: cluster integration, script templates"),
    Launcher("Nextflow", "nxf_launch", "Nextflow: the task's .command.run"),
    Launcher(
        "MATLAB Parallel Server", "PARALLEL_SERVER_MATLAB_EXE, MDCE_MATLAB_EXE", "MathWorks: Slurm plugin scripts"
    ),
    Launcher("clustermq", "R -e clustermq:::worker", "clustermq: Slurm template"),
    Launcher("batchtools", "Rscript -e batchtools::doJobCollection", "batchtools: Slurm template"),
    Launcher("crew", "R -e crew::crew_worker, Rscript -e crew::crew_worker", "crew.cluster: Slurm"),
    Launcher("Ollama", "ollama serve", "Ollama: FAQ", serves=True),
)
# Commands that hand a served cluster its work, as a program's own file does.
_HAND_OVER = (["ray", "job", "submit"], ["hq", "submit"], ["ollama", "run"], ["spark-submit"])
_COMMANDS: dict[str, list[tuple[Launcher, list[str]]]] = {}
for _one in LAUNCHERS:
    for _words in map(str.split, _one.commands.split(", ")):
        _COMMANDS.setdefault(_words[0].rpartition("/")[2], []).append((_one, _words))
# The longest word of each: a text without any of them starts no launcher.
_TELLING = frozenset(
    max(re.findall(r"[\w./:-]+", phrase), key=len).encode() for one in LAUNCHERS for phrase in one.commands.split(", ")
)
# Programs that start what stands somewhere behind them; some do with certain words only.
_STARTERS = {
    program: words.split()
    for programs, words in (
        ("srun mpirun mpiexec env nohup setsid timeout nice numactl taskset stdbuf xvfb-run dbus-run-session", ""),
        ("dbus-launch ch-run shifter uvx tmux screen torchrun accelerate deepspeed", ""),
        ("conda mamba micromamba uv poetry pipenv pixi", "run"),
        ("apptainer singularity docker podman", "exec run"),
        ("enroot", "start"),
        ("bash sh zsh", "-c -lc -ic"),
    )
    for program in programs.split()
}
_WORDS = word_sets(
    {
        "keywords": "then do else elif if while until ! { exec time command eval",
        "interpreters": "bash sh zsh Rscript julia perl",
    }
)
_FILES = (".py", ".sh", ".R", ".jl", ".pl")
# As text: most scripts name no launcher, and need none of these.
_COMMENT = r"(?m)(?:^|(?<=\s))#.*"
_MESSAGE = r"\b(?:echo|printf)\b(?:\"(?:\\.|[^\"\\])*\"|'[^']*'|[^;&|\n\"'])*"
# A command that is kept in a variable, and started later.
_KEPT = r"(?m)^[ \t]*(?:export[ \t]+)?\w+=([\"'])([^\"'\s]*[ \t][^\"'\n]*)\1"
_NO_QUOTES = str.maketrans("", "", "\"'")
_MOST_WORDS = 256
_ENDS = r"[;&|()`\n]"
_SETS = r"\w+="


def launcher_of(text: bytes, arguments: Sequence[str] = ()) -> str:
    """Return the launcher that a script or its arguments start; empty for none, and where its work stands there."""
    text += b"\n" + " ".join(arguments).encode(errors="surrogateescape")
    if not any(word in text for word in _TELLING):
        return ""
    shell = re.sub(_MESSAGE, "", re.sub(_COMMENT, "", text.replace(b"\\\n", b" ").decode(errors="replace")))
    commands = re.split(_ENDS, re.sub(_KEPT, r";\2;", shell).translate(_NO_QUOTES))
    starts = [start for command in commands for start in _starts(command.split(maxsplit=_MOST_WORDS)[:_MOST_WORDS])]
    found = [one for start in starts if (one := _launcher(start))]
    if not found or (all(one.serves for one in found) and any(map(_names_work, starts))):
        return ""
    return found[0].name


def _starts(words: list[str]) -> Iterator[list[str]]:
    """Yield the words of a command from each on that may be a program: its first, and those behind a starter."""
    started = False
    for at, word in enumerate(words):
        name, behind = word.rpartition("/")[2], words[at + 1 :]
        if word in _WORDS["keywords"] or re.match(_SETS, word):
            continue
        if (
            name.startswith("python")
            and "-m" in behind[:-1]
            and all(one[0] == "-" for one in behind[: behind.index("-m")])
        ):
            module, *arguments = behind[behind.index("-m") + 1 :]
            yield [f"./{module}", *arguments]  # a file of Python's own
            return
        yield words[at:]
        needed = _STARTERS.get(name)
        started = started or (needed is not None and (not needed or not set(needed).isdisjoint(behind[:3])))
        if not started or name.startswith("python") or name.endswith(_FILES):
            return


def _launcher(words: list[str]) -> Launcher | None:
    known = _COMMANDS.get(words[0].strip("${}").rpartition("/")[2], ())
    return next((one for one, command in known if _is(words, command)), None)


def _is(words: list[str], command: Sequence[str]) -> bool:
    """Return whether words are those of a command, whatever options stand between them."""
    from fnmatch import fnmatchcase  # few scripts come so far

    if not f"/{words[0].strip('${}')}".endswith(f"/{command[0]}"):
        return False
    behind = iter(words[1:])
    return all(
        next((fnmatchcase(word, part) for word in behind if word[0] != "-" or fnmatchcase(word, part)), False)
        for part in command[1:]
    )


def _names_work(words: list[str]) -> bool:
    """Return whether a command names a program of its user's, or hands one to the cluster that its script serves."""
    program, *behind = words
    if _launcher(words):
        return False
    if program.startswith("python") or program in _WORDS["interpreters"]:
        return any(word[0] != "-" for word in behind) and not re.fullmatch("-\\w*c", behind[0])
    is_path = "/" in program and not program.startswith(("/usr/", "/bin/", "/sbin/"))
    return is_path or program.endswith(_FILES) or any(_is(words, command) for command in _HAND_OVER)
