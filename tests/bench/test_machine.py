"""The floor, and what NVML says."""

from __future__ import annotations

import pytest
import torch

from bench import machine
from bench.machine import Peaks


def test_the_floor_is_the_longer_of_arithmetic_and_bytes():
    peaks = Peaks({"fp16": 1000.0}, tb_s=2.0)
    assert machine.floor_ms(5e12, 1e9, "fp16", peaks) == pytest.approx(5.0)
    assert machine.floor_ms(5e12, 2e10, "fp16", peaks) == pytest.approx(10.0)


def test_peaks_are_of_the_device_named():
    assert machine.PEAKS["NVIDIA H100 80GB HBM3"].tflops["tf32"] == 494.7
    assert machine.PEAKS["NVIDIA H100 80GB HBM3"].tflops["fp32"] == 164.9
    assert machine.PEAKS["NVIDIA H200"].tb_s == 4.8


@pytest.mark.parametrize(
    ("reasons", "heat", "power_cap"),
    [(0x01, False, False), (0x04, False, True), (0x68, True, False)],
)
def test_reasons_are_told_apart(reasons, heat, power_cap):
    assert machine.state(1980, reasons) == machine.State(1980, heat, power_cap)


@pytest.mark.gpu
def test_a_gpu_has_a_state():
    found = machine.state_of(torch.device("cuda"))
    assert found is not None
    assert found.clock_mhz > 0
