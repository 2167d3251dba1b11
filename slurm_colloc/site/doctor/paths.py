# SPDX-License-Identifier: Apache-2.0
"""DOC110: the paths of site.toml."""

from collections.abc import Iterable

from slurm_colloc.site.doctor.facts import Blank, Check, Seen, Site, known


def _paths(site: Site) -> Iterable[Seen | Blank]:
    return known(site.paths)


CHECKS = (
    Check(
        "DOC110",
        "error",
        "a path of site.toml that is missing, or has the wrong owner",
        "samples and decisions are lost or lie where nobody looks, services end in errors, or others read or change "
        "what is kept of everybody's jobs",
        "as it says there; ORDER.md of 'colloc site render -o FOLDER' has the commands that make each folder",
        "docs/how-to/agent.md and the units that 'colloc site render -o FOLDER' writes",
        _paths,
    ),
)
