"""convert replaces convolutions in place and folds batch norms; revert undoes both exactly."""

import copy
import dataclasses
import io
import pickle
import random
import warnings
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import customconv
from customconv.arguments import LAST

KINDS = [
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
]
OURS = {kind: getattr(customconv, kind.__name__) for kind in KINDS}


def image(kind=nn.Conv2d, channels=4):
    return torch.randn(2, channels, *(9, 8, 5)[: int(kind.__name__[-2])])


def input_of(model):
    """What the model's first convolution takes: signals, images or volumes."""
    rank = next(p.ndim for p in model.parameters() if p.ndim > 2)
    return torch.randn(2, 4, *(9, 8, 5)[: rank - 2])


def randomized(model):
    """The model in evaluation mode, with statistics and scales that a fold can get wrong."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor in (module.running_mean, module.bias):
                if tensor is not None:
                    tensor.data.normal_()
            for tensor in (module.running_var, module.weight):
                if tensor is not None:
                    tensor.data.uniform_(0.5, 2)
    return model.eval()


def small():
    return randomized(
        nn.Sequential(
            OrderedDict(
                first=nn.Conv2d(4, 6, 3, bias=False),
                norm=nn.BatchNorm2d(6),
                act=nn.ReLU(),
                inner=nn.Sequential(nn.Conv2d(6, 4, 3, groups=2), nn.BatchNorm2d(4)),
            )
        )
    )


def snapshot(model):
    """All that revert has to restore: classes, tensors as objects, values and strides."""
    tensors = model.state_dict(keep_vars=True)
    return (
        {name: type(module) for name, module in model.named_modules(remove_duplicate=False)},
        {name: (id(t), t.stride(), t.requires_grad) for name, t in tensors.items()},
        {name: t.detach().clone() for name, t in tensors.items()},
    )


def assert_restored(model, before):
    kinds, objects, values = snapshot(model)
    assert kinds == before[0]
    assert objects == before[1]
    torch.testing.assert_close(values, before[2], rtol=0, atol=0)


def reasons(report):
    return {entry.name: entry.reason for entry in report.left}


# --- Replacing ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_convolution_changes_its_class_and_nothing_else(kind):
    model = nn.Sequential(kind(4, 6, 3, padding=1), nn.ReLU())
    model[0].weight.requires_grad_(False)
    x, before = image(kind), snapshot(model)
    expected = model(x)
    converted, report = customconv.convert(model)
    assert converted is model
    assert type(model[0]) is OURS[kind]
    assert report.replaced == (("0", kind.__name__, ""),)
    assert not report.left
    assert not report.folded
    assert snapshot(model)[1] == before[1]
    assert model.training
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    assert customconv.revert(model) is model
    assert_restored(model, before)


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_may_be_a_convolution(kind):
    model = kind(4, 6, 3)
    _, report = customconv.convert(model)
    assert type(model) is OURS[kind]
    assert [entry.name for entry in report.replaced] == [""]
    assert type(customconv.revert(model)) is kind


def test_what_is_customconvs_already_is_left_and_not_reverted():
    model = nn.Sequential(customconv.Conv2d(4, 6, 3, algorithm="aten"), nn.Conv2d(6, 4, 3))
    _, report = customconv.convert(model)
    assert reasons(report) == {"0": "it is customconv's already"}
    customconv.revert(model)
    assert [type(m) for m in model] == [customconv.Conv2d, nn.Conv2d]
    assert model[0].algorithm == "aten"


def test_converting_twice_is_undone_at_once():
    model = small()
    before = snapshot(model)
    customconv.convert(model)
    _, report = customconv.convert(model, fold_batchnorm=True, channels_last=True)
    assert not report.replaced
    assert len(report.folded) == 2
    customconv.revert(model)
    assert_restored(model, before)
    customconv.revert(model)
    assert_restored(model, before)


def test_an_optimizer_keeps_training_the_parameters():
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6))
    twin = copy.deepcopy(model)
    for each in (model, twin):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            if each is model and step in (1, 3):
                (customconv.convert if step == 1 else customconv.revert)(model)
            torch.manual_seed(step)
            optimizer.zero_grad()
            each(image()).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_hooks_of_all_kinds_still_fire():
    model = nn.Conv2d(4, 6, 3)
    fired = []

    def hook(name):
        return lambda *arguments, **keywords: fired.append(name)

    model.register_forward_hook(hook("forward"))
    model.register_forward_pre_hook(hook("forward_pre"))
    model.register_full_backward_hook(hook("backward"))
    model.register_full_backward_pre_hook(hook("backward_pre"))
    model.register_state_dict_post_hook(hook("state_dict"))
    model.register_state_dict_pre_hook(hook("state_dict_pre"))
    model.register_load_state_dict_pre_hook(hook("load_pre"))
    model.register_load_state_dict_post_hook(hook("load_post"))
    model.weight.register_hook(hook("gradient"))

    def use():
        fired.clear()
        model(image().requires_grad_()).sum().backward()
        model.load_state_dict(model.state_dict())
        return sorted(fired)

    expected = use()
    assert len(expected) == 9
    customconv.convert(model)
    assert use() == expected
    customconv.revert(model)
    assert use() == expected


def test_a_shared_module_is_converted_once_and_stays_shared():
    shared = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, shared)})
    _, report = customconv.convert(model)
    assert [entry.name for entry in report.replaced] == ["a"]
    assert model["a"] is model["b"][0] is model["b"][1] is shared
    customconv.revert(model)
    assert type(shared) is nn.Conv2d


@pytest.mark.parametrize("channels_last", [None, True])
def test_tied_weights_stay_tied(channels_last):
    model = nn.ModuleDict({"encode": nn.Conv2d(4, 6, 3), "decode": nn.ConvTranspose2d(6, 4, 3)})
    model["decode"].weight = model["encode"].weight
    before = snapshot(model)
    customconv.convert(model, channels_last=channels_last)
    assert model["decode"].weight is model["encode"].weight
    customconv.revert(model)
    assert_restored(model, before)


def test_a_converted_model_compiles_whole():
    model = small()
    x = image()
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)
    customconv.convert(model, fold_batchnorm=True)
    torch.testing.assert_close(compiled(x), expected)
    customconv.revert(model)
    torch.testing.assert_close(compiled(x), expected)


def test_a_compiled_model_is_converted_inside():
    model = torch.compile(small(), fullgraph=True, backend="aot_eager")
    x = image()
    expected = model(x)
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert len(report.replaced) == len(report.folded) == 2
    torch.testing.assert_close(model(x), expected)


def test_the_operators_are_those_of_customconv():
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ConvTranspose2d(6, 4, 3), nn.Flatten(2),
                          nn.Conv1d(4, 2, 3))  # fmt: skip
    customconv.convert(model)
    exported = torch.export.export(model, (image(),))
    targets = [str(node.target) for node in exported.graph.nodes if "conv" in str(node.target)]
    ours = [target for target in targets if target.startswith("customconv.")]
    assert ours == ["customconv.conv2d.default", "customconv.conv_transpose2d.default",
                    "customconv.conv2d.default"]  # fmt: skip
    assert not [target for target in targets if target.startswith("aten.conv")]


def test_what_convert_returns_is_told_from_the_model():
    """Used as the model, it says what it is; a pair, it unpacks, copies and pickles."""
    result = customconv.convert(small())
    model, report = result
    assert (result.model, result.report) == (model, report)
    both = r"the model and a report: model, report = customconv.convert\(\.\.\.\)"
    with pytest.raises(TypeError, match=both):
        result(image())
    with pytest.raises(AttributeError, match=f"{both}.*'eval'"):
        result.eval()
    for function in (customconv.revert, customconv.convert, customconv.compile):
        with pytest.raises(TypeError, match=rf"{function.__name__}\(\) takes .*{both}"):
            function(result)
    assert pickle.loads(pickle.dumps(result)).report == copy.deepcopy(result).report == report


@pytest.mark.parametrize("value", ["contiguous", torch.contiguous_format, 1])
def test_channels_last_is_no_memory_format(value):
    """Which would be true, whatever format it names."""
    with pytest.raises(TypeError, match="'channels_last' must be True, False or None, not"):
        customconv.convert(small(), channels_last=value)


@pytest.mark.parametrize("wrong", [None, torch.zeros(1), [nn.Conv2d(1, 1, 1)]])
def test_only_modules_are_taken(wrong):
    with pytest.raises(TypeError, match=r"nn\.Module"):
        customconv.convert(wrong)
    with pytest.raises(TypeError, match=r"nn\.Module"):
        customconv.revert(wrong)


# --- Parametrizations ---


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight

    def right_inverse(self, weight):
        return weight / 2


def parametrized(module):
    parametrize.register_parametrization(module, "weight", Doubled())
    return module


PARAMETRIZED = {
    "own": parametrized,
    "two": lambda m: parametrized(parametrizations.weight_norm(m)),
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "old weight_norm": weight_norm,
    "old spectral_norm": spectral_norm,
}
each_parametrization = pytest.mark.parametrize("apply", PARAMETRIZED.values(), ids=PARAMETRIZED)


@each_parametrization
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PyTorch's old functions
def test_parametrizations_are_kept(apply):
    model = nn.Sequential(apply(nn.Conv2d(4, 6, 3))).eval()
    x, keys = image(), list(model.state_dict())
    kind = type(model[0])
    expected = model(x)
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert [entry.kind for entry in report.replaced] == ["Conv2d"]
    assert isinstance(model[0], customconv.Conv2d)
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    customconv.revert(model)
    assert not isinstance(model[0], customconv.Conv2d)
    assert type(model[0]).__name__ == kind.__name__
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


def test_a_parametrization_may_come_and_go_meanwhile():
    model = parametrized(nn.Conv2d(4, 6, 3))
    x = image()
    expected = model(x)
    customconv.convert(model)
    parametrize.remove_parametrizations(model, "weight")
    assert type(model) is customconv.Conv2d
    torch.testing.assert_close(model(x), expected)
    parametrize.register_parametrization(model, "bias", Doubled())
    customconv.revert(model)
    assert parametrize.type_before_parametrizations(model) is nn.Conv2d
    torch.testing.assert_close(model(x), expected)
    parametrize.remove_parametrizations(model, "bias")
    assert type(model) is nn.Conv2d


def test_copies_of_a_parametrized_module_are_reverted_apart():
    model = parametrized(nn.Conv2d(4, 6, 3))
    before = copy.deepcopy(model)  # shares the class that PyTorch made for it
    customconv.convert(model)
    assert not isinstance(before, customconv.Conv2d)
    after = copy.deepcopy(model)
    customconv.revert(after)
    assert isinstance(model, customconv.Conv2d)
    assert not isinstance(after, customconv.Conv2d)
    x = image()
    torch.testing.assert_close(after(x), model(x), rtol=0, atol=0)


# --- What is left ---


class Plain(nn.Conv2d):
    """A subclass that convolves as its base does."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.note = "mine"


