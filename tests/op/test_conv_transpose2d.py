"""Transposed convolutions: what the other files say of the others."""

from __future__ import annotations

import io
import itertools
from functools import partial

import pytest
import torch
from op_support import (
    CONV_TRANSPOSE,
    CONV_TRANSPOSE_BACKWARD,
    FLOATS,
    OPINFO_TRANSPOSE,
    PYTORCHS_TRANSPOSE,
    Seen,
    assert_as_pytorch,
    assert_rounded,
    by_weight,
    conv_transpose,
    conv_transpose2d,
    conv_transpose_backward,
    each_dims,
    families,
    gradcheck,
    gradgradcheck,
    gradients,
    leaves,
    needs_compiler,
    on_each_device,
    pytorchs_transpose,
    samples,
    widened,
)
from reference import (
    ALL_FAMILIES,
    FAMILIES,
    LAYOUTS,
    TransposedProblem,
    assert_equal,
    assert_same,
    float32_precision,
    layout_of,
    tolerances,
)
from reference import EVERY_PROBLEM as CONVOLUTIONS
from reference import EVERY_TRANSPOSED_PROBLEM as PROBLEMS
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import grad, hessian, jvp, vmap

import customconv

assert_as_pytorch = partial(assert_as_pytorch, pytorch=pytorchs_transpose)
families = partial(families, transposed=True)

TINY = {
    "images": TransposedProblem((2, 4, 2, 3), (4, 1, 2, 3), (2, 1), (1, 1), groups=2),
    "volumes": TransposedProblem((2, 4, 2, 1, 2), (4, 1, 1, 2, 2), (2, 2, 1), (0, 0, 1), groups=2),
}
FP32 = tolerances(torch.float32, 1000)
FP64 = tolerances(torch.float64, 1000)
MASKS = list(itertools.product([True, False], repeat=3))[:-1]
in_double_precision = on_each_device("direct", "im2col")
both_layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
each_problem = pytest.mark.parametrize("problem", PROBLEMS)
each_tiny = pytest.mark.parametrize("tiny", TINY.values(), ids=TINY)
both_dense = pytest.mark.parametrize("problem", ["dense", "volume_dense"])


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()


def keywords_of(problem):
    names = ("stride", "padding", "output_padding", "groups", "dilation")
    return dict(zip(names, problem.geometry, strict=True))


def is_wide(problem):
    """PyTorch leaves cuDNN, and the layouts of its results, where output_padding is wide."""
    return any(p >= s for p, s in zip(problem.output_padding, problem.stride, strict=True))


def lies_both_ways(images):
    formats = [layout_of(layout, images.ndim) for layout in LAYOUTS]
    return images.ndim in (4, 5) and all(images.is_contiguous(memory_format=f) for f in formats)


# Values, layouts, errors.


@both_layouts
@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64, torch.complex128])
@each_dims
def test_samples(dims, device, dtype, layout):
    for tensors, keywords in samples(device, dtype, layout, opinfo=OPINFO_TRANSPOSE[dims]):
        for algorithm in ["auto", *families(*tensors, **keywords)]:
            actual = conv_transpose(*tensors, **keywords, algorithm=algorithm)
            assert_as_pytorch(actual, *tensors, **keywords, what=algorithm)


@both_layouts
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
@each_dims
def test_gradients_of_samples(dims, device, dtype, layout):
    for tensors, keywords in samples(device, dtype, layout, opinfo=OPINFO_TRANSPOSE[dims]):
        theirs = gradients(pytorchs_transpose, leaves(*tensors), **keywords)
        exact = gradients(pytorchs_transpose, leaves(*map(widened, tensors)), **keywords)
        own = families(*tensors, **keywords)
        for algorithm in ["auto", *own]:
            t = leaves(*tensors)
            actual = gradients(conv_transpose, t, **keywords, algorithm=algorithm)
            for ours, their, value in zip(actual, theirs, exact, strict=True):
                if device == "cpu":
                    assert_same(ours, their)
                else:
                    # Images that are PyTorch's alone, as complex ones, are rounded as it does.
                    expected = value if own or dims == 3 else their
                    assert_rounded(ours, expected, their, dims, what=algorithm)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, repeat=2)))
