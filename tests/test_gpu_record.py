"""The record of the last run on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import gpu_record
import torch


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


def test_runs_of_different_tests_are_one_record(tmp_path, capsys):
    paths = [tmp_path / name for name in ("a.json", "b.json", "whole.json")]
    paths[0].write_text(json.dumps(a_record(arguments=["-k", "op"])))
    paths[1].write_text(json.dumps(a_record(passed=5, skipped=1, arguments=["-k", "not op"])))
    joined = ["--out", str(paths[2]), "--join", *map(str, paths[:2])]
    assert gpu_record.main(joined) == 0
    assert "17 passed, 0 failed, 4 skipped" in capsys.readouterr().out
    record = json.loads(paths[2].read_text())
    assert record["parts"] == [["-k", "op"], ["-k", "not op"]]
    assert record["arguments"] == [] and record["duration_s"] == 9.0
    paths[1].write_text(json.dumps(a_record(failed=1)))
    assert gpu_record.main(joined) == 1
    paths[1].write_text(json.dumps(a_record(tree="another")))
    capsys.readouterr()
    assert gpu_record.main(joined) == 1
    assert "differ in tree" in capsys.readouterr().out


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
