"""The table of errors: its layers, its data, and both errors; here PyTorch computes both sides."""

from __future__ import annotations

import pytest
import torch

from bench import errors
from bench.layers import Layer

CPU = torch.device("cpu")
SMALL = Layer("errors", "", 2, 3, 6, 6, 5, 3, 3, pad=(1, 1))
SOLID = Layer("errors", "", 2, 3, 4, 4, 5, 3, 3, pad=(1, 1, 1), D=4, T=3)


def test_each_pass_has_sums_of_27_to_100352_terms():
    for op, layers in errors.LAYERS.items():
        assert [errors.terms(layer, op) for layer in layers] == [27, 576, 4608, 100352], op
    for op, layers in errors.VOLUMES.items():
        assert [errors.terms(layer, op) for layer in layers] == [27, 1728, 13824, 110592], op


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("data", errors.DATA)
@pytest.mark.parametrize("op", errors.LAYERS)
@pytest.mark.parametrize("layer", [SMALL, SOLID], ids=["image", "volume"])
def test_errors_of_pytorch_are_those_of_float32(layer, op, data, layout):
    buffers = errors.make_buffers(layer, op, data, layout, CPU)
    ours, theirs, plan = errors.errors_of(layer, op, buffers, "fp32")
    assert plan == "aten"
    assert ours == theirs
    assert 0 < ours < (1e-5 if data == "cancelling" else 1e-6)


def test_what_cancels_sums_to_zero():
    expected = {"fprop": (1, 2, 3), "dgrad": 0, "wgrad": (0, 2, 3)}
    volumes = {"fprop": (1, 2, 3, 4), "dgrad": 0, "wgrad": (0, 2, 3, 4)}
    for layer, op, axes in (
        *((SMALL, *each) for each in expected.items()),
        *((SOLID, *each) for each in volumes.items()),
    ):
        buffers = errors.make_buffers(layer, op, "cancelling", "nchw", CPU)
        zeros = buffers.dy if op == "wgrad" else buffers.w
        assert zeros.sum(axes).abs().max() < 1e-4
        other = buffers.dy if op == "dgrad" else buffers.x
        assert 99 < other.mean() < 101


def test_a_wide_range_reaches_from_1e_30_to_1e30():
    for op in errors.LAYERS:
        buffers = errors.make_buffers(SMALL, op, "wide range", "nchw", CPU)
        small = buffers.dy if op == "dgrad" else buffers.x
        large = buffers.dy if op == "wgrad" else buffers.w
        assert small.abs().min() < 1e-25
        assert small.abs().max() < 1e2
        assert large.abs().max() > 1e25