@each_problem
def test_layouts_of_every_problem(problem, layouts, dtype, device):
    problem = PROBLEMS[problem]
    keywords = keywords_of(problem)
    tensors = problem.tensors(device, dtype, layouts[0], weight_layout=layouts[1])
    theirs = gradients(pytorchs_transpose, leaves(*tensors), **keywords)
    exact = gradients(pytorchs_transpose, leaves(*map(widened, tensors)), **keywords)
    for algorithm in ["auto", *families(*tensors, **keywords)]:
        output = conv_transpose(*tensors, **keywords, algorithm=algorithm)
        assert_as_pytorch(output, *tensors, **keywords, what=algorithm)
        actual = gradients(conv_transpose, leaves(*tensors), **keywords, algorithm=algorithm)
        for ours, their, value in zip(actual, theirs, exact, strict=True):
            if device == "cpu":
                assert_same(ours, their)
            elif is_wide(problem):
                expected = value if problem.dims == 3 else their
                assert_rounded(ours, expected, their, problem.dims, what=algorithm)
            else:
                assert_rounded(ours, value, their, problem.dims, what=algorithm)
                # The weight's layout is lost to PyTorch where the input's can be read as either.
                assert lies_both_ways(tensors[0]) or ours.stride() == their.stride()


@pytest.mark.parametrize("arrange", [
    lambda t: t.mT.contiguous().mT,
    lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
    lambda t: torch.cat([t[:, :, :1], t], 2)[:, :, 1:],
    lambda t: t[(..., *[slice(1)] * (t.ndim - 2))].expand_as(t),
])  # fmt: skip
@pytest.mark.parametrize("problem", ["dense", "grouped", "strided", "volume_dense"])
def test_arrangements(problem, arrange, device):
    problem = PROBLEMS[problem]
    keywords = keywords_of(problem)
    x, w, bias = problem.tensors(device, torch.float64)
    tensors = [t.detach().requires_grad_() for t in (arrange(x), arrange(w), bias)]
    expected = pytorchs_transpose(*tensors, **keywords)
    direction = arrange(torch.randn_like(expected))
    theirs = torch.autograd.grad(expected, tensors, direction)
    for algorithm in ["auto", *families(*tensors, **keywords)]:
        output = conv_transpose(*tensors, **keywords, algorithm=algorithm)
        assert_as_pytorch(output.detach(), *(t.detach() for t in tensors), **keywords)
        actual = torch.autograd.grad(output, tensors, direction)
        for ours, value in zip(actual, theirs, strict=True):
            assert_equal(ours, value, rtol=1e-12, atol=1e-13 * value.abs().max().item())


@pytest.mark.parametrize("image", [(1, 1), (1, 6), (5, 6), (1, 1, 1), (1, 5, 6), (3, 5, 6)])
@pytest.mark.parametrize("channels", [(1, 1), (1, 4), (4, 1)])
def test_ambiguous_layouts(channels, image, device):
    x, w = torch.randn(2, channels[0], *image), torch.randn(*channels, *[3] * len(image))
    for layout_x, layout_w in itertools.product(LAYOUTS, repeat=2):
        tensors = [
            x.to(device).contiguous(memory_format=layout_of(layout_x, x.ndim)),
            w.to(device).contiguous(memory_format=layout_of(layout_w, w.ndim)),
            None,
        ]
        for algorithm in ["auto", *families(*tensors)]:
            actual = conv_transpose(*tensors, algorithm=algorithm)
            assert_as_pytorch(actual, *tensors)


