"""Peak rates that follow from a device's properties, against published ones."""

from __future__ import annotations

import pytest
from random_problems import DEVICES, DTYPES

# TFLOP/s: float32 and float64 by CUDA cores, then dense matrix products in float16 and TF32.
PUBLISHED = {
    "A100": (19.5, 9.7, 312, 156),
    "H100": (67, 34, 989, 495),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rates(name):
    device = DEVICES[name]
    rates = (
        device.vector_flops("float32"),
        device.vector_flops("float64"),
        device.matrix_flops("float16", False),
        device.matrix_flops("float32", True),
    )
    assert [rate / 1e12 for rate in rates] == pytest.approx(PUBLISHED[name], rel=0.15)


@pytest.mark.parametrize("name", DEVICES)
def test_rates_stand_in_their_order(name):
    device = DEVICES[name]
    vector = {dtype: device.vector_flops(dtype) for dtype in DTYPES}
    matrix = {dtype: device.matrix_flops(dtype, False) for dtype in DTYPES}
    assert 1e11 < vector["float64"] < vector["float32"]
    # Sums are kept in float32, so narrow types are no faster on CUDA cores.
    assert vector["float16"] == vector["bfloat16"] == vector["float32"]
    assert matrix["float16"] == matrix["bfloat16"] > device.matrix_flops("float32", True)
    assert device.matrix_flops("float32", True) >= matrix["float32"] == vector["float32"]
    assert matrix["float64"] >= vector["float64"]
    for dtype in ("float64", "float16"):
        assert device.matrix_flops(dtype, True) == matrix[dtype], "TF32 is float32's only"


def test_rates_grow_with_the_device():
    small, large = DEVICES["laptop of 8.6"], DEVICES["consumer 12.0"]
    for dtype in DTYPES:
        assert small.vector_flops(dtype) < large.vector_flops(dtype)


def test_only_parts_for_computing_centres_are_fast_in_float64():
    for name, device in DEVICES.items():
        share = device.vector_flops("float64") / device.vector_flops("float32")
        assert share == (1 / 2 if name in PUBLISHED else 1 / 64), name


def test_unknown_dtypes():
    with pytest.raises(ValueError, match="unknown dtype 'float8'"):
        DEVICES["H100"].vector_flops("float8")
