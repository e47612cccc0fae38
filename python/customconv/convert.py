"""Models converted to this package's modules, in place, and back."""

from __future__ import annotations

import copyreg
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .arguments import LAST
from .fold import CONVOLUTIONS, fold_all, kind_of, unfold_all
from .nn import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .notices import notice_gpus

Model = TypeVar("Model", bound=nn.Module)

# The modules that are replaced, and by what.
_OURS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
}
_SUBCLASSES: dict[type[nn.Module], type[nn.Module]] = {}  # the same, for classes that users derive

# What convert leaves in a module's __dict__ for revert. It goes with copies and pickles.
_REPLACED = "_customconv_replaced"  # of a convolution: its class before
_STRIDES = "_customconv_strides"  # of any module: its tensors' shapes and strides, by their names


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


class Converted(NamedTuple):
    """What ``convert`` returns: ``model, report = customconv.convert(...)``.

    Attributes:
        model: The model.
        report: What was replaced, folded and left.
    """

    model: Any
    report: ConversionReport

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses to be called as the model.

        Raises:
            TypeError: Always; it says how to get the model.
        """
        raise TypeError(_TWO_RESULTS)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuses to be used as the model.

        Raises:
            AttributeError: Always; it says how to get the model.
        """
        if name.startswith("__"):  # Python asks for these itself
            raise AttributeError(name)
        raise AttributeError(f"{_TWO_RESULTS}; they have no attribute {name!r} themselves")


_TWO_RESULTS = (
    "customconv.convert() returns the model and a report: model, report = customconv.convert(...)"
)


def convert(
    model: Model,
    *,
    fold_batchnorm: bool = False,
    channels_last: bool | None = None,
    subclasses: bool = False,
) -> tuple[Model, ConversionReport]:
    """Makes the convolutions of a model this package's, in place.

    Each convolution of ``torch.nn`` (``nn.Conv1d`` to ``nn.Conv3d``, ``nn.ConvTranspose1d`` to
    ``nn.ConvTranspose3d``) changes its class and nothing else: it stays the same object with the
    same parameters, so that ``state_dict`` keys, optimizers, hooks, parametrizations, shared
    modules and tied weights hold.
    Copies and pickles of a converted model are converted too, and ``revert`` undoes it in them as
    well.

    A batch norm is folded if it is in evaluation mode and the one user of the output of a
    convolution, which holds for the model as it is now: folding is for inference. It is found by
    tracing the model with ``torch.fx``, or those parts of it that can be traced, and elsewhere
    by looking at neighbours in ``nn.Sequential``. Tracing works on a copy: it neither changes the
    model nor draws random numbers. A part that is traced by itself, or a ``nn.Sequential``, is
    taken to be called as a whole: where code outside of it calls its modules one by one, and reads
    what is between a convolution and its batch norm, or reads the tensors of these two, do not
    fold. The batch norm becomes an ``nn.Identity`` (timm's ``BatchNormAct2d`` keeps its
    activation), its entries leave ``state_dict``, and the convolution has a bias from then on. The
    tensors from before are kept for ``revert``, in memory and in pickles.

    Args:
        model: The model, which is changed. It may be a convolution itself.
        fold_batchnorm: Whether to fold batch norms into the convolutions before them.
        channels_last: True stores parameters and buffers of four dimensions in
            ``torch.channels_last`` and those of five in ``torch.channels_last_3d``, as
            ``model.to(memory_format=...)`` does for models that have only one kind, False in
            ``torch.contiguous_format``, None as they are. Inputs are the caller's.
        subclasses: Whether to replace subclasses too, if they override neither ``forward`` nor
            ``_conv_forward``. They become subclasses of this package's module as well.

    Returns:
        The model itself, and a report of what was replaced, folded and left. A warning tells, once
        in a process, if this package computes nothing on a GPU that PyTorch uses.

    Raises:
        TypeError: The model is not an ``nn.Module``, or ``channels_last`` not one of its values.
    """
    _check_model("convert", model)
    if channels_last is not None and not isinstance(channels_last, bool):
        raise TypeError(
            "convert(): argument 'channels_last' must be True, False or None, not "
            f"{type(channels_last).__name__}"
        )
    notice_gpus()
    replaced: list[ReportEntry] = []
    folded: list[ReportEntry] = []
    left: list[ReportEntry] = []
    names = {module: name for name, module in model.named_modules()}
    if fold_batchnorm:
        found_all = fold_all(model, lambda m: _fold_obstacle(m, subclasses))
        for batch_norm, found in found_all.items():
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
        _lay_out(model, channels_last)
    return Converted(model, ConversionReport(tuple(replaced), tuple(folded), tuple(left)))


def revert(model: Model) -> Model:
    """Undoes ``convert``, in place, whatever options it had and however often it was called.

    Classes, batch norms and memory formats are what they were, and the model's outputs equal the
    first ones bit for bit. Parameters are the current ones, whatever was trained or loaded
    meanwhile, except in layers that a batch norm was folded into: these, and the batch norm, get
    back what they had before, moved to the layer's present device and type. If such a layer was
    changed meanwhile, the change is lost, and a warning says so. A model that was not converted
    stays as it is.

    What cannot be restored stays as it is, and works: a batch norm stays folded if its convolution
    was pruned, parametrized or sharded meanwhile, and a convolution stays this package's if it got
    another class on top of it. A warning says so, and a later call tries again.

    Args:
        model: The model, or a copy of it, which is changed.

    Returns:
        The model itself.

    Raises:
        TypeError: The model is not an ``nn.Module``.
    """
    _check_model("revert", model)
    names = {module: name for name, module in model.named_modules()}
    problems = unfold_all(names)
    for module, name in names.items():
        if problem := _restore(module):
            problems.append(f"{name!r} stays customconv's: {problem}")
        for key, (shape, stride) in vars(module).pop(_STRIDES, {}).items():
            tensor = module._parameters.get(key, module._buffers.get(key))
            if tensor is not None and not is_lazy(tensor) and tensor.shape == shape:
                _set_strides(tensor, stride)
    for problem in problems:  # at the end, for a filter may make errors of warnings
        warnings.warn(problem, stacklevel=2)
    return model


