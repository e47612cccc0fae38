"""The file that rows of networks are kept in."""

from __future__ import annotations

import json

import pytest
import torch

from bench.kept import Rows
from bench.results import BadResults

CPU = torch.device("cpu")
IDENTITY = ("network", "batch")


def row(batch, **more):
    return {"network": "a", "batch": batch, "error": "", **more}


def test_a_row_replaces_one_of_its_key_in_its_place(tmp_path):
    path = tmp_path / "rows.json"
    rows = Rows(path, CPU, IDENTITY)
    rows.add(row(1, ms=1.0))
    rows.add(row(2, ms=2.0))
    again = Rows(path, CPU, IDENTITY)
    again.add(row(1, ms=3.0))
    kept = json.loads(path.read_text())["rows"]
    assert [(each["batch"], each["ms"]) for each in kept] == [(1, 3.0), (2, 2.0)]
    assert all({"commit", "sources"} <= each.keys() for each in kept)


def test_an_error_is_no_result(tmp_path):
    rows = Rows(tmp_path / "rows.json", CPU, IDENTITY)
    rows.add(row(1))
    rows.add(row(2) | {"error": "off"})
    assert rows.get("a", 1) is not None
    assert rows.get("a", 2) is None
    assert rows.get("a", 3) is None


def test_without_a_file_rows_are_held():
    rows = Rows(None, CPU, IDENTITY)
    rows.add(row(1))
    assert rows.get("a", 1)["commit"] == rows.meta["commit"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSONDecodeError"), ("[]", "TypeError"), ('{"rows": []}', "meta"),
        ('{"meta": {"device": "cpu"}, "rows": [{"network": "a"}]}', "lacks one of network, batch"),
        ('{"meta": {"device": "NVIDIA H100"}, "rows": []}', "is of NVIDIA H100, not of cpu"),
    ],
)  # fmt: skip
def test_another_file_is_refused(text, why, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(BadResults, match=why):
        Rows(path, CPU, IDENTITY)
    assert path.read_text() == text
