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
    ((2, 4, 5, 9, 8), (6, 4, 3, 3, 3), [1, 1, 1], [1, 1, 1], [1, 1, 1], 1),
    ((2, 4, 5, 9, 8), (6, 2, 2, 3, 2), [2, 2, 1], [0, 1, 0], [1, 1, 2], 2),
    ((2, 4, 5, 9, 8), (4, 1, 3, 3, 3), [1, 1, 1], [1, 1, 1], [1, 1, 1], 4),
    ((2, 4, 5, 9, 8), (6, 4, 1, 1, 1), [1, 1, 1], [0, 0, 0], [1, 1, 1], 1),
    ((2, 4, 1, 9, 8), (6, 4, 1, 3, 3), [1, 1, 1], [0, 1, 1], [1, 1, 1], 1),
    ((2, 1, 5, 9, 8), (6, 1, 3, 3, 3), [1, 1, 1], [0, 0, 0], [1, 1, 1], 1),
    ((1, 4, 3, 3, 3), (1, 4, 3, 3, 3), [1, 1, 1], [0, 0, 0], [1, 1, 1], 1),
    ((0, 4, 5, 9, 8), (6, 4, 3, 3, 3), [1, 1, 1], [1, 1, 1], [1, 1, 1], 1),
]
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def random(shape, is_last=False, **options):
    """Random numbers, with the channels last or not."""
    last = CHANNELS_LAST[len(shape)]
    return torch.randn(shape, **options).to(
        memory_format=last if is_last else torch.contiguous_format
    )


def significant(tensor):
    """Shape, type, and the strides of dimensions that have more than one element."""
    strides = [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return tensor.shape, tensor.dtype, strides if tensor.numel() else None


def operators(weight_shape):
    """The convolution of weights of this shape, and its gradients."""
    name = f"conv{len(weight_shape) - 2}d"
    return getattr(ops, name), getattr(ops, f"{name}_backward")


def both(call, *tensors):
    """The results on real tensors and on fake ones."""
    real = call(*tensors)
    with FakeTensorMode() as mode:
        return real, call(*(mode.from_tensor(t) for t in tensors))


each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
each_layout = pytest.mark.parametrize("are_last", list(itertools.product([False, True], repeat=3)))


def assert_that_fakes_have_the_strides(problem, are_last, dtype, device):
    input_shape, weight_shape, *geometry = problem
    convolve, backward = operators(weight_shape)
    x = random(input_shape, are_last[0], dtype=dtype, device=device)
    w = random(weight_shape, are_last[1], dtype=dtype, device=device)
    bias = torch.randn(weight_shape[0], dtype=dtype, device=device)
    real, fake = both(lambda x, w, b: convolve(x, w, b, *geometry), x, w, bias)
    assert significant(fake) == significant(real)

    grad = random(real.shape, are_last[2], dtype=dtype, device=device)
    for mask in itertools.product([False, True], repeat=3):
        real, fake = both(lambda g, x, w, mask=mask: backward(g, x, w, *geometry, mask), grad, x, w)
        for wanted, expected, said in zip(mask, real, fake, strict=True):
            assert (expected is not None) == (said is not None) == wanted
            if wanted:
                assert significant(said) == significant(expected)


@each_dtype
@each_layout
@pytest.mark.parametrize("problem", PROBLEMS)
def test_results_have_the_strides_that_the_fakes_have(problem, are_last, dtype):
    assert_that_fakes_have_the_strides(problem, are_last, dtype, "cpu")


@pytest.mark.gpu
@each_dtype
@each_layout
@pytest.mark.parametrize("problem", [each for each in PROBLEMS if len(each[0]) == 5])
def test_gradients_of_volumes_have_the_strides_that_the_fakes_have(problem, are_last, dtype):
    """PyTorch's shape function tells those, which knows what it would compute the call by."""
    assert_that_fakes_have_the_strides(problem, are_last, dtype, "cuda")


@pytest.mark.parametrize("sizes", [(9, 8), (5, 9, 8)])
@pytest.mark.parametrize("transposed", [False, True])
def test_one_image(sizes, transposed):
    """Or one volume."""
    x, w, ones = torch.randn(4, *sizes), torch.randn(4, 4, *[3 for _ in sizes]), [1 for _ in sizes]
    geometry = (ones, ones, ones, 1)
    if transposed:
        geometry = (ones, ones, [0 for _ in sizes], 1, ones)
    name = f"conv{'_transpose' if transposed else ''}{len(sizes)}d"
    real, fake = both(lambda x, w: getattr(ops, name)(x, w, None, *geometry), x, w)
    assert significant(fake) == significant(real)
    backward = getattr(ops, f"{name}_backward")
    grads, fakes = both(lambda g, x, w: backward(g, x, w, *geometry, [True] * 3), real, x, w)
    for expected, said in zip(grads, fakes, strict=True):
        assert significant(said) == significant(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(9, 8), (5, 9, 8)])
def test_double_precision_is_contiguous_on_cuda(sizes, dtype):
    ones, last = [1 for _ in sizes], CHANNELS_LAST[2 + len(sizes)]
    with FakeTensorMode():
        x = torch.empty(2, 4, *sizes, dtype=dtype, device="cuda").to(memory_format=last)
        w = torch.empty(6, 4, *[3 for _ in sizes], dtype=dtype, device="cuda")
        convolve, backward = operators(w.shape)
        y = convolve(x, w, None, ones, ones, ones, 1)
        grads = backward(y, x, w, ones, ones, ones, 1, [True, True, False])
    for tensor in (y, *grads[:2]):
        assert tensor.is_contiguous(memory_format=last) == (dtype != torch.float64)


