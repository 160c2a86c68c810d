"""The inputs of the new program: their order, names, values and metadata."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Node

from fxpress._graphs.decompose.values import Number, Storage, UnsafeError, Value, facts_of, size_of
from fxpress._torch import decompose as compat
from fxpress._torch import symbols

_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


class Input(NamedTuple):
    """An input of the new program.

    Attributes:
        old: its placeholder in the old graph.
        spec: its entry in the old signature.
        state: the parameter, buffer or constant; None for what the user gives.
        value: its tensor or number in the new trace; None for a constant.
    """

    old: Node
    spec: InputSpec
    state: torch.Tensor | None
    value: Value | Number | None


def read_inputs(program: ExportedProgram, shape_env: Any) -> list[Input]:
    """Return the inputs of the new program, in their new order.

    Parameters come first and buffers next, both module by module, as torch finds them in
    `ep.module()`: a module's constants stand behind its buffers.
    """
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    specs = program.graph_signature.input_specs
    if len(placeholders) != len(specs):
        raise UnsafeError("a signature that does not fit the graph")
    parameters, buffers, given = [], [], []
    targets: list[str] = []  # of the state, in the order of the signature
    for old, spec in zip(placeholders, specs, strict=True):
        if old.meta.keys().isdisjoint(("val",)):
            raise UnsafeError("an input without a value")
        if spec.kind is InputKind.USER_INPUT:
            given.append((old, spec))
            continue
        if spec.kind is InputKind.PARAMETER:
            parameters.append((old, spec))
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            buffers.append((old, spec))
        else:
            raise UnsafeError(f"an input of kind {spec.kind.name}")
        targets.append(spec.target)
    order = _module_order(targets)
    parameters.sort(key=lambda entry: order[entry[1].target.rpartition(".")[0]])
    buffers.sort(key=lambda entry: _buffer_rank(entry[1], order))
    entries = [*parameters, *buffers, *given]
    reader = _Reader(program, shape_env)
    return [reader.read(old, spec, i) for i, (old, spec) in enumerate(entries)]


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


class _Reader:
    def __init__(self, program: ExportedProgram, shape_env: Any) -> None:
        self._program = program
        self._shape_env = shape_env
        self._storages: dict[Any, Storage] = {}

    def read(self, old: Node, spec: InputSpec, number: int) -> Input:
        if spec.kind is InputKind.USER_INPUT:
            return Input(old, spec, None, self._given(old.meta["val"], spec, number))
        is_parameter = spec.kind is InputKind.PARAMETER
        in_constants = spec.kind is InputKind.CONSTANT_TENSOR or spec.persistent is False
        holder = self._program.constants if in_constants else self._program.state_dict
        state = holder.get(spec.target)
        wanted = torch.nn.Parameter if is_parameter else torch.Tensor
        if type(state) is not wanted or type(spec.arg) is not TensorArgument:
            raise UnsafeError(f"state of type {type(state).__name__}")
        if not is_parameter and state.requires_grad:
            raise UnsafeError("a buffer or constant that requires gradients")
        return Input(old, spec, state, self._value(state, number))

    def _given(self, seen: Any, spec: InputSpec, number: int) -> Value | Number | None:
        """Return what the user gives; None for a constant."""
        if isinstance(seen, torch.Tensor):
            if type(seen) is not compat.FakeTensor or type(spec.arg) is not TensorArgument:
                raise UnsafeError("an input of another class")
            return self._value(seen, number)
        if type(seen) is torch.SymInt and type(spec.arg) is SymIntArgument:
            expression = symbols.expression_of(seen, self._shape_env)
            if expression is None or not symbols.is_symbol(expression):
                raise UnsafeError("an input that is no symbol alone")
            return Number(expression, int, number)
        if type(spec.arg) is not ConstantArgument or type(seen) not in _PLAIN:
            raise UnsafeError(f"an input of type {type(seen).__name__}")
        return None

    def _value(self, tensor: torch.Tensor, number: int) -> Value:
        facts = facts_of(tensor, self._shape_env)
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            nbytes = size_of(storage.nbytes(), self._shape_env)
            parts = (storage, None) if type(tensor) is compat.FakeTensor else (None, tensor)
            known = self._storages[storage._cdata] = Storage(nbytes, *parts)
        return Value(number, facts, known)


# Where no node uses them. torch makes a symbol of an int, which nothing takes then.
_PLAIN = (int, bool, float, str, type(None))
