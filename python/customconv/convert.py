"""Models converted to this package's modules, in place, and back."""

from __future__ import annotations

import copy
import copyreg
import inspect
import itertools
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .nn import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d

Model = TypeVar("Model", bound=nn.Module)

# The modules that are replaced, and by what.
_OURS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
}
_SUBCLASSES: dict[type[nn.Module], type[nn.Module]] = {}  # the same, for classes that users derive
_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
_BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm

# What convert leaves in a module's __dict__ for revert. It goes with copies and pickles.
_REPLACED = "_customconv_replaced"  # of a convolution: its class before
_FOLDED = "_customconv_folded"  # of a batch norm: a _Fold
_STRIDES = "_customconv_strides"  # of any module: its tensors' strides before, by their names


class ReportEntry(NamedTuple):
    """One line of a ``ConversionReport``.

    Attributes:
        name: The module's name in the model, "" for the model itself.
        kind: The name of the module's class, before it was replaced.
        reason: Why the module was left, or what it was folded into, or "".
    """

    name: str
    kind: str
    reason: str


@dataclass(frozen=True)
class ConversionReport:
    """What ``convert`` did. ``print`` it.

    Attributes:
        replaced: The convolutions that are this package's now.
        folded: The batch norms that became part of the convolution before them.
        left: The convolutions that were not replaced and, if folding was asked for, the batch norms
            that were not folded, with the reasons.
    """

    replaced: tuple[ReportEntry, ...]
    folded: tuple[ReportEntry, ...]
    left: tuple[ReportEntry, ...]

    def __str__(self) -> str:
        """A line that counts, and a table: what was done, to which module, of which class, why."""
        groups = {"replaced": self.replaced, "folded": self.folded, "left": self.left}
        rows = [(done, e.name or "(the model)", e.kind, e.reason) for done in groups
                for e in groups[done]]  # fmt: skip
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        counts = ", ".join(f"{len(entries)} {done}" for done, entries in groups.items())
        lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]).rstrip() for row in rows]
        return "\n".join([f"customconv: {counts}", *lines])


