"""Compiles a program of this folder with nvcc, once, and loads it."""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "csrc"
LIBRARIES = HERE / "build"


def architecture() -> str:
    """The current GPU's, as nvcc names it."""
    major, minor = torch.cuda.get_device_capability()
    return f"{major}{minor}{'a' if major == 9 else ''}"


def library(name: str, target: str) -> Path:
    """Returns the program compiled for a GPU; compiles it if it has changed.

    Raises:
        subprocess.CalledProcessError: nvcc failed; it has printed why.
    """
    source = HERE / f"{name}.cu"
    folders = (HERE, SOURCES / "kernels/ptx", SOURCES / "kernels/common")
    headers = sorted(file for folder in folders for file in folder.glob("*.*h"))
    content = b"".join(file.read_bytes() for file in (source, *headers))
    digest = hashlib.sha256(content).hexdigest()[:16]
    found = LIBRARIES / f"{name}-{target}-{digest}.so"
    if found.exists():
        return found
    LIBRARIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LIBRARIES) as folder:
        made = Path(folder) / found.name
        subprocess.run(
            ["nvcc", "-std=c++17", "-O3", f"-gencode=arch=compute_{target},code=sm_{target}",
             f"-I{SOURCES}", "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC", "-shared",
             str(source), "-o", str(made)],
            check=True,
        )  # fmt: skip
        os.replace(made, found)
    return found


def load(name: str) -> ctypes.CDLL:
    """Returns the program as a library for the current GPU."""
    return ctypes.CDLL(str(library(name, architecture())))


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def stream() -> ctypes.c_void_p:
    """The current stream."""
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def check(status: int, what: str) -> None:
    """Raises if a program failed; it has printed why."""
    if status != 0:
        raise RuntimeError(f"{what} failed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="90a", help="the architecture, as nvcc names it")


def main(arguments: argparse.Namespace, console: Console) -> int:
    for source in sorted(HERE.glob("*.cu")):
        console.print(library(source.stem, arguments.target).name, highlight=False)
    return 0
