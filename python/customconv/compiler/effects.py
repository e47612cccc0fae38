"""What the nodes of a graph write to, in graphs whose operators may work in place.

A convolution that takes a residual moves to where the residual is added, and reads its operands
there. That is right unless a node in between writes to one of them, or switches gradients or
autocast on or off.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable

import torch
from torch import fx

from .operators import Activation, Add, BatchNorm, Convolution, Multiply, read, value_of

_IN_PLACE = frozenset(
    getattr(operator, "i" + name)
    for name in (
        *("add", "and", "concat", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow"),
        *("rshift", "sub", "truediv", "xor"),
    )
)


def writes(node: fx.Node) -> list[fx.Node] | None:
    """The nodes whose tensors a node writes to, or None if that cannot be known."""
    if node.op in ("placeholder", "get_attr", "output"):
        return []
    if node.op == "call_method":
        name = str(node.target)
        return _first(node) if _is_in_place(name) or name == "__setitem__" else []
    if node.op != "call_function":
        return None
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return _by_schema(node, target)
    if isinstance(target, torch._ops.OpOverloadPacket):
        names = target.overloads()  # type: ignore[no-untyped-call]
        overloads = (getattr(target, name) for name in names)
        return None if any(each._schema.is_mutable for each in overloads) else []
    if target is operator.setitem or target in _IN_PLACE:
        return _first(node)
    if node.kwargs.get("out") is not None or not _is_pytorchs(target):
        return None
    if getattr(target, "__name__", "") in ("batch_norm", "instance_norm"):  # running statistics
        return [each for each in node.all_input_nodes if each not in _first(node)]
    return _first(node) if _is_in_place(getattr(target, "__name__", "")) or _asked(node) else []


def changes_modes(node: fx.Node) -> bool:
    """Whether a node switches gradients, autocast or the like on or off."""
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "").lstrip("_")
    # Functorch's transforms have "nesting" in their names.
    return name.startswith(("enter_", "exit_", "set_", "saved_tensors_hooks_")) or "nesting" in name


def sources(node: fx.Node) -> set[object]:
    """What identifies the memory that a node's tensor may share: nodes, and inputs' storages."""
    found: set[object] = set()
    seen: set[fx.Node] = set()
    rest = [node]
    while rest:
        each = rest.pop()
        if each in seen:
            continue
        seen.add(each)
        found.add(_memory(each))
        fresh = isinstance(read(each), (Convolution, BatchNorm, Add, Multiply, Activation))
        if not fresh or writes(each) != []:
            rest += each.all_input_nodes
    return found


def owns_memory(node: fx.Node) -> bool:
    """Whether a node's tensor is known to share its memory with no other node's."""
    return node.op in ("call_function", "call_method") and sources(node) == {node}


def writer(between: Iterable[fx.Node], operands: Iterable[fx.Node]) -> fx.Node | None:
    """The first of the nodes that may write to an operand, or None if none does."""
    read_from = set().union(*map(sources, operands))
    for node in between:
        written = writes(node)
        if written is None or any(not read_from.isdisjoint(sources(each)) for each in written):
            return node
    return None


def _memory(node: fx.Node) -> object:
    """The node, or an input's storage, since two inputs may be views of one tensor."""
    value = value_of(node)
    if node.op not in ("placeholder", "get_attr") or value is None:
        return node
    try:
        return value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a tensor without one, such as a sparse tensor
        return node


def _first(node: fx.Node) -> list[fx.Node]:
    """A call's first argument, or what it lists, which operators that work in place write to."""
    written: list[fx.Node] = []
    fx.map_arg(node.args[0] if node.args else node.kwargs.get("input"), written.append)
    return written


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _by_schema(node: fx.Node, target: torch._ops.OpOverload) -> list[fx.Node]:
    """What an operator's schema says that it writes to."""
    written: list[fx.Node] = []
    for position, argument in enumerate(target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        fx.map_arg(given, written.append)
    return written


def _asked(node: fx.Node) -> bool:
    """Whether a function is called with a true ``inplace``, by name or by position."""
    if "inplace" in node.kwargs:
        return node.kwargs["inplace"] is not False
    try:
        names = list(inspect.signature(node.target).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a built-in function, which says so by its name
        return False
    if "inplace" not in names or names.index("inplace") >= len(node.args):
        return False
    return node.args[names.index("inplace")] is not False


def _is_pytorchs(target: object) -> bool:
    """Whether a function is PyTorch's or Python's own, so that its name tells what it writes to."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return False
    owner = type(getattr(target, "__self__", None))  # of built-in methods, which name no module
    module = str(getattr(target, "__module__", None) or owner.__module__)
    return module.split(".")[0] in ("torch", "_operator", "operator", "math", "builtins")