def convert(
    model: Model,
    *,
    fold_batchnorm: bool = False,
    channels_last: bool | None = None,
    subclasses: bool = False,
) -> tuple[Model, ConversionReport]:
    """Makes the convolutions of a model this package's, in place.

    Each ``nn.Conv1d``, ``nn.Conv2d``, ``nn.ConvTranspose1d`` and ``nn.ConvTranspose2d`` changes its
    class and nothing else: it stays the same object with the same parameters, so that
    ``state_dict`` keys, optimizers, hooks, parametrizations, shared modules and tied weights hold.
    Copies and pickles of a converted model are converted too, and ``revert`` undoes it in them as
    well.

    A batch norm is folded if it is in evaluation mode and the one user of the output of a
    convolution, which holds for the model as it is now: folding is for inference. It is found by
    tracing the model with ``torch.fx``, or those parts of it that can be traced, and elsewhere
    by looking at neighbours in ``nn.Sequential``. A part that is traced by itself, or a
    ``nn.Sequential``, is taken to be called as a whole: where code outside of it calls its modules
    one by one, and reads what is between a convolution and its batch norm, do not fold. The batch
    norm becomes an ``nn.Identity`` (timm's ``BatchNormAct2d`` keeps its activation), its entries
    leave ``state_dict``, and the convolution has a bias from then on. The tensors from before are
    kept for ``revert``, in memory and in pickles.

    Args:
        model: The model, which is changed. It may be a convolution itself.
        fold_batchnorm: Whether to fold batch norms into the convolutions before them.
        channels_last: True stores parameters and buffers of four dimensions in
            ``torch.channels_last``, as ``model.to(memory_format=torch.channels_last)`` does, False
            in ``torch.contiguous_format``, None as they are. Inputs are the caller's.
        subclasses: Whether to replace subclasses too, if they override neither ``forward`` nor
            ``_conv_forward``. They become subclasses of this package's module as well.

    Returns:
        The model itself, and a report of what was replaced, folded and left.

    Raises:
        TypeError: The model is not an ``nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert() takes an nn.Module, not {type(model).__name__}")
    replaced: list[ReportEntry] = []
    folded: list[ReportEntry] = []
    left: list[ReportEntry] = []
    names = {module: name for name, module in model.named_modules()}
    if fold_batchnorm:
        for batch_norm, found in _fold_all(model, subclasses).items():
            entry = ReportEntry(names[batch_norm], found.kind, found.text(names))
            (folded if found.convolution else left).append(entry)
    for module, name in names.items():
        if not (kind := _convolution_name(module)):
            continue
        if reason := _obstacle(module, subclasses) or _replace(module):
            left.append(ReportEntry(name, kind, reason))
        else:
            replaced.append(ReportEntry(name, kind, ""))
    if channels_last is not None:
        _lay_out(model, torch.channels_last if channels_last else torch.contiguous_format)
    return model, ConversionReport(tuple(replaced), tuple(folded), tuple(left))


def revert(model: Model) -> Model:
    """Undoes ``convert``, in place, whatever options it had and however often it was called.

    Classes, batch norms and memory formats are what they were, and the model's outputs equal the
    first ones bit for bit. Parameters are the current ones, whatever was trained or loaded
    meanwhile, except in layers that a batch norm was folded into: these, and the batch norm, get
    back what they had before, moved to the layer's present device and type. If such a layer was
    changed meanwhile, the change is lost, and a warning says so. A model that was not converted
    stays as it is.

    Args:
        model: The model, or a copy of it, which is changed.

    Returns:
        The model itself.

    Raises:
        TypeError: The model is not an ``nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"revert() takes an nn.Module, not {type(model).__name__}")
    names = {module: name for name, module in model.named_modules()}
    for module in names:
        fold: _Fold | None = vars(module).pop(_FOLDED, None)
        if fold is None:
            continue
        if not fold.undo(module):
            warnings.warn(
                f"{names.get(fold.convolution, 'a convolution')!r} was changed after a batch norm "
                "was folded into it: revert restores what both had before",
                stacklevel=2,
            )
    for module in names:
        original: type[nn.Module] | None = vars(module).pop(_REPLACED, None)
        if original is not None and _kind(module) is _our_class(original):
            _set_class(module, original)
        for name, stride in vars(module).pop(_STRIDES, {}).items():
            tensor = module._parameters.get(name, module._buffers.get(name))
            if tensor is not None and tensor.ndim == len(stride):
                _set_strides(tensor, stride)
    return model


def _kind(module: nn.Module) -> type[nn.Module]:
    """The module's class, without what parametrizations put on top of it."""
    kind: type[nn.Module] = parametrize.type_before_parametrizations(module)
    return kind


def _set_class(module: nn.Module, kind: type[nn.Module]) -> None:
    """Gives a module this class, below its parametrizations if it has any."""
    if parametrize.is_parametrized(module):
        # PyTorch makes one subclass for each module, with a property for each tensor. A copy of the
        # module shares it, so that a new one is made here.
        top = type(module)
        members = {n: v for n, v in vars(top).items() if n not in ("__dict__", "__weakref__")}
        kind = _derived(f"Parametrized{kind.__name__}", (kind,), members)
    module.__class__ = kind


def _derived(
    name: str, bases: tuple[type[nn.Module], ...], members: dict[str, Any]
) -> type[nn.Module]:
    metaclass: Any = type(bases[0])
    made: type[nn.Module] = metaclass(name, bases, members)
    return made


def _base(kind: type) -> type[nn.Module] | None:
    """The class of torch.nn with a counterpart here that a class is, or derives from."""
    return next((base for base in _OURS if issubclass(kind, base)), None)


