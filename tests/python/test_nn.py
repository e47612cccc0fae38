"""The modules, customconv.Conv2d and its likes, are drop-ins for torch.nn's."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

import customconv

CASES = [
    ((4, 6, 3), {}),
    ((4, 6, (3, 2)), {"stride": 2, "padding": (1, 0), "bias": False}),
    ((4, 6, 3), {"padding": 2, "dilation": 2, "groups": 2}),
    ((4, 4, (2, 5)), {"padding": "same", "groups": 4}),
    ((4, 6, 3), {"padding": "valid"}),
    ((4, 6, 3), {"padding": 1, "padding_mode": "reflect"}),
    ((4, 6, (3, 2)), {"padding": (2, 1), "padding_mode": "replicate"}),
    ((4, 6, 3), {"padding": "same", "padding_mode": "circular"}),
]
CASES_1D = [
    ((4, 6, 3), {}),
    ((4, 6, (3,)), {"stride": 2, "padding": (1,), "bias": False}),
    ((4, 6, 3), {"padding": 2, "dilation": 2, "groups": 2}),
    ((4, 4, 5), {"padding": "same", "groups": 4}),
    ((4, 4, 2), {"padding": "same", "dilation": 3}),
    ((4, 6, 3), {"padding": "valid"}),
    ((4, 6, 3), {"padding": 1, "padding_mode": "reflect"}),
    ((4, 6, 3), {"padding": (2,), "padding_mode": "replicate"}),
    ((4, 6, 3), {"padding": "same", "padding_mode": "circular"}),
]
CASES_3D = [
    ((4, 6, 3), {}),
    ((4, 6, (3, 2, 1)), {"stride": (1, 2, 3), "padding": (0, 1, 0), "bias": False}),
    ((4, 6, 3), {"padding": 2, "dilation": (1, 2, 3), "groups": 2}),
    ((4, 4, (2, 5, 3)), {"padding": "same", "groups": 4}),
    ((4, 6, (3, 2, 2)), {"padding": "same", "dilation": (1, 3, 2)}),
    ((4, 6, 3), {"padding": "valid"}),
    ((4, 6, 3), {"padding": 1, "padding_mode": "reflect"}),
    ((4, 6, (3, 2, 1)), {"padding": (2, 1, 0), "padding_mode": "replicate"}),
    ((4, 6, 3), {"padding": "same", "padding_mode": "circular"}),
]
TRANSPOSED_CASES = [
    ((4, 6, 3), {}),
    ((4, 6, (3, 2)), {"stride": 2, "padding": (1, 0), "output_padding": 1, "bias": False}),
    ((4, 6, 4, 2, 1), {"groups": 2}),
    ((4, 4, (2, 5)), {"groups": 4, "dilation": (3, 1), "output_padding": (2, 0)}),
]
TRANSPOSED_CASES_1D = [
    ((4, 6, 3), {}),
    ((4, 6, (3,)), {"stride": 2, "padding": (1,), "output_padding": 1, "bias": False}),
    ((4, 6, 4, 2, 1), {"groups": 2}),
    ((4, 4, 5), {"groups": 4, "dilation": 3, "output_padding": (2,)}),
]
TRANSPOSED_CASES_3D = [
    ((4, 6, 3), {}),
    (
        (4, 6, (3, 2, 4)),
        {"stride": 2, "padding": (1, 0, 1), "output_padding": (1, 0, 1), "bias": False},
    ),
    ((4, 6, 4, 2, 1), {"groups": 2}),
    ((4, 4, (2, 5, 1)), {"groups": 4, "dilation": (3, 1, 2), "output_padding": (2, 0, 1)}),
]
KINDS = [
    *[(customconv.Conv1d, nn.Conv1d, *case) for case in CASES_1D],
    *[(customconv.Conv2d, nn.Conv2d, *case) for case in CASES],
    *[(customconv.Conv3d, nn.Conv3d, *case) for case in CASES_3D],
    *[(customconv.ConvTranspose1d, nn.ConvTranspose1d, *case) for case in TRANSPOSED_CASES_1D],
    *[(customconv.ConvTranspose2d, nn.ConvTranspose2d, *case) for case in TRANSPOSED_CASES],
    *[(customconv.ConvTranspose3d, nn.ConvTranspose3d, *case) for case in TRANSPOSED_CASES_3D],
]
each_kind = pytest.mark.parametrize(("our_kind", "their_kind", "arguments", "options"), KINDS)


NAMES = "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"
TRANSPOSED_NAMES = NAMES[3:]
KINDS_OF_MODULES = [getattr(customconv, name) for name in NAMES]


def images(kind, *batch, **options):
    """Random input for the kind of module: signals, images or volumes of four channels."""
    return torch.randn(*batch, 4, *(9, 8, 5)[: int(kind.__name__[-2])], **options)


def pair(our_kind, their_kind, arguments, options, **more):
    """Both classes with the same initialization."""
    modules = []
    for kind in (our_kind, their_kind):
        torch.manual_seed(0)
        modules.append(kind(*arguments, **options, **more))
    return modules


@each_kind
@pytest.mark.parametrize("batch", [(2,), ()])
def test_output_and_gradients_agree(our_kind, their_kind, arguments, options, batch):
    ours, theirs = pair(our_kind, their_kind, arguments, options, dtype=torch.float64)
    x = images(our_kind, *batch, dtype=torch.float64)
    outputs = []
    for module in (ours, theirs):
        leaf = x.clone().requires_grad_()
        output = module(leaf)
        output.square().sum().backward()
        outputs.append([output, leaf.grad, *(p.grad for p in module.parameters())])
    torch.testing.assert_close(outputs[0], outputs[1])
    assert outputs[0][0].stride() == outputs[1][0].stride()


@each_kind
def test_state_dict_goes_both_ways(our_kind, their_kind, arguments, options):
    ours, theirs = our_kind(*arguments, **options), their_kind(*arguments, **options)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    x = images(our_kind, 2)
    for source, target in ((ours, theirs), (theirs, ours)):
        nn.init.uniform_(source.weight)
        target.load_state_dict(source.state_dict())
        torch.testing.assert_close(target(x), source(x))


@each_kind
def test_repr_is_pytorchs(our_kind, their_kind, arguments, options):
    ours, theirs = pair(our_kind, their_kind, arguments, options)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *[("Conv1d", shape) for shape in [(2, 5, 9), (5, 9), (9,), (2, 4, 1)]],
        *[("Conv3d", shape) for shape in [(2, 5, 9, 9, 9), (5, 9, 9, 9), (9, 9, 9)]],
        *[("Conv3d", (2, 4, 1, 9, 9)), ("ConvTranspose3d", (2, 5, 9, 9, 9))],
    ],
)
def test_a_misshaped_input_is_refused_in_pytorchs_words(name, shape):
    ours, theirs = pair(getattr(customconv, name), getattr(nn, name), (4, 6, 3), {})
    with pytest.raises(RuntimeError) as expected:
        theirs(torch.randn(shape))
    with pytest.raises(RuntimeError) as actual:
        ours(torch.randn(shape))
    assert str(actual.value) == str(expected.value)


def test_repr_shows_a_forced_algorithm():
    module = customconv.Conv2d(4, 6, 3, algorithm="direct")
    assert repr(module) == "Conv2d(4, 6, kernel_size=(3, 3), stride=(1, 1), algorithm='direct')"


@pytest.mark.parametrize("name", NAMES)
def test_signature_is_pytorchs_and_the_algorithm_keyword_only(name):
    ours = inspect.signature(getattr(customconv, name)).parameters
    theirs = inspect.signature(getattr(nn, name)).parameters
    assert list(ours)[:-1] == list(theirs)
    assert [p.default for p in list(ours.values())[:-1]] == [p.default for p in theirs.values()]
    assert ours["algorithm"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("kind", KINDS_OF_MODULES)
def test_device_and_dtype(kind):
    module = kind(4, 6, 3, device="meta", dtype=torch.bfloat16)
    assert module.weight.is_meta
    assert module.bias.dtype == torch.bfloat16
    x = images(kind, 2, device="meta", dtype=torch.bfloat16)
    output = module(x)
    assert output.is_meta
    change = 2 if module.transposed else -2
    assert output.shape == (2, 6, *[size + change for size in x.shape[2:]])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("kind", KINDS_OF_MODULES)
def test_copies_keep_the_weights_and_the_algorithm(kind, duplicate):
    module = kind(4, 6, 3, padding=1, algorithm="aten")
    twin = duplicate(module)
    assert type(twin) is kind
    assert twin.algorithm == "aten"
    assert twin.weight is not module.weight
    x = images(kind, 2)
    torch.testing.assert_close(twin(x), module(x))


@pytest.mark.parametrize("name", TRANSPOSED_NAMES)
@pytest.mark.parametrize("output_size", [None, (17, 16, 9), [2, 6, 18, 15, 10]])
def test_a_transposed_modules_output_size(name, output_size):
    dimensions = int(name[-2])
    sizes = [4, 6, 3, 2, 1]
    ours, theirs = pair(getattr(customconv, name), getattr(nn, name), sizes, {})
    x = torch.randn(2, 4, *(9, 8, 5)[:dimensions])
    if output_size is not None:
        output_size = output_size[: len(output_size) - 3 + dimensions]
    torch.testing.assert_close(ours(x, output_size), theirs(x, output_size))
    with pytest.raises(ValueError, match="requested an output size"):
        ours(x, (30, 16, 9)[:dimensions])


@pytest.mark.parametrize("name", TRANSPOSED_NAMES)
@pytest.mark.parametrize("options", [{"padding_mode": "reflect"}, {"groups": 3}])
def test_transposed_modules_refuse_what_pytorchs_do(name, options):
    messages = []
    for package in (customconv, nn):
        with pytest.raises(ValueError) as error:
            getattr(package, name)(4, 6, 3, **options)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("kind", KINDS_OF_MODULES)
def test_the_algorithm_is_passed_on(kind):
    module = kind(4, 6, 3, algorithm="tiled")
    with pytest.raises(RuntimeError, match=r"(?i)cpu"):
        module(images(kind, 2))


@each_kind
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_compiles_it(our_kind, their_kind, arguments, options, tmp_path):
    module, x = our_kind(*arguments, **options), images(our_kind, 2)
    scripted = torch.jit.script(module)
    torch.testing.assert_close(scripted(x), module(x))
    assert "customconv" in str(scripted.graph) + str(scripted.inlined_graph)
    torch.jit.save(scripted, tmp_path / "module.pt")
    torch.testing.assert_close(torch.jit.load(tmp_path / "module.pt")(x), module(x))


@pytest.mark.parametrize("name", TRANSPOSED_NAMES)
def test_a_transposed_modules_padding_stays_zeros(name):
    messages = []
    for package in (customconv, nn):
        module = getattr(package, name)(4, 6, 3)
        module.padding_mode = "circular"  # a trick that works for convolutions
        with pytest.raises(ValueError) as error:
            module(images(type(module), 2))
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@each_kind
def test_compiles_whole(our_kind, their_kind, arguments, options):
    module, _ = pair(our_kind, their_kind, arguments, options)
    torch._dynamo.reset()  # all modules share their code, and its recompilations are limited
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = images(our_kind, 2)
    expected = module(x)
    torch.testing.assert_close(compiled(x), expected)
    expected.sum().backward()
    wanted = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    compiled(x).sum().backward()
    torch.testing.assert_close([p.grad for p in module.parameters()], wanted)
