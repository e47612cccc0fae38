"""The backend of ``torch.compile``: fused convolutions, and Inductor for everything else.

What it needs is imported when something is compiled: Inductor and SymPy take a second.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import fx

from ..convert import check_callable
from ..notices import notice_gpus
from .report import CompiledConvolution, CompileReport

Model = TypeVar("Model", bound=Callable[..., Any])

_log = logging.getLogger(__name__)
_told: set[str] = set()


def backend(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's, as ``torch.compile(model, backend="customconv")`` asks.

    Convolutions become this package's, with the batch norms in evaluation mode, scales, biases,
    residuals and activations that follow them. What is left is Inductor's. A graph for which that
    fails is compiled by Inductor as it is, and a warning says why, once.

    Args:
        graph_module: The graph.
        example_inputs: Its inputs, fake or real.
        mode: Inductor's mode, as in ``torch.compile``.
        options: Inductor's options, as in ``torch.compile``.

    Returns:
        The compiled graph.

    Raises:
        RuntimeError: Inductor has no such mode or option.
    """
    notice_gpus()
    from torch._dynamo.exc import RestartAnalysis, SkipFrame
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    from . import rewrite
    from .inductor import InductorPass
    from .layout import register

    def compiled(patches: dict[str, Any]) -> Callable[..., Any]:
        # By the type of what it returns, this could also be a package of files.
        return cast(
            Callable[..., Any], compile_fx(graph_module, example_inputs, config_patches=patches)
        )

    plain = _inductor_config(mode, options)
    before = [(module, _copied(module.graph)) for module in _modules(graph_module)]
    try:
        found = [each for module, _ in before for each in rewrite.fuse(module.graph)]
        if not any(each.ours for each in found):
            return compiled(plain)
        for module, _ in before:
            module.recompile()
        register()
        users = plain.get("post_grad_custom_pre_pass", config.post_grad_custom_pre_pass)
        _log.info("%s", CompileReport(tuple(found), 1))
        with _counted_as_costly():
            return compiled(plain | {"post_grad_custom_pre_pass": InductorPass(users)})
    except (RestartAnalysis, SkipFrame):  # by which Inductor asks for another trace
        raise
    except Exception as error:
        _tell(f"{type(error).__name__}: {error}")
        for module, graph in before:
            module.graph = graph
            module.recompile()
        return compiled(plain)


