"""The rules are registered with DTensor whenever it is imported, and its import is not ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

REGISTERED = """
import sys, torch.distributed.tensor
from torch._library.simple_registry import singleton
rules = singleton.find("customconv::conv2d").torch_dispatch_rules
assert rules.find(torch.distributed.tensor.DTensor) is not None
assert "exec_module" not in vars(torch.distributed.tensor.__loader__)
assert not any("torch.distributed.tensor" in getattr(each, "then", ()) for each in sys.meta_path)
"""


@pytest.mark.parametrize(
    "first",
    [
        "import sys, customconv; assert 'torch.distributed.tensor' not in sys.modules",
        "import torch.distributed.tensor, customconv",
        "import customconv, torch.distributed.tensor.parallel",
        "import customconv.distributed",
        "import customconv, importlib.util as u; assert u.find_spec('torch.distributed.tensor')",
    ],
)
def test_rules_are_there_with_dtensor(first):
    program = f"{first}\n{REGISTERED}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
