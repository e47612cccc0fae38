"""bench report: its arithmetic, and that every file gives a whole page."""

from __future__ import annotations

import argparse
import html.parser
import itertools
from pathlib import Path

import pytest

from bench import corpus, figures, page, publish, results
from bench.results import Results, Row
from bench.sources import Ages

AGES = Ages()
OLD: Row = {"sources": "0f", "commit": None}

PEAKS = {"tflops": {"fp32": 67.0, "tf32": 495.0, "fp16": 989.0, "bf16": 989.0}, "tb_s": 3.35}
META: dict[str, object] = {
    "device": "GPU",
    "torch": "2.11.0",
    "commit": "abc",
    "date": "2026-01-01",
    "peaks": PEAKS,
}


def problem(n: int = 8) -> dict[str, object]:
    return {
        "N": n, "C": 64, "H": 56, "W": 56, "K": 64, "R": 3, "S": 3, "P": 56, "Q": 56,
        "stride": [1, 1], "pad": [1, 1], "dil": [1, 1], "groups": 1,
    }  # fmt: skip


def row(name: str = "conv1", ratio: float = 2.0, **changes: object) -> Row:
    made: Row = {
        "suite": "resnet50", "name": name, "problem": problem(), "dtype": "float16",
        "precision": "fp16", "layout": "nhwc", "op": "fprop", "peer": "cudnn", "forced": None,
        "family": "tiled", "plan": "tiled", "commit": "abc", "sources": AGES.present,
        "bias": False, "marks": [], "floor_ms": 0.5,
        "ours_ms": 1.0, "ours_low": 0.99, "ours_high": 1.01, "runs": 11,
        "peer_ms": ratio, "peer_low": 0.99 * ratio, "peer_high": 1.01 * ratio,
        "ratio": ratio, "ratio_lo": 0.99 * ratio, "ratio_hi": 1.01 * ratio,
        "tflops": 100.0, "gb_s": 1000.0, "percent_of_floor": 50.0,
        "peer_percent_of_floor": 50.0 / ratio, "ours_err": 1e-4, "peer_err": 2e-4,
        "ours_extra_mb": 0.0, "peer_extra_mb": 64.0,
    }  # fmt: skip
    return made | changes


def failed(name: str, error: str = "wrong: ours", layout: str = "nhwc") -> Row:
    whole = row(name, layout=layout)
    numbers = [column for column, value in whole.items() if isinstance(value, float)]
    kept = {column: value for column, value in whole.items() if column not in numbers}
    return {**kept, "error": error}


