"""Tuning: measures which plan is the fastest for the convolutions that run, and keeps it.

Nothing is tuned unless it is asked for here, or by ``python -m customconv tune``.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from . import _bind, plans_file, routing
from .convert import check_callable
from .measure import Measured
from .measure import measure as measure_on_gpu

NEAR = 1.6
MOST = 12
PLANNED_WINS = 0.01  # the planner's choice stays where no plan is faster by more than this share
NOISE = 0.03  # PyTorch's own must be faster by more than this share

StrPath = str | os.PathLike[str]
Measure = Callable[[int, _bind.ConvProblem, _bind.ConvProblem, Sequence[_bind.ConvPlan]], Measured]


@dataclass(frozen=True)
class TunedLayer:
    """What tuning found for one problem.

    Attributes:
        problem: The problem in one line.
        device_index: The index of its GPU.
        family: The family of the choice; "aten" for PyTorch's own convolution.
        plan: The choice in one line.
        ms: Its time in milliseconds.
        planned_ms: The time of the planner's choice; None if its result was wrong.
        pytorch_ms: The time of PyTorch's own convolution with deterministic algorithms; None if it
            was not measured.
    """

    problem: str
    device_index: int
    family: str
    plan: str
    ms: float
    planned_ms: float | None
    pytorch_ms: float | None


@dataclass
class TuningReport:
    """What was tuned. ``print`` it.

    Attributes:
        layers: The problems that were tuned, in the order in which they first ran.
        skipped: The problems that were left to the planner, each with the reason.
        seconds: How long it took, without the recorded program.
        path: The file that holds the plans, or None.
        device_seen: Whether there was a GPU to record convolutions on.
    """

    layers: list[TunedLayer] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    path: str | None = None
    device_seen: bool = True

    @property
    def gain(self) -> float:
        """The time of the planner's choices over that of tuning's, each problem counted once."""
        pairs = [(each.planned_ms, each.ms) for each in self.layers if each.planned_ms is not None]
        tuned = math.fsum(ms for _, ms in pairs)
        return math.fsum(planned for planned, _ in pairs) / tuned if tuned else 1.0

    @property
    def by_pytorch(self) -> list[TunedLayer]:
        """The problems that PyTorch's own convolution computes from now on."""
        return [each for each in self.layers if each.family == "aten"]

    def __str__(self) -> str:
        """A table with a row for each problem, then what it comes to."""

        def text(ms: float | None) -> str:
            return "" if ms is None else f"{ms:.4f}"

        lines = [f"customconv: {len(self.layers)} convolutions tuned in {self.seconds:.1f} s"]
        if self.layers:
            head = ("ms", "planned", "PyTorch", "family", "problem")
            rows = [head] + [
                (text(e.ms), text(e.planned_ms), text(e.pytorch_ms), e.family, e.problem)
                for e in self.layers
            ]
            widths = [max(len(row[i]) for row in rows) for i in range(4)]
            lines += [
                "  ".join(
                    [f"{cell:>{width}}" for cell, width in zip(row[:3], widths[:3], strict=True)]
                    + [f"{row[3]:<{widths[3]}}", row[4]]
                )
                for row in rows
            ]
            lines.append(
                f"All of them take {1 / self.gain:.2f} of the time that the planner's choices take."
            )
            if self.by_pytorch:
                lines.append(f"PyTorch's own is the fastest in {len(self.by_pytorch)} of them.")
        elif not self.skipped:
            lines.append(
                "No convolution ran on CUDA with algorithm 'auto'."
                if self.device_seen
                else "There is no GPU that customconv computes on, so there is nothing to tune."
            )
        lines += [f"left to the planner: {problem}: {reason}" for problem, reason in self.skipped]
        if self.path is not None and self.layers:
            lines.append(f"The plans are in {self.path}")
        return "\n".join(lines)


