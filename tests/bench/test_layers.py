"""The arithmetic of what computing a layer takes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from math import prod

import pytest
import torch
from torch.nn import functional

from bench import contenders, corpus, machine, results, run
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


def random_layer(generator: random.Random) -> Layer:
    """A small layer that often has padding beyond its taps, skipped pixels and unmet outputs."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return generator.randint(low, high), generator.randint(low, high)

    groups = generator.choice((1, 1, 2))
    stride, dilation = pair(1, 4), pair(1, 4)
    transposed = generator.random() < 0.5
    return Layer(
        "", "", 2, 2 * groups, *pair(1, 9), 3 * groups, *pair(1, 4), stride, pair(0, 5), dilation,
        groups, transposed=transposed,
        output_padding=tuple(generator.randrange(n) for n in stride) if transposed else (0, 0),
    )  # fmt: skip


def random_layers() -> list[Layer]:
    generator = random.Random(0)
    found = (random_layer(generator) for _ in itertools.count())
    return list(itertools.islice((layer for layer in found if min(layer.output) >= 1), 300))


def meetings(layer: Layer) -> list[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]:
    """Every input pixel, tap and output pixel that meet in one image, by enumeration."""
    (first, last), (up, left), (down, right), _ = layer.geometry
    wide, narrow = (layer.H, layer.W), (layer.P, layer.Q)
    if layer.transposed:
        wide, narrow = narrow, wide
    found = []
    for i, j, r, s in itertools.product(*map(range, (*narrow, layer.R, layer.S))):
        y, x = i * first - up + r * down, j * last - left + s * right
        if 0 <= y < wide[0] and 0 <= x < wide[1]:
            ends = ((i, j), (y, x)) if layer.transposed else ((y, x), (i, j))
            found.append((ends[0], (r, s), ends[1]))
    return found


def test_flops_and_bytes_are_those_of_what_meets():
    spared = 0
    for layer in random_layers():
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
    assert spared > 300  # the layers are such that it matters


def test_the_multiplications_of_ones_are_counted():
    for layer in random_layers()[:60]:
        x, w = torch.ones(layer.input), torch.ones(layer.weight)
        if layer.transposed:
            y = functional.conv_transpose2d(x, w, None, *layer.transposed_geometry)
        else:
            y = functional.conv2d(x, w, None, *layer.geometry)
        assert layer.flops == 2 * int(y.sum()), layer


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
