"""The plots of `bench report`, each drawn for a light and for a dark page."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator

from .results import Row
from .timing import geomean

if TYPE_CHECKING:
    from matplotlib.typing import LineStyleType, RcKeyType

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
LAYOUTS = ("nchw", "nhwc")
OPS = ("fprop", "dgrad", "wgrad")
FAMILIES = ("direct", "im2col", "tiled", "aten")
PEERS = {
    "cudnn": "cuDNN",
    "aten-heuristic": "cuDNN untuned",
    "inductor": "Inductor",
    "aten": "ATen",
}
HARMLESS = {"power cap"}  # marks that are usual under load

Cell = tuple[str, str, str]  # precision, layout, op


@dataclass(frozen=True)
class Theme:
    """Colour-blind-safe colours with a contrast of at least 3 to the background."""

    background: str
    ink: str
    faint: str
    grid: str
    colours: tuple[str, ...]  # ours is the first, the peer's the second


LIGHT = Theme(
    "#ffffff", "#1f2328", "#59636e", "#d9dee3",
    ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#332288", "#882255"),
)  # fmt: skip
DARK = Theme(
    "#0d1117", "#e6edf3", "#9ba3ae", "#2f353d",
    ("#56b4e9", "#e69f00", "#aa4466", "#ddcc77", "#0072b2", "#d55e00"),
)  # fmt: skip

WIDTH = 10.0  # inches
DASHED = (0, (4, 2))
HATCH = "/////"


def style(theme: Theme) -> dict[RcKeyType, Any]:
    """matplotlib's settings for all plots."""
    return {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "figure.facecolor": theme.background,
        "axes.facecolor": theme.background,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.titlesize": 9,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.edgecolor": theme.faint,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.6,
        "figure.constrained_layout.h_pad": 0.07,
        "xtick.color": theme.faint,
        "ytick.color": theme.faint,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "legend.frameon": False,
    }


def ratios(rows: Sequence[Row], peer: str, theme: Theme) -> Figure:
    """A bar for each shape, sorted, in one panel for each precision, layout and op."""
    grid = _grid(rows)
    panels = cells(rows)
    most = max(map(len, panels.values()))
    named = len(panels) == 1 and most <= 60  # otherwise names would be too small to read
    height = (3.2 if len(grid) == 1 else 1.75) + 1.6 * named
    figure = Figure(figsize=(WIDTH, 0.75 + len(grid) * height), layout="constrained")
    axes = figure.subplots(len(grid), len(grid[0]), sharey=True, squeeze=False)
    colours = _suite_colours(rows, theme)
    # A margin above and below all bars, for the labels.
    values = [math.log(row["ratio"]) for row in rows] + [math.log(0.5), math.log(2)]
    margin = 0.15 * (max(values) - min(values))
    limits = math.exp(min(values) - margin), math.exp(max(values) + margin)
    for ax, cell in zip(axes.flat, (cell for line in grid for cell in line), strict=True):
        panel = sorted(panels.get(cell, ()), key=lambda row: row["ratio"])
        if not panel:
            ax.set_axis_off()
            continue
        for i, row in enumerate(panel):
            colour = colours.get(row["suite"], theme.faint)
            ax.bar(
                i, row["ratio"] - 1, 0.86, 1, facecolor=colour, alpha=0.4 if doubted(row) else 1,
                edgecolor=theme.background, linewidth=0, hatch=HATCH if adds_bias(row) else None,
            )  # fmt: skip
        ax.axhline(1, color=theme.ink, linewidth=0.9)
        ax.set_yscale("log")
        ax.set_ylim(*limits)
        ax.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        ax.minorticks_off()
        ax.set_xlim(-0.8, max(most, 12) - 0.2)
        ax.grid(visible=False, axis="x")
        ax.spines["bottom"].set_visible(False)
        ax.set_title(" · ".join((cell[0], cell[1].upper(), cell[2])))
        ax.set_title(_tally(panel), loc="right", fontweight="normal", color=theme.faint)
        if named:
            ax.set_xticks(range(len(panel)), [shortened(row["name"], 28) for row in panel])
            ax.tick_params(axis="x", rotation=90, length=0, labelsize=7.5)
        else:
            ax.set_xticks([])
            _word(ax, f"best {_named(panel[-1])}", (0, 1), (4, -1), theme.faint, va="top")
            _word(ax, f"worst {_named(panel[0])}", (1, 0), (-4, 2), theme.faint, ha="right")
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    if any(row["suite"] not in colours for row in rows):
        handles.append(Patch(color=theme.faint, label="other suites"))
    if any(map(adds_bias, rows)):
        bars = Patch(facecolor=theme.ink, edgecolor=theme.background, linewidth=0, hatch=HATCH)
        bars.set_label("hatched: adds a bias")
        handles.append(bars)
    if any(map(doubted, rows)):
        handles.append(Patch(facecolor=theme.ink, alpha=0.4, label="pale: doubtful"))
    figure.legend(handles=handles, loc="outside upper left", ncols=5, handlelength=1)
    figure.supylabel(f"time of {peer_name(peer)} / ours (above 1: ours is faster)", fontsize=9)
    return figure


