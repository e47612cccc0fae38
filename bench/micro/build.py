"""Compiles a program of this folder with nvcc and loads it."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "csrc"


def load(name: str) -> ctypes.CDLL:
    """Returns the program as a library, compiled for the current GPU.

    Raises:
        subprocess.CalledProcessError: nvcc failed; it has printed why.
    """
    major, minor = torch.cuda.get_device_capability()
    feature = "a" if major == 9 else ""
    architecture = f"arch=compute_{major}{minor}{feature},code=sm_{major}{minor}{feature}"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / f"{name}.so"
        subprocess.run(
            ["nvcc", "-std=c++17", "-O3", f"-gencode={architecture}", f"-I{SOURCES}",
             "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC", "-shared",
             str(HERE / f"{name}.cu"), "-o", str(library)],
            check=True,
        )  # fmt: skip
        return ctypes.CDLL(str(library))


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def stream() -> ctypes.c_void_p:
    """The current stream."""
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def check(status: int, what: str) -> None:
    """Raises if a program returned a CUDA error."""
    if status != 0:
        raise RuntimeError(f"{what}: CUDA error {status}")
