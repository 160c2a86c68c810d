"""Nodes whose fields have values that torch does not create."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.passes.split_module import split_module as torch_split_module

from fxpress.split_module import split_module

# A torch that keeps a field of its nodes in another way.
_PROPERTY = """
from fxpress._torch import native_tables, tables

known = tables.native_symbols
tables.native_symbols = lambda **given: {**known(**given), "node_meta": property()}
native_tables.fx()
"""


def traced() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: (x + 1).relu() * 2)


def middle(module: fx.GraphModule) -> fx.Node:
    return next(node for node in module.graph.nodes if node.op == "call_method")


def raised(split: Callable[..., Any], module: fx.GraphModule) -> type[BaseException] | None:
    try:
        split(module, torch.nn.Module(), lambda _: 0)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("field", ["meta", "target", "op", "type", "_args", "_kwargs"])
def test_a_field_that_was_deleted(field: str) -> None:
    """A deleted field raises the same error as in torch."""
    modules = traced(), traced()
    for module in modules:
        delattr(middle(module), field)
    ours, theirs = map(raised, (split_module, torch_split_module), modules)
    assert ours == theirs


def test_a_link_to_what_is_no_node() -> None:
    module = traced()
    node: Any = middle(module)
    node._next = 5
    with pytest.raises(RuntimeError, match="was modified"):
        split_module(module, torch.nn.Module(), lambda _: 0)


def test_nodes_of_a_subclass() -> None:
    """Their fields equal the fields of torch.fx.Node in every layout."""

    class Named(fx.Node):
        def __init__(self, *args: Any) -> None:
            self.number = 3
            super().__init__(*args)

    module = traced()
    node = middle(module)
    with module.graph.inserting_before(node):
        named = Named(module.graph, "named", "call_function", torch.neg, (node.args[0],), {})
        module.graph._insert(named)
    node.args = (named,)
    made = split_module(module, torch.nn.Module(), lambda _: 0)
    x = torch.randn(3)
    assert torch.equal(made(x), (-(x + 1)).relu() * 2)


def test_a_field_that_is_no_member() -> None:
    command = [sys.executable, "-c", _PROPERTY]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (
        "TypeError: torch.fx.Node: expected a member descriptor for a field of type object, found "
        "<property" in done.stderr
    )