def roofline(
    rows: Sequence[Row], peer: str, roofs: Mapping[str, float], tb_s: float, theme: Theme
) -> Figure:
    """TFLOP/s over arithmetic intensity, under the machine's roofs, for each precision."""
    precisions = present(rows, "precision", PRECISIONS)
    figure, axes = _panels(len(precisions), 3.3)
    intensities = [_intensity(row) for row in rows]
    for ax, precision in zip(axes, precisions, strict=True):
        panel = [row for row in rows if row["precision"] == precision]
        x = [_intensity(row) for row in panel]
        ours = [row["tflops"] for row in panel]
        theirs = [row["tflops"] * row["ours_ms"] / row["peer_ms"] for row in panel]
        size = 14 if len(panel) < 200 else 6
        for y, colour, marker in ((theirs, theme.colours[1], "D"), (ours, theme.colours[0], "o")):
            ax.scatter(x, y, size, colour, marker=marker, alpha=0.7, linewidths=0)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(min(intensities) / 1.6, max(intensities) * 1.6)
        if precision in roofs:
            _roof(ax, roofs[precision], tb_s, theme)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.minorticks_off()
        ax.set_title(precision)
    _contenders(figure, peer, theme)
    figure.supxlabel("arithmetic intensity, FLOP / byte", fontsize=9)
    figure.supylabel("TFLOP/s", fontsize=9)
    return figure


def _roof(ax: Axes, tflops: float, tb_s: float, theme: Theme) -> None:
    left, right = ax.get_xlim()
    ridge = tflops / tb_s
    xs = [left, min(max(ridge, left), right), right]
    ax.plot(xs, [min(tflops, x * tb_s) for x in xs], color=theme.ink, linewidth=1)
    ax.set_ylim(top=max(ax.get_ylim()[1], 2.2 * min(tflops, right * tb_s)))
    if ridge < right:
        _word(ax, f"{tflops:.4g} TFLOP/s", (right, tflops), (-3, 5), theme.ink, "data", ha="right")
    if ridge > 3 * left:
        x, y = 1.15 * left, 1.15 * left * tb_s * 1.3
        ax.text(
            x, y, f"{tb_s:.3g} TB/s", color=theme.ink, fontsize=7.5, rotation_mode="anchor",
            rotation=math.degrees(math.atan2(y, x)), transform_rotates_text=True,
        )  # fmt: skip


