"""Which operators become part of a convolution, which do not and why, and that results agree."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from reference import LAYOUTS, assert_equal, layout_of, tolerances
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd

from customconv.arguments import LAST
from customconv.compiler.report import CompiledConvolution
from customconv.compiler.rewrite import fuse

pytestmark = pytest.mark.usefixtures("fuses_on_the_cpu")

CONVOLUTIONS = ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
PLAIN = {getattr(torch.ops.customconv, name).default: name for name in CONVOLUTIONS}
FUSED = {getattr(torch.ops.customconv, f"{name}_fused").default: name for name in CONVOLUTIONS}
FOLD = torch.ops.customconv.fold_batch_norms.default

Forward = Callable[[Any, Tensor], Any]


class Model(nn.Module):
    """Modules, and what is done with them."""

    def __init__(self, forward: Forward, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.does = forward

    def forward(self, x: Tensor) -> Any:
        return self.does(self, x)


def deep(module: nn.Module) -> nn.Module:
    """The module for volumes that corresponds to one for images."""
    if isinstance(module, nn.BatchNorm2d):
        return nn.BatchNorm3d(module.num_features, affine=module.affine)
    if not isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        return module

    def three(numbers: Any) -> Any:
        return numbers if isinstance(numbers, str) else (numbers[-1], *numbers)

    transposed = isinstance(module, nn.ConvTranspose2d)
    names = ("kernel_size", "stride", "padding", "dilation", "output_padding")
    numbers = {name: three(getattr(module, name)) for name in names[: 5 if transposed else 4]}
    return (nn.ConvTranspose3d if transposed else nn.Conv3d)(
        module.in_channels, module.out_channels, **numbers, groups=module.groups,
        bias=module.bias is not None,
    )  # fmt: skip


def of_dims(dims: str, model: Model, parts: Any) -> tuple[Model, Any]:
    """A model of images and what it becomes, or both of volumes."""
    if dims == "2d":
        return model, parts
    change: Callable[[Any], Any] = lambda each: (  # noqa: E731
        [change(inner) for inner in each] if isinstance(each, list) else each.replace("2d", dims)
    )
    modules = {name: deep(module) for name, module in model.named_children()}
    return Model(model.does, **modules), change(parts)


each_dims = pytest.mark.parametrize("dims", ["2d", "3d"])


def vector(values: Tensor, x: Tensor, *, batched: bool = False) -> Tensor:
    """One value for each channel, of a shape that can be combined with x."""
    return values.view(*[1] * batched, -1, *[1] * (x.ndim - 2))


def settled(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, its batch norms with statistics that are not 0 and 1."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor in (module.running_mean, module.running_var, module.weight, module.bias):
                if tensor is not None:
                    nn.init.uniform_(tensor, 0.5, 1.5)
    return model.eval()


class Fusing:
    """A backend that fuses and runs the graph as it then is.

    If ``differentiates``, AOT autograd traces the graph first, as it does for Inductor.
    """

    def __init__(self, *, differentiates: bool = False) -> None:
        self.differentiates = differentiates
        self.found: list[CompiledConvolution] = []
        self.graphs: list[fx.GraphModule] = []
        self.backward: list[fx.GraphModule] = []

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.found += fuse(graph_module.graph)
        graph_module.graph.lint()
        graph_module.recompile()
        self.graphs.append(graph_module)
        if not self.differentiates:
            return graph_module.forward

        def traced(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            return make_boxed_func(graph.forward)

        def backward(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            self.backward.append(graph)
            return make_boxed_func(graph.forward)

        made: Callable[..., Any] = aot_autograd(fw_compiler=traced, bw_compiler=backward)(
            graph_module, inputs
        )
        return made

    def called(self) -> list[Any]:
        """What the graphs call, in order, but for the parameters' preparation."""
        small = FOLD, torch.mul, torch.add, torch.reshape, torch.full, torch.reciprocal
        nodes = [node for graph in self.graphs for node in graph.graph.nodes]
        targets = [n.target for n in nodes if n.op in ("call_function", "call_method")]
        return [t for t in targets if t not in small and getattr(t, "__name__", "") != "getitem"]


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()


def run(model: nn.Module, *inputs: Tensor) -> tuple[Fusing, Any]:
    backend = Fusing()
    return backend, torch.compile(model, backend=backend, fullgraph=True)(*inputs)


def conv_transposed(c: int = 6, k: int = 8, **keywords: Any) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(c, k, 3, padding=1, **keywords)


def conv(c: int = 6, k: int = 8, r: int = 3, **keywords: Any) -> nn.Conv2d:
    return nn.Conv2d(c, k, r, padding=r // 2, **keywords)


ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "sigmoid": torch.sigmoid,
}

