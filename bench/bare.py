"""A process that times PyTorch's `F.conv2d` for `bench host`: without customconv, or with it off.

It imports nothing of ours unless it is told to, so that what our presence costs can be seen. Run as
``python -m bench.bare [customconv]``; it answers each line "MODE CALLS" on its input with a line of
microseconds, and ends with its input.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Call = Callable[[], object]

MODES = ("no gradient", "forward, gradient recorded", "forward and backward")
REPLAY = "replay of a CUDA graph"
SHAPES = ((1, 8, 8, 8), (8, 8, 3, 3), (8,))


def tensors(device: torch.device, requires_grad: bool) -> list[Tensor]:
    """Input, weight and bias of a convolution that costs the GPU next to nothing."""
    return [torch.randn(s, device=device, requires_grad=requires_grad) for s in SHAPES]


def convolution(device: torch.device, requires_grad: bool) -> Call:
    """`F.conv2d` of such tensors."""
    x, w, b = tensors(device, requires_grad)
    return lambda: functional.conv2d(x, w, b, 1, 1, 1, 1)


def with_backward(call: Call) -> Call:
    """The call and the backward pass of its result, as a training step does it."""
    result = call()
    assert isinstance(result, Tensor)
    grad_output = torch.ones_like(result)
    return lambda: torch.autograd.backward(call(), grad_output)  # type: ignore[arg-type]


def replayed(call: Call) -> Call:
    """A replay of a CUDA graph that holds the call."""
    call()  # libraries set themselves up in a first call, which no graph can hold
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def calls(device: torch.device) -> dict[str, Call]:
    """`F.conv2d` in every mode."""
    recorded = convolution(device, True)
    each = convolution(device, False), recorded, with_backward(recorded)
    found = dict(zip(MODES, each, strict=True))
    if device.type == "cuda":
        with torch.no_grad():
            found[REPLAY] = replayed(convolution(device, False))
    return found


def microseconds(call: Call, times: int, wait: Callable[[], object]) -> float:
    """What a call costs the host; a quarter as many, untimed, come first, and the GPU is idle."""
    for _ in range(max(1, times // 4)):
        call()
    wait()
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times * 1e6


def main(words: list[str]) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    if words:
        import customconv

        with customconv.enabled():
            convolution(device, False)()
    elif "customconv" in sys.modules:
        raise RuntimeError("customconv is in a process that was to be without it")
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    found = calls(device)
    gc.disable()
    print("ready", flush=True)
    for line in sys.stdin:
        mode, _, times = line.rstrip().rpartition(" ")
        with torch.set_grad_enabled(mode in MODES[1:]):
            print(microseconds(found[mode], int(times), wait), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
