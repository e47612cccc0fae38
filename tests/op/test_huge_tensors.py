"""Tensors of more than 2^31 elements. Values are small integers, so that sums are exact.

Bands of rows, at both ends and in the middle of the images, are held against PyTorch's results for
the bands alone.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_support import conv2d, conv2d_backward, conv3d, conv3d_backward, families
from reference import FAMILIES, LAYOUTS, assert_equal, layout_of

import customconv

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

LIMIT = 2**31
GIB = 2**30
BAND = 4


@pytest.fixture(autouse=True)
def enough_memory():
    """Skips on small GPUs, and bounds what a test may take on large ones."""
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 40 * GIB:
        pytest.skip("needs 40 GiB of GPU memory")
    torch.cuda.reset_peak_memory_stats()
    yield
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    assert peak < 60 * GIB


def integers(*shape, dtype=torch.float16, layout=torch.contiguous_format):
    t = torch.empty(shape, dtype=dtype, device="cuda", memory_format=layout)
    return t.random_(-2, 3)


def bands(height):
    """First and last row of the bands that are compared."""
    middle = height // 2
    return [(0, BAND), (middle, middle + BAND), (height - BAND, height)]


def rows_with_halo(t, first, last):
    """Rows and their neighbours in double precision, zeros beyond the image."""
    height = t.shape[2]
    inside = t[:, :, max(first - 1, 0) : min(last + 1, height)].double()
    return F.pad(inside, (0, 0, int(first == 0), int(last == height)))


def check_output(y, x, w, groups=1):
    """Of a 3x3 convolution that keeps the image's size."""
    for first, last in bands(y.shape[2]):
        exact = F.conv2d(rows_with_halo(x, first, last), w.double(), None, 1, (0, 1), 1, groups)
        assert_equal(y[:, :, first:last], exact.to(y.dtype), what=f"rows {first} to {last}")


def check_grad_input(dx, grad, w, groups=1):
    for first, last in bands(dx.shape[2]):
        wide = rows_with_halo(grad, first, last)
        exact = F.conv_transpose2d(wide, w.double(), None, 1, (2, 1), 0, groups)
        assert_equal(dx[:, :, first:last], exact.to(dx.dtype), what=f"rows {first} to {last}")


def check_grad_weight(dw, grad, x, pairs):
    """The filters of some pairs of an output channel and its input channel in x and in dw."""
    for k, c, c_in_group in pairs:
        image = F.pad(x[:, c], (1, 1, 1, 1))
        height, width = grad.shape[2:]
        exact = torch.empty(3, 3, dtype=torch.float64, device="cuda")
        for r in range(3):
            for s in range(3):
                window = image[:, r : r + height, s : s + width]
                exact[r, s] = (window * grad[:, k]).sum(dtype=torch.float64)
        # Sums of millions are not exact in float32, and are rounded to the result's type.
        eps = torch.finfo(dw.dtype).eps
        assert_equal(dw[k, c_in_group].double(), exact, rtol=eps, atol=eps * 100)


def check_all_passes(x, w, algorithm, pairs, groups=1):
    geometry = [1, 1], [1, 1], [1, 1], groups
    y = conv2d(x, w, None, *geometry, algorithm=algorithm)
    check_output(y, x, w, groups)
    grad = torch.empty_like(y).random_(-2, 3)
    del y
    arguments = grad, x, w, *geometry
    dx = conv2d_backward(*arguments, [True, False, False], algorithm=algorithm)[0]
    check_grad_input(dx, grad, w, groups)
    del dx
    dw = conv2d_backward(*arguments, [False, True, False], algorithm=algorithm)[1]
    check_grad_weight(dw, grad, x, pairs)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("algorithm", ["auto", *FAMILIES])
def test_large_input(algorithm, layout):
    x = integers(1, 514, 2048, 2048, layout=layout)
    assert x.numel() > LIMIT
    w = integers(1, 514, 3, 3)
    check_all_passes(x, w, algorithm, [(0, c, c) for c in (0, 300, 513)])


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("algorithm", ["auto", *FAMILIES])
def test_large_output(algorithm, layout):
    x, w = integers(1, 1, 2048, 2048, layout=layout), integers(514, 1, 3, 3)
    w = w.contiguous(memory_format=layout)
    check_all_passes(x, w, algorithm, [(k, 0, 0) for k in (0, 300, 513)])


@pytest.mark.parametrize("algorithm", ["auto", *FAMILIES])
def test_large_depthwise(algorithm):
    # Sums of a billion pixels pass the range of float16.
    x = integers(1, 2, 32800, 32800, dtype=torch.bfloat16)
    assert x.numel() > LIMIT
    w = integers(2, 1, 3, 3, dtype=torch.bfloat16)
    check_all_passes(x, w, algorithm, [(0, 0, 0), (1, 1, 0)], groups=2)


