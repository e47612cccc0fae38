"""`python -m bench extract`: writes network_layers.json, the convolutions of public networks.

With `--volumes` it writes network_volumes.json, those of networks that see volumes. Networks run on
PyTorch's meta device, which computes shapes alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from .architectures import Autoencoder, Waves, generator, upscaler
from .networks import UNet, UNet3d

OUT = Path(__file__).with_name("network_layers.json")
OUT_OF_VOLUMES = Path(__file__).with_name("network_volumes.json")


def _timm(name: str) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name)


def _torchvision(name: str, **more: Any) -> Callable[[], nn.Module]:
    return lambda: torchvision.models.get_model(name, weights=None, **more)


# How a network is built, and the shape of an image.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{
        name: (_timm(name), (3, side, side))
        for name, side in {
            "convmixer_1024_20_ks9_p14": 224, "convnextv2_atto": 224, "cspresnext50": 256,
            "darknet53": 256, "densenet121": 224, "dla34": 224, "dpn68b": 224,
            "edgenext_small": 256,
            "efficientnet_b0": 224, "efficientnet_b3": 300, "ese_vovnet39b": 224,
            "fastvit_t8": 256, "gernet_m": 224, "ghostnet_100": 224, "hgnetv2_b2": 224,
            "hrnet_w18": 224, "inception_next_tiny": 224, "inception_v3": 299, "mixnet_m": 224,
            "mobilenetv3_large_100": 224, "mobilenetv4_conv_medium": 256, "nf_resnet50": 256,
            "pvt_v2_b1": 224, "regnetx_032": 224, "regnety_016": 224, "repvgg_b0": 224,
            "res2net50_26w_4s": 224, "resnest50d": 224, "rexnet_150": 224, "skresnet34": 224,
            "tf_efficientnetv2_s": 300, "tresnet_m": 224, "vit_base_patch16_224": 224,
            "wide_resnet50_2": 176, "xception41": 299,
        }.items()
    },
    "alexnet": (_torchvision("alexnet"), (3, 224, 224)),
    "deeplabv3_resnet50": (
        _torchvision("deeplabv3_resnet50", weights_backbone=None), (3, 520, 520)
    ),
    "googlenet": (_torchvision("googlenet", init_weights=False), (3, 224, 224)),
    "shufflenet_v2_x1_5": (_torchvision("shufflenet_v2_x1_5"), (3, 224, 224)),
    "squeezenet1_1": (_torchvision("squeezenet1_1"), (3, 224, 224)),
    "autoencoder": (lambda: Autoencoder(96), (3, 256, 256)),
    "dcgan": (generator, (100, 1, 1)),
    "espcn": (upscaler, (3, 180, 320)),
    "unet": (UNet, (3, 256, 256)),
    "wavenet": (lambda: Waves(128), (1, 16000)),
}  # fmt: skip

# The same of networks that see volumes, most of them videos.
VOLUMES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mc3_18": (_torchvision("mc3_18"), (3, 16, 112, 112)),
    "mvit_v1_b": (_torchvision("mvit_v1_b"), (3, 16, 224, 224)),
    "r2plus1d_18": (_torchvision("r2plus1d_18"), (3, 16, 112, 112)),
    "s3d": (_torchvision("s3d"), (3, 16, 224, 224)),
    "unet3d": (UNet3d, (4, 128, 128, 128)),
}

# The columns of an entry; numbers for each axis follow depth, if any, rows, and columns.
COLUMNS = (
    "C", "H", "W", "K", "R", "S", "stride", "pad", "dil", "groups", "bias", "transposed",
    "output_padding",
)  # fmt: skip


class _Record(TorchDispatchMode):
    """Keeps the sizes of every convolution, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            self._keep(*args)
        return func(*args, **(kwargs or {}))

    def _keep(
        self, x: Any, w: Any, bias: Any, stride: Any, pad: Any, dil: Any, transposed: bool,
        output_padding: Any, groups: int,
    ) -> None:  # fmt: skip

        def numbers(values: Any, height: int) -> list[int]:
            return [height, *values] if x.dim() == 3 else list(values)

        *D, H, W = numbers(x.shape[2:], 1)
        *T, R, S = numbers(w.shape[2:], 1)
        K = w.shape[1] * groups if transposed else w.shape[0]
        entry = [
            x.shape[1], H, W, K, R, S, numbers(stride, 1), numbers(pad, 0), numbers(dil, 1),
            groups, int(bias is not None), int(transposed), numbers(output_padding, 0), *D, *T,
        ]  # fmt: skip
        self.found.setdefault(json.dumps(entry), entry)


def _layers(build: Callable[[], nn.Module], image: tuple[int, ...]) -> Iterator[list[Any]]:
    with torch.device("meta"), torch.no_grad():
        network = build().eval()
        with _Record() as record:
            network(torch.empty(1, *image))
    yield from record.found.values()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--volumes", action="store_true", help="of networks that see volumes")
    parser.add_argument("--out", type=Path, help="by default the file in bench")


def main(arguments: argparse.Namespace) -> int:
    lines = []
    columns: tuple[str, ...] = COLUMNS
    networks, out = NETWORKS, OUT
    if arguments.volumes:
        networks, columns, out = VOLUMES, (*COLUMNS, "D", "T"), OUT_OF_VOLUMES
    for name, (build, image) in sorted(networks.items()):
        entries = ",\n".join(f"  {json.dumps(entry)}" for entry in _layers(build, image))
        lines.append(f" {json.dumps(name)}: [\n{entries}\n ]")
    text = ",\n".join(lines)
    path = arguments.out or out
    path.write_text(f'{{\n "columns": {json.dumps(columns)},\n{text}\n}}\n')
    return 0
