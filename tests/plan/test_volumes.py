"""Problems of volumes: their text and key, those that are images in memory, and their plans."""

from __future__ import annotations

import random

import pytest
from random_problems import PASSES, random_volume

from customconv import _bind
from customconv._bind import ConvProblem

DENSE = {"input": (1, 64, 6, 20, 24), "weight": (64, 64, 3, 3, 3), "padding": (1, 1, 1)}


def volumes(seed: int, count: int) -> list[ConvProblem]:
    rng = random.Random(seed)
    return [ConvProblem(**random_volume(rng)) for _ in range(count)]


def family(**arguments) -> str:
    return _bind.plan(ConvProblem(**{"dtype": "float16", **arguments})).family


def test_a_volume_comes_back_from_its_text_and_its_fields():
    for problem in volumes(1, 500):
        for again in (
            ConvProblem.from_text(problem.text),
            ConvProblem.from_fields(problem.fields),
        ):
            assert again.text == problem.text
            assert again.fields == problem.fields
            assert again.output == problem.output


def test_depth_of_one_is_an_image():
    flat = ConvProblem(input=(2, 8, 9, 7), weight=(6, 8, 3, 2), stride=(2, 1), padding=(1, 0))
    deep = ConvProblem(
        input=(2, 8, 1, 9, 7), weight=(6, 8, 1, 3, 2), stride=(3, 2, 1), padding=(0, 1, 0),
        dilation=(2, 1, 1),
    )  # fmt: skip
    assert not deep.is_deep
    assert deep.text == flat.text
    assert "D" not in deep.fields
    assert deep.output == (2, 6, 5, 6)


