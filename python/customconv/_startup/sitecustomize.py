"""Turns routing on in a process of ``python -m customconv run``, as soon as it imports torch.

For ``python -m customconv tune`` it also begins to record, in the program's own process. Python
imports this file when it starts. It cannot import customconv, and so torch, there and then:
processes without torch would wait for it, and what a program sets in the environment before it
imports torch would come too late. It leaves ``sys.path`` as it is without ``run``, and gives way to
the ``sitecustomize`` that it stands before, if there is one.
"""

import os
import sys

TYPE_CHECKING = False  # typing's own would have to be imported, in every process
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))
first_process, _, request = os.environ.get("CUSTOMCONV_RUN", "").partition(":")


def is_first() -> bool:
    """Whether this process is the one that became the program, and not a child of it."""
    return first_process == str(os.getpid())


class AfterImport:
    """A finder of modules that calls functions after modules have been imported.

    It finds what the other finders find. While torch or customconv is sought and not executed
    (``importlib.util.find_spec``), nothing is called.
    """

    def __init__(self, then: "dict[str, Callable[[], None]]") -> None:
        self.then = then

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The specification that another finder has, with a loader that calls the function."""
        if name not in self.then:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader

        def exec_module(module: "ModuleType") -> None:
            del loader.exec_module  # the instance's: the class's own comes to light again
            loader.exec_module(module)
            then = self.then.pop(name, None)
            if then is not None:
                then()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def import_customconv() -> None:
    """Imports customconv after torch; it is enabled when its own import ends."""
    try:
        __import__("customconv")
    except ImportError as error:
        if is_first():
            raise
        # Another Python, perhaps, that has no customconv and nothing to do with it.
        if error.name != "customconv":
            import warnings

            warnings.warn(f"convolutions of this process are PyTorch's: {error}", stacklevel=2)


def enable() -> None:
    """Turns routing on."""
    sys.modules["customconv"].enable()
    sys.meta_path.remove(finder)
    if request.startswith("tune=") and is_first():
        sys.modules["customconv.tuning"].tune_program(request.removeprefix("tune="))


def print_stats() -> None:
    """Prints what was counted in this process; in a child only if anything was."""
    customconv = sys.modules.get("customconv")
    stats = customconv.stats() if customconv else None
    if sys.stderr is None or not (stats or is_first()):
        return
    process = "" if is_first() else f"process {os.getpid()}: "
    table = "customconv: torch was not imported" if stats is None else stats
    sys.stderr.write(f"{process}{table}\n")  # at once, for processes that end together
    sys.stderr.flush()


def print_untuned() -> None:
    """Says why nothing is tuned in a program without convolutions of PyTorch."""
    if is_first() and "customconv" not in sys.modules and sys.stderr is not None:
        sys.stderr.write("customconv: nothing was tuned, because torch was not imported\n")


def begin_stats() -> None:
    """Starts counting anew in a process that was forked."""
    if "customconv" in sys.modules:
        sys.modules["customconv"].stats(reset=True)
    # Processes that multiprocessing forks call finalizers of its own at their end, not atexit's.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(
            print_stats, lambda call: util.Finalize(None, call, exitpriority=-1)
        )


if HERE in sys.path:
    sys.path.remove(HERE)
    finder = AfterImport({"torch": import_customconv, "customconv": enable})
    sys.meta_path.insert(0, finder)
    if request.startswith("tune="):
        import atexit

        atexit.register(print_untuned)
    if request == "stats":
        import atexit

        atexit.register(print_stats)  # the first to be registered, so the last to be called
        os.register_at_fork(after_in_child=begin_stats)
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")  # the next one; site takes the error for "there is none"
