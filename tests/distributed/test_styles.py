"""Modules whose channels are shared among ranks, by ``parallelize_module``."""

from __future__ import annotations

import copy

import pytest
import torch
from ranks import BACKENDS, device, mesh_of, run
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import customconv


def integers_like(tensor: Tensor) -> Tensor:
    """So small that sums through the whole network are exact in float32."""
    return torch.randint(-1, 2, tensor.shape, device=tensor.device).to(tensor.dtype)


def network(axes: int) -> nn.Sequential:
    conv = (customconv.Conv2d, customconv.Conv3d)[axes - 2]
    up = (customconv.ConvTranspose2d, customconv.ConvTranspose3d)[axes - 2]
    found = nn.Sequential(
        conv(3, 8, 3, padding=1),
        nn.ReLU(),
        conv(8, 8, 3, groups=8, bias=False),
        nn.ReLU(),
        up(8, 5, 2, stride=2),
        conv(5, 6, 1, bias=False),
        conv(6, 4, 3, padding="same"),
    ).to(device())
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(integers_like(parameter))
    return found


def check_network(axes: int) -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import parallelize_module

    from customconv.distributed import ColwiseConv, RowwiseConv

    torch.manual_seed(3)
    plain = network(axes)
    shared = parallelize_module(
        copy.deepcopy(plain),
        mesh_of(),
        {
            "0": ColwiseConv(use_local_output=False),
            "2": ColwiseConv(input_layouts=Shard(1), use_local_output=False),
            "4": RowwiseConv(use_local_output=False),
            "5": ColwiseConv(),
            "6": RowwiseConv(),
        },
    )
    shape = (2, 3, 6, 6, 4)[: 2 + axes]
    x = integers_like(torch.empty(shape, device=device())).requires_grad_()
    other = x.detach().clone().requires_grad_()
    expected, found = plain(x), shared(other)
    assert torch.equal(found, expected)
    gradient = integers_like(expected)
    expected.backward(gradient)
    found.backward(gradient)
    assert torch.equal(other.grad, x.grad)
    sizes = [each.to_local().numel() / each.numel() for each in shared.parameters()]
    assert min(sizes) < 0.6
    for (name, whole), shard in zip(plain.named_parameters(), shared.parameters(), strict=True):
        assert torch.equal(shard.grad.full_tensor(), whole.grad), name


@pytest.mark.parametrize("axes", [2, 3], ids=["2d", "3d"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_network_with_shared_channels(backend, axes):
    run(check_network, axes, ranks=2, backend=backend)


def check_refusal() -> None:
    from torch.distributed.tensor.parallel import parallelize_module

    from customconv.distributed import ColwiseConv

    mesh = init_device_mesh("cpu", (2,))
    with pytest.raises(NotImplementedError, match=r"not torch.nn.*Conv2d; customconv.convert"):
        parallelize_module(nn.Conv2d(2, 2, 1), mesh, ColwiseConv())


def test_pytorchs_own_modules_are_refused():
    run(check_refusal, ranks=2)
