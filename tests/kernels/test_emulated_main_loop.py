"""The main loop of `implicit_gemm` run on the CPU, in TF32 and float32.

A GPU runs all plans of more problems (`test_variants.py`, `test_strict_float32.py`). Here are some
of each kind, which take the kernels' ways through copies, barriers and clusters.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import emulation_build as build
import pytest
import torch
from cases import Case, Tensors, case, make_integers, output_shape, place_all
from compute import by_pytorch, exact, spoil
from emulated import Emulated, Plan
from reference import LAYOUTS, Problem, assert_equal, assert_same_kinds, norm_error
from torch import Tensor

pytestmark = pytest.mark.skipif(build.toolkit() is None, reason="no CUDA toolkit for its headers")

PASSES = {True: ("fprop", "dgrad"), False: ("fprop", "dgrad", "wgrad")}  # of TF32, and strict ones
KINDS = [
    pytest.param(op, tf32, id=f"{op}-{'tf32' if tf32 else 'strict'}")
    for tf32, ops in PASSES.items()
    for op in ops
]
MOST_PLANS = 12  # of a problem, in each layout
MOST_ERROR = {True: 1e-3, False: 2e-7}  # of operands that are rounded to TF32, and of others

PROBLEMS = {
    "3x3": case((2, 40, 9, 8), (72, 40, 3, 3), padding=1),
    "pointwise": case((2, 64, 6, 7), (70, 64, 1, 1)),
    "strided": case((1, 24, 11, 13), (64, 24, 3, 3), stride=2, padding=1),
    "dilated": case((1, 33, 10, 9), (33, 33, 3, 3), padding=2, dilation=2),
    "few_channels": case((1, 3, 14, 15), (32, 3, 5, 5), stride=2, padding=2),
    "few_dilated": case((1, 3, 12, 13), (32, 3, 3, 3), padding=(1, 2), dilation=(1, 2)),
    "few_in_small_images": case((9, 3, 14, 16), (24, 3, 3, 3), stride=2, padding=1, dilation=2),
    "eight_channels": case((2, 8, 9, 7), (16, 8, 3, 3), padding=1),
    "patches": case((1, 3, 12, 12), (32, 3, 4, 4), stride=4),
    "groups": case((1, 64, 6, 6), (128, 32, 3, 3), padding=1, groups=2),
    "planes": case((2, 20, 12, 16), (40, 20, 3, 3), padding=1),
    "pointwise_planes": case((3, 48, 8, 8), (130, 48, 1, 1)),
    "strips": case((1, 12, 9, 72), (16, 12, 3, 3), padding=1),
    "many_images": case((40, 8, 5, 5), (16, 8, 3, 3), padding=1),
    "wide": case((1, 4, 6, 260), (8, 4, 3, 3), stride=(2, 1), padding=(1, 2)),
    "wide_planes": case((1, 16, 1, 8400), (24, 16, 1, 1)),
    "many_terms": case((1, 520, 5, 5), (64, 520, 3, 3), padding=1),
    # All pixels of the output are of padding.
    "no_tap_meets": case((2, 40, 1, 9), (24, 40, 1, 3), stride=(3, 1), padding=1),
}  # fmt: skip
# What an axis has tells it from the others.
VOLUMES = {
    "3x3x3": case((2, 12, 3, 5, 6), (20, 12, 3, 3, 3), padding=1),
    "2x3x1": case((1, 8, 5, 4, 6), (16, 8, 2, 3, 1), padding=(0, 2, 1)),
    "3x1x5": case((2, 20, 4, 3, 9), (24, 20, 3, 1, 5), padding=(1, 0, 2), dilation=(2, 1, 1)),
    "causal": case((1, 40, 5, 4, 5), (16, 40, 3, 3, 3), padding=(0, 1, 1)),
    "one_slice": case((2, 16, 1, 6, 5), (16, 16, 3, 3, 3), padding=1),
    "groups": case((1, 64, 3, 4, 4), (64, 32, 2, 2, 2), groups=2),
    "many_terms": case((1, 136, 3, 3, 3), (64, 136, 3, 3, 3), padding=1),
    # Most slices of the filter meet none of the input, at times all of them.
    "much_padding": case(
        (1, 12, 2, 12, 12), (20, 12, 3, 3, 3), padding=(4, 1, 1), dilation=(2, 1, 1)
    ),
    "thin_slices": case((3, 8, 4, 3, 5), (16, 8, 3, 3, 3), padding=(2, 1, 1)),
}  # fmt: skip
STRIDED_VOLUMES = {  # whose input gradients the main loop does not compute
    "strided": case((2, 16, 5, 7, 6), (24, 16, 3, 3, 3), stride=(2, 1, 2), padding=1),
    "strided_depth": case((1, 8, 7, 3, 4), (16, 8, 3, 1, 1), stride=(3, 1, 1), padding=(2, 0, 0)),
}  # fmt: skip


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.built(tmp_path_factory, "main_loop")


def some(plans: list[Plan], seed: int) -> list[Plan]:
    """Plans of different kinds, with sums that are split or not."""
    random.Random(seed).shuffle(plans)
    kinds = {(plan.kind, plan.splits > 1): plan for plan in plans}
    return list(kinds.values())[:MOST_PLANS]


def results(
    main_loop: Emulated, op: str, problem: Case, values: Tensors, most: int = MOST_PLANS
) -> Iterator[tuple[Tensor, str]]:
    """What plans compute in both layouts, at most so many in each, and the words of a failure."""
    for seed, layout in enumerate(LAYOUTS):
        t = place_all(problem, values, "cpu", torch.float32, layout)
        plans = main_loop.plans(op, problem, t)
        assert plans or (op == "wgrad" and problem.groups > 1)
        for plan in some(plans, seed)[:most]:
            yield main_loop.compute(op, problem, t, plan), f"{op}, {layout}, {plan}"


@pytest.mark.parametrize(("op", "tf32"), KINDS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_integers_are_exact(library: Path, name: str, op: str, tf32: bool):
    problem = PROBLEMS[name]
    values = make_integers(problem)
    values = Tensors(values.x, values.w, None, values.dy)
    expected = by_pytorch(op, problem, values).float()
    for actual, what in results(Emulated(library, tf32=tf32), op, problem, values):
        assert_equal(actual, expected, what=what)


def normal(problem: Problem) -> Tensors:
    torch.manual_seed(3)
    dy = torch.randn(output_shape(problem))
    return Tensors(torch.randn(problem.input), torch.randn(problem.weight), None, dy)


@pytest.mark.parametrize(("op", "tf32"), KINDS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_errors_are_those_of_the_precision(library: Path, name: str, op: str, tf32: bool):
    """Though the emulation does not cut what it adds, as tensor cores do."""
    problem = PROBLEMS[name]
    values = normal(problem)
    expected = exact(op, problem, values)
    most = max(MOST_ERROR[tf32], 2 * norm_error(by_pytorch(op, problem, values), expected))
    for actual, what in results(Emulated(library, tf32=tf32), op, problem, values):
        assert norm_error(actual, expected) <= most, what


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
@pytest.mark.parametrize("name", [*VOLUMES, *STRIDED_VOLUMES])
def test_volumes_of_integers_are_exact(library: Path, name: str, op: str, tf32: bool):
    if op == "dgrad" and name in STRIDED_VOLUMES:
        pytest.skip("the main loop computes no strided input gradients of volumes")
    problem = {**VOLUMES, **STRIDED_VOLUMES}[name]
    values = make_integers(problem)
    values = Tensors(values.x, values.w, None, values.dy)
    expected = by_pytorch(op, problem, values).float()
    for actual, what in results(Emulated(library, tf32=tf32), op, problem, values):
        assert_equal(actual, expected, what=what)


@pytest.mark.parametrize("tf32", [True, False])
def test_a_volume_has_the_same_bits_in_every_batch(library: Path, tf32: bool):
    """Also where tiles have positions of two; sums of over 32 steps are promoted in between."""
    whole = case((3, 40, 3, 5, 5), (16, 40, 3, 3, 3), padding=1)
    one = replace(whole, input=(1, *whole.input[1:]))
    values = normal(whole)
    main_loop = Emulated(library, tf32=tf32, batch_invariant=True)

    def by_kind(problem: Case, x: Tensor) -> dict[str, Tensor]:
        own = Tensors(x, values.w, None, values.dy[: len(x)])
        t = place_all(problem, own, "cpu", torch.float32, torch.channels_last)
        plans = [plan for plan in main_loop.plans("fprop", problem, t) if plan.splits == 1]
        return {
            re.search(r"tile=\S+ row=\S+", plan.kind)[0]: main_loop.compute(
                "fprop", problem, t, plan
            )
            for plan in plans
        }

    batch = by_kind(whole, values.x)
    alone = [by_kind(one, values.x[i : i + 1]) for i in range(3)]
    shared = set(batch).intersection(*alone)
    assert len(shared) > 1
    for kind in shared:
        assert torch.equal(batch[kind], torch.cat([each[kind] for each in alone])), kind


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("name", PROBLEMS)
def test_parts_of_statistics_are_of_the_output(library: Path, name: str, tf32: bool):
    """Each pixel counts once, and positions that are no pixels do not."""
    problem = PROBLEMS[name]
    values = normal(problem)
    main_loop = Emulated(library, tf32=tf32)
    left = 0
    for seed, layout in enumerate(LAYOUTS):
        t = place_all(problem, values, "cpu", torch.float32, layout)
        for plan in some(main_loop.plans("fprop", problem, t), seed):
            parts = main_loop.statistics(problem, t, plan)
            if parts is None:
                continue
            left += 1
            output = main_loop.compute("fprop", problem, t, plan, parts).double()
            counts = parts.counts.double()[:, None]
            means, squares = parts.moments.double().unbind(2)
            assert counts.sum() == output[:, 0].numel(), (layout, plan)
            mean = (counts * means).sum(0) / counts.sum()
            variance = (squares + counts * (means - mean).square()).sum(0) / counts.sum()
            expected = torch.var_mean(output, (0, 2, 3), correction=0)
            torch.testing.assert_close((variance, mean), expected, rtol=1e-5, atol=1e-5)
    assert left > 0


@pytest.mark.parametrize("where", ["image", "filter"])
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
@pytest.mark.parametrize("name", VOLUMES)
def test_infinity_in_volumes_is_as_in_float32(library: Path, name: str, op: str, where: str):
    """But for taps that a tile leaves out, as they meet padding alone: zeros times infinity."""
    if where == "filter" and name in ("much_padding", "thin_slices"):
        pytest.skip("tiles leave out such taps")
    problem = VOLUMES[name]
    values = normal(problem)
    spoil(op, values, where, torch.inf, 0)
    expected = exact(op, problem, values).float()
    for actual, what in results(Emulated(library, tf32=False), op, problem, values, most=2):
        assert_same_kinds(actual, expected, what=what)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("where", ["image", "filter", "both"])
@pytest.mark.parametrize("op", PASSES[False])
@pytest.mark.parametrize(
    "name", ["3x3", "pointwise", "strided", "patches", "groups", "planes", "strips"]
)
def test_what_is_not_finite_is_as_in_float32(
    library: Path, name: str, op: str, where: str, value: float
):
    """Infinity times a low half of zero would not be a number."""
    problem = PROBLEMS[name]
    values = normal(problem)
    spoil(op, values, where, value, 0)
    expected = exact(op, problem, values).float()
    for actual, what in results(Emulated(library, tf32=False), op, problem, values, most=2):
        assert_same_kinds(actual, expected, what=what)
