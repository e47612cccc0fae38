"""Runs, for each seeded fault, the part of the suite that should find it.

    python tests/faults/run.py gpu/faulty --out faults.jsonl     all faults, on a GPU
    python tests/faults/run.py gpu/faulty --out faults.jsonl 3 7   these faults
    python tests/faults/run.py /tmp/faulty/python --tree /tmp/faulty --without-gpu
                                        the tests that find some of them without a GPU
    python tests/faults/run.py --table before.jsonl after.jsonl  results of runs, side by side

The first argument is the folder that holds the faulty package, which build.py makes. Each result is
written as soon as there is one, and a second run with the same file goes on where the first ended.
In the end all tests that found a fault run once more without one, and must pass: number 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

import gpu_record  # noqa: E402
import outcomes  # noqa: E402
from seeded import FAULTS, VARIABLE, Fault, digest  # noqa: E402

# What became of a fault.
FOUND, MISSED, CUT_OFF, ERROR = "found", "not found", "not found in time", "error"
PASSED = "passed"  # of number 0

GRACE = 5  # seconds in which a run that found a fault may end by itself
CLEAN = 0  # the number without a fault


@dataclass(frozen=True)
class Result:
    """What became of a fault.

    Attributes:
        number: the fault's, or 0.
        name: what is wrong.
        part: the part of the suite that ran, or the tests.
        status: whether it was found.
        test: the first test that failed.
        reason: how.
        seconds: from the start of pytest until then, or until all ended or the time ran out.
        tests: how many tests ended.
    """

    number: int
    name: str
    part: str
    status: str
    test: str
    reason: str
    seconds: float
    tests: int


@dataclass(frozen=True)
class Suite:
    """How the suite is run.

    Attributes:
        package: the folder that holds the faulty package.
        tree: the repository whose tests run.
        workers: processes of pytest-xdist, or 0 for none.
        with_gpu: whether each fault's part runs, or what finds it without a GPU.
    """

    package: Path
    tree: Path
    workers: int
    with_gpu: bool

    def environment(self, number: int) -> dict[str, str]:
        path = [str(self.package), str(HERE), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            VARIABLE: str(number),
        }

    def command(self, selected: Sequence[str]) -> list[str]:
        """Runs some tests, until one fails."""
        common = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "outcomes"]
        marked = ["-m", "gpu" if self.with_gpu else "not gpu"]
        shared = ["-n", str(self.workers), "--dist", "worksteal"] if self.workers else []
        return [sys.executable, "-m", "pytest", *common, *marked, *shared, *selected]

    def tests_of(self, fault: Fault) -> list[str]:
        return [f"--part={fault.part}"] if self.with_gpu else list(fault.without_gpu)

    def check(self) -> str:
        """Why the package is none that has the list's faults, or nothing."""
        program = "import customconv._fault as f; print(f.__file__); print(f.LIST)"
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, env=self.environment(CLEAN), cwd=self.tree, capture_output=True, text=True
        )
        if done.returncode != 0:
            return f"{self.package} has no customconv with faults:\n{done.stderr[-1000:]}"
        path, built = done.stdout.split("\n")[:2]
        if not Path(path).resolve().is_relative_to(self.package.resolve()):
            return f"python imports {path}, and not {self.package}"
        return "" if built == digest(FAULTS) else f"{self.package} has the faults of another list"


