"""PyTorch's own convolutions, routed through this package: switching, results, fallbacks, counts.

On the CPU calls pass through the same C++ and fall back to PyTorch, so that switching and counting
are tested there too.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from op_support import gradients, leaves, needs_compiler
from reference import (
    PROBLEMS,
    assert_equal,
    assert_same,
    float32_precision,
    layout_of,
    tolerances,
)
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd, jvp, vmap

import customconv
from customconv import routing

NOT_ON_CUDA = "the tensors are not on CUDA"


@pytest.fixture(autouse=True)
def routing_off_and_counts_cleared() -> Iterator[None]:
    torch.ops.customconv._route_on_cpu(False)
    customconv.stats(reset=True)
    yield
    while customconv.is_enabled():
        customconv.disable()
    customconv.stats(reset=True)


def counted(call: Callable[[], Any]) -> customconv.Stats:
    """What a call adds to the counts."""
    customconv.stats(reset=True)
    call()
    return customconv.stats(reset=True)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


# Switching.


def test_off_until_it_is_enabled():
    assert not customconv.is_enabled()
    assert not counted(lambda: F.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)))


def test_nested_use_counts():
    customconv.enable()
    with customconv.enabled():
        with customconv.enabled():
            assert customconv.is_enabled()
        customconv.disable()
        assert customconv.is_enabled()
    assert not customconv.is_enabled()


def test_disable_without_enable_does_nothing():
    customconv.disable()
    customconv.disable()
    customconv.enable()
    assert customconv.is_enabled()
    customconv.disable()
    assert not customconv.is_enabled()


def test_the_context_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), customconv.enabled():
        raise ZeroDivisionError
    assert not customconv.is_enabled()


def test_enabled_decorates_functions():
    @customconv.enabled()
    def convolve() -> bool:
        return customconv.is_enabled()

    assert convolve()
    assert convolve()
    assert not customconv.is_enabled()


def test_enable_is_a_context_too():
    """The call routes already; the end of the ``with`` statement undoes it, once."""
    customconv.enable()
    routed = customconv.enable()
    with routed:
        customconv.disable()
        assert customconv.is_enabled()
    assert not customconv.is_enabled()
    customconv.enable()
    routed.__exit__(None, None, None)
    assert customconv.is_enabled()
    with pytest.raises(RuntimeError, match=r"enable\(\) has been undone"), routed:
        pass


def test_the_context_of_enable_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), customconv.enable():
        raise ZeroDivisionError
    assert not customconv.is_enabled()


def test_disable_is_a_context_too():
    with customconv.disable():
        assert not customconv.is_enabled()
    assert not customconv.is_enabled()  # as before
    customconv.enable()
    with customconv.disable():
        assert not customconv.is_enabled()
    assert customconv.is_enabled()


def test_enable_does_not_decorate():
    """It would route from the function's definition to its first call."""
    with pytest.raises(TypeError, match=r"customconv\.enabled\(\) does"):
        customconv.enable()(lambda: None)
    assert not customconv.is_enabled()


def test_no_warning_reaches_the_user():
    done = run_python(
        "import torch, customconv; customconv.enable(); "
        "torch.nn.functional.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3))"
    )
    assert done.stdout == ""
    assert done.stderr == ""


def test_switching_while_other_threads_convolve(device):
    """No call is lost, and each is computed by one or the other, whole."""
    x = torch.randint(-3, 4, (2, 3, 16, 16), device=device).float()
    w = torch.randint(-3, 4, (4, 3, 3, 3), device=device).float()
    expected = F.conv2d(x, w)
    stop, wrong, done = threading.Event(), [], [0] * 4

    def convolve(index: int) -> None:
        while not stop.is_set():
            t = w.clone().requires_grad_()
            y = F.conv2d(x, t)
            y.sum().backward()
            if not torch.equal(y, expected) or t.grad is None:
                wrong.append(index)
            done[index] += 1

    def switch() -> None:
        while not stop.is_set():
            with customconv.enabled(), customconv.enabled():
                pass

    threads = [threading.Thread(target=convolve, args=(i,)) for i in range(4)]
    threads += [threading.Thread(target=switch) for _ in range(2)]
    for thread in threads:
        thread.start()
    stop.wait(2)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(done)
    assert not customconv.is_enabled()
    assert customconv.stats()  # some were routed


