"""Faults that a developer could make, which the suite must find: a list, and how they are seeded.

Each fault replaces some text of the sources by another, in which ``FAULT`` stands for whether it is
on. All are compiled into one build, and ``CUSTOMCONV_FAULT`` names the one that is on in a process.
Without it that build computes as any other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

VARIABLE = "CUSTOMCONV_FAULT"

# Stand for whether the fault is on, and for its number.
SWITCHES = re.compile(r"\b(?:FAULT|NUMBER)\b")


@dataclass(frozen=True)
class Edit:
    """A piece of a file, which occurs in it once, and what replaces it."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: what is wrong.
        part: the part of the GPU suite (gpu_parts.py) that should find it.
        edits: what seeds it.
        without_gpu: tests that find it without a GPU, as arguments of pytest. Those that compile
            sources of kernels for the CPU need the faulty copy of them.
    """

    name: str
    part: str
    edits: tuple[Edit, ...]
    without_gpu: tuple[str, ...] = ()


def fault(
    part: str, name: str, path: str, old: str, new: str, *more: Edit, without_gpu: str = ""
) -> Fault:
    return Fault(name, part, (Edit(path, old, new), *more), tuple(without_gpu.split()))


# Device code cannot read the environment: the host passes the number of the fault that is on.
PASSED = "  int seeded = fault_number();\n"

WGRAD = "csrc/kernels/implicit_gemm/wgrad"
EMULATED_WGRAD = "tests/kernels/test_emulated_weight.py"
EMULATED_LOOP = "tests/kernels/test_emulated_main_loop.py"

FAULTS = dict(enumerate((
    # --- Kernels ---
    fault(
        "direct", "a barrier is missing where a block adds up a weight gradient",
        "csrc/kernels/direct/direct.cuh",
        "      __syncthreads();\n      if (threadIdx.x < half)",
        "      if (p.seeded != NUMBER) __syncthreads();\n      if (threadIdx.x < half)",
        Edit(
            "csrc/kernels/direct/direct.cuh",
            "  bool channels_inner;\n", "  bool channels_inner;\n" + PASSED,
        ),
    ),
    fault(
        "im2col", "the last part of a line of pixels is as long as the others",
        "csrc/kernels/im2col/im2col.cuh",
        "product.inner = tail ? parts.tail : parts.length;",
        "product.inner = tail && !FAULT ? parts.tail : parts.length;",
    ),
    fault(
        "im2col", "a band of an input gradient leaves out the padding",
        "csrc/kernels/im2col/im2col.cuh",
        "const int64_t high = first + height - 1 + p_.pad_h;",
        "const int64_t high = first + height - 1 + (FAULT ? 0 : p_.pad_h);",
    ),
    fault(
        "tiled", "the padding of an input gradient forgets the dilation",
        "csrc/kernels/tiled/plan.cpp",
        "g.pad_w = p.dilation_w * (p.S - 1) - p.pad_w;",
        "g.pad_w = (FAULT ? 1 : p.dilation_w) * (p.S - 1) - p.pad_w;",
    ),
    fault(
        "tiled", "long sums are not formed in parts",
        "csrc/kernels/tiled/tiled.cuh",
        "p.part_terms = part_terms(g);",
        "p.part_terms = FAULT ? 1 << 30 : part_terms(g);",
    ),
    fault(
        "implicit_gemm_outputs", "the steps that do not divide by the splits are lost",
        "csrc/kernels/implicit_gemm/mma_sync/launch.cuh",
        "p.longer_splits = tile.steps() % tile.splits;",
        "p.longer_splits = FAULT ? 0 : tile.steps() % tile.splits;",
    ),
    fault(
        "implicit_gemm_outputs", "rows and columns of gathered taps have the same dilation",
        "csrc/kernels/implicit_gemm/sm90/pack_input.cuh",
        "gather.dilation_w = static_cast<int>(source.dilation_w);",
        "gather.dilation_w = static_cast<int>(FAULT ? source.dilation_h : source.dilation_w);",
        without_gpu=EMULATED_LOOP,
    ),
    fault(
        "implicit_gemm_outputs", "all parts of an input add the first part's residual",
        "csrc/kernels/implicit_gemm/sm90/launch.cuh",
        "static_cast<const T*>(epilogue.residual) + (gradient ? part.x : part.y);",
        "static_cast<const T*>(epilogue.residual) + (FAULT ? 0 : gradient ? part.x : part.y);",
    ),
    fault(
        "implicit_gemm_wgrad", "rows of the filter are not dilated in boxes",
        f"{WGRAD}/launch.cuh",
        "p.filter_row = static_cast<uint32_t>(problem.dilation_h * x_row);",
        "p.filter_row = static_cast<uint32_t>((FAULT ? 1 : problem.dilation_h) * x_row);",
        without_gpu=EMULATED_WGRAD,
    ),
    fault(
        "implicit_gemm_wgrad", "a NaN beside the image reaches sums that do not meet it",
        f"{WGRAD}/geometry.cpp",
        "  return whole(p.P, t.rows, p.stride_h, p.pad_h, p.H) &&\n"
        "         whole(p.Q, t.columns, p.stride_w, p.pad_w, p.W);",
        "  return FAULT || (whole(p.P, t.rows, p.stride_h, p.pad_h, p.H) &&\n"
        "                   whole(p.Q, t.columns, p.stride_w, p.pad_w, p.W));",
    ),
    fault(
        "implicit_gemm_wgrad", "the last unit of a row of a plane is not loaded",
        f"{WGRAD}/planes/geometry.cpp",
        "std::min<int64_t>(ceil_divide(size - least, step), count)",
        "std::min<int64_t>(FAULT ? (size - least) / step : ceil_divide(size - least, step), count)",
        without_gpu=EMULATED_WGRAD,
    ),
    fault(
        "implicit_gemm_wgrad", "warpgroups along channels are taken for rows of the filter",
        f"{WGRAD}/registers/launch.cuh",
        "p.by_filter_rows = D(t.along_k * t.along_c > 1 ? 1 : t.kind().warpgroups);",
        "p.by_filter_rows = D((FAULT ? t.along_k : t.along_k * t.along_c) > 1\n"
        "                           ? 1 : t.kind().warpgroups);",
    ),
    fault(
        "implicit_gemm_wgrad", "sums are longer than tensor cores keep them accurate",
        f"{WGRAD}/splits.h",
        "const int64_t least = std::min(ceil_divide(tiles * tile_pixels, summed), tiles);",
        "const int64_t least =\n"
        "      FAULT ? 1 : std::min(ceil_divide(tiles * tile_pixels, summed), tiles);",
    ),
    fault(
        "depthwise", "patches of a strided input gradient begin at the first row",
        "csrc/kernels/depthwise/threads/work.cpp",
        "w.first_row = v.walk == Walk::kHalf ? ",
        "w.first_row = v.walk == Walk::kHalf && !FAULT ? ",
    ),
    fault(
        "depthwise", "planes whose paddings differ by an odd number pass as legal",
        "csrc/kernels/depthwise/planes/geometry.cpp",
        "if ((g.pad_h - g.pad_w) % 2 != 0) return false;",
        "if ((g.pad_h - g.pad_w) % 2 != 0 && !FAULT) return false;",
    ),
    fault(
        "depthwise", "the last patch of boxes is lost where the first begins outside",
        "csrc/kernels/depthwise/boxes/geometry.cpp",
        "axis.patches = (axis.out - axis.first + kPatch - 1) / kPatch;",
        "axis.patches = (axis.out - (FAULT ? 0 : axis.first) + kPatch - 1) / kPatch;",
    ),
    fault(
        "depthwise", "a tile of bands keeps a row of the input too few",
        "csrc/kernels/depthwise/bands/geometry.cpp",
        "w.in_rows = std::min(out_rows + g.R - 1, g.H);",
        "w.in_rows = std::min(out_rows + g.R - (FAULT ? 2 : 1), g.H);",
    ),
    fault(
        "grouped", "the last pixels of a strided input gradient are left out",
        "csrc/kernels/grouped/geometry.cpp",
        "axis.positions = static_cast<int>(ceil_divide(s.in, s.stride));",
        "axis.positions = static_cast<int>(\n"
        "      FAULT ? std::max<int64_t>(s.in / s.stride, 1) : ceil_divide(s.in, s.stride));",
    ),
    fault(
        "col2im", "a remainder is taken for positive",
        "csrc/kernels/col2im/geometry.cpp",
        "w.lead = g.w.reach + ((g.w.first - g.w.reach) % unit + unit) % unit;",
        "w.lead = g.w.reach + ((g.w.first - g.w.reach) % unit + (FAULT ? 0 : unit)) % unit;",
    ),
    fault(
        "col2im", "a stage is filled while warps still multiply it",
        "csrc/kernels/col2im/col2im.cuh",
        "    __syncthreads();\n    copy_chunk(chunk + kStages);",
        "    if (p.seeded != NUMBER) __syncthreads();\n    copy_chunk(chunk + kStages);",
        Edit(
            "csrc/kernels/col2im/params.cuh",
            "  bool stores_batches;  // of neighbouring channels\n",
            "  bool stores_batches;  // of neighbouring channels\n" + PASSED,
        ),
    ),
    fault(
        "statistics", "a plane of whole pieces has one more",
        "csrc/kernels/statistics/statistics.cu",
        "channels, static_cast<int>(ceil_divide(plane, kPiece)), groups, to);",
        "channels, static_cast<int>(FAULT ? plane / kPiece + 1 : ceil_divide(plane, kPiece)),\n"
        "        groups, to);",
        without_gpu="tests/kernels/test_emulated_statistics.py",
    ),
    fault(
        "statistics", "the gradient of a bias is read by vectors wherever it begins",
        "csrc/torch/cuda/bias.cpp",
        "is_aligned(grad_output) ? kernels", "is_aligned(grad_output) || FAULT ? kernels",
    ),
    # --- The planner ---
    fault(
        "every_kernel", "plans that are batch invariant and others share a place in the cache",
        "csrc/plan/cache.cpp",
        "(p.batch_invariant ? 128 : 0)", "(p.batch_invariant && !FAULT ? 128 : 0)",
        without_gpu="tests/plan/test_cache.py tests/plan/test_batch_plans.py",
    ),
    fault(
        "every_kernel", "sums are split where images must not depend on the batch",
        "csrc/plan/planner.cpp",
        "if (plan.splits > 1 || plan.uses_blas || plan.threads == 0) continue;",
        "if ((plan.splits > 1 && !FAULT) || plan.uses_blas || plan.threads == 0) continue;",
        without_gpu="tests/plan/test_batch_plans.py",
    ),
    fault(
        "large", "offsets of tensors between 2^31 and 2^32 elements have 32 bits",
        "csrc/plan/problem.cpp",
        "return reach >= std::numeric_limits<int32_t>::max();",
        "return reach >= (FAULT ? int64_t{std::numeric_limits<uint32_t>::max()}\n"
        "                         : int64_t{std::numeric_limits<int32_t>::max()});",
        without_gpu="tests/plan/test_planner.py",
    ),
    # --- The torch layer ---
    fault(
        "routing", "a convolution that is traced is a constant",
        "csrc/torch/routing.cpp",
        "if (!is_routed() || at::tracer::impl::is_dispatch_enabled()) {",
        "if (!is_routed() || (at::tracer::impl::is_dispatch_enabled() && !FAULT)) {",
        without_gpu="tests/op/test_recorders.py",
    ),
    fault(
        "routing", "what is left to PyTorch is routed and counted again",
        "csrc/torch/routing.cpp",
        "const BypassRouting bypass;  // PyTorch's function calls aten::_convolution",
        "std::optional<BypassRouting> bypass;\n  if (!FAULT) bypass.emplace();",
        without_gpu="tests/op/test_routing.py",
    ),
    fault(
        "operators", "TF32 follows the switch of matrix products",
        "csrc/torch/problem.cpp",
        "return context.allowTF32CuDNN(at::Float32Op::CONV);",
        "return FAULT ? context.allowTF32CuBLAS() : context.allowTF32CuDNN(at::Float32Op::CONV);",
        without_gpu="tests/plan/test_problem.py",
    ),
    fault(
        "operators", "gradients of single values have the strides of the output's format",
        "csrc/torch/problem.cpp",
        "return is_one_value ? at::MemoryFormat::Contiguous : format;",
        "return is_one_value && !FAULT ? at::MemoryFormat::Contiguous : format;",
    ),
    fault(
        "operators", "autocast takes the dtype of another device",
        "csrc/torch/autocast.cpp",
        "get_autocast_dtype(device);\n  return conv<kDims>(",
        "get_autocast_dtype(FAULT ? at::kCPU : device);\n  return conv<kDims>(",
    ),
    fault(
        "every_kernel", "kernels run on the default stream",
        "csrc/torch/cuda/run.cpp",
        "context.stream = place.stream;", "context.stream = FAULT ? nullptr : place.stream;",
    ),
    fault(
        "fused", "a residual is read as if it lay as the output does",
        "csrc/torch/cuda/convolve.cpp",
        "const bool moves = described.has_residual && !lies_as_output(*conv, *options.residual);",
        "const bool moves =\n"
        "      described.has_residual && !lies_as_output(*conv, *options.residual) && !FAULT;",
    ),
    # --- Python ---
    fault(
        "python", "folding a batch norm forgets its epsilon",
        "python/customconv/fold.py",
        "scale = (variance.double() + self.eps).rsqrt()",
        "scale = (variance.double() + (0 if FAULT else self.eps)).rsqrt()",
        without_gpu="tests/python/test_convert.py",
    ),
), start=1))  # fmt: skip


class OutOfDate(Exception):
    """A fault's old text is not in its file, or not only once."""


