"""Malformed calls raise what the functions of torch.nn.functional raise for them."""

import enum
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import customconv

NUMBERS = {
    "conv1d": ["stride", "padding", "dilation", "groups"],
    "conv2d": ["stride", "padding", "dilation", "groups"],
    "conv3d": ["stride", "padding", "dilation", "groups"],
    "conv_transpose1d": ["stride", "padding", "output_padding", "groups", "dilation"],
    "conv_transpose2d": ["stride", "padding", "output_padding", "groups", "dilation"],
    "conv_transpose3d": ["stride", "padding", "output_padding", "groups", "dilation"],
}
each_function = pytest.mark.parametrize("name", NUMBERS)
FUSED = ["conv2d_fused", "conv3d_fused", "conv_transpose2d_fused", "conv_transpose3d_fused"]


# PyTorch 2.9 crashes where it gets NumPy's boolean, and takes no tensor for a list of integers.
NEW = torch.__version__ >= (2, 10)
BOOLEANS = [True, np.bool_(True)] if NEW else [True]


def dimensions_of(name):
    """The number that a function's or a module's name says."""
    return int(name.removesuffix("_fused")[-2])


def tensors_for(name, size=6):
    """An input of four channels, this long in each dimension, and filters for it."""
    dimensions = dimensions_of(name)
    return torch.randn(1, 4, *[size] * dimensions), torch.randn(4, 4, *[3] * dimensions)


class Two(enum.IntEnum):
    VALUE = 2


class Index:
    def __index__(self):
        return 1


def numbers(rng):
    """A number, or what could be taken for one."""
    return rng.choice(
        [
            *[1, 1, 1, 1, 2, 0, -1, True, False, 1.0, 2.5, float("nan"), 1j, "1", "same", "valid"],
            *["full", b"1", None, Two.VALUE, Index(), 2**40, 2**70, object(), int, [], {}, {1}],
            *[np.int64(1), np.int32(2), np.uint8(1), BOOLEANS[-1], np.float32(1), np.array([1])],
            *[torch.tensor(1), torch.tensor(2, dtype=torch.int32), torch.tensor(1.0)],
            *[torch.tensor([1, 2]), torch.tensor([[1]]), torch.tensor(True), range(1, 3)],
        ]
    )


def sequences(rng, dimensions):
    """A list or tuple, mostly of as many numbers as there are dimensions."""
    length = rng.choice([dimensions, dimensions, dimensions, 0, 1, 2, 3, 4])
    kind = rng.choice([list, tuple, tuple])
    return kind(numbers(rng) for _ in range(length))


def tensors(rng, shape):
    """A tensor of this shape or another, of some type and device, or what is no tensor at all."""
    others = [shape[1:], (1, *shape), (*shape[:-1], 1), (0, *shape[1:])]
    dtype = rng.choice([torch.float32, torch.float64, torch.int64, torch.bfloat16])
    # PyTorch does not look at the dimensions of tensors on the meta device.
    device = rng.choice(["cpu", "cpu", "meta"])
    shape = shape if device == "meta" or rng.random() < 0.3 else rng.choice(others)
    tensor = torch.ones(shape, dtype=dtype, device=device)
    parameter = torch.nn.Parameter(torch.ones(shape))
    others = [None, 1, 1.0, True, "x", [1.0], (1,), np.ones(shape), object(), torch.Tensor]
    return rng.choice([tensor, parameter, rng.choice(others)])


def call(rng, name):
    """The arguments of a call in which one to three things may be wrong."""
    dimensions = dimensions_of(name)
    shapes = [(1, 4, *[6] * dimensions), (4, 4, *[3] * dimensions), (4,)]
    given = [torch.ones(shape) for shape in shapes]
    options = {}
    for _ in range(rng.choice([1, 1, 2, 3])):
        position = rng.randrange(3 + 2 * len(NUMBERS[name]))
        if position < 3:
            given[position] = tensors(rng, shapes[position])
        else:
            value = numbers(rng) if rng.random() < 0.5 else sequences(rng, dimensions)
            options[rng.choice(NUMBERS[name])] = value
    return given, options


def outcome(function, given, options):
    """The type and the words of what a call raises, or its result's shape."""
    try:
        return function(*given, **options).shape, ""
    except Exception as error:
        return type(error), str(error)


def generic(message):
    """A message's first line, without the arguments' list and positions.

    These tell an argument given by its name from one given by its position, and the functions of
    this package give all by position.
    """
    line = message.splitlines()[0].split(" - got (")[0]
    return line if "argument" not in line else line.split(" must be ")[0].split(" (position")[0]


@each_function
@pytest.mark.skipif(not NEW, reason="PyTorch 2.9 crashes in some of these calls of its own")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_random_malformed_calls_raise_what_pytorch_raises(name, seed):
    rng = random.Random(f"{name} {seed}")
    refused = 0
    for _ in range(150):
        given, options = call(rng, name)
        expected, message = outcome(getattr(F, name), given, options)
        actual, ours = outcome(getattr(customconv, name), given, options)
        assert actual == expected, (options, given, ours, message)
        refused += bool(message)
        if message and "INTERNAL ASSERT" not in message:
            assert generic(ours) == generic(message), options
    assert refused > 75  # most of the calls are malformed, so that the test says something


