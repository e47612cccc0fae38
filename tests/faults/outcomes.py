"""A plugin of pytest that writes each outcome as it comes, so that a run may be cut off.

The file that ``FAULT_OUTCOMES`` names gets a line of JSON for each test that ended, and for each
file of tests that could not be read.
"""

from __future__ import annotations

import json
import os
import time

import pytest

VARIABLE = "FAULT_OUTCOMES"


class Outcomes:
    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, test: str, outcome: str, reason: str = "") -> None:
        with open(self.path, "a") as file:
            line = {"test": test, "outcome": outcome, "time": time.time(), "reason": reason}
            file.write(json.dumps(line) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.write(report.nodeid, "failed", last_line(report))
        elif report.skipped or report.when == "call":
            self.write(report.nodeid, report.outcome)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(report.nodeid, "error", last_line(report))


def last_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why it failed, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longrepr or "").splitlines()
    return lines[0 if crash else -1][:200] if lines else ""


def pytest_configure(config: pytest.Config) -> None:
    # Workers of pytest-xdist report to the process that started them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(os.environ[VARIABLE]))