class Standardized(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


class Halved(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight, bias) / 2


def test_subclasses_are_left_unless_asked_for():
    model = nn.Sequential(Plain(4, 6, 3), Standardized(6, 4, 3), Halved(4, 4, 3))
    x, before = image(), snapshot(model)
    expected = model(x)
    _, report = customconv.convert(model)
    assert set(reasons(report).values()) == {"it is a subclass of Conv2d"}
    assert_restored(model, before)
    _, report = customconv.convert(model, subclasses=True)
    assert [entry.name for entry in report.replaced] == ["0"]
    assert reasons(report) == {
        "1": "it has a forward of its own",
        "2": "it has a _conv_forward of its own",
    }
    assert isinstance(model[0], customconv.Conv2d)
    assert isinstance(model[0], Plain)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    customconv.revert(model)
    assert_restored(model, before)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_converted_subclass_is_copied(duplicate):
    model = Plain(4, 6, 3)
    customconv.convert(model, subclasses=True)
    twin = duplicate(model)
    assert type(twin) is type(model)
    assert twin.note == "mine"
    x = image()
    torch.testing.assert_close(twin(x), model(x), rtol=0, atol=0)
    assert type(customconv.revert(twin)) is Plain
    assert isinstance(model, customconv.Conv2d)


def test_a_class_that_cannot_be_derived_from_is_left():
    class Registered(nn.Conv2d):
        def __init_subclass__(cls, **keywords):
            raise ValueError("known already")

    model = nn.Sequential(nn.Conv2d(4, 6, 3), Registered(6, 4, 3))
    _, report = customconv.convert(model, subclasses=True)
    assert [entry.name for entry in report.replaced] == ["0"]
    assert reasons(report) == {"1": "its class cannot be replaced: known already"}
    assert type(model[1]) is Registered


class Named(nn.Conv2d):
    algorithm = "mine"


def test_an_attribute_of_the_same_name_as_ours_is_left_alone():
    model = nn.Sequential(nn.Conv2d(4, 6, 3), Named(6, 4, 3), nn.BatchNorm2d(4)).eval()
    model[0].algorithm = "mine"
    x = image()
    expected = model(x)
    _, report = customconv.convert(model, subclasses=True, fold_batchnorm=True)
    reason = "it has an attribute of its own named algorithm"
    assert reasons(report) == {"0": reason, "1": reason, "2": "1 is not replaced"}
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


def scripted():
    return torch.jit.script(nn.Conv2d(4, 6, 3))


def traced():
    return torch.jit.trace(nn.Conv2d(4, 6, 3), image())


def for_training_quantized():
    qconfig = torch.ao.quantization.get_default_qat_qconfig()
    return torch.ao.nn.qat.Conv2d(4, 6, 3, qconfig=qconfig)


def with_forward():
    module = nn.Conv2d(4, 6, 3)
    module.forward = lambda x: x
    return module


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.LazyConv2d(2, 3), "its parameters are not initialized yet"),
        (lambda: torch.ao.nn.quantized.Conv2d(4, 6, 3), "it is a module for quantization"),
        (for_training_quantized, "it is a module for quantization"),
        (scripted, "it is scripted or traced"),
        (traced, "it is scripted or traced"),
        (with_forward, "it has a forward of its own"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_what_cannot_be_replaced_is_left_with_a_reason(make, reason):
    model = nn.Sequential(make(), nn.Conv2d(4, 4, 1))
    kind = type(model[0])
    _, report = customconv.convert(model, fold_batchnorm=True, channels_last=True, subclasses=True)
    assert reasons(report) == {"0": reason}
    assert type(model[0]) is kind
    assert [entry.name for entry in report.replaced] == ["1"]
    customconv.revert(model)
    assert type(model[0]) is kind


def test_a_lazy_convolution_is_replaced_once_it_has_parameters():
    model = nn.Sequential(nn.LazyConv2d(2, 3))
    customconv.convert(model)
    expected = model(image())
    assert type(model[0]) is nn.Conv2d
    customconv.convert(model)
    assert type(model[0]) is customconv.Conv2d
    assert model(image()).shape == expected.shape


# --- Folding ---


class Residual(nn.Module):
    """A block whose forward is code, with an attribute that changes in it."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.calls, self.last, self.history = 0, None, []

    def forward(self, x):
        self.calls += 1
        y = F.relu(self.bn1(self.conv1(x)))
        self.last = y
        self.history.append(y)
        return F.relu(self.bn2(self.conv2(y)) + x)


class Untraceable(nn.Module):
    """A forward that depends on values, with parts that do not."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.blocks = nn.ModuleList([Residual(), Residual()])
        self.conv, self.bn = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if x.sum() != 0:
                x = block(x)
        return self.bn(self.conv(x))


class ByList(nn.Module):
    """Modules that are called by another reference than the one they are registered by."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.steps = [self.conv, self.bn]

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


FOLDED = {
    "no bias": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)), 1),
    "bias": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), 1),
    "groups": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8)), 1),
    "not affine": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)), 1),
    "eps": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, eps=0.5)), 1),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6)), 1),
    "transposed groups": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), 1,
    ),
    "ours": (lambda: nn.Sequential(customconv.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), 1),
    "signals": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), 1),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(4, 6, 3, bias=False), nn.BatchNorm3d(6)), 1),
    "volumes in groups": (
        lambda: nn.Sequential(nn.Conv3d(4, 8, (1, 3, 2), groups=2), nn.BatchNorm3d(8)), 1,
    ),
    "transposed volumes": (
        lambda: nn.Sequential(nn.ConvTranspose3d(4, 6, 2, groups=2), nn.BatchNorm3d(6)), 1,
    ),
    "nested": (small, 2),
    "code": (Residual, 2),
    "untraceable": (Untraceable, 5),
    "list": (ByList, 1),
}  # fmt: skip
each_folded = pytest.mark.parametrize(("make", "count"), FOLDED.values(), ids=FOLDED)


@each_folded
@pytest.mark.parametrize("channels_last", [None, True, False])
def test_batch_norms_are_folded_and_restored(make, count, channels_last):
    model = randomized(make()).double()
    x = input_of(model).double()
    if channels_last is False:
        model.to(memory_format=LAST[max(x.ndim, 4)])
    before = snapshot(model)
    expected = model(x)
    names = {id(m): name for name, m in model.named_modules()}
    _, report = customconv.convert(model, fold_batchnorm=True, channels_last=channels_last)
    assert len(report.folded) == count
    for name, _kind, reason in report.folded:
        assert type(model.get_submodule(name)) is nn.Identity
        assert not [key for key in model.state_dict() if key.startswith(f"{name}.")]
        assert reason.removeprefix("into ") in names.values()
    torch.testing.assert_close(model(x), expected)
    customconv.revert(model)
    assert_restored(model, before)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_fold_rounds_once(dtype):
    model = small().to(dtype)
    wide = copy.deepcopy(model).double()
    customconv.convert(model, fold_batchnorm=True)
    customconv.convert(wide, fold_batchnorm=True)
    torch.testing.assert_close(model.state_dict(), wide.to(dtype).state_dict(), rtol=0, atol=0)


def test_a_fold_keeps_the_parameter_objects():
    model = small()
    weight, norm = model.first.weight, model.norm.weight
    customconv.convert(model, fold_batchnorm=True)
    assert model.first.weight is weight
    assert isinstance(model.first.bias, nn.Parameter)
    customconv.revert(model)
    assert model.first.weight is weight
    assert model.norm.weight is norm
    assert model.first.bias is None


def test_tracing_leaves_the_model_as_it_was():
    model = randomized(Residual())
    seen = []
    model.register_forward_hook(lambda *arguments: seen.append(arguments))
    customconv.convert(model, fold_batchnorm=True)
    assert (model.calls, model.last, model.history, seen) == (0, None, [], [])
    model(image())
    assert model.calls == len(seen) == 1


class Changing(nn.Module):
    """A forward that changes tensors in place, and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = conv_bn()
        self.step, self.seen = torch.zeros(()), [torch.zeros(())]
        self.register_buffer("count", torch.zeros(()))
        self.scale = nn.Parameter(torch.full((), 3.0))

    def forward(self, x):
        self.step += 1
        self.count += 1
        self.seen[0].add_(1)
        for name, parameter in self._parameters.items():
            assert name == "scale"
            parameter.data.clamp_(0, 1)
        return self.bn(self.conv(x)) * random.random() + torch.rand(())


def test_tracing_leaves_tensors_and_random_numbers_as_they_were():
    model = randomized(Changing())
    states = torch.get_rng_state(), random.getstate()
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert len(report.folded) == 1
    assert (model.step, model.count, model.seen[0], model.scale.detach()) == (0, 0, 0, 3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_a_result_that_the_model_keeps_does_not_hinder_tracing():
    model = randomized(Residual())
    model(image())  # keeps a result that autograd follows, which deepcopy refuses
    model.history.clear()
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert len(report.folded) == 2


class Replacing(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        if not hasattr(self, "conv"):
            self.conv = nn.Conv2d(4, 4, 3)
        return self.bn(self.conv(x))


def test_a_forward_that_makes_modules_is_not_folded():
    model = Replacing().eval()
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert "no part of the model that can be traced" in reasons(report)["bn"]
    assert not hasattr(model, "conv")


class ByClass(ByList):
    """A forward that treats batch norms in a way of its own, with a part that does not."""

    def __init__(self):
        super().__init__()
        self.inner = Residual()
        self.steps.append(self.inner)

    def forward(self, x):
        for step in self.steps:
            x = step(x).relu() if isinstance(step, nn.BatchNorm2d) else step(x)
        return x


def test_a_forward_that_looks_at_classes_is_not_folded_though_its_parts_are():
    model = randomized(ByClass())
    x = image()
    expected = model(x)
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert [entry.name for entry in report.folded] == ["inner.bn1", "inner.bn2"]
    assert "no part of the model that can be traced" in reasons(report)["bn"]
    torch.testing.assert_close(model(x), expected)


def test_a_sparse_buffer_does_not_matter():
    model = small()
    model.register_buffer("table", torch.randn(2, 3, 4, 5).to_sparse())
    table = model.table
    _, report = customconv.convert(model, fold_batchnorm=True, channels_last=True)
    assert len(report.folded) == 2
    customconv.revert(model)
    assert model.table is table


def test_folding_is_all_or_nothing(monkeypatch):
    model = small()
    before = snapshot(model)
    calls = []

    def fail(self):
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return folded(self)

    folded = customconv.fold._Fold.folded
    monkeypatch.setattr(customconv.fold._Fold, "folded", fail)
    with pytest.raises(KeyboardInterrupt):
        customconv.convert(model, fold_batchnorm=True)
    assert_restored(model, before)


def test_a_fold_that_cannot_be_computed_is_left(monkeypatch):
    model = small()
    before = snapshot(model)

    def fail(self):
        raise RuntimeError("no {} doubles here")

    monkeypatch.setattr(customconv.fold._Fold, "folded", fail)
    _, report = customconv.convert(model, fold_batchnorm=True)
    reason = "what first would become cannot be computed: no {} doubles here"
    assert reasons(report)["norm"] == reason
    assert_restored(customconv.revert(model), before)


def sequential(*modules):
    return randomized(nn.Sequential(*modules))


def conv_bn():
    return nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)


class Branch(nn.Module):
    """A block that uses its convolution's output as the argument says."""

    def __init__(self, use):
        super().__init__()
        self.conv, self.bn = conv_bn()
        self.use = use

    def forward(self, x):
        return self.use(self, x)


class Optional(nn.Module):
    """A block that uses its convolution's output again if it gets no second argument."""

    def __init__(self, again_if_given):
        super().__init__()
        self.conv, self.bn = conv_bn()
        self.again_if_given = again_if_given

    def forward(self, x, extra=None):
        y = self.conv(x)
        z = self.bn(y)
        return z + y if (extra is not None) is self.again_if_given else z


def in_training(model, part=None):
    (model if part is None else model[part]).train()
    return model


def with_hook(model, part, register):
    getattr(model[part], register)(lambda *arguments: None)
    return model


def with_container_hook(model, part):
    model[part].register_forward_hook(lambda module, inputs, output: output.relu())
    return model


def with_container_pre_hook(model, part):
    model[part].register_forward_pre_hook(lambda module, inputs: (inputs[0].relu(),))
    return model


def with_attribute(model, part, name):
    """The model, with a tensor of one of its parts moved to a plain attribute."""
    tensor = getattr(model[part], name).detach().clone()
    delattr(model[part], name)
    setattr(model[part], name, tensor)
    return model


def with_parameter(model, part, name):
    """The model, with a buffer of one of its parts made a parameter."""
    tensor = getattr(model[part], name)
    delattr(model[part], name)
    setattr(model[part], name, nn.Parameter(tensor, requires_grad=False))
    return model


class Padded(nn.Module):
    """Pads by what the input's size is, which cannot be traced."""

    def forward(self, x):
        return F.pad(x, (0, 1)) if x.shape[-1] % 2 == 1 else x


def with_shared_activation():
    act = nn.ReLU()
    return sequential(Padded(), nn.Conv2d(4, 4, 3), act, nn.Conv2d(4, 4, 3), act, nn.BatchNorm2d(4))


def kept(m, x):
    m.feature = m.conv(x)
    return m.bn(m.feature)


def kept_inside(m, x):
    y = m.conv(x)
    m.features = {"all": [(0, y)]}
    return m.bn(y)


def with_bias_if_none(m, x):
    y = m.bn(m.conv(x))
    return y + 1 if m.conv.bias is None else y


def read_by_iteration(m, x):
    return m.bn(m.conv(x.to(next(m.bn.parameters()).dtype)))


def without_bias(model):
    model.conv.bias = None
    return model


def without_statistics():
    return sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))


