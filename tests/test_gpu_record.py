"""The record of the last run on a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import gpu_record
import pytest
import torch

FILES = {
    "csrc/plan/plan.h": "struct Plan {};\n",
    "csrc/torch/module.cpp": "int a;\nint b;\n",
    "python/customconv/__init__.py": "import torch\n",
    "python/customconv/py.typed": "",
}


def write(root, files):
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode())
    return root


def tree_hash(root):
    return gpu_record.hash_tree(gpu_record.hash_sources(root))


@pytest.fixture
def tree(tmp_path):
    return write(tmp_path / "tree", FILES)


def test_hash_does_not_depend_on_where_or_in_which_order(tree, tmp_path):
    other = write(tmp_path / "other", dict(reversed(FILES.items())))
    assert gpu_record.hash_sources(tree) == gpu_record.hash_sources(other)
    assert list(gpu_record.hash_sources(other)) == sorted(FILES)
    assert tree_hash(tree) == tree_hash(other)


def test_hash_is_the_same_for_ever(tree):
    """Another way to hash would make every record a stranger to its tree."""
    assert tree_hash(tree) == "f582dd60bd7e7bc7"


def test_hash_does_not_depend_on_line_endings(tree, tmp_path):
    crlf = {path: content.replace("\n", "\r\n") for path, content in FILES.items()}
    assert tree_hash(write(tmp_path / "crlf", crlf)) == tree_hash(tree)


@pytest.mark.parametrize(
    "built",
    [
        "python/customconv/_C.cpython-312-x86_64-linux-gnu.so",
        "python/customconv/_build.json",
        "python/customconv/__pycache__/ops.cpython-312.pyc",
        "python/customconv.egg-info/PKG-INFO",
        "csrc/.cache/clangd",
        "csrc/plan/.plan.h.swp",
        "docs/index.md",
    ],
)
def test_only_sources_count(tree, built):
    before = tree_hash(tree)
    write(tree, {built: "anything"})
    assert tree_hash(tree) == before


@pytest.mark.parametrize(
    "change",
    [
        {"csrc/plan/plan.h": "struct Plan { };\n"},
        {"csrc/plan/new.h": ""},
        {"python/customconv/data.json": "{}"},
    ],
)
def test_every_change_counts(tree, change):
    before = tree_hash(tree)
    write(tree, change)
    assert tree_hash(tree) != before


def test_a_renamed_file_counts(tree):
    before = tree_hash(tree)
    (tree / "csrc/plan/plan.h").rename(tree / "csrc/plan/plans.h")
    assert tree_hash(tree) != before


def test_sources_are_what_git_tracks():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--"]
    if not shutil.which("git") or not (gpu_record.ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(
        [*command, *gpu_record.FOLDERS], cwd=gpu_record.ROOT, capture_output=True, text=True
    )
    assert listed.returncode == 0, listed.stderr
    tracked = {path for path in listed.stdout.split("\n") if (gpu_record.ROOT / path).is_file()}
    assert set(gpu_record.hash_sources()) == tracked


def a_record(**changes):
    sources = gpu_record.hash_sources()
    return {
        "tree": gpu_record.hash_tree(sources),
        "gpu": "NVIDIA H100",
        "driver": "580.1",
        "torch": "2.11.0",
        "cuda": "13.0",
        "passed": 12,
        "failed": 0,
        "skipped": 3,
        "date": "2026-01-02",
        "duration_s": 4.5,
        "arguments": [],
        "sources": sources,
        **changes,
    }


def run_check(path, capsys):
    status = gpu_record.main(["--check", "--out", str(path)])
    (line,) = capsys.readouterr().out.splitlines()
    return status, line


def test_check_of_a_record_of_this_tree(tmp_path, capsys):
    file = tmp_path / "record.json"
    file.write_text(json.dumps(a_record()))
    status, line = run_check(file, capsys)
    assert status == 0
    for words in ("matches", "12 passed, 0 failed, 3 skipped", "NVIDIA H100", "2026-01-02"):
        assert words in line
    file.write_text(json.dumps(a_record(failed=2, arguments=["-k", "graph"])))
    status, line = run_check(file, capsys)
    assert status == 0
    assert "2 failed" in line and "-k graph" in line


def test_check_of_a_record_of_another_tree(tmp_path, capsys):
    sources = gpu_record.hash_sources()
    changed, removed = list(sources)[:2]
    tested = {**sources, changed: "0", "csrc/gone.cpp": "1"}
    del tested[removed]
    file = tmp_path / "record.json"
    file.write_text(json.dumps(a_record(tree=gpu_record.hash_tree(tested), sources=tested)))
    status, line = run_check(file, capsys)
    assert status == 1
    assert "not of this tree" in line
    for path in (changed, removed, "csrc/gone.cpp"):
        assert path in line


def test_check_without_a_record(tmp_path, capsys):
    status, line = run_check(tmp_path / "record.json", capsys)
    assert status == 1
    assert "missing" in line


def test_nothing_is_recorded_without_a_gpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "record.json"
    assert gpu_record.main(["--out", str(file)]) == 1
    assert "no GPU" in capsys.readouterr().out
    assert not file.exists()


TESTS = """
import pytest

@pytest.fixture
def broken():
    raise ValueError

@pytest.mark.gpu
@pytest.mark.parametrize("number", range(3))
def test_passes(number):
    pass

@pytest.mark.gpu
def test_fails():
    assert False

@pytest.mark.gpu
def test_breaks(broken):
    pass

@pytest.mark.gpu
def test_skips():
    pytest.skip("a second GPU")

def test_of_the_cpu():
    assert False
"""


def test_recording(tmp_path):
    """The whole of it, with tests of its own, in a process where a GPU seems to be."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    program = f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(gpu_record.ROOT / "tests")!r})
        import gpu_record, torch
        torch.cuda.is_available = lambda: True
        torch.cuda.get_device_name = lambda: "A GPU"
        gpu_record.ROOT = Path({str(tmp_path)!r})
        sys.exit(gpu_record.main(["--out", "record.json", "--", "-p", "no:cacheprovider"]))
    """
    lines = "\n".join(line.strip() for line in program.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    assert list(record) == list(a_record())
    assert (record["passed"], record["failed"], record["skipped"]) == (3, 2, 1)
    assert record["gpu"] == "A GPU"
    assert record["torch"] == torch.__version__
    assert record["arguments"] == ["-p", "no:cacheprovider"]
