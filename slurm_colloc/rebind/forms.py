# SPDX-License-Identifier: Apache-2.0
"""Which update makes a waiting job ask for a piece of a GPU: the table forms.toml, as data."""

import tomllib
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

from slurm_colloc.core.model import Gres, JobRequest, Placement
from slurm_colloc.core.units import asked_mib
from slurm_colloc.core.value_types import read_as
from slurm_colloc.slurm.pending import Assignments, PendingJob
from slurm_colloc.submit.requeue_data import CORE_FIELDS

_NONE: Assignments = MappingProxyType({})


class Form(NamedTuple):
    """A line of the table; its words are explained there."""

    releases: tuple[str, ...]
    options: tuple[str, ...]
    field: str
    typed: bool
    share: Assignments = _NONE
    slice: Assignments = _NONE
    back: Assignments = _NONE
    completed: bool = False
    all_shares: bool = False

    def allows(self, request: JobRequest, gres: Gres) -> bool:
        """Return whether a request may be changed to this piece."""
        is_known = bool(self.slice if gres.name == "gpu" else self.share)
        return is_known and (self.typed or request.names_no_type)


@cache
def _table() -> tuple[Form, ...]:
    text = files("slurm_colloc.rebind").joinpath("forms.toml").read_text()
    forms: tuple[Form, ...] = read_as(tuple[Form, ...], tomllib.loads(text)["form"])
    return forms


def form_of(option: str, release: str, probed: Collection[str] = ()) -> Form | None:
    """Return how a request by an option is changed on a release; None where nothing is known of it.

    ``option`` is "mps" or "shard" for a job that was submitted as a share, else one of a form's options. ``probed`` are
    the options for which the site has seen that the newest forms hold (rebind/probe.py).
    """
    # A share stands where --gres has it.
    if not is_known(release) and ("gres" if option in ("mps", "shard") else option) in probed:
        return newest_form(option)
    return next((form for form in _table() if release in form.releases and option in form.options), None)


def is_known(release: str) -> bool:
    """Return whether the table has forms of a release."""
    return any(release in form.releases for form in _table())


def newest_form(option: str) -> Form:
    """Return the form of the newest release for an option that asks for a GPU."""
    return next(form for form in reversed(_table()) if option in form.options)


def change_of(
    form: Form, placement: Placement, job: PendingJob, request: JobRequest
) -> tuple[Assignments, Assignments]:
    """Return the update that gives a waiting job a placement, and the one that undoes it, empty where none does.

    Cores, memory and the time limit are changed where the placement says so and the job shows what they were.
    """
    gres = placement.gres
    if gres is None:
        return {}, {}
    to, back = updates(form, gres, request.asked)
    if placement.time_limit_min is not None:
        to["TimeLimit"], back["TimeLimit"] = str(placement.time_limit_min), job.fields.get("TimeLimit", "")
    name, _, cpus = placement.cpu_option.partition("=")
    one_task = request.tasks in (None, 1) and not request.cores_unclear and "CpusPerTres" not in job.per_gpu
    for field in CORE_FIELDS.get(name, ()) if one_task else ():
        to[field], back[field] = cpus, job.fields.get(field, "")
    if placement.mem and "MemPerTres" not in job.per_gpu:
        before = next((name for name in ("MinMemoryNode", "MinMemoryCPU") if job.fields.get(name, "0") != "0"), "")
        to["MinMemoryNode"] = str(asked_mib(placement.mem))
        back[before or "MinMemoryNode"] = str(asked_mib(job.fields.get(before, "")) or 0)
    return to, back if form.back else {}


def updates(form: Form, piece: Gres, asked: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return what makes a request one for a piece, and what makes it the one for ``asked`` again."""
    templates = form.slice if piece.name == "gpu" else form.share, form.back
    to, back = ({name: text.format(gres=piece, asked=asked) for name, text in fields.items()} for fields in templates)
    return to, back
