"""The command ``python -m customconv run``: any program, with convolutions routed.

The process becomes ``python script.py`` by ``exec``: same interpreter, options and process id, so
that ``sys.argv``, ``__main__``, exit status, signals and tracebacks are the program's own. What
turns routing on is the folder ``_startup`` on ``PYTHONPATH``: Python imports ``sitecustomize`` from
there when it starts, which waits for the program's ``import torch``. Child processes inherit it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_startup")
REQUEST = "CUSTOMCONV_RUN"  # read by _startup: the id of the first process, and ":stats" if asked

DESCRIPTION = """\
Runs a program as Python would, with convolutions on CUDA computed by customconv where it can. The
processes that the program starts are routed too, by PYTHONPATH; a process that is started without
the environment is not."""


def interpreter_options(command: Sequence[str]) -> list[str] | None:
    """The options of Python itself in the command line of ``python -m customconv``.

    Args:
        command: The whole command line, as ``sys.orig_argv`` has it.

    Returns:
        The options before ``-m customconv``, or None where the command line is another one.
    """
    options = []
    words = iter(command[1:])
    for word in words:
        if word.startswith("--"):
            options += [word, next(words, "")] if word == "--check-hash-based-pycs" else [word]
            continue
        if not word.startswith("-"):
            return None
        for index, letter in enumerate(word[1:], start=1):
            value = word[index + 1 :]
            if letter in "cm":
                if letter != "m" or (value or next(words, "")) != "customconv":
                    return None
                return options + ([word[:index]] if index > 1 else [])
            if letter in "WX":
                options += [word] if value else [word, next(words, "")]
                break
        else:
            options.append(word)
    return None


def environment(inherited: Mapping[str, str], process: int, stats: bool) -> dict[str, str]:
    """The environment in which Python starts with routing on.

    Args:
        inherited: The environment so far.
        process: The id of the process that will be the program.
        stats: Whether processes print what ``customconv.stats()`` counted when they end.
    """
    paths = inherited.get("PYTHONPATH") or None
    others = [path for path in paths.split(os.pathsep) if path != STARTUP] if paths else []
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join([STARTUP, *others]),
        REQUEST: f"{process}:stats" if stats else str(process),
    }


def main(arguments: Sequence[str]) -> NoReturn:
    """Becomes the program that the arguments name.

    Args:
        arguments: The command line after ``run``: options of ``run``, then the program as Python
            takes it: a script, folder or zip file, ``-m module``, ``-c code`` or ``-``, and the
            program's own arguments.

    Raises:
        SystemExit: 2, the command cannot be run as it was given, with the reason on stderr.
    """
    parser = argparse.ArgumentParser(
        prog="python -m customconv run",
        usage="%(prog)s [-h] [--stats] (script | -m module | -c code | -) [arguments ...]",
        description=DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--stats", action="store_true",
        help="print the calls that customconv computed, and those it left to PyTorch with the "
        "reasons, to stderr when a process ends",
    )  # fmt: skip

    def ours(word: str) -> bool:
        return word.startswith("-") and word not in ("-", "--") and word[:2] not in ("-c", "-m")

    own = list(itertools.takewhile(ours, arguments))
    program = list(arguments[len(own) :])
    options = parser.parse_args(own)
    if not program:
        parser.error("it names no program")
    if sys.flags.ignore_environment or sys.flags.no_site:
        parser.error(
            "Python's options -I, -E and -S keep it from reading PYTHONPATH, which turns routing "
            "on; leave them out, or call customconv.enable() in the program"
        )
    # Where another program called this function, Python's options are that program's.
    python = [sys.executable, *(interpreter_options(sys.orig_argv) or [])]
    env = environment(os.environ, os.getpid(), options.stats)
    os.execve(sys.executable, [*python, *program], env)


# The package imports this file before torch, which takes seconds to load and may bind the process
# to one core. While Python looks for the module of ``-m``, the name of the program is "-m".
if sys.argv[:2] == ["-m", "run"] and interpreter_options(sys.orig_argv) is not None:
    main(sys.argv[2:])
