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
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"stride": 2}),
        ((2, 4, 5, 9, 8), (6, 4, 2, 3, 4), {"stride": (2, 1, 3), "padding": 1}),
        ((2, 4, 5, 9, 8), (6, 4, 2, 3, 3), {"stride": [2], "padding": [0, 1, 2], "dilation": [2]}),
        ((2, 4, 5, 9, 8), (6, 2, 3, 3, 2), {"dilation": (1, 3, 2), "groups": 2}),
        ((2, 4, 5, 9, 8), (4, 1, 3, 3, 3), {"padding": 1, "groups": 4}),
        ((2, 4, 5, 9, 8), (6, 4, 1, 3, 3), {"padding": (0, 1, 1)}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 1, 1), {"padding": (1, 0, 0)}),
        ((2, 4, 4, 6, 8), (6, 4, 2, 3, 4), {"stride": (2, 3, 4)}),
        ((2, 4, 1, 9, 8), (6, 4, 1, 3, 3), {"stride": (4, 2, 1)}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"padding": "valid", "stride": 2}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"padding": "same"}),
        ((2, 4, 5, 9, 8), (6, 4, 2, 3, 4), {"padding": "same", "dilation": (3, 1, 1)}),
        ((4, 5, 9, 8), (6, 4, 3, 3, 3), {"padding": 1}),
        ((4, 5, 9, 8), (6, 4, 2, 2, 3), {"padding": "same"}),
        ((0, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"padding": 1}),
    ],
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_agrees_with_pytorch(input, weight, arguments, with_bias):
    x, w = random(*input), random(*weight)
    bias = random(weight[0]) if with_bias else None
    name = f"conv{len(weight) - 2}d"
    actual = getattr(customconv, name)(x, w, bias, **arguments)
    expected = getattr(F, name)(x, w, bias, **arguments)
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
        ((2, 4, 5, 9, 8), (6, 3, 3, 3, 3), {}),
        ((2, 4, 2, 9, 8), (6, 4, 3, 3, 3), {}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"stride": 0}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"stride": (1, 0, 1)}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"padding": -1}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"stride": (1, 1)}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"dilation": (1, 1, 1, 1)}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"padding": "same", "stride": (1, 2, 1)}),
        ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"padding": "full"}),
        ((2, 4, 5, 9, 8), (6, 2, 3, 3, 3), {"groups": 4}),
        ((5, 9, 8), (6, 4, 3, 3, 3), {}),
        ((1, 2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {}),
    ],
)
def test_raises_what_pytorch_raises(input, weight, arguments):
    x, w = random(*input), random(*weight)
    name = f"conv{len(weight) - 2}d"
    with pytest.raises(Exception) as expected:
        getattr(F, name)(x, w, **arguments)
    with pytest.raises(expected.type) as actual:
        getattr(customconv, name)(x, w, **arguments)
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
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv2d_fused", "conv3d", "conv3d_fused"])
def test_what_pytorch_takes_for_a_string_is_taken(name, padding):
    dimensions = int(name[4])
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


