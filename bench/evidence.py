"""A network's outputs and gradients, and how far they are from IEEE float32.

Other parts of an untrained network amplify rounding: batch norm divides by the spread of a few
values, an error in the loss's gradient scales all other gradients, and a unit that crosses a ReLU's
kink changes gradients by as much as a wrong convolution would. The errors should tell how exact the
convolutions are. So batch norms keep fixed statistics, unless these are checked too, the loss
weights the outputs by fixed random numbers, smooth functions replace those with kinks when
gradients are taken, and no branch starts with a gain near zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

MOST_ERROR = 2.0  # our error may be this many times PyTorch's
# Relative errors that are always allowed: what one different rounding in the first layers does to a
# network. PyTorch may round less than the precision allows; ours need not.
ALWAYS_ALLOWED = {"fp32": 1e-4, "tf32": 0.01, "amp-fp16": 0.01, "amp-bf16": 0.08}
IDLE = 1e-3  # a parameter with no larger values was initialised to switch a branch off
LOSS_SCALE = 2.0**16  # the first scale for float16
UNSEEN = 1e-5  # a gradient this much smaller than the largest is only rounding

Named = dict[str, Tensor]


def _smooth_relu(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return functional.softplus(x, beta=4)


def _smooth_leaky_relu(x: Tensor, negative_slope: float = 0.01, *_: Any, **__: Any) -> Tensor:
    return negative_slope * x + (1 - negative_slope) * _smooth_relu(x)


def _mean_pool(
    x: Tensor, size: Any, stride: Any = None, padding: Any = 0, _: Any = 1, ceil_mode: bool = False,
    **__: Any,
) -> Tensor:  # fmt: skip
    # PyTorch's gradient of channels-last average pools that overlap is wrong on GPUs, and so is
    # Inductor's where windows reach beyond the padding, if padding counts (2.11).
    pool = functional.avg_pool2d if x.ndim == 4 else functional.avg_pool3d
    pooled = pool(x.contiguous(), size, stride, padding, ceil_mode, count_include_pad=False)
    return pooled.contiguous(memory_format=suggest_memory_format(x))


def _smooth_hardswish(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return functional.silu(x)


def _smooth_hardsigmoid(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.sigmoid(x)


# Dynamo sees through functions of torch.nn.functional to those that they call.
_NN: Any = torch._C._nn


class Smooth(TorchFunctionMode):
    """While active, replaces functions with kinks by similar smooth ones."""

    INSTEAD: Mapping[Callable[..., Any], Callable[..., Tensor]] = {
        **dict.fromkeys(
            (functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_,
             functional.relu6, functional.hardtanh, _NN.relu6, _NN.relu6_, _NN.hardtanh,
             _NN.hardtanh_), _smooth_relu
        ),
        **dict.fromkeys(
            (functional.leaky_relu, _NN.leaky_relu, _NN.leaky_relu_), _smooth_leaky_relu
        ),
        functional.hardswish: _smooth_hardswish,
        functional.hardsigmoid: _smooth_hardsigmoid,
        functional.max_pool2d: _mean_pool,
        functional.max_pool3d: _mean_pool,
    }  # fmt: skip

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return self.INSTEAD.get(func, func)(*args, **(kwargs or {}))


# Dynamo calls these without asking a mode.
_UNSEEN = {"hardswish": _smooth_hardswish, "hardsigmoid": _smooth_hardsigmoid}


@contextlib.contextmanager
def smooth() -> Iterator[None]:
    """While active, functions with kinks are similar smooth ones, in compiled networks too."""
    before = {name: getattr(functional, name) for name in _UNSEEN}
    for name, instead in _UNSEEN.items():
        setattr(functional, name, instead)
    try:
        with Smooth():
            yield
    finally:
        for name, function in before.items():
            setattr(functional, name, function)


def leaves(output: Any) -> list[Tensor]:
    """Returns the floating-point tensors of an output, which may be nested, in order."""
    return [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]


def awakened(network: nn.Module) -> nn.Module:
    """Replaces parameters near zero by larger random ones; returns the network."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.numel() and parameter.abs().max() <= IDLE:
                parameter.uniform_(0.1, 0.3)
    return network


def settled(network: nn.Module, x: Tensor) -> nn.Module:
    """Sets batch norms' statistics from x, one variance for all channels; returns the network."""
    norms = [(norm, norm.momentum) for norm in _norms(network)]
    for norm, _ in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        network.train()(x)
    for norm, momentum in norms:
        norm.momentum = momentum
        if norm.running_var is not None:
            norm.running_var.fill_(norm.running_var.mean())
    return network


