# SPDX-License-Identifier: Apache-2.0
"""colloc site need: how many GPUs keep the waits of today with sharing, and what waits are with it on all."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

from typer import Option

from slurm_colloc.cli.colloc import ingest
from slurm_colloc.cli.colloc.options import Output, Since, StoreFolder, TextFields, TimeZone, Until, format_option
from slurm_colloc.cli.colloc.output import site, span, window, write
from slurm_colloc.cli.colloc.progress import progress
from slurm_colloc.cli.colloc.report_sharing import harmed
from slurm_colloc.cli.colloc.site_plan import (
    AUTO,
    Assume,
    Demand,
    Mig,
    Mps,
    assumed_use,
    check_demand,
    cuts_of,
    past_in,
    rules_here,
)
from slurm_colloc.cli.colloc.visible_store import seen_store
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.files import temporary_folder
from slurm_colloc.core.units import in_words, significant
from slurm_colloc.placement.fitted import has_pieces
from slurm_colloc.plan.change import Asked
from slurm_colloc.plan.need import MORE_PART, MORE_S, Bound, Need
from slurm_colloc.plan.need import need as needed
from slurm_colloc.plan.need_text import Extras, as_json, as_text, facts, headline, notes, tables, title
from slurm_colloc.plan.past import CLASSES
from slurm_colloc.report.page import renderer
from slurm_colloc.report.text import stamp
from slurm_colloc.store.store import Store

_CLASSES = dict(zip(("pieces", "1", "2-3", "4-7", "8+"), CLASSES, strict=True))


def need(
    sacct_file: Annotated[str, Option(help="text of sacct, in place of a store")] = "",
    fields: TextFields = "",
    timezone: TimeZone = "",
    wait: Annotated[
        list[str] | None,
        Option(
            metavar="CLASS=DURATION",
            help="as 1=30m: of pieces, 1, 2-3, 4-7 or 8+ GPUs, in place of today's mean",
        ),
    ] = None,
    as_today: Annotated[bool, Option("--as-today", help="no class may wait longer than today at all")] = False,
    mig: Mig = "",
    mps: Mps = False,
    adoption: Annotated[str, Option(help="parts of jobs that csub places, to be told as well")] = "0.1,0.3",
    demand: Demand = 1.0,
    assume: Assume = "",
    price: Annotated[float | None, Option(min=0, help="of a GPU-hour; else site.toml's prices.gpu_hour")] = None,
    since: Since = "30d",
    until: Until = "now",
    form: Annotated[str, format_option("text", "json", "html")] = "text",
    output: Output = "",
    store: StoreFolder = "",
) -> None:
    """Say what sharing is worth in GPUs and waits."""
    check_demand(demand)
    if sacct_file and store:
        raise InputError("--sacct-file is read in place of a store; to add it to one: colloc ingest --sacct-file")
    if not sacct_file and (fields or timezone):
        raise InputError("--fields and --timezone do nothing without --sacct-file: a store has times without zones")
    config, assumed, parts = site(), assumed_use(assume), _parts(adoption)
    more = (0.0, 0.0) if as_today else (MORE_S, MORE_PART)
    bound = Bound(*more, _most_waits(wait or ()))
    own = has_pieces(config) and not mig
    change = Asked(cuts_of(mig, config), mig == AUTO, mps or not (mig or own), demand=demand)
    span_of_jobs = window(since, until)
    rules = rules_here(config)
    with _store(sacct_file, fields, timezone, store, config) as source:
        uses = (None, assumed) if assumed else (None,)
        pasts = [past_in(source, config, span_of_jobs, use) for use in uses]
        harm = _harm(source, config, span_of_jobs)
    answers: list[Need] = []
    for past in pasts:
        with progress("replaying with what is assumed" if answers else "replaying") as step:
            answers.append(needed(past, config, rules, change, bound, parts, step))
    price = config.prices.gpu_hour if price is None else price
    extras = Extras(answers[1] if assumed else None, harm, price, config.prices.currency)
    start, end = map(stamp, span_of_jobs)
    show = _page if form == "html" else as_text
    text = as_json(answers[0], extras) if form == "json" else show(answers[0], config, (start, end), extras)
    write(text, output)


def _parts(text: str) -> list[float]:
    try:
        parts = [float(part) for part in text.split(",") if part]
    except ValueError:
        parts = [0.0]
    if not all(0 < part <= 1 for part in parts):
        raise InputError(f"--adoption '{text}' is no list of parts above 0 and up to 1, as 0.1,0.3")
    return [part for part in parts if part < 1]


def _most_waits(waits: Sequence[str]) -> Mapping[str, float]:
    by_class = {}
    for item in waits:
        name, _, text = item.partition("=")
        if name not in _CLASSES:
            raise InputError(f"--wait '{item}' is not CLASS=DURATION, with a class of {', '.join(_CLASSES)}")
        by_class[_CLASSES[name]] = span("--wait", text).total_seconds()
    return by_class


@contextmanager
def _store(text: str, fields: str, timezone: str, folder: str, config: SiteConfig) -> Iterator[Store]:
    """Open the store, or make one of a text alone."""
    if not text:
        yield seen_store(folder, config)
        return
    with temporary_folder() as temporary:
        source = Store(os.path.join(temporary, "store"), config)
        ingest.take_in(source, config, ingest.Inputs(sacct_file=text, fields=fields, timezone=timezone))
        yield source


def _harm(source: Store, config: SiteConfig, ends: tuple[datetime, datetime]) -> str:
    """Return how many of 10,000 jobs on pieces were harmed; empty where none is known."""
    rate = harmed(source, config, ends)
    if rate is None or rate.part is None or rate.low is None or rate.high is None:
        return ""
    middle, low, high = (significant(10_000 * part, 2) for part in (rate.part, rate.low, rate.high))
    return f"harmed: {middle} of 10,000 jobs on pieces ({low} to {high} with 95 % certainty, from {rate.known})"


def _page(answer: Need, config: SiteConfig, spans: tuple[str, str], extras: Extras) -> str:
    render = renderer(config.paths.templates, in_words=in_words)
    curves = {
        name: [
            (point.gpus, point.mean_s) for point in answer.points if point.adoption == part and point.mean_s is not None
        ]
        for name, part in (("without sharing", 0.0), ("with sharing", 1.0))
    }
    return render(
        "need.html.j2",
        heading=headline(answer),
        window=title(answer, config, spans),
        need=answer,
        curves=curves,
        most_s=max((mean_s for curve in curves.values() for _, mean_s in curve), default=0.0),
        tables=tables(answer),
        facts=[*facts(answer, config, extras), *notes(answer)],
    )
