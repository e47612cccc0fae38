"""What to build and with what: the decisions of setup.py and bootstrap.py, without torch."""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# The minor versions of PyTorch that the tests have passed with: the first and the last.
TESTED_TORCH = ((2, 9), (2, 14))

# The minor versions of Python that a wheel has a module for: the first and the last.
TESTED_PYTHON = ((3, 10), (3, 14))

RELEASE_ARCHITECTURES = "8.0;8.6;8.9;9.0a;10.0;12.0+PTX"
SOURCE_SUFFIXES = (".h", ".cuh", ".cpp", ".cu", ".def")
COMPILER_WHEELS = "nvcc,crt,nvvm,cccl"  # those extras of cuda-toolkit that make up a compiler


def _load_module(path: Path) -> Any:
    """A module of the package that needs neither torch nor a build, without the package."""
    spec = importlib.util.spec_from_file_location(f"customconv_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


operators = _load_module(ROOT / "python/customconv/build.py")
SYSTEM_TOOLKIT: Path = operators.SYSTEM_TOOLKIT
BINDING_FLAGS = (*operators.CXX_FLAGS, "-std=c++17")


class ConfigError(Exception):
    """A build that cannot work, with what to do about it."""


def version() -> str:
    """The version of the package; Python 3.10 cannot parse TOML."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise ConfigError("pyproject.toml gives no version")
    return match[1]


def torch_range() -> str:
    """The requirement of the versions of PyTorch that are tested, as pip takes it."""
    (first_major, first), (last_major, last) = TESTED_TORCH
    return f"torch>={first_major}.{first},<{last_major}.{last + 1}"


def check_torch(release: str) -> str | None:
    """A warning about a PyTorch that is newer than those tested, or None.

    Args:
        release: its version, as "2.11.0+cu130".

    Raises:
        ConfigError: it is older than those tested. Its headers lack what the extension needs.
    """
    first, last = (f"{major}.{minor}" for major, minor in TESTED_TORCH)
    minor = operators.torch_minor(release) or (0, 0)
    if TESTED_TORCH[0] <= minor <= TESTED_TORCH[1]:
        return None
    said = f"customconv is tested with PyTorch {first} to {last}; this is {release}"
    if minor < TESTED_TORCH[0]:
        raise ConfigError(f'{said}, which is too old: pip install "{torch_range()}"')
    return f"{said}, with which it may not build, or may behave differently. Run its tests."


def _sources(*patterns: str) -> list[str]:
    """The files to compile that match, relative to the root of the repository."""
    files = sorted(f for p in patterns for f in glob.glob(p, root_dir=ROOT, recursive=True))
    stems = [os.path.splitext(f)[0] for f in files]
    clashes = sorted({s for s in stems if stems.count(s) > 1})
    if clashes:  # setuptools names an object after its source without the extension
        raise ConfigError(f"these would compile to the same object file: {', '.join(clashes)}.*")
    return files


def core_sources() -> list[str]:
    """Those of libcustomconv: the planner and what is common to all libraries."""
    return _sources("csrc/core/*.cpp", "csrc/plan/*.cpp", "csrc/kernels/**/*.cpp")


def kernel_sources() -> list[str]:
    """Those of a library of kernels, of which there is one for each architecture."""
    return _sources("csrc/kernels/**/*.cu", "csrc/core/build.cpp")


def torch_sources(with_cuda: bool) -> list[str]:
    """Those of the operators, the library for one minor version of PyTorch."""
    return [str(p.relative_to(ROOT)) for p in operators.sources(ROOT / "csrc", with_cuda)]


def binding_sources() -> list[str]:
    """Those of the module that Python imports."""
    return _sources("csrc/bind/*.cpp", "csrc/core/build.cpp")


def library_of(arch: str) -> str:
    """An architecture as ``TORCH_CUDA_ARCH_LIST`` writes it, in a file's name: "sm120_ptx"."""
    return "sm" + arch.replace(".", "").replace("+PTX", "_ptx")


def hash_of_interface(root: Path = ROOT) -> str:
    """A hash of all that passes between our libraries: those with the same one fit together."""
    places = [
        (root / "csrc/core", "*"),
        *((root / "csrc" / part, "**/*") for part in ("plan", "kernels")),
    ]
    digest = hashlib.sha256(version().encode())
    for path in sorted(p for place, pattern in places for p in place.glob(pattern)):
        if path.suffix in (".h", ".def"):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def hash_of_plans(root: Path = ROOT) -> str:
    """A hash of the planner's and the kernels' sources: while it stays, plans mean the same."""
    digest = hashlib.sha256()
    for path in sorted(
        p for part in ("plan", "kernels") for p in (root / "csrc" / part).rglob("*")
    ):
        if path.suffix in SOURCE_SUFFIXES:
            content = path.read_bytes().replace(b"\r\n", b"\n")
            digest.update(
                f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content
            )
    return digest.hexdigest()[:16]


def _output(*command: str) -> str | None:
    """What ``command`` prints, or None where it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def compiler_version(env: Mapping[str, str]) -> str:
    """The first line that the host compiler says about itself.

    Raises:
        ConfigError: there is no C++ compiler.
    """
    command = env.get("CXX", "c++")
    said = _output(*command.split(), "--version")
    if not said:
        raise ConfigError(f"no C++ compiler: {command!r} does not run; install g++, or set CXX")
    return said.splitlines()[0]


def gpu_in_sight() -> bool:
    """Whether this machine has an NVIDIA GPU."""
    listed = _output("nvidia-smi", "-L")
    return bool(listed and "GPU" in listed) or os.path.exists("/dev/nvidia0")


def wants_cuda(env: Mapping[str, str], torch_cuda: str | None) -> bool:
    """Whether to build the CUDA part: as ``CUSTOMCONV_CUDA`` says, else with a GPU in sight.

    Args:
        env: the environment variables.
        torch_cuda: the CUDA version of the installed torch, None for a CPU build of it.

    Raises:
        ConfigError: torch has none of the CUDA asked for, or ``CUSTOMCONV_CUDA`` is not 0 or 1.
    """
    forced = env.get("CUSTOMCONV_CUDA", "")
    if forced not in ("", "0", "1"):
        raise ConfigError(f"CUSTOMCONV_CUDA is {forced!r}: set it to 0 or 1, or leave it unset")
    if forced == "1" and torch_cuda is None:
        raise ConfigError(
            "CUSTOMCONV_CUDA=1, but the installed torch is a CPU build: install a CUDA build of it"
        )
    if forced:
        return forced == "1"
    return torch_cuda is not None and gpu_in_sight()


def why_left_out(env: Mapping[str, str], torch_cuda: str | None) -> str:
    """Why a build leaves CUDA out, where ``wants_cuda`` says that it does."""
    if env.get("CUSTOMCONV_CUDA"):
        return "CUSTOMCONV_CUDA=0 asked for that"
    if torch_cuda is None:
        return "its PyTorch was a CPU build"
    return "no GPU was in sight of the build"


def left_out_warning(env: Mapping[str, str], torch_cuda: str | None) -> str | None:
    """A warning about a build that leaves CUDA out on a machine that could build it, or None.

    Args:
        env: the environment variables; a ``CUSTOMCONV_CUDA`` of 0 asks for no warning.
        torch_cuda: as in ``wants_cuda``, which says that CUDA is left out.
    """
    nvcc = shutil.which("nvcc") or SYSTEM_TOOLKIT / "bin/nvcc"
    signs = {
        f"PyTorch has CUDA {torch_cuda}": torch_cuda is not None,
        f"there is {nvcc}": Path(nvcc).exists(),
        "there is a GPU": gpu_in_sight(),
    }
    found = [sign for sign, seen in signs.items() if seen]
    if env.get("CUSTOMCONV_CUDA") or not found:
        return None
    why, instead = (
        ("no GPU is in sight", "CUSTOMCONV_CUDA=1 builds it without one")
        if torch_cuda
        else ("the installed PyTorch is a CPU build", "install a CUDA build of it first")
    )
    return (
        f"customconv is built without CUDA, because {why}, although {' and '.join(found)}. PyTorch "
        f"will compute all convolutions, on a GPU too. To build the CUDA part: {instead}. "
        "CUSTOMCONV_CUDA=0 leaves it out without this warning."
    )


def toolkit_version(home: Path) -> tuple[int, int] | None:
    """The version of the CUDA toolkit at ``home``, or None where there is no complete one."""
    nvcc = home / "bin/nvcc"
    if not nvcc.exists() or not (home / "include/cuda_runtime.h").exists():
        return None
    match = re.search(r"release (\d+)\.(\d+)", _output(str(nvcc), "--version") or "")
    return (int(match[1]), int(match[2])) if match else None


def compiler_requirement(torch_cuda: str) -> str:
    """The pip requirement that installs the compiler for ``torch_cuda`` from wheels."""
    return f"cuda-toolkit[{COMPILER_WHEELS}]=={torch_cuda}.*"


def wheel_toolkit(major: int) -> Path | None:
    """The compiler wheels of this environment, or None where they are not installed."""
    return next(
        (home for home in operators.cuda_wheels(major) if (home / "bin/nvcc").exists()), None
    )


def find_cuda_home(env: Mapping[str, str], torch_cuda: str) -> Path:
    """The toolkit to compile with: ``CUDA_HOME``, else the system's, else the compiler wheels.

    Raises:
        ConfigError: none has the major version that torch was built with.
    """
    major = int(torch_cuda.split(".")[0])
    named = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    if named:
        found = toolkit_version(Path(named))
        if found and found[0] == major:
            return Path(named)
        what = f"a CUDA {found[0]}.{found[1]} toolkit" if found else "no complete CUDA toolkit"
        raise ConfigError(f"CUDA_HOME={named} holds {what}; this torch needs CUDA {major}.x")
    nvcc = shutil.which("nvcc")
    system = [Path(nvcc).resolve().parent.parent] if nvcc else []
    for home in (*system, SYSTEM_TOOLKIT, wheel_toolkit(major)):
        if home and (found := toolkit_version(home)) and found[0] == major:
            return home
    wheels = f' (pip install "{compiler_requirement(torch_cuda)}")' if major >= 13 else ""
    raise ConfigError(
        f"no CUDA {major}.x toolkit found: install one{wheels}, name one with CUDA_HOME, "
        "or build without CUDA (CUSTOMCONV_CUDA=0)"
    )


def architecture(capability: tuple[int, int]) -> str:
    """The architecture to compile for on a GPU of this compute capability."""
    major, minor = capability
    return f"{major}.{minor}" + ("a" if (major, minor) == (9, 0) else "")


def arch_list(env: Mapping[str, str], capabilities: Iterable[tuple[int, int]]) -> str:
    """What to compile for: ``TORCH_CUDA_ARCH_LIST``, else the GPUs in sight, else as a release."""
    named = env.get("TORCH_CUDA_ARCH_LIST", "").strip()
    if named and named != "native":
        return ";".join(named.replace(";", " ").split())
    return ";".join(architecture(c) for c in sorted(set(capabilities))) or RELEASE_ARCHITECTURES


def numbered(flags: Iterable[str]) -> str:
    """The architectures that nvcc's flags name, for names such as "Hopper", which torch knows."""
    codes: dict[str, bool] = {}
    for flag in flags:
        for kind, number in re.findall(r"code=(sm|compute)_(\d+[af]?)", flag):
            codes[number] = codes.get(number, False) or kind == "compute"
    return ";".join(
        re.sub(r"(\d)([af]?)$", r".\1\2", number) + "+PTX" * ptx for number, ptx in codes.items()
    )


def check_architectures(archs: str, supported: str) -> None:
    """Refuses architectures that the compiler does not know.

    Args:
        archs: a list in ``TORCH_CUDA_ARCH_LIST`` form; names such as "Hopper" are left to torch.
        supported: what ``nvcc --list-gpu-code`` prints.

    Raises:
        ConfigError: names the architectures that nvcc cannot compile for.
    """
    known = set(re.findall(r"sm_(\d+)", supported))
    numbers = re.findall(r"(\d+)\.(\d)([af]?)", archs)
    missing = [f"{ma}.{mi}{suffix}" for ma, mi, suffix in numbers if ma + mi not in known]
    if missing:
        raise ConfigError(
            f"nvcc cannot compile for {', '.join(missing)}: set TORCH_CUDA_ARCH_LIST to a list of "
            f"{', '.join(sorted(known, key=int))} (written as 8.0), or use another CUDA toolkit"
        )


def nvcc_architectures(cuda_home: Path) -> str:
    """What the compiler at ``cuda_home`` says it can compile for."""
    return _output(str(cuda_home / "bin/nvcc"), "--list-gpu-code") or ""


def nvcc_compression(cuda_home: Path) -> list[str]:
    """The flags that pack kernels into a fifth of their size; none for an nvcc without them."""
    known = _output(str(cuda_home / "bin/nvcc"), "--help") or ""
    return ["--compress-mode=size"] if "--compress-mode" in known else []


def nvcc_flags(cuda_home: Path) -> list[str]:
    """How kernels are compiled, but for the architecture; they include nothing of torch."""
    flags = ["-std=c++17", "-O3", "--expt-relaxed-constexpr", "-Xcompiler=-fvisibility=hidden"]
    return flags + nvcc_compression(cuda_home)


def link_flags(layer: str) -> list[str]:
    """What hides all symbols but those that a layer lists, and finds the libraries beside it."""
    beside = "$ORIGIN/lib" if layer == "bind" else "$ORIGIN"
    exports = ROOT / "csrc" / layer / "exports.map"
    return [f"-Wl,-rpath,{beside}", f"-Wl,--version-script={exports}"]


def runtime_folders(cuda_home: Path, wheels: Iterable[Path]) -> list[Path]:
    """Where the CUDA runtime may lie that is linked statically."""
    return [cuda_home / "lib64", *(home / "lib" for home in wheels)]


def gencode(arch: str) -> list[str]:
    """The nvcc flags for one architecture, as ``TORCH_CUDA_ARCH_LIST`` writes it: "12.0+PTX"."""
    number = arch.removesuffix("+PTX").replace(".", "")
    codes = [f"sm_{number}"] + [f"compute_{number}"] * arch.endswith("+PTX")
    return [f"-gencode=arch=compute_{number},code={code}" for code in codes]


def use_ccache(env: MutableMapping[str, str], root: Path = ROOT) -> bool:
    """Compiles through ccache where it is installed; says whether it does.

    nvcc gets ccache as its launcher, by ``PYTORCH_NVCC``. torch and setuptools want one word in
    ``CXX``, so the host compiler's becomes the path of a link that has its name and leads to
    ccache. Paths below ``root`` count relative to where the compiler runs, so that checkouts share
    what is cached. What the user has set stays, and so does a ``CXX`` of several words.

    Args:
        env: the environment variables, which are changed.
        root: the repository; the link is made in its build folder.
    """
    ccache = shutil.which("ccache", path=env.get("PATH"))
    if ccache is None or "CCACHE_DISABLE" in env:
        return False
    ccache = os.path.abspath(ccache)
    words = env.get("CXX", "c++").split()
    if len(words) == 1:
        compiler = Path(words[0])
        link = root / "build/ccache" / compiler.name
        if not (link.is_symlink() and os.readlink(link) == ccache):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(ccache)
        if compiler != Path(compiler.name):  # ccache looks for the name alone
            places = env.get("CCACHE_PATH") or env["PATH"]
            env["CCACHE_PATH"] = os.pathsep.join([os.path.abspath(compiler.parent), places])
        env["CXX"] = str(link)
    if "CUDA_HOME" in env:
        nvcc = Path(env["CUDA_HOME"], "bin/nvcc")
        env.setdefault("PYTORCH_NVCC", f"{ccache} {nvcc}")
        if "site-packages" in nvcc.parts:  # a wheel's, whose date is that of the environment
            env.setdefault("CCACHE_COMPILERCHECK", "content")
    env.setdefault("CCACHE_BASEDIR", str(root))
    env.setdefault("CCACHE_NOHASHDIR", "1")
    return True
