"""Fused convolutions: scale, bias, residual and activation after the sums."""

from __future__ import annotations

import gc
import itertools
import math
import re
import weakref

import pytest
import torch
import torch.nn.functional as F
from op_support import (
    by_weight,
    each_dims,
    gradcheck,
    gradgradcheck,
    kernels_of,
    leaves,
    needs_compiler,
    pytorchs,
    pytorchs_transpose,
)
from reference import (
    EVERY_PROBLEM,
    EVERY_TRANSPOSED_PROBLEM,
    LAYOUTS,
    PROBLEMS,
    TRANSPOSED_PROBLEMS,
    Problem,
    TransposedProblem,
    assert_close_to,
    assert_equal,
    float32_precision,
    layout_of,
    round_to_tf32,
    tolerances,
)
from torch._subclasses import FakeTensorMode
from torch.func import jvp, vmap

import customconv
from customconv import _bind

OPS = torch.ops.customconv
conv2d_fused, conv_transpose2d_fused = OPS.conv2d_fused, OPS.conv_transpose2d_fused
FUSED = {2: conv2d_fused, 3: OPS.conv3d_fused}
FUSED_TRANSPOSE = {2: conv_transpose2d_fused, 3: OPS.conv_transpose3d_fused}

ACTIVATIONS = {
    "none": lambda v, slope: v,
    "relu": lambda v, slope: F.relu(v),
    "relu6": lambda v, slope: F.relu6(v),
    "sigmoid": lambda v, slope: torch.sigmoid(v),
    "hardsigmoid": lambda v, slope: F.hardsigmoid(v),
    "silu": lambda v, slope: F.silu(v),
    "gelu": lambda v, slope: F.gelu(v),
    "gelu_tanh": lambda v, slope: F.gelu(v, approximate="tanh"),
    "hardswish": lambda v, slope: F.hardswish(v),
    "leaky_relu": lambda v, slope: F.leaky_relu(v, slope),
}
HALF = (torch.float16, torch.bfloat16)
BOTH = {
    **EVERY_PROBLEM,
    **{f"transposed_{name}": p for name, p in EVERY_TRANSPOSED_PROBLEM.items()},
}
TINY = {
    "plain": Problem((2, 4, 4, 3), (2, 2, 2, 3), (2, 1), (1, 1), groups=2),
    "transposed": TransposedProblem((2, 4, 2, 3), (4, 1, 2, 3), (2, 1), (1, 1), groups=2),
    "volume": Problem((1, 4, 3, 2, 2), (2, 2, 2, 1, 2), (1, 1, 1), (0, 0, 1), groups=2),
    "volume_transposed": TransposedProblem(
        (1, 4, 2, 1, 2), (4, 1, 1, 2, 2), (2, 1, 1), (0, 0, 1), groups=2
    ),
}
each_kind = pytest.mark.parametrize("kind", ["plain", "transposed", "volume", "volume_transposed"])
each_flat_kind = pytest.mark.parametrize("kind", ["plain", "transposed"])
each_tiny = pytest.mark.parametrize("tiny", TINY.values(), ids=TINY)
# Of implicit_gemm: rows and boxes, small images, splits, one row, few channels, tails.
FUSABLE = {
    "3x3": Problem((2, 64, 28, 28), (72, 64, 3, 3), padding=(1, 1)),
    "strided": Problem((2, 24, 21, 33), (70, 24, 3, 3), (2, 2), (1, 1)),
    "small_images": Problem((9, 72, 7, 7), (136, 72, 3, 3), padding=(1, 1)),
    "splits": Problem((1, 512, 7, 7), (64, 512, 3, 3), padding=(1, 1)),
    "pointwise": Problem((3, 80, 14, 14), (200, 80, 1, 1)),
    "pointwise_odd": Problem((3, 37, 13, 21), (33, 37, 1, 1)),
    "few_channels": Problem((2, 3, 33, 40), (64, 3, 7, 7), (2, 2), (3, 3)),
    "one_channel_out": Problem((2, 16, 9, 11), (1, 16, 3, 3)),
    "unbatched": Problem((16, 9, 12), (24, 16, 3, 3), padding=(1, 1)),
}
# The same from outputs back to inputs; where phases are joined, to few channels.
TRANSPOSED_FUSABLE = {
    f"transposed_{name}": TransposedProblem.of(problem)
    for name, problem in FUSABLE.items()
    if name != "one_channel_out"
}
ALL_FUSABLE = {**FUSABLE, **TRANSPOSED_FUSABLE}


