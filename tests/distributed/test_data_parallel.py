"""DDP, FSDP2 and DataParallel give what one process gives on the whole batch."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from ranks import BACKENDS, WITHOUT_RANKS, device, integers, mesh_of, run
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import customconv

STEPS = 3
WAYS = ["routed", "converted"]


class Network(nn.Sequential):
    """Dynamo compiles its ``forward``, and would leave out that of PyTorch's class."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


def network() -> Network:
    """A small network on the CPU; five channels of an output do not divide among two ranks."""
    found = Network(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8, bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 5, 2, stride=2),
        nn.Conv2d(5, 3, 3, padding="same"),
    )
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(integers(*parameter.shape))
    return found


def batch(images: int = 4) -> tuple[Tensor, Tensor]:
    """Images and the gradient of the network's output."""
    return integers(images, 3, 8, 8), integers(images, 3, 12, 12)


def whole(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


class Training:
    """SGD whose parameters are made integers after each step, so that the next one is exact."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=2**-6, momentum=0.5)

    def gradients(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Leaves gradients in the parameters, and returns the output."""
        self.optimizer.zero_grad()
        output = self.model(x)
        output.backward(gradient.to(output.dtype))
        return output.detach().cpu()

    def step(self) -> None:
        self.optimizer.step()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.clamp_(-1, 1).round_()


def assert_same_parameters(found: nn.Module, expected: nn.Module, what: str) -> None:
    pairs = zip(found.parameters(), expected.named_parameters(), strict=True)
    for mine, (name, theirs) in pairs:
        assert mine.grad is not None and theirs.grad is not None, f"{what}: {name}"
        assert torch.equal(whole(mine.grad), theirs.grad), f"{what}: the gradient of {name}"
        assert torch.equal(whole(mine), theirs), f"{what}: {name}"


@contextlib.contextmanager
def used(way: str) -> Iterator[None]:
    """Routes where this is the way, and checks that customconv was called.

    On the CPU a converted model alone calls it: nothing is routed, and compiled code is Inductor's.
    """
    customconv.stats(reset=True)
    with customconv.enabled() if way == "routed" else contextlib.nullcontext():
        yield
    stats = customconv.stats()
    if not dist.is_initialized() or dist.get_backend() == "nccl":
        assert stats.calls, f"{way}: {stats}"
    elif way == "converted":
        assert stats.fallbacks, f"{way}: {stats}"


def check_steps(way: str, plain: nn.Module, shared: nn.Module, what: str) -> None:
    """Each rank has its part of the batch; ``plain`` is trained on all of it by PyTorch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    one, several = Training(plain), Training(shared)
    for step in range(STEPS):
        x, gradient = batch()
        expected = one.gradients(x, gradient / ranks)  # DDP and FSDP take the ranks' mean
        with used(way):
            found = several.gradients(
                x.chunk(ranks)[rank].to(device()), gradient.chunk(ranks)[rank].to(device())
            )
        assert torch.equal(found, expected.chunk(ranks)[rank]), f"{what}: the output, step {step}"
        assert expected.any(), f"{what}: only zeros, step {step}"
        one.step()
        several.step()
        assert_same_parameters(shared, plain, f"{what}, step {step}")


def with_ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def with_fsdp(model: nn.Module, **options: Any) -> nn.Module:
    """Every convolution is gathered by itself."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.children():
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh_of(), **options)
    fully_shard(model, mesh=mesh_of(), **options)
    return model


