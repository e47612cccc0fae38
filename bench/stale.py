"""`python3 -m bench.stale`: which published rows are older than the kernels.

The exit status is 1 if any is. A release needs it to be 0. It needs git's history and no package.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .sources import Ages

RESULTS = Path(__file__).with_name("results")
# What README and docs show, and the command that measures it again.
PUBLISHED = {
    "h100.json": "python -m bench run",
    "models-h100.json": "python -m bench models",
    "compile-h100.json": "python -m bench models --compile",
}


def stale(path: Path, ages: Ages) -> tuple[int, int]:
    """Counts the rows of a file that are older than their sources, and all rows."""
    rows = json.loads(path.read_text())["rows"]
    return sum(ages.is_old(row) for row in rows), len(rows)


def main(folder: Path = RESULTS, ages: Ages | None = None) -> int:
    """Prints a line for each file with stale rows; returns 1 if there is any."""
    ages = ages or Ages()
    if not ages.has_git:
        print("there is no git history: rows that are not of the present sources count as old")
    counts = {name: stale(folder / name, ages) for name in PUBLISHED}
    for name, (old, rows) in counts.items():
        if old:
            print(f"{name}: {old} of {rows} rows are older than the kernels: {PUBLISHED[name]}")
        else:
            print(f"{name}: {rows} rows, none older than the kernels")
    return int(any(old for old, _ in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
