"""Comparisons of captured graphs with torch's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch
from torch._dynamo import functional_export as torch_capture
from torch.fx import Graph, GraphModule, Node

from fxpress import functional_export
from fxpress._graphs.capture import functional_export as capture_impl
from tests.support.compare import by_name, lookup_table, same_value


def facts(value: Any) -> Any:
    """Return the facts of a value that are equal in two captures of one callable."""
    if isinstance(value, torch.Tensor):
        about = (type(value).__name__, value.dtype, value.device, value.requires_grad)
        if value.layout is not torch.strided:
            return (*about, str(value.layout), tuple(map(str, value.shape)))
        return (*about, tuple(map(str, value.shape)), tuple(map(str, value.stride())))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return (type(value).__name__, str(value))
    if type(value).__name__ == "NodeSource":
        return {**value.to_dict(), "graph_id": None, "from_node": facts(value.from_node)}
    if isinstance(value, Mapping):
        return {key: facts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [facts(item) for item in value]
    if isinstance(value, (str, int, float, bool, type, type(None))) or callable(value):
        return value
    return type(value).__name__


def assert_same_meta(ours: Node, theirs: Node, *, numbered: bool = True) -> None:
    at = f"meta of {theirs.name}"
    assert list(ours.meta) == list(theirs.meta), at
    for key in theirs.meta:
        if key == "seq_nr" and not numbered:
            continue
        mine, other = facts(ours.meta[key]), facts(theirs.meta[key])
        assert mine == other, f"{at}: {key}: {mine} != {other}"


def assert_same_captured_graph(ours: Graph, theirs: Graph, *, numbered: bool = True) -> None:
    """`numbered`: also compare `seq_nr`, autograd's number of an operation."""
    assert [n.name for n in ours.nodes] == [n.name for n in theirs.nodes]
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        assert (mine.op, mine.target, mine.type) == (other.op, other.target, other.type)
        for field in ("args", "kwargs"):
            values = by_name(getattr(mine, field), ours), by_name(getattr(other, field), theirs)
            assert same_value(*values), f"{mine.name}: {field}: {values[0]} != {values[1]}"
        assert [u.name for u in mine.users] == [u.name for u in other.users], mine.name
        assert_same_meta(mine, other, numbered=numbered)
    mine, other = ours._graph_namespace, theirs._graph_namespace
    assert mine._used_names == other._used_names
    assert list(mine._base_count.items()) == list(other._base_count.items())
    assert {k: set(v) for k, v in lookup_table(ours).items()} == {
        k: set(v) for k, v in lookup_table(theirs).items()
    }
    ours.lint()


def assert_same_captured(ours: GraphModule, theirs: GraphModule) -> None:
    """Assert that two captures have equal graphs, names, meta, state and code."""
    assert_same_captured_graph(ours.graph, theirs.graph, numbered=False)
    assert list(ours.meta) == list(theirs.meta)
    for key in ("dynamo_flat_name_to_original_fqn", "module_call_specs"):
        assert ours.meta.get(key) == theirs.meta.get(key)
    assert ours.training == theirs.training
    for name in ("_parameters", "_buffers"):
        mine, other = vars(ours)[name], vars(theirs)[name]
        assert list(mine) == list(other)
        assert all(mine[key] is other[key] for key in other)
    assert ours._non_persistent_buffers_set == theirs._non_persistent_buffers_set
    assert list(ours._modules) == list(theirs._modules)
    for key, child in theirs._modules.items():
        if isinstance(child, GraphModule):
            assert ours._modules[key].code == child.code
    assert type(ours.graph._codegen) is type(theirs.graph._codegen)
    theirs.recompile()  # torch has generated its code before it cleaned names
    assert ours.code == theirs.code
    assert ours._in_spec == theirs._in_spec
    assert ours._out_spec == theirs._out_spec


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or its exception."""
    try:
        return call()
    except Exception as error:
        return error


def assert_captures_as_torch(
    call: Callable[..., Any], args: Any = (), kwargs: Any = None, **options: Any
) -> GraphModule | None:
    """Assert that both captures are equal, or fail in the same way. Returns fxpress's."""
    kwargs = kwargs or {}
    ours, theirs = (
        outcome(functools.partial(way(call, **options), *args, **kwargs))
        for way in (
            functional_export._dynamo_graph_capture_for_export,
            torch_capture._dynamo_graph_capture_for_export,
        )
    )
    if isinstance(theirs, Exception):
        assert type(ours) is type(theirs), ours
        assert str(ours) == str(theirs)
        return None
    if isinstance(ours, Exception):
        raise ours
    assert_same_captured(ours, theirs)
    return ours


def rewritten_by_both(call: Callable[..., Any], *args: Any, **options: Any) -> list[GraphModule]:
    """Return one capture, rewritten by fxpress and by torch."""
    made: list[GraphModule] = []
    real = capture_impl.rewrite_and_clean

    def both(module: GraphModule, flat_inputs: list[Any], *rest: Any) -> GraphModule:
        theirs = torch_capture.DynamoGraphTransformer(module, list(flat_inputs), *rest).transform()
        torch_capture.clean_nn_module_stack_and_source_fn(theirs, True)
        torch_capture.clean_export_root(theirs)
        made.append(theirs)
        return real(module, flat_inputs, *rest)

    with mock.patch.object(capture_impl, "rewrite_and_clean", both):
        made.append(functional_export._dynamo_graph_capture_for_export(call, **options)(*args))
    return made[::-1]
