"""The parts of the GPU suite. A test belongs to the first part that names it.

A family's part has its kernels and plans, without prices: tests force every plan, so what the
kernels compute does not depend on which is the cheapest. Parts in which the planner chooses have
all that its choice follows from. The kernels that it chooses belong to their families' parts, and
to parts that say something of several families.
"""

from __future__ import annotations

from gpu_suite import Part, Selection, select

# What every kernel needs: shared code, and what launches it.
COMMON = (
    "csrc/core/*.cpp",
    "csrc/kernels/common/*.cpp",
    "csrc/kernels/library.cu",
    "csrc/plan/device.cpp",
    "csrc/plan/fold.cpp",
    "csrc/plan/problem.cpp",
    "csrc/torch/cuda/convolve.cpp",
    "csrc/torch/cuda/run.cpp",
)
KERNELS = ("csrc/kernels/**/*.cu",)
PLANNER = ("csrc/plan/*.cpp", "csrc/kernels/**/*.cpp")
TORCH = ("csrc/torch/*.cpp", "csrc/torch/cuda/*.cpp")
CHOICE = ("csrc/core/*.cpp", "csrc/bind/*.cpp", *PLANNER, *TORCH)

# What the package registers with PyTorch for its operators, which no test imports.
REGISTERED = tuple(f"python/customconv/{name}.py" for name in ("fake", "flops", "vmap"))
PACKAGE = ("python/customconv/**/*.py",)
SNIPPETS = ("README.md", "docs/compile.md", "docs/routing.md", "docs/how/batch_invariance.md",
            "docs/how/tuning.md")  # fmt: skip

IMPLICIT_GEMM = tuple(
    f"csrc/kernels/implicit_gemm/{names}" for names in ("*.c*", "mma_sync/*.c*", "sm90/*.c*")
)
SUMS = tuple(f"csrc/kernels/{name}/*.cu" for name in ("bias", "parameters", "statistics"))
WEIGHT_GRADIENTS = ("csrc/kernels/implicit_gemm/wgrad/**/*.c*",)


def files(folder: str, names: str) -> Selection:
    """Files of tests, by their names without what all begin and end with."""
    return select(*(f"{folder}/test_{name}.py" for name in names.split()))


EVERY_FAMILY = files("kernels", "exact accuracy sweep volume_plans").files
STRICT = "kernels/test_strict_float32.py"
OUTPUTS = ("fprop", "dgrad", "fused")
# Tests beside those of every family.
POISON = "test_poison_is_what_the_next_allocation_holds"
ROUNDED = "test_tf32_on_tensor_cores_is_that_of_rounded_operands"


def family(name: str, *more: Selection) -> Part:
    """A family's kernels: what tests of all families say of it, and tests of its own."""
    sources = (*COMMON, f"csrc/kernels/{name}/**/*.c*")
    return Part(name, (select(*EVERY_FAMILY, family=name), *more), sources)


PARTS = (
    family("direct", select("kernels/test_exact.py", function=POISON)),
    family("im2col", select("kernels/test_patch_embeddings.py")),
    family("tiled"),
    family("depthwise", select("kernels/test_depthwise_*.py")),
    family("grouped", select("kernels/test_grouped.py")),
    family("col2im", select("kernels/test_col2im.py")),
    Part(
        "implicit_gemm_wgrad",
        (
            select("kernels/test_implicit_gemm_wgrad.py"),
            select(*EVERY_FAMILY, family="implicit_gemm", op="wgrad"),
            select(STRICT, op="wgrad"),
        ),
        (*COMMON, *WEIGHT_GRADIENTS),
    ),
    Part(
        "implicit_gemm_outputs",  # and input gradients
        (
            select("kernels/test_variants.py", "kernels/test_stream_k.py"),
            select(*EVERY_FAMILY, family="implicit_gemm", op=OUTPUTS),
            select("kernels/test_accuracy.py", function=ROUNDED),
            select(STRICT, op=OUTPUTS),
        ),
        (*COMMON, *IMPLICIT_GEMM),
    ),
    Part(
        "implicit_gemm",  # tests that run all passes
        (select(*EVERY_FAMILY, family="implicit_gemm"), select(STRICT)),
        (*COMMON, *IMPLICIT_GEMM, *WEIGHT_GRADIENTS),
    ),
    Part(
        "statistics",  # and other sums over channels, and what becomes of parameters
        (files("op", "statistics bias_gradient parameters"),),
        (*SUMS, *IMPLICIT_GEMM, *CHOICE),
    ),
    Part(
        "fused",
        (files("op", "fused"),),
        (*IMPLICIT_GEMM, "csrc/kernels/depthwise/**/*.cu", *CHOICE, *REGISTERED),
    ),
    Part(
        "every_kernel",  # what holds of all: the same bits, streams, which kernels run
        (
            files("kernels", "batch_sweep strict_bounds"),
            files("op", "batch_invariance parts repeatability streams_and_graphs"),
            files("op", "backward_kernels two_runtimes"),
        ),
        (*KERNELS, *CHOICE),
    ),
    Part("large", (files("kernels", "large"), files("op", "huge_tensors")), (*KERNELS, *CHOICE)),
    Part(
        "distributed",  # needs two GPUs
        (
            files(
                "distributed",
                "checkpoint data_parallel devices rules spatial spatial_functions styles",
            ),
        ),
        (
            *CHOICE,
            *REGISTERED,
            "python/customconv/distributed/*.py",
            "python/customconv/distributed/images/*.py",
            "tests/distributed/ranks.py",
        ),
    ),
    Part("routing", (files("op", "observers recorders routing"),), (*CHOICE, *REGISTERED)),
    Part(
        "operators",
        (
            files("op", "algorithm_argument autocast conv_transpose2d decisions derivatives"),
            files("op", "dispatch functorch gradient_strides memory_format opcheck opinfo"),
            files("op", "precision_of_views precision_switches"),
        ),
        (*CHOICE, *REGISTERED),
    ),
    Part(
        "compiler",
        (files("compiler", "on_gpu"), files("op", "compile export")),
        (*CHOICE, *REGISTERED),
    ),
    Part(
        "python",
        (
            files("python", "convert explain fake flops ops tuning"),
            select("test_examples.py", "test_readme.py"),
        ),
        (*CHOICE, *PACKAGE, "examples/**/*.py", *SNIPPETS),
    ),
    Part(
        "bench",
        (files("bench", "fused_cost host inside machine micro models tune tuning_gain zoo"),),
        (*CHOICE, *PACKAGE, "bench/**/*.py", "bench/*.json", "bench/micro/*.cu"),
    ),
)
