"""Batch norms that become part of the convolution before them, and how to undo it."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import random
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

_TRANSPOSED = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
_PLAIN_BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
_BATCH_NORMS = *_PLAIN_BATCH_NORMS, nn.SyncBatchNorm

# What folding leaves in a batch norm's __dict__, a _Fold. It goes with copies and pickles.
_FOLDED = "_customconv_folded"


@dataclass(frozen=True)
class Found:
    """What was found out about a batch norm.

    Attributes:
        kind: The name of its class.
        convolution: What it is folded into, or None if it is not.
        reason: Why it is not folded. "{}" stands for the name of the convolution in question.
        source: The convolution in question.
    """

    kind: str
    convolution: nn.Module | None = None
    reason: str = ""
    source: nn.Module | None = None

    def text(self, names: Mapping[nn.Module, str]) -> str:
        """The report's last column."""
        if self.convolution is not None:
            return f"into {names[self.convolution]}"
        if self.source is None:
            return self.reason
        return self.reason.replace("{}", names[self.source], 1)  # once: errors may have braces


def fold_all(model: nn.Module, obstacle: Callable[[nn.Module], str]) -> dict[nn.Module, Found]:
    """Folds each batch norm that can be, and says what became of each.

    Args:
        model: The model, which is as it was if this raises.
        obstacle: Why no batch norm goes into a convolution, as far as the convolution's class
            tells, or "".
    """
    batch_norms: list[nn.Module] = [m for m in model.modules() if isinstance(m, _BATCH_NORMS)]
    if model.training:
        reason = "the model is in training mode"
        return {b: Found(type(b).__name__, None, reason) for b in batch_norms}
    sources = _Sources(model).found if batch_norms else {}
    uses = Counter(module for _, module in model.named_modules(remove_duplicate=False))
    owners = Counter(_storages(model))
    hooked = [set(m.modules()) for m in model.modules() if _has_hooks(m, _HOOKS_OF_CALLS)]
    found = {}
    folds = []
    for batch_norm in batch_norms:
        convolution, reason = sources[batch_norm]
        reason = _unfoldable(batch_norm) or reason
        if convolution is not None and not reason:
            reason = obstacle(convolution) or _unfit(convolution, batch_norm)
            if uses[batch_norm] > 1:
                reason = "it is shared: the model has it under several names"
            elif uses[convolution] > 1:
                reason = "{} is shared: the model has it under several names"
            elif any(owners[s] > 1 for s in _storages(convolution)):
                reason = "{} shares its parameters with another module"
            elif not reason and any((convolution in m) != (batch_norm in m) for m in hooked):
                reason = "a module that has only one of {} and it inside has hooks"
        if convolution is not None and not reason:
            fold = _Fold.of(convolution, batch_norm)
            try:
                folds.append((fold, batch_norm, *fold.folded()))
            except Exception as error:  # such as a device without double precision
                reason = f"what {{}} would become cannot be computed: {error}"
        folded = convolution is not None and not reason
        kind = kind_of(batch_norm).__name__
        found[batch_norm] = Found(kind, convolution if folded else None, reason, convolution)
    for fold, batch_norm, weight, bias in folds:
        fold.apply(batch_norm, weight, bias)
    return found


def unfold_all(names: Mapping[nn.Module, str]) -> list[str]:
    """Undoes what ``fold_all`` did to the modules of a model, and says what went wrong."""
    problems = []
    for module, name in names.items():
        fold: _Fold | None = vars(module).get(_FOLDED)
        if fold is None:
            continue
        convolution = repr(names.get(fold.convolution, "a convolution"))
        if not fold.can_undo():
            problems.append(
                f"{convolution} was pruned, parametrized or sharded after a batch norm was folded "
                f"into it: {name!r} stays folded"
            )
            continue
        if not fold.undo(module):
            problems.append(
                f"{convolution} was changed after a batch norm was folded into it: revert restores "
                "what both had before"
            )
        del vars(module)[_FOLDED]
    return problems


def kind_of(module: nn.Module) -> type[nn.Module]:
    """The module's class, without what parametrizations put on top of it."""
    kind: type[nn.Module] = parametrize.type_before_parametrizations(module)
    return kind


# --- Folding one batch norm ---


