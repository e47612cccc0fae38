"""The backend of torch.compile: what reaches Inductor, what falls back, what is reported."""

from __future__ import annotations

import copy
import functools
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from compiler_support import gradients, make, needs_compiler
from reference import LAYOUTS, layout_of
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import customconv
from customconv import _bind
from customconv.compiler import dynamo, rewrite
from customconv.compiler.composed import compose_unfused
from customconv.compiler.inductor import InductorPass
from customconv.compiler.layout import (
    CHANNELS_LAST,
    FORWARD,
    choose_layout,
    has_channels_last_images,
    problems_of,
)

OPS = torch.ops.customconv


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    counters.clear()
    dynamo._told.clear()


def assert_same_results(actual, expected):
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert ours.stride() == theirs.stride()


each_dims = pytest.mark.parametrize("dims", [2, 3], ids=["2d", "3d"])


@needs_compiler
@each_dims
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_inference(fuses_on_the_cpu, layout, dynamic, dims):
    layout = layout_of(layout, 2 + dims)
    model = make(dims=dims).to(memory_format=layout)
    compiled = customconv.compile(model, fullgraph=True, dynamic=dynamic)
    for size in [(2, 8, 10, 12, 4)] + [(3, 8, 14, 8, 5)] * bool(dynamic):
        x = torch.randn(size[: 2 + dims]).contiguous(memory_format=layout)
        with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=size[0] > 2):
            assert_same_results(compiled(x), model(x))


