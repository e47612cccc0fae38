"""Compiles kernels for the CPU, with headers that stand in for the GPU's."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import build_config as config

HERE = Path(__file__).parent / "emulation"
CSRC = config.ROOT / "csrc"
FAMILY = Path("kernels/implicit_gemm")
MACROS = {
    "__CUDA_ARCH__": "900",
    "__CUDA_ARCH_FEAT_SM90_ALL": "",
    "__noinline__": "",  # which host compilers do not know
}
# A block's shared memory, as a kernel declares it.
SHARED_MEMORY = re.compile(r"extern __shared__ .*char (\w+)\[\];")
# The same of a kernel that knows its size.
SIZED = re.compile(r"__shared__ alignas\(\d+\) (\w+) (\w+)((?:\[[^\]]+\])+);")
# A launch: the kernel, and how.
LAUNCH = re.compile(r"(\b\w+<T>)\s*<<<(.*?)>>>\(", re.DOTALL)


def toolkit() -> Path | None:
    """Where CUDA's headers are, or None where there are none of torch's version."""
    if torch.version.cuda is None:
        return None
    try:
        return config.find_cuda_home(os.environ, torch.version.cuda)
    except config.ConfigError:
        return None


def copied(folder: Path, below: str) -> list[Path]:
    """The family's sources that match, which ask the emulation for shared memory and launches."""
    found = []
    for source in (CSRC / FAMILY).glob(below):
        if not source.is_file():
            continue
        copy = folder / source.relative_to(CSRC)
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = SHARED_MEMORY.sub(
            r"char* const \1 = emulation::here().block->memory;", source.read_text()
        )
        text = SIZED.sub(
            r"auto& \2 = *reinterpret_cast<\1(*)\3>(emulation::here().block->memory);", text
        )
        copy.write_text(LAUNCH.sub(r"emulation::Plain{\2}(\1, ", text))
        if source.suffix in (".cu", ".cpp"):
            found.append(copy)
    return found


def sources_of(name: str, folder: Path) -> list[Path]:
    """What a library is compiled from."""
    if name == "statistics":
        own = [HERE / f"{each}.cpp" for each in ("driver", "gpu", name)]
        return [*own, CSRC / "plan" / "problem.cpp", CSRC / "kernels" / name / f"{name}.cu"]
    plan = ("problem.cpp", "device.cpp", "price.cpp", "fields.cpp")
    common = [CSRC / "plan" / each for each in plan]
    common += [HERE / f"{each}.cpp" for each in ("driver", "gpu", "interface", "products", name)]
    if name == "weight_gradients":
        return common + copied(folder, "wgrad/**/*")
    shared = [each for each in copied(folder, "*") if each.name == "forward.cpp"]
    own = copied(folder, "sm90/*")
    float32 = [each for each in own if each.suffix == ".cpp" or "f32" in each.name]
    return [*common, *shared, *float32, CSRC / "kernels" / "common" / "parts.cpp"]


def library(folder: Path, home: Path, name: str) -> Path:
    """Builds a shared library in a folder: "weight_gradients", "main_loop" or "statistics"."""
    compiler = os.environ.get("CXX", "g++")
    options = ["-std=c++17", "-fPIC", "-fno-strict-aliasing"]
    options += [f"-D{macro}={value}" for macro, value in MACROS.items()]
    # What stands in comes first; launches are declared before launchers.
    options += [f"-I{path}" for path in (HERE, folder / "csrc", CSRC)]
    options += ["-isystem", str(home / "include"), "-include", "gpu.h"]

    def compiled(source: Path) -> Path:
        parts = source.parts[-3:]
        target = folder / ("_".join(parts) + ".o")
        level = "-O3" if source.name == "products.cpp" else "-O1"  # where the time is spent
        run([compiler, "-x", "c++", level, *options, "-c", str(source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, sources_of(name, folder / "csrc")))
    target = folder / f"{name}.so"
    # What it has of CUDA's functions is for itself.
    run([compiler, "-shared", "-Wl,-Bsymbolic", *map(str, objects), "-o", str(target)])
    return target


def built(factory: pytest.TempPathFactory, name: str) -> Path:
    """A library, built once a run by the first worker: all have folders in a common one."""
    home = toolkit()
    assert home is not None
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"emulated_{name}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = folder / f"{name}.so"
        return found if found.exists() else library(folder, home, name)


def run(command: Iterable[str]) -> None:
    done = subprocess.run(list(command), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
