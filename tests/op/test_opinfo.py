"""PyTorch's own samples and error inputs for conv2d, run against the operator."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_support import (
    FLOATS,
    OPINFO,
    assert_as_pytorch,
    conv2d,
    families,
    gradients,
    leaves,
    samples,
    widened,
)
from reference import LAYOUTS, assert_equal, assert_same, tolerances


def test_all_samples_are_there():
    assert len(list(samples("cpu", torch.float32))) >= 30
    assert len(list(OPINFO.error_inputs("cpu"))) >= 10


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64, torch.complex128])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_samples(device, dtype, layout):
    for tensors, keywords in samples(device, dtype, layout):
        for algorithm in ["auto", *families(*tensors, **keywords)]:
            actual = conv2d(*tensors, **keywords, algorithm=algorithm)
            assert_as_pytorch(actual, *tensors, **keywords)


def test_integers():
    for tensors, keywords in samples("cpu", torch.int64):
        assert_as_pytorch(conv2d(*tensors, **keywords), *tensors, **keywords)


@pytest.mark.gpu
def test_every_family_computes_every_sample():
    """What the forced algorithms of the test above ran on."""
    for dtype in FLOATS:
        expected = ["direct", "im2col"] + ["tiled"] * (dtype != torch.float64)
        for tensors, keywords in samples("cuda", dtype):
            assert families(*tensors, **keywords) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_gradients(device, dtype, layout):
    for tensors, keywords in samples(device, dtype, layout):
        theirs = gradients(F.conv2d, leaves(*tensors), **keywords)
        exact = gradients(F.conv2d, leaves(*map(widened, tensors)), **keywords)
        for algorithm in ["auto", *families(*tensors, **keywords)]:
            actual = gradients(conv2d, leaves(*tensors), **keywords, algorithm=algorithm)
            for ours, their, value in zip(actual, theirs, exact, strict=True):
                if device == "cpu":
                    assert_same(ours, their)
                else:
                    assert_equal(ours, value.to(dtype), **tolerances(dtype))
                    assert ours.stride() == their.stride()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_error_inputs(device, requires_grad):
    for error in OPINFO.error_inputs(device):
        sample = error.sample_input
        tensors = [sample.input, *sample.args]
        if requires_grad:
            tensors = [t.requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors]
        with pytest.raises(error.error_type, match=error.error_regex) as ours:
            conv2d(*tensors, **sample.kwargs)
        with pytest.raises(error.error_type) as theirs:
            F.conv2d(*tensors, **sample.kwargs)
        assert str(ours.value) == str(theirs.value)


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


INPUT, WEIGHT, BIAS = ones(2, 4, 9, 8), ones(6, 4, 3, 3), ones(6)
MALFORMED = {
    "channels": ((INPUT, ones(6, 3, 3, 3)), {}),
    "channels_by_groups": ((INPUT, WEIGHT), {"groups": 2}),
    "groups_do_not_divide": ((INPUT, ones(6, 1, 3, 3)), {"groups": 4}),
    "zero_groups": ((INPUT, WEIGHT), {"groups": 0}),
    "kernel_too_large": ((ones(2, 4, 2, 2), WEIGHT), {}),
    "dilated_kernel_too_large": ((INPUT, WEIGHT), {"dilation": 9}),
    "zero_stride": ((INPUT, WEIGHT), {"stride": 0}),
    "negative_padding": ((INPUT, WEIGHT), {"padding": (0, -1)}),
    "zero_dilation": ((INPUT, WEIGHT), {"dilation": 0}),
    "three_strides": ((INPUT, WEIGHT), {"stride": (1, 1, 1)}),
    "three_paddings": ((INPUT, WEIGHT), {"padding": (1, 1, 1)}),
    "no_strides": ((INPUT, WEIGHT), {"stride": []}),
    "same_with_three_dilations": ((INPUT, WEIGHT), {"padding": "same", "dilation": [1, 1, 1]}),
    "same_with_stride": ((INPUT, WEIGHT), {"padding": "same", "stride": 2}),
    "unknown_padding": ((INPUT, WEIGHT), {"padding": "full"}),
    "two_dimensions": ((ones(9, 8), WEIGHT), {}),
    "five_dimensions": ((ones(1, 2, 4, 9, 8), WEIGHT), {}),
    "flat_weight": ((INPUT, ones(6, 36)), {}),
    "long_bias": ((INPUT, WEIGHT, ones(7)), {}),
    "bias_of_two_dimensions": ((INPUT, WEIGHT, ones(6, 1)), {}),
    "weight_of_another_dtype": ((INPUT, WEIGHT.double()), {}),
    "bias_of_another_dtype": ((INPUT, WEIGHT, BIAS.double()), {}),
    "half_weight": ((INPUT, WEIGHT.half(), BIAS), {"padding": "same"}),
    "no_pixels": ((ones(2, 4, 0, 8), WEIGHT), {}),
    "no_taps": ((INPUT, ones(6, 4, 0, 3)), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_malformed_arguments_raise_what_pytorch_raises(case, requires_grad, device):
    tensors, keywords = MALFORMED[case]
    tensors = [t.to(device).requires_grad_(requires_grad) for t in tensors]
    with pytest.raises(Exception) as theirs:
        F.conv2d(*tensors, **keywords)
    with pytest.raises(theirs.type) as ours:
        conv2d(*tensors, **keywords)
    assert type(ours.value) is theirs.type
    assert str(ours.value) == str(theirs.value)


@pytest.mark.gpu
@pytest.mark.parametrize("misplaced", [0, 1, 2])
def test_mixed_devices_raise_what_pytorch_raises(misplaced):
    tensors = [t.cuda() for t in (INPUT, WEIGHT, BIAS)]
    tensors[misplaced] = tensors[misplaced].cpu()
    with pytest.raises(RuntimeError) as theirs:
        F.conv2d(*tensors)
    with pytest.raises(RuntimeError) as ours:
        conv2d(*tensors)
    assert str(ours.value) == str(theirs.value)
