"""The parts of the GPU suite, and the record of their last runs on a GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import gpu_parts
import gpu_record
import pytest
from closure import CPP_SUFFIXES, ROOT, Tree
from gpu_suite import Part, matches, part_of, select

WHERE = {"gpu": "NVIDIA H100", "driver": "580.1", "torch": "2.11.0", "cuda": "13.0"}
HEAD = "GPU record: "


# The parts as they are.


def test_every_gpu_test_belongs_to_a_part(tests_of_no_part):
    assert tests_of_no_part == [], "name their files in tests/gpu_parts.py"


def test_the_documentation_names_the_parts():
    text = (ROOT / "docs/testing.md").read_text().split("## The GPU record")[1]
    assert [part.name for part in gpu_parts.PARTS if f"`{part.name}`" not in text] == []


@pytest.fixture(scope="module")
def sources():
    """The files that each part depends on."""
    tree = Tree()
    return {part.name: set(part.hashes(tree)) for part in gpu_parts.PARTS}


def test_all_that_parts_name_exists():
    tree = Tree()
    for part in gpu_parts.PARTS:
        assert [p for p in part.patterns() if not tree.glob(p)] == [], part.name
        for each in part.tests:
            texts = [(ROOT / p).read_text() for n in each.files for p in tree.glob(f"tests/{n}")]
            assert any(f"def {each.function}(" in text for text in texts) or not each.function
            assert all(re.search(rf"\b{name}\b", text) for name, _ in each.values for text in texts)


def test_a_change_of_any_source_is_seen(sources):
    tree = Tree()
    compiled = [path for path in tree.glob("csrc/**/*") if path.endswith(CPP_SUFFIXES)]
    compiled = [path for path in compiled if "/torch/cpu/" not in path]  # of builds without CUDA
    package = tree.glob("python/customconv/**/*.py")
    assert len(compiled) > 300 and len(package) > 20
    seen = set.union(*sources.values())
    assert [path for path in (*compiled, *package) if path not in seen] == []


def parts_with(sources, path):
    return {name for name, paths in sources.items() if path in paths}


def test_prices_belong_to_parts_in_which_the_planner_chooses(sources):
    kernels = {"direct", "im2col", "tiled", "depthwise", "grouped", "col2im"}
    kernels |= {"implicit_gemm", "implicit_gemm_outputs", "implicit_gemm_wgrad"}
    choosing = parts_with(sources, "csrc/plan/prices_sm90.inc")
    assert choosing == sources.keys() - kernels
    assert choosing == parts_with(sources, "csrc/plan/planner.cpp")


def test_kernels_belong_to_their_family_and_to_what_holds_of_all(sources):
    of_all = {"every_kernel", "large"}
    grouped = parts_with(sources, "csrc/kernels/grouped/convolve.cuh")
    assert grouped == {"grouped", *of_all}
    gradients = parts_with(sources, "csrc/kernels/implicit_gemm/wgrad/cluster.cuh")
    assert gradients == {"implicit_gemm", "implicit_gemm_wgrad", *of_all}
    bands = parts_with(sources, "csrc/kernels/depthwise/bands/convolve.cuh")
    assert bands == {"depthwise", "fused", *of_all}
    assert parts_with(sources, "csrc/kernels/common/scalar.cuh") >= grouped | gradients | bands


def test_python_belongs_to_what_uses_it(sources):
    compiler = parts_with(sources, "python/customconv/compiler/rewrite.py")
    assert {"compiler", "python", "bench"} <= compiler
    assert compiler.isdisjoint({"direct", "implicit_gemm", "statistics", "routing", "operators"})
    assert parts_with(sources, "bench/micro/tma.cu") == {"bench"}
    assert parts_with(sources, "tests/kernels/compute.py").isdisjoint({"operators", "python"})


def test_a_test_belongs_to_the_first_part_that_has_it():
    parts = (
        Part("a", (select("kernels/test_*.py", family="x", op=("p", "q")),), ()),
        Part("b", (select("kernels/test_one.py", function="test_f"),), ()),
        Part("c", (select("kernels/test_one.py", "test_two.py"),), ()),
    )

    def found(path, function="test_g", **parameters):
        return part_of(parts, path, function, parameters)

    assert found("tests/kernels/test_one.py", family="x", op="p") == "a"
    assert found("tests/kernels/test_one.py", "test_f", family="x", op="q") == "a"
    assert found("tests/kernels/test_one.py", "test_f", family="x", op="r") == "b"
    assert found("tests/kernels/test_one.py", family="y", op="p") == "c"
    assert found("tests/test_two.py") == "c"
    assert found("tests/kernels/test_two.py", family="x") is None
    assert found("elsewhere/kernels/test_one.py") is None


# The record, of a small repository.


FILES = {
    "csrc/kernels/a.cu": '#include "kernels/shared.h"\n',
    "csrc/kernels/b.cu": '#include "kernels/shared.h"\n',
    "csrc/kernels/b_more.cu": "",
    "csrc/kernels/shared.h": "",
    "tests/test_first.py": "import helper\n",
    "tests/test_second.py": "",
    "tests/helper.py": "",
}
PARTS = (
    Part("first", (select("test_first.py"),), ("csrc/kernels/a*.cu",)),
    Part("second", (select("test_second.py"),), ("csrc/kernels/b*.cu",)),
)


def write(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts, "PARTS", PARTS)
    return write(tmp_path / "small", FILES)


def opened(root):
    return gpu_record.Record(root / "record.json", root)


def outcome(*failures, passed=4, skipped=1):
    counts = {"passed": passed, "failed": len(failures), "skipped": skipped}
    return {**counts, "failures": list(failures), "seconds": 2.5, **WHERE, "date": "2026-01-02"}


def checked(root, capsys):
    """The exit status, and the lines without what all begin with."""
    status = gpu_record.check(opened(root))
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(HEAD) for line in lines)
    return status, [line.removeprefix(HEAD) for line in lines]


def test_parts_that_nobody_ran_are_stale(small, capsys):
    assert checked(small, capsys) == (
        0,
        [
            "first: not recorded yet",
            "second: not recorded yet",
            "0 of 2 parts are recorded with these sources",
        ],
    )


def test_a_part_is_current_until_one_of_its_sources_changes(small, capsys):
    record = opened(small)
    record.add("first", outcome())
    record.add("second", outcome(passed=3))
    status, lines = checked(small, capsys)
    assert (status, len(lines)) == (0, 1)
    assert lines[0] == (
        "2 of 2 parts are recorded with these sources; all that is recorded: 7 passed, 0 failed, "
        "2 skipped on NVIDIA H100, torch 2.11.0, 2026-01-02"
    )
    write(small, {"tests/helper.py": "a = 1\n"})
    assert checked(small, capsys)[1][0] == "first: changed since: tests/helper.py"
    assert opened(small).stale() == ["first"]
    write(small, {"csrc/kernels/shared.h": "int b;\n"})
    status, lines = checked(small, capsys)
    assert status == 0
    assert lines[:2] == [
        "first: changed since: csrc/kernels/shared.h, tests/helper.py",
        "second: changed since: csrc/kernels/shared.h",
    ]


def test_new_and_removed_files_are_changes(small, capsys):
    record = opened(small)
    record.add("first", outcome())
    record.add("second", outcome())
    (small / "csrc/kernels/b_more.cu").unlink()
    write(
        small, {"csrc/kernels/a_more.cu": "", "csrc/kernels/b.cu": "", "tests/test_second.py": "#"}
    )
    assert checked(small, capsys)[1][:2] == [
        "first: changed since: csrc/kernels/a_more.cu",
        "second: changed since: csrc/kernels/b.cu, csrc/kernels/b_more.cu, tests/test_second.py",
    ]
    (small / "tests/test_second.py").unlink()
    write(small, {"csrc/kernels/b_new.cu": ""})
    assert checked(small, capsys)[1][1] == (
        "second: changed since: csrc/kernels/b.cu, csrc/kernels/b_more.cu, csrc/kernels/b_new.cu "
        "and 1 more"
    )


def test_another_choice_of_tests_is_a_change(small, monkeypatch, capsys):
    opened(small).add("first", outcome())
    some = Part("first", (select("test_first.py", function="test_f"),), PARTS[0].sources)
    monkeypatch.setattr(gpu_parts, "PARTS", (some, PARTS[1]))
    assert checked(small, capsys)[1][0] == "first: changed since: tests/gpu_parts.py: first"


def test_recording_a_part_leaves_the_others_as_they_were(small, capsys):
    record = opened(small)
    record.add("first", outcome())
    record.add("second", outcome())
    write(small, {"csrc/kernels/a.cu": "int a;\n"})
    opened(small).add("first", outcome(passed=8))
    assert len(opened(small).sources) == 1  # the second's are the same in the new list
    write(small, {"csrc/kernels/a.cu": "int b;\n", "tests/test_second.py": "#\n"})
    opened(small).add("first", outcome(passed=9))
    record = opened(small)
    assert record.stale() == ["second"]
    assert record.why_stale("second") == "changed since: tests/test_second.py"
    assert (record.parts["first"]["passed"], record.parts["second"]["passed"]) == (9, 4)
    assert len(record.sources) == 2  # those of each part
    record.add("second", outcome())
    assert len(opened(small).sources) == 1


def test_failures_are_named_and_fail_the_check(small, capsys):
    opened(small).add("second", outcome("tests/test_second.py::test_g[cuda]"))
    status, lines = checked(small, capsys)
    assert status == 1
    assert lines[:2] == [
        "first: not recorded yet",
        "second: FAILED tests/test_second.py::test_g[cuda]",
    ]
    write(small, {"csrc/kernels/b.cu": "int b;\n"})  # mended, perhaps: who knows
    assert checked(small, capsys)[0] == 1
    opened(small).add("second", outcome())
    assert checked(small, capsys)[0] == 0


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_a_release_needs_all_parts(small, capsys):
    def git(*words):
        names = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *names, *words], cwd=small, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "All")
    git("tag", "draft")
    opened(small).add("first", outcome())
    assert checked(small, capsys)[0] == 0
    git("tag", "v1.2.3")
    status, lines = checked(small, capsys)
    assert status == 1
    assert lines[-1] == "v1.2.3 is a release, which needs all parts"
    opened(small).add("second", outcome())
    assert checked(small, capsys)[0] == 0


# Runs, in a repository of their own, where a GPU seems to be.


SUITE = {
    "pytest.ini": "[pytest]\nmarkers =\n    gpu: needs a GPU\n",
    "csrc/a.cu": "",
    "csrc/b.cu": "",
    "tests/torch.py": """
