# SPDX-License-Identifier: Apache-2.0
"""What slurmctld itself sends through our MailProg, by a real mail program where the machine's own Slurm runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.cluster.daemons import ids_of
from tests.cluster.fixtures import RELEASE, need_cluster, new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.releases import HOST
from tests.cluster.site import write_site
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
# Later releases run among files of their own, without a mail program.
MAILX = "/usr/bin/bsd-mailx"
PLAIN = '#!/bin/sh\n{{ printf \'To: %s\\nSubject: %s\\n\\n\' "$3" "$2"; cat; }} | {root}/etc/sendmail\n'


class Mails:
    """A lab whose mails end up in a folder."""

    def __init__(self, lab: Lab, site: Path) -> None:
        self.lab, self.site = lab, site
        self.env = {"COLLOC_CONF": str(site / "site.toml")}

    def sent(self, count: int) -> list[str]:
        """Wait for so many mails and take them away."""
        folder = self.lab.root / "out"
        wait_for(lambda: len(list(folder.glob("mail.*"))) >= count, "there are too few mails")
        found = sorted(folder.glob("mail.*"))
        texts = [path.read_text() for path in found]
        for path in found:
            path.unlink()
        assert len(texts) == count, texts
        return texts

    def submit(self, *options: str) -> str:
        argv = ["sbatch", "--parsable", "--mail-type=END,FAIL", "--mail-user=alice", "-o", "/dev/null", *options]
        job = self.lab.run_as("alice", [*argv, "--wrap", "sleep 1"], check=True).stdout.strip()
        self.lab.wait_jobs([job])
        return job

    def as_slurmctld(self, job: str) -> str:
        """Send the mail of a job anew, as slurmctld would, and return it."""
        slurm = ids_of("slurm")
        environment = {
            "SLURM_CONF": str(self.lab.slurm_conf),
            "SLURM_JOB_ID": job,
            "SLURM_JOB_USER": "alice",
            "SLURM_JOB_MAIL_TYPE": "Ended",
            "SLURM_JOB_RUN_TIME": "00:10:00",
            **self.lab.names,
        }
        argv = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
        under = ["setpriv", f"--reuid={slurm[0]}", f"--regid={slurm[1]}", "--clear-groups", "--"]
        subject = f"Slurm Job_id={job} Name=wrap Ended"
        program = str(self.lab.root / "etc/colloc-mail")
        self.lab.run([*under, *argv, program, "-s", subject, "alice"], check=True)
        return self.sent(1)[0]


@pytest.fixture(scope="module")
def mails() -> Iterator[Mails]:
    need_cluster()
    if HOST.name == RELEASE and not os.path.exists(MAILX):
        if os.environ.get("COLLOC_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"there is no {MAILX}: run tests/cluster/bootstrap.sh", pytrace=False)
        pytest.skip(f"there is no {MAILX}")
    root = Path(mkdtemp(prefix="colloc-lab-", dir="/var/tmp"))
    mail = f'#!/bin/sh\nMAILRC={root}/etc/mailrc exec {MAILX} "$@"\n' if HOST.name == RELEASE else PLAIN
    files = {
        "colloc-mail": "#!/bin/sh\nexit 1\n",
        "site-mail": mail.format(root=root),
        "mailrc": f"set sendmail={root}/etc/sendmail\n",
        "sendmail": f"#!/bin/sh\ncat >{root}/out/.mail.$$ && mv {root}/out/.mail.$$ {root}/out/mail.$$\n",
    }
    with running(new_lab(f"MailProg={root}/etc/colloc-mail\n", files, root)) as lab:
        program = {"mail.program": f'"{root}/etc/site-mail"'}
        site = write_site(lab, "site", agent=False, extra=program)
        argv = ["colloc", "site", "render", "-o", str(site / "files"), "--slurm-conf", str(lab.slurm_conf)]
        lab.run(argv, env={"COLLOC_CONF": str(site / "site.toml")}, check=True)
        shutil.copy(site / "files/colloc-mail", root / "etc/colloc-mail")
        (root / "etc/colloc-mail").chmod(0o755)
        yield Mails(lab, site)


def test_a_job_without_gpus_gets_slurms_own_mail(mails: Mails) -> None:
    job = mails.submit()
    (text,) = mails.sent(1)
    assert f"Subject: Slurm Job_id={job} Name=wrap Ended, Run time" in text
    assert text.partition("\n\n")[2].strip() == ""


def test_a_job_with_a_gpu_is_told_what_it_had_and_what_it_used_once_that_is_known(mails: Mails) -> None:
    job = mails.submit("-p", "all", "--gres=gpu:h100:1")
    (text,) = mails.sent(1)
    assert f"Subject: Slurm Job_id={job} " in text
    assert f"Job {job} had gpu:h100:1. What it used of that is not known yet" in text
    assert f"  colloc job {job}\n" in text

    mails.lab.wait_accounted([job])
    mails.lab.run(["colloc", "ingest", "--since", "1d"], env=mails.env, check=True)
    assert "is not known yet" in mails.as_slurmctld(job), "SlurmUser may not read the store"
    gid = str(ids_of("slurm")[1])
    mails.lab.run(["chgrp", "-R", gid, mails.site / "store"], check=True)
    mails.lab.run(["chmod", "-R", "g+rX", mails.site / "store"], check=True)
    told = mails.as_slurmctld(job)
    assert f"job {job} 'wrap' of alice, COMPLETED\n" in told
    assert "  GPU_UTIL   not measured\n" in told  # no agent runs here


def test_an_array_is_one_mail(mails: Mails) -> None:
    job = mails.submit("--array=1-2", "-p", "all", "--gres=gpu:h100:1")
    (text,) = mails.sent(1)
    assert f"Subject: Slurm Array Summary Job_id={job}_* " in text
    assert f"Job {job} had gpu:h100:1." in text


def test_a_mail_goes_although_colloc_is_broken(mails: Mails) -> None:
    site_toml = mails.site / "site.toml"
    sound = site_toml.read_text()
    site_toml.write_text("nonsense")
    try:
        job = mails.submit("-p", "all", "--gres=gpu:h100:1")
        (text,) = mails.sent(1)
    finally:
        site_toml.write_text(sound)
    assert f"Slurm Job_id={job} " in text
    assert text.partition("\n\n")[2].strip() == ""