class Page(html.parser.HTMLParser):
    """What the tests ask of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.table: list[list[str]] = []  # the rows of the last table
        self.links: list[str] = []
        self.alts: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tbody":
            self.table = []
        elif tag == "tr":
            self.table.append([])
        elif tag == "td":
            self.table[-1].append("")
        self.links += [v or "" for k, v in attributes if k in ("src", "srcset", "href", "data")]
        self.alts += [value or "" for key, value in attributes if key == "alt"]

    def handle_data(self, data: str) -> None:
        if self.table and self.table[-1]:
            self.table[-1][-1] += data.strip()


def write(rows: list[Row], out: Path, meta: dict[str, object] = META) -> Page:
    publish.write([Results(meta=meta, rows=rows)], out, AGES)
    return Page((out / "index.html").read_text(encoding="utf-8"))


def test_geometric_means_by_precision_layout_op_and_bias() -> None:
    rows = [
        row("a", 2.0), row("b", 8.0), row("c", 0.5), failed("d"), failed("e", "out of memory"),
        row("a", 0.25, layout="nchw"), row("a", 3.0, op="wgrad"), row("a", 3.0, precision="tf32"),
        row("n=1", 1000.0, suite="scaling"), row("f", 9.0, bias=True), row("g", 4.0, bias=True),
        row("f", 0.75, op="wgrad", bias=True), row("h", 5.0, precision="tf32", bias=None),
    ]  # fmt: skip
    head, *lines = publish.summary(rows)
    assert head[3:] == (
        "bias", "rows", "old", "geomean", "below 1.0", "best", "worst", "wrong", "unmeasured",
    )  # fmt: skip
    assert lines == [
        ("tf32", "NHWC", "fprop", "unknown", "1", "0", "5.00x", "0 %", "5.00x", "5.00x", "0", "0"),
        ("tf32", "NHWC", "fprop", "no", "1", "0", "3.00x", "0 %", "3.00x", "3.00x", "0", "0"),
        ("fp16", "NCHW", "fprop", "no", "1", "0", "0.25x", "100 %", "0.25x", "0.25x", "0", "0"),
        ("fp16", "NHWC", "fprop", "no", "3", "0", "2.00x", "33 %", "8.00x", "0.50x", "1", "1"),
        ("fp16", "NHWC", "fprop", "yes", "2", "0", "6.00x", "0 %", "9.00x", "4.00x", "0", "0"),
        ("fp16", "NHWC", "wgrad", "", "2", "0", "1.50x", "50 %", "3.00x", "0.75x", "0", "0"),
    ]


def test_totals_of_each_precision_layout_op_and_bias() -> None:
    rows = [
        row("a", 8.0), row("a", 0.5, bias=True), row("a", 4.0, precision="tf32", op="wgrad"),
        row("b", 4.0, layout="nchw", op="wgrad", bias=True), failed("c", layout="nchw"),
        row("n=1", 1000.0, suite="scaling"),
    ]  # fmt: skip
    head, *lines = publish.totals(rows)
    assert head == ("of", *publish.HEAD[4:])
    assert [(line[0], line[1], *line[3:5], *line[6:8]) for line in lines] == [
        ("all rows", "4", "2.83x", "25 %", "0.50x", "1"),
        ("tf32", "1", "4.00x", "0 %", "4.00x", "0"),
        ("fp16", "3", "2.52x", "33 %", "0.50x", "1"),
        ("NCHW", "1", "4.00x", "0 %", "4.00x", "1"),
        ("NHWC", "3", "2.52x", "33 %", "0.50x", "0"),
        ("fprop", "2", "2.00x", "50 %", "0.50x", "1"),
        ("wgrad", "2", "4.00x", "0 %", "4.00x", "0"),
        ("fprop, bias: no", "1", "8.00x", "0 %", "8.00x", "1"),
        ("fprop, bias: yes", "1", "0.50x", "100 %", "0.50x", "0"),
    ]


def test_old_rows_are_marked_counted_and_told(tmp_path: Path) -> None:
    rows = [row("new", 2.0), row("old", 32.0, marks=["wide spread"], **OLD)]
    source = write(rows, tmp_path)
    at = [column.title for column in page.COLUMNS].index("marks")
    assert [(cells[1], cells[at]) for cells in source.table] == [
        ("new", ""), ("old", "old, wide spread"),
    ]  # fmt: skip
    said = "1 of 2 rows are older than the last change of their family's sources"
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert said in summary and "| all rows | 2 | 1 | 8.00x |" in summary
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert text.count("<tr class=old>") == 1
    assert "1 of 2 rows are older" in text
    write(rows[:1], tmp_path)
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "older than" not in summary and "| all rows | 1 | 0 | 2.00x |" in summary


def test_a_report_of_old_rows_alone_has_its_tables_and_plots(tmp_path: Path) -> None:
    page = write([row("a", 2.0, **OLD), row("b", 8.0, **OLD)], tmp_path)
    assert any("geometric mean is 4.00x" in alt for alt in page.alts)
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "2 of 2 rows are older" in summary and "| all rows | 2 | 2 | 4.00x |" in summary


def test_without_git_the_report_says_so(tmp_path: Path) -> None:
    ages = Ages(tmp_path)
    rows = [row("a", sources=ages.present), row("b")]
    said = publish.write([Results(meta=META, rows=rows)], tmp_path / "report", ages)
    assert "1 of 2 rows are older" in said
    for text in (said, (tmp_path / "report/summary.md").read_text(encoding="utf-8")):
        assert "There is no git history here" in text


def test_pictures_for_the_documents_are_small_and_stay_if_there_are_no_others(
    tmp_path: Path,
) -> None:
    kinds = itertools.product(figures.PRECISIONS, figures.LAYOUTS, figures.OPS, range(42))
    families = ("direct", "im2col", "tiled", "implicit_gemm", "depthwise", "grouped", "col2im")
    rows = [
        row(
            f"conv{i}", 1.5, precision=precision, layout=layout, op=op, bias=i % 3 == 0,
            family=families[i % 7], percent_of_floor=97 * (0.618034 * n % 1),
            peer_percent_of_floor=97 * (0.754878 * n % 1),
        )
        for n, (precision, layout, op, i) in enumerate(kinds)
    ]  # fmt: skip
    assert len(rows) > 1000
    folder = tmp_path / "docs/pictures"
    for chosen in (rows, []):
        publish.write([Results(meta=META, rows=chosen)], tmp_path / "report", AGES, folder)
        assert sorted(path.name for path in folder.iterdir()) == ["floor-dark.png", "floor.png"]
    assert all(path.stat().st_size < 150_000 for path in folder.iterdir())


def test_the_peers_rows_that_add_a_bias_are_a_strip_of_their_own() -> None:
    rows = [row("a"), row("a", bias=True), row("b", bias=True), row("b", op="dgrad", bias=True)]
    (axes,) = figures.floor(rows, rows, "cudnn", figures.LIGHT).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["tiled (4)", "cuDNN (2)", "cuDNN, adds a bias (2)"]


def test_bars_that_add_a_bias_are_hatched() -> None:
    rows = [row("a", 2.0), row("b", 3.0, bias=True), row("c", 4.0, bias=None)]
    axes = figures.ratios(rows, "cudnn", figures.LIGHT).axes[0]
    assert [bool(bar.get_hatch()) for bar in axes.patches] == [False, True, False]


def test_page_holds_every_row_and_needs_nothing_else(tmp_path: Path) -> None:
    rows = [row(f"conv{i}", 2.0 ** (i - 3), op=op) for i in range(7) for op in figures.OPS]
    rows += [row("<script>&", 12.0, marks=["implausible"]), failed("broken")]
    page = write(rows, tmp_path)
    assert len(page.table) == len(rows)
    assert [cells[1] for cells in page.table] == [r["name"] for r in rows]
    text = [" ".join(cells) for cells in page.table]
    assert "12.0x" in text[-2] and "implausible" in text[-2]
    assert "wrong: ours" in text[-1]
    assert len(page.links) == 6 and all(v.startswith("data:image/png;") for v in page.links)
    assert len(page.alts) == 3 and all(page.alts)
    assert not page.tags & {"link", "iframe", "object"}
    source = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not any(text in source for text in ("http:", "https:", "url(", "@import"))


def test_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [row("a", 0.5), row("b", 3.0), row("c", 1.2, layout="nchw"), failed("d")]
    rows += [row(f"n={n}", suite="scaling", problem=problem(n=n)) for n in (1, 2, 4)]
    for out in ("one", "two"):
        write(rows, tmp_path / out)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    plots = [
        f"{n}{d}.png" for n in ("floor", "ratios", "roofline", "scaling") for d in ("", "-dark")
    ]
    assert names == sorted(["index.html", "summary.md", *plots])
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


NO_FLOOR: Row = dict.fromkeys(("floor_ms", "percent_of_floor", "peer_percent_of_floor"))


@pytest.mark.parametrize(
    ("rows", "meta", "plots"),
    [
        ([row()], META, ["ratios", "roofline", "floor"]),
        ([row(ratio=0.07), row("b", 12.0, forced="tiled")], META, ["ratios", "roofline", "floor"]),
        ([row() | NO_FLOOR], {**META, "peaks": None}, ["ratios"]),
        ([failed("a"), failed("b", layout="nchw")], META, []),
        ([row("n=1", suite="scaling")], META, []),
        ([], META, []),
    ],
    ids=[
        "one row",
        "a forced family",
        "unknown machine",
        "errors only",
        "part of a sweep",
        "no rows",
    ],
)
def test_poor_files_give_a_page_of_what_there_is(
    rows: list[Row], meta: dict[str, object], plots: list[str], tmp_path: Path
) -> None:
    page = write(rows, tmp_path, meta)
    assert len(page.alts) == len(plots)
    written = sorted(path.name for path in tmp_path.glob("*.png"))
    assert written == sorted(f"{name}{dark}.png" for name in plots for dark in ("", "-dark"))


def test_more_suites_than_colours_and_more_shapes_than_pixels_are_drawn(tmp_path: Path) -> None:
    rows = [row(f"conv{i}", 1.01**i, suite=f"suite{i % 10}") for i in range(300)]
    assert len(write(rows, tmp_path).table) == 300


def test_sweeps_are_found_by_what_they_vary() -> None:
    swept = [
        row(layer.name, suite=layer.suite, problem=layer.problem(), layout=layout)
        for layer in corpus.load(["scaling"])
        for layout in figures.LAYOUTS
    ]
    found = publish.sweeps(swept)["fp16", "fprop"]
    assert list(found) == ["N", "C = K", "H = W"]
    assert all(list(by_layout) == ["nchw", "nhwc"] for by_layout in found.values())
    lines = [by_layout["nhwc"] for by_layout in found.values()]
    assert all(list(line) == sorted(line) for line in lines)
    assert {str(n) for n in lines[0]} == {r["name"][4:] for r in swept if r["name"][0] == "N"}
    assert sum(map(len, lines)) == len(swept) / 2 + 2  # they share one layer
    two = [row(str(n), suite="scaling", problem=problem(n)) for n in (1, 2)]
    assert publish.sweeps(two) == {}


def test_later_files_replace_rows_and_devices_do_not_mix() -> None:
    old = Results(meta=META, rows=[row("a", 1.0), row("b", 1.0)])
    new = Results(meta={**META, "commit": "def"}, rows=[row("b", 3.0)])
    both = publish.together([old, new])
    assert both["meta"]["commit"] == "def"
    assert [(r["name"], r["ratio"]) for r in both["rows"]] == [("a", 1.0), ("b", 3.0)]
    with pytest.raises(results.BadResults, match="of one of Another, GPU"):
        publish.together([old, Results(meta={"device": "Another"}, rows=[])])


def test_command_prints_the_means_and_refuses_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    publish.add_arguments(parser)
    results.save(tmp_path / "gpu.json", Results(meta=META, rows=[row(ratio=1.5)]))
    out = ["--out", str(tmp_path / "report")]
    assert publish.main(parser.parse_args([str(tmp_path / "gpu.json"), *out])) == 0
    said = capsys.readouterr().out
    assert "customconv against cuDNN" in said and "1.50x" in said
    summary = (tmp_path / "report/summary.md").read_text()
    assert "| fp16 | NHWC | fprop | no | 1 | 0 | 1.50x |" in summary
    assert publish.main(parser.parse_args([str(tmp_path / "none.json"), *out])) == 2
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize("theme", [figures.LIGHT, figures.DARK], ids=["light", "dark"])
def test_colours_stand_out(theme: figures.Theme) -> None:
    def luminance(colour: str) -> float:
        channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    assert all(contrast(colour, theme.background) >= 3 for colour in theme.colours)
    assert all(contrast(c, theme.background) >= 4.5 for c in (theme.ink, theme.faint))
    assert all(a != b for a, b in itertools.combinations(theme.colours, 2))
