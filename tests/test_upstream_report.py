"""tests/upstream/run.py: what it makes of outcomes, and two runs of files like PyTorch's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from upstream import run
from upstream.run import Result, Run


def results(**outcomes: str) -> dict[str, Result]:
    return {f"test_ops.py::{name}": Result(outcome) for name, outcome in outcomes.items()}


def runs(
    without: dict[str, Result], routed: dict[str, Result], again: dict[str, Result] | None = None
) -> list[Run]:
    both = [Run(run.OFF, without), Run(run.ON, routed)]
    return both if again is None else [*both, Run(run.AGAIN, again)]


def record(*lines: dict[str, object]) -> list[str]:
    return [json.dumps(line) for line in lines]


def test_record_of_a_test_keeps_its_counts_and_its_graver_outcome() -> None:
    parsed = run.parse(
        record(
            {"test": "a", "outcome": "passed", "seconds": 1.5, "calls": {"fprop direct": 2}},
            {"test": "b", "outcome": "skipped", "message": "no scipy"},
            {"test": "a", "outcome": "error", "seconds": 0.5, "message": "leak"},
        )
    )
    assert parsed == {
        "a": Result("error", 2.0, "leak", calls={"fprop direct": 2}),
        "b": Result("skipped", message="no scipy"),
    }


def test_crash_after_a_failure_keeps_what_failed() -> None:
    parsed = run.parse(
        record(
            {"test": "a", "outcome": "failed", "message": "illegal memory access"},
            {"test": "a", "outcome": "crashed", "message": "worker crashed"},
        )
    )
    assert parsed == {"a": Result("crashed", message="illegal memory access | worker crashed")}


def test_line_that_a_killed_run_left_half_written_is_left_out() -> None:
    assert run.parse([*record({"test": "a", "outcome": "passed"}), '{"test": "b", "outc']) == {
        "a": Result("passed")
    }


@pytest.mark.parametrize("before", ["passed", "xfailed", "skipped"])
@pytest.mark.parametrize("after", ["failed", "error", "crashed"])
def test_failure_with_routing_only_sets_the_exit_status(before: str, after: str) -> None:
    both = runs(results(a=before, b="passed"), results(a=after, b="passed"))
    difference = run.compare(*both)
    assert difference == run.Difference(["test_ops.py::a"], [], [], [])
    assert run.status(both, difference) == 1


@pytest.mark.parametrize("before", ["failed", "error", "crashed"])
@pytest.mark.parametrize("after", ["passed", "xfailed", "skipped"])
def test_failure_without_routing_only_is_no_fault_of_routing(before: str, after: str) -> None:
    both = runs(results(a=before), results(a=after))
    difference = run.compare(*both)
    assert difference == run.Difference([], ["test_ops.py::a"], [], [])
    assert run.status(both, difference) == 0


@pytest.mark.parametrize(
    ("before", "after"), [("passed", "skipped"), ("passed", "xfailed"), ("failed", "error")]
)
def test_other_differences_are_listed_apart(before: str, after: str) -> None:
    both = runs(results(a=before, b="failed"), results(a=after, b="failed"))
    difference = run.compare(*both)
    assert difference == run.Difference([], [], ["test_ops.py::a"], [])
    assert run.status(both, difference) == 0


def test_test_that_routing_keeps_from_running_counts_as_failed() -> None:
    both = runs(results(a="passed", b="passed"), results(a="passed"))
    difference = run.compare(*both)
    assert difference.fail == ["test_ops.py::b"]
    assert run.status(both, difference) == 1


def test_unsteady_test_is_not_blamed_on_routing() -> None:
    three = runs(
        results(unsteady="passed", ours="passed"),
        results(unsteady="failed", ours="failed"),
        results(unsteady="failed", ours="passed"),
    )
    assert run.compare(*three) == run.Difference(
        ["test_ops.py::ours"], [], [], ["test_ops.py::unsteady"]
    )


def test_run_that_was_cut_short_is_no_success() -> None:
    both = runs(results(a="passed"), results(a="passed"))
    both[0].ended = "it was stopped after 600 s"
    difference = run.compare(*both)
    assert run.status(both, difference) == 2
    assert "is not whole: it was stopped after 600 s" in run.report(both, difference, "")


def test_report_counts_each_file_and_shows_what_differs() -> None:
    without = {
        "nn/test_convolution.py::a": Result("passed"),
        "test_ops.py::b": Result("passed"),
        "test_ops.py::c": Result("skipped", message="no scipy"),
    }
    routed = {
        **without,
        "nn/test_convolution.py::a": Result("passed", calls={"fprop direct": 3}),
        "test_ops.py::b": Result(
            "failed",
            message="Tensors are not close!\n\nMismatched | elements",
            calls={"fprop direct": 1, "wgrad tiled": 2},
            fallbacks={"no family": 4},
        ),
    }
    both = runs(without, routed)
    lines = run.report(both, run.compare(*both), "PyTorch's tests.").splitlines()
    assert lines[0] == "PyTorch's tests."
    for line in (
        "| nn/test_convolution.py | with routing | 1 | 0 | 0 | 0 | 0 | 0 |  |",
        "| test_ops.py | without routing | 1 | 0 | 0 | 0 | 1 | 0 |  |",
        "| test_ops.py | with routing | 0 | 1 | 0 | 0 | 1 | 0 |  |",
        "| all | with routing | 1 | 1 | 0 | 0 | 1 | 0 | 0 |",
        "**Fail with routing only: 1**",
        "| `test_ops.py::b` | passed | failed | direct, tiled "
        "| Tensors are not close! Mismatched \\| elements |",
        "**Fail without routing only: 0**",
        "With routing, families computed 6 passes, in 2 of 3 tests; PyTorch computed 4 calls.",
        "| fprop | direct | 4 |",
        "| wgrad | tiled | 2 |",
        "| no family | 4 |",
    ):
        assert line in lines


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with files that have the names of PyTorch's."""
    for name in run.FILES:
        file = tmp_path / "test" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    return tmp_path


