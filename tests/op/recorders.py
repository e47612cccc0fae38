"""Ways to record a program instead of running it, for ``test_recorders.py``."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, aot_module, make_boxed_func
from recorded_programs import accumulate, forward, step
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx


@dataclass(frozen=True)
class Recorded:
    """What a recorder has made of a program.

    Attributes:
        run: Runs it: gives the output, or with the gradients if the recorder keeps them.
        text: What it is, to be compared.
        convolutions: How many calls of convolutions it holds.
    """

    run: Callable[[Tensor], list[Tensor]] | None
    text: str
    convolutions: int


Record = Callable[[nn.Module, Tensor], Recorded]


def scripted(
    script: Callable[[nn.Module, Tensor], Any], gradients: bool = True
) -> Callable[[nn.Module, Tensor], Recorded]:
    """A recorder of TorchScript."""

    def record(module: nn.Module, x: Tensor) -> Recorded:
        made = script(module, x)
        text = text_of(made)
        run = step if gradients else forward
        parameters = list(made.parameters()) if gradients else []
        return Recorded(
            lambda x: run(made, parameters, x),
            text,
            len(re.findall(r"= \w+::\w*conv", text)),
        )

    return record


def text_of(made: Any) -> str:
    """A program of TorchScript, but for numbers that count the process's types."""
    return re.sub(r"___torch_mangle_\d+\.", "", str(made.inlined_graph))


def trace(**options: Any) -> Record:
    return scripted(lambda module, x: torch.jit.trace(module, x, **options))


def trace_without_gradients(module: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        return torch.jit.trace(module, x)


def trace_and_save(module: nn.Module, x: Tensor) -> Any:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(module, x), file)
    file.seek(0)
    return torch.jit.load(file)


def script(module: nn.Module, x: Tensor) -> Any:
    try:
        return torch.jit.script(module)
    except AttributeError as error:
        if sys.version_info >= (3, 14) and "__annotations__" in str(error):
            pytest.skip(f"torch.jit.script on Python 3.14: {error}")
        raise


def is_convolution(graph_module: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(graph_module.get_submodule(node.target), nn.modules.conv._ConvNd)
    name = getattr(node.target, "__name__", "").lower()
    return node.op == "call_function" and "conv" in name and "convert" not in name


def graphs(run: Callable[[Tensor], list[Tensor]], *graph_modules: fx.GraphModule) -> Recorded:
    """What a recorder of torch.fx has made, and the graphs that it consists of."""
    calls = [
        node for module in graph_modules for node in module.graph.nodes
        if is_convolution(module, node)
    ]  # fmt: skip
    text = "\n".join(str(module.graph) for module in graph_modules)
    # Compiled autograd numbers its functions anew in each process.
    return Recorded(run, re.sub(r"(?i)backward\d+", "backward", text), len(calls))


def export(strict: bool = False, sizes: bool = False, decomposed: bool = False) -> Record:
    def record(module: nn.Module, x: Tensor) -> Recorded:
        shapes = {i: torch.export.Dim.AUTO for i in range(x.ndim) if i != 1} if sizes else None
        program = torch.export.export(module, (x,), dynamic_shapes=(shapes,), strict=strict)
        if decomposed:
            program = program.run_decompositions()
        made = program.module()
        run = forward if decomposed else step
        # In the module's order: older releases have that of their use.
        parameters = [made.get_parameter(name) for name, _ in module.named_parameters()]
        return graphs(lambda x: run(made, parameters, x), program.graph_module)

    return record


def functional(module: nn.Module, gradients: bool) -> Callable[..., Any]:
    """The module as a function of its tensors and its input."""
    names = [name for name, _ in module.named_parameters()]

    def run(tensors: dict[str, Tensor], x: Tensor) -> list[Tensor]:
        if not gradients:
            return [functional_call(module, tensors, (x,))]
        leaves = {name: tensors[name].detach().requires_grad_() for name in names}
        return step(
            lambda x: functional_call(module, {**tensors, **leaves}, (x,)),
            list(leaves.values()),
            x,
        )

    return run


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach() for name, t in (*module.named_parameters(), *module.named_buffers())}


def proxies(mode: str) -> Record:
    def record(module: nn.Module, x: Tensor) -> Recorded:
        made = make_fx(functional(module, True), tracing_mode=mode)(tensors_of(module), x)
        return graphs(lambda x: made(tensors_of(module), x), made)

    return record


