"""A load that fails says what was built, what was found, and what to install."""

import json
import shutil
import subprocess
import sys
from importlib import machinery
from pathlib import Path

import pytest

import build_config
import customconv
from customconv._load import (
    OLDEST_TORCH,
    Versions,
    built_versions,
    failure,
    found_versions,
    load,
    mismatch,
)

CUDA_BUILD = Versions("3.12.4", "2.11.0+cu130", "13.0")
CPU_BUILD = Versions("3.12.4", "2.11.0+cpu", None)


@pytest.mark.parametrize(
    ("built", "torch", "cuda", "reason"),
    [
        (CUDA_BUILD, "2.11.0+cu130", "13.0", None),
        (CUDA_BUILD, "2.11.3+cu131", "13.1", None),
        (CUDA_BUILD, "2.12.0+cu130", "13.0", "release"),
        (CUDA_BUILD, "2.1.1+cu130", "13.0", "release"),
        (CUDA_BUILD, "3.11.0+cu130", "13.0", "release"),
        (CUDA_BUILD, "2.11.0+cu128", "12.8", "major version of CUDA"),
        (CUDA_BUILD, "2.11.0+cpu", None, "this PyTorch has none"),
        (CUDA_BUILD, None, None, "not installed"),
        (CPU_BUILD, "2.11.0+cu130", "13.0", None),
        (CPU_BUILD, "2.11.0a0+git1234", None, None),
        (CPU_BUILD, "2.9.1", None, "release"),
    ],
)
def test_mismatch(built, torch, cuda, reason):
    said = mismatch(built, Versions("3.12.9", torch, cuda))
    assert (said is None) if reason is None else (reason in said)


def test_message_names_both_sides_and_what_to_install():
    found = Versions("3.12.9", "2.9.1+cu128", "12.8")
    text = failure("It was built for another release of PyTorch.", CUDA_BUILD, found)
    assert "built for: PyTorch 2.11.0+cu130, CUDA 13.0, Python 3.12.4" in text
    assert "found:     PyTorch 2.9.1+cu128, CUDA 12.8, Python 3.12.9" in text
    assert 'pip install "torch==2.11.*" --index-url https://download.pytorch.org/whl/cu130' in text
    assert "--no-build-isolation" in text


@pytest.mark.parametrize(
    ("torch", "advice"),
    [
        ("2.14.1+cu130", "with the PyTorch that you have"),
        ("2.9.0a0+git1234", "with the PyTorch that you have"),
        ("3.0.0", "with the PyTorch that you have"),
        ("2.8.0", "after installing PyTorch 2.9 or newer"),
        ("1.13.1", "after installing PyTorch 2.9 or newer"),
        (None, "after installing PyTorch 2.9 or newer"),
    ],
)
def test_message_advises_no_build_that_is_refused(torch, advice):
    found = Versions("3.12.9", torch, None)
    text = failure("It was built for another release of PyTorch.", CUDA_BUILD, found)
    assert f"or build customconv again {advice}:" in text


def test_the_oldest_pytorch_is_the_one_that_the_build_asks_for():
    assert build_config.TESTED_TORCH[0] == OLDEST_TORCH


def test_message_without_a_record():
    text = failure("It has not been built for this Python.", None, found_versions())
    assert "built for: unknown" in text
    assert "--no-build-isolation" in text
    assert "torch==" not in text


@pytest.mark.parametrize("content", [None, "", "[]", "{", '{"torch": "2.11.0"}'])
def test_a_missing_or_broken_record_is_no_record(tmp_path, content):
    record = tmp_path / "_build.json"
    if content is not None:
        record.write_text(content)
    assert built_versions(record) is None


def write_record(folder, **changes):
    found = found_versions()
    fields = {"python": found.python, "torch": found.torch, "cuda": found.cuda} | changes
    record = folder / "_build.json"
    record.write_text(json.dumps(fields))
    return record


def test_another_pytorch_is_refused_before_the_binary_is_opened(tmp_path):
    record = write_record(tmp_path, torch="1.13.1", cuda=None)
    with pytest.raises(ImportError, match="another release of PyTorch") as error:
        load(record)
    assert "PyTorch 1.13.1, no CUDA" in str(error.value)
    assert 'pip install "torch==1.13.*"\n' in str(error.value)


def test_a_record_of_another_python_does_not_speak_of_this_binary(tmp_path):
    record = write_record(tmp_path, python="3.7.1", torch="1.13.1", cuda=None)
    assert load(record).__name__ == "customconv._C"


def test_a_missing_binary(tmp_path):
    with pytest.raises(ImportError, match="has not been built for this Python"):
        load(write_record(tmp_path), name="customconv._not_built")


def test_a_binary_that_the_loader_refuses(tmp_path):
    """The whole package with a file that is no binary, as a user would import it."""
    package = tmp_path / "customconv"
    source = Path(customconv.__file__).parent
    package.mkdir()
    for file in source.glob("*.py"):
        shutil.copy(file, package)
    write_record(package)
    (package / f"_C{machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"no binary")
    result = subprocess.run(
        [sys.executable, "-c", "import customconv"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 1
    assert "ImportError: The compiled part of customconv cannot be loaded. " in result.stderr
    assert "The loader says: " in result.stderr
    assert "found:     PyTorch" in result.stderr


def test_an_import_does_not_import_compilers():
    """Dynamo, Inductor and SymPy take seconds, which only those who compile should wait for."""
    code = (
        "import sys, torch; before = set(sys.modules); import customconv; "
        "print(sorted({'sympy', 'torch._dynamo', 'torch._inductor'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
