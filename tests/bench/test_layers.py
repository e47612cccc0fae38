"""The arithmetic of what computing a layer takes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from math import prod

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bench import contenders, corpus, machine, results, run
from bench.layers import Layer, title

TRANSPOSED = Layer(
    "", "odd transposed", 2, 6, 9, 8, 9, 3, 4, (2, 3), (1, 2), (2, 1), 3,
    transposed=True, output_padding=(1, 0),
)  # fmt: skip
SOLID = replace(
    TRANSPOSED, name="odd transposed volume", D=5, T=2, stride=(3, 2, 3), pad=(1, 1, 2),
    dil=(1, 2, 1), output_padding=(2, 1, 0),
)  # fmt: skip


def convolved(layer: Layer, x: Tensor, w: Tensor) -> Tensor:
    if layer.transposed:
        function = (functional.conv_transpose2d, functional.conv_transpose3d)[layer.dims - 2]
        return function(x, w, None, *layer.transposed_geometry)
    function = (functional.conv2d, functional.conv3d)[layer.dims - 2]
    return function(x, w, None, *layer.geometry)


@pytest.mark.parametrize(
    "layer",
    [*corpus.load(["smoke", "smoke volumes"]), TRANSPOSED, SOLID],
    ids=lambda layer: layer.name,
)
def test_output_size_is_pytorchs(layer):
    x, w = torch.zeros(layer.input), torch.zeros(layer.weight)
    assert convolved(layer, x, w).shape == layer.output


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


def random_layer(generator: random.Random, dims: int) -> Layer:
    """A small layer that often has padding beyond its taps, skipped pixels and unmet outputs."""

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return tuple(generator.randint(low, high) for _ in range(dims))

    groups = generator.choice((1, 1, 2))
    stride, dilation = numbers(1, 4), numbers(1, 4)
    transposed = generator.random() < 0.5
    *deep, high, wide = numbers(1, 9 if dims == 2 else 6)
    *depth, r, s = numbers(1, 4 if dims == 2 else 3)
    return Layer(
        "", "", 2, 2 * groups, high, wide, 3 * groups, r, s, stride, numbers(0, 5), dilation,
        groups, transposed=transposed, D=deep[0] if deep else None, T=depth[0] if depth else 1,
        output_padding=tuple(generator.randrange(n) for n in stride) if transposed else (0, 0),
    )  # fmt: skip


def random_layers(dims: int) -> list[Layer]:
    generator = random.Random(0)
    found = (random_layer(generator, dims) for _ in itertools.count())
    small = (layer for layer in found if 1 <= min(layer.output) and max(layer.output) < 40)
    return list(itertools.islice(small, {2: 300, 3: 100}[dims]))


Index = tuple[int, ...]


def meetings(layer: Layer) -> list[tuple[Index, Index, Index]]:
    """Every input pixel, tap and output pixel that meet in one image, by enumeration."""
    wide, narrow, filter_ = layer.input[2:], layer.output[2:], layer.weight[2:]
    if layer.transposed:
        wide, narrow = narrow, wide
    axes = [
        [
            (pixel, tap, place)
            for place in range(outputs)
            for tap in range(taps)
            if 0 <= (pixel := place * stride - pad + tap * dilation) < size
        ]
        for size, outputs, taps, stride, pad, dilation in zip(
            wide, narrow, filter_, layer.stride, layer.pad, layer.dil, strict=True
        )
    ]
    found = []
    for met in itertools.product(*axes):
        pixel, tap, place = (tuple(each) for each in zip(*met, strict=True))
        found.append((place, tap, pixel) if layer.transposed else (pixel, tap, place))
    return found


@pytest.mark.parametrize("dims", [2, 3])
def test_flops_and_bytes_are_those_of_what_meets(dims):
    spared = 0
    layers = random_layers(dims)
    for layer in layers:
        met = meetings(layer)
        assert layer.flops == 2 * layer.N * layer.C * layer.K // layer.groups * len(met), layer
        inputs, taps, outputs = (
            (len(set(each)) for each in zip(*met, strict=True)) if met else (0,) * 3
        )
        moved = {
            "x": layer.N * layer.C * inputs,
            "w": prod(layer.weight[:2]) * taps,
            "y": layer.N * layer.K * outputs,
        }
        whole = {"x": prod(layer.input), "w": prod(layer.weight), "y": prod(layer.output)}
        for op, written in (("fprop", "y"), ("dgrad", "x"), ("wgrad", "w")):
            expected = sum((moved | {written: whole[written]}).values())
            assert layer.least_bytes(4, op) == 4 * expected, (layer, op)
            spared += expected < sum(whole.values())
    assert spared > len(layers)  # the layers are such that it matters


@pytest.mark.parametrize("dims", [2, 3])
def test_the_multiplications_of_ones_are_counted(dims):
    for layer in random_layers(dims)[:60]:
        x, w = torch.ones(layer.input), torch.ones(layer.weight)
        assert layer.flops == 2 * int(convolved(layer, x, w).sum()), layer


def test_a_volume_by_hand():
    layer = Layer("", "", N=2, C=4, D=4, H=5, W=6, K=8, T=2, R=3, S=3, groups=2, pad=(1, 0, 0))
    assert (layer.O, layer.P, layer.Q) == (5, 3, 4)
    assert layer.flops == 2 * 2 * 8 * (8 * 3 * 4) * (2 * 3 * 3)  # 8 pairs of a frame and a tap
    assert layer.least_bytes(2) == 2 * (2 * 4 * 4 * 5 * 6 + 8 * 2 * 2 * 3 * 3 + 2 * 8 * 5 * 3 * 4)
    assert layer.problem() == {
        "N": 2, "C": 4, "D": 4, "H": 5, "W": 6, "K": 8, "T": 2, "R": 3, "S": 3, "O": 5, "P": 3,
        "Q": 4, "stride": [1, 1, 1], "pad": [1, 0, 0], "dil": [1, 1, 1], "groups": 2,
    }  # fmt: skip


def test_a_pair_says_nothing_of_the_depth():
    layer = Layer("", "", 1, 4, 5, 6, 8, 3, 3, (2, 2), (1, 1), D=4, T=3)
    assert (layer.stride, layer.pad, layer.dil) == ((1, 2, 2), (0, 1, 1), (1, 1, 1))
    assert layer.output == (1, 8, 2, 3, 3)


def test_a_transposed_layer_reverses_a_convolution():
    for layer in (TRANSPOSED, SOLID):
        convolution, op = layer.as_convolution("fprop")
        assert op == "dgrad"
        assert (convolution.input, convolution.output) == (layer.output, layer.input)
        assert convolution.weight == layer.weight
        assert convolution.flops == layer.flops


def test_a_row_of_a_volume_has_its_sizes_for_a_title():
    assert title("conv", TRANSPOSED.problem()) == "conv"
    assert title("conv", SOLID.problem()) == "6x5x9x8 to 9, 2x3x4"


def test_padding_is_no_work():
    layer = Layer("", "", N=1, C=1, H=1, W=1, K=1, R=3, S=3, pad=(1, 1))
    assert layer.flops == 2
    assert replace(layer, H=2, W=2).flops == 2 * 16


def layer_of(problem: dict[str, object]) -> Layer:
    """The layer of a row's problem, without its name."""
    sizes = {k: tuple(v) if isinstance(v, list) else v for k, v in problem.items()}
    layer = Layer("", "", **{k: v for k, v in sizes.items() if k not in ("P", "Q")})
    assert (layer.P, layer.Q) == (sizes["P"], sizes["Q"])
    return layer


def test_no_published_row_is_faster_than_its_floor():
    """But cuDNN's in float32 may be: Winograd's method takes fewer products."""
    file = results.load(run.HERE / "results" / "h100.json")
    peaks = machine.Peaks(**file["meta"]["peaks"])
    faster = []
    for row in file["rows"]:
        if "error" in row:
            continue
        layer = layer_of(row["problem"])
        least = layer.least_bytes(contenders.DTYPES[row["precision"]].itemsize, row["op"])
        floor = machine.floor_ms(layer.flops, least, row["precision"], peaks)
        counted = (
            [row["ours_ms"]] if row["precision"] == "fp32" else [row["ours_ms"], row["peer_ms"]]
        )
        if floor > min(counted):
            faster.append((results.key(row), floor, row["ours_ms"], row["peer_ms"]))
    assert not faster
