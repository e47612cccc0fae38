"""Command-line options that the benchmark's commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable


def several(
    parser: argparse.ArgumentParser, flag: str, known: Iterable[str], default: str, what: str
) -> None:
    """Adds an option that takes some of the known words, separated by commas."""
    words = list(known)

    def parse(text: str) -> list[str]:
        chosen = [word for word in text.split(",") if word]
        if not chosen or set(chosen) - set(words):
            raise argparse.ArgumentTypeError(
                f"{text!r}: expected some of {', '.join(words)}, separated by commas"
            )
        return chosen

    parser.add_argument(
        flag, type=parse, default=parse(default), help=f"{what}; by default {default}"
    )