def _inductor_config(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a mode and options of ``torch.compile`` say in Inductor's own terms.

    Raises:
        RuntimeError: Inductor has no such mode or option.
    """
    wrapper: Any = torch._TorchCompileInductorWrapper
    return dict(wrapper(mode, options, None).config)


def _counted_as_costly() -> contextlib.AbstractContextManager[None]:
    """With a memory budget, lets operators that PyTorch does not know count as its convolutions do.

    Otherwise all of them would be computed again in the backward pass.
    """
    from torch._functorch import config

    if not hasattr(config, "is_non_builtin_to_include"):  # before PyTorch 2.10
        return contextlib.nullcontext()
    patched: contextlib.AbstractContextManager[None] = config.patch(is_non_builtin_to_include=True)
    return patched


def _modules(graph_module: fx.GraphModule) -> list[fx.GraphModule]:
    """A graph, and those in it that other operators call, such as what is checkpointed.

    Selective checkpointing is left alone: its policy names PyTorch's operators.
    """
    graphs = [module for module in graph_module.modules() if isinstance(module, fx.GraphModule)]
    return [each for each in graphs if "_checkpoint_context_fn" not in each.meta]


def _copied(graph: fx.Graph) -> fx.Graph:
    """A copy, whose inputs know where they come from, as Dynamo's do."""
    twin = copy.deepcopy(graph)
    for node, other in zip(graph.nodes, twin.nodes, strict=True):
        if hasattr(node, "_dynamo_source"):
            other._dynamo_source = node._dynamo_source
    return twin


def reset() -> None:
    """Forgets what CUDA graphs have recorded, as ``torch.compiler.reset`` asks."""
    # Importing it here would add a backend while PyTorch resets all that there are.
    if trees := sys.modules.get("torch._inductor.cudagraph_trees"):
        trees.reset_cudagraph_trees()


backend.reset = reset  # type: ignore[attr-defined]
backend.__name__ = "customconv"  # Dynamo calls it so where it raises


def _tell(problem: str) -> None:
    """Warns about a problem the first time it occurs."""
    if problem in _told:
        return
    _told.add(problem)
    warnings.warn(
        "customconv: a graph is left to Inductor as it is, since compiling it with fused "
        f"convolutions failed. {problem}",
        stacklevel=2,
    )


def compile(model: Model, **options: Any) -> Model:
    """Compiles a model or function, with this package's convolutions and what they fuse.

    It is ``torch.compile(model, backend="customconv", **options)``.

    Args:
        model: The model or function.
        **options: As in ``torch.compile``, but for ``backend``: ``mode``, ``options``, ``dynamic``,
            ``fullgraph`` and so on.

    Returns:
        The compiled model or function.

    A warning tells, once in a process, if this package computes nothing on a GPU that PyTorch uses.

    Raises:
        RuntimeError: Inductor has no such mode or option.
        TypeError: A backend is given, or an argument is not of its type.
    """
    if "backend" in options:
        raise TypeError("customconv.compile() takes no backend: it is one")
    check_callable("compile", model)
    mode, inductor = options.get("mode"), options.get("options")
    if inductor is not None and not isinstance(inductor, Mapping):
        kind = type(inductor).__name__
        raise TypeError(f"compile(): argument 'options' must be dict, not {kind}")
    if (mode is None) != (inductor is None):  # PyTorch refuses both together
        _inductor_config(mode, inductor)
    notice_gpus()
    return cast(Model, torch.compile(model, backend=backend, **options))


def explain_compile(
    model: Callable[..., Any], *inputs: Any, quiet: bool = False, **named: Any
) -> CompileReport:
    """Says what ``compile`` would do to the convolutions of a model, and prints it.

    The model runs once as ``torch.compile`` traces it, in its present mode, with gradients and
    autocast as they are where this is called. Nothing is compiled for a device. A module's buffers
    that change in place, such as running statistics, are restored. As with
    ``torch._dynamo.explain``, what the process has compiled before is forgotten, and is compiled
    again when it is used.

    Args:
        model: The model or function.
        *inputs: What it is called with.
        quiet: Whether to print nothing.
        **named: What it is called with by name.

    Returns:
        What would become of each convolution, why a chain ends where it does, and why a convolution
        is left to PyTorch, as all are on the CPU.

    Raises:
        TypeError: The model cannot be called, or not with these inputs.
    """
    from . import rewrite
    from .composed import foreseen

    check_callable("explain_compile", model)
    if isinstance(model, torch._dynamo.OptimizedModule):  # by torch.compile
        model = model._orig_mod
    found: list[CompiledConvolution] = []
    problems: list[str] = []
    graphs = 0

    def collect(graph_module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        try:
            for module in _modules(graph_module):
                twin = fx.GraphModule(module, copy.deepcopy(module.graph))
                found.extend(foreseen(twin, rewrite.fuse(twin.graph)))
        except Exception as error:
            problems.append(f"left to Inductor: {type(error).__name__}: {error}")
        return graph_module.forward

    owner = getattr(model, "__self__", model)
    modules = list(owner.modules()) if isinstance(owner, torch.nn.Module) else []
    buffers = list(owner.buffers()) if isinstance(owner, torch.nn.Module) else []
    before = [(buffer, buffer.clone()) for buffer in buffers if not buffer.is_meta]
    by_method = ((each, each._compiled_call_impl) for each in modules)  # by Module.compile
    compiled = [(module, call) for module, call in by_method if call is not None]
    torch._dynamo.reset()
    try:
        for module, _ in compiled:
            module._compiled_call_impl = None
        torch.compile(model, backend=collect)(*inputs, **named)
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call
        torch._dynamo.reset()
        with torch.no_grad():
            for buffer, value in before:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
    report = CompileReport(tuple(found), graphs, tuple(problems))
    if not quiet:
        print(report)
    return report