def test_backward_after_the_context_is_pytorchs(device):
    """PyTorch's formula does not depend on what computed the forward pass."""
    x, w, bias = leaves(*PROBLEMS["dense"].tensors(device, torch.float32))
    with customconv.enabled():
        y = F.conv2d(x, w, bias)
    stats = counted(lambda: y.sum().backward())
    assert not stats
    expected = leaves(x, w, bias)
    F.conv2d(*expected).sum().backward()
    for actual, theirs in zip((x, w, bias), expected, strict=True):
        assert_equal(actual.grad, theirs.grad, **tolerances(torch.float32))


# Counting.


def test_stats_as_a_table_and_reset():
    x, w, _ = PROBLEMS["dense"].tensors("cpu", torch.float32)
    w.requires_grad_()
    with customconv.enabled():
        F.conv2d(x, w).sum().backward()
        F.conv1d(torch.ones(1, 2, 5), torch.ones(1, 2, 3))
    stats = customconv.stats()
    assert stats.fallbacks == {NOT_ON_CUDA: 3}
    assert stats.calls == {}
    assert str(stats).splitlines()[1:] == [f"3  by PyTorch: {NOT_ON_CUDA}"]
    assert customconv.stats(reset=True) == stats
    assert not customconv.stats()


@pytest.mark.parametrize(
    ("with_cuda", "gpus", "enabled", "reason"),
    [
        (False, 1, True, "built without CUDA (its PyTorch was a CPU build)"),
        (True, 0, True, "PyTorch sees no GPU"),
        (True, 1, False, "routing was never on (customconv.enable() turns it on)"),
        (True, 1, True, "none ran there while routing was on"),
    ],
)
def test_an_empty_table_says_why(monkeypatch, with_cuda, gpus, enabled, reason):
    why = "" if with_cuda else "customconv was built without CUDA (its PyTorch was a CPU build)"
    monkeypatch.setattr(routing, "why_no_kernels", lambda: why)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(routing, "_was_enabled", False)
    if enabled:
        with customconv.enabled():
            pass
    (line,) = str(customconv.stats()).splitlines()[1:]
    assert line.startswith("none: ")
    assert "on CUDA alone" in line
    assert line.endswith(reason)


def test_operators_are_counted_too(device):
    x, w, _ = PROBLEMS["dense"].tensors(device, torch.float32)
    stats = counted(lambda: torch.ops.customconv.conv2d(x, w))
    expected = {} if x.is_cuda else {NOT_ON_CUDA: 1}
    assert stats.fallbacks == expected
    assert sum(stats.calls.values()) == (1 if x.is_cuda else 0)
    stats = counted(lambda: torch.ops.customconv.conv2d(x, w, algorithm="aten"))
    assert stats == customconv.Stats({}, {"algorithm 'aten' was asked for": 1})


def test_what_an_operator_leaves_to_pytorch_is_not_routed_again(device):
    x, w, _ = PROBLEMS["dense"].tensors(device, torch.float32)
    with customconv.enabled():
        stats = counted(lambda: torch.ops.customconv.conv2d(x, w, algorithm="aten"))
    assert stats == customconv.Stats({}, {"algorithm 'aten' was asked for": 1})


# Results.

