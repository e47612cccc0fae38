"""The networks that `bench zoo` checks: all families, with random weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from .networks import UNet, UNet3d, quiet, wan_vae

SIDE = 64  # image height and width, unless a network needs more
BATCH = 2


@dataclass(frozen=True)
class Architecture:
    """How to build a network, and the shape of one input without the batch dimension."""

    name: str
    family: str
    build: Callable[[], nn.Module]
    image: tuple[int, ...] = (3, SIDE, SIDE)

    def network(self) -> nn.Module:
        """Builds the network, with the same weights every time and dropout off."""
        torch.manual_seed(0)
        return quiet(self.build())

    def input(self, device: torch.device, batch: int = BATCH) -> Tensor:
        """Returns a batch of random inputs, the same every time."""
        generator = torch.Generator().manual_seed(1)
        return torch.randn(batch, *self.image, generator=generator).to(device)


class Heads(nn.Module):
    """A one-stage detector up to the outputs of its heads. Takes (N, 3, H, W).

    The post-processing is left out: it sorts and drops boxes, and rounding changes which.
    """

    backbone: nn.Module
    head: nn.Module

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, x: Tensor) -> Any:
        return self.head(list(self.backbone(x).values()))


class Stages(nn.Module):
    """A two-stage detector whose second stage runs on fixed boxes, not on its first's proposals.

    Takes (N, 3, H, W). Returns the outputs of the region proposal head and the second-stage heads.
    """

    backbone: nn.Module
    rpn: nn.Module

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.rpn = detector.backbone, detector.rpn.head
        self.heads = detector.roi_heads

    def forward(self, x: Tensor) -> list[Any]:
        features = self.backbone(x)
        height, width = x.shape[2:]
        box = x.new_tensor([[0, 0, width - 1, height - 1], [4, 8, width / 2, height / 2]]).float()
        where = [box] * len(x), [(height, width)] * len(x)
        heads: Any = self.heads
        found = [self.rpn(list(features.values()))]
        found.append(heads.box_predictor(heads.box_head(heads.box_roi_pool(features, *where))))
        for kind in ("mask", "keypoint"):
            pool, head, predictor = (
                getattr(heads, f"{kind}_{part}") for part in ("roi_pool", "head", "predictor")
            )
            if pool is not None:
                found.append(predictor(head(pool(features, *where))))
        return found


class Waves(nn.Module):
    """1-D convolutions over sound, each layer with twice the dilation, as in WaveNet (2016).

    A strided encoder, then gated residual layers. Takes (N, 1, L), returns (N, classes, L / 4 - 1).
    """

    def __init__(self, width: int = 64, layers: int = 8, classes: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, width, 8, stride=4)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding="same", dilation=2**i) for i in range(layers)
        )
        self.mixers = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.decoder = nn.ConvTranspose1d(width, width, 4, stride=2, padding=1)
        self.head = nn.Conv1d(width, classes, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x)
        for gate, mixer in zip(self.gates, self.mixers, strict=True):
            a, b = gate(x).chunk(2, 1)
            x = x + mixer(torch.tanh(a) * torch.sigmoid(b))
        y: Tensor = self.head(functional.elu(self.decoder(x)))
        return y


class Autoencoder(nn.Module):
    """An image autoencoder with group norms and strided convolutions, as diffusion models use.

    Takes (N, 3, H, W), where H and W are multiples of 8, and returns the same shape.
    """

    def __init__(self, width: int = 32, latent: int = 4) -> None:
        super().__init__()

        def block(a: int, b: int) -> list[nn.Module]:
            return [nn.GroupNorm(8, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1)]

        down: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
        up: list[nn.Module] = []
        for i in range(3):
            a, b = width << i, width << (i + 1)
            down += [*block(a, b), nn.Conv2d(b, b, 3, stride=2, padding=1)]
            up = [nn.Upsample(scale_factor=2.0), *block(b, a), *up]
        self.encoder = nn.Sequential(*down, *block(width << 3, 2 * latent))
        self.decoder = nn.Sequential(nn.Conv2d(latent, width << 3, 1), *up, *block(width, 3))

    def forward(self, x: Tensor) -> Tensor:
        mean, _ = self.encoder(x).chunk(2, 1)
        y: Tensor = self.decoder(mean)
        return y


class Stack(nn.Sequential):
    """Modules in a row. Unlike ``nn.Sequential``'s own, this forward is seen by Dynamo."""

    def forward(self, x: Tensor) -> Tensor:
        for module in self:
            x = module(x)
        return x