def is_transposed(problem):
    return isinstance(problem, TransposedProblem)


def of_kind(kind, name):
    problems = EVERY_TRANSPOSED_PROBLEM if "transposed" in kind else EVERY_PROBLEM
    return problems[f"volume_{name}" if "volume" in kind else name]


def operator_of(problem):
    return (FUSED_TRANSPOSE if is_transposed(problem) else FUSED)[problem.dims]


def per_channel(vector, problem):
    return vector.view(-1, *[1] * problem.dims)


def convolved(x, w, problem):
    """The convolution alone, by PyTorch."""
    convolve = pytorchs_transpose if is_transposed(problem) else pytorchs
    return convolve(x, w, None, *problem.geometry)


def composed(x, w, bias, scale, residual, problem, activation, last, slope=0.01):
    """The same by PyTorch's operators."""
    y = convolved(x, w, problem)
    if scale is not None:
        y = y * per_channel(scale, problem)
    if bias is not None:
        y = y + per_channel(bias, problem)
    if residual is not None and not last:
        y = y + residual
    y = ACTIVATIONS[activation](y, slope)
    return y + residual if residual is not None and last else y


def make(problem, device, dtype, layout=torch.contiguous_format, integers=False):
    """Input, weight, bias, scale, residual."""
    x, w, bias = problem.tensors(device, dtype, layout, integers=integers)
    shape = convolved(x, w, problem).shape
    values = torch.randint(-2, 3, shape) if integers else torch.randn(shape)
    residual = values.to(device, dtype)
    if residual.ndim == problem.dims + 2:
        residual = residual.contiguous(memory_format=layout_of(layout, residual.ndim))
    count = [problem.output_channels]
    scale = torch.randint(1, 4, count) if integers else torch.rand(count) + 0.5
    return x, w, bias, scale.to(device, dtype), residual


def fused(x, w, bias, scale, residual, problem, activation, last, **keywords):
    return operator_of(problem)(
        x, w, bias, *problem.geometry, scale=scale, residual=residual, activation=activation,
        residual_last=last, **keywords,
    )  # fmt: skip


def assert_same_gradients(actual, expected, tensors, **close):
    """The gradients of both outputs' products with the same random numbers."""
    direction = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(actual, tensors, direction),
        torch.autograd.grad(expected, tensors, direction),
        strict=True,
    ):
        assert_equal(ours, theirs, **close)


@pytest.mark.parametrize("last", [False, True], ids=["residual_first", "residual_last"])
@pytest.mark.parametrize(
    ("problem", "activation"),
    [
        (problem, activation)
        for problem in BOTH
        # Activations are the same of volumes: one problem has all of them.
        for activation in ACTIVATIONS
        if "volume" not in problem or "dense" in problem or activation in ("none", "silu")
    ],
)
def test_values(problem, activation, last, device):
    problem = BOTH[problem]
    for layout, dtype in itertools.product(LAYOUTS, (torch.float32, torch.float64)):
        tensors = make(problem, device, dtype, layout)
        actual = fused(*tensors, problem, activation, last)
        expected = composed(*tensors, problem, activation, last)
        assert_equal(actual, expected, **tolerances(dtype))
        assert actual.stride() == convolved(*tensors[:2], problem).stride()


