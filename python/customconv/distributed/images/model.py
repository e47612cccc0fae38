"""Models whose images are sharded along height or width: ``spatial``."""

from __future__ import annotations

import inspect
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.overrides import TorchFunctionMode, resolve_name

from . import convolutions as convolutions
from . import elementwise as elementwise
from . import normalizations as normalizations
from . import products as products
from . import shapes as shapes
from . import windows as windows
from .exchange import Exchanged, Line, every, scatter
from .rowed import (
    RULES,
    Rowed,
    distributed_tensors,
    elements,
    is_sharded,
    mapped,
    takes,
    whole,
    wrapped,
)

# What a tensor answers about itself, which DTensor does.
_ASKED = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "get_device",
    "is_floating_point", "is_complex", "is_signed", "element_size", "requires_grad_", "backward",
    "register_hook", "retain_grad", "register_post_accumulate_grad_hook", "__len__", "__hash__",
    "__repr__", "__format__", "is_same_size", "is_nonzero", "is_shared", "is_inference",
    "_is_view", "is_tensor", "is_storage", "has_names", "dense_dim", "sparse_dim", "grad_fn",
}  # fmt: skip
# Attributes that are functions of a tensor's values.
_VIEWS = {"T", "mT", "H", "mH", "real", "imag"}


class _Functions(TorchFunctionMode):
    """While it is on, functions of sharded tensors run by their rules."""

    def __init__(self, line: Line, names: list[str]) -> None:
        super().__init__()
        self.line, self.names = line, names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        line = self.line
        distributed = distributed_tensors(args, kwargs)
        if not any(is_sharded(each, line) for each in distributed):
            return func(*args, **kwargs)
        name = func.__name__
        for each in distributed:
            if not is_sharded(each, line):
                raise NotImplementedError(
                    f"{resolve_name(func) or name} has a tensor that "
                    f"customconv.distributed.spatial shards on {line.mesh}, and one on "
                    f"{each.device_mesh}; parameters must be plain tensors while the module runs, "
                    "as those of DDP and FSDP2 are"
                )
        if name in ("__get__", "__set__", "__delete__"):
            attribute = func.__self__.__name__
            if name != "__get__" or attribute not in _VIEWS:
                return func(*args, **kwargs)
            if attribute == "mT" or (attribute == "T" and args[0].dim() == 2):
                return shapes.transpose(line, torch.transpose, args[0], -1, -2)
        elif name in _ASKED:
            return func(*args, **kwargs)
        rule = RULES.get(func)
        with line.at((self.names[-1] if self.names else "", name)):
            if rule is not None:
                try:
                    found = rule(line, func, *args, **kwargs)
                except TypeError:
                    if takes(rule, line, func, *args, **kwargs):
                        raise
                    found = NotImplemented  # another way to call the function
                if found is not NotImplemented:
                    return found
            return self._on_whole(func, args, kwargs)

    def _on_whole(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Gives a function whole tensors on every rank."""
        line, name = self.line, func.__name__
        if name in _RANDOM and is_training(func, args, kwargs):
            raise NotImplementedError(
                f"{resolve_name(func) or name} draws random numbers, of which each rank would have "
                "its own; customconv.distributed.spatial has no rule for it"
            )
        writes = (name.endswith("_") and not name.endswith("__")) or name in _WRITING
        targets = [*args[:1], kwargs.get("out")] if writes else [kwargs.get("out")]
        if kwargs.get("inplace"):
            targets.append(args[0] if args else kwargs.get("input"))
        if any(is_sharded(each, line) for each in elements(targets)):
            raise NotImplementedError(
                f"{resolve_name(func) or name} writes to a tensor that "
                "customconv.distributed.spatial has sharded, and has no rule for it"
            )
        change: Callable[[Any], Any] = lambda each: whole(each, line)  # noqa: E731
        return func(*mapped(change, args), **mapped(change, kwargs))


def is_training(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a function is not told that it is used for inference."""
    try:
        told = inspect.signature(func).bind(*args, **kwargs)
    except ValueError:  # of a builtin function
        return True
    told.apply_defaults()
    return bool(told.arguments.get("training", True))


_RANDOM = {
    "rrelu", "alpha_dropout", "feature_alpha_dropout", "gumbel_softmax", "multinomial", "normal",
    "poisson", "binomial", "fractional_max_pool2d", "fractional_max_pool3d", "randint_like",
}  # fmt: skip
_WRITING = {
    f"__i{name}__"
    for name in "add sub mul truediv floordiv pow mod and or xor lshift rshift".split()
} | {"__setitem__"}


@dataclass(frozen=True)
class Report:
    """What the functions of a sharded model have received from other ranks, on this rank.

    Attributes:
        exchanged: By the module's name, the function's, and what was received: "rows" of other
            ranks, "whole" tensors, terms of a "sum", or the "gradient" of what every rank has.
    """

    exchanged: dict[tuple[str, str, str], Exchanged]

    @property
    def bytes(self) -> int:
        """What this rank has received in all."""
        return sum(each.bytes for each in self.exchanged.values())

    def __str__(self) -> str:
        """A table: a line for each function of each module."""
        lines = [
            f"{each.calls:>8} {each.bytes:>14,}  {why:<6} {function} in {module or 'the model'}"
            for (module, function, why), each in self.exchanged.items()
        ]
        head = f"{'calls':>8} {'bytes':>14}  what"
        return "\n".join([head, *lines, f"{'':>8} {self.bytes:>14,}  in all"])


class _Spatial:
    """What ``spatial`` keeps of a module."""

    def __init__(self, module: nn.Module, line: Line, axis: int, images: int, gather: bool,
                 check: bool) -> None:  # fmt: skip
        self.line, self.axis, self.images = line, axis, images
        self.gather, self.check = gather, check
        self.calls = threading.local()
        for name, each in module.named_modules():
            hooks = self._entry(name, each is module), self._exit()
            if each is module:  # what runs within is not compiled either
                hooks = (torch.compiler.disable(hooks[0]), torch.compiler.disable(hooks[1]))  # type: ignore[no-untyped-call]
            before, after = hooks
            each.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
            each.register_forward_hook(after, with_kwargs=True, always_call=True)

    def __deepcopy__(self, memo: Any) -> _Spatial:
        """A copy of the module is sharded on the same mesh."""
        return self

    @property
    def _stack(self) -> list[tuple[_Functions | None, bool]]:
        """For each module that runs: what it has switched on, and whether it shards its input."""
        if not hasattr(self.calls, "stack"):
            self.calls.stack, self.calls.names = [], []
        found: list[tuple[_Functions | None, bool]] = self.calls.stack
        return found

    def _entry(self, name: str, outermost: bool) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            stack, line = self._stack, self.line
            names: list[str] = self.calls.names
            running = any(mode is not None for mode, _ in stack)
            shards_input = outermost and not running
            if shards_input:
                with line.at(("", "input")):
                    args, kwargs = self._sharded((args, kwargs))
            mode = None
            # A module runs by itself where a checkpoint computes it again.
            if not running and (
                outermost or any(is_sharded(each, line) for each in elements((args, kwargs)))
            ):
                mode = _Functions(line, names)
                mode.__enter__()  # type: ignore[no-untyped-call]
            stack.append((mode, shards_input))
            names.append(name)
            return args, kwargs

        return hook

    def _exit(self) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if not self._stack:  # the first hook has raised
                return None
            mode, sharded_input = self._stack.pop()
            self.calls.names.pop()
            if mode is not None:
                mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            if sharded_input and self.gather and output is not None:
                with self.line.at(("", "output")):
                    return mapped(lambda each: whole(each, self.line), output)
            return None

        return hook

    def _sharded(self, values: Any) -> Any:
        """The module's input, with its images sharded."""
        line = self.line
        images = [each for each in elements(values) if isinstance(each, Tensor)]
        if self.check:
            self._compare(images)

        def part(value: Any) -> Any:
            if isinstance(value, DTensor):
                if is_sharded(value, line) and value.placements[0].is_shard():
                    return value
                place = [Shard(value.dim() + self.axis)]
                return value.redistribute(placements=place) if value.dim() >= 2 else value
            if not isinstance(value, Tensor) or value.dim() != self.images:
                return value
            dim = value.dim() + self.axis
            rows = scatter(value, dim, line)
            return wrapped(Rowed(rows, self.axis, value.shape[dim]), line)

        return mapped(part, values)

    def _compare(self, tensors: list[Tensor]) -> None:
        """Raises where ranks have different inputs, which would have them wait for one another."""
        line = self.line
        if line.ranks == 1 or not tensors:
            return
        device = line.mesh.device_type
        if device == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        told = zlib.crc32(repr([(tuple(each.shape), each.dtype) for each in tensors]).encode())
        own = torch.tensor([len(tensors), told], dtype=torch.int64, device=device)
        everyone = every(own, line)
        if not bool((everyone == own).all()):
            raise RuntimeError(
                "the ranks among which customconv.distributed.spatial shards a module's input "
                "gave it tensors of different sizes or types; rank "
                f"{line.rank} of {line.ranks} has "
                f"{[(tuple(each.shape), each.dtype) for each in tensors]}"
            )


def spatial(
    module: nn.Module, mesh: DeviceMesh, dim: int = -2, *, gather: bool = True, check: bool = True
) -> nn.Module:
    """Shares the images of a model among the ranks of a mesh, each of which has some of the rows.

    The model is changed in place, and its code and parameters stay as they are. It is called with
    the same input on each rank. While it runs, its images are DTensors with ``Shard``: of a
    convolution, a pooling, a change of size or a norm each rank computes its own rows, and asks
    other ranks for what it lacks. A function without a rule, such as one that writes into a part
    of a tensor that it returns, gets whole tensors on every rank; ``spatial_report`` says which.

    Parameters are plain tensors with the same values on each rank, and so are their gradients,
    which are summed over the ranks. DDP and ``fully_shard`` may wrap the model on another
    dimension of the mesh.

    Dropout is DTensor's, which tells ranks apart on GPUs. Random numbers that the model draws by
    itself are those of each rank's generator.

    Args:
        module: The model.
        mesh: The ranks, a mesh of one dimension: ``mesh["space"]`` of a mesh of several.
        dim: The dimension of the images, counted from the last: -2 for height, -1 for width or
            the length of signals, -3 for the depth of volumes.
        gather: Whether the output is whole, on each rank. If not, it is a DTensor.
        check: Whether ranks compare the sizes of their input in each call. Without it, ranks with
            different input may wait for one another until the group's timeout. With it, the host
            waits for the GPU once in a call, except while a CUDA graph is captured.

    Shape:
        Input: plain tensors of four dimensions (three if there are 1-D convolutions alone, five if
        there are 3-D ones) are images, the same on each rank, and are sharded; other tensors are
        not. DTensors that are sharded on the mesh stay as they are.

    Returns:
        The same module.

    Raises:
        ValueError: The mesh has several dimensions, ``dim`` is no spatial one, or the module is
            already sharded.
        NotImplementedError: There is a SyncBatchNorm, whose group has other ranks; a BatchNorm
            computes statistics over the mesh.
    """
    if mesh.ndim != 1:
        raise ValueError(
            f"spatial() takes a mesh of one dimension, got {mesh.ndim}; "
            'mesh["name"] is one dimension of a mesh of several'
        )
    if dim not in (-1, -2, -3):
        raise ValueError(f"spatial(): dim must be -1, -2 or -3, got {dim}")
    if any(hasattr(each, _KEPT) for each in module.modules()):
        raise ValueError("spatial(): the module, or one within, is already sharded")
    for name, each in module.named_modules():
        if isinstance(each, nn.SyncBatchNorm):
            raise NotImplementedError(
                f"spatial() supports no SyncBatchNorm ({name}): nn.BatchNorm2d has the statistics "
                "of all ranks of the mesh"
            )
    kinds = ((nn.Conv3d, 5), (nn.ConvTranspose3d, 5), (nn.Conv2d, 4), (nn.ConvTranspose2d, 4),
             (nn.Conv1d, 3), (nn.ConvTranspose1d, 3))  # fmt: skip
    found = [size for each in module.modules() for kind, size in kinds if isinstance(each, kind)]
    line = Line(mesh)
    _run_eagerly(module)
    setattr(module, _KEPT, _Spatial(module, line, dim, max(found, default=4), gather, check))
    return module


_KEPT = "_customconv_spatial"


def _run_eagerly(module: nn.Module) -> None:
    """Keeps ``torch.compile`` out of a module, whose functions it would see without their rules."""
    kind = type(module)
    forward = torch.compiler.disable(kind.forward)  # type: ignore[no-untyped-call]
    eager = {"forward": forward, "__module__": kind.__module__}
    module.__class__ = type(kind.__name__, (kind,), eager)


def spatial_report(module: nn.Module, *, reset: bool = False) -> Report:
    """What each function of a sharded model has received from other ranks; ``print`` it.

    Args:
        module: A model that ``spatial`` has changed, or one that contains it.
        reset: Whether to count from zero from now on.

    Raises:
        ValueError: There is none.
    """
    kept = {name: getattr(each, _KEPT) for name, each in module.named_modules()
            if hasattr(each, _KEPT)}  # fmt: skip
    if not kept:
        raise ValueError("spatial_report(): spatial() has not been called with this module")
    exchanged: dict[tuple[str, str, str], Exchanged] = {}
    for outer, each in kept.items():
        for (inner, function, why), found in each.line.exchanged.items():
            name = ".".join(part for part in (outer, inner) if part)
            exchanged[name, function, why] = replace(found)
        if reset:
            each.line.exchanged.clear()
    return Report(exchanged)
