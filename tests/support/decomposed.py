"""Equality of two decomposed programs: graph, metadata, names of later nodes, signature, state."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from tests.support.compare import by_name, same_value

_COUNTERS = {"seq_nr"}  # numbers that the process counts
_NUMBER_OF_CODE = re.compile(r"<eval_with_key>\.\d+")


def assert_same_program(ours: ExportedProgram, theirs: ExportedProgram) -> None:
    """Assert equal graphs, metadata, signatures, calls, ranges, constants and state."""
    assert_same_decomposed(ours.graph_module, theirs.graph_module)
    assert repr(ours.graph_signature) == repr(theirs.graph_signature)
    assert ours.graph_signature == theirs.graph_signature
    assert list(ours.range_constraints.items()) == list(theirs.range_constraints.items())
    assert ours.module_call_graph == theirs.module_call_graph
    assert ours.example_inputs is theirs.example_inputs
    assert ours.verifiers == theirs.verifiers
    assert ours._guards_code == theirs._guards_code
    for mine, other in ((ours.state_dict, theirs.state_dict), (ours.constants, theirs.constants)):
        assert type(mine) is type(other)
        assert list(mine) == list(other)
        assert all(_same_constant(mine[k], other[k]) for k in mine)


def _same_constant(mine: Any, other: Any) -> bool:
    if mine is other:
        return True
    both = isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor)
    if both and "FakeTensor" in (type(mine).__name__, type(other).__name__):
        return facts(mine) == facts(other)
    return both and torch.equal(mine, other) and type(mine) is type(other)


def assert_same_decomposed(ours: GraphModule, theirs: GraphModule) -> None:
    """The same graphs with equal metadata, in a module and the modules below it."""
    assert ours.code == theirs.code
    assert set(ours.meta) == set(theirs.meta)
    assert type(ours).__name__ == type(theirs).__name__
    assert list(ours._modules) == list(theirs._modules)
    assert list(ours._buffers) == list(theirs._buffers)
    assert list(ours._parameters) == list(theirs._parameters)
    _assert_same_graph(ours.graph, theirs.graph)
    for name, child in ours._modules.items():
        other = theirs._modules[name]
        if isinstance(child, GraphModule):
            assert isinstance(other, GraphModule)
            assert_same_decomposed(child, other)
        else:
            assert type(child) is type(other)


def _assert_same_graph(ours: Graph, theirs: Graph) -> None:
    assert [n.name for n in ours.nodes] == [n.name for n in theirs.nodes]
    storages: list[dict[int, int]] = [{}, {}]
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        at = f"node {other.name}"
        assert mine.op == other.op, at
        assert mine.target == other.target, at
        for field in ("args", "kwargs"):
            values = [by_name(getattr(n, field), n.graph) for n in (mine, other)]
            assert _same(values[0], values[1]), f"{at}: {field}: {values[0]} != {values[1]}"
        assert mine.type == other.type, at
        users = [[u.name for u in n.users] for n in (mine, other)]
        assert users[0] == users[1], f"{at}: users"
        inputs = [[i.name for i in n.all_input_nodes] for n in (mine, other)]
        assert inputs[0] == inputs[1], f"{at}: inputs"
        assert list(mine.meta) == list(other.meta), f"{at}: {list(mine.meta)} {list(other.meta)}"
        for key in mine.meta:
            if key not in _COUNTERS:
                pair = [
                    described(n.meta[key], s) for n, s in zip((mine, other), storages, strict=True)
                ]
                assert pair[0] == pair[1], f"{at}: meta[{key!r}]: {pair[0]} != {pair[1]}"
    ours.lint()
    spaces = (ours._graph_namespace, theirs._graph_namespace)
    extra, missing = (
        spaces[0]._used_names - spaces[1]._used_names,
        spaces[1]._used_names - spaces[0]._used_names,
    )
    assert (extra, missing) == (set(), set()), f"names taken: {extra} more, {missing} missing"
    assert dict(spaces[0]._base_count) == dict(spaces[1]._base_count)


def _same(mine: Any, other: Any) -> bool:
    if isinstance(mine, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type(mine) is type(other) and str(mine) == str(other)
    return same_value(mine, other)


def facts(value: torch.Tensor) -> tuple[Any, ...]:
    """The observable facts of a fake tensor, apart from its storage."""
    layout = value.layout
    strides = tuple(map(str, value.stride())) if layout is torch.strided else None
    return (
        type(value).__name__,
        isinstance(value, torch.nn.Parameter),
        tuple(map(str, value.shape)),
        strides,
        value.dtype,
        value.device,
        layout,
        value.requires_grad,
        value.is_leaf,
        str(value.storage_offset()) if layout is torch.strided else None,
        value.is_conj(),
        value.is_neg(),
    )


def _bytes(number: Any) -> str:
    """Describe a storage size; use a symbol's hint, because torch's expression differs by trace."""
    return f"as {number.node.hint}" if isinstance(number, torch.SymInt) else str(number)


def described(value: Any, storages: dict[int, int]) -> Any:
    """Describe a value of meta independently of its program; number storages as they occur."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or type(value).__name__ != "FakeTensor":
            return (facts(value), None)
        storage = value.untyped_storage()
        number = storages.setdefault(storage._cdata, len(storages))
        return (facts(value), number, _bytes(storage.nbytes()))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return (type(value).__name__, str(value))
    if type(value).__name__ == "NodeSource":
        info = value.node_info
        # Ids of freed graphs may equal the ids of others.
        known = None if info is None else (info.name, info.target)
        inner = described(value.from_node, storages)
        return (known, value.pass_name, [a.name for a in value.action], inner)
    if isinstance(value, Node):
        return ("%", value.name)
    if isinstance(value, dict):
        items = [(described(k, storages), described(v, storages)) for k, v in value.items()]
        return (type(value).__name__, items)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [described(v, storages) for v in value])
    if isinstance(value, str):
        return _NUMBER_OF_CODE.sub("<eval_with_key>", value)
    if isinstance(value, float):
        return ("float", repr(value))
    if type(value).__repr__ is object.__repr__:
        return (type(value).__name__,)
    return (type(value).__name__, repr(value))