def _norms(network: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    kind = nn.modules.batchnorm._BatchNorm
    return [module for module in network.modules() if isinstance(module, kind)]


@contextlib.contextmanager
def _training(network: nn.Module, *, batch_statistics: bool) -> Iterator[None]:
    """Puts the network in training mode; restores the batch norms' statistics.

    Without ``batch_statistics``, batch norms stay in evaluation mode.
    """
    norms = _norms(network)
    before = [{key: each.clone() for key, each in norm.named_buffers()} for norm in norms]
    network.train()
    for norm in norms:
        norm.train(batch_statistics)
    try:
        yield
    finally:
        network.eval()
        for norm, kept in zip(norms, before, strict=True):
            for key, value in kept.items():
                norm.get_buffer(key).copy_(value)


def autocast_of(x: Tensor, dtype: torch.dtype | None) -> torch.autocast:
    """Returns the context in which a network runs on x in a type, or as it is if that is None."""
    return torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None)


def outputs(network: nn.Module, x: Tensor, autocast: torch.dtype | None = None) -> Named:
    """Returns the outputs in evaluation mode, without gradients."""
    network.eval()
    with torch.no_grad(), autocast_of(x, autocast):
        found = leaves(network(x))
    return {f"output {number}": y.float() for number, y in enumerate(found)}


def convolved(network: nn.Module) -> Named:
    """Returns the parameters of all modules that hold a filter, such as convolutions."""
    named = dict(network.named_parameters())
    beside = {name.rpartition(".")[0] for name, parameter in named.items() if parameter.ndim > 2}
    return {n: p for n, p in named.items() if p.requires_grad and n.rpartition(".")[0] in beside}


def gradients(network: nn.Module, x: Tensor, autocast: torch.dtype | None = None) -> Named:
    """Returns the gradients of the input and of all convolutions' parameters, in training mode.

    The loss is the sum of all outputs, weighted by random numbers that are the same in every call.
    """
    with _training(network, batch_statistics=False):
        return _gradients(network, x, autocast)


def trained(
    network: nn.Module, x: Tensor, autocast: torch.dtype | None = None
) -> tuple[Named, Named]:
    """Returns these gradients with batch norms that normalise by the batch's statistics.

    The second dictionary has the running statistics after that pass.
    """
    with _training(network, batch_statistics=True):
        found = _gradients(network, x, autocast)
        names = "running_mean", "running_var"
        running = {k: v.clone() for k, v in network.named_buffers() if k.endswith(names)}
    return found, running


def _gradients(network: nn.Module, x: Tensor, autocast: torch.dtype | None) -> Named:
    wanted = convolved(network)
    image = x.detach().requires_grad_()
    torch.manual_seed(0)
    with torch.enable_grad():
        with smooth(), autocast_of(x, autocast):
            found = [y.float() for y in leaves(network(image.clone()))]
        generator = torch.Generator(x.device).manual_seed(0)
        parts = []
        for y in found:
            weights = torch.randn(y.shape, device=y.device, generator=generator)
            parts.append((y * weights).sum() / y.numel() ** 0.5)
        loss = torch.stack(parts).sum()
        scale = LOSS_SCALE if autocast == torch.float16 else 1.0
        while True:
            last = scale <= 1
            taken = torch.autograd.grad(
                loss * scale, [image, *wanted.values()], allow_unused=True, retain_graph=not last
            )
            named = dict(zip(["input", *wanted], taken, strict=True))
            held = {name: grad for name, grad in named.items() if grad is not None}
            if last or torch.stack([grad.isfinite().all() for grad in held.values()]).all():
                return {name: grad.float() / scale for name, grad in held.items()}
            scale /= 16


def errors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """Returns each tensor's relative error: the norm of the difference over the expected norm.

    Tensors that are zero except for rounding are left out, such as a bias's gradient before a norm.
    """
    norms = torch.stack([expected[name].norm() for name in expected]).tolist()
    sizes = [n / max(1, b.numel()) ** 0.5 for n, b in zip(norms, expected.values(), strict=True)]
    least = UNSEEN * max(*sizes, 1e-30)
    seen = [name for name, size in zip(expected, sizes, strict=True) if not size < least]
    off = torch.stack(
        [(found[name] - expected[name]).norm() / expected[name].norm() for name in seen]
    )
    return dict(zip(seen, off.tolist(), strict=True))


def total(of: Mapping[str, float]) -> float:
    """Returns the root mean square of the errors, so that all tensors count equally."""
    squares = [error**2 for error in of.values()]
    return float((sum(squares) / len(squares)) ** 0.5)


def wrong(ours: float, pytorch: float, precision: str) -> str:
    """Says what is wrong if our error is too large beside PyTorch's; otherwise empty."""
    allowed = max(MOST_ERROR * pytorch, ALWAYS_ALLOWED[precision])
    return "" if ours <= allowed else f"off by {ours:.3g}, PyTorch by {pytorch:.3g}"
