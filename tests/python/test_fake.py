"""On fake tensors the operators say exactly what they then do."""

import contextlib
import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import customconv  # noqa: F401  (registers the operators)

ops = torch.ops.customconv

# Problem: input, weight, stride, padding, dilation, groups.
PROBLEMS = [
    ((2, 4, 9, 8), (6, 4, 3, 3), [1, 1], [1, 1], [1, 1], 1),
    ((2, 4, 9, 8), (6, 2, 3, 2), [2, 1], [1, 0], [1, 2], 2),
    ((2, 4, 9, 8), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], 4),
    ((2, 4, 9, 8), (6, 4, 1, 1), [1, 1], [0, 0], [1, 1], 1),
    ((2, 1, 9, 8), (6, 1, 3, 3), [1, 1], [0, 0], [1, 1], 1),
    ((1, 4, 3, 3), (1, 4, 3, 3), [1, 1], [0, 0], [1, 1], 1),
    ((0, 4, 9, 8), (6, 4, 3, 3), [1, 1], [1, 1], [1, 1], 1),
]
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def significant(tensor):
    """Shape, type, and the strides of dimensions that have more than one element."""
    strides = [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return tensor.shape, tensor.dtype, strides if tensor.numel() else None


def both(call, *tensors):
    """The results on real tensors and on fake ones."""
    real = call(*tensors)
    with FakeTensorMode() as mode:
        return real, call(*(mode.from_tensor(t) for t in tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, repeat=3)))
@pytest.mark.parametrize("problem", PROBLEMS)
def test_results_have_the_strides_that_the_fakes_have(problem, layouts, dtype):
    input_shape, weight_shape, *geometry = problem
    x = torch.randn(input_shape, dtype=dtype).to(memory_format=layouts[0])
    w = torch.randn(weight_shape, dtype=dtype).to(memory_format=layouts[1])
    bias = torch.randn(weight_shape[0], dtype=dtype)
    real, fake = both(lambda x, w, b: ops.conv2d(x, w, b, *geometry), x, w, bias)
    assert significant(fake) == significant(real)

    grad = torch.randn(real.shape, dtype=dtype).to(memory_format=layouts[2])
    for mask in itertools.product([False, True], repeat=3):
        real, fake = both(
            lambda g, x, w, mask=mask: ops.conv2d_backward(g, x, w, *geometry, mask), grad, x, w
        )
        for wanted, expected, said in zip(mask, real, fake, strict=True):
            assert (expected is not None) == (said is not None) == wanted
            if wanted:
                assert significant(said) == significant(expected)


def test_one_image():
    x, w = torch.randn(4, 9, 8), torch.randn(6, 4, 3, 3)
    geometry = [1, 1], [1, 1], [1, 1], 1
    real, fake = both(lambda x, w: ops.conv2d(x, w, None, *geometry), x, w)
    assert significant(fake) == significant(real)
    grads, fakes = both(
        lambda g, x, w: ops.conv2d_backward(g, x, w, *geometry, [True] * 3), real, x, w
    )
    for expected, said in zip(grads, fakes, strict=True):
        assert significant(said) == significant(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_double_precision_is_contiguous_on_cuda(dtype):
    with FakeTensorMode():
        x = torch.empty(2, 4, 9, 8, dtype=dtype, device="cuda").to(
            memory_format=torch.channels_last
        )
        w = torch.empty(6, 4, 3, 3, dtype=dtype, device="cuda")
        y = ops.conv2d(x, w, None, [1, 1], [1, 1], [1, 1], 1)
        grads = ops.conv2d_backward(y, x, w, [1, 1], [1, 1], [1, 1], 1, [True, True, False])
    for tensor in (y, *grads[:2]):
        channels_last = tensor.is_contiguous(memory_format=torch.channels_last)
        assert channels_last == (dtype != torch.float64)


def test_symbolic_sizes_stay_symbolic():
    sizes = []

    def backend(graph, inputs):
        sizes.append(len(inputs))
        return graph.forward

    @torch.compile(backend=backend, dynamic=True, fullgraph=True)
    def convolve(x, w):
        return ops.conv2d(x, w, None, [2, 2], [1, 1], [1, 1], 1)

    for batch, side in ((2, 9), (3, 12), (5, 17)):
        x, w = torch.randn(batch, 4, side, side), torch.randn(6, 4, 3, 3)
        torch.testing.assert_close(convolve(x, w), torch.conv2d(x, w, None, 2, 1))
    assert len(sizes) == 1


@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_compiled_gradients_for_any_subset(asked):
    tensors = [torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3), torch.randn(6)]
    for index in asked:
        tensors[index].requires_grad_()

    def loss(x, w, b):
        return ops.conv2d(x, w, b, [1, 1], [1, 1], [1, 1], 1).square().sum()

    wanted = [tensors[index] for index in asked]
    expected = torch.autograd.grad(loss(*tensors), wanted)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager_decomp_partition")
    torch.testing.assert_close(torch.autograd.grad(compiled(*tensors), wanted), expected)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 6, 7, 7), (2, 4, 9), (6, 4, 3, 3)),
        ((2, 6, 7), (2, 4, 9, 9), (6, 4, 3, 3)),
        ((2, 6, 7, 7), (2, 4, 9, 9), (6, 4, 3)),
        ((2, 6, 7), (2, 4, 9), (6, 4, 3)),
        ((6, 7), (4, 9), (6, 4)),
    ],
)
def test_malformed_backward_is_refused(shapes):
    ones, none = [1, 1], [0, 0]
    for context in (contextlib.nullcontext(), FakeTensorMode()):
        with context:
            grad, x, w = (torch.empty(shape) for shape in shapes)
            with pytest.raises(RuntimeError):
                ops.conv2d_backward(grad, x, w, ones, none, ones, 1, [True] * 3)
            with pytest.raises(RuntimeError):
                ops.conv_transpose2d_backward(grad, x, w, ones, none, none, 1, ones, [True] * 3)
