"""The functions take what those of torch.nn.functional take, give that, and raise that."""

import enum

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import customconv

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize(
    ("input", "weight", "arguments"),
    [
        ((2, 4, 9, 8), (6, 4, 3, 3), {}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": 2}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": (2, 1), "padding": 1}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": [2], "padding": [1, 2], "dilation": [2]}),
        ((2, 4, 9, 8), (6, 2, 3, 2), {"dilation": 2, "groups": 2}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"padding": "valid", "stride": 2}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"padding": "same"}),
        ((2, 4, 9, 8), (6, 4, 2, 4), {"padding": "same", "dilation": (1, 3)}),
        ((4, 9, 8), (6, 4, 3, 3), {"padding": 1}),
        ((4, 9, 8), (6, 4, 2, 2), {"padding": "same"}),
        ((0, 4, 9, 8), (6, 4, 3, 3), {"padding": 1}),
    ],
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_agrees_with_pytorch(input, weight, arguments, with_bias):
    x, w = random(*input), random(*weight)
    bias = random(weight[0]) if with_bias else None
    actual = customconv.conv2d(x, w, bias, **arguments)
    expected = F.conv2d(x, w, bias, **arguments)
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()


@pytest.mark.parametrize(
    ("input", "weight", "arguments"),
    [
        ((2, 4, 9, 8), (6, 3, 3, 3), {}),
        ((2, 4, 2, 2), (6, 4, 3, 3), {}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": 0}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"padding": -1}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": (1, 1, 1)}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"padding": "same", "stride": 2}),
        ((2, 4, 9, 8), (6, 4, 3, 3), {"padding": "full"}),
        ((2, 4, 9, 8), (6, 2, 3, 3), {"groups": 4}),
        ((9, 8), (6, 4, 3, 3), {}),
    ],
)
def test_raises_what_pytorch_raises(input, weight, arguments):
    x, w = random(*input), random(*weight)
    with pytest.raises(Exception) as expected:
        F.conv2d(x, w, **arguments)
    with pytest.raises(expected.type) as actual:
        customconv.conv2d(x, w, **arguments)
    assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]


CASES_1D = [
    ((2, 4, 9), (6, 4, 3), {}),
    ((2, 4, 9), (6, 4, 3), {"stride": 2}),
    ((2, 4, 9), (6, 4, 3), {"stride": (2,), "padding": [1], "dilation": [2]}),
    ((2, 4, 9), (6, 2, 3), {"dilation": 2, "groups": 2, "padding": 3}),
    ((2, 4, 9), (4, 1, 3), {"groups": 4}),
    ((2, 4, 9), (6, 4, 1), {}),
    ((2, 4, 9), (6, 4, 3), {"padding": "valid", "stride": 2}),
    ((2, 4, 9), (6, 4, 3), {"padding": "same"}),
    ((2, 4, 9), (6, 4, 2), {"padding": "same", "dilation": 3}),
    ((4, 9), (6, 4, 3), {"padding": 1}),
    ((4, 9), (6, 4, 2), {"padding": "same"}),
    ((0, 4, 9), (6, 4, 3), {"padding": 1}),
    ((2, 1, 9), (6, 1, 3), {}),
    ((1, 4, 3), (6, 4, 3), {}),
]
each_1d = pytest.mark.parametrize(("input", "weight", "arguments"), CASES_1D)


class Padding(str, enum.Enum):
    SAME = "same"


@pytest.mark.parametrize("padding", [np.str_("same"), Padding.SAME, np.str_("valid"), b"same"])
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv2d_fused"])
def test_what_pytorch_takes_for_a_string_is_taken(name, padding):
    dimensions = 1 if name == "conv1d" else 2
    x, w = random(2, 4, *[7] * dimensions), random(6, 4, *[3] * dimensions)
    expected = getattr(F, name.removesuffix("_fused"))(x, w, padding=padding)
    torch.testing.assert_close(getattr(customconv, name)(x, w, padding=padding), expected)


