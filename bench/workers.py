"""Processes in which networks are compiled side by side."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from unittest import mock


@contextlib.contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yields so many processes, in each of which Inductor compiles on its share of the cores.

    What they have not begun at the end is left undone.
    """
    threads = max(1, (os.cpu_count() or 1) // count)
    # Inductor reads it when it is imported, and starts as many processes of its own.
    with mock.patch.dict(os.environ, {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}):
        pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)
