"""bench compare: what counts as slower, and what is said of it."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import pytest

from bench import compare, results
from bench.results import Results, Row

PROBLEM = {
    "N": 8, "C": 64, "H": 56, "W": 56, "K": 64, "R": 3, "S": 3, "P": 56, "Q": 56,
    "stride": [1, 1], "pad": [1, 1], "dil": [1, 1], "groups": 1,
}  # fmt: skip


def row(
    name: str, ours: float, spread: float = 0.01, peer: float = 1.0, bias: bool | None = False
) -> Row:
    """A row whose quartiles are so far from the median, as a share of it."""
    return Row(
        suite="resnet50", name=name, problem=PROBLEM, bias=bias, dtype="float16", precision="fp16",
        layout="nhwc", op="fprop", peer="cudnn", forced=None, family="tiled", plan="tiled",
        ours_ms=ours, ours_low=ours * (1 - spread), ours_high=ours * (1 + spread),
        peer_ms=peer, peer_low=peer * 0.99, peer_high=peer * 1.01, ratio=peer / ours,
        ratio_lo=0.99 * peer / ours, ratio_hi=1.01 * peer / ours, marks=[],
    )  # fmt: skip


def wrong(name: str) -> Row:
    failed = copy.deepcopy(row(name, 1.0))
    for column in [c for c in failed if c.startswith(("ours_", "peer_", "ratio"))]:
        del failed[column]
    failed["error"] = "ours is wrong"
    return failed


def run(old: list[Row], new: list[Row], tmp_path: Path, *options: str) -> int:
    for name, rows in (("old.json", old), ("new.json", new)):
        meta = {"device": "GPU", "commit": name[:3], "date": "2026-01-01"}
        results.save(tmp_path / name, Results(meta=meta, rows=rows))
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    paths = [str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    return compare.main(parser.parse_args([*paths, *options]))


def test_planted_slowdowns_are_named_worst_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = [row(name, 1.0) for name in ("same", "slow", "slowest", "fast")]
    new = [row("same", 1.0), row("slow", 1.1), row("slowest", 1.5), row("fast", 0.8)]
    assert run(old, new, tmp_path) == 1
    said = capsys.readouterr().out
    assert "2 of 4 rows got slower" in said
    table = [line for line in said.splitlines() if line.lstrip().startswith("+")]
    assert ["slowest" in line for line in table] == [True, False]
    assert "+50.0 %" in table[0] and "-33.3 %" in table[0]  # ours, and the ratio to the peer
    assert "slow " in table[1] and "+10.0 %" in table[1]
    assert "1 got faster" in said


def test_equal_files_are_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("a", 1.0), row("b", 2.0)]
    assert run(rows, rows, tmp_path) == 0
    said = capsys.readouterr().out
    assert "0 of 2 rows got slower" in said
    assert "only in" not in said


@pytest.mark.parametrize(
    ("ours", "spread", "status"),
    [
        (1.10, 0.06, 0),  # the quartiles overlap
        (1.10, 0.04, 1),
        (1.02, 0.001, 0),  # below the least slowdown
        (1.04, 0.001, 1),
    ],
)
def test_noise_is_no_slowdown(ours: float, spread: float, status: int, tmp_path: Path) -> None:
    assert run([row("a", 1.0, spread)], [row("a", ours, spread)], tmp_path) == status


def test_least_slowdown_is_an_option(tmp_path: Path) -> None:
    old, new = [row("a", 1.0)], [row("a", 1.1)]
    assert run(old, new, tmp_path, "--least", "11") == 0
    assert run(old, new, tmp_path, "--least", "9") == 1


def test_new_error_is_the_worst_slowdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = [row("slow", 1.0), row("broken", 1.0), wrong("mended"), wrong("still")]
    new = [row("slow", 9.0), wrong("broken"), row("mended", 1.0), wrong("still")]
    assert run(old, new, tmp_path) == 1
    said = capsys.readouterr().out
    assert "2 of 2 rows got slower" in said
    assert said.index("broken") < said.index("slow ")
    assert "ours is wrong" in said
    assert run([wrong("a")], [wrong("a")], tmp_path) == 0


def test_rows_of_one_file_are_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = [row("both", 1.0), row("gone", 1.0)]
    new = [row("both", 1.0), *(row(f"new{i}", 1.0) for i in range(9))]
    assert run(old, new, tmp_path) == 0
    said = capsys.readouterr().out
    assert "1 only in OLD: resnet50 gone" in said
    assert "9 only in NEW" in said and "new4" in said and "new5" not in said


def test_rows_with_and_without_a_bias_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = [row("a", 1.0, bias=False), row("a", 1.0, bias=True)]
    assert run(old, [row("a", 1.5, bias=True)], tmp_path) == 1
    said = capsys.readouterr().out
    assert "1 of 1 rows got slower" in said and "cudnn, bias" in said
    assert "1 only in OLD: resnet50 a N8 fp16 nhwc fprop, cudnn, no bias." in said


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_unreadable_file_is_an_error_of_its_own(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    if text is not None:
        bad.write_text(text)
    assert compare.main(argparse.Namespace(old=bad, new=bad, least=3.0)) == 2
    assert "bad.json" in capsys.readouterr().err