def shared(part):
    one = conv_bn()
    other = conv_bn()
    pair = [one[i] if i == part else other[i] for i in range(2)]
    return sequential(*one, *pair)


def tied():
    model = sequential(*conv_bn(), *conv_bn())
    model[2].weight = model[0].weight
    return model


LEFT = {
    "model in training": (
        lambda: in_training(sequential(*conv_bn())), "the model is in training mode"),
    "norm in training": (
        lambda: in_training(sequential(*conv_bn()), 1), "it is in training mode"),
    "convolution in training": (
        lambda: in_training(sequential(*conv_bn()), 0), "0 is in training mode"),
    "no statistics": (without_statistics, "it has no running statistics"),
    "hook on the norm": (
        lambda: with_hook(sequential(*conv_bn()), 1, "register_forward_hook"), "it has hooks"),
    "hook on the convolution": (
        lambda: with_hook(sequential(*conv_bn()), 0, "register_forward_pre_hook"), "0 has hooks"),
    "backward hook": (
        lambda: with_hook(sequential(*conv_bn()), 0, "register_full_backward_hook"),
        "0 has hooks"),
    "parametrized convolution": (
        lambda: sequential(parametrized(nn.Conv2d(4, 4, 3)), nn.BatchNorm2d(4)),
        "0 has parametrizations"),
    "parametrized norm": (
        lambda: sequential(nn.Conv2d(4, 4, 3), parametrized(nn.BatchNorm2d(4))),
        "it has parametrizations"),
    "old spectral norm": (
        lambda: sequential(spectral_norm(nn.Conv2d(4, 4, 3)), nn.BatchNorm2d(4)), "0 has hooks"),
    "shared norm": (lambda: shared(1), "it is called more than once"),
    "tied weights": (tied, "0 shares its parameters with another module"),
    "other kind": (
        lambda: sequential(nn.Conv2d(4, 4, 3), nn.SyncBatchNorm(4)),
        "it is neither BatchNorm1d, BatchNorm2d nor BatchNorm3d, and may do more"),
    "subclass": (
        lambda: sequential(Standardized(4, 4, 3), nn.BatchNorm2d(4)), "0 is not replaced"),
    "ours, but more": (
        lambda: sequential(type("More", (Standardized, customconv.Conv2d), {})(4, 4, 3),
                           nn.BatchNorm2d(4)),
        "0 may do more than convolve"),
    "no convolution": (
        lambda: sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)),
        "what it normalizes is not the output of a convolution"),
    "another user": (
        lambda: randomized(Branch(lambda m, x: m.bn(y := m.conv(x)) + y)),
        "the output of conv has another user"),
    "returned, too": (
        lambda: randomized(Branch(lambda m, x: (m.bn(y := m.conv(x)), y))),
        "the output of conv has another user"),
    "convolution called twice": (
        lambda: randomized(Branch(lambda m, x: m.bn(m.conv(m.conv(x))))),
        "conv is called more than once"),
    "norm called twice": (
        lambda: randomized(Branch(lambda m, x: m.bn(m.bn(m.conv(x))))),
        "it is called more than once"),
    "weight used": (
        lambda: randomized(Branch(lambda m, x: m.bn(m.conv(x)) + m.conv.weight.sum())),
        "the parameters of conv have another user"),
    "weight used by iteration": (
        lambda: randomized(Branch(lambda m, x: m.bn(m.conv(x)) + next(m.conv.parameters()).sum())),
        "the parameters of conv have another user"),
    "absent bias looked for": (
        lambda: without_bias(randomized(Branch(with_bias_if_none))),
        "the parameters of conv have another user"),
    "type of the norm's weight": (
        lambda: randomized(Branch(lambda m, x: m.bn(m.conv(x.to(m.bn.weight.dtype))))),
        "its parameters or buffers have another user"),
    "type of the norm's first parameter": (
        lambda: randomized(Branch(read_by_iteration)),
        "its parameters or buffers have another user"),
    "device of the norm's mean": (
        lambda: randomized(Branch(lambda m, x: m.bn(m.conv(x.to(m.bn.running_mean.device))))),
        "its parameters or buffers have another user"),
    "mean used": (
        lambda: randomized(Branch(lambda m, x: m.bn(m.conv(x)) - m.bn.running_mean[:, None, None])),
        "its parameters or buffers have another user"),
    "kept in an attribute": (
        lambda: randomized(Branch(kept)), "the output of conv has another user"),
    "kept inside an attribute": (
        lambda: randomized(Branch(kept_inside)), "the output of conv has another user"),
    "shared activation": (
        with_shared_activation,
        "it is in no part of the model that can be traced, and follows no convolution in an "
        "nn.Sequential"),
    "hook on a container of the convolution": (
        lambda: with_container_hook(sequential(nn.Sequential(conv_bn()[0]), conv_bn()[1]), 0),
        "a module that has only one of 0.0 and it inside has hooks"),
    "hook on a container of the norm": (
        lambda: with_container_pre_hook(
            sequential(conv_bn()[0], nn.Sequential(conv_bn()[1], nn.ReLU())), 1),
        "a module that has only one of 0 and it inside has hooks"),
    "bias elsewhere": (
        lambda: with_attribute(sequential(*conv_bn()), 0, "bias"),
        "the bias of 0 is not a parameter"),
    "norm's bias elsewhere": (
        lambda: with_attribute(sequential(*conv_bn()), 1, "bias"),
        "its parameters and buffers are not those of a batch norm"),
    "variance a parameter": (
        lambda: with_parameter(sequential(*conv_bn()), 1, "running_var"),
        "its parameters and buffers are not those of a batch norm"),
    "not called": (
        lambda: randomized(Branch(lambda m, x: m.conv(x))), "no call of it was found"),
    "used if given": (lambda: randomized(Optional(True)), "the output of conv has another user"),
    "used if not given": (
        lambda: randomized(Optional(False)), "the output of conv has another user"),
    "depends on values": (
        lambda: randomized(Branch(lambda m, x: m.bn(m.conv(x)) if x.sum() != 0 else x)),
        "it is in no part of the model that can be traced, and follows no convolution in an "
        "nn.Sequential"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "reason"), LEFT.values(), ids=LEFT)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_cannot_be_folded_is_left_with_a_reason(make, reason):
    model = make()
    before = copy.deepcopy(model)
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert reason in reasons(report).values()
    assert not report.folded
    x = image()
    torch.testing.assert_close(model(x), before(x))