@both_layouts
@each_dims
@pytest.mark.parametrize("sizes", [(0, 4), (2, 0)])
def test_empty_tensors(sizes, dims, layout, device):
    """An empty batch has a result; no channels are an error or a result as in PyTorch."""
    outcomes = []
    layout = layout_of(layout, dims + 2)
    image, taps = (3, 5, 4)[-dims:], (2, 3, 2)[-dims:]
    for convolve in (conv_transpose, pytorchs_transpose):
        x = torch.ones(*sizes, *image, device=device).contiguous(memory_format=layout)
        t = leaves(x, torch.ones(sizes[1], 3, *taps, device=device), torch.ones(3, device=device))
        try:
            output = convolve(*t, stride=2)
            outcomes.append([output, *torch.autograd.grad(output.sum(), t)])
        except RuntimeError as error:
            outcomes.append(str(error))
    actual, expected = outcomes
    if isinstance(expected, str):
        assert actual == expected
        return
    for ours, theirs in zip(actual, expected, strict=True):
        assert_equal(ours, theirs)


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def malformed(dims):
    """Tensors and keywords; of volumes, images get a depth of five and filters one of three."""
    five, three = (5,) * (dims - 2), (3,) * (dims - 2)
    input, weight, bias = ones(2, 6, *five, 5, 4), ones(6, 4, *three, 3, 3), ones(4)
    too_many, negative = (1,) * (dims + 1), (*[0] * (dims - 1), -1)
    return {
        "channels": ((input, ones(5, 4, *three, 3, 3)), {}),
        "channels_by_groups": ((input, ones(5, 4, *three, 3, 3)), {"groups": 2}),
        "groups_do_not_divide": ((input, weight), {"groups": 4}),
        "zero_groups": ((input, weight), {"groups": 0}),
        "no_pixels_left": ((input, weight), {"padding": 9}),
        "zero_stride": ((input, weight), {"stride": 0}),
        "negative_padding": ((input, weight), {"padding": negative}),
        "negative_output_padding": ((input, weight), {"output_padding": negative}),
        "output_padding_of_a_stride": ((input, weight), {"output_padding": 2, "stride": 2}),
        "zero_dilation": ((input, weight), {"dilation": 0}),
        "one_stride_too_many": ((input, weight), {"stride": too_many}),
        "one_output_padding_too_many": ((input, weight), {"output_padding": too_many}),
        "no_strides": ((input, weight), {"stride": []}),
        "two_dimensions": ((ones(9, 8), weight), {}),
        "one_dimension_too_many": ((ones(1, 2, 6, *five, 9, 8), weight), {}),
        "flat_weight": ((input, ones(6, 36)), {}),
        "long_bias": ((input, weight, ones(6)), {}),
        "bias_of_two_dimensions": ((input, weight, ones(4, 1)), {}),
        "weight_of_another_dtype": ((input, weight.double()), {}),
        "bias_of_another_dtype": ((input, weight, bias.double()), {}),
        "no_pixels": ((ones(2, 6, *five, 0, 4), weight), {}),
        "no_taps": ((input, ones(6, 4, *three, 0, 3)), {}),
    }  # fmt: skip


MALFORMED = {dims: malformed(dims) for dims in (2, 3)}
FUNCTIONS = {2: customconv.conv_transpose2d, 3: customconv.conv_transpose3d}


@pytest.mark.parametrize("case", MALFORMED[2])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("calls", [CONV_TRANSPOSE, FUNCTIONS], ids=["operator", "function"])
@each_dims
def test_malformed_arguments_raise_what_pytorch_raises(dims, calls, case, requires_grad, device):
    tensors, keywords = MALFORMED[dims][case]
    tensors = [t.detach().to(device).requires_grad_(requires_grad) for t in tensors]
    with pytest.raises(Exception) as theirs:
        PYTORCHS_TRANSPOSE[dims](*tensors, **keywords)
    with pytest.raises(theirs.type) as error:
        calls[dims](*tensors, **keywords)
    assert type(error.value) is theirs.type
    assert str(error.value) == str(theirs.value)


@pytest.mark.parametrize("arguments", [
    (), (2,), (2, 1), (2, 1, 1), (2, (1, 0), (1, 0), 1, 2), ([2], [1], [1], 1, [1]),
])  # fmt: skip
@both_dense
def test_arguments_in_pytorchs_order(problem, arguments, device):
    problem = PROBLEMS[problem]
    tensors = problem.tensors(device, torch.float32)
    if problem.dims == 3:
        arguments = [(*a, 0) if isinstance(a, tuple) else a for a in arguments]
    for call in (conv_transpose, by_weight(FUNCTIONS)):
        assert_as_pytorch(call(*tensors, *arguments), *tensors, *arguments)


# Derivatives.


def in_doubles(problem, device, algorithm, layout=torch.contiguous_format):
    """The call by that algorithm, and the problem's tensors, to differentiate by."""
    tensors = problem.tensors(device, torch.float64, layout)

    def convolve(x, w, bias=None):
        return conv_transpose(x, w, bias, **keywords_of(problem), algorithm=algorithm)

    return convolve, [t for t in leaves(*tensors) if t is not None]


