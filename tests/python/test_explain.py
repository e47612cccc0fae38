"""What explain says, and how it prints."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import customconv


def test_cpu_tensors_are_pytorchs():
    explanation = customconv.explain(torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3), padding=1)
    assert explanation.family == "aten"
    assert explanation.plan is None
    lines = dict(line.split(maxsplit=1) for line in str(explanation).splitlines())
    assert lines["family"] == "aten"
    assert "cpu" in lines["reason"].lower()
    assert "fprop, input 2 x 4 x 9 x 8 of float32 on cpu" in lines["problem"]
    assert "weight 6 x 4 x 3 x 3, no bias, stride 1 x 1, padding 1 x 1" in lines["problem"]


def test_volumes():
    x, w = torch.randn(2, 4, 5, 9, 8), torch.randn(6, 4, 2, 3, 3)
    explanation = customconv.explain(x, w, stride=[2], padding=(1, 0, 2))
    assert explanation.family == "aten"
    lines = dict(line.split(maxsplit=1) for line in str(explanation).splitlines())
    assert "cpu" in lines["reason"].lower()
    assert "fprop, input 2 x 4 x 5 x 9 x 8 of float32 on cpu" in lines["problem"]
    assert "weight 6 x 4 x 2 x 3 x 3, no bias" in lines["problem"]
    assert "stride 2 x 2 x 2, padding 1 x 0 x 2, dilation 1 x 1 x 1" in lines["problem"]
    assert explanation.problem.is_deep
    assert explanation.problem.output == customconv.conv3d(x, w, None, 2, (1, 0, 2)).shape
    one = customconv.explain(x[0], w)  # of images it would be a batch
    assert "input 4 x 5 x 9 x 8 of float32" in one.summary
    assert one.problem.output == (1, 6, 4, 7, 6)


def test_volumes_without_depth_are_images():
    x, w = torch.randn(2, 4, 1, 9, 8), torch.randn(6, 4, 1, 3, 3)
    problem = customconv.explain(x, w, stride=(3, 2, 1), padding=(0, 1, 1)).problem
    image = customconv.explain(x[:, :, 0], w[:, :, 0], stride=(2, 1), padding=1).problem
    assert not problem.is_deep
    assert problem.text == image.text


@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("depth", [(), (5,)])
def test_every_pass(op, depth):
    x, w = torch.randn(2, 4, *depth, 9, 8), torch.randn(6, 4, *[3 for _ in depth], 3, 3)
    explanation = customconv.explain(x, w, torch.randn(6), op=op)
    assert explanation.summary.startswith(op)
    assert ", bias, " in explanation.summary


def test_numbers_are_what_the_operator_takes():
    x, w = torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3)
    assert "stride 2 x 2" in customconv.explain(x, w, stride=np.int64(2)).summary
    with pytest.raises(TypeError):
        customconv.explain(x, w, stride=2.0)
    with pytest.raises(RuntimeError, match="padding='same' is not supported for strided"):
        customconv.explain(x, w, stride=2, padding="same")


@pytest.mark.parametrize(
    ("weight", "dilation", "padding", "shape", "text"),
    [
        ((6, 4, 3, 4), (2, 1), "valid", "4 x 9 x 8", "padding 0 x 0"),
        # Uneven: one column is added first.
        ((6, 4, 3, 4), (2, 1), "same", "4 x 9 x 9", "padding 2 x 1"),
        ((6, 4, 3, 4), (2, 1), (2, 0), "4 x 9 x 8", "padding 2 x 0"),
        ((6, 4, 2, 3, 4), (1, 2, 1), "valid", "4 x 5 x 9 x 8", "padding 0 x 0 x 0"),
        ((6, 4, 2, 3, 4), (1, 2, 1), "same", "4 x 6 x 9 x 9", "padding 0 x 2 x 1"),
        ((6, 4, 3, 2, 3), (3, 1, 1), "same", "4 x 5 x 10 x 8", "padding 3 x 0 x 1"),
        ((6, 4, 2, 3, 4), (1, 2, 1), (1, 2, 0), "4 x 5 x 9 x 8", "padding 1 x 2 x 0"),
    ],
)
def test_padding_by_name(weight, dilation, padding, shape, text):
    x = torch.randn(4, *(5, 9, 8)[-len(dilation) :])
    explanation = customconv.explain(x, torch.randn(weight), dilation=dilation, padding=padding)
    assert f"input {shape} of" in explanation.summary
    assert text in explanation.summary


@pytest.mark.parametrize(
    ("sizes", "layout"), [((9, 8), torch.channels_last), ((5, 9, 8), torch.channels_last_3d)]
)
def test_channels_last_is_told(sizes, layout):
    x, w = torch.randn(2, 4, *sizes), torch.randn(6, 4, *[3 for _ in sizes])
    assert "channels last" not in customconv.explain(x, w).summary
    assert "channels last" in customconv.explain(x.to(memory_format=layout), w).summary


@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
def test_transposed(op):
    """The planner sees the convolution that is transposed."""
    x, w = torch.randn(2, 6, 5, 4), torch.randn(6, 4, 3, 3)
    geometry = {"stride": 2, "output_padding": (1, 0), "transposed": True}
    explanation = customconv.explain(x, w, torch.randn(4), op=op, **geometry)
    assert explanation.summary.startswith(f"{op} transposed, input 2 x 6 x 5 x 4")
    assert "padding 0 x 0, output padding 1 x 0, dilation" in explanation.summary
    assert explanation.problem.output == (2, 6, 5, 4)
    seen = {"fprop": "dgrad", "dgrad": "fprop"}.get(op, op)
    assert str(explanation.problem).startswith(seen)
    wide = customconv.explain(x, w, output_padding=1, dilation=2, transposed=True)
    assert "output padding" in wide.fallback
    with pytest.raises(ValueError, match="in numbers, not 'same'"):
        customconv.explain(x, w, padding="same", transposed=True)
    with pytest.raises(RuntimeError, match="output padding must be smaller"):
        customconv.explain(x, w, output_padding=1, transposed=True)


@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
def test_transposed_volumes(op):
    x, w = torch.randn(2, 6, 3, 5, 4), torch.randn(6, 4, 3, 3, 3)
    geometry = {"stride": (1, 2, 2), "output_padding": (0, 1, 0), "transposed": True}
    explanation = customconv.explain(x, w, torch.randn(4), op=op, **geometry)
    assert explanation.summary.startswith(f"{op} transposed, input 2 x 6 x 3 x 5 x 4")
    assert "padding 0 x 0 x 0, output padding 0 x 1 x 0, dilation 1 x 1" in explanation.summary
    assert explanation.problem.output == (2, 6, 3, 5, 4)
    seen = {"fprop": "dgrad", "dgrad": "fprop"}.get(op, op)
    assert str(explanation.problem).startswith(seen)


def test_wrong_arguments():
    x, w = torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3)
    with pytest.raises(ValueError, match="winograd"):
        customconv.explain(x, w, algorithm="winograd")
    with pytest.raises(ValueError, match="sideways"):
        customconv.explain(x, w, op="sideways")
    with pytest.raises(ValueError, match="full"):
        customconv.explain(x, w, padding="full")
    with pytest.raises(RuntimeError, match="channel"):
        customconv.explain(x, torch.randn(6, 3, 3, 3))
    with pytest.raises(ValueError, match="expected one of 'fprop', 'dgrad', 'wgrad'"):
        customconv.explain(x, w, op="forward")
    with pytest.raises(RuntimeError, match="channel"):
        customconv.explain(x, torch.randn(6, 3, 3, 3), algorithm="direct")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.ones((2, 4, 9, 8)), torch.ones(6, 4, 3, 3)), "'input' (position 1) must be Tensor"),
        ((torch.ones(2, 4, 9, 8), None), "'weight' (position 2) must be Tensor, not NoneType"),
        ((torch.ones(2, 4, 9, 8), nn.Conv2d(4, 6, 3)), "a module comes first"),
        ((nn.Sequential(nn.Conv2d(4, 6, 3)), torch.ones(2, 4, 9, 8)), "explain_compile(model, x)"),
        ((nn.Linear(4, 6), torch.ones(2, 4)), "not Linear"),
        ((nn.Conv2d(4, 6, 3), None), "takes its input, a Tensor, not NoneType"),
        ((nn.Conv2d(4, 6, 3), torch.ones(2, 4, 9, 8), None, 2), "and no more"),
    ],
)
def test_what_is_no_tensor_is_named(arguments, words):
    """And is not dumped."""
    with pytest.raises(TypeError) as error:
        customconv.explain(*arguments)
    assert words in str(error.value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("op", ["fprop", "wgrad"])
@pytest.mark.parametrize("sizes", [(9, 8), (5, 9, 8)])
def test_a_family_that_cannot_compute_the_call_is_explained(sizes, op):
    """The call raises, and the explanation says it in the same words."""
    x, w = torch.randn(2, 4, *sizes), torch.randn(6, 4, *[3 for _ in sizes])
    explanation = customconv.explain(x, w, op=op, algorithm="tiled")
    assert explanation.raises
    assert explanation.plan is None
    assert explanation.family == "none"
    with pytest.raises(RuntimeError) as error:
        getattr(customconv, f"conv{len(sizes)}d")(x, w, algorithm="tiled")
    assert explanation.fallback == f"the call raises: {error.value}"
    assert "not tiled" in str(explanation)
    assert not customconv.explain(x, w).raises


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(9, 8), (5, 9, 8)])
def test_a_family_that_cannot_compute_the_problem_is_explained(sizes):
    x, w = torch.randn(2, 4, *sizes), torch.randn(6, 4, *[3 for _ in sizes])
    x, w = x.cuda(), w.cuda()
    explanation = customconv.explain(x, w, algorithm="depthwise")
    assert explanation.family == "none"
    with pytest.raises(RuntimeError) as error:
        getattr(customconv, f"conv{len(sizes)}d")(x, w, algorithm="depthwise")
    assert explanation.fallback.startswith("the call raises: ")
    assert explanation.fallback.split(": ", 1)[1] in str(error.value)


GEOMETRY = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
MODULES = {
    "Conv1d": (2, 4, 19),
    "Conv2d": (2, 4, 19, 17),
    "Conv3d": (2, 4, 7, 9, 8),
    "ConvTranspose1d": (2, 4, 9),
    "ConvTranspose2d": (2, 4, 9, 8),
    "ConvTranspose3d": (2, 4, 5, 6, 4),
}


@pytest.mark.parametrize("package", [nn, customconv])
@pytest.mark.parametrize("name", MODULES)
def test_modules_bring_their_arguments(name, package, device):
    extra = {"output_padding": 1} if "Transpose" in name else {}
    module = getattr(package, name)(4, 6, 3, **GEOMETRY, **extra).to(device)
    x = torch.randn(MODULES[name], device=device)
    for each in (x, x[0]):
        explanation = customconv.explain(module, each, op="dgrad")
        given = {name: getattr(module, name) for name in GEOMETRY} | extra
        expected = customconv.explain(
            each, module.weight, module.bias, **given, transposed=bool(extra), op="dgrad"
        )
        assert explanation.summary == expected.summary
        assert explanation.family == expected.family
        output = explanation.problem.output if not extra else module(x).shape
        assert output[-1] == module(x).shape[-1]


def test_signals_have_a_height_of_one():
    explanation = customconv.explain(torch.randn(2, 4, 9), torch.randn(6, 4, 3), padding="same")
    assert "input 2 x 4 x 1 x 9 of float32" in explanation.summary
    assert "weight 6 x 4 x 1 x 3, no bias, stride 1 x 1, padding 0 x 1" in explanation.summary
    assert explanation.problem.output == (2, 6, 1, 9)


def test_a_module_pads_by_its_mode_first():
    module = nn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="circular")
    summary = customconv.explain(module, torch.randn(2, 4, 9, 8)).summary
    assert "input 2 x 4 x 13 x 10 of float32" in summary
    assert "padding 0 x 0" in summary
    module = nn.Conv3d(4, 6, 3, padding=(0, 2, 1), padding_mode="circular")
    summary = customconv.explain(module, torch.randn(2, 4, 5, 9, 8)).summary
    assert "input 2 x 4 x 5 x 13 x 10 of float32" in summary
    assert "padding 0 x 0 x 0" in summary


def test_an_algorithm_of_the_module_is_explained():
    module, x = customconv.Conv2d(4, 6, 3, algorithm="tiled"), torch.randn(2, 4, 9, 8)
    assert "'tiled'" in customconv.explain(module, x).fallback
    assert "'direct'" in customconv.explain(module, x, algorithm="direct").fallback


@pytest.mark.parametrize("kind", [nn.LazyConv2d, nn.LazyConv3d])
def test_a_module_without_parameters_yet(kind):
    with pytest.raises(RuntimeError, match="not initialized yet"):
        customconv.explain(kind(6, 3), torch.randn(2, 4, 9, 8, 7))


def plan(**changes):
    fields = {
        "family": "tiled", "word": "", "name": "tiled kernel=3-taps-x8 warps=4x1 tile=1x14x2",
        "blocks": 64, "threads": 256, "shared_bytes": 12288, "workspace_bytes": 0,
        "predicted_ms": 0.01234,
    }  # fmt: skip
    return SimpleNamespace(**fields | changes)


def printed(plan, *candidates):
    explanation = customconv.Explanation("a problem", plan, "", candidates, None)
    return [line.split("  ", 1) for line in str(explanation).splitlines()]


def test_a_plan_prints_as_a_table():
    rows = printed(
        plan(),
        SimpleNamespace(family="direct", plan=None, reason="slower: 1.2 ms"),
        SimpleNamespace(family="tiled", plan=plan(), reason=""),
    )
    assert {name: text.strip() for name, text in rows} == {
        "problem": "a problem",
        "family": "tiled",
        "kernel": "3-taps-x8",
        "warps": "4x1",
        "tile": "1x14x2",
        "thread blocks": "64 of 256 threads",
        "shared memory": "12 KiB",
        "predicted time": "0.0123 ms",
        "not direct": "slower: 1.2 ms",
    }


def test_a_plan_prints_what_is_out_of_the_ordinary():
    name = "depthwise boxes merged=yes tile=2x4x1 splits=4"
    large = plan(name=name, word="boxes", workspace_bytes=3 * 2**20, shared_bytes=0)
    rows = {name: text.strip() for name, text in printed(large)}
    assert rows["workspace"] == "3 MiB"
    assert (rows["kind"], rows["merged"], rows["splits"]) == ("boxes", "yes", "4")
    assert "shared memory" not in rows


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(9, 8), (5, 9, 8)])
def test_a_cuda_problem_names_every_family(sizes):
    x, w = torch.randn(2, 4, *sizes), torch.randn(6, 4, *[3 for _ in sizes])
    x, w = x.cuda(), w.cuda()
    explanation = customconv.explain(x, w, padding=1)
    assert {c.family for c in explanation.candidates} >= {"direct", "im2col", "tiled"}
    assert [c.family for c in explanation.candidates if not c.reason] == [explanation.family]
    for other in explanation.candidates:
        assert other.family == explanation.family or f"not {other.family}" in str(explanation)
    assert customconv.explain(x, w, algorithm="direct").family == "direct"
    assert customconv.explain(x, w, algorithm="aten").family == "aten"
