"""Builds ``customconv._C``; everything declarative is in pyproject.toml.

Read from the environment: CUSTOMCONV_CUDA=0|1 (default: 1 with a GPU in sight), CUDA_HOME,
TORCH_CUDA_ARCH_LIST, CXX, MAX_JOBS, and what ccache reads.
"""

import json
import os
import platform
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
import build_config as config

try:
    import torch
except ImportError:
    torch = None

CUDA_MAJOR = int(torch.version.cuda.split(".")[0]) if torch and torch.version.cuda else 0
CUDA_WHEELS = config.cuda_wheels(CUDA_MAJOR)
NO_TORCH = f"""it is compiled against the torch that will run it, and there is none here.
Install {config.torch_range()} first, then customconv: pip install --no-build-isolation"""


def refusal(reason):
    """A build command that fails with this reason; an sdist can still be made."""

    class Refuse(build_ext):
        """Cannot build."""

        def run(self):
            """Says why."""
            raise SystemExit(f"customconv cannot be built: {reason}")

    return Refuse


def cuda_settings():
    """Settles what torch and the compilers read from the environment; returns the architectures."""
    home = config.find_cuda_home(os.environ, torch.version.cuda)
    os.environ["CUDA_HOME"] = str(home)
    gpus = range(torch.cuda.device_count())
    capabilities = [torch.cuda.get_device_capability(i) for i in gpus]
    archs = config.arch_list(os.environ, capabilities)
    config.check_architectures(archs, config.nvcc_architectures(home))
    os.environ["TORCH_CUDA_ARCH_LIST"] = archs
    # The headers of cuBLAS and others may come with torch only. After the toolkit's own headers,
    # and not as a flag: torch takes an nvcc flag with "arch" in its path for an architecture.
    wheels = [str(home / "include") for home in CUDA_WHEELS]
    paths = [os.environ.get("CPLUS_INCLUDE_PATH"), *wheels]
    os.environ["CPLUS_INCLUDE_PATH"] = os.pathsep.join(filter(None, paths))
    return archs.split(";")


def tell(warning):
    """Prints a warning, if there is one. pip shows it with -v, and where the build fails."""
    if warning:
        print(f"warning: {warning}", file=sys.stderr)


def extension_and_command():
    """The extension, and the command that builds it."""
    if torch is None:
        raise config.ConfigError(NO_TORCH)
    tell(config.check_torch(torch.__version__))
    with_cuda = config.wants_cuda(os.environ, torch.version.cuda)
    archs = cuda_settings() if with_cuda else []
    left_out = None if with_cuda else config.why_left_out(os.environ, torch.version.cuda)
    warning = None if with_cuda else config.left_out_warning(os.environ, torch.version.cuda)
    cores = len(os.sched_getaffinity(0))
    os.environ["MAX_JOBS"] = str(config.jobs(os.environ, cores, config.available_memory()))

    # torch looks for ninja on the path, where an environment that is not activated is missing.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    config.use_ccache(os.environ)
    from torch.utils import cpp_extension  # looks for CUDA_HOME when it is imported

    info = {
        "version": config.version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if with_cuda else None,
        "cuda_left_out": left_out,
        "arch_list": archs,
        "python": platform.python_version(),
        "compiler": config.compiler_version(os.environ),
        "sources": config.hash_of_plans(),
    }
    # Host code only: nvcc would lose the quotes, and the kernels have no use for them.
    macros = {
        "CUSTOMCONV_VERSION": info["version"],
        "CUSTOMCONV_TORCH_VERSION": info["torch"],
        "CUSTOMCONV_CUDA_VERSION": info["cuda"] or "",
        "CUSTOMCONV_ARCH_LIST": ";".join(archs),
    }
    # torch adds the standard that its headers need: C++17, and from 2.12 on C++20.
    cxx = ["-O3", "-g0", "-Wall", "-Wextra", "-fvisibility=hidden"]
    cxx += [f'-D{name}="{value}"' for name, value in macros.items()]
    nvcc = config.nvcc_flags(Path(os.environ["CUDA_HOME"])) if with_cuda else []

    make = cpp_extension.CUDAExtension if with_cuda else cpp_extension.CppExtension
    extension = make(
        "customconv._C",
        config.sources(with_cuda),
        define_macros=[("CUSTOMCONV_WITH_CUDA", None)] if with_cuda else [],
    )
    # torch's headers as system headers, so that the warnings are ours; kernels do without them. In
    # two words: of one, ccache takes the path to matter to files that include none of them.
    cxx += [word for path in extension.include_dirs for word in ("-isystem", path)]
    extension.include_dirs = [str(config.ROOT / "csrc")]
    extension.extra_compile_args = {"cxx": cxx, "nvcc": nvcc}
    if with_cuda:
        # By soname, which is loaded with torch: the wheels have no libcudart.so and libcublas.so.
        extension.libraries.remove("cudart")
        extension.libraries += [f":lib{name}.so.{CUDA_MAJOR}" for name in ("cudart", "cublas")]
        extension.library_dirs += [str(home / "lib") for home in CUDA_WHEELS]

    class Build(cpp_extension.BuildExtension):
        """Compiles, then notes beside the extension what for: a load that fails can tell."""

        def finalize_options(self):
            """Keeps the objects of each Python and torch where its next build finds them."""
            super().finalize_options()
            name = f"temp-{sys.implementation.cache_tag}-torch{torch.__version__}"
            self.build_temp = os.path.join("build", name)

        def run(self):
            """Builds. What it warns of is told first and, after all that it prints, again."""
            tell(warning)
            super().run()
            tell(warning)
            note = Path(self.get_ext_fullpath(extension.name)).with_name("_build.json")
            note.write_text(json.dumps(info, indent=2) + "\n")

    return extension, Build


def requirement():
    """The torch that a build works with: its C++ interface changes with every minor version."""
    if torch is None:
        return config.torch_range()
    major, minor = torch.__version__.split(".")[:2]
    return f"torch=={major}.{minor}.*"


try:
    extension, command = extension_and_command()
except config.ConfigError as error:
    extension, command = Extension("customconv._C", []), refusal(error)

setup(
    ext_modules=[extension],
    cmdclass={"build_ext": command},
    install_requires=[requirement()],
)