@in_double_precision
@both_layouts
@each_problem
def test_gradcheck(problem, layout, device, algorithm):
    if is_wide(PROBLEMS[problem]) and algorithm != "auto":
        pytest.skip("PyTorch's to compute")
    convolve, tensors = in_doubles(PROBLEMS[problem], device, algorithm, layout)
    assert gradcheck(
        convolve, tensors, fast_mode=True, check_forward_ad=True, check_batched_grad=True
    )
    assert gradgradcheck(
        convolve, tensors, fast_mode=True, check_batched_grad=True, check_fwd_over_rev=True
    )


@in_double_precision
@each_tiny
def test_every_entry_of_the_jacobians(tiny, device, algorithm):
    convolve, tensors = in_doubles(tiny, device, algorithm)
    assert gradcheck(convolve, tensors)
    assert gradgradcheck(convolve, tensors)


@in_double_precision
@pytest.mark.parametrize("mask", MASKS)
@each_tiny
def test_third_derivatives(tiny, mask, device, algorithm):
    """Second derivatives of the backward operator, with any of its outputs."""
    convolve, (x, w, bias) = in_doubles(tiny, device, algorithm)
    direction = torch.randn_like(convolve(x, w, bias)).requires_grad_()

    def backward(direction, x, w):
        results = conv_transpose_backward(
            direction, x, w, *tiny.geometry, mask, algorithm=algorithm
        )
        assert [r is not None for r in results] == list(mask)
        return tuple(r for r in results if r is not None)

    assert gradcheck(backward, (direction, x, w), fast_mode=True)
    if mask != (False, False, True):  # the bias's gradient is linear in direction alone
        assert gradgradcheck(backward, (direction, x, w), fast_mode=True)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_second_derivatives_in_single_precision(algorithm):
    """Forced in the forward pass, the family goes on through both backward passes."""
    keywords = keywords_of(PROBLEMS["grouped"])
    tensors = PROBLEMS["grouped"].tensors("cuda", torch.float32)

    def second(tensors, **more):
        t = leaves(*tensors)
        output = conv_transpose(*t, **keywords, **more)
        first = torch.autograd.grad(output.square().sum(), t, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), t)

    expected = second([t.double() for t in tensors], algorithm="aten")
    for actual, exact in zip(second(tensors, algorithm=algorithm), expected, strict=True):
        assert_equal(actual, exact.float(), atol=1e-5 * exact.abs().max().item())


@pytest.mark.parametrize("mask", MASKS)
@both_dense
def test_only_what_is_asked_for_is_computed(problem, mask, device):
    dims = PROBLEMS[problem].dims
    tensors = leaves(*PROBLEMS[problem].tensors(device, torch.float32))
    asked = [t for t, wanted in zip(tensors, mask, strict=True) if wanted]
    with Seen() as seen:
        output = conv_transpose(*tensors)
        torch.autograd.grad(output.sum(), asked)
    assert f"ConvTranspose{dims}d" in output.grad_fn.name()
    operators = CONV_TRANSPOSE[dims].default, CONV_TRANSPOSE_BACKWARD[dims].default
    assert seen.operators == list(operators)
    assert seen.masks == [mask]


TRANSFORMS = {
    "grad": lambda f: grad(lambda *t: f(*t).square().sum(), argnums=(0, 1, 2)),
    "jvp": lambda f: lambda *t: jvp(f, t, tuple(x.cos() for x in t)),
    "hessian": lambda f: hessian(lambda *t: f(*t).square().sum(), argnums=1),
    "vmap": lambda f: (
        lambda x, w, b: vmap(f, in_dims=(None, 0, None))(x, torch.stack([w, w.sin()]), b)
    ),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "problem", ["grouped", "strided_dilated", "unbatched", "volume_grouped", "volume_unbatched"]
)
def test_transforms(problem, transform, device):
    problem = PROBLEMS[problem]
    tensors = [t[..., :3, :3] if t.ndim > 2 else t for t in problem.tensors(device, torch.float64)]
    if problem.dims == 3:
        tensors[0] = tensors[0][..., :2, :2, :2]
    results = []
    for convolve in (conv_transpose, pytorchs_transpose):
        call = partial(convolve, **keywords_of(problem))
        results.append(torch.utils._pytree.tree_leaves(TRANSFORMS[transform](call)(*tensors)))
    for ours, theirs in zip(*results, strict=True):
        assert_equal(ours, theirs, rtol=1e-12, atol=1e-12 * theirs.abs().max().item())