def transposed(tensor):
    """The same numbers with the channels innermost."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def assert_agrees(name, tensors, arguments, device):
    """Ours and PyTorch's function of this name give the same output, strides and gradients."""
    leaves = [None if t is None else t.to(device).requires_grad_() for t in tensors]
    outcomes = []
    for convolve in (getattr(customconv, name), getattr(F, name)):
        output = convolve(*leaves, **arguments)
        gradients = torch.autograd.grad(output.square().sum(), [t for t in leaves if t is not None])
        outcomes.append([output, *gradients])
    torch.testing.assert_close(*outcomes)
    assert outcomes[0][0].stride() == outcomes[1][0].stride()


@each_1d
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("layouts", ["", "input", "weight", "input weight", "sliced"])
def test_conv1d_agrees_with_pytorch(input, weight, arguments, with_bias, layouts, device):
    if layouts == "sliced":
        x, w = random(*input[:-1], input[-1] * 2)[..., ::2], random(*weight[:-1], 7)
        w = w[..., 1 : weight[-1] + 1]
    else:
        x, w = random(*input), random(*weight)
        x = transposed(x) if "input" in layouts else x
        w = transposed(w) if "weight" in layouts else w
    bias = random(weight[0]) if with_bias else None
    assert_agrees("conv1d", (x, w, bias), arguments, device)


@pytest.mark.parametrize(
    ("input", "weight", "arguments"),
    [
        ((2, 4, 9), (4, 6, 3), {}),
        ((2, 4, 9), (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((2, 4, 9), (4, 6, 4), {"stride": (2,), "padding": [1], "output_padding": (1,)}),
        ((2, 4, 9), (4, 3, 3), {"dilation": 2, "groups": 2, "padding": 3}),
        ((2, 4, 9), (4, 6, 3), {"dilation": 3, "output_padding": 2}),
        ((4, 9), (4, 6, 3), {"padding": 1}),
        ((0, 4, 9), (4, 6, 3), {"padding": 1}),
        ((2, 1, 9), (1, 6, 3), {}),
    ],
)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("layouts", ["", "input", "weight", "input weight"])
def test_conv_transpose1d_agrees_with_pytorch(input, weight, arguments, with_bias, layouts, device):
    x, w = random(*input), random(*weight)
    x = transposed(x) if "input" in layouts else x
    w = transposed(w) if "weight" in layouts else w
    bias = random(weight[1] * arguments.get("groups", 1)) if with_bias else None
    assert_agrees("conv_transpose1d", (x, w, bias), arguments, device)


@pytest.mark.parametrize(
    ("input", "weight", "bias", "arguments"),
    [
        ((2, 4, 9), (3, 6, 3), None, {}),
        ((4, 9), (3, 6, 3), None, {}),
        ((2, 4, 9), (4, 6, 3), (5,), {}),
        ((2, 4, 9), (4, 6, 3), None, {"stride": 0}),
        ((2, 4, 9), (4, 6, 3), None, {"stride": (1, 1)}),
        ((2, 4, 9), (4, 6, 3), None, {"padding": -1}),
        ((2, 4, 9), (4, 6, 3), None, {"output_padding": 2}),
        ((2, 4, 9), (4, 6, 3), None, {"output_padding": (0, 0)}),
        ((2, 4, 9), (4, 6, 3), None, {"groups": 3}),
        ((9,), (4, 6, 3), None, {}),
    ],
)
def test_conv_transpose1d_raises_what_pytorch_raises(input, weight, bias, arguments):
    tensors = [random(*input), random(*weight), None if bias is None else random(*bias)]
    with pytest.raises(Exception) as expected:
        F.conv_transpose1d(*tensors, **arguments)
    with pytest.raises(expected.type) as actual:
        customconv.conv_transpose1d(*tensors, **arguments)
    assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]


@pytest.mark.parametrize(
    ("input", "weight", "bias", "arguments"),
    [
        ((2, 4, 9), (6, 3, 3), None, {}),
        ((4, 9), (6, 3, 3), None, {}),
        ((2, 4, 2), (6, 4, 3), None, {}),
        ((2, 4, 9), (6, 4, 3), (5,), {}),
        ((2, 4, 9), (6, 4, 3), (6, 1), {}),
        ((2, 4, 9), (6, 4, 3), None, {"stride": 0}),
        ((2, 4, 9), (6, 4, 3), None, {"stride": ()}),
        ((2, 4, 9), (6, 4, 3), None, {"stride": (1, 1)}),
        ((2, 4, 9), (6, 4, 3), None, {"padding": -1}),
        ((2, 4, 9), (6, 4, 3), None, {"padding": (1, 1)}),
        ((2, 4, 9), (6, 4, 3), None, {"dilation": 0}),
        ((2, 4, 9), (6, 4, 3), None, {"padding": "same", "stride": 2}),
        ((2, 4, 9), (6, 4, 3), None, {"padding": "full"}),
        ((2, 4, 9), (6, 2, 3), None, {"groups": 4}),
        ((2, 4, 9), (6, 2, 3), None, {"groups": 0}),
        ((9,), (6, 4, 3), None, {}),
        ((1, 2, 4, 9), (6, 4, 3), None, {}),
        ((2, 4, 9), (6, 4, 3, 3), None, {}),
        ((2, 4, 9), (6, 4), None, {}),
    ],
)
def test_conv1d_raises_what_pytorch_raises(input, weight, bias, arguments):
    tensors = random(*input), random(*weight), None if bias is None else random(*bias)
    with pytest.raises(Exception) as expected:
        F.conv1d(*tensors, **arguments)
    with pytest.raises(expected.type) as actual:
        customconv.conv1d(*tensors, **arguments)
    assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_conv1d_passes_the_algorithm_on():
    x, w = random(1, 2, 5), random(3, 2, 3)
    torch.testing.assert_close(customconv.conv1d(x, w, algorithm="aten"), F.conv1d(x, w))
    with pytest.raises(RuntimeError, match=r"(?i)cpu"):
        customconv.conv1d(x, w, algorithm="direct")
    with pytest.raises(ValueError, match="winograd"):
        customconv.conv1d(x, w, algorithm="winograd")


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["dense", "transposed"])
def test_conv1d_is_computed_by_our_kernels(layout):
    x, w = random(2, 64, 130).cuda().half(), random(64, 64, 3).cuda().half()
    if layout == "transposed":
        x, w = transposed(x), transposed(w)
    customconv.stats(reset=True)
    output = customconv.conv1d(x, w, padding=1)
    counted = customconv.stats()
    assert [op for op, _ in counted.calls] == ["fprop"]
    assert not counted.fallbacks
    torch.testing.assert_close(output, F.conv1d(x, w, padding=1), rtol=2e-2, atol=2e-2)