def generator() -> nn.Module:
    """DCGAN's generator (Radford et al., 2015): (N, 100, 1, 1) to (N, 3, 64, 64)."""
    widths = (100, 512, 256, 128, 64)
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        stride, padding = (2, 1) if i else (1, 0)
        layers += [
            nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU()
        ]  # fmt: skip
    return Stack(*layers, nn.ConvTranspose2d(widths[-1], 3, 4, 2, 1), nn.Tanh())


def upscaler() -> nn.Module:
    """A wider ESPCN (Shi et al., 2016): (N, 3, H, W) to (N, 3, 4 H, 4 W) by pixel shuffle."""
    return Stack(
        nn.Conv2d(3, 64, 5, padding=2), nn.Tanh(),
        nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect"), nn.Tanh(),
        nn.Conv2d(64, 48, 3, padding=1), nn.PixelShuffle(4),
    )  # fmt: skip


def _timm(family: str, *names: str, side: int = SIDE, **more: Any) -> list[Architecture]:
    def build(name: str) -> Callable[[], nn.Module]:
        return lambda: timm.create_model(name, **more)

    return [Architecture(name, family, build(name), (3, side, side)) for name in names]


def _torchvision(
    family: str,
    *names: str,
    side: int = SIDE,
    wrapped: Callable[[nn.Module], nn.Module] = lambda network: network,
    **more: Any,
) -> list[Architecture]:
    def build(name: str) -> Callable[[], nn.Module]:
        return lambda: wrapped(torchvision.models.get_model(name, weights=None, **more))

    return [Architecture(name, family, build(name), (3, side, side)) for name in names]


def _video(*names: str, image: tuple[int, ...]) -> list[Architecture]:
    return [replace(each, image=image) for each in _torchvision("video", *names)]


# Wan's autoencoder with fewer channels and blocks.
_SMALL_WAN: dict[str, Any] = {
    "base_dim": 16, "z_dim": 4, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1,
}  # fmt: skip
_BARE: dict[str, Any] = {"weights_backbone": None}

