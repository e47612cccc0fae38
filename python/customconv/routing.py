"""Switches that send PyTorch's own convolutions through this package's kernels, and counts of them.

The routing itself is C++: ``aten::convolution``, ``aten::_convolution`` and
``aten::convolution_backward`` are overridden on CUDA when the package is imported, and look at an
atomic switch in each call. PyTorch's autograd formulas, autocast, ``vmap`` and ``torch.compile``
stay above the override and behave as they do without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch

from . import _bind
from .info import why_no_kernels
from .notices import notice_gpus
from .switched import Switched

_was_enabled = False


@dataclass(frozen=True)
class Stats:
    """How often each family of kernels computed a convolution, and why PyTorch did. ``print`` it.

    Attributes:
        calls: How often a family computed a pass, by the pass ("fprop" for an output, "dgrad" for
            an input's gradient, "wgrad" for a weight's) and the family's name.
        fallbacks: How often PyTorch computed a call, by the reason. A backward pass counts once.
    """

    calls: dict[tuple[str, str], int]
    fallbacks: dict[str, int]

    def __bool__(self) -> bool:
        """Whether anything was counted."""
        return bool(self.calls or self.fallbacks)

    def __str__(self) -> str:
        """A table: a row for each pass and family, then one for each reason; or why it is empty."""
        rows = [(str(n), f"{op} by {family}") for (op, family), n in self.calls.items()]
        rows += [(str(n), f"by PyTorch: {reason}") for reason, n in self.fallbacks.items()]
        width = max((len(number) for number, _ in rows), default=0)
        lines = [f"{number:>{width}}  {text}" for number, text in rows]
        lines = lines or [f"none: {_why_nothing()}"]
        return "\n".join(["customconv: convolutions computed", *lines])


def enable() -> AbstractContextManager[None]:
    """Sends PyTorch's convolutions on CUDA through this package's planner and kernels.

    This holds for the whole process: every thread, and every way to reach
    ``torch.nn.functional.conv1d``, ``conv2d``, ``conv3d``, ``conv_transpose1d``,
    ``conv_transpose2d``, ``conv_transpose3d`` and their gradients, modules, compiled, scripted and
    traced programs included. Everything else, such as complex numbers, stays PyTorch's, and so does
    what PyTorch computes faster; ``stats`` tells why. Each call is undone by one of ``disable``.

    A backward pass is routed if routing is on when it runs, whatever it was in the forward pass.

    A warning tells, once in a process, if this package computes nothing on a GPU that PyTorch uses:
    because it was built without CUDA or for other GPUs, or has not been measured on this one.

    Returns:
        A context for the ``with`` statement, which undoes this call when it ends. It may be
        dropped; routing then stays on.
    """
    global _was_enabled
    notice_gpus()
    _was_enabled = True
    _bind.begin_routing()
    return Switched("enable()", _bind.end_routing, decorator="enabled()")


def disable() -> AbstractContextManager[None]:
    """Undoes one call of ``enable``; without one, does nothing.

    A convolution that is under way in another thread ends as it began.

    Returns:
        A context for the ``with`` statement, which undoes this call when it ends: what ``disable``
        has ended is on again then. It may be dropped; routing then stays off.
    """
    ended = _bind.end_routing()
    return Switched("disable()", _bind.begin_routing if ended else lambda: None)


def is_enabled() -> bool:
    """Whether PyTorch's convolutions on CUDA are routed at this moment."""
    return _bind.is_routing()


@contextmanager
def enabled() -> Iterator[None]:
    """Routes PyTorch's convolutions as ``enable`` does, until the ``with`` statement ends.

    It also decorates functions. Contexts nest, also with ``enable``, and routing ends with the last
    one. A backward pass that runs after the context has ended is PyTorch's: its formulas do not
    depend on what computed the forward pass.
    """
    with enable():
        yield


def stats(reset: bool = False) -> Stats:
    """The convolutions computed so far in this process, by routing or this package's operators.

    Args:
        reset: Whether counting begins anew.

    Returns:
        The counts since the process began, or since they were last reset. Replays of CUDA graphs
        are not seen, since they launch kernels without a call. PyTorch's own convolutions on the
        CPU are never routed, and not counted; printed, an empty result says why it is empty.

    Raises:
        TypeError: ``reset`` is no boolean.
    """
    if not isinstance(reset, bool):
        raise TypeError(f"stats(): argument 'reset' must be bool, not {type(reset).__name__}")
    return Stats(*_bind.stats(reset))


def _why_nothing() -> str:
    """Why no convolution has been counted in this process."""
    if why := why_no_kernels():
        pass
    elif torch.cuda.device_count() == 0:
        why = "PyTorch sees no GPU"
    elif not _was_enabled:
        why = "routing was never on (customconv.enable() turns it on)"
    else:
        why = "none ran there while routing was on"
    return f"PyTorch's convolutions are routed and counted on CUDA alone, and {why}"
