"""Parts of images: what each of several devices computes of a convolution."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from math import nan

import pytest
import torch
from op_support import FLOATS
from reference import ALL_FAMILIES, LAYOUTS, assert_equal
from torch import Tensor, nn
from torch.nn import functional as F

import customconv
from bench import networks
from customconv.distributed.images.convolution import UNDIVIDED_BYTES
from customconv.distributed.images.rows import Part, Window, count, shards, work

OPS = torch.ops.customconv
PROBLEMS = 60  # of each dtype and layout


@dataclass(frozen=True)
class Call:
    """A convolution, and the dimension along which its images are cut: 0 for rows."""

    input: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    output_padding: tuple[int, int]
    groups: int
    transposed: bool
    axis: int

    @property
    def window(self) -> Window:
        a = self.axis
        return Window(self.weight[2 + a], self.stride[a], self.padding[a], self.dilation[a])

    def whole(self, x: Tensor, w: Tensor, b: Tensor | None, algorithm: str = "auto") -> Tensor:
        if self.transposed:
            return OPS.conv_transpose2d(
                x, w, b, self.stride, self.padding, self.output_padding, self.groups,
                self.dilation, algorithm=algorithm,
            )  # fmt: skip
        return OPS.conv2d(
            x, w, b, self.stride, self.padding, self.dilation, self.groups, algorithm=algorithm
        )

    def write(
        self, part: Part, x: Tensor, w: Tensor, b: Tensor | None, output: Tensor, last: bool,
        algorithm: str = "auto",
    ) -> bool:  # fmt: skip
        """Computes a part of the output from the rows of the input that it needs."""
        dim = 2 + self.axis
        rows = F.pad(
            x.transpose(dim, 3), (max(-part.read[0], 0), max(part.read[1] - x.shape[dim], 0))
        )
        rows = rows.narrow(3, max(part.read[0], 0), count(part.read)).transpose(dim, 3)
        padding, extra = list(self.padding), list(self.output_padding)
        padding[self.axis] = self.window.span if self.transposed else 0
        extra[self.axis] = self.stride[self.axis] - 1 if self.transposed else 0
        layout = torch.channels_last if last else torch.contiguous_format
        done: bool = OPS._convolve_part(
            rows.contiguous(memory_format=layout), w, b, self.stride, padding, self.dilation,
            self.transposed, extra, self.groups, algorithm, output, last, x.shape[2:],
            self.padding, self.output_padding,
        )  # fmt: skip
        return done


def random_call(rng: random.Random) -> Call:
    """A call whose output is not empty, of sizes that occur."""
    while True:
        groups = rng.choice((1, 1, 1, 2, 32))
        c = groups * rng.choice((1, 1, 3, 4, 16, 32, 64, 70))
        k = groups * rng.choice((1, 2, 5, 8, 32, 64))
        taps = tuple(rng.choice((1, 2, 3, 3, 3, 4, 5, 7)) for _ in range(2))
        dilation = tuple(rng.choice((1, 1, 1, 2, 3)) for _ in range(2))
        stride = tuple(rng.choice((1, 1, 1, 2, 3)) for _ in range(2))
        reach = [(t - 1) * d for t, d in zip(taps, dilation, strict=True)]
        padding = tuple(rng.randint(0, each) for each in reach)
        extra = tuple(rng.randrange(each) for each in stride)
        transposed = rng.random() < 0.5
        if transposed:
            c, k = k, c
        else:
            extra = (0, 0)
        x = (rng.choice((1, 1, 2, 5)), c, *(rng.choice((4, 7, 16, 30, 56, 64)) for _ in range(2)))
        w = (c, k // groups, *taps) if transposed else (k, c // groups, *taps)
        call = Call(x, w, stride, padding, dilation, extra, groups, transposed, rng.randrange(2))
        x, w = (torch.empty(sizes, device="meta") for sizes in (x, w))
        try:
            output = call.whole(x, w, None)
        except RuntimeError:  # the filter is larger than the padded images
            continue
        if output.numel():
            return call


def tensors(call: Call, dtype: torch.dtype, layout: torch.memory_format) -> tuple[Tensor, Tensor]:
    x, w = (
        torch.randn(sizes, device="cuda").to(dtype).contiguous(memory_format=layout)
        for sizes in (call.input, call.weight)
    )
    return x, w


def parts(call: Call, rows: int, ranks: int) -> list[Part]:
    """What all ranks compute: parts that need no other rank's rows, and strips that do."""
    read = shards(call.input[2 + call.axis], ranks)
    return [
        part
        for own, outputs in zip(read, shards(rows, ranks), strict=True)
        for part in call.window.parts(outputs, own, call.transposed)
        if part.computed == part.wanted and count(part.read)
    ]