class cuda:
    is_available = lambda: True
    get_device_name = lambda: "A GPU"

class version:
    cuda = "13.0"

__version__ = "2.11.0"
""",
    "tests/conftest.py": 'pytest_plugins = ("gpu_selection",)\n',
    "tests/gpu_parts.py": """
from gpu_suite import Part, select

PARTS = (
    Part("first", (select("test_both.py", family="a"), select("test_first.py")), ("csrc/a.cu",)),
    Part("second", (select("test_both.py", family="b"),), ("csrc/b.cu",)),
    Part("third", (select("test_a_third.py"),), ()),
)
""",
    "tests/test_both.py": """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("family", ["a", "b"])
@pytest.mark.parametrize("number", range(3))
def test_passes(family, number):
    pass

@pytest.fixture
def broken():
    yield
    raise ValueError

@pytest.mark.gpu
@pytest.mark.parametrize("family", ["b"])
def test_breaks(family, broken):
    pass

@pytest.mark.gpu
@pytest.mark.parametrize("family", ["b"])
def test_fails(family):
    assert False

@pytest.mark.gpu
@pytest.mark.parametrize("family", ["a"])
def test_skips(family):
    pytest.skip("a second GPU")

def test_of_the_cpu():
    assert False
""",
    "tests/test_first.py": """
