"""The check of a release: published rows that are older than the kernels fail it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import stale
from bench.sources import ROOT, Ages

AGES = Ages()
FRESH = {"sources": AGES.present}
OLD = {"sources": "0f", "commit": None}


def published(folder: Path, rows: dict[str, list[dict[str, object]]]) -> Path:
    for name in stale.PUBLISHED:
        (folder / name).write_text(json.dumps({"meta": {}, "rows": rows.get(name, [FRESH])}))
    return folder


def test_fresh_rows_pass(tmp_path, capsys):
    assert stale.main(published(tmp_path, {}), AGES) == 0
    assert capsys.readouterr().out.count("1 rows, none older than the kernels") == 3


@pytest.mark.parametrize("name", stale.PUBLISHED)
def test_one_old_row_fails_and_is_told_with_the_command_that_renews_it(tmp_path, capsys, name):
    assert stale.main(published(tmp_path, {name: [FRESH, OLD]}), AGES) == 1
    said = f"{name}: 1 of 2 rows are older than the kernels: {stale.PUBLISHED[name]}\n"
    assert said in capsys.readouterr().out


def test_what_it_reads_is_published():
    assert [name for name in stale.PUBLISHED if not (stale.RESULTS / name).exists()] == []


def test_the_command_needs_no_package():
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r})\n"
         "from bench import stale; stale.main()"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "h100.json: " in done.stdout


def test_a_release_waits_for_the_check():
    workflow = (ROOT / ".github/workflows/wheels.yml").read_text()
    assert "python3 -m bench.stale" in workflow
    assert "fetch-depth: 0" in workflow  # without history all rows count as old
    assert "needs: proof" in workflow
