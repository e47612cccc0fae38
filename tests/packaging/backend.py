"""torch.compile finds the backend of an installed customconv by its name, without an import."""

import shutil
import sys

import torch
from torch import nn


def main() -> None:
    assert "customconv" not in sys.modules
    assert "customconv" in torch._dynamo.list_backends()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    x = torch.randn(2, 3, 12, 10)
    if shutil.which("g++"):  # Inductor needs it
        with torch.no_grad():
            actual = torch.compile(model, backend="customconv", fullgraph=True)(x)
            torch.testing.assert_close(actual, model(x), rtol=1e-4, atol=1e-5)
    else:
        torch._dynamo.backends.registry.lookup_backend("customconv")
    assert "customconv" in sys.modules
    print("a model compiled by customconv agrees with PyTorch")


if __name__ == "__main__":
    main()
