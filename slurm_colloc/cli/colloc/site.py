# SPDX-License-Identifier: Apache-2.0
"""colloc site: write and check the site file, and judge the site."""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated

from typer import Exit, Option, Typer

from slurm_colloc.audit.timing import faults, file_faults
from slurm_colloc.cli.colloc.output import node_name, one_of, say, site, write
from slurm_colloc.cli.colloc.site_doctor import doctor
from slurm_colloc.cli.colloc.site_need import need
from slurm_colloc.cli.colloc.site_plan import plan
from slurm_colloc.cli.colloc.site_render import render, this_host
from slurm_colloc.cli.colloc.site_resume import resume
from slurm_colloc.core.config import TIERS, Observe, SiteConfig
from slurm_colloc.core.config_file import file_to_write, find_site_file, load_site, parse_site
from slurm_colloc.core.errors import CollocError, ConfigError, GpuError, InputError, Status
from slurm_colloc.core.files import as_user, write_atomic
from slurm_colloc.core.links import place
from slurm_colloc.core.units import counted, printable
from slurm_colloc.estimate.site_stop import why_stopped
from slurm_colloc.site.admin_remarks import notes
from slurm_colloc.site.cluster import Cluster, look
from slurm_colloc.site.cluster_differences import differences
from slurm_colloc.site.discover import discover
from slurm_colloc.site.doctor.facts import Blank, Seen
from slurm_colloc.site.driver import load_gpus_file, read_driver, to_json
from slurm_colloc.site.named_folders import Keepers, keepers, user_called
from slurm_colloc.site.named_folders import look as look_at_folders
from slurm_colloc.site.plugin import build, of_headers, of_programs
from slurm_colloc.site.render import SiteFile, render_site
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.options import join_options
from slurm_colloc.submit.render import site_parts

app = Typer(
    no_args_is_help=True,
    help="Write and check csub's configuration file, and check Slurm's.",
)
_GpusFile = Annotated[
    list[str] | None, Option("--gpus", metavar="FILE", help="what 'colloc site gpus' printed on a GPU node")
]
_ASK_S, _COMPILE_S = 10.0, 120.0
_ASK_TIMEOUT_S = 60.0
_SERVICE_USER = re.compile(r"^User=(\S+)$", re.MULTILINE)


@app.command()
def init(
    output: Annotated[str, Option("--output", "-o", help="file to write; '-' prints")] = "",
    user: Annotated[bool, Option("--user", help="write one's own file, no administrator needed")] = False,
    force: Annotated[bool, Option("--force", help="replace an existing file")] = False,
    gpu: Annotated[list[str] | None, Option(metavar="TYPE=NAME", help="the GPU model behind a gres type")] = None,
    mps_daemon: Annotated[bool, Option("--mps-daemon", help="vouch: MPS daemons serve the jobs with gres/mps")] = False,
    shard_consent: Annotated[bool, Option("--shard-consent", help="vouch: shards need no isolation")] = False,
    gpus_file: _GpusFile = None,
    tier: Annotated[str, Option(help="report, pack or place: the file has no more than that needs")] = "place",
    setting: Annotated[
        list[str] | None, Option("--set", metavar="SECTION.KEY=VALUE", help="a further key, in TOML")
    ] = None,
) -> None:
    """Write site.toml from the live cluster."""
    one_of("--tier", tier, TIERS)
    if (mps_daemon or shard_consent) and tier != "place":
        raise InputError(f"--mps-daemon and --shard-consent do nothing with --tier {tier}, which gives no shares")
    path = output or file_to_write(user)
    if path != "-" and os.path.exists(path) and not force:
        raise InputError(f"'{path}' exists; --force replaces it")
    models = dict(_pair(item, "--gpu", "TYPE=NAME") for item in gpu or ())
    settings = _settings(setting or [])
    cluster = look_around(gpus_file or [], settings.get("observe", {}))
    vouched = [share for share, vouched_for in (("mps", mps_daemon), ("shard", shard_consent)) if vouched_for]
    text = discover(cluster, models, vouched, settings, tier, own=user)
    try:
        config = parse_site(tomllib.loads(text), "the site file to be written")
    except tomllib.TOMLDecodeError as error:
        options = ", ".join(f"--set {item}" for item in setting or [])
        raise InputError(f"with {options} the site file is no TOML: {error}") from error
    files, refused = rendered(config)
    if refused:
        raise ConfigError(f"the site file to be written: {'; '.join(refused)}")
    if path == "-":
        write(text, "")
        return
    try:
        _replace(path, text)
    except CollocError as error:
        own = "" if user or output else "; 'colloc site init --user' writes one of your own"
        raise InputError(f"{error}{own}") from error
    if config.paths.state:
        site_parts(config)  # renders the templates, so that no submission has to
    for text in (*differences(config, cluster), *notes(config, cluster), *_texts(paths(config, files, path), Seen)):
        say(f"note: {text}")
    say(f"wrote '{path}'; read it, then run 'colloc site check'")
    _say_whether_in_force(path)


