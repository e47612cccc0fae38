"""The sources that results depend on: a hash of them, and what has changed since a measurement."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("csrc", "python")

# What builds and tools leave between the sources.
BUILT_SUFFIXES = (".so", ".pyc", ".o")
BUILT_NAMES = ("_build.json",)
BUILT_FOLDERS = ("__pycache__",)
BUILT_FOLDER_SUFFIXES = (".egg-info", ".dist-info")

# What every family is compiled from or planned by, as git's pathspecs.
SHARED = ("csrc/kernels/common", "csrc/kernels/ptx", ":(glob)csrc/kernels/*.h", "csrc/plan")
COMPILER = "python/customconv/compiler"  # what compiled networks depend on beside all families


def is_source(path: Path) -> bool:
    """Whether a file, by its path in the tree, is a source and not what a build left."""
    return not (
        path.name.startswith(".")
        or path.name in BUILT_NAMES
        or path.suffix in BUILT_SUFFIXES
        or any(
            part in BUILT_FOLDERS or part.startswith(".") or part.endswith(BUILT_FOLDER_SUFFIXES)
            for part in path.parts[:-1]
        )
    )


def hash_sources(root: Path = ROOT) -> dict[str, str]:
    """The hash of each source file by its path: the same on every platform, with or without git."""
    hashes = {}
    for folder in FOLDERS:
        for file in (root / folder).rglob("*"):
            path = file.relative_to(root)
            if file.is_file() and is_source(path):
                content = file.read_bytes().replace(b"\r\n", b"\n")
                hashes[path.as_posix()] = hashlib.sha256(content).hexdigest()[:16]
    return dict(sorted(hashes.items()))


def hash_tree(sources: dict[str, str]) -> str:
    """One hash of all of them."""
    lines = "".join(f"{path} {digest}\n" for path, digest in sorted(sources.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


class Ages:
    """Says which rows are older than the last change of the sources of the family they name.

    A row is current if it was measured with the present sources, or if git knows its commit and the
    family's sources have not changed since. So rows of unknown commits are old, also those of a
    commit with uncommitted changes, and without git all rows of other sources. Networks depend on
    all families and on the compiler.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.unchanged_since = cache(self._unchanged_since)

    @cached_property
    def present(self) -> str:
        """The hash of the present sources."""
        return hash_tree(hash_sources(self.root))

    @cached_property
    def has_git(self) -> bool:
        """Whether the sources are in a clone, so that their history is known."""
        return (self.root / ".git").exists() and self._git("rev-parse", "HEAD")

    def is_old(self, row: dict[str, Any]) -> bool:
        if row.get("sources") == self.present:
            return False
        family = f"csrc/kernels/{row.get('family', '')}".rstrip("/")
        own = (family, COMPILER) if "network" in row else (family,)
        return not self.unchanged_since(str(row.get("commit")), own)

    def _unchanged_since(self, commit: str, own: tuple[str, ...]) -> bool:
        # The diff against the working tree, so uncommitted changes count. Without a family, as in
        # rows that failed, all families do.
        if not self.has_git or commit.startswith("-"):
            return False
        return self._git("diff", "--quiet", commit, "--", *own, *SHARED)

    def _git(self, *arguments: str) -> bool:
        try:
            done = subprocess.run(["git", *arguments], cwd=self.root, capture_output=True)
        except OSError:
            return False
        return done.returncode == 0
