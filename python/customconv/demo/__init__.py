"""The demonstration: a photograph filtered, a small network trained, a few shapes timed."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console

from . import digits, photo, table


def run(out: Path, device: torch.device, quick: bool) -> int:
    """Runs the three parts.

    Args:
        out: The folder that the picture is written to.
        device: Where to compute.
        quick: Take fewer steps.

    Returns:
        0 if every check passed, else 1.
    """
    console = Console()
    console.print(f"customconv on {device_name(device)}, PyTorch {torch.__version__}")
    torch.manual_seed(0)
    # Like against like: float32 throughout, without the rounding of products to TF32.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        passed = [
            photo.run(console, out, device),
            digits.run(console, device, quick),
        ]
        table.run(console, device, quick)
    console.print("all checks passed" if all(passed) else "[bold red]a check failed")
    return 0 if all(passed) else 1


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"