def test_a_convolution_that_is_shared_is_not_folded_into():
    model = shared(0)
    x = image()
    expected = model(x)
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert reasons(report) == dict.fromkeys(["1", "3"], "0 is called more than once")
    torch.testing.assert_close(model(x), expected)


def test_what_is_shared_between_blocks_is_not_folded():
    """Each block is traced by itself, in which its modules are called once."""
    model = Untraceable()
    model.blocks[1].conv1 = model.blocks[0].conv1
    model.blocks[1].bn2 = model.blocks[0].bn2
    randomized(model)
    x = image()
    expected = model(x)
    _, report = customconv.convert(model, fold_batchnorm=True)
    found = reasons(report)
    name = "blocks.0.conv1 is shared: the model has it under several names"
    assert found["blocks.0.bn1"] == found["blocks.1.bn1"] == name
    assert found["blocks.0.bn2"] == "it is shared: the model has it under several names"
    torch.testing.assert_close(model(x), expected)


def test_hooks_around_both_do_not_matter():
    model = with_container_hook(sequential(nn.Sequential(*conv_bn())), 0)
    x = image()
    expected = model(x)
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert len(report.folded) == 1
    torch.testing.assert_close(model(x), expected)


def test_batch_norms_stay_unless_folding_is_asked_for():
    model = small()
    _, report = customconv.convert(model)
    assert type(model.norm) is nn.BatchNorm2d
    assert not report.folded
    assert not report.left


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm's: a batch norm, then ``drop`` and ``act``."""

    def __init__(self, channels):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.PReLU(channels)

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


