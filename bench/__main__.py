"""The benchmark: python -m bench COMMAND. See docs/benchmark.md."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from .results import BadResults

# Each command's module, which has add_arguments(parser) and main(arguments) -> exit status.
COMMANDS = {
    "run": ("run", "times layers beside a peer and writes a results file"),
    "host": ("host", "what an eager call costs the host"),
    "models": ("models", "whole networks, forward and training step"),
    "zoo": ("zoo", "networks of all families, checked against float32"),
    "train": ("train", "whether networks learn with our convolutions as with PyTorch's"),
    "kernelbench": ("kernelbench", "KernelBench's level 1 by its own rules"),
    "fused": ("fused", "what an epilogue costs on top of a convolution"),
    "invariance": ("invariance", "what batch invariance costs"),
    "multi": ("multi", "a decoder whose images several GPUs share"),
    "tune": ("tune", "how far the planner's choice is from the best plan"),
    "timings": ("timings", "times plans of many layers, for the planner's prices"),
    "tuned": ("tuned", "what customconv.tune gains over the planner's choice"),
    "calibrate": ("calibrate", "fits the planner's prices to recorded timings"),
    "planning": ("planning", "what it takes to plan a convolution"),
    "errors": ("errors", "errors of float32 against float64, beside cuDNN's"),
    "extract": ("extract", "lists the convolutions of public networks"),
    "report": ("publish", "a page and plots of results files"),
    "compare": ("compare", "what got slower from one results file to another"),
}


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.split(":")[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, what) in COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what)
        if words and words[0] == name:  # importing the other commands takes seconds
            module = importlib.import_module(f".{module_name}", __package__)
            module.add_arguments(command)
    arguments = parser.parse_args(words)
    module = importlib.import_module(f".{COMMANDS[arguments.command][0]}", __package__)
    try:
        status: int = module.main(arguments)
    except BadResults as error:
        print(error)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
