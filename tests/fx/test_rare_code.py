"""Generated code of graphs with functions that torch.fx.wrap made leaves, or with odd arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, symbolic_trace
from torch.fx.passes.split_module import split_module as torch_split

from fxpress import _native
from fxpress.split_module import split_module
from tests.support.compare import assert_same_module
from tests.support.deferred import assert_equal, in_blocks


@torch.fx.wrap
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@torch.fx.wrap
def longest(*values: Any) -> int:
    return max(len(value) for value in values)


class Wrapped(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = doubled(doubled(x)) + 1
        return doubled(y) * longest(x, y)


def both(source: GraphModule, size: int) -> tuple[GraphModule, GraphModule]:
    return (
        split_module(source, None, in_blocks(source, size)),
        torch_split(source, None, in_blocks(source, size)),
    )


@pytest.mark.parametrize("size", [1, 2, 10])
def test_wrapped_functions(size: int) -> None:
    ours, theirs = both(symbolic_trace(Wrapped()), size)
    parts = [*zip(ours.children(), theirs.children(), strict=True)]
    wraps = [m.code for _, m in parts if "wrap(" in str(m.code)]
    assert wraps
    assert [m.code for m, _ in parts if "wrap(" in str(m.code)] == wraps
    assert_same_module(ours, theirs)
    x = torch.arange(6.0).reshape(2, 3)
    assert_equal(ours(x), theirs(x))


@pytest.mark.parametrize("size", [1, 10])
def test_wrapped_functions_are_leaves_when_the_code_is_traced_again(size: int) -> None:
    ours, theirs = (
        [[n.target for n in symbolic_trace(part).graph.nodes] for part in split.children()]
        for split in both(symbolic_trace(Wrapped()), size)
    )
    assert ours == theirs
    assert any(doubled in targets for targets in ours)


def nodes_of(source: GraphModule, function: Any) -> list[torch.fx.Node]:
    return [n for n in source.graph.nodes if n.target is function]


@pytest.mark.parametrize("mark", [False, None, 0, [], "yes", 1, torch.tensor(True)])
def test_other_marks_count_by_their_truth(mark: Any) -> None:
    source = symbolic_trace(Wrapped())
    for node in nodes_of(source, doubled):
        node.meta["is_wrapped"] = mark
    ours, theirs = both(source, 10)
    assert ours.submod_0.code == theirs.submod_0.code
    assert ('doubled")' in ours.submod_0.code) == bool(mark)


def test_a_mark_without_a_truth() -> None:
    class Undecided:
        def __bool__(self) -> bool:
            raise ZeroDivisionError("no truth")

    source = symbolic_trace(Wrapped())
    nodes_of(source, doubled)[0].meta["is_wrapped"] = Undecided()
    with pytest.raises(ZeroDivisionError, match="no truth"):
        torch_split(source, None, in_blocks(source, 10))
    ours = split_module(source, None, in_blocks(source, 10))
    with pytest.raises(ZeroDivisionError, match="no truth"):
        ours.submod_0.code


class Shown:
    """An argument of a type that torch.fx does not know."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Tagged(list):  # type: ignore[type-arg]
    """A list of a user-defined type."""


@pytest.mark.parametrize(
    "argument", [Shown("1.5"), {"k": Shown("[2]")}, {1, 2}, frozenset((3,)), Tagged([1])], ids=repr
)
def test_arguments_of_unknown_types(argument: Any) -> None:
    """torch writes the repr of such arguments; fxpress uses torch's generator for them."""
    graph = Graph()
    x = graph.placeholder("x")
    node = graph.call_function(isinstance, (x, 1))
    node._args = (x, argument)  # type: ignore[attr-defined]  # not copied: lists keep their type
    graph.output(node)
    source = GraphModule({}, graph)
    ours, theirs = both(source, 10)
    assert ours.submod_0.code == theirs.submod_0.code
    assert repr(argument) in ours.submod_0.code
    leaf = argument["k"] if isinstance(argument, dict) else argument
    if not isinstance(leaf, Tagged):
        assert _native.python_source(source.graph) is None
