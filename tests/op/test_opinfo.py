"""PyTorch's own samples and error inputs for conv2d and conv3d, run against the operators."""

from __future__ import annotations

import pytest
import torch
from op_support import (
    CONV,
    FLOATS,
    OPINFO,
    PYTORCHS,
    assert_as_pytorch,
    assert_rounded,
    conv,
    each_dims,
    families,
    gradients,
    leaves,
    pytorchs,
    samples,
    widened,
)
from reference import LAYOUTS, PROBLEMS, VOLUMES, assert_same


def test_all_samples_are_there():
    for dims, count, errors in ((2, 30, 10), (3, 18, 9)):
        assert len(list(samples("cpu", torch.float32, opinfo=OPINFO[dims]))) >= count
        assert len(list(OPINFO[dims].error_inputs("cpu"))) >= errors


@each_dims
@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64, torch.complex128])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_samples(device, dtype, layout, dims):
    for tensors, keywords in samples(device, dtype, layout, opinfo=OPINFO[dims]):
        for algorithm in ["auto", *families(*tensors, **keywords)]:
            actual = conv(*tensors, **keywords, algorithm=algorithm)
            assert_as_pytorch(actual, *tensors, **keywords, what=algorithm)


@each_dims
def test_integers(dims):
    for tensors, keywords in samples("cpu", torch.int64, opinfo=OPINFO[dims]):
        assert_as_pytorch(conv(*tensors, **keywords), *tensors, **keywords)


@pytest.mark.gpu
def test_every_family_computes_every_sample():
    """What the forced algorithms of the test above ran on."""
    for dtype in FLOATS:
        expected = ["direct", "im2col"] + ["tiled"] * (dtype != torch.float64)
        for tensors, keywords in samples("cuda", dtype):
            assert families(*tensors, **keywords) == expected
        for tensors, keywords in samples("cuda", dtype, opinfo=OPINFO[3]):
            assert "direct" in families(*tensors, **keywords)


@each_dims
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_gradients(device, dtype, layout, dims):
    for tensors, keywords in samples(device, dtype, layout, opinfo=OPINFO[dims]):
        theirs = gradients(pytorchs, leaves(*tensors), **keywords)
        exact = gradients(pytorchs, leaves(*map(widened, tensors)), **keywords)
        for algorithm in ["auto", *families(*tensors, **keywords)]:
            actual = gradients(conv, leaves(*tensors), **keywords, algorithm=algorithm)
            for ours, their, value in zip(actual, theirs, exact, strict=True):
                if device == "cpu":
                    assert_same(ours, their)
                else:
                    assert_rounded(ours, value, their, dims, what=algorithm)
                    assert ours.stride() == their.stride()


@each_dims
@pytest.mark.parametrize("requires_grad", [False, True])
def test_error_inputs(device, requires_grad, dims):
    for error in OPINFO[dims].error_inputs(device):
        sample = error.sample_input
        tensors = [sample.input, *sample.args]
        if requires_grad:
            tensors = [t.requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors]
        with pytest.raises(error.error_type, match=error.error_regex) as ours:
            CONV[dims](*tensors, **sample.kwargs)
        with pytest.raises(error.error_type) as theirs:
            PYTORCHS[dims](*tensors, **sample.kwargs)
        assert str(ours.value) == str(theirs.value)


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def malformed(dims):
    """Tensors and keywords; of volumes, images get a depth of five and filters one of three."""
    five, three = (5,) * (dims - 2), (3,) * (dims - 2)
    input, weight = ones(2, 4, *five, 9, 8), ones(6, 4, *three, 3, 3)
    bias, too_many = ones(6), (1,) * (dims + 1)
    return {
        "channels": ((input, ones(6, 3, *three, 3, 3)), {}),
        "channels_by_groups": ((input, weight), {"groups": 2}),
        "groups_do_not_divide": ((input, ones(6, 1, *three, 3, 3)), {"groups": 4}),
        "zero_groups": ((input, weight), {"groups": 0}),
        "kernel_too_large": ((ones(2, 4, *five, 2, 2), weight), {}),
        "dilated_kernel_too_large": ((input, weight), {"dilation": 9}),
        "zero_stride": ((input, weight), {"stride": 0}),
        "negative_padding": ((input, weight), {"padding": (*too_many[2:], -1)}),
        "zero_dilation": ((input, weight), {"dilation": 0}),
        "one_stride_too_many": ((input, weight), {"stride": too_many}),
        "one_padding_too_many": ((input, weight), {"padding": too_many}),
        "no_strides": ((input, weight), {"stride": []}),
        "same_with_one_dilation_too_many": (
            (input, weight), {"padding": "same", "dilation": list(too_many)}
        ),
        "same_with_stride": ((input, weight), {"padding": "same", "stride": 2}),
        "unknown_padding": ((input, weight), {"padding": "full"}),
        "two_dimensions": ((ones(9, 8), weight), {}),
        "one_dimension_too_many": ((ones(1, 2, 4, *five, 9, 8), weight), {}),
        "flat_weight": ((input, ones(6, 36)), {}),
        "long_bias": ((input, weight, ones(7)), {}),
        "bias_of_two_dimensions": ((input, weight, ones(6, 1)), {}),
        "weight_of_another_dtype": ((input, weight.double()), {}),
        "bias_of_another_dtype": ((input, weight, bias.double()), {}),
        "half_weight": ((input, weight.half(), bias), {"padding": "same"}),
        "no_pixels": ((ones(2, 4, *five, 0, 8), weight), {}),
        "no_taps": ((input, ones(6, 4, *three, 0, 3)), {}),
    }  # fmt: skip


MALFORMED = {dims: malformed(dims) for dims in (2, 3)}
FEWER = {  # of volumes alone
    "one_stride_too_few": {"stride": (1, 1)},
    "one_padding_too_few": {"padding": (1, 1)},
    "one_dilation_too_few": {"dilation": (1, 1)},
    "negative_padding_of_depth": {"padding": (-1, 0, 0)},
    "depth_of_dilated_kernel_too_large": {"dilation": (3, 1, 1)},
}
MALFORMED[3] |= {name: ((ones(2, 4, 5, 9, 8), ones(6, 4, 3, 3, 3)), keywords)
                 for name, keywords in FEWER.items()}  # fmt: skip


@pytest.mark.parametrize(("dims", "case"), [(dims, case) for dims in MALFORMED
                                            for case in MALFORMED[dims]])  # fmt: skip
@pytest.mark.parametrize("requires_grad", [False, True])
def test_malformed_arguments_raise_what_pytorch_raises(dims, case, requires_grad, device):
    tensors, keywords = MALFORMED[dims][case]
    tensors = [t.detach().to(device).requires_grad_(requires_grad) for t in tensors]
    with pytest.raises(Exception) as theirs:
        PYTORCHS[dims](*tensors, **keywords)
    with pytest.raises(theirs.type) as ours:
        CONV[dims](*tensors, **keywords)
    assert type(ours.value) is theirs.type
    assert str(ours.value) == str(theirs.value)


@pytest.mark.gpu
@each_dims
@pytest.mark.parametrize("misplaced", [0, 1, 2])
def test_mixed_devices_raise_what_pytorch_raises(misplaced, dims):
    tensors = [
        t.cuda()
        for t in (PROBLEMS if dims == 2 else VOLUMES)["dense"].tensors("cpu", torch.float32)
    ]
    tensors[misplaced] = tensors[misplaced].cpu()
    with pytest.raises(RuntimeError) as theirs:
        pytorchs(*tensors)
    with pytest.raises(RuntimeError) as ours:
        conv(*tensors)
    assert str(ours.value) == str(theirs.value)
