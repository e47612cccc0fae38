"""customconv.conv2d takes what F.conv2d takes, gives what it gives, and raises what it raises."""

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


def test_compiles_whole_for_every_kind_of_argument():
    def several(x, w):
        y = customconv.conv2d(x, w, stride=2, padding=1)
        y = y.sum() + customconv.conv2d(x, w, padding="same", dilation=2).sum()
        return y + customconv.conv2d(x, w, padding=(1, 0)).sum()

    x, w = random(2, 4, 9, 8), random(6, 4, 3, 2)
    compiled = torch.compile(several, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(x, w), several(x, w))
