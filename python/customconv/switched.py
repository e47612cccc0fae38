"""What functions that switch something return, so that a ``with`` statement can switch it back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn


class Switched(AbstractContextManager[None]):
    """A context that undoes, when it ends, what has been switched already."""

    def __init__(self, call: str, undo: Callable[[], object], decorator: str = "") -> None:
        """Notes what was switched.

        Args:
            call: The call that did it, for error messages.
            undo: Switches it back.
            decorator: The call that makes a decorator of the same effect, if there is one.
        """
        self._call = call
        self._undo = undo
        self._decorator = decorator
        self._is_undone = False

    def __enter__(self) -> None:
        """Leaves the switch as the call has set it."""
        if self._is_undone:
            raise RuntimeError(f"customconv.{self._call} has been undone; call it again")

    def __exit__(self, *error: object) -> None:
        """Undoes the call, once."""
        if not self._is_undone:
            self._is_undone = True
            self._undo()

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses to decorate: it would switch when a function is defined, not when it runs."""
        self.__exit__()
        instead = f"; customconv.{self._decorator} does" if self._decorator else ""
        raise TypeError(f"customconv.{self._call} decorates no functions{instead}")

    def __repr__(self) -> str:
        """What was called, for a session in which the result is not kept."""
        return f"<customconv.{self._call}, which a with statement undoes>"
