"""Compiles the operators for one version of PyTorch: ``python -m customconv build``.

They are host code: a C++ compiler and headers do, those of PyTorch and, for a PyTorch with CUDA,
those of CUDA that come with it and with Triton. Empty libraries stand in for those that the
operators are linked to, so that they can be compiled for a PyTorch that is not installed. This file
imports nothing but the standard library, as tools load it by its path.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM_TOOLKIT = Path("/usr/local/cuda")
MEMORY_PER_JOB = 2 << 30  # a translation unit that includes torch peaks a little below this
CXX_FLAGS = ("-O3", "-g0", "-Wall", "-Wextra", "-fvisibility=hidden")
# What names and describes a problem has no state, and each library has its own.
COMMON_SOURCES = (
    "plan/algorithm.cpp", "plan/fold.cpp", "plan/problem.cpp", "plan/text.cpp", "core/build.cpp",
)  # fmt: skip
# Headers that the operators include from other layers.
SHIPPED = (
    "core/*.h", "plan/*.h", "plan/*.def", "kernels/*.h", "kernels/parameters/*.h",
    "kernels/statistics/*.h", "torch/*.def", "torch/**/*.h", "torch/**/*.cpp", *COMMON_SOURCES,
)  # fmt: skip


class BuildError(Exception):
    """A build that failed, with what the compiler said."""


def torch_minor(release: str) -> tuple[int, int] | None:
    """The minor version of a PyTorch, such as (2, 11) of "2.11.0+cu130"."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else None


def library_name(minor: tuple[int, int], with_cuda: bool) -> str:
    """The name, without suffix, of the operators' library for a minor version of PyTorch."""
    return f"torch_{minor[0]}_{minor[1]}" + "_cuda" * with_cuda


def supported_torch(package: Path) -> list[tuple[int, int]]:
    """The minor versions of PyTorch that a package has operators for, in ascending order."""
    found = (re.match(r"torch_(\d+)_(\d+)", path.name) for path in package.glob("lib/torch_*.so"))
    return sorted({(int(match[1]), int(match[2])) for match in found if match})


def supported_python(package: Path) -> list[tuple[int, int]]:
    """The minor versions of Python that a package has a module for, in ascending order."""
    found = (re.match(r"_bind\.cpython-(\d)(\d+)", p.name) for p in package.glob("_bind.*.so"))
    return sorted({(int(match[1]), int(match[2])) for match in found if match})


def listed(versions: Iterable[tuple[int, int]]) -> str:
    """Minor versions for people."""
    return ", ".join(f"{major}.{minor}" for major, minor in versions) or "(none)"


def sources(csrc: Path, with_cuda: bool) -> list[Path]:
    """The files of the operators' library."""
    half = "cuda" if with_cuda else "cpu"
    own = [*csrc.glob("torch/*.cpp"), *csrc.glob(f"torch/{half}/*.cpp")]
    return sorted([*own, *(csrc / name for name in COMMON_SOURCES)])


def torch_libraries(with_cuda: bool) -> list[str]:
    """The libraries of PyTorch that the operators need."""
    return ["c10", "torch_cpu"] + ["c10_cuda", "torch_cuda"] * with_cuda


def cxx_standard(minor: tuple[int, int]) -> str:
    """The least standard that the headers of a PyTorch need."""
    return "-std=c++20" if minor >= (2, 12) else "-std=c++17"


def cuda_wheels(major: int) -> list[Path]:
    """Where the CUDA wheels that PyTorch brings are in this environment, with include/ and lib/.

    Since CUDA 13 they share one directory; before, each library has its own.
    """
    spec = importlib.util.find_spec("nvidia")
    tops = [Path(p) for p in (spec and spec.submodule_search_locations) or ()]
    shared = [top / f"cu{major}" for top in tops if (top / f"cu{major}").is_dir()]
    return shared or sorted(lib.parent for top in tops for lib in top.glob("*/lib"))


def build_header(folder: Path, build: str, architecture: str = "") -> Path:
    """Writes what a library is told of its build, and returns the header.

    As flags, it would have every file compiled again whenever one of them changes.
    """
    header = folder / "customconv_build.h"
    content = f'#define CUSTOMCONV_BUILD "{build}"\n'
    content += f'#define CUSTOMCONV_ARCHITECTURE "{architecture}"\n'
    if not header.exists() or header.read_text() != content:
        folder.mkdir(parents=True, exist_ok=True)
        header.write_text(content)
    return header