class _Activation(nn.Module):
    """What is left of timm's BatchNormAct2d once the batch norm is folded."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.act(self.drop(x))
        return output


@dataclass
class _Fold:
    """A batch norm in a convolution, and what both were before.

    Attributes:
        convolution: The convolution.
        kind: The batch norm's class.
        parameters: The batch norm's parameters.
        buffers: The batch norm's buffers.
        weight: The convolution's weight.
        bias: The convolution's bias, or None.
        eps: The batch norm's, as it was.
    """

    convolution: nn.Module
    kind: type[nn.Module]
    parameters: dict[str, nn.Parameter | None]
    buffers: dict[str, Tensor | None]
    weight: Tensor
    bias: Tensor | None
    eps: float

    @classmethod
    def of(cls, convolution: nn.Module, batch_norm: nn.Module) -> _Fold:
        """What folding will change, as it is now."""
        weight, bias = convolution._parameters["weight"], convolution._parameters["bias"]
        assert weight is not None
        return cls(
            convolution, type(batch_norm), batch_norm._parameters, batch_norm._buffers, weight.data,
            None if bias is None else bias.data, float(batch_norm.eps),  # type: ignore[arg-type]
        )  # fmt: skip

    def apply(self, batch_norm: nn.Module, weight: Tensor, bias: Tensor) -> None:
        """Folds: the parameters stay the same objects, and the batch norm does, too."""
        now = self.convolution._parameters
        before = now["weight"]
        assert before is not None
        before.data = weight
        if self.bias is None:
            now["bias"] = nn.Parameter(bias, requires_grad=before.requires_grad)
        else:
            now["bias"].data = bias  # type: ignore[union-attr]
        batch_norm._parameters, batch_norm._buffers = {}, {}
        batch_norm.__class__ = _Activation if _is_timms(self.kind) else nn.Identity
        vars(batch_norm)[_FOLDED] = self

    def can_undo(self) -> bool:
        """Whether the convolution still has plain parameters, which ``undo`` can set."""
        now = self.convolution._parameters
        plain = all(
            type(p) is nn.Parameter and p.layout is torch.strided and p.is_floating_point()
            for p in (now.get("weight"), now.get("bias"))
            if p is not None
        )
        whole = now.get("weight") is not None and "bias" in now
        return plain and whole and not parametrize.is_parametrized(self.convolution)

    def undo(self, batch_norm: nn.Module) -> bool:
        """Restores both. Returns whether the convolution was still what folding had made it."""
        now = self.convolution._parameters
        weight, bias = now["weight"], now["bias"]
        assert weight is not None
        same = weight.is_meta or all(
            after is not None and _equal(after.data, made.to(after.device, after.dtype))
            for after, made in zip((weight, bias), self.folded(), strict=True)
        )
        device, changed = weight.device, weight.dtype != self.weight.dtype

        def moved(tensor: Tensor) -> Tensor:
            """As ``nn.Module.to`` would have moved it, had it seen it."""
            cast = changed and tensor.is_floating_point()
            return tensor.detach().to(device, weight.dtype if cast else tensor.dtype)

        # All of the memory is there before the first change.
        before = moved(self.weight), None if self.bias is None else moved(self.bias)
        parameters = {n: p if p is None else moved(p) for n, p in self.parameters.items()}
        buffers = {n: b if b is None else moved(b) for n, b in self.buffers.items()}
        weight.data = before[0]
        if before[1] is None:
            now["bias"] = None
        elif bias is None:
            now["bias"] = nn.Parameter(before[1], requires_grad=weight.requires_grad)
        else:
            bias.data = before[1]
        for name, value in parameters.items():
            parameter = self.parameters[name]
            if parameter is not None and value is not None and not _set(parameter, value):
                self.parameters[name] = nn.Parameter(value, parameter.requires_grad)
        for name, value in buffers.items():
            buffer = self.buffers[name]
            if buffer is not None and value is not None and not _set(buffer, value):
                self.buffers[name] = value
        batch_norm._parameters, batch_norm._buffers = self.parameters, self.buffers
        batch_norm.__class__ = self.kind
        return same

    def folded(self) -> tuple[Tensor, Tensor]:
        """The weight and the bias of both in one, computed in double precision."""
        mean, variance = self.buffers["running_mean"], self.buffers["running_var"]
        gamma, beta = self.parameters["weight"], self.parameters["bias"]
        assert mean is not None and variance is not None
        scale = (variance.double() + self.eps).rsqrt()
        if gamma is not None:
            scale = scale * gamma.detach().double()
        shift = -mean.double() * scale if self.bias is None else (self.bias - mean.double()) * scale
        if beta is not None:
            shift = shift + beta.detach().double()
        weight = self.weight.double()
        if isinstance(self.convolution, _TRANSPOSED):
            # The shape is (groups * inputs, outputs, taps...); outputs differ between groups.
            grouped = weight.view(self.convolution.groups, -1, *weight.shape[1:])
            scales = scale.view(self.convolution.groups, 1, -1, *[1] * (weight.ndim - 2))
            weight = (grouped * scales).flatten(0, 1)
        else:
            weight = weight * scale.view(-1, *[1] * (weight.ndim - 1))
        return torch.empty_like(self.weight).copy_(weight), shift.to(self.weight.dtype)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, of which a NaN is one."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _set(tensor: Tensor, value: Tensor) -> bool:
    """Gives a tensor a new value in place. Returns whether it can, which devices decide."""
    if torch._has_compatible_shallow_copy_type(tensor, value):
        tensor.data = value
        return True
    return False


def _is_timms(kind: type) -> bool:
    """Whether a class is timm's BatchNormAct2d: a batch norm, and then ``drop`` and ``act``."""
    return kind.__name__ == "BatchNormAct2d" and kind.__module__.split(".")[0] == "timm"


