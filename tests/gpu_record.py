"""Runs the tests that need a GPU, part by part, and records the outcomes; or checks the record.

    python tests/gpu_record.py                 runs the parts that changed since they were recorded
    python tests/gpu_record.py direct tiled    runs these parts
    python tests/gpu_record.py --all           runs all of them
    python tests/gpu_record.py -- -n 14        the same with arguments for pytest
    python tests/gpu_record.py --check         says which parts changed, and which tests failed

Machines that build and review often have no GPU. The record says of each part of the suite
(gpu_parts.py) how its tests ended on one, and with which sources. A part is recorded as soon as all
its tests have ended, so what a run completed is kept when it is cut off.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gpu_parts
from closure import ROOT, Tree, digest

RECORD = ROOT / "tests" / "gpu_record.json"
PART = "gpu_part"  # a property of a test's reports: its part, and how many tests that has
MOST_NAMED = 3  # changed files


def hash_of(hashes: dict[str, str]) -> str:
    """One hash of all of them."""
    return digest("".join(f"{path} {each}\n" for path, each in sorted(hashes.items())).encode())


class Record:
    """The record, beside the sources as they are.

    The file has the outcomes of parts. Each names one of the lists of sources in it, which are
    there to say what changed.
    """

    def __init__(self, path: Path = RECORD, root: Path = ROOT) -> None:
        self.path, self.root = path, root
        tree = Tree(root)
        self.hashes = {part.name: part.hashes(tree) for part in gpu_parts.PARTS}
        content = json.loads(path.read_text()) if path.is_file() else {}
        self.parts: dict[str, dict[str, Any]] = content.get("parts", {})
        self.sources: dict[str, dict[str, str]] = content.get("sources", {})

    def is_current(self, name: str) -> bool:
        """Whether a part is recorded with the sources as they are."""
        return name in self.parts and self.parts[name]["tree"] == hash_of(self.hashes[name])

    def stale(self) -> list[str]:
        """The names of the other parts."""
        return [name for name in self.hashes if not self.is_current(name)]

    def failed(self) -> dict[str, list[str]]:
        """The tests of each part that failed."""
        return {name: found["failures"] for name, found in self.parts.items() if found["failures"]}

    def why_stale(self, name: str) -> str:
        """What differs from the record."""
        if name not in self.parts:
            return "not recorded yet"
        then, now = self.sources[self.parts[name]["sources"]], self.hashes[name]
        part = next(each for each in gpu_parts.PARTS if each.name == name)
        removed = [path for path in then if part.names(path) and path not in now]
        changed = [path for path in now if then.get(path) != now[path]]
        named = sorted(changed + removed) or ["which sources it has"]
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        return f"changed since: {', '.join(named[:MOST_NAMED])}{more}"

    def add(self, name: str, outcome: dict[str, Any]) -> None:
        """Records a part, and saves the file."""
        self.parts[name] = {"tree": hash_of(self.hashes[name]), **outcome}
        every = {path: each for found in self.hashes.values() for path, each in found.items()}
        tree = hash_of(every)
        for current in self.hashes.keys() - set(self.stale()):
            self.parts[current]["sources"] = tree
        self.parts = {each: self.parts[each] for each in self.hashes if each in self.parts}
        used = {each["sources"] for each in self.parts.values()}
        self.sources = {each: found for each, found in self.sources.items() if each in used}
        self.sources[tree] = dict(sorted(every.items()))
        text = json.dumps({"parts": self.parts, "sources": self.sources}, indent=2) + "\n"
        unfinished = self.path.with_name(self.path.name + ".new")
        unfinished.write_text(text)
        os.replace(unfinished, self.path)

    def summary(self) -> str:
        """One line on all parts."""
        found = list(self.parts.values())
        current = len(self.hashes) - len(self.stale())
        line = f"{current} of {len(self.hashes)} parts are recorded with these sources"
        if not found:
            return line
        counts = ", ".join(
            f"{sum(each[outcome] for each in found)} {outcome}"
            for outcome in ("passed", "failed", "skipped")
        )
        where = sorted({f"{each['gpu']}, torch {each['torch']}" for each in found})
        dates = sorted({each["date"] for each in found})
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        return f"{line}; all that is recorded: {counts} on {' and '.join(where)}, {when}"


class Outcomes:
    """A plugin of pytest that hands on a part's outcomes when all its tests have ended.

    Reports say which part their test is of and how many tests that has, so that this works in the
    process that starts others and collects nothing itself (pytest-xdist).
    """

    def __init__(self, hand_on: Callable[[str, dict[str, Any]], None]) -> None:
        self.hand_on = hand_on
        self.part: dict[str, tuple[str, int]] = {}
        self.outcome: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.ended: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = report.nodeid
        for name, value in report.user_properties:
            if name == PART:
                self.part[test] = tuple(value)
        # A test has three reports: a failure in any of them counts, then a skip.
        ranks = ("passed", "skipped", "failed")
        known = self.outcome.get(test, "passed")
        self.outcome[test] = max(known, report.outcome, key=ranks.index)
        self.seconds[test] = self.seconds.get(test, 0) + getattr(report, "duration", 0)
        # The last of them, or the only one of a test whose process died.
        if report.when in ("teardown", "???") and test in self.part:
            part, size = self.part[test]
            ended = self.ended.setdefault(part, set())
            ended.add(test)
            if len(ended) == size:
                self.hand_on(part, self.result(ended))

    def result(self, tests: set[str]) -> dict[str, Any]:
        """The counts, the names of those that failed, and the time of all."""
        outcomes = [self.outcome[test] for test in tests]
        return {
            **{each: outcomes.count(each) for each in ("passed", "failed", "skipped")},
            "failures": sorted(test for test in tests if self.outcome[test] == "failed"),
            "seconds": round(sum(self.seconds[test] for test in tests), 1),
        }


def driver_version() -> str:
    """The version of NVIDIA's driver."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


