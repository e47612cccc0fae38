"""Models whose images are sharded along height or width, beside the same models on one rank."""

from __future__ import annotations

import copy
import os
import signal
from typing import Any

import pytest
import torch
from ranks import BACKENDS, TORCHRUN, device, mesh_of, run
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import customconv
from customconv.distributed import spatial, spatial_report


class Residual(nn.Module):
    """A block of diffusion models."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, channels), nn.GroupNorm(2, width)
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(5, width)
        self.shortcut = nn.Conv2d(channels, width, 1) if channels != width else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        found: Tensor = self.shortcut(x) + y
        return found


class Attention(nn.Module):
    """Attention of pixels to one another and to a text."""

    def __init__(self, width: int, text: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.text = nn.Linear(text, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        n, c, h, w = x.shape
        pixels = self.norm(x).view(n, c, h * w).transpose(1, 2)

        def heads(each: Tensor) -> Tensor:
            return each.view(n, -1, 2, c // 2).transpose(1, 2)

        context = torch.cat([pixels, self.text(text)], dim=1)
        found = F.scaled_dot_product_attention(
            heads(self.q(pixels)), heads(self.k(context)), heads(self.v(context))
        )
        found = self.out(found.transpose(1, 2).reshape(n, h * w, c))
        return x + found.transpose(1, 2).view(n, c, h, w)


class UNet(nn.Module):
    """A small network of diffusion models, with a text and a time."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.ModuleList([Residual(4, 6), Residual(6, 8)])
        self.smaller = nn.ModuleList(
            [nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)]
        )
        self.middle, self.attention = Residual(8, 8), Attention(8, 5)
        self.larger = nn.ModuleList(
            [nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1), nn.Conv2d(6, 6, 3, padding=1)]
        )
        self.up = nn.ModuleList([Residual(16, 6), Residual(12, 4)])
        self.last = nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 3, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> dict[str, Tensor]:
        def block(module: nn.Module, y: Tensor) -> Tensor:
            if self.recomputes:
                return checkpoint(module, y, time, use_reentrant=False)  # type: ignore[no-any-return]
            found: Tensor = module(y, time)
            return found

        x = self.first(x)
        skips = []
        for down, smaller in zip(self.down, self.smaller, strict=True):
            x = block(down, x)
            skips.append(x)
            x = smaller(x)
        x = self.attention(block(self.middle, x), text)
        x = self.larger[0](x)
        x = block(self.up[0], torch.cat([x, skips[1]], dim=1))
        x = self.larger[1](F.interpolate(x, size=skips[0].shape[-2:], mode="nearest"))
        x = block(self.up[1], torch.cat([x, skips[0]], dim=1))
        return {"sample": self.last(x)}


