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
assert type(torch.distributed.tensor.__loader__).__module__ != "customconv._later"
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


def test_a_module_that_does_not_exist_is_still_missing():
    program = """
from customconv._later import when_imported
when_imported("customconv_no_such_module", lambda: print("imported"))
try:
    import customconv_no_such_module
except ModuleNotFoundError as error:
    assert error.name == "customconv_no_such_module"
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stdout, done.stderr
