"""Processes that are the ranks of a group, for tests of several devices."""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = datetime.timedelta(seconds=60)

# Of a test that runs on CPUs, and on GPUs where there are two.
BACKENDS = [
    "gloo",
    pytest.param(
        "nccl",
        marks=[
            pytest.mark.gpu,
            pytest.mark.multi_gpu,
            pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
        ],
    ),
]


def _rank(
    rank: int, ranks: int, store: str, backend: str, function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    if backend == "nccl":
        torch.cuda.set_device(rank)
        torch.backends.cudnn.allow_tf32 = False  # so that integers are exact
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=TIMEOUT
    )
    try:
        function(*arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run(function: Callable[..., None], *arguments: Any, ranks: int, backend: str = "gloo") -> None:
    """Calls a function in each of ``ranks`` processes that are a group; raises what one raises."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mp.spawn(_rank, (ranks, store, backend, function, arguments), ranks)
