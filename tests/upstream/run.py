"""Runs PyTorch's own tests of convolutions with and without routing, and says what differs.

    python tests/upstream/run.py .upstream                     both runs on a GPU, and a table
    python tests/upstream/run.py .upstream --control           a third run finds unsteady tests
    python tests/upstream/run.py .upstream --large             those that need much GPU memory
    python tests/upstream/run.py .upstream --device cpu        without a GPU

The argument is a folder with PyTorch's test files; docs/upstream-tests.md says how to get them. The
exit status is 1 if a test fails with routing and does not without, 2 if a run did not come about.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

FILES = ("nn/test_convolution.py", "test_ops.py", "test_modules.py")
FILES_IF_PRESENT = (
    "test_ops_gradients.py",
    "test_ops_fwd_gradients.py",
    "test_nn.py",
    "nn/test_lazy_modules.py",
)
# All of test_convolution.py; elsewhere the entries of the convolutions and of their modules, which
# test_nn.py calls test_Conv3d_stride and the like, and test_lazy_modules.py test_lazy_conv3d.
ENTRIES = " or ".join(
    ["test_convolution.py", "nn_functional_conv", "nn_conv", "nn_lazyconv", "lazy_conv"]
    + [f"test_{kind}{dims}d" for kind in ("conv", "convtranspose") for dims in (1, 2, 3)]
)

# Of several outcomes of a test, as when its teardown fails, the first here counts.
OUTCOMES = ("crashed", "error", "failed", "xfailed", "passed", "skipped", "missing")
BAD = ("crashed", "error", "failed", "missing")

OFF, ON, AGAIN = "without routing", "with routing", "without routing, again"


class RunError(Exception):
    """A run that says nothing about any test."""


@dataclass
class Result:
    """What became of one test.

    Attributes:
        outcome: One of OUTCOMES.
        seconds: How long it took.
        message: Why it failed or was skipped.
        traceback: Where it failed.
        calls: How often a family computed a pass in it, by "fprop direct" and the like.
        fallbacks: How often PyTorch computed a call that was routed, by the reason.
    """

    outcome: str
    seconds: float = 0.0
    message: str = ""
    traceback: str = ""
    calls: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        """Whether it says that something is wrong."""
        return self.outcome in BAD


MISSING = Result("missing")


@dataclass
class Run:
    """All tests, run once.

    Attributes:
        name: How tables call it.
        results: By the test's name, as pytest writes it.
        seconds: How long it took in all.
        ended: Why it ended before all tests had run, or nothing.
    """

    name: str
    results: dict[str, Result]
    seconds: float = 0.0
    ended: str = ""

    def __getitem__(self, test: str) -> Result:
        """The result of a test; of one that did not run, that it is missing."""
        return self.results.get(test, MISSING)

    def outcomes(self, file: str | None = None) -> collections.Counter[str]:
        """How many tests had each outcome, in one file or in all."""
        return collections.Counter(
            result.outcome
            for test, result in self.results.items()
            if file is None or file_of(test) == file
        )

    def total(self, counts: str) -> collections.Counter[str]:
        """The sum of all tests' "calls" or "fallbacks"."""
        total: collections.Counter[str] = collections.Counter()
        for result in self.results.values():
            total.update(getattr(result, counts))
        return total


@dataclass
class Difference:
    """How outcomes with routing differ from those without. All are lists of tests.

    Attributes:
        fail: Those that fail with routing only.
        do_not_fail: Those that fail without routing only.
        other: Those whose outcome changes in a way that is neither, such as one that is skipped.
        unsteady: Those whose outcome differs between two runs without routing; in no other list.
    """

    fail: list[str]
    do_not_fail: list[str]
    other: list[str]
    unsteady: list[str]


def file_of(test: str) -> str:
    """The file that a test is in."""
    return test.partition("::")[0]


def parse(lines: Iterable[str]) -> dict[str, Result]:
    """The results by test, of a record that the plugin wrote.

    Args:
        lines: One JSON object each. The last may be cut short, if the run was.
    """
    results: dict[str, Result] = {}
    for line in lines:
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        test = values.pop("test")
        result = Result(**values)
        known = results.setdefault(test, result)
        if known is not result:
            results[test] = merge(known, result)
    return results


def merge(first: Result, second: Result) -> Result:
    """One result of two of the same test: the graver outcome, and all that was said."""
    messages = dict.fromkeys(filter(None, (first.message, second.message)))
    return Result(
        outcome=min(first.outcome, second.outcome, key=OUTCOMES.index),
        seconds=first.seconds + second.seconds,
        message=" | ".join(messages),
        traceback=first.traceback or second.traceback,
        calls=second.calls or first.calls,
        fallbacks=second.fallbacks or first.fallbacks,
    )