CALLS: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...], tuple[tuple[int, ...], ...]]] = {
    "conv1d": (F.conv1d, (2, 1, 1, 2), ((3, 4, 40), (6, 2, 5), (6,))),
    "conv1d_one_channel": (F.conv1d, (1, 2), ((3, 1, 40), (6, 1, 5), (6,))),
    "conv1d_pointwise": (F.conv1d, (), ((3, 8, 33), (16, 8, 1), (16,))),
    "conv1d_unbatched": (F.conv1d, (1, "same"), ((4, 40), (6, 4, 5), (6,))),
    "conv2d": (F.conv2d, (1, 1), ((2, 8, 9, 11), (16, 8, 3, 3), (16,))),
    "conv2d_depthwise": (F.conv2d, (2, 1, 1, 8), ((2, 8, 9, 11), (8, 1, 3, 3), (8,))),
    "conv2d_unbatched": (F.conv2d, (2, "valid"), ((8, 9, 11), (16, 8, 3, 3), (16,))),
    "conv2d_stride_of_one_number": (F.conv2d, ([2], [1]), ((2, 8, 9, 11), (16, 8, 3, 3), (16,))),
    "conv3d": (F.conv3d, (1, 1), ((2, 4, 3, 6, 7), (8, 4, 3, 3, 3), (8,))),
    "conv3d_depthwise": (F.conv3d, (1, 1, 1, 8), ((2, 8, 3, 6, 7), (8, 1, 3, 3, 3), (8,))),
    "conv3d_pointwise": (F.conv3d, (), ((2, 8, 3, 6, 7), (16, 8, 1, 1, 1), (16,))),
    "conv3d_slices": (F.conv3d, (1, (0, 1, 1)), ((2, 8, 3, 6, 7), (16, 8, 1, 3, 3), (16,))),
    "conv3d_patches": (F.conv3d, (2,), ((2, 3, 4, 6, 8), (16, 3, 2, 2, 2), (16,))),
    "conv3d_unbatched": (F.conv3d, (2, "valid"), ((4, 5, 6, 7), (8, 4, 3, 3, 3), (8,))),
    "conv3d_stride_of_one_number": (F.conv3d, ([2], [1]), ((2, 4, 3, 6, 7), (8, 4, 3, 3, 3), (8,))),
    "conv3d_empty_batch": (F.conv3d, (1, 1), ((0, 4, 3, 6, 7), (8, 4, 3, 3, 3), (8,))),
    "conv_transpose1d": (
        F.conv_transpose1d, (2, 1, 1, 2), ((3, 4, 20), (4, 3, 5), (6,)),
    ),
    "conv_transpose2d": (
        F.conv_transpose2d, (2, 1, 1), ((2, 8, 9, 7), (8, 5, 3, 3), (5,)),
    ),
    "conv_transpose3d": (
        F.conv_transpose3d, (2, 1, (1, 0, 1)), ((2, 8, 3, 5, 4), (8, 5, 3, 3, 3), (5,)),
    ),
    "conv_transpose3d_unbatched": (
        F.conv_transpose3d, (2, 0, 0, 2), ((8, 3, 5, 4), (8, 5, 2, 2, 2), (10,)),
    ),
    "conv_transpose2d_output_padding_reaches_the_stride": (
        F.conv_transpose2d, (1, 0, 1, 1, 2), ((2, 8, 9, 7), (8, 5, 3, 3), (5,)),
    ),
    "empty_batch": (F.conv2d, (1, 1), ((0, 8, 9, 11), (16, 8, 3, 3), (16,))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.complex64])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize("name", CALLS)
