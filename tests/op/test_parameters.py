"""What parameters become before convolutions read them: weights copied, batch norms folded."""

from __future__ import annotations

import pytest
import torch
from op_support import kernels_of
from reference import assert_equal, layout_of

OPS = torch.ops.customconv
# Filters of many sizes: tails, one channel, one tap, more than a tile, even numbers of taps.
SHAPES = [
    (64, 3, 7, 7), (64, 64, 1, 1), (8, 1, 3, 3), (33, 19, 3, 3), (1, 1, 1, 1), (5, 700, 3, 5),
    (2, 2048, 3, 3), (129, 8, 2, 2), (3, 3, 63, 64), (256, 256, 3, 3), (7, 5, 1, 9),
    (33, 19, 3, 3, 3), (64, 64, 1, 1, 1), (8, 1, 3, 3, 3), (5, 700, 2, 1, 3), (40, 3, 2, 14, 14),
]  # fmt: skip
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def weights(device, dtype, layout=torch.contiguous_format, shapes=SHAPES):
    found = []
    for shape in shapes:
        w = torch.randn(shape, device=device).to(dtype)
        found.append(w.contiguous(memory_format=layout_of(layout, w.ndim)))
    return found


def expected_copy(w, dtype, channels_last):
    layout = layout_of(torch.channels_last, w.ndim) if channels_last else torch.preserve_format
    return w.to(dtype, copy=True, memory_format=layout)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("after", FLOATS)
@pytest.mark.parametrize("before", FLOATS)
def test_copies_are_pytorchs(before, after, layout, channels_last, device):
    given = weights(device, before, layout)
    copies = OPS.copy_parameters(given, after, channels_last)
    for w, copy in zip(given, copies, strict=True):
        expected = expected_copy(w, after, channels_last)
        assert_equal(copy, expected)
        assert copy.data_ptr() != w.data_ptr()
        wanted = torch.channels_last if channels_last else torch.contiguous_format
        if channels_last or layout is torch.contiguous_format:
            assert copy.is_contiguous(memory_format=layout_of(wanted, w.ndim))


def test_more_weights_than_one_launch_holds(device):
    given = weights(device, torch.float32, shapes=[(3, 2 + i % 5, 3, 3) for i in range(300)])
    for w, copy in zip(given, OPS.copy_parameters(given, torch.float16, True), strict=True):
        assert_equal(copy, w.half())


def test_weights_that_kernels_do_not_read(device):
    """Other types, other dimensions, gaps, unaligned memory, none at all."""
    whole = torch.randn(8, 12, 3, 3, device=device)
    given = [
        whole[:, ::2], whole[1:], whole.double(), torch.randn(4, 4, 3, device=device),
        torch.empty(0, 3, 3, 3, device=device), torch.randn(2, 2, 65, 65, device=device),
        torch.randn(16 * 9 + 1, device=device)[1:].view(4, 4, 3, 3),
    ]  # fmt: skip
    for w in given:
        (copy,) = OPS.copy_parameters([w], torch.float16, True)
        assert_equal(copy, w.half())
    assert OPS.copy_parameters([], torch.float16, True) == []


@pytest.mark.gpu
def test_one_kernel_copies_all():
    given = weights("cuda", torch.float32)
    names = kernels_of(lambda: OPS.copy_parameters(given, torch.float16, True))
    assert len(names) == 1, names


def batch_norms(device, dtypes, sizes=(64, 1, 2048, 37, 300)):
    """Lists of means, variances, weights, biases, shifts and eps; some parts are absent."""
    lists = [[], [], [], [], [], []]
    for number, size in enumerate(sizes):
        for place, values in enumerate(lists[:5]):
            vector = torch.rand(size, device=device) + 0.25
            absent = place >= 2 and (number >> (place - 2)) % 2
            dtype = dtypes[(number + place) % len(dtypes)]
            values.append(None if absent else vector.to(dtype))
        lists[5].append(10.0**-number)
    return lists


@pytest.mark.parametrize(
    "dtypes", [[torch.float32], [torch.float16], FLOATS], ids=["float32", "float16", "mixed"]
)
@pytest.mark.parametrize("count", [5, 300])
def test_a_folded_batch_norm_is_exact(dtypes, count, device):
    lists = batch_norms(device, dtypes, sizes=[(64, 1, 2048, 37, 300)[i % 5] for i in range(count)])
    lists[5] = [10.0 ** -(i % 6) for i in range(count)]
    folded = OPS.fold_batch_norms(*lists)
    assert len(folded) == 2 * count
    for number, (mean, variance, weight, bias, shift, eps) in enumerate(zip(*lists, strict=True)):
        scale = (variance.double() + eps).rsqrt()
        scale = scale if weight is None else scale * weight.double()
        moved = (-mean.double() if shift is None else shift.double() - mean.double()) * scale
        moved = moved if bias is None else moved + bias.double()
        for actual, exact in zip(folded[2 * number :][:2], (scale, moved), strict=True):
            assert actual.dtype == torch.float32
            assert_equal(actual.double(), exact, rtol=1e-6, atol=1e-6)


def test_float64_stays_float64(device):
    lists = batch_norms(device, [torch.float64])
    for vector in OPS.fold_batch_norms(*lists):
        assert vector.dtype == torch.float64


@pytest.mark.gpu
def test_one_kernel_folds_all():
    lists = batch_norms("cuda", [torch.float32])
    names = kernels_of(lambda: OPS.fold_batch_norms(*lists))
    assert len(names) == 1, names


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_vectors_must_fit(place, device):
    lists = batch_norms(device, [torch.float32], sizes=(8, 16))
    lists[place][0] = torch.ones(9, device=device)
    with pytest.raises(RuntimeError, match=r"expected vectors of the mean's size \[8\]"):
        OPS.fold_batch_norms(*lists)
    lists[place] = lists[place][:1]
    with pytest.raises(RuntimeError, match="expected as many variances"):
        OPS.fold_batch_norms(*lists)


def test_opcheck(device):
    tests = ("test_schema", "test_faketensor")
    given = weights(device, torch.float32, shapes=SHAPES[:3])
    torch.library.opcheck(
        OPS.copy_parameters.default, (given, torch.float16, True), test_utils=tests
    )
    lists = batch_norms(device, [torch.float32])
    torch.library.opcheck(OPS.fold_batch_norms.default, tuple(lists), test_utils=tests)
