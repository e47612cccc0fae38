"""What records a program instead of running it records the same while routing is on.

On the CPU a mode of routing for tests computes below everything that records, as kernels on CUDA
do: what would be recorded wrongly on CUDA is recorded wrongly there too.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from op_support import needs_compiler
from recorded_programs import PROGRAMS, assert_right, counted, eager, expected, opaque, step
from recorders import (
    Record,
    ahead_of_time,
    ahead_of_time_of_function,
    compiled,
    compiled_autograd,
    export,
    functionalized,
    onnx,
    proxies,
    script,
    scripted,
    symbolic,
    tensorboard,
    text_of,
    trace,
    trace_and_save,
    trace_without_gradients,
)
from reference import assert_accurate
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

import customconv

pytestmark = [
    # TorchScript and the exporter that is based on it are deprecated; newer releases say it louder.
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*legacy TorchScript-based ONNX export:DeprecationWarning"),
    # How the tracer's check says that what it has recorded gives something else.
    pytest.mark.filterwarnings("error:Output nr:torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("error:Tensor-valued Constant:torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("error:Trace had nondeterministic:torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:Converting a tensor:torch.jit.TracerWarning"),
]


@pytest.fixture(autouse=True)
def opaque_on_the_cpu() -> Iterator[None]:
    torch._dynamo.reset()
    with opaque():
        yield


@dataclass(frozen=True)
class Recorder:
    """A way to record a program.

    Attributes:
        record: Records it.
        gradients: Whether what it makes gives gradients.
        sizes: Whether what it makes takes inputs of other sizes.
        trains: Whether it records training mode.
        ours: Whether it records this package's operators.
        scripts: Whether TorchScript compiles the program.
        routed: Whether what it makes calls the convolutions that were recorded.
        error: How far what it makes may be off, where rounding is not all.
        programs: The programs that it is tried with.
    """

    record: Record
    gradients: bool = True
    sizes: bool = True
    trains: bool = True
    ours: bool = True
    scripts: bool = False
    routed: bool = True
    error: float = 0.0
    programs: Sequence[str] = tuple(PROGRAMS)


SINGLE = ("conv1d", "bias", "transposed2d", "our_conv2d", "our_transposed")
FEW = ("functions", "training", "our_modules")
NETWORKS = ("functions", "training", "our_modules", "our_operators", "converted")
EVERY_KIND = (*NETWORKS, "residual", "our_functions", "fused", "converted_training")

RECORDERS = {
    "trace": Recorder(trace()),
    "trace, no_grad": Recorder(scripted(trace_without_gradients)),
    "trace, strict=False": Recorder(trace(strict=False)),
    "trace, check_trace=False": Recorder(trace(check_trace=False), programs=EVERY_KIND),
    "trace, saved": Recorder(scripted(trace_and_save), programs=EVERY_KIND),
    "trace, frozen": Recorder(
        scripted(lambda m, x: torch.jit.freeze(torch.jit.trace(m, x)), gradients=False),
        gradients=False, trains=False,
    ),
    "trace, optimized": Recorder(
        scripted(
            lambda m, x: torch.jit.optimize_for_inference(torch.jit.trace(m, x)), gradients=False
        ),
        gradients=False, trains=False, routed=False, programs=EVERY_KIND,
    ),
    "script": Recorder(scripted(script), scripts=True),
    "script, frozen": Recorder(
        scripted(lambda m, x: torch.jit.freeze(script(m, x)), gradients=False),
        gradients=False, trains=False, scripts=True,
    ),
    # Its constants have fewer digits than float64.
    "onnx": Recorder(
        onnx(dynamo=False), gradients=False, trains=False, ours=False, routed=False, error=1e-6
    ),
    "onnx, dynamo": Recorder(
        onnx(dynamo=True), gradients=False, ours=False, routed=False, error=1e-6,
        programs=("residual",),
    ),
    "tensorboard": Recorder(tensorboard, trains=False),
    "export": Recorder(export(), sizes=False),
    "export, any size": Recorder(export(sizes=True), programs=NETWORKS),
    "export, strict": Recorder(export(strict=True), sizes=False, programs=FEW),
    "export, decomposed": Recorder(
        export(decomposed=True), gradients=False, sizes=False, programs=FEW
    ),
    "make_fx": Recorder(proxies("real"), sizes=False),
    "make_fx, fake": Recorder(proxies("fake"), sizes=False),
    "make_fx, symbolic": Recorder(proxies("symbolic"), programs=SINGLE),
    "functionalize": Recorder(functionalized, gradients=False, sizes=False),
    "symbolic_trace": Recorder(symbolic),
    "aot_module": Recorder(ahead_of_time, sizes=False, programs=EVERY_KIND),
    "aot_function": Recorder(ahead_of_time_of_function, sizes=False, programs=NETWORKS),
    "compiled autograd": Recorder(compiled_autograd, sizes=False, programs=SINGLE),
    "compile, eager": Recorder(
        compiled(lambda compiler: compiler, dynamic=True), programs=NETWORKS
    ),
    "compile, aot_eager": Recorder(
        compiled(lambda c: aot_autograd(fw_compiler=c.boxed, bw_compiler=c.boxed)),
        sizes=False, programs=NETWORKS,
    ),
}  # fmt: skip


def cases() -> Iterator[Any]:
    for name, recorder in RECORDERS.items():
        for program in recorder.programs:
            p = PROGRAMS[program]
            if (p.trains and not recorder.trains) or (p.ours and not recorder.ours):
                continue
            if recorder.scripts and not p.scripts:
                continue
            yield pytest.param(name, program, id=f"{name}-{program}")


@pytest.mark.parametrize(("recorder", "program"), list(cases()))
def test_the_same_is_recorded_while_routing_is_on(recorder, program, device):
    what = f"{recorder} of {program}"
    how, recorded = RECORDERS[recorder], PROGRAMS[program]
    module, (first, *others) = recorded.module(device), recorded.inputs(device)
    modules = copy.deepcopy(module), copy.deepcopy(module)
    plain = how.record(modules[0], first)
    with customconv.enabled():
        routed = how.record(modules[1], first)
    assert plain.convolutions >= recorded.convolutions, f"{what}: convolutions without routing"
    assert routed.convolutions == plain.convolutions, f"{what}: convolutions"
    assert routed.text == plain.text, f"{what}: the program"

    for x in others if how.sizes else others[:1]:
        if routed.run is None or plain.run is None:
            break
        wanted = expected(module, x, how.gradients)

        def check(run: Callable[[Tensor], list[Tensor]], when: str, x=x, wanted=wanted) -> None:
            where = f"{what}, input {tuple(x.shape)}, {when}"
            assert_right(run(x), wanted, where, at_least=how.error)

        with customconv.enabled():
            check(routed.run, "routed")
            check(routed.run, "routed again")
            check(plain.run, "recorded without routing, routed")
        check(routed.run, "no longer routed")
        if how.routed:
            again = counted(lambda run=routed.run, x=x: run(x))
            assert again == counted(lambda x=x: eager(module, x, how.gradients)), f"{what}: counts"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("program", ["training", "residual", "converted"])
def test_compiled_by_inductor_while_routing_is_on(program, device):
    recorded = PROGRAMS[program]
    module, (first, *others) = recorded.module(device), recorded.inputs(device)
    with customconv.enabled():
        made = torch.compile(copy.deepcopy(module), fullgraph=True)
        parameters = list(made.parameters())
        step(made, parameters, first)
        results = [step(made, parameters, x) for x in others]
    for x, actual in zip(others, results, strict=True):
        assert_right(actual, expected(module, x, True), f"{program}, input {tuple(x.shape)}")


@pytest.mark.parametrize("program", ["network", "functions", "our_modules", "converted"])
def test_traced_under_autocast(program, device):
    module = PROGRAMS[program].module(device).float()
    first, other = (torch.randn(PROGRAMS[program].shapes[0], device=device) for _ in range(2))

    def trace() -> Any:
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            return torch.jit.trace(module, first)

    def outcome(made: Any) -> Tensor | str:
        """On CUDA PyTorch's autocast does not know padding in words, so that replays raise."""
        try:
            return made(other)
        except RuntimeError as error:
            return str(error).splitlines()[-1]

    plain = trace()
    wanted = outcome(plain)
    with customconv.enabled():
        routed = trace()
        actual = outcome(routed)
    assert text_of(routed) == text_of(plain)
    if isinstance(wanted, str):
        assert device == "cuda" and program == "functions"
        assert actual == wanted
    else:
        assert actual.dtype == wanted.dtype == torch.bfloat16
        assert_accurate(actual, wanted.double(), 2e-2)