def test_timms_batch_norm_keeps_its_activation(monkeypatch):
    model = sequential(nn.Conv2d(4, 6, 3), BatchNormAct2d(6))
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert not report.folded  # one of that name from elsewhere may do anything
    customconv.revert(model)
    monkeypatch.setattr(BatchNormAct2d, "__module__", "timm.layers.norm_act")
    x, before = image(), snapshot(model)
    expected = model(x)
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert [entry.kind for entry in report.folded] == ["BatchNormAct2d"]
    assert [key for key in model.state_dict() if key.startswith("1.")] == ["1.act.weight"]
    torch.testing.assert_close(model(x), expected)
    customconv.revert(model)
    assert_restored(model, before)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0", "densenet121"])
def test_timms_networks(name):
    timm = pytest.importorskip("timm")
    model = randomized(timm.create_model(name)).double()  # statistics at random amplify rounding
    x, before = torch.randn(1, 3, 64, 64).double(), snapshot(model)
    expected = model(x)
    _, report = customconv.convert(model, fold_batchnorm=True, channels_last=True)
    assert report.folded
    torch.testing.assert_close(model(x), expected)
    customconv.revert(model)
    assert_restored(model, before)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


# --- Reverting after changes ---


def test_what_was_trained_or_loaded_meanwhile_is_kept():
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 4, 3))
    customconv.convert(model, channels_last=True)
    loaded = {key: torch.randn_like(value) for key, value in model.state_dict().items()}
    model.load_state_dict(loaded)
    customconv.revert(model)
    torch.testing.assert_close(model.state_dict(), loaded, rtol=0, atol=0)
    assert model[0].weight.is_contiguous()


