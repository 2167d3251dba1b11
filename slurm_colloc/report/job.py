# SPDX-License-Identifier: Apache-2.0
"""One job's story: its request, GPUs and use, the piece that would have held it, and how to submit it next time."""

from collections.abc import Callable, Iterator, Sequence
from math import isinf
from typing import Any, NamedTuple

from slurm_colloc.core.chart_model import JobTimeline
from slurm_colloc.core.model import Decision, Evidence
from slurm_colloc.core.units import at_least, counted, in_words, kilowatt_hours, printable, significant
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT, JobUsage
from slurm_colloc.core.wording import sentence, shown
from slurm_colloc.facts.judgement import TAIL, RunFound, judge, never_used
from slurm_colloc.report.layout import NO_TERMINAL, TEXT_INDENT, Terminal, folded, titled
from slurm_colloc.report.text import json_text, local, sparkline, stamp
from slurm_colloc.report.usage import use_by, use_of
from slurm_colloc.slurm.jobs import Accounted

SCHEMA = 2
SO_FAR = ("RUNNING", "SUSPENDED")
# Titles of a story that belong into a ticket about what csub did to the job.
_TICKET = ("asked", "csub gave", "time", "allocated")


class Advice(NamedTuple):
    """The piece that a run would have fitted, and what to do next time; empty where the evidence supports nothing.

    ``fit`` is the piece of a GPU that holds what was measured, or in words why none is named. ``command`` is a line to
    submit the job by, ``expected`` what csub would make of it.
    """

    fit: str = ""
    command: str = ""
    expected: str = ""


class RunStory(NamedTuple):
    """One run: ``usage`` is the store's, ``slurm`` what Slurm itself says; one of them may be None."""

    usage: JobUsage | None
    slurm: Accounted | None = None
    timeline: JobTimeline | None = None
    evidence: Evidence | None = None
    advice: Advice = Advice()


class JobStory(NamedTuple):
    """All that is known of a job; ``not_shown`` runs of a long array come before those of ``runs``.

    ``since_s`` is how far back was looked. ``pack`` is what is to be said of a pack's tasks (text, record), ``again``
    of GPU memory run out.
    """

    runs: Sequence[RunStory]
    decision: Decision | None = None
    since_s: float = 0.0
    not_shown: int = 0
    pack: tuple[str, dict[str, Any]] | None = None
    again: str = ""


def as_text(story: JobStory, terminal: Terminal = NO_TERMINAL) -> str:
    """Return the story for a terminal, or for what is none: lines are as long as they are."""
    lines: list[str] = []
    if story.not_shown:
        lines += [f"{counted(story.not_shown, 'earlier run')} not shown; name a task, such as 4711_7, to see it", ""]
    for run in story.runs:
        lines += [*_run_lines(run, story), ""]
    if story.pack:
        lines += story.pack[0].splitlines()
    if story.again:
        lines.append(f"GPU memory: {printable(story.again)}")
    return "".join(f"{line}\n" for text in lines for line in folded(text, terminal.columns, TEXT_INDENT))


def as_ticket(story: JobStory, terminal: Terminal = NO_TERMINAL) -> str:
    """Return of the last run what was asked and given, when, by what, what it took, and how to keep csub off."""
    if not story.runs:
        return as_text(story, terminal)
    run = story.runs[-1]
    row: Any = run.usage or run.slurm
    heading, *lines = _run_lines(run, story)
    if not story.decision:
        lines.append(titled("csub gave", "nothing that is known here"))
    # After a first run this one may have had something else than csub gave the job.
    titles = (*_TICKET, "given") if story.again else _TICKET
    ticket = [line for title in titles for line in lines if line.startswith(titled(title, ""))]
    if story.again:
        ticket.append(titled("before", printable(story.again)))
    ticket.append(titled("to stop", f"colloc off {printable(row.user)}"))
    return "".join(f"{line}\n" for text in (heading, *ticket) for line in folded(text, terminal.columns, TEXT_INDENT))


