"""What all tests share: devices, the GPU marker, a common start.

pytest puts this folder on the path, so that tests in any folder can import ``reference``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch

pytest_plugins = ("gpu_selection",)

NO_GPU = "needs a GPU"

# Problems are small: handing one to several threads takes a hundred times as long as computing it.
torch.set_num_threads(1)


@functools.cache
def why_no_gpu() -> str:
    """Why tests for the GPU cannot run here, or nothing."""
    if not torch.cuda.is_available():
        return f"{NO_GPU}: PyTorch sees none"
    import customconv

    return "" if customconv.build_info()["with_cuda"] else f"{NO_GPU}: customconv has no CUDA"


def pytest_report_header() -> str:
    return f"gpu: {why_no_gpu() or torch.cuda.get_device_name()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    count = sum(NO_GPU in reason for reason in reasons)
    if count:
        terminalreporter.section("GPU")
        terminalreporter.line(f"{count} GPU tests were skipped for want of a GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device in turn; the test on CUDA is marked gpu."""
    return str(request.param)


@pytest.fixture(autouse=True)
def same_start() -> Iterator[None]:
    """Random numbers and float32 precision, the same for each test whatever ran before it."""
    torch.manual_seed(0)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture
def nothing_tuned() -> Iterator[None]:
    """No plan is tuned before a test, and neither plans nor a recording are left behind it."""
    from customconv import _bind

    _bind.clear_tuned_plans()
    yield
    _bind.clear_tuned_plans()
    _bind.end_recording()
