"""Loads the compiled module ``customconv._C``, or says why it cannot be loaded.

A binary extension works only with the PyTorch release that it was compiled for. What the dynamic
linker says of a mismatch is an undefined symbol; what a user needs is the versions that the binary
was built for, the versions at hand, and what to install. So the versions are compared before the
binary is opened, and an error in opening it is told in the same words.
"""

from __future__ import annotations

import importlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

OLDEST_TORCH = (2, 9)  # setup.py refuses older ones
BUILD_RECORD = Path(__file__).with_name("_build.json")


@dataclass(frozen=True)
class Versions:
    """The versions that a binary extension of PyTorch depends on.

    Attributes:
        python: Python's version, as "3.12.4" or "3.12".
        torch: PyTorch's version, as "2.11.0+cu130", or None where there is no PyTorch.
        cuda: The version of CUDA, as "13.0", or None for the CPU alone.
    """

    python: str
    torch: str | None
    cuda: str | None

    def __str__(self) -> str:
        torch = f"PyTorch {self.torch}" if self.torch else "no PyTorch"
        cuda = f"CUDA {self.cuda}" if self.cuda else "no CUDA"
        return f"{torch}, {cuda}, Python {self.python}"


def build_record(record: Path = BUILD_RECORD) -> dict[str, Any]:
    """What setup.py noted beside the binary; nothing where there is no record."""
    try:
        fields = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def built_versions(record: Path = BUILD_RECORD) -> Versions | None:
    """The versions that the binary was built for, or None where the build left no record."""
    fields = build_record(record)
    try:
        return Versions(fields["python"], fields["torch"], fields["cuda"] or None)
    except KeyError:
        return None


def found_versions() -> Versions:
    """The versions of this process."""
    try:
        import torch
    except ModuleNotFoundError:
        return Versions(platform.python_version(), None, None)
    return Versions(platform.python_version(), torch.__version__, torch.version.cuda)


def mismatch(built: Versions, found: Versions) -> str | None:
    """Why a binary built for ``built`` cannot work with ``found``, or None if it can.

    PyTorch promises no binary compatibility from one minor release to the next, and CUDA none from
    one major release to the next. A binary without CUDA works with either kind of PyTorch. Python
    is not compared: its version is part of the binary's file name.
    """
    if found.torch is None:
        return "PyTorch is not installed."
    if built.torch is not None and _release(built.torch, 2) != _release(found.torch, 2):
        return "It was built for another release of PyTorch."
    if built.cuda is not None and found.cuda is None:
        return "It was built with CUDA, and this PyTorch has none."
    if built.cuda is not None and _release(built.cuda, 1) != _release(found.cuda, 1):
        return "It was built for another major version of CUDA."
    return None


def failure(reason: str, built: Versions | None, found: Versions) -> str:
    """The whole message of a failed load: the reason, both sets of versions, what to install."""
    lines = [
        f"The compiled part of customconv cannot be loaded. {reason}",
        f"  built for: {built or 'unknown (the build left no record)'}",
        f"  found:     {found}",
    ]
    if built is not None and built.torch is not None and mismatch(built, found):
        index = (
            f" --index-url https://download.pytorch.org/whl/cu{built.cuda.replace('.', '')}"
            if built.cuda
            else ""
        )
        torch = ".".join(_release(built.torch, 2))
        lines += [
            "Install the PyTorch that it was built for:",
            f'  pip install "torch=={torch}.*"{index}',
            f"or build customconv again {_with_which_torch(found)}:",
        ]
    else:
        lines += ["Build customconv again with the PyTorch and the Python that you have:"]
    lines += [
        "  pip install --force-reinstall --no-deps --no-build-isolation --no-binary=customconv \\",
        "    customconv",
        "or, in a checkout of its repository:",
        "  pip install --no-build-isolation --editable .",
    ]
    return "\n".join(lines)


def _with_which_torch(found: Versions) -> str:
    """What a build can use: the PyTorch that is there, or a newer one."""
    release = [int(part) for part in _release(found.torch, 2) if part.isdigit()]
    if tuple(release) >= OLDEST_TORCH:
        return "with the PyTorch that you have"
    oldest = ".".join(map(str, OLDEST_TORCH))
    return f"after installing PyTorch {oldest} or newer"


def load(record: Path = BUILD_RECORD, name: str = "customconv._C") -> ModuleType:
    """Imports the compiled module, which registers the operators.

    Raises:
        ImportError: The module is missing, or was built for other versions. The message says which
            versions it was built for, which were found, and what to install.
    """
    built, found = built_versions(record), found_versions()
    # A checkout can hold the binaries of several Pythons; the record speaks of the last one built.
    if found.torch is None or (built and _release(built.python, 2) == _release(found.python, 2)):
        reason = mismatch(built or found, found)
        if reason:
            raise ImportError(failure(reason, built, found), name=name)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            reason = "It has not been built for this Python."
        else:
            reason = f"The loader says: {error}"
        raise ImportError(failure(reason, built, found), name=name) from error


def _release(version: str | None, parts: int) -> list[str]:
    """The first parts of a version: ("2.11.0+cu130", 2) gives ["2", "11"]."""
    return (version or "").partition("+")[0].split(".")[:parts]


load()
