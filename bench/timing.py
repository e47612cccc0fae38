"""Times several ways to compute the same thing: they take turns, from a cold cache.

Ratios are formed turn by turn, so that a temporary slowdown of the machine affects both sides. The
interval of the median ratio comes from order statistics alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]

CONFIDENCE = 0.95
FEWEST_RUNS = 3
FLUSHED_L2 = 4  # multiple of the L2 cache's size that is overwritten before each run
QUEUE_CYCLES = 200_000  # keep the GPU busy while the host queues a call: 0.1 ms


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one contender: the median and the quartiles of its runs."""

    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Ratio:
    """A peer's time over ours: the median of the turns' ratios, and its interval."""

    median: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Half the width of the interval, relative to the median."""
        return (self.high - self.low) / 2 / self.median


@dataclass(frozen=True)
class Measurement:
    times: dict[str, Timing]
    ratios: dict[str, Ratio]  # of every other contender's time to the first's


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns a confidence interval of the median, with no assumption on the distribution.

    The number of values below the median is binomial. The bounds are the values at the narrowest
    symmetric ranks that reach the confidence, or the extremes if there are too few values.
    """
    ordered = sorted(values)
    n = len(ordered)
    rank, tail = 0, 0.5**n  # the chance that at most `rank` values are below the median
    while rank < (n - 1) // 2:
        following = tail + math.comb(n, rank + 1) * 0.5**n
        if following > (1 - confidence) / 2:
            break
        rank, tail = rank + 1, following
    return ordered[rank], ordered[n - 1 - rank]


def quartiles(values: Sequence[float]) -> Timing:
    if len(values) == 1:
        return Timing(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(median, low, high, len(values))


def geomean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def ratio_of(ours: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Returns the median of the per-turn ratios and its interval."""
    ratios = [b / a for a, b in zip(ours, peer, strict=True)]
    return Ratio(statistics.median(ratios), *median_interval(ratios))


class _CpuClock:
    """Wall time on the CPU, in milliseconds."""

    def run(self, call: Call) -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3

    def read(self, times: Sequence[Any]) -> list[float]:
        return list(times)


class _CudaClock:
    """CUDA events around each run, read once the GPU has reached them."""

    def __init__(self, device: torch.device, queue_cycles: int = QUEUE_CYCLES) -> None:
        self.queue_cycles = queue_cycles
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        self.flushed = torch.empty(FLUSHED_L2 * l2, dtype=torch.uint8, device=device)
        self.device = device

    def run(self, call: Call) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flushed.zero_()
        torch.cuda._sleep(self.queue_cycles)
        start.record()
        call()
        end.record()
        return start, end

    def read(self, times: Sequence[Any]) -> list[float]:
        torch.cuda.synchronize(self.device)
        return [start.elapsed_time(end) for start, end in times]


def interleaved(
    calls: Mapping[str, Sequence[Call]],
    device: torch.device,
    *,
    least_runs: int = 11,
    most_runs: int = 201,
    ratio_width: float = 0.01,
    budget_s: float = 2.0,
    queue_cycles: int = QUEUE_CYCLES,
) -> Measurement:
    """Times contenders, the first of which is ours, until every ratio is known well enough.

    Args:
        calls: For each contender one call per set of buffers; the sets are used in turn.
        device: Where they run. On a GPU, times are between events; on the CPU they are wall time.
        least_runs: Runs of each contender before the first check; fewer if the budget is short.
        most_runs: The most runs of each contender.
        ratio_width: Half the width of a ratio's interval, relative to the ratio, that suffices.
        budget_s: Seconds of wall time after which no further turns begin.
        queue_cycles: For how long the GPU is kept busy while the host queues a call.
    """
    clock: Any = _CudaClock(device, queue_cycles) if device.type == "cuda" else _CpuClock()
    times: dict[str, list[float]] = {name: [] for name in calls}
    ours = next(iter(calls))
    for turns in calls.values():  # warm-up
        clock.read([clock.run(call) for call in turns])
    began = time.monotonic()
    for turns in calls.values():
        clock.read([clock.run(turns[0])])
    turn_s = time.monotonic() - began
    least_runs = max(FEWEST_RUNS, min(least_runs, int(budget_s / turn_s)))
    done = 0
    while done < most_runs:
        batch = min(least_runs, most_runs - done)
        marks: dict[str, list[Any]] = {name: [] for name in calls}
        for turn in range(done, done + batch):
            for name, turns in calls.items():
                marks[name].append(clock.run(turns[turn % len(turns)]))
        for name, taken in marks.items():
            times[name] += clock.read(taken)
        done += batch
        ratios = {
            name: ratio_of(times[ours], values) for name, values in times.items() if name != ours
        }
        known = all(ratio.width <= ratio_width for ratio in ratios.values())
        if known or time.monotonic() - began > budget_s:
            break
    return Measurement({name: quartiles(values) for name, values in times.items()}, ratios)