@pytest.mark.parametrize("folder", [".", "test"])
def test_files_are_found_in_a_checkout_and_in_its_test_folder(checkout: Path, folder: str) -> None:
    (checkout / "test" / "test_ops_gradients.py").write_text("")
    root, files = run.find_files(checkout / folder, None)
    assert root == checkout / "test"
    assert files == [*run.FILES, "test_ops_gradients.py"]
    assert run.find_files(checkout / folder, ["test_ops.py"])[1] == ["test_ops.py"]


def test_missing_file_is_named(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "test" / "test_ops.py").unlink()
    assert run.main([str(checkout), "--device", "cpu", "--timeout", "0"]) == 2
    assert "has no test_ops.py" in capsys.readouterr().err


def test_command_that_takes_too_long_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 60 & echo $! > {started}; wait"]
    assert run.run_command(command, str(tmp_path), {}, limit=1) is None
    state = Path(f"/proc/{int(started.read_text())}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


CONVOLUTION_TESTS = """
import os
import unittest

import customconv
import torch
from torch.testing._internal.common_cuda import tf32_is_not_fp32
from torch.testing._internal.common_device_type import largeTensorTest


class TestConvolution(unittest.TestCase):
    def test_convolves(self):
        torch.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 2)).sum()

    def test_fails_routed(self):
        torch.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 2))
        self.assertFalse(customconv.is_enabled(), "is routed")

    def test_fails_unless_routed(self):
        self.assertTrue(customconv.is_enabled())

    def test_fails_in_a_part(self):
        with self.subTest("part"):
            self.assertFalse(customconv.is_enabled())

    def test_crashes_routed(self):
        if customconv.is_enabled():
            os._exit(1)

    def test_fails(self):
        self.fail("in any case")

    @unittest.skip("reason")
    def test_is_skipped(self):
        pass

    @largeTensorTest("12GB")
    def test_needs_memory(self):
        self.fail("large tests do not run here")
"""
OTHER_TESTS = """
def test_nn_functional_conv2d(): pass
def test_nn_functional_linear(): raise ValueError
"""


@pytest.mark.slow
def test_files_run_with_and_without_routing(checkout: Path) -> None:
    (checkout / "test" / run.FILES[0]).write_text(CONVOLUTION_TESTS)
    (checkout / "test" / "test_ops.py").write_text(OTHER_TESTS)
    (checkout / "test" / "test_modules.py").write_text("import does_not_exist")
    written = checkout / "report.json", checkout / "report.md"
    arguments = [str(checkout), "--device=cpu", "--workers=1", "--timeout=0"]
    arguments += [f"--json={written[0]}", f"--markdown={written[1]}"]
    assert run.main(arguments) == 1

    report = json.loads(written[0].read_text())
    prefix = "nn/test_convolution.py::TestConvolution::test_"
    difference = {
        kind: [test.removeprefix(prefix) for test in tests]
        for kind, tests in report["difference"].items()
    }
    assert difference == {
        "fail": ["crashes_routed", "fails_in_a_part", "fails_routed"],
        "do_not_fail": ["fails_unless_routed"],
        "other": [],
        "unsteady": [],
    }
    without, routed = report["runs"]
    assert without["outcomes"] == {"passed": 5, "failed": 2, "skipped": 2, "error": 1}
    assert routed["outcomes"] == {
        "passed": 3,
        "failed": 3,
        "skipped": 2,
        "error": 1,
        "crashed": 1,
    }
    assert without["fallbacks"] == {}
    assert sum(routed["fallbacks"].values()) == 2
    failed = routed["tests"][f"{prefix}fails_routed"]
    assert "is routed" in failed["message"]
    assert "self.assertFalse(customconv.is_enabled()" in failed["traceback"]
    assert routed["tests"][f"{prefix}needs_memory"]["message"] == "large"
    assert "test_ops.py::test_nn_functional_linear" not in routed["tests"]
    assert "**Fail with routing only: 3**" in written[1].read_text()


@pytest.mark.slow
def test_large_tests_run_alone_where_asked_for(checkout: Path) -> None:
    (checkout / "test" / run.FILES[0]).write_text(CONVOLUTION_TESTS.replace("12GB", "0GB"))
    arguments = [str(checkout), "--device=cpu", "--workers=0", "--timeout=0", "--large"]
    options = run.parse_arguments(arguments)
    root, files = run.find_files(options.folder, run.FILES[:1])
    large = run.run_tests(run.OFF, "off", root, files, options)
    assert [test.rpartition("::")[2] for test in large.results] == ["test_needs_memory"]