# The model, and what its convolutions become, in order.
PATTERNS: dict[str, tuple[Model, list[list[str]]]] = {
    "bare": (Model(lambda m, x: m.c(x), c=conv()), [["conv2d"]]),
    **{
        name: (
            Model(lambda m, x, function=function: function(m.c(x)), c=conv()),
            [["conv2d", name]],
        )
        for name, function in ACTIVATIONS.items()
    },
    "relu_method": (Model(lambda m, x: m.c(x).relu_(), c=conv()), [["conv2d", "relu"]]),
    "relu_by_clamp": (Model(lambda m, x: m.c(x).clamp(min=0), c=conv()), [["conv2d", "relu"]]),
    "relu6_by_clamp": (
        Model(lambda m, x: torch.clamp(m.c(x), 0, 6), c=conv()), [["conv2d", "relu6"]]
    ),
    "relu6_by_hardtanh": (
        Model(lambda m, x: F.hardtanh(m.c(x), 0, 6, inplace=True), c=conv()), [["conv2d", "relu6"]]
    ),
    "silu_by_hand": (
        Model(lambda m, x: (y := m.c(x)) * torch.sigmoid(y), c=conv()), [["conv2d", "silu"]]
    ),
    "silu_the_other_way": (
        Model(lambda m, x: (y := m.c(x)).sigmoid().mul(y), c=conv()), [["conv2d", "silu"]]
    ),
    "batch_norm": (
        Model(lambda m, x: m.b(m.c(x)), c=conv(bias=False), b=nn.BatchNorm2d(8)),
        [["conv2d", "batch norm"]],
    ),
    "batch_norm_and_bias": (
        Model(lambda m, x: F.relu(m.b(m.c(x)), inplace=True), c=conv(), b=nn.BatchNorm2d(8)),
        [["conv2d", "batch norm", "relu"]],
    ),
    "batch_norm_without_parameters": (
        Model(lambda m, x: m.b(m.c(x)), c=conv(), b=nn.BatchNorm2d(8, affine=False)),
        [["conv2d", "batch norm"]],
    ),
    "two_batch_norms": (
        Model(
            lambda m, x: m.d(m.b(m.c(x))), c=conv(), b=nn.BatchNorm2d(8), d=nn.BatchNorm2d(8)
        ),
        [["conv2d", "batch norm", "batch norm"]],
    ),
    "dropout_between": (
        Model(
            lambda m, x: F.relu(m.d(m.b(m.c(x)))), c=conv(), b=nn.BatchNorm2d(8), d=nn.Dropout(0.3)
        ),
        [["conv2d", "batch norm", "relu"]],
    ),
    "residual": (
        Model(lambda m, x: F.relu(m.b(m.c(x)) + x), c=conv(8, 8), b=nn.BatchNorm2d(8)),
        [["conv2d", "batch norm", "residual", "relu"]],
    ),
    "residual_in_place": (
        Model(lambda m, x: m.c(x).add_(x).relu_(), c=conv(8, 8)), [["conv2d", "residual", "relu"]]
    ),
    "residual_on_the_left": (
        Model(lambda m, x: x + F.relu(m.c(x)), c=conv(8, 8)), [["conv2d", "relu", "residual"]]
    ),
    "residual_after_activation": (
        Model(lambda m, x: F.gelu(m.c(x)) + x, c=conv(8, 8)), [["conv2d", "gelu", "residual"]]
    ),
    "two_branches": (
        Model(
            lambda m, x: F.relu(m.b(m.c(x)) + m.e(m.d(x))),
            c=conv(), b=nn.BatchNorm2d(8), d=conv(r=1), e=nn.BatchNorm2d(8),
        ),
        [["conv2d", "batch norm"], ["conv2d", "batch norm", "residual", "relu"]],
    ),
    "later_residual": (
        Model(lambda m, x: F.relu(m.c(x) + x.flip(-1).exp()), c=conv(8, 8)),
        [["conv2d", "residual", "relu"]],
    ),
    "numbers": (
        Model(lambda m, x: F.relu((m.c(x) - 0.5) * 2 / 3 + 1), c=conv()),
        [["conv2d", "bias", "scale", "scale", "bias", "relu"]],
    ),
    "numbers_without_bias": (
        Model(lambda m, x: m.c(x) * 2 + 1, c=conv(bias=False)), [["conv2d", "scale", "bias"]]
    ),
    "vectors": (
        Model(
            lambda m, x: F.relu(
                m.c(x) * vector(m.b.weight, x) + vector(m.b.bias, x, batched=True)
            ),
            c=conv(), b=nn.BatchNorm2d(8),
        ),
        [["conv2d", "scale", "bias", "relu"]],
    ),
    "vector_twice": (
        Model(
            lambda m, x: torch.add(m.c(x), vector(m.b.bias, x), alpha=2).div(
                vector(m.b.weight, x, batched=True)
            ),
            c=conv(), b=nn.BatchNorm2d(8),
        ),
        [["conv2d", "bias", "scale"]],
    ),
    "depthwise": (
        Model(lambda m, x: F.silu(m.b(m.c(x))), c=conv(8, 8, groups=8), b=nn.BatchNorm2d(8)),
        [["conv2d", "batch norm", "silu"]],
    ),
    "grouped_and_strided": (
        Model(
            lambda m, x: F.relu(m.c(x)),
            c=nn.Conv2d(8, 12, (3, 5), (2, 1), (1, 2), (1, 1), groups=4),
        ),
        [["conv2d", "relu"]],
    ),
    "same_padding": (
        Model(lambda m, x: F.relu(m.c(x)), c=nn.Conv2d(8, 6, 3, padding="same", dilation=2)),
        [["conv2d", "relu"]],
    ),
    "valid_padding": (
        Model(lambda m, x: F.relu(m.c(x)), c=nn.Conv2d(8, 6, 3, padding="valid")),
        [["conv2d", "relu"]],
    ),
    "in_a_row": (
        Model(
            lambda m, x: m.d(F.relu(m.c(x))).sigmoid(), c=conv(8, 4), d=conv(4, 5, bias=False)
        ),
        [["conv2d", "relu"], ["conv2d", "sigmoid"]],
    ),
    "transposed": (
        Model(lambda m, x: F.relu(m.c(x)), c=nn.ConvTranspose2d(8, 6, 3, 2, 1, 1)),
        [["conv_transpose2d", "relu"]],
    ),
    "transposed_alone": (
        Model(lambda m, x: m.c(x), c=nn.ConvTranspose2d(8, 6, 2, 2)),
        [["conv_transpose2d"]],
    ),
    "transposed_batch_norm": (
        Model(
            lambda m, x: F.relu(m.b(m.c(x)), inplace=True),
            c=nn.ConvTranspose2d(8, 6, 4, (2, 3), 1, (1, 2), bias=False), b=nn.BatchNorm2d(6),
        ),
        [["conv_transpose2d", "batch norm", "relu"]],
    ),
    "transposed_batch_norm_and_bias": (
        Model(
            lambda m, x: F.leaky_relu(m.b(m.c(x)), 0.2),
            c=nn.ConvTranspose2d(8, 6, 3, 2, 1, 1, groups=2, dilation=2), b=nn.BatchNorm2d(6),
        ),
        [["conv_transpose2d", "batch norm", "leaky_relu"]],
    ),
    "transposed_residual": (
        Model(
            lambda m, x: F.relu(m.b(m.c(x)) + x), c=conv_transposed(8, 8), b=nn.BatchNorm2d(8)
        ),
        [["conv_transpose2d", "batch norm", "residual", "relu"]],
    ),
    "transposed_residual_last": (
        Model(lambda m, x: F.gelu(m.c(x)) + x, c=conv_transposed(8, 8)),
        [["conv_transpose2d", "gelu", "residual"]],
    ),
    "transposed_numbers": (
        Model(lambda m, x: F.silu((m.c(x) - 0.5) * 2 / 3 + 1), c=conv_transposed()),
        [["conv_transpose2d", "bias", "scale", "scale", "bias", "silu"]],
    ),
    "transposed_depthwise": (
        Model(lambda m, x: F.hardswish(m.c(x)), c=conv_transposed(8, 8, groups=8)),
        [["conv_transpose2d", "hardswish"]],
    ),
    "transposed_image": (
        Model(lambda m, x: F.relu(m.c(x[0])), c=conv_transposed(8)),
        [["conv_transpose2d", "relu"]],
    ),
    "up_and_across": (
        Model(
            lambda m, x: F.relu(m.c(x) + m.d(x)), c=conv_transposed(8, 6), d=conv(8, 6)
        ),
        [["conv_transpose2d"], ["conv2d", "residual", "relu"]],
    ),
    "across_and_up": (
        Model(
            lambda m, x: F.relu(m.d(x) + m.c(x)), c=conv_transposed(8, 6), d=conv(8, 6)
        ),
        [["conv2d"], ["conv_transpose2d", "residual", "relu"]],
    ),
    "signals": (
        Model(
            lambda m, x: F.leaky_relu(m.c(x.flatten(2)), 0.1) + x.flatten(2),
            c=nn.Conv1d(8, 8, 5, padding=4, dilation=2),
        ),
        [["conv1d", "leaky_relu", "residual"]],
    ),
    "transposed_signals": (
        Model(lambda m, x: F.relu(m.c(x.flatten(2))), c=nn.ConvTranspose1d(8, 6, 4, 2, 1)),
        [["conv_transpose1d", "relu"]],
    ),
    "transposed_signals_batch_norm": (
        Model(
            lambda m, x: F.relu(m.b(m.c(x.flatten(2))) + x.flatten(2)),
            c=nn.ConvTranspose1d(8, 8, 5, padding=4, dilation=2), b=nn.BatchNorm1d(8),
        ),
        [["conv_transpose1d", "batch norm", "residual", "relu"]],
    ),
    "one_image": (Model(lambda m, x: F.relu(m.c(x[0])), c=conv(8)), [["conv2d", "relu"]]),
}  # fmt: skip


