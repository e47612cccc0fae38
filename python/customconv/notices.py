"""What is told once in each process: GPUs that this package leaves to PyTorch, and why."""

from __future__ import annotations

import os

import torch

from . import _bind, _load
from ._load import build_record
from ._warn import tell
from .info import is_measured, why_no_kernels

_OLDEST = 8  # the least major compute capability that there are kernels for
_noticed = False


def notice_gpus() -> None:
    """Warns, once in a process, of GPUs whose convolutions this package leaves to PyTorch.

    A build without CUDA is told at once. What depends on the GPU is told when PyTorch starts CUDA,
    or at once where it has: asking would start it, and a process that forks cannot use it then.
    """
    global _noticed
    if _noticed:
        return
    _noticed = True
    why = why_no_kernels()
    if not why:
        torch.cuda._lazy_call(_notice_devices)  # type: ignore[no-untyped-call]
    elif _load.missing:  # which was told when the package was imported
        pass
    elif torch.cuda.device_count() > 0:
        remedy = "" if build_record().get("cuda") else "; build it again with CUSTOMCONV_CUDA=1"
        tell(f"{why}, so PyTorch computes all convolutions on this GPU{remedy}")


def notice_log_topic() -> None:
    """Warns of a ``CUSTOMCONV_LOG`` that asks for something unknown."""
    topic = os.environ.get("CUSTOMCONV_LOG", "")
    if topic not in ("", "plan"):
        tell(f"CUSTOMCONV_LOG={topic!r} logs nothing: the one topic that there is, is 'plan'")


def _notice_devices() -> None:
    from .tuning import is_tuning  # which imports this module

    tuned = {index for index, _, _ in _bind.tuned_plans()}
    unserved, unmeasured = {}, {}
    for index in range(torch.cuda.device_count()):
        name, capability = torch.cuda.get_device_name(index), _capability(index)
        if why := _bind.why_no_kernels(index):
            unserved[name] = why, capability
        elif not (is_measured(capability) or index in tuned or is_tuning()):
            unmeasured[name] = capability
    for name, (why, (major, minor)) in unserved.items():
        remedy = ""
        if major >= _OLDEST and "compute capability" in why:
            own = f"{major}.{minor}" + ("a" if (major, minor) == (9, 0) else "")
            remedy = f"; build it from source with TORCH_CUDA_ARCH_LIST={own}"
        tell(
            f"customconv's kernels do not run on {name}, so PyTorch computes all convolutions on "
            f"it: {why}{remedy}"
        )
    for name in unmeasured:
        tell(
            f"customconv has not been measured on {name}, so PyTorch computes most convolutions on "
            "it; customconv.tune(model, x), or `python -m customconv tune`, times both and keeps "
            "the faster"
        )


def _capability(index: int) -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability(index)
    return major, minor
