"""What a part of the GPU suite is: some of the tests, and the sources that they depend on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from closure import Tree, digest


def matches(path: str, pattern: str) -> bool:
    """Whether a path is one that ``Tree.glob`` finds by a pattern, should it exist."""
    expression = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
    return re.fullmatch(expression, path) is not None


@dataclass(frozen=True)
class Selection:
    """The tests in some files, or those of a function, or those whose parameters have such values.

    Attributes:
        files: patterns of paths below tests/.
        function: the name of a function, or nothing for all.
        values: for some parameters, the values of which a test has one.
    """

    files: tuple[str, ...]
    function: str = ""
    values: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def has(self, path: str, function: str, parameters: Mapping[str, Any]) -> bool:
        """Whether a test is one of these. The path is below the root of the repository."""
        return (
            any(matches(path, f"tests/{pattern}") for pattern in self.files)
            and self.function in ("", function)
            and all(name in parameters and parameters[name] in of for name, of in self.values)
        )


def select(*files: str, function: str = "", **values: Any) -> Selection:
    """The tests in these files; a parameter's value may be a tuple of several."""
    several = {name: of if isinstance(of, tuple) else (of,) for name, of in values.items()}
    return Selection(files, function, tuple(several.items()))


@dataclass(frozen=True)
class Part:
    """Tests that are run and recorded together.

    Attributes:
        name: what it is called in the record and on the command line.
        tests: which tests it has, but for those of parts before it.
        sources: patterns of paths: what the compiled module counts as, and what tests reach without
            an import.
    """

    name: str
    tests: tuple[Selection, ...]
    sources: tuple[str, ...]

    def patterns(self) -> list[str]:
        """Patterns of the files that it names."""
        return [f"tests/{p}" for each in self.tests for p in each.files] + list(self.sources)

    def names(self, path: str) -> bool:
        """Whether it names a file, which need not exist."""
        return any(matches(path, pattern) for pattern in self.patterns())

    def hashes(self, tree: Tree) -> dict[str, str]:
        """The hash of each file that an outcome depends on, and of what the part itself is."""
        roots = {path for pattern in self.patterns() for path in tree.glob(pattern)}
        found = {path: tree.hash(path) for path in tree.closure(roots)}
        own = {f"tests/gpu_parts.py: {self.name}": digest(repr(self).encode())}
        return dict(sorted({**found, **own}.items()))


def part_of(
    parts: Iterable[Part], path: str, function: str, parameters: Mapping[str, Any]
) -> str | None:
    """The name of the first part that has a test, or None."""
    for part in parts:
        if any(each.has(path, function, parameters) for each in part.tests):
            return part.name
    return None
