"""What a release builds: one wheel for each Python, and a binary that knows what it is for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import build_config
import customconv


def test_one_wheel_for_each_python():
    pytest.importorskip("cibuildwheel")
    done = subprocess.run(
        [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--platform", "linux"],
        cwd=build_config.ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pythons = ("cp310", "cp311", "cp312", "cp313", "cp314")
    assert done.stdout.split() == [f"{python}-manylinux_x86_64" for python in pythons]


def test_the_record_beside_the_binary_tells_what_the_binary_tells():
    record = json.loads(Path(customconv.__file__).with_name("_build.json").read_text())
    info = customconv.build_info()
    assert record["version"] == info["version"] == customconv.__version__
    assert record["torch"] == info["torch"]
    assert (record["cuda"] or "") == info["cuda"]
    assert ";".join(record["arch_list"]) == info["arch_list"]
    assert record["compiler"] and record["python"]


def test_the_version_is_the_packages():
    assert customconv.__version__ == build_config.version()