def test_changes_of_a_folded_layer_are_lost_with_a_warning():
    model = small()
    before = snapshot(model)
    customconv.convert(model, fold_batchnorm=True)
    with torch.no_grad():
        model.first.weight.mul_(2)
    with pytest.warns(UserWarning, match="'first' was changed"):
        customconv.revert(model)
    assert_restored(model, before)


def test_a_folded_model_is_restored_in_its_present_type_and_mode():
    model = small()
    expected = copy.deepcopy(model).double().train()
    customconv.convert(model, fold_batchnorm=True)
    model.double().train()
    customconv.revert(model)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert model.norm.training
    x = image().double()
    torch.testing.assert_close(model(x), expected(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: prune.l1_unstructured(m, "weight", 0.3),
        lambda m: prune.l1_unstructured(m, "bias", 0.3),
        parametrizations.weight_norm,
    ],
    ids=["pruned weight", "pruned bias", "parametrized"],
)
def test_a_folded_layer_that_was_pruned_or_parametrized_stays_folded(change):
    model = small()
    before = snapshot(model)
    customconv.convert(model, fold_batchnorm=True)
    change(model.first)
    x = image()
    expected = model(x)
    with pytest.warns(UserWarning, match="'first' was pruned.*'norm' stays folded"):
        customconv.revert(model)
    torch.testing.assert_close(model(x), expected)
    assert not isinstance(model.first, customconv.Conv2d)
    assert type(model.inner[1]) is nn.BatchNorm2d
    if parametrize.is_parametrized(model.first):
        parametrize.remove_parametrizations(model.first, "weight")
    else:
        prune.remove(
            model.first,
            *(name for name in ("weight", "bias") if hasattr(model.first, f"{name}_orig")),
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        customconv.revert(model)  # again
    kinds, _, values = snapshot(model)
    assert kinds == before[0]
    torch.testing.assert_close(values, before[2], rtol=0, atol=0)


def test_a_bias_that_was_removed_meanwhile_is_restored():
    model = sequential(*conv_bn())
    before = copy.deepcopy(model)
    customconv.convert(model, fold_batchnorm=True)
    model[0].bias = None
    with pytest.warns(UserWarning, match="'0' was changed"):
        customconv.revert(model)
    torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=0, atol=0)