@contextlib.contextmanager
def shared_gpu() -> Iterator[dict[str, str]]:
    """Lets processes compute on the GPU at the same time, by CUDA's MPS.

    They are those that have the variables of the environment that this gives: none where MPS is
    missing. Then processes take turns, which takes three times as long with 15 of them.
    """
    control = "nvidia-cuda-mps-control"
    with tempfile.TemporaryDirectory() as folder:
        own = {f"CUDA_MPS_{name}_DIRECTORY": os.path.join(folder, name) for name in ("PIPE", "LOG")}
        for path in own.values():
            os.mkdir(path)
        environment = {**os.environ, **own}
        try:
            subprocess.run([control, "-d"], env=environment, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            yield {}
            return
        try:
            yield own
        finally:
            subprocess.run([control], input="quit\n", env=environment, text=True)


def is_built() -> bool:
    """Whether the compiled module has the kernels that the sources say."""
    sys.path.insert(0, str(ROOT / "tools"))
    import build_config
    from customconv._load import build_record

    return bool(build_record()["sources"] == build_config.hash_of_plans())


def run(record: Record, names: Sequence[str], arguments: Sequence[str]) -> int:
    """Runs the tests of parts and records them; 0 if none failed and none is left."""
    import torch

    if not torch.cuda.is_available():
        print("GPU record: PyTorch sees no GPU, nothing is recorded")
        return 1
    if not is_built():
        print("GPU record: the build is of other kernels than the sources; make build first")
        return 1
    with shared_gpu() as environment:
        os.environ.update(environment)
        return run_and_record(record, names, arguments)


def run_and_record(record: Record, names: Sequence[str], arguments: Sequence[str]) -> int:
    """The same, on a machine where they can run."""
    import pytest
    import torch

    where = {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }

    def ended(name: str, outcome: dict[str, Any]) -> None:
        date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        if outcome["passed"] or outcome["failed"]:  # else it shows nothing
            record.add(name, {**outcome, **where, "date": date})

    selected = [f"--part={name}" for name in names]
    outcomes = Outcomes(ended)
    pytest.main(["-m", "gpu", *selected, str(ROOT / "tests"), *arguments], plugins=[outcomes])
    left = [name for name in names if not record.is_current(name)]
    if left:
        print(f"GPU record: tests were left out or skipped; not recorded: {', '.join(left)}")
    return max(int(bool(left)), check(record))


def release_tags(root: Path) -> list[str]:
    """The tags of releases at the commit that is checked out; none outside of a clone."""
    command = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.split()
    except OSError:
        return []


def check(record: Record) -> int:
    """Says what is stale and what failed; 1 if a test failed, or if a release has a stale part."""
    for name in record.stale():
        print(f"GPU record: {name}: {record.why_stale(name)}")
    for name, failures in record.failed().items():
        for test in failures:
            print(f"GPU record: {name}: FAILED {test}")
    print(f"GPU record: {record.summary()}")
    if record.stale() and (tags := release_tags(record.root)):
        print(f"GPU record: {tags[0]} is a release, which needs all parts")
        return 1
    return int(bool(record.failed()))


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="gpu_record.py",
        usage="%(prog)s [--check | --all | PART ...] [--out PATH] [-- PYTEST ARGUMENTS]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in gpu_parts.PARTS]
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    parser.add_argument("--all", action="store_true", help="run all parts")
    parser.add_argument("--check", action="store_true", help="run nothing, check the record")
    parser.add_argument("--out", type=Path, default=RECORD, metavar="PATH", help="of the record")
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    if unknown := sorted(set(options.parts) - set(names)):
        parser.error(f"no such part: {', '.join(unknown)} (there are {', '.join(names)})")
    if ignored := [word for word in words[end:] if word.startswith("--ignore")]:
        parser.error(f"parts are recorded whole: {ignored[0]} would leave tests out unseen")
    record = Record(options.out)
    todo = names if options.all else options.parts or record.stale()
    if options.check or not todo:
        return check(record)
    return run(record, todo, words[end + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