CASES_3D = [
    ("conv3d", (2, 4, 5, 9, 8), (6, 4, 3, 3, 3), {"stride": (1, 2, 1), "padding": (0, 1, 2)}),
    ("conv3d", (2, 4, 5, 9, 8), (6, 2, 2, 3, 1), {"groups": 2, "dilation": (3, 2, 1)}),
    ("conv3d", (2, 4, 5, 9, 8), (8, 1, 3, 3, 3), {"groups": 4, "padding": "same"}),
    ("conv3d", (2, 4, 4, 6, 8), (6, 4, 2, 3, 4), {"stride": (2, 3, 4)}),
    ("conv3d", (2, 4, 5, 9, 8), (6, 4, 1, 1, 1), {}),
    ("conv3d", (2, 4, 5, 9, 8), (6, 4, 1, 3, 3), {"padding": (0, 1, 1)}),
    ("conv3d", (2, 4, 5, 9, 8), (6, 4, 3, 1, 1), {"stride": (2, 1, 1)}),
    ("conv3d", (2, 4, 1, 9, 8), (6, 4, 1, 3, 3), {}),
    ("conv3d", (2, 4, 1, 9, 8), (6, 4, 3, 3, 3), {"padding": 1}),
    ("conv3d", (2, 1, 5, 9, 8), (6, 1, 3, 3, 3), {}),
    ("conv3d", (4, 5, 9, 8), (6, 4, 2, 3, 3), {"padding": "same"}),
    ("conv_transpose3d", (2, 4, 3, 5, 6), (4, 6, 3, 2, 3), {}),
    (
        "conv_transpose3d", (2, 4, 3, 5, 6), (4, 6, 3, 2, 4),
        {"stride": (2, 1, 3), "padding": (1, 0, 2), "output_padding": (1, 0, 2)},
    ),
    ("conv_transpose3d", (2, 4, 3, 5, 6), (4, 3, 2, 2, 2), {"stride": 2, "groups": 2}),
    ("conv_transpose3d", (2, 4, 3, 5, 6), (4, 6, 3, 1, 3), {"dilation": (2, 1, 3)}),
    ("conv_transpose3d", (4, 3, 5, 6), (4, 6, 3, 3, 3), {"padding": [1]}),
    ("conv_transpose3d", (0, 4, 3, 5, 6), (4, 6, 3, 3, 3), {"padding": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "input", "weight", "arguments"), CASES_3D)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("layouts", ["", "input", "weight", "input weight", "sliced"])
def test_volumes_agree_with_pytorch(name, input, weight, arguments, with_bias, layouts, device):
    if layouts == "sliced":
        x = random(*input[:-3], input[-3] * 2, *input[-2:])[..., ::2, :, :]
        w = random(*weight[:2], weight[2] + 2, *weight[3:])[:, :, 1:-1]
    else:
        x, w = random(*input), random(*weight)
        if "input" in layouts:
            x = x.movedim(-4, -1).contiguous().movedim(-1, -4)
        if "weight" in layouts:
            w = w.to(memory_format=torch.channels_last_3d)
    channels = weight[1] * arguments.get("groups", 1) if "transpose" in name else weight[0]
    bias = random(channels) if with_bias else None
    assert_agrees(name, (x, w, bias), arguments, device)


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("residual_last", [False, True])
@pytest.mark.parametrize("name", ["conv3d", "conv_transpose3d"])
def test_fused_volumes_agree_with_pytorch(name, residual_last, activation, device):
    x, w, scale, bias = (
        t.to(device).requires_grad_()
        for t in (random(2, 4, 5, 6, 7), random(4, 4, 3, 2, 3), random(4), random(4))
    )
    plain = getattr(F, name)(x, w, stride=2, padding=1)
    residual = torch.randn_like(plain).requires_grad_()
    sums = plain * scale.view(-1, 1, 1, 1) + bias.view(-1, 1, 1, 1)
    finish = getattr(F, activation)
    expected = finish(sums) + residual if residual_last else finish(sums + residual)
    actual = getattr(customconv, f"{name}_fused")(
        x, w, bias, stride=2, padding=1, scale=scale, residual=residual, activation=activation,
        residual_last=residual_last,
    )  # fmt: skip
    torch.testing.assert_close(actual, expected)
    leaves = [x, w, scale, bias, residual]
    gradients = (torch.autograd.grad(y.square().sum(), leaves) for y in (actual, expected))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", ["conv3d_fused", "conv_transpose3d_fused"])
@pytest.mark.parametrize(("option", "shape"), [("scale", (5,)), ("residual", (2, 4, 3, 5))])
def test_a_fused_call_of_volumes_says_which_shape_it_wants(name, option, shape):
    x, w = random(2, 4, 5, 6, 7), random(4, 4, 3, 2, 3)
    output = getattr(F, name.removesuffix("_fused"))(x, w)
    wanted = [4] if option == "scale" else list(output.shape)
    with pytest.raises(RuntimeError) as error:
        getattr(customconv, name)(x, w, **{option: random(*shape)})
    message = str(error.value)
    assert message.startswith(f"{name}: expected a {option} of ")
    assert f"shape {wanted}" in message


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
        ((2, 4, 5, 6, 7), (3, 6, 3, 3, 3), None, {}),
        ((2, 4, 5, 6, 7), (4, 6, 3, 3, 3), (5,), {}),
        ((2, 4, 5, 6, 7), (4, 6, 3, 3, 3), None, {"stride": (1, 0, 1)}),
        ((2, 4, 5, 6, 7), (4, 6, 3, 3, 3), None, {"stride": (1, 1)}),
        ((2, 4, 5, 6, 7), (4, 6, 3, 3, 3), None, {"padding": -1}),
        ((2, 4, 5, 6, 7), (4, 6, 3, 3, 3), None, {"output_padding": (0, 2, 0)}),
        ((2, 4, 5, 6, 7), (4, 6, 3, 3, 3), None, {"groups": 3}),
        ((5, 6, 7), (4, 6, 3, 3, 3), None, {}),
    ],
)
def test_a_transposed_call_raises_what_pytorch_raises(input, weight, bias, arguments):
    tensors = [random(*input), random(*weight), None if bias is None else random(*bias)]
    name = f"conv_transpose{len(weight) - 2}d"
    with pytest.raises(Exception) as expected:
        getattr(F, name)(*tensors, **arguments)
    with pytest.raises(expected.type) as actual:
        getattr(customconv, name)(*tensors, **arguments)
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
@pytest.mark.parametrize("name", ["conv3d", "conv_transpose3d"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_volumes_are_computed_by_our_kernels_if_asked_for(name, layout):
    x = random(2, 16, 5, 9, 10).cuda().half().to(memory_format=layout)
    w = random(16, 16, 3, 3, 3).cuda().half().to(memory_format=layout)
    customconv.stats(reset=True)
    output = getattr(customconv, name)(x, w, stride=2, padding=1, algorithm="direct")
    counted = customconv.stats()
    assert list(counted.calls.values()) == [1]
    assert [family for _, family in counted.calls] == ["direct"]
    assert not counted.fallbacks
    expected = getattr(F, name)(x, w, stride=2, padding=1)
    torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-2)


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


@pytest.mark.parametrize("name", ["conv2d", "conv3d"])
def test_algorithm_is_keyword_only_and_known(name):
    dimensions, convolve = int(name[4]), getattr(customconv, name)
    x, w = random(1, 2, *[5] * dimensions), random(3, 2, *[3] * dimensions)
    with pytest.raises(TypeError):
        convolve(x, w, None, 1, 0, 1, 1, "aten")
    with pytest.raises(ValueError, match="winograd"):
        convolve(x, w, algorithm="winograd")
    torch.testing.assert_close(convolve(x, w, algorithm="aten"), getattr(F, name)(x, w))


@pytest.mark.parametrize("algorithm", ["direct", "im2col", "tiled"])
@pytest.mark.parametrize("padding", [1, "same"])
@pytest.mark.parametrize("name", ["conv2d", "conv3d"])
def test_a_family_forced_on_the_cpu_is_refused(name, algorithm, padding):
    dimensions = int(name[4])
    x, w = random(1, 2, *[5] * dimensions), random(3, 2, *[3] * dimensions)
    with pytest.raises(RuntimeError, match=r"(?i)cpu"):
        getattr(customconv, name)(x, w, padding=padding, algorithm=algorithm)


@pytest.mark.parametrize("sizes", ["5 9 8", "9 8", "9"])
def test_compiles_whole_for_every_kind_of_argument(sizes):
    convolve = getattr(customconv, f"conv{len(sizes.split())}d")
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
