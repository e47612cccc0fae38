"""Processes that are the ranks of a group, for tests of several devices."""

from __future__ import annotations

import datetime
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

TIMEOUT = datetime.timedelta(seconds=60)

TWO_GPUS = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

# Of a test that runs on CPUs, and on GPUs where there are two.
BACKENDS = ["gloo", pytest.param("nccl", marks=TWO_GPUS)]

# torchrun starts pytest once for each rank, and all of them run the same tests in the same order.
TORCHRUN = dist.is_torchelastic_launched()

# Of a test in one process that uses several GPUs.
WITHOUT_RANKS = [
    *TWO_GPUS,
    pytest.mark.skipif(
        TORCHRUN and os.environ["RANK"] != "0", reason="rank 0 runs tests without ranks"
    ),
]

_groups = itertools.count()


def _rank(
    rank: int, store: dist.Store, ranks: int, backend: str, function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.backends.cudnn.allow_tf32 = False  # so that integers are exact
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    # After an error nobody waits for the other ranks, which may wait for this one.
    function(*arguments)
    dist.barrier()
    dist.destroy_process_group()


def _spawned(rank: int, file: str, ranks: int, *others: Any) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    _rank(rank, dist.FileStore(file, ranks), ranks, *others)
    # A thread of gloo that lets go of a tensor while the interpreter ends would abort the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run_by_torchrun(ranks: int, *others: Any) -> None:
    if int(os.environ["WORLD_SIZE"]) != ranks:
        pytest.skip(f"needs {ranks} ranks, and torchrun started {os.environ['WORLD_SIZE']}")
    store, rank, _ = next(dist.rendezvous("env://", timeout=TIMEOUT))
    # The store outlives the group, and a second group must not find what the first one left.
    _rank(rank, dist.PrefixStore(f"group {next(_groups)}", store), ranks, *others)


def run(function: Callable[..., None], *arguments: Any, ranks: int, backend: str = "gloo") -> None:
    """Calls a function in each of ``ranks`` processes that are a group; raises what one raises.

    They are new processes, or those that torchrun has started.
    """
    if TORCHRUN:
        _run_by_torchrun(ranks, backend, function, arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mp.spawn(_spawned, (store, ranks, backend, function, arguments), ranks)


@contextmanager
def common_folder() -> Iterator[str]:
    """A folder of all ranks, until the last of them is done with it."""
    with tempfile.TemporaryDirectory() as own:
        names = [own]
        dist.broadcast_object_list(names)
        yield names[0]
        dist.barrier()


def device() -> torch.device:
    """Of this rank."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def mesh_of(*sizes: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
    """A mesh of these sizes, or of all ranks along one dimension."""
    whole = sizes or (dist.get_world_size(),)
    return init_device_mesh(device().type, whole, mesh_dim_names=names)


def integers(*sizes: int) -> Tensor:
    """So small that sums through a whole network are exact in float32; on the CPU."""
    return torch.randint(-1, 2, sizes).float()
