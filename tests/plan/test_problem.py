"""ConvProblem: sizes against PyTorch's own, counts, words; and how tensors become one."""

from __future__ import annotations

import math
import random

import pytest
import torch
from random_problems import PASSES, problem, random_arguments
from reference import ALL_FAMILIES, float32_precision
from torch.nn import functional

import customconv


def random_geometry(rng: random.Random) -> dict[str, tuple[int, int]]:
    def pair(*choices: int) -> tuple[int, int]:
        return rng.choice(choices), rng.choice(choices)

    return {
        "size": (rng.randint(1, 40), rng.randint(1, 40)),
        "taps": pair(1, 2, 3, 4, 5, 7, 13),
        "stride": pair(1, 1, 2, 3, 5, 60),
        "padding": pair(0, 0, 1, 2, 3, 20),
        "dilation": pair(1, 1, 2, 3, 9),
    }


def test_output_sizes_are_pytorchs():
    rng = random.Random(0)
    empty = 0
    for _ in range(3000):
        g = random_geometry(rng)
        x = torch.empty(2, 6, *g["size"], device="meta")
        w = torch.empty(4, 3, *g["taps"], device="meta")
        try:
            expected = functional.conv2d(
                x, w, None, g["stride"], g["padding"], g["dilation"], groups=2
            ).shape
        except RuntimeError:
            expected = None
        arguments = {name: g[name] for name in ("stride", "padding", "dilation")}
        arguments |= {"input": x.shape, "weight": w.shape, "groups": 2}
        if expected is None or 0 in expected:  # on meta, PyTorch lets some of these pass
            empty += 1
            with pytest.raises(ValueError, match="larger than the padded input"):
                problem(**arguments)
        else:
            assert problem(**arguments).output == tuple(expected), g
    assert 300 < empty < 2700


def test_counts():
    rng = random.Random(1)
    for _ in range(500):
        arguments = random_arguments(rng)
        p = problem(**arguments)
        x, w, y = arguments["input"], arguments["weight"], p.output
        size = {"float64": 8, "float32": 4}.get(arguments["dtype"], 2)
        assert p.macs == pytest.approx(math.prod(y) * math.prod(w[1:]))
        # What is only read counts without the rows, and in NHWC columns, that a stride skips.
        met = [min(1, w[i + 2] / arguments["stride"][i]) for i in (0, 1)]
        if not arguments["channels_last"] or x[1] == 1:
            met[1] = 1
        read = math.prod(x) * (1 if arguments["op"] == "dgrad" else math.prod(met))
        moved = size * (read + math.prod(w) + math.prod(y))
        assert p.least_bytes == pytest.approx(moved)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": "backward"}, "unknown op 'backward'"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"weight": (4, 4, 3, 3)}, "weight.size"),
        ({"groups": 4}, "weight.size"),
        ({"groups": 0}, "weight.size"),
        ({"weight": (3, 2, 3, 3), "groups": 2, "input": (1, 4, 9, 9)}, "weight.size"),
        ({"weight": (4, 3, 10, 3)}, "larger than the padded input"),
    ],
)
def test_malformed_problems(arguments, message):
    with pytest.raises(ValueError, match=message):
        problem(**{"input": (1, 3, 9, 9), "weight": (4, 3, 3, 3)} | arguments)


def test_a_problem_in_words():
    p = problem(
        op="dgrad", input=(2, 6, 9, 8), weight=(4, 3, 3, 2), stride=(2, 1), padding=(1, 0),
        dilation=(1, 3), groups=2, tf32=True,
    )  # fmt: skip
    assert str(p) == (
        "dgrad float32 (TF32 allowed) x(2, 6, 9, 8) NCHW w(4, 3, 3, 2) NCHW y(2, 4, 5, 5) NCHW "
        "stride (2, 1) padding (1, 0) dilation (1, 3) groups 2"
    )
    p = problem(
        dtype="bfloat16", input=(2, 6, 9, 8), weight=(4, 6, 3, 2), channels_last=True, bias=True
    )
    assert str(p) == (
        "fprop bfloat16 x(2, 6, 9, 8) NHWC w(4, 6, 3, 2) NHWC y(2, 4, 7, 7) NHWC "
        "stride (1, 1) padding (0, 0) dilation (1, 1) groups 1 bias"
    )
    assert "float32 (IEEE)" in str(problem(input=(1, 1, 1, 1), weight=(1, 1, 1, 1)))


def explain(
    x: torch.Tensor, w: torch.Tensor, op: str = "fprop", transposed: bool = False
) -> customconv.Explanation:
    return customconv.explain(x, w, padding=1, op=op, transposed=transposed)


