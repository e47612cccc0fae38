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
ALL = "all"  # stands for every suite but these two
BESIDE_ALL = ("smoke", "scaling")  # small layers for the CPU, and sweeps, which are in no mean
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
    """The layers of these suites.

    Args:
        chosen: Names of suites, or ``all`` for every suite but ``smoke`` and ``scaling``; a batch
            size for all layers of one may follow: ``resnet50:64``.
        batch: The batch size of all other layers, or None for their own.

    Raises:
        ValueError: There is no suite of that name.
    """
    names = [text.partition(":")[::2] for text in chosen]
    if unknown := {name for name, _ in names} - {*suites(), ALL}:
        raise ValueError(
            f"no suite {', '.join(sorted(unknown))}: expected some of {', '.join(suites())}, {ALL}"
        )
    found = []
    for name, number in names:
        size = int(number) if number else batch
        layers = [
            layer for layer in all_layers()
            if layer.suite == name or (name == ALL and layer.suite not in BESIDE_ALL)
        ]  # fmt: skip
        found += layers if size is None else [layer.with_batch(size) for layer in layers]
    return found