def input_of(model: Model, device: str = "cpu") -> Tensor:
    is_deep = isinstance(model.c, (nn.Conv3d, nn.ConvTranspose3d))
    sizes = (5, 7, 9) if is_deep else (7, 9)
    return torch.randn(2, model.c.in_channels, *sizes, device=device)


@pytest.mark.parametrize(
    ("pattern", "dims"),
    [(each, "2d") for each in PATTERNS]
    + [(each, "3d") for each in PATTERNS if "signals" not in each],
)
def test_a_pattern_is_fused_and_exact(pattern, dims):
    model, parts = of_dims(dims, *PATTERNS[pattern])
    check_fused_and_exact(pattern, model, parts)


VOLUMES: dict[str, tuple[nn.Module, str]] = {
    "strided": (
        nn.Conv3d(8, 6, (1, 2, 4), (1, 2, 3), (0, 1, 2), dilation=(3, 2, 1), groups=2), "conv3d"
    ),
    "one number in a list": (nn.Conv3d(8, 6, 3, stride=[2], padding=[1]), "conv3d"),
    "same padding": (
        nn.Conv3d(8, 6, (1, 5, 3), padding="same", dilation=(4, 1, 2)), "conv3d"
    ),
    "transposed": (
        nn.ConvTranspose3d(8, 6, (4, 1, 3), (3, 1, 2), (2, 0, 1), (2, 0, 1), dilation=(1, 3, 2)),
        "conv_transpose3d",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VOLUMES)
def test_three_different_numbers_stay_in_their_order(name):
    convolution, kind = VOLUMES[name]
    model = Model(lambda m, x: F.relu(m.c(x)), c=convolution)
    check_fused_and_exact(name, model, [[kind, "relu"]])


def check_fused_and_exact(pattern: str, model: nn.Module, parts: list[list[str]]) -> None:
    model = settled(model).double()
    x = input_of(model).double()
    with torch.no_grad():
        expected = model(x.clone())
        backend, actual = run(model, x)
    assert [list(each.parts) for each in backend.found] == parts
    assert all(each.ours for each in backend.found)
    assert_equal(actual, expected, **tolerances(torch.float64, 1000))
    assert actual.stride() == expected.stride()
    # One operator for each convolution, and nothing that is fused besides it.
    kinds = PLAIN | FUSED
    convolutions = [t for t in backend.called() if t in kinds]
    fused = [t in FUSED for t in convolutions]
    assert fused == [len(each) > 1 for each in parts]
    assert [kinds[t] for t in convolutions] == [each[0].replace("1d", "2d") for each in parts]
    others = "later_residual", "vectors", "vector_twice", "one_image", "transposed_image"
    if "signals" not in pattern and pattern not in others:
        assert backend.called() == convolutions


@each_dims
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("pattern", ["residual", "transposed_residual"])
def test_layouts_stay_as_they_are(pattern, layout, dims):
    model, _ = of_dims(dims, *PATTERNS[pattern])
    layout = layout_of(layout, int(dims[0]) + 2)
    model = settled(model).to(memory_format=layout)
    x = input_of(model).contiguous(memory_format=layout)
    with torch.no_grad():
        expected = model(x)
        _, actual = run(model, x)
    assert_equal(actual, expected, **tolerances(torch.float32, 100))
    assert actual.stride() == expected.stride()


# What ends a chain: the model, what its first convolution becomes, and a part of the reason.
ENDS: dict[str, tuple[Model, list[str], str]] = {
    "two_users": (
        Model(lambda m, x: F.relu(y := m.c(x)) + y.exp(), c=conv()),
        ["conv2d"],
        "2 operators read",
    ),
    "output": (
        Model(lambda m, x: (y := m.c(x), F.relu(y)), c=conv()),
        ["conv2d"],
        "output of the graph",
    ),
    "unknown": (Model(lambda m, x: m.c(x).tanh(), c=conv()), ["conv2d"], "tanh"),
    "second_activation": (
        Model(lambda m, x: F.silu(F.relu(m.c(x))), c=conv()),
        ["conv2d", "relu"],
        "second activation",
    ),
    "scale_after_activation": (
        Model(lambda m, x: F.relu(m.c(x)) * 2, c=conv()),
        ["conv2d", "relu"],
        "follows",
    ),
    "second_residual": (
        Model(lambda m, x: m.c(x) + x + x.exp(), c=conv(8, 8)),
        ["conv2d", "residual"],
        "second residual",
    ),
    "broadcast": (
        Model(lambda m, x: m.c(x) + x.mean((-2, -1), keepdim=True), c=conv(8, 8)),
        ["conv2d"],
        "another size",
    ),
    "wider_type": (Model(lambda m, x: m.c(x) + x.double(), c=conv(8, 8)), ["conv2d"], "type"),
    "divided_by_it": (Model(lambda m, x: 1 / m.c(x), c=conv()), ["conv2d"], "divided by"),
    "with_itself": (
        Model(lambda m, x: (y := m.c(x)) + y, c=conv()),
        ["conv2d"],
        "combined with itself",
    ),
    "gate": (Model(lambda m, x: m.c(x) * x, c=conv(8, 8)), ["conv2d"], "combines it with a tensor"),
    "other_slope": (
        Model(lambda m, x: m.c(x).clamp(-1, 1), c=conv()),
        ["conv2d"],
        "not an operator",
    ),
    "a_convolution": (
        Model(lambda m, x: m.d(m.c(x)), c=conv(8, 8), d=conv(8, 8)),
        ["conv2d"],
        "a convolution follows",
    ),
    "training_batch_norm": (
        Model(lambda m, x: F.batch_norm(m.c(x), None, None, training=True), c=conv()),
        ["conv2d"],
        "training mode",
    ),
    "other_memory_format": (
        Model(
            lambda m, x: F.relu(m.c(x.to(memory_format=LAST[x.ndim])).contiguous()).view(-1),
            c=conv(),
        ),
        ["conv2d"],
        "memory format",
    ),
    "normal_dropout": (
        Model(lambda m, x: F.dropout(m.c(x), 0.5, training=True) * 0, c=conv()),
        ["conv2d"],
        "dropout",
    ),
}


@each_dims
@pytest.mark.parametrize("name", ENDS)
def test_a_chain_ends_with_a_reason(name, dims):
    *made, reason = ENDS[name]
    model, parts = of_dims(dims, *made)
    x = input_of(settled(model))
    with torch.no_grad():
        expected = model(x)
        backend, actual = run(model, x)
    assert list(backend.found[0].parts) == parts
    assert reason in backend.found[0].reason
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_padding_on_one_side_is_left_to_pytorch(kind):
    spatial = int(kind.__name__[-2])
    convolution = kind(8, 6, [4, 3, 3][:spatial], padding="same")
    model = Model(lambda m, x: F.relu(m.c(x.flatten(2) if spatial == 1 else x)), c=convolution)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, about its own padding
        backend, actual = run(model.eval(), x := input_of(model))
        torch.testing.assert_close(actual, model(x))
    assert not backend.found[0].ours
    assert "one side" in backend.found[0].reason


PIXELS = {
    "usual": (nn.Conv2d(8, 5, 1), True),
    "no_bias": (nn.Conv2d(8, 5, 1, bias=False), True),
    "strided": (nn.Conv2d(8, 5, 1, stride=2), True),
    "groups": (nn.Conv2d(8, 8, 1, groups=8), False),
    "padded": (nn.Conv2d(8, 5, 1, padding=1), False),
    "signal": (nn.Conv1d(8, 5, 1), True),
    "volume": (nn.Conv3d(8, 5, 1, stride=(1, 2, 3)), True),
    "padded_volume": (nn.Conv3d(8, 5, 1, padding=(0, 0, 1)), False),
}


@pytest.mark.parametrize("name", PIXELS)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_single_pixels_are_pytorchs(name, train, dtype):
    convolution, of_pixels = PIXELS[name]
    convolution = copy.deepcopy(convolution).to(dtype)
    is_product = of_pixels and dtype == torch.bfloat16
    spatial = convolution.weight.ndim - 2
    dims = tuple(range(2, 2 + spatial))
    model = Model(
        lambda m, x: F.relu(m.c(x.mean(dims, keepdim=True)), inplace=True) + 1, c=convolution
    )
    x = torch.randn(3, 8, *(5, 6, 4)[:spatial], dtype=dtype)
    with torch.set_grad_enabled(train):
        backend, actual = run(model.train(train), x)
        torch.testing.assert_close(actual, model(x))
    assert actual.shape == model(x).shape
    assert backend.found[0].ours is not of_pixels
    assert ("one pixel" in backend.found[0].reason) is of_pixels
    assert ("matrix product" in backend.found[0].reason) is is_product
    assert (F.linear in backend.called()) is is_product


PATCHES = {
    "video": (nn.Conv3d(3, 6, (2, 4, 3), stride=(2, 4, 3), bias=False), (2, 4, 3), True),
    "bias": (nn.Conv3d(3, 6, (2, 4, 3)), (2, 4, 3), True),
    "smaller filter": (nn.Conv3d(3, 6, (2, 4, 2)), (2, 4, 3), False),
    "padded": (nn.Conv3d(3, 6, (2, 4, 3), padding=(0, 0, 1)), (2, 4, 3), False),
    "groups": (nn.Conv3d(3, 6, (2, 4, 3), groups=3), (2, 4, 3), False),
    "images": (nn.Conv2d(3, 6, (4, 3)), (4, 3), False),  # whose layout may still change
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "any number"])
@pytest.mark.parametrize("last", [False, True], ids=["ncdhw", "ndhwc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", PATCHES)
def test_filters_of_a_whole_volume_make_a_matrix_product(name, dtype, last, dynamic):
    """As video models embed patches: exactly what a linear layer of them computes."""
    convolution, sizes, reads_all = PATCHES[name]
    convolution = copy.deepcopy(convolution).to(dtype)
    is_product = reads_all and dtype != torch.float32 and not last
    model = Model(lambda m, x: m.c(x).flatten(1), c=convolution)
    x = torch.randn(5, 3, *sizes, dtype=dtype)
    if last:
        x = x.contiguous(memory_format=LAST[x.ndim])
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        backend, actual = run(model, x)
        if is_product:
            expected = F.linear(x.flatten(1), model.c.weight.flatten(1), model.c.bias)
            assert torch.equal(actual, expected)
        torch.testing.assert_close(actual, model(x))
    (found,) = backend.found
    assert found.ours is not is_product
    assert ("filters as large as the volumes" in found.reason) is is_product
    assert (F.linear in backend.called()) is is_product


# --- Operators that work in place ---

_library = torch.library.Library("customconv_tests", "FRAGMENT")
_library.define("double_(Tensor(a!) x) -> ()")
_library.impl("double_", lambda x: [x.mul_(2), None][1], "CompositeExplicitAutograd")


def changed_input(m, x):
    """The convolution's input changes before the residual is known."""
    z = x.exp()
    y = m.c(z)
    z.mul_(2)
    return F.relu(y + z)


def changed_view(m, x):
    z = x.exp()
    y = m.c(z)
    z.view(-1)[::2] = 0
    return F.relu(y + z.sin())


def changed_residual(m, x):
    """The residual changes between the convolution and its use."""
    r = x.exp()
    y = m.c(x)
    r.neg_()
    return y + r


def sum_into_residual(m, x):
    r = F.relu(x)
    r += m.c(x)
    return r


def sum_into_shared_residual(m, x):
    """Someone else sees that the residual becomes the sum."""
    r = x.exp()
    v = r[:, :2]
    r += m.c(x)
    return r, v


def sum_into_argument(m, x):
    x += m.c(x)
    return x


def activated_after_view(m, x):
    y = m.c(x)
    v = y.view(2, -1)
    y.relu_()
    return v + 1


def changed_scale(m, x):
    s = x.mean((0, 2, 3)).exp()
    y = m.c(x)
    s.mul_(3)
    return y * s.view(-1, 1, 1)


def changed_in_a_list(m, x):
    z = x.exp()
    y = m.c(z)
    torch._foreach_mul_([z], 2.0)
    return F.relu(y + z.sin())


def changed_by_an_operator(m, x):
    z = x.exp()
    y = m.c(z)
    torch.ops.customconv_tests.double_(z)
    return F.relu(y + z.sin())


@pytest.mark.parametrize(
    ("forward", "parts"),
    [
        (changed_input, ["conv2d"]),
        (changed_view, ["conv2d"]),
        (changed_residual, ["conv2d"]),
        (sum_into_residual, ["conv2d", "residual"]),
        (sum_into_shared_residual, ["conv2d"]),
        (sum_into_argument, ["conv2d"]),
        (activated_after_view, ["conv2d"]),
        (changed_scale, ["conv2d"]),
        (changed_in_a_list, ["conv2d"]),
        (changed_by_an_operator, ["conv2d"]),
    ],
)
def test_writes_in_place_are_seen_as_without_fusion(forward, parts):
    model = settled(Model(forward, c=conv(8, 8)))
    x = input_of(model)
    with torch.no_grad():
        expected = model(given := x.clone())
        backend, actual = run(model, used := x.clone())
    assert list(backend.found[0].parts) == parts
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(used, given, rtol=1e-4, atol=1e-5)


def test_inputs_may_be_views_of_one_tensor():
    c = conv(8, 8)

    def function(x, view):
        y = c(view)
        x.mul_(2)
        return F.relu(y + view.exp())

    results = []
    backend = Fusing(differentiates=True)
    with torch.no_grad():
        for each in (torch.compile(function, backend=backend), function):
            x = torch.linspace(-1, 1, 2 * 8 * 5 * 5).view(2, 8, 5, 5)
            results.append(each(x, x.view(2, 8, 5, 5)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


# --- Training ---


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]


def convolution_of(kind: str, *arguments: Any) -> nn.Module:
    found = conv_transposed(*arguments) if "transpose" in kind else conv(*arguments)
    return deep(found) if "3d" in kind else found


TRAINED = {
    "relu": (lambda m, x: F.relu(m.c(x)), ["conv2d", "relu"]),
    "relu6": (lambda m, x: F.relu6(m.c(x)), ["conv2d", "relu6"]),
    "sigmoid": (lambda m, x: m.c(x).sigmoid(), ["conv2d", "sigmoid"]),
    "hardsigmoid": (lambda m, x: F.hardsigmoid(m.c(x)), ["conv2d", "hardsigmoid"]),
    "leaky_relu": (lambda m, x: F.leaky_relu(m.c(x)), ["conv2d", "leaky_relu"]),
    "negative_slope": (lambda m, x: F.leaky_relu(m.c(x), -1.0), ["conv2d"]),
    "residual": (lambda m, x: F.relu(m.c(x) + x), ["conv2d", "residual", "relu"]),
    "residual_last": (lambda m, x: F.relu(m.c(x)) + x, ["conv2d", "relu"]),
    "residual_alone": (lambda m, x: m.c(x) + x, ["conv2d", "residual"]),
    "number": (lambda m, x: F.relu(m.c(x) * 0.5), ["conv2d", "scale", "relu"]),
    "silu": (lambda m, x: F.silu(m.c(x)), ["conv2d"]),
    "gelu": (lambda m, x: F.gelu(m.c(x) + x), ["conv2d", "residual"]),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("name", TRAINED)
def test_training_fuses_what_costs_the_backward_pass_nothing(name, kind):
    forward, (_, *parts) = TRAINED[name]
    model = Model(forward, c=convolution_of(kind, 8, 8)).double()
    x = input_of(model).double()
    backend = Fusing(differentiates=True)
    actual = gradients(torch.compile(model, backend=backend, fullgraph=True), x)
    assert list(backend.found[0].parts) == [kind, *parts]
    for ours, expected in zip(actual, gradients(model, x), strict=True):
        torch.testing.assert_close(ours, expected)
    (graph_module,) = backend.backward
    called = [n.target for n in graph_module.graph.nodes if str(n.target).startswith("customconv")]
    assert called == [getattr(torch.ops.customconv, f"{kind}_backward").default]


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_batch_norm_in_evaluation_mode_is_fused_unless_it_learns(kind, frozen, shifted):
    """What else learns in front of it has its gradient, such as the convolution's bias."""

    def forward(m, x):
        y = m.c(x)
        return F.relu(m.b(y + vector(m.d.bias, x) if shifted else y))

    norm = nn.BatchNorm3d(8) if "3d" in kind else nn.BatchNorm2d(8)
    model = settled(Model(forward, c=convolution_of(kind), b=norm, d=nn.Linear(1, 8))).double()
    for parameter in model.b.parameters():
        parameter.requires_grad_(not frozen)
    x = input_of(model).double()
    learning = [model.c.weight, model.c.bias, *([model.d.bias] if shifted else [])]
    backend = Fusing(differentiates=True)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    ours, theirs = (torch.autograd.grad(f(x).square().sum(), learning) for f in (compiled, model))
    torch.testing.assert_close(ours, theirs)
    fused = ["bias"] * shifted + ["batch norm", "relu"] if frozen else ["bias"] * shifted
    assert list(backend.found[0].parts) == [kind, *fused]
    if not frozen:
        assert "need gradients" in backend.found[0].reason


def test_a_clamp_is_no_relu_where_the_gradient_at_its_bounds_is_asked_for():
    model = Model(lambda m, x: m.c(x).clamp(min=0), c=conv(8, 8, bias=False))
    nn.init.zeros_(model.c.weight)
    x = input_of(model)
    backend = Fusing(differentiates=True)
    actual = gradients(torch.compile(model, backend=backend), x)
    for ours, expected in zip(actual, gradients(model, x), strict=True):
        torch.testing.assert_close(ours, expected)
    assert list(backend.found[0].parts) == ["conv2d"]


# --- Regions in which gradients or autocast are switched ---


def convolved_without_gradient(m, x):
    with torch.no_grad():
        y = m.c(x)
    return F.relu(y + m.d(x))


def added_to_without_gradient(m, x):
    """The residual is known before the convolution, which must not take its gradient away."""
    r = m.d(x)
    with torch.no_grad():
        y = m.c(x)
    return F.relu(y + r)


def activated_without_gradient(m, x):
    y = m.c(x)
    with torch.no_grad():
        z = F.relu(y)
    return z * m.d(x)


def wholly_without_gradient(m, x):
    with torch.no_grad():
        y = F.relu(m.b(m.c(x)))
    return y * m.d(x)


def learning_all_the_same(m, x):
    with torch.no_grad(), torch.enable_grad():
        return F.relu(m.b(m.c(x))) + m.d(x)


def added_by_autocast(m, x):
    y = m.c(x)
    with torch.autocast("cpu", torch.bfloat16):
        return y + m.d(x).float().exp()


def convolved_by_autocast(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = m.c(x)
    return y + m.d(x).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("forward", "parts"),
    [
        (convolved_without_gradient, ["conv2d"]),
        (added_to_without_gradient, ["conv2d"]),
        (activated_without_gradient, ["conv2d"]),
        (wholly_without_gradient, ["conv2d", "batch norm", "relu"]),
        (learning_all_the_same, ["conv2d"]),
        (added_by_autocast, ["conv2d"]),
        (convolved_by_autocast, ["conv2d"]),
    ],
)
def test_chains_stay_within_a_region(forward, parts):
    model = settled(Model(forward, c=conv(8, 8), d=conv(8, 8), b=nn.BatchNorm2d(8)))
    x = input_of(model)
    backend = Fusing(differentiates=True)
    found = []
    for run_ in (torch.compile(model, backend=backend, fullgraph=True), model):
        model.zero_grad(set_to_none=True)
        y = run_(x)
        y.float().square().sum().backward()
        found.append((y.detach(), {name: p.grad for name, p in model.named_parameters()}))
    (y, ours), (expected, theirs) = found
    rough = y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, rtol=0.02 if rough else 1e-4, atol=0.02)
    assert [name for name in ours if ours[name] is None] == [
        name for name in theirs if theirs[name] is None
    ]
    for name, grad in theirs.items():
        if grad is not None:
            off = (ours[name] - grad).norm() / grad.norm()
            assert off < (0.02 if rough else 1e-4), name
    first = next(each for each in backend.found if each.module == "c")
    assert list(first.parts) == parts


def test_gradients_within_a_function_of_functorchs_do_not_ask_for_the_mode():
    model = settled(Model(lambda m, x: F.relu(m.b(m.c(x))), c=conv(8, 8), b=nn.BatchNorm2d(8)))
    x = input_of(model)
    parameters = dict(model.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    compiled = torch.compile(torch.func.grad(loss), backend=Fusing(differentiates=True))
    with torch.no_grad():
        ours, theirs = compiled(parameters), torch.func.grad(loss)(parameters)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_derivatives_in_forward_mode_are_those_of_batch_norms_too():
    model = settled(Model(lambda m, x: m.b(m.c(x)), c=conv(8, 8), b=nn.BatchNorm2d(8)))
    x = input_of(model)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    tangents = {name: torch.ones_like(p) for name, p in parameters.items()}

    def derivative(parameters, tangents):
        def function(parameters):
            return torch.func.functional_call(model, parameters, (x,))

        return torch.func.jvp(function, (parameters,), (tangents,))

    compiled = torch.compile(derivative, backend=Fusing(differentiates=True))
    with torch.no_grad():
        ours, theirs = compiled(parameters, tangents), derivative(parameters, tangents)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


# --- Sizes and types ---


def test_a_batch_norm_without_a_batch_is_not_of_the_channels():
    model = Model(lambda m, x: m.b(m.c(x)), c=nn.Conv1d(4, 6, 3, padding=1), b=nn.BatchNorm1d(6))
    model = settled(model)
    x = torch.randn(4, 6)  # the norm takes the six samples for channels
    with torch.no_grad():
        backend, actual = run(model, x)
        torch.testing.assert_close(actual, model(x))
    assert "without a batch" in backend.found[0].reason


KINDS = {
    "narrow_divisor": (torch.float16, lambda y, v: y / (v.half() * 1e-5)),
    "narrow_bias": (torch.float32, lambda y, v: y + v.half()),
    "narrow_scale": (torch.float32, lambda y, v: y * v.bfloat16()),
    "narrow_in_double": (torch.float64, lambda y, v: F.relu(y * v.float() + v.float())),
    "wide_in_place": (torch.float32, lambda y, v: y.mul_(v.double())),
    "narrow_residual": (torch.float32, lambda y, v: y + y.new_ones(2, 8, 7, 9).half()),
}


@pytest.mark.parametrize("name", KINDS)
def test_operands_of_other_types_are_computed_as_without_fusion(name):
    dtype, function = KINDS[name]
    v = torch.linspace(0.5, 1.5, 8).view(-1, 1, 1)
    for bias in (False, True):
        model = Model(lambda m, x: function(m.c(x), v), c=conv(8, 8, bias=bias)).to(dtype)
        x = 0.1 * input_of(model).to(dtype)
        with torch.no_grad():
            _, actual = run(model, x)
            expected = model(x)
        assert actual.dtype == expected.dtype
        # oneDNN may sum the convolution's 72 products in another order. Types that were mixed up
        # would show in thousands of roundings.
        roundings = 2 if dtype == torch.float16 else 16
        most = roundings * torch.finfo(dtype).eps * expected.abs().max()
        assert (actual - expected).abs().max() <= most


@each_dims
@pytest.mark.parametrize("pattern", ["residual", "transposed_residual"])
def test_any_size_is_fused_in_one_graph(pattern, dims):
    model, parts = of_dims(dims, *PATTERNS[pattern])
    model = settled(model)
    backend = Fusing()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for size in [(2, 8, 7, 9), (3, 8, 12, 10), (5, 8, 9, 16)]:
            x = torch.randn(*size, *[size[0] + 2] * (dims == "3d"))
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert [list(each.parts) for each in backend.found] == parts


@each_dims
@pytest.mark.parametrize("pattern", ["residual", "transposed_residual"])
def test_autocast_keeps_what_a_batch_norm_multiplies_in_float32(pattern, dims):
    model, parts = of_dims(dims, *PATTERNS[pattern])
    model = settled(model)
    x = input_of(model)
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            eager = model(x)
            backend, actual = run(model, x)
    # The residual is in float32, and so is the sum.
    assert list(backend.found[0].parts) == parts[0][:2]
    assert actual.dtype == eager.dtype
    assert (actual - exact).norm() <= 2 * (eager - exact).norm()
