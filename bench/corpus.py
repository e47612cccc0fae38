"""All layers, by suite: those of public networks and benchmarks, and drawn ones.

Layers of shapes.json have the batch sizes of their sources. Those of network_layers.json, which
`python -m bench extract` lists, have batch sizes drawn by a fixed seed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from . import drawn
from .layers import Layer

SHAPES = Path(__file__).with_name("shapes.json")
NETWORK_LAYERS = Path(__file__).with_name("network_layers.json")
ALL = "all"  # stands for every suite but these
# Small layers for the CPU, sweeps, which are in no mean, and what only judges.
BESIDE_ALL = ("smoke", "scaling", drawn.JUDGED_SUITE, drawn.SMALL_SUITE)
PAIRS = ("stride", "pad", "dil", "output_padding")
NETWORK_SEED = 20261126


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


@cache
def network_layers() -> tuple[Layer, ...]:
    """Every layer of network_layers.json: a suite for each network."""
    networks = json.loads(NETWORK_LAYERS.read_text())
    columns = networks.pop("columns")
    found = []
    for number, (network, rows) in enumerate(networks.items()):
        draw = drawn.Draw(NETWORK_SEED + number)
        for row in rows:
            sizes: dict[str, Any] = {
                k: tuple(v) if k in PAIRS else v for k, v in zip(columns, row, strict=True)
            }
            sizes |= {"bias": bool(sizes["bias"]), "transposed": bool(sizes["transposed"])}
            layer = drawn.batched(draw, Layer(network, "", 1, **sizes, source="bench/extract.py"))
            found.append(replace(layer, name=_name(layer)))
    return tuple(found)


def _name(layer: Layer) -> str:
    """Names a layer by its sizes."""
    by = " x ".join(map(str, (layer.C, layer.H, layer.W)))
    parts = [f"{by} to {layer.K}, {layer.R} x {layer.S}"]
    if max(layer.stride) > 1:
        parts.append(f"stride {max(layer.stride)}")
    if max(layer.dil) > 1:
        parts.append(f"dilation {max(layer.dil)}")
    if layer.groups > 1:
        parts.append(f"groups {layer.groups}")
    return ", ".join(parts)


def all_layers() -> tuple[Layer, ...]:
    """Every layer of shapes.json, then the drawn ones, then those of networks."""
    return known_layers() + drawn.layers() + network_layers()


def _every_layer() -> tuple[Layer, ...]:
    """Those of ``all_layers``, then those that only judge."""
    return all_layers() + drawn.judged_layers()


def suites() -> list[str]:
    """The names of all suites, in the order of ``all_layers``, then those that only judge."""
    return list(dict.fromkeys(layer.suite for layer in _every_layer()))


def load(chosen: Sequence[str], batch: int | None = None) -> list[Layer]:
    """The layers of these suites.

    Args:
        chosen: Names of suites, or ``all`` for every suite but ``smoke``, ``scaling`` and what
            only judges; a batch size for all layers of one may follow: ``resnet50:64``.
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
            layer for layer in _every_layer()
            if layer.suite == name or (name == ALL and layer.suite not in BESIDE_ALL)
        ]  # fmt: skip
        found += layers if size is None else [layer.with_batch(size) for layer in layers]
    return found
