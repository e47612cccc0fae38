"""The layers, and the arithmetic of what computing them takes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bench import layers
from bench.layers import Layer

TRANSPOSED = Layer(
    "", "odd transposed", 2, 6, 9, 8, 9, 3, 4, (2, 3), (1, 2), (2, 1), 3,
    transposed=True, output_padding=(1, 0),
)  # fmt: skip


@pytest.mark.parametrize(
    "layer", [*layers.load(["smoke"]), TRANSPOSED], ids=lambda layer: layer.name
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


def test_every_layer_has_a_source_and_an_output_and_a_name_of_its_own():
    found = layers.all_layers()
    assert len(found) > 200
    assert len({(layer.suite, layer.name) for layer in found}) == len(found)
    for layer in found:
        assert layer.source, layer
        assert min(layer.output) >= 1, layer


def test_a_batch_replaces_every_layers():
    assert {layer.N for layer in layers.load(["resnet50"], batch=7)} == {7}


def test_an_unknown_suite_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="no suite nonsense: expected some of original,"):
        layers.load(["nonsense"])