def _replace(path: str, text: str) -> None:
    """Write a file that everybody may read; a link stays, and its target is written: it may be kept elsewhere.

    Raises:
        CollocError: it cannot be written.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"'{path}' is no regular file; name another")
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from error
    with place(path) as target:
        write_atomic(target.name, text.encode(), 0o644, target.folder)


def _say_whether_in_force(path: str) -> None:
    in_force = find_site_file()
    if in_force != path:
        instead = f"'{in_force}' is" if in_force else f"none is; 'export COLLOC_CONF={path}' makes it so"
        say(f"note: this site file is not in force, {instead}")


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{option} '{text}' is not of the form {form}")
    return key, value


def _settings(assignments: list[str]) -> dict[str, dict[str, object]]:
    sections: dict[str, dict[str, object]] = {}
    for text in assignments:
        key, value = _pair(text, "--set", "SECTION.KEY=VALUE")
        try:
            table = tomllib.loads(f"value = {value}")
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"--set '{text}' is not a TOML value ({error}); quote texts twice") from error
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = table["value"]
    return sections


@app.command()
def check(
    gpus_file: _GpusFile = None,
) -> None:
    """Compare the site file with the live cluster and this host. Exit status 1 when they differ."""
    config = site()
    site_file = find_site_file() or ""
    cluster = look_around(gpus_file or [], config.observe._asdict())
    files, refused = rendered(config)
    answers = paths(config, files, site_file)
    stop = why_stopped(config.state_folder, late=config.binds_late)
    stopped = [f"no jobs are placed, or none that wait: {stop}"] if stop else []
    levels = {
        "error": [*refused, *differences(config, cluster), *stopped, *_texts(answers, Seen)],
        "not checked": _texts(answers, Blank),
        "note": notes(config, cluster),
    }
    for level, texts in levels.items():
        for text in texts:
            print(printable(f"{level}: {text}"))
    errors, unchecked, remarks = map(len, levels.values())
    print(
        f"'{site_file}' {'differs from' if errors else 'agrees with'} the cluster: {counted(errors, 'error')}, "
        f"{unchecked} not checked, {counted(remarks, 'note')}; {counted(len(config.pool), 'group')} of nodes (pools); "
        f"tier '{config.tier}': {TIERS[config.tier]}"
    )
    if errors:
        raise Exit(Status.FOUND)


def _texts(answers: Iterable[Seen | Blank], kind: type[Seen | Blank]) -> list[str]:
    return [f"{answer[0]}: {answer[1]}" for answer in answers if isinstance(answer, kind)]


def build_plugin(
    slurm_prefix: Annotated[str, Option(help="where Slurm is installed; else /usr, and sinfo of PATH")] = "",
    output: Annotated[str, Option("--output", "-o", help="file to write")] = "colloc_spank.so",
    compiler: Annotated[str, Option("--cc", help="C compiler")] = "cc",
) -> None:
    """Compile the SPANK plugin for the installed Slurm. It takes that one's headers."""
    headers = os.path.join(slurm_prefix or "/usr", "include")
    built_for = of_headers(headers)
    runs = of_programs(slurm_prefix, _ASK_S)
    if runs.release != built_for.release:
        raise InputError(
            f"the headers in '{headers}' are of Slurm {built_for}, but Slurm {runs} runs here, which would refuse the "
            "plugin: install the headers of the same release, or name the right one by --slurm-prefix"
        )
    build(headers, compiler, output, _COMPILE_S)
    say(f"wrote '{output}' for Slurm {built_for}; docs/how-to/plugins.md says where it belongs")