def with_fsdp_of_all(model: nn.Module) -> nn.Module:
    """All parameters are gathered together."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh_of())
    return model


def converted(model: nn.Module) -> nn.Module:
    found, report = customconv.convert(model)
    assert len(report.replaced) == 4 and not report.left
    return found


def check_data_parallel(wrap: Callable[[nn.Module], nn.Module]) -> None:
    for way in WAYS:
        torch.manual_seed(5)
        plain = network()
        model = copy.deepcopy(plain).to(device())
        shared = wrap(converted(model) if way == "converted" else model)
        check_steps(way, plain, shared, way)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrap", [with_ddp, with_fsdp, with_fsdp_of_all])
def test_it_trains_as_one_process_does(wrap, backend):
    run(check_data_parallel, wrap, ranks=2, backend=backend)


def check_conversion_of_a_sharded_model() -> None:
    torch.manual_seed(6)
    plain = network()
    shared = converted(with_fsdp_of_all(copy.deepcopy(plain).to(device())))
    check_steps("converted", plain, shared, "converted after it was sharded")
    shared = customconv.revert(shared)
    assert [type(each) for each in shared.children()] == [type(each) for each in plain.children()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sharded_model_can_be_converted_and_reverted(backend):
    run(check_conversion_of_a_sharded_model, ranks=2, backend=backend)


def check_bfloat16() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for way in WAYS:
        torch.manual_seed(7)
        plain = network()
        model = copy.deepcopy(plain).to(device())
        model = converted(model) if way == "converted" else model
        shared = with_fsdp(model, mp_policy=policy)
        one, several = Training(plain), Training(shared)
        for step in range(STEPS):
            what = f"{way}, step {step}"
            x, gradient = (each.to(device()) for each in batch())
            # The same convolutions of the same shapes, one part of the batch after the other, so
            # that each rounds to bfloat16 as it does on its rank.
            outputs = []
            for parameter in plain.parameters():
                parameter.grad = torch.zeros_like(parameter)
            for part, its_gradient in zip(x.chunk(ranks), gradient.chunk(ranks), strict=True):
                twin = copy.deepcopy(plain).to(device(), torch.bfloat16)
                twin = converted(twin) if way == "converted" else twin
                with used(way):
                    outputs.append(Training(twin).gradients(part.bfloat16(), its_gradient))
                for mine, theirs in zip(plain.parameters(), twin.parameters(), strict=True):
                    mine.grad += theirs.grad.cpu().float() / ranks
            with used(way):
                found = several.gradients(x.chunk(ranks)[rank], gradient.chunk(ranks)[rank])
            assert found.dtype == torch.bfloat16 and found.any(), what
            assert torch.equal(found, outputs[rank]), what
            one.step()
            several.step()
            assert_same_parameters(shared, plain, what)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fsdp_in_bfloat16_rounds_as_one_process_does(backend):
    run(check_bfloat16, ranks=2, backend=backend)


def compiled_ddp(model: nn.Module) -> nn.Module:
    return customconv.compile(DistributedDataParallel(model))


def ddp_of_compiled(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(customconv.compile(model))


def compiled_fsdp(model: nn.Module) -> nn.Module:
    return customconv.compile(with_fsdp_of_all(model))


def fsdp_of_compiled(model: nn.Module) -> nn.Module:
    """Compiled in place, so that the parameters' names stay."""
    model.compile(backend=customconv.compiler.backend)
    return with_fsdp_of_all(model)


def check_compiled(wraps: list[Callable[[nn.Module], nn.Module]]) -> None:
    from torch._dynamo.utils import counters

    for wrap in wraps:
        torch.compiler.reset()
        counters.clear()
        torch.manual_seed(8)
        plain = network()
        shared = wrap(copy.deepcopy(plain).to(device()))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="customconv: a graph is left to Inductor")
            check_steps("compiled", plain, shared, wrap.__name__)
        assert counters["stats"]["unique_graphs"], f"{wrap.__name__}: nothing was compiled"


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "wraps",
    [[compiled_ddp, ddp_of_compiled], [compiled_fsdp, fsdp_of_compiled]],
    ids=["ddp", "fsdp"],
)
def test_a_compiled_model_trains_as_one_process_does(wraps, backend):
    run(check_compiled, wraps, ranks=2, backend=backend)


@pytest.mark.parametrize("way", [pytest.param(way, marks=WITHOUT_RANKS) for way in WAYS])
def test_two_gpus_of_one_process_train_as_one_process_does(way):
    plain = network()
    model = copy.deepcopy(plain).cuda()
    shared = nn.DataParallel(converted(model) if way == "converted" else model, [0, 1])
    one, several = Training(plain), Training(shared)
    for step in range(STEPS):
        x, gradient = batch()
        expected = one.gradients(x, gradient)
        with used(way):
            found = several.gradients(x.cuda(), gradient.cuda())
        assert torch.equal(found, expected)
        one.step()
        several.step()
        assert_same_parameters(shared, plain, f"step {step}")
