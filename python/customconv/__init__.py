"""2-D convolution for PyTorch by hand-written CUDA kernels, as one operator.

``torch.ops.customconv.conv2d`` takes what ``torch.nn.functional.conv2d`` takes and gives what it
gives, in eager mode, under autograd, ``torch.compile``, ``torch.export`` and ``torch.autocast``;
``conv_transpose2d`` is the same for ``torch.nn.functional.conv_transpose2d``.
"""

from . import _load as _load  # first: loads the compiled module, or says why it cannot
from . import fake as _fake  # noqa: F401  (registers the operators' shapes)
from .explain import Explanation, explain
from .info import build_info
from .nn import Conv2d, ConvTranspose2d
from .ops import conv2d, conv2d_fused, conv_transpose2d

__version__ = build_info()["version"]

__all__ = [
    "Conv2d",
    "ConvTranspose2d",
    "Explanation",
    "__version__",
    "build_info",
    "conv2d",
    "conv2d_fused",
    "conv_transpose2d",
    "explain",
]
