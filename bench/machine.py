"""What a GPU can do at most, and what state it is in."""

from __future__ import annotations

import subprocess
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Peaks:
    """Rates that nothing can pass: dense TFLOP/s by precision, and TB/s of device memory."""

    tflops: dict[str, float]
    tb_s: float

    def as_meta(self) -> dict[str, Any]:
        return asdict(self)


def _peaks(fp32: float, tf32: float, half: float, tb_s: float) -> Peaks:
    return Peaks({"fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half}, tb_s)


# From NVIDIA's datasheets, without sparsity, sums in float32. The longest match of a name counts.
PEAKS = {
    "NVIDIA H100 80GB HBM3": _peaks(66.9, 494.7, 989.4, 3.352),
    "NVIDIA H100 PCIe": _peaks(51.2, 378.0, 756.0, 2.039),
    "NVIDIA H100 NVL": _peaks(60.0, 417.5, 835.5, 3.938),
    "NVIDIA H200": _peaks(66.9, 494.7, 989.4, 4.8),
    "NVIDIA A100-SXM4-40GB": _peaks(19.5, 156.0, 312.0, 1.555),
    "NVIDIA A100-SXM4-80GB": _peaks(19.5, 156.0, 312.0, 2.039),
    "NVIDIA A100 80GB PCIe": _peaks(19.5, 156.0, 312.0, 1.935),
}


def peaks_of(device: torch.device) -> Peaks | None:
    """The peaks of a device; None where they are not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    known = [start for start in PEAKS if name.startswith(start)]
    return PEAKS[max(known, key=len)] if known else None


def floor_ms(flops: float, least_bytes: float, precision: str, peaks: Peaks) -> float:
    """The least time for so many FLOPs, and for moving so many bytes, whichever is longer."""
    return max(flops / peaks.tflops[precision] * 1e-9, least_bytes / peaks.tb_s * 1e-9)


def _ask(device: torch.device, fields: str) -> str | None:
    """nvidia-smi's line on a GPU, some tens of milliseconds; None where it can't tell."""
    if device.type != "cuda":
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={fields}"]
    command.append("--format=csv,noheader,nounits")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def driver(device: torch.device) -> str | None:
    """The driver's version."""
    return _ask(device, "driver_version")


@dataclass(frozen=True)
class State:
    """Of the GPU at a moment: the clock of its multiprocessors, and what slows them."""

    clock_mhz: int
    heat: bool  # a thermal or power-brake slowdown
    power_cap: bool  # the plain power limit, usual under load


# Bits of NVML's clock event reasons.
HEAT_BITS = 0x08 | 0x20 | 0x40 | 0x80
POWER_CAP_BIT = 0x04


def state_of(device: torch.device) -> State | None:
    """The GPU's state now; None where it is not known."""
    line = _ask(device, "clocks.sm,clocks_event_reasons.active")
    try:
        return None if line is None else parse_state(line)
    except ValueError:
        return None


def parse_state(text: str) -> State:
    """From nvidia-smi's line: the clock in MHz, and the reasons as a hexadecimal number."""
    clock, reasons = text.split(",")
    bits = int(reasons.strip(), 16)
    return State(int(clock), bool(bits & HEAT_BITS), bool(bits & POWER_CAP_BIT))
