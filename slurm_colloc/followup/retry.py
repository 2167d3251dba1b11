# SPDX-License-Identifier: Apache-2.0
"""Have a job followed by a companion that runs it again after it ran out of GPU memory: where its user allows requeue.

Loaded only for a job on a piece of a GPU with --requeue, and for one that is such a second run. Whatever goes wrong
here is a note: the job is submitted already.
"""

import os
import pwd
from collections.abc import Callable, Mapping
from functools import partial

from slurm_colloc.core.clock import with_timeout
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError
from slurm_colloc.core.model import Reason, because
from slurm_colloc.core.wording import words
from slurm_colloc.followup.record import CSUB, SINGLETON, VERSION, Record, claim, write_record
from slurm_colloc.followup.submission import submit_companion
from slurm_colloc.slurm.options import CommandLine, value_of, without
from slurm_colloc.submit.own_options import option_table
from slurm_colloc.submit.plan import Plan
from slurm_colloc.submit.reasons import reason_of_counting, reason_to_keep_text

_AGAINST = ("wait", "test-only", "hold")
# What the environment of a job has otherwise than its submission had it.
_CHANGED_BY_SLURM = frozenset(
    {"CUDA_VISIBLE_DEVICES", "ENVIRONMENT", "GPU_DEVICE_ORDINAL", "HOSTNAME", "PWD", "ROCR_VISIBLE_DEVICES"}
    | {"TMPDIR", "ZE_AFFINITY_MASK"}
)


def follow(
    plan: Plan,
    command_line: CommandLine,
    sbatch: str,
    environ: Mapping[str, str],
    config: SiteConfig,
    answer: Callable[[str], None],
    job_id: str,
    attempt: int = 0,
) -> None:
    """Have a job followed that was submitted; ``answer`` is told what the user may want to know.

    ``attempt`` counts the runs before this one.
    """
    if "requeue" not in plan.given:
        return
    try:
        record = _record(plan, command_line, environ, config, job_id)
        against = _reason_against(record, plan, config)
        if against is None:
            record = record._replace(attempt=attempt, begins=_sizes(record))
            companion = _companion(record, plan.script, sbatch, environ, config)
            answer(f"job {job_id}: if it runs out of GPU memory, job {companion} submits it again on more (--requeue)")
            return
        why = words(against)
    except Exception as error:  # noqa: BLE001 - the job is submitted, and its decision is still to be recorded
        why = str(error)
    answer(f"job {job_id}: csub will not submit it again if it runs out of GPU memory: {why}")


def _companion(record: Record, script: bytes, sbatch: str, environ: Mapping[str, str], config: SiteConfig) -> str:
    folder = with_timeout(config.timeouts.decide_s, "keeping the script", partial(write_record, record, script))
    try:
        return submit_companion(sbatch, record, f"afternotok:{record.job_id}", environ, config)
    except CollocError:
        # After a time-out there may be one all the same, and the user is told that there is none.
        claim(folder, CSUB)
        raise


def _reason_against(record: Record, plan: Plan, config: SiteConfig) -> Reason | None:
    given = plan.given
    if not config.recovery.companion:
        return because("no-companions")
    if "wrap" in given:
        return because("command-of-wrap")
    if plan.wants_pack:
        return because("is-a-pack")
    if found := [because("option", option=name) for name in _AGAINST if name in given]:
        return found[0]
    if why := reason_to_keep_text(plan.script, "") or ("array" in given and reason_of_counting(plan.script)):
        return why
    if record.array:
        tasks = zip(record.files("0", "0", 0), record.files("1", "0", 1), strict=True)
        if any(one == other != os.devnull for one, other in tasks):
            return because("tasks-share-output")
        if record.append and record.files("0", "0", 0) == record.files("1", "1", 0):
            return because("output-added-to")
    return None


def _sizes(record: Record) -> dict[str, int]:
    """Return how much of the job's files was there before it began to add to them."""
    if record.array or not record.append:
        return {}
    files = record.files(record.job_id, record.job_id, None)
    return {path: os.stat(path).st_size for path in files if os.path.isfile(path)}


def _record(
    plan: Plan,
    command_line: CommandLine,
    environ: Mapping[str, str],
    config: SiteConfig,
    job_id: str,
) -> Record:
    given = plan.given
    request, footprint, placement = plan.part
    table = option_table(config.slurm_release, config)
    options = command_line.sbatch_argv[: command_line.end]
    kept = without(options, table, {"dependency", "kill-on-invalid-dep", "parsable"})
    return Record(
        version=VERSION,
        cluster=config.cluster,
        job_id=job_id,
        attempt=0,
        user=pwd.getpwuid(os.geteuid()).pw_name,
        job_name=request.name,
        signature=request.signature,
        own=tuple(one.word for one in command_line.own),
        options=(*kept, *([SINGLETON] if "singleton" in value_of(given, "dependency") else [])),
        script=os.path.basename(command_line.script) if command_line.script else "sbatch",
        from_stdin=command_line.script is None,
        script_args=command_line.script_args,
        folder=os.getcwd(),
        names=tuple(environ),
        variables={name: value for name, value in environ.items() if _is_slurms(name)},
        account=request.account,
        qos=request.qos,
        partition=placement.partition or ",".join(request.partitions),
        array=value_of(given, "array"),
        output=value_of(given, "output") or ("slurm-%A_%a.out" if "array" in given else "slurm-%j.out"),
        error=value_of(given, "error"),
        work_folder=request.folder,
        append=value_of(given, "open-mode").startswith("a"),
        mode=placement.mode,
        given=placement.given,
        budget_mib=placement.memory_mib or 0,
        sm_active_pct=footprint.sm_active_pct.q95 if footprint.sm_active_pct else None,
    )


def _is_slurms(name: str) -> bool:
    return name.startswith(("SLURM", "SBATCH", "SRUN_")) or name in _CHANGED_BY_SLURM
