"""Chains: a convolution and the operators after it that a fused operator computes with it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .effects import changes_modes, owns_memory, writer, writes
from .operators import (
    Activation,
    Add,
    BatchNorm,
    Convolution,
    Multiply,
    Operand,
    name_of,
    read,
    same_layout,
    same_sizes,
    value_of,
)

# Activations whose derivative follows from their result, which training keeps anyway. For another
# one, the backward pass of a fused operator would convolve once more.
_CHEAP_IN_TRAINING = frozenset({"relu", "relu6", "leaky_relu", "sigmoid", "hardsigmoid"})


@dataclass(frozen=True)
class Scale:
    """A product with a number, or with one number for each channel."""

    by: Operand
    divides: bool = False


@dataclass(frozen=True)
class Shift:
    """The sum with ``alpha`` times a number, or one number for each channel."""

    by: Operand
    alpha: float = 1.0


Affine: TypeAlias = BatchNorm | Scale | Shift


@dataclass
class Chain:
    """A convolution and what follows it.

    Attributes:
        convolution: The convolution.
        nodes: The nodes that compute it, the convolution's first.
        place: The first of them at which all operands have been computed.
        affine: What each channel is multiplied with and what is added to it, in order.
        residual: The tensor that is added, or None.
        residual_last: Whether it is added after the activation.
        activation: The activation, or None.
        ends: Why the operator after the last node is not part of the chain.
    """

    convolution: Convolution
    nodes: list[fx.Node]
    place: fx.Node
    affine: list[Affine] = field(default_factory=list)
    residual: fx.Node | None = None
    residual_last: bool = False
    activation: Activation | None = None
    ends: str = ""

    @property
    def last(self) -> fx.Node:
        """The node whose value the chain computes."""
        return self.nodes[-1]

    @property
    def is_fused(self) -> bool:
        """Whether there is more than the convolution."""
        return len(self.nodes) > 1

    @property
    def parts(self) -> list[str]:
        """What the chain consists of, for people to read."""
        names: dict[type, str] = {BatchNorm: "batch norm", Scale: "scale", Shift: "bias"}
        after = [names[type(each)] for each in self.affine]
        rest = [] if self.residual is None else ["residual"]
        if self.activation is not None:
            rest.insert(0 if self.residual_last else len(rest), self.activation.name)
        return [self.convolution.kind, *after, *rest]


# Where a node is marked that was written for a chain.
IS_OURS = "customconv_is_ours"


class Refused(Exception):
    """Why an operator is not part of a chain."""


def find(convolution: Convolution, node: fx.Node) -> Chain:
    """The longest chain that begins with a convolution and can be computed in one."""
    chain = Chain(convolution, [node], node)
    try:
        while True:
            _extend(chain)
    except Refused as reason:
        chain.ends = str(reason)
    return chain


def _extend(chain: Chain) -> None:
    """Adds the operator that follows, or raises ``Refused``."""
    node = chain.last
    follower, skipped = _follower(node)
    value, before = value_of(follower), value_of(node)
    assert before is not None
    found = Activation(node, "silu") if skipped else read(follower)
    name = name_of(follower)
    if isinstance(found, Convolution):
        raise Refused("a convolution follows")
    if found is None:
        raise Refused(_unread(follower))
    if value is None or value.dtype != before.dtype or not same_sizes(value.shape, before.shape):
        raise Refused(f"{name} changes its size or type")
    if not same_layout(value, before):
        raise Refused(f"{name} changes its memory format")
    if any(changes_modes(each) for each in _between(node, follower)):
        raise Refused(f"gradients or autocast are switched on or off before {name}")
    if isinstance(found, Activation):
        _add_activation(chain, found, value)
    elif isinstance(found, BatchNorm):
        if node is not found.input:
            raise Refused(f"{name} reads it as a parameter")
        if before.ndim + chain.convolution.channel_dim != 1:  # such a norm is over something else
            raise Refused("without a batch dimension, it normalises something other than channels")
        if any(learns(follower, each) for each in follower.all_input_nodes if each is not node):
            raise Refused("the parameters of the batch norm need gradients")
        _add_affine(chain, found, follower)
    elif isinstance(found, (Add, Multiply)):
        _add_arithmetic(chain, found, follower)
    chain.nodes += [*skipped, follower]


def _unread(follower: fx.Node) -> str:
    """Why an operator that is not known ends a chain."""
    name = name_of(follower)
    if name.startswith("customconv.") or IS_OURS in follower.meta:
        return "a convolution follows"
    if "batch_norm" in name:
        return "a batch norm in training mode follows"
    return f"{name} is not an operator that kernels fuse"


def _follower(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The one user of a node, and the node in between where it is a product with its sigmoid."""
    users = list(node.users)
    if len(users) == 1 and users[0].op != "output":
        return users[0], []
    if len(users) == 2:
        for gate, product in itertools.permutations(users):
            sigmoid, multiply = read(gate), read(product)
            if not (isinstance(sigmoid, Activation) and isinstance(multiply, Multiply)):
                continue
            factors = {multiply.input, multiply.other}
            gates = sigmoid.name == "sigmoid" and list(gate.users) == [product]
            if gates and factors == {node, gate} and not multiply.divides and not writes(gate):
                return product, [gate]
    if any(user.op == "output" for user in users):
        raise Refused("it is an output of the graph")
    raise Refused(f"{len(users)} operators read it")


