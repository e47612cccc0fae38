"""What PyTorch is told of the operators: their shapes, counts of operations and rules for vmap.

Operators that are made of PyTorch's own (``pytorch_only``) have all of that from those.
"""

from . import _load

if _load.operators is not None:
    from . import fake as fake
    from . import flops as flops
    from . import vmap as vmap
    from ._later import when_imported

    def _register_with_dtensor() -> None:
        from .distributed import rules

        rules.register()

    # Its import takes half a second.
    when_imported("torch.distributed.tensor", _register_with_dtensor)
