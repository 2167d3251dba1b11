# SPDX-License-Identifier: Apache-2.0
"""What rules find in one window of a store."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from slurm_colloc.audit.rules import Entry, findings, question
from slurm_colloc.cli.colloc.progress import progress
from slurm_colloc.cli.colloc.progress import told as each
from slurm_colloc.core.audit_model import JOB, RUNS, Answer, Audited, Finding
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_audit import Audit
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.audited import answer, make_audited
from slurm_colloc.facts.counts import known_until_s
from slurm_colloc.facts.usage import whole_usage
from slurm_colloc.report.text import local, stamp
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window

_NOTHING = Answer(0, 0, ())


class Looking(NamedTuple):
    """What rules look at: a store, by a site's words; ``options`` are those of a command that looks at it again."""

    source: Store
    config: SiteConfig | None
    audit: Audit
    options: str = ""

    def look(self, chosen: Sequence[Entry], start: datetime, end: datetime, told: Sequence[str] = ()) -> Audited:
        """Return what these rules find in [start, end), of which the users of the jobs ``told`` know already.

        Raises:
            StoreError: the store cannot be read.
        """
        span = Window(start.timestamp(), end.timestamp(), now())
        options = f"--since {start.isoformat()} --until {end.isoformat()}{self.options}"
        judged: dict[str, tuple[int, int]] = {}
        found: list[Finding] = []
        with self.source.connect(span.since_s, span.until_s) as database:
            with progress("adding up days") as step:
                aggregate(database, self.source, span, in_file=True, step=step)
                make_audited(database, self.config)
            known_s = known_until_s(self.source, database)
            stale = [entry for entry in chosen if _is_stale(entry, known_s, span.until_s)]
            with progress("applying rules") as step:
                for entry in each(chosen, step):
                    of = _NOTHING if entry in stale else answer(database, question(entry, span.until_s, told))
                    judged[entry.form] = of.rows, of.judged
                    found += findings(entry, of, options)
            whole = whole_usage(database)
        accounted = tuple(entry.form for entry in chosen if entry.rule.accounted or entry.rule.source != RUNS)
        running = tuple(entry.form for entry in chosen if entry.rule.about == JOB)
        why = _why_stale(stale, known_s)
        whose = self.source.visible.whose
        return Audited(start, end, whole, judged, whose, accounted, running, why, tuple(found))


def _is_stale(entry: Entry, known_s: float | None, until_s: float) -> bool:
    """Return whether a rule about running jobs cannot know which run."""
    return entry.rule.about == JOB and (known_s is None or until_s - known_s > 60 * entry.bounds["reading_age_min"])


def _why_stale(stale: Sequence[Entry], known_s: float | None) -> str:
    if not stale:
        return ""
    names = ", ".join(entry.name for entry in stale)
    when = "never" if known_s is None else f"last at {stamp(local(known_s))}"
    bound_min = max(entry.bounds["reading_age_min"] for entry in stale)
    return (
        f"which jobs run is not known to {names}: runs were taken in {when}, and {bound_min:g} min may be between; "
        "does 'colloc ingest' still run?"
    )
