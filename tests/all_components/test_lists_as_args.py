"""node.args that are not a tuple and node.kwargs that are not a dict: torch.fx keeps them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch._export.serde.serialize as torch_serialize
from torch.export import ExportedProgram
from torch.export import unflatten as torch_unflatten
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module as torch_split_module

from fxpress import serialize
from fxpress.split_module import split_module
from fxpress.unflatten import unflatten
from tests.support.compare import assert_same_module
from tests.support.hostile import arguments, exported, outcome, traced
from tests.support.unflatten_compare import assert_same_unflattened

CALLS = ["placeholder", "call_function", "output"]


def first(graph: Any, op: str) -> Node:
    return next(node for node in graph.nodes if node.op == op)


def as_list(node: Node, raw: bool) -> None:
    if raw:
        node._args = list(node.args)  # type: ignore[attr-defined]
    else:
        node.args = list(node.args)  # type: ignore[assignment]


def both(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[Any, Any] | None:
    """Return both results, or None if both raise an exception of the same type."""
    try:
        expected = theirs()
    except Exception as error:
        with pytest.raises(type(error)):
            ours()
        return None
    return ours(), expected


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("op", [*CALLS, "call_module"])
def test_split_module_does_what_torch_does(op: str, raw: bool) -> None:
    module = traced()
    as_list(first(module.graph, op), raw)
    made = both(
        lambda: split_module(module, None, lambda node: 0),
        lambda: torch_split_module(module, None, lambda node: 0),
    )
    assert (made is None) == op.startswith("call")
    if made is not None:
        assert isinstance(made[0], GraphModule)
        assert_same_module(*made)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("op", CALLS)
def test_unflatten_does_what_torch_does(op: str, raw: bool) -> None:
    program = exported()
    as_list(first(program.graph, op), raw)
    made = both(lambda: unflatten(program), lambda: torch_unflatten(copy.deepcopy(program)))
    assert (made is None) == (op != "output")
    if made is not None:
        assert_same_unflattened(*made)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("op", CALLS)
def test_serialize_writes_what_torch_writes(op: str, raw: bool) -> None:
    program = exported()
    as_list(first(program.graph, op), raw)
    ours = serialize.serialize(program)
    theirs = torch_serialize.serialize(program)
    assert ours.exported_program == theirs.exported_program


def test_items_taken_with_a_list() -> None:
    """torch's verifier generates code, which fails for these; fxpress writes torch's bytes."""
    program = exported()
    expected = torch_serialize.serialize(program).exported_program
    for node in program.graph.nodes:
        if "getitem" in str(node.target):
            as_list(node, False)
    assert serialize.serialize(program).exported_program == expected


OTHERS: dict[str, Any] = {
    "none": None,
    "number": 5,
    "text": "ab",
    "dict": {"a": 1},
    "slice": slice(1),
    "empty list": [],
    "iterator": iter([1]),
}
KEYWORDS = {name: value for name, value in OTHERS.items() if name != "dict"}
REFUSED = (AssertionError, TypeError, serialize.SerializeError, IndexError)


@pytest.mark.parametrize("value", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("op", [*CALLS, "call_module"])
def test_other_args_are_refused_or_not_looked_at(op: str, value: Any) -> None:
    module = traced()
    first(module.graph, op).args = value
    error = outcome(lambda m: split_module(m, None, lambda node: 0), module)
    assert isinstance(error, REFUSED) or op == "placeholder"
    if op == "call_module":
        return
    calls: list[Callable[[ExportedProgram], object]] = [unflatten, serialize.serialize]
    for call in calls:
        program = exported()
        first(program.graph, op).args = value
        error = outcome(call, program)
        reads = op != "placeholder" and value != []  # what is not there is not written
        assert isinstance(error, REFUSED) or (call is not unflatten and not reads)


@pytest.mark.parametrize("value", KEYWORDS.values(), ids=KEYWORDS)
def test_other_kwargs_are_refused(value: Any) -> None:
    module = traced()
    first(module.graph, "call_function").kwargs = value
    error = outcome(lambda m: split_module(m, None, lambda node: 0), module)
    assert isinstance(error, AssertionError)
    program = exported()
    first(program.graph, "call_function").kwargs = value
    assert isinstance(outcome(unflatten, program), AssertionError)
    assert isinstance(outcome(serialize.serialize, program), serialize.SerializeError)


@pytest.mark.parametrize("field", ["users", "_input_nodes", "meta", "name", "_kwargs", "_args"])
@pytest.mark.parametrize("value", [None, 5, "text", [1]], ids=repr)
def test_other_fields_of_nodes(field: str, value: Any) -> None:
    for op in ("call_function", "output"):
        module = traced()
        setattr(first(module.graph, op), field, value)
        outcome(lambda m: split_module(m, None, lambda node: 0)(*arguments()), module)
        for call in (unflatten, serialize.serialize):
            program = exported()
            setattr(first(program.graph, op), field, value)
            outcome(call, program)


@pytest.mark.parametrize("field", ["users", "_input_nodes", "meta", "name", "_kwargs", "_args"])
def test_fields_of_nodes_that_are_gone(field: str) -> None:
    module = traced()
    delattr(first(module.graph, "call_function"), field)
    outcome(lambda m: split_module(m, None, lambda node: 0)(*arguments()), module)
    for call in (unflatten, serialize.serialize):
        program = exported()
        delattr(first(program.graph, "call_function"), field)
        outcome(call, program)
