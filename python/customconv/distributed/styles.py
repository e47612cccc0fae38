"""Styles of ``parallelize_module`` for convolutions, whose channels are shared among ranks."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.parallel.style import ParallelStyle

from ..nn import Conv2d, Conv3d, ConvTranspose2d, ConvTranspose3d

_Convolution: TypeAlias = Conv2d | Conv3d | ConvTranspose2d | ConvTranspose3d


def _convolution(style: ParallelStyle, module: nn.Module) -> _Convolution:
    """The module, which a style must be for."""
    if isinstance(module, _Convolution):
        return module
    raise NotImplementedError(
        f"{type(style).__name__} supports Conv2d, Conv3d, ConvTranspose2d and ConvTranspose3d of "
        f"customconv, not {type(module).__module__}.{type(module).__name__}; "
        "customconv.convert(model) replaces those of torch.nn"
    )


def _channels(module: _Convolution) -> Shard:
    """The placement of a convolution's images by channels, with a batch or without."""
    return Shard(1 - module.weight.ndim)


def _distribute(
    module: nn.Module, mesh: DeviceMesh, source: int | None, **places: Placement
) -> None:
    """Makes parameters of a module DTensors."""
    for name, place in places.items():
        parameter = getattr(module, name)
        if parameter is not None:
            shards = distribute_tensor(parameter, mesh, [place], src_data_rank=source)
            shared = nn.Parameter(shards, requires_grad=parameter.requires_grad)
            module.register_parameter(name, shared)


class ColwiseConv(ColwiseParallel):
    """Each rank computes some of a convolution's output channels.

    For ``torch.distributed.tensor.parallel.parallelize_module``, as ``ColwiseParallel`` is for
    ``nn.Linear``; with groups, each rank has some of the groups.

    Args:
        input_layouts: The placement of the module's input; default: replicated.
        output_layouts: The placement of its output; default: channels sharded.
        use_local_output: Whether the output is a plain tensor, this rank's part.
    """

    def __init__(  # noqa: D107  (the class says it)
        self, *, output_layouts: Placement | None = None, **others: Any
    ) -> None:
        super().__init__(output_layouts=output_layouts, **others)
        self._shards_output = output_layouts is None

    def _partition(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        conv = _convolution(self, module)
        filters = Shard(int(conv.transposed and conv.groups == 1))
        _distribute(conv, mesh, self.src_data_rank, weight=filters, bias=Shard(0))

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        conv = _convolution(self, module)
        # A group's channels of the output need that group's of the input alone.
        wanted = self.input_layouts if conv.groups > 1 else (Replicate(),)
        output = (_channels(conv),) if self._shards_output else self.output_layouts
        return distribute_module(
            module,
            device_mesh,
            self._partition,
            partial(self._prepare_input_fn, self.input_layouts, wanted),
            partial(self._prepare_output_fn, output, self.use_local_output),
        )


class RowwiseConv(RowwiseParallel):
    """Each rank has some of a convolution's input channels, and the output is a sum over ranks.

    For ``torch.distributed.tensor.parallel.parallelize_module``, as ``RowwiseParallel`` is for
    ``nn.Linear``; with groups, each rank has some of the groups.

    Args:
        input_layouts: The placement of the module's input; default: channels sharded.
        output_layouts: The placement of its output; default: replicated.
        use_local_output: Whether the output is a plain tensor.
    """

    def __init__(  # noqa: D107  (the class says it)
        self, *, input_layouts: Placement | None = None, **others: Any
    ) -> None:
        super().__init__(input_layouts=input_layouts, **others)
        self._takes_shards = input_layouts is None

    def _partition(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        conv = _convolution(self, module)
        grouped = conv.groups > 1
        filters = Shard(int(not conv.transposed and not grouped))
        bias = Shard(0) if grouped else Replicate()
        _distribute(conv, mesh, self.src_data_rank, weight=filters, bias=bias)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        channels = (_channels(_convolution(self, module)),)
        given = channels if self._takes_shards else self.input_layouts
        return distribute_module(
            module,
            device_mesh,
            self._partition,
            partial(self._prepare_input_fn, given, channels),
            partial(self._prepare_output_fn, self.output_layouts, self.use_local_output),
        )
