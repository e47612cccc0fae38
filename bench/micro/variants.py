"""Variants of a program that computes layers: which layers, and which variants are right."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping

import torch
from rich.console import Console
from torch import Tensor

from bench import timing, verify
from bench.layers import Layer
from bench.run import add_suite_arguments, chosen_layers, spread

DOES_NOT_FIT = 2000  # the status of a variant that does not compute a problem

Variant = Callable[[], int]  # returns a status: 0, DOES_NOT_FIT, or an error that was printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select layers and say how long each is timed."""
    add_suite_arguments(parser, "resnet50:64,vgg16,odd")
    parser.set_defaults(dense=True, no_bias=True)
    parser.add_argument("--row-s", type=float, default=0.4, help="seconds of timing for a layer")
    parser.add_argument("--most", type=int, default=1000, help="layers, spread over all")
    parser.add_argument("--verbose", action="store_true", help="name each variant before it runs")


def layers(arguments: argparse.Namespace, fits: Callable[[Layer], bool]) -> Iterator[Layer]:
    """Yields the layers that the options select and the program computes."""
    found = [layer for layer in chosen_layers(arguments) if fits(layer)]
    for layer in spread(found)[: arguments.most]:
        yield layer
        torch.cuda.empty_cache()


def right(
    variants: Mapping[str, Variant],
    result: Tensor,
    expected: Tensor,
    precision: str,
    console: Console,
    *,
    verbose: bool,
) -> tuple[dict[str, Variant], int]:
    """Returns those that are right, and how many are not. What does not fit is neither."""
    found, wrong = {}, 0
    for name, variant in variants.items():
        if verbose:
            console.print(f"  {name}", highlight=False)
        result.fill_(torch.nan)
        status = variant()
        torch.cuda.synchronize()
        if status == DOES_NOT_FIT:
            continue
        try:
            if status != 0:
                raise verify.Wrong(f"status {status}")
            verify.check(result, expected, 0, 0, precision)
        except verify.Wrong as error:
            wrong += 1
            console.print(f"  {name}: wrong: {error}")
            continue
        found[name] = variant
    return found, wrong


def timed(
    calls: Mapping[str, Callable[[], object]], budget_s: float, *, most_runs: int = 201
) -> tuple[dict[str, float], dict[str, timing.Ratio]]:
    """Times the calls in turn.

    Returns:
        Their medians in microseconds, and the ratios of the others' times to the first's.
    """
    turns = {name: [call] for name, call in calls.items()}
    device = torch.device("cuda")
    found = timing.interleaved(turns, device, most_runs=most_runs, budget_s=budget_s)
    return {name: time.median * 1e3 for name, time in found.times.items()}, found.ratios