def compare(without: Run, routed: Run, again: Run | None = None) -> Difference:
    """What routing changes.

    Args:
        without: The run without routing.
        routed: The run with it.
        again: Another run without routing, which shows tests that are unsteady by themselves.
    """
    difference = Difference([], [], [], [])
    runs = [run for run in (without, routed, again) if run]
    for test in sorted(set().union(*(run.results for run in runs))):
        before, after = without[test], routed[test]
        if again and again[test].outcome != before.outcome:
            difference.unsteady.append(test)
        elif after.is_bad and not before.is_bad:
            difference.fail.append(test)
        elif before.is_bad and not after.is_bad:
            difference.do_not_fail.append(test)
        elif before.outcome != after.outcome:
            difference.other.append(test)
    return difference


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines = [header, ["---"] * len(header), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def one_line(text: str, limit: int = 160) -> str:
    """A message as a cell of a table."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def counts_table(runs: Sequence[Run]) -> str:
    """How many tests of each file had which outcome in each run."""
    outcomes = ("passed", "failed", "error", "crashed", "skipped", "xfailed")
    rows: list[Sequence[object]] = []
    for file in [*sorted({file_of(test) for run in runs for test in run.results}), None]:
        for run in runs:
            counts = run.outcomes(file)
            seconds = f"{run.seconds:.0f}" if file is None else ""
            rows.append((file or "all", run.name, *(counts[o] for o in outcomes), seconds))
    return table(("file", "run", *outcomes, "seconds"), rows)


def tests_table(tests: Sequence[str], runs: Sequence[Run], routed: Run) -> str:
    """The outcomes of some tests, which families computed in them, and what they say."""
    rows = []
    for test in tests:
        saying = max((run[test] for run in runs), key=lambda result: result.is_bad)
        families = ", ".join(sorted({call.split()[-1] for call in routed[test].calls}))
        outcomes = (run[test].outcome for run in runs)
        rows.append((f"`{test}`", *outcomes, families or "none", one_line(saying.message)))
    return table(("test", *(run.name for run in runs), "families", "message"), rows)


def report(runs: Sequence[Run], difference: Difference, about: str) -> str:
    """The whole report in Markdown.

    Args:
        runs: Without routing, with it, and perhaps without it again.
        difference: Their comparison.
        about: A line on what was run with what.
    """
    routed = runs[1]
    calls, fallbacks = routed.total("calls"), routed.total("fallbacks")
    reached = sum(bool(result.calls) for result in routed.results.values())
    parts = [about, counts_table(runs)]
    parts += [f"The run {run.name} is not whole: {run.ended}." for run in runs if run.ended]
    for tests, title in (
        (difference.fail, "Fail with routing only"),
        (difference.do_not_fail, "Fail without routing only"),
        (difference.other, "Differ in another way"),
        (difference.unsteady, "Differ between two runs without routing"),
    ):
        parts.append(f"**{title}: {len(tests)}**")
        if tests:
            parts.append(tests_table(tests, runs, routed))
    parts.append(
        f"With routing, families computed {calls.total()} passes, in {reached} of "
        f"{len(routed.results)} tests; PyTorch computed {fallbacks.total()} calls."
    )
    if calls:
        rows = [(*name.split(" ", 1), n) for name, n in sorted(calls.items())]
        parts.append(table(("pass", "family", "calls"), rows))
    if fallbacks:
        parts.append(table(("reason for PyTorch's", "calls"), fallbacks.most_common()))
    return "\n\n".join(parts) + "\n"


def find_files(folder: Path, names: Sequence[str] | None) -> tuple[Path, list[str]]:
    """The folder that holds PyTorch's test files, and which of them to run.

    Args:
        folder: It, or its parent, as in a checkout of PyTorch.
        names: Files in it; by default those of this module.

    Raises:
        RunError: If one is missing.
    """
    root = (folder / "test" if (folder / "test").is_dir() else folder).resolve()
    wanted = list(names or FILES)
    missing = [name for name in wanted if not (root / name).is_file()]
    if missing:
        raise RunError(f"{root} has no {', '.join(missing)}")
    extra = [] if names else [name for name in FILES_IF_PRESENT if (root / name).is_file()]
    return root, wanted + extra


def run_tests(
    name: str, routing: str, root: Path, files: Sequence[str], options: argparse.Namespace
) -> Run:
    """Runs pytest once, in processes of its own, with none of this project's settings.

    Args:
        name: The run's name.
        routing: What is routed: "off", "cuda", or "cpu".
        root: The folder with PyTorch's test files.
        files: Those to run.
        options: Of the command line.

    Raises:
        RunError: If pytest does not run tests.
    """
    with tempfile.TemporaryDirectory() as scratch:
        settings, record = Path(scratch, "pytest.ini"), Path(scratch, "record.jsonl")
        settings.write_text("[pytest]\n")
        record.touch()
        command = [sys.executable, "-m", "pytest", "-q", "-c", str(settings), f"--rootdir={root}"]
        command += ["--noconftest", "--assert=plain", "--tb=short", "--show-capture=no"]
        command += ["-p", "no:warnings", "-p", "no:cacheprovider"]
        command += ["--continue-on-collection-errors"]
        command += ["-p", "upstream_plugin", f"--record={record}", f"--routing={routing}"]
        command += ["-n", str(min(1, options.workers) if options.large else options.workers)]
        command += [f"--timeout={options.timeout}"] if options.timeout else []
        command += ["--large"] if options.large else []
        command += ["-k", f"({ENTRIES})" + (f" and ({options.k})" if options.k else "")]
        command += [str(root / file) for file in files]
        print(f"upstream tests {name}", flush=True)
        start = time.monotonic()
        # In a folder of its own: some tests write files.
        status = run_command(command, scratch, environment(options), options.limit)
        ended = "" if status in (0, 1) else f"pytest ended with status {status}"  # 1: tests failed
        if status is None:
            ended = f"it was stopped after {options.limit} s"
        seconds = time.monotonic() - start
        run = Run(name, parse(record.read_text().splitlines()), seconds, ended)
    if not run.results:
        raise RunError(f"no test ran {name}" + (f": {ended}" if ended else ""))
    return run


def run_command(
    command: Sequence[str], folder: str, environment: dict[str, str], limit: float
) -> int | None:
    """Runs a command in a folder; its exit status, or None if it took too long.

    All processes that it started end with it.
    """
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def environment(options: argparse.Namespace) -> dict[str, str]:
    """The variables of pytest's processes: where modules are, and which device's tests exist."""
    paths = [str(HERE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    threads = max(1, (os.cpu_count() or 1) // max(1, options.workers))
    return {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in paths),
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": options.device,
    }


def about(root: Path, device: str) -> str:
    """What is tested, on what."""
    import torch

    import customconv

    version = root.parent / "version.txt"
    tests = f"PyTorch {version.read_text().strip()}'s tests" if version.is_file() else "Tests"
    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    return f"{tests} on {name}, torch {torch.__version__}, customconv {customconv.__version__}."


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    title, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=title, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="PyTorch's checkout, or its folder test")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--control", action="store_true", help="runs without routing once more")
    parser.add_argument("--large", action="store_true", help="only the tests for much GPU memory")
    parser.add_argument("--files", nargs="+", metavar="FILE", help="in the folder test")
    parser.add_argument("-k", metavar="EXPRESSION", help="narrows the tests, as pytest's -k does")
    parser.add_argument("--workers", type=int, default=10, help="processes (10)")
    parser.add_argument("--timeout", type=int, default=120, help="seconds a test; 0: any (120)")
    parser.add_argument("--limit", type=int, default=600, help="seconds a run (600)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes every test's results")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="writes the tables")
    options = parser.parse_args(arguments)
    for module in ["xdist"] + ["pytest_timeout"] * bool(options.timeout):
        if not importlib.util.find_spec(module):
            parser.error(f"{module.replace('_', '-')} is not installed")
    return options


def as_json(runs: Sequence[Run], difference: Difference, about: str) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "about": about,
        "difference": asdict(difference),
        "runs": [
            {
                "name": run.name,
                "seconds": round(run.seconds, 1),
                "ended": run.ended,
                "outcomes": run.outcomes(),
                "calls": run.total("calls"),
                "fallbacks": run.total("fallbacks"),
                "tests": {test: asdict(result) for test, result in sorted(run.results.items())},
            }
            for run in runs
        ],
    }


def status(runs: Sequence[Run], difference: Difference) -> int:
    """The exit status: 0, 1 if routing makes a test fail, 2 if that cannot be said."""
    if difference.fail:
        return 1
    return 2 if any(run.ended for run in runs) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, compares, reports."""
    options = parse_arguments(arguments)
    try:
        root, files = find_files(options.folder, options.files)
        described = about(root, options.device)
        runs = [
            run_tests(name, routing, root, files, options)
            for name, routing in ((OFF, "off"), (ON, options.device), (AGAIN, "off"))
            if name != AGAIN or options.control
        ]
        if not runs[1].total("calls") and not runs[1].total("fallbacks"):
            raise RunError("no convolution was routed")
    except RunError as error:
        print(f"upstream tests: {error}", file=sys.stderr)
        return 2
    difference = compare(*runs)
    text = report(runs, difference, described)
    print(f"\n{text}")
    if options.markdown:
        options.markdown.write_text(text)
    if options.json:
        options.json.write_text(json.dumps(as_json(runs, difference, described), indent=1) + "\n")
    return status(runs, difference)


if __name__ == "__main__":
    sys.exit(main())
