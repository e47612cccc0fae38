"""How sums are kept: in float32 for 16-bit numbers, in TF32 only where PyTorch's switch allows."""

from __future__ import annotations

import pytest
import torch
from cases import Case, Tensors, output_shape
from compute import PASSES, as_allowed, by_pytorch, compute, exact, has_plan, plan_of
from reference import (
    ALL_FAMILIES,
    LAYOUTS,
    assert_close_to,
    float32_precision,
    relative_error,
    round_to_tf32,
)
from torch import Tensor

pytestmark = pytest.mark.gpu

# Each pass's sum is long: over 4608, 4608 and 65536 products of dense problems, 1152, 1152 and
# 65536 of groups, 961, 961 and 65536 of single channels.
LONG = {
    "dense": {
        "fprop": Case((2, 512, 20, 20), (48, 512, 3, 3), padding=(1, 1)),
        "dgrad": Case((2, 48, 20, 20), (512, 48, 3, 3), padding=(1, 1)),
        "wgrad": Case((16, 24, 64, 64), (40, 24, 3, 3), padding=(1, 1)),
    },
    "grouped": {
        "fprop": Case((2, 512, 20, 20), (48, 128, 3, 3), padding=(1, 1), groups=4),
        "dgrad": Case((2, 48, 20, 20), (512, 12, 3, 3), padding=(1, 1), groups=4),
        "wgrad": Case((16, 24, 64, 64), (40, 6, 3, 3), padding=(1, 1), groups=4),
    },
    "depthwise": {
        "fprop": Case((2, 24, 40, 40), (24, 1, 31, 31), padding=(15, 15), groups=24),
        "dgrad": Case((2, 24, 40, 40), (24, 1, 31, 31), padding=(15, 15), groups=24),
        "wgrad": Case((16, 24, 64, 64), (24, 1, 3, 3), padding=(1, 1), groups=24),
    },
}
F64 = torch.float64


def summed(dtype: torch.dtype) -> pytest.MarkDecorator:
    """By every family, each pass of the first kind of problem that it takes."""
    runs = []
    for family in ALL_FAMILIES:
        for op in PASSES:
            kinds = [kind for kind in LONG if has_plan(family, op, LONG[kind][op], dtype)]
            runs += [(family, op, kind) for kind in kinds[:1]]
    return pytest.mark.parametrize(("family", "op", "kind"), runs)


every_sum = summed(torch.float32)
every_16_bit_sum = summed(torch.float16)
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])


def tensors(
    case: Case, dtype: torch.dtype, layout: torch.memory_format, *, positive: bool = False
) -> Tensors:
    def make(shape: tuple[int, ...]) -> Tensor:
        values = (torch.rand if positive else torch.randn)(shape, device="cuda")
        return values.to(dtype).to(memory_format=layout)

    return Tensors(make(case.input), make(case.weight), None, make(output_shape(case)))


def root_mean_square(t: Tensor) -> float:
    return t.double().square().mean().sqrt().item()


@every_layout
@every_16_bit_sum
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_sums_are_kept_in_float32(family, op, kind, dtype, layout):
    # Of one sign, so that the sum outgrows its terms: in 16 bits it would soon stand still.
    case = LONG[kind][op]
    t = tensors(case, dtype, layout, positive=True)
    plan_of(op, family, case, t)
    expected = exact(op, case, t)
    error = (compute(op, family, case, t).double() - expected).abs() / expected
    # Half of it is the rounding of the result.
    assert error.max() < torch.finfo(dtype).eps, f"off by {error.max():.3g} of the value"