def contenders(plans: Sequence[_bind.ConvPlan], near: float, most: int) -> list[_bind.ConvPlan]:
    """The plans worth timing, the planner's choice first.

    Args:
        plans: The plans of a problem, sorted by predicted time.
        near: How much longer than the best a plan may be predicted to take, as a factor.
        most: How many to give at most.

    Returns:
        Of each kind and number of splits the one with the least predicted time.
    """
    kinds: dict[tuple[str, int], _bind.ConvPlan] = {}
    for plan in plans:
        if plan.predicted_ms <= near * plans[0].predicted_ms:
            kinds.setdefault((plan.kind, plan.splits), plan)
    return list(kinds.values())[:most]


def choice(measured: Measured) -> int | Literal["aten"] | None:
    """The fastest: a plan's number, "aten" for PyTorch's own, or None if nothing is right.

    Small differences are noise. So the planner's choice, number 0, stays if it is as fast, and
    PyTorch's own must win clearly.
    """
    right = [(ms, index) for index, ms in enumerate(measured.ms) if ms is not None]
    pytorch_ms = measured.pytorch_ms if measured.pytorch_fits else None
    if not right:
        return None if pytorch_ms is None else "aten"
    best_ms, best = min(right)
    if pytorch_ms is not None and pytorch_ms * (1 + NOISE) < best_ms:
        return "aten"
    planned = measured.ms[0]
    return 0 if planned is not None and planned <= best_ms * (1 + PLANNED_WINS) else best


def tune_problem(
    device_index: int,
    problem: _bind.ConvProblem,
    properties: _bind.DeviceProperties,
    measure: Measure,
    near: float = NEAR,
    most: int = MOST,
) -> TunedLayer | str:
    """Measures the plans of one problem and keeps the fastest.

    Args:
        device_index: The index of its GPU.
        problem: The problem as it was recorded.
        properties: What the planner knows of the GPU.
        measure: Gives the times of plans, in their order.
        near: As in ``tune``.
        most: As in ``tune``.

    Returns:
        What was found, or why nothing was kept.

    Raises:
        RuntimeError: What ``measure`` raises; nothing is kept then.
    """
    settled, plans = _bind.tunable(problem, properties)
    if plans and problem.fields["epilogue_passes"]:
        # Several kernels may compute it together, and those are tuned by themselves.
        if not plans[0].fuses:
            return "the planner does not fuse it; its convolution is tuned by itself"
        plans = [plan for plan in plans if plan.fuses]
    if not plans:
        return "no family can compute it"
    plans = contenders(plans, near, most)
    measured = measure(device_index, problem, settled, plans)
    chosen = choice(measured)
    if chosen is None:
        return "no result agrees with PyTorch's"
    if chosen == "aten":
        ms, name, text = measured.pytorch_ms, "aten", "aten"
    else:
        ms, name, text = measured.ms[chosen], plans[chosen].name, str(plans[chosen])
    assert ms is not None
    tuned = _bind.TunedPlan(name, ms, measured.pytorch_ms or 0.0)
    _bind.set_tuned_plan(device_index, problem, tuned)
    return TunedLayer(
        str(problem), device_index, tuned.family, text, ms, measured.ms[0], measured.pytorch_ms
    )