def _run_lines(story: RunStory, job: JobStory) -> Iterator[str]:
    run, slurm, decision = story.usage, story.slurm, job.decision
    row: Any = run or slurm
    state = slurm.state if slurm else row.state
    clusters = {story.usage.cluster for story in job.runs if story.usage}
    place = f" on {printable(run.cluster)}" if run and len(clusters) > 1 else ""
    name = f"job {printable(row.job_id)} '{printable(row.job_name)}' of {printable(row.user)}{place}"
    name += f", {printable(state)}"
    yield (
        f"{name}: {_verdict(run, story.timeline)}{' so far' if state in SO_FAR else ''}"
        if run and run.methods
        else name
    )
    suspended_s = slurm.suspended_s if slurm and slurm.suspended_s is not None else row.suspended_s
    suspended = f", suspended for {in_words(suspended_s)} of that" if suspended_s else ""
    yield titled("ran", _ran(run, slurm, job.since_s, state) + suspended)
    if slurm:
        yield from _of_slurm(slurm)
    if slurm and not decision:
        yield titled("asked", ",".join(str(gres) for gres in slurm.asked) or "no GPU")
    if run:
        yield titled("given", printable(run.gres))
        yield titled("allocated", f"{_hours(run.allocated_gpu_hours)}{', by its part of a GPU' * _is_share(run)}")
        if story.evidence and not run.methods:
            span_s = run.end_s - run.start_s
            yield from _by_evidence(None if run.state == "RUNNING" else span_s, decision, story.evidence)
        else:
            yield from _by_samples(story, run, decision)
    elif slurm:
        given = ",".join(str(gres) for gres in slurm.given)
        yield titled("given", given or ("nothing yet" if slurm.start_s is None else "no GPU"))
        if story.evidence and slurm.start_s is not None and slurm.end_s is not None:
            yield from _by_evidence(slurm.end_s - slurm.start_s, decision, story.evidence)
        elif given:
            yield titled("used", "not known here")
    if story.advice.fit:
        yield titled("would fit", printable(story.advice.fit))
    if decision:
        yield titled("asked", printable(decision.asked) or "no GPU")
        by = f", by {decision.rule}" if decision.rule else ""
        decided = f"{decision.how}, {stamp(local(decision.at_s))}{by}: {sentence(decision.reasons)}"
        yield titled("csub gave", printable(decided))
    told = filter(None, (story.advice.command and f"$ {story.advice.command}", story.advice.expected))
    yield from map(titled, ("next time", ""), map(printable, told))


def _verdict(run: JobUsage, timeline: JobTimeline | None) -> str:
    """Return the one thing to know of a sampled run: how much of what it had it used."""
    took = in_words(run.end_s - run.start_s)
    working = ""
    of_several = timeline is not None and timeline.devices > 1
    share = "its GPUs" if of_several else "its GPU"
    if _is_share(run):
        share = "its share"
    partly = ""
    if run.coverage_pct is not None and run.coverage_pct < MIN_COVERAGE_PCT:
        partly = f"; only {at_least(run.coverage_pct)} % of that was sampled"
    if never_used(run):
        return f"whether it used {share} in {took} is not known{partly}" if partly else f"did not use {share} in {took}"
    if timeline and of_several and timeline.devices_unused and None not in timeline.active_pct:
        share = f"its {timeline.devices} GPUs"
        working = f"; only {timeline.devices - timeline.devices_unused} of them did work"
    # Nothing is measured of a GPU in the time in which its job is suspended.
    use = use_of(run)
    if use is None:
        return f"what it used of {share} in {took} is not known"
    return f"used {use} of {share} ({use.metric}) in {took}{working}{partly}"


def _ran(run: JobUsage | None, slurm: Accounted | None, since_s: float, state: str) -> str:
    if run is None and (slurm is None or slurm.start_s is None):
        reason = f": {printable(slurm.reason)}" if slurm and slurm.reason else ""
        return f"not started{reason}" if state == "PENDING" else "never"
    start_s = run.start_s if run else float((slurm and slurm.start_s) or 0)
    ran, known = run or slurm, slurm or run
    end_s = ran.end_s if ran else None
    cut = "since before " if run and run.start_s <= since_s else ""
    until = stamp(local(end_s)) if end_s is not None else "now"
    still = " so far" if state in SO_FAR else ""
    place = slurm.node_list if slurm else ""
    where = f"in partition {printable(known.partition if known else '')}"
    return f"{cut}{stamp(local(start_s))} to {until}{still} {where}{f' on {printable(place)}' if place else ''}"


