# SPDX-License-Identifier: Apache-2.0
"""A site file of a Slurm that csub does not know yet: jobs are placed, but for one with an option that is new."""

from __future__ import annotations

import re

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.user import SLICE, SMALL, User

pytestmark = pytest.mark.cluster

# The real one, which knows an option that no release has.
SBATCH = """#!/bin/sh
for word; do
  shift
  case $word in --frobnicate*) ;; *) set -- "$@" "$word" ;; esac
done
exec {real} "$@"
"""


@pytest.mark.parametrize("release", ["26.11", "27.05"])
def test_jobs_are_placed_and_one_with_a_new_option_goes_as_asked(lab: Lab, release: str) -> None:
    own = lab.root / "newer"
    own.mkdir(exist_ok=True)
    own.chmod(0o755)
    sbatch = own / "sbatch"
    sbatch.write_text(SBATCH.format(real=lab.run(["which", "sbatch"]).stdout.strip()))
    sbatch.chmod(0o755)
    folder = write_site(lab, f"newer-{release}", agent=False, extra={"paths.sbatch": f'"{sbatch}"'})
    path = folder / "site.toml"
    path.write_text(re.sub(r"(?m)^slurm_release = .*$", f'slurm_release = "{release}"', path.read_text()))
    assert f'"{release}"' in path.read_text()
    user = User(lab, "carol", folder)
    user.script("#!/bin/sh\n#SBATCH --gres=gpu:h100:1 -t 5 -p all\ntrue\n")
    placed, new, after = (user.submit(SMALL, *words, "train.sh") for words in ((), ("--frobnicate=2",), ()))
    lab.wait_jobs([placed, new, after])
    slices = {job: user.allocated(job).get(f"gres/gpu:{SLICE}_1g.10gb") for job in (placed, new, after)}
    assert slices == {placed: "1", new: None, after: "1"}
    assert user.allocated(new)["gres/gpu:h100"] == "1"
    assert user.shown(new)["JobState"] == "COMPLETED"
