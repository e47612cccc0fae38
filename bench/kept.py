"""Results of networks, saved row by row. One run or several fill a file.

A row maps names to values. Some of its values identify it: a new row replaces an old one in which
these are the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from . import results
from .results import BadResults, Key, Row


class Rows:
    """The rows of a file, which is saved after each new row; without a file, this run's rows.

    Raises:
        BadResults: The file holds something else, or rows of another device.
    """

    def __init__(
        self, path: Path | None, device: torch.device, identity: Sequence[str], **meta: Any
    ) -> None:
        self.path = path
        self.identity = identity
        self.meta = results.facts(device) | meta
        self.rows: dict[Key, Row] = {}
        if path is not None and path.exists():
            self.rows = {self.key(row): row for row in self._read(path)}

    def _read(self, path: Path) -> list[Row]:
        try:
            found = json.loads(path.read_text())
            of, rows = found["meta"]["device"], found["rows"]
            complete = all(set(self.identity) <= row.keys() for row in rows)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadResults(f"{path}: {error!r}") from error
        if not complete:
            raise BadResults(f"{path}: a row lacks one of {', '.join(self.identity)}")
        if of != self.meta["device"]:
            raise BadResults(f"{path} is of {of}, not of {self.meta['device']}")
        return list(rows)

    def key(self, row: Row) -> Key:
        """Returns the values that identify a row."""
        return tuple(row[part] for part in self.identity)

    def get(self, *key: Any) -> Row | None:
        """Returns the row with this key, or None if there is none or it is an error."""
        row = self.rows.get(key)
        return None if row is None or row["error"] else row

    def add(self, row: Row) -> None:
        """Adds the row, with the sources' version, replacing one of the same key, and saves."""
        self.rows[self.key(row)] = row | results.version(self.meta)
        if self.path is not None:
            results.save(self.path, {"meta": self.meta, "rows": list(self.rows.values())})