def floor(rows: Sequence[Row], peers: Sequence[Row], peer: str, theme: Theme) -> Figure:
    """How near each family and the peer come to the floor: dots, median and quartiles.

    The peer's rows that add a bias are a strip of their own.
    """
    precisions = present(rows, "precision", PRECISIONS)
    families = present(rows, "family", FAMILIES)
    by_bias = {
        peer_name(peer) + (", adds a bias" if bias else ""): bias
        for bias in sorted(set(map(adds_bias, peers)))
    }
    figure, axes = _panels(len(precisions), 0.7 + 0.36 * (len(families) + len(by_bias)))
    for ax, precision in zip(axes, precisions, strict=True):
        panel = [row for row in rows if row["precision"] == precision]
        strips = {
            name: [row["percent_of_floor"] for row in panel if row["family"] == name]
            for name in families
        }
        for name, bias in by_bias.items():
            strips[name] = [
                row["peer_percent_of_floor"]
                for row in peers
                if row["precision"] == precision and adds_bias(row) == bias
            ]
        for i, values in enumerate(strips.values()):
            colour = theme.colours[0] if i < len(families) else theme.colours[1]
            # Spread evenly by the golden ratio, so that the same rows give the same picture.
            heights = [i + 0.56 * (k * 0.618034 % 1 - 0.5) for k in range(len(values))]
            few = len(values) < 100
            ax.scatter(
                sorted(values), heights, 12 if few else 7, colour,
                alpha=0.75 if few else 0.45, linewidths=0,
            )  # fmt: skip
            if len(values) > 3:
                low, middle, high = statistics.quantiles(values, n=4)
                ax.plot([low, high], [i, i], color=theme.ink, linewidth=1.2)
                ax.plot([middle], [i], "o", color=theme.ink, markersize=5)
        labels = [f"{name} ({len(values)})" for name, values in strips.items()]
        ax.set_yticks(range(len(strips)), labels)
        ax.set_ylim(len(strips) - 0.5, -0.5)
        ax.set_xlim(0, max(103.0, *(1.03 * value for v in strips.values() for value in v)))
        ax.grid(visible=False, axis="y")
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_title(precision)
    figure.supxlabel("% of the floor (100: the machine's limit); median and quartiles", fontsize=9)
    return figure


# Rows by precision and op, by the size that varies, by layout, and by the size's value.
Sweeps = Mapping[tuple[str, str], Mapping[str, Mapping[str, Mapping[int, Row]]]]


def scaling(sweeps: Sweeps, peer: str, theme: Theme) -> Figure:
    """Time over each size that varies, for each precision and op."""
    sizes = list(dict.fromkeys(size for by_size in sweeps.values() for size in by_size))
    figure = Figure(figsize=(WIDTH, 0.9 + 2.3 * len(sweeps)), layout="constrained")
    axes = figure.subplots(len(sweeps), len(sizes), squeeze=False)
    for (cell, by_size), line in zip(sweeps.items(), axes, strict=True):
        for ax, size in zip(line, sizes, strict=True):
            if size not in by_size:
                ax.set_axis_off()
                continue
            for layout, sweep in by_size[size].items():
                dashes: LineStyleType = "-" if layout == "nchw" else DASHED
                ours = [row["ours_ms"] for row in sweep.values()]
                theirs = [row["peer_ms"] for row in sweep.values()]
                for y, colour, marker in zip((ours, theirs), theme.colours, "oD", strict=False):
                    ax.plot(
                        list(sweep), y, marker, color=colour, linestyle=dashes, markersize=3.5,
                        linewidth=1.3,
                    )  # fmt: skip
                least = [row["floor_ms"] or math.nan for row in sweep.values()]
                ax.plot(list(sweep), least, ":", color=theme.ink, linewidth=1)
                ax.set_xscale("log")
                ax.set_xticks(list(sweep), list(map(str, sweep)))
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ax.minorticks_off()
            ax.set_title(f"{' · '.join(cell)}, by {size}")
    _contenders(figure, peer, theme, lines=True)
    figure.supylabel("ms", fontsize=9)
    return figure


def cells(rows: Iterable[Row]) -> dict[Cell, list[Row]]:
    """The rows of each precision, layout and op, in display order."""
    rows = list(rows)
    found: dict[Cell, list[Row]] = {
        (precision, layout, op): []
        for precision in present(rows, "precision", PRECISIONS)
        for layout in present(rows, "layout", LAYOUTS)
        for op in present(rows, "op", OPS)
    }
    for row in rows:
        found[row["precision"], row["layout"], row["op"]].append(row)
    return {cell: panel for cell, panel in found.items() if panel}


