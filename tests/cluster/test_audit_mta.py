# SPDX-License-Identifier: Apache-2.0
"""Notices to Debian's own mail server, which puts what it takes into a mailbox; no name server, no other host."""

import mailbox
import os
import shutil
import subprocess
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slurm_colloc.audit.message import mail
from slurm_colloc.audit.state import MAIL, Message, opened
from slurm_colloc.clock import now
from tests.unit.mail_server import free_port
from tests.unit.test_audit_post import TEXTS, post, queue, settings
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
EXIM, USER = "/usr/sbin/exim4", "Debian-exim"
CONFIG = """
exim_user = {user}
spool_directory = {root}/spool
log_file_path = {root}/spool/%slog
primary_hostname = mail.example.org
tls_advertise_hosts =
host_lookup =
rfc1413_hosts =
acl_smtp_rcpt = rcpt
begin acl
rcpt:
  deny local_parts = gone
       message = no such user
  accept domains = example.org
  deny message = relay not permitted
begin routers
all:
  driver = accept
  transport = box
begin transports
box:
  driver = appendfile
  file = {root}/spool/box
  user = {user}
"""


@pytest.fixture
def exim() -> Iterator[tuple[int, Path]]:
    """Run exim on loopback; give its port and its mailbox."""
    if os.geteuid() != 0 or not os.path.exists(EXIM):
        if os.environ.get("COLLOC_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"no root, or no {EXIM}: run tests/cluster/bootstrap.sh", pytrace=False)
        pytest.skip(f"needs root and {EXIM}")
    with TemporaryDirectory(prefix="colloc-mta-", dir="/var/tmp") as folder:
        root, port = Path(folder), free_port()
        root.chmod(0o755)
        (root / "spool").mkdir()
        shutil.chown(root / "spool", USER)
        (root / "conf").write_text(CONFIG.format(root=root, user=USER))
        argv = [EXIM, "-C", f"{root}/conf", "-bdf", "-oX", f"127.0.0.1:{port}", "-oP", f"{root}/spool/pid"]
        with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as running:
            try:
                wait_for(lambda: (root / "spool/pid").exists(), "exim does not listen")
                yield port, root / "spool/box"
            finally:
                running.terminate()


def boxed(box: Path) -> list[EmailMessage]:
    made = [BytesParser(policy=policy.default).parsebytes(bytes(one)) for one in mailbox.mbox(box)]
    return [one for one in made if isinstance(one, EmailMessage)]


def test_a_real_mail_server_takes_refuses_and_delivers(exim: tuple[int, Path], tmp_path: Path) -> None:
    port, box = exim
    given = settings(port, timeout_s=20.0)
    with opened(str(tmp_path)) as state:
        queue(state, given, "ann", "gone", "bob")
        elsewhere = Message("<far@x>", MAIL, "eve", "eve@elsewhere.example")
        state.queue(elsewhere, mail("<far@x>", elsewhere.recipient, TEXTS, given, 0.0), (), now())
        assert post(state, given) == (2, 2, 0, 0, "")
        assert post(state, given) == (0, 0, 0, 0, "")
        replies = {one.user: one.reply for one in state.outbox("refused")}
        assert replies == {"gone": "550 no such user", "eve": "550 relay not permitted"}
        ids = {one.id for one in state.outbox("accepted")}
    wait_for(lambda: box.exists() and len(boxed(box)) == 2, "exim delivers nothing")
    assert {one["Message-ID"] for one in boxed(box)} == ids
    for one in boxed(box):
        body = one.get_body(("plain",))
        assert isinstance(body, EmailMessage)
        # Lines that begin with a dot, or are one, came whole.
        assert body.get_content() == TEXTS.plain
        assert one["Auto-Submitted"] == "auto-generated"
