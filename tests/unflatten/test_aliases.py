"""Buffers are written after the last read of the old value, through views of it as well."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.fx import Graph, Node

from fxpress._graphs.unflatten.aliases import may_alias, readers
from fxpress.unflatten import _inplace_buffer_and_input_mutations, unflatten
from tests.support.unflatten_cases import quietly
from tests.support.unflatten_compare import assert_runs_as_eager

aten = torch.ops.aten


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.arange(4.0).reshape(2, 2))
        self.register_buffer("b", torch.arange(4.0).reshape(2, 2) * 10 + 1)


class ReadsView(Buffers):
    """The view is made before the write and read after it."""

    def forward(self, x: Tensor) -> Tensor:
        old = self.a
        view = old.view(4)[:2]
        self.a = old + x
        return view * 2 + self.a[0]


class Rolls(Buffers):
    """As a cache of keys does."""

    def forward(self, x: Tensor) -> Tensor:
        old = self.a
        self.a = torch.cat([old[1:], x[None]])
        return old[:1] + x


class Transposes(Buffers):
    """A write whose value is a view of what is written."""

    def forward(self, x: Tensor) -> Tensor:
        self.a = self.a.t()
        return x + 1


class TakesView(Buffers):
    """A write whose value is a view of what another one writes."""

    def forward(self, x: Tensor) -> Tensor:
        old = self.b
        self.a = old.t()
        self.b = old + x
        return x + 1


class ReadsInNoGrad(Buffers):
    """The view comes out of the body of a higher-order operator."""

    def forward(self, x: Tensor) -> Tensor:
        old = self.a
        with torch.no_grad():
            view = old[0]
        self.a = old + x
        return view + x


class Nested(Buffers):
    """Another module creates the view."""

    class View(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value.reshape(-1)[:2]

    def __init__(self) -> None:
        super().__init__()
        self.view = Nested.View()

    def forward(self, x: Tensor) -> Tensor:
        old = self.a
        view = self.view(old)
        self.a = old * x
        return view - x


class Trains(Buffers):
    """A parameter is written as well."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.w.add_(x)
        self.a = self.a + self.w
        return self.w * x


MODELS = [Trains, ReadsView, Rolls, Transposes, TakesView, ReadsInNoGrad, Nested]
X = torch.tensor([3.0, 5.0])


def functional(model: nn.Module) -> ExportedProgram:
    return export(copy.deepcopy(model), (X,), strict=False).run_decompositions({})


@pytest.mark.parametrize("model", MODELS)
def test_views_of_written_buffers(model: type[nn.Module]) -> None:
    eager = model()
    assert_runs_as_eager(quietly(functional(eager)), eager, (X,), {})


@pytest.mark.parametrize("model", MODELS)
def test_the_step_on_its_own(model: type[nn.Module]) -> None:
    """Against the exported program, which writes when everything is computed."""
    eager = model()
    program = functional(eager)
    names = [spec.arg.name for spec in program.graph_signature.input_specs]
    signature = program.graph_signature
    held = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    kept = [held.get(name) for name in names]
    state = {name: value.detach().clone() for name, value in program.state_dict.items()}
    graph = copy.deepcopy(program.graph)
    _inplace_buffer_and_input_mutations(graph, program.graph_signature)
    graph.lint()
    root = copy.deepcopy(program.graph_module)
    root.graph = graph
    (result,) = root(*(X if name is None else state[name] for name in kept))
    torch.testing.assert_close(result, eager(X))
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(state[name], value)


