"""Every plan that the planner weighs for a problem computes it, not only the one that it takes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from cases import Case, Tensors, case, make_integers, place_all
from compute import (
    as_allowed,
    by_pytorch,
    compute,
    compute_fused,
    forced,
    fused_by_pytorch,
    poison,
    result_bytes,
)
from every_plan import check_exact, check_fused, check_reach
from reference import LAYOUTS, TransposedProblem, assert_equal

import customconv
from customconv import _bind
from customconv.explain import variants

# Between them they reach every kernel, shape of tile, way to fetch pixels and number of splits.
PROBLEMS = {
    "3x3": case((3, 72, 28, 32), (136, 72, 3, 3), padding=(1, 1)),
    "single": case((1, 24, 20, 24), (40, 24, 3, 3), padding=(1, 1)),
    "wide": case((2, 24, 21, 300), (70, 24, 3, 3), padding=(1, 1)),
    "strided": case((2, 40, 31, 48), (72, 40, 3, 5), stride=(2, 3), padding=(1, 2)),
    "dilated": case((2, 24, 40, 40), (64, 24, 3, 3), padding=(5, 7), dilation=(5, 7)),
    "wide_odd": case((2, 18, 21, 341), (40, 18, 5, 10), stride=(2, 2)),
    "small_images": case((21, 72, 7, 7), (136, 72, 3, 3), padding=(1, 1)),
    "odd_images": case((5, 19, 17, 23), (70, 19, 3, 2), padding=(1, 0)),
    "pointwise": case((5, 80, 14, 14), (200, 80, 1, 1)),
    "pointwise_odd": case((5, 37, 13, 21), (130, 37, 1, 1)),
    "pointwise_rows": case((7, 72, 8, 12), (136, 72, 1, 1)),
    "pointwise_single": case((5, 1, 8, 16), (40, 1, 1, 1)),
    "pointwise_pixel": case((1, 37, 1, 1), (40, 37, 1, 1)),
    "pointwise_tiny": case((41, 24, 4, 4), (70, 24, 1, 1)),
    "few_channels_far": case((2, 3, 45, 224), (64, 3, 11, 11), stride=(4, 4), padding=(2, 2)),
    "few_channels": case((3, 3, 33, 40), (64, 3, 7, 7), stride=(2, 2), padding=(3, 3)),
    # Few channels, at every stride of theirs.
    "three_channels": case((2, 3, 21, 38), (40, 3, 3, 3), padding=(1, 1)),
    "five_channels": case((2, 5, 19, 27), (72, 5, 2, 5), stride=(1, 2), padding=(1, 3)),
    "one_channel": case((3, 1, 40, 61), (40, 1, 5, 4), stride=(2, 3), padding=(1, 2)),
    "twelve_channels": case((1, 12, 17, 30), (70, 12, 3, 3), stride=(2, 2)),
    "row_of_two_channels": case((4, 2, 1, 700), (48, 2, 1, 9), stride=(1, 4), padding=(0, 3)),
    # Strips that begin before the image, some of them by less than they are wide.
    "padding_of_strips": case((1, 2, 56, 56), (60, 2, 9, 11), padding=(16, 47), dilation=(3, 5)),
    "long_strides": case((2, 40, 33, 47), (72, 40, 10, 9), stride=(10, 9)),
    "three_channels_dilated": case((2, 3, 20, 31), (40, 3, 3, 3), padding=(1, 2), dilation=(1, 2)),
    # Several tiles for each thread block, whose weights may stay in shared memory.
    "many_tiles": case((24, 24, 60, 70), (40, 24, 3, 3), padding=(1, 1)),
    "many_strided_tiles": case((24, 16, 121, 141), (40, 16, 3, 3), stride=(2, 2)),
    "many_pointwise_tiles": case((24, 136, 60, 70), (64, 136, 1, 1)),
    # Long sums of few tiles, whose steps thread blocks share.
    "many_terms": case((2, 520, 20, 24), (136, 520, 3, 3), padding=(1, 1)),
    "many_odd_terms": case((1, 522, 17, 23), (72, 522, 3, 3), padding=(1, 1)),
}
# The same of wide groups, but for few channels. Groups have as many tiles as share pixels, or a
# number that does not divide by that, or tiles of 32 channels alone.
GROUPED = {
    "3x3": case((2, 256, 14, 16), (512, 128, 3, 3), padding=(1, 1), groups=2),
    "3x3_of_64": case((2, 192, 12, 24), (192, 64, 3, 3), padding=(1, 1), groups=3),
    "3x3_to_32": case((1, 192, 9, 11), (96, 64, 3, 3), padding=(1, 1), groups=3),
    "3x3_to_96": case((1, 128, 9, 12), (192, 64, 3, 3), padding=(1, 1), groups=2),
    "single": case((1, 128, 20, 24), (128, 64, 3, 3), padding=(1, 1), groups=2),
    "wide": case((1, 128, 5, 300), (128, 64, 3, 2), padding=(1, 0), groups=2),
    "strided": case((1, 128, 31, 48), (256, 64, 3, 5), stride=(2, 3), padding=(1, 2), groups=2),
    "dilated": case((1, 128, 40, 40), (64, 64, 3, 3), padding=(5, 7), dilation=(5, 7), groups=2),
    "wide_odd": case((1, 128, 11, 341), (64, 64, 5, 10), stride=(2, 2), groups=2),
    "small_images": case((21, 256, 7, 7), (256, 64, 3, 3), padding=(1, 1), groups=4),
    "odd_images": case((3, 128, 17, 23), (128, 64, 3, 2), padding=(1, 0), groups=2),
    # Planes so large that tiles of the same output channels follow each other.
    "pages": case((1, 128, 512, 520), (64, 64, 1, 3), padding=(0, 1), groups=2),
    "pointwise": case((5, 256, 14, 14), (256, 128, 1, 1), groups=2),
    "pointwise_odd": case((5, 128, 13, 21), (384, 64, 1, 1), groups=2),
    "pointwise_rows": case((7, 256, 8, 12), (512, 128, 1, 1), groups=2),
    "pointwise_strided": case((2, 128, 9, 15), (128, 64, 1, 1), stride=(2, 2), groups=2),
    "pointwise_pixel": case((1, 128, 1, 1), (64, 64, 1, 1), groups=2),
    "pointwise_tiny": case((41, 192, 4, 4), (192, 64, 1, 1), groups=3),
}
# Input gradients, whose input is the output's gradient.
GRADIENTS = {
    "3x3": case((3, 136, 28, 32), (72, 136, 3, 3), padding=(1, 1)),
    "single": case((1, 40, 20, 24), (24, 40, 3, 3), padding=(1, 1)),
    "wide": case((2, 70, 21, 300), (24, 70, 3, 3)),
    # A tile that only fills a cluster, of a row of channels that is not whole 16 bytes.
    "odd_channels": case((2, 140, 20, 24), (24, 140, 3, 3), padding=(1, 1)),
    "more_padding": case((2, 72, 13, 16), (40, 72, 3, 2), padding=(3, 4)),
    "dilated": case((2, 64, 40, 40), (24, 64, 3, 3), padding=(5, 7), dilation=(5, 7)),
    "odd": case((2, 40, 21, 341), (18, 40, 5, 10), padding=(1, 3)),
    "small_images": case((21, 136, 7, 7), (72, 136, 3, 3), padding=(1, 1)),
    "pointwise": case((5, 200, 14, 14), (80, 200, 1, 1)),
    "pointwise_odd": case((5, 130, 13, 21), (37, 130, 1, 1)),
    "pointwise_rows": case((7, 136, 8, 12), (72, 136, 1, 1)),
    "pointwise_pixel": case((1, 40, 1, 1), (37, 40, 1, 1)),
    "pointwise_tiny": case((41, 70, 4, 4), (24, 70, 1, 1)),
    "few_channels": case((3, 72, 33, 40), (3, 72, 7, 7), padding=(3, 3)),
    "to_few_channels": case((2, 3, 33, 40), (64, 3, 7, 7), padding=(3, 3)),
    "strided": case((2, 72, 31, 48), (40, 72, 3, 3), stride=(2, 2), padding=(1, 1)),
    # Each row of phases begins at another column.
    "strided_5x5": case((3, 72, 28, 29), (136, 72, 5, 5), stride=(2, 2), padding=(2, 2)),
    "strided_7x7": case((2, 24, 33, 40), (64, 24, 7, 7), stride=(2, 2), padding=(3, 3)),
    "strided_rows": case((2, 24, 30, 40), (64, 24, 5, 3), stride=(4, 1), padding=(2, 1)),
    "strided_columns": case((1, 64, 12, 300), (24, 64, 2, 3), stride=(1, 3), padding=(0, 2)),
    "strided_dilated": case(
        (2, 24, 30, 40), (64, 24, 3, 3), stride=(2, 2), padding=(2, 3), dilation=(2, 3)
    ),
    # Phases that may be joined: with as many taps, with more or fewer, along one axis, far away.
    "joined": case((2, 3, 32, 40), (24, 3, 4, 4), stride=(4, 4)),
    "joined_odd": case((2, 5, 37, 41), (40, 5, 7, 9), stride=(4, 3), padding=(2, 5)),
    # Vectors of two rows, also with an epilogue.
    "joined_rows": case((2, 8, 37, 41), (40, 8, 7, 9), stride=(4, 3), padding=(2, 5)),
    "joined_gaps": case((2, 18, 21, 27), (16, 18, 3, 2), stride=(5, 4), padding=(1, 1)),
    "joined_row": case((3, 40, 1, 203), (72, 40, 1, 16), stride=(1, 8), padding=(0, 4)),
    "many_tiles": case((24, 40, 60, 70), (24, 40, 3, 3), padding=(1, 1)),
    "many_terms": case((2, 136, 20, 24), (520, 136, 3, 3), padding=(1, 1)),
    "many_odd_terms": case((1, 72, 17, 23), (522, 72, 3, 3), padding=(1, 1)),
    # All pixels of the output are of padding.
    "no_tap_meets": case((2, 40, 1, 9), (24, 40, 1, 3), stride=(3, 1), padding=(1, 1)),
    "joined_dilated": case(
        (2, 24, 30, 40), (40, 24, 3, 3), stride=(1, 3), padding=(2, 1), dilation=(2, 1)
    ),
    "joined_padding": case((1, 7, 20, 22), (19, 7, 2, 3), stride=(3, 3), padding=(4, 5)),
    "joined_channel": case((3, 1, 28, 36), (40, 1, 5, 5), stride=(3, 2), padding=(2, 2)),
    "strided_pointwise": case((5, 200, 28, 28), (80, 200, 1, 1), stride=(2, 2)),
    "strided_pointwise_odd": case((2, 70, 27, 13), (37, 70, 1, 1), stride=(2, 2)),
    "patches": case((3, 72, 32, 32), (136, 72, 2, 2), stride=(2, 2)),
    "strided_groups": case(
        (2, 128, 15, 24), (256, 64, 3, 3), stride=(2, 2), padding=(1, 1), groups=2
    ),
    "groups": case((2, 512, 14, 16), (256, 256, 3, 3), padding=(1, 1), groups=2),
    "groups_of_32": case((2, 96, 9, 11), (192, 32, 3, 3), padding=(1, 1), groups=3),
    "groups_pointwise": case((5, 256, 14, 14), (256, 128, 1, 1), groups=2),
}
# For NaN: ways to fetch pixels, and splits.
REACHES = {
    name: GROUPED[name]
    for name in ("3x3_of_64", "3x3_to_32", "strided", "small_images", "pointwise_rows",
                 "pointwise_odd", "pointwise_tiny")
}  # fmt: skip


FLAGS = ("apart_h", "apart_w")


def names_of(plans: list[_bind.ConvPlan]) -> set[str]:
    """What plans of the kernels of warps are made of."""
    found: set[str] = set()
    for plan in plans:
        if plan.word == "mma_sync":
            fields = plan.fields
            found |= {fields["kernel"], fields["shape"], fields["fetch"]}
            found |= {flag for flag in FLAGS if fields[flag]}
            found.add("splits" if plan.splits > 1 else "no splits")
    return found


WORDS = _bind.plan_words()["implicit_gemm", "mma_sync"]
EVERY_NAME = {*itertools.chain(*WORDS.values()), *FLAGS, "splits", "no splits"}


def main_loop_plans(op: str, problem: Case, t: Tensors) -> list[_bind.ConvPlan]:
    """The plans of the main loop that the planner weighs for a pass."""
    weighed = variants(t.x, t.w, t.bias, *problem.geometry, op)
    return [plan for plan in weighed if plan.word == "main_loop"]


def check_main_loop(plans: list[_bind.ConvPlan]) -> None:
    """Plans have every tile of each loader, every width of rows and every number of splits."""
    own = [plan for plan in plans if plan.word == "main_loop"]
    fields = [plan.fields for plan in own]
    tiles = {(loader, tile) for loader, tile in _bind.main_loop_tiles() if "3xTF32" not in tile}
    assert {(each["loader"], each["tile"]) for each in fields} == tiles
    shared = {(each["loader"], each["tile"]) for each in fields if each["stream_k"]}
    assert shared == {(loader, tile) for loader, tile in tiles if loader in ("halo", "planes")}
    assert {each["row"] for each in fields} == {32, 64, 128}
    assert {plan.splits for plan in own} == {1, 2, 4, 8}
    assert {each["packing"] for each in fields} == {"none", "pixels", "patches"}
    assert {each["strips"] > 1 for each in fields} == {False, True}


@pytest.mark.gpu
def test_every_plan_is_exact():
    plans = check_exact("implicit_gemm", "fprop", PROBLEMS)
    assert names_of(plans) == EVERY_NAME
    check_main_loop(plans)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("channels", "layout"), [(40, torch.contiguous_format), (41, torch.channels_last)]
)
def test_packed_chunks_wait_for_their_readers(channels, layout):
    """Chunks share a workspace: one is packed when the last has been read, however late."""
    problem = case((9, channels, 300, 290), (48, channels, 3, 3), padding=(1, 1))
    values = make_integers(problem)
    t = place_all(problem, values, "cuda", torch.float16, layout)
    exact = place_all(problem, values, "cuda", torch.float64, layout)
    expected = by_pytorch("fprop", problem, exact).half()
    weighed = main_loop_plans("fprop", problem, t)
    plans = [plan for plan in weighed if 0 < plan.fields["images"] <= 4]
    assert {plan.fields["loader"] for plan in plans} == {"im2col", "halo"}
    matrix = torch.ones(4096, 4096, device="cuda", dtype=torch.float16)
    other = torch.cuda.Stream()
    for plan in plans:
        with torch.cuda.stream(other):  # takes multiprocessors from the kernels' thread blocks
            for _ in range(4):
                matrix @ matrix
        with forced(plan):
            result = compute("fprop", "implicit_gemm", problem, t)
        assert_equal(result, expected, what=str(plan))
    torch.cuda.synchronize()


# Images so large that some rows are computed at a time, or columns of a single row.
LARGE_IMAGES = {
    "3x3": ("fprop", case((2, 21, 1203, 760), (40, 21, 3, 3), padding=(1, 1))),
    "strided": ("fprop", case((1, 21, 1203, 760), (40, 21, 5, 3), stride=(2, 2), padding=(2, 1))),
    "row": ("fprop", case((2, 21, 1, 900_001), (40, 21, 1, 7), stride=(1, 2), padding=(0, 3))),
    "few_channels": ("fprop", case((1, 3, 1801, 1608), (40, 3, 5, 5), padding=(2, 2))),
    "gradient": ("dgrad", case((2, 24, 1203, 760), (21, 24, 3, 3), padding=(1, 1))),
    "strided_gradient": (
        "dgrad", case((2, 40, 1203, 764), (24, 40, 3, 3), stride=(2, 2), padding=(1, 1))
    ),
    "joined_gradient": (
        "dgrad", case((1, 3, 4803, 1520), (40, 3, 8, 8), stride=(4, 4), padding=(2, 2))
    ),
    "strided_row_gradient": (
        "dgrad", case((1, 24, 1, 900_002), (45, 24, 1, 6), stride=(1, 2), padding=(0, 2))
    ),
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", LARGE_IMAGES)
def test_rows_of_large_images_are_computed_apart(name, layout):
    op, problem = LARGE_IMAGES[name]
    values = make_integers(problem)
    t = place_all(problem, values, "cuda", torch.float16, layout)
    exact = place_all(problem, values, "cuda", torch.float64, torch.contiguous_format)
    expected = by_pytorch(op, problem, exact).half()
    plans = [plan for plan in main_loop_plans(op, problem, t) if plan.fields["pixels"] > 0]
    assert plans or (name == "strided_gradient" and layout == torch.channels_last)
    for plan in plans:
        assert plan.workspace_bytes <= 64 << 20, plan
        with forced(plan):
            result = compute(op, "implicit_gemm", problem, t)
        assert_equal(result, expected, what=str(plan))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_rows_that_are_computed_apart_add_their_own_residual(layout):
    _, problem = LARGE_IMAGES["3x3"]
    values = make_integers(problem)
    t = place_all(problem, values, "cuda", torch.float16, layout)
    exact = place_all(problem, values, "cuda", torch.float64, torch.contiguous_format)
    expected = fused_by_pytorch(problem, exact).half()
    plans = [plan for plan in main_loop_plans("fprop", problem, t) if plan.fields["pixels"] > 0]
    assert plans
    for plan in plans:
        with forced(plan):
            result = compute_fused("implicit_gemm", problem, t)
        assert_equal(result, expected, what=str(plan))


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
def test_images_whose_parts_need_all_of_them_are_packed_whole(op):
    problem = case((2, 1030, 129, 130), (1030, 1030, 3, 3), padding=(64, 64), dilation=(64, 64))
    values = make_integers(problem)
    t = place_all(problem, values, "cuda", torch.float16, torch.contiguous_format)
    exact = place_all(problem, values, "cuda", torch.float64, torch.contiguous_format)
    expected = by_pytorch(op, problem, exact).half()
    plans = main_loop_plans(op, problem, t)
    assert {(plan.fields["images"], plan.fields["pixels"]) for plan in plans} == {(1, 0)}
    for plan in plans[:6]:
        with forced(plan):
            result = compute(op, "implicit_gemm", problem, t)
        assert_equal(result, expected, what=str(plan))


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 3])
def test_channels_cut_out_of_channels_last_pixels_are_packed_or_gathered(count):
    """Pixels are further apart than their channels reach, also where there is a single one."""
    problem = case((5, count, 60, 61), (40, count, 3, 3), padding=(1, 1))
    values = make_integers(problem)
    t = place_all(problem, values, "cuda", torch.float16, torch.channels_last)
    pixels = torch.full((5, 60, 61, count + 4), float("nan"), device="cuda", dtype=torch.float16)
    cut = pixels.permute(0, 3, 1, 2)[:, 1 : count + 1]
    cut.copy_(t.x)
    exact = place_all(problem, values, "cuda", torch.float64, torch.channels_last)
    expected = by_pytorch("fprop", problem, exact).half()
    plans = main_loop_plans("fprop", problem, replace(t, x=cut))
    assert plans
    for plan in plans:
        assert plan.fields["images"] > 0 or plan.fields["loader"] == "gather"
        with forced(plan):
            result = torch.ops.customconv.conv2d(
                cut, t.w, t.bias, *problem.geometry, algorithm="implicit_gemm"
            )
        assert_equal(result, expected, what=str(plan))


@pytest.mark.gpu
def test_every_plan_of_groups_is_exact():
    assert names_of(check_exact("implicit_gemm", "fprop", GROUPED)) == EVERY_NAME - {"flat"}


@pytest.mark.gpu
def test_every_plan_of_gradients_is_exact():
    plans = check_exact("implicit_gemm", "dgrad", GRADIENTS)
    assert names_of(plans) == EVERY_NAME
    check_main_loop(plans)
    own = [plan.fields for plan in plans if plan.word == "main_loop"]
    assert {fields["joined"] for fields in own} == {False, True}


@pytest.mark.gpu
@pytest.mark.parametrize("epilogue", ["bias", "all but a residual", "residual", "residual last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_plan_that_fuses_does_the_epilogue_of_a_transposed_convolution(dtype, epilogue):
    """The values of the convolution's input are the residual."""
    plans = []
    has_residual, last = epilogue.startswith("residual"), epilogue == "residual last"
    for name, problem in GRADIENTS.items():
        values = make_integers(problem)
        channels = torch.arange(problem.input[1])
        bias, scale = channels % 7 - 3, channels % 3 + 1
        expected = by_pytorch("dgrad", problem, values)
        options = {}
        if epilogue != "bias":
            expected = expected * scale.view(-1, 1, 1)
            options = {"scale": scale.to("cuda", dtype), "activation": "leaky_relu",
                       "negative_slope": 0.5, "residual_last": last}  # fmt: skip
        expected = expected + bias.view(-1, 1, 1)
        if has_residual and not last:
            expected = expected + values.x
        if options:
            expected = torch.nn.functional.leaky_relu(expected, 0.5)
        expected = (expected + values.x if last else expected).cuda()
        left = TransposedProblem.of(problem).output_padding
        stride, padding, dilation, groups = problem.geometry
        for layout in LAYOUTS:
            t = place_all(problem, values, "cuda", dtype, layout)
            b = bias.to("cuda", dtype)
            if has_residual:
                options["residual"] = t.x
                if problem.stride[1] > 1 and (layout == LAYOUTS[0] or channels.numel() == 1):
                    continue  # phases are stored apart
            for plan in transposed_plans(problem, t, b, left):
                if has_residual and plan.fields["joined"]:
                    continue
                with as_allowed("implicit_gemm"), forced(plan):
                    poison(result_bytes("dgrad", problem, dtype), plan.workspace_bytes)
                    actual = customconv.conv_transpose2d_fused(
                        t.dy, t.w, b, stride, padding, left, groups, dilation, **options,
                        algorithm="implicit_gemm",
                    )  # fmt: skip
                assert_equal(actual, expected.to(dtype), what=f"{name}, {layout}, {plan}")
                plans.append(plan)
    joined = {plan.fields["joined"] for plan in plans}
    assert joined == ({False} if has_residual else {False, True})
    assert {plan.fields["loader"] for plan in plans} == {"im2col", "halo", "planes", "gather"}