def _of_slurm(slurm: Accounted) -> Iterator[str]:
    """Yield what seff would say: time, cores and host memory against what was asked."""
    waited = ""
    if slurm.submit_s is not None and slurm.start_s is not None:
        waited = f"waited {in_words(max(0, slurm.start_s - slurm.submit_s))}"
    limit = ""
    if slurm.time_limit_min is not None:
        limit = "no time limit" if isinf(slurm.time_limit_min) else f"limit {in_words(60 * slurm.time_limit_min)}"
    ended = slurm.end_s is not None and slurm.start_s is not None
    elapsed_s = float((slurm.end_s or 0) - (slurm.start_s or 0)) - (slurm.suspended_s or 0.0) if ended else 0.0
    took = f"took {in_words(elapsed_s)}" if ended else ""
    billed = f"billing {slurm.billing}" if slurm.billing else ""
    words = ", ".join(filter(None, (waited, took, limit, f"exit code {slurm.exit_code}" if ended else "", billed)))
    if words:
        yield titled("time", printable(words))
    if slurm.cpus and elapsed_s and slurm.cpu_time_s is not None:
        used = slurm.cpu_time_s / elapsed_s
        yield titled("cores", f"{used:.2f} of {slurm.cpus} used on average (sacct)")
    if slurm.mem_mib and slurm.host_mem_peak_mib is not None:
        most = f"{slurm.host_mem_peak_mib} of {slurm.mem_mib} MiB, the largest task's peak (sacct)"
        yield titled("host mem", most)


def _by_samples(story: RunStory, run: JobUsage, decision: Decision | None) -> Iterator[str]:
    covered = "not recorded" if run.coverage_pct is None else f"{at_least(run.coverage_pct)} % of its GPU time"
    pieces = story.timeline.pieces if story.timeline else ()
    yield titled("GPU_UTIL", _share(run, "util", " of the time"))
    # GPU_UTIL of a share is the whole GPU's, or a server's.
    if run.util_used_gpu_hours is not None:
        yield from _drawn([piece.gpu_util_pct for piece in pieces], 100.0, "100 %")
    active = [piece.sm_active_pct for piece in pieces]
    yield titled("SM", _active(run, active))
    of_gpu = " of the whole GPU" if _is_share(run) else ""
    yield from _drawn(active, 100.0, f"100 %{of_gpu}")
    yield titled("memory", _memory(run.gpu_mem_peak_mib, decision))
    held = [None if piece.gpu_mem_mib is None else float(piece.gpu_mem_mib) for piece in pieces]
    if top := max((value for value in held if value is not None), default=0.0):
        yield from _drawn(held, top, f"{top:.0f} MiB, the peak")
    if story.timeline and pieces:
        span_s = story.timeline.until_s - story.timeline.since_s
        yield titled("", f"from start to end, {in_words(span_s)}; blank where nothing was sampled")
    yield titled("sampled", f"{covered} ({printable(', '.join(run.methods)) or 'no samples'})")
    if idle := _idle(run):
        yield titled("idle", idle)
    if run.held_idle_gpu_hours:
        yield titled("empty", f"{_hours(run.held_idle_gpu_hours)} without a process of the job on its GPU")
    if story.timeline:
        yield from _devices(run, story.timeline)
    yield titled("energy", "not known" if run.energy_j is None else f"{kilowatt_hours(run.energy_j):.4f} kWh")
    yield titled("host", _host(run))


def _drawn(values: Sequence[float | None], top: float, most: str) -> Iterator[str]:
    if any(value is not None for value in values):
        yield f"{' ' * TEXT_INDENT}|{sparkline(values, top)}| 0 to {most}"


def _devices(run: JobUsage, timeline: JobTimeline) -> Iterator[str]:
    if timeline.devices > 1:
        yield titled("GPUs", _evenly(run, timeline))
    if timeline.neighbours and run.shared_hours is not None:
        most = f"at most {counted(timeline.neighbours, 'other job')} at a time on its GPU"
        yield titled("neighbours", f"{most}; {significant(run.shared_hours)} device hours shared")


def _evenly(run: JobUsage, timeline: JobTimeline) -> str:
    """Return how many of its GPUs or slices a run used, and how much each."""
    used = timeline.devices - timeline.devices_unused
    active_pct = [pct for pct in timeline.active_pct if pct is not None]
    if len(active_pct) < timeline.devices:
        return f"on {timeline.devices_unused} of its {timeline.devices} no activity in any sample, on others not known"
    percents = ", ".join(f"{value:.0f}" for value in active_pct)
    metric = use.metric if (use := use_of(run)) else "activity"
    return f"{used} of {timeline.devices} used; {metric} of each: {percents} %"