@contextlib.contextmanager
def started(command: list[str], env: dict[str, str], cwd: Path, log: Any) -> Iterator[Any]:
    """A process, all of whose children end with it."""
    process = subprocess.Popen(
        command, env=env, cwd=cwd, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that are written to their ends."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1] if line]


def run(suite: Suite, number: int, selected: Sequence[str], seconds: float) -> Result:
    """Runs tests with a fault until one of them fails, all have ended, or the time runs out."""
    with tempfile.TemporaryDirectory() as folder, shared(suite.with_gpu) as own:
        path, log = Path(folder, "outcomes"), Path(folder, "log")
        env = {**suite.environment(number), **own, outcomes.VARIABLE: str(path)}
        begin, wall = time.monotonic(), time.time()
        limit = begin + seconds
        with (
            log.open("w") as output,
            started(suite.command(selected), env, suite.tree, output) as process,
        ):
            while process.poll() is None and time.monotonic() < limit:
                time.sleep(0.05)
                if any(line["outcome"] in ("failed", "error") for line in read(path)):
                    limit = min(limit, time.monotonic() + GRACE)
            status = process.poll()
        lines = read(path)
        return result(number, lines, status, time.monotonic() - begin, wall, log.read_text())


def result(
    number: int, lines: list[dict[str, Any]], status: int | None, seconds: float, wall: float,
    log: str,
) -> Result:  # fmt: skip
    """What the outcomes of tests say.

    Args:
        number: the fault's.
        lines: what the plugin wrote.
        status: of pytest, None where it was ended.
        seconds: how long it ran.
        wall: the clock's time when it began.
        log: what pytest printed.
    """
    name, part = ("none", "") if number == CLEAN else (FAULTS[number].name, FAULTS[number].part)
    ended = {line["test"] for line in lines}
    ran = any(line["outcome"] in ("passed", "failed") for line in lines)
    found = Result(number, name, part, MISSED, "", "", round(seconds, 1), len(ended))
    for line in lines:
        if line["outcome"] == "error":
            return replace(found, status=ERROR, test=line["test"], reason=line["reason"])
        if line["outcome"] == "failed":
            after = round(line["time"] - wall, 1)
            reason = line["reason"]
            return replace(found, status=FOUND, test=line["test"], reason=reason, seconds=after)
    if status is None:
        return replace(found, status=CUT_OFF)
    if status != 0 or not ran:
        last = (log.strip().splitlines() or ["nothing was printed"])[-1]
        reason = last if status != 0 else "all tests were skipped"
        return replace(found, status=ERROR, reason=reason[:200])
    return found


def shared(with_gpu: bool) -> contextlib.AbstractContextManager[dict[str, str]]:
    """What lets processes share the GPU. Anew for each run: a kernel that faults ends it."""
    return gpu_record.shared_gpu() if with_gpu else contextlib.nullcontext({})


class Results:
    """The results, each of which is written to a file and printed when it is there."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found = load(path) if path else {}

    def add(self, each: Result) -> None:
        keep(self.found, each)
        print(line_of(each), flush=True)
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(each)) + "\n")


def load(path: Path) -> dict[int, Result]:
    """The last result of each number."""
    found: dict[int, Result] = {}
    for line in read(path):
        keep(found, Result(**line))
    return found


def keep(results: dict[int, Result], each: Result) -> None:
    """Adds a result. That of number 0 is of the tests that had found faults until then."""
    if each.status == FOUND:
        results.pop(CLEAN, None)
    results[each.number] = each


def line_of(each: Result) -> str:
    where = f" by {each.test}" if each.test else ""
    reason = f": {each.reason}" if each.reason else ""
    head = f"{each.number:2} {each.part:22} {each.status} after {each.seconds} s"
    return f"{head}{where}{reason} [{each.name}]"


def table(columns: dict[str, dict[int, Result]]) -> str:
    """Results of runs as a table in Markdown, one run beside the other."""
    numbers = sorted({number for results in columns.values() for number in results})
    heads = [f"{head} {name}".strip() for name in columns for head in ("found by", "seconds")]
    rows = [["", "fault", "part", *heads]]
    for number in numbers:
        found = [results.get(number) for results in columns.values()]
        some = next(each for each in found if each)
        cells = [cell for each in found for cell in cells_of(each)]
        rows.append([str(number), some.name, f"`{some.part}`" if some.part else "", *cells])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def cells_of(each: Result | None) -> tuple[str, str]:
    if each is None:
        return "", ""
    if each.status in (FOUND, ERROR):
        named = each.test.split("::", 1)[-1].replace("|", "\\|")
        return f"`{named}`" if each.status == FOUND else f"error: {each.reason}", str(each.seconds)
    return each.status, str(each.seconds)


def run_all(suite: Suite, results: Results, numbers: Sequence[int], options: Any) -> None:
    """Runs what has no result yet, then what found faults without one."""
    end = time.monotonic() + 60 * options.minutes

    def result_of(number: int) -> Result | None:
        if time.monotonic() + options.seconds > end:
            return None
        return run(suite, number, suite.tests_of(FAULTS[number]), options.seconds)

    todo = [number for number in numbers if number not in results.found]
    with ThreadPoolExecutor(options.at_once) as pool:
        for future in as_completed([pool.submit(result_of, number) for number in todo]):
            if each := future.result():
                results.add(each)
    if not set(todo) <= set(results.found):
        print("the time is up; run again to go on")
        return
    tests = sorted({each.test for each in results.found.values() if each.status == FOUND})
    if tests and CLEAN not in results.found:
        left = min(options.clean_seconds, end - time.monotonic())
        clean = run(suite, CLEAN, tests, left)
        # Without a fault, not to find one is to pass.
        renamed = {MISSED: PASSED, FOUND: "failed", CUT_OFF: "passed as far as it went"}
        status = renamed.get(clean.status, clean.status)
        results.add(replace(clean, status=status))


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit status: 0 if all were found and number 0 passed."""
    parser = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", nargs="?", type=Path, help="the faulty package's folder")
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="of faults")
    parser.add_argument("--out", type=Path, metavar="PATH", help="of the results, JSON lines")
    parser.add_argument("--seconds", type=float, default=60, help="of each fault, at most (60)")
    parser.add_argument(
        "--clean-seconds", type=float, default=120, help="of number 0, at most (120)"
    )
    parser.add_argument("--minutes", type=float, default=60, help="of all, at most (60)")
    parser.add_argument(
        "--at-once", type=int, default=4, metavar="N", help="how many faults have runs (4)"
    )
    parser.add_argument(
        "--workers", type=int, default=4, help="processes of each run (4); 0: no others"
    )
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose tests run (this one)")
    parser.add_argument("--without-gpu", action="store_true", help="run what needs no GPU")
    parser.add_argument("--table", nargs="+", type=Path, metavar="PATH", help="print results only")
    options = parser.parse_intermixed_args(arguments)
    if options.table:
        print(table({path.stem: load(path) for path in options.table}))
        return 0
    if options.package is None:
        parser.error("name the folder that holds the faulty package")
    if unknown := sorted(set(options.numbers) - set(FAULTS)):
        parser.error(f"no such fault: {', '.join(map(str, unknown))}")
    suite = Suite(
        options.package.resolve(), options.tree.resolve(), options.workers, not options.without_gpu
    )
    numbers = [n for n in options.numbers or FAULTS if suite.tests_of(FAULTS[n])]
    if why := suite.check():
        print(why, file=sys.stderr)
        return 2
    results = Results(options.out)
    run_all(suite, results, numbers, options)
    print(table({"": results.found}))
    statuses = [results.found[n].status if n in results.found else MISSED for n in numbers]
    clean = results.found.get(CLEAN)
    return int(set(statuses) != {FOUND} or clean is None or clean.status != PASSED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