def _our_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The counterpart of a class: for a subclass, one that derives from it and from ours."""
    if kind in _OURS:
        return _OURS[kind]
    if kind in _SUBCLASSES:
        return _SUBCLASSES[kind]
    base = _base(kind)
    assert base is not None

    def reduce(self: nn.Module, protocol: Any) -> Any:
        # A pickle names the class that this one was made of.
        reduced: Any = super(made, self).__reduce_ex__(max(protocol, 2))
        if reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return reduced
        return _rebuilt, (kind,), *reduced[2:]

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made = _derived(kind.__name__, (kind, _OURS[base]), {**names, "__reduce_ex__": reduce})
    _SUBCLASSES[kind] = made
    return made


def _rebuilt(kind: type[nn.Module]) -> nn.Module:
    made = _our_class(kind)
    return made.__new__(made)


def _convolution_name(module: nn.Module) -> str:
    """The name of a convolution's class, or "" if the module is no convolution."""
    kind = _kind(module)
    if isinstance(module, torch.jit.ScriptModule):
        name = str(module.original_name)
        return name if name in {c.__name__ for c in _CONVOLUTIONS} else ""
    for_quantization = kind.__module__.startswith("torch.ao.nn.") and "Conv" in kind.__name__
    return kind.__name__ if issubclass(kind, _CONVOLUTIONS) or for_quantization else ""


def _obstacle(module: nn.Module, subclasses: bool) -> str:
    """Why a convolution is not replaced, or ""."""
    kind = _kind(module)
    base = _base(kind)
    if isinstance(module, torch.jit.ScriptModule):
        return "it is scripted or traced"
    if kind.__module__.startswith("torch.ao.nn."):
        return "it is a module for quantization"
    if any(is_lazy(p) for p in module.parameters(recurse=False)):
        return "its parameters are not initialized yet"
    if base is None:
        return f"customconv has no {kind.__name__}"
    if issubclass(kind, _OURS[base]):
        return "it is customconv's already"
    if kind is not base and not subclasses:
        return f"it is a subclass of {base.__name__}"
    if overridden := _overridden(module):
        return f"it has a {overridden} of its own"
    return ""


def _overridden(module: nn.Module) -> str:
    """The method that makes a module more than a convolution of torch.nn or of ours, or ""."""
    kind = _kind(module)
    base = _base(kind)
    assert base is not None
    for method in ("forward", "_conv_forward"):
        plain = [getattr(b, method, None) for b in (base, _OURS[base])]
        if method in vars(module) or getattr(kind, method, None) not in plain:
            return method
    return ""


def _replace(module: nn.Module) -> str:
    """Replaces a convolution's class. Returns why that cannot be done, or ""."""
    kind = _kind(module)
    try:
        _set_class(module, _our_class(kind))
    except TypeError as error:  # the classes' metaclasses or memory layouts do not go together
        return f"its class cannot be replaced: {error}"
    vars(module)[_REPLACED] = kind
    return ""


def _lay_out(model: nn.Module, layout: torch.memory_format) -> None:
    """Stores all tensors of four dimensions in this memory format, and notes how they were."""
    found = []
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and not is_lazy(tensor) and tensor.ndim == 4:
                vars(module).setdefault(_STRIDES, {}).setdefault(name, tensor.stride())
                found.append(tensor)
    for tensor in found:
        for each in (tensor, tensor.grad):
            if each is not None:
                each.data = each.data.to(memory_format=layout)


