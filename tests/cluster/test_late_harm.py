# SPDX-License-Identifier: Apache-2.0
"""Jobs that their piece harms after they got it while they waited: what keeps the next ones from one on real Slurm."""

from __future__ import annotations

import json
import shutil
import time

import pytest

from tests.cluster.fixtures import RELEASE
from tests.cluster.lab import Lab
from tests.cluster.site import write_site
from tests.cluster.test_rebind import _ended, bind, change_of, known_run, look, tell  # noqa: F401
from tests.cluster.test_recovery import HEAD, LARGER, ONCE, PIECES, Trainer
from tests.cluster.user import tres

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(RELEASE == "22.05", reason="22.05 changes no whole GPU to a share"),
]

MONTH_LATER = """
import time
from slurm_colloc.rebind import look, program, waiting
for module in (look, waiting):
    module.now = lambda: time.time() + 31 * 86400
program.main(0)
"""


def test_a_harmed_job_is_a_bar_for_a_month_and_five_of_two_users_stop_the_site(lab: Lab) -> None:
    extra = {"sharing.order": '["mig"]', "sharing.late_binding": '"on"', "sharing.mps_daemon": '"prolog"'}
    folder = write_site(lab, "late-harm", agent=False, extra={**extra, "sharing.late_back": '"off"'})
    alice, bob = (Trainer(lab, name, folder) for name in ("alice", "bob"))
    words, fine, fifth_words = (
        ["--gres=gpu:h100:1", "-p", "all", name] for name in ("train.sh", "fine.sh", "fifth.sh")
    )
    for user in (alice, bob):
        shutil.rmtree(user.home / ".local/share/slurm_colloc", ignore_errors=True)
        user.script(HEAD.replace("-t 30", "-t 120") + ONCE)
    bob.script(HEAD.replace("-t 30", "-t 120") + "echo fine\n", "fine.sh")
    bob.script(HEAD.replace("-t 30", "-t 120") + ONCE + "echo fifth\n", "fifth.sh")
    on_piece = alice.submit("-H", *words)
    harmed = [(alice, alice.submit("-H", *words)) for _ in range(3)] + [(bob, bob.submit("-H", *words))]
    for user in (alice, bob):
        tell(user, known_run(user, *words))
    for user, job in ((alice, on_piece), *harmed):
        bind(user, job)
    for user, job in harmed:
        user.run("scontrol", "release", job)
    for user, job in harmed:
        user.requeued(job)
    lab.wait_jobs([job for _, job in harmed])
    for user, job in harmed:
        assert user.rows(job) == [f"REQUEUED {PIECES['mig']}", "COMPLETED gres/gpu:h100=1"]
    # The bar: what waits on a piece goes back, and none like it gets one for a month.
    own = alice.home / ".local/share/slurm_colloc/evidence"
    tell(alice)
    own.rename(own.with_name("hidden"))
    barred = alice.submit("-H", *words)
    own.with_name("hidden").rename(own)
    tell(alice, known_run(alice, *words))
    look(alice)
    assert (change_of(alice, on_piece) or {})["why"] == "harmed"
    # Measured on whole GPUs since, a new submission might have a larger one.
    tell(alice, *(known_run(alice, *words)._replace(job_id=f"{n}", ended_s=time.time() + n) for n in range(1, 5)))
    look(alice)
    assert change_of(alice, barred) is None
    look(alice, MONTH_LATER)
    assert (change_of(alice, barred) or {})["gres"] == f"gpu:{LARGER}:1"
    # Four of two users are not too many, of which a fifth is one.
    assert stopped(lab, alice) == ""
    tell(bob)
    waits, fifth = bob.submit("-H", *fine), bob.submit("-H", *fifth_words)
    tell(bob, known_run(bob, *fine), known_run(bob, *fifth_words))
    bind(bob, waits)
    bind(bob, fifth)
    bob.run("scontrol", "release", fifth)
    bob.requeued(fifth)
    lab.wait_jobs([fifth])
    assert bob.rows(fifth)[0] == f"REQUEUED {PIECES['mig']}"
    assert stopped(lab, alice).startswith("5 jobs")
    # What waits on a piece is put back.
    for user, job in ((alice, barred), (bob, waits)):
        look(user)
        assert (change_of(user, job) or {})["why"] == "undo"
        assert user.shown(job)["TresPerNode"] == tres("gpu:h100:1")
    # Until a person says so.
    lab.run(["colloc", "site", "resume"], check=True, env=alice.environment)
    assert stopped(lab, alice) == ""


def stopped(lab: Lab, user: Trainer) -> str:
    """Return why the site gives no piece late, after an ingest."""
    lab.run(["colloc", "ingest"], check=True, env=user.environment)
    path = user.folder / "history/stopped.json"
    return str(json.loads(path.read_text())["late"]) if path.exists() else ""
