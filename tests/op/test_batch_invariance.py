"""The switch that makes what an image gets independent of its batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from op_support import conv2d, conv2d_backward, conv3d, conv_transpose2d, conv_transpose3d
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import customconv

GEOMETRY = ((1, 1), (1, 1), (1, 1), 1)
ONLY_PYTORCH = "batch invariant, and only PyTorch can compute this call"


@pytest.fixture(autouse=True)
def off_again() -> Iterator[None]:
    yield
    customconv.set_batch_invariant(False)
    assert not customconv.is_batch_invariant()


def images(count: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, 13, 19, 21, device=device).to(dtype)


def weights(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(10, 13, 3, 3, device=device).to(dtype)


def test_contexts_nest_and_leave_the_switch_as_it_was():
    with customconv.batch_invariant():
        with customconv.batch_invariant():
            pass
        assert customconv.is_batch_invariant()
        customconv.set_batch_invariant(False)
        assert customconv.is_batch_invariant()
        customconv.set_batch_invariant(True)
    assert customconv.is_batch_invariant()


def test_a_context_ends_with_an_error():
    with pytest.raises(KeyError), customconv.batch_invariant():
        raise KeyError
    assert not customconv.is_batch_invariant()


def test_it_decorates_functions():
    assert customconv.batch_invariant()(customconv.is_batch_invariant)()


def test_the_switch_is_a_context_too():
    with customconv.set_batch_invariant(True):
        with customconv.set_batch_invariant(False):
            assert not customconv.is_batch_invariant()
        assert customconv.is_batch_invariant()
    assert not customconv.is_batch_invariant()


def test_the_switch_takes_a_boolean():
    with pytest.raises(TypeError, match="argument 'enabled' must be bool, not str"):
        customconv.set_batch_invariant("off")
    assert not customconv.is_batch_invariant()


def test_it_holds_in_every_thread():
    found = []
    with customconv.batch_invariant():
        thread = threading.Thread(target=lambda: found.append(customconv.is_batch_invariant()))
        thread.start()
        thread.join()
    assert found == [True]


def test_what_only_pytorch_computes_raises():
    x, w = images(2), weights()
    dy = conv2d(x, w, None, *GEOMETRY)
    with customconv.batch_invariant():
        with pytest.raises(RuntimeError, match=f"{ONLY_PYTORCH}.*not on CUDA"):
            conv2d(x, w)
        with pytest.raises(RuntimeError, match=f"{ONLY_PYTORCH}.*'aten' was asked for"):
            conv2d(x, w, algorithm="aten")
        with pytest.raises(RuntimeError, match=ONLY_PYTORCH):
            conv_transpose2d(dy, w)
        with pytest.raises(RuntimeError, match=f"{ONLY_PYTORCH}.*not on CUDA"):
            conv3d(x[:, :, None], w[:, :, None])
        with pytest.raises(RuntimeError, match=ONLY_PYTORCH):
            conv_transpose3d(dy[:, :, None], w[:, :, None])
        with pytest.raises(RuntimeError, match=ONLY_PYTORCH):
            conv2d_backward(dy, x, w, *GEOMETRY, [True, False, False])
    conv2d(x, w)


def test_weight_gradients_go_on():
    """A sum over the batch depends on it in any case."""
    x, w = images(2), weights()
    dy = conv2d(x, w, None, *GEOMETRY)
    with customconv.batch_invariant():
        conv2d_backward(dy, x, w, *GEOMETRY, [False, True, True])


def test_shapes_are_traced():
    with customconv.batch_invariant(), FakeTensorMode():
        assert conv2d(torch.empty(2, 3, 8, 8), torch.empty(5, 3, 3, 3)).shape == (2, 5, 6, 6)
    with customconv.batch_invariant():
        x = torch.empty(2, 3, 8, 8, device="meta")
        assert conv2d(x, torch.empty(5, 3, 3, 3, device="meta")).shape == (2, 5, 6, 6)


def test_explain_says_that_a_call_raises():
    with customconv.batch_invariant():
        found = customconv.explain(images(2), weights())
    assert not found.is_batch_invariant
    assert found.raises
    assert found.family == "none"
    assert "the call raises" in found.fallback


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_explain_says_that_a_plan_is_batch_invariant(dtype, layout):
    x = images(3, "cuda", dtype).contiguous(memory_format=layout)
    with customconv.batch_invariant():
        found = customconv.explain(x, weights("cuda", dtype), padding=1)
    assert found.is_batch_invariant
    assert "an image gets the same bits in any" in str(found)
    assert not customconv.explain(x, weights("cuda", dtype), padding=1).is_batch_invariant


@pytest.mark.gpu
def test_routed_convolutions_follow_the_switch():
    x, w = images(9, "cuda", torch.float16), weights("cuda", torch.float16)
    with customconv.enabled(), customconv.batch_invariant():
        together = torch.nn.functional.conv2d(x, w)
        for i in range(9):
            assert torch.equal(torch.nn.functional.conv2d(x[i : i + 1], w), together[i : i + 1])
        lines = x[:, :, 0]
        rows = torch.nn.functional.conv1d(lines, w[:, :, 0])
        assert torch.equal(torch.nn.functional.conv1d(lines[4:5], w[:, :, 0]), rows[4:5])
        volumes, filters = torch.stack([x, -x], 2), torch.stack([w, -w], 2)
        together = torch.nn.functional.conv3d(volumes, filters)
        for i in range(9):
            alone = torch.nn.functional.conv3d(volumes[i : i + 1], filters)
            assert torch.equal(alone, together[i : i + 1])


@pytest.mark.gpu
def test_a_family_that_depends_on_the_batch_raises():
    x, w = images(3, "cuda"), weights("cuda")
    with customconv.batch_invariant():
        with pytest.raises(RuntimeError, match="cuBLAS does not promise"):
            conv2d(x, w, algorithm="im2col")
        with pytest.raises(RuntimeError, match=f"{ONLY_PYTORCH}.*'aten' was asked for"):
            conv2d(x, w, algorithm="aten")
        conv2d(x, w, algorithm="tiled")


@pytest.mark.gpu
def test_compiled_graphs_follow_the_switch():
    """It is read when the operator runs, not when it is traced."""
    x, w = images(5, "cuda", torch.float16), weights("cuda", torch.float16)
    compiled = torch.compile(lambda x, w: conv2d(x, w).relu(), fullgraph=True, dynamic=True)
    compiled(x, w)
    with customconv.batch_invariant():
        assert torch.equal(compiled(x[2:4].clone(), w), compiled(x, w)[2:4])