def test_as_without_routing(name, layout, dtype, device):
    """Output and gradients, with PyTorch's strides."""
    convolve, arguments, shapes = CALLS[name]
    generator = torch.Generator().manual_seed(5)
    tensors = [torch.randint(-4, 5, s, generator=generator).to(device, dtype) / 4 for s in shapes]
    if layout == "channels_last" and tensors[0].ndim == tensors[1].ndim >= 4:
        last = layout_of(torch.channels_last, tensors[0].ndim)
        tensors[:2] = [t.contiguous(memory_format=last) for t in tensors[:2]]
    if layout == "sliced":
        tensors[0] = torch.stack([tensors[0], tensors[0]], -1)[..., 0]
    expected = convolve(*tensors, *arguments)
    inputs = [t.requires_grad_() for t in tensors]
    expected_grads = gradients(convolve, inputs, *arguments) if expected.numel() else ()
    with customconv.enabled():
        actual = convolve(*tensors, *arguments)
        grads = gradients(convolve, inputs, *arguments) if expected.numel() else ()
    # Sums of small multiples of 1/16 are exact in each of these types, but for 16-bit results.
    close = tolerances(dtype) if device == "cuda" else {}
    assert_same(actual, expected, **close)
    for ours, theirs in zip(grads, expected_grads, strict=True):
        assert_same(ours, theirs, **close)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda t: F.conv3d(t(0, 2, 5, 6, 7), t(3, 2, 3, 3, 3)), "a tensor is empty"),
        (lambda t: F.conv_transpose3d(t(1, 3, 4, 8, 8), t(3, 3, 3, 3, 3), None, 1, 0, 1, 1, 2),
         "the output padding reaches the stride"),
        (lambda t: F.conv2d(t(0, 3, 8, 8), t(3, 3, 3, 3)), "a tensor is empty"),
        (lambda t: F.conv_transpose2d(t(1, 3, 8, 8), t(3, 3, 3, 3), None, 1, 0, 1, 1, 2),
         "the output padding reaches the stride"),
    ],
)  # fmt: skip
def test_fallbacks_say_why(call, reason):
    def tensor(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda")

    with customconv.enabled():
        stats = counted(lambda: call(tensor))
    assert set(stats.fallbacks) == {reason}
    assert not stats.calls


@pytest.mark.gpu
def test_cudnn_switched_off_is_pytorchs():
    x, w, _ = PROBLEMS["dense"].tensors("cuda", torch.float32)
    with customconv.enabled(), torch.backends.cudnn.flags(enabled=False):
        stats = counted(lambda: F.conv2d(x, w))
    assert stats == customconv.Stats({}, {"torch.backends.cudnn.enabled is False": 1})


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.conv2d(torch.ones(1, 2, 5, 5), torch.ones(3, 3, 3, 3)),
        lambda: F.conv2d(torch.ones(1, 2, 2, 2), torch.ones(3, 2, 3, 3)),
        lambda: F.conv2d(torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), stride=0),
        lambda: F.conv2d(torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), padding=-1),
        lambda: F.conv1d(torch.ones(1, 2, 5), torch.ones(3, 2, 3), stride=(1, 2)),
        lambda: F.conv3d(torch.ones(1, 2, 5, 5, 5), torch.ones(3, 3, 3, 3, 3)),
        lambda: F.conv3d(torch.ones(1, 2, 2, 5, 5), torch.ones(3, 2, 3, 3, 3)),
        lambda: F.conv3d(torch.ones(1, 2, 5, 5, 5), torch.ones(3, 2, 3, 3, 3), stride=(1, 1, 0)),
        lambda: F.conv3d(torch.ones(1, 2, 5, 5, 5), torch.ones(3, 2, 3, 3, 3), padding=(-1, 0, 0)),
        lambda: torch.convolution(
            torch.ones(1, 2, 5, 5, 5), torch.ones(3, 2, 3, 3, 3), None, [1, 1], [0, 0], [1, 1],
            False, [0, 0], 1,
        ),
        lambda: torch.convolution(
            torch.ones(2, 5, 5), torch.ones(3, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False,
            [0, 0], 1,
        ),
        lambda: torch.convolution(
            torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3), None, [1, 1, 1], [0, 0], [1, 1], False,
            [0, 0], 1,
        ),
    ],
)  # fmt: skip
def test_errors_are_pytorchs(call, device):
    messages = []
    with torch.device(device):
        for routed in (False, True):
            if routed:
                customconv.enable()
            with pytest.raises(RuntimeError) as error:
                call()
            messages.append(str(error.value))
    assert messages[0] == messages[1]


# PyTorch's other machinery, which stays above the override.


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, groups=8),
        nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Flatten(2), nn.Conv1d(4, 6, 3),
    )  # fmt: skip


def families_and_fallbacks(stats: customconv.Stats, device: str) -> tuple[int, int]:
    calls, fallbacks = sum(stats.calls.values()), sum(stats.fallbacks.values())
    return (calls, fallbacks) if device == "cuda" else (fallbacks, calls)


