"""The floor, and what nvidia-smi says."""

from __future__ import annotations

import pytest

from bench import machine
from bench.machine import Peaks


def test_the_floor_is_the_longer_of_arithmetic_and_bytes():
    peaks = Peaks({"fp16": 1000.0}, tb_s=2.0)
    assert machine.floor_ms(5e12, 1e9, "fp16", peaks) == pytest.approx(5.0)
    assert machine.floor_ms(5e12, 2e10, "fp16", peaks) == pytest.approx(10.0)


def test_peaks_are_of_the_device_named():
    assert machine.PEAKS["NVIDIA H100 80GB HBM3"].tflops["tf32"] == 494.7
    assert machine.PEAKS["NVIDIA H200"].tb_s == 4.8


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("1980, 0x0000000000000001\n", machine.State(1980, heat=False, power_cap=False)),
        ("1200, 0x0000000000000004\n", machine.State(1200, heat=False, power_cap=True)),
        ("900, 0x0000000000000068\n", machine.State(900, heat=True, power_cap=False)),
    ],
)
def test_clock_and_reasons_are_read(line, state):
    assert machine.parse_state(line) == state
