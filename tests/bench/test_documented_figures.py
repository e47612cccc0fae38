"""The figures in README and docs are those of the published rows."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bench import known, results
from bench.results import Row
from bench.sources import ROOT
from bench.timing import geomean

FOLDER = ROOT / "bench/results"
LAYERS, EAGER, COMPILED = (
    [row for row in results.read(FOLDER / name)["rows"] if not row.get("error")]
    for name in ("h100.json", "models-h100.json", "compile-h100.json")
)
AMP, TF32 = ("amp-fp16", "nhwc"), ("tf32", "nchw")


def document(path: str) -> str:
    """A document in one line, so that breaks of lines do not matter."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def mean(rows: Iterable[Row]) -> str:
    return f"{geomean(row['ratio'] for row in rows):.2f}"


def slower(rows: list[Row]) -> str:
    return f"{100 * sum(row['ratio'] < 1 for row in rows) / len(rows):.0f} %"


def of(rows: Iterable[Row], kind: tuple[str, str], batch: int, mode: str = "forward") -> list[Row]:
    wanted = (*kind, batch, mode)
    return [
        row for row in rows
        if (row["precision"], row["layout"], row["batch"], row["mode"]) == wanted
    ]  # fmt: skip


STRICT = [row for row in LAYERS if row["precision"] == "fp32"]


def test_the_readmes_figures_of_layers():
    text = document("README.md")
    assert (
        f"| one layer, {len(LAYERS)} passes, beside tuned cuDNN | **{mean(LAYERS)}** (strict "
        f"float32 alone {mean(STRICT)}) | {slower(LAYERS)} ({slower(STRICT)}) |"
    ) in text


def test_the_readmes_figures_of_steps():
    found = {kind: of(EAGER, kind, 64, "step") for kind in (TF32, AMP)}
    (count,) = {len(rows) for rows in found.values()}
    assert count == 12
    assert all(row["ratio"] >= 1 for rows in found.values() for row in rows)
    assert (
        "| training step, 12 networks, beside eager mode | "
        f"**{mean(found[TF32])}** in TF32, {mean(found[AMP])} in float16 | none |"
    ) in document("README.md")


def test_the_readmes_figures_of_inference():
    found = {kind: of(COMPILED, kind, 64) for kind in (TF32, AMP)}
    assert all(len(rows) == len(known.NETWORKS) == 8 for rows in found.values())
    assert all(row["ratio"] >= 1 for rows in found.values() for row in rows)
    fewer = [row for row in COMPILED if row["batch"] < 64]
    below = sum(row["ratio"] < 1 for row in fewer)
    text = document("README.md")
    assert (
        "| inference, 8 networks, beside `torch.compile` | "
        f"**{mean(found[TF32])}** in TF32, {mean(found[AMP])} in float16 | none |"
    ) in text
    assert f"at 1 and 8, inference is slower in {below} of {len(fewer)} rows" in text


def kind_of(row: Row) -> str:
    sizes = row["problem"]
    if sizes["groups"] > 1:
        return "depthwise" if sizes["groups"] == sizes["C"] else "several channels per group"
    size = "1x1" if (sizes["R"], sizes["S"]) == (1, 1) else "filters larger than 1x1"
    return f"one group, {size}"


@pytest.mark.parametrize("kind", sorted({kind_of(row) for row in LAYERS}))
def test_the_means_of_kinds_of_layers(kind):
    rows = [row for row in LAYERS if kind_of(row) == kind]
    line = f"| {kind} | {len(rows)} | {mean(rows)} | {slower(rows)} |"
    assert line in document("docs/benchmark.md")


LAYOUTS = {"nchw": "NCHW", "nhwc": "channels_last"}


@pytest.mark.parametrize("mode", ["forward", "step"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ["tf32", "amp-fp16"])
def test_the_means_of_networks_in_eager_mode(precision, layout, mode):
    cells = [of(EAGER, (precision, layout), batch, mode) for batch in (1, 8, 64)]
    name = {"forward": "inference", "step": "training step"}[mode]
    means = " | ".join(f"{mean(rows)} ({len(rows)})" for rows in cells)
    line = f"| {name} | {precision} | {LAYOUTS[layout]} | {means} |"
    assert line in document("docs/benchmark.md")


NAMES = known.NETWORKS | {"sd15_vae_decoder": "decoder of Stable Diffusion 1.5"}


@pytest.mark.parametrize("network", [*NAMES, None], ids=str)
def test_the_ratios_of_compiled_networks(network):
    rows = [row for row in COMPILED if network in (row["network"], None)]
    ratios = " | ".join(mean(of(rows, kind, batch)) for kind in (AMP, TF32) for batch in (1, 8, 64))
    line = f"| {NAMES[network] if network else 'geometric mean'} | {ratios} |"
    assert line in document("docs/benchmark.md")


@pytest.mark.parametrize("kind", [AMP, TF32], ids=str)
def test_the_page_on_compiling_has_the_same_ratios(kind):
    words = {AMP: "float16 by autocast, channels_last", TF32: "TF32, NCHW"}[kind]
    cells = [of(COMPILED, kind, batch) for batch in (1, 8, 64)]
    bounds = [[row["ratio"] for row in rows] for rows in cells]
    means = " | ".join(mean(rows) for rows in cells)
    spans = " | ".join(f"{min(ratios):.2f} to {max(ratios):.2f}" for ratios in bounds)
    text = document("docs/compile.md")
    assert f"| {words}: geometric mean | {means} | | least and most | {spans} |" in text
