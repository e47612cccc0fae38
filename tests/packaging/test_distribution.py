"""The sdist is complete, its wheel works, and neither holds what it must not."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import build_config

ROOT = build_config.ROOT
LEFT_BEHIND = shutil.ignore_patterns(
    ".*", "__pycache__", "build", "dist", "wheelhouse", "*.egg-info", "*.so", "_build.json"
)


def run(*command: object, cwd: Path, **env: str) -> str:
    """Runs a command; a failure shows what it printed."""
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The sdist of a clean copy of the tree, unpacked: the tree may have an older list of files."""
    directory = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, directory / "tree", ignore=LEFT_BEHIND)
    shutil.copy(ROOT / ".clang-format", directory / "tree")
    (directory / "tree/bench/report/index.html").touch()
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", "..", ".",
        cwd=directory / "tree")  # fmt: skip
    (archive,) = directory.glob("customconv-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(directory / "unpacked", filter="data")
    (top,) = (directory / "unpacked").iterdir()
    return top


def files(top: Path) -> set[str]:
    """The files under a directory, relative to it."""
    return {str(p.relative_to(top)) for p in top.rglob("*") if p.is_file()}


def test_sdist_holds_the_sources(unpacked):
    tree = unpacked.parent.parent / "tree"
    packed = files(unpacked)
    for part in ("csrc", "python", "tools", "tests"):
        missing = {f"{part}/{f}" for f in files(tree / part) if ".egg-info/" not in f} - packed
        assert not missing
    assert {f for f in packed if f.startswith("bench/report/")} == {"bench/report/summary.md"}
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md"} <= packed
    assert not [f for f in packed if f.endswith((".so", ".pyc", "_build.json"))]


def test_setup_without_torch_says_what_to_install():
    blocked = (
        "import runpy, sys; sys.modules['torch'] = None; "
        "sys.argv = ['setup.py', 'build_ext']; runpy.run_path('setup.py')"
    )
    done = subprocess.run([sys.executable, "-c", blocked], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "pip install --no-build-isolation" in done.stderr
    assert "torch>=2.9,<2.15" in done.stderr


def test_a_build_without_a_gpu_in_sight_warns_and_notes_why(tmp_path):
    """At its beginning, and again after all that it prints."""
    (tmp_path / "customconv").mkdir()
    build = (
        "import runpy, sys, torch; sys.path.insert(0, 'tools'); import build_config; "
        "build_config.gpu_in_sight = lambda: False; torch.version.cuda = '13.0'; "
        "from torch.utils.cpp_extension import BuildExtension; "
        "BuildExtension.run = lambda self: print('compiling', file=sys.stderr); "
        f"sys.argv = ['setup.py', 'build_ext', '--build-lib', {str(tmp_path)!r}]; "
        "runpy.run_path('setup.py')"
    )
    env = {name: value for name, value in os.environ.items() if name != "CUSTOMCONV_CUDA"}
    done = subprocess.run(
        [sys.executable, "-c", build],
        cwd=ROOT, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    before, after = done.stderr.split("compiling")
    for part in (before, after):
        assert part.count("warning: customconv is built without CUDA") == 1
        assert "CUSTOMCONV_CUDA=1 builds it" in part
    record = json.loads((tmp_path / "customconv/_build.json").read_text())
    assert record["cuda"] is None
    assert record["cuda_left_out"] == "no GPU was in sight of the build"


@pytest.mark.slow
def test_wheel_from_the_sdist_runs(unpacked, tmp_path):
    """Builds without CUDA; CUSTOMCONV_WHEEL_DIR keeps the wheel for another use."""
    wheels = Path(os.environ.get("CUSTOMCONV_WHEEL_DIR", tmp_path / "wheel"))
    run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", wheels,
        unpacked, cwd=tmp_path, CUSTOMCONV_CUDA="0")  # fmt: skip
    (wheel,) = wheels.glob("customconv-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        requires = archive.read(metadata).decode()
    for name in ("py.typed", "_bind.pyi", "_build.json"):
        assert f"customconv/{name}" in names
    assert sum(n.startswith("customconv/_bind.cpython-") for n in names) == 1
    outside = [n for n in names if not n.startswith(("customconv/", "customconv-"))]
    assert not outside
    assert "Requires-Dist: torch>=2.9\n" in requires

    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel, cwd=tmp_path)
    smoke = ROOT / "tests/packaging/smoke.py"
    path = {"PYTHONPATH": str(site)}
    where = run(
        sys.executable, "-c", "import customconv; print(customconv.__file__)", cwd=tmp_path, **path
    )
    assert where.strip() == str(site / "customconv/__init__.py")
    assert "CUDA" in run(sys.executable, "-m", "customconv", "info", cwd=tmp_path, **path)
    assert "agrees with PyTorch's" in run(sys.executable, smoke, cwd=tmp_path, **path)
    backend = ROOT / "tests/packaging/backend.py"
    assert "compiled by customconv" in run(sys.executable, backend, cwd=tmp_path, **path)
