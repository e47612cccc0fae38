"""The command line: ``python -m customconv build | demo | info | run | tune``.

Exit codes: 0, all is well; 1, a check failed; 2, the command cannot be run as it was given. ``run``
and ``tune`` have those of the program that they run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from . import run
from .build import BuildError, build_for_this_torch
from .info import report


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, and gives its exit code.

    Args:
        arguments: The command line after the program's name; None takes it from ``sys.argv``.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in ("run", "tune"):
        run.main(arguments[1:], arguments[0])
    parser = argparse.ArgumentParser(prog="python -m customconv", description="customconv's tools.")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="build | demo | info | run | tune"
    )
    commands.add_parser("run", help="run any program with convolutions computed by customconv")
    commands.add_parser("tune", help="run any program, and keep the fastest of its convolutions")
    commands.add_parser("build", help="compile the operators for the PyTorch that is installed")
    commands.add_parser("info", help="print versions, what was built, and the devices seen")
    demo = commands.add_parser(
        "demo", help="filter a photograph, train a small network, time a few shapes"
    )
    demo.add_argument(
        "--out", type=Path, default=Path("demo-output"), metavar="DIR",
        help="where the picture goes (default: %(default)s)",
    )  # fmt: skip
    demo.add_argument(
        "--device", choices=["cpu", "cuda"],
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where to compute (default here: %(default)s)",
    )  # fmt: skip
    demo.add_argument("--quick", action="store_true", help="fewer steps, for a first look")
    options = parser.parse_args(arguments)

    if options.command == "info":
        print(report())
        return 0
    if options.command == "build":
        return _build()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no CUDA device; `info` says more")
    if not options.quick and not shutil.which(os.environ.get("CXX", "g++")):
        parser.error("torch.compile needs a C++ compiler: install g++ or set CXX, or add --quick")
    try:
        from . import demo as demonstration
    except ModuleNotFoundError as error:
        parser.error(f'the demo needs {error.name}: pip install "customconv[demo]"')
    return demonstration.run(options.out, torch.device(options.device), options.quick)


def _build() -> int:
    print(f"compiling the operators for PyTorch {torch.__version__}", flush=True)
    try:
        library = build_for_this_torch()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{library}: loaded when customconv is imported next")
    return 0


if __name__ == "__main__":
    sys.exit(main())