@pytest.mark.parametrize(
    "present",
    list(itertools.product([False, True], repeat=3)),
    ids=lambda present: "".join("01"[there] for there in present),
)
@each_kind
def test_any_part_may_be_absent(kind, present, device):
    problem = of_kind(kind, "dense")
    x, w, *others = make(problem, device, torch.float64)
    others = [t if there else None for t, there in zip(others, present, strict=True)]
    for activation in ("none", "relu"):
        actual = fused(x, w, *others, problem, activation, False)
        expected = composed(x, w, *others, problem, activation, False)
        assert_equal(actual, expected, **tolerances(torch.float64))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("problem", ALL_FUSABLE)
def test_one_kernel_is_exact(problem, layout):
    """By implicit_gemm, from integers, whose results no order of operations can change.

    Of a transposed convolution, sums may be rounded before the rest is done.
    """
    problem = ALL_FUSABLE[problem]
    dtypes = (torch.float16, torch.float32) if is_transposed(problem) else (*HALF, torch.float32)
    for dtype in dtypes:
        tensors = make(problem, "cuda", dtype, layout, integers=True)
        wide = [t.double() for t in tensors]
        for activation, last in itertools.product(("none", "relu", "leaky_relu"), (False, True)):
            with float32_precision("tf32"):
                actual = fused(
                    *tensors, problem, activation, last, negative_slope=0.5,
                    algorithm="implicit_gemm",
                )  # fmt: skip
            expected = composed(*wide, problem, activation, last, 0.5).to(dtype)
            assert_equal(actual, expected, what=f"{dtype}, {activation}, {last}")


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_kernel_is_as_accurate_as_pytorchs_operators(activation, layout):
    for problem, dtype in itertools.product(ALL_FUSABLE.values(), (*HALF, torch.float32)):
        tensors = make(problem, "cuda", dtype, layout)
        arguments = problem, activation, False
        with float32_precision("tf32"):
            actual = fused(*tensors, *arguments, algorithm="implicit_gemm")
            theirs = composed(*tensors, *arguments)
        exact = composed(*(t.double() for t in tensors), *arguments)
        if dtype == torch.float32:  # cuDNN need not use TF32 where it may
            theirs = composed(*(round_to_tf32(t).double() for t in tensors[:2]), *tensors[2:],
                              *arguments).float()  # fmt: skip
        assert_close_to(actual, exact, theirs, what=f"{problem}, {dtype}")


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("present", ["bias", "scale", "both", "mixed"])
@each_kind
def test_bias_and_scale_in_float32_are_not_rounded(kind, present, dtype, device):
    problem = of_kind(kind, "dense")
    x, w, bias, scale, residual = make(problem, device, torch.float32)
    x, w, residual = x.to(dtype), w.to(dtype), residual.to(dtype)
    vectors = [bias if present != "scale" else None, scale if present != "bias" else None]
    if present == "mixed":
        vectors[0] = vectors[0].to(dtype)
    actual = fused(x, w, *vectors, residual, problem, "silu", False)
    wide = [None if t is None else t.double() for t in (x, w, *vectors, residual)]
    exact = composed(*wide, problem, "silu", False)
    theirs = composed(*wide, problem, "silu", False).to(dtype)
    assert actual.dtype == dtype
    assert_close_to(actual, exact, theirs, factor=4)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "depthwise", "grouped"])
