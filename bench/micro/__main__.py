"""`python -m bench.micro PROGRAM`: measures facts about the GPU and prints them."""

from __future__ import annotations

import argparse
import sys

import torch
from rich.console import Console

from . import build, launch, tma

PROGRAMS = {"launch": launch, "tma": tma}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.micro", description=__doc__)
    commands = parser.add_subparsers(dest="program", required=True, metavar="PROGRAM")
    for name, program in PROGRAMS.items():
        what = (program.__doc__ or "").splitlines()[0]
        program.add_arguments(commands.add_parser(name, help=what, description=what))
    compiling = "compiles the programs ahead of time, on a machine without a GPU too"
    build.add_arguments(commands.add_parser("build", help=compiling, description=compiling))
    arguments = parser.parse_args()
    console = Console(width=160)
    if arguments.program == "build":
        return build.main(arguments, console)
    if not torch.cuda.is_available():
        console.print("needs a GPU")
        return 2
    status: int = PROGRAMS[arguments.program].main(arguments, console)
    return status


if __name__ == "__main__":
    sys.exit(main())