# Tracing, exporting, autocast.


@both_layouts
@each_problem
def test_opcheck(problem, layout, device):
    problem = PROBLEMS[problem]
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if layout == torch.contiguous_format:
        checks.append("test_aot_dispatch_dynamic")
    of_forward = list(checks)
    if device == "cuda" and layout == torch.channels_last and is_wide(problem):
        of_forward.remove("test_faketensor")  # PyTorch's own is channels_last, its result is not
    tensors = problem.tensors(device, torch.float32, layout, requires_grad=True)
    arguments = (*tensors, *problem.geometry)
    torch.library.opcheck(CONV_TRANSPOSE[problem.dims].default, arguments, test_utils=of_forward)
    x, w, _ = tensors
    direction = torch.randn_like(conv_transpose(*arguments)).requires_grad_()
    torch.library.opcheck(
        CONV_TRANSPOSE_BACKWARD[problem.dims].default,
        (direction, x, w, *problem.geometry, [True] * 3),
        test_utils=checks,
    )


@pytest.mark.parametrize("requires_grad", [False, True])
@both_dense
def test_opcheck_of_integer_arguments(problem, requires_grad, device):
    problem = PROBLEMS[problem]
    tensors = problem.tensors(device, torch.float32, requires_grad=requires_grad)
    stride, output_padding, ones = ([2, 1, 1], [1, 0, 0], [1, 1, 1])
    lists = [each[: problem.dims] for each in (stride, ones, output_padding, ones)]
    arguments = (*tensors, *lists[:3], 1, lists[3])
    torch.library.opcheck(CONV_TRANSPOSE[problem.dims].int, arguments)


class Network(torch.nn.Module):
    def __init__(self, dims=2):
        super().__init__()
        kind = {2: customconv.ConvTranspose2d, 3: customconv.ConvTranspose3d}[dims]
        self.first = kind(3, 8, 4, 2, 1)
        self.second = kind(8, 6, (1, 3, 2)[-dims:], (1, 1, 2)[-dims:], groups=2, bias=False)

    def forward(self, x):
        return self.second(self.first(x * 2).relu()).sin()


def step(model, x):
    """The loss and every gradient."""
    x = x.detach().requires_grad_()
    loss = model(x).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]


def assert_all_close(actual, expected):
    for ours, theirs in zip(actual, expected, strict=True):
        scale = max(1.0, theirs.abs().max().item())
        assert_equal(ours, theirs, rtol=FP32["rtol"], atol=FP32["atol"] * scale)


@needs_compiler
@both_layouts
@each_dims
def test_a_training_step_is_one_graph(dims, layout, device):
    layout = layout_of(layout, dims + 2)
    model = Network(dims).to(device, memory_format=layout)
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(2, 3, *(3, 6, 5)[-dims:], device=device).contiguous(memory_format=layout)
    assert_all_close(step(compiled, x), step(model, x))