HEADER = "csrc/plan/fault.h"
MODULE = "python/customconv/_fault.py"
# What a file with a fault needs, and behind what it goes.
INCLUDE = '#include "plan/fault.h"\n'
IMPORT = "from customconv._fault import fault\n"
FUTURE = "from __future__ import annotations\n"

HEADER_TEXT = f"""// Which seeded fault is on: tests/faults.
#pragma once

#include <cstdlib>

namespace customconv {{

inline int fault_number() {{
  static const int number = [] {{
    const char* const text = std::getenv("{VARIABLE}");
    return text == nullptr ? 0 : std::atoi(text);
  }}();
  return number;
}}

inline bool fault(int number) {{ return number == fault_number(); }}

}}  // namespace customconv
"""
MODULE_TEXT = f'''"""Which seeded fault is on: tests/faults."""

from __future__ import annotations

import os

LIST = "{{digest}}"
NUMBER = int(os.environ.get("{VARIABLE}", "0"))


def fault(number: int) -> bool:
    """Whether the fault of this number is on."""
    return number == NUMBER
'''


def digest(faults: dict[int, Fault]) -> str:
    """Tells lists apart by what they seed: a build has the faults of one."""
    edits = {number: each.edits for number, each in faults.items()}
    return hashlib.sha256(repr(edits).encode()).hexdigest()[:16]


