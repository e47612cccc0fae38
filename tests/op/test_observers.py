"""What watches a program while it runs sees the same while routing is on, and results stay right.

As in ``test_recorders.py``, routed calls on the CPU are computed below everything that watches.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from op_support import conv2d, conv2d_backward, conv_transpose2d
from recorded_programs import (
    PROGRAMS,
    accumulate,
    assert_right,
    counted,
    eager,
    expected,
    opaque,
    step,
)
from reference import PROBLEMS
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.fake_utils import CrossRefFakeMode
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.autograd.profiler_util import FunctionEvent
from torch.func import functional_call
from torch.overrides import TorchFunctionMode, resolve_name
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import customconv


@pytest.fixture(autouse=True)
def opaque_on_the_cpu() -> Iterator[None]:
    with opaque():
        yield


def shapes(values: Any) -> list[tuple[int, ...]]:
    return [
        tuple(t.shape) for t in torch.utils._pytree.tree_leaves(values) if isinstance(t, Tensor)
    ]


class DispatchLog(TorchDispatchMode):
    """The operators below autograd, with the shapes that they take and give."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func.name(), shapes(args), shapes(result)))
        return result


class FunctionLog(TorchFunctionMode):
    """The functions that a program calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((resolve_name(func) or str(func), shapes(args)))
        return func(*args, **(kwargs or {}))


Observation = tuple[Any, list[Tensor]]


def by(log: Callable[[], Any]) -> Callable[[nn.Module, Tensor], Observation]:
    def observe(module: nn.Module, x: Tensor) -> Observation:
        with log() as mode:
            results = step(module, list(module.parameters()), x)
        return mode.calls, results

    return observe


def flops(module: nn.Module, x: Tensor) -> Observation:
    with FlopCounterMode(display=False) as counter:
        results = accumulate(module, list(module.parameters()), x)
    return counter.get_flop_counts()["Global"], results


# What is below is another implementation's.
PROFILED = {
    "aten::conv1d", "aten::conv2d", "aten::conv_transpose1d", "aten::conv_transpose2d",
    "aten::convolution", "aten::convolution_backward", "customconv::conv2d",
    "customconv::conv2d_fused", "customconv::conv2d_backward", "customconv::conv_transpose2d",
    "customconv::conv_transpose2d_fused", "customconv::conv_transpose2d_backward",
    "ConvolutionBackward0",
}  # fmt: skip


def is_nested(event: FunctionEvent) -> bool:
    """Whether it is within one of the same name: there PyTorch computes a part of a routed call."""
    parent = event.cpu_parent
    while parent is not None and parent.name != event.name:
        parent = parent.cpu_parent
    return parent is not None


def profiled(module: nn.Module, x: Tensor) -> Observation:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        results = step(module, list(module.parameters()), x)
    events = [e for e in profiler.events() if e.name in PROFILED and not is_nested(e)]
    return Counter((e.name, str(e.input_shapes)) for e in events), results


def layouts(tensors: list[Tensor]) -> list[Any]:
    return [(tuple(t.shape), t.stride(), t.dtype, t.device) for t in tensors]


def fake(module: nn.Module, x: Tensor) -> Observation:
    """Of tensors without numbers the layouts are known."""
    names = [name for name, _ in module.named_parameters()]
    mode = FakeTensorMode()
    tensors = {name: mode.from_tensor(t.detach()) for name, t in module.state_dict().items()}
    leaves = [tensors[name].requires_grad_() for name in names]
    with mode:
        results = step(
            lambda x: functional_call(module, tensors, (x,)), leaves, mode.from_tensor(x)
        )
    real = step(module, list(module.parameters()), x)
    assert layouts(results) == layouts(real)
    return layouts(results), real


def cross_reference(module: nn.Module, x: Tensor) -> Observation:
    """Each operator runs on fake tensors beside, and must tell the same layouts."""
    with CrossRefFakeMode():
        return None, step(module, list(module.parameters()), x)


def checkpointed(use_reentrant: bool) -> Callable[[nn.Module, Tensor], Observation]:
    def observe(module: nn.Module, x: Tensor) -> Observation:
        def call(x: Tensor) -> Tensor:
            return checkpoint(module, x, use_reentrant=use_reentrant)

        with DispatchLog() as log:
            results = accumulate(call, list(module.parameters()), x)
        return log.calls, results

    return observe


def saved(module: nn.Module, x: Tensor) -> Observation:
    """What is kept for the backward pass, and fetched."""
    seen: list[Any] = []

    def pack(t: Tensor) -> Tensor:
        seen.append(("saved", tuple(t.shape), t.stride()))
        return t.detach().clone()

    def unpack(t: Tensor) -> Tensor:
        seen.append(("fetched", tuple(t.shape), t.stride()))
        return t

    with saved_tensors_hooks(pack, unpack):
        return seen, step(module, list(module.parameters()), x)


def kept_on_the_cpu(module: nn.Module, x: Tensor) -> Observation:
    with save_on_cpu():
        return None, step(module, list(module.parameters()), x)


def with_other_tensors(module: nn.Module, x: Tensor) -> Observation:
    """The module's own tensors hold something else."""
    tensors = {name: t.detach().clone() for name, t in module.state_dict().items()}
    leaves = {name: tensors[name].requires_grad_() for name, _ in module.named_parameters()}
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    results = step(
        lambda x: functional_call(module, {**tensors, **leaves}, (x,)), list(leaves.values()), x
    )
    return None, results