# --- What speaks against folding ---

_HOOKS_OF_CALLS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


def _has_hooks(module: nn.Module, names: tuple[str, ...] = ("_hooks",)) -> bool:
    """Whether a module has hooks whose attribute ends with one of the names."""
    return any(value for name, value in vars(module).items() if name.endswith(names))


def _storages(model: nn.Module) -> Iterator[int]:
    """The memory of each tensor that a module of the model owns, once for each owner."""
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is None or is_lazy(tensor) or not tensor.numel():
                continue
            yield (tensor.untyped_storage().data_ptr() if _is_plain(tensor) else 0) or id(tensor)


def _is_plain(tensor: object) -> bool:
    """Whether this is a tensor of PyTorch's own class with memory of its own."""
    if not isinstance(tensor, Tensor) or type(tensor) not in (Tensor, nn.Parameter):
        return False
    return tensor.layout is torch.strided


def _unfoldable(batch_norm: nn.Module) -> str:
    """What in a batch norm itself speaks against folding it, or ""."""
    kind = type(batch_norm)
    if parametrize.is_parametrized(batch_norm):
        return "it has parametrizations"
    if kind not in _PLAIN_BATCH_NORMS and not _is_timms(kind):
        return "it is neither BatchNorm1d, BatchNorm2d nor BatchNorm3d, and may do more"
    if batch_norm.training:
        return "it is in training mode"
    if not batch_norm.track_running_stats or batch_norm._buffers.get("running_mean") is None:
        return "it has no running statistics"
    statistics = {"running_mean", "running_var"}
    buffers = batch_norm._buffers.keys() - {"num_batches_tracked"}
    if batch_norm._parameters.keys() != {"weight", "bias"} or buffers != statistics:
        return "its parameters and buffers are not those of a batch norm"
    if "forward" in vars(batch_norm):
        return "it has a forward of its own"
    if _has_hooks(batch_norm):
        return "it has hooks"
    return ""


def _unfit(convolution: nn.Module, batch_norm: nn.Module) -> str:
    """What in a convolution speaks against folding a batch norm into it, or ""."""
    if parametrize.is_parametrized(convolution):
        return "{} has parametrizations"
    if _has_hooks(convolution):
        return "{} has hooks"
    if convolution.training:
        return "{} is in training mode"
    weight, bias = (convolution._parameters.get(name) for name in ("weight", "bias"))
    if weight is None or not _is_plain(weight) or not weight.is_floating_point() or weight.is_meta:
        return "the weight of {} is no plain tensor of floating-point numbers"
    if "bias" not in convolution._parameters:
        return "the bias of {} is not a parameter"
    statistics = [batch_norm._buffers[name] for name in ("running_mean", "running_var")]
    vectors = [t for t in (bias, *batch_norm._parameters.values(), *statistics) if t is not None]
    if not all(_is_plain(t) and t.is_floating_point() for t in vectors):
        return "it or {} has a tensor that is no plain one of floating-point numbers"
    if any(t.device != weight.device for t in vectors):
        return "{} is on another device"
    transposed = isinstance(convolution, _TRANSPOSED)
    outputs = weight.shape[1] * int(convolution.groups) if transposed else weight.shape[0]  # type: ignore[arg-type]
    if any(t.shape != (outputs,) for t in vectors) or None in statistics:
        return "{} has another number of channels"
    return ""