def test_sizes_are_in_pytorchs_order():
    problem = ConvProblem(
        input=(2, 4, 11, 7, 5), weight=(6, 4, 3, 2, 1), stride=(2, 1, 3), padding=(1, 0, 2),
        dilation=(1, 2, 1),
    )  # fmt: skip
    assert problem.output == (2, 6, 6, 5, 3)
    assert problem.macs == 2 * 6 * 6 * 5 * 3 * 4 * 3 * 2 * 1
    assert (
        "x(2, 4, 11, 7, 5) NCHW w(6, 4, 3, 2, 1) NCHW y(2, 6, 6, 5, 3) NCHW stride (2, 1, 3) "
        "padding (1, 0, 2) dilation (1, 2, 1)"
    ) in str(problem)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (" D=6", "", "has 'T=3' where x_aligned=|has 'T=3' where tf32="),
        ("D=6", "D=0", "D is out of range: 0"),
        ("2880,24,1,480 ", "2880,24,1 ", "x_strides is out of range"),
        ("x_strides=", "x_strides=1,", "x_strides has more than five numbers"),
        ("D=6 T=3 O=6 stride_d=1 pad_d=1", "D=1 T=1 O=1 stride_d=1 pad_d=0", "are of volumes"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_volumes(old: str, new: str, reason: str):
    text = ConvProblem(**DENSE).text
    assert old in text
    with pytest.raises(ValueError, match=reason):
        ConvProblem.from_text(text.replace(old, new, 1))


def test_every_number_of_the_depth_is_part_of_the_key():
    base = {**DENSE, "input": (1, 64, 9, 20, 24)}
    others = [
        {"input": (1, 64, 10, 20, 24)},
        {"weight": (64, 64, 1, 3, 3)},
        {"stride": (2, 1, 1)},
        {"padding": (0, 1, 1)},
        {"dilation": (2, 1, 1)},
    ]
    problems = [ConvProblem(**{**base, **other}) for other in [{}, *others]]
    cache = _bind.PlanCache(100)
    for problem in problems:
        assert cache.find(0, problem) is None
        cache.insert(0, problem, _bind.plan(problem), cache.generation)
    assert len(cache) == len(problems)


# Volumes, and the images that they are in memory.
FOLDED = {
    "1x1x1 of planes": (
        {"input": (2, 64, 4, 6, 8), "weight": (96, 64, 1, 1, 1)},
        {"input": (2, 64, 4, 48), "weight": (96, 64, 1, 1)},
    ),
    "1x1x1 of channels-last": (
        {"input": (2, 64, 4, 6, 8), "weight": (96, 64, 1, 1, 1), "channels_last": True},
        {"input": (2, 64, 4, 48), "weight": (96, 64, 1, 1), "channels_last": True},
    ),
    "depthwise Tx1x1": (
        {"input": (2, 64, 9, 6, 8), "weight": (64, 1, 3, 1, 1), "padding": (1, 0, 0),
         "stride": (2, 1, 1), "groups": 64},
        {"input": (2, 64, 9, 48), "weight": (64, 1, 3, 1), "padding": (1, 0), "stride": (2, 1),
         "groups": 64},
    ),
    "1xRxS of channels-last": (
        {"input": (2, 64, 4, 12, 16), "weight": (96, 64, 1, 3, 3), "padding": (0, 1, 1),
         "stride": (1, 2, 2), "channels_last": True},
        {"input": (8, 64, 12, 16), "weight": (96, 64, 3, 3), "padding": (1, 1), "stride": (2, 2),
         "channels_last": True},
    ),
    "1xRxS that steps by its own size": (
        {"input": (2, 16, 5, 12, 16), "weight": (96, 16, 1, 2, 2), "stride": (1, 2, 2)},
        {"input": (2, 16, 60, 16), "weight": (96, 16, 2, 2), "stride": (2, 2)},
    ),
    "the same of channels-last": (
        {"input": (2, 16, 5, 12, 16), "weight": (96, 16, 1, 2, 2), "stride": (1, 2, 2),
         "channels_last": True},
        {"input": (2, 16, 60, 16), "weight": (96, 16, 2, 2), "stride": (2, 2),
         "channels_last": True},
    ),
    "whole volumes": (
        {"input": (64, 3, 2, 14, 14), "weight": (96, 3, 2, 14, 14), "stride": (2, 14, 14)},
        {"input": (64, 3 * 392, 1, 1), "weight": (96, 3 * 392, 1, 1), "channels_last": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("name", FOLDED)
def test_volumes_that_are_images_in_memory_have_their_plans(name: str, op: str):
    deep, flat = (ConvProblem(op=op, dtype="float16", **each) for each in FOLDED[name])
    found, expected = _bind.plan(deep), _bind.plan(flat)
    assert expected.family != "aten"
    assert str(found) == str(expected)
    _bind.check_plan(deep, found)


def test_gradients_of_a_filter_along_the_depth_are_those_of_images():
    """Its outputs are left to what computes volumes, where groups do not forbid it."""
    deep, flat = (
        {"input": (2, 64, 9, 6, 8), "weight": (96, 64, 3, 1, 1), "stride": (2, 1, 1)},
        {"input": (2, 64, 9, 48), "weight": (96, 64, 3, 1), "stride": (2, 1)},
    )
    for op in ("dgrad", "wgrad"):
        found, expected = (
            _bind.plan(ConvProblem(op=op, dtype="float16", **each)) for each in (deep, flat)
        )
        assert str(found) == str(expected)
    assert "loader=im2col" in _bind.plan(ConvProblem(dtype="float16", **deep)).name


def test_input_gradients_of_slices_left_out_are_no_images():
    arguments = {
        "input": (1, 64, 8, 12, 16), "weight": (96, 64, 1, 3, 3), "stride": (2, 1, 1),
        "channels_last": True, "dtype": "float16",
    }  # fmt: skip
    assert _bind.plan(ConvProblem(op="fprop", **arguments)).family != "aten"
    assert _bind.plan(ConvProblem(op="dgrad", **arguments)).family == "aten"


def test_a_single_volumes_planes_fold_only_where_the_batch_does_not_matter():
    arguments = {
        "input": (1, 64, 8, 12, 16), "weight": (96, 64, 1, 3, 3), "padding": (0, 1, 1),
        "dtype": "float16",
    }  # fmt: skip
    free = {c.family: c for c in _bind.candidates(ConvProblem(**arguments))}
    bound = {c.family: c for c in _bind.candidates(ConvProblem(**arguments, batch_invariant=True))}
    assert free["tiled"].reason != "it computes no volumes"
    assert bound["tiled"].reason == "it computes no volumes"


def test_a_bias_of_an_input_gradient_is_of_its_channels():
    """Not of the channels that all taps would be, were the filter's volume folded into them."""
    arguments = {**FOLDED["whole volumes"][0], "op": "dgrad", "dtype": "float16"}
    for bias, folds in ((False, True), (True, False)):
        found = {c.family: c for c in _bind.candidates(ConvProblem(**arguments, bias=bias))}
        assert (found["tiled"].reason != "it computes no volumes") == folds


def test_rows_left_over_keep_slices_apart():
    """A filter that skips a slice's last row is not one of an image of all rows."""
    arguments = {"weight": (96, 16, 1, 2, 2), "stride": (1, 2, 2), "channels_last": True}
    deep = ConvProblem(**arguments, input=(2, 16, 5, 13, 16), dtype="float16")
    flat = ConvProblem(
        input=(10, 16, 13, 16), weight=(96, 16, 2, 2), stride=(2, 2), channels_last=True,
        dtype="float16",
    )  # fmt: skip
    assert str(_bind.plan(deep)) == str(_bind.plan(flat))


def test_weight_gradients_that_planes_leave_to_pytorch_are_rounded_to_tf32_in_channels_last():
    """Of a batch, planes of slices are no images in memory, and no family computes them."""
    deep = {"input": (16, 256, 4, 14, 14), "weight": (576, 256, 1, 3, 3), "padding": (0, 1, 1)}
    flat = {"input": (64, 256, 14, 14), "weight": (576, 256, 3, 3), "padding": (1, 1)}
    last = {"op": "wgrad", "dtype": "float32", "tf32": True, "channels_last": True}
    assert _bind.plan(ConvProblem(**{**last, "channels_last": False}, **deep)).family == "aten"
    assert _bind.computes_in_tf32(ConvProblem(**last, **deep))
    found, expected = (_bind.plan(ConvProblem(**last, **each)) for each in (deep, flat))
    assert str(found) == str(expected)


def test_volumes_that_are_rows_of_a_matrix_are_cublas():
    arguments = {
        "input": (4096, 3, 2, 14, 14), "weight": (1280, 3, 2, 14, 14), "stride": (2, 14, 14),
        "bias": True,
    }  # fmt: skip
    assert family(**arguments) == "im2col"
    assert family(**arguments, channels_last=True) == "im2col"
    for other in ({"epilogue_passes": 1}, {"batch_invariant": True}):
        assert family(**arguments, **other) == "implicit_gemm"
    plan = _bind.plan(ConvProblem(**arguments, dtype="float16"), algorithm="im2col")
    assert plan.workspace_bytes == 0


def test_patches_of_many_channels_and_few_outputs_are_pytorchs():
    for op in ("dgrad", "wgrad"):
        arguments = {"op": op, "input": (2, 32, 32, 32, 32), "stride": (2, 2, 2)}
        assert family(**arguments, weight=(64, 32, 2, 2, 2)) == "aten"
        assert family(**arguments, weight=(256, 32, 2, 2, 2)) == "im2col"


def test_outputs_of_few_slices_and_many_taps_are_pytorchs():
    arguments = {"weight": (512, 512, 3, 3, 3), "padding": (1, 1, 1), "channels_last": True}
    assert family(**arguments, input=(16, 512, 2, 7, 7)) == "aten"
    assert family(**arguments, input=(16, 512, 2, 7, 7), dtype="float32", tf32=True) == "aten"
    assert family(**arguments, input=(16, 512, 4, 7, 7)) == "implicit_gemm"
    assert family(**arguments, input=(16, 512, 2, 7, 7), dtype="float32") == "implicit_gemm"


@pytest.mark.parametrize(
    ("channels", "layout", "expected"),
    [(96, True, "aten"), (96, False, "implicit_gemm"), (128, True, "implicit_gemm")],
)
def test_three_outputs_with_a_bias(channels: int, layout: bool, expected: str):
    """Of 96 channels, a second row of 128 bytes is half padding."""
    arguments = {"input": (1, channels, 6, 66, 66), "weight": (3, channels, 3, 3, 3)}
    assert family(**arguments, bias=True, channels_last=layout) == expected


def test_weight_gradients_of_few_channels_by_one_tap_are_pytorchs_in_channels_last():
    deep = {"op": "wgrad", "input": (8, 24, 16, 56, 56), "weight": (54, 24, 1, 1, 1)}
    flat = {"op": "wgrad", "input": (8, 24, 16, 3136), "weight": (54, 24, 1, 1)}
    assert family(**deep, channels_last=True) == "aten"
    assert family(**deep, channels_last=True, dtype="float32", tf32=True) == "aten"
    for other in (deep, flat, {**flat, "channels_last": True}):
        assert family(**other) != "aten"
    assert family(**deep, channels_last=True, dtype="float32") != "aten"


def test_families_of_images_say_so():
    found = {c.family: c for c in _bind.candidates(ConvProblem(**DENSE, dtype="float16"))}
    for name in ("tiled", "grouped", "depthwise", "col2im"):
        assert found[name].reason == "it computes no volumes"


def test_direct_computes_every_volume_when_it_is_named():
    for problem in volumes(2, 200):
        plan = _bind.plan(problem, algorithm="direct")
        assert plan.family == "direct"
        _bind.check_plan(problem, plan)


def test_the_planner_itself_takes_no_family_that_is_slow():
    """`direct` is the last resort of batch invariance, and else computes what is 2-D in memory."""
    for name in ("float64", "float32", "float16"):
        for op in PASSES:
            problem = ConvProblem(op=op, dtype=name, **DENSE, tf32=True)
            assert _bind.plan(problem).family in ("implicit_gemm", "aten")
    invariant = ConvProblem(dtype="float64", **DENSE, batch_invariant=True)
    assert _bind.plan(invariant).family == "direct"


@pytest.mark.parametrize("op", ["fprop", "dgrad"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(96, 6, 480, 832), (1024, 3, 60, 106), (192, 33, 240, 416)])
def test_planes_of_large_volumes_are_packed_in_bounded_memory(shape, dtype: str, op: str):
    c, *sizes = shape
    problem = ConvProblem(
        op=op, dtype=dtype, input=(1, c, *sizes), weight=(c, c, 3, 3, 3), padding=(1, 1, 1),
        tf32=True,
    )  # fmt: skip
    plan = _bind.plan(problem)
    assert plan.family == "implicit_gemm"
    slices = 3 * c * sizes[1] * sizes[2] * (4 if dtype == "float32" else 2)  # of one's result
    assert plan.workspace_bytes <= max(256 << 20, slices) + (16 << 20)
