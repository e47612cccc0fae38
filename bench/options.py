"""Command-line options that the benchmark's commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable


def minutes(parser: argparse.ArgumentParser) -> None:
    """Adds the option that ends a run after so many minutes."""
    parser.add_argument(
        "--minutes", type=float,
        help="stop cleanly after this many minutes; what is measured is saved",
    )  # fmt: skip


def several(
    parser: argparse.ArgumentParser,
    flag: str,
    known: Iterable[str],
    default: str,
    what: str,
    *,
    numbered: bool = False,
) -> None:
    """Adds an option that takes some of the known words, separated by commas.

    If ``numbered``, a positive number may follow a word: ``word:64``.
    """
    words = list(known)

    def is_known(text: str) -> bool:
        word, colon, number = text.partition(":")
        if colon and not (numbered and number.isdecimal() and int(number) > 0):
            return False
        return word in words

    def parse(text: str) -> list[str]:
        chosen = [word for word in text.split(",") if word]
        if not chosen or not all(is_known(word) for word in chosen):
            raise argparse.ArgumentTypeError(
                f"{text!r}: expected some of {', '.join(words)}, separated by commas"
            )
        return chosen

    parser.add_argument(
        flag, type=parse, default=parse(default), help=f"{what}; by default {default}"
    )