def layouts(x: torch.Tensor, w: torch.Tensor, op: str = "fprop") -> list[str]:
    """What a problem's words say of x, w and y."""
    words = str(explain(x, w, op).problem).split()
    return [word for word in words if word in ("NCHW", "NHWC", "strided")]


def channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format=torch.channels_last)


X, W = torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3)


@pytest.mark.parametrize(
    ("x", "w", "expected"),
    [
        (X, W, ["NCHW"] * 3),
        (channels_last(X), channels_last(W), ["NHWC"] * 3),
        (channels_last(X), W, ["NHWC", "NCHW", "NHWC"]),
        (X, channels_last(W), ["NCHW", "NHWC", "NHWC"]),
        (X[:, :, 1:, ::2], W, ["strided", "NCHW", "NCHW"]),
        (X.transpose(2, 3), W, ["strided", "NCHW", "NCHW"]),
        (X[:1].expand(3, -1, -1, -1), W, ["strided", "NCHW", "NCHW"]),
        (X, W.transpose(2, 3), ["NCHW"] * 3),  # such a weight is copied
        (X[:, :1], W[:, :1], ["strided", "NCHW", "NCHW"]),
        (X[:1, :1], W[:, :1], ["NCHW"] * 3),
    ],
    ids=[
        "contiguous", "channels_last", "only_x", "only_w", "sliced", "transposed", "expanded",
        "transposed_weight", "one_channel_of_four", "one_channel",
    ],
)  # fmt: skip
def test_layouts_of_tensors(x, w, expected):
    assert layouts(x, w) == expected


@pytest.mark.parametrize("op", PASSES)
def test_a_gradient_is_dense_in_the_outputs_layout(op):
    expected = {
        "fprop": ["strided", "NCHW", "NHWC"],
        "dgrad": ["NHWC", "NCHW", "NHWC"],
        "wgrad": ["strided", "NHWC", "NHWC"],
    }
    assert layouts(channels_last(X)[:, :, 1:], W, op) == expected[op]


@pytest.mark.parametrize(("transposed", "name"), [(False, "x"), (True, "y")])
def test_only_the_gradient_of_an_unaligned_input_is_aligned(transposed, name):
    x = torch.randn(X.numel() + 1)[1:].view(X.shape)  # four bytes behind an aligned tensor's start
    w = W.transpose(0, 1).contiguous() if transposed else W
    for op in PASSES:
        found = explain(x, w, op, transposed)
        assert found.problem.fields[f"{name}_aligned"] == (op == "dgrad"), op


@pytest.mark.parametrize("transposed", [False, True])
def test_only_the_gradient_of_an_unaligned_weight_is_aligned(transposed):
    own = W.transpose(0, 1) if transposed else W
    w = torch.randn(W.numel() + 1)[1:].view(own.shape)
    for op in PASSES:
        assert explain(X, w, op, transposed).problem.fields["w_aligned"] == (op == "wgrad"), op


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_dtypes_of_tensors(dtype):
    x, w = X.to(getattr(torch, dtype)), W.to(getattr(torch, dtype))
    found = explain(x, w)
    assert str(found.problem).startswith(f"fprop {dtype} ")
    assert found.plan is None
    assert "on CUDA tensors, not on cpu" in found.fallback
    reasons = {c.family: c.reason for c in found.candidates}
    assert reasons == dict.fromkeys(ALL_FAMILIES, found.fallback) | {"aten": ""}


def test_pytorchs_switch_for_tf32():
    with float32_precision("ieee"):
        assert "(IEEE)" in str(explain(X, W).problem)
    with float32_precision("tf32"):
        assert "(TF32 allowed)" in str(explain(X, W).problem)
        assert "TF32" not in str(explain(X.half(), W.half()).problem)


@pytest.mark.parametrize(
    ("x", "w", "reason"),
    [
        (X.int(), W.int(), "no kernels for this dtype"),
        (X.to(torch.complex64), W.to(torch.complex64), "no kernels for this dtype"),
        (X[:0], W, "empty"),
        (X[:, :0], W[:, :0], "empty"),
    ],
    ids=["int32", "complex64", "no_images", "no_channels"],
)
def test_what_is_not_for_the_planner(x, w, reason):
    found = explain(x, w)
    assert found.problem is None
    assert found.plan is None
    assert reason in found.fallback


def test_an_unbatched_input_is_one_image():
    assert " x(1, 4, 9, 8) " in str(explain(X[0], W).problem)
