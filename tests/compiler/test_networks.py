"""Networks of timm and torchvision whose graphs are rewritten: exact in double precision.

Graphs pass through what this package does to them, before autograd and after it, and are run
operator by operator, so that a wrong rewriting cannot hide behind rounding. Three things are not
done in float64, and so not tested here: layouts are not chosen, weights are not cast, and running
statistics are not updated with the convolution.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from bench import evidence
from bench.architectures import ARCHITECTURES
from customconv.arguments import LAST
from customconv.compiler.inductor import InductorPass
from customconv.compiler.rewrite import fuse

NAMED = {architecture.name: architecture for architecture in ARCHITECTURES}
# Small ones, with and without batch norms, in groups, depthwise, transposed, and of signals and
# volumes.
NETWORKS = [
    "autoencoder", "convnext_atto", "dcgan", "lcnet_050", "r3d_18", "regnetx_002",
    "shufflenet_v2_x0_5", "unet3d", "wavenet",
]  # fmt: skip
ROUNDED = {"lcnet_050": 1e-6}  # whose activations PyTorch divides by a six in float32

pytestmark = pytest.mark.usefixtures("fuses_on_the_cpu")


class Rewriting:
    """A backend that runs graphs as this package leaves them to Inductor."""

    def __init__(self) -> None:
        self.ours = 0

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        fuse(graph_module.graph)
        graph_module.recompile()
        made: Callable[..., Any] = aot_autograd(
            fw_compiler=self.passed, decompositions=select_decomp_table(),
            partition_fn=min_cut_rematerialization_partition, keep_inference_input_mutations=True,
        )(graph_module, inputs)  # fmt: skip
        return made

    def passed(self, graph_module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        InductorPass()(graph_module.graph)
        graph_module.graph.lint()
        graph_module.recompile()
        targets = [str(node.target) for node in graph_module.graph.nodes]
        self.ours += sum(target.startswith("customconv.conv") for target in targets)
        return make_boxed_func(graph_module.forward)


def results(network: nn.Module, x: Tensor, train: bool) -> dict[str, Tensor]:
    """Outputs; in training also gradients and what batch norms keep."""
    torch.manual_seed(0)
    if not train:
        with torch.no_grad():
            return {f"output {i}": y for i, y in enumerate(evidence.leaves(network.eval()(x)))}
    image = x.clone().requires_grad_()
    outputs = evidence.leaves(network.train()(image))
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (y * torch.randn(y.shape, generator=generator, dtype=y.dtype)).sum() for y in outputs
    )
    assert isinstance(loss, Tensor)
    loss.backward()
    found = {f"output {i}": y.detach() for i, y in enumerate(outputs)} | {"input": image.grad}
    found |= {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return found | {name: buffer.double() for name, buffer in network.named_buffers()}


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_rewritten_network_is_exact(name, layout, train):
    architecture = NAMED[name]
    x = architecture.input(torch.device("cpu")).double()
    network = evidence.awakened(architecture.network()).double()
    if x.ndim in LAST and layout == "nhwc":
        network, x = (
            network.to(memory_format=LAST[x.ndim]),
            x.contiguous(memory_format=LAST[x.ndim]),
        )
    torch._dynamo.reset()
    backend, rewritten = Rewriting(), copy.deepcopy(network)
    rewritten.compile(backend=backend)
    expected, actual = results(network, x, train), results(rewritten, x, train)
    assert actual.keys() == expected.keys()
    assert backend.ours > 0
    most = max(value.norm() for value in expected.values())
    for key, value in expected.items():
        off = (actual[key] - value).norm()
        assert off <= max(ROUNDED.get(name, 0.0) * value.norm(), 1e-12 * most), key
