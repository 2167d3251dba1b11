# SPDX-License-Identifier: Apache-2.0
"""Which tests are slow is measured, not judged: `make slow` writes tests/slow.txt, which marks them.

A test is slow by its CPU time, with that of the programs it runs: another load of the machine changes it least. What is
slow runs in `make ci` and not in `make check`. As a pytest plugin (`-p tests.rings`) this measures and writes the list.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

SLOW = Path(__file__).with_name("slow.txt")
SLOW_S = 0.3
_CPU = "cpu_s"


def function(nodeid: str) -> str:
    """Return the name of a test without that of its case."""
    return nodeid.partition("[")[0]


def slow() -> frozenset[str]:
    """Return the tests of the list, each with all of its cases."""
    return frozenset(line for line in SLOW.read_text().splitlines() if not line.startswith("#"))


def defined(name: str) -> bool:
    """Return whether there is such a test."""
    path, _, test = name.partition("::")
    found = SLOW.parents[1] / path
    return found.is_file() and f"def {test}(" in found.read_text()


def listed(seconds: dict[str, float], before: frozenset[str]) -> str:
    """Return the list of those that took so long in their longest case; what was not run stays where it was."""
    stay = {name for name in before if name not in seconds and defined(name)}
    names = sorted(stay | {name for name, cpu_s in seconds.items() if cpu_s >= SLOW_S})
    head = f"# Tests of {SLOW_S:g} s of CPU time and more, which 'make slow' measures."
    return "".join(f"{line}\n" for line in (head, *names))


class _Meter:
    """Keeps the CPU time of each test's longest case, from the end of the one before; workers hand it to their head."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last_s = 0.0

    def pytest_collection_finish(self) -> None:
        self._last_s = sum(os.times()[:4])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            now_s = sum(os.times()[:4])
            report.user_properties.append((_CPU, now_s - self._last_s))
            self._last_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _CPU and report.when == "teardown":
                test = function(report.nodeid)
                self.seconds[test] = max(self.seconds.get(test, 0.0), float(str(value)))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            SLOW.write_text(listed(self.seconds, slow()))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Meter())