def test_any_size_is_compiled_once(device):
    model = Network().to(device)
    counter = CompileCounterWithBackend("aot_eager_decomp_partition")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for size in range(4, 24, 3):
        x = torch.randn(2, 3, size, size + 2, device=device)
        assert_all_close(step(compiled, x), step(model, x))
    assert counter.frame_count == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("call", [
    lambda x, w, b: conv_transpose2d(x, w, b, 2, 1, 1),
    lambda x, w, b: conv_transpose2d(x, w, b, [2], [1, 0], dilation=2),
    lambda x, w, b: customconv.conv_transpose2d(x, w, b, stride=2, output_padding=(0, 1)),
    lambda x, w, b: customconv.conv_transpose2d(x, w, b, padding=x.shape[2] // 4),
])  # fmt: skip
def test_every_way_to_call_is_traced(call, dynamic):
    tensors = PROBLEMS["dense"].tensors("cpu", torch.float32)
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    results = []
    for function in (compiled, call):
        t = leaves(*tensors)
        output = function(*t)
        results.append([output, *torch.autograd.grad(output.sin().sum(), t)])
    for ours, theirs in zip(*results, strict=True):
        assert_same(ours, theirs, **FP32)


@each_dims
def test_compiled_autograd(dims, device):
    """The backward pass, traced from eager's own graph with its C++ nodes."""
    model = Network(dims).to(device)

    def parameter_gradients(x):
        model.zero_grad()
        model(x).square().sum().backward()
        return [p.grad for p in model.parameters()]

    def compiler(graph):
        return torch.compile(graph, backend="aot_eager", dynamic=True)

    for batch in (2, 3, 4):
        x = torch.randn(batch, 3, *(3, 6, 5)[-dims:], device=device)
        expected = parameter_gradients(x)
        with torch._dynamo.compiled_autograd._enable(compiler):
            assert_all_close(parameter_gradients(x), expected)


@pytest.mark.parametrize("strict", [False, True])
@each_dims
def test_export(dims, strict, device):
    model = Network(dims).to(device).eval()
    x = torch.randn(2, 3, *(6, 5, 4)[:dims], device=device)
    shapes = {"x": {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=4, max=999)}}
    program = torch.export.export(model, (x,), dynamic_shapes=shapes, strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for exported in (program, program.run_decompositions(), torch.export.load(file)):
        targets = [str(node.target) for node in exported.graph.nodes]
        assert targets.count(f"customconv.conv_transpose{dims}d.default") == 2
        for other in (x, torch.randn(5, 3, 9, *x.shape[3:], device=device)):
            if dims == 3 and device == "cuda":  # PyTorch's own, which need not repeat
                assert_all_close([exported.module()(other)], [model(other)])
            else:
                assert_equal(exported.module()(other), model(other))


@each_problem
def test_meta_tensors(problem):
    problem = PROBLEMS[problem]
    tensors = problem.tensors("meta", torch.float16, requires_grad=True)
    output = conv_transpose(*tensors, **keywords_of(problem))
    expected = pytorchs_transpose(*tensors, **keywords_of(problem))
    assert (output.shape, output.dtype, output.device) == (
        expected.shape, expected.dtype, expected.device,
    )  # fmt: skip
    wanted = [t for t in tensors if t is not None]
    for gradient, tensor in zip(torch.autograd.grad(output.sum(), wanted), wanted, strict=True):
        assert (gradient.shape, gradient.dtype) == (tensor.shape, tensor.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_problem
def test_autocast(problem, dtype, device):
    problem = PROBLEMS[problem]
    keywords = keywords_of(problem)
    tensors = problem.tensors(device, torch.float32)
    t = leaves(*tensors)
    with torch.autocast(device, dtype):
        actual = conv_transpose(*t, **keywords)
        theirs = pytorchs_transpose(*tensors, **keywords)
        compiled = torch.compile(
            partial(conv_transpose, **keywords), backend="aot_eager", fullgraph=True
        )(*tensors)
    assert actual.dtype == theirs.dtype == compiled.dtype == dtype
    assert_equal(compiled, actual)
    low = [None if t is None else t.to(dtype) for t in tensors]
    assert_as_pytorch(actual.detach(), *low, **keywords)
    wanted = [leaf for leaf in t if leaf is not None]
    for gradient in torch.autograd.grad(actual.float().sum(), wanted):
        assert gradient.dtype == torch.float32


# The planner.


@both_layouts
@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if "unbatched" not in name])
def test_the_planner_sees_the_convolution_that_is_transposed(name, layout, device):
    problem, convolution = PROBLEMS[name], CONVOLUTIONS[name]
    x, w, _ = convolution.tensors(device, torch.float16, layout)
    y, _, bias = problem.tensors(device, torch.float16, layout)
    for op, seen in (("fprop", "dgrad"), ("dgrad", "fprop"), ("wgrad", "wgrad")):
        ours = customconv.explain(y, w, None, **keywords_of(problem), op=op, transposed=True)
        expected = customconv.explain(x, w, None, *convolution.geometry, op=seen)
        if op == "wgrad" and name.endswith("one_pixel_out"):
            continue  # an image of one pixel lies in both layouts, and so may the gradient
        assert str(ours.problem) == str(expected.problem)
        assert ours.family == expected.family
        if bias is not None:
            ours = customconv.explain(y, w, bias, **keywords_of(problem), op=op, transposed=True)
            added = " bias" if op == "fprop" else ""
            assert str(ours.problem) == str(expected.problem) + added


