"""What the check before the timing catches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench import contenders, corpus, verify
from bench.layers import Layer

CPU = torch.device("cpu")
ODD = [
    Layer("", "stride and dilation", 2, 6, 17, 19, 9, 3, 4, (2, 3), (2, 5), (2, 3), 3),
    Layer("", "padding over the kernel", 1, 2, 5, 4, 3, 2, 2, (1, 1), (4, 3), (1, 1), 1),
    Layer("", "one of all", 1, 1, 1, 1, 1, 1, 1),
    Layer("", "channel multiplier", 2, 3, 9, 9, 6, 3, 3, (2, 1), (1, 1), (1, 1), 3),
    Layer("", "transposed", 2, 6, 7, 5, 9, 3, 4, (3, 2), (2, 1), (2, 3), 3,
          transposed=True, output_padding=(2, 1)),
    Layer("", "volume", 2, 6, 7, 9, 9, 3, 4, (2, 1, 3), (1, 2, 5), (1, 2, 3), 3, D=5, T=2),
    Layer("", "volume, padding over the kernel", 1, 2, 3, 4, 3, 2, 2, pad=(4, 3, 2), D=2, T=3),
    Layer("", "volume, depthwise", 2, 3, 5, 6, 6, 3, 3, (1, 2, 1), (1, 1, 1), groups=3, D=4, T=3),
    Layer("", "volume, transposed", 2, 6, 4, 3, 9, 3, 2, (2, 3, 2), (1, 2, 1), (1, 2, 3), 3,
          transposed=True, output_padding=(1, 2, 0), D=3, T=4),
]  # fmt: skip
LAYERS = [*corpus.load(["smoke", "smoke volumes"]), *ODD]


def by_pytorch(layer: Layer, op: str, buffers: contenders.Buffers) -> Tensor:
    return contenders.peers(layer, op, buffers, "aten")()


@pytest.mark.parametrize("op", contenders.OPS)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_sampled_elements_are_exact(layer, op):
    buffers = contenders.make_buffers(layer, "fp32", "nchw", CPU)
    wide = contenders.Buffers(buffers.x.double(), buffers.w.double(), None, buffers.dy.double())
    whole = by_pytorch(layer, op, wide)
    at = verify.sample(whole.shape, 500)
    exact = verify.exact(layer, op, at, buffers.x, buffers.w, buffers.dy)
    torch.testing.assert_close(exact, whole[tuple(at.unbind(1))], rtol=1e-12, atol=1e-12)


def test_a_sample_has_the_corners():
    assert len(verify.sample(torch.Size((2,) * 5), 4)) == 32
    at = {tuple(index) for index in verify.sample(torch.Size((2, 3, 4, 5)), 50).tolist()}
    assert {(n, c, h, w) for n in (0, 1) for c in (0, 2) for h in (0, 3) for w in (0, 4)} <= at


def test_the_sample_is_cut_into_parts_that_fit(monkeypatch):
    layer = LAYERS[0]
    buffers = contenders.make_buffers(layer, "fp32", "nchw", CPU)
    at = verify.sample(torch.Size(layer.output), 100)
    tensors = (buffers.x, buffers.w, buffers.dy)
    whole = verify.exact(layer, "fprop", at, *tensors)
    monkeypatch.setattr(verify, "MOST_GATHERED", 300)
    assert torch.equal(verify.exact(layer, "fprop", at, *tensors), whole)


@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (2, 3, 7, 5, 2), (1, 2, 9, 4, 3)])
@pytest.mark.parametrize("most", [1, 50, 1000])
def test_pieces_are_the_whole_and_none_has_too_many_elements(shape, most, monkeypatch):
    monkeypatch.setattr(verify, "MOST_COMPARED", most)
    counts = torch.zeros(shape)
    least = shape[1] * torch.Size(shape[3:]).numel()  # of one image and one row
    for piece in verify._pieces(counts.shape):
        counts[piece] += 1
        assert counts[piece].numel() <= max(most, least)
    assert counts.eq(1).all()


def test_one_wrong_element_of_a_large_volume_is_caught(monkeypatch):
    monkeypatch.setattr(verify, "MOST_COMPARED", 40)
    good = torch.randn(2, 3, 7, 4, 5)
    bad = good.clone()
    bad[1, 2, 5, 3, 4] = float("nan")
    verify.check(good, good, 1e-7, 1e-7, "fp32")
    with pytest.raises(verify.Wrong, match=r"instead of the peer's .* at \(1, 2, 5, 3, 4\)"):
        verify.check(bad, good, 1e-7, 1e-7, "fp32")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 7.0])
def test_one_wrong_element_is_caught(value):
    good = torch.randn(3, 4, 5, 6)
    bad = good.clone()
    bad[1, 2, 3, 4] = value
    verify.check(good, good, 1e-7, 1e-7, "fp32")
    with pytest.raises(verify.Wrong, match=r"instead of the peer's .* at \(1, 2, 3, 4\)"):
        verify.check(bad, good, 1e-7, 1e-7, "fp32")


def test_wrong_samples_are_caught_on_either_side():
    good = torch.randn(3, 4, 5, 6)
    with pytest.raises(verify.Wrong, match="ours is off by nan"):
        verify.check(good, good, float("nan"), 1e-7, "fp32")
    with pytest.raises(verify.Wrong, match=r"the peer's is off by 0\.5"):
        verify.check(good, good, 1e-7, 0.5, "fp32")


def test_another_shape_or_dtype_is_wrong():
    good = torch.randn(3, 4, 5, 6)
    for other in (good[:1], good.double()):
        with pytest.raises(verify.Wrong, match=r"not \(3, 4, 5, 6\) torch\.float32"):
            verify.check(other, good, 1e-7, 1e-7, "fp32")