@pytest.mark.parametrize("transposed", [False, True])
def test_a_part_is_written_where_it_belongs(transposed):
    call = Call((2, 4, 9, 7), (4, 2, 3, 3), (1, 2), (1, 1), (2, 1), (0, 0), 2, transposed, 0)
    x, w = (torch.randn(sizes, dtype=torch.float64) for sizes in (call.input, call.weight))
    expected = call.whole(x, w, None)
    output = torch.full_like(expected, nan)
    for part in parts(call, expected.shape[2], 2):
        assert call.write(
            part, x, w, None, output.narrow(2, part.wanted[0], count(part.wanted)), False
        )
    assert_equal(output, expected, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_part_has_the_bits_of_the_whole_image(dtype, layout):
    """While customconv is batch invariant, but for parts that say that they have none."""
    rng, refused = random.Random(f"{dtype} {layout}"), Counter()
    torch.manual_seed(1)
    for _ in range(PROBLEMS):
        call = random_call(rng)
        x, w = tensors(call, dtype, layout)
        b = torch.randn(call.weight[1] * call.groups if call.transposed else call.weight[0],
                        device="cuda").to(dtype) if rng.random() < 0.5 else None  # fmt: skip
        last = OPS._is_channels_last(x, w)
        dim = 2 + call.axis
        tf32 = torch.backends.cudnn.flags(enabled=True, allow_tf32=rng.random() < 0.5)
        with customconv.batch_invariant(), tf32:
            expected = call.whole(x, w, b)
            output = torch.full_like(expected, nan)
            for part in parts(call, expected.shape[dim], rng.choice((2, 3))):
                own = output.narrow(dim, part.wanted[0], count(part.wanted))
                done = call.write(part, x, w, b, own, last)
                refused[done] += 1
                assert done or own.isnan().all()
                wants = expected.narrow(dim, part.wanted[0], count(part.wanted))
                assert_equal(own, wants if done else own, what=f"{call} {part}")
                own.fill_(nan)  # nothing is written beside it
        assert output.isnan().all(), call
    assert refused[False] <= 0.25 * refused.total(), refused


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_convolution_of_a_decoder_has_the_bits_of_the_whole_image(dtype, layout, ranks):
    """Of 1024 x 1024 pixels, in the parts that several GPUs compute of it."""
    computed: Counter[bool] = Counter()

    def compare(module: nn.Conv2d, args: tuple[Tensor], expected: Tensor) -> None:
        (x,) = args
        call = Call(
            tuple(x.shape), tuple(module.weight.shape), module.stride, module.padding,
            module.dilation, (0, 0), module.groups, False, 0,
        )  # fmt: skip
        last = OPS._is_channels_last(x, module.weight)
        output = torch.full_like(expected, nan)
        divides = x.nbytes > UNDIVIDED_BYTES * ranks
        for rank in range(ranks):
            does = work(call.window, False, x.shape[2], expected.shape[2], ranks, rank, divides)
            for part in (*does.inside, *does.strips):
                own = output.narrow(2, part.wanted[0], count(part.wanted))
                computed[call.write(part, x, module.weight, module.bias, own, last)] += 1
        assert_equal(output, expected, what=str(call))

    torch.manual_seed(4)
    network = networks.VaeDecoder().requires_grad_(False).to("cuda", dtype)
    customconv.convert(network.to(memory_format=layout))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(compare)
    latents = torch.randn(1, 4, 128, 128, device="cuda", dtype=dtype)
    with customconv.batch_invariant():
        network(latents.contiguous(memory_format=layout))
    assert computed[True] and not computed[False], computed


@pytest.mark.gpu
@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_family_writes_into_slices(dtype, layout, family):
    """Slices of a larger tensor, with whatever strides and addresses they have."""
    rng, computed = random.Random(f"{dtype} {layout} {family}"), 0
    torch.manual_seed(2)
    for _ in range(PROBLEMS):
        call = random_call(rng)
        x, w = (t.clamp(-1, 1).round() for t in tensors(call, dtype, layout))
        expected = call.whole(x.double(), w.double(), None, "direct").to(dtype)
        last = OPS._is_channels_last(x, w)
        dim = 2 + call.axis
        left = rng.randrange(2)  # if none, rows of the output follow each other
        around = F.pad(torch.full_like(expected, nan), (left, 2 * left, 3, 1), value=nan)
        around = around.contiguous(memory_format=layout)
        output = around[:, :, 3:-1, left : around.shape[3] - 2 * left]
        for part in parts(call, expected.shape[dim], 2):
            own = output.narrow(dim, part.wanted[0], count(part.wanted))
            try:
                with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
                    call.write(part, x, w, None, own, last, family)
            except RuntimeError as error:
                assert "cannot compute this" in str(error), error
                continue
            computed += 1
            wants = expected.narrow(dim, part.wanted[0], count(part.wanted))
            assert_equal(own, wants, what=f"{call} {part}")
            own.fill_(nan)
        assert around.isnan().all(), call
    only_single = ("tiled", "implicit_gemm", "depthwise", "grouped", "col2im")
    assert computed or (dtype == torch.float64 and family in only_single), "nothing was computed"