class _Progress:
    """One line on a terminal that is written over; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.shown = total > 0 and sys.stderr is not None and sys.stderr.isatty()

    def show(self, done: int) -> None:
        if self.shown:
            filled = 30 * done // self.total
            bar = "#" * filled + "." * (30 - filled)
            sys.stderr.write(f"\rcustomconv: tuning [{bar}] {done}/{self.total}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def tune_recorded(
    recorded: Sequence[tuple[int, _bind.ConvProblem]],
    properties: Mapping[int, _bind.DeviceProperties],
    measure: Measure,
    report: TuningReport,
    near: float = NEAR,
    most: int = MOST,
) -> None:
    """Tunes one problem after the other. What was found before an interruption stays.

    Args:
        recorded: Device index and problem of each.
        properties: What the planner knows of each device.
        measure: As in ``tune_problem``.
        report: What is found is added here.
        near: As in ``tune``.
        most: As in ``tune``.
    """
    began = time.monotonic()
    progress = _Progress(len(recorded))
    try:
        for done, (index, problem) in enumerate(recorded):
            progress.show(done)
            try:
                found = tune_problem(index, problem, properties[index], measure, near, most)
            except RuntimeError as error:  # so is running out of memory
                found = str(error).strip().partition("\n")[0]
                warnings.warn(f"{problem} is not tuned: {found}", stacklevel=2)
                if isinstance(error, torch.OutOfMemoryError):
                    torch.cuda.empty_cache()
            if isinstance(found, TunedLayer):
                report.layers.append(found)
            else:
                report.skipped.append((str(problem), found))
    finally:
        progress.clear()
        report.seconds += time.monotonic() - began


_busy = threading.Lock()


def is_tuning() -> bool:
    """Whether convolutions are recorded or tuned at this moment."""
    return _busy.locked()


@contextmanager
def tuning(
    save: StrPath | None = None, *, near: float = NEAR, most: int = MOST
) -> Iterator[TuningReport]:
    """Records the convolutions that run until the ``with`` statement ends, and tunes them then.

    PyTorch's own convolutions are routed meanwhile, as by ``customconv.enabled``. Of all threads,
    each problem on CUDA with algorithm "auto" is recorded once. For each of them, the plans that
    are predicted near the best are timed, and PyTorch's own convolution beside them, under the
    switches of that moment but with deterministic algorithms alone. Each result is compared with
    PyTorch's first. The fastest computes the problem from then on in this process. PyTorch's random
    number generators stay as they are.

    If the ``with`` statement ends with an exception, nothing is tuned. If tuning is interrupted,
    what it has found stays, and is saved.

    Args:
        save: A file that the plans go to, beside those that it has; ``load_plans`` reads it.
        near: Plans are timed that are predicted to take at most this multiple of the best one.
        most: How many plans are timed for a problem.

    Yields:
        The report, which is filled when the ``with`` statement ends.

    Raises:
        RuntimeError: Tuning is under way already, or a CUDA graph is being captured.
        OSError: The folder of ``save`` does not exist, or the file cannot be read or written.
        ValueError: ``near`` is below 1, ``most`` below 1, or ``save`` is a file of another kind.
    """
    if not near >= 1 or most < 1:
        raise ValueError(f"expected near >= 1 and most >= 1, but got {near} and {most}")
    if save is not None:
        _check_target(Path(save))
    _refuse_capture()
    if not _busy.acquire(blocking=False):
        raise RuntimeError("convolutions are being tuned already; contexts of tuning do not nest")
    try:
        report = TuningReport()
        _bind.begin_recording()
        try:
            with routing.enabled():
                yield report
        finally:
            recorded = _bind.end_recording()
        _refuse_capture()
        report.device_seen = bool(recorded) or bool(plans_file.hosts())
        indices = {index for index, _ in recorded}
        properties = {index: _bind.device_properties(index) for index in indices}
        try:
            tune_recorded(recorded, properties, measure_on_gpu, report, near, most)
        finally:
            if recorded:
                torch.cuda.empty_cache()
            if save is not None and report.layers:
                save_plans(save)
                report.path = os.fspath(save)
    finally:
        _busy.release()


def tune(
    model: Callable[..., Any],
    *inputs: Any,
    save: StrPath | None = None,
    near: float = NEAR,
    most: int = MOST,
) -> TuningReport:
    """Runs a model once, and tunes the convolutions that run.

    If grad mode is on and an output needs a gradient, a backward pass on the sum of the outputs
    runs too, so that the problems of training are tuned. It is one of ``torch.autograd.grad``, so
    no gradient is left in ``.grad`` and no optimizer's hook runs. Random number generators and the
    buffers of a module, such as running means, are restored.

    Args:
        model: A module, or any function.
        *inputs: Its arguments.
        save: As in ``tuning``.
        near: As in ``tuning``.
        most: As in ``tuning``.

    Returns:
        What was tuned.

    Raises:
        RuntimeError: As in ``tuning``.
        OSError: As in ``tuning``.
        ValueError: As in ``tuning``.
        TypeError: The model cannot be called, or not with these inputs.
        Exception: What the model raises; nothing is tuned then.
    """
    check_callable("tune", model)
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    with (
        tuning(save, near=near, most=most) as report,
        torch.random.fork_rng(devices=devices),
        _buffers_restored(model),
    ):
        outputs = [
            each
            for each in tree_leaves(_outputs(model, inputs))
            if isinstance(each, Tensor) and each.is_floating_point() and each.requires_grad
        ]
        leaves = _leaves(outputs)
        if leaves:
            ones = [torch.ones_like(each) for each in outputs]
            torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
    return report


def _outputs(model: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    try:
        return model(*inputs)
    except TypeError as error:
        if inputs:
            raise
        raise TypeError(
            f"tune() runs the model, and was given no inputs for it: tune(model, x) ({error})"
        ) from error


def _leaves(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensors whose ``.grad`` a backward pass would fill."""
    pending: list[Any] = [each.grad_fn for each in outputs]
    seen, leaves = set(), []
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            leaves.append(node.variable)
        pending += [following for following, _ in node.next_functions]
    return leaves


