"""Warnings in the name of the user's line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_INSIDE = {"customconv", "torch", "importlib", "contextlib", "runpy", "sitecustomize"}


def tell(text: str) -> None:
    """Warns in the name of the user's line, and never raises: CUDA could not start then."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) in _INSIDE:
        frame = frame.f_back
    place = ("customconv", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
    module = "customconv" if frame is None else frame.f_globals.get("__name__")
    try:
        warnings.warn_explicit(text, UserWarning, *place, module=module)
    except UserWarning:
        print(f"customconv: warning: {text}", file=sys.stderr)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