# --- What a batch norm normalizes ---

# The convolution whose output it is, or None, and what speaks against folding.
_Source: TypeAlias = tuple[nn.Module | None, str]


class _Graph(NamedTuple):
    """What a module's forward does.

    Attributes:
        root: The module.
        nodes: The operations and the calls of modules below it.
        read: The convolutions and batch norms of whose tensors it reads one by itself.
        kept: The results that it keeps in attributes.
    """

    root: nn.Module
    nodes: list[fx.Node]
    read: set[nn.Module]
    kept: set[fx.Node]


class _Sources:
    """What each batch norm of a model normalizes, found without running the model.

    Attributes:
        found: The convolution, or None, and why it cannot be folded as far as calls tell.
    """

    found: dict[nn.Module, _Source]

    def __init__(self, model: nn.Module) -> None:
        self.found = {}
        self._visit(model)

    def _visit(self, module: nn.Module) -> None:
        """Looks at a module as a whole if it can be traced, else at its parts."""
        batch_norms = [m for m in module.modules() if isinstance(m, _BATCH_NORMS)]
        if not batch_norms:
            return
        if graphs := _graphs(module):
            self.found.update({b: _in_graphs(b, graphs) for b in batch_norms})
            return
        for batch_norm in batch_norms:
            reason = (
                "it is in no part of the model that can be traced, and follows no convolution in "
                "an nn.Sequential"
            )
            self.found.setdefault(batch_norm, (None, reason))
        # Not children(), which leaves out a module's second place.
        children = [child for child in module._modules.values() if child is not None]
        sequential = isinstance(module, nn.Sequential) and "forward" not in vars(module)
        if sequential and type(module).forward is nn.Sequential.forward:
            for before, after in itertools.pairwise(children):
                if isinstance(before, CONVOLUTIONS) and isinstance(after, _BATCH_NORMS):
                    self.found[after] = before, ""
        for child in dict.fromkeys(children):
            if not isinstance(child, _BATCH_NORMS):
                self._visit(child)


def _in_graphs(batch_norm: nn.Module, graphs: Sequence[_Graph]) -> _Source:
    """What all graphs agree about."""
    sources = [_in_graph(batch_norm, graph) for graph in graphs]
    refused = next((source for source in sources if source[1]), None)
    if refused is None and len({convolution for convolution, _ in sources}) > 1:
        return None, "what it normalizes depends on the arguments of the model"
    return refused or sources[0]


def _in_graph(batch_norm: nn.Module, graph: _Graph) -> _Source:
    calls: dict[nn.Module, list[fx.Node]] = {}
    inner: set[nn.Module] = set()  # of modules that were not traced
    for node in graph.nodes:
        if node.op == "call_module":
            called = graph.root.get_submodule(str(node.target))
            calls.setdefault(called, []).append(node)
            inner.update(m for m in called.modules() if m is not called)
    nodes = calls.get(batch_norm, [])
    if batch_norm in inner or not nodes:
        return None, "no call of it was found"
    if len(nodes) > 1:
        return None, "it is called more than once"
    (node,) = nodes
    source = node.args[0] if node.args else node.kwargs.get("input")
    convolution = None
    if isinstance(source, fx.Node) and source.op == "call_module":
        convolution = graph.root.get_submodule(str(source.target))
    if not isinstance(source, fx.Node) or not isinstance(convolution, CONVOLUTIONS):
        return None, "what it normalizes is not the output of a convolution"
    if convolution in inner or len(calls[convolution]) > 1:
        return convolution, "{} is called more than once"
    if len(source.users) > 1 or source in graph.kept:
        return convolution, "the output of {} has another user"
    if convolution in graph.read:
        return convolution, "the parameters of {} have another user"
    if batch_norm in graph.read:
        return convolution, "its parameters or buffers have another user"
    return convolution, ""


# --- Tracing ---


