"""Decodes latents to an image with a decoder whose images several GPUs share.

    torchrun --nproc-per-node 2 examples/several_gpus.py

Each GPU has some of the image's rows. Without torchrun there is one process, which has all of them;
without a GPU the processes compute on the CPU, and the decoder is small. The image is compared with
one that a process decodes by itself, and both with the image in float64.
"""

import copy
import datetime
import os

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from vae_decode import decoder, timed

import customconv
from customconv.distributed import spatial, spatial_report


@torch.inference_mode()
def main() -> None:
    """Decodes by one process and by all, and compares."""
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "0")
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    minute = datetime.timedelta(minutes=1)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=minute)

    device, dtype = ("cuda", torch.float16) if cuda else ("cpu", torch.float32)
    width, size = (128, 128) if cuda else (8, 8)
    torch.manual_seed(0)  # the same weights and latents in each process
    model = decoder(width).to(device, dtype).eval()
    exact = copy.deepcopy(model).double()
    latents = torch.randn(1, 4, size, size).to(device, dtype)

    def decode() -> Tensor:
        return model(latents)

    with customconv.enabled():
        alone = timed("one process", decode)
    spatial(model, init_device_mesh(device, (dist.get_world_size(),)))
    image = timed(f"{dist.get_world_size()} processes", decode)
    if dist.get_rank() == 0:
        print(spatial_report(model))
    # Behind the last exchange: threads of gloo must be done with it when the process ends.
    expected = exact(latents.double())
    errors = {
        name: float((result - expected).abs().max() / expected.abs().max())
        for name, result in (("alone", alone), ("shared", image))
    }
    print(f"an image of {tuple(image.shape)}; largest errors beside float64:", errors)
    if not errors["shared"] <= 2 * errors["alone"] + 1e-6:
        raise SystemExit("the error of the shared image is more than twice that of the other")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
