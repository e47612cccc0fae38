"""All layers, by suite: those of public networks and benchmarks, and drawn ones.

Layers of shapes.json have the batch sizes of their sources. Those of network_layers.json, which
`python -m bench extract` lists, have batch sizes drawn by a fixed seed. Layers of volumes are in
suites of their own: those of conv3d_layers.json with the batch sizes of their sources, and those of
network_volumes.json as those of network_layers.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from . import drawn, drawn3d
from .layers import Layer

SHAPES = Path(__file__).with_name("shapes.json")
NETWORK_LAYERS = Path(__file__).with_name("network_layers.json")
VOLUME_LAYERS = Path(__file__).with_name("conv3d_layers.json")
NETWORK_VOLUMES = Path(__file__).with_name("network_volumes.json")
VOLUMES = "volumes"  # stands for these suites
VOLUME_SUITES = ("video_vae", "medical", "action", "patch_embed")
ALL = "all"  # stands for every suite but these
# Volumes, and small layers for the CPU, sweeps, which are in no mean, and what only judges.
BESIDE_ALL = ("smoke", "scaling", drawn.JUDGED_SUITE, drawn.SMALL_SUITE)
GROUPS = (ALL, VOLUMES)
NUMBERS = ("stride", "pad", "dil", "output_padding")
NETWORK_SEED = 20261126


def _read(path: Path) -> tuple[Layer, ...]:
    names = {field.name for field in fields(Layer)}
    found = []
    for entry in json.loads(path.read_text()):
        known: dict[str, Any] = {
            k: tuple(v) if k in NUMBERS else v for k, v in entry.items() if k in names
        }
        found.append(Layer(**known | {"bias": bool(entry.get("bias"))}))
    return tuple(found)


@cache
def known_layers() -> tuple[Layer, ...]:
    """Every layer of shapes.json."""
    return _read(SHAPES)


@cache
def volume_layers() -> tuple[Layer, ...]:
    """Every layer of conv3d_layers.json: small ones, and those of networks that see volumes."""
    return _read(VOLUME_LAYERS)


def _of_networks(path: Path, among: tuple[float, float], most: int) -> tuple[Layer, ...]:
    networks = json.loads(path.read_text())
    columns = networks.pop("columns")
    found = []
    for number, (network, rows) in enumerate(networks.items()):
        draw = drawn.Draw(NETWORK_SEED + number)
        for row in rows:
            sizes: dict[str, Any] = {
                k: tuple(v) if k in NUMBERS else v for k, v in zip(columns, row, strict=True)
            }
            sizes |= {"bias": bool(sizes["bias"]), "transposed": bool(sizes["transposed"])}
            one = Layer(network, "", 1, **sizes, source="bench/extract.py")
            layer = drawn.batched(draw, one, among, most)
            found.append(replace(layer, name=_name(layer)))
    return tuple(found)


@cache
def network_layers() -> tuple[Layer, ...]:
    """Every layer of network_layers.json: a suite for each network."""
    return _of_networks(NETWORK_LAYERS, drawn.FLOPS, drawn.MOST_ELEMENTS)


@cache
def network_volumes() -> tuple[Layer, ...]:
    """Every layer of network_volumes.json, likewise."""
    return _of_networks(NETWORK_VOLUMES, drawn3d.FLOPS, drawn3d.MOST_ELEMENTS)


def _name(layer: Layer) -> str:
    """Names a layer by its sizes."""
    by, taps = (" x ".join(map(str, each)) for each in (layer.input[1:], layer.weight[2:]))
    parts = [f"{by} to {layer.K}, {taps}"]
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
    """Those of ``all_layers``, then those that only judge, then volumes in the same order."""
    volumes = volume_layers() + network_volumes() + drawn3d.judged_layers()
    return all_layers() + drawn.judged_layers() + volumes


def suites() -> list[str]:
    """The names of all suites, in the order of ``all_layers``, then those beside them."""
    return list(dict.fromkeys(layer.suite for layer in _every_layer()))


def load(chosen: Sequence[str], batch: int | None = None) -> list[Layer]:
    """The layers of these suites.

    Args:
        chosen: Names of suites; ``all`` for every suite but ``smoke``, ``scaling``, volumes and
            what only judges; ``volumes`` for the four suites of networks that see volumes. A batch
            size for all layers of one may follow: ``resnet50:64``.
        batch: The batch size of all other layers, or None for their own.

    Raises:
        ValueError: There is no suite of that name.
    """
    names = [text.partition(":")[::2] for text in chosen]
    if unknown := {name for name, _ in names} - {*suites(), *GROUPS}:
        raise ValueError(
            f"no suite {', '.join(sorted(unknown))}: "
            f"expected some of {', '.join((*suites(), *GROUPS))}"
        )
    found = []
    for name, number in names:
        size = int(number) if number else batch
        layers = [
            layer for layer in _every_layer()
            if layer.suite == name
            or (name == ALL and layer.D is None and layer.suite not in BESIDE_ALL)
            or (name == VOLUMES and layer.suite in VOLUME_SUITES)
        ]  # fmt: skip
        found += layers if size is None else [layer.with_batch(size) for layer in layers]
    return found
