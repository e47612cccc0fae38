"""Checkpoints of sharded models: loaded into models that are sharded in another way, or not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import BACKENDS, common_folder, device, integers, mesh_of, run
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import customconv


def network(seed: int) -> nn.Sequential:
    """PyTorch's modules, on the CPU."""
    torch.manual_seed(seed)
    found = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 5, 2, stride=2),
        nn.Conv2d(5, 4, 3),
        nn.Conv2d(4, 4, 1, groups=4, bias=False),
    )
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(integers(*parameter.shape))
    return found


def converted(seed: int) -> nn.Module:
    return customconv.convert(network(seed).to(device()))[0]


def by_layers(seed: int) -> nn.Module:
    """FSDP gathers every convolution by itself."""
    from torch.distributed.fsdp import fully_shard

    model = converted(seed)
    for layer in model.children():
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh_of())
    fully_shard(model, mesh=mesh_of())
    return model


def as_one(seed: int) -> nn.Module:
    """FSDP gathers all parameters together."""
    from torch.distributed.fsdp import fully_shard

    model = converted(seed)
    fully_shard(model, mesh=mesh_of())
    return model


def by_channels(seed: int) -> nn.Module:
    from torch.distributed.tensor.parallel import parallelize_module

    from customconv.distributed import ColwiseConv, RowwiseConv

    plan = {"0": ColwiseConv(), "2": RowwiseConv(), "3": ColwiseConv(), "4": RowwiseConv()}
    return parallelize_module(converted(seed), mesh_of(), plan)


def whole(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def output_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.to(next(model.parameters()).device))


def assert_loaded(model: nn.Module, expected: nn.Module, what: str) -> None:
    """The parameters and the output are those of a plain model, and so are the names."""
    found = model.state_dict()
    assert list(found) == list(expected.state_dict()), what
    for name, value in expected.state_dict().items():
        assert torch.equal(whole(found[name]), value), f"{what}: {name}"
    x = integers(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(whole(output_of(model, x)), expected(x)), what


def check_models() -> None:
    kinds = [network, converted, by_layers, as_one, by_channels]
    plain = network(1)
    for saved in (by_layers, by_channels):
        with common_folder() as folder:
            model = saved(1)
            assert list(model.state_dict()) == list(plain.state_dict())
            dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
            for kind in kinds:
                other = kind(2)
                state = other.state_dict()
                dcp.load({"model": state}, checkpoint_id=folder)
                other.load_state_dict(state)
                assert_loaded(other, plain, f"{saved.__name__} to {kind.__name__}")
            # One process reads what several have written, as after the training.
            state = network(2).state_dict()
            dcp.load({"model": state}, checkpoint_id=folder, no_dist=True)
            other = network(2)
            other.load_state_dict(state)
            assert_loaded(other, plain, f"{saved.__name__} to one process")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_fits_every_way_to_shard(backend):
    run(check_models, ranks=2, backend=backend)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step in which all ranks have the same images, so that sharding changes no gradient."""
    optimizer.zero_grad()
    output = output_of(model, integers(2, 3, 8, 8))
    output.backward(integers(*output.shape).to(output.device))
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-1, 1).round_()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=2**-6, momentum=0.5)


def check_training() -> None:
    plain, model = network(1), by_layers(1)
    reference, optimizer = sgd(plain), sgd(model)
    for each, its_optimizer in ((plain, reference), (model, optimizer)):
        torch.manual_seed(3)
        train(each, its_optimizer)
    with common_folder() as folder:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
        others = []
        for kind in (network, converted, by_layers, as_one):
            other = kind(2)
            its_optimizer = sgd(other)
            others.append((kind.__name__, other, its_optimizer))
            weights, moments = get_state_dict(other, its_optimizer)
            dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
            set_state_dict(other, its_optimizer, model_state_dict=weights, optim_state_dict=moments)
    torch.manual_seed(4)
    train(plain, reference)
    for name, other, its_optimizer in others:
        torch.manual_seed(4)
        train(other, its_optimizer)
        for mine, theirs in zip(other.parameters(), plain.parameters(), strict=True):
            assert torch.equal(whole(mine), theirs), name
            moment = its_optimizer.state[mine]["momentum_buffer"]
            assert torch.equal(whole(moment), reference.state[theirs]["momentum_buffer"]), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_goes_on_from_a_checkpoint(backend):
    run(check_training, ranks=2, backend=backend)
