"""Programs whose weights are subclasses of tensors: export takes them apart in nodes without a
stack of modules, in front of all others. torch fails on those."""

from __future__ import annotations

import copy
import functools
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.export import unflatten as torch_unflatten
from torch.fx import Graph

import fxpress
from fxpress.unflatten import unflatten
from tests.support.subclass_models import MODELS, Scaled, inner
from tests.support.unflatten_compare import assert_untouched, snapshot

PART = torch.ops.export.access_subclass_inner_tensor.default


def x() -> Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


@functools.cache
def made(name: str) -> tuple[nn.Module, ExportedProgram]:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    return model, export(model, (x(),), strict=False)


def parts(graph: Graph) -> int:
    return len(graph.find_nodes(op="call_function", target=PART))


def assert_same_tensor(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, Scaled):
        for pair in zip(inner(ours), inner(theirs), strict=True):
            assert_same_tensor(*pair)
    else:
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_it_runs_with_the_weights_of_the_program(name: str) -> None:
    model, program = made(name)
    assert parts(program.graph) > 0
    before = snapshot(program)
    module = unflatten(program)
    assert_untouched(program, before)
    torch.testing.assert_close(module(x()), model(x()))
    state = module.state_dict(keep_vars=True)
    assert set(state) == set(program.state_dict)
    for key, value in program.state_dict.items():
        assert_same_tensor(state[key], value)
    with pytest.raises(ValueError, match="not enough values to unpack"):
        torch_unflatten(program)


def graphs(module: nn.Module) -> dict[str, Graph]:
    return {
        name: child.graph
        for name, child in module.named_modules(remove_duplicate=False)
        if isinstance(getattr(child, "graph", None), Graph)
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two", {"0": 2, "2.first": 2, "2.second": 2}),
        ("nested", {"first": 4, "second": 6}),
        ("buffer", {"first": 2, "second": 2}),
        ("repeated", {"0": 2, "2": 2}),
        ("tied", {"first": 2, "second": 2}),
        ("around", {"": 2, "child": 2}),
        ("alone", {"": 2}),
    ],
)
def test_each_module_takes_its_weights_apart(name: str, expected: dict[str, int]) -> None:
    """So that it can be called alone, and calls of one module have one graph."""
    model, program = made(name)
    module = unflatten(program)
    found = {at: parts(graph) for at, graph in graphs(module).items()}
    assert {at: count for at, count in found.items() if count} == expected
    assert not [at for at in found if "@" in at]
    for at in expected:
        alone, original = module.get_submodule(at), model.get_submodule(at)
        torch.testing.assert_close(alone(x()), original(x()))
        for graph in graphs(alone).values():
            graph.lint()


@pytest.mark.parametrize("name", MODELS)
def test_it_can_be_copied_saved_and_exported_again(name: str) -> None:
    model, program = made(name)
    module = unflatten(program)
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    for other in (copy.deepcopy(module), torch.load(stream, weights_only=False)):
        torch.testing.assert_close(other(x()), model(x()))
    stream = io.BytesIO()
    fxpress.save(export(module, (x(),), strict=False), stream)
    stream.seek(0)
    read = fxpress.load(stream, allow_pickle=True)
    torch.testing.assert_close(read.module()(x()), model(x()))


def test_a_program_that_was_saved() -> None:
    model, program = made("two")
    stream = io.BytesIO()
    fxpress.save(program, stream)
    stream.seek(0)
    module = unflatten(fxpress.load(stream, allow_pickle=True))
    torch.testing.assert_close(module(x()), model(x()))
    assert parts(module.graph) == 0


def test_a_preserved_signature() -> None:
    torch.manual_seed(0)
    model = MODELS["two"]().eval()
    program = export(model, (x(),), strict=False, preserve_module_call_signature=("2", "2.first"))
    module = unflatten(program)
    torch.testing.assert_close(module(x()), model(x()))
    torch.testing.assert_close(module.get_submodule("2")(x()), model[2](x()))


def test_a_child_is_replaced() -> None:
    model, program = made("two")
    module = unflatten(program)
    module.set_submodule("2.first", nn.Identity())
    expected = model[2].second(model[0](x()).relu().relu())
    torch.testing.assert_close(module(x()), expected)
