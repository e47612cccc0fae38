"""Copies the repository, seeds all faults in the copy, and builds it.

    python tests/faults/build.py /tmp/faulty            copies and builds
    python tests/faults/build.py --copy /tmp/faulty     copies only, for tests that compile sources

Python has to have what a build needs: the environment that `make build` makes has. A second run
copies what changed, and compiles only that. The package is then in the copy's folder `python`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from seeded import FAULTS, OutOfDate, changed_files

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = {"CUSTOMCONV_CUDA": "1", "TORCH_CUDA_ARCH_LIST": "9.0a"}


def sources(root: Path) -> list[str]:
    """The files of a clone, with new ones, without what it ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return sorted({name for name in listed.split("\0") if name and (root / name).is_file()})


def copy(root: Path, to: Path) -> None:
    """Makes the copy, or brings it up to date. Files that stay the same keep their dates.

    Raises:
        OutOfDate: a fault does not fit the sources any more.
    """
    changed = changed_files(lambda path: (root / path).read_text())
    for path in sorted({*sources(root), *changed}):
        content = changed[path].encode() if path in changed else (root / path).read_bytes()
        target = to / path
        if target.is_file() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="build.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the copy")
    parser.add_argument("--copy", action="store_true", help="build nothing")
    options = parser.parse_args(arguments)
    try:
        copy(ROOT, options.folder)
    except OutOfDate as error:
        print(error, file=sys.stderr)
        return 1
    if not options.copy:
        command = [sys.executable, "setup.py", "build_ext", "--inplace"]
        built = subprocess.run(command, cwd=options.folder, env={**DEFAULTS, **os.environ})
        if built.returncode != 0:
            return built.returncode
    print(f"{len(FAULTS)} faults are seeded in {options.folder / 'python' / 'customconv'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