def gpus(
    reader: Annotated[str, Option(help="as observe.gpu_reader, which it is else")] = "",
    node: Annotated[str, Option(help="this node's name in Slurm, where it is not the host's")] = "",
) -> None:
    """Print what the driver says of this node's GPUs. It is for 'site init --gpus' and 'site check --gpus'."""
    path = find_site_file()
    # Before there is a site file $COLLOC_CONF may name the one to be written, with what this prints.
    config = load_site(path) if path and os.path.lexists(path) else None
    observe = config.observe if config else Observe()
    node_gpus = read_driver(node or node_name(), reader or observe.gpu_reader, os.environ)
    write(to_json(node_gpus), "")


def look_around(files: Sequence[str], observe: Mapping[str, object]) -> Cluster:
    """Return the cluster with its GPUs by drivers: those of files, and this host's if it is one of its GPU nodes.

    Args:
        files: paths of texts that ``colloc site gpus`` printed.
        observe: keys of [observe], by which a driver is read.

    Raises:
        GpuError: a file cannot be used.
        ProcessError: Slurm does not answer.
        InputError: it answers what is not understood.
    """
    read = [load_gpus_file(path) for path in files]
    cluster = look(CliClient(_ASK_TIMEOUT_S), read)
    host = node_name()
    with_gpus = {node.name for node in cluster.nodes if node.quantity("gpu")}
    if host not in with_gpus - {driver.node for driver in read}:
        return cluster
    try:
        reader = str(observe.get("gpu_reader", Observe().gpu_reader))
        own_gpus = read_driver(host, reader, os.environ)
    except GpuError as error:
        say(f"note: node '{host}' has GPUs and they were not read: {error}")
        return cluster
    return cluster._replace(gpus=(*cluster.gpus, own_gpus))


def rendered(config: SiteConfig) -> tuple[tuple[SiteFile, ...], list[str]]:
    """Return a site's files, and why some command would refuse its site.toml, whatever cluster and host are like."""
    files: tuple[SiteFile, ...] = ()
    refused = [*faults(config)]
    try:
        join_options((), config.sbatch_options)
    except ConfigError as error:
        refused.append(str(error))
    try:
        files = render_site(config, this_host())
    except ConfigError as error:
        refused.append(str(error))
    return files, list(dict.fromkeys(refused))


def paths(config: SiteConfig, files: Iterable[SiteFile], site_file: str) -> list[Seen | Blank]:
    """Return what is wrong with the paths of a site on this host, and what cannot be said of them from here."""
    service = next((match[1] for file in files if (match := _SERVICE_USER.search(file.text))), "")
    keep = keepers(service, site_file)
    return [*look_at_folders(config, keep, node_name()), *_files(config, keep)]


def _files(config: SiteConfig, keep: Keepers) -> Iterator[Seen | Blank]:
    """Yield what is wrong with the command that [notices] names, as the user who audits finds it; one host has them."""
    user = user_called(keep.service)
    if not config.notices.command and config.notices.mode == "off":
        return
    if os.geteuid() != (user.pw_uid if user else 0) and os.geteuid() != 0:
        yield Blank("notices", "the command that it names is for who audits: look as root")
        return
    audits_here = os.path.isdir(config.audit_folder)
    with as_user(user.pw_uid, user.pw_gid) if user and os.geteuid() == 0 else nullcontext():
        refusals = list(file_faults(config))
    for key, path, reason in refusals:
        is_due = audits_here or os.path.lexists(path)
        yield (Seen if is_due else Blank)(f"{key} '{path}'", reason)


# As they are needed, and so in the help.
app.command()(gpus)
app.command()(doctor)
app.command()(need)
app.command()(plan)
app.command()(render)
app.command()(build_plugin)
app.command()(resume)
