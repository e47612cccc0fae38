"""The files that a file depends on: what it includes, in C++ and CUDA, or imports, in Python.

Both are read from the text, so nothing has to be built or installed. Files are named by their paths
below the root of the repository.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
CPP_SUFFIXES = (".h", ".cuh", ".cpp", ".cu", ".def", ".inc")
INCLUDE_FOLDERS = ("csrc",)
IMPORT_FOLDERS = ("tests", "tools", "", "python")  # as pytest has them


class Tree:
    """The files below a root, each of which is read once."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.needs = functools.cache(self._needs)
        self.hash = functools.cache(self._hash)
        self.exports = functools.cache(self._exports)

    def glob(self, pattern: str) -> list[str]:
        """The sources that match a pattern, without what builds leave between them."""
        found = (path for path in self.root.glob(pattern) if path.is_file())
        paths = (path.relative_to(self.root).as_posix() for path in found)
        return sorted(p for p in paths if not p.endswith((".so", ".pyc", "_build.json")))

    def closure(self, paths: Iterable[str]) -> set[str]:
        """These files, and what they need, and so on."""
        found: set[str] = set()
        todo = list(paths)
        while todo:
            path = todo.pop()
            if path not in found:
                found.add(path)
                todo += self.needs(path)
        return found

    def _hash(self, path: str) -> str:
        """The same on every platform."""
        return digest((self.root / path).read_bytes().replace(b"\r\n", b"\n"))

    def _is_file(self, path: str) -> bool:
        return (self.root / path).is_file()

    def _needs(self, path: str) -> frozenset[str]:
        """What a file names itself."""
        if path.endswith(CPP_SUFFIXES):
            return frozenset(self._included(path))
        if path.endswith(".py"):
            return frozenset({*self._imported(path), *self._conftests(path)} - {path})
        return frozenset()

    def _included(self, path: str) -> Iterator[str]:
        for name in INCLUDE.findall((self.root / path).read_text()):
            for folder in (posixpath.dirname(path), *INCLUDE_FOLDERS):
                if self._is_file(found := posixpath.normpath(posixpath.join(folder, name))):
                    yield found
                    break

    def _conftests(self, path: str) -> Iterator[str]:
        """Those that pytest loads for a file of tests."""
        folder, name = posixpath.split(path)
        while name.startswith("test_") and folder:
            if self._is_file(found := posixpath.join(folder, "conftest.py")):
                yield found
            folder = posixpath.dirname(folder)

    def _imported(self, path: str) -> Iterator[str]:
        tree = ast.parse((self.root / path).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = self._find(path, node.module or "", node.level)
                for name in node.names if module else ():
                    yield from self._member(module, name.name)
            elif isinstance(node, ast.Import):
                for name in node.names:
                    if module := self._find(path, name.name):
                        yield from self._used(tree, module, name.asname or name.name)

    def _used(self, tree: ast.AST, module: str, alias: str) -> Iterator[str]:
        """What a file needs of a module that it imports whole: of a package, what it uses."""
        nodes = list(ast.walk(tree))
        names = [node for node in nodes if isinstance(node, ast.Name) and node.id == alias]
        attributes = [n.attr for n in nodes if isinstance(n, ast.Attribute) and n.value in names]
        if not module.endswith("/__init__.py") or "." in alias or len(names) > len(attributes):
            yield module  # no package, or one that is handed to something
            return
        for name in attributes:
            yield from self._member(module, name)

    def _find(self, path: str, module: str, level: int = 0) -> str:
        """The file of a module as another file names it; empty where it is none of ours."""
        folder = posixpath.dirname(path)
        if level:
            folders = [posixpath.normpath(posixpath.join(folder, *[".."] * (level - 1)))]
        elif self._is_file(posixpath.join(folder, "__init__.py")):
            folders = list(IMPORT_FOLDERS)
        else:
            folders = [folder, *IMPORT_FOLDERS]
        for each in folders:
            base = posixpath.join(each, *module.split(".")) if module else each
            for found in (f"{base}.py", f"{base}/__init__.py"):
                if self._is_file(found):
                    return found
        return ""

    def _member(self, module: str, name: str) -> Iterator[str]:
        """The file that has a name of a module: a package's names are those of its modules.

        The file of the package itself counts where nothing else defines the name. A compiled module
        counts as nothing: who needs it says which sources.
        """
        folder, file = posixpath.split(module)
        if file != "__init__.py":
            yield module
        elif not self._is_file(posixpath.join(folder, f"{name}.pyi")):
            yield self._find(module, name, 1) or self.exports(module).get(name, module)

    def _exports(self, package: str) -> dict[str, str]:
        """The names that a package imports from its modules, and their files."""
        found = {}
        for node in ast.parse((self.root / package).read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                for name in node.names:
                    found[name.asname or name.name] = self._find(package, node.module, 1)
        return found


def digest(content: bytes) -> str:
    """A short hash."""
    return hashlib.sha256(content).hexdigest()[:16]