@pytest.mark.parametrize("program", ["scripted", "traced", "exported"])
def test_saved_programs_are_routed(program, device):
    module = network().to(device).eval()
    x = torch.randn(2, 4, 12, 12, device=device)
    if program == "exported":
        call: Callable[..., Tensor] = torch.export.export(module, (x,)).module()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            call = torch.jit.script(module) if program == "scripted" else torch.jit.trace(module, x)
    expected = call(x)
    with customconv.enabled():
        actual, stats = None, None

        def run() -> None:
            nonlocal actual
            actual = call(x)

        stats = counted(run)
    assert families_and_fallbacks(stats, device) == (4, 0)
    assert_equal(actual, expected, **tolerances(torch.float32, 1000))


@needs_compiler
@pytest.mark.slow
def test_compiled_programs(device):
    """On CUDA the generated code calls PyTorch's convolution, which is routed."""
    module = network().to(device)
    compiled = torch.compile(copy.deepcopy(module))
    x = torch.randn(2, 4, 12, 12, device=device)
    with customconv.enabled():
        stats = counted(lambda: compiled(x).sum().backward())
    module(x).sum().backward()
    if device == "cuda":
        assert sum(stats.calls.values()) >= 8
        assert not stats.fallbacks
    for ours, theirs in zip(compiled.parameters(), module.parameters(), strict=True):
        assert_equal(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_autocast(device):
    module = network().to(device)
    x = torch.randn(2, 4, 12, 12, device=device)
    with customconv.enabled(), torch.autocast(device, dtype=torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    assert_equal(y.float(), module(x).float(), rtol=5e-2, atol=5e-2)


TRANSFORMS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "vmap": lambda m, x: vmap(m)(torch.stack([x, -x])),
    "grad": lambda m, x: grad(lambda t: m(t).square().sum())(x),
    "jvp": lambda m, x: jvp(m, (x,), (x.cos(),))[1],
    "jacfwd": lambda m, x: jacfwd(lambda t: m(x * t).sum())(x.new_ones(3, 1, 1, 1).sum()),
    "double_backward": lambda m, x: grad(lambda t: grad(lambda u: m(u).pow(3).sum())(t).sum())(x),
    "per_sample": lambda m, x: vmap(
        grad(lambda p, one: functional_call(m, p, one[None]).square().sum()), (None, 0)
    )({name: p.detach() for name, p in m.named_parameters()}, x)["0.weight"],
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(transform, device):
    module = network().to(device, torch.float64)
    x = torch.randn(3, 4, 8, 8, dtype=torch.float64, device=device)
    expected = TRANSFORMS[transform](module, x)
    with customconv.enabled():
        actual = TRANSFORMS[transform](module, x)
    assert_equal(actual, expected, rtol=1e-10, atol=1e-10 * expected.abs().max().item())
    assert customconv.stats()


def test_grad_fn_stays_pytorchs(device):
    x, w, bias = leaves(*PROBLEMS["dense"].tensors(device, torch.float32))
    with customconv.enabled():
        assert type(F.conv2d(x, w, bias).grad_fn).__name__ == "ConvolutionBackward0"


@pytest.mark.gpu
def test_cuda_graph():
    module = network().cuda().eval()
    x = torch.randn(2, 4, 12, 12, device="cuda")
    with customconv.enabled(), torch.no_grad():
        module(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = module(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert_equal(y, module(x), **tolerances(torch.float32, 1000))


@pytest.mark.gpu
def test_traced_switches_are_those_of_the_trace():
    """A traced module keeps PyTorch's switch for TF32 as it was, whatever it is later."""
    x, w = torch.randn(4, 64, 20, 20, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    exact = F.conv2d(x.double(), w.double())

    def error(y: Tensor) -> float:
        return ((y - exact).abs().max() / exact.abs().max()).item()

    with float32_precision("ieee"):
        traced = torch.jit.trace(lambda x: F.conv2d(x, w), x)
    with customconv.enabled(), float32_precision("tf32"):
        assert error(traced(x)) < 1e-5
        assert error(F.conv2d(x, w)) > 1e-5
