"""Compiles one kernel source for each architecture of a release that a build leaves out.

A build for one architecture does not compile what kernels do on others. This takes seconds, where a
build for all of them takes hours, and finds what nvcc refuses for one of them. It runs in the
environment of the build, with its ``TORCH_CUDA_ARCH_LIST`` and its flags.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

import build_config as config

# From compute capability 9.0 on it has kernels that TMA serves; before, none.
SOURCE = config.ROOT / "csrc/kernels/depthwise/boxes/boxes_f32.cu"


def left_out(env: Mapping[str, str]) -> list[str]:
    """The architectures of a release that ``TORCH_CUDA_ARCH_LIST`` does not name."""
    named = env.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    built = {arch.removesuffix("+PTX") for arch in named}
    return [
        a for a in config.RELEASE_ARCHITECTURES.split(";") if a.removesuffix("+PTX") not in built
    ]


def command(nvcc: str, home: Path, arch: str, target: Path) -> list[str]:
    """What compiles the source, as setup.py and torch would have it compiled."""
    flags = [*COMMON_NVCC_FLAGS, "--compiler-options", "-fPIC", *config.nvcc_flags(home)]
    flags += [f"-I{config.ROOT / 'csrc'}", *config.gencode(arch)]
    return [*nvcc.split(), *flags, "-c", str(SOURCE), "-o", str(target)]


def main() -> None:
    """Compiles for one architecture after the other.

    Raises:
        ConfigError: there is no toolkit, or it does not know one of the architectures.
        CalledProcessError: nvcc failed; it has said why.
    """
    if torch.version.cuda is None:
        raise config.ConfigError("this torch is a CPU build")
    home = config.find_cuda_home(os.environ, torch.version.cuda)
    archs = left_out(os.environ)
    config.check_architectures(";".join(archs), config.nvcc_architectures(home))
    env = {**os.environ, "CUDA_HOME": str(home)}
    config.use_ccache(env)
    nvcc = env.get("PYTORCH_NVCC", str(home / "bin/nvcc"))
    with tempfile.TemporaryDirectory() as folder:
        for arch in archs:
            print(f"{SOURCE.relative_to(config.ROOT)} for {arch}", flush=True)
            subprocess.run(command(nvcc, home, arch, Path(folder, "kernel.o")), env=env, check=True)


if __name__ == "__main__":
    try:
        main()
    except config.ConfigError as error:
        sys.exit(f"customconv: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
