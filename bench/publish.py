"""`python -m bench report`: the page, the plots and the summary of results files."""

from __future__ import annotations

import argparse
import io
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from . import figures, known, page, results
from .figures import Theme, peer_name, times
from .page import Plot
from .results import BadResults, Results, Row
from .sources import Ages
from .timing import geomean

HERE = Path(__file__).parent
SWEEPS = "scaling"  # its shapes vary one size: plotted separately, and in no mean
NUMBERS = ("rows", "old", "geomean", "below 1.0", "best", "worst", "wrong", "unmeasured")
HEAD = ("precision", "layout", "op", "bias", *NUMBERS)
DOCUMENTS = ("known", "floor")  # plots that README and docs show
NETWORKS = ("compile", "models")  # beginnings of the names of files of networks
COLOURS = 128  # of a picture; more make it larger and no better

Table = list[tuple[str, ...]]
Draw = Callable[[Theme], Figure]
Meta = Mapping[str, Any]


def together(files: Sequence[Results]) -> Results:
    """Merges the rows; later files replace rows of earlier ones, and the last gives the facts."""
    results.one_device(files)
    rows: list[Row] = []
    for file in files:
        rows = results.merged(rows, file["rows"])
    return {"meta": files[-1]["meta"], "rows": rows}


def comparisons(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Groups rows by our family and the peer; the choice and first peer come first."""
    found: dict[tuple[str, str], list[Row]] = {}
    forced = {row.get("forced") or "" for row in rows}
    for peer in figures.present(rows, "peer", tuple(figures.PEERS)):
        for family in sorted(forced):
            chosen = [r for r in rows if r["peer"] == peer and (r.get("forced") or "") == family]
            if chosen:
                found[f"our {family}" if family else "customconv", peer] = chosen
    return found


def numbers(panel: Sequence[Row]) -> tuple[str, ...]:
    """Formats NUMBERS: geometric mean, best and worst of the ratios, and the share below 1.0.

    A row is old if it is older than the last change of its family's sources.
    """
    ratios = [row["ratio"] for row in panel if "error" not in row]
    words = [""] * 4
    if ratios:
        mean, best, worst = map(times, (geomean(ratios), max(ratios), min(ratios)))
        below = 100 * sum(ratio < 1 for ratio in ratios) / len(ratios)
        words = [mean, f"{below:.0f} %", best, worst]
    errors = [row["error"] for row in panel if "error" in row]
    wrong = sum(error.startswith("wrong") for error in errors)
    old = sum(bool(row.get("old")) for row in panel if "error" not in row)
    return str(len(ratios)), str(old), *words, str(wrong), str(len(errors) - wrong)


def by_bias(panel: Sequence[Row]) -> dict[str, list[Row]]:
    """Parts forward passes by whether they add a bias, "yes", "no" or, not recorded, "unknown".

    Gradients do the same work with and without one, so they stay together, under an empty name.
    """
    found: dict[str, list[Row]] = {}
    for row in sorted(panel, key=page.bias_text):
        name = (page.bias_text(row) or "unknown") if row["op"] == "fprop" else ""
        found.setdefault(name, []).append(row)
    return found


def summary(rows: Sequence[Row]) -> Table:
    """The numbers by precision, layout, op and, of forward passes, bias."""
    layers = [row for row in rows if row["suite"] != SWEEPS]
    return [HEAD] + [
        (precision, layout.upper(), op, bias, *numbers(part))
        for (precision, layout, op), panel in figures.cells(layers).items()
        for bias, part in by_bias(panel).items()
    ]


def totals(rows: Sequence[Row]) -> Table:
    """The numbers of all rows, then of each precision, each layout, each op, and each bias."""
    layers = [row for row in rows if row["suite"] != SWEEPS]
    parts = {"all rows": layers}
    for column, order in (
        ("precision", figures.PRECISIONS), ("layout", figures.LAYOUTS), ("op", figures.OPS),
    ):  # fmt: skip
        for value in figures.present(layers, column, order):
            name = value.upper() if column == "layout" else value
            parts[name] = [row for row in layers if row[column] == value]
    for bias, part in by_bias([row for row in layers if row["op"] == "fprop"]).items():
        parts[f"fprop, bias: {bias}"] = part
    return [("of", *NUMBERS)] + [(name, *numbers(part)) for name, part in parts.items()]


# The sizes that each sweep varies.
SIZES = {"N": ("N",), "C = K": ("C", "K"), "H = W": ("H", "W")}


def sweeps(rows: Sequence[Row]) -> figures.Sweeps:
    """Finds the longest sweep over each size; sweeps of fewer than three rows are left out."""
    found: dict[tuple[str, str], dict[str, dict[str, dict[int, Row]]]] = {}
    for (precision, layout, op), panel in figures.cells(rows).items():
        for size, varied in SIZES.items():
            alike: dict[str, dict[int, Row]] = {}  # rows that agree in all other sizes
            for row in panel:
                sizes = row["problem"]
                rest = {k: v for k, v in sizes.items() if k not in (*varied, "P", "Q")}
                alike.setdefault(repr(sorted(rest.items())), {})[sizes[varied[0]]] = row
            longest = dict(sorted(max(alike.values(), key=len).items()))
            if len(longest) > 2:
                found.setdefault((precision, op), {}).setdefault(size, {})[layout] = longest
    return found


CAPTIONS = {
    "known": (
        "Known networks and layers",
        "Networks with 64 images. Those for inference are compiled, and the dots are the speeds of "
        "Inductor's code and ours; training steps and layers are PyTorch's own calls, routed. "
        "The layers are among those of the table below.",
    ),
    "ratios": (
        "Ratio for each shape",
        "The peer's time over ours, sorted: bars above the line are shapes where ours is faster. "
        "The two took turns, and a bar is the median of the ratios of all turns.",
    ),
    "roofline": (
        "Roofline",
        "How fast each row ran, ours and the peer's, over its arithmetic intensity: the FLOPs for "
        "each byte that must move at least. The lines are the machine's limits.",
    ),
    "floor": (
        "Distance to the floor",
        "The floor is the least time that the machine needs, for the FLOPs at its peak or for the "
        "least bytes at its bandwidth, whichever is longer.",
    ),
    "scaling": (
        "Cost as sizes grow",
        "The time of one layer while its batch, its channels or its image grow.",
    ),
}


def plots(chosen: Sequence[Row], rows: Sequence[Row], meta: Meta) -> Iterator[Plot]:
    """Draws each plot that has data, from the chosen rows; the floor shows every family."""
    peer = chosen[0]["peer"]
    layers = [row for row in chosen if row["suite"] != SWEEPS]
    if compared := measured(layers, "ratio"):
        mean = times(geomean(row["ratio"] for row in compared))
        alt = f"bars of {len(compared)} ratios on a log scale; their geometric mean is {mean}"
        yield plot("ratios", peer, alt, partial(figures.ratios, compared, peer))
    peaks = meta.get("peaks")
    if peaks and (compared := measured(layers, "tflops", "gb_s", "peer_ms")):
        alt = f"TFLOP/s of {len(compared)} rows over FLOP for each byte, under the limits"
        draw = partial(figures.roofline, compared, peer, peaks["tflops"], peaks["tb_s"])
        yield plot("roofline", peer, alt, draw)
    every = [row for row in rows if row["peer"] == peer and row["suite"] != SWEEPS]
    if compared := measured(every, "percent_of_floor", "peer_percent_of_floor"):
        # A family may be both chosen and forced for a layer, and the peer is then timed twice.
        ours = {results.key({**row, "forced": row["family"]}): row for row in compared}.values()
        theirs = {results.key({**row, "forced": None}): row for row in compared}.values()
        middle = statistics.median(row["percent_of_floor"] for row in ours)
        alt = f"dots of {len(ours)} rows by family; our median is {middle:.3g} % of the floor"
        yield plot("floor", peer, alt, partial(figures.floor, list(ours), list(theirs), peer))
    swept = [row for row in chosen if row["suite"] == SWEEPS]
    if found := sweeps(measured(swept, "ratio")):
        alt = "lines of times over each size, on log scales, with the floor"
        yield plot("scaling", peer, alt, partial(figures.scaling, found, peer))


def known_plot(found: known.Known, meta: Meta) -> Plot:
    """Draws the known networks and layers."""
    alt = (
        "speed over eager PyTorch's of "
        f"{sum(len(each['ours']) for each in found.panels.values())} networks and "
        f"{len(found.layers)} layers, as dots; {known.caption(found, meta)}"
    )
    return plot("known", "inductor", alt, partial(known.draw, found, meta))


def plot(name: str, peer: str, alt: str, draw: Draw) -> Plot:
    title, caption = CAPTIONS[name]
    alt = f"customconv and {peer_name(peer)}: {alt}."
    return Plot(name, title, caption, alt, png(draw, figures.LIGHT), png(draw, figures.DARK))


def measured(rows: Sequence[Row], *columns: str) -> list[Row]:
    """The rows that have numbers in these columns."""
    return [row for row in rows if all(row.get(column) is not None for column in columns)]


def png(draw: Draw, theme: Theme) -> bytes:
    """Renders a plot in few colours, with the same bytes whatever the local settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(figures.style(theme))
        buffer = io.BytesIO()
        draw(theme).savefig(buffer, format="png", dpi=page.DPI, metadata={"Software": None})
    small = io.BytesIO()
    with Image.open(buffer) as image:
        image.convert("RGB").quantize(COLOURS).save(small, format="png", optimize=True)
    return small.getvalue()


def plain(table: Table) -> str:
    """Formats a table for a terminal: words left-aligned, numbers right-aligned."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if head in page.WORDS else cell.rjust(width)
            for cell, width, head in zip(line, widths, table[0], strict=True)
        ).rstrip()
        for line in table
    )


def markdown(table: Table) -> str:
    head, *body = table
    rule = ["---" if column in page.WORDS else "---:" for column in head]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))


def notes(rows: Sequence[Row], networks: Sequence[Row], ages: Ages) -> list[str]:
    """Says how many rows are older than the kernels, and whether that is known."""
    found = []
    if old := sum(row["old"] for row in rows):
        found.append(
            f"{old} of {len(rows)} rows are older than the last change of their family's sources: "
            "they show the kernels of their commit. The tables count them under old."
        )
    if old := sum(ages.is_old(row) for row in networks):
        found.append(
            f"{old} of {len(networks)} rows of networks are older than the last change of the "
            "kernels or of the compiler."
        )
    if not ages.has_git:
        found.append(
            "There is no git history here, so all rows count as old that were not measured with "
            "the present sources."
        )
    return found


def facts(meta: Meta) -> dict[str, str]:
    """Returns what the page says about the run."""
    found = {name: str(value) for name, value in meta.items() if value is not None}
    if method := meta.get("method"):
        found["method"] = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in method.items())
    if peaks := meta.get("peaks"):
        rates = [f"{tflops:g} TFLOP/s in {name}" for name, tflops in peaks["tflops"].items()]
        found["peaks"] = ", ".join([*rates, f"{peaks['tb_s']:g} TB/s"])
    return found


def write(
    files: Sequence[Results], out: Path, ages: Ages, pictures: Path | None = None,
    networks: Sequence[Results] = (),
) -> str:  # fmt: skip
    """Writes the report, and returns the summary for the terminal.

    Args:
        files: Results of one device.
        out: The folder of the report.
        ages: Says which rows are old. They are marked and counted, and a note says so.
        pictures: A folder for the pictures of README and docs, or None. They stay if there is none
            to draw.
        networks: Results of networks on that device, for the picture of known networks.

    Raises:
        BadResults: The files are of different devices.
    """
    both = together(files)
    meta, rows = both["meta"], [row | {"old": ages.is_old(row)} for row in both["rows"]]
    compared = comparisons(rows)
    summaries: dict[str, Table] = {}
    for (ours, peer), chosen in compared.items():
        if any(row["suite"] != SWEEPS for row in chosen):
            title = f"{ours} against {peer_name(peer)}"
            summaries |= {title: totals(chosen), f"{title}, by kind": summary(chosen)}
    drawn = list(plots(next(iter(compared.values())), rows, meta)) if compared else []
    if found := known.known({"meta": meta, "rows": rows}, networks):
        drawn.insert(0, known_plot(found, meta))
    out.mkdir(parents=True, exist_ok=True)
    for name in CAPTIONS:  # left by an older report
        for old in (out / f"{name}.png", out / f"{name}-dark.png"):
            old.unlink(missing_ok=True)
    for picture in drawn:
        save(picture, out)
        if pictures is not None and picture.name in DOCUMENTS:
            pictures.mkdir(parents=True, exist_ok=True)
            save(picture, pictures)
    title = f"customconv on {meta.get('device', 'an unnamed device')}"
    of_networks = [row for file in networks for row in file["rows"]]
    of_run, said = facts(meta), notes(rows, of_networks, ages)
    html = page.html(title, of_run, said, summaries, drawn, rows)
    (out / "index.html").write_text(html, encoding="utf-8")
    short = ", ".join(f"{k} {v}" for k, v in of_run.items() if k not in ("method", "peaks"))
    tables = (f"## {name}\n\n{markdown(table)}\n" for name, table in summaries.items())
    lines = "\n".join((f"# {title}\n", f"{short}.\n", *(f"{note}\n" for note in said), *tables))
    (out / "summary.md").write_text(lines, encoding="utf-8")
    printed = (f"{name}\n{plain(table)}" for name, table in summaries.items())
    return "\n\n".join((*said, *printed))


def save(picture: Plot, folder: Path) -> None:
    (folder / f"{picture.name}.png").write_bytes(picture.light)
    (folder / f"{picture.name}-dark.png").write_bytes(picture.dark)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", nargs="*", type=Path, metavar="RESULTS", help="files (bench/results/*.json)"
    )
    parser.add_argument("--out", type=Path, default=HERE / "report", help="a folder (bench/report)")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of README and docs")


def main(arguments: argparse.Namespace) -> int:
    # DEVICE.json holds layers, and compile-DEVICE.json and models-DEVICE.json beside it networks.
    kept = (path for path in (HERE / "results").glob("*.json") if "-" not in path.stem)
    paths = arguments.results or sorted(kept)
    if not paths:
        print("report: there is no results file; python -m bench run writes one", file=sys.stderr)
        return 2
    try:
        files = [results.load(path) for path in paths]
        beside = (path.with_name(f"{kind}-{path.name}") for path in paths for kind in NETWORKS)
        networks = [results.read(path) for path in beside if path.exists()]
        print(write(files, arguments.out, Ages(), arguments.pictures, networks))
    except (OSError, BadResults) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"\n{arguments.out / 'index.html'}")
    return 0