class Classifier(nn.Module):
    """A residual network with batch norms, a depthwise filter, an excitation and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8),
            nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=2, dilation=2, padding_mode="reflect", bias=False),
            nn.BatchNorm2d(8), nn.Hardswish(inplace=True),
            nn.Conv2d(8, 8, 5, padding="same", groups=8, bias=False), nn.BatchNorm2d(8),
        )  # fmt: skip
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Hardsigmoid(inplace=True)
        )
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.block(x)
        y = y * self.excite(y)
        y += x
        found: Tensor = self.head(self.relu(y))
        return found


def made(kind: type[nn.Module], *arguments: Any) -> nn.Module:
    torch.manual_seed(1)
    return kind(*arguments).to(device(), torch.float64)


def normal(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64).to(device())


def check_close(found: Any, expected: Any, what: str = "") -> None:
    torch.testing.assert_close(
        found, expected, rtol=1e-9, atol=1e-9, msg=lambda text: f"{what}: {text}"
    )


def unet_input(images: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    return normal(images, 3, 16, 12), normal(images, 5), normal(images, 7, 5)


def trained(model: nn.Module, parameters: Any, inputs: Any, steps: int = 4) -> list[float]:
    """Losses of some steps."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    for _ in range(steps):
        torch.manual_seed(3)  # the same targets in each
        output = model(*inputs)
        output = output["sample"] if isinstance(output, dict) else output
        loss = (output - normal(*output.shape)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def check_training() -> None:
    """A UNet with activations computed again or not, and a classifier with batch norms."""
    torch.manual_seed(2)
    images = (normal(2, 3, 33, 20),)
    for name, kind, arguments, inputs in (
        ("unet", UNet, (), unet_input()),
        ("unet with checkpoints", UNet, (True,), unet_input()),
        ("classifier", Classifier, (), images),
    ):
        for dim in (-2, -1):
            plain = made(kind, *arguments)
            sharded = spatial(copy.deepcopy(plain), mesh_of(), dim)
            losses = trained(plain, plain.parameters(), inputs)
            check_close(trained(sharded, sharded.parameters(), inputs), losses, name)
            for (what, a), b in zip(
                sharded.state_dict().items(), plain.state_dict().values(), strict=True
            ):
                check_close(a, b, f"{name}: {what}")
            plain.eval()
            sharded.eval()
            with torch.no_grad():
                check_close(sharded(*inputs), plain(*inputs), name)
            moved = {what for _, function, what in spatial_report(sharded).exchanged
                     if function not in ("input", "output")}  # fmt: skip
            assert ("whole" in moved) == (name != "classifier"), spatial_report(sharded)


@pytest.mark.parametrize("backend", BACKENDS)
def test_models_train_as_on_one_rank(backend):
    run(check_training, ranks=2, backend=backend)


def check_losses() -> None:
    plain = made(UNet)
    sharded = spatial(copy.deepcopy(plain), mesh_of())
    losses = trained(plain, plain.parameters(), unet_input(), steps=50)
    assert losses[-1] < 0.9 * losses[0]
    torch.testing.assert_close(
        trained(sharded, sharded.parameters(), unet_input(), steps=50), losses, rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_of_fifty_steps_are_alike(backend):
    run(check_losses, ranks=2, backend=backend)


def check_on_two_dimensions() -> None:
    """Images along one dimension of a mesh, and their batch along the other."""
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of(2, 2, names=("batch", "space"))
    whole = unet_input(4)
    row = mesh.get_local_rank("batch")
    part = tuple(each.chunk(2)[row] for each in whole)
    plain = made(UNet)
    plain(*whole)["sample"].square().mean().backward()

    sharded = spatial(made(UNet), mesh["space"])
    parallel = nn.parallel.DistributedDataParallel(sharded, process_group=mesh.get_group("batch"))
    parallel(*part)["sample"].square().mean().backward()
    for a, b in zip(sharded.parameters(), plain.parameters(), strict=True):
        check_close(a.grad, b.grad, "DDP")

    sharded = spatial(made(UNet), mesh["space"])
    for each in sharded.modules():
        if isinstance(each, Residual):
            fully_shard(each, mesh=mesh["batch"])
    fully_shard(sharded, mesh=mesh["batch"])
    sharded(*part)["sample"].square().mean().backward()
    for a, b in zip(sharded.parameters(), plain.parameters(), strict=True):
        check_close(a.grad.full_tensor(), b.grad, "FSDP2")


def test_data_parallel_on_the_other_dimension():
    run(check_on_two_dimensions, ranks=4)


def check_ways() -> None:
    """Converted and compiled models, DTensors for input and output, a mesh of one, autocast."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = mesh_of()
    inputs = unet_input()
    plain = made(UNet)
    expected = plain(*inputs)["sample"]
    converted = spatial(customconv.convert(made(UNet))[0], mesh)
    check_close(converted(*inputs)["sample"], expected, "converted")
    compiled = torch.compile(spatial(made(UNet), mesh), backend="eager")
    check_close(compiled(*inputs)["sample"], expected, "compiled")
    copied = copy.deepcopy(converted)
    torch.nn.init.zeros_(copied.last[2].weight)
    check_close(copied(*inputs)["sample"].std((2, 3)).max(), torch.tensor(0.0).to(expected), "copy")

    sharded = spatial(made(UNet), mesh, gather=False)
    image = distribute_tensor(inputs[0], mesh, [Shard(2)])
    found = sharded(image, *inputs[1:])["sample"]
    assert list(found.placements) == [Shard(2)] and found.shape == expected.shape
    check_close(found.full_tensor(), expected, "DTensors")

    signals = nn.Sequential(nn.Conv1d(2, 4, 5, padding=2), nn.GELU(), nn.ConvTranspose1d(4, 2, 3))
    volumes = nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.MaxPool3d(2),
        nn.ConvTranspose3d(4, 3, (3, 2, 1), (2, 1, 1), (1, 0, 0), (1, 0, 0)),
    )  # fmt: skip
    ours, _ = customconv.convert(copy.deepcopy(volumes))
    for model, sizes, dim in (
        (signals, (3, 2, 17), -1), (volumes, (1, 2, 9, 6, 5), -3), (ours, (2, 2, 4, 9, 5), -2)
    ):  # fmt: skip
        model.to(device(), torch.float64)
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), 0)
        torch.manual_seed(3)
        x = normal(*sizes)
        whole = model(x)
        check_close(spatial(model, mesh, dim)(x), whole, str(sizes))

    model = made(UNet).float()
    half = [each.float() for each in inputs]
    with torch.autocast(device().type, torch.bfloat16):
        whole = model(*half)["sample"]
        found = spatial(copy.deepcopy(model), mesh)(*half)["sample"]
    assert found.dtype == whole.dtype
    torch.testing.assert_close(found.float(), whole.float(), rtol=5e-2, atol=5e-2)

    alone = mesh_of(dist.get_world_size(), 1, names=("a", "b"))["b"]
    check_close(spatial(made(UNet), alone)(*inputs)["sample"], expected, "a mesh of one")


@pytest.mark.parametrize("backend", BACKENDS)
def test_converted_compiled_and_distributed_models(backend):
    run(check_ways, ranks=2, backend=backend)


def check_graph() -> None:
    inputs = unet_input()
    model = spatial(made(UNet), mesh_of())
    with torch.no_grad():
        model(*inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = model(*inputs)["sample"]
        for _ in range(2):
            inputs[0].copy_(normal(*inputs[0].shape))
            dist.broadcast(inputs[0], 0)
            graph.replay()
            check_close(found, made(UNet)(*inputs)["sample"], "graph")


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_a_cuda_graph_holds_the_exchanges(backend):
    run(check_graph, ranks=2, backend=backend)


def check_dropout() -> None:
    torch.manual_seed(4)
    x = torch.ones(4, 64, 8, 6, dtype=torch.float64, device=device())
    for module in (nn.Dropout(0.25), nn.Dropout(0.25, inplace=True), nn.Dropout2d(0.25)):
        sharded = spatial(nn.Sequential(nn.ReLU(), module), mesh_of())
        found = sharded(x)
        everywhere = found.clone()
        dist.broadcast(everywhere, 0)
        assert torch.equal(found, everywhere)
        dropped = found == 0
        assert 0.15 < dropped.double().mean() < 0.35
        assert torch.equal(found[~dropped], torch.full_like(found[~dropped], 1 / 0.75))
        rows = dropped.flatten(0, 1)
        alike = torch.equal(rows[:, :4], rows[:, 4:])  # the two ranks' rows
        if isinstance(module, nn.Dropout2d):
            assert alike
        elif device().type == "cuda":  # DTensor does not tell ranks apart on CPUs
            assert not alike
        assert torch.equal(sharded.eval()(x), x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_agree_on_what_is_dropped(backend):
    run(check_dropout, ranks=2, backend=backend)


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y[:, :, 0] = 0
        return y


def check_errors() -> None:
    mesh = mesh_of()
    torch.manual_seed(1)
    x = normal(1, 3, 8, 8)
    with pytest.raises(ValueError, match="a mesh of one dimension, got 2"):
        spatial(nn.Conv2d(3, 3, 1), mesh_of(2, 1, names=("a", "b")))
    with pytest.raises(ValueError, match="dim must be -1, -2 or -3, got 2"):
        spatial(nn.Conv2d(3, 3, 1), mesh, 2)
    with pytest.raises(NotImplementedError, match=r"SyncBatchNorm \(0\)"):
        spatial(nn.Sequential(nn.SyncBatchNorm(3)), mesh)
    model = spatial(nn.Sequential(nn.Conv2d(3, 3, 3)).to(device(), torch.float64), mesh)
    with pytest.raises(ValueError, match="already sharded"):
        spatial(model, mesh)
    with pytest.raises(ValueError, match=r"spatial\(\) has not been called"):
        spatial_report(nn.Conv2d(3, 3, 1))
    with pytest.raises(NotImplementedError, match="__setitem__ writes to a tensor"):
        spatial(Writes(), mesh)(x)
    with pytest.raises(NotImplementedError, match="rrelu draws random numbers"):
        spatial(nn.RReLU(), mesh)(x)
    check_close(spatial(nn.RReLU().eval(), mesh)(x), nn.RReLU().eval()(x))
    # After an error the functions of PyTorch are as they were.
    assert type(x[:, :, 2:]) is Tensor
    with pytest.raises(RuntimeError, match=r"[Kk]ernel size can't be greater"):
        model(normal(1, 3, 2, 8))
    with pytest.raises(RuntimeError, match="channel"):
        model(normal(1, 4, 8, 8))
    with pytest.raises(RuntimeError, match=r"different sizes or types; rank . of 2 has"):
        model(normal(1, 3, 8 + dist.get_rank(), 8))
    assert model(normal(1, 3, 8, 8)).shape == (1, 3, 6, 6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_name_what_cannot_be_done(backend):
    run(check_errors, ranks=2, backend=backend)


def check_killed() -> None:
    model = spatial(nn.Conv2d(3, 3, 3).to(device(), torch.float64), mesh_of())
    model(normal(1, 3, 8, 8))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises((RuntimeError, dist.DistBackendError)):
        for _ in range(3):
            float(model(normal(1, 3, 8, 8)).sum())


# On GPUs it would disturb other tests: processes that share a GPU by MPS share its faults.
@pytest.mark.skipif(TORCHRUN, reason="kills a rank that runs all tests")
def test_a_killed_rank_is_an_error():
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="SIGKILL"):
        run(check_killed, ranks=2)