@every_layout
@every_sum
def test_float32_is_as_accurate_as_pytorchs(family, op, kind, layout):
    case = LONG[kind][op]
    t = tensors(case, torch.float32, layout)
    expected = exact(op, case, t)
    with float32_precision("ieee"):
        plan_of(op, family, case, t)
        actual, pytorch = compute(op, family, case, t), by_pytorch(op, case, t)
    error, pytorchs = (root_mean_square(y - expected) for y in (actual, pytorch))
    rounding = torch.finfo(torch.float32).eps / 2 * root_mean_square(expected)
    assert error <= 2 * pytorchs + rounding, f"{error / pytorchs:.3g} times PyTorch's error"
    # In TF32 it would be ten times this.
    assert relative_error(actual, expected) < 5e-5


@every_layout
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
@pytest.mark.parametrize("family", ["tiled"])
def test_many_taps_are_summed_in_parts(family, op, layout):
    """961 terms of one sign: added one after the other they are off by 7 roundings, here by 1.4."""
    case = LONG["depthwise"][op]
    t = tensors(case, torch.float32, layout, positive=True)
    plan_of(op, family, case, t)
    expected = exact(op, case, t)
    roundings = (compute(op, family, case, t) / expected - 1) / (torch.finfo(torch.float32).eps / 2)
    assert root_mean_square(roundings) < 3


@every_layout
def test_tf32_on_tensor_cores_is_that_of_rounded_operands(layout):
    case = LONG["dense"]["fprop"]
    t = tensors(case, torch.float32, layout)
    with float32_precision("tf32"):
        plan_of("fprop", "implicit_gemm", case, t)
        tf32 = compute("fprop", "implicit_gemm", case, t)
    rounded = Tensors(round_to_tf32(t.x), round_to_tf32(t.w), None, t.dy)
    by_rounded = exact("fprop", case, rounded).float()
    assert_close_to(tf32, exact("fprop", case, t), by_rounded, factor=1.2, what="TF32")


@summed(F64)
def test_float64_is_summed_in_float64(family, op, kind):
    case = LONG[kind][op]
    t = tensors(case, F64, torch.contiguous_format)
    plan_of(op, family, case, t)
    assert relative_error(compute(op, family, case, t), exact(op, case, t)) < 1e-13


@every_layout
@every_sum
def test_tf32_is_used_only_where_allowed(family, op, kind, layout):
    case = LONG[kind][op]
    t = tensors(case, torch.float32, layout)
    with float32_precision("ieee"):
        ieee = compute(op, family, case, t)
    with float32_precision("tf32"):
        tf32 = compute(op, family, case, t)
    if family not in ("im2col", "implicit_gemm"):
        assert torch.equal(ieee, tf32)
        return
    expected = exact(op, case, t)
    rounded = Tensors(round_to_tf32(t.x), round_to_tf32(t.w), None, round_to_tf32(t.dy))
    # The error is that of rounding the operands, which is far over that of the sums.
    assert relative_error(tf32, expected) > 10 * relative_error(ieee, expected)
    assert_close_to(tf32, expected, exact(op, case, rounded).float(), what="TF32")


@every_sum
def test_the_switch_for_matrix_products_changes_nothing(family, op, kind):
    case = LONG[kind][op]
    t = tensors(case, torch.float32, torch.contiguous_format)
    ieee = compute(op, family, case, t)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert torch.equal(compute(op, family, case, t), ieee)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@every_layout
@every_16_bit_sum
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_run_gives_the_same_bits(family, op, kind, dtype, layout):
    with as_allowed(family):
        check_every_run_gives_the_same_bits(family, op, kind, dtype, layout)


def check_every_run_gives_the_same_bits(family, op, kind, dtype, layout):
    case = LONG[kind][op]
    t = tensors(case, dtype, layout)
    first = compute(op, family, case, t)
    assert first.isfinite().all()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for run in range(10):
        # Another place in memory, and other work on the multiprocessors at the same time.
        moved = torch.empty((run + 1) << 12, device="cuda")
        with torch.cuda.stream(side):
            torch.randn(1 << 20, device="cuda")
        again = compute(op, family, case, t)
        assert torch.equal(first, again), f"run {run} differs"
        del moved
