"""FlopCounterMode counts our operators as it counts PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import customconv


def flops(convolve, x, w, backward, **geometry):
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    with FlopCounterMode(display=False) as counter:
        output = convolve(*leaves, **geometry)
        if backward:
            output.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "name",
    ["conv1d", "conv2d", "conv2d_fused", "conv3d", "conv3d_fused", "conv_transpose1d",
     "conv_transpose2d", "conv_transpose2d_fused", "conv_transpose3d", "conv_transpose3d_fused"],
)  # fmt: skip
def test_counts_are_pytorchs(name, groups, backward, device):
    sizes = [9, 8, 5][: int(name.removesuffix("_fused")[-2])]
    channels, outputs = (4, 6 // groups) if "transpose" in name else (6, 4 // groups)
    x = torch.randn(2, 4, *sizes, device=device)
    w = torch.randn(channels, outputs, *[3] * len(sizes), device=device)
    arguments = {"stride": 2, "padding": 1, "groups": groups}
    ours = flops(getattr(customconv, name), x, w, backward, **arguments)
    assert ours == flops(getattr(F, name.removesuffix("_fused")), x, w, backward, **arguments)
    assert ours > 0
