"""What was built, what it runs on, and why CUDA is off if it is."""

from __future__ import annotations

import platform
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from . import _bind, _load
from ._load import build_record
from .build import listed, supported_python, supported_torch


def build_info() -> dict[str, Any]:
    """What the binary was built with and for.

    Returns:
        A dictionary: "version" (of customconv), "torch" (the versions of PyTorch that it has
        operators for), "with_cuda" (whether there are CUDA kernels, and operators for the PyTorch
        that is installed, which need them to run), "cuda" (the version of CUDA, or ""),
        "arch_list" (the GPU architectures, as in TORCH_CUDA_ARCH_LIST, or ""), "compiler" (its
        version) and "operators" (the path of the library that registers the operators).
    """
    record = build_record()
    return {
        "version": str(record.get("version", "")),
        "torch": str(record.get("torch", "")),
        "with_cuda": not why_no_kernels(),
        "cuda": str(record.get("cuda") or ""),
        "arch_list": ";".join(record.get("arch_list", ())),
        "compiler": str(record.get("compiler", "")),
        "operators": str(_load.operators or ""),
    }


def architectures() -> list[str]:
    """The GPU architectures that the binary was built for, as TORCH_CUDA_ARCH_LIST names them."""
    return re.findall(r"[^;,\s]+", build_info()["arch_list"])


def why_no_kernels() -> str:
    """Why this installation has no kernels for the PyTorch that is installed, or "" if it has."""
    if _load.missing:
        return _load.missing
    record = build_record()
    if record.get("cuda"):
        return "" if torch.version.cuda else "this PyTorch was built without CUDA"
    reason = record.get("cuda_left_out")
    return "customconv was built without CUDA" + (f" ({reason})" if reason else "")


def is_measured(capability: tuple[int, int]) -> bool:
    """Whether the planner compares predicted times on a GPU of this compute capability."""
    problem = _bind.ConvProblem(dtype="float16", input=(8, 64, 56, 56), weight=(64, 64, 3, 3))
    return _bind.plan(problem, _bind.DeviceProperties(capability=capability)).family != "aten"


def cuda_off_reason() -> str | None:
    """Why this package computes nothing on a GPU here, or None if it can."""
    if why := why_no_kernels():
        return why
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.current_device()  # starts CUDA
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return None


def report() -> str:
    """The text of ``python -m customconv info``."""
    build = build_info()
    off = cuda_off_reason()
    loaded = [_load.PACKAGE / "lib/libcustomconv.so", *filter(None, [_load.operators])]
    rows = [
        ("customconv", build["version"]),
        ("build", _bind.build),
        ("PyTorch", f"{torch.__version__}; operators for {listed(supported_torch(_load.PACKAGE))}"),
        (
            "Python",
            f"{platform.python_version()}; modules for {listed(supported_python(_load.PACKAGE))}",
        ),
        ("compiler", build["compiler"]),
    ]
    if off:
        rows.append(("CUDA", f"off: {off}"))
    else:
        rows += [
            ("CUDA", f"{torch.version.cuda} in PyTorch, {build['cuda']} in the kernels"),
            *((f"cuda:{index}", _device(index)) for index in range(torch.cuda.device_count())),
        ]
        loaded += map(Path, _bind.loaded_kernel_libraries())
    if built_for := architectures():
        rows.append(("architectures", ", ".join(built_for)))
    rows += [("loaded", str(path)) for path in loaded]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _device(index: int) -> str:
    device = torch.cuda.get_device_properties(index)
    capability = device.major, device.minor
    if why := _bind.why_no_kernels(index):
        served = f"NOT served: {why}"
    elif is_measured(capability):
        served = "served"
    else:
        served = "PyTorch computes most convolutions until customconv.tune has measured them"
    return (
        f"{device.name}, compute capability {device.major}.{device.minor}, "
        f"{device.total_memory / 2**30:.0f} GiB: {served}"
    )
