"""A plugin of pytest that runs PyTorch's test files with or without routing, and records outcomes.

run.py loads it into the process that starts the workers, where it writes the record, and into each
worker, where it switches routing on and counts. The record has a line of JSON for each outcome, so
that a run that is cut short leaves what it had.
"""

from __future__ import annotations

import functools
import json
import os
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

CRASHED = "???"  # xdist's name for the phase of a test whose worker died
COUNTS = "customconv"


def pytest_addoption(parser: pytest.Parser) -> None:
    """What run.py passes on."""
    group = parser.getgroup("upstream")
    group.addoption("--record", required=True, help="the file that outcomes are appended to")
    group.addoption("--routing", choices=("off", "cuda", "cpu"), default="off")
    group.addoption("--large", action="store_true", help="only the tests that need much memory")


def pytest_configure(config: pytest.Config) -> None:
    """Gives each process its part: recording, running tests, or both where there is no worker."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        config.pluginmanager.register(Recorder(Path(config.getoption("--record"))))
    if is_worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Runner(config, is_worker))


class Recorder:
    """Writes outcomes as they come in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def pytest_sessionstart(self) -> None:
        """Opens the record."""
        self._file = self._path.open("a", encoding="utf-8")

    def pytest_sessionfinish(self) -> None:
        """Closes it."""
        if self._file:
            self._file.close()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported counts as a test in error."""
        if report.failed:
            self._write(test=report.nodeid, outcome="error", message=_reason(report))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line for an outcome; a setup or a teardown that went well has none."""
        if report.passed and report.when != "call":
            return
        counts = dict(report.user_properties).get(COUNTS) if report.when == "call" else None
        self._write(
            test=report.nodeid,
            outcome=_outcome(report),
            seconds=round(report.duration, 3),
            **({} if report.passed else {"message": _reason(report)}),
            **({"traceback": report.longreprtext[-8000:]} if report.failed else {}),
            **(json.loads(str(counts)) if counts else {}),
        )

    def _write(self, **line: Any) -> None:
        if self._file:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


class Runner:
    """Prepares a process for PyTorch's tests, and counts what routing computes in each."""

    def __init__(self, config: pytest.Config, is_worker: bool) -> None:
        self._routing = str(config.getoption("--routing"))
        self._large = bool(config.getoption("--large"))
        self._is_worker = is_worker

    def pytest_sessionstart(self) -> None:
        """Before any test file is imported."""
        _add_missing_names()
        _mark_large_tests(run=self._large)
        if self._routing != "off":
            import torch

            import customconv

            if self._routing == "cpu":
                torch.ops.customconv._route_on_cpu(False)
            customconv.enable()

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """With --large, only the tests that ask for much memory stay."""
        if self._large:
            large = [item for item in items if _is_large(item)]
            config.hook.pytest_deselected(items=[item for item in items if not _is_large(item)])
            items[:] = large

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Counts of this test alone travel with its report, so that a crash loses no others."""
        if self._routing == "off":
            return (yield)
        import customconv

        customconv.stats(reset=True)
        try:
            return (yield)
        finally:
            stats = customconv.stats(reset=True)
            calls = {f"{op} {family}": n for (op, family), n in stats.calls.items()}
            counts = {"calls": calls, "fallbacks": stats.fallbacks}
            item.user_properties.append((COUNTS, json.dumps(counts)))

    def pytest_runtest_logfinish(self) -> None:
        """Ends a worker whose CUDA context is broken: every later test in it would fail, too.

        xdist takes this for a crash of the test that has just run, and starts another worker.
        """
        if self._is_worker and _cuda_is_broken():
            os._exit(1)


def _outcome(report: pytest.TestReport) -> str:
    """One of run.py's outcomes."""
    if report.when == CRASHED:
        return "crashed"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if report.skipped:
        return "xfailed" if hasattr(report, "wasxfail") else "skipped"
    return "passed"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test failed or was skipped, at most a thousand characters."""
    if isinstance(report.longrepr, tuple):  # of a skip: file, line, "Skipped: reason"
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    if isinstance(report.longrepr, str):  # of a crash
        return report.longrepr
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else report.longreprtext)[-1000:].strip()


def _add_missing_names() -> None:
    """Gives torch's test helpers what older test files import and newer releases have dropped."""
    import torch
    from torch.testing._internal import common_cuda, common_mkldnn, common_nn

    # Those of 2.6: of test_convolution.py, and of test_nn.py.
    if not hasattr(common_cuda, "tf32_is_not_fp32"):
        common_cuda.tf32_is_not_fp32 = torch.cuda.is_tf32_supported  # type: ignore[attr-defined]
    if not hasattr(common_mkldnn, "bf32_on_and_off"):
        common_mkldnn.bf32_on_and_off = common_mkldnn.reduced_f32_on_and_off
    if not hasattr(common_nn, "new_module_tests"):
        common_nn.new_module_tests = common_nn.get_new_module_tests()


def _mark_large_tests(run: bool) -> None:
    """Makes upstream's decorator of tests that need much memory mark them, and skip them or not."""
    from torch.testing._internal import common_device_type

    upstream: Callable[..., Any] = common_device_type.largeTensorTest

    @functools.wraps(upstream)
    def large_tensor_test(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        decorate = upstream(*args, **kwargs) if run else unittest.skip("large")

        def mark(test: Callable[..., Any]) -> Callable[..., Any]:
            marked: Callable[..., Any] = decorate(test)
            marked.is_large = True  # type: ignore[attr-defined]
            return marked

        return mark

    common_device_type.largeTensorTest = large_tensor_test


def _is_large(item: pytest.Item) -> bool:
    return getattr(getattr(item, "obj", None), "is_large", False)


def _cuda_is_broken() -> bool:
    """Whether a kernel has failed in this process, which no later call survives."""
    import torch

    try:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