@each_function
@pytest.mark.parametrize(
    "value",
    [
        *[np.int64(2), np.int32(2), Two.VALUE, torch.Size([2]), [np.int64(2)]],
        pytest.param(torch.tensor(2), marks=pytest.mark.skipif(not NEW, reason="PyTorch is old")),
    ],
)
def test_what_pytorch_takes_for_an_integer_is_taken(name, value):
    x, w = tensors_for(name, 7)
    ours = getattr(customconv, name)(x, w, stride=value, padding=value)
    theirs = getattr(F, name)(x, w, stride=value, padding=value)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@each_function
@pytest.mark.parametrize("argument", ["stride", "dilation", "groups"])
@pytest.mark.parametrize("value", BOOLEANS)
def test_a_boolean_is_no_integer(name, argument, value):
    x, w = tensors_for(name)
    with pytest.raises(TypeError, match=rf"^{name}\(\)"):
        getattr(customconv, name)(x, w, **{argument: value})


@each_function
def test_the_algorithm_is_a_string(name):
    x, w = tensors_for(name)
    with pytest.raises(TypeError, match="argument 'algorithm' must be str, not NoneType"):
        getattr(customconv, name)(x, w, algorithm=None)


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        *[("activation", None, "str"), ("activation", F.relu, "str"), ("scale", 2.0, "Tensor")],
        *[("residual", [1.0], "Tensor"), ("residual_last", "no", "bool")],
        *[("negative_slope", "steep", "float"), ("algorithm", None, "str")],
    ],
)
@pytest.mark.parametrize("name", FUSED)
def test_the_other_arguments_of_a_fused_call(name, argument, value, expected):
    x, w = tensors_for(name)
    with pytest.raises(TypeError) as error:
        getattr(customconv, name)(x, w, **{argument: value})
    kind = type(value).__name__
    assert f"argument '{argument}' must be {expected}, not {kind}" in str(error.value)


@pytest.mark.parametrize("activation", ["mish", "", "ReLU"])
@pytest.mark.parametrize("name", FUSED)
def test_an_unknown_activation_lists_those_that_there_are(name, activation):
    with pytest.raises(ValueError, match=r"expected one of 'none', 'relu', .*'gelu_tanh'"):
        getattr(customconv, name)(*tensors_for(name), activation=activation)


@pytest.mark.parametrize(
    "kind",
    ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"],
)
def test_modules_refuse_an_algorithm_when_they_are_made(kind):
    """In the words in which the operator would refuse it later."""
    with pytest.raises(ValueError) as error:
        getattr(customconv, kind)(4, 6, 3, algorithm="winograd")
    with pytest.raises(ValueError) as expected:
        customconv.conv2d(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1), algorithm="winograd")
    assert str(error.value) == str(expected.value).splitlines()[0]
    with pytest.raises(TypeError, match=rf"{kind}\(\): argument 'algorithm' must be str"):
        getattr(customconv, kind)(4, 6, 3, algorithm=None)


@pytest.mark.parametrize("value", ["yes", None, 1])
def test_stats_are_reset_by_a_boolean(value):
    with pytest.raises(TypeError, match="argument 'reset' must be bool, not"):
        customconv.stats(value)


@pytest.mark.parametrize("input", [None, 1.0])
@pytest.mark.parametrize("fused", FUSED)
def test_a_fused_call_refuses_them_too(fused, input):
    (x, w), convolve = tensors_for(fused), getattr(customconv, fused)
    name = fused.removesuffix("_fused")
    with pytest.raises(TypeError, match=rf"^{name}\(\)"):
        convolve(input, w)
    with pytest.raises(TypeError, match=rf"^{name}\(\)"):
        convolve(x, w, stride=True)


@pytest.mark.parametrize("name", ["conv2d_fused", "conv3d_fused"])
def test_a_fused_call_pads_by_the_words_that_pytorch_takes(name):
    x, w = tensors_for(name)
    theirs = getattr(F, name.removesuffix("_fused"))
    for wrong in ({"padding": "same", "stride": 2}, {"padding": "full"}):
        with pytest.raises(Exception) as expected:
            theirs(x, w, **wrong)
        with pytest.raises(expected.type) as actual:
            getattr(customconv, name)(x, w, **wrong)
        assert generic(str(actual.value)) == generic(str(expected.value))
    w = torch.randn(4, 4, *range(2, w.ndim))  # of another size in each dimension
    right = {"padding": "same", "dilation": [3]}  # one number for all dimensions
    ours = getattr(customconv, name)(x, w, **right)
    torch.testing.assert_close(ours, theirs(x, w, **right))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("Conv1d", (4, 9)), ("Conv2d", (4, 9, 9)), ("Conv3d", (4, 9, 9, 9))],
)
def test_modules_raise_what_pytorchs_raise(kind, shape):
    ours, theirs = getattr(customconv, kind)(4, 6, 3), getattr(torch.nn, kind)(4, 6, 3)
    for wrong in (None, [1.0], torch.randn(shape).long(), torch.randn(shape).double()):
        with pytest.raises(Exception) as expected:
            theirs(wrong)
        with pytest.raises(expected.type) as actual:
            ours(wrong)
        assert generic(str(actual.value)) == generic(str(expected.value))


def test_an_error_hides_no_other_error():
    """PyTorch's words stand alone: the operator's are no context of theirs."""
    with pytest.raises(TypeError) as error:
        customconv.conv2d(None, torch.randn(4, 4, 3, 3))
    assert error.value.__suppress_context__
