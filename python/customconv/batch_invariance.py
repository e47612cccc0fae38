"""Results of an image that do not depend on the other images of its batch, bit for bit.

While this is on, the plan of an output or of an input gradient is chosen for a reference batch of
16 images, whatever the batch is, and from kernels that add up an image's products in the same order
wherever the image is. ``docs/how/batch_invariance.md`` says how, and what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from . import _bind
from .switched import Switched


def set_batch_invariant(enabled: bool) -> AbstractContextManager[None]:
    """Makes what an image gets independent of its batch, or lets it depend on the batch again.

    While it is on, the output and input gradient of an image, a signal or a volume are the same
    bits in any batch, at any place, and alone as ``x[i : i + 1]``. This holds for this package's
    operators on CUDA, for its modules, and for PyTorch's own convolutions while they are routed
    (``enable``). The memory format is a part of the call: an image of a channels-last batch must
    stay channels-last. So are PyTorch's switches for TF32, and the GPU.

    The switch is one atomic flag of the whole process: a call in any thread reads it when it runs.
    So does a backward pass, and so does a compiled graph, which calls the operators. A captured
    CUDA graph replays what was captured.

    Gradients of weights and biases are sums over the batch, and stay as they are.

    A promise is kept or refused, never dropped: a call that only PyTorch can compute raises
    ``RuntimeError`` with the reason, for PyTorch does not promise the same. That is so on the CPU,
    in a dtype without kernels, and by ``algorithm="aten"``. So does one that a named algorithm
    cannot compute so, such as "im2col". PyTorch's own functions and modules on the CPU are never
    routed; they run as ever, and nothing is promised of them.

    Args:
        enabled: Whether it is on. An open ``batch_invariant`` keeps it on.

    Returns:
        A context for the ``with`` statement, which sets the switch back when it ends. It may be
        dropped; the switch then stays.

    Raises:
        TypeError: ``enabled`` is no boolean.
    """
    try:
        before = _bind.set_batch_invariant(enabled)
    except TypeError:  # pybind11's words, which list C++ signatures
        kind = type(enabled).__name__
        raise TypeError(
            f"set_batch_invariant(): argument 'enabled' must be bool, not {kind}"
        ) from None
    call = f"set_batch_invariant({bool(enabled)})"
    return Switched(call, lambda: set_batch_invariant(before), decorator="batch_invariant()")


def is_batch_invariant() -> bool:
    """Whether what an image gets is independent of its batch at this moment."""
    return _bind.is_batch_invariant()


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Does as ``set_batch_invariant(True)``, until the ``with`` statement ends.

    It also decorates functions. Contexts nest, in any threads, and hold for the whole process until
    the last one ends. A backward pass that runs after that is not batch invariant.
    """
    _bind.begin_batch_invariance()
    try:
        yield
    finally:
        _bind.end_batch_invariance()