def _set_strides(tensor: Tensor, stride: tuple[int, ...]) -> None:
    """Gives a tensor, and its gradient, these strides, if it can have them."""
    overlaps = any(step == 0 and size > 1 for step, size in zip(stride, tensor.shape, strict=True))
    for each in (tensor, tensor.grad):
        if each is not None and each.stride() != stride and not overlaps:
            like = torch.empty_strided(each.shape, stride, dtype=each.dtype, device=each.device)
            each.data = like.copy_(each.data)


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

    def apply(self, batch_norm: nn.Module) -> None:
        """Folds: the parameters stay the same objects, and the batch norm does, too."""
        weight, bias = self.folded()
        before = self.convolution._parameters["weight"]
        assert before is not None
        before.data = weight
        if self.bias is None:
            self.convolution.bias = nn.Parameter(bias, requires_grad=before.requires_grad)
        else:
            self.convolution._parameters["bias"].data = bias  # type: ignore[union-attr]
        batch_norm._parameters, batch_norm._buffers = {}, {}
        batch_norm.__class__ = _Activation if _is_timms(self.kind) else nn.Identity
        vars(batch_norm)[_FOLDED] = self

    def undo(self, batch_norm: nn.Module) -> bool:
        """Restores both. Returns whether the convolution was still what folding had made it."""
        now = self.convolution._parameters
        weight, bias = now["weight"], now["bias"]
        assert weight is not None
        same = weight.is_meta or all(
            after is not None and torch.equal(after.data, made.to(after.device, after.dtype))
            for after, made in zip((weight, bias), self.folded(), strict=True)
        )
        device, changed = weight.device, weight.dtype != self.weight.dtype

        def moved(tensor: Tensor) -> Tensor:
            """As ``nn.Module.to`` would have moved it, had it seen it."""
            cast = changed and tensor.is_floating_point()
            return tensor.to(device, weight.dtype if cast else tensor.dtype)

        weight.data = moved(self.weight)
        if self.bias is None:
            now["bias"] = None
        elif bias is not None:
            bias.data = moved(self.bias)
        for tensor in (*self.parameters.values(), *self.buffers.values()):
            if tensor is not None:
                tensor.data = moved(tensor.data)
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
        if isinstance(self.convolution, (nn.ConvTranspose1d, nn.ConvTranspose2d)):
            # Of shape (groups * inputs, outputs, R, S), and outputs differ between groups.
            grouped = weight.view(self.convolution.groups, -1, *weight.shape[1:])
            scales = scale.view(self.convolution.groups, 1, -1, *[1] * (weight.ndim - 2))
            weight = (grouped * scales).flatten(0, 1)
        else:
            weight = weight * scale.view(-1, *[1] * (weight.ndim - 1))
        return torch.empty_like(self.weight).copy_(weight), shift.to(self.weight.dtype)


@dataclass(frozen=True)
class _Found:
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

    def text(self, names: dict[nn.Module, str]) -> str:
        """The report's last column."""
        if self.convolution is not None:
            return f"into {names[self.convolution]}"
        return self.reason if self.source is None else self.reason.format(names[self.source])


# The convolution whose output a batch norm normalizes, or None, and what speaks against folding.
_Source: TypeAlias = tuple[nn.Module | None, str]


def _fold_all(model: nn.Module, subclasses: bool) -> dict[nn.Module, _Found]:
    """Folds each batch norm that can be, and says what became of each."""
    batch_norms: list[nn.Module] = [m for m in model.modules() if isinstance(m, _BATCH_NORMS)]
    if model.training:
        reason = "the model is in training mode"
        return {b: _Found(type(b).__name__, None, reason) for b in batch_norms}
    sources = _Sources(model).found if batch_norms else {}
    uses = Counter(module for _, module in model.named_modules(remove_duplicate=False))
    owners = Counter(_storages(model))
    found = {}
    for batch_norm in batch_norms:
        kind = _kind(batch_norm).__name__
        convolution, reason = sources[batch_norm]
        reason = _unfoldable(batch_norm) or reason
        if convolution is not None and not reason:
            reason = _unfit(convolution, batch_norm, subclasses)
            if uses[batch_norm] > 1:
                reason = "it is shared: the model has it under several names"
            elif uses[convolution] > 1:
                reason = "{} is shared: the model has it under several names"
            elif any(owners[s] > 1 for s in _storages(convolution)):
                reason = "{} shares its parameters with another module"
        if convolution is None or reason:
            found[batch_norm] = _Found(kind, None, reason, convolution)
        else:
            _Fold.of(convolution, batch_norm).apply(batch_norm)
            found[batch_norm] = _Found(kind, convolution)
    return found


def _storages(model: nn.Module) -> Iterator[int]:
    """The memory of each tensor that a module of the model owns, once for each owner."""
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is None or is_lazy(tensor) or not tensor.numel():
                continue
            plain = type(tensor) in (Tensor, nn.Parameter)
            yield (tensor.untyped_storage().data_ptr() if plain else 0) or id(tensor)


def _is_timms(kind: type) -> bool:
    """Whether a class is timm's BatchNormAct2d: a batch norm, and then ``drop`` and ``act``."""
    return kind.__name__ == "BatchNormAct2d" and kind.__module__.split(".")[0] == "timm"


def _has_hooks(module: nn.Module) -> bool:
    return any(value for name, value in vars(module).items() if name.endswith("_hooks"))


