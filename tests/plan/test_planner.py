"""The planner on thousands of random problems, and on devices that are not here."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from random_problems import (
    DEVICES,
    PASSES,
    accumulator_bytes,
    fields,
    problem,
    random_arguments,
    weight_count,
)
from reference import ALL_FAMILIES, FAMILIES, is_of_3xtf32

from customconv import _bind

COUNT = 4000
COLUMNS_BOUND = 256 << 20
PARTS_BOUND = 128 << 20
LISTED_BYTES = 3 * 8  # of a product's operands
MOST_LISTED = 65535
DENSE = {"input": (8, 64, 56, 56), "weight": (64, 64, 3, 3), "padding": (1, 1)}
THIN = {"weight": (64, 4, 3, 3), "groups": 16, "dtype": "float16"}  # DENSE's, in groups


def problems(seed: int, count: int = COUNT) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [random_arguments(rng) for _ in range(count)]


def by_family(found: list[_bind.Candidate]) -> dict[str, _bind.Candidate]:
    return {candidate.family: candidate for candidate in found}


ROUND_TO_TF32 = {"im2col", "implicit_gemm", "grouped", "col2im"}


def test_sizes_alone_decide_whether_float32_is_rounded():
    """Layout does not; the families of the other precision say why they are not taken."""
    decisions = []
    for arguments in problems(seed=3):
        if arguments["dtype"] != "float32":
            continue
        shared = {k: v for k, v in arguments.items() if k not in ("channels_last", "tf32")}
        both = [
            _bind.computes_in_tf32(problem(**shared, tf32=True, channels_last=last))
            for last in (False, True)
        ]
        assert both[0] == both[1], shared
        decisions.append(both[0])
        assert not _bind.computes_in_tf32(problem(**shared, tf32=False))
        for last in (False, True):
            p = problem(**shared, tf32=True, channels_last=last)
            found = by_family(_bind.candidates(p))
            (taken,) = (f for f, c in found.items() if not c.reason)
            if both[0]:
                assert taken in ROUND_TO_TF32, p
            else:
                assert taken in {"direct", "tiled", "depthwise", "im2col", "implicit_gemm"}, p
            exact = {"im2col", "implicit_gemm"}  # which have plans of either kind
            others = set(ALL_FAMILIES) - ROUND_TO_TF32 if both[0] else ROUND_TO_TF32 - exact
            for family in others:
                if found[family].plan:
                    assert "faster here" in found[family].reason, f"{p}: {family}"
    assert True in decisions
    assert False in decisions


@pytest.mark.parametrize("name", DEVICES)
def test_every_problem_gets_the_best_legal_plan(name):
    device = DEVICES[name]
    limit = 48 << 10 if name.startswith("48") else (99 << 10 if "." in name else 227 << 10)
    for arguments in problems(seed=1):
        p = problem(**arguments)
        found = by_family(_bind.candidates(p, device))
        assert list(found) == [*ALL_FAMILIES, "aten"], p
        plans = {family: c.plan for family, c in found.items() if family in ALL_FAMILIES and c.plan}
        assert plans, f"no plan for {p}"
        chosen = _bind.plan(p, device)
        if name == "H100":
            assert chosen.family in plans, p
            # The families of the precision that was settled on, with their plans in that precision.
            settled = problem(**arguments | {"tf32": _bind.computes_in_tf32(p, device)})
            weighed = [f for f in plans if "faster here" not in found[f].reason]
            assert chosen.predicted_ms == min(
                _bind.plan(settled, device, family).predicted_ms for family in weighed
            ), p
        else:
            expected = "depthwise" if _bind.leaves_no_doubt(p, device) else "aten"
            assert chosen.family == expected, p
        for family, plan in plans.items():
            what = f"{p}: {plan}"
            assert plan.family == family, what
            # Those of direct's sums are along a second axis.
            assert plan.splits <= 65535 or plan.family != "direct", what
            assert 1 <= plan.blocks < (plan.splits if plan.family == "direct" else 1) * 2**31, what
            assert 32 <= plan.threads <= 1024, what
            assert plan.threads % 32 == 0, what
            assert 0 <= plan.shared_bytes <= limit, what
            assert math.isfinite(plan.predicted_ms), what
            assert plan.predicted_ms > 0, what
            assert plan.splits >= 1, what
            cuts_sums = arguments["op"] == "wgrad" or plan.family == "implicit_gemm"
            assert plan.splits == 1 or cuts_sums, what
        for family, candidate in found.items():
            assert bool(candidate.reason) == (family != chosen.family), f"{p}: {family}"


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("channels", [3, 5, 8])
@pytest.mark.parametrize("reach", [300, 23_000, 25_000, 400_000_000])
def test_halos_that_no_integer_holds_are_not_loaded(reach, channels, channels_last):
    p = problem(
        input=(1, channels, 5, 5), weight=(8, channels, 3, 3), padding=(2 * reach, 2 * reach),
        dilation=(reach, reach), dtype="float16", channels_last=channels_last,
    )  # fmt: skip
    plan = by_family(_bind.candidates(p))["implicit_gemm"].plan
    if plan is None:
        assert reach > 1_000_000
        return
    assert 0 < plan.shared_bytes <= 227 << 10
    assert plan.predicted_ms > 1e-9 * p.macs / 1000


# What warps multiply: how they fetch pixels, as the input's layout and sizes ask for.
FETCHES = {
    "channels-last": ({"shared"}, {**DENSE, "channels_last": True}),
    "3x3": ({"odd-taps"}, DENSE),
    "5x5": ({"taps"}, {**DENSE, "weight": (64, 64, 5, 5), "padding": (2, 2)}),
    "strided": ({"elements"}, {**DENSE, "stride": (2, 2)}),
    "dilated": ({"elements"}, {**DENSE, "padding": (2, 2), "dilation": (2, 2)}),
    "1x1": ({"pieces"}, {"input": (8, 64, 56, 56), "weight": (64, 64, 1, 1)}),
    "1x1 of odd rows": ({"pieces"}, {"input": (8, 64, 57, 57), "weight": (64, 64, 1, 1)}),
    "stem": (
        {"flat"},
        {"input": (8, 3, 224, 224), "weight": (64, 3, 7, 7), "stride": (2, 2), "padding": (3, 3)},
    ),
    "channels-last stem": (
        {"flat"},
        {"input": (8, 3, 224, 224), "weight": (64, 3, 7, 7), "stride": (2, 2), "padding": (3, 3),
         "channels_last": True},
    ),
    "7x7 images": (
        {"taps", "odd-taps"},
        {"input": (64, 512, 7, 7), "weight": (512, 512, 3, 3), "padding": (1, 1)},
    ),
    "1x1 of 7x7 images": ({"pieces"}, {"input": (64, 2048, 7, 7), "weight": (512, 2048, 1, 1)}),
}  # fmt: skip


def check_fetch(arguments, fetches, dtype):
    """Warps fetch pixels in one of these ways; on Hopper the main loop has a loader for them."""
    p = problem(**arguments, dtype=dtype, tf32=dtype == "float32")
    plan = by_family(_bind.candidates(p, DEVICES["A100"]))["implicit_gemm"].plan
    assert plan is not None and plan.word == "mma_sync"
    assert plan.fields["fetch"] in fetches, plan
    plan = by_family(_bind.candidates(p))["implicit_gemm"].plan
    assert plan is not None and plan.word == "main_loop"
    loaders = {"im2col", "halo"} | ({"gather"} if arguments["input"][1] < 5 else set())
    if not arguments.get("channels_last"):
        loaders.add("planes")
    assert plan.fields["loader"] in loaders, plan


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", FETCHES)
def test_how_pixels_are_fetched_follows_from_layout_and_sizes(name, dtype):
    fetches, arguments = FETCHES[name]
    check_fetch(arguments, fetches, dtype)


@pytest.mark.parametrize("op", ["fprop", "dgrad"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_channels_last_pixels_are_padded_to_whole_16_bytes(dtype, op):
    def plan_of(channels):
        p = problem(
            input=(64, channels, 35, 35), weight=(channels, channels, 3, 3), padding=(1, 1),
            op=op, dtype=dtype, tf32=True, channels_last=True,
        )  # fmt: skip
        return by_family(_bind.candidates(p))["implicit_gemm"].plan

    for channels in (191, 193):
        plan = plan_of(channels)
        assert plan.word == "main_loop" and plan.fields["images"] > 0, plan
    assert plan_of(192).fields["images"] == 0


@pytest.mark.parametrize(("rows", "dilation"), [(1, 1), (3, 1), (5, 1), (5, 30)])
@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize(("height", "width"), [(1024, 512), (1025, 512), (1600, 512), (700, 1024)])
def test_the_workspace_holds_every_part_of_a_large_image(height, width, stride, rows, dilation):
    """Rows at the top of an image and at its bottom read less of it, but not equally less."""
    channels, reach = 40, (rows - 1) * dilation
    padding = reach // 2
    p = problem(
        input=(2, channels, height, width), weight=(8, channels, rows, rows), dtype="float16",
        padding=(padding, padding), stride=(stride, stride), dilation=(dilation, dilation),
    )  # fmt: skip
    plan = by_family(_bind.candidates(p))["implicit_gemm"].plan
    assert plan is not None
    rows = plan.fields["pixels"]
    assert rows > 0
    outputs = (height + 2 * padding - reach - 1) // stride + 1
    for first in range(0, outputs, rows):
        last = min(first + rows, outputs) - 1
        begin = max(first * stride - padding, 0)
        end = min(last * stride - padding + reach + 1, height)
        assert 2 * channels * width * (end - begin) <= plan.workspace_bytes <= 64 << 20, plan


def test_an_image_whose_parts_need_all_of_it_is_packed_whole():
    p = problem(
        input=(4, 2048, 65, 65), weight=(256, 2048, 3, 3), dtype="float32", tf32=True,
        padding=(36, 36), dilation=(36, 36),
    )  # fmt: skip
    plan = by_family(_bind.candidates(p))["implicit_gemm"].plan
    assert plan is not None and plan.word == "main_loop"
    assert (plan.fields["images"], plan.fields["pixels"]) == (1, 0)
    assert plan.workspace_bytes <= 64 << 20


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", [name for name in FETCHES if "stem" not in name])
def test_wide_groups_are_fetched_as_one_is(name, dtype):
    fetches, arguments = FETCHES[name]
    n, c, *size = arguments["input"]
    k, *filters = arguments["weight"]
    groups = {"input": (n, 2 * c, *size), "weight": (2 * k, *filters), "groups": 2}
    check_fetch(arguments | groups, fetches, dtype)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("outputs", [32, 64, 96, 128, 192, 256, 320])
def test_tiles_are_of_one_group(outputs, taps, channels_last):
    """And so are the weight's channels."""
    for groups, images in itertools.product((2, 8), (1, 8, 64)):
        p = problem(
            input=(images, 128 * groups, 28, 28), weight=(outputs * groups, 128, taps, taps),
            padding=(taps // 2, taps // 2), groups=groups, dtype="float16",
            channels_last=channels_last,
        )  # fmt: skip
        # Tiles of the main loop end with the group; those of warps divide it.
        assert _bind.plan(p, algorithm="implicit_gemm").word == "main_loop"
        plan = by_family(_bind.candidates(p, DEVICES["A100"]))["implicit_gemm"].plan
        if outputs % 64 != 0:
            assert plan is None
            continue
        assert plan is not None and plan.word == "mma_sync"
        assert outputs % int(plan.fields["kernel"].rpartition("-")[2]) == 0, plan
        if plan.splits == 1:
            packs = taps > 1 and not channels_last
            weight = 2 * groups * outputs * 128 * taps * taps
            assert plan.workspace_bytes == (weight if packs else 0), plan


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("taps", [1, 3])
def test_groups_cost_no_others_products(taps, channels_last):
    times = []
    for groups in (8, 4, 2, 1):
        p = problem(
            input=(32, 512, 28, 28), weight=(512, 512 // groups, taps, taps), groups=groups,
            padding=(taps // 2, taps // 2), dtype="float16", channels_last=channels_last,
        )  # fmt: skip
        times.append(_bind.plan(p, algorithm="implicit_gemm").predicted_ms)
    # A 1x1 takes about as long as its bytes, whatever its groups. In NCHW groups of 64 channels
    # have another loader.
    slack = 1 if taps > 1 else 1.05 if channels_last else 1.15
    assert all(fewer <= slack * more for fewer, more in itertools.pairwise(times))


# What other families took though depthwise is faster: a batch, channels, an image, a filter.
DEPTHWISE = {
    "small images": ((32, 960, 7, 7), (3, 3)),
    "large images": ((16, 64, 512, 512), (3, 3)),
    "columns": ((64, 8, 512, 512), (3, 1)),
    "one dimension": ((1, 12288, 1, 16384), (1, 4)),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_layers_are_taken_by_their_family(name, op, dtype, channels_last):
    shape, taps = DEPTHWISE[name]
    p = problem(
        input=shape, weight=(shape[1], 1, *taps), groups=shape[1], op=op, dtype=dtype,
        padding=tuple(t // 2 for t in taps), channels_last=channels_last,
    )  # fmt: skip
    assert _bind.plan(p).family == "depthwise"


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("op", PASSES)
def test_thin_groups_are_taken_by_their_family(op, channels_last):
    p = problem(
        input=(32, 128, 56, 56), weight=(128, 4, 3, 3), groups=32, padding=(1, 1), op=op,
        dtype="float16", channels_last=channels_last,
    )  # fmt: skip
    assert _bind.plan(p).family == "grouped"  # ResNeXt's


@pytest.mark.parametrize(
    ("device", "word"),
    [
        ("H100", "main_loop"),
        ("A100", "mma_sync"),
        ("laptop of 8.6", "mma_sync"),
        ("consumer 12.0", "mma_sync"),
    ],
)
def test_warps_multiply_where_there_are_no_instructions_of_hoppers(device, word):
    p = problem(**DENSE, dtype="float16")
    plan = by_family(_bind.candidates(p, DEVICES[device]))["implicit_gemm"].plan
    assert plan is not None
    assert plan.word == word


def test_what_implicit_gemm_needs_of_a_device():
    p = problem(**DENSE, dtype="float16")
    old = by_family(_bind.candidates(p, _bind.DeviceProperties(capability=(7, 5))))["implicit_gemm"]
    assert (old.plan, old.reason) == (None, "it needs compute capability 8.0")
    small = by_family(_bind.candidates(p, DEVICES["48 KiB of shared memory"]))["implicit_gemm"]
    assert (small.plan, small.reason) == (None, "it needs 96 KiB of shared memory")


def test_strided_input_gradients_need_hoppers_instructions():
    p = problem(**DENSE | {"op": "dgrad", "stride": (2, 2)}, dtype="float16")
    assert by_family(_bind.candidates(p))["implicit_gemm"].plan is not None
    found = by_family(_bind.candidates(p, DEVICES["A100"]))["implicit_gemm"]
    assert (found.plan, found.reason) == (None, "its strided input gradients need Hopper")


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("height", "stride", "taps", "padding"),
    [(227, (4, 4), (11, 11), (2, 2)), (1, (1, 8), (1, 16), (0, 4)), (2403, (5, 3), (3, 3), (1, 0))],
)
def test_input_gradients_of_any_stride_are_implicit_gemms(
    height, stride, taps, padding, channels_last
):
    p = problem(
        input=(8, 3, height, 1601), weight=(64, 3, *taps), op="dgrad", stride=stride,
        padding=padding, dtype="float16", channels_last=channels_last,
    )  # fmt: skip
    plan = by_family(_bind.candidates(p))["implicit_gemm"].plan
    assert plan is not None and plan.word == "main_loop" and plan.fields["joined"]
    assert 0 < plan.workspace_bytes <= 64 << 20, plan


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_weight_gradients_of_wide_groups_are_implicit_gemms(stride, channels_last, dtype):
    p = problem(
        input=(100, 2048, 14, 14), weight=(2048, 64, 3, 3), stride=(stride, stride),
        padding=(1, 1), groups=32, op="wgrad", dtype=dtype, channels_last=channels_last,
        tf32=dtype == "float32",
    )  # fmt: skip
    assert _bind.plan(p).family == "implicit_gemm"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_weight_gradients_of_few_channels_are_implicit_gemms(dtype):
    arguments = {"op": "wgrad", "dtype": dtype, "tf32": dtype == "float32", "channels_last": True}
    plan = _bind.plan(
        problem(
            input=(8, 3, 224, 224), weight=(64, 3, 7, 7), stride=(2, 2), padding=(3, 3), **arguments
        )
    )
    assert plan.label.startswith("wgrad_registers few-")
    odd = problem(input=(8, 3, 225, 225), weight=(64, 3, 7, 7), **arguments)
    assert _bind.plan(odd).family in {"implicit_gemm", "im2col"}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("outputs", [1, 3, 21])
def test_weight_gradients_of_few_outputs_are_implicit_gemms(outputs, dtype):
    p = problem(
        input=(16, 64, 96, 96), weight=(outputs, 64, 3, 3), padding=(1, 1), op="wgrad",
        dtype=dtype, tf32=dtype == "float32", channels_last=True,
    )  # fmt: skip
    assert _bind.plan(p).family == "implicit_gemm"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_boxes_are_not_all_that_is_weighed_of_small_planes(dtype):
    p = problem(
        input=(64, 640, 8, 8), weight=(640, 640, 3, 3), padding=(1, 1), op="wgrad",
        dtype=dtype, tf32=dtype == "float32",
    )  # fmt: skip
    plan = _bind.plan(p)
    assert plan.word == "wgrad_planes"
    assert plan.fields["loader"] != "boxes"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "filters", "name"),
    [
        ((32, 64, 56, 56), (64, 64, 3, 3), "planes-3x3-taps"),
        ((32, 512, 7, 7), (512, 512, 3, 3), "planes-3x3-taps"),
        ((32, 3, 224, 224), (64, 3, 7, 7), "planes-3x64"),
    ],
)
def test_weight_gradients_of_planes(dtype, shape, filters, name):
    p = problem(
        input=shape, weight=filters, padding=(filters[2] // 2,) * 2, op="wgrad", dtype=dtype,
        tf32=dtype == "float32",
    )  # fmt: skip
    plan = _bind.plan(p)
    assert plan.label == f"wgrad_planes {name}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_planes_of_many_strided_taps_are_turned(dtype):
    is_wide = dtype == "float32"  # which has no kernel whose threads turn them
    p = problem(
        input=(8, 32, 79, 341), weight=(32, 32, 5, 10), stride=(2, 2), op="wgrad", dtype=dtype,
        tf32=is_wide,
    )  # fmt: skip
    plan = _bind.plan(p)
    assert plan.family == "implicit_gemm"
    assert (plan.word == "wgrad_planes") == is_wide


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_single_taps_of_small_planes_and_many_channels_are_of_one_class(dtype):
    def plan_of(size):
        p = problem(input=(64, 512, size, size), weight=(2048, 512, 1, 1), op="wgrad", dtype=dtype)
        return by_family(_bind.candidates(p))["implicit_gemm"].plan

    assert plan_of(7).fields["loader"] == "class-runs"
    assert plan_of(8).fields["loader"] != "class-runs"  # which begin alike


def test_planes_past_2_31_elements_are_not_turned():
    def plan_of(height):
        p = problem(
            input=(1, 32, height, 65536), weight=(32, 32, 5, 5), stride=(5, 5), op="wgrad",
            dtype="float16",
        )  # fmt: skip
        return by_family(_bind.candidates(p))["implicit_gemm"].plan

    assert plan_of(32752).word != "wgrad_planes"
    assert plan_of(32768).word == "wgrad_planes"


@pytest.mark.parametrize("channels_last", [False, True])
def test_weight_gradients_on_tensor_cores_need_hoppers_instructions(channels_last):
    arguments = {"op": "wgrad", "dtype": "float16", "channels_last": channels_last}
    p = problem(**DENSE | arguments)
    assert by_family(_bind.candidates(p))["implicit_gemm"].plan is not None
    found = by_family(_bind.candidates(p, DEVICES["A100"]))["implicit_gemm"]
    assert (found.plan, found.reason) == (None, "its weight gradients need Hopper")


def test_narrow_tiles_of_groups_need_hoppers_instructions():
    p = problem(
        input=(8, 64, 56, 56), weight=(64, 32, 3, 3), padding=(1, 1), groups=2, dtype="float32",
        tf32=True,
    )  # fmt: skip
    assert by_family(_bind.candidates(p))["implicit_gemm"].plan is not None
    found = by_family(_bind.candidates(p, DEVICES["A100"]))["implicit_gemm"]
    assert (found.plan, found.reason) == (None, "a group's output channels are no multiple of 64")


def test_what_grouped_needs_of_a_device():
    p = problem(**DENSE | THIN)
    old = by_family(_bind.candidates(p, _bind.DeviceProperties(capability=(7, 5))))["grouped"]
    assert (old.plan, old.reason) == (None, "it needs compute capability 8.0")
    for device in DEVICES.values():
        assert by_family(_bind.candidates(p, device))["grouped"].plan is not None


@pytest.mark.parametrize(
    ("op", "stride", "possible"),
    [("dgrad", 8, True), ("dgrad", 9, False), ("fprop", 9, True), ("wgrad", 9, True)],
)
def test_input_gradients_alone_limit_strides_of_groups(op, stride, possible):
    for strides in ((stride, 1), (1, stride)):
        p = problem(**DENSE | THIN | {"op": op, "stride": strides})
        assert (by_family(_bind.candidates(p))["grouped"].plan is not None) == possible


@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("reach", [2000, 25_000, 400_000_000])
def test_halos_of_groups_that_fit_no_shared_memory(reach, op):
    """The last two have more pixels than 32 bits count."""
    far = {"dilation": (reach, reach), "padding": (reach, reach)}
    found = by_family(_bind.candidates(problem(**DENSE | THIN | far | {"op": op})))["grouped"]
    assert (found.plan, found.reason) == (None, "its halo fits no shared memory")


@pytest.mark.parametrize("op", ["fprop", "wgrad"])
def test_boxes_of_far_strides_and_many_images_fit_shared_memory(op):
    p = problem(
        op=op, dtype="float16", input=(256, 64, 9, 9), weight=(64, 2, 3, 3), stride=(17, 17),
        padding=(1, 1), groups=32,
    )  # fmt: skip
    plans = [plan for plan in _bind.plans(p) if plan.family == "grouped"]
    assert plans
    assert all(0 < plan.shared_bytes <= 227 << 10 for plan in plans)


def sums_in_parts(arguments: dict[str, Any]) -> bool:
    return arguments["op"] == "wgrad" and arguments["dtype"] == "float32" and not arguments["tf32"]


def is_single_product(
    p: _bind.ConvProblem, arguments: dict[str, Any], im2col: _bind.ConvPlan
) -> bool:
    """Whether a weight gradient is one product, that the library stores itself."""
    # Where the output is both layouts at once, images are planes.
    pixels_apart = arguments["channels_last"] and p.output[1] > 1 and math.prod(p.output[2:]) > 1
    one_image = pixels_apart or arguments["input"][0] == 1
    # The last terms of long sums are a product of their own.
    terms = arguments["input"][0] * math.prod(p.output[2:])
    narrow = arguments["dtype"] in ("float16", "bfloat16")
    whole = not narrow or terms <= 1024 or terms % 32 == 0
    in_place = im2col.fields["columns"] == "input"
    return in_place and one_image and whole and not sums_in_parts(arguments)


def test_workspaces_stay_within_their_bounds():
    for arguments in problems(seed=2):
        p = problem(**arguments)
        found = by_family(_bind.candidates(p))
        sums = weight_count(arguments) * accumulator_bytes(arguments)
        if im2col := found["im2col"].plan:
            single = arguments["op"] == "wgrad" and is_single_product(p, arguments, im2col)
            assert not single or im2col.workspace_bytes == 0, p
            weight_sum = sums if arguments["op"] == "wgrad" and not single else 0
            most = COLUMNS_BOUND + weight_sum
            if sums_in_parts(arguments):
                listed = max(MOST_LISTED, arguments["groups"]) * LISTED_BYTES
                most += max(PARTS_BOUND, sums) + listed + 8
            assert weight_sum <= im2col.workspace_bytes <= most, p
            if im2col.fields["columns"] == "workspace":
                assert im2col.workspace_bytes > weight_sum, p
            images, pixels = im2col.fields["images"], im2col.fields["pixels"]
            assert 1 <= images <= arguments["input"][0], p
            rows = arguments["op"] == "dgrad"
            most = arguments["input"][2] if rows else math.prod(p.output[2:])
            assert 1 <= pixels <= most, p
            assert images == 1 or pixels == most, p
        direct = found["direct"].plan
        assert direct is not None
        assert direct.workspace_bytes == (direct.splits * sums if direct.splits > 1 else 0), p
        if tiled := found["tiled"].plan:
            assert tiled.workspace_bytes == 0, p


def test_a_forced_family_is_obeyed_or_says_why_not():
    refused = set()
    for arguments in problems(seed=3):
        p = problem(**arguments)
        found = by_family(_bind.candidates(p))
        for family in ALL_FAMILIES:
            if (plan := found[family].plan) is not None:
                assert fields(_bind.plan(p, algorithm=family)) == fields(plan), p
                continue
            reason = found[family].reason
            refused.add((family, reason))
            expected = f"algorithm '{family}' cannot compute this {arguments['op']}: {reason}"
            with pytest.raises(RuntimeError) as raised:
                _bind.plan(p, algorithm=family)
            assert str(raised.value) == expected
    assert {family for family, _ in refused} >= {"im2col", "tiled"}
    assert all(reason for _, reason in refused)


def test_aten_is_a_choice_of_its_own():
    p = problem(**DENSE)
    plan = _bind.plan(p, algorithm="aten")
    assert (plan.family, plan.workspace_bytes, str(plan)) == ("aten", 0, "aten")
    found = by_family(_bind.candidates(p, algorithm="aten"))
    assert found["aten"].reason == ""
    assert all(found[family].reason == "algorithm 'aten' was asked for" for family in FAMILIES)
    assert found["depthwise"].reason == "a group has more than one input channel"


@pytest.mark.parametrize("name", ["winograd", "", "Direct", "kAten"])
@pytest.mark.parametrize("function", [_bind.plan, _bind.candidates])
def test_an_unknown_algorithm_names_the_known_ones(function, name):
    with pytest.raises(ValueError, match=f"unknown algorithm '{name}'") as raised:
        function(problem(**DENSE), algorithm=name)
    for known in (*ALL_FAMILIES, "auto", "aten"):
        assert f"'{known}'" in str(raised.value)


def test_the_planner_is_a_pure_function():
    arguments = problems(seed=4, count=200)

    def plan_all(_: int) -> list[Any]:
        made = [problem(**a) for a in arguments]
        return [[fields(_bind.plan(p, device)) for device in DEVICES.values()] for p in made]

    expected = plan_all(0)
    assert plan_all(0) == expected
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(plan_all, range(8))) == [expected] * 8


def test_sums_are_cut_by_the_shape_alone():
    cut = {"splits": 0, "chunks": 0}
    for arguments in problems(seed=5):
        p = problem(**arguments | {"op": "wgrad"})
        plans = [by_family(_bind.candidates(p, device)) for device in DEVICES.values()]
        splits = {found["direct"].plan.splits for found in plans}
        assert len(splits) == 1, p
        chunks = {c.name for f in plans if (c := f["im2col"].plan)}
        assert len(chunks) <= 1, p
        cut["splits"] += splits != {1}
        images = arguments["input"][0]
        cut["chunks"] += any(_bind.PlanName(name).fields["images"] < images for name in chunks)
    assert min(cut.values()) > 20, f"too few sums were cut for this test to say much: {cut}"


def problems_of_few_tiles() -> Iterator[_bind.ConvProblem]:
    sizes = itertools.product((1, 8), (256, 2048), (64, 512), (7, 14, 28), (1, 3))
    for images, channels, outputs, size, taps in sizes:
        yield problem(
            input=(images, channels, size, size), weight=(outputs, channels, taps, taps),
            padding=(taps // 2, taps // 2), dtype="float16", channels_last=True,
        )  # fmt: skip


def test_sums_of_few_tiles_are_split_over_clusters_or_shared():
    """The parts of a sum that are a cluster need no workspace, and all start at once."""
    kinds = set()
    for p in problems_of_few_tiles():
        plan = _bind.plan(p, algorithm="implicit_gemm")
        assert plan.word == "main_loop"
        if plan.fields["stream_k"]:
            kinds.add("shared")
            assert plan.splits == 2 and plan.blocks <= 264, p
            pixels, channels = map(int, plan.fields["tile"].split("x"))
            assert plan.workspace_bytes > 4 * plan.blocks * pixels * channels, p
        elif plan.splits > 1:
            kinds.add("cluster")
            assert plan.splits in (2, 4, 8), p
            assert plan.blocks % plan.splits == 0, p
            assert plan.blocks <= 264, p  # two may share a multiprocessor
            assert plan.workspace_bytes == 0, p
        else:
            kinds.add("whole")
            assert plan.workspace_bytes == 0, p
    assert kinds == {"cluster", "shared", "whole"}


def test_sums_of_few_tiles_are_split_over_a_workspace_where_warps_multiply():
    kinds = set()
    for p in problems_of_few_tiles():
        plan = _bind.plan(p, DEVICES["A100"], "implicit_gemm")
        assert plan.word == "mma_sync"
        kinds.add(plan.splits > 1)
        if plan.splits > 1:
            assert plan.workspace_bytes >= 4 * plan.splits * math.prod(p.output), p
        else:
            assert plan.workspace_bytes == 0, p
    assert kinds == {True, False}


@pytest.mark.parametrize("channels_last", [True, False])
def test_blocks_that_share_tiles_have_memory_for_their_sums(channels_last):
    """Sums of a tile and its flags for each block, of which all run at once."""
    p = problem(
        input=(2, 512, 24, 32), weight=(136, 512, 3, 3), padding=(1, 1), dtype="float16",
        channels_last=channels_last,
    )  # fmt: skip
    shared = [plan for plan in _bind.plans(p) if plan.fields.get("stream_k")]
    loaders = {"halo"} if channels_last else {"halo", "planes"}
    assert {plan.fields["loader"] for plan in shared} == loaders
    for plan in shared:
        pixels, channels = map(int, plan.fields["tile"].split("x"))
        assert plan.splits == 2, "they count as split sums"
        assert plan.blocks <= 2 * 132, plan
        assert plan.workspace_bytes > 4 * plan.blocks * pixels * channels, plan


def test_offsets_are_wide_exactly_where_they_must_be():
    wide = 0
    for arguments in problems(seed=6):
        p = problem(**arguments)
        counts = [math.prod(arguments["input"]), weight_count(arguments), math.prod(p.output)]
        needs = max(counts) >= 2**31 - 1
        assert p.needs_wide_index == needs, p
        found = by_family(_bind.candidates(p))
        for family in ("direct", "im2col"):
            if plan := found[family].plan:
                assert plan.fields["wide"] == needs, f"{p}: {plan}"
        wide += needs
    assert wide > 20


@pytest.mark.parametrize(
    ("shape", "wide"),
    [
        ((1, 2, 32768, 32767), False),
        ((1, 2, 32768, 32768), True),  # 2^31 elements
        ((1, 1, 1, 2**31 - 2), False),
        ((1, 1, 1, 2**31 - 1), True),  # one past the last is no 32-bit number
        ((2**31, 1, 1, 1), True),
    ],
)
def test_the_edge_of_32_bits(shape, wide):
    weight = (1, shape[1], 1, 1)
    assert problem(input=shape, weight=weight).needs_wide_index == wide


def test_outputs_and_weights_count_as_well():
    assert problem(input=(1, 1, 16384, 16384), weight=(8, 1, 1, 1)).needs_wide_index
    assert problem(input=(1, 65536, 1, 1), weight=(32768, 65536, 1, 1)).needs_wide_index


def test_what_passes_every_family_goes_to_aten():
    far = problem(
        input=(1, 1, 1, 2**31), weight=(1, 1, 1, 1), op="wgrad", dtype="float64"
    )  # fmt: skip
    found = by_family(_bind.candidates(far))
    assert _bind.plan(far).family == "aten"
    assert found["aten"].reason == ""
    assert found["direct"].reason == "image coordinates pass 2^31"
    with pytest.raises(RuntimeError, match="image coordinates pass 2"):
        _bind.plan(far, algorithm="direct")


@pytest.mark.parametrize(
    ("family", "arguments", "reason"),
    [
        ("tiled", {"op": "wgrad"}, "no weight gradient"),
        ("tiled", {"dtype": "float64"}, "float32"),
        ("tiled", {"op": "dgrad", "stride": (1, 2)}, "strided convolution"),
        ("direct", {"dilation": (1, 2**31), "padding": (1, 2**31)}, "coordinates pass 2"),
        ("im2col", {"input": (1, 64, 46341, 46341)}, "passes 2.31 pixels"),
        (
            "implicit_gemm",
            {"dtype": "float16", "op": "wgrad", "stride": (1, 9), "channels_last": True},
            "stride passes 8",
        ),
        (
            "implicit_gemm",
            {"dtype": "float16", "op": "dgrad", "stride": (3, 2), "dilation": (2, 1)},
            "more than four phases",
        ),
        # Padding that is too far from the image for TMA, beside rows that no stage has room for.
        (
            "implicit_gemm",
            {
                "dtype": "bfloat16",
                "op": "dgrad",
                "input": (1, 10, 40, 40),
                "weight": (33, 10, 3, 3),
                "stride": (2, 2),
                "padding": (3000, 3000),
                "channels_last": True,
            },
            "none of its tiles fits",
        ),
        ("implicit_gemm", {"dtype": "float64"}, "float64"),
        (
            "implicit_gemm",
            {"dtype": "float16", "weight": (64, 32, 3, 3), "groups": 2},
            "input channels are not whole 128 bytes",
        ),
        (
            "implicit_gemm",
            {"dtype": "float32", "tf32": True, "weight": (96, 32, 3, 3), "groups": 2},
            "output channels are no multiple of 32",
        ),
        ("grouped", {"dtype": "float16"}, "one group"),
        ("grouped", THIN | {"weight": (64, 1, 3, 3), "groups": 64}, "one input channel"),
        ("grouped", THIN | {"dtype": "float64"}, "float64"),
        ("grouped", THIN | {"dtype": "float32", "tf32": False}, "TF32 is off"),
        ("grouped", THIN | {"op": "dgrad", "stride": (1, 9)}, "stride above 8"),
        ("depthwise", THIN, "more than one input channel"),
        ("col2im", {"dtype": "float16"}, "input gradients"),
        ("col2im", {"op": "dgrad", "dtype": "float32", "tf32": False}, "TF32 is not allowed"),
        ("col2im", {"op": "dgrad", "dtype": "float64"}, "float32"),
        ("col2im", THIN | {"op": "dgrad", "dtype": "float16"}, "no groups"),
        (
            "col2im",
            {"op": "dgrad", "dtype": "float16", "weight": (64, 64, 1, 65), "padding": (0, 32)},
            "more than 64 taps",
        ),
        # One column is 64 MiB and more.
        ("im2col", {"input": (1, 2**20, 5, 5), "weight": (1, 2**20, 5, 5)}, "too few columns"),
    ],
)
def test_reasons(family, arguments, reason):
    with pytest.raises(RuntimeError, match=reason):
        _bind.plan(problem(**DENSE | arguments), algorithm=family)


@pytest.mark.parametrize("op", PASSES)
def test_larger_problems_take_longer(op):
    for family in ALL_FAMILIES:
        if (op == "wgrad" and family == "tiled") or (op != "dgrad" and family == "col2im"):
            continue
        times = []
        for batch in (1, 8, 64, 512):
            larger = DENSE | {"input": (batch, 64, 56, 56), "op": op, "dtype": "float16"}
            larger["channels_last"] = family == "implicit_gemm" and op == "wgrad"
            if family == "depthwise":
                larger |= {"weight": (64, 1, 3, 3), "groups": 64}
            if family == "grouped":
                larger |= {"weight": (64, 16, 3, 3), "groups": 4}
            times.append(_bind.plan(problem(**larger), algorithm=family).predicted_ms)
        assert times == sorted(times), family
        assert times[-1] > 4 * times[1], family


def test_no_prediction_beats_the_hardware():
    device = DEVICES["H100"]
    for arguments in problems(seed=7):
        p = problem(**arguments)
        for candidate in _bind.candidates(p, device):
            if candidate.plan is None or candidate.family == "aten":
                continue
            moved = p.least_bytes / 3352e9 * 1e3
            # With much padding, an input gradient takes fewer products than the output. A tap meets
            # pixels of the input that are whole strides apart.
            group_k = arguments["weight"][0] // arguments["groups"]
            images, channels, *sizes = arguments["input"]
            met = math.prod(
                -(-size // step) for size, step in zip(sizes, arguments["stride"], strict=True)
            )
            taps = math.prod(arguments["weight"][2:])
            products = min(p.macs, images * channels * met * group_k * taps)
            peak = device.matrix_flops(arguments["dtype"], arguments["tf32"])
            if is_of_3xtf32(candidate.plan):
                peak = device.matrix_flops("float32", True) / 3
            at_best = max(moved, 2e3 * products / peak)
            assert candidate.plan.predicted_ms >= 0.99 * at_best, f"{p}: {candidate.plan}"


def test_a_plan_prints_what_is_launched():
    plan = _bind.plan(problem(**DENSE), algorithm="direct")
    assert str(plan) == (
        f"direct order=pixels ({plan.blocks} blocks of 256 threads, shared 0 B, workspace 0 B, "
        f"predicted {plan.predicted_ms:.3g} ms)"
    )


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("taps", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_pass_is_weighed_for_the_bias_that_a_transposed_convolution_leaves(
    dtype, taps, channels_last
):
    arguments = {
        "op": "dgrad", "dtype": dtype, "input": (8, 64, 128, 128), "weight": (64, 64, taps, taps),
        "stride": (2, 2), "padding": ((taps - 1) // 2,) * 2, "channels_last": channels_last,
        "tf32": True,
    }  # fmt: skip
    bare, biased = (
        by_family(_bind.candidates(problem(**arguments, bias=b))) for b in (False, True)
    )
    bytes_moved = 2 * 8 * 64 * 128 * 128 * (2 if dtype == "float16" else 4)
    for family, candidate in biased.items():
        without = bare[family].plan
        if candidate.plan is None or without is None:
            continue
        more = candidate.plan.predicted_ms - without.predicted_ms
        if candidate.plan.fuses:  # weights of 16 bits may be packed for it
            assert abs(more) < 0.003, candidate.plan
        else:
            assert more > bytes_moved / 4e9, candidate.plan
    assert biased["implicit_gemm"].plan.fuses


def test_the_bias_of_pixels_that_no_tap_meets_is_left_where_phases_are_woven():
    arguments = {"op": "dgrad", "dtype": "float16", "bias": True, "stride": (2, 2)}
    shapes = {"input": (8, 64, 64, 64), "weight": (64, 64, 1, 1)}
    plans = [p for p in _bind.plans(problem(**arguments, **shapes)) if p.family == "implicit_gemm"]
    woven = [p for p in plans if p.word == "main_loop" and not p.fields["joined"]]
    assert woven and not any(plan.fuses for plan in woven)
    plans = _bind.plans(problem(**arguments, **shapes, channels_last=True))
    stored = [p for p in plans if p.word == "main_loop" and not p.fields["joined"]]
    assert stored and all(plan.fuses for plan in stored)