def test_new_values_that_are_inputs() -> None:
    """They are written at the end, and cloned where another write would change them."""

    class Both(Buffers):
        def forward(self, x: Tensor) -> Tensor:
            self.a, self.b = self.a + x, self.b * x
            return x + 1

    for chosen in (("b_b", "b_a"), ("b_b", "x"), ("x", "x"), ("b_a", "b_a")):
        program = functional(Both())
        graph = copy.deepcopy(program.graph)
        inputs = {node.name: node for node in graph.find_nodes(op="placeholder")}
        (results,) = graph.output_node().args
        graph.output_node().args = ((*(inputs[name] for name in chosen), results[-1]),)
        graph.eliminate_dead_code()
        _inplace_buffer_and_input_mutations(graph, program.graph_signature)
        graph.lint()
        values = {"b_a": Both().a, "b_b": Both().b, "x": X}
        given = {name: value.clone() for name, value in values.items()}
        root = copy.deepcopy(program.graph_module)
        root.graph = graph
        (result,) = root(*(given[name] for name in inputs))
        torch.testing.assert_close(result, X + 1)
        for name, source in zip(("b_a", "b_b"), chosen, strict=True):
            torch.testing.assert_close(given[name], values[source].expand(2, 2))


def test_a_write_that_nobody_has_to_wait_for_stays_with_its_value() -> None:
    class Counts(Buffers):
        def forward(self, x: Tensor) -> Tensor:
            self.a = self.a * 2
            return self.a + x

    nodes = [node.name for node in unflatten(functional(Counts())).graph.nodes]
    at = nodes.index("copy__default")
    assert nodes[at - 1] == "mul"
    assert not any("clone" in name for name in nodes)


def call(graph: Graph, target: object, *args: object) -> Node:
    return graph.call_function(target, args)  # type: ignore[arg-type]


def test_which_nodes_may_alias() -> None:
    """By the schemas, and by running the operator: the result shares the storage."""
    graph = Graph()
    x = graph.placeholder("x")
    value = torch.arange(4.0)
    views = [(aten.view.default, [2, 2]), (aten.t.default,), (aten.dropout.default, 0.5, False)]
    views += [(aten.type_as.default, value), (aten.atleast_2d.default,), (aten.detach.default,)]
    for target, *rest in views:
        result = target(value, *rest)
        assert result.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
        assert may_alias(call(graph, target, x, *rest))
    for target, *rest in [(aten.add.Tensor, 1), (aten.clone.default,), (aten.sum.default,)]:
        assert not may_alias(call(graph, target, x, *rest))
    assert may_alias(graph.call_method("view", (x, 4)))


def test_results_of_bodies() -> None:
    """A body that passes an input on, or a view of one, aliases; a body that computes does not."""
    root, graph = nn.Module(), Graph()
    x = graph.placeholder("x")
    wrap = torch.ops.higher_order.wrap_with_set_grad_enabled
    bodies = {
        "same": lambda x: x,
        "view": lambda x: aten.view.default(aten.t.default(x), [4]),
        "made": lambda x: aten.add.Tensor(x, 1),
        "read": lambda x: aten.sum.default(aten.view.default(x, [4])),
    }
    calls = {}
    root.inner = nn.Module()
    for name, body in bodies.items():
        root.inner.add_module(name, torch.fx.symbolic_trace(body))
        calls[name] = call(graph, wrap, False, graph.get_attr(f"inner.{name}"), x)
    nowhere = call(graph, wrap, False, graph.get_attr("inner.missing"), x)
    graph.owning_module = root
    found = {name: may_alias(node) for name, node in calls.items()}
    assert found == {"same": True, "view": True, "made": False, "read": False}
    assert not may_alias(nowhere)
    assert readers([x]) == {*calls.values(), nowhere}


def test_values_that_are_read_twice() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    view = call(graph, aten.view.default, x, [4])
    both = call(graph, aten.add.Tensor, view, x)
    assert readers([x, view]) == {view, both}


def test_graphs_without_an_output() -> None:
    graph = Graph()
    graph.placeholder("x")
    with pytest.raises(AssertionError, match="output"):
        _inplace_buffer_and_input_mutations(graph, None)


def test_readers_are_found_through_views() -> None:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    view = call(graph, aten.view.default, x, [4])
    total = call(graph, aten.sum.default, view)
    graph.output((call(graph, aten.add.Tensor, total, y),))
    assert readers([x]) == {view, total}
