"""Kernels that sum up the statistics of an output's channels, run on the CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import emulation_build as build
import pytest
import torch
from reference import LAYOUTS
from torch import Tensor

pytestmark = pytest.mark.skipif(build.toolkit() is None, reason="no CUDA toolkit for its headers")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EPS, MOMENTUM = 1e-3, 0.25
# Outputs: whole vectors of channels and pixels or not, one channel, one pixel, several parts.
SHAPES = {
    "usual": (2, 64, 9, 8), "odd": (3, 37, 5, 7), "one_channel": (2, 1, 11, 11),
    "one_pixel": (9, 24, 1, 1), "many_pixels": (1, 8, 40, 41), "many_parts": (70, 5, 3, 3),
    "wide": (1, 200, 4, 4), "whole_pieces": (2, 3, 32, 32),
}  # fmt: skip


class _Output(ctypes.Structure):
    _fields_ = [
        ("sizes", ctypes.c_int64 * 4),
        ("channels_last", ctypes.c_int64),
        ("dtype", ctypes.c_int64),
    ]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path: Path = build.built(tmp_path_factory, "statistics")
    loaded = ctypes.CDLL(str(path))
    loaded.count_parts.restype = ctypes.c_int64
    loaded.leave_parts.restype = loaded.merge_parts.restype = ctypes.c_char_p
    return loaded


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def aligned(y: Tensor, layout: torch.memory_format) -> Tensor:
    """The same at a multiple of 16 bytes, as PyTorch's tensors are on a GPU."""
    strides = torch.empty(y.shape, device="meta").to(memory_format=layout).stride()
    memory = torch.empty(y.numel() + 16, dtype=y.dtype)
    first = -memory.data_ptr() % 16 // y.element_size()
    return memory.as_strided(y.shape, strides, first).copy_(y)


def parts_of(library: ctypes.CDLL, y: Tensor, layout: torch.memory_format) -> tuple[Tensor, Tensor]:
    """The moments and the pixels of each part, in memory that held no numbers."""
    last = int(layout is torch.channels_last)
    output = _Output(tuple(y.shape), last, DTYPES.index(y.dtype))
    count = library.count_parts(ctypes.byref(output))
    moments = torch.full((count, y.shape[1], 2), torch.nan)
    counts = torch.full((count,), torch.nan)
    error = library.leave_parts(ctypes.byref(output), *map(pointer, (y, moments, counts)))
    assert error is None, error
    return moments, counts


def merged(library: ctypes.CDLL, moments: Tensor, counts: Tensor, running: Tensor) -> list[Tensor]:
    """Means, variances and reciprocal standard deviations; those that run are updated."""
    channels = moments.shape[1]
    found = [*(torch.full((channels,), torch.nan) for _ in range(3)), *running]
    pointers = (ctypes.c_void_p * 5)(*(each.data_ptr() for each in found))
    error = library.merge_parts(
        pointer(moments), pointer(counts), ctypes.c_int64(len(counts)), ctypes.c_int64(channels),
        ctypes.c_int64(int(counts.sum())), ctypes.c_float(EPS), ctypes.c_float(MOMENTUM), pointers,
    )  # fmt: skip
    assert error is None, error
    return found[:3]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_statistics_of_an_output(library, name, dtype, layout):
    torch.manual_seed(0)
    y = aligned((torch.randn(SHAPES[name]) + 3).to(dtype), layout)
    moments, counts = parts_of(library, y, layout)
    assert counts.sum() == y[:, 0].numel()
    before = torch.rand(2, y.shape[1])
    running = before.clone()
    mean, variance, reciprocal_std = merged(library, moments, counts, running)
    expected_variance, expected_mean = torch.var_mean(y.double(), (0, 2, 3), correction=0)
    torch.testing.assert_close(mean.double(), expected_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance.double(), expected_variance, rtol=1e-5, atol=1e-6)
    expected = (expected_variance + EPS).rsqrt()
    torch.testing.assert_close(reciprocal_std.double(), expected, rtol=1e-5, atol=1e-6)
    new = torch.stack([expected_mean, y.double().var((0, 2, 3))])
    expected = (1 - MOMENTUM) * before + MOMENTUM * new
    torch.testing.assert_close(running.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 4, 5, 67])
@pytest.mark.parametrize("count", [1, 31, 128, 129, 1500])
def test_parts_of_any_number_are_merged(library, channels, count):
    """Parts of different sizes, also empty ones, and means that are far apart."""
    torch.manual_seed(0)
    counts = torch.randint(0, 9, (count,)).float()
    counts[0] = 8
    moments = torch.rand(count, channels, 2) + torch.tensor([100.0, 0.0])
    moments[counts == 0] = 0
    mean, variance, _ = merged(library, moments, counts, torch.rand(2, channels))
    weights = counts.double()[:, None]
    means, squares = moments.double().unbind(2)
    expected = (weights * means).sum(0) / weights.sum()
    torch.testing.assert_close(mean.double(), expected, rtol=1e-6, atol=0)
    expected = (squares + weights * (means - expected).square()).sum(0) / weights.sum()
    torch.testing.assert_close(variance.double(), expected, rtol=1e-4, atol=0)
