"""The picture of known networks and layers: ours beside eager PyTorch and Inductor."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from . import results
from .figures import WIDTH, Theme, times
from .results import Results, Row

BATCH = 64
NETWORKS = {
    "resnet50": "ResNet-50",
    "resnext50_32x4d": "ResNeXt-50",
    "regnet_y_3_2gf": "RegNetY-3.2GF",
    "convnext_tiny": "ConvNeXt-T",
    "efficientnet_b0": "EfficientNet-B0",
    "mobilenetv3_large": "MobileNetV3-L",
    "unet": "U-Net",
    "sd15_vae_decoder": "Stable Diffusion decoder",
}
KINDS = {
    ("amp-fp16", "nhwc"): "float16 autocast, NHWC",
    ("tf32", "nchw"): "TF32, NCHW",
}

# Forward passes of the published set: suite, name, precision, layout, and what the picture says.
LAYERS = {
    ("resnet50", "layer1.0.conv2", "tf32", "nchw"): "ResNet-50, 3x3, 64 to 64, 56x56",
    ("resnet50", "layer1.1.conv1", "fp16", "nhwc"): "ResNet-50, 1x1, 256 to 64, 56x56",
    ("resnext50_32x4d", "layer2.1.conv2", "fp16", "nchw"): "ResNeXt-50, 3x3, 32 groups, 28x28",
    ("vgg16", "features.10", "tf32", "nchw"): "VGG-16, 3x3, 128 to 256, 56x56",
    ("unet", "512 x 32 x 32 to 512, 3 x 3", "fp16", "nchw"): "U-Net, 3x3, 512 to 512, 32x32",
    ("convnext_tiny", "features.7.0.block.0", "tf32", "nhwc"): "ConvNeXt-T, 7x7 depthwise, 7x7",
    ("convnext_tiny", "features.5.0.block.0", "bf16", "nchw"): (
        "ConvNeXt-T, 7x7 depthwise, 14x14"
    ),
    ("mobilenet_v2_depthwise", "features.5.conv.1.0", "fp16", "nhwc"): (
        "MobileNetV2, 3x3 depthwise, 28x28"
    ),
    ("efficientnet_b3", "384 x 10 x 10 to 2304, 1 x 1", "tf32", "nchw"): (
        "EfficientNet-B3, 1x1, 384 to 2304, 10x10"
    ),
    ("sd15_vae_decoder", "v.decoder.up_blocks.0.upsamplers.0.conv", "bf16", "nhwc"): (
        "Stable Diffusion decoder, 3x3, 512 to 512, 128x128"
    ),
}  # fmt: skip

Speeds = Mapping[str, Mapping[str, float]]  # over eager PyTorch's, by contender and network


@dataclass(frozen=True)
class Known:
    """What the picture shows, each as speed over eager PyTorch's: above 1 is faster."""

    panels: Mapping[tuple[str, str], Speeds] = field(default_factory=dict)  # by the title's lines
    layers: Mapping[str, float] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)  # of what was measured

    def __bool__(self) -> bool:
        """Whether there is something to show."""
        return bool(self.panels or self.layers)


def known(layers: Results, networks: Sequence[Results]) -> Known:
    """Finds the rows of the known networks and layers.

    Args:
        layers: What ``bench run`` wrote.
        networks: What ``bench models`` wrote, with and without ``--compile``.

    Raises:
        BadResults: The files are of different devices.
    """
    results.one_device([layers, *networks])
    panels: dict[tuple[str, str], Speeds] = {}
    dates: dict[str, str] = {}
    rows = [(row, file["meta"]) for file in networks for row in file["rows"] if not row["error"]]
    for title, read in (("inference, compiled", _compiled), ("training, eager", _step)):
        for kind, words in KINDS.items():
            speeds: dict[str, dict[str, float]] = {}
            for row, meta in rows:
                same = row["batch"] == BATCH and (row["precision"], row["layout"]) == kind
                if same and row["network"] in NETWORKS:
                    for name, speed in read(row).items():
                        speeds.setdefault(name, {})[row["network"]] = speed
                        dates[title.partition(",")[0]] = meta["date"]
            if speeds:
                panels[title, words] = speeds
    found = {
        (row["suite"], row["name"], row["precision"], row["layout"]): row
        for row in layers["rows"]
        if row["op"] == "fprop" and row["peer"] == "cudnn" and not row.get("forced")
    }
    ratios = {
        f"{text}, {key[2]} {key[3].upper()}": found[key]["ratio"]
        for key, text in LAYERS.items()
        if "ratio" in found.get(key, {})
    }
    if ratios:
        dates["layers"] = layers["meta"]["date"]
    return Known(panels, dict(sorted(ratios.items(), key=lambda each: -each[1])), dates)