def _unfoldable(batch_norm: nn.Module) -> str:
    """What in a batch norm itself speaks against folding it, or ""."""
    kind = type(batch_norm)
    if parametrize.is_parametrized(batch_norm):
        return "it has parametrizations"
    if kind not in (nn.BatchNorm1d, nn.BatchNorm2d) and not _is_timms(kind):
        return "it is neither BatchNorm1d nor BatchNorm2d, and may do more"
    if batch_norm.training:
        return "it is in training mode"
    if not batch_norm.track_running_stats or batch_norm._buffers.get("running_mean") is None:
        return "it has no running statistics"
    if "forward" in vars(batch_norm):
        return "it has a forward of its own"
    if _has_hooks(batch_norm):
        return "it has hooks"
    return ""


def _unfit(convolution: nn.Module, batch_norm: nn.Module, subclasses: bool) -> str:
    """What in a convolution speaks against folding a batch norm into it, or ""."""
    kind = _kind(convolution)
    obstacle = _obstacle(convolution, subclasses)
    if _base(kind) is None or (obstacle and not issubclass(kind, tuple(_OURS.values()))):
        return "{} is not replaced"
    if _overridden(convolution):
        return "{} may do more than convolve"
    if parametrize.is_parametrized(convolution):
        return "{} has parametrizations"
    if _has_hooks(convolution):
        return "{} has hooks"
    if convolution.training:
        return "{} is in training mode"
    weight, mean = convolution._parameters.get("weight"), batch_norm._buffers["running_mean"]
    if type(weight) is not nn.Parameter or not weight.is_floating_point() or weight.is_meta:
        return "the weight of {} is no plain tensor of floating-point numbers"
    if mean is None or mean.device != weight.device:
        return "{} is on another device"
    if batch_norm.num_features != convolution.out_channels:
        return "{} has another number of channels"
    return ""


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (*_CONVOLUTIONS, *_BATCH_NORMS))
        return known or super().is_leaf_module(m, module_qualified_name)


class _Graph(NamedTuple):
    """What a module's forward does, as operations and calls of modules below it."""

    root: nn.Module
    nodes: list[fx.Node]


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
        children = list(module.children())
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            for before, after in itertools.pairwise(children):
                if isinstance(before, _CONVOLUTIONS) and isinstance(after, _BATCH_NORMS):
                    self.found[after] = before, ""
        for child in children:
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
    attributes = set()
    for node in graph.nodes:
        if node.op == "call_module":
            called = graph.root.get_submodule(str(node.target))
            calls.setdefault(called, []).append(node)
            inner.update(m for m in called.modules() if m is not called)
        elif node.op == "get_attr":
            attributes.add(str(node.target))
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
    if not isinstance(source, fx.Node) or not isinstance(convolution, _CONVOLUTIONS):
        return None, "what it normalizes is not the output of a convolution"
    if convolution in inner or len(calls[convolution]) > 1:
        return convolution, "{} is called more than once"
    if len(source.users) > 1:
        return convolution, "the output of {} has another user"
    if attributes.intersection(f"{source.target}.{name}" for name in ("weight", "bias")):
        return convolution, "the parameters of {} have another user"
    return convolution, ""


def _graphs(module: nn.Module) -> list[_Graph]:
    """What a module does: if it has optional arguments, with all and with none of them.

    None, if not all of it can be traced.
    """
    try:
        twin = _twin(module)
        arguments = inspect.signature(twin.forward).parameters.values()
        defaults = {a.name: a.default for a in arguments if a.default is not a.empty}
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            variants = [None, defaults] if defaults else [None]
            graphs = [_Tracer().trace(twin, concrete) for concrete in variants]
    except Exception:  # of any kind: copies and forwards are the user's code
        return []
    return [_Graph(module, list(graph.nodes)) for graph in graphs]


def _twin(module: nn.Module) -> nn.Module:
    """A copy with the same parameters and no hooks, for tracing: forwards may change attributes."""
    tensors: list[Tensor] = [*module.parameters()]
    for part in module.modules():
        tensors += [value for value in vars(part).values() if isinstance(value, Tensor)]
    twin = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    for part in twin.modules():
        for name, value in vars(part).items():
            if name.endswith("_hooks") and isinstance(value, dict):
                value.clear()
    return twin