def test_a_nan_is_no_change():
    model = small()
    with torch.no_grad():
        model.first.weight[0, 0] = torch.nan
    before = snapshot(model)
    customconv.convert(model, fold_batchnorm=True)
    customconv.revert(model)  # a warning would be an error
    kinds, objects, values = snapshot(model)
    assert (kinds, objects) == before[:2]
    torch.testing.assert_close(values, before[2], rtol=0, atol=0, equal_nan=True)


def test_a_folded_model_that_moved_to_meta_is_reverted_there():
    model = small()
    expected = copy.deepcopy(model).to("meta")
    customconv.convert(model, fold_batchnorm=True)
    customconv.revert(model.to("meta"))
    assert [type(m) for m in model.modules()] == [type(m) for m in expected.modules()]
    assert model.state_dict().keys() == expected.state_dict().keys()
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert isinstance(model.norm.weight, nn.Parameter)


def test_a_class_put_on_top_meanwhile_stays():
    """As torch.distributed.fsdp.fully_shard does."""
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 4, 3))
    customconv.convert(model)
    ours = type(model[0])
    model[0].__class__ = type("FSDPConv2d", (Marker, ours), {})
    with pytest.warns(UserWarning, match="'0' stays customconv's: it became a FSDPConv2d"):
        customconv.revert(model)
    assert isinstance(model[0], customconv.Conv2d)
    assert type(model[1]) is nn.Conv2d
    model[0].__class__ = ours
    customconv.revert(model)
    assert type(model[0]) is nn.Conv2d


class Marker:
    """A class to put on top of others."""


@pytest.mark.gpu
def test_a_folded_model_is_restored_on_its_present_device():
    model = small()
    before = copy.deepcopy(model).cuda()
    customconv.convert(model, fold_batchnorm=True)
    customconv.revert(model.cuda())
    torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=0, atol=0)
    assert all(t.is_cuda for t in model.state_dict().values())


@pytest.mark.gpu
@pytest.mark.parametrize("channels_last", [None, True])
def test_a_converted_model_is_computed_by_our_kernels(channels_last):
    model = small().cuda().half()
    x = image().cuda().half()
    expected = model(x)
    customconv.convert(model, fold_batchnorm=True, channels_last=channels_last)
    customconv.stats(reset=True)
    torch.testing.assert_close(model(x), expected, rtol=2e-2, atol=2e-2)
    assert sum(customconv.stats().calls.values()) == 2
    customconv.revert(model)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