def _graphs(module: nn.Module) -> list[_Graph]:
    """What a module does: if it has optional arguments, with all and with none of them.

    None, if not all of it can be traced.
    """
    try:
        arguments = inspect.signature(module.forward).parameters.values()
        defaults = {a.name: a.default for a in arguments if a.default is not a.empty}
        variants = [None, defaults] if defaults else [None]
        return [_traced(module, concrete) for concrete in variants]
    except Exception:  # of any kind: copies and forwards are the user's code
        return []


def _traced(module: nn.Module, concrete: dict[str, Any] | None) -> _Graph:
    """What a module does with these arguments. Raises if that cannot be found out."""
    twin = _twin(module)
    parts = dict(twin.named_modules())
    watched = {}
    for name, part in parts.items():
        if isinstance(part, (*CONVOLUTIONS, *_BATCH_NORMS)):
            watched[name] = _Watched(part._parameters), _Watched(part._buffers)
            part._parameters, part._buffers = watched[name]
    with _without_traces(), _Uses() as uses:
        nodes = list(_Tracer().trace(twin, concrete).nodes)
    if dict(twin.named_modules()) != parts:
        raise RuntimeError("forward replaces modules")
    again = _twin(module)
    batch_norms: list[nn.Module] = [m for m in again.modules() if isinstance(m, _BATCH_NORMS)]
    for batch_norm in batch_norms:
        if not _unfoldable(batch_norm):
            batch_norm.__class__ = nn.Identity
    with _without_traces():
        after = _Tracer().trace(again, concrete).nodes
    if [node.format_node() for node in after] != [node.format_node() for node in nodes]:
        raise RuntimeError("forward looks at classes, and does something else without batch norms")
    tensors: dict[Any, Tensor] = {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
    used = {id(tensors[n.target]) for n in nodes if n.op == "get_attr" and n.target in tensors}
    used |= uses.tensors
    read = {
        module.get_submodule(name)
        for name, dicts in watched.items()
        if any(each.touched or not used.isdisjoint(map(id, each.values())) for each in dicts)
    }
    kept = {
        value.node
        for part in parts.values()
        for value in _inside(vars(part))
        if isinstance(value, fx.Proxy)
    }
    return _Graph(module, nodes, read, kept)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (*CONVOLUTIONS, *_BATCH_NORMS))
        return known or super().is_leaf_module(m, module_qualified_name)


class _Watched(dict[str, Any]):
    """A module's parameters or buffers, and whether code has asked for one by its name."""

    touched = False

    def __getitem__(self, name: str) -> Any:
        self.touched = True
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.touched = True
        super().__setitem__(name, value)


class _Uses(TorchFunctionMode):
    """Notes the tensors that code computes with, or asks for an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: set[int] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self.tensors.update(id(v) for v in _inside((args, kwargs)) if isinstance(v, Tensor))
        return func(*args, **kwargs)


def _inside(value: object) -> Iterator[object]:
    """A value, and all that is in it if it is a list, a tuple, a set or a dictionary."""
    seen = set()
    rest = [value]
    while rest:
        each = rest.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, dict):
            rest += each.values()
        elif isinstance(each, (list, tuple, set)):
            rest += each


@contextlib.contextmanager
def _without_traces() -> Iterator[None]:
    """Runs code without gradients and warnings, and restores the states of random numbers."""
    state = random.getstate()
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if started else ()
    try:
        with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(state)


def _twin(module: nn.Module) -> nn.Module:
    """A copy without hooks that shares nothing a forward can write to.

    Parameters are on the meta device and take no memory: fx gives code proxies in place of them.
    """
    memo: dict[int, Any] = {}
    hooks = {name for name in vars(nn.Module()) if name.endswith("_hooks")}
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):  # copies itself, and its tensors are in C++
            continue
        attributes = vars(part)
        memo.update((id(attributes[name]), OrderedDict()) for name in hooks & attributes.keys())
        tensors = *attributes.values(), *part._parameters.values(), *part._buffers.values()
        for tensor in tensors:
            if type(tensor) is nn.Parameter and _is_plain(tensor):
                meta = torch.empty_like(tensor, device="meta")
                memo[id(tensor)] = nn.Parameter(meta, tensor.requires_grad)
            elif type(tensor) is Tensor:  # of any layout, and perhaps a result of autograd
                memo[id(tensor)] = tensor.detach().clone()
    return copy.deepcopy(module, memo)