def transposed_plans(problem, t, bias, output_padding):
    """Plans that add the bias; of each kind and number of splits, one."""
    with as_allowed("implicit_gemm"):
        plans = variants(
            t.dy, t.w, bias, *problem.geometry, "fprop", transposed=True,
            output_padding=output_padding,
        )  # fmt: skip
    own = [plan for plan in plans if plan.fuses and plan.family == "implicit_gemm"]
    return list({(plan.kind, plan.splits): plan for plan in own}.values())


@pytest.mark.gpu
@pytest.mark.parametrize("problems", [PROBLEMS, GROUPED], ids=["one_group", "groups"])
def test_every_plan_fuses(problems):
    check_fused("implicit_gemm", problems)


@pytest.mark.gpu
def test_nan_reaches_its_own_group_alone():
    check_reach("implicit_gemm", "fprop", "x", REACHES)


@pytest.mark.gpu
def test_nan_reaches_the_gradients_whose_taps_meet_it_alone():
    names = ("single", "small_images", "strided_5x5", "strided_pointwise_odd", "groups_of_32")
    check_reach("implicit_gemm", "dgrad", "dy", {name: GRADIENTS[name] for name in names})


@pytest.mark.gpu
def test_a_forced_plan_is_for_calls_that_name_an_algorithm():
    first, second = PROBLEMS["3x3"], PROBLEMS["pointwise"]
    t = place_all(first, make_integers(first), "cuda", torch.float16, torch.channels_last)
    plans = variants(t.x, t.w, t.bias, *first.geometry, "fprop")
    plan = next(plan for plan in plans if plan.family == "implicit_gemm")
    values = make_integers(second)
    t = place_all(second, values, "cuda", torch.float16, torch.channels_last)
    with forced(plan):
        actual = compute("fprop", "auto", second, t)  # by the forced plan it would be wrong
    assert_equal(actual, by_pytorch("fprop", second, values).to("cuda", torch.float16))
