"""The inputs of the new program: their order, names, values and metadata."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    TensorArgument,
)
from torch.fx import Node

from fxpress._decompose.values import Storage, UnsafeError, Value, facts_of
from fxpress._torch import decompose as compat

_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


class Input(NamedTuple):
    """An input of the new program.

    Attributes:
        old: its placeholder in the old graph.
        spec: its entry in the old signature.
        state: the parameter, buffer or constant; None for what the user gives.
        value: its tensor in the new trace; None for a constant.
    """

    old: Node
    spec: InputSpec
    state: torch.Tensor | None
    value: Value | None


def read_inputs(program: ExportedProgram) -> list[Input]:
    """Return the inputs of the new program, in their new order.

    Parameters come first and buffers next, both module by module, as torch finds them in
    `ep.module()`: a module's constants stand behind its buffers.

    Raises:
        UnsafeError: an input is not a plain tensor or a constant.
    """
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    specs = program.graph_signature.input_specs
    if len(placeholders) != len(specs):
        raise UnsafeError("a signature that does not fit the graph")
    parameters, buffers, given = [], [], []
    for old, spec in zip(placeholders, specs, strict=True):
        if old.meta.keys().isdisjoint(("val",)):
            raise UnsafeError("an input without a value")
        if spec.kind is InputKind.USER_INPUT:
            given.append((old, spec))
        elif spec.kind is InputKind.PARAMETER:
            parameters.append((old, spec))
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            buffers.append((old, spec))
        else:
            raise UnsafeError(f"an input of kind {spec.kind.name}")
    order = _module_order([spec.target for _, spec in (*_in_graph(parameters, buffers, specs),)])
    parameters.sort(key=lambda entry: order[entry[1].target.rpartition(".")[0]])
    buffers.sort(key=lambda entry: _buffer_rank(entry[1], order))
    entries = [*parameters, *buffers, *given]
    storages: dict[Any, Storage] = {}
    return [_read(program, old, spec, i, storages) for i, (old, spec) in enumerate(entries)]


def _in_graph(parameters: Any, buffers: Any, specs: Any) -> list[Any]:
    """Return the entries of state in the order of the signature."""
    found = {id(spec): (old, spec) for old, spec in (*parameters, *buffers)}
    return [found[id(spec)] for spec in specs if id(spec) in found]


def _buffer_rank(spec: InputSpec, order: dict[str, int]) -> tuple[int, bool]:
    return order[spec.target.rpartition(".")[0]], spec.kind is InputKind.CONSTANT_TENSOR


def _module_order(targets: list[str]) -> dict[str, int]:
    """Return module -> its place when the modules that have state are walked depth first.

    A module's children stand in the order in which the targets mention them.
    """
    children: dict[str, dict[str, None]] = {"": {}}
    for target in targets:
        path = ""
        for atom in target.split(".")[:-1]:
            child = f"{path}.{atom}" if path else atom
            children[path].setdefault(child)
            children.setdefault(child, {})
            path = child
    order: dict[str, int] = {}
    stack = [""]
    while stack:
        module = stack.pop()
        order[module] = len(order)
        stack.extend(reversed(children[module]))
    return order


def _read(
    program: ExportedProgram, old: Node, spec: InputSpec, number: int, storages: dict[Any, Storage]
) -> Input:
    seen = old.meta["val"]
    if spec.kind is InputKind.USER_INPUT:
        if isinstance(seen, torch.Tensor):
            if type(seen) is not compat.FakeTensor or type(spec.arg) is not TensorArgument:
                raise UnsafeError("an input of another class")
            return Input(old, spec, None, _value_of(seen, number, storages))
        if type(spec.arg) is not ConstantArgument or type(seen) not in _PLAIN:
            raise UnsafeError(f"an input of type {type(seen).__name__}")
        return Input(old, spec, None, None)
    is_parameter = spec.kind is InputKind.PARAMETER
    in_constants = spec.kind is InputKind.CONSTANT_TENSOR or spec.persistent is False
    holder = program.constants if in_constants else program.state_dict
    state = holder.get(spec.target)
    wanted = torch.nn.Parameter if is_parameter else torch.Tensor
    if type(state) is not wanted or type(spec.arg) is not TensorArgument:
        raise UnsafeError(f"state of type {type(state).__name__}")
    if not is_parameter and state.requires_grad:
        raise UnsafeError("a buffer or constant that requires gradients")
    return Input(old, spec, state, _value_of(state, number, storages))


_PLAIN = (float, str, type(None))  # torch makes a symbol of an int


def _value_of(tensor: torch.Tensor, number: int, storages: dict[Any, Storage]) -> Value:
    facts = facts_of(tensor)
    storage = tensor.untyped_storage()
    known = storages.get(storage._cdata)
    if known is None:
        nbytes = compat.as_int(storage.nbytes())
        if nbytes is None:
            raise UnsafeError("symbolic sizes")
        parts = (storage, None) if type(tensor) is compat.FakeTensor else (None, tensor)
        known = storages[storage._cdata] = Storage(nbytes, *parts)
    return Value(number, facts, known)