@needs_compiler
@each_dims
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_training(fuses_on_the_cpu, layout, dims):
    layout = layout_of(layout, 2 + dims)
    model = make(train=True, dims=dims).to(memory_format=layout)
    twin = copy.deepcopy(model)
    x = torch.randn((2, 8, 10, 12, 3)[: 2 + dims]).contiguous(memory_format=layout)
    actual = gradients(model, customconv.compile(model, fullgraph=True), x)
    for ours, theirs in zip(actual, gradients(twin, twin, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model.norm.running_mean, twin.norm.running_mean)


@needs_compiler
def test_a_cpu_model_is_inductors():
    model = make()
    x = torch.randn(2, 8, 10, 12)
    with torch.no_grad():
        assert_same_results(customconv.compile(model)(x), torch.compile(model)(x))


def test_a_cpu_models_convolutions_are_counted_and_left_with_the_reason():
    model = make()
    report = customconv.explain_compile(model, torch.randn(2, 8, 10, 12), quiet=True)
    assert [each.module for each in report.convolutions] == ["first", "second", "side", "up"]
    assert not any(each.ours for each in report.convolutions)
    assert {each.reason for each in report.convolutions} == {
        "its tensors are on cpu, and kernels run on CUDA"
    }
    assert "4 convolutions in 1 graph, 0 fused, 0 computed alone, 4 left" in str(report)


def test_one_convolution_is_no_plural():
    report = customconv.explain_compile(nn.Conv1d(1, 1, 1), torch.ones(1, 1, 4), quiet=True)
    assert str(report).startswith("customconv: 1 convolution in 1 graph, ")


@pytest.mark.parametrize(
    ("on_cuda", "with_cuda", "reason"),
    [
        (True, True, ""),
        (True, False, "customconv was built without CUDA"),
        (False, True, "its tensors are on cpu, and kernels run on CUDA"),
    ],
)
def test_a_build_without_cuda_computes_nothing(monkeypatch, on_cuda, with_cuda, reason):
    why = "" if with_cuda else "customconv was built without CUDA"
    monkeypatch.setattr(rewrite, "why_no_kernels", lambda: why)
    value = SimpleNamespace(is_cuda=on_cuda, device=torch.device("cuda" if on_cuda else "cpu"))
    assert rewrite.why_not_ours(value) == reason


@pytest.mark.parametrize("how", ["compile", "method", "part", "part's method"])
def test_explain_compile_of_what_is_compiled_already(how):
    """Its convolutions are those of the model that was compiled, which stays compiled."""
    model, x = make(), torch.randn(2, 8, 10, 12)
    asked, compiled = model, model.first if "part" in how else model
    if how == "compile":
        asked = torch.compile(model, backend="eager")
    elif how == "part":
        model.first = torch.compile(model.first, backend="eager")
    else:
        compiled.compile(backend="eager")
    asked(x)
    report = customconv.explain_compile(asked, x, quiet=True)
    assert len(report.convolutions) == 4
    assert report.graphs == 1
    assert (compiled._compiled_call_impl is not None) == ("method" in how)


@pytest.mark.parametrize("wrong", [torch.ones(1), "resnet18", None])
def test_what_is_no_model_is_refused(wrong):
    with pytest.raises(TypeError, match=r"^compile\(\) takes a model or function, not"):
        customconv.compile(wrong)
    with pytest.raises(TypeError, match=r"^explain_compile\(\) takes a model or function, not"):
        customconv.explain_compile(wrong, torch.ones(1))


@needs_compiler
def test_a_failure_falls_back_to_inductor_and_is_told_once(monkeypatch):
    def fail(graph):
        for node in list(graph.nodes):  # what has been changed must not matter
            if node.op == "output":
                node.args = (next(iter(graph.nodes)),)
        raise ValueError("no such graph")

    monkeypatch.setattr("customconv.compiler.rewrite.fuse", fail)
    x = torch.randn(2, 8, 10, 12)
    with torch.no_grad():
        for told in (True, False):
            model = make()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                actual = customconv.compile(model)(x)
            assert any("no such graph" in str(w.message) for w in caught) is told
            assert_same_results(actual, model(x))
            torch._dynamo.reset()


@needs_compiler
def test_a_pass_of_ours_that_fails_leaves_the_graph_to_inductor(fuses_on_the_cpu, monkeypatch):
    def fail(self, graph):
        raise ValueError("no such layout")

    monkeypatch.setattr(InductorPass, "__call__", fail)
    model, x = make(), torch.randn(2, 8, 10, 12)
    uncached = torch._functorch.config.patch(enable_autograd_cache=False)
    with torch.no_grad(), uncached, pytest.warns(UserWarning, match="no such layout"):
        compiled = customconv.compile(model, options={"fx_graph_cache": False})
        assert_same_results(compiled(x), model(x))


@needs_compiler
def test_a_users_pass_may_be_a_function(fuses_on_the_cpu):
    """Inductor takes one, though it cannot cache what such a pass changes."""
    seen = []

    def users(graph):
        seen.append([node.target for node in graph.nodes])

    model, x = make(), torch.randn(2, 8, 10, 12)
    compiled = customconv.compile(model, options={"post_grad_custom_pre_pass": users})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_results(compiled(x), model(x))
    assert OPS.conv2d_fused.default in seen[0]


class Checkpointed(nn.Module):
    """A chain whose result is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

    def forward(self, x):
        return (checkpoint(lambda y: F.relu(self.second(y)), self.first(x), use_reentrant=False),)


@needs_compiler
def test_what_is_checkpointed_is_fused_too(fuses_on_the_cpu):
    model, x = Checkpointed(), torch.randn(2, 8, 10, 12)
    report = customconv.explain_compile(model, x, quiet=True)
    assert sorted(each.parts for each in report.convolutions) == [("conv2d",), ("conv2d", "relu")]
    actual = gradients(model, customconv.compile(model, fullgraph=True), x)
    for ours, theirs in zip(actual, gradients(model, model, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@needs_compiler
@pytest.mark.parametrize("budget", [0.8, 0.5])
def test_a_memory_budget_recomputes_as_many_convolutions_as_inductor(fuses_on_the_cpu, budget):
    model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4)))
    counts = []

    def forward(x):
        for convolution in model:
            x = F.relu(convolution(x))
        return x

    def counted(graph):
        names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
        counts.append(sum("conv" in name and "backward" not in name for name in names))

    functorch = torch._functorch.config.patch(
        activation_memory_budget=budget, enable_autograd_cache=False
    )
    for backend in ("inductor", dynamo.backend):
        torch._dynamo.reset()
        options = {"post_grad_custom_pre_pass": counted, "fx_graph_cache": False}
        with functorch:
            compiled = torch.compile(forward, backend=backend, options=options)
            compiled(torch.randn(2, 4, 16, 16)).sum().backward()
    theirs, ours = counts[:2], counts[2:]
    assert ours == theirs
    assert 0 < ours[1] < 4


@needs_compiler
def test_networks_of_an_ensemble_are_mapped(fuses_on_the_cpu):
    """With batch norms, which fold to vectors of each network."""

    def make_one():
        return nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()).eval()

    networks = [make_one() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(networks)
    base = make_one().to("meta")

    def ensemble(parameters, buffers, x):
        def one(p, b):
            return torch.func.functional_call(base, (p, b), (x,))

        return torch.vmap(one)(parameters, buffers)

    x = torch.randn(2, 4, 8, 9)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        actual = customconv.compile(ensemble)(parameters, buffers, x)
        torch.testing.assert_close(actual, torch.stack([network(x) for network in networks]))


@needs_compiler
def test_modes_and_options_reach_inductor(monkeypatch):
    seen = {}

    def compile_fx(graph_module, inputs, config_patches):
        seen.update(config_patches)
        return graph_module.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    model, x = make(), torch.randn(2, 8, 10, 12)
    customconv.compile(model, mode="reduce-overhead")(x)
    assert seen["triton.cudagraphs"]
    torch._dynamo.reset()
    customconv.compile(model, options={"max_autotune": True})(x)
    assert seen["max_autotune"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"mode": "fast"}, RuntimeError, "mode=fast.*max-autotune"),
        ({"options": {"no_such_option": True}}, RuntimeError, "no_such_option"),
        ({"options": "fast"}, TypeError, "'options' must be dict, not str"),
        ({"mode": "default", "options": {"debug": False}}, RuntimeError, "mode.*options"),
        ({"fast": True}, TypeError, "fast"),
    ],
)
def test_a_wrong_option_is_refused_at_once(options, error, words):
    """And not when the model first runs."""
    with pytest.raises(error, match=words):
        customconv.compile(make(), **options)


def test_dynamo_calls_the_backend_by_its_name():
    model = torch.compile(make(), backend=customconv.compiler.backend, mode="fast")
    with pytest.raises(Exception, match=r"'customconv' raised:\s.*mode=fast"):
        model(torch.randn(2, 8, 10, 12))


def test_it_is_a_backend_itself():
    with pytest.raises(TypeError, match="backend"):
        customconv.compile(make(), backend="eager")


def test_explain_compile_says_what_and_why(fuses_on_the_cpu, capsys):
    model = make()
    with torch.no_grad():
        report = customconv.explain_compile(model, torch.randn(2, 8, 10, 12))
    assert [each.module for each in report.convolutions] == ["first", "second", "side", "up"]
    assert [each.parts[1:] for each in report.convolutions] == [
        ("batch norm", "silu"), (), ("batch norm", "residual", "relu"), ()
    ]  # fmt: skip
    printed = capsys.readouterr().out
    assert printed.strip() == str(report).strip()
    assert "4 convolutions in 1 graph, 2 fused, 2 computed alone, 0 left" in printed
    assert "up      conv_transpose2d" in printed


def test_explain_compile_names_what_follows_a_transposed_convolution(fuses_on_the_cpu):
    model = nn.Sequential(
        nn.ConvTranspose2d(4, 6, 4, 2, 1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.ConvTranspose2d(6, 3, 4, 2, 1), nn.Tanh(),
    ).eval().half()  # fmt: skip
    with torch.no_grad():
        report = customconv.explain_compile(model, torch.randn(2, 4, 6, 5).half(), quiet=True)
    assert [each.parts for each in report.convolutions] == [
        ("conv_transpose2d", "batch norm", "relu"), ("conv_transpose2d",)
    ]  # fmt: skip
    assert "tanh" in report.convolutions[1].reason


@pytest.mark.parametrize("signals", [False, True])
def test_explain_compile_names_what_no_kernel_does_in_one(fuses_on_the_cpu, signals):
    make_layer = nn.ConvTranspose1d if signals else nn.ConvTranspose2d
    model = nn.Sequential(
        make_layer(64, 64, 4, 2, 1), nn.ReLU(), make_layer(64, 64, 3, 1, 1, groups=64), nn.ReLU()
    ).half()
    x = torch.randn(8, 64, *[28] * (1 if signals else 2), dtype=torch.float16)
    report = customconv.explain_compile(model, x, quiet=True)
    kind = "conv_transpose1d" if signals else "conv_transpose2d"
    assert [each.parts for each in report.convolutions] == [(kind, "relu"), (kind,)]
    assert report.convolutions[1].reason == "no kernel also does relu"
    assert "1 fused, 1 computed alone, 0 left" in str(report)


@pytest.mark.parametrize("method", [False, True])
def test_explain_compile_restores_running_statistics(method):
    model = make(train=True)
    before = {name: value.clone() for name, value in model.named_buffers()}
    asked = model.forward if method else model
    customconv.explain_compile(asked, torch.randn(2, 8, 10, 12), quiet=True)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_explain_compile_leaves_alone_what_does_not_change():
    model, x = make(), torch.randn(2, 8, 10, 12)
    model.register_buffer("wide", torch.ones(1).expand(6))
    model.register_buffer("absent", torch.empty(3, device="meta"))
    loss = model(x)[1].sum()
    customconv.explain_compile(model, x, quiet=True)
    loss.backward()  # which needs running statistics as they were


@needs_compiler
def test_explain_compile_may_be_called_around_compile(fuses_on_the_cpu):
    model, x = make(), torch.randn(2, 8, 10, 12)
    with torch.no_grad():
        for _ in range(2):
            report = customconv.explain_compile(model, x, quiet=True)
            assert len(report.convolutions) == 4
            customconv.compile(model)(x)


def test_explain_compile_names_what_is_left_to_pytorch(fuses_on_the_cpu):
    complex_ = nn.Conv2d(2, 3, 3, dtype=torch.complex64)

    def function(x):
        return complex_(x.to(torch.complex64)), torch.convolution(
            x, complex_.weight.real, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
        )

    report = customconv.explain_compile(function, torch.randn(2, 2, 6, 7), quiet=True)
    assert not any(each.ours for each in report.convolutions)
    reasons = {each.parts[0]: each.reason for each in report.convolutions}
    assert reasons.keys() == {"conv2d", "convolution"}
    assert "signals, images and volumes" in reasons["convolution"]
    assert "complex64" in reasons["conv2d"]
    assert "left: " in str(report)


def test_modules_of_this_package_fuse_as_pytorchs(fuses_on_the_cpu):
    model, x = make(), torch.randn(2, 8, 10, 12)
    converted, _ = customconv.convert(copy.deepcopy(model))
    with torch.no_grad():
        usual, ours = (customconv.explain_compile(m, x, quiet=True) for m in (model, converted))
    assert [each.parts for each in ours.convolutions] == [each.parts for each in usual.convolutions]


@pytest.mark.parametrize("strict", [False, True])
def test_a_compiled_model_is_exported_as_the_model_that_it_wraps(fuses_on_the_cpu, strict):
    model, x = make(), torch.randn(2, 8, 10, 12)
    with torch.no_grad():
        program = torch.export.export(customconv.compile(model), (x,), strict=strict)
        assert torch.ops.aten.batch_norm.default in calls(program)
        assert not any(str(target).startswith("customconv") for target in calls(program))
        assert_same_results(program.module()(x), model(x))


@pytest.mark.parametrize("padding", ["same", 0])
def test_an_operator_of_ours_stays_ours(fuses_on_the_cpu, padding):
    """Where PyTorch would compute a convolution of its own: single pixels, uneven padding."""
    side, size = (4, 5) if padding == "same" else (1, 1)

    def function(x, w):
        return F.relu(OPS.conv2d(x, w, None, (1, 1), padding if padding == "same" else (0, 0)))

    operands = torch.randn(2, 6, size, size), torch.randn(6, 6, side, side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, about its own padding
        report = customconv.explain_compile(function, *operands, quiet=True)
    assert [each.ours for each in report.convolutions] == [True]


def test_selective_checkpointing_keeps_the_operators_that_its_policy_names(fuses_on_the_cpu):
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU())
    contexts = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.convolution.default]
    )

    def function(x):
        return checkpoint(model, x, use_reentrant=False, context_fn=contexts)

    report = customconv.explain_compile(function, torch.randn(2, 8, 9, 9), quiet=True)
    assert not report.convolutions


def test_an_algorithm_that_is_asked_for_is_kept(fuses_on_the_cpu):
    graph_module = traced(
        lambda x, w: F.relu(OPS.conv2d(x, w, algorithm="direct")),
        torch.randn(1, 6, 5, 5),
        *weights(1),
    )
    before = calls(graph_module)
    assert rewrite.fuse(graph_module.graph) == []
    assert calls(graph_module) == before


def test_explain_compile_names_modules_as_users_do(fuses_on_the_cpu):
    module = nn.Sequential(nn.Conv1d(4, 4, 3), nn.Conv1d(4, 4, 3))
    report = customconv.explain_compile(lambda x: module(x), torch.randn(2, 4, 9), quiet=True)
    assert [each.module for each in report.convolutions] == ["module.0", "module.1"]
    assert report.convolutions[0].reason == "a convolution follows"


# --- The pass over what Inductor compiles ---


def traced(function, *inputs):
    """The graph after autograd, with fake values, decomposed as Inductor does."""
    with torch.no_grad():
        graph_module = make_fx(function, select_decomp_table(), tracing_mode="fake")(*inputs)
    graph_module.graph.eliminate_dead_code()
    return graph_module


def calls(graph_module):
    return [node.target for node in graph_module.graph.nodes if node.op == "call_function"]


def weights(count, kernel=3, layout=torch.contiguous_format, channels=6, dims=2):
    shape = (channels, channels, *[kernel] * dims)
    return [torch.randn(shape).contiguous(memory_format=layout) for _ in range(count)]


@each_dims
@pytest.mark.parametrize("optimize", [False, True], ids=["as_they_are", "channels_last"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_weights_are_cast_together(layout, optimize, dims):
    convolve, layout = (OPS.conv2d, OPS.conv3d)[dims - 2], layout_of(layout, 2 + dims)

    def function(x, *filters):
        for w in filters:
            x = convolve(x, w.to(torch.bfloat16), None, 1, 1)
        return x

    filters = weights(6, layout=layout, channels=16, dims=dims)  # faster in channels-last
    x = torch.randn((4, 16, 16, 16, 3)[: 2 + dims]).bfloat16().contiguous(memory_format=layout)
    graph_module = traced(function, x, *filters)
    with config.patch(layout_optimization=optimize):
        InductorPass()(graph_module.graph)
    graph_module.graph.lint()
    graph_module.recompile()
    copies = OPS.copy_parameters.default
    assert calls(graph_module).count(copies) == 1
    assert torch.ops.prims.convert_element_type.default not in calls(graph_module)
    (node,) = (n for n in graph_module.graph.nodes if n.target is copies)
    assert node.args[1] is torch.bfloat16
    # Layouts of volumes stay as they are.
    assert node.args[2] is ((optimize and dims == 2) or layout is not torch.contiguous_format)
    # Where images are channels-last, so are the results here; Inductor lays them out for users.
    expected = function(x, *filters)
    rounding = 0.02 * expected.abs().max().item()  # of six layers, where sums cancel
    torch.testing.assert_close(graph_module(x, *filters), expected, rtol=0.016, atol=rounding)


def pointwise(x, w):
    return OPS.conv2d(x, w, None, 1, 1).tanh()


def pooled(x, w):
    return OPS.conv2d(x, w, None, 1, 1).mean((2, 3))


def deep(x, w):
    for _ in range(4):
        x = OPS.conv2d(x, w, None, 1, 1).tanh()
    return x


def transposed(x, w):
    return OPS.conv_transpose2d(x, w, None, 2, 1, 1).tanh()


@pytest.mark.parametrize(
    ("function", "size", "becomes"),
    [
        (pointwise, (32, 64, 128, 128), False),
        (deep, (32, 64, 128, 128), True),
        (pooled, (64, 256, 14, 14), True),
        (transposed, (32, 64, 128, 128), True),
    ],
)
def test_images_become_channels_last_where_the_planner_says_so(function, size, becomes):
    """What the kernels save has to pay for conversions at both ends of a graph."""
    w = torch.empty(size[1], size[1], 3, 3, dtype=torch.float16)
    graph_module = traced(function, torch.empty(size, dtype=torch.float16), w)
    choose_layout(graph_module.graph)
    convolutions = [node for node in graph_module.graph.nodes if node.target in FORWARD]
    assert {has_channels_last_images(node) for node in convolutions} == {becomes}


def test_a_graph_with_volumes_keeps_its_layouts():
    """Also of images, whose layout is chosen for all of a graph."""

    def function(x, w, volume, filters):
        return deep(x, w), OPS.conv3d(volume, filters)

    sizes = (32, 64, 128, 128), (64, 64, 3, 3), (2, 4, 3, 5, 5), (4, 4, 3, 3, 3)
    graph_module = traced(function, *(torch.empty(size, dtype=torch.float16) for size in sizes))
    choose_layout(graph_module.graph)
    convolutions = [node for node in graph_module.graph.nodes if node.target in FORWARD]
    assert [has_channels_last_images(node) for node in convolutions] == [False] * 5


@pytest.mark.parametrize("batched", [False, True])
def test_dimensions_of_one_volume_are_not_taken_for_those_of_a_batch(batched):
    """Its four dimensions may lie as those of channels-last images do."""
    x = torch.empty(2, 6, 5, 7).to(memory_format=torch.channels_last)
    if batched:
        x = torch.empty(2, 6, 3, 5, 7).to(memory_format=torch.channels_last_3d)
    w = torch.empty(4, x.shape[-4], 3, 3, 3)
    graph_module = traced(lambda x, w: OPS.conv3d(x, w, None, 1, 1), x, w)
    (node,) = (node for node in graph_module.graph.nodes if node.target in FORWARD)
    assert has_channels_last_images(node) is batched
    (problem,) = problems_of(node, channels_last=False, with_gradients=False)
    assert problem.output == (2 if batched else 1, 4, *x.shape[-3:])
    assert (problem.fields["x_strides"][1] == 1) is batched  # channels-last


@pytest.mark.parametrize(
    ("trained", "passes"),
    [(False, ["fprop", "dgrad"]), (True, ["fprop", "wgrad", "dgrad", "wgrad", "fprop"])],
)
@each_dims
def test_gradients_of_a_training_step_count_too(dims, trained, passes):
    """But for that of the graph's input. The input gradient of a transposed one is a plain one."""

    def function(x, a, b):
        if dims == 2:
            return OPS.conv_transpose2d(OPS.conv2d(x, a, None, 1, 1), b, None, 2, 1, 1)
        y = OPS.conv3d(x, a, None, 1, [0, 1, 1])
        return OPS.conv_transpose3d(y, b, None, [3, 2, 2], [0, 1, 1], [2, 1, 1])

    graph_module = traced(function, torch.empty(2, 6, *(4, 5, 7)[-dims:]), *weights(2, dims=dims))
    asked = [
        problem.fields
        for node in graph_module.graph.nodes
        if node.target in FORWARD
        for problem in problems_of(node, channels_last=True, with_gradients=trained)
    ]
    assert [fields["op"] for fields in asked] == passes
    assert {(fields["H"], fields["W"]) for fields in asked} == {(5, 7), (10, 14)}
    assert {fields.get("D") for fields in asked} == ({None} if dims == 2 else {4, 8})


def test_the_planner_is_told_what_follows_a_transposed_convolution():
    """It knows for each layout whether kernels do that."""

    def function(x, w, bias, y):
        return OPS.conv_transpose2d_fused(
            x, w, bias, 2, 1, 1, scale=bias, residual=y, activation="relu"
        )

    x, w, bias, y = (torch.empty(s) for s in ((2, 6, 5, 7), (6, 6, 3, 3), (6,), (2, 6, 10, 14)))
    (node,) = (n for n in traced(function, x, w, bias, y).graph.nodes if n.target in FORWARD)
    problems = problems_of(node, channels_last=True, with_gradients=True)
    asked = {problem.fields["op"]: problem.fields for problem in problems}
    told = "bias", "residual", "epilogue_passes"
    assert [asked["dgrad"][name] for name in told] == [True, True, 3]
    assert [asked["wgrad"][name] for name in told] == [False, False, 0]


COMPOSED = {
    "vectors": {"scale": True},
    "residual": {"scale": True, "residual": True, "activation": "relu"},
    "residual_last": {"residual": True, "activation": "gelu", "residual_last": True},
    "slope": {"activation": "leaky_relu", "negative_slope": 0.3},
    **{name: {"activation": name} for name in (
        "relu6", "sigmoid", "hardsigmoid", "silu", "hardswish", "gelu_tanh"
    )},
}  # fmt: skip


@each_dims
@pytest.mark.parametrize("groups", [1, 6])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("name", COMPOSED)
def test_transposed_convolutions_are_taken_apart_where_no_kernel_does_all(
    name, dtype, groups, dims
):
    """There are none for float64 and depthwise ones."""
    options = dict(COMPOSED[name])
    plain = (OPS.conv_transpose2d, OPS.conv_transpose3d)[dims - 2]
    fused = (OPS.conv_transpose2d_fused, OPS.conv_transpose3d_fused)[dims - 2]
    sizes = (8, 8, 3)[:dims]

    def function(x, w, bias, scale, residual):
        given = options | {"scale": scale} if "scale" in options else options
        given = given | {"residual": residual} if "residual" in options else given
        return fused(x, w, bias, 1, 1, 0, groups, **given)

    x = torch.randn(2, 6, *sizes, dtype=dtype)
    w = torch.randn(6, 6 // groups, *[3] * dims, dtype=dtype)
    bias, scale = (torch.randn(6).to(torch.promote_types(dtype, torch.float32)) for _ in range(2))
    tensors = x, w, bias, scale, torch.randn_like(x)
    graph_module = traced(function, *tensors)
    (node,) = (n for n in graph_module.graph.nodes if n.target in FORWARD)
    (problem,) = problems_of(node, channels_last=False, with_gradients=False)
    stays = _bind.plan(problem).fuses
    assert stays is (dtype == torch.float16 and groups == 1) or dims == 3
    InductorPass()(graph_module.graph)
    graph_module.graph.lint()
    graph_module.recompile()
    called = calls(graph_module)
    assert (fused.default in called) is stays
    assert (plain.default in called) is not stays
    actual, expected = graph_module(*tensors), function(*tensors)
    torch.testing.assert_close(actual, expected, rtol=2e-3 if dtype == torch.float16 else 1e-6,
                               atol=2e-2 if dtype == torch.float16 else 1e-6)  # fmt: skip


@pytest.mark.parametrize(
    ("after", "apart"),
    [
        (torch.tanh, True),
        (lambda y: y.clamp(0, 1) * 2, True),
        (lambda y: y.float(), True),
        (lambda y: (y.tanh(), y.sum(1)), False),
        (lambda y: F.max_pool2d(y, 2), False),
        (lambda y: y, False),
    ],
    ids=["tanh", "clamp", "cast", "tanh_and_sum", "pool", "output"],
)
@pytest.mark.parametrize("activation", [None, "relu"])
def test_what_elementwise_operators_read_is_left_to_their_kernel(activation, after, apart):
    def function(x, w, bias):
        if activation is None:
            return after(OPS.conv_transpose2d(x, w, bias, 2, 1, 1))
        return after(OPS.conv_transpose2d_fused(x, w, bias, 2, 1, 1, activation=activation))

    x, w, bias = (torch.randn(size).half() for size in ((2, 64, 8, 8), (64, 64, 3, 3), (64,)))
    graph_module = traced(function, x, w, bias)
    InductorPass()(graph_module.graph)
    graph_module.graph.lint()
    graph_module.recompile()
    plain, fused = OPS.conv_transpose2d.default, OPS.conv_transpose2d_fused.default
    (node,) = (n for n in graph_module.graph.nodes if n.target in (plain, fused))
    takes_bias = len(node.args) > 2 and node.args[2] is not None
    assert takes_bias is not apart
    assert (node.target is fused) is (activation is not None and not apart)
    torch.testing.assert_close(graph_module(x, w, bias), function(x, w, bias), rtol=2e-3, atol=2e-2)


def test_what_is_taken_apart_keeps_its_layout():
    def function(x, w):
        return OPS.conv_transpose2d_fused(x, w, None, 2, 1, 1, 64, activation="relu")

    x, w = torch.empty(8, 64, 28, 28, dtype=torch.float16), torch.empty(64, 1, 3, 3).half()
    graph_module = traced(function, x, w)
    (node,) = (node for node in graph_module.graph.nodes if node.target in FORWARD)
    node.meta[CHANNELS_LAST] = True
    compose_unfused(graph_module.graph)
    (node,) = (node for node in graph_module.graph.nodes if node.target in FORWARD)
    assert node.target is OPS.conv_transpose2d.default
    assert node.meta[CHANNELS_LAST]


def test_weights_that_fit_are_read_where_they_are():
    def function(x, a, b):
        return OPS.conv2d(OPS.conv2d(x, a, None, 1, 1), b, None, 1, 1)

    x = torch.randn(2, 6, 5, 7)
    graph_module = traced(function, x, *weights(2, layout=torch.channels_last))
    InductorPass()(graph_module.graph)
    assert calls(graph_module) == [OPS.conv2d.default] * 2


def test_what_matrix_products_read_is_cast_too():
    def function(x, a, b, c):
        x = F.linear(x.to(torch.bfloat16), a.to(torch.bfloat16), b.to(torch.bfloat16))
        return x * c.to(torch.bfloat16)

    given = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5), torch.randn(5)
    graph_module = traced(function, *given)
    InductorPass()(graph_module.graph)
    graph_module.graph.lint()
    graph_module.recompile()
    (node,) = (n for n in graph_module.graph.nodes if n.target is OPS.copy_parameters.default)
    # The others become part of kernels that read them: c, of the product.
    assert [str(argument) for argument in node.args[0]] == ["x_1", "a_1", "b_1"]
    torch.testing.assert_close(graph_module(*given), function(*given))


def test_batch_norms_are_folded_together():
    def function(x, mean, variance, gamma, beta, w):
        for gain in (gamma, None):
            scale, shift = OPS.fold_batch_norms([mean], [variance], [gain], [beta], [None], [1e-3])
            x = OPS.conv2d_fused(x, w, shift, 1, 1, scale=scale, activation="relu")
        return x

    vectors = [torch.rand(6) + 0.5 for _ in range(4)]
    x, (w,) = torch.randn(2, 6, 5, 7), weights(1)
    graph_module = traced(function, x, *vectors, w)
    assert calls(graph_module).count(OPS.fold_batch_norms.default) == 2
    InductorPass()(graph_module.graph)
    graph_module.graph.lint()
    graph_module.recompile()
    assert calls(graph_module).count(OPS.fold_batch_norms.default) == 1
    torch.testing.assert_close(graph_module(x, *vectors, w), function(x, *vectors, w))


class Users(CustomGraphPass):
    def __init__(self, uuid):
        self.seen, self.id = [], uuid

    def __call__(self, graph):
        self.seen.append(graph)

    def uuid(self):
        return self.id


def test_a_users_pass_runs_too_and_is_part_of_the_key():
    users = Users("one")
    own = InductorPass(users)
    graph = traced(lambda x: x + 1, torch.randn(2)).graph
    own(graph)
    assert users.seen == [graph]
    assert own.uuid() != InductorPass(Users("two")).uuid()
    assert own.uuid() == InductorPass(Users("one")).uuid()
    assert InductorPass(Users(None)).uuid() is None  # which is not cached


def test_the_key_has_the_version_and_the_build():
    name, version, build, *_ = InductorPass().uuid()
    assert (name, version) == ("customconv", customconv.__version__)
    assert len(build) == 64


@needs_compiler
def test_inductors_cache_is_used(fuses_on_the_cpu, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x = torch.randn(2, 8, 10, 12)
    found = []
    for _ in range(2):
        torch._dynamo.reset()
        counters.clear()
        model = make()
        with torch.no_grad(), config.patch(fx_graph_cache=True, fx_graph_remote_cache=False):
            with torch._functorch.config.patch(enable_autograd_cache=False):
                assert_same_results(customconv.compile(model)(x), model(x))
        found.append(dict(counters["inductor"]))
    assert found[0].get("fxgraph_cache_miss") == 1
    assert found[1].get("fxgraph_cache_hit") == 1
    assert not found[0].get("fxgraph_cache_bypass")
