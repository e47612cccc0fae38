"""A process that times PyTorch's `F.conv2d` for `bench host`: without customconv, or with it off.

It imports customconv only if told to, so that the cost of the import can be measured. Run it as
``python -m bench.bare [customconv]``. For each line "MODE CALLS" on stdin it prints a line with the
microseconds per call. It ends when stdin ends.
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
# By the number of dimensions of an image.
SHAPES = {
    1: ((1, 8, 64), (8, 8, 3), (8,)),
    2: ((1, 8, 8, 8), (8, 8, 3, 3), (8,)),
    3: ((1, 8, 4, 4, 4), (8, 8, 3, 3, 3), (8,)),
}


def tensors(device: torch.device, requires_grad: bool, dims: int = 2) -> list[Tensor]:
    """Input, weight and bias of a convolution that costs the GPU next to nothing."""
    return [torch.randn(s, device=device, requires_grad=requires_grad) for s in SHAPES[dims]]


def convolution(device: torch.device, requires_grad: bool) -> Call:
    """Returns a call of `F.conv2d` on these tensors."""
    x, w, b = tensors(device, requires_grad)
    return lambda: functional.conv2d(x, w, b, 1, 1, 1, 1)


def with_backward(call: Call) -> Call:
    """Returns the call followed by its backward pass, as in a training step."""
    result = call()
    assert isinstance(result, Tensor)
    grad_output = torch.ones_like(result)
    return lambda: torch.autograd.backward(call(), grad_output)  # type: ignore[arg-type]


def replayed(call: Call) -> Call:
    """Captures the call in a CUDA graph and returns the replay."""
    call()  # libraries initialise in their first call, which a graph cannot capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def calls(device: torch.device) -> dict[str, Call]:
    """Returns a call of `F.conv2d` for every mode."""
    recorded = convolution(device, True)
    each = convolution(device, False), recorded, with_backward(recorded)
    found = dict(zip(MODES, each, strict=True))
    if device.type == "cuda":
        with torch.no_grad():
            found[REPLAY] = replayed(convolution(device, False))
    return found


def microseconds(call: Call, times: int, wait: Callable[[], object]) -> float:
    """Returns host microseconds per call. A warm-up of a quarter as many and `wait` come first."""
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

        if device.type == "cpu":  # where the overrides are for tests alone
            torch.ops.customconv._route_on_cpu(False)
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