@contextmanager
def _buffers_restored(model: Any) -> Iterator[None]:
    buffers = list(model.buffers()) if isinstance(model, torch.nn.Module) else []
    before = [buffer.detach().clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in zip(buffers, before, strict=True):
                buffer.copy_(values)


def load_plans(path: StrPath) -> int:
    """Takes the tuned plans of a file that fit a GPU of this process. It starts CUDA.

    A plan fits if the GPU, the version of customconv, its build and the version of PyTorch are
    those that it was measured with. A warning tells how many do not.

    Args:
        path: A file that ``tune``, ``tuning`` or ``save_plans`` wrote.

    Returns:
        How many plans were taken.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is malformed or of another format; no plan was taken.
    """
    return plans_file.load(path, plans_file.hosts())


def save_plans(path: StrPath) -> int:
    """Writes the tuned plans of this process to a file, beside those of other GPUs that it has.

    Args:
        path: The file; its folder must exist.

    Returns:
        How many plans of this process it has now.

    Raises:
        OSError: The file cannot be read or written.
        ValueError: There is a file of another kind, which stays as it is.
    """
    return plans_file.save(path, plans_file.hosts(), _bind.tuned_plans())


def clear_plans() -> None:
    """Forgets all tuned plans of this process; the planner decides again."""
    _bind.clear_tuned_plans()


def _check_target(path: Path) -> None:
    """Raises now what would be raised after tuning."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"plans cannot be saved: there is no folder {path.parent}")
    if path.exists():
        plans_file.read(path)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"plans cannot be saved: no file can be written in {path.parent}")


def _refuse_capture() -> None:
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if started and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("convolutions cannot be tuned while a CUDA graph is being captured")


def load_named_plans() -> None:
    """Loads the files that ``CUSTOMCONV_PLANS`` names, as soon as PyTorch starts CUDA.

    What is wrong with one is a warning; a file that is missing is told at once.
    """
    named = [path for path in os.environ.get("CUSTOMCONV_PLANS", "").split(os.pathsep) if path]
    missing = [path for path in named if not os.path.exists(path)]
    if missing:
        warnings.warn(f"CUSTOMCONV_PLANS: there is no {', '.join(missing)}", stacklevel=2)
    present = [path for path in named if path not in missing]

    def load() -> None:
        for path in present:
            try:
                load_plans(path)
            except Exception as error:  # it would keep CUDA from starting
                warnings.warn(f"CUSTOMCONV_PLANS: {error}", stacklevel=2)

    if present:
        torch.cuda._lazy_call(load)  # type: ignore[no-untyped-call]


def tune_program(path: str) -> None:
    """Records from now on, and tunes when the process ends, unless an exception ends it.

    ``python -m customconv tune`` calls it in the program's process.
    """
    process = os.getpid()
    context = tuning(path)
    report = context.__enter__()

    def end() -> None:
        if os.getpid() != process:  # a fork
            return
        error = getattr(sys, "last_value", None)  # what nothing caught
        if error is not None:
            sys.stderr.write("customconv: nothing was tuned, because the program failed\n")
            return
        try:
            context.__exit__(None, None, None)
        except KeyboardInterrupt:
            sys.stderr.write("customconv: interrupted; what was found until then is kept\n")
        except (OSError, RuntimeError, ValueError) as failure:
            sys.stderr.write(f"customconv: not tuned: {failure}\n")
            return
        sys.stderr.write(f"{report}\n")

    atexit.register(end)