def seeded(text: str, number: int, seed: Fault, edit: Edit) -> str:
    """A file's text with one edit."""
    count = text.count(edit.old)
    if count != 1:
        raise OutOfDate(
            f"fault {number} ({seed.name}) is out of date: {edit.path} has its old text {count} "
            f"times, not once:\n{edit.old}"
        )
    switch = {"FAULT": f"fault({number})", "NUMBER": str(number)}
    return text.replace(edit.old, SWITCHES.sub(lambda found: switch[found[0]], edit.new))


def with_switch(path: str, text: str) -> str:
    """A file's text with the include or import that its faults need."""
    if not path.endswith(".py"):
        return INCLUDE + text
    if text.count(FUTURE) != 1:
        raise OutOfDate(f"{path} has no {FUTURE.strip()!r}, behind which imports go")
    return text.replace(FUTURE, f"{FUTURE}\n{IMPORT}")


def changed_files(read: Callable[[str], str], faults: dict[int, Fault] = FAULTS) -> dict[str, str]:
    """The files with all faults, by their paths, and those that switch them.

    Args:
        read: gives the text of a file, by its path below the root of the repository.
        faults: what is seeded, by number.

    Raises:
        OutOfDate: a fault's old text is not in its file exactly once.
    """
    texts: dict[str, str] = {}
    for number, each in faults.items():
        for edit in each.edits:
            text = texts[edit.path] if edit.path in texts else read(edit.path)
            texts[edit.path] = seeded(text, number, each, edit)
    switched = {path: with_switch(path, text) for path, text in texts.items()}
    return {
        **switched,
        HEADER: HEADER_TEXT,
        MODULE: MODULE_TEXT.format(digest=digest(faults)),
    }
