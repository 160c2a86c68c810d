"""Arguments that are not nodes: the plan creates them once, torch in each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from fxpress._graphs import engine as native_engine
from tests.support.engine import assert_same, by_torch

aten = torch.ops.aten
prims = torch.ops.prims


def graph_of(operator: Any, *args: Any, **kwargs: Any) -> fx.Graph:
    """A graph that calls an operator; `...` among the arguments is its input."""

    def argument(value: Any) -> Any:
        if isinstance(value, list):
            return [argument(item) for item in value]
        return x if value is ... else value

    graph = fx.Graph()
    x = graph.placeholder("x")
    made = {name: argument(value) for name, value in kwargs.items()}
    graph.output(graph.call_function(operator, tuple(map(argument, args)), made))
    return graph


def outcome(call: Any) -> tuple[Any, ...]:
    """Return the result or the exception of a call, in a form that can be compared."""
    try:
        return ("returns", call())
    except Exception as error:
        return ("raises", type(error), str(error))


def same_outcome(graph: fx.Graph, *args: Any, runs: int = 2) -> None:
    """The engine returns or raises the same as torch, in its first run and in later ones."""
    root = nn.Module()
    for _ in range(runs):
        theirs = outcome(lambda: by_torch(root, graph, *args))
        ours = outcome(lambda: native_engine.run(root, graph, args))
        assert ours[0] == theirs[0], (ours, theirs)
        assert_same(ours[1:], theirs[1:])


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "pow", "ge", "eq", "maximum", "remainder", "fmin"]
)
def test_prims_with_a_number_where_the_schema_says_tensor(name: str) -> None:
    same_outcome(graph_of(getattr(prims, name).default, ..., 2.0), torch.tensor([1.0, 2.0, 3.0]))


def test_prims_with_numbers_only() -> None:
    same_outcome(graph_of(prims.add.default, 2.0, 3.0), torch.ones(2))
    same_outcome(graph_of(prims.where.default, ..., 1.0, 2.0), torch.tensor([True, False]))
    same_outcome(graph_of(prims.neg.default, 2.0), torch.ones(2))


@pytest.mark.parametrize("number", [2**63, 2**64, 2**70, -(2**70)])
@pytest.mark.parametrize("operator", [aten.add.Scalar, aten.mul.Tensor, aten.clamp.default])
def test_numbers_that_do_not_fit_fail_where_they_are_used(operator: Any, number: int) -> None:
    called = []

    def note(x: torch.Tensor) -> torch.Tensor:
        called.append(len(called))
        return x

    graph = fx.Graph()
    noted = graph.call_function(note, (graph.placeholder("x"),))
    y = graph.call_function(operator, (noted, number))
    graph.output(graph.call_function(aten.relu.default, (y,)))
    same_outcome(graph, torch.ones(2))
    assert len(called) == 4  # both have come to the node before


class Seen(torch.Tensor):
    """An object that counts the operators that convert it."""

    calls = 0

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("where", ["alone", "in a list", "in a list with nodes"])
def test_constants_of_a_tensor_subclass(where: str) -> None:
    constant = torch.arange(3.0).as_subclass(Seen)
    graph = {
        "alone": lambda: graph_of(aten.add.Tensor, ..., constant),
        "in a list": lambda: graph_of(aten.cat.default, [constant, constant]),
        "in a list with nodes": lambda: graph_of(aten.cat.default, [..., constant]),
    }[where]()
    root, x = nn.Module(), torch.ones(3)
    Seen.calls = 0
    theirs = by_torch(root, graph, x)
    asked = Seen.calls
    ours = native_engine.run(root, graph, (x,))
    assert Seen.calls == 2 * asked > 0
    assert type(ours) is type(theirs) is Seen
    assert torch.equal(ours.as_subclass(torch.Tensor), theirs.as_subclass(torch.Tensor))


@pytest.mark.parametrize("operator", [aten.add_.Tensor, aten.mul_.Tensor, aten.sub_.Tensor])
def test_a_number_that_is_written_to_is_new_in_each_run(operator: Any) -> None:
    same_outcome(graph_of(operator, 2.0, ...), torch.tensor(3.0), runs=3)
    same_outcome(graph_of(operator, 2.0, 3.0), torch.tensor(3.0), runs=3)


def test_a_tensor_that_is_written_to_is_the_very_tensor() -> None:
    constant = torch.ones(2)
    graph = graph_of(aten.add_.Tensor, constant, ...)
    for _ in range(3):
        before = constant.clone()
        result = native_engine.run(nn.Module(), graph, (torch.ones(2),))
        assert result is constant
        assert torch.equal(constant, before + 1)


def test_arguments_that_are_keywords_only() -> None:
    same_outcome(graph_of(aten.sum.dim_IntList, ..., [0], True, torch.float64), torch.ones(3))
    same_outcome(graph_of(aten.sum.dim_IntList, ..., [0], dtype=torch.float64), torch.ones(3))
