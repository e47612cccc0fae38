"""A load that fails says what is installed, what was found, and what to do."""

import json
import os
import shutil
import subprocess
import sys
from importlib import machinery
from pathlib import Path

import pytest
import torch

import build_config
import customconv
from customconv import _load
from customconv.build import listed, supported_python, supported_torch

PACKAGE = Path(customconv.__file__).parent
MODULE = f"_bind{machinery.EXTENSION_SUFFIXES[0]}"


@pytest.mark.parametrize(
    ("release", "cuda", "name"),
    [
        ("2.11.0+cu130", "13.0", "torch_2_11_cuda.so"),
        ("2.11.3", "12.8", "torch_2_11_cuda.so"),
        ("2.11.0a0+git1234", None, None),  # its interface may be another one
        ("2.11.0.dev20251001+cu130", "13.0", None),
        ("2.9.1+rocm6.4", None, "torch_2_9.so"),
        ("2.9.1+cu128", "12.8", "torch_2_9.so"),  # of a build without CUDA
        ("2.1.1", "13.0", None),
        ("2.15.0", "13.0", None),
        ("3.11.0", None, None),
        ("unknown", None, None),
    ],
)
def test_the_operators_are_those_of_the_installed_pytorch(tmp_path, release, cuda, name):
    (tmp_path / "lib").mkdir()
    for each in ("torch_2_9.so", "torch_2_11.so", "torch_2_11_cuda.so", "libcustomconv.so"):
        (tmp_path / "lib" / each).touch()
    found = _load.torch_library(release, cuda, tmp_path)
    assert (found and found.name) == name
    assert supported_torch(tmp_path) == [(2, 9), (2, 11)]


def test_versions_of_python_are_read_from_the_modules(tmp_path):
    for each in ("310", "314", "39"):
        (tmp_path / f"_bind.cpython-{each}-x86_64-linux-gnu.so").touch()
    assert supported_python(tmp_path) == [(3, 9), (3, 10), (3, 14)]
    assert sys.version_info[:2] in supported_python(PACKAGE)


@pytest.mark.parametrize("content", [None, "", "[]", "{"])
def test_a_missing_or_broken_record_is_no_record(tmp_path, content):
    if content is not None:
        (tmp_path / "_build.json").write_text(content)
    assert _load.build_record(tmp_path) == {}
    assert "customconv of an unknown version for PyTorch (none)" in _load.failure("why", tmp_path)


def test_message_names_both_sides_and_what_to_do():
    text = _load.failure("it is broken.")
    known = listed(supported_torch(PACKAGE))
    assert ".".join(map(str, _load.torch_minor(torch.__version__))) in known
    assert text.startswith("customconv cannot be loaded: it is broken.\n")
    assert f"installed: customconv {customconv.__version__} for PyTorch {known} and" in text
    assert f"found:     PyTorch {torch.__version__}" in text
    assert "pip install --force-reinstall --no-deps customconv" in text


@pytest.fixture
def copied(tmp_path):
    """The whole package in a folder of its own, to be broken."""
    package = tmp_path / "customconv"
    ignored = shutil.ignore_patterns("__pycache__", "libcustomconv_sm*")
    shutil.copytree(PACKAGE, package, ignore=ignored)
    return package


def imported(package: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    """Imports the copied package, as a user would."""
    return subprocess.run(
        [sys.executable, "-c", f"{first}\nimport customconv; print(customconv.__file__)"],
        cwd=package.parent, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(package.parent)},
    )  # fmt: skip


def test_a_copied_package_works(copied):
    done = imported(copied)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(copied / "__init__.py")


def check_failure(done: subprocess.CompletedProcess[str], reason: str) -> None:
    assert done.returncode == 1
    assert f"ImportError: customconv cannot be loaded: {reason}" in done.stderr
    assert "  installed: customconv " in done.stderr
    assert "  found:     " in done.stderr


def test_a_library_that_is_missing(copied):
    (copied / "lib/libcustomconv.so").unlink()
    check_failure(imported(copied), "the file lib/libcustomconv.so is missing from ")


@pytest.mark.parametrize("name", ["lib/libcustomconv.so", MODULE])
def test_a_file_that_is_no_library(copied, name):
    (copied / name).write_bytes(b"no library")
    check_failure(imported(copied), "the loader says: ")


def operators() -> str:
    library = _load.torch_library(torch.__version__, torch.version.cuda)
    assert library is not None
    return f"lib/{library.name}"


def test_operators_that_are_no_library(copied):
    library = copied / operators()
    library.write_bytes(b"no library")
    check_failure(imported(copied), f"{library.name} is broken, or of another build than the rest.")
    library.write_bytes(b"no library of " + _load.build_record()["build"].encode())
    check_failure(imported(copied), "the loader says: ")


def test_a_python_without_a_module(copied):
    (copied / MODULE).unlink()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    check_failure(imported(copied), f"it has no module for Python {python}.")


def test_no_pytorch(copied):
    done = imported(copied, "import sys; sys.modules['torch'] = None")
    check_failure(done, "PyTorch is not installed.")
    assert 'pip install "torch>=2.9"' in done.stderr


def test_a_pytorch_that_is_too_old(copied):
    done = imported(copied, "import torch; torch.__version__ = '2.8.0+cu128'")
    check_failure(done, "it needs PyTorch 2.9 or newer, and this is 2.8.0+cu128.")
    assert build_config.TESTED_TORCH[0] == _load.OLDEST_TORCH


def test_operators_of_another_build(copied):
    library = copied / operators()
    build = _load.build_record()["build"].encode()
    content = library.read_bytes()
    assert content.count(build) == 1
    library.write_bytes(content.replace(build, b"0" * len(build)))
    check_failure(imported(copied), f"{library.name} is broken, or of another build than the rest.")


@pytest.mark.parametrize("name", ["lib/libcustomconv.so", MODULE])
def test_a_module_of_another_build(copied, name):
    build = _load.build_record()["build"].encode()
    content = (copied / name).read_bytes()
    assert build in content
    (copied / name).write_bytes(content.replace(build, b"0" * len(build)))
    check_failure(imported(copied), f"libcustomconv.so is of another build than {MODULE}.")


def test_the_record_names_the_build():
    record = json.loads((PACKAGE / "_build.json").read_text())
    assert record["build"] == customconv._bind.build


def test_an_import_does_not_import_compilers():
    """Dynamo, Inductor and SymPy take seconds, which only those who compile should wait for."""
    code = (
        "import sys, torch; before = set(sys.modules); import customconv; "
        "print(sorted({'sympy', 'torch._dynamo', 'torch._inductor'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