def test_every_family_reads_vectors_in_float32(algorithm, layout):
    """Numbers that 16 bits cannot hold show which were read."""
    groups = {"implicit_gemm": 1, "depthwise": 64, "grouped": 8}[algorithm]
    tried = 0
    for size, kernel, stride in [(28, 3, 1), (7, 3, 1), (15, 5, 2), (14, 1, 1), (112, 3, 2)]:
        problem = Problem(
            (2, 64, size, size), (64, 64 // groups, kernel, kernel), (stride, stride),
            (kernel // 2, kernel // 2), groups=groups,
        )  # fmt: skip
        x, w, bias, scale, _ = make(problem, "cuda", torch.float16, layout, integers=True)
        found = customconv.explain(x, w, None, *problem.geometry).candidates
        if not any(each.family == algorithm and each.plan for each in found):
            continue
        tried += 1
        exact = composed(x.double(), w.double(), None, None, None, problem, "none", False)
        vectors = [(t.double() + 2.0**-20).float() for t in (bias, scale)]
        for b, s in [vectors, (vectors[0], None), (None, vectors[1])]:
            actual = fused(x, w, b, s, None, problem, "none", False, algorithm=algorithm)
            expected = exact if s is None else exact * s.double().view(-1, 1, 1)
            expected = expected if b is None else expected + b.double().view(-1, 1, 1)
            assert_close_to(actual, expected, expected.half(), what=f"{problem}")
        tiny = torch.full_like(vectors[0], 2.0**-30)  # zero in float16
        actual = fused(x, w, None, tiny * 2.0**24, None, problem, "none", False,
                       algorithm=algorithm)  # fmt: skip
        assert_equal(actual, (exact * 2.0**-6).half())
        zeros = torch.zeros_like(x)
        actual = fused(zeros, w, tiny * 2.0**10, tiny, None, problem, "relu", False,
                       algorithm=algorithm)  # fmt: skip
        assert_equal(actual, torch.full_like(actual, 2.0**-20))
    assert tried


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_kernels_of_transposed_convolutions_read_vectors_in_float32(layout):
    """With and without phases: read as 16 bits, the vectors would be other numbers."""
    for name, problem in TRANSPOSED_FUSABLE.items():
        x, w, *_ = make(problem, "cuda", torch.float16, layout, integers=True)
        vector = torch.full((problem.output_channels,), 2.0**-20, device="cuda")
        arguments = None, problem, "none", False
        zeros = torch.zeros_like(x)
        actual = fused(zeros, w, vector, None, *arguments, algorithm="implicit_gemm")
        assert_equal(actual, torch.full_like(actual, 2.0**-20), what=name)
        tiny = vector * 2.0**-6  # zero in float16
        actual = fused(x * 16, w, None, tiny, *arguments, algorithm="implicit_gemm")
        exact = convolved(x.double(), w.double(), problem) * 2.0**-22
        assert_equal(actual, exact.half(), what=name)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("name", ["3x3", "transposed_3x3", "transposed_strided"])
def test_only_kernels_of_ours_run(name, layout):
    problem = ALL_FUSABLE[name]
    tensors = make(problem, "cuda", torch.float16, layout)
    if name == "transposed_strided":  # whose phases are stored apart, if the layout is NCHW
        tensors = *tensors[:4], None
    names = kernels_of(lambda: fused(*tensors, problem, "silu", True))
    assert names
    assert all("customconv" in name for name in names), names


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["direct", "im2col", "tiled", "aten"])
@pytest.mark.parametrize("name", ["3x3", "transposed_3x3"])
def test_families_without_an_epilogue_are_composed(name, algorithm):
    problem = ALL_FUSABLE[name]
    tensors = make(problem, "cuda", torch.float16, integers=True)
    actual = fused(*tensors, problem, "relu", False, algorithm=algorithm)
    wide = [t.double() for t in tensors]
    assert_equal(actual, composed(*wide, problem, "relu", False).to(torch.float16))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("view", ["other_layout", "expanded", "unaligned"])
@pytest.mark.parametrize("name", ["3x3", "transposed_3x3", "transposed_strided"])
def test_residuals_of_any_strides(name, view, layout):
    problem = ALL_FUSABLE[name]
    *tensors, residual = make(problem, "cuda", torch.float16, layout, integers=True)
    if view == "other_layout":
        other = LAYOUTS[1 - LAYOUTS.index(layout)]
        residual = residual.contiguous(memory_format=other)
    elif view == "expanded":
        residual = residual[:, :, :1, :1].expand(residual.shape)
    else:
        buffer = residual.new_empty(residual.numel() + 1)
        residual = buffer[1:].as_strided(residual.shape, residual.stride()).copy_(residual)
    actual = fused(*tensors, residual, problem, "relu", True, algorithm="implicit_gemm")
    wide = [t.double() for t in (*tensors, residual)]
    assert_equal(actual, composed(*wide, problem, "relu", True).to(torch.float16))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", ["pointwise", "transposed_pointwise"])
def test_nan_and_infinities_are_pytorchs(name, activation, layout):
    problem = ALL_FUSABLE[name]
    x, w, bias, _, _ = make(problem, "cuda", torch.float32, layout, integers=True)
    for index, value in enumerate((math.nan, math.inf, -math.inf)):
        bias[index] = value
    with float32_precision("tf32"):
        actual = fused(x, w, bias, None, None, problem, activation, False,
                       algorithm="implicit_gemm")  # fmt: skip
    expected = composed(x, w, bias, None, None, problem, activation, False)
    assert_equal(actual[:, :3], expected[:, :3], **tolerances(torch.float16))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["splits", "transposed_splits", "transposed_strided"])
