"""The operators on DTensors: what they give is what they give on the whole tensors.

Values are small integers, so that sums are exact in any order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from ranks import BACKENDS, device, mesh_of, run
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import customconv  # noqa: F401  (the operators)

OPS = torch.ops.customconv


def integers(*sizes: int) -> Tensor:
    return torch.randint(-4, 5, sizes).to(device(), torch.float32)


def any_placements(of: random.Random, tensor: Tensor, mesh: DeviceMesh) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    every = [Replicate(), Partial(), *(Shard(d) for d in range(tensor.ndim))]
    return [of.choice(every) for _ in range(mesh.ndim)]


def laid_out(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> Any:
    """A DTensor of these placements; of a sum, one rank has all and the others zeros."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    plain = [Replicate() if each.is_partial() else each for each in placements]
    local = distribute_tensor(tensor, mesh, plain).to_local().detach()
    for dimension, each in enumerate(placements):
        if each.is_partial() and mesh.get_local_rank(dimension):
            local = torch.zeros_like(local)
    found = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return found.requires_grad_(tensor.requires_grad)


def problem(of: random.Random, axes: int) -> tuple[Any, list[Tensor | None], dict[str, Any]]:
    """An operator, its image or volume, weight and bias, and its other arguments."""
    transposed = of.random() < 0.4
    groups = of.choice([1, 1, 2, 4])
    channels, filters = groups * of.choice([1, 2, 3, 4]), groups * of.choice([1, 2, 4])
    batch = [of.choice([1, 2, 3, 5])] if of.random() < 0.85 else []
    image = integers(*batch, channels, *(of.randint(5, 9) for _ in range(axes)))
    pair = (channels, filters // groups) if transposed else (filters, channels // groups)
    weight = integers(*pair, *(of.randint(1, 3) for _ in range(axes)))
    bias = integers(filters) if of.random() < 0.7 else None
    geometry: dict[str, Any] = {
        "stride": tuple(of.randint(1, 2 + axis) for axis in range(axes)),
        "padding": tuple(of.randint(0, 1) for _ in range(axes)),
        "dilation": (of.randint(1, 2), *[1] * (axes - 1)),
        "groups": groups,
    }
    if of.random() < 0.3:  # the overloads with one number for all dimensions
        geometry |= {name: geometry[name][0] for name in ("stride", "padding", "dilation")}
    name = f"conv_transpose{axes}d" if transposed else f"conv{axes}d"
    if of.random() < 0.3:
        name += "_fused"
        geometry["activation"] = of.choice(["none", "relu"])
    return getattr(OPS, name), [image, weight, bias], geometry


def check_random_problems(axes: int, mesh_sizes: tuple[int, ...], seed: int, count: int) -> None:
    mesh = mesh_of(*mesh_sizes)
    of = random.Random(seed)
    for case in range(count):
        torch.manual_seed(1000 * seed + case)
        operator, tensors, geometry = problem(of, axes)
        operands = [each if each is None else each.requires_grad_() for each in tensors]
        places = [each if each is None else any_placements(of, each, mesh) for each in tensors]
        shards = [
            each if each is None else laid_out(each.detach(), mesh, place).requires_grad_()
            for each, place in zip(operands, places, strict=True)
        ]
        expected = operator(*operands, **geometry)
        output = operator(*shards, **geometry)
        sizes = [each if each is None else tuple(each.shape) for each in operands]
        what = f"{case}: {operator} of {sizes}, {geometry}, placed {places}"
        assert (output.shape, output.stride()) == (expected.shape, expected.stride()), what
        assert torch.equal(output.full_tensor(), expected), what
        gradient = integers(*expected.shape)
        expected.backward(gradient)
        place = any_placements(of, gradient, mesh)
        output.backward(laid_out(gradient, mesh, place))
        for whole, shard in zip(operands, shards, strict=True):
            if whole is not None:
                assert torch.equal(shard.grad.full_tensor(), whole.grad), f"{what}, dy {place}"


each_axes = pytest.mark.parametrize("axes", [2, 3], ids=["2d", "3d"])


@each_axes
@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2)])
def test_random_problems_and_placements(mesh, axes):
    ranks = mesh[0] * (mesh[1] if len(mesh) > 1 else 1)
    run(check_random_problems, axes, mesh, 1, 60, ranks=ranks)


@each_axes
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_more_random_problems_and_placements(backend, axes):
    run(check_random_problems, axes, (2,), 2, 200, ranks=2, backend=backend)


