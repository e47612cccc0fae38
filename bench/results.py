"""The results file: one row for each measured convolution, and what it was measured on."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

import torch

import customconv

from . import machine, sources

ROOT = Path(__file__).resolve().parents[1]

Row = dict[str, Any]
Key = tuple[Any, ...]


class Results(TypedDict):
    meta: dict[str, Any]
    rows: list[Row]


class BadResults(Exception):
    """Raised for a file that holds no valid results."""


# What identifies a row, together with its batch size. Older files lack the optional parts.
IDENTITY = ("suite", "name", "precision", "layout", "op", "peer", "forced", "bias")
OPTIONAL = ("forced", "bias")


def key(row: Row) -> Key:
    """Returns what identifies a row: two rows with the same key measure the same thing."""
    return (*(row.get(part) for part in IDENTITY), row["problem"]["N"])


def read(path: Path) -> Results:
    """Reads a file of any rows; ``BadResults`` says what is wrong with it."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadResults(f"{path}: {error}") from error
    if not isinstance(found, dict) or not {"meta", "rows"} <= found.keys():
        raise BadResults(f"{path}: expected an object with meta and rows")
    return {"meta": found["meta"], "rows": found["rows"]}


def load(path: Path) -> Results:
    """Reads a file of layers' rows; ``BadResults`` says what is wrong with it."""
    found = read(path)
    for row in found["rows"]:
        missing = [part for part in (*IDENTITY, "problem") if part not in {*row, *OPTIONAL}]
        if missing:
            raise BadResults(f"{path}: a row lacks {', '.join(missing)}")
    return found


def one_device(files: Iterable[Results]) -> None:
    """Refuses files of different devices by ``BadResults``."""
    devices = sorted({str(file["meta"].get("device")) for file in files})
    if len(devices) > 1:
        raise BadResults(
            f"a report shows one device: name the files of one of {', '.join(devices)}"
        )


def save(path: Path, results: Results) -> None:
    """Replaces the file in one step, with a row per line, so that a killed run loses no row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join("  " + json.dumps(row) for row in results["rows"])
    meta = json.dumps(results["meta"], indent=1).replace("\n", "\n ")
    draft = path.with_suffix(".part")
    draft.write_text(f'{{\n "meta": {meta},\n "rows": [\n{rows}\n ]\n}}\n')
    os.replace(draft, path)


def save_outcomes(path: Path, device: torch.device, name: str, outcomes: Iterable[Any]) -> None:
    """Writes dataclasses as the list ``name``, with the facts about the run."""
    held = facts(device) | {name: [asdict(outcome) for outcome in outcomes]}
    path.write_text(json.dumps(held, indent=1) + "\n")


def version(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns what each row of a run records of these facts: the version of the sources."""
    return {name: facts[name] for name in ("commit", "sources")}


def bias_words(row: Row) -> str:
    """Says whether a row's layer has a bias; empty if that was not recorded."""
    words: dict[bool | None, str] = {True: "bias", False: "no bias", None: ""}
    return words[row.get("bias")]


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Returns the old rows, each replaced by a new one of the same key, then the other new rows."""
    rows = {key(row): row for row in old}
    rows.update((key(row), row) for row in new)
    return list(rows.values())


def commit() -> str | None:
    """Returns the sources' commit, with "+dirty" if they differ from it; None without git.

    CUSTOMCONV_COMMIT names the commit of sources that were copied out of their repository.
    """
    if named := os.environ.get("CUSTOMCONV_COMMIT"):
        return named

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        dirty = git("status", "--porcelain", "--", "csrc", "python")
        return git("rev-parse", "--short", "HEAD") + ("+dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def facts(device: torch.device) -> dict[str, Any]:
    """Returns what a run's results depend on besides the code."""
    cuda = device.type == "cuda"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit(),
        "sources": sources.hash_tree(sources.hash_sources()),
        "customconv": customconv.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "driver": machine.driver(device),
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
    }
