"""What PyTorch is told of the operators: shapes, counts of operations, rules for vmap and DTensor.

Operators that are made of PyTorch's own (``pytorch_only``) have all of that from those.
"""

import sys

from . import _load

DTENSOR = "torch.distributed.tensor"

if _load.operators is not None:
    from . import fake as fake
    from . import flops as flops
    from . import vmap as vmap
    from ._startup.sitecustomize import AfterImport

    def _register_with_dtensor() -> None:
        from .distributed import rules

        rules.register()
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)

    # Its import takes half a second, so its rules wait for it.
    _finder = AfterImport({DTENSOR: _register_with_dtensor})
    if DTENSOR in sys.modules:
        _register_with_dtensor()
    else:
        sys.meta_path.insert(0, _finder)
