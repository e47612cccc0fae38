"""A plugin of pytest: ``--part`` and ``--stale`` run the tests of some parts of the GPU suite."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from pathlib import Path

import gpu_parts
import gpu_record
import pytest
from closure import ROOT
from gpu_suite import part_of

SELECTED = pytest.StashKey["set[str] | None"]()
HOMELESS = pytest.StashKey["list[str]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    names = [part.name for part in gpu_parts.PARTS]
    group = parser.getgroup("parts of the GPU suite")
    group.addoption(
        "--part", action="append", default=[], choices=names, metavar="NAME",
        help=f"run the GPU tests of this part alone: {', '.join(names)}",
    )  # fmt: skip
    group.addoption(
        "--stale", action="store_true",
        help="run the GPU tests of the parts that changed since they were recorded",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    selected = set(config.getoption("--part"))
    if config.getoption("--stale"):
        selected |= set(gpu_record.Record().stale())
    config.stash[SELECTED] = selected if selected or config.getoption("--stale") else None


def pytest_report_header(config: pytest.Config) -> str | None:
    selected = config.stash[SELECTED]
    if selected is None:
        return None
    return f"parts of the GPU suite: {', '.join(sorted(selected)) or 'none, all are recorded'}"


def below_root(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing files takes time: those without tests of the parts are left out."""
    selected = config.stash[SELECTED]
    if selected is None or not collection_path.name.startswith("test_"):
        return None
    path = below_root(collection_path)
    parts = [part for part in gpu_parts.PARTS if part.name in selected]
    return None if any(part.names(path) for part in parts) else True


def part_of_item(item: pytest.Item) -> str | None:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    function = getattr(item, "originalname", item.name)
    return part_of(gpu_parts.PARTS, below_root(item.path), function, parameters)


@pytest.hookimpl(tryfirst=True)  # before -k, so that a part's tests are all of them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = {item: part_of_item(item) for item in items if item.get_closest_marker("gpu")}
    config.stash[HOMELESS] = [item.nodeid for item, name in part.items() if name is None]
    selected = config.stash[SELECTED]
    if selected is None:
        return
    chosen = [item for item in items if part.get(item) in selected]
    others = [item for item in items if part.get(item) not in selected]
    sizes = Counter(part[item] for item in chosen)
    for item in chosen:
        item.user_properties.append((gpu_record.PART, [part[item], sizes[part[item]]]))
    items[:] = in_order(chosen, part)
    config.hook.pytest_deselected(items=others)


def in_order(items: list[pytest.Item], part: dict[pytest.Item, str | None]) -> list[pytest.Item]:
    """One part after the other, so that a run that is cut off has completed some.

    First come functions whose tests are of several parts: what these share stays together.
    """
    blocks = [list(block) for _, block in groupby(items, lambda item: item.nodeid.split("[")[0])]
    names = [each.name for each in gpu_parts.PARTS]

    def key(block: list[pytest.Item]) -> int:
        found = {part[item] for item in block}
        return names.index(part[block[0]]) if len(found) == 1 else -1

    return [item for block in sorted(blocks, key=key) for item in block]


@pytest.fixture
def tests_of_no_part(pytestconfig: pytest.Config) -> list[str]:
    """The GPU tests of this run that belong to no part."""
    return pytestconfig.stash[HOMELESS]