# --- Copies ---


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved]
)
def test_copies_are_converted_and_can_be_reverted(duplicate):
    model = small()
    original = copy.deepcopy(model)
    customconv.convert(model, fold_batchnorm=True, channels_last=True)
    twin = duplicate(model)
    x = image()
    assert type(twin.first) is customconv.Conv2d
    torch.testing.assert_close(twin(x), model(x), rtol=0, atol=0)
    customconv.revert(twin)
    assert [type(m) for m in twin.modules()] == [type(m) for m in original.modules()]
    torch.testing.assert_close(twin(x), original(x), rtol=0, atol=0)
    assert [t.stride() for t in twin.parameters()] == [t.stride() for t in original.parameters()]
    assert type(model.first) is customconv.Conv2d  # the model itself is not
    assert type(model.norm) is nn.Identity


# --- Memory formats ---


def test_memory_formats_of_weights_are_set_and_restored():
    """Also of a model with both images and volumes, for which Module.to has no one format."""
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv3d(4, 2, 3), nn.Conv1d(4, 6, 3))
    model.register_buffer("table", torch.randn(2, 3, 4, 5))
    model[0].weight.grad = torch.randn(6, 4, 3, 3)
    before = snapshot(model)
    wanted = copy.deepcopy(model[0]).to(memory_format=torch.channels_last).weight.stride()
    customconv.convert(model, channels_last=True)
    assert model[0].weight.stride() == model[0].weight.grad.stride() == wanted
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert model.table.is_contiguous(memory_format=torch.channels_last)
    customconv.convert(model, channels_last=False)
    assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
    customconv.convert(model, channels_last=True)
    customconv.revert(model)
    assert_restored(model, before)
    assert model[0].weight.grad.is_contiguous()


def test_a_tensor_of_another_shape_keeps_its_values():
    model = nn.Sequential(nn.Conv2d(4, 6, 3))
    customconv.convert(model, channels_last=True)
    wider = model[0].weight.detach().repeat(1, 2, 1, 1)
    model[0].weight = nn.Parameter(wider.clone())
    customconv.revert(model)
    torch.testing.assert_close(model[0].weight.detach(), wider, rtol=0, atol=0)


def test_none_leaves_the_memory_format():
    model = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    before = snapshot(model)
    customconv.convert(model)
    assert snapshot(model)[1] == before[1]


# --- The report ---


def test_the_report_prints_as_a_table():
    model = randomized(nn.Sequential(*conv_bn(), nn.ReLU(), nn.BatchNorm2d(4), Plain(4, 4, 1)))
    _, report = customconv.convert(model, fold_batchnorm=True)
    assert str(report).splitlines() == [
        "customconv: 1 replaced, 1 folded, 2 left",
        "replaced  0  Conv2d",
        "folded    1  BatchNorm2d  into 0",
        "left      3  BatchNorm2d  what it normalizes is not the output of a convolution",
        "left      4  Plain        it is a subclass of Conv2d",
    ]
    _, report = customconv.convert(nn.Conv2d(1, 1, 1))
    assert "(the model)" in str(report)
    assert str(customconv.convert(nn.ReLU())[1]) == "customconv: 0 replaced, 0 folded, 0 left"


def test_a_report_cannot_be_changed():
    _, report = customconv.convert(nn.Conv2d(1, 1, 1))
    assert isinstance(report, customconv.ConversionReport)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.replaced = ()


# --- Random models ---


def random_convolution(rng):
    groups, bias = rng.choice([1, 2, 4]), rng.random() < 0.5
    mode = rng.choice(["zeros", "circular"])
    return rng.choice(
        [
            nn.Conv2d(4, 4, 3, padding=1, groups=groups, bias=bias, padding_mode=mode),
            nn.ConvTranspose2d(4, 4, 3, padding=1, groups=groups, bias=bias),
            Plain(4, 4, 1),
            parametrizations.weight_norm(nn.Conv2d(4, 4, 1)),
        ]
    )


def random_model(rng, depth=0):
    """A tree of sequences, sums and layers that keep four channels."""
    if depth == 3 or rng.random() < 0.3:
        norm, activation = (
            nn.BatchNorm2d(4, affine=rng.random() < 0.7),
            rng.choice([nn.ReLU, nn.Tanh]),
        )
        layers = [random_convolution(rng), norm, activation()]
        if rng.random() < 0.3:
            rng.shuffle(layers)
        return nn.Sequential(*layers)
    parts = [random_model(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        parts.append(rng.choice(parts))  # shared
    kind = rng.choice([nn.Sequential, Sum, ByValue])
    return kind(*parts)


class Sum(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        return x + sum(part(x) for part in self.parts) / len(self.parts)


class ByValue(Sum):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


@pytest.mark.parametrize("seed", range(25))
def test_random_models_are_converted_and_reverted(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = randomized(random_model(rng)).double()
    inputs = [image().double() for _ in range(3)]
    expected = [model(x) for x in inputs]
    before = snapshot(model)
    options = {
        "fold_batchnorm": rng.random() < 0.8,
        "channels_last": rng.choice([None, True, False]),
        "subclasses": rng.random() < 0.5,
    }
    _, report = customconv.convert(model, **options)
    convolutions = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d))]
    assert len(report.replaced) + sum("Norm" not in e.kind for e in report.left) == len(
        convolutions
    )
    for x, output in zip(inputs, expected, strict=True):
        torch.testing.assert_close(model(x), output)
    twin = copy.deepcopy(model)
    for each in (twin, model):
        customconv.revert(each)
        for x, output in zip(inputs, expected, strict=True):
            torch.testing.assert_close(each(x), output, rtol=0, atol=0)
    _, objects, values = snapshot(model)
    assert objects == before[1]
    torch.testing.assert_close(values, before[2], rtol=0, atol=0)
