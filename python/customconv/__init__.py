"""PyTorch's 1-D, 2-D and 3-D convolutions on NVIDIA GPUs, by CUDA kernels of its own.

For inference, ``compile`` compiles a model with fused convolutions. For training, ``enable`` routes
PyTorch's own convolutions through the kernels, forward and backward; ``python -m customconv run``
does so for a program as it is. ``convert`` replaces a model's modules. ``conv2d`` and the others
are the operators, also ``torch.ops.customconv.conv2d``: arguments, results and errors are those of
``torch.nn.functional``. ``stats``, ``explain`` and ``explain_compile`` say what computes a
convolution, and why. Without a GPU, PyTorch computes the same calls.
"""

from . import run as _run  # noqa: F401  (before torch: `python -m customconv run` and `tune` end here)

# isort: split
from . import _load as _load  # first: loads the compiled module, or says why it cannot
from . import registered as _registered  # noqa: F401  (what PyTorch is told of the operators)
from .batch_invariance import batch_invariant, is_batch_invariant, set_batch_invariant
from .compiler import CompiledConvolution, CompileReport, compile, explain_compile
from .convert import ConversionReport, convert, revert
from .explain import Explanation, explain
from .fused import conv2d_fused, conv3d_fused, conv_transpose2d_fused, conv_transpose3d_fused
from .info import build_info
from .nn import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .notices import notice_log_topic
from .ops import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from .routing import Stats, disable, enable, enabled, is_enabled, stats
from .tuning import (
    TunedLayer,
    TuningReport,
    clear_plans,
    load_named_plans,
    load_plans,
    save_plans,
    tune,
    tuning,
)

__version__ = build_info()["version"]

load_named_plans()
notice_log_topic()

__all__ = [
    "CompileReport",
    "CompiledConvolution",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "ConversionReport",
    "Explanation",
    "Stats",
    "TunedLayer",
    "TuningReport",
    "__version__",
    "batch_invariant",
    "build_info",
    "clear_plans",
    "compile",
    "conv1d",
    "conv2d",
    "conv2d_fused",
    "conv3d",
    "conv3d_fused",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose2d_fused",
    "conv_transpose3d",
    "conv_transpose3d_fused",
    "convert",
    "disable",
    "enable",
    "enabled",
    "explain",
    "explain_compile",
    "is_batch_invariant",
    "is_enabled",
    "load_plans",
    "revert",
    "save_plans",
    "set_batch_invariant",
    "stats",
    "tune",
    "tuning",
]
