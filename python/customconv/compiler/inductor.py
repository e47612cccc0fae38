"""The pass over each graph that Inductor compiles, after autograd."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from .. import _bind
from ..info import build_info
from .composed import compose_unfused
from .layout import allows_tf32, choose_layout
from .parameters import gather_batch_norms, gather_copies
from .statistics import count_together, fuse_statistics


class InductorPass(CustomGraphPass):
    """The pass, after another one that a user has asked for."""

    def __init__(self, before: Callable[[fx.Graph], None] | None = None) -> None:
        """Takes the user's pass, or None."""
        self.before = before

    def __call__(self, graph: fx.Graph) -> None:
        """Changes a graph in place."""
        if self.before is not None:
            self.before(graph)
        choose_layout(graph)
        compose_unfused(graph)
        gather_batch_norms(graph)
        gather_copies(graph)
        fuse_statistics(graph)
        count_together(graph)

    def uuid(self) -> Any:
        """What cached code depends on: this package's version and build, and the user's pass."""
        before = self.before.uuid() if isinstance(self.before, CustomGraphPass) else None
        if self.before is not None and not before:
            return None  # which keeps Inductor from caching
        version = build_info()["version"]
        return "customconv", version, _hash(), _autocast_state(), allows_tf32(), before


def _autocast_state() -> tuple[tuple[str, bool, str], ...]:
    """What autocast makes of a graph. Caches that see the graph before autograd do not look."""
    return tuple(
        (kind, torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind)))
        for kind in ("cuda", "cpu")
    )


@functools.cache
def _hash() -> str:
    """A hash of the binary, and of the Python code that graphs are changed by."""
    package = Path(_bind.__file__).parent
    digest = hashlib.sha256(Path(_bind.__file__).read_bytes())
    for path in (package / "fake.py", *sorted((package / "compiler").glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()