@pytest.mark.parametrize("algorithm", ["auto", *FAMILIES])
def test_large_batch(algorithm):
    x = integers(514, 4, 1024, 1024, dtype=torch.bfloat16)
    assert x.numel() > LIMIT
    w = integers(2, 4, 3, 3, dtype=torch.bfloat16)
    y = conv2d(x, w, None, [2, 2], [1, 1], algorithm=algorithm)
    for index in (0, 255, 511, 513):
        exact = F.conv2d(x[index].double(), w.double(), None, 2, 1)
        assert_equal(y[index], exact.bfloat16(), what=f"image {index}")


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_large_volume(layout):
    """Slices at both ends and in the middle, by all families that can."""
    layout, geometry = layout_of(layout, 5), ([1, 1, 1], [1, 1, 1], [1, 1, 1], 1)
    x = integers(1, 8, 260, 1024, 1024, dtype=torch.bfloat16, layout=layout)
    w = integers(8, 8, 3, 3, 3, dtype=torch.bfloat16, layout=layout)
    assert x.numel() > LIMIT
    depth = x.shape[2]
    places = (0, depth // 2, depth - 1)

    def families_of(op):
        candidates = customconv.explain(x, w, None, *geometry, op=op).candidates
        found = [c.family for c in candidates if c.plan and c.family != "aten"]
        assert "direct" in found
        return found

    def near(t, place):
        """A slice and its neighbours in double precision, zeros beyond the volume."""
        inside = t[:, :, max(place - 1, 0) : place + 2].double()
        return F.pad(inside, (0, 0, 0, 0, int(place == 0), int(place == depth - 1)))

    for family in families_of("fprop"):
        y = conv3d(x, w, None, *geometry, algorithm=family)
        for place in places:
            exact = F.conv3d(near(x, place), w.double(), None, 1, (0, 1, 1))
            what = f"{family}, slice {place}"
            assert_equal(y[:, :, place], exact[:, :, 0].to(y.dtype), what=what)
        del y
    dy = torch.empty_like(x).random_(-2, 3)
    for family in families_of("dgrad"):
        dx = conv3d_backward(dy, x, w, *geometry, [True, False, False], algorithm=family)[0]
        for place in places:
            exact = F.conv_transpose3d(near(dy, place), w.double(), None, 1, (2, 1, 1))
            what = f"{family}, slice {place}"
            assert_equal(dx[:, :, place], exact[:, :, 0].to(dx.dtype), what=what)
        del dx
    # The gradient is zero but for a few pixels, so that sums are exact.
    slices = [torch.zeros_like(dy[:, :, place]) for place in places]
    for place, kept in zip(places, slices, strict=True):
        kept[..., ::64, ::64] = dy[:, :, place, ::64, ::64]
    dy.zero_()
    exact = torch.zeros(w.shape, dtype=torch.float64, device="cuda")
    flat = [1, 1, 1], [0, 1, 1], [1, 1, 1], False, [0, 0, 0], 1, [False, True, False]
    for place, kept in zip(places, slices, strict=True):
        dy[:, :, place] = kept
        exact += torch.ops.aten.convolution_backward(
            kept.double()[:, :, None], near(x, place), w.double(), None, *flat
        )[1]
    for family in families_of("wgrad"):
        dw = conv3d_backward(dy, x, w, *geometry, [False, True, False], algorithm=family)[1]
        assert_equal(dw, exact.to(dw.dtype), what=family)


@pytest.mark.parametrize("algorithm", ["auto", *FAMILIES])
def test_few_elements_far_apart(algorithm):
    """Offsets pass 2^31 where the number of elements does not."""
    memory = torch.zeros(LIMIT + 1024, dtype=torch.float16, device="cuda")
    x = memory.as_strided((1, 3, 16, 16), (0, LIMIT // 2, 16, 1)).random_(-2, 3)
    w = integers(4, 3, 3, 3)
    assert algorithm in ("auto", *families(x, w))
    y = conv2d(x, w, algorithm=algorithm)
    assert_equal(y, F.conv2d(x.double(), w.double()).half())
    grad = torch.empty_like(y).random_(-2, 3)
    geometry = [1, 1], [0, 0], [1, 1], 1
    mask = [True, True, False]
    actual = conv2d_backward(grad, x, w, *geometry, mask, algorithm=algorithm)
    wide = (t.double() for t in (grad, x, w))
    exact = conv2d_backward(*wide, *geometry, mask, algorithm="aten")
    for ours, value in zip(actual[:2], exact[:2], strict=True):
        assert_equal(ours, value.half())
