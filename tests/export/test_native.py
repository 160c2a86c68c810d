"""The native pass of module(), called with arguments that the Python code does not pass."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export

from fxpress import _native
from fxpress._graphs.export import unlift
from fxpress.export import module

X = torch.ones(3, 4)


def program() -> ExportedProgram:
    return export(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (X,), strict=False)


def source_of(exported: ExportedProgram) -> dict[str, Any]:
    """Return the arguments that the Python code passes for a program."""
    with mock.patch.object(unlift._native, "unlift", side_effect=KeyboardInterrupt) as native:
        with pytest.raises(KeyboardInterrupt):
            module(exported)
        return dict(native.call_args[0][0])


def fresh(source: dict[str, Any]) -> dict[str, Any]:
    return {**source, "into": torch.fx.Graph()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("taken", ()),
        ("lifted", None),
        ("outputs", ()),
        ("written", ()),
        ("state", []),
        ("module_class", 3),
        ("created", 3),
        ("replaced", []),
    ],
)
def test_entries_of_wrong_types(name: str, value: Any) -> None:
    source = source_of(program())
    with pytest.raises(TypeError, match=name):
        _native.unlift({**source, name: value})
    del source[name]
    with pytest.raises(KeyError, match=name):
        _native.unlift(source)


def test_the_graph_to_write_into_has_no_nodes() -> None:
    source = source_of(program())
    source["into"].placeholder("x")
    with pytest.raises(ValueError, match="is not empty"):
        _native.unlift(source)


@pytest.mark.parametrize(
    ("name", "value"),
    [("lifted", 3), ("written", 3), ("taken", 3), ("graph", 3), ("origin", 3)],
)
def test_odd_values_are_errors_of_python(name: str, value: Any) -> None:
    source = fresh(source_of(program()))
    given = source[name]
    source[name] = [value] * max(len(given), 1) if isinstance(given, list) else value
    with pytest.raises((TypeError, AttributeError, AssertionError, RuntimeError)):
        _native.unlift(source)
    assert module(program())(X).shape == X.shape


def test_nodes_that_were_edited_meanwhile() -> None:
    """The type of the state runs code while the graph is written."""
    exported = program()

    class Edits(dict):  # type: ignore[type-arg]
        def copy(self) -> Any:
            for node in exported.graph.nodes:
                if node.op == "call_function":
                    node.args = tuple(reversed(node.args))
            return dict(self)

    exported.graph.find_nodes(op="placeholder")[-1].meta = Edits(
        exported.graph.find_nodes(op="placeholder")[-1].meta
    )
    with pytest.raises(RuntimeError, match="was modified"):
        module(exported)


def test_names_that_are_taken_are_not_given() -> None:
    source = fresh(source_of(program()))
    wanted = next(name for name in source["lifted"] if name)
    taken = "_" + wanted.replace(".", "_")
    made = _native.unlift({**source, "taken": [taken, "free"]})
    names = [node.name for node in made.graph.nodes]
    assert taken not in names
    assert {taken, "free"} <= made.graph._graph_namespace._used_names
    assert made.graph.create_node("placeholder", "free").name == "free_1"