def functionalized(module: nn.Module, x: Tensor) -> Recorded:
    pure = functionalize(functional(module, False), remove="mutations_and_views")
    made = make_fx(pure)(tensors_of(module), x)
    calls = {node.target for node in made.graph.nodes if isinstance(node.target, OpOverload)}
    left = {torch.ops.aten.copy_.default}  # to running statistics
    if torch.__version__.startswith("2.9."):
        left.add(torch.ops.aten._native_batch_norm_legit.default)
    assert {call for call in calls if call._schema.is_mutable} <= left
    return graphs(lambda x: made(tensors_of(module), x), made)


def symbolic(module: nn.Module, x: Tensor) -> Recorded:
    made = fx.symbolic_trace(nn.Sequential(module))  # a convolution by itself would be opened
    return graphs(lambda x: step(made, list(made.parameters()), x), made)


class Collected:
    """A compiler that runs graphs as they are, and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def __call__(self, graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    def boxed(self, graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """As AOT autograd wants it."""
        return make_boxed_func(self(graph, inputs))


def ahead_of_time(module: nn.Module, x: Tensor) -> Recorded:
    compiler = Collected()
    made = aot_module(module, compiler.boxed, compiler.boxed)

    def run(x: Tensor) -> list[Tensor]:
        return step(made, list(made.parameters()), x)

    run(x)
    return graphs(run, *compiler.graphs)


def ahead_of_time_of_function(module: nn.Module, x: Tensor) -> Recorded:
    compiler = Collected()
    names = [name for name, _ in module.named_parameters()]

    def function(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(module, tensors, (x,))

    made = aot_function(function, compiler.boxed, compiler.boxed)

    def run(x: Tensor) -> list[Tensor]:
        tensors = tensors_of(module)
        leaves = [tensors[name].requires_grad_() for name in names]
        return step(lambda x: made(tensors, x), leaves, x)

    run(x)
    return graphs(run, *compiler.graphs)


def compiled(backend: Callable[[Collected], Any], **options: Any) -> Record:
    def record(module: nn.Module, x: Tensor) -> Recorded:
        compiler = Collected()
        torch._dynamo.reset()
        made = torch.compile(module, backend=backend(compiler), fullgraph=True, **options)

        def run(x: Tensor) -> list[Tensor]:
            return step(made, list(module.parameters()), x)

        run(x)
        return graphs(run, *compiler.graphs)

    return record


def compiled_autograd(module: nn.Module, x: Tensor) -> Recorded:
    """The backward pass, recorded from eager's nodes."""
    compiler = Collected()
    torch._dynamo.reset()

    def run(x: Tensor) -> list[Tensor]:
        with torch._dynamo.compiled_autograd._enable(
            lambda graph: torch.compile(graph, backend=compiler)
        ):
            return accumulate(module, list(module.parameters()), x)

    run(x)
    return graphs(run, *compiler.graphs)


def onnx(dynamo: bool) -> Record:
    def record(module: nn.Module, x: Tensor) -> Recorded:
        onnx = pytest.importorskip("onnx")
        from onnx.reference import ReferenceEvaluator

        file = io.BytesIO()
        axes = {0: "batch", **{i: f"size{i}" for i in range(2, x.ndim)}}
        sizes: dict[str, Any] = (
            {"dynamic_shapes": ({i: torch.export.Dim.AUTO for i in axes},)}
            if dynamo
            else {"dynamic_axes": {"x": axes}}
        )
        torch.onnx.export(
            module, (x,), file, dynamo=dynamo, input_names=["x"], verbose=False, **sizes
        )
        model = onnx.load_from_string(file.getvalue())
        evaluator = ReferenceEvaluator(model)

        def run(x: Tensor) -> list[Tensor]:
            results = evaluator.run(None, {"x": x.cpu().numpy()})
            return [torch.from_numpy(result).to(x.device) for result in results]

        kinds = [node.op_type for node in model.graph.node]
        return Recorded(
            run, onnx.printer.to_text(model.graph), sum("Conv" in kind for kind in kinds)
        )

    return record


def tensorboard(module: nn.Module, x: Tensor) -> Recorded:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard._pytorch_graph import graph

    made, _ = graph(module, x)
    return Recorded(None, str(made), sum("::_conv" in n.op or "::conv" in n.op for n in made.node))
