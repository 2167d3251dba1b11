# SPDX-License-Identifier: Apache-2.0
"""The made-up week of `colloc demo`: a site that nothing is amiss with, and decisions that are csub's."""

import tomllib

from slurm_colloc.cli.colloc.demo import SITE, decisions, made_jobs
from slurm_colloc.core.config_file import parse_site
from slurm_colloc.site.admin_remarks import gaps


def test_decisions() -> None:
    config = parse_site(tomllib.loads(SITE), "demo")
    assert gaps(config) == []
    made = {decision.job_name: (decision.would, decision.would_not) for _, decision in decisions(made_jobs(), config)}
    # Beside other users' daemons a job on 52 % of the SMs has no share that is large enough.
    assert (made["resnet-sweep.sh"], made["fold.sh"]) == (("mps:49", ""), ("", "fit"))
