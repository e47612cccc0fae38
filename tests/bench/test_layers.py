"""The arithmetic of what computing a layer takes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bench import corpus
from bench.layers import Layer

TRANSPOSED = Layer(
    "", "odd transposed", 2, 6, 9, 8, 9, 3, 4, (2, 3), (1, 2), (2, 1), 3,
    transposed=True, output_padding=(1, 0),
)  # fmt: skip


@pytest.mark.parametrize(
    "layer", [*corpus.load(["smoke"]), TRANSPOSED], ids=lambda layer: layer.name
)
def test_output_size_is_pytorchs(layer):
    x, w = torch.zeros(layer.input), torch.zeros(layer.weight)
    if layer.transposed:
        y = functional.conv_transpose2d(x, w, None, *layer.transposed_geometry)
    else:
        y = functional.conv2d(x, w, None, *layer.geometry)
    assert y.shape == layer.output


def test_flops_and_bytes_by_hand():
    layer = Layer("", "", N=2, C=4, H=5, W=6, K=8, R=3, S=3, groups=2)
    assert (layer.P, layer.Q) == (3, 4)
    assert layer.flops == 2 * 2 * 8 * 3 * 4 * (2 * 3 * 3)
    assert layer.least_bytes(2) == 2 * (2 * 4 * 5 * 6 + 8 * 2 * 3 * 3 + 2 * 8 * 3 * 4)


def test_pixels_between_strides_need_not_be_read():
    layer = Layer("", "", N=2, C=4, H=7, W=9, K=8, R=1, S=2, stride=(2, 3))
    rows, columns = 4, 6  # 0 2 4 6; 0 1, 3 4, 6 7
    rest = 8 * 4 * 2 + 2 * 8 * 4 * 3
    assert layer.least_bytes(1, "fprop") == 2 * 4 * rows * columns + rest
    assert layer.least_bytes(1, "wgrad") == layer.least_bytes(1, "fprop")
    assert layer.least_bytes(1, "dgrad") == 2 * 4 * 7 * 9 + rest