def check_callable(function: str, model: object) -> None:
    """Refuses what is no model or function, where ``function`` takes one.

    Raises:
        TypeError: It is none.
    """
    if isinstance(model, Converted):
        raise TypeError(f"{function}() takes a model or function; {_TWO_RESULTS}")
    if not callable(model):
        raise TypeError(f"{function}() takes a model or function, not {type(model).__name__}")


def _check_model(function: str, model: object) -> None:
    if isinstance(model, Converted):
        raise TypeError(f"{function}() takes an nn.Module; {_TWO_RESULTS}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}() takes an nn.Module, not {type(model).__name__}")


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


def _base(kind: type) -> type[nn.Module]:
    """The convolution of torch.nn that a class is, or derives from."""
    return next(base for base in _OURS if issubclass(kind, base))


def _our_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The counterpart of a class: for a subclass, one that derives from it and from ours."""
    if kind in _OURS:
        return _OURS[kind]
    if kind in _SUBCLASSES:
        return _SUBCLASSES[kind]
    base = _base(kind)

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
    kind = kind_of(module)
    if isinstance(module, torch.jit.ScriptModule):
        name = str(module.original_name)
        return name if name in {c.__name__ for c in CONVOLUTIONS} else ""
    for_quantization = kind.__module__.startswith("torch.ao.nn.") and "Conv" in kind.__name__
    return kind.__name__ if issubclass(kind, CONVOLUTIONS) or for_quantization else ""


def _obstacle(module: nn.Module, subclasses: bool) -> str:
    """Why a convolution is not replaced, or ""."""
    kind = kind_of(module)
    if isinstance(module, torch.jit.ScriptModule):
        return "it is scripted or traced"
    if kind.__module__.startswith("torch.ao.nn."):
        return "it is a module for quantization"
    if any(is_lazy(p) for p in module.parameters(recurse=False)):
        return "its parameters are not initialized yet"
    base = _base(kind)
    if issubclass(kind, _OURS[base]):
        return "it is customconv's already"
    if kind is not base and not subclasses:
        return f"it is a subclass of {base.__name__}"
    if overridden := _overridden(module):
        return f"it has a {overridden} of its own"
    if "algorithm" in dir(module):
        return "it has an attribute of its own named algorithm"
    try:
        _our_class(kind)
    except Exception as error:  # of the classes' metaclasses, layouts or __init_subclass__
        return f"its class cannot be replaced: {error}"
    return ""


def _fold_obstacle(module: nn.Module, subclasses: bool) -> str:
    """Why no batch norm goes into a convolution, as far as its class tells, or ""."""
    ours = issubclass(kind_of(module), tuple(_OURS.values()))
    if not ours and _obstacle(module, subclasses):
        return "{} is not replaced"
    if _overridden(module):
        return "{} may do more than convolve"
    return ""


def _overridden(module: nn.Module) -> str:
    """The method that makes a module more than a convolution of torch.nn or of ours, or ""."""
    kind = kind_of(module)
    base = _base(kind)
    for method in ("forward", "_conv_forward"):
        plain = [getattr(b, method, None) for b in (base, _OURS[base])]
        if method in vars(module) or getattr(kind, method, None) not in plain:
            return method
    return ""


def _replace(module: nn.Module) -> str:
    """Replaces a convolution's class. Returns why that cannot be done, or ""."""
    kind = kind_of(module)
    try:
        _set_class(module, _our_class(kind))
    except Exception as error:  # as in _obstacle, of a class that parametrizations need
        return f"its class cannot be replaced: {error}"
    vars(module)[_REPLACED] = kind
    return ""


def _restore(module: nn.Module) -> str:
    """Gives a convolution its class from before. Returns why that cannot be done, or ""."""
    original: type[nn.Module] | None = vars(module).get(_REPLACED)
    kind = kind_of(module)
    if original is None:
        return ""
    if issubclass(kind, tuple(_OURS.values())):
        try:
            if kind is not _our_class(original):  # but on top of it, as FSDP does
                return f"it became a {kind.__name__} after it was converted"
            _set_class(module, original)
        except Exception as error:  # as in _replace
            return f"its class cannot be restored: {error}"
    del vars(module)[_REPLACED]
    return ""


def _lay_out(model: nn.Module, channels_last: bool) -> None:
    """Stores all tensors of four and five dimensions in one layout, and notes how they were."""
    found = []
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or is_lazy(tensor) or tensor.layout is not torch.strided:
                continue
            if tensor.ndim in LAST:
                before = tuple(tensor.shape), tensor.stride()
                vars(module).setdefault(_STRIDES, {}).setdefault(name, before)
                found.append(tensor)
    for tensor in found:
        layout = LAST[tensor.ndim] if channels_last else torch.contiguous_format
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