def check_other_operators(axes: int) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    mesh = mesh_of(dist.get_world_size())
    torch.manual_seed(1)
    x, w = integers(3, 4, *(6, 5, 2)[:axes]), integers(6, 4, *(3, 3, 1)[:axes])
    b, mean, var = integers(6), integers(6), integers(6).abs()
    measured = (OPS.conv2d_statistics, OPS.conv3d_statistics)[axes - 2]
    geometry = [1] * axes, [1] * axes, [1] * axes, 1

    for place in ([Shard(0)], [Replicate()], [Shard(1)], [Shard(2)], [Partial()]):
        for filters in ([Replicate()], [Shard(0)], [Shard(1)]):
            for norm in ([Replicate()], [Shard(0)]):
                kept = mean.clone(), var.clone()
                expected = measured(x, w, b, *geometry, 1e-5, *kept, 0.25)
                running = [laid_out(each.clone(), mesh, norm) for each in (mean, var)]
                found = measured(
                    laid_out(x, mesh, place), laid_out(w, mesh, filters),
                    laid_out(b, mesh, norm), *geometry, 1e-5, *running, 0.25,
                )  # fmt: skip
                what = f"{place}, {filters}, {norm}"
                for whole, shard in zip((*expected, *kept), (*found, *running), strict=True):
                    assert whole.shape == shard.shape, what
                    torch.testing.assert_close(shard.full_tensor(), whole, msg=what)

    vectors = [[mean, var], [var, var], [None, b], [b, None], [None, mean]]
    expected = OPS.fold_batch_norms(*vectors, [1e-5, 1e-3])
    shards = [
        [None if each is None else laid_out(each, mesh, [Shard(0)]) for each in vector]
        for vector in vectors
    ]
    for whole, shard in zip(expected, OPS.fold_batch_norms(*shards, [1e-5, 1e-3]), strict=True):
        assert torch.equal(shard.full_tensor(), whole)

    places = ([Shard(0)], [Shard(1)], [Partial()], [Replicate()])
    expected = OPS.copy_parameters([w] * 4, torch.bfloat16, True)
    found = OPS.copy_parameters([laid_out(w, mesh, p) for p in places], torch.bfloat16, True)
    for whole, shard, place in zip(expected, found, places, strict=True):
        assert list(shard.placements) == place and shard.stride() == whole.stride()
        assert torch.equal(shard.full_tensor(), whole)


@each_axes
@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_and_parameters(backend, axes):
    run(check_other_operators, axes, ranks=2, backend=backend)


def check_choices() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    mesh = mesh_of(2)
    x, w = integers(4, 4, 6, 6), integers(6, 4, 3, 3)
    keeps = [
        ([Replicate()], [Replicate()], [Replicate()]),
        ([Shard(0)], [Replicate()], [Shard(0)]),
        ([Replicate()], [Shard(0)], [Shard(1)]),
        ([Shard(1)], [Shard(1)], [Partial()]),
    ]
    for image, filters, output in keeps:
        found = OPS.conv2d(laid_out(x, mesh, image), laid_out(w, mesh, filters))
        assert list(found.placements) == output
    image = laid_out(integers(4, 6, 6, 6), mesh, [Shard(0)])  # channels, for there is no batch
    found = OPS.conv3d(image, laid_out(integers(6, 4, 3, 3, 3), mesh, [Shard(1)]))
    assert list(found.placements) == [Partial()]
    depthwise = laid_out(integers(4, 1, 3, 3), mesh, [Shard(0)])
    found = OPS.conv2d(laid_out(x, mesh, [Shard(1)]), depthwise, groups=4)
    assert list(found.placements) == [Shard(1)]


def test_no_exchange_where_a_row_of_the_table_fits():
    run(check_choices, ranks=2)


def check_errors() -> None:
    from torch.distributed.tensor import Replicate

    mesh = mesh_of(2)
    x, w = integers(4, 4, 6, 6), integers(6, 4, 3, 3)
    with pytest.raises(RuntimeError, match=r"mixed torch.Tensor and DTensor.*weight"):
        OPS.conv2d(laid_out(x, mesh, [Replicate()]), w)
    narrow = laid_out(integers(6, 3, 3, 3), mesh, [Replicate()])
    with pytest.raises(RuntimeError, match="channel"):
        OPS.conv2d(laid_out(x, mesh, [Replicate()]), narrow)
    with pytest.raises(RuntimeError, match=r"size is too small|greater than actual input"):
        small = laid_out(integers(4, 4, 2, 2), mesh, [Replicate()])
        OPS.conv2d(small, laid_out(w, mesh, [Replicate()]))


def test_errors_are_those_of_the_whole_tensors():
    run(check_errors, ranks=2)