@pytest.mark.parametrize("sizes", [(9, 8), (5, 9, 8)])
@pytest.mark.parametrize("transposed", [False, True])
def test_fused_calls_and_statistics(sizes, transposed):
    """Here PyTorch has no operator that could tell."""
    x, w = torch.randn(2, 4, *sizes), torch.randn(4, 4, *[3 for _ in sizes])
    scale, ones, none = torch.randn(4), [1 for _ in sizes], [0 for _ in sizes]
    name = f"conv{'_transpose' if transposed else ''}{len(sizes)}d"
    fused = getattr(ops, f"{name}_fused")
    real, fake = both(lambda x, w, s: fused(x, w, s, ones, ones, scale=s), x, w, scale)
    assert significant(fake) == significant(real)
    half = [t.bfloat16() for t in (x, w)]
    real, fake = both(lambda x, w, s: fused(x, w, s, scale=s), *half, scale)  # in float32
    assert significant(fake) == significant(real)
    message = rf"{name}_fused: expected a scale of shape \[4\]"
    for context in (contextlib.nullcontext(), FakeTensorMode()):
        with context, pytest.raises(RuntimeError, match=message):
            wrong = [torch.empty(t.shape) for t in (x, w)]
            fused(*wrong, scale=torch.empty(3))
    if transposed:
        return
    measured = getattr(ops, f"{name}_statistics")
    geometry = ones, none, ones, 1, 1e-5
    running = torch.zeros(4), torch.ones(4)
    results = both(lambda x, w, m, v: measured(x, w, None, *geometry, m, v, 0.1), x, w, *running)
    for real, fake in zip(*results, strict=True):
        assert significant(fake) == significant(real)
    for context in (contextlib.nullcontext(), FakeTensorMode()):
        with context, pytest.raises(RuntimeError, match=f"{name}_statistics: expected a batch of"):
            one, filters = torch.empty(x.shape[1:]), torch.empty(w.shape)
            measured(one, filters, None, *geometry, None, None, 0.1)


@pytest.mark.parametrize("channels_last", [False, True])
def test_copies_of_parameters(channels_last):
    """Of images, volumes and others in one call."""
    shapes = (6, 4, 3, 3), (6, 4, 3, 3, 3), (6,), (6, 4)
    tensors = [torch.randn(shape) for shape in shapes]
    real, fake = both(lambda *t: ops.copy_parameters(t, torch.bfloat16, channels_last), *tensors)
    for expected, said in zip(real, fake, strict=True):
        assert significant(said) == significant(expected)
        if last := CHANNELS_LAST.get(said.ndim):
            assert said.is_contiguous(memory_format=last) == channels_last


@pytest.mark.parametrize("dimensions", [2, 3])
def test_symbolic_sizes_stay_symbolic(dimensions):
    convolve, ones = getattr(ops, f"conv{dimensions}d"), [1] * dimensions
    sizes = []

    def backend(graph, inputs):
        sizes.append(len(inputs))
        return graph.forward

    @torch.compile(backend=backend, dynamic=True, fullgraph=True)
    def program(x, w):
        return convolve(x, w, None, [2] * dimensions, ones, ones, 1)

    for batch, side in ((2, 9), (3, 12), (5, 17)):
        x, w = torch.randn(batch, 4, *[side] * dimensions), torch.randn(6, 4, *[3] * dimensions)
        theirs = torch.conv2d if dimensions == 2 else torch.conv3d
        torch.testing.assert_close(program(x, w), theirs(x, w, None, 2, 1))
    assert len(sizes) == 1


@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("sizes", [(9, 8), (5, 9, 8)])
def test_compiled_gradients_for_any_subset(sizes, asked):
    ones, filters = [1 for _ in sizes], [3 for _ in sizes]
    tensors = [torch.randn(2, 4, *sizes), torch.randn(6, 4, *filters), torch.randn(6)]
    convolve, _ = operators(tensors[1].shape)
    for index in asked:
        tensors[index].requires_grad_()

    def loss(x, w, b):
        return convolve(x, w, b, ones, ones, ones, 1).square().sum()

    wanted = [tensors[index] for index in asked]
    expected = torch.autograd.grad(loss(*tensors), wanted)
    torch._dynamo.reset()  # all cases share their code, and its recompilations are limited
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager_decomp_partition")
    torch.testing.assert_close(torch.autograd.grad(compiled(*tensors), wanted), expected)


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 6, 7, 7), (2, 4, 9), (6, 4, 3, 3)),
        ((2, 6, 7), (2, 4, 9, 9), (6, 4, 3, 3)),
        ((2, 6, 7, 7), (2, 4, 9, 9), (6, 4, 3)),
        ((2, 6, 7), (2, 4, 9), (6, 4, 3)),
        ((6, 7), (4, 9), (6, 4)),
        ((2, 6, 7, 7, 7), (2, 4, 9, 9, 9), (6, 4, 3)),
        ((2, 6, 7, 7), (2, 4, 9, 9, 9), (6, 4, 3, 3, 3)),
    ],
)
def test_malformed_backward_is_refused(shapes, dimensions):
    ones, none = [1] * dimensions, [0] * dimensions
    backward = getattr(ops, f"conv{dimensions}d_backward")
    transposed = getattr(ops, f"conv_transpose{dimensions}d_backward")
    for context in (contextlib.nullcontext(), FakeTensorMode()):
        with context:
            grad, x, w = (torch.empty(shape) for shape in shapes)
            with pytest.raises(RuntimeError):
                backward(grad, x, w, ones, none, ones, 1, [True] * 3)
            with pytest.raises(RuntimeError):
                transposed(grad, x, w, ones, none, none, 1, ones, [True] * 3)