@pytest.mark.parametrize("requires_grad", [False, True])
@both_dense
def test_algorithm_argument(problem, requires_grad):
    tensors = PROBLEMS[problem].tensors("cpu", torch.float32, requires_grad=requires_grad)
    for call in (conv_transpose, by_weight(FUNCTIONS)):
        with pytest.raises(ValueError, match="unknown algorithm 'winograd'"):
            call(*tensors, algorithm="winograd")
        for family in ALL_FAMILIES:
            with pytest.raises(RuntimeError, match=f"'{family}' runs on CUDA tensors, not on cpu"):
                call(*tensors, algorithm=family)
        assert_as_pytorch(call(*tensors, algorithm="aten"), *tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@each_problem
def test_forced_families(problem, dtype):
    """Outputs by each family that can; the reason, as explain gives it, from one that cannot."""
    problem = PROBLEMS[problem]
    keywords = keywords_of(problem)
    tensors = problem.tensors("cuda", dtype)
    explanation = customconv.explain(*tensors, **keywords, transposed=True)
    if is_wide(problem):
        assert explanation.family == "aten"
        return
    assert explanation.family != "aten" or problem.dims == 3
    for candidate in explanation.candidates:
        algorithm = candidate.family
        if candidate.plan:
            actual = conv_transpose(*tensors, **keywords, algorithm=algorithm)
            assert_as_pytorch(actual, *tensors, **keywords, what=algorithm)
        elif algorithm != "aten":
            with pytest.raises(RuntimeError) as error:
                conv_transpose(*tensors, **keywords, algorithm=algorithm)
            assert algorithm in str(error.value) and candidate.reason in str(error.value)


# Layers that people have, large enough for every family; the bias would be rounded a second time.
UPSAMPLING = {
    "2x2": TransposedProblem((4, 256, 16, 16), (256, 128, 2, 2), (2, 2), bias=False),
    "4x4": TransposedProblem((2, 128, 24, 20), (128, 64, 4, 4), (2, 2), (1, 1), bias=False),
    "3x3": TransposedProblem(
        (2, 96, 15, 17), (96, 40, 3, 3), (2, 2), (1, 1), bias=False, output_padding=(1, 1)
    ),
    "stride 4": TransposedProblem((2, 21, 16, 18), (21, 21, 8, 8), (4, 4), (2, 2), bias=False),
    "stride 1": TransposedProblem((2, 64, 30, 33), (64, 32, 3, 5), bias=False),
    "grouped": TransposedProblem(
        (2, 64, 14, 14), (64, 16, 3, 3), (2, 2), (1, 1), groups=4, bias=False
    ),
    "depthwise": TransposedProblem(
        (2, 32, 20, 20), (32, 1, 4, 4), (2, 2), (1, 1), groups=32, bias=False
    ),
    "volume 2x2x2": TransposedProblem((2, 64, 4, 8, 10), (64, 32, 2, 2, 2), (2, 2, 2), bias=False),
    "volume 3x3x3": TransposedProblem(
        (1, 40, 3, 10, 18), (40, 24, 3, 3, 3), (1, 1, 1), (1, 1, 1), bias=False
    ),
}


@pytest.mark.gpu
@both_layouts
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("problem", [*CONVOLUTIONS, *UPSAMPLING])
def test_results_are_exact_and_repeat(problem, dtype, layout):
    """Also where TF32 is allowed: it has room for small integers."""
    problem = UPSAMPLING.get(problem) or PROBLEMS[problem]
    keywords = keywords_of(problem)
    # PyTorch, which computes some volumes, need not be exact.
    named = {"algorithm": "direct"} if problem.dims == 3 else {}
    tensors = problem.tensors("cuda", dtype, layout, integers=True)
    on_cpu = [None if t is None else widened(t).cpu().contiguous() for t in tensors]
    exact = [
        pytorchs_transpose(*on_cpu, **keywords),
        *gradients(pytorchs_transpose, leaves(*on_cpu), **keywords),
    ]
    for precision in ("tf32", "tf32", "ieee"):
        with float32_precision(precision):
            actual = [
                conv_transpose(*tensors, **keywords, **named),
                *gradients(conv_transpose, leaves(*tensors), **keywords, **named),
            ]
        for ours, value in zip(actual, exact, strict=True):
            assert_equal(ours.cpu(), value.to(dtype), what=precision)
