"""Tuned plans in a file: what each holds for, how they are written, and which of them are taken."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from . import _bind
from ._load import build_record
from .info import build_info

FORMAT = 1


@dataclass(frozen=True)
class Host:
    """What a tuned plan was measured on.

    Attributes:
        gpu: The GPU's name, as CUDA has it.
        capability: Its compute capability.
        driver: The newest version of CUDA that the driver supports. It is kept for the reader: a
            plan holds with any driver.
        version: The version of customconv.
        build: The sources of its kernels and its planner, and the version of PyTorch.
    """

    gpu: str
    capability: tuple[int, int]
    driver: str
    version: str
    build: str


@functools.cache
def build_id() -> str:
    """What decides which plans there are and how fast PyTorch is: sources and PyTorch's version."""
    return f"sources {build_record().get('sources', 'unknown')}, PyTorch {torch.__version__}"


def hosts() -> dict[int, Host]:
    """The GPUs of this process by their index. It starts CUDA."""
    if not (build_info()["with_cuda"] and torch.cuda.is_available()):
        return {}
    number = _bind.driver_version()
    driver = f"{number // 1000}.{number % 1000 // 10}"
    version = build_info()["version"]
    return {
        index: Host(
            torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index),
            driver, version, build_id(),
        )
        for index in range(torch.cuda.device_count())
    }  # fmt: skip


def entry_of(host: Host, problem: _bind.ConvProblem, plan: _bind.TunedPlan) -> dict[str, Any]:
    """A plan as the file has it: only strings, numbers, lists and dictionaries of them."""
    return {
        **asdict(host),
        "capability": list(host.capability),
        "problem": problem.fields,
        "plan": plan.name,
        "ms": plan.ms,
        "pytorch_ms": plan.pytorch_ms or None,
    }


def plan_of(entry: Mapping[str, Any]) -> tuple[_bind.ConvProblem, _bind.TunedPlan]:
    """The problem and the plan of an entry.

    Raises:
        ValueError: A field is missing, unknown, or of another type or range, or no plan has the
            name.
    """
    try:
        problem = _bind.ConvProblem.from_fields(entry["problem"])
        name = entry["plan"]
        if not isinstance(name, str):
            raise ValueError(f"a plan is named by its text, not by {name!r}")
        times = float(entry["ms"]), float(entry["pytorch_ms"] or 0)
        if not all(math.isfinite(ms) and ms >= 0 for ms in times):
            raise ValueError("a time is negative or not finite")
        return problem, _bind.TunedPlan(name, *times)
    except KeyError as error:
        raise ValueError(f"it has no {error.args[0]}") from error
    except TypeError as error:  # pybind11 lists all signatures; its first line says enough
        raise ValueError(str(error).splitlines()[0]) from error


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The entries of a file, of whatever GPU and version.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no file of plans, or of another format than this version's.
    """

    def refuse(reason: str) -> ValueError:
        return ValueError(f"{os.fspath(path)} holds no tuned plans: {reason}")

    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise refuse(f"it is not JSON ({error})") from error
    if not isinstance(content, dict) or "format" not in content:
        raise refuse("it states no format")
    if content["format"] != FORMAT:
        raise refuse(f"it has format {content['format']!r}, and this version reads {FORMAT}")
    entries = content.get("plans")
    if not isinstance(entries, list):
        raise refuse("it has no list of plans")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise refuse(f"plan {number} is not an object")
        for name, kind in (("gpu", str), ("capability", list), ("version", str), ("build", str),
                           ("problem", dict)):  # fmt: skip
            if not isinstance(entry.get(name), kind):
                raise refuse(f"plan {number} has no {name}")
    return entries


def load(path: str | os.PathLike[str], here: Mapping[int, Host]) -> int:
    """Takes the plans of a file that fit a GPU of this process.

    Args:
        path: The file.
        here: The GPUs of this process by their index.

    Returns:
        How many plans were taken.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is malformed; no plan was taken.
    """
    entries = read(path)
    taken: list[tuple[int, _bind.ConvProblem, _bind.TunedPlan]] = []
    fitting = other_gpu = 0
    for number, entry in enumerate(entries):
        gpu = (entry["gpu"], tuple(entry["capability"]))
        same_gpu = [i for i, host in here.items() if (host.gpu, host.capability) == gpu]
        software = (entry["version"], entry["build"])
        indices = [i for i in same_gpu if (here[i].version, here[i].build) == software]
        other_gpu += not same_gpu
        if not indices:
            continue
        fitting += 1
        try:
            problem, plan = plan_of(entry)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: plan {number}: {error}") from error
        taken += [(index, problem, plan) for index in indices]
    for each in taken:
        _bind.set_tuned_plan(*each)
    if fitting < len(entries):
        other_build = len(entries) - fitting - other_gpu
        another = "GPU" if here else "GPU: customconv computes on none here"
        reasons = [
            f"{count} for another {what}"
            for count, what in (
                (other_gpu, another),
                (other_build, "version of customconv or build"),
            )
            if count
        ]
        warnings.warn(
            f"{os.fspath(path)}: {len(entries) - fitting} of {len(entries)} tuned plans are not "
            f"used ({', '.join(reasons)}). The planner decides there; to renew them, tune again.",
            stacklevel=3,
        )
    return fitting


def save(
    path: str | os.PathLike[str],
    here: Mapping[int, Host],
    plans: Sequence[tuple[int, _bind.ConvProblem, _bind.TunedPlan]],
) -> int:
    """Writes plans to a file, beside the plans of other GPUs and problems that it has.

    Plans of the same GPU by another version or build go, because nothing can use them any more. A
    process that reads meanwhile sees the old file or the new one, whole.

    Args:
        path: The file; its folder must exist.
        here: The GPUs of this process by their index.
        plans: Device index, problem and plan of each.

    Returns:
        How many plans of this process the file has.

    Raises:
        OSError: The file cannot be read or written.
        ValueError: There is a file of another kind, which stays as it is.
    """
    path = Path(path)
    ours = {_identity(entry): entry for entry in (
        entry_of(here[index], problem, plan) for index, problem, plan in plans if index in here
    )}  # fmt: skip
    gpus = {_gpu(asdict(host)): (host.version, host.build) for host in here.values()}
    with _locked(path.parent):
        others = [
            entry
            for entry in (read(path) if path.exists() else [])
            if gpus.get(_gpu(entry), _software(entry)) == _software(entry)
            and _identity(entry) not in ours
        ]
        content = {"format": FORMAT, "plans": [*others, *ours.values()]}
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
                file.write("\n")
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    return len(ours)


def _gpu(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return (entry["gpu"], *entry["capability"])


def _software(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["version"], entry["build"]


def _identity(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*_gpu(entry), *_software(entry), json.dumps(entry["problem"], sort_keys=True))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from saving in this folder, where its file system has locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
