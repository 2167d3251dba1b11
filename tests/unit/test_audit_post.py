# SPDX-License-Identifier: Apache-2.0
"""Mails to a mail service, and counts to a command, that take, refuse, hang and die."""

from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.audit import post as audit_post
from slurm_colloc.audit.escalation import DOUBTFUL, FIRST, Planned, in_doubt
from slurm_colloc.audit.post import COMMAND, Post, Texts, address_of, check_settings, digest_id, fault_of, mail_content
from slurm_colloc.audit.state import State, opened
from slurm_colloc.core.clock import now
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import ConfigError
from tests.unit.golden import Printed
from tests.unit.hostile import HOSTILE
from tests.unit.mail_service import Taken, mail_service, no_mail_service
from tests.unit.noticed import finding
from tests.unit.programs import executable

TEXTS = Texts("[c] 1 finding", "Hello\n.\n..dots\nFrom me\nend\n", "<p>Hello</p>")
GIVEN = Notices("users", sender="hpc@example.org", admins=("root@example.org",), address="{user}@example.org")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    (tmp_path / "state").mkdir()
    with opened(str(tmp_path / "state")) as one:
        yield one


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Taken:
    return mail_service(tmp_path, monkeypatch)


def gives(post: Post, *users: str, given: Notices = GIVEN) -> list[str]:
    """Hand a mail to each of them over, and return what became of these."""
    became = []
    for user in users:
        to = f"{user}@example.org"
        due = Planned(finding(subject=user, user=user), FIRST, "new")
        id = digest_id(to, [due], given)
        became.append(post.give(in_doubt(id, user, to, now(), [due]), mail_content(id, to, TEXTS, given, 0.0)))
    return became


def test_what_is_sent_arrives_as_it_is_and_once(state: State, taken: Taken) -> None:
    given = GIVEN
    post = Post(state, given)
    assert gives(post, "ann", "bob", given=given) == ["handed over"] * 2
    (got,) = taken.to("ann@example.org")
    assert (got["From"], got["Subject"]) == ("hpc@example.org", "[c] 1 finding")
    assert got["Auto-Submitted"] == "auto-generated"
    assert got["List-Unsubscribe"] == "<mailto:hpc@example.org?subject=no%20more%20notices>"
    plain, html = got.get_body(("plain",)), got.get_body(("html",))
    assert isinstance(plain, EmailMessage)
    assert isinstance(html, EmailMessage)
    assert (plain.get_content(), html.get_content()) == (TEXTS.plain, "<p>Hello</p>\n")
    assert taken.argv == ["-t -oi -f hpc@example.org"] * 2
    # By this run or another one.
    assert gives(post, "ann", given=given) == gives(Post(state, given), "bob", given=given) == [""]
    assert len(taken.mails) == 2
    assert post.errors() == []


@pytest.mark.parametrize(
    ("what", "became", "next_one", "said"),
    [
        ("67", "not taken", "handed over", "ended with status 67: bob@example.org: no; the next run tells of what is"),
        ("75", "not taken", "not taken", "ended with status 75: bob@example.org: no"),
        ("hang", "handing over", "not taken", "did not answer within 0.5 s"),
        ("take and hang", "handing over", "not taken", "did not answer within 0.5 s"),
        ("take and die", "handing over", "handed over", "was ended by signal 9"),
    ],
)
def test_a_mail_that_does_not_go(
    state: State, taken: Taken, monkeypatch: pytest.MonkeyPatch, what: str, became: str, next_one: str, said: str
) -> None:
    monkeypatch.setattr(audit_post, "MAIL_TIMEOUT_S", 0.5)
    taken.odd("bob@example.org", what)
    post = Post(state, GIVEN)
    assert gives(post, "ann", "bob", "eve") == ["handed over", became, next_one]
    (error,) = post.errors()
    assert said in error
    # What was not taken told nobody, and goes by the next run; what may have gone goes by none.
    taken.odd("bob@example.org", "")
    assert {one.user for one in state.messages(DOUBTFUL)} == ({"bob"} if became == DOUBTFUL else set())
    assert {one.subject for one in state.notifications()} >= {"ann"} | ({"bob"} if became == DOUBTFUL else set())
    assert gives(Post(state, GIVEN), "bob") == ([""] if became == DOUBTFUL else ["handed over"])
    assert len(taken.to("bob@example.org")) == (0 if what == "hang" else 1)