def _compiled(row: Row) -> dict[str, float]:
    ratios = row.get("ratios", {}) if row["mode"] == "forward" else {}
    if not {"eager", "inductor"} <= ratios.keys():
        return {}
    return {"ours": ratios["eager"], "inductor": ratios["eager"] / ratios["inductor"]}


def _step(row: Row) -> dict[str, float]:
    eager = row["mode"] == "step" and "ratios" not in row
    return {"ours": row["ratio"]} if eager and row["by"] == "routed" and not row["tuned"] else {}


def caption(found: Known, meta: Mapping[str, Any]) -> str:
    """Says what was measured, on what and when."""
    cudnn = int(meta.get("cudnn") or 0)
    version = f", cuDNN {cudnn // 10000}.{cudnn // 100 % 100} tuned" if cudnn else ""
    torch = str(meta.get("torch", "")).partition("+")[0]
    days = {
        day: ", ".join(name for name, date in found.dates.items() if date == day)
        for day in sorted(set(found.dates.values()))
    }
    when = "; ".join(f"{names}: {_day(day)}" for day, names in days.items())
    return f"{meta.get('device', 'an unnamed device')}, PyTorch {torch}{version} ({when})"


def _day(date: str) -> str:
    day = datetime.date.fromisoformat(date)
    return f"{day.day} {day:%B %Y}"


def draw(found: Known, meta: Mapping[str, Any], theme: Theme) -> Figure:
    """Dots on a line for each network and layer; eager PyTorch is the line at 1."""
    shown = {name for speeds in found.panels.values() for each in speeds.values() for name in each}
    names = [name for name in NETWORKS if name in shown]
    heights = [0.9 + 0.235 * len(names)] * bool(found.panels)
    heights += [0.6 + 0.235 * len(found.layers)] * bool(found.layers)
    figure = Figure(figsize=(WIDTH, 1 + sum(heights)), layout="constrained")
    parts = iter(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights).flat)
    if found.panels:
        axes = next(parts).subplots(1, len(found.panels), sharey=True, squeeze=False)
        for ax, (title, speeds) in zip(axes.flat, found.panels.items(), strict=True):
            _dots(ax, names, speeds, theme)
            ax.set_title("\n".join(title))
        for what in {what for what, _ in found.panels}:
            first, *others = (
                ax for ax, (of, _) in zip(axes.flat, found.panels, strict=True) if of == what
            )
            for ax in others:
                ax.sharex(first)
        axes[0][0].set_yticks(range(len(names)), [NETWORKS[name] for name in names])
    if found.layers:
        ax = next(parts).subplots()
        _dots(ax, list(found.layers), {"ours": found.layers}, theme)
        ax.set_yticks(range(len(found.layers)), list(found.layers))
        ax.set_title("forward passes of single layers, eager")

    def mark(label: str, **style: Any) -> Line2D:
        return Line2D([], [], label=label, **style)

    handles = [
        mark("customconv", color=theme.colours[0], linestyle="", marker="o", markersize=6),
        mark("Inductor", color=theme.colours[1], linestyle="", marker="D", markersize=5),
        mark("eager PyTorch", color=theme.ink, linewidth=1),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=3)
    words = f"speed over eager PyTorch's: above 1 is faster; networks with {BATCH} images"
    figure.supxlabel(f"{words}\n{caption(found, meta)}", fontsize=9, linespacing=1.6)
    return figure


def _dots(ax: Axes, names: Sequence[str], speeds: Speeds, theme: Theme) -> None:
    """A row for each name, with a dot for each contender and ours in numbers."""
    ax.axvline(1, color=theme.ink, linewidth=1)
    styles = {"inductor": (theme.colours[1], "D", 20), "ours": (theme.colours[0], "o", 34)}
    for contender, (colour, marker, size) in styles.items():
        at = [(speeds[contender][name], i) for i, name in enumerate(names)
              if name in speeds.get(contender, ())]  # fmt: skip
        if contender == "ours":
            for speed, i in at:
                ax.plot([1, speed], [i, i], color=colour, linewidth=1.2, zorder=1)
                right = max(each[name] for each in speeds.values() if (name := names[i]) in each)
                ax.annotate(
                    times(speed), (max(right, 1), i), (6, 0), textcoords="offset points",
                    va="center", fontsize=7.5, color=theme.ink,
                )  # fmt: skip
        ax.scatter(*_columns(at), s=size, color=colour, marker=marker, linewidths=0, zorder=2)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    ax.margins(x=0.2)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _columns(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    points = list(points)
    return [x for x, _ in points], [y for _, y in points]
