"""Compiled models on a GPU: accuracy, layouts, CUDA graphs, and which kernels run."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from compiler_support import Block, gradients, make
from reference import LAYOUTS, float32_precision, layout_of
from torch import nn
from torch.profiler import ProfilerActivity, profile

import customconv

pytestmark = pytest.mark.gpu

PRECISIONS = ["tf32", "ieee", torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()


class Inverted(nn.Module):
    """What mobile networks repeat: expansion, depthwise, gate, projection, and a shortcut."""

    def __init__(self, channels: int = 24, width: int = 96) -> None:
        super().__init__()
        self.expand = nn.Conv2d(channels, width, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(width)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(width)
        self.reduce = nn.Conv2d(width, 8, 1)
        self.restore = nn.Conv2d(8, width, 1)
        self.project = nn.Conv2d(width, channels, 1, bias=False)
        self.project_norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = F.silu(self.expand_norm(self.expand(x)))
        y = F.hardswish(self.depthwise_norm(self.depthwise(y)))
        y = y * self.restore(F.relu(self.reduce(y.mean((2, 3), keepdim=True)))).sigmoid()
        return (x + self.project_norm(self.project(y)),)


class Split(nn.Module):
    """A convolution in groups between pointwise ones, halving the image, with a shortcut."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 64, 1)
        self.second = nn.Conv2d(64, 64, 3, stride=2, padding=1, groups=8)
        self.second_norm = nn.BatchNorm2d(64)
        self.shortcut = nn.Conv2d(channels, 64, 1, stride=2)

    def forward(self, x):
        y = F.leaky_relu(self.second_norm(self.second(F.relu6(self.first(x)))), 0.1)
        return (F.gelu(y + self.shortcut(x)), y)


