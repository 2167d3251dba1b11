# SPDX-License-Identifier: Apache-2.0
"""Which tests `make check`, `make ci` and `make all` run.

Which are slow is measured, not judged: `make slow` writes tests/slow.txt, which marks them. A test is slow by its CPU
time, with that of the programs it runs: another load of the machine changes it least. Every run measures and names what
is missing from the list; with `--slow-list` it writes the list. `make check` runs none of these, `make ci` those that
tests/ci.txt names, with a tenth of the data.
"""

import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

SLOW = Path(__file__).with_name("slow.txt")
CI = Path(__file__).with_name("ci.txt")
SLOW_S = 0.3
# What is missing from the list is named from here on: some test pays for what a worker imports first, and figures vary.
MISSING_S = 1.0
_CPU = "cpu_s"
# A file of tests/cluster is one worker's; a long one that began last would be waited for alone.
LONGEST = (
    *("test_plan", "test_package", "test_example_sites", "test_remove_plugins", "test_visible", "test_proof"),
    *("test_audit_timers", "test_programs", "test_csub_pack", "test_loop", "test_pack", "test_pack_reach"),
    "test_reconcile",
)


def function(nodeid: str) -> str:
    """Return the name of a test without that of its case."""
    return nodeid.partition("[")[0]


def tenth(size: int) -> int:
    """Return how much data a slow test takes: all of it, but in `make ci`; of examples the first is the simplest."""
    return max(3, size // 10) if os.environ.get("COLLOC_TEST_TENTH") else size


def listed_in(path: Path) -> frozenset[str]:
    """Return the tests of a list, each with all of its cases, and its files."""
    return frozenset(line for line in path.read_text().splitlines() if not line.startswith("#"))


def slow() -> frozenset[str]:
    """Return the slow tests."""
    return listed_in(SLOW)


def defined(name: str) -> bool:
    """Return whether there is such a test or file."""
    path, _, test = name.partition("::")
    found = SLOW.parents[1] / path
    return found.is_file() and (not test or f"def {test}(" in found.read_text())


def listed(seconds: dict[str, float], before: frozenset[str]) -> str:
    """Return the list of those that took so long in their longest case; what was not run stays where it was."""
    stay = {name for name in before if name not in seconds and defined(name)}
    names = sorted(stay | {name for name, cpu_s in seconds.items() if cpu_s >= SLOW_S})
    head = f"# Tests of {SLOW_S:g} s of CPU time and more, which 'make slow' measures."
    return "".join(f"{line}\n" for line in (head, *names))


def missing(seconds: dict[str, float], known: frozenset[str]) -> list[str]:
    """Return the unit tests that the list should have, and what each took."""
    units = {name: cpu_s for name, cpu_s in seconds.items() if name.startswith("tests/unit/") and name not in known}
    return [f"{name}: {cpu_s:.1f} s" for name, cpu_s in sorted(units.items()) if cpu_s >= MISSING_S]


def spent_s(pid: int) -> float:
    """Return the CPU time of a process and of all that it has started, also of what still runs, as a browser does."""
    ticks, threads, children = 0, list[Path](), list[str]()
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        # Behind its name, which may hold anything, utime to cstime are the 12th to the 15th field.
        ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        threads += Path(f"/proc/{pid}/task").iterdir()
    for thread in threads:
        with suppress(FileNotFoundError, ProcessLookupError):
            children += (thread / "children").read_text().split()
    return ticks / os.sysconf("SC_CLK_TCK") + sum(spent_s(int(child)) for child in children)


class _Meter:
    """Keeps the CPU time of each test's longest case, from the end of the one before; workers hand it to their head."""

    def __init__(self, rewrite: bool) -> None:
        self.seconds: dict[str, float] = {}
        self._rewrite = rewrite
        self._last_s = 0.0

    def pytest_collection_finish(self) -> None:
        self._last_s = spent_s(os.getpid())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            now_s = spent_s(os.getpid())
            report.user_properties.append((_CPU, now_s - self._last_s))
            self._last_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _CPU and report.when == "teardown" and "soak" not in report.keywords:
                test = function(report.nodeid)
                self.seconds[test] = max(self.seconds.get(test, 0.0), float(str(value)))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._rewrite and not hasattr(session.config, "workerinput"):
            SLOW.write_text(listed(self.seconds, slow()))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if found := missing(self.seconds, slow()):
            terminalreporter.section("slow, and not in tests/slow.txt: run 'make slow'")
            terminalreporter.line("\n".join(found))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what the lists have, and let the longest files of the cluster's tests begin first."""
    known, chosen = slow(), listed_in(CI)
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    for item in items:
        name = function(item.nodeid)
        if name in known:
            item.add_marker("slow")
        if {name, name.partition("::")[0]} & chosen or (name.startswith("tests/unit/") and name not in known):
            item.add_marker("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow-list", action="store_true", help="write tests/slow.txt by what these tests take")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Meter(config.getoption("--slow-list")))