ARCHITECTURES = [
    *_torchvision("resnet", "resnet50", "wide_resnet50_2"),
    *_timm("resnet", "resnet18", "seresnet50", "resnetaa50", "resnetrs50", "gcresnet33ts"),
    *_timm("resnet, weights standardized", "resnetv2_50x1_bit", "nf_resnet26"),
    *_timm("resnext", "resnext50_32x4d", "seresnext26d_32x4d", "resnest14d", "skresnet18"),
    *_timm("res2net", "res2net50_26w_4s", "res2next50"),
    *_timm("regnet", "regnetx_002", "regnety_032", "regnetz_b16"),
    *_timm("convnext", "convnext_atto", "convnextv2_atto", "convnext_femto_ols"),
    *_torchvision("convnext", "convnext_tiny"),
    *_timm("efficientnet", "efficientnet_b0", "tf_efficientnet_lite0", "tf_efficientnetv2_b0"),
    *_timm("mixnet", "mixnet_s", "tf_mixnet_s"),
    *_timm("mnasnet", "mnasnet_small", "fbnetc_100", "tinynet_e"),
    *_timm("mobilenet", "mobilenetv2_050", "mobilenetv3_large_100", "mobilenetv4_conv_small"),
    *_timm("mobilenet", "lcnet_050", "mobileone_s0"),
    *_timm("ghostnet", "ghostnet_100", "ghostnetv2_100"),
    *_timm("rexnet", "rexnet_100"),
    *_timm("densenet", "densenet121", "rdnet_tiny"),
    *_timm("inception", "inception_v3", "inception_v4", side=96),
    *_torchvision("inception", "googlenet", side=96, aux_logits=False, init_weights=False),
    *_timm("xception", "legacy_xception", "xception41"),
    *_timm("hrnet", "hrnet_w18_small"),
    *_timm("dla", "dla34", "dla46x_c"),
    *_timm("dpn", "dpn48b"),
    *_torchvision("vgg", "alexnet", "vgg11"),
    *_timm("repvgg", "repvgg_a0", "repvit_m0_9", "repghostnet_050"),
    *_torchvision("squeezenet", "squeezenet1_1"),
    *_torchvision("shufflenet", "shufflenet_v2_x0_5"),
    *_timm("vovnet", "ese_vovnet19b_dw", "vovnet39a"),
    *_timm("cspnet, darknet", "cspresnext50", "darknet53", "cs3darknet_focus_s"),
    *_timm("selecsls, hgnet, gernet", "selecsls42b", "hgnetv2_b0", "gernet_s"),
    *_timm("tresnet", "tresnet_m"),
    *_timm("nfnet", "nfnet_l0", "nf_regnet_b0"),
    *_timm("large kernels", "convmixer_1024_20_ks9_p14", "inception_next_atto", "starnet_s1"),
    *_timm("large kernels", "mambaout_femto", "focalnet_tiny_srf"),
    *_timm("metaformer", "poolformer_s12", "convformer_s18"),
    *_timm("attention and convolution", "pvt_v2_b0", "mobilevit_xxs", "edgenext_xx_small"),
    *_timm("attention and convolution", "efficientvit_b0", "fastvit_t8", "swiftformer_xs"),
    *_timm("attention and convolution", "visformer_tiny", "efficientformer_l1", side=224),
    *_timm("attention and convolution", "botnet26t_256", side=256),
    *_torchvision("segmentation", "fcn_resnet50", "deeplabv3_mobilenet_v3_large", **_BARE),
    *_torchvision("segmentation", "lraspp_mobilenet_v3_large", **_BARE),
    Architecture("unet", "unet", lambda: UNet((16, 32, 64, 128))),
    *_torchvision(
        "detection", "retinanet_resnet50_fpn", "fcos_resnet50_fpn",
        "ssdlite320_mobilenet_v3_large", side=128, wrapped=Heads, **_BARE
    ),
    *_torchvision("detection", "ssd300_vgg16", side=300, wrapped=Heads, **_BARE),
    *_torchvision(
        "detection", "fasterrcnn_mobilenet_v3_large_fpn", "maskrcnn_resnet50_fpn",
        "keypointrcnn_resnet50_fpn", side=128, wrapped=Stages, **_BARE
    ),
    *_video("r3d_18", "r2plus1d_18", "mc3_18", image=(3, 4, 32, 32)),
    *_video("swin3d_t", image=(3, 4, 64, 64)),
    *_video("s3d", "mvit_v2_s", image=(3, 16, 224, 224)),
    Architecture("unet3d", "volumes", lambda: UNet3d((16, 32, 64), 2), (2, 16, 16, 24)),
    Architecture("wan_vae", "volumes", lambda: wan_vae(**_SMALL_WAN), (3, 5, 32, 32)),
    Architecture("autoencoder", "generative", Autoencoder),
    Architecture("dcgan", "generative", generator, (100, 1, 1)),
    Architecture("espcn", "generative", upscaler, (3, 32, 32)),
    Architecture("wavenet", "1-D", Waves, (1, 1024)),
]  # fmt: skip