class Upsampling(nn.Module):
    """As decoders have it: images that double, with and without a residual, and a depthwise one."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(channels, 24, 4, 2, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(24)
        self.second = nn.ConvTranspose2d(24, 16, 3, 2, 1, 1)
        self.second_norm = nn.BatchNorm2d(16)
        self.shortcut = nn.ConvTranspose2d(24, 16, 2, 2)
        self.third = nn.ConvTranspose2d(16, 16, 3, padding=1, groups=16)
        self.last = nn.ConvTranspose2d(16, 3, 5, padding=2)

    def forward(self, x):
        y = F.silu(self.first_norm(self.first(x)))
        y = F.relu(self.second_norm(self.second(y)) + self.shortcut(y))
        y = F.hardswish(self.third(y)) + y
        return (self.last(y).sigmoid(), y)


MODELS = {
    "block": (Block, 8), "inverted": (Inverted, 24), "split": (Split, 64),
    "upsampling": (Upsampling, 32), "volumes": (functools.partial(Block, dims=3), 8),
}  # fmt: skip


def built(name):
    torch.manual_seed(0)
    kind, channels = MODELS[name]
    model = kind().cuda().eval()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm3d)):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
    sizes = (7, 14, 18) if name == "volumes" else (28, 36)
    return model, torch.randn(4, channels, *sizes, device="cuda")


def within(precision):
    """The context in which a model runs in a precision."""
    low = isinstance(precision, torch.dtype)
    stack = torch.autocast("cuda", dtype=precision if low else torch.float16, enabled=low)
    return stack, float32_precision("tf32" if low else precision)


# What a result may be off beside PyTorch's error: cuDNN need not use TF32 where it may, and in 16
# bits PyTorch's kernels for one layout round once less than those for the other.
ROUNDING = {"tf32": 2e-3, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


def assert_as_accurate(ours, eager, exact, precision, factor=2.0):
    for mine, theirs, expected in zip(ours, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype
        error, allowed = ((t.double() - expected).abs().max() for t in (mine, theirs))
        rounding = ROUNDING.get(precision, 1e-6)
        assert error <= factor * allowed + rounding * expected.abs().max()


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_inference_is_as_accurate_as_eager(name, precision, layout):
    model, x = built(name)
    exact = copy.deepcopy(model).double()(x.double())
    layout = layout_of(layout, x.ndim)
    model, x = model.to(memory_format=layout), x.contiguous(memory_format=layout)
    autocast, float32 = within(precision)
    compiled = customconv.compile(model, fullgraph=True)
    with torch.no_grad(), autocast, float32:
        eager, ours = model(x), compiled(x)
        again = compiled(x)
    assert_as_accurate(ours, eager, exact, precision)
    for mine, repeated, theirs in zip(ours, again, eager, strict=True):
        assert torch.equal(mine, repeated)
        assert mine.stride() == theirs.stride()


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_training_is_as_accurate_as_eager(name, precision, layout):
    """Gradients with batch norms in evaluation mode that learn, in a smooth network."""
    model, x = built(name)
    wide = copy.deepcopy(model).double()
    exact = gradients(wide, wide, x.double())
    layout = layout_of(layout, x.ndim)
    model, x = model.to(memory_format=layout), x.contiguous(memory_format=layout)
    autocast, float32 = within(precision)
    compiled = customconv.compile(model, fullgraph=True)
    with autocast, float32:
        eager, ours = gradients(model, model, x), gradients(model, compiled, x)
    assert_as_accurate(ours, eager, exact, precision, factor=3.0)


def test_training_mode_moves_running_statistics_as_eager_does():
    model = make(train=True, device="cuda")
    twin = copy.deepcopy(model)
    x = torch.randn(4, 8, 28, 36, device="cuda")
    compiled = customconv.compile(model, fullgraph=True)
    for _ in range(3):
        for outputs in (compiled(x), twin(x)):
            sum(y.square().mean() for y in outputs).backward()
    for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    # What normalization takes away has a gradient of rounding errors.
    scale = max(p.grad.abs().max().item() for p in twin.parameters())
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.parametrize("name", MODELS)
def test_cuda_graphs_replay_it(name):
    model, x = built(name)
    compiled = customconv.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn_like(x)
            expected = model(x)
            for ours, theirs in zip(compiled(x), expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_a_graph_of_back_to_back_convolutions_is_right_every_time():
    """Kernels begin before those in front of them have ended: none may read too early."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for c, k, r, groups in [
        (32, 64, 1, 1), (64, 64, 3, 64), (64, 32, 1, 1), (32, 32, 3, 1), (32, 96, 1, 1),
        (96, 96, 5, 96), (96, 32, 1, 1), (32, 128, 3, 1), (128, 32, 1, 1), (32, 32, 3, 4),
    ] * 3:  # fmt: skip
        layers += [nn.Conv2d(c, k, r, padding=r // 2, groups=groups), nn.ReLU()]
    model = nn.Sequential(*layers).cuda().half().to(memory_format=torch.channels_last).eval()
    for size in (7, 14, 56):
        compiled = customconv.compile(model, mode="reduce-overhead", dynamic=False)
        x = torch.randn(1, 32, size, size, device="cuda", dtype=torch.half)
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            # Each kernel ends before the next begins.
            y = x
            for layer in model:
                y = layer(y) if isinstance(layer, nn.ReLU) else customconv.conv2d(
                    y, layer.weight, layer.bias, 1, layer.padding, 1, layer.groups
                )  # fmt: skip
                torch.cuda.synchronize()
            first = compiled(x).clone()
            torch.testing.assert_close(first, y, rtol=0.05, atol=0.05 * y.abs().max().item())
            for _ in range(20):
                assert torch.equal(compiled(x), first)


def kernels(call) -> list[str]:
    call()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return [event.name for event in profiler.events() if event.device_type.name == "CUDA"
            and not event.name.startswith(("Mem", "Activity", "cuda"))]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_no_kernel_runs_besides_transposed_convolutions(layout):
    """But those that pack weights and images, or spread phases over an image."""
    model = nn.Sequential(
        nn.ConvTranspose2d(64, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.SiLU(),
    ).cuda().eval().half().to(memory_format=layout)  # fmt: skip
    x = torch.randn(8, 64, 28, 28, device="cuda", dtype=torch.half).contiguous(memory_format=layout)
    compiled = customconv.compile(model, options={"layout_optimization": False})
    with torch.no_grad():
        names = kernels(lambda: compiled(x))
    assert all("customconv" in name for name in names), names


def test_no_kernel_runs_besides_convolutions_and_their_parameters():
    """Channels-last under autocast: batch norms, activations, casts and layouts cost no kernel."""
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.SiLU(),
        nn.Conv2d(32, 16, 1), nn.Hardswish(),
    ).cuda().eval().to(memory_format=torch.channels_last)  # fmt: skip
    x = torch.randn(8, 16, 28, 28, device="cuda", dtype=torch.half)
    x = x.contiguous(memory_format=torch.channels_last)
    compiled = customconv.compile(model)
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        names = kernels(lambda: compiled(x))
    others = [name for name in names if "convolve" not in name]
    assert len(names) - len(others) == 3, names
    assert len(others) == 2, names
    assert all("customconv::parameters" in name for name in others), names