def test_results_are_the_same_bits_every_time(name):
    problem = ALL_FUSABLE[name]
    tensors = make(problem, "cuda", torch.bfloat16)
    first = fused(*tensors, problem, "gelu", False)
    for _ in range(5):
        assert_equal(fused(*tensors, problem, "gelu", False), first)


@pytest.mark.parametrize("last", [False, True], ids=["residual_first", "residual_last"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@each_tiny
def test_first_and_second_derivatives(tiny, activation, last, device):
    tensors = leaves(*make(tiny, device, torch.float64))

    def call(*t):
        return fused(*t, tiny, activation, last)

    assert gradcheck(call, tensors, fast_mode=True)
    assert gradgradcheck(call, tensors, fast_mode=True)


@pytest.mark.parametrize("asked", list(itertools.product([False, True], repeat=5))[1:])
@each_tiny
def test_any_subset_of_tensors_requires_grad(tiny, asked, device):
    tensors = leaves(*make(tiny, device, torch.float64))
    for tensor, wanted in zip(tensors, asked, strict=True):
        tensor.requires_grad_(wanted)
    wanted = [t for t in tensors if t.requires_grad]
    for last in (False, True):
        ours = fused(*tensors, tiny, "silu", last)
        theirs = composed(*tensors, tiny, "silu", last)
        assert_same_gradients(ours, theirs, wanted, **tolerances(torch.float64))


@pytest.mark.parametrize("absent", list(itertools.product([False, True], repeat=3))[1:])
@each_tiny
def test_gradients_where_parts_are_absent(tiny, absent, device):
    x, w, *others = leaves(*make(tiny, device, torch.float64))
    others = [None if away else t for t, away in zip(others, absent, strict=True)]
    wanted = [t for t in (x, w, *others) if t is not None]
    for activation in ("none", "relu", "leaky_relu"):
        ours = fused(x, w, *others, tiny, activation, False, negative_slope=-0.5)
        theirs = composed(x, w, *others, tiny, activation, False, -0.5)
        assert_same_gradients(ours, theirs, wanted, **tolerances(torch.float64))


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", ["3x3", "transposed_3x3", "transposed_strided"])
def test_gradients_of_one_kernel(name, activation):
    problem = ALL_FUSABLE[name]
    tensors = leaves(*make(problem, "cuda", torch.float16, torch.channels_last))
    wide = [t.detach().double().requires_grad_() for t in tensors]
    ours = fused(*tensors, problem, activation, False)
    exact = composed(*wide, problem, activation, False)
    direction = torch.randn_like(exact)
    theirs = composed(*tensors, problem, activation, False)
    results = [
        torch.autograd.grad(y, t, direction.to(y.dtype))
        for y, t in ((ours, tensors), (exact, wide), (theirs, tensors))
    ]
    for actual, expected, pytorch in zip(*results, strict=True):
        assert_close_to(actual, expected, pytorch, factor=4)


@each_tiny
def test_relu_keeps_its_output_and_no_more(tiny):
    """What backward needs beyond the arguments: one output where it is enough, else nothing."""
    x, w, bias, scale, residual = leaves(*make(tiny, "cpu", torch.float64))
    for activation, last, count in (("relu", False, 4), ("relu", True, 4), ("silu", False, 5)):
        kept = []

        def pack(t, kept=kept):
            kept.append(t)
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = fused(x, w, bias, scale, residual, tiny, activation, last)
        own = [t for t in kept if all(t.data_ptr() != a.data_ptr()
                                      for a in (x, w, bias, scale, residual))]  # fmt: skip
        assert len(kept) == count
        assert [t.data_ptr() for t in own] == ([y.data_ptr()] if own else [])
        assert len(own) == (activation == "relu" and not last)


@needs_compiler
@each_kind
def test_compiled(kind, device):
    problem = of_kind(kind, "dense")
    tensors = leaves(*make(problem, device, torch.float32))

    def call(*t):
        return fused(*t, problem, "gelu", True).sin()

    torch._dynamo.reset()
    actual = torch.compile(call, fullgraph=True)(*tensors)
    expected = call(*tensors)
    assert_equal(actual, expected, **tolerances(torch.float32))
    assert_same_gradients(actual, expected, tensors, **tolerances(torch.float32, 1000))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
@each_kind
def test_opcheck(kind, activation, layout, device):
    problem = of_kind(kind, "strided")
    operator = operator_of(problem)
    x, w, bias, scale, residual = leaves(*make(problem, device, torch.float32, layout))
    keywords = {"scale": scale, "residual": residual, "activation": activation}
    torch.library.opcheck(operator.default, (x, w, bias, *problem.geometry), keywords)
    torch.library.opcheck(operator.int, (x, w, bias, *problem.geometry))


@each_kind
def test_transforms(kind, device):
    problem = of_kind(kind, "dense")
    tensors = make(problem, device, torch.float64)

    def ours(*t):
        return fused(*t, problem, "silu", True)

    def theirs(*t):
        return composed(*t, problem, "silu", True)

    tangents = tuple(t.cos() for t in tensors)
    for actual, expected in zip(
        jvp(ours, tensors, tangents), jvp(theirs, tensors, tangents), strict=True
    ):
        assert_equal(actual, expected, **tolerances(torch.float64))
    stacked = [torch.stack([t, t.sin()]) for t in tensors]
    assert_equal(vmap(ours)(*stacked), vmap(theirs)(*stacked), **tolerances(torch.float64))


@pytest.mark.parametrize("dtype", HALF)
@each_kind
def test_autocast_rounds_all_but_bias_and_scale(kind, dtype, device):
    problem = of_kind(kind, "dense")
    tensors = make(problem, device, torch.float32)
    with torch.autocast(device, dtype):
        actual = fused(*tensors, problem, "relu", False)
    x, w, bias, scale, residual = tensors
    rounded = x.to(dtype), w.to(dtype), bias, scale, residual.to(dtype)
    expected = composed(*(t.double() for t in rounded), problem, "relu", False)
    assert actual.dtype == dtype
    scale = expected.abs().max().item()
    eps = torch.finfo(dtype).eps
    assert_equal(actual.double(), expected, rtol=4 * eps, atol=4 * eps * scale)


@pytest.mark.parametrize("padding", ["same", "valid", 1, (1, 0)])
@pytest.mark.parametrize("problem", ["dense", "volume_dense"])
def test_the_python_function(problem, padding, device):
    x, w, bias = EVERY_PROBLEM[problem].tensors(device, torch.float64)
    if isinstance(padding, tuple):
        padding = (1, 0, 1)[: w.ndim - 2]
    function = by_weight({2: customconv.conv2d_fused, 3: customconv.conv3d_fused})
    actual = function(x, w, bias, padding=padding, activation="relu")
    expected = F.relu(pytorchs(x, w, bias, padding=padding))
    assert_equal(actual, expected, **tolerances(torch.float64))
    operator = by_weight(FUSED)
    plain = operator(x, w, bias, 1, padding, activation="relu") if padding == 1 else actual
    assert_equal(plain, actual)


def test_the_python_function_of_transposed_convolutions_of_volumes(device):
    problem = EVERY_TRANSPOSED_PROBLEM["volume_strided"]
    x, w, bias = problem.tensors(device, torch.float64)
    actual = customconv.conv_transpose3d_fused(x, w, bias, *problem.geometry, activation="relu")
    expected = F.relu(F.conv_transpose3d(x, w, bias, *problem.geometry))
    assert_equal(actual, expected, **tolerances(torch.float64))


def test_the_python_function_of_transposed_convolutions(device):
    problem = TRANSPOSED_PROBLEMS["strided"]
    x, w, bias = problem.tensors(device, torch.float64)
    actual = customconv.conv_transpose2d_fused(x, w, bias, *problem.geometry, activation="relu")
    expected = F.relu(F.conv_transpose2d(x, w, bias, *problem.geometry))
    assert_equal(actual, expected, **tolerances(torch.float64))
    # Plain integers, and any number that PyTorch takes for one, which older releases do not.
    expected = F.silu(F.conv_transpose2d(x, w, bias, 2))
    for two in (2, torch.tensor(2)):
        try:
            F.conv_transpose2d(x, w, bias, two)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                customconv.conv_transpose2d_fused(x, w, bias, two, activation="silu")
            continue
        actual = customconv.conv_transpose2d_fused(x, w, bias, two, activation="silu")
        assert_equal(actual, expected, **tolerances(torch.float64))
    assert_equal(conv_transpose2d_fused(x, w, bias, 2, activation="silu"), actual)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"scale": (5,)}, RuntimeError, r"expected a scale of shape \[6\].*got \[5\]"),
        ({"scale": (1, 6)}, RuntimeError, r"expected a scale of shape \[6\]"),
        ({"residual": (6,)}, RuntimeError, r"expected a residual of the output's shape"),
        ({"activation": "tanh"}, ValueError, "unknown activation 'tanh': expected one of 'none'"),
        ({"algorithm": "fast"}, ValueError, "unknown algorithm 'fast'"),
    ],
)
@each_flat_kind
def test_errors_say_what_was_expected(kind, keywords, error, words, device):
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)
    name = "conv2d_fused"
    if kind == "transposed":
        name, w = "conv_transpose2d_fused", w.transpose(0, 1).contiguous()
    keywords = {
        k: torch.ones(v, device=device) if isinstance(v, tuple) else v for k, v in keywords.items()
    }
    words = f"^{name}: {words}" if error is RuntimeError else words
    with pytest.raises(error, match=words):
        getattr(customconv, name)(x, w, bias, 1, 1, **keywords)


