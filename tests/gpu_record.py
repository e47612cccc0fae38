"""Runs the tests that need a GPU and records the outcome; or checks the record against the tree.

    python tests/gpu_record.py                    runs them, writes tests/gpu_record.json
    python tests/gpu_record.py -- -k gradcheck    the same with arguments for pytest
    python tests/gpu_record.py --check            one line: is the record of this tree?
    python tests/gpu_record.py --join A B         writes the record of runs of different tests

Machines that build and review often have no GPU. The record says which tree was last tested on one:
it holds a hash of every source file under csrc/ and python/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "gpu_record.json"

sys.path.insert(0, str(ROOT))
from bench.sources import hash_sources, hash_tree


def check(path: Path, root: Path = ROOT) -> tuple[bool, str]:
    """Whether the record is of this tree, and a line that says so."""
    if not path.is_file():
        return False, f"GPU record: missing ({path.name}); run python tests/gpu_record.py on a GPU"
    record = json.loads(path.read_text())
    outcome = (
        f"{record['passed']} passed, {record['failed']} failed, {record['skipped']} skipped on "
        f"{record['gpu']}, torch {record['torch']}, {record['date']}"
    )
    if record["arguments"]:
        outcome += f", only with {' '.join(record['arguments'])}"
    sources = hash_sources(root)
    if record["tree"] == hash_tree(sources):
        return True, f"GPU record: matches the tree {record['tree']}: {outcome}"
    tested = record["sources"]
    changed = sorted(p for p in {*tested, *sources} if tested.get(p) != sources.get(p))
    named = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    return False, f"GPU record: not of this tree, which differs in {named}: {outcome}"


class Counts:
    """A plugin of pytest that counts tests by outcome."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        # A test has three reports: a failure in any of them counts, then a skip.
        ranks = ("passed", "skipped", "failed")
        known = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(known, report.outcome, key=ranks.index)

    def __getitem__(self, outcome: str) -> int:
        return list(self.outcomes.values()).count(outcome)


def run_tests(arguments: Sequence[str]) -> Counts:
    """Runs pytest on the tests that are marked gpu."""
    import pytest

    counts = Counts()
    status = pytest.main(["-m", "gpu", *arguments], plugins=[counts])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"GPU record: pytest did not run ({status!r}), nothing is recorded")
    return counts


def driver_version() -> str:
    """The version of NVIDIA's driver."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def record(path: Path, arguments: list[str]) -> int:
    """Runs the tests, writes the record; 0 if no test failed."""
    import torch

    if not torch.cuda.is_available():
        print("GPU record: PyTorch sees no GPU, nothing is recorded")
        return 1
    sources = hash_sources()
    start = time.monotonic()
    counts = run_tests([str(ROOT / "tests"), *arguments])
    duration = time.monotonic() - start
    result = {
        "tree": hash_tree(sources),
        "gpu": torch.cuda.get_device_name(),
        "driver": driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": counts["skipped"],
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "duration_s": round(duration, 1),
        "arguments": arguments,
        "sources": sources,
    }
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(check(path)[1])
    return int(counts["failed"] > 0)


def join(path: Path, parts: Sequence[Path]) -> int:
    """Writes the record of several runs, which together are all tests; 0 if no test failed."""
    records = [json.loads(part.read_text()) for part in parts]
    for name in ("tree", "gpu", "torch", "cuda"):
        if len({each[name] for each in records}) > 1:
            print(f"GPU record: the runs differ in {name}, nothing is recorded")
            return 1
    sums = ("passed", "failed", "skipped", "duration_s")
    joined = records[0] | {name: round(sum(r[name] for r in records), 1) for name in sums}
    joined["date"] = max(each["date"] for each in records)
    joined["arguments"] = []
    joined["parts"] = [each["arguments"] for each in records]
    path.write_text(json.dumps(joined, indent=2) + "\n")
    print(check(path)[1])
    return int(joined["failed"] > 0)


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="gpu_record.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--check", action="store_true", help="say whether the record is of the tree"
    )
    parser.add_argument("--join", type=Path, nargs="+", metavar="PATH", help="records of runs")
    parser.add_argument("--out", type=Path, default=RECORD, metavar="PATH", help="of the record")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args(arguments)
    if options.join:
        return join(options.out, options.join)
    if not options.check:
        return record(options.out, options.pytest)
    matches, line = check(options.out)
    print(line)
    return 0 if matches else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