def _idle(run: JobUsage) -> str:
    """Return for how long no kernel ran before the last sample; empty where one ran, or nobody knows."""
    if never_used(run):
        return "in all samples: the job did not use its GPU"
    to_do = [f": {remedy.what}" for remedy in judge(RunFound(run, None, None)).remedies if remedy.code == TAIL]
    return "".join([f"for the last {in_words(run.idle_tail_s)} that were sampled", *to_do]) if run.idle_tail_s else ""


def _host(run: JobUsage) -> str:
    """Return what tells an idle GPU from one that waits for data."""
    figures = [
        (run.cpu_cores_used, "{:.1f} cores used"),
        (run.host_mem_peak_mib, "{} MiB at peak"),
        (run.read_mib, "{:.0f} MiB read"),
        (run.written_mib, "{:.0f} MiB written"),
    ]
    return ", ".join(text.format(value) for value, text in figures if value is not None) or "not known"


def _by_evidence(ran_s: float | None, decision: Decision | None, evidence: Evidence) -> list[str]:
    """Return what is kept of a run for the next submission, where the samples themselves are not at hand."""
    active = "not known"
    if evidence.sm_active_mean_pct is not None:
        bound = "at most " if evidence.sm_is_bound else ""
        active = f"{bound}{evidence.sm_active_mean_pct:.1f} % of a whole GPU"
    covered = "" if ran_s is None else f" of {ran_s:.0f} s"
    seconds = f"{evidence.sampled_s:.0f} s{covered}, {evidence.sample_count} samples (measured by csub in the job)"
    return [
        titled("GPU_UTIL", "not kept"),
        titled("SM", active),
        titled("memory", _memory(evidence.gpu_mem_peak_mib, decision)),
        titled("sampled", seconds),
    ]


def _memory(peak_mib: int | None, decision: Decision | None) -> str:
    if peak_mib is None:
        return "not known"
    placed = decision.gpu_mem_q99_mib if decision else None
    above = f", above the {placed:.0f} MiB that csub counted on" if placed is not None and peak_mib > placed else ""
    return f"{peak_mib} MiB at peak{above}"


def _hours(value: float | None) -> str:
    return "not known" if value is None else f"{significant(value, 4)} GPU-h"


def _active(run: JobUsage, drawn: Sequence[float | None]) -> str:
    if run.allocated_gpu_hours is None and any(value is not None for value in drawn):
        return "as drawn; site.toml does not say how large its share of a GPU is"
    if not _is_share(run) or run.sm_used_gpu_hours is None:
        return _share(run, "sm", " of the SMs")
    beyond = f"; {run.sm_beyond_gpu_hours:.4f} GPU-h beyond it" if run.sm_beyond_gpu_hours else ""
    return f"{_share(run, 'sm')} of its share{beyond}"


def _is_share(run: JobUsage) -> bool:
    return run.gres.startswith(("mps", "shard"))


def _share(run: JobUsage, metric: str, whole: str = "") -> str:
    if use := use_by(run, metric):
        sampled, used = (significant(hours, 4) for hours in (use.measured_gpu_hours, use.used_gpu_hours))
        return f"{use}{whole} ({used} of {sampled} sampled GPU-h)"
    return "not measured" if getattr(run, f"{metric}_used_gpu_hours") is None else "suspended all the time"


def as_json(story: JobStory) -> str:
    """Return the same as JSON, null for what is not known; an infinite time limit is "UNLIMITED", as Slurm has it."""
    record: dict[str, Any] = {
        "runs": [run.usage for run in story.runs if run.usage],
        "stories": [_run_record(run) for run in story.runs],
        "not_shown": story.not_shown,
        "decision": shown(story.decision) if story.decision else None,
        "evidence": [run.evidence for run in story.runs if run.evidence],
    }
    if story.pack:
        record["pack"] = story.pack[1]
    if story.again:
        record["gpu_memory"] = story.again
    return json_text(SCHEMA, record)


def _run_record(run: RunStory) -> dict[str, Any]:
    slurm: dict[str, Any] | None = None
    if run.slurm:
        limit = run.slurm.time_limit_min
        slurm = run.slurm._asdict() | {
            "time_limit_min": "UNLIMITED" if limit is not None and isinf(limit) else limit,
            "asked": [str(gres) for gres in run.slurm.asked],
            "given": [str(gres) for gres in run.slurm.given],
        }
    row: Any = run.usage or run.slurm
    return {"job_id": row.job_id, "slurm": slurm, "timeline": run.timeline, "advice": run.advice}


FORMATS: dict[str, Callable[..., str]] = {"text": as_text, "json": as_json}
