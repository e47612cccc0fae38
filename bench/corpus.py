"""All layers, by suite: those of public networks and benchmarks, and drawn ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from . import drawn
from .layers import Layer

SHAPES = Path(__file__).with_name("shapes.json")
PAIRS = ("stride", "pad", "dil", "output_padding")


@cache
def known_layers() -> tuple[Layer, ...]:
    """Every layer of shapes.json."""
    names = {field.name for field in fields(Layer)}
    found = []
    for entry in json.loads(SHAPES.read_text()):
        known: dict[str, Any] = {
            k: tuple(v) if k in PAIRS else v for k, v in entry.items() if k in names
        }
        found.append(Layer(**known | {"bias": bool(entry.get("bias"))}))
    return tuple(found)


def all_layers() -> tuple[Layer, ...]:
    """Every layer of shapes.json, then the drawn ones."""
    return known_layers() + drawn.layers()


def suites() -> list[str]:
    """The names of all suites, in the order of ``all_layers``."""
    return list(dict.fromkeys(layer.suite for layer in all_layers()))


def load(chosen: Sequence[str], batch: int | None = None) -> list[Layer]:
    """The layers of these suites, with another batch size if one is given."""
    unknown = set(chosen) - set(suites())
    if unknown:
        raise ValueError(
            f"no suite {', '.join(sorted(unknown))}: expected some of {', '.join(suites())}"
        )
    layers = [layer for name in chosen for layer in all_layers() if layer.suite == name]
    return layers if batch is None else [layer.with_batch(batch) for layer in layers]
