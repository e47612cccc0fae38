"""What each library needs of others: the layers are linked apart, and stay so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import build_config
import customconv
from customconv import _bind, _load, build

PACKAGE = Path(customconv.__file__).parent
COMMON = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
# Parts of the C library that older ones have apart.
COMMON |= {"libdl.so.2", "libpthread.so.0", "librt.so.1"}
CORE = {"libcustomconv.so"}

pytestmark = pytest.mark.skipif(
    not (shutil.which("readelf") and shutil.which("nm")), reason="needs binutils"
)


def needed(library: Path) -> set[str]:
    """The libraries that one names, but for the language's own."""
    said = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True)
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", said.stdout)) - COMMON


def symbols(library: Path, *flags: str) -> set[str]:
    """Names in a library's dynamic symbol table, without their versions."""
    said = subprocess.run(["nm", "-D", *flags, library], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in said.stdout.splitlines()}


def undefined(library: Path) -> set[str]:
    return symbols(library, "--undefined-only")


def of_python(names: set[str]) -> set[str]:
    return {name for name in names if re.match(r"_?Py[A-Z_]", name)}


def of_torch(names: set[str]) -> set[str]:
    return {name for name in names if re.search(r"(N|K)?(2at|3c10|5torch)\d", name)}


def of_cuda(names: set[str]) -> set[str]:
    return {name for name in names if re.match(r"(__)?(cuda|cublas|cudnn|nvrtc|cu[A-Z])", name)}


OPERATORS = sorted((PACKAGE / "lib").glob("torch_*.so"))
KERNELS = sorted((PACKAGE / "lib").glob("libcustomconv_sm*.so"))
MODULES = sorted(PACKAGE.glob("_bind.*.so"))


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_there_is_one_of_each_layer():
    assert (PACKAGE / "lib/libcustomconv.so").exists()
    assert _load.torch_library(torch.__version__, torch.version.cuda) in OPERATORS
    assert MODULES
    assert bool(KERNELS) == customconv.build_info()["with_cuda"]
    assert _bind.kernel_libraries() == [p.stem.removeprefix("libcustomconv_") for p in KERNELS]


def test_the_core_knows_neither_torch_nor_python_nor_cuda():
    core = PACKAGE / "lib/libcustomconv.so"
    assert needed(core) == set()
    found = undefined(core)
    assert not of_python(found) | of_torch(found) | of_cuda(found)


@pytest.mark.parametrize("library", KERNELS, ids=names(KERNELS))
def test_kernels_bring_their_cuda_runtime_and_hide_it(library):
    assert needed(library) == CORE
    found = undefined(library)
    assert not of_python(found) | of_torch(found) | of_cuda(found)
    assert symbols(library, "--defined-only") == {"customconv_kernel_library"}


@pytest.mark.parametrize("library", OPERATORS, ids=names(OPERATORS))
def test_operators_need_torchs_libraries_and_no_other(library):
    libraries = {"libtorch_cpu.so", "libc10.so"}
    if library.stem.endswith("_cuda"):
        libraries |= {"libtorch_cuda.so", "libc10_cuda.so"}
    assert needed(library) == CORE | libraries
    found = undefined(library)
    assert not of_python(found) | of_cuda(found)
    # Of the core, the C functions alone: another compiler may have built it.
    assert not {name for name in found if "10customconv" in name}
    assert {name for name in found if name.startswith("customconv_")}


@pytest.mark.parametrize("library", MODULES, ids=names(MODULES))
def test_the_module_for_python_knows_no_torch(library):
    assert needed(library) == CORE
    found = undefined(library)
    assert not of_torch(found) | of_cuda(found)
    assert of_python(found)
    assert symbols(library, "--defined-only") == {"PyInit__bind"}


def test_the_core_exports_what_is_its_own():
    for name in symbols(PACKAGE / "lib/libcustomconv.so", "--defined-only"):
        assert name.startswith("customconv_") or "10customconv" in name, name


def test_no_header_of_cuda_is_where_libraries_meet(tmp_path):
    """Its structs differ from one version to the next: attributes are asked for by number."""
    source = tmp_path / "all.cpp"
    source.write_text('#include "core/interface.h"\n#include "core/devices.h"\n')
    compiler = os.environ.get("CXX", "c++").split()
    listed = subprocess.run(
        [*compiler, "-std=c++17", "-M", f"-I{build_config.ROOT / 'csrc'}", source],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    headers = {Path(word).name for word in listed.stdout.split() if word.endswith(".h")}
    assert {"interface.h", "library.h", "device.h"} <= headers
    assert not {name for name in headers if name.startswith(("cuda", "cublas", "vector_types"))}


def test_attributes_of_devices_have_the_drivers_numbers():
    """The core has no header of CUDA's, and repeats the numbers of those that it asks for."""
    homes = [Path(os.environ.get("CUDA_HOME", build_config.SYSTEM_TOOLKIT))]
    homes += build.cuda_wheels(13) + build.cuda_wheels(12)
    header = next((h / "include/cuda.h" for h in homes if (h / "include/cuda.h").exists()), None)
    if header is None:
        pytest.skip("needs cuda.h")
    numbers = re.findall(r"CU_DEVICE_ATTRIBUTE_(\w+) = (\d+)", header.read_text())
    driver = {name.replace("_", "").lower(): int(number) for name, number in reversed(numbers)}
    source = (build_config.ROOT / "csrc/core/devices.cpp").read_text()
    (listed,) = re.findall(r"enum \{(.*?)\};", source, re.DOTALL)
    ours = {name.lower(): int(number) for name, number in re.findall(r"k(\w+) = (\d+)", listed)}
    other = {"memorybuswidth": "globalmemorybuswidth"}
    assert ours == {name: driver[other.get(name, name)] for name in ours}
    assert len(ours) == 9
