"""The commands ``python -m customconv run`` and ``tune``: any program, with convolutions routed.

The process becomes ``python script.py`` by ``exec``: same interpreter, options and process id, so
that ``sys.argv``, ``__main__``, exit status, signals and tracebacks are the program's own. What
turns routing on is the folder ``_startup`` on ``PYTHONPATH``: Python imports ``sitecustomize`` from
there when it starts, which waits for the program's ``import torch``. Child processes inherit it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_startup")
# Read by _startup: the id of the first process, and ":stats" or ":tune=" and a path if asked.
REQUEST = "CUSTOMCONV_RUN"
PLANS = "customconv-plans.json"

DESCRIPTIONS = {
    "run": """\
Runs a program as Python would, with convolutions on CUDA computed by customconv where it can. The
processes that the program starts are routed too, by PYTHONPATH; a process that is started without
the environment is not.""",
    "tune": """\
Runs a program as `run` does, and records its convolutions. When it ends by itself or by sys.exit,
the plans that are predicted near the best are timed, PyTorch's own convolutions too, and the
fastest are saved. CUSTOMCONV_PLANS=path makes other processes use them. Processes that the program
starts are routed and not tuned.""",
}


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


def environment(
    inherited: Mapping[str, str], process: int, stats: bool, plans: str | None = None
) -> dict[str, str]:
    """The environment in which Python starts with routing on.

    Args:
        inherited: The environment so far.
        process: The id of the process that will be the program.
        stats: Whether processes print what ``customconv.stats()`` counted when they end.
        plans: The file for the plans, if the program is tuned.
    """
    asked = "stats" if stats else f"tune={plans}" if plans is not None else None
    paths = inherited.get("PYTHONPATH") or None
    others = [path for path in paths.split(os.pathsep) if path != STARTUP] if paths else []
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join([STARTUP, *others]),
        REQUEST: str(process) if asked is None else f"{process}:{asked}",
    }


def main(arguments: Sequence[str], command: str = "run") -> NoReturn:
    """Becomes the program that the arguments name.

    Args:
        arguments: The command line after the command: its own options, then the program as Python
            takes it: a script, folder or zip file, ``-m module``, ``-c code`` or ``-``, and the
            program's own arguments.
        command: "run" or "tune".

    Raises:
        SystemExit: 2, the command cannot be run as it was given, with the reason on stderr.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m customconv {command}",
        usage=f"%(prog)s [-h] {'[--stats]' if command == 'run' else '[--save PATH]'} "
        "(script | -m module | -c code | -) [arguments ...]",
        description=DESCRIPTIONS[command],
        allow_abbrev=False,
    )
    parser.set_defaults(stats=False, save=None)
    if command == "run":
        parser.add_argument(
            "--stats", action="store_true",
            help="print the calls that customconv computed, and those it left to PyTorch with the "
            "reasons, to stderr when a process ends",
        )  # fmt: skip
    else:
        parser.add_argument(
            "--save", metavar="PATH", default=PLANS,
            help="the file for the plans, which keeps those of other GPUs (default: %(default)s)",
        )  # fmt: skip

    def ours(word: str) -> bool:
        return word.startswith("-") and word not in ("-", "--") and word[:2] not in ("-c", "-m")

    count = 0
    while count < len(arguments) and ours(arguments[count]):
        count += 2 if arguments[count] == "--save" else 1
    own, program = arguments[:count], arguments[count:]
    options = parser.parse_args(own)
    if not program:
        parser.error("it names no program")
    if sys.flags.ignore_environment or sys.flags.no_site:
        parser.error(
            "Python's options -I, -E and -S keep it from reading PYTHONPATH, which turns routing "
            "on; leave them out, or call customconv.enable() in the program"
        )
    plans = None if options.save is None else os.path.abspath(options.save)
    if plans is not None and not os.access(os.path.dirname(plans), os.W_OK):
        parser.error(f"--save: no file can be written in {os.path.dirname(plans)}")
    # Where another program called this function, Python's options are that program's.
    python = [sys.executable, *(interpreter_options(sys.orig_argv) or [])]
    env = environment(os.environ, os.getpid(), options.stats, plans)
    os.execve(sys.executable, [*python, *program], env)


# The package imports this file before torch, which takes seconds to load and may bind the process
# to one core. While Python looks for the module of ``-m``, the name of the program is "-m".
if (
    sys.argv[:1] == ["-m"]
    and sys.argv[1:2] in (["run"], ["tune"])
    and interpreter_options(sys.orig_argv) is not None
):
    main(sys.argv[2:], sys.argv[1])