OUR_OPERATOR = r"customconv(::|\.)conv"


@pytest.mark.parametrize("dynamo", [False, True])
def test_onnx_names_the_operator_that_it_lacks(dynamo, device, capsys):
    pytest.importorskip("onnx")
    module = PROGRAMS["our_conv2d"].module(device)
    x = PROGRAMS["our_conv2d"].inputs(device)[0]
    with customconv.enabled(), pytest.raises(Exception, match=OUR_OPERATOR):
        torch.onnx.export(module, (x,), io.BytesIO(), dynamo=dynamo, verbose=False)


WITH_SIZES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "conv1d": lambda x, w: customconv.conv1d(x[:, :, 0], w[:, :, 0], padding=x.shape[-1] // 4),
    "conv2d": lambda x, w: customconv.conv2d(x, w, padding=(x.shape[-1] // 4, 1)),
    "conv2d_fused": lambda x, w: customconv.conv2d_fused(x, w, None, 1, x.shape[-1] // 4),
    "conv_transpose1d": lambda x, w: customconv.conv_transpose1d(
        x[:, :, 0], w[:, :, 0], padding=[x.shape[-1] // 4]
    ),
    "conv_transpose2d": lambda x, w: customconv.conv_transpose2d(x, w, padding=x.shape[-1] // 4),
    "conv_transpose2d_fused": lambda x, w: customconv.conv_transpose2d_fused(
        x, w, None, 1, x.shape[-1] // 4
    ),
}


@pytest.mark.parametrize("function", WITH_SIZES)
@pytest.mark.parametrize("recorder", ["symbolic_trace", "export", "make_fx"])
def test_numbers_that_depend_on_the_input(recorder, function, device):
    """They are recorded as what they are, not as the numbers of one input."""

    class Convolution(nn.Module):
        def forward(self, x, w):
            return WITH_SIZES[function](x, w)

    module = Convolution()
    x, other = (torch.randn(2, 4, 8, size, device=device) for size in (8, 13))
    w = torch.randn(4, 4, 3, 3, device=device)
    with customconv.enabled():
        if recorder == "symbolic_trace":
            made: Callable[..., Tensor] = fx.symbolic_trace(module)
        elif recorder == "export":
            shapes = ({3: torch.export.Dim.AUTO}, None)
            made = torch.export.export(module, (x, w), dynamic_shapes=shapes).module()
        else:
            made = make_fx(module, tracing_mode="symbolic")(x, w)
        actual = made(other, w)
    assert_right([actual], [module(other, w)], f"{recorder} of {function}")


@pytest.mark.parametrize("written", ["lists", "integers", "lists, transposed", "lists, fused"])
@pytest.mark.parametrize("recorder", ["export", "make_fx"])
def test_operators_keep_numbers_symbolic(recorder, written, device):
    """An overload of plain integers would fix them at what they are for the traced size."""
    ops = torch.ops.customconv

    class Padded(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            padding = x.shape[-1] // 4
            if written == "integers":
                return ops.conv2d(x, w, None, 1, padding)
            if written == "lists, transposed":
                return ops.conv_transpose2d(x, w, None, [1, 1], [padding, padding])
            operator = ops.conv2d_fused if written == "lists, fused" else ops.conv2d
            return operator(x, w, None, [1, 1], [padding, padding])

    module = Padded()
    x, other = (torch.randn(2, 4, size, size, device=device) for size in (8, 12))
    w = torch.randn(4, 4, 7, 7, device=device)
    if recorder == "make_fx":
        made: Callable[..., Tensor] = make_fx(module, tracing_mode="symbolic")(x, w)
    else:
        sizes = {2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
        made = torch.export.export(module, (x, w), dynamic_shapes=(sizes, None)).module()
    for image in (x, other):
        assert_accurate(made(image, w), module(image, w).double(), 1e-5)
