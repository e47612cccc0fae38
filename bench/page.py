"""The page of `bench report`: one self-contained HTML file."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from .figures import DARK, LIGHT, Theme, peer_name, times
from .results import Row

WORDS = ("of", "precision", "layout", "op", "bias")  # columns of summaries that hold no numbers
DPI = 160  # of the plots; the page shows them at 100, so they stay sharp on fine screens


@dataclass(frozen=True)
class Plot:
    """A plot as PNG, for a light page and for a dark one."""

    name: str
    title: str
    caption: str
    alt: str
    light: bytes
    dark: bytes


class Column(NamedTuple):
    """A column of the table of all rows. Numbers are sorted by value, not by their text."""

    title: str
    value: Callable[[Row], str | float | None]
    text: Callable[[Any], str] | None = None  # formats a number
    explained: str = ""
    style: str = ""


def _number(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(name)


def _word(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(name) or "")


def _marks(row: Row) -> str:
    marks = [row["error"]] if "error" in row else row.get("marks", ())
    return ", ".join(["old", *marks] if row.get("old") else marks)


def bias_text(row: Row) -> str:
    """Says "yes" or "no"; empty if it was not recorded whether the layer has a bias."""
    words: dict[bool | None, str] = {True: "yes", False: "no", None: ""}
    return words[row.get("bias")]


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _exponent(value: float) -> str:
    return f"{value:.1e}"


COLUMNS = (
    Column("suite", _word("suite")),
    Column("shape", _word("name"), style="cut"),
    Column("precision", _word("precision")),
    Column("layout", lambda row: row["layout"].upper()),
    Column("op", _word("op")),
    Column("bias", bias_text, explained="whether the layer has a bias, which forward passes add"),
    Column("family", _word("family")),
    Column("peer", lambda row: peer_name(row["peer"])),
    Column("ratio", _number("ratio"), times, "median of peer / ours in pairs; above 1 is faster"),
    Column("from", _number("ratio_lo"), times, "the ratio's interval of 95 % begins here"),
    Column("to", _number("ratio_hi"), times, "the ratio's interval of 95 % ends here"),
    Column("ours ms", _number("ours_ms"), _short, "median time of ours"),
    Column("peer ms", _number("peer_ms"), _short, "median time of the peer"),
    Column("% of floor", _number("percent_of_floor"), _short, "100 is the machine's limit"),
    Column("peer's", _number("peer_percent_of_floor"), _short, "the peer's % of the floor"),
    Column("TFLOP/s", _number("tflops"), _short, "ours"),
    Column("GB/s", _number("gb_s"), _short, "ours, of the least bytes that must move"),
    Column("error", _number("ours_err"), _exponent, "ours, against float64"),
    Column("peer's", _number("peer_err"), _exponent, "the peer's error"),
    Column("extra MB", _number("ours_extra_mb"), _short, "ours, beyond inputs and output"),
    Column("peer's", _number("peer_extra_mb"), _short, "the peer's extra memory"),
    Column(
        "marks", _marks, explained="old: the family's sources have changed since", style="alarm"
    ),
    Column("problem", lambda row: problem(row["problem"])),
    Column("plan", _word("plan")),
    Column("commit", _word("commit")),
)


def problem(sizes: Mapping[str, Any]) -> str:
    """Formats a problem briefly: its sizes, and what is not the default."""
    volume = "N{N} C{C} {D}x{H}x{W} K{K} {T}x{R}x{S}"
    text = (volume if "D" in sizes else "N{N} C{C} {H}x{W} K{K} {R}x{S}").format_map(sizes)
    for name, usual in (("stride", 1), ("pad", 0), ("dil", 1), ("groups", 1)):
        value = sizes[name]
        numbers = [value] if isinstance(value, int) else list(value)
        if set(numbers) != {usual}:
            numbers = numbers[:1] if len(set(numbers)) == 1 else numbers
            text += f" {name} " + "x".join(map(str, numbers))
    if sizes.get("transposed"):
        text += " transposed"
    return text


def html(
    title: str,
    facts: Mapping[str, str],
    notes: Iterable[str],
    summaries: Mapping[str, Sequence[Sequence[str]]],
    plots: Iterable[Plot],
    rows: Sequence[Row],
) -> str:
    """Returns the page: facts about the run, notes, tables with captions, plots, and all rows."""
    parts = [
        "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>\n<style>{_css()}</style>\n</head>\n<body>\n<main>",
        f"<h1>{escape(title)}</h1>\n<dl>",
        *(f"<dt>{escape(name)}<dd>{escape(text)}" for name, text in facts.items()),
        "</dl>",
        *(f"<p>{escape(note)}</p>" for note in notes),
        *(_summary(caption, table) for caption, table in summaries.items()),
        *(_figure(plot) for plot in plots),
        "<h2>All rows</h2>",
        "<p>A click on a heading sorts. Rows that failed or are marked say so under marks.</p>",
        _rows(rows),
        f"</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _summary(caption: str, table: Sequence[Sequence[str]]) -> str:
    head, *body = table

    def cells(tag: str, line: Sequence[str]) -> str:
        classes = ("" if column in WORDS else " class=n" for column in head)
        return "".join(f"<{tag}{c}>{escape(cell)}" for c, cell in zip(classes, line, strict=True))

    return (
        f"<h2>{escape(caption)}</h2>\n<div class=scroll><table class=summary>\n<thead><tr>"
        + cells("th scope=col", head)
        + "</thead>\n<tbody>\n"
        + "".join(f"<tr>{cells('td', line)}\n" for line in body)
        + "</tbody></table></div>"
    )


def _figure(plot: Plot) -> str:
    def inlined(png: bytes) -> str:
        return "data:image/png;base64," + base64.b64encode(png).decode()

    # A PNG's header holds its size.
    width, height = (size * 100 // DPI for size in struct.unpack(">II", plot.light[16:24]))
    return (
        f"<h2>{escape(plot.title)}</h2>\n<p>{escape(plot.caption)}</p>\n<picture>"
        f'<source media="(prefers-color-scheme: dark)" srcset="{inlined(plot.dark)}">'
        f'<img src="{inlined(plot.light)}" width={width} height={height} alt="{escape(plot.alt)}">'
        "</picture>"
    )


def _rows(rows: Sequence[Row]) -> str:
    heads = (
        f'<th scope=col class="{_class(column)}" title="{escape(column.explained)}">'
        f"<button>{escape(column.title)}</button>"
        for column in COLUMNS
    )
    body = (
        ("<tr class=old>" if row.get("old") else "<tr>")
        + "".join(_cell(column, row) for column in COLUMNS)
        for row in rows
    )
    return (
        f"<div class=scroll id=rows><table>\n<thead><tr>{''.join(heads)}</thead>\n<tbody>\n"
        + "\n".join(body)
        + "\n</tbody></table></div>"
    )


def _cell(column: Column, row: Row) -> str:
    value = column.value(row)
    start = f'<td class="{_class(column)}"' if _class(column) else "<td"
    if value is None:
        return start + ">"
    if column.text:
        return f"{start} data-v={value:.6g}>{escape(column.text(value))}"
    hover = f' title="{escape(str(value))}"' if column.style == "cut" else ""
    return f"{start}{hover}>{escape(str(value))}"


def _class(column: Column) -> str:
    return "n" if column.text else column.style


def _css() -> str:
    def variables(theme: Theme) -> str:
        return (
            f"--ground:{theme.background};--ink:{theme.ink};--faint:{theme.faint};"
            f"--line:{theme.grid};--accent:{theme.colours[0]};--alarm:{theme.colours[1]}"
        )

    return STYLE % (variables(LIGHT), variables(DARK))


STYLE = """
:root{color-scheme:light dark;%s}
@media(prefers-color-scheme:dark){:root{%s}}
body{margin:0;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1040px;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 1rem}
h2{font-size:1.2rem;margin:2.5rem 0 .5rem}
p{margin:.25rem 0 1rem;color:var(--faint);max-width:70ch}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.25rem;margin:0;font-size:.9rem}
dt{color:var(--faint)}
dd{margin:0}
img{max-width:100%%;height:auto;display:block}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line)}
th{font-weight:600;background:var(--ground)}
.n{text-align:right}
.scroll{overflow:auto}
#rows{max-height:85vh;border:1px solid var(--line);border-radius:6px;position:relative;
width:max-content;max-width:calc(100vw - 3rem);left:50%%;transform:translateX(-50%%)}
#rows table{font-size:.78rem}
#rows thead th{position:sticky;top:0;padding:0}
#rows button{all:unset;box-sizing:border-box;width:100%%;padding:.4rem .7rem;cursor:pointer}
#rows button:focus-visible{outline:2px solid var(--accent);outline-offset:-2px}
#rows th[aria-sort=ascending] button::after{content:" \\2191"}
#rows th[aria-sort=descending] button::after{content:" \\2193"}
#rows tbody tr:hover{background:var(--line)}
#rows td{padding:.2rem .7rem}
#rows .n button{text-align:right}
.cut{max-width:22rem;overflow:hidden;text-overflow:ellipsis}
td.alarm{color:var(--alarm)}
tr.old{color:var(--faint)}
input{font:inherit;padding:.35rem .6rem;margin-bottom:.75rem;width:20rem;max-width:100%%;
color:inherit;background:transparent;border:1px solid var(--faint);border-radius:6px}
"""

SCRIPT = """
const frame = document.getElementById("rows"), body = frame.querySelector("tbody");
const all = [...body.rows], heads = [...frame.querySelectorAll("th")];
const value = (row, i) => row.cells[i].dataset.v ?? row.cells[i].textContent;
const order = (a, b) => a === "" || b === "" ? (a === "") - (b === "")
  : isNaN(a) || isNaN(b) ? a.localeCompare(b, "en", {numeric: true}) : a - b;
heads.forEach((head, i) => head.firstChild.addEventListener("click", () => {
  const down = head.getAttribute("aria-sort") === "ascending";
  heads.forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  all.sort((x, y) => {
    const a = value(x, i), b = value(y, i);
    return order(a, b) * (down && a !== "" && b !== "" ? -1 : 1);
  });
  body.append(...all);
}));
const field = document.createElement("input");
field.type = "search";
field.placeholder = "Show rows with these words";
field.setAttribute("aria-label", field.placeholder);
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\\s+/);
  for (const row of all)
    row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
});
frame.before(field);
"""
