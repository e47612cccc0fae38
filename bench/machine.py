"""A GPU's peak rates and current state."""

from __future__ import annotations

import subprocess
from dataclasses import asdict, dataclass
from typing import Any

import pynvml
import torch


@dataclass(frozen=True)
class Peaks:
    """Peak rates: dense TFLOP/s by precision, and TB/s of device memory."""

    tflops: dict[str, float]
    tb_s: float

    def as_meta(self) -> dict[str, Any]:
        return asdict(self)


def _peaks(vector: float, tf32: float, half: float, tb_s: float) -> Peaks:
    fp32 = round(max(vector, tf32 / 3), 1)  # a product of float32 is three of TF32's
    return Peaks({"fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half}, tb_s)


# From NVIDIA's datasheets: no sparsity, float32 accumulation. The longest matching name counts.
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
    """Returns the peaks of a device, or None if they are not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    known = [start for start in PEAKS if name.startswith(start)]
    return PEAKS[max(known, key=len)] if known else None


def floor_ms(flops: float, least_bytes: float, precision: str, peaks: Peaks) -> float:
    """Returns the time for the FLOPs or for the bytes at peak rates, whichever is longer."""
    return max(flops / peaks.tflops[precision] * 1e-9, least_bytes / peaks.tb_s * 1e-9)


def _uuid(device: torch.device) -> str:
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def driver(device: torch.device) -> str | None:
    """The driver's version; None where nvidia-smi has no answer."""
    if device.type != "cuda":
        return None
    command = ["nvidia-smi", f"--id={_uuid(device)}", "--query-gpu=driver_version"]
    command.append("--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@dataclass(frozen=True)
class State:
    """The GPU's SM clock at one moment, and what slows it."""

    clock_mhz: int
    heat: bool  # a thermal or power-brake slowdown
    power_cap: bool  # the plain power limit, usual under load


# Bits of NVML's clock event reasons.
HEAT_BITS = 0x08 | 0x20 | 0x40 | 0x80
POWER_CAP_BIT = 0x04


def state_of(device: torch.device) -> State | None:
    """Returns the GPU's current state, or None if it is not known."""
    if device.type != "cuda":
        return None
    try:
        pynvml.nvmlInit()  # counts, and is quick after the first time
        handle = pynvml.nvmlDeviceGetHandleByUUID(_uuid(device))
        clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except pynvml.NVMLError:
        return None
    return state(clock, reasons)


def state(clock_mhz: int, reasons: int) -> State:
    """The state that NVML's clock and event reasons say."""
    return State(clock_mhz, bool(reasons & HEAT_BITS), bool(reasons & POWER_CAP_BIT))