@each_kind
def test_gradients_of_vectors_in_float32(kind, device):
    problem = of_kind(kind, "dense")
    x, w, bias, scale, residual = make(problem, device, torch.float32)
    tensors = leaves(x.bfloat16(), w.bfloat16(), bias, scale, residual.bfloat16())
    wide = [t.detach().double().requires_grad_() for t in tensors]
    for vectors in (slice(2, 4), slice(2, 3)):
        at = [0, 1, *range(5)[vectors]]
        arguments = [t if i in at or i == 4 else None for i, t in enumerate(tensors)]
        exact = [t if i in at or i == 4 else None for i, t in enumerate(wide)]
        ours = fused(*arguments, problem, "relu", False)
        expected = composed(*exact, problem, "relu", False)
        direction = torch.randn_like(expected)
        found = torch.autograd.grad(ours, [tensors[i] for i in at], direction.bfloat16())
        wanted = torch.autograd.grad(expected, [wide[i] for i in at], direction)
        for i, gradient, theirs in zip(at, found, wanted, strict=True):
            assert gradient.dtype == tensors[i].dtype
            error = (gradient.double() - theirs).abs().max() / theirs.abs().max()
            assert error < 0.03


@pytest.mark.parametrize("name", ["conv2d_fused", "conv_transpose2d_fused"])
def test_types_must_agree(name, device):
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)
    w = w.transpose(0, 1) if "transpose" in name else w
    convolve = getattr(customconv, name)
    scale = torch.ones(6, device=device, dtype=torch.float64)
    expected = rf"{name}: expected a scale of type Float on .* but got Double"
    with pytest.raises(RuntimeError, match=expected):
        convolve(x, w, bias, 1, 1, scale=scale)
    with FakeTensorMode() as mode:  # which says so before anything is compiled
        fakes = [mode.from_tensor(t) for t in (x, w, bias, scale)]
        with pytest.raises(RuntimeError, match=rf"{name}: .*a scale of type torch.float32 on .*64"):
            convolve(*fakes[:3], 1, 1, scale=fakes[3])