def _add_activation(chain: Chain, found: Activation, value: Tensor) -> None:
    if chain.activation is not None:
        raise Refused(f"{found.name} is a second activation")
    if value.requires_grad and found.name not in _CHEAP_IN_TRAINING:
        raise Refused(f"in training, the gradient of {found.name} needs what it is applied to")
    if found.name == "leaky_relu" and value.requires_grad and found.negative_slope < 0:
        raise Refused("in training, its slope must not be negative")
    chain.activation = found


def _add_affine(chain: Chain, found: Affine, follower: fx.Node) -> None:
    if chain.residual is not None or chain.activation is not None:
        raise Refused("a scale or bias follows a residual or an activation")
    _read_early(chain, follower)
    chain.affine.append(found)


def _read_early(chain: Chain, follower: fx.Node) -> None:
    """Finds a place for the chain where the follower's operands can be read, too."""
    new = [each for each in follower.all_input_nodes if each not in chain.nodes]
    old = [each for node in chain.nodes for each in node.all_input_nodes if each not in chain.nodes]
    early = all(each < chain.place for each in new)
    between = [each for each in _between(chain.place, follower) if each not in chain.nodes]
    if wrote := writer(between, new if early else old):
        raise Refused(f"{name_of(wrote)} may change an operand before {name_of(follower)}")
    if not early:
        chain.place = follower


def _add_arithmetic(chain: Chain, found: Add | Multiply, follower: fx.Node) -> None:
    """Adds a sum or a product: with a number, with one for each channel, or with a residual."""
    node = chain.last
    if found.input is found.other:
        raise Refused("it is combined with itself")
    is_first = found.input is node
    other = found.other if is_first else found.input
    if isinstance(found, Multiply) and found.divides and not is_first:
        raise Refused("it is what something is divided by")
    is_vector = _is_vector(chain.convolution, node, other)
    if not is_first and isinstance(other, fx.Node) and other in (writes(follower) or []):
        # The result replaces the other operand. Nobody else may see that.
        if len(other.users) > 1 or not owns_memory(other):
            raise Refused("what is added to it is changed in place")
    if isinstance(found, Multiply):
        if not is_vector:
            raise Refused(f"{name_of(follower)} combines it with a tensor")
        if learns(follower, other):
            raise Refused("the gradient of a scale needs the output of the convolution")
        _add_affine(chain, Scale(other, found.divides), follower)
        return
    if not is_first and found.alpha != 1:
        raise Refused("it is multiplied before it is added")
    if is_vector:
        _add_affine(chain, Shift(other, found.alpha), follower)
        return
    if found.alpha != 1:
        raise Refused("what is added to it is multiplied first")
    if chain.residual is not None:
        raise Refused("a second residual is added")
    value = value_of(follower)
    if chain.activation is not None and value is not None and value.requires_grad:
        raise Refused(f"in training, the gradient of {chain.activation.name} needs its result")
    assert isinstance(other, fx.Node)
    _read_early(chain, follower)
    chain.residual = other
    chain.residual_last = chain.activation is not None


def _is_vector(convolution: Convolution, node: fx.Node, other: Operand) -> bool:
    """Whether a convolution's output is combined with a number, or with one for each channel.

    If not, it is combined with a tensor of its own size and type.
    """
    output = value_of(node)
    assert output is not None
    if not isinstance(other, fx.Node):
        return True
    value = value_of(other)
    if value is None:
        raise Refused("it is combined with a number that is not constant")
    if value.device != output.device or not value.is_floating_point():
        raise Refused("it is combined with a tensor of another device or type")
    if same_sizes(value.shape, output.shape):
        if value.dtype != output.dtype:
            raise Refused("it is combined with a tensor of another type")
        return False
    place = convolution.channel_dim
    ones = list(value.shape)
    if len(ones) < -place or not statically_known_true(ones.pop(place) == output.shape[place]):
        raise Refused("it is combined with a tensor of another size")
    if not all(statically_known_true(size == 1) for size in ones):
        raise Refused("it is combined with a tensor of another size")
    wide = torch.promote_types(output.dtype, torch.float32)
    if torch.promote_types(value.dtype, wide) != wide:
        raise Refused("it is combined with a tensor of a wider type")
    return True


def _between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    """The nodes between two, in the graph's order."""
    found = []
    node = first.next
    while node is not last:
        found.append(node)
        node = node.next
    return found


def learns(node: fx.Node, operand: Operand | None) -> bool:
    """Whether the gradient of an operand is asked for, where a node's operator is called."""
    result, value = value_of(node), value_of(operand)
    if result is None or value is None:
        return False
    # Derivatives in forward mode, which functorch keeps in tensors of its own.
    forward: bool = torch._C._functorch.is_gradtrackingtensor(value)
    return forward or (result.requires_grad and value.requires_grad)
