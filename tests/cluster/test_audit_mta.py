# SPDX-License-Identifier: Apache-2.0
"""Notices to Debian's own mail server, which puts what it takes into a mailbox; no name server, no other host."""

import mailbox
import os
import shutil
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slurm_colloc.audit.post import Post
from slurm_colloc.audit.state import opened
from tests.unit.programs import program
from tests.unit.test_audit_post import GIVEN, TEXTS, gives
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
EXIM, USER = "/usr/sbin/exim4", "Debian-exim"
CONFIG = """
exim_user = {user}
spool_directory = {root}/spool
log_file_path = {root}/spool/%slog
primary_hostname = mail.example.org
begin routers
gone:
  driver = redirect
  local_parts = gone
  data = :fail: no such user
  allow_fail
all:
  driver = accept
  domains = example.org
  transport = box
begin transports
box:
  driver = appendfile
  file = {root}/spool/box
  envelope_to_add
  return_path_add
  user = {user}
"""


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have the machine's own mail service deliver into a mailbox, and to nobody else."""
    if os.geteuid() != 0 or not os.path.exists(EXIM):
        if os.environ.get("COLLOC_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"no root, or no {EXIM}: run tests/cluster/bootstrap.sh", pytrace=False)
        pytest.skip(f"needs root and {EXIM}")
    with TemporaryDirectory(prefix="colloc-mta-", dir="/var/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "spool").mkdir()
        shutil.chown(root / "spool", USER)
        (root / "conf").write_text(CONFIG.format(root=root, user=USER))
        program(tmp_path, "sendmail", f'exec {EXIM} -C {root}/conf "$@"\n', monkeypatch)
        yield root / "spool/box"


def boxed(box: Path) -> list[EmailMessage]:
    made = [BytesParser(policy=policy.default).parsebytes(bytes(one)) for one in mailbox.mbox(box)]
    return [one for one in made if isinstance(one, EmailMessage)]


def test_the_hosts_mail_service_takes_delivers_and_reports(box: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with opened(str(tmp_path / "state")) as state:
        post = Post(state, GIVEN)
        # Whom it cannot reach it reports itself, to the sender.
        assert gives(post, "ann", "gone", "bob") == ["handed over"] * 3
        assert post.errors() == []
        ids = {one.user: one.message for one in state.messages()}
    wait_for(lambda: box.exists() and len(boxed(box)) == 3, "exim delivers nothing")
    to = {str(one["Envelope-To"]).partition("@")[0]: one for one in boxed(box)}
    assert {user: to[user]["Message-ID"] for user in ("ann", "bob")} == {user: ids[user] for user in ("ann", "bob")}
    for user in ("ann", "bob"):
        body = to[user].get_body(("plain",))
        assert isinstance(body, EmailMessage)
        # Lines that begin with a dot, or are one, came whole; the mailbox itself marks what begins as its own lines do.
        assert body.get_content().replace("\n>From", "\nFrom") == TEXTS.plain
        assert (to[user]["Auto-Submitted"], to[user]["Return-Path"]) == ("auto-generated", "<hpc@example.org>")
    report = to["hpc"]
    assert (report["Return-Path"], report["X-Failed-Recipients"]) == ("<>", "gone@example.org")