@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
@each_dims
def test_empty_batches(dims, name, device):
    image = (3, 9, 8)[-dims:]
    x = torch.empty(0, 4, *image, device=device)
    w = torch.ones(6, 4, *[3] * dims, device=device)
    w = w.transpose(0, 1) if "transpose" in name else w
    residual = torch.empty(0, 6, *image, device=device)
    function = getattr(customconv, f"{name}{dims}d_fused")
    y = function(x, w, None, 1, 1, residual=residual, activation="relu")
    assert y.shape == (0, 6, *image)


def test_the_planner_weighs_what_is_left_to_pytorch():
    arguments = {"dtype": "float16", "input": (32, 64, 56, 56), "weight": (64, 64, 3, 3),
                 "padding": (1, 1)}  # fmt: skip
    bare = {c.family: c.plan for c in _bind.candidates(_bind.ConvProblem(**arguments))}
    asked = _bind.ConvProblem(**arguments, epilogue_passes=2, residual=True)
    for candidate in _bind.candidates(asked):
        if candidate.plan is None:
            continue
        fuses = candidate.plan.fuses
        assert fuses == (candidate.family == "implicit_gemm")
        extra = candidate.plan.predicted_ms - bare[candidate.family].predicted_ms
        moved = 2 * 2 * 32 * 64 * 56 * 56 * 2 / 3352e9 * 1e3  # two passes, read and written
        assert extra >= 0 if fuses else extra > moved
    assert "epilogue (2 passes)" in str(asked)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_the_planner_knows_which_kernels_of_input_gradients_do_the_rest(layout):
    """Those of the main loop, but no residual where phases are stored apart."""
    arguments = {"op": "dgrad", "dtype": "float16", "weight": (64, 64, 3, 3), "padding": (1, 1),
                 "channels_last": layout is torch.channels_last}  # fmt: skip
    for stride, residual in itertools.product((1, 2), (False, True)):
        problem = _bind.ConvProblem(
            **arguments, input=(8, 64, 56, 56), stride=(stride, stride), bias=True,
            epilogue_passes=2 + residual, residual=residual,
        )  # fmt: skip
        plans = [plan for plan in _bind.tunable(problem)[1] if plan.fuses]
        assert all(plan.family == "implicit_gemm" for plan in plans)
        apart = stride > 1 and (layout is torch.contiguous_format)
        assert bool(plans) is not (apart and residual)
        if residual:
            assert not any(plan.fields["joined"] for plan in plans)
        assert _bind.plan(problem).fuses or (apart and residual)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("end", ["no backward pass", "a graph that is kept"])
@pytest.mark.parametrize("operators", [FUSED, FUSED_TRANSPOSE], ids=["plain", "transposed"])
@each_dims
def test_the_graph_ends_with_its_output(dims, operators, activation, end, device):
    """A node that owned its own output would keep both, and all before them, in memory."""

    class Mark:
        pass

    shapes = (1, 2, *[5] * dims), (2, 2, *[3] * dims)
    x, w = (torch.randn(shape, device=device) for shape in shapes)
    output = operators[dims](x, w.requires_grad_(), activation=activation)
    output.grad_fn.metadata["mark"] = mark = Mark()
    alive = weakref.ref(mark)
    if end != "no backward pass":
        output.sum().backward(retain_graph=True)
    del output, mark
    gc.collect()
    assert alive() is None