def present(rows: Iterable[Mapping[str, Any]], column: str, order: Sequence[str]) -> list[str]:
    """The values of a column, in their usual order."""
    found = {row[column] for row in rows}
    return [name for name in order if name in found] + sorted(found - set(order))


def adds_bias(row: Row) -> bool:
    """Whether the row's pass adds a bias: gradients don't, whatever the layer has."""
    return row["op"] == "fprop" and bool(row.get("bias"))


def doubted(row: Row) -> bool:
    """Whether a mark casts doubt on the row's times."""
    return bool(set(row["marks"]) - HARMLESS)


def times(ratio: float) -> str:
    """Formats a ratio: 0.07x, 1.24x, 12.3x."""
    return f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def peer_name(peer: str) -> str:
    return PEERS.get(peer, peer)


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip("_. ") + "…"


def _grid(rows: Sequence[Row]) -> list[list[Cell]]:
    """Arranges panels in rows: layouts side by side, or all ops if there is only one layout."""
    precisions = present(rows, "precision", PRECISIONS)
    layouts, ops = present(rows, "layout", LAYOUTS), present(rows, "op", OPS)
    if len(layouts) > 1:
        return [[(p, x, o) for x in layouts] for o in ops for p in precisions]
    return [[(p, layouts[0], o) for o in ops] for p in precisions]


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Makes this many panels, two per line."""
    lines = (count + 1) // 2
    width = WIDTH if count > 1 else 0.7 * WIDTH
    figure = Figure(figsize=(width, 0.75 + lines * height), layout="constrained")
    axes = figure.subplots(lines, min(count, 2), squeeze=False).flatten().tolist()
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure, axes[:count]


def _suite_colours(rows: Sequence[Row], theme: Theme) -> dict[str, str]:
    """Gives the largest suites a colour each; if there are too few colours, the rest share one."""
    suites = [name for name, _ in Counter(sorted(row["suite"] for row in rows)).most_common()]
    if len(suites) > len(theme.colours):
        suites = suites[: len(theme.colours) - 1]
    return dict(zip(suites, theme.colours, strict=False))


def _contenders(figure: Figure, peer: str, theme: Theme, *, lines: bool = False) -> None:
    """Draws the legend for customconv and the peer, and for the line styles if ``lines``."""

    def line(label: str, style: LineStyleType) -> Line2D:
        return Line2D([], [], color=theme.ink, linestyle=style, linewidth=1.2, label=label)

    def dot(label: str, colour: str, marker: str) -> Line2D:
        return Line2D([], [], color=colour, linestyle="", marker=marker, markersize=5, label=label)

    handles = [
        dot("customconv", theme.colours[0], "o"),
        dot(peer_name(peer), theme.colours[1], "D"),
    ]
    if lines:
        handles += [line("NCHW", "-"), line("NHWC", DASHED), line("floor", ":")]
    figure.legend(handles=handles, loc="outside upper left", ncols=5)


def _word(
    ax: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    colour: str,
    coordinates: str = "axes fraction",
    **more: Any,
) -> None:
    """Writes a note beside a point, at an offset in points (1/72 inch)."""
    ax.annotate(
        text, at, offset, coordinates, "offset points", color=colour, fontsize=7.5,
        bbox={"facecolor": ax.get_facecolor(), "linewidth": 0, "pad": 1}, **more,
    )  # fmt: skip


def _intensity(row: Row) -> float:
    return float(1e3 * row["tflops"] / row["gb_s"])


def _tally(panel: Sequence[Row]) -> str:
    faster = sum(row["ratio"] > 1 for row in panel)
    mean = geomean(row["ratio"] for row in panel)
    return f"geomean {times(mean)}, {faster} of {len(panel)} faster"


def _named(row: Row) -> str:
    suite, name = row["suite"], row["name"]
    words = name if name.startswith(suite) else f"{suite} {name}"
    return f"{times(row['ratio'])} {shortened(words, 44)}"