import pytest

@pytest.mark.gpu
def test_passes():
    pass
""",
    "tests/test_a_third.py": """
import os

import pytest

@pytest.mark.gpu
def test_passes():
    pass

@pytest.mark.gpu
def test_ends_the_process():
    if os.path.exists("ends"):
        os._exit(3)
""",
}
PROGRAM = """
import sys
sys.path.insert(0, "tests")
import gpu_record
gpu_record.is_built = lambda: True
sys.exit(gpu_record.main(sys.argv[1:]))
"""


@pytest.fixture
def suite(tmp_path):
    root = write(tmp_path / "suite", SUITE)
    for name in ("closure", "gpu_suite", "gpu_selection", "gpu_record"):
        shutil.copy(ROOT / "tests" / f"{name}.py", root / "tests")
    return root


def python(root, *words):
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading them takes seconds
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)


def ended(done):
    """How many tests pytest says ended in which way."""
    (line,) = re.findall(r"=+ (.* in .*s) =+$", done.stdout, re.MULTILINE)
    found = re.findall(r"(\d+) (passed|failed|skipped|error)", line)
    return {outcome: int(count) for count, outcome in found}


def recorded(root):
    path = root / "tests/gpu_record.json"
    return json.loads(path.read_text())["parts"] if path.exists() else {}


FIRST = {"passed": 4, "failed": 0, "skipped": 1, "failures": []}
SECOND = {
    "passed": 3, "failed": 2, "skipped": 0,
    "failures": ["tests/test_both.py::test_breaks[b]", "tests/test_both.py::test_fails[b]"],
}  # fmt: skip


ENDED_SECOND = {"passed": 4, "failed": 1, "error": 1}  # one test passes and then breaks


def counts(part):
    return {name: part[name] for name in ("passed", "failed", "skipped", "failures")}


SEVERAL = ("--", "-p", "xdist.plugin", "-n", "2")


@pytest.mark.parametrize("processes", [(), SEVERAL], ids=["one", "several"])
def test_outcomes_are_recorded_by_part(suite, processes):
    if processes:
        pytest.importorskip("xdist")
    done = python(suite, "-c", PROGRAM, *processes)
    assert done.returncode == 1, done.stdout + done.stderr
    found = recorded(suite)
    assert list(found) == ["first", "second", "third"]
    assert counts(found["first"]) == FIRST
    assert counts(found["second"]) == SECOND
    assert found["third"]["passed"] == 2
    assert found["first"]["gpu"] == "A GPU" and found["first"]["seconds"] >= 0
    assert f"{HEAD}second: FAILED tests/test_both.py::test_fails[b]" in done.stdout
    (suite / "csrc/b.cu").write_text("int b;\n")
    done = python(suite, "-c", PROGRAM, *processes)
    assert ended(done) == ENDED_SECOND


def test_nothing_is_recorded_of_a_build_of_other_kernels(monkeypatch):
    import build_config

    assert gpu_record.is_built()
    monkeypatch.setattr(build_config, "hash_of_plans", lambda: "of others")
    assert not gpu_record.is_built()


def test_ci_fails_where_a_test_is_recorded_as_failed(suite):
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if "gpu_record" in line]
    assert lines == ["""step 'GPU record' "$VENV/bin/python" tests/gpu_record.py --check"""]
    check = ("tests/gpu_record.py", "--check")
    assert python(suite, *check).returncode == 0
    python(suite, "-c", PROGRAM, "first")
    assert python(suite, *check).returncode == 0
    python(suite, "-c", PROGRAM, "second")
    done = python(suite, *check)
    assert done.returncode == 1
    assert f"{HEAD}second: FAILED tests/test_both.py::test_fails[b]" in done.stdout
    assert f"{HEAD}third: not recorded yet" in done.stdout


def test_the_check_needs_neither_pytorch_nor_pytest(suite):
    program = "import sys; sys.path.insert(0, 'tests'); import gpu_record; "
    program += "gpu_record.main(['--check']); print({'torch', 'pytest'} & set(sys.modules))"
    done = python(suite, "-c", program)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_only_what_is_asked_for_runs(suite):
    (suite / "tests/test_other.py").write_text("raise ValueError")  # is not even imported
    done = python(suite, "-c", PROGRAM, "third", "first")
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(recorded(suite)) == {"first", "third"}
    assert f"{HEAD}second: not recorded yet" in done.stdout
    done = python(suite, "-c", PROGRAM, "fourth")
    assert done.returncode == 2 and "no such part: fourth" in done.stderr
    before = recorded(suite)
    done = python(suite, "-c", PROGRAM, "second", "--", "-k", "passes")
    assert done.returncode == 1
    assert f"{HEAD}tests were left out or skipped; not recorded: second" in done.stdout
    done = python(suite, "-c", PROGRAM, "first", "--", "--ignore=tests/test_first.py")
    assert done.returncode == 2 and "parts are recorded whole" in done.stderr
    assert recorded(suite) == before


def test_a_part_of_which_all_is_skipped_is_not_recorded(suite):
    skipped = "@pytest.mark.skip\n@pytest.mark.gpu"
    test = SUITE["tests/test_a_third.py"].replace("@pytest.mark.gpu", skipped)
    (suite / "tests/test_a_third.py").write_text(test)
    done = python(suite, "-c", PROGRAM, "third")
    assert done.returncode == 1
    assert f"{HEAD}tests were left out or skipped; not recorded: third" in done.stdout
    assert recorded(suite) == {}


def test_what_a_run_completed_is_kept_when_it_is_cut_off(suite):
    (suite / "ends").write_text("")
    done = python(suite, "-c", PROGRAM, "--all")
    assert done.returncode == 3
    found = recorded(suite)
    assert {name: counts(part) for name, part in found.items()} == {
        "first": FIRST, "second": SECOND,
    }  # fmt: skip


def test_a_test_whose_process_dies_has_failed(suite):
    pytest.importorskip("xdist")
    (suite / "ends").write_text("")
    done = python(suite, "-c", PROGRAM, "third", *SEVERAL)
    assert done.returncode == 1, done.stdout + done.stderr
    assert counts(recorded(suite)["third"]) == {
        "passed": 1, "failed": 1, "skipped": 0,
        "failures": ["tests/test_a_third.py::test_ends_the_process"],
    }  # fmt: skip


def test_pytest_runs_parts_and_those_that_are_stale(suite):
    def ran(*words):
        return python(suite, "-m", "pytest", "-p", "no:cacheprovider", "tests", *words)

    assert python(suite, "-c", PROGRAM, "first", "third").returncode == 0
    assert ended(ran("--stale")) == ENDED_SECOND
    assert ended(ran("--part", "first")) == {"passed": 4, "skipped": 1}
    assert ended(ran("--part", "first", "--part", "third")) == {"passed": 6, "skipped": 1}
    assert ended(ran()) == {"passed": 10, "failed": 2, "skipped": 1, "error": 1}
    python(suite, "-c", PROGRAM, "second")
    assert "none, all are recorded" in ran("--stale").stdout


def test_nothing_is_recorded_without_a_gpu_or_of_another_build(suite):
    done = python(suite, "-c", PROGRAM.replace("lambda: True", "lambda: False"))
    assert done.returncode == 1 and "the build is of other kernels" in done.stdout
    (suite / "tests/torch.py").write_text(SUITE["tests/torch.py"].replace("True", "False"))
    done = python(suite, "-c", PROGRAM)
    assert done.returncode == 1 and "PyTorch sees no GPU" in done.stdout
    assert recorded(suite) == {}


CONTROL = """#!/bin/sh
test "$1" = -d && test -d "$CUDA_MPS_PIPE_DIRECTORY" || read command
echo "${command:-start}" >> {log}
"""


def test_processes_share_the_gpu_while_tests_run(tmp_path, monkeypatch):
    log = tmp_path / "log"
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(CONTROL.replace("{log}", str(log)))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ZeroDivisionError), gpu_record.shared_gpu() as shared:
        assert os.path.isdir(shared["CUDA_MPS_PIPE_DIRECTORY"])
        assert log.read_text() == "start\n"
        raise ZeroDivisionError
    assert log.read_text() == "start\nquit\n"


def test_processes_take_turns_where_the_gpu_cannot_be_shared(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with gpu_record.shared_gpu() as shared:
        assert shared == {}


@pytest.mark.parametrize(
    ("path", "pattern", "found"),
    [
        ("csrc/a/b.cu", "csrc/a/*.c*", True),
        ("csrc/a/deep/b.cu", "csrc/a/*.c*", False),
        ("csrc/a/b.cu", "csrc/**/*.cu", True),
        ("csrc/b.cu", "csrc/**/*.cu", True),
        ("csrc/a/b_cu", "csrc/**/*.cu", False),
    ],
)
def test_patterns_name_what_a_search_finds(tmp_path, path, pattern, found):
    assert matches(path, pattern) is found
    write(tmp_path, {path: ""})
    assert Tree(tmp_path).glob(pattern) == ([path] if found else [])
