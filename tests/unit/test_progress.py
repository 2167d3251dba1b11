# SPDX-License-Identifier: Apache-2.0
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc.output import say
from slurm_colloc.cli.colloc.progress import progress
from slurm_colloc.store import queries
from slurm_colloc.store.ingest import keep_text
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.programs import colloc
from tests.unit.terminals import screen
from tests.waiting import wait_for

RECORDED = Path(__file__).resolve().parents[1] / "recorded/demo"
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor


def test_a_person_who_waits_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, "stderr") as shown, progress("adding [b]up", after_s=0) as step:
        step(2, 3)
        wait_for(lambda: "adding [b]up" in shown.text and " 67%" in shown.text and " left" in shown.text)
        say("what is said meanwhile")
        with progress("a part of it", after_s=0) as part:
            part(1, 2)
    assert "colloc: what is said meanwhile\n" in shown.text
    assert shown.text.count(HIDDEN) == shown.text.count(SHOWN) > 0
    assert shown.text.endswith("\x1b[2K"), "it is gone"
    assert "a part of it" not in shown.text, "two bars would write over each other"


def test_an_error_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        with progress("x", after_s=0) as step:
            step(1, 2)
            wait_for(lambda: HIDDEN in shown.text)
            raise KeyboardInterrupt

    with screen(monkeypatch, "stderr") as shown, pytest.raises(KeyboardInterrupt):
        interrupted()
    assert shown.text.count(HIDDEN) == shown.text.count(SHOWN) > 0


def test_how_far_a_text_is_read_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows DuckDB knows the part; of the queries after the one that reads them the bar does not go back."""
    monkeypatch.setattr(queries, "_LOOK_EACH_S", 0.001)
    parts: set[int] = set()
    # On a fast machine fewer rows are read between two looks.
    for count in (200_000, 400_000, 800_000):
        rows = "".join(f"{job}|{job}|c|ann|COMPLETED|3600|7200|gres/gpu=1\n" for job in range(1, count))
        (tmp_path / "sacct.txt").write_text(f"JobID|JobIDRaw|Cluster|User|State|Start|End|AllocTRES\n{rows}")
        seen: list[tuple[int, int]] = []
        store = Store(str(tmp_path / f"store{count}"))
        keep_text(
            store, "a", str(tmp_path / "sacct.txt"), (), None, 1e6, step=lambda *done, seen=seen: seen.append(done)
        )
        assert seen == sorted(seen)
        assert {of for _, of in seen} == {100}
        parts = {done for done, _ in seen if 0 < done <= 100}
        if len(parts) > 1:
            break
    assert len(parts) > 1


def test_nobody_waits_for_what_is_soon_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, "stderr") as shown, progress("x", after_s=600) as step:
        step(1, 2)
    assert shown.text == ""
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_nothing_is_shown_to_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    assert not sys.stderr.isatty()
    with progress("x", after_s=0) as step:
        step(1, 2)
    assert capfd.readouterr() == ("", "")


Told = dict[str, list[tuple[int, int]]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Return what commands tell of their progress: work -> (done, of)."""
    found: Told = {}

    @contextmanager
    def noted(what: str) -> Iterator[Callable[[int, int], None]]:
        steps = found.setdefault(what, [])
        yield lambda done, of: steps.append((done, of))

    for name in ("audit", "compact", "ingest", "report", "flush"):
        monkeypatch.setattr(import_module(f"slurm_colloc.cli.colloc.{name}"), "progress", noted)
    return found


def test_what_may_take_long_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told, printed: Printed
) -> None:
    text, journal, store = (str(RECORDED / "sacct.txt"), str(tmp_path / "journal"), str(tmp_path / "store"))
    shutil.copytree(RECORDED / "journal", journal)
    Path(store).mkdir(mode=0o700)
    monkeypatch.setenv("COLLOC_CONF", str(RECORDED / "site.toml"))
    node = next(Path(journal).iterdir()).name
    assert colloc("flush", "--journal", journal, "--store", store, "--node", node) == 0
    assert colloc("ingest", "--store", store, "--sacct-file", text, "--journal", journal) == 0
    assert colloc("report", "--store", store, "--since", "2020-01-01") == 0
    assert colloc("audit", "run", "--store", store, "--since", "2020-01-01") in (0, 1)
    assert colloc("compact", "--store", store, "--anyway") == 0
    assert colloc("report", "--sacct-file", text, "--since", "2020-01-01") == 0
    printed("progress", *sorted(told))
    told.pop("taking in the text")  # soon done: whether it is looked at meanwhile nobody knows
    # Of a store and of a text, to the last line: what is added up is part of it, and so is a page.
    whole = [done for done, _ in told["making the report"]]
    assert (whole.count(60) >= 2, whole.count(75), whole.count(100)) == (True, 2, 2)
    for what, steps in told.items():
        assert steps, what
        assert all(0 <= done <= of for done, of in steps), what
        assert steps[0][0] == 0, what
        assert steps[-1][0] >= steps[-1][1] - 1, what
