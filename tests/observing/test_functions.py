"""Decorated functions keep names, signatures and pickles."""

from __future__ import annotations

import inspect
import io
import pickle

import pytest
import torch
from torch.export import ExportedProgram

import fxpress
from fxpress.split_module import split_module
from fxpress.unflatten import unflatten
from tests.observing.operations import OPERATIONS, Operation

EACH = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.function.__qualname__)


@EACH
def test_names_texts_and_signatures(operation: Operation) -> None:
    function = operation.function
    inner = inspect.unwrap(function)
    assert (function.__name__, function.__qualname__) == (inner.__name__, inner.__qualname__)
    assert function.__module__ == inner.__module__
    assert inspect.signature(function) == inspect.signature(inner)
    assert function.__name__ == "__init__" or function.__doc__
    progress = inspect.signature(function).parameters.get("progress")
    assert (progress is not None) == (operation.doing is not None)
    assert progress is None or progress.kind is progress.KEYWORD_ONLY
    assert progress is None or progress.default in (None, False)


@EACH
def test_pickles(operation: Operation) -> None:
    if operation.function.__name__ != "__init__":
        assert pickle.loads(pickle.dumps(operation.function)) is operation.function


def test_results_are_the_same_when_watched(program: ExportedProgram) -> None:
    x = torch.ones(2, 4)
    plain, watched = io.BytesIO(), io.BytesIO()
    fxpress.save(program, plain)
    with fxpress.profile():
        fxpress.save(program, watched)
        made = unflatten(program)
    assert watched.getvalue() == plain.getvalue()
    assert torch.equal(made(x), program.module()(x))


def test_installed_functions_are_watched(program: ExportedProgram) -> None:
    model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with fxpress.installed(), fxpress.profile() as profile:
        exported = torch.export.export(model, (x,), strict=True)
        exported.run_decompositions().module()
        torch.export.unflatten(exported)
    operations = [event for event in profile.events if event.is_operation]
    assert [event.name for event in operations if event.parent is None] == [
        "export",
        "decompose.run_decompositions",
        "export.module",
        "unflatten",
    ]
    capture = next(event for event in operations if event.name == "functional_export.capture")
    assert capture.parent is operations[0]


def test_operations_within_a_compiled_function() -> None:
    graph_module = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU()))

    @torch.compile(backend="eager")
    def use(x: torch.Tensor) -> torch.Tensor:
        split = split_module(graph_module, None, lambda node: 0)
        return split(x + 1)

    x = torch.randn(3)
    assert torch.equal(use(x), torch.relu(x + 1))
    with fxpress.profile():
        assert torch.equal(use(x), torch.relu(x + 1))


def test_unflattened_modules_are_compiled_while_watched(program: ExportedProgram) -> None:
    x = torch.ones(2, 4)
    with fxpress.profile() as profile:
        made = unflatten(program)
        compiled = torch.compile(made, backend="eager", fullgraph=True)
        assert torch.allclose(compiled(x), made(x))
    assert [event.name for event in profile.events if event.is_operation] == ["unflatten"]
