"""Compiles the weight gradients' sources for the CPU, with headers that stand in for the GPU's."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import build_config as config

HERE = Path(__file__).parent / "emulation"
CSRC = config.ROOT / "csrc"
KERNELS = Path("kernels/implicit_gemm/wgrad")
MACROS = {
    "__CUDA_ARCH__": "900",
    "__CUDA_ARCH_FEAT_SM90_ALL": "",
    "__noinline__": "",  # which host compilers do not know
}
# A block's shared memory, as a kernel declares it.
SHARED_MEMORY = re.compile(r"extern __shared__ .*char (\w+)\[\];")


def toolkit() -> Path | None:
    """Where CUDA's headers are, or None where there are none of torch's version."""
    if torch.version.cuda is None:
        return None
    try:
        return config.find_cuda_home(os.environ, torch.version.cuda)
    except config.ConfigError:
        return None


def copied(folder: Path) -> list[Path]:
    """The kernels' sources there, which ask the emulation for shared memory."""
    found = []
    for source in (CSRC / KERNELS).rglob("*"):
        if not source.is_file():
            continue
        copy = folder / source.relative_to(CSRC)
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text()
        copy.write_text(
            SHARED_MEMORY.sub(r"char* const \1 = emulation::here().block->memory;", text)
        )
        if source.suffix in (".cu", ".cpp"):
            found.append(copy)
    return found


def library(folder: Path, home: Path) -> Path:
    """Builds a shared library in a folder."""
    compiler = os.environ.get("CXX", "g++")
    options = ["-std=c++17", "-fPIC", "-fno-strict-aliasing"]
    options += [f"-D{name}={value}" for name, value in MACROS.items()]
    # What stands in comes first; launches are declared before launchers.
    options += [f"-I{path}" for path in (HERE, folder / "csrc", CSRC)]
    options += ["-isystem", str(home / "include"), "-include", "gpu.h"]
    sources = copied(folder / "csrc")
    plan = [CSRC / "plan" / name for name in ("problem.cpp", "device.cpp", "price.cpp")]
    sources += [*plan, *HERE.glob("*.cpp")]

    def compiled(source: Path) -> Path:
        parts = source.parts[-3:]
        target = folder / ("_".join(parts) + ".o")
        level = "-O3" if source.parent == HERE else "-O1"  # it is where the time is spent
        run([compiler, "-x", "c++", level, *options, "-c", str(source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, sources))
    target = folder / "emulation.so"
    # What it has of CUDA's functions is for itself.
    run([compiler, "-shared", "-Wl,-Bsymbolic", *map(str, objects), "-o", str(target)])
    return target


def run(command: Iterable[str]) -> None:
    done = subprocess.run(list(command), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