def anomalies(module: nn.Module, x: Tensor) -> Observation:
    with torch.autograd.detect_anomaly(check_nan=True):
        return None, step(module, list(module.parameters()), x)


@dataclass(frozen=True)
class Observer:
    """A way to watch a program.

    Attributes:
        observe: Runs it, and says what was seen.
        sees: Whether anything is seen but for the results.
        again: Whether it computes convolutions more than once, or not at all.
    """

    observe: Callable[[nn.Module, Tensor], Observation]
    sees: bool = True
    again: bool = False


OBSERVERS = {
    "TorchDispatchMode": Observer(by(DispatchLog)),
    "TorchFunctionMode": Observer(by(FunctionLog)),
    "FlopCounterMode": Observer(flops),
    "profiler": Observer(profiled),
    "FakeTensorMode": Observer(fake),
    "CrossRefFakeMode": Observer(cross_reference, sees=False),
    "checkpoint, reentrant": Observer(checkpointed(True), again=True),
    "checkpoint": Observer(checkpointed(False), again=True),
    "saved_tensors_hooks": Observer(saved),
    "save_on_cpu": Observer(kept_on_the_cpu, sees=False),
    "functional_call": Observer(with_other_tensors, sees=False),
    "detect_anomaly": Observer(anomalies, sees=False),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("observer", OBSERVERS)
def test_the_same_is_seen_while_routing_is_on(observer, program, device):
    what = f"{observer} of {program}"
    how, module = OBSERVERS[observer], PROGRAMS[program].module(device)
    x = PROGRAMS[program].inputs(device)[0]
    wanted = expected(module, x, True)
    plain, results = how.observe(copy.deepcopy(module), x)
    assert_right(results, wanted, f"{what}, not routed")
    with customconv.enabled():
        routed, results = how.observe(copy.deepcopy(module), x)
    assert_right(results, wanted, f"{what}, routed")
    assert bool(plain) == how.sees, f"{what}: what was seen without routing"
    assert routed == plain, f"{what}: what was seen"
    if not how.again:
        ours = counted(lambda: how.observe(copy.deepcopy(module), x))
        assert ours == counted(lambda: eager(module, x, True)), f"{what}: counts"


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("convolve", [F.conv2d, F.conv_transpose2d, customconv.conv2d])
def test_an_anomaly_is_found_in_the_same_function(convolve, device):
    messages = []
    for routed in (False, True):
        x = torch.full((1, 2, 5, 5), torch.inf, device=device, requires_grad=True)
        w = torch.full((2, 2, 3, 3), torch.nan, device=device, requires_grad=True)
        if routed:
            customconv.enable()
        try:
            with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError) as error:
                convolve(x, w).sum().backward()
        finally:
            customconv.disable()
        messages.append(str(error.value))
    assert "returned nan values" in messages[0]
    assert messages[0] == messages[1]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "operator", ["default", "int", "padding", "fused", "transposed", "backward"]
)
def test_opcheck_while_routing_is_on(operator, requires_grad, device):
    problem = PROBLEMS["grouped"]
    x, w, bias = problem.tensors(device, torch.float32, requires_grad=requires_grad)
    output = torch.randn_like(F.conv2d(x, w, bias, *problem.geometry))
    stride, padding, dilation, groups = problem.geometry
    call, arguments, options = {
        "default": (conv2d.default, (x, w, bias, *problem.geometry), {}),
        "int": (conv2d.int, (x, w, bias, *problem.geometry), {}),
        "padding": (conv2d.padding, (x, w, bias, stride, "same", dilation, groups), {}),
        "fused": (
            torch.ops.customconv.conv2d_fused.default,
            (x, w, bias, *problem.geometry),
            {"residual": output, "activation": "silu"},
        ),
        "transposed": (
            conv_transpose2d.default,
            (output, w, None, stride, padding, [0, 0], groups, dilation),
            {},
        ),
        "backward": (conv2d_backward.default, (output, x, w, *problem.geometry, [True] * 3), {}),
    }[operator]
    with customconv.enabled():
        torch.library.opcheck(call, arguments, options)


@pytest.mark.gpu
@pytest.mark.parametrize("program", PROGRAMS)
def test_cuda_graph_of_a_forward_pass(program):
    module, (x, *others) = PROGRAMS[program].module("cuda"), PROGRAMS[program].inputs("cuda")
    captured, still = copy.deepcopy(module), x.clone()
    with customconv.enabled(), torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            captured(still)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = captured(still)
    for numbers in (x, others[0]):
        wanted = expected(module, numbers, False)
        for _ in range(2):
            still.copy_(numbers)
            graph.replay()
            assert_right([output], wanted, program)


@pytest.mark.gpu
@pytest.mark.parametrize("program", PROGRAMS)
def test_cuda_graphs_of_both_passes(program):
    module, (x, *others) = PROGRAMS[program].module("cuda"), PROGRAMS[program].inputs("cuda")
    with customconv.enabled():
        graphed = torch.cuda.make_graphed_callables(
            copy.deepcopy(module), (x.clone().requires_grad_(),)
        )
    parameters = list(graphed.parameters())
    for numbers in (x, others[0]):
        wanted = expected(module, numbers, True)
        for _ in range(2):
            assert_right(step(graphed, parameters, numbers), wanted, program)
