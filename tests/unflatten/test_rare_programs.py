"""Programs that no exporter makes, or that few models lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export

from fxpress import _native
from fxpress.unflatten import unflatten
from tests.support.unflatten_cases import assert_unflattens_as_torch, outcome, quietly, torchs
from tests.support.unflatten_compare import assert_runs_as_eager

X = torch.arange(2.0)


class Counts(nn.Module):
    """Changes two of its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.ones(2))
        self.register_buffer("second", torch.ones(2))
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.first.add_(1)
        self.second.mul_(2)
        return self.linear(x + self.first) * self.second


def counts() -> ExportedProgram:
    return export(Counts(), (X,), strict=False).run_decompositions({})


# ---- mutations ----


def test_fewer_results_than_mutations() -> None:
    """torch unflattens a program that lacks the values of the mutations."""
    program = counts()
    output = program.graph.output_node()
    output.args = (output.args[0][:1],)
    with pytest.raises(AssertionError, match="fewer values than its signature mutates"):
        quietly(program)


def test_a_result_that_is_no_sequence() -> None:
    program = counts()
    output = program.graph.output_node()
    output.args = (output.args[0][0],)
    with pytest.raises(AssertionError, match="fewer values than its signature mutates"):
        quietly(program)
    with pytest.raises(TypeError):
        torchs(program)


@pytest.mark.parametrize("buffer", ["first", "second"])
def test_a_mutated_input_that_the_graph_lacks(buffer: str) -> None:
    program = counts()
    spec = next(s for s in program.graph_signature.input_specs if s.target == buffer)
    spec.arg.name = "nowhere"
    for call in (quietly, torchs):
        with pytest.raises(KeyError, match="nowhere"):
            call(program)


# ---- attributes of the graph ----


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * 0.5


@pytest.mark.parametrize("target", ["aten.linear", "aten.mul.Tensor"])
def test_a_tensor_that_the_graph_gets_as_an_attribute(target: str) -> None:
    model = Scales()
    program = export(model, (X,), strict=False)
    program.graph_module.register_buffer("extra", torch.full((2,), 3.0))
    graph = program.graph
    node = next(n for n in graph.nodes if target in str(n.target))
    with graph.inserting_after(node):
        attribute = graph.get_attr("extra")
    with graph.inserting_after(attribute):
        product = graph.call_function(torch.ops.aten.mul.Tensor, (node, attribute))
    attribute.meta, product.meta = dict(node.meta), dict(node.meta)
    node.replace_all_uses_with(product, lambda user: user is not product)
    ours = assert_unflattens_as_torch(program).ours
    torch.testing.assert_close(ours(X), 3 * model(X))


# ---- modules ----


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leaf = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.leaf(x))


class Skips(nn.Module):
    """Calls the child of its child, or its child."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = Middle()

    def forward(self, x: Tensor, skips: bool) -> Tensor:
        return self.middle.leaf(x) + 1 if skips else self.middle(x) * 2


class TwoNames(nn.Module):
    def __init__(self, order: tuple[bool, ...]) -> None:
        super().__init__()
        self.a = Skips()
        self.b = self.a
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        for place, skips in enumerate(self.order):
            x = (self.b if place % 2 else self.a)(x, skips)
        return x


ORDERS = [(True, False), (True, False, False), (True, False, False, True), (False, True, False)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("strict", [False, True])
def test_a_child_that_is_passed_by_under_one_name_and_called_under_another(
    order: tuple[bool, ...], strict: bool
) -> None:
    """torch leaves second names for calls that it has merged, or fails for them."""
    model = TwoNames(order)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.abs_()  # so that the results are not zeros
    program = export(model, (X,), strict=strict)
    assert_runs_as_eager(quietly(program), model, (X,), {}, gradients=True)


class Holder(nn.Module):
    """Two calls of it have two graphs."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__()
        if kind == "buffer":
            self.register_buffer(name, torch.arange(2.0))
        elif kind == "parameter":
            self.register_parameter(name, nn.Parameter(torch.ones(2)))
        else:
            self.add_module(name, nn.Linear(2, 2))
        self.name = name

    def forward(self, x: Tensor, adds: bool) -> Tensor:
        if self.name in self._modules:
            child = self._modules[self.name]
            assert child is not None
            return child(x) + 1 if adds else child(x) * 2
        value = {**self._buffers, **self._parameters}[self.name]
        assert value is not None
        return x + value if adds else x * value


class CallsTwice(nn.Module):
    def __init__(self, name: str, kind: str) -> None:
        super().__init__()
        self.inner = Holder(name, kind)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x, True), False)


def preserved(name: str, kind: str) -> ExportedProgram:
    model = CallsTwice(name, kind)
    return export(model, (X,), strict=False, preserve_module_call_signature=("inner",))


KINDS = ["buffer", "parameter", "child"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["graph", "finalize", "print_readable"])
def test_names_that_the_calls_of_a_dispatcher_have_for_something_else(name: str, kind: str) -> None:
    with pytest.raises(KeyError, match=f"attribute '{name}' already exists.*module 'inner'"):
        quietly(preserved(name, kind))
    with pytest.raises(KeyError, match=f"attribute '{name}' already exists"):
        torchs(preserved(name, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["parent", "fqn", "graph_module"])
def test_names_that_are_free_for_the_calls_of_a_dispatcher(name: str, kind: str) -> None:
    model = CallsTwice(name, kind)
    program = export(model, (X,), strict=False, preserve_module_call_signature=("inner",))
    assert_runs_as_eager(quietly(program), model, (X,), {})


# ---- the state of a program, by itself ----


def program_state(**changed: Any) -> Callable[[], Any]:
    facts = {
        "names": ["w"],
        "values": [torch.ones(1)],
        "constants_begin": 1,
        "groups": [0],
        "specs": [],
        "check_constant": lambda name, value: None,
        "copies_unused": True,
    }
    return lambda: _native.ProgramState(**{**facts, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"names": []}, "a name and a group for each value"),
        ({"values": []}, "a name and a group for each value"),
        ({"groups": [0, 0]}, "a name and a group for each value"),
        ({"constants_begin": 2}, "a name and a group for each value"),
        ({"groups": [1]}, "a group is out of range"),
    ],
)
def test_lists_that_do_not_fit(changed: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        program_state(**changed)()


@pytest.mark.parametrize("count", [0, 2])
def test_copies_that_do_not_fit(count: int) -> None:
    state = program_state()()
    values, _ = state.wanted()
    assert len(values) == 1
    with pytest.raises(ValueError, match="expected a list of 1 copies"):
        state.fill([torch.ones(1)] * count)


@pytest.mark.parametrize("argument", [object(), None, 3], ids=["object", "none", "int"])
@pytest.mark.parametrize("index", [0, 2], ids=["parameter", "buffer"])
def test_an_input_without_a_name(index: int, argument: Any) -> None:
    program = export(Counts(), (X,), strict=False)
    program.graph_signature.input_specs[index].arg = argument
    ours, theirs = outcome(lambda: unflatten(program)), outcome(lambda: torchs(program))
    assert isinstance(ours, AssertionError)
    assert isinstance(theirs, AssertionError)
