"""The seeded faults fit the sources, and their runs say what became of each."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import gpu_parts
import pytest
import run
from run import CUT_OFF, ERROR, FOUND, MISSED, Result, Suite
from seeded import (
    FAULTS,
    HEADER_TEXT,
    MODULE,
    SWITCHES,
    VARIABLE,
    Edit,
    Fault,
    OutOfDate,
    changed_files,
    digest,
)

ROOT = Path(__file__).resolve().parents[2]


def source(path):
    return (ROOT / path).read_text()


# The list.


def test_each_fault_fits_the_sources_once():
    changed = changed_files(source)
    assert {edit.path for each in FAULTS.values() for edit in each.edits} <= changed.keys()
    assert all(not (ROOT / path).exists() or text != source(path) for path, text in changed.items())


def test_each_fault_is_switched_by_its_number():
    changed = changed_files(source)
    for number, each in FAULTS.items():
        assert any(SWITCHES.search(edit.new) for edit in each.edits), each.name
        switch = rf"fault\({number}\)|seeded != {number}\)"
        texts = {changed[edit.path] for edit in each.edits}
        assert sum(len(re.findall(switch, text)) for text in texts) == 1, each.name


def test_seeded_python_is_python():
    for path, text in changed_files(source).items():
        if path.endswith(".py"):
            ast.parse(text, path)


def test_each_fault_has_a_part_and_what_runs_without_a_gpu_exists():
    parts = {part.name for part in gpu_parts.PARTS}
    assert {each.part for each in FAULTS.values()} <= parts
    tests = {path for each in FAULTS.values() for path in each.without_gpu}
    assert [path for path in tests if not (ROOT / path).is_file()] == []


def test_each_family_has_a_fault():
    families = {part.name for part in gpu_parts.PARTS if part.sources[-1].startswith("csrc/kern")}
    assert {"direct", "tiled", "col2im"} <= families
    # This one runs tests of all passes, whose kernels belong to the parts of these passes.
    assert families - {each.part for each in FAULTS.values()} == {"implicit_gemm"}


LINES = {"csrc/a.cpp": "int a = 1;\nint b = 1;\n"}


def one_fault(old):
    edit = Edit("csrc/a.cpp", old, "int a = FAULT ? 2 : 1;")
    return {3: Fault("a is two", "direct", (edit,))}


def test_a_fault_is_seeded_beside_its_switch():
    changed = changed_files(LINES.__getitem__, one_fault("int a = 1;"))
    expected = '#include "plan/fault.h"\nint a = fault(3) ? 2 : 1;\nint b = 1;\n'
    assert changed["csrc/a.cpp"] == expected


@pytest.mark.parametrize(("old", "count"), [("int c = 1;", 0), ("= 1;", 2)])
def test_a_fault_that_does_not_fit_is_named(old, count):
    with pytest.raises(OutOfDate, match=rf"(?s)fault 3 \(a is two\).*a\.cpp.* {count} times"):
        changed_files(LINES.__getitem__, one_fault(old))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_the_environment_switches_a_fault_on(tmp_path):
    (tmp_path / "fault.h").write_text(HEADER_TEXT)
    program = '#include "fault.h"\nint main() { return customconv::fault(3) ? 1 : 0; }\n'
    (tmp_path / "main.cpp").write_text(program)
    subprocess.run(["g++", "main.cpp", "-o", "main"], cwd=tmp_path, check=True)

    def code(**changes):
        env = {name: value for name, value in os.environ.items() if name != VARIABLE}
        return subprocess.run([tmp_path / "main"], env={**env, **changes}).returncode

    assert [code(), code(**{VARIABLE: "2"}), code(**{VARIABLE: "3"})] == [0, 0, 1]


# A run, of a small repository.


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A package with the list's faults, and tests of it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # some take seconds to load
    package = tmp_path / "package"
    package.joinpath("customconv").mkdir(parents=True)
    module = package / Path(MODULE).relative_to("python")
    module.with_name("__init__.py").write_text("")
    module.write_text(changed_files(source)[MODULE])
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    (tree / "test_it.py").write_text(
        "import time\n"
        "from customconv._fault import fault\n\n"
        "def test_first(): pass\n"
        "def test_second():\n"
        "    assert not fault(1), 'one'\n"
        "    time.sleep(60 * fault(2))\n"
    )
    return Suite(package, tree, workers=0, with_gpu=False)


def outcome(suite, number, seconds=60.0, tests=("test_it.py",)):
    return run.run(suite, number, tests, seconds)


def test_the_first_failure_finds_a_fault(suite):
    found = outcome(suite, 1)
    assert (found.status, found.test) == (FOUND, "test_it.py::test_second")
    assert found.reason.startswith("AssertionError: one")
    assert 0 < found.seconds < 60 and found.tests == 2


def test_a_fault_that_no_test_finds(suite):
    assert outcome(suite, 3).status == MISSED
    assert outcome(suite, 3).tests == 2


def test_a_run_ends_when_its_time_is_up(suite):
    found = outcome(suite, 2, seconds=4)
    assert (found.status, found.test) == (CUT_OFF, "")
    assert found.seconds < 20


def test_what_finds_nothing_because_it_does_not_run_is_an_error(suite):
    (suite.tree / "test_bad.py").write_text("import nothing_of_that_name\n")
    found = outcome(suite, 1, tests=["test_bad.py"])
    assert found.status == ERROR and "nothing_of_that_name" in found.reason
    assert outcome(suite, 1, tests=["test_none.py"]).status == ERROR
    (suite.tree / "test_skip.py").write_text("import pytest\ndef test(): pytest.skip()\n")
    found = outcome(suite, 1, tests=["test_skip.py"])
    assert (found.status, found.reason) == (ERROR, "all tests were skipped")


class SmallSuite(Suite):
    def tests_of(self, fault):
        return ["test_it.py"]


def test_faults_run_side_by_side_and_then_what_found_them_without_one(suite, tmp_path, capsys):
    suite = SmallSuite(suite.package, suite.tree, suite.workers, suite.with_gpu)
    options = argparse.Namespace(minutes=5, seconds=60, clean_seconds=60, at_once=2)
    results = run.Results(tmp_path / "results.jsonl")
    run.run_all(suite, results, [1, 3], options)
    found = {number: each.status for number, each in results.found.items()}
    assert found == {1: FOUND, 3: MISSED, 0: run.PASSED}
    options.minutes = 0
    run.run_all(suite, results, [1, 3, 4], options)
    assert results.found.keys() == {0, 1, 3} and "the time is up" in capsys.readouterr().out


def test_the_package_is_checked(suite):
    assert suite.check() == ""
    other = suite.package / "customconv" / "_fault.py"
    other.write_text(other.read_text().replace(digest(FAULTS), "another"))
    assert "another list" in suite.check()
    other.unlink()
    assert "no customconv with faults" in suite.check()


def result(number, status=FOUND, **fields):
    parts = {"name": f"n{number}", "part": "p", "test": "t.py::test[a|b]", "reason": ""}
    return Result(**{"seconds": 2.5, "tests": 3, **parts, **fields}, number=number, status=status)


def test_results_are_kept_as_they_come(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    results = run.Results(path)
    results.add(result(1))
    results.add(result(0, run.PASSED))
    with path.open("a") as file:
        file.write('{"number": 2, "na')  # cut off
    assert run.Results(path).found == {1: result(1), 0: result(0, run.PASSED)}


def test_number_0_is_of_all_that_was_found_before():
    found = {}
    for each in (result(1), result(0, run.PASSED), result(2, MISSED)):
        run.keep(found, each)
    assert set(found) == {0, 1, 2}
    run.keep(found, result(3))
    assert set(found) == {1, 2, 3}


def test_runs_stand_side_by_side_in_a_table():
    missed = result(2, MISSED, test="", seconds=20.0)
    text = run.table({"before": {1: result(1)}, "after": {1: result(1), 2: missed}})
    assert text.splitlines() == [
        "|  | fault | part | found by before | seconds before | found by after | seconds after |",
        "|---|---|---|---|---|---|---|",
        "| 1 | n1 | `p` | `test[a\\|b]` | 2.5 | `test[a\\|b]` | 2.5 |",
        "| 2 | n2 | `p` |  |  | not found | 20.0 |",
    ]