def test_algorithm_is_keyword_only_and_known():
    x, w = random(1, 2, 5, 5), random(3, 2, 3, 3)
    with pytest.raises(TypeError):
        customconv.conv2d(x, w, None, 1, 0, 1, 1, "aten")
    with pytest.raises(ValueError, match="winograd"):
        customconv.conv2d(x, w, algorithm="winograd")
    torch.testing.assert_close(customconv.conv2d(x, w, algorithm="aten"), F.conv2d(x, w))


@pytest.mark.parametrize("algorithm", ["direct", "im2col", "tiled"])
@pytest.mark.parametrize("padding", [1, "same"])
def test_a_family_forced_on_the_cpu_is_refused(algorithm, padding):
    x, w = random(1, 2, 5, 5), random(3, 2, 3, 3)
    with pytest.raises(RuntimeError, match=r"(?i)cpu"):
        customconv.conv2d(x, w, padding=padding, algorithm=algorithm)


@pytest.mark.parametrize("sizes", ["9 8", "9"])
def test_compiles_whole_for_every_kind_of_argument(sizes):
    convolve = customconv.conv2d if " " in sizes else customconv.conv1d
    one = [1] * len(sizes.split())

    def several(x, w, n):
        y = convolve(x, w, stride=2, padding=1)
        y = y.sum() + convolve(x, w, padding="same", dilation=2).sum()
        y = y + convolve(x, w, stride=n, padding=tuple(n * i for i in one)).sum()
        return y + convolve(x, w, padding=one, stride=torch.Size(one)).sum()

    x, w = random(2, 4, *map(int, sizes.split())), random(6, 4, *[3 * i for i in one])
    compiled = torch.compile(several, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (1, 2, 3):
        torch.testing.assert_close(compiled(x, w, n), several(x, w, n))
