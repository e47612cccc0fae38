"""Which library of kernels a GPU is served by, and what is said where there is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import customconv
from customconv import _bind, _load

RELEASE = ["sm80", "sm86", "sm89", "sm90a", "sm100", "sm120_ptx"]


@pytest.mark.parametrize(
    ("capability", "library"),
    [
        ((7, 5), ""),
        ((8, 0), "sm80"),
        ((8, 6), "sm86"),
        ((8, 7), "sm86"),
        ((8, 9), "sm89"),
        ((9, 0), "sm90a"),
        ((10, 0), "sm100"),
        ((10, 3), "sm100"),
        ((11, 0), ""),
        ((12, 0), "sm120_ptx"),
        ((12, 1), "sm120_ptx"),
        ((13, 0), "sm120_ptx"),  # compiled by the driver
    ],
)
def test_a_gpu_gets_the_code_that_it_runs_best(capability, library):
    for names in (RELEASE, RELEASE[::-1]):
        assert _bind.library_for(*capability, names) == library


@pytest.mark.parametrize(
    ("names", "capability", "library"),
    [
        (["sm80"], (8, 9), "sm80"),
        (["sm89"], (8, 6), ""),
        (["sm90a"], (9, 1), ""),
        (["sm90", "sm90a"], (9, 0), "sm90a"),
        (["sm90"], (9, 0), "sm90"),
        (["sm80_ptx", "sm86"], (9, 0), "sm80_ptx"),
        (["sm80_ptx", "sm86"], (8, 9), "sm86"),
        (["sm80_ptx", "sm90_ptx"], (10, 0), "sm90_ptx"),
        (["sm90a_ptx"], (9, 0), "sm90a_ptx"),
        (["sm90a_ptx"], (10, 0), ""),
        ([], (9, 0), ""),
    ],
)
def test_other_selections(names, capability, library):
    assert _bind.library_for(*capability, names) == library


@pytest.mark.parametrize("index", [-1, 64, 100_000])
def test_a_device_that_does_not_exist(index):
    with pytest.raises(ValueError, match=f"CUDA has no device {index}"):
        _bind.device_properties(index)
    assert _bind.why_no_kernels(index) == f"CUDA has no device {index}"


def test_without_cublas_its_family_is_no_candidate():
    problem = _bind.ConvProblem(input=(4, 64, 20, 20), weight=(128, 64, 1, 1))
    for has_blas in (True, False):
        device = _bind.DeviceProperties(has_blas=has_blas)
        found = {c.family: c for c in _bind.candidates(problem, device)}
        assert (found["im2col"].plan is not None) == has_blas
        assert ("PyTorch has loaded no cuBLAS" in found["im2col"].reason) != has_blas
        assert _bind.plan(problem, device).family != "aten"
        assert all(plan.family != "im2col" for plan in _bind.plans(problem, device)) != has_blas


# A machine with another GPU or driver: what the driver says comes from a library of that name.

DRIVER = """
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* handle, int index) { *handle = index; return index == 0 ? 0 : 101; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuDeviceGetAttribute(int* value, int which, int) {
  *value = which == 75 ? MAJOR : which == 76 ? MINOR : 1000;
  return 0;
}
}
"""
PACKAGE = Path(customconv.__file__).parent
KERNELS = sorted((PACKAGE / "lib").glob("libcustomconv_sm*.so"))

needs_kernels = pytest.mark.skipif(not KERNELS, reason="this build has no kernels")


@pytest.fixture
def machine(tmp_path):
    """Says why the kernels of a copied package don't run on such a GPU, or with such a driver."""
    package = tmp_path / "customconv"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))

    def why_not(capability=(9, 0), version=13000):
        (tmp_path / "driver.cpp").write_text(DRIVER)
        numbers = {"MAJOR": capability[0], "MINOR": capability[1], "VERSION": version}
        defined = [f"-D{name}={value}" for name, value in numbers.items()]
        compiler = os.environ.get("CXX", "c++").split()
        flags = ["-shared", "-fPIC", *defined, "-o", "libcuda.so.1"]
        subprocess.run([*compiler, "driver.cpp", *flags], cwd=tmp_path, check=True)
        code = "from customconv import _bind; print(_bind.why_no_kernels(0)); "
        code += "print(_bind.device_properties(0).capability, _bind.driver_version())"
        paths = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        why, device = done.stdout.splitlines()
        assert device == f"{capability} {version}"
        return why

    why_not.folder = package / "lib"
    why_not.library = why_not.folder / KERNELS[0].name if KERNELS else None
    return why_not


@needs_kernels
def test_a_gpu_of_an_architecture_that_was_not_built_for(machine):
    name = KERNELS[0].stem.removeprefix("libcustomconv_")
    said = machine(capability=(7, 5))
    assert said == f"this GPU's compute capability is 7.5, and the kernels are for {name}"


@needs_kernels
@pytest.mark.parametrize("version", [12040, 12090])
def test_a_driver_that_is_too_old(machine, version):
    major, minor = version // 1000, version % 1000 // 10
    said = machine(version=version)
    assert f"the NVIDIA driver runs CUDA {major}.{minor}, and the kernels need CUDA 13.0" in said
    assert said.endswith("install a newer driver")


# No kernels, but the table that names their CUDA runtime.
NEWER_LIBRARY = """
#include "kernels/library.h"
extern "C" const customconv::KernelLibrary* customconv_kernel_library() {
  static const customconv::KernelLibrary library{BUILD, "8.0+PTX", 13020};
  return &library;
}
"""


@pytest.mark.parametrize(
    ("capability", "version", "runs"),
    [
        ((8, 6), 13000, True),  # machine code
        ((9, 0), 13000, False),  # PTX, which the driver compiles
        ((9, 0), 13020, True),
        ((8, 6), 12090, False),
    ],
)
def test_a_driver_compiles_no_newer_code(machine, tmp_path, capability, version, runs):
    for path in machine.folder.glob("libcustomconv_sm*.so"):
        path.unlink()
    (tmp_path / "library.cpp").write_text(NEWER_LIBRARY)
    compiler = os.environ.get("CXX", "c++").split()
    flags = ["-std=c++17", f'-DBUILD="{_bind.build}"', f"-I{_load.sources()}", "-shared", "-fPIC"]
    target = machine.folder / "libcustomconv_sm80_ptx.so"
    subprocess.run([*compiler, *flags, "library.cpp", "-o", target], cwd=tmp_path, check=True)
    said = machine(capability, version)
    assert (said == "") == runs
    if not runs:
        needed = "13.2" if capability == (9, 0) else "13.0"
        assert f"the kernels need CUDA {needed} or later" in said


@needs_kernels
def test_kernels_that_are_missing(machine):
    for path in machine.folder.glob("libcustomconv_sm*.so"):
        path.unlink()
    assert machine() == f"there are no kernels in {machine.folder}"


@needs_kernels
def test_kernels_that_are_no_library(machine):
    machine.library.write_bytes(b"no library")
    said = machine()
    assert f"{machine.library} cannot be loaded: " in said


@needs_kernels
def test_a_library_that_holds_no_kernels(machine):
    shutil.copy(machine.library.with_name("libcustomconv.so"), machine.library)
    assert machine() == f"{machine.library} is no library of customconv's kernels"


@needs_kernels
def test_kernels_of_another_build(machine):
    content = machine.library.read_bytes()
    build = _bind.build.encode()
    assert build in content
    machine.library.write_bytes(content.replace(build, b"0" * len(build)))
    said = machine()
    assert said == f"{machine.library} is of another build of customconv: install it again"
