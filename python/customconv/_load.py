"""Loads the compiled libraries, or says in a sentence why they cannot be loaded.

``customconv._bind``, one for each Python, is the planner and needs no PyTorch. Below ``lib`` are
``libcustomconv.so``, which the others are linked to, the kernels for each GPU architecture, which
it loads itself, and the operators for each minor version of PyTorch, as its C++ interface changes
with each: ``torch_2_11_cuda.so``, or ``torch_2_11.so`` for a PyTorch without CUDA. Of these, the
one of the installed PyTorch is loaded, and never another.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .build import library_name, listed, supported_python, supported_torch, torch_minor

PACKAGE = Path(__file__).parent
OLDEST_TORCH = (2, 9)  # whose C++ interface has what the operators need

# What `load` found: the file of the operators that were loaded, or why PyTorch computes everything.
operators: Path | None = None
missing = ""
_library: Any = None  # of operators by PyTorch alone, which exist as long as it does


def build_record(package: Path = PACKAGE) -> dict[str, Any]:
    """What the build noted in the package; nothing where there is no record."""
    try:
        fields = json.loads((package / "_build.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def torch_library(release: str, cuda: str | None, package: Path = PACKAGE) -> Path | None:
    """The file with the operators for a PyTorch, or None where there is none.

    Args:
        release: its version, as "2.11.0+cu130".
        cuda: its version of CUDA, as "13.0", or None for a PyTorch without CUDA.
        package: the folder of this package.
    """
    minor = torch_minor(release)
    if minor is None:
        return None
    # A build without CUDA has one library, for either kind of PyTorch.
    names = [f"{library_name(minor, kind)}.so" for kind in ((True, False) if cuda else (False,))]
    cache = cache_folder(release, package)
    folders = [] if cache is None else [cache]
    # What comes before a release may have another interface than the release.
    if is_release(release) or build_record(package).get("torch") == release:
        folders.append(package / "lib")
    for folder in folders:
        try:
            found = [path for path in (folder / name for name in names) if path.exists()]
        except OSError:  # a folder that this user may not read
            continue
        if found:
            return found[0]
    return None


def is_release(version: str) -> bool:
    """Whether a version is that of a release: "2.11.0+cu130", but not "2.12.0a0+git1234"."""
    return re.fullmatch(r"\d+(\.\d+)*", version.partition("+")[0]) is not None


def cache_folder(release: str, package: Path = PACKAGE) -> Path | None:
    """Where ``python -m customconv build`` puts the operators for a version of PyTorch.

    They fit that version and this build of customconv alone, so both are part of the path. None
    where the user has no folder for such files.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        try:
            home = str(Path.home() / ".cache")
        except RuntimeError:  # a user without a home
            return None
    build = str(build_record(package).get("build", "unknown"))
    return Path(home, "customconv", build, f"torch-{release}")


def sources(package: Path = PACKAGE) -> Path:
    """The folder of the operators' sources: a wheel has them, and so has a checkout."""
    shipped = package / "csrc"
    return shipped if shipped.is_dir() else package.parent.parent / "csrc"


def _no_operators(release: str, package: Path = PACKAGE) -> str:
    """Why there are no operators for a PyTorch."""
    version = build_record(package).get("version", "")
    known = "" if is_release(release) else "releases of "
    known += listed(supported_torch(package))
    return f"customconv {version} has no operators for PyTorch {release} (it has for {known})"


def failure(reason: str, package: Path = PACKAGE) -> str:
    """The whole message of a failed load: the reason, what is installed, what was found."""
    record = build_record(package)
    torch = sys.modules.get("torch")
    release = getattr(torch, "__version__", None)
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    found = (
        f"PyTorch {release}, {f'CUDA {cuda}' if cuda else 'no CUDA'}" if release else "no PyTorch"
    )
    version = record.get("version", "of an unknown version")
    lines = [
        f"customconv cannot be loaded: {reason}",
        f"  installed: customconv {version} for PyTorch {listed(supported_torch(package))} and "
        f"Python {listed(supported_python(package))}",
        f"  found:     {found}, Python {platform.python_version()}",
    ]
    if release is None:
        lines.append('Install PyTorch first: pip install "torch>=2.9"')
    else:
        lines += [
            "Install customconv again:",
            "  pip install --force-reinstall --no-deps customconv",
            "or build it for the PyTorch and the Python that you have, in a checkout:",
            "  pip install --no-build-isolation --editable .",
        ]
    return "\n".join(lines)


def load(package: Path = PACKAGE, name: str = "customconv._bind") -> ModuleType:
    """Imports the planner's module and loads the operators.

    Where there are none for the installed PyTorch, they are registered with PyTorch computing all
    of them, and a warning says so.

    Raises:
        ImportError: PyTorch is not installed, or a library is missing, broken, or of another build.
            The message says which versions are installed, which were found, and what to do.
    """
    global operators, missing

    def failed(reason: str) -> ImportError:
        return ImportError(failure(reason, package), name=name)

    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise failed("PyTorch is not installed.") from None
    if (torch_minor(torch.__version__) or OLDEST_TORCH) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise failed(f"it needs PyTorch {oldest} or newer, and this is {torch.__version__}.")
    core = package / "lib/libcustomconv.so"
    if not core.exists():
        raise failed(f"the file lib/libcustomconv.so is missing from {package}.")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        reason = f"it has no module for Python {python}." if absent else f"the loader says: {error}"
        raise failed(reason) from error
    if not _is_of_build(core, module.build):
        raise failed(f"{core.name} is of another build than {Path(module.__file__ or '').name}.")
    operators = torch_library(torch.__version__, torch.version.cuda, package)
    if operators is None:
        missing = _no_operators(torch.__version__, package)
    else:
        why_not = _load_operators(operators, module.build)
        if why_not and operators.is_relative_to(package):
            raise failed(f"{why_not}.")
        if why_not:
            missing, operators = f"{operators} does not fit: {why_not}", None
    if missing:
        _use_pytorch_only(package)
    return module


def _is_of_build(path: Path, build: str) -> bool:
    """Whether a library is of this build. Each holds its own, which is read before it is loaded."""
    return build.encode() in path.read_bytes()


def _load_operators(path: Path, build: str) -> str:
    """Loads the operators; why they cannot be loaded, if so."""
    import torch

    try:
        if not _is_of_build(path, build):
            return f"{path.name} is broken, or of another build than the rest"
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except OSError as error:
        return f"the loader says: {error}"
    return ""


def _use_pytorch_only(package: Path) -> None:
    """Registers the operators with PyTorch computing all of them, and warns."""
    global _library

    from . import pytorch_only
    from ._warn import tell

    _library = pytorch_only.register(sources(package), missing)
    tell(
        f"{missing}, so PyTorch computes all convolutions; `python -m customconv build` compiles "
        "them for this version, which takes minutes and a C++ compiler"
    )


load()