def test_that_there_is_no_mail_service_is_said_once(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    no_mail_service(tmp_path, monkeypatch)
    post = Post(state, GIVEN)
    assert gives(post, "ann", "bob", "eve") == ["not taken"] * 3
    (error,) = post.errors()
    printed("audit", error)
    assert (state.messages(), state.notifications()) == ([], [])


def test_what_a_killed_run_left_is_in_doubt_and_said_by_one_run(state: State, taken: Taken, printed: Printed) -> None:
    due = Planned(finding(), FIRST, "new")
    assert state.begin_message_once(in_doubt("<x@y>", "ann", "ann@example.org", 1.0, [due]))
    (error,) = Post(state, GIVEN).errors()
    printed("audit", error)
    assert Post(state, GIVEN).errors() == []
    assert [(one.message, one.state) for one in state.messages()] == [("<x@y>", DOUBTFUL)]
    assert taken.mails == []


def test_no_name_gets_into_a_header_or_an_envelope() -> None:
    for name in (
        *HOSTILE,
        "ann\r\nBcc: eve@x",
        "ann@evil.example",
        "ann eve",
        "ann>",
        "-oQ",
        "ann,eve",
        "änn",
        "a" * 80,
    ):
        assert address_of(name, GIVEN) is None, name
    assert address_of("ann.b-c_1", GIVEN) == "ann.b-c_1@example.org"
    assert address_of("ann", GIVEN._replace(address="")) is None


def test_settings_that_cannot_be_meant_are_refused() -> None:
    check_settings(Notices())
    check_settings(GIVEN)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"sender": ""}, "mails to users need 'notices.sender', which site.toml does not set"),
        ({"admins": ()}, "need 'notices.admins'"),
        ({"address": ""}, "need 'notices.address'"),
        ({"address": "all@example.org"}, "is one address for all"),
        ({"address": "{user}@x, eve@x"}, "is no plain address"),
        ({"sender": "a@x\r\nBcc: eve@x"}, "is no plain address"),
        ({"sender": "-oQ/tmp@x"}, "is no plain address"),
        ({"sender": "HPC <a@x>"}, "is no plain address"),
        ({"admins": ("a@x", "b")}, "'notices.admins': 'b' is no plain address"),
        ({"actions": {"COL001": "kill"}}, "'COL001' must be 'hold' or 'cancel', not 'kill'"),
    )
    for fields, said in cases:
        with pytest.raises(ConfigError, match=said):
            check_settings(GIVEN._replace(**fields))


def test_the_same_content_has_the_same_id_and_other_content_another() -> None:
    two = [Planned(finding(subject=one), FIRST, "new") for one in "ab"]
    id = digest_id("ann@x", two, GIVEN)
    assert id == digest_id("ann@x", two[::-1], GIVEN)
    assert id.endswith("@example.org>")
    others = (
        [two[0]],
        [two[0], two[1]._replace(step=2)],
        [two[0], Planned(finding(subject="b", digest="x"), FIRST, "")],
    )
    assert len({id, digest_id("bob@x", two, GIVEN), *(digest_id("ann@x", other, GIVEN) for other in others)}) == 5


def command(folder: Path, what: str = "exit 0") -> str:
    """Return the path of a command that keeps what it gets, call for call, and then does this."""
    text = f'#!/bin/sh\ncat > "{folder}/$$.part"\nmv "{folder}/$$.part" "{folder}/got.$(date +%s%N)-$$"\n{what}\n'
    return str(executable(folder / "command", text))


def got(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("got.*"))]


COUNTS = (in_doubt("<w@x>", "", COMMAND, 1.0), b'{"text": "x"}')


@pytest.mark.parametrize(
    ("what", "became"),
    [
        ("exit 0", "handed over"),
        ("echo no >&2; exit 3", "not taken"),
        ("kill -9 $$", "handing over"),
        ("sleep 60", "handing over"),
    ],
)
def test_a_command_has_it_once(
    state: State, taken: Taken, tmp_path: Path, what: str, became: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_post, "COMMAND_TIMEOUT_S", 1.0)
    post = Post(state, GIVEN._replace(command=command(tmp_path, what)))
    assert post.give(*COUNTS) == became
    assert gives(post, "ann") == ["handed over"]  # mails go all the same
    assert len(post.errors()) == (became != "handed over")
    # By the next run only where nobody took it.
    assert Post(state, post._settings).give(*COUNTS) == (became if became == "not taken" else "")
    assert got(tmp_path) == [b'{"text": "x"}'] * (2 if became == "not taken" else 1)


def test_a_command_that_others_may_change_is_not_run(state: State, tmp_path: Path, printed: Printed) -> None:
    path = Path(command(tmp_path))
    assert fault_of(str(path)) == ""
    for place, mode in ((path, 0o775), (path, 0o644), (tmp_path, 0o777)):
        before = place.stat().st_mode & 0o7777
        place.chmod(mode)
        assert fault_of(str(path))
        assert Post(state, GIVEN._replace(command=str(path))).give(*COUNTS) == "not taken"
        place.chmod(before)
    printed("audit", fault_of(str(tmp_path)), fault_of(str(tmp_path / "none")))
    assert got(tmp_path) == []