@dataclass(frozen=True)
class Operators:
    """What the operators for a version of PyTorch are compiled from.

    Attributes:
        csrc: The folder of the sources.
        build: The hash of what passes between libraries.
        minor: The minor version of PyTorch.
        torch_include: The folder ``include`` of that PyTorch.
        cuda_include: Folders with CUDA's headers, for a library with CUDA.
    """

    csrc: Path
    build: str
    minor: tuple[int, int]
    torch_include: Path
    cuda_include: tuple[Path, ...] = ()

    def flags(self, source: Path) -> list[str]:
        """The compiler's flags for a source."""
        system = [self.torch_include, self.torch_include / "torch/csrc/api/include"]
        if source.parent.name == "cuda":
            system += self.cuda_include
        # As system headers, so that warnings are of our code.
        include = [f"-I{self.csrc}", *(f"-isystem{path}" for path in system)]
        return [*CXX_FLAGS, "-DNDEBUG", "-fPIC", cxx_standard(self.minor), *include]

    def compile(
        self, folder: Path, kinds: Sequence[bool], compiler: Sequence[str] = ("c++",), jobs: int = 1
    ) -> list[Path]:
        """Compiles and links.

        Args:
            folder: Where the libraries are written.
            kinds: Of each library, whether it is for a PyTorch with CUDA. They share objects.
            compiler: The C++ compiler's command.
            jobs: How many files are compiled at once.

        Returns:
            The libraries, as many as ``kinds``.

        Raises:
            BuildError: The compiler is missing, or says why it failed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            told = build_header(Path(scratch), self.build).parent
            needed = sorted({path for kind in kinds for path in sources(self.csrc, kind)})
            objects = {path: f"{scratch}/{number}.o" for number, path in enumerate(needed)}

            def compile_one(path: Path) -> None:
                _run(
                    [
                        *compiler,
                        *self.flags(path),
                        f"-I{told}",
                        "-c",
                        str(path),
                        "-o",
                        objects[path],
                    ]
                )

            with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
                compiled = [pool.submit(compile_one, path) for path in needed]
                try:
                    for each in compiled:
                        each.result()
                finally:
                    pool.shutdown(cancel_futures=True)  # after a failure the others are not begun
            made = []
            for kind in kinds:
                own = [objects[path] for path in sources(self.csrc, kind)]
                target = folder / f"{library_name(self.minor, kind)}.so"
                self._link(own, target, kind, Path(scratch), compiler)
                made.append(target)
            return made

    def _link(
        self,
        objects: Sequence[str],
        target: Path,
        kind: bool,
        scratch: Path,
        compiler: Sequence[str],
    ) -> None:
        libraries = ["customconv", *torch_libraries(kind)]
        stand_in(scratch, libraries, compiler)
        link = ["-shared", "-s", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", f"-L{scratch}"]
        link += [f"-l{name}" for name in libraries]
        # Linked beside its place, so that never half a library is there.
        with tempfile.TemporaryDirectory(dir=target.parent) as beside:
            linked = Path(beside, target.name)
            _run([*compiler, *objects, *link, "-o", str(linked)])
            linked.replace(target)


def headers_of_cuda(version: str) -> tuple[Path, ...]:
    """Folders with the headers of CUDA that PyTorch's headers include.

    Args:
        version: PyTorch's version of CUDA, as "13.0".

    Raises:
        BuildError: There are none.
    """
    major = int(version.split(".")[0])
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), str(SYSTEM_TOOLKIT)]
    folders = [path / "include" for path in (*cuda_wheels(major), *map(Path, filter(None, homes)))]
    # PyTorch's wheels bring the runtime's headers, but only Triton's those that they include.
    triton = importlib.util.find_spec("triton")
    for place in (triton and triton.submodule_search_locations) or ():
        folders.append(Path(place, "backends/nvidia/include"))
    found = tuple(folder for folder in folders if folder.is_dir())
    for name in ("cuda_runtime_api.h", "crt/host_defines.h", "cublas_v2.h", "cusparse.h"):
        if not any((folder / name).exists() for folder in found):
            raise BuildError(
                f"CUDA's header {name} is missing: install PyTorch from its wheels, which bring "
                "it with CUDA's and Triton's, or a CUDA toolkit, and name that with CUDA_HOME"
            )
    return found


def build_for_this_torch() -> Path:
    """Compiles the operators for the installed PyTorch, into the user's cache folder.

    Returns:
        The library, which the next import of the package loads.

    Raises:
        BuildError: A header or the compiler is missing, or the compiler says why it failed.
    """
    import torch

    from . import _load

    release, cuda = torch.__version__, torch.version.cuda
    minor = torch_minor(release)
    record = _load.build_record()
    if minor is None or "build" not in record:
        raise BuildError(f"PyTorch {release} or this installation of customconv is unknown")
    operators = Operators(
        csrc=_load.sources(),
        build=record["build"],
        minor=minor,
        torch_include=Path(torch.__file__).parent / "include",
        cuda_include=headers_of_cuda(cuda) if cuda else (),
    )
    folder, compiler = _load.cache_folder(release), os.environ.get("CXX", "c++").split()
    if folder is None:
        raise BuildError("there is no folder for the library: set XDG_CACHE_HOME to a full path")
    try:
        (made,) = operators.compile(folder, [cuda is not None], compiler, jobs(os.environ))
    except OSError as error:
        raise BuildError(f"the library cannot be written: {error}") from error
    return made


def available_memory() -> int:
    """The bytes of memory free to this process, under its control group's limit too."""
    limits = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        match = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        limits += [int(match[1]) * 1024] if match else []
    group = Path("/sys/fs/cgroup")
    try:
        maximum = (group / "memory.max").read_text().strip()
        limits += [int(maximum) - int((group / "memory.current").read_text())]
    except (OSError, ValueError):  # not in a limited group ("max")
        pass
    return min(limits, default=MEMORY_PER_JOB)


def jobs(env: Mapping[str, str], cores: int | None = None, memory: int | None = None) -> int:
    """How many compilers to run at once: ``MAX_JOBS``, else as many as cores and memory allow.

    Args:
        env: The environment.
        cores: Default: those that this process may use.
        memory: Free bytes; default: those of this process.
    """
    if env.get("MAX_JOBS", "").isdigit():
        return max(1, int(env["MAX_JOBS"]))
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    memory = available_memory() if memory is None else memory
    return max(1, min(cores, memory // MEMORY_PER_JOB))


def stand_in(folder: Path, names: Iterable[str], compiler: Sequence[str]) -> None:
    """Makes empty libraries of these names: what is linked to them needs the real ones."""
    empty = folder / "empty.cpp"
    empty.touch()
    for name in names:
        shared = ["-shared", f"-Wl,-soname,lib{name}.so", "-o", str(folder / f"lib{name}.so")]
        _run([*compiler, "-fPIC", str(empty), *shared])


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"the C++ compiler {command[0]!r} does not run: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"the compiler failed: {' '.join(command)}\n{done.stderr}")
